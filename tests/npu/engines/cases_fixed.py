"""Random cases by the chip's integers: the cases of rounding mode ``simulator``, with their epilogues turned into :class:`FixedPoint`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from anynpu.program import Binary, Conv, ConvTranspose, Dense, Epilogue, FixedPoint, MatMul, Pool
from anynpu.program.arithmetic.fixed_point import channel_multipliers, multiplier_and_shift, operand_multiplier
from anynpu.program.arithmetic.lookup_tables import CURVES, curve_of
from anynpu.tensor import DType

from . import cases_arithmetic, oracle  # noqa: F401 (what it registers is what these are made of)
from .ingredients import BUILDERS, Array, Case, Rng, chance, partition

PRODUCTS = ("conv", "conv_grouped", "conv_depthwise", "conv_transpose", "dense", "matmul")
FIXED = (*PRODUCTS, "add", "sub", "mul", "max", "min", "pool_average", "pool_global")
"""The operators that have such a form, by the names of their builders."""

NONE = np.zeros(0, np.int32)
MAX_GAIN = 1000.0
"""Sums that are all the same would be spread without end; a multiplier has 15 bits."""


Run = Callable[[Case], Array]
"""Computes a case's only output."""


def by_the_oracle(made: Case) -> Array:
    (values,) = oracle.run(made.op, made.inputs, made.input_specs, made.output_specs)
    return values


def with_integers(rng: Rng, made: Case, run: Run = by_the_oracle) -> Case:
    """The case with integers like those that stand for its epilogue, and its output in the middle of the range."""
    return _centred(_converted(rng, made), run)


def _centred(made: Case, run: Run) -> Case:
    op = made.op
    assert isinstance(op, Conv | ConvTranspose | Dense | MatMul | Binary | Pool)
    assert isinstance(op.epilogue, FixedPoint)
    bare = replace(op, epilogue=replace(op.epilogue, zero_point=np.zeros(1, np.int32), table=None, table_groups=()))
    values = run(replace(made, op=bare, output_specs=(replace(made.output_specs[0], dtype=DType.INT32),)))
    low, high = int(values.min()), int(values.max())
    gain = min(1.0, 210 / max(high - low, 1))
    stage = replace(op.epilogue, zero_point=np.array([-round((low + high) / 2 * gain)], np.int32))
    if isinstance(op, Pool):
        assert op.divisors is not None
        divisors = np.array([op.divisors[0] * gain, op.divisors[1]]).astype(np.int32)
        return replace(made, op=replace(op, epilogue=stage, divisors=divisors))
    return replace(made, op=replace(op, epilogue=replace(stage, multiplier=(stage.multiplier * gain).astype(np.int32))))


def _converted(rng: Rng, made: Case) -> Case:
    op = made.op
    assert isinstance(op, Conv | ConvTranspose | Dense | MatMul | Binary | Pool)
    assert isinstance(op.epilogue, Epilogue)
    if isinstance(op, Pool):
        factor = float(op.epilogue.multiplier.min())  # one for all channels: none leaves the range
        counts = np.arange(1, op.kernel[0] * op.kernel[1] + 1)
        divisors = np.array([(0, 0), *(multiplier_and_shift(factor / count) for count in counts)], np.int32).T
        zero, table, groups = op.epilogue.zero_point, op.epilogue.table, op.epilogue.table_groups
        stage = FixedPoint(NONE, NONE, NONE, zero, table=table, table_groups=groups)
        return replace(made, op=replace(op, epilogue=stage, divisors=np.ascontiguousarray(divisors)))
    if isinstance(op, Binary):
        return replace(made, op=_binary(op))
    return replace(made, op=replace(op, epilogue=_stage(rng, op.epilogue, made.output_specs[0].memory_shape[-1])))


def _stage(rng: Rng, epilogue: Epilogue, channels: int) -> FixedPoint:
    scales = np.minimum(epilogue.multiplier, MAX_GAIN).astype(np.float32)
    largest = float(scales.max())
    multiplier, shift = multiplier_and_shift(largest)
    stage = FixedPoint(
        channel_multipliers(scales),
        np.array([multiplier], np.int32),
        np.array([shift], np.int32),
        epilogue.zero_point,
        table=epilogue.table,
        table_groups=epilogue.table_groups,
    )
    if epilogue.residual_multiplier is not None:
        factor, bits = multiplier_and_shift(float(epilogue.residual_multiplier.max()) / largest)
        stage = replace(stage, residual_multiplier=factor, residual_shift=bits)
    if epilogue.slope is not None:
        return replace(stage, slope=np.rint(epilogue.slope * 16384).astype(np.int32))
    if epilogue.clamp is not None:
        stage = replace(stage, bounds=np.rint((epilogue.clamp - epilogue.zero_point) / largest).astype(np.int32))
    return _with_curve(rng, stage, channels, largest) if chance(rng, 0.4) else stage


def _with_curve(rng: Rng, stage: FixedPoint, channels: int, unit: float) -> FixedPoint:
    """The quantized values spread over about 200 units of rounding mode ``simulator``: let those be the range of a function, and
    its values the range of quantized values."""
    groups = partition(rng, channels) if channels > 1 and chance(rng, 0.3) else ()
    curves, multipliers, shifts = [], [], []
    for _ in groups or (channels,):
        shape = CURVES[str(rng.choice(sorted(CURVES)))]
        curves.append(curve_of(shape, unit * shape.half / rng.uniform(60, 140)))
        multiplier, shift = multiplier_and_shift(rng.uniform(60, 110) / 32767)
        multipliers.append(multiplier)
        shifts.append(shift)
    sizes = groups or (1,)
    return replace(
        stage,
        curves=tuple(curves),
        curve_groups=groups,
        multiplier=np.repeat(multipliers, sizes).astype(np.int32),
        shift=np.repeat(shifts, sizes).astype(np.int32),
    )


def _binary(op: Binary) -> Binary:
    assert isinstance(op.epilogue, Epilogue)
    scales = [float(op.a_multiplier.min()), float((op.b_multiplier if op.kind != "mul" else op.a_multiplier).min())]
    largest = max(scales)
    zero, table, groups = op.epilogue.zero_point, op.epilogue.table, op.epilogue.table_groups
    slope = None if op.epilogue.slope is None else np.rint(op.epilogue.slope * 16384).astype(np.int32)
    (a, a_shift), (b, b_shift) = (operand_multiplier(scale, largest) for scale in scales)
    factors: list[Array] = [np.array([a], np.int32), np.array([b], np.int32)]
    multiplier, shift = multiplier_and_shift(largest if op.kind == "mul" else largest / 16384)
    if op.kind == "mul":
        factors, a_shift, b_shift = [NONE, NONE], 0, 0
    stage = FixedPoint(
        NONE,
        np.array([multiplier], np.int32),
        np.array([shift], np.int32),
        zero,
        slope=slope,
        table=table,
        table_groups=groups,
    )
    return replace(op, a_multiplier=factors[0], b_multiplier=factors[1], epilogue=stage, shifts=(a_shift, b_shift))


def _register(name: str, build: Callable[[Rng, DType], Case]) -> None:
    def fixed(rng: Rng, dtype: DType) -> Case:
        return with_integers(rng, build(rng, DType.INT8))

    BUILDERS[f"{name}, fixed point"] = fixed


for _name in FIXED:
    _register(_name, BUILDERS[_name])
