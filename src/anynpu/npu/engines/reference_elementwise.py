"""Operators that treat each element by itself, in the reference engine: Binary, Table and Concat."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...arithmetic import apply_table, finish
from ...program import Binary, Concat, Table
from ...tensor import TensorSpec
from .reference_common import Array, blocks, zero_points


def binary(op: Binary, inputs: Sequence[Array], specs: Sequence[TensorSpec], output: Array) -> None:
    """Two inputs, broadcast to the output; float32 with every step rounded."""
    a, b = (np.broadcast_to(array, output.shape) for array in inputs)
    a_zero, b_zero = (zero_points(spec) for spec in specs)
    a_multiplier, b_multiplier = op.a_multiplier.astype(np.float32), op.b_multiplier.astype(np.float32)
    for block in blocks(output.shape, 48):
        left = (a[block].astype(np.int32) - a_zero).astype(np.float32)
        right = (b[block].astype(np.int32) - b_zero).astype(np.float32)
        if op.kind == "mul":
            scaled = (left * right) * a_multiplier
        else:
            combine = {"add": np.add, "sub": np.subtract, "max": np.maximum, "min": np.minimum}[op.kind]
            scaled = combine(left * a_multiplier, right * b_multiplier)
        output[block] = finish(scaled, op.epilogue, output.dtype)


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
