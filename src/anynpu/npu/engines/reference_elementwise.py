"""Operators that treat each element on its own, in the reference engine: Binary, Table and Concat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..._util.types import Array
from ...program import Binary, Concat, Epilogue, FixedPoint, Table
from ...program.arithmetic import apply_epilogue, apply_table, finish
from ...program.arithmetic.fixed_point import shift_right
from ...tensor import TensorSpec
from .reference_common import blocks, zero_points

_COMBINE = {"add": np.add, "sub": np.subtract, "max": np.maximum, "min": np.minimum}


def binary(op: Binary, inputs: Sequence[Array], specs: Sequence[TensorSpec], output: Array) -> None:
    """Two inputs, broadcast to the output, by the rule that the layer was compiled for."""
    combine = _integers if isinstance(op.epilogue, FixedPoint) else _floats
    a, b = (np.broadcast_to(array, output.shape) for array in inputs)
    a_zero, b_zero = (zero_points(spec) for spec in specs)
    for block in blocks(output.shape, 48):
        left, right = a[block].astype(np.int32) - a_zero, b[block].astype(np.int32) - b_zero
        output[block] = combine(op, left, right, output.dtype)


def _floats(op: Binary, left: Array, right: Array, dtype: np.dtype[Any]) -> Array:
    """float32, with every step rounded."""
    assert isinstance(op.epilogue, Epilogue)
    a_multiplier, b_multiplier = op.a_multiplier.astype(np.float32), op.b_multiplier.astype(np.float32)
    left, right = left.astype(np.float32), right.astype(np.float32)
    if op.kind == "mul":
        return finish((left * right) * a_multiplier, op.epilogue, dtype)
    return finish(_COMBINE[op.kind](left * a_multiplier, right * b_multiplier), op.epilogue, dtype)


def _integers(op: Binary, left: Array, right: Array, dtype: np.dtype[Any]) -> Array:
    """Terms of 16-bit factors."""
    left, right = left.astype(np.int64), right.astype(np.int64)
    if op.kind == "mul":
        return apply_epilogue(left * right, op.epilogue, dtype)
    terms = (
        shift_right(side * factor.astype(np.int64), shift)
        for side, factor, shift in zip((left, right), (op.a_multiplier, op.b_multiplier), op.shifts, strict=True)
    )
    return apply_epilogue(_COMBINE[op.kind](*terms), op.epilogue, dtype)


def table(op: Table, source: Array, output: Array) -> None:
    """A look-up for each code."""
    for block in blocks(output.shape, 16):
        output[block] = apply_table(source[block], op.table, op.table_groups)


def concat(op: Concat, inputs: Sequence[Array], output: Array) -> None:
    """Inputs side by side, each through its table."""
    tables = op.tables or (None,) * len(inputs)
    start = 0
    for array, look_up in zip(inputs, tables, strict=True):
        stop = start + array.shape[op.axis]
        part = output[(slice(None),) * (op.axis % output.ndim) + (slice(start, stop),)]
        if look_up is None:
            part[...] = array
        else:
            table(look_up, array, part)
        start = stop
