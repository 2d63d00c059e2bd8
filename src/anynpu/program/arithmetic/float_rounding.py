"""The float rule: one float32 multiplication per output, then one rounding half to even.

This is what the vendors' simulators compute, and what stands for chips whose own arithmetic nobody has published. Every step is a
float32 operation, rounded by itself; accumulators are exact integers. :mod:`anynpu.program.arithmetic.fixed_point` is what Rockchip's
chips do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._util.types import Array
from ...tensor import DType, Quantization
from .. import RESIZE_BITS, Epilogue, limits_of
from .rounding import shift_right
from .scales import code_values
from .thresholds import climb

__all__ = ["apply_float_rule", "apply_table", "finish", "function_table", "requantize_table", "resize_shift"]

Floats = npt.NDArray[np.floating[Any]]


def function_table(
    function: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
    source: Quantization,
    target: Quantization,
    dtype: DType,
    *,
    wide: bool = True,
) -> Array:
    """One row [1, 256] (or 65536) that maps each code of *source* to the code of function(value) in *target*.

    :param wide: values and quotients are float64; else float32, as in the vendors' simulators, where a value between two codes goes to
        the one that this rounding leads to
    """
    number = np.float64 if wide else np.float32
    values = (code_values(dtype).astype(np.int64) - source.zero_point).astype(number) * number(np.float32(source.scale))
    first, last = dtype.limits
    with np.errstate(all="ignore"):
        results = np.asarray(function(values), number) / number(np.float32(target.scale))
    results = results.astype(np.float64)
    results = np.nan_to_num(results, nan=0.0, posinf=1e30, neginf=-1e30)
    table: Array = np.clip(np.rint(results) + target.zero_point, first, last).astype(dtype.storage)[None]
    return table


def requantize_table(source: Quantization, target: Quantization, dtype: DType) -> Array:
    """One row that only changes scale and zero point."""
    return function_table(lambda values: values, source, target, dtype)


def finish(scaled: Floats, epilogue: Epilogue, dtype: np.dtype[Any]) -> Array:
    """The second half of an epilogue: slope, rounding, zero point, clamp, table; or the staircase instead of all of them.

    Channels are the last axis of *scaled* (float32).
    """
    if epilogue.staircases:
        return climb(epilogue.staircases, epilogue.staircase_groups, scaled)
    if epilogue.slope is not None:
        scaled = np.where(scaled < 0, scaled * epilogue.slope.astype(np.float32), scaled)
    first, last = limits_of(dtype)
    low, high = (first, last) if epilogue.clamp is None else (epilogue.clamp[0], epilogue.clamp[1])
    # Rounding and clamping happen in float64 so that no zero point of 16 bits is lost; both steps are exact there.
    codes = np.clip(np.rint(scaled).astype(np.float64) + epilogue.zero_point, low, high).astype(dtype)
    if epilogue.table is None:
        return codes
    return apply_table(codes, epilogue.table, epilogue.table_groups)


def apply_float_rule(
    accumulator: Array, epilogue: Epilogue, dtype: np.dtype[Any], residual: Array | None = None, residual_zero: Array | int = 0
) -> Array:
    """Codes from an exact integer *accumulator* whose last axis is the channel; see :class:`anynpu.program.Epilogue`."""
    scaled = accumulator.astype(np.float32) * epilogue.multiplier.astype(np.float32)
    if residual is not None and epilogue.residual_multiplier is not None:
        difference = (residual.astype(np.int32) - residual_zero).astype(np.float32)
        scaled = scaled + difference * epilogue.residual_multiplier.astype(np.float32)
    return finish(scaled, epilogue, dtype)


def apply_table(codes: Array, table: Array, groups: tuple[int, ...] = ()) -> Array:
    """table[code], with a row by group of channels where *groups* says so; channels are the last axis."""
    index = codes.view(np.uint8 if codes.dtype.itemsize == 1 else np.uint16)
    if not groups:
        return np.take(table[0], index)
    rows = np.repeat(np.arange(len(groups)), groups)
    result: Array = table[rows, index]
    return result


def resize_shift(accumulator: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """accumulator / 2**22, rounded half to even: the last step of a linear resize."""
    return shift_right(accumulator, 2 * RESIZE_BITS)
