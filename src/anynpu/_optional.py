"""Optional packages, imported at first use with a clear error where one is missing."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Any

from .errors import MissingDependencyError

MISTAKEN_OPTIMIZERS = ["Pad_Fusion"]
"""Optimisers of onnxruntime that change results: in 1.31 this one turns the zeros of a Pad before a MaxPool into minus infinity."""


def _load(package: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package.partition(".")[0]:
            raise
        raise MissingDependencyError.for_extra(package, extra) from None


def onnx() -> Any:
    """The package ``onnx``."""
    return _load("onnx", "sim")


def onnxruntime() -> Any:
    """The package ``onnxruntime``, without its telemetry: that starts a thread, writes under the user's cache folder, and makes
    forked children hang at exit."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    return _load("onnxruntime", "sim")


def cv2() -> Any:
    """The package ``cv2`` (opencv-python-headless)."""
    return _load("cv2", "vision")


def pyopencl() -> Any:
    """The package ``pyopencl``."""
    return _load("pyopencl", "opencl")
