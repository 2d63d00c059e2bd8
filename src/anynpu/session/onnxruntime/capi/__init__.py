"""Where programs look for onnxruntime's exceptions."""

from . import _pybind_state, onnxruntime_pybind11_state

__all__ = ["_pybind_state", "onnxruntime_pybind11_state"]
