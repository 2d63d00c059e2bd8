"""Optional packages, imported at first use with a clear error where one is missing."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Any

from .errors import MissingDependencyError

MISTAKEN_OPTIMIZERS = ["Pad_Fusion"]
"""Optimisers of onnxruntime that change results: in 1.31 this one turns the zeros of a Pad before a MaxPool into minus infinity."""


MAX_PIXELS = 1 << 27
"""Of a picture: 400 MB in colour. OpenCV's own bound is eight times that, which a file of three megabytes can reach."""


def _load(package: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if not f"{package}.".startswith(f"{error.name}."):  # something else is missing
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
    """The package ``cv2`` (opencv-python-headless), which refuses pictures of more than :data:`MAX_PIXELS` before it decodes them.

    It reads that bound once, when it is loaded; a program that has loaded it before keeps its own.
    """
    os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(MAX_PIXELS))
    return _load("cv2", "vision")


def pyopencl() -> Any:
    """The package ``pyopencl``."""
    return _load("pyopencl", "opencl")


def grpc() -> Any:
    """The package ``grpc`` (grpcio)."""
    return _load("grpc", "serve")


def grpc_aio() -> Any:
    """The asyncio half of ``grpc``."""
    return _load("grpc.aio", "serve")


def httptools() -> Any:
    """The package ``httptools``."""
    return _load("httptools", "serve")


def prometheus_client(module: str = "") -> Any:
    """The package ``prometheus_client``, or a module of it."""
    return _load(f"prometheus_client.{module}" if module else "prometheus_client", "serve")


def protobuf(module: str) -> Any:
    """A module of ``google.protobuf``."""
    return _load(f"google.protobuf.{module}", "serve")


def ray(module: str = "") -> Any:
    """The package ``ray``, or a module of it."""
    return _load(f"ray.{module}" if module else "ray", "cluster")


def opentelemetry(module: str) -> Any:
    """A module of ``opentelemetry``, which several packages share."""
    return _load(f"opentelemetry.{module}", "trace")
