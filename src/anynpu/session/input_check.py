"""A look at the values that a session is fed: far outside of what the model was calibrated for, or all within a step or two.

Each is a mistake in preprocessing more often than not (pictures of 0 to 255 where 0 to 1 was calibrated, or the other way round), and gives
results that look like a bad model. So it is said once per input, as a warning of the logger ``anynpu.session``. The first request is
looked at, then the second, the fourth, the eighth and so on: what is wrong shows early, and a long run pays nothing.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence

import numpy as np

from .._util.types import Array
from ..tensor import Affine, DType, TensorSpec

__all__ = ["InputCheck"]

log = logging.getLogger("anynpu.session")

_MAX_OUTSIDE = 0.01
"""Share of values that may lie outside of the range: calibration by percentiles leaves some there."""
_MAX_FLOAT16 = 65504.0
_MIN_STEPS = 4.0
"""Values that differ by less than so many steps of the scale have lost nearly all they say."""


class InputCheck:
    """Looks at feeds now and then.

    :ivar next: the number of the request that is looked at next; never, when all was said
    """

    def __init__(self, inputs: Sequence[TensorSpec]) -> None:
        self._inputs = inputs
        self._lock = threading.Lock()
        self._left = {index for index, spec in enumerate(inputs) if spec.dtype.is_float or spec.quantization is not None}
        self.next: float = 1 if self._left else math.inf

    def look(self, number: int, arrays: Sequence[Array]) -> None:
        """Look at the arrays of request *number*, counted from 1, and warn of each input that looks wrong."""
        with self._lock:
            self.next = 2 * number
            for index in sorted(self._left):
                problem = _problem(self._inputs[index], arrays[index])
                if problem:
                    self._left.discard(index)
                    log.warning("input '%s': %s", self._inputs[index].name, problem)
            if not self._left:
                self.next = math.inf


def _problem(spec: TensorSpec, array: Array) -> str:
    """What is wrong with the values for an input; empty where nothing is."""
    if array.dtype.kind != "f" or not array.size:
        return ""
    low, high = float(array.min()), float(array.max())
    if math.isnan(low):
        return ""  # which is reported in any run
    if spec.dtype is DType.FLOAT16 and _MAX_FLOAT16 < max(-low, high) < math.inf:
        return f"values go from {low:.4g} to {high:.4g}, and the input is float16, which ends at {_MAX_FLOAT16:g}"
    bounds = _bounds(spec)
    if bounds is None:
        return ""
    least, greatest, step = bounds
    if low < least - step or high > greatest + step:
        outside = np.count_nonzero((array < least - step) | (array > greatest + step)) / array.size
        if outside > _MAX_OUTSIDE:
            return (
                f"{outside:.0%} of the values lie outside of {least:.4g} to {greatest:.4g}, for which the model was calibrated, "
                f"and are cut off (they go from {low:.4g} to {high:.4g}); check the preprocessing"
            )
    if 0 < high - low < _MIN_STEPS * step:
        return (
            f"all values lie between {low:.4g} and {high:.4g}, which is less than {_MIN_STEPS:g} steps of the model's range "
            f"({least:.4g} to {greatest:.4g}); check the preprocessing"
        )
    return ""


def _bounds(spec: TensorSpec) -> tuple[float, float, float] | None:
    """The values that an input can hold, and the distance of two of them."""
    quantization = spec.quantization
    if quantization is None:
        return None
    scales, zeros = (
        (quantization.scales, quantization.zero_points) if isinstance(quantization, Affine) else ((quantization.scale,), (0,))
    )
    first, last = spec.dtype.limits
    pairs = list(zip(scales, zeros, strict=True))
    least, greatest = min(scale * (first - zero) for scale, zero in pairs), max(scale * (last - zero) for scale, zero in pairs)
    return least, greatest, max(scales)
