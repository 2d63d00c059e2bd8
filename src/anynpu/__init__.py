"""Run neural networks on Rockchip and Allwinner NPUs, and on a software NPU that stands in for the board.

>>> import anynpu
>>> model = anynpu.compile("det.onnx", target="rk3588", dataset="pages/", std=(255, 255, 255))    # doctest: +SKIP
>>> model.save("det.rknn")                                                                       # doctest: +SKIP
>>> with anynpu.Device("rk3588") as device:                                                      # doctest: +SKIP
...     (boxes,) = device.load("det.rknn").context().run({"x": image}, layout="nhwc")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .compiler import CompileOptions, check, compile
    from .modelfile import CompiledModel as Model
    from .modelfile import read as load
    from .npu import Device
    from .reports import Report, report
    from .session import InferenceSession, make_provider_options

__all__ = [
    "CompileOptions",
    "Device",
    "InferenceSession",
    "Model",
    "Report",
    "check",
    "compile",
    "load",
    "make_provider_options",
    "report",
]

# Names are imported at first use: `import anynpu` costs numpy and nothing else.
_HOMES = {
    "CompileOptions": ("compiler", "CompileOptions"),
    "Device": ("npu", "Device"),
    "InferenceSession": ("session", "InferenceSession"),
    "Model": ("modelfile", "CompiledModel"),
    "Report": ("reports", "Report"),
    "check": ("compiler", "check"),
    "compile": ("compiler", "compile"),
    "load": ("modelfile", "read"),
    "make_provider_options": ("session", "make_provider_options"),
    "report": ("reports", "report"),
}


def __getattr__(name: str) -> Any:
    try:
        module, attribute = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module 'anynpu' has no attribute {name!r}") from None
    value = getattr(importlib.import_module(f".{module}", __name__), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
