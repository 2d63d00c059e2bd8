"""ONNX in, layer program out: import, simplify, fuse, quantise, place on NPU or CPU, plan memory."""

from .driver import ModelCheck, check, compile
from .outline import ModelOutline

__all__ = ["ModelCheck", "ModelOutline", "check", "compile"]
