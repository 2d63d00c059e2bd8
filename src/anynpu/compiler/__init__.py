"""ONNX in, layer program out: import, simplify, fuse, quantise, place on NPU or CPU, plan memory."""

from .driver import check, compile

__all__ = ["check", "compile"]
