"""onnxruntime's names on our sessions: ``import anynpu.session.onnxruntime as ort``, or ``import anynpu as ort``.

A program for onnxruntime changes this import, or none under ``anynpu exec --onnxruntime``. Its models are compiled ones, or ONNX files
that are compiled at first use (:mod:`anynpu.session.onnxruntime.source`).

>>> import anynpu.onnxruntime as ort
>>> options = ort.SessionOptions()
>>> options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
>>> session = ort.InferenceSession("det.rknn", options, providers=["CPUExecutionProvider"])          # doctest: +SKIP
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from .. import ModelMetadata, NodeArg
from . import capi
from .options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtAllocatorType,
    OrtMemType,
    RunOptions,
    SessionOptions,
)
from .providers import ForeignProviderWarning, get_all_providers, get_available_providers
from .session import InferenceSession
from .values import IOBinding, OrtDevice, OrtValue

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "ForeignProviderWarning",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtAllocatorType",
    "OrtDevice",
    "OrtMemType",
    "OrtValue",
    "RunOptions",
    "SessionIOBinding",
    "SessionOptions",
    "__version__",
    "capi",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "preload_dlls",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
]

__version__ = "1.20.0"
"""The version of onnxruntime whose names these are: programs compare it."""

SessionIOBinding = IOBinding

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


def get_device() -> str:
    """What sessions run on.

    >>> get_device()
    'NPU'
    """
    return "NPU"


def get_version_string() -> str:
    """The same as ``__version__``."""
    return __version__


def get_build_info() -> str:
    """One line about this package, for logs."""
    from importlib import metadata

    return f"anynpu {metadata.version('anynpu')}, with the names of onnxruntime {__version__}"


def set_default_logger_severity(severity: int) -> None:
    """Set what the logger ``anynpu`` lets through: 0 all, 1 information, 2 warnings, 3 errors, 4 fatal errors."""
    logging.getLogger("anynpu").setLevel(_LEVELS[max(0, min(int(severity), len(_LEVELS) - 1))])


def set_default_logger_verbosity(verbosity: int) -> None:
    """Without effect: there is one level of detail for each severity."""


def set_seed(seed: int) -> None:
    """Without effect: an NPU has no random numbers."""


def disable_telemetry_events() -> None:
    """Without effect: there is no telemetry."""


def enable_telemetry_events() -> None:
    """Without effect: there is no telemetry."""


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None) -> Sequence[str]:
    """Without effect: no libraries of a GPU are needed."""
    return ()
