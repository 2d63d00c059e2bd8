"""Small errors that a kernel could have, each as a changed number of a case: the tests must notice them.

A change is as small as can show in the output: a zero point off by one, a multiplier off by one output step at full scale, a bias off
by one output step, one entry of a table off by one (an entry that the data uses).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from anynpu.npu.engines.reference import execute
from anynpu.program import (
    Binary,
    Concat,
    Conv,
    Convert,
    ConvTranspose,
    Dense,
    Epilogue,
    Finish,
    FixedPoint,
    MatMul,
    Pad,
    Pool,
    Resize,
    Slice,
    Table,
    Transpose,
)
from anynpu.tensor import Affine, DType, DynamicFixedPoint, TensorSpec

from . import oracle
from .ingredients import Array, Case, Rng

Mutation = tuple[str, Case]
WithEpilogue = Conv | ConvTranspose | Dense | MatMul | Binary | Pool


def mutations(made: Case, dtype: DType, rng: Rng) -> Iterator[Mutation]:
    """Every error that fits the operator."""
    op = made.op
    if isinstance(op, Conv | ConvTranspose | Dense | MatMul | Binary | Convert) or (
        isinstance(op, Pool) and op.kind == "average"
    ):
        yield from _quantization_errors(made, rng)
    if isinstance(op, Conv | ConvTranspose | Dense):
        channel = int(rng.integers(len(op.weight_zero)))
        yield "weight zero", replace(made, op=replace(op, weight_zero=_changed(op.weight_zero, channel, _one(rng))))
        channel = int(rng.integers(len(op.bias)))
        step = _output_step(op.epilogue, channel)
        if step:
            yield "bias", replace(made, op=replace(op, bias=_changed(op.bias, channel, step * _one(rng))))
    if isinstance(op, Conv | ConvTranspose | Pool):
        yield from _window_errors(made, op)
    if isinstance(op, WithEpilogue) and isinstance(op.epilogue, FixedPoint):
        yield from _fixed_point_errors(made, op, op.epilogue, rng)
    elif isinstance(op, WithEpilogue) and op.epilogue is not None:
        for name, epilogue in _epilogue_errors(made, op.epilogue, dtype, rng):
            yield name, replace(made, op=replace(op, epilogue=epilogue))
    if isinstance(op, Binary) and isinstance(op.epilogue, Epilogue):
        yield "multiplier a", replace(made, op=replace(op, a_multiplier=_stretched(op.a_multiplier, dtype, rng)))
        if op.kind != "mul":
            yield "multiplier b", replace(made, op=replace(op, b_multiplier=_stretched(op.b_multiplier, dtype, rng)))
    if isinstance(op, Table):
        yield "table entry", replace(made, op=_table_error(op, made.inputs[0], rng))
    if isinstance(op, Concat) and op.tables:
        first = op.tables[0]
        assert first is not None
        yield "table entry", replace(made, op=replace(op, tables=(_table_error(first, made.inputs[0], rng), *op.tables[1:])))
    if isinstance(op, Slice | Pad | Resize | Transpose):
        yield from _place_errors(made, rng)


def _one(rng: Rng) -> int:
    return int(rng.choice([-1, 1]))


def _changed(array: Array, place: Any, by: int) -> Array:
    changed: Array = array.copy()
    changed[place] += by
    return changed


def _stretched(multiplier: Array, dtype: DType, rng: Rng, *, steps: int = 1) -> Array:
    """One entry larger by one output step (or some) at full scale."""
    stretched: Array = multiplier.copy()
    stretched[int(rng.integers(len(multiplier)))] *= np.float32(1 + steps * 2.0 ** (1 - dtype.bits))
    return stretched


def _quantization_errors(made: Case, rng: Rng) -> Iterator[Mutation]:
    for number, spec in enumerate(made.input_specs):
        if spec.quantization is not None:
            specs = list(made.input_specs)
            specs[number] = _zero_moved(spec, rng)
            yield f"input zero {spec.name}", replace(made, input_specs=tuple(specs))
    (target,) = made.output_specs
    if isinstance(made.op, Convert) and target.quantization is not None:
        yield "output zero", replace(made, output_specs=(_zero_moved(target, rng),))
    if isinstance(made.op, Convert):
        (source,) = made.input_specs
        if isinstance(source.quantization, Affine):
            bits = min(source.dtype.bits, 10) if target.dtype is DType.FLOAT16 else source.dtype.bits  # float16 hides the rest
            yield "input scale", replace(made, input_specs=(_scale_moved(source, source.quantization, bits, rng),))
        if isinstance(target.quantization, Affine):
            yield "output scale", replace(made, output_specs=(_scale_moved(target, target.quantization, target.dtype.bits, rng),))


def _scale_moved(spec: TensorSpec, quantization: Affine, bits: int, rng: Rng) -> TensorSpec:
    scales = list(quantization.scales)
    scales[int(rng.integers(len(scales)))] *= 1 + 2.0 ** (1 - bits)
    return replace(spec, quantization=replace(quantization, scales=tuple(scales)))


def _zero_moved(spec: TensorSpec, rng: Rng) -> TensorSpec:
    quantization = spec.quantization
    if isinstance(quantization, DynamicFixedPoint):
        return replace(spec, quantization=Affine.per_tensor(quantization.scale, _one(rng)))
    assert quantization is not None
    zeros = list(quantization.zero_points)
    zeros[int(rng.integers(len(zeros)))] += _one(rng)
    return replace(spec, quantization=replace(quantization, zero_points=tuple(zeros)))


def _window_errors(made: Case, op: Conv | ConvTranspose | Pool) -> Iterator[Mutation]:
    top, left, bottom, right = op.pads
    if bottom:
        yield "pads down", replace(made, op=replace(op, pads=(top + 1, left, bottom - 1, right)))
    if right:
        yield "pads right", replace(made, op=replace(op, pads=(top, left + 1, bottom, right - 1)))
    if isinstance(op, Pool) and op.kind == "average" and any(op.pads):
        yield "count", replace(made, op=replace(op, count_include_pad=not op.count_include_pad))


def _epilogue_errors(made: Case, epilogue: Epilogue, dtype: DType, rng: Rng) -> Iterator[tuple[str, Epilogue]]:
    channel = int(rng.integers(len(epilogue.zero_point)))
    yield "output zero", replace(epilogue, zero_point=_changed(epilogue.zero_point, channel, _one(rng)))
    if epilogue.multiplier.size:
        yield "multiplier", replace(epilogue, multiplier=_stretched(epilogue.multiplier, dtype, rng))
    if epilogue.residual_multiplier is not None:
        yield "residual multiplier", replace(epilogue, residual_multiplier=_stretched(epilogue.residual_multiplier, dtype, rng))
    if epilogue.slope is not None:
        # negative values are far from full scale
        yield "slope", replace(epilogue, slope=_stretched(epilogue.slope, dtype, rng, steps=8))
    if epilogue.clamp is not None:
        bound = int(rng.integers(2))
        channel = int(rng.integers(epilogue.clamp.shape[1]))
        yield "clamp", replace(epilogue, clamp=_changed(epilogue.clamp, (bound, channel), _one(rng)))
    if epilogue.table is not None:
        assert isinstance(made.op, WithEpilogue)
        before = replace(made.op, epilogue=replace(epilogue, table=None, table_groups=()))
        outputs = [np.empty(spec.memory_shape, spec.dtype.storage) for spec in made.output_specs]
        execute(before, made.inputs, made.input_specs, made.output_specs, outputs)
        yield "table entry", replace(epilogue, table=_entry_moved(epilogue.table, epilogue.table_groups, outputs[0], rng))


def _output_step(epilogue: Finish, channel: int) -> int:
    """How much of the accumulator makes one output step; 0 where a curve makes it differ from place to place."""
    if isinstance(epilogue, Epilogue):
        return int(np.ceil(1 / float(oracle.entry(epilogue.multiplier, channel))))
    if epilogue.curves:
        return 0
    factor = int(oracle.entry(epilogue.channel_multiplier, channel)) * int(oracle.entry(epilogue.multiplier, channel))
    return -(-(2 ** (14 + int(oracle.entry(epilogue.shift, channel)))) // factor)


def _larger(values: Array, place: Any) -> Array:
    """One entry larger by one output step at full scale."""
    return _changed(values, place, int(abs(values[place])) // 127 + 1)


def _fixed_point_errors(made: Case, op: WithEpilogue, stage: FixedPoint, rng: Rng) -> Iterator[Mutation]:
    channel = int(rng.integers(len(stage.zero_point)))
    changed = {"output zero": replace(stage, zero_point=_changed(stage.zero_point, channel, _one(rng)))}
    if stage.multiplier.size:
        place = int(rng.integers(len(stage.multiplier)))
        changed["multiplier, fixed point"] = replace(stage, multiplier=_larger(stage.multiplier, place))
    if stage.channel_multiplier.size and not stage.curves:
        place = int(rng.integers(len(stage.channel_multiplier)))
        changed["channel multiplier"] = replace(stage, channel_multiplier=_larger(stage.channel_multiplier, place))
    for name, epilogue in changed.items():
        yield name, replace(made, op=replace(op, epilogue=epilogue))
    if isinstance(op, Pool) and op.divisors is not None:
        divisors = op.divisors.copy()
        divisors[0] += divisors[0] // 127 + 1
        yield "divisors", replace(made, op=replace(op, divisors=divisors))
    if isinstance(op, Binary) and op.kind != "mul":
        yield "factor a", replace(made, op=replace(op, a_multiplier=_larger(op.a_multiplier, 0)))
        yield "factor b", replace(made, op=replace(op, b_multiplier=_larger(op.b_multiplier, 0)))


def _table_error(table: Table, x: Array, rng: Rng) -> Table:
    return replace(table, table=_entry_moved(table.table, table.table_groups, x, rng))


def _entry_moved(table: Array, groups: tuple[int, ...], codes: Array, rng: Rng) -> Array:
    """The table with one of the entries that *codes* look up off by one."""
    index = tuple(int(rng.integers(extent)) for extent in codes.shape)
    return _changed(table, (oracle.by_group(groups, index[-1]), int(codes[index]) % table.shape[1]), _one(rng))


def _place_errors(made: Case, rng: Rng) -> Iterator[Mutation]:
    op = made.op
    if isinstance(op, Slice):
        axis = int(rng.integers(len(made.inputs[0].shape)))
        extent, count = made.inputs[0].shape[axis], made.output_specs[0].memory_shape[axis]
        start, step = op.starts[0][axis], op.steps[0][axis]
        for moved in (start - 1, start + 1):
            if min(moved, moved + step * (count - 1)) >= 0 and max(moved, moved + step * (count - 1)) < extent:
                starts = (*op.starts[0][:axis], moved, *op.starts[0][axis + 1 :])
                yield "start", replace(made, op=replace(op, starts=(starts, *op.starts[1:])))
    elif isinstance(op, Pad):
        yield (
            "shift",
            replace(made, op=replace(op, before=(op.before[0] - 1, *op.before[1:]), after=(op.after[0] + 1, *op.after[1:]))),
        )
        if op.mode == "constant":
            yield "value", replace(made, op=replace(op, value=op.value + _one(rng)))
    elif isinstance(op, Resize):
        height = made.inputs[0].shape[1] if made.inputs[0].ndim == 4 else 1
        row, column = int(rng.integers(len(op.rows))), int(rng.integers(len(op.columns)))
        if height > 1 and op.rows[row, 2] < 2048:
            moved = -1 if op.rows[row, 0] else 1
            yield "row", replace(made, op=replace(op, rows=_changed(op.rows, (row, 0), moved)))
        if op.kind == "linear" and op.columns[column, 0] != op.columns[column, 1]:
            yield "weight", replace(made, op=replace(op, columns=_changed(op.columns, (column, 2), 64 * _one(rng))))
    elif isinstance(op, Transpose):
        first, second = (int(axis) for axis in rng.choice(len(op.perm), 2, replace=False))
        perm = list(op.perm)
        perm[first], perm[second] = perm[second], perm[first]
        if made.output_specs[0].shape == (1, made.inputs[0].size):
            yield "axes", replace(made, op=replace(op, perm=tuple(perm)))
