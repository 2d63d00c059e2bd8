"""ONNX in, layer program out: import, simplify, fuse, quantize, place on NPU or CPU, plan memory."""

from typing import TYPE_CHECKING

from .._util.lazy_names import lazy_names

if TYPE_CHECKING:
    from ..modelfile.post_processing import Tail
    from .compile_options import CompileOptions
    from .custom_operators import CustomOperator
    from .lower.outline import ModelOutline
    from .passes.optimize import Optimized, optimize
    from .pipeline import ModelCheck, check, compile
    from .quantize.config import ACCURACIES, STEPS
    from .quantize.lint import Finding
    from .quantize.metrics import METRICS
    from .quantize.model_samples import lint

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

# Names are imported at first use: commands ask for parts of this package without the compiler itself.
_MODULES: dict[str, tuple[str, ...]] = {
    ".modelfile.post_processing": ("Tail",),
    "compile_options": ("CompileOptions",),
    "custom_operators": ("CustomOperator",),
    "lower.outline": ("ModelOutline",),
    "passes.optimize": ("Optimized", "optimize"),
    "pipeline": ("ModelCheck", "check", "compile"),
    "quantize.config": ("ACCURACIES", "STEPS"),
    "quantize.lint": ("Finding",),
    "quantize.metrics": ("METRICS",),
    "quantize.model_samples": ("lint",),
}

__getattr__ = lazy_names(__name__, _MODULES)
