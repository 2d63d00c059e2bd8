"""Activations that are fused to TFLite's operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .builder import Builder
from .model import TfliteOperator

__all__ = ["emit"]

_ACTIVATIONS: dict[int, tuple[str, tuple[float, ...]]] = {
    1: ("Relu", ()),
    2: ("Clip", (-1.0, 1.0)),
    3: ("Clip", (0.0, 6.0)),
    4: ("Tanh", ()),
}


def emit(
    builder: Builder, operator: TfliteOperator, activation: int, form: str, op: str, inputs: Sequence[str], **attributes: Any
) -> str:
    """The node *op* that makes the result of *operator*, and the activation after it; what the node itself makes.

    :param activation: its number in the file; 0 for none
    """
    if activation and activation not in _ACTIVATIONS:
        raise builder.refusal(operator, f"activation number {activation} is fused to it")
    name = builder.result(operator.outputs[0], form)
    if not activation:
        return builder.node(op, inputs, [name], **attributes)
    linear = builder.node(op, inputs, [builder.free(f"{name}/linear")], **attributes)
    kind, bounds = _ACTIVATIONS[activation]
    if name in builder.ranges and kind in ("Relu", "Clip"):  # codes of the result cut off what the activation does
        builder.ranges[linear] = builder.ranges[name]
    builder.node(kind, [linear, *(builder.scalar(bound) for bound in bounds)], [name])
    return linear
