"""TFLite files: a reader of the flat buffer, and the way to ONNX."""

from .convert import tflite_to_onnx
from .model import is_tflite

__all__ = ["is_tflite", "tflite_to_onnx"]
