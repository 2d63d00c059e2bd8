"""ONNX in, layer program out: import, simplify, fuse, quantise, place on NPU or CPU, plan memory."""

from .custom import CustomOperator
from .driver import ModelCheck, check, compile
from .outline import ModelOutline

__all__ = ["CustomOperator", "ModelCheck", "ModelOutline", "check", "compile"]
