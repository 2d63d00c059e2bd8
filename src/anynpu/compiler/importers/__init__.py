"""Ways in besides ONNX: TFLite, PyTorch, TensorFlow. Each gives an ONNX model, and the compiler knows nothing else."""

from .annotations import KnownScales, annotate, known_scales
from .pytorch import torch_file_to_onnx
from .recognize import as_onnx, is_foreign, takes_examples, takes_folder

__all__ = [
    "KnownScales",
    "annotate",
    "as_onnx",
    "is_foreign",
    "known_scales",
    "takes_examples",
    "takes_folder",
    "torch_file_to_onnx",
]
