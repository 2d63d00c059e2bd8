"""Sessions: the simplest and fastest way to run a model on every core.

>>> from anynpu.session import InferenceSession, make_provider_options
>>> options = make_provider_options(schedule=[0, 1, 2], layout="nhwc")
>>> with InferenceSession("yolo.rknn", provider_options=options) as session:                 # doctest: +SKIP
...     boxes, scores = session.run(None, {"images": frame})
"""

from __future__ import annotations

from typing import Any

from .backend import Backend, Bound, DeviceFactory, Lane, Marks, Memory
from .binding import IOBinding
from .feeds import Feed
from .nodes import ModelMetadata, NodeArg
from .options import (
    LayoutLike,
    OutputTypeLike,
    PathLikeStr,
    RknnProviderOptions,
    Rknpu2ProviderOptions,
    ScheduleLike,
    SessionOptions,
    TpModeLike,
    ZeroCopyLayoutLike,
    make_provider_options,
    make_rknpu2_provider_options,
    make_rknpu3_provider_options,
)
from .ortvalue import OrtValue
from .request import Job
from .session import InferenceSession
from .statistics import LaneStatistics, Percentiles, RunTimes, Statistics

__all__ = [
    "Backend",
    "Bound",
    "DeviceFactory",
    "Feed",
    "IOBinding",
    "InferenceSession",
    "Job",
    "Lane",
    "LaneStatistics",
    "LayoutLike",
    "Marks",
    "Memory",
    "ModelMetadata",
    "NodeArg",
    "OrtValue",
    "OutputTypeLike",
    "PathLikeStr",
    "Percentiles",
    "RknnProviderOptions",
    "Rknpu2ProviderOptions",
    "RunTimes",
    "ScheduleLike",
    "SessionIOBinding",
    "SessionOptions",
    "Statistics",
    "TpModeLike",
    "ZeroCopyLayoutLike",
    "__version__",
    "make_provider_options",
    "make_rknpu2_provider_options",
    "make_rknpu3_provider_options",
]

SessionIOBinding = IOBinding
"""The name that EZ RKNN Async has for it as well."""


def __getattr__(name: str) -> Any:
    if name == "__version__":  # at first use: looking it up reads files
        from importlib import metadata

        return metadata.version("anynpu")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
