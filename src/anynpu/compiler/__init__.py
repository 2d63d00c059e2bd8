"""ONNX in, layer program out: import, simplify, fuse, quantise, place on NPU or CPU, plan memory."""

from ..tails import Tail
from .compile_options import CompileOptions
from .custom import CustomOperator
from .driver import ModelCheck, check, compile
from .lint import Finding
from .metrics import METRICS
from .optimize import Optimized, optimize
from .outline import ModelOutline
from .recipe import ACCURACIES, STEPS
from .study import lint

__all__ = [
    "ACCURACIES",
    "METRICS",
    "STEPS",
    "CompileOptions",
    "CustomOperator",
    "Finding",
    "ModelCheck",
    "ModelOutline",
    "Optimized",
    "Tail",
    "check",
    "compile",
    "lint",
    "optimize",
]
