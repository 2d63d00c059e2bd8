"""The end of a layer, by whichever rule it was compiled for: from an exact accumulator to stored codes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._util.types import Array
from .. import Epilogue, Finish, FixedPoint, limits_of
from .fixed_point import CHANNEL_BITS, leaky_output, output, scaled_accumulator
from .float_rounding import apply_float_rule, apply_table
from .lookup_tables import evaluate
from .rounding import saturate, shift_right

__all__ = ["apply_epilogue", "apply_fixed_point"]


_ONE = np.array([1 << CHANNEL_BITS])


def apply_epilogue(
    accumulator: Array, epilogue: Finish, dtype: np.dtype[Any], residual: Array | None = None, residual_zero: Array | int = 0
) -> Array:
    """Codes from an exact integer *accumulator* whose last axis is the channel."""
    rule = apply_float_rule if isinstance(epilogue, Epilogue) else apply_fixed_point
    return rule(accumulator, epilogue, dtype, residual, residual_zero)  # type: ignore[arg-type]


def apply_fixed_point(
    accumulator: Array, stage: FixedPoint, dtype: np.dtype[Any], residual: Array | None = None, residual_zero: Array | int = 0
) -> Array:
    """Codes by the chip's rule; see :class:`anynpu.program.FixedPoint`."""
    limits = limits_of(dtype)
    factors = stage.channel_multiplier if stage.channel_multiplier.size else _ONE
    scaled = scaled_accumulator(accumulator, factors)
    has_residual = residual is not None and stage.residual_multiplier is not None
    if residual is not None and stage.residual_multiplier is not None:
        difference = residual.astype(np.int64) - residual_zero
        scaled = saturate(scaled + shift_right(difference * stage.residual_multiplier, stage.residual_shift))
    end = stage.multiplier, stage.shift, stage.zero_point, limits
    if stage.slope is not None:
        sums, factors = (scaled, _ONE) if has_residual else (accumulator, factors)
        codes = leaky_output(sums, factors, stage.slope, *end)
    else:
        if stage.bounds is not None:
            scaled = np.clip(scaled, stage.bounds[0], stage.bounds[1])
        codes = output(_through_curves(scaled, stage) if stage.curves else scaled, *end)
    stored = codes.astype(dtype)
    return stored if stage.table is None else apply_table(stored, stage.table, stage.table_groups)


def _through_curves(scaled: Array, stage: FixedPoint) -> Array:
    if not stage.curve_groups:
        return evaluate(stage.curves[0], scaled)
    values = np.empty(scaled.shape, np.int64)
    first = 0
    for curve, count in zip(stage.curves, stage.curve_groups, strict=True):
        group = slice(first, first + count)
        values[..., group] = evaluate(curve, scaled[..., group])
        first += count
    return values
