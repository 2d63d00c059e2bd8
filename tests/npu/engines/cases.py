"""Random small operators whose outputs are centerd.

An output that sits on the limits of its type hides errors: with most quantized values at -128 or 127 a wrong zero point goes
unnoticed. Every builder therefore looks at its accumulators first (with the oracle) and chooses multiplier, bias and zero point
so that the quantized values fill the middle of the range.
"""

from __future__ import annotations

import functools

import numpy as np

from anynpu.tensor import DType

from . import cases_arithmetic, cases_fixed, cases_movement, oracle  # noqa: F401 (importing them fills BUILDERS)
from .ingredients import BUILDERS, Array, Case

__all__ = ["BUILDERS", "case", "expected"]


@functools.cache
def case(operator: str, dtype: DType, seed: int) -> Case:
    """The case of that number; the same one every time."""
    rng = np.random.default_rng([seed, dtype.bits, *operator.encode()])
    return BUILDERS[operator](rng, dtype)


@functools.cache
def expected(operator: str, dtype: DType, seed: int) -> tuple[Array, ...]:
    """What the oracle computes for it."""
    made = case(operator, dtype, seed)
    return tuple(oracle.run(made.op, made.inputs, made.input_specs, made.output_specs))
