"""Ways in besides ONNX: TFLite, PyTorch, TensorFlow. Each gives an ONNX model, and the compiler knows nothing else."""

from .frameworks import as_onnx, is_foreign, takes_examples, takes_folder, torch_file_to_onnx
from .quantized_models import KnownScales, annotate, known_scales

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
