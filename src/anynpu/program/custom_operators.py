"""Custom operators of the layer program: what the program's user computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .._util.types import Array
from ..tensor import DType, Layout, TensorSpec

__all__ = ["AttributeValue", "Custom", "CustomConstant"]


AttributeValue = Array | str | tuple[str, ...]
"""An attribute of a custom operator: int64 for whole numbers, float32 for others (a single one has no axes), text, or several texts."""


@dataclass(frozen=True, eq=False)
class CustomConstant:
    """An input of a custom operator that never changes. It lies with the weights, row-major.

    :ivar position: its place among all inputs of the operator
    """

    position: int
    name: str
    value: Array

    @property
    def spec(self) -> TensorSpec:
        """The constant as a tensor."""
        return TensorSpec(self.name, self.value.shape, DType(self.value.dtype.name), Layout.row_major(self.value.ndim))


@dataclass(frozen=True, eq=False)
class Custom:
    """An operator that the program's user computes, on the CPU. Its tensors are row-major; those of real numbers are float32.

    :ivar op_type: the name under which the function that computes it is registered
    :ivar constants: inputs that are constants; the inputs of the layer are the others, in order
    """

    op_type: str
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    constants: tuple[CustomConstant, ...] = ()
