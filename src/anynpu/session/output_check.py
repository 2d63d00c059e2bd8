"""A look at the values that a session gives: infinite ones and NaN are said once per output, as a warning of the logger ``anynpu.session``.

A float16 model gives them where a sum goes beyond 65504, as on the chip; nothing else tells of it. The first result is looked at, then the
second, the fourth, the eighth and so on, so that a long run pays nothing.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence

import numpy as np

from .._util.types import Array
from ..tensor import DType, TensorSpec

__all__ = ["OutputCheck"]

log = logging.getLogger("anynpu.session")

_HALF = (
    "; the model computes in float16, which ends at 65504: compile it with data (dataset=...) to be told of the layer, "
    "or to int8 or bfloat16"
)


class OutputCheck:
    """Looks at results now and then. Any thread may call it.

    :ivar next: the number of the result that is looked at next; never, when all was said or no output is of floats
    """

    def __init__(self, outputs: Sequence[TensorSpec]) -> None:
        self._outputs = outputs
        self._lock = threading.Lock()
        self._left = {index for index, spec in enumerate(outputs) if spec.dtype.is_float}
        self.next: float = 1 if self._left else math.inf

    def look(self, number: int, wanted: Sequence[int], arrays: Sequence[Array]) -> None:
        """Look at the arrays of result *number*, counted from 1; *wanted* are the numbers of their outputs."""
        with self._lock:
            self.next = 2 * number
            for index, array in zip(wanted, arrays, strict=True):
                if index not in self._left or array.dtype.kind != "f":
                    continue
                bad = array.size - int(np.count_nonzero(np.isfinite(array)))
                if bad:
                    self._left.discard(index)
                    spec = self._outputs[index]
                    log.warning(
                        "output '%s': %d of %d values are infinite or not a number (NaN)%s",
                        spec.name,
                        bad,
                        array.size,
                        _HALF if spec.dtype is DType.FLOAT16 else "",
                    )
            if not self._left:
                self.next = math.inf
