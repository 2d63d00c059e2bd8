"""The software NPU: the device that stands in for a board.

>>> from anynpu.npu import Device
>>> with Device("rk3588") as device:                                     # doctest: +SKIP
...     model = device.load("det.rknn")
...     with model.context() as context:
...         (heat,) = context.run({"x": page}, layout="nhwc")
"""

from __future__ import annotations

from .context import Context, CustomCall, CustomFunction, CustomTensor
from .control import RunControl
from .cores import CoreMask, CoreScheduler, CoreStatistics, Lease
from .device import Device, LoadedModel, RealTimeClock, RealTimeReport
from .engines.base import Engine, Executable, LayerTime, ReferenceEngine
from .engines.native import NativeEngine
from .jobs import DeviceJob, Stage, run_stages, start_stages
from .memory import Buffer, MemoryPool, MemoryUsage, Purpose

__all__ = [
    "Buffer",
    "Context",
    "CoreMask",
    "CoreScheduler",
    "CoreStatistics",
    "CustomCall",
    "CustomFunction",
    "CustomTensor",
    "Device",
    "Engine",
    "Executable",
    "DeviceJob",
    "LayerTime",
    "Lease",
    "LoadedModel",
    "MemoryPool",
    "MemoryUsage",
    "NativeEngine",
    "Purpose",
    "RealTimeClock",
    "RealTimeReport",
    "ReferenceEngine",
    "RunControl",
    "Stage",
    "run_stages",
    "start_stages",
]
