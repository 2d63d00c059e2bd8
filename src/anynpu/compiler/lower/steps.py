"""Steps: what the NPU does in one go, still in float. :mod:`anynpu.compiler.lower.fuse` makes them from nodes."""

from __future__ import annotations

from dataclasses import dataclass

from ..._util.types import Array
from ...program.arithmetic.lookup_tables import Shape
from ..graph import Node
from .forms import Form
from .functions import Function


@dataclass(frozen=True, eq=False)
class Activation:
    """A function that is applied to every element.

    :ivar bounds: it is nothing but a clamp to these
    :ivar slope: it is nothing but a leak of negative values, one factor or one a channel
    """

    function: Function
    label: str
    nodes: tuple[Node, ...]
    bounds: tuple[float, float] | None = None
    slope: Array | None = None

    @property
    def is_table(self) -> bool:
        return self.bounds is None and self.slope is None


@dataclass(eq=False)
class Step:
    """One future layer.

    :ivar form: how integers compute it; None: it can only be computed in float
    :ivar node: the node that gives it its name and attributes
    :ivar inputs: the tensors it reads, without the residual
    :ivar before_activation: the tensor between the operator and its activation
    :ivar residual: a tensor that is added before the activation
    :ivar is_float: it is computed in float, whatever its form
    :ivar curve: the function that its activation is, where the chip takes it on the unrounded result
    :ivar unrounded: its activation works on the unrounded result, in float
    """

    form: Form | None
    node: Node
    nodes: list[Node]
    inputs: list[str]
    outputs: list[str]
    activation: Activation | None = None
    before_activation: str = ""
    residual: str = ""
    is_float: bool = False
    curve: Shape | None = None
    unrounded: bool = False

    @property
    def rounds_before_activation(self) -> bool:
        """Whether a code stands between the operator and its activation."""
        fused = self.activation is not None and self.form is not Form.FUNCTION
        return fused and self.activation.is_table and self.curve is None and not self.unrounded  # type: ignore[union-attr]

    @property
    def reads(self) -> list[str]:
        """All tensors it reads."""
        return [*self.inputs, self.residual] if self.residual else self.inputs

    @property
    def kind(self) -> str:
        """What perf tables print."""
        return self.operator + ("Add" if self.residual else "") + self.function

    @property
    def operator(self) -> str:
        """The operator without what is fused to it; empty for a function alone."""
        return "" if self.form is Form.FUNCTION else self.node.custom or self.node.op

    @property
    def function(self) -> str:
        """The name of its activation; empty without one."""
        return self.activation.label if self.activation else ""
