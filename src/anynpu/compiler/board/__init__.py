"""From ONNX to a board: the vendor's toolkit in a process of its own, and the anynpu model of what it builds."""

from .build import Built, build
from .environment import Toolkit, find_toolkit, install

__all__ = ["Built", "Toolkit", "build", "find_toolkit", "install"]
