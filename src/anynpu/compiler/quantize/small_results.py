"""Results that are small against one code of what they are chosen from: integers would say little about them.

The least of many numbers may be small against the largest, and the codes are spread over all of them. Then it is found among real numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..lower.forms import Form
from ..lower.steps import Step
from .calibrate import Calibration

__all__ = ["too_coarse"]

_CODES = 255
_LEAST = 8
"""A result that spans fewer codes of its operand is not chosen among codes."""

_FOLLOWING = {Form.FUNCTION, Form.CONCAT, Form.SLICE, Form.PAD, Form.TRANSPOSE, Form.RESHAPE}


def too_coarse(steps: Sequence[Step], seen: Calibration) -> set[str]:
    """The operands of maxima that have to stay real, with what cheap integer steps make them from; a minimum is a maximum turned over."""
    observed = set(seen.observer.names)
    found: set[str] = set()
    for step in reversed(steps):
        if step.is_float:
            continue
        if step.form is Form.POOL and "Max" in step.node.op and observed.issuperset((step.outputs[0], step.inputs[0])):
            result, operand = _span(seen, step.outputs[0]), _span(seen, step.inputs[0])
            if 0.0 < result < _LEAST * operand / _CODES:
                found.add(step.inputs[0])
        elif step.form in _FOLLOWING and not found.isdisjoint(step.outputs):
            found.update(step.reads)
    return found


def _span(seen: Calibration, name: str) -> float:
    low, high = seen.observer.range(name, "minmax")
    return max(high, 0.0) - min(low, 0.0)
