"""A model by another rule: the layers of the chip's integers, ended as the vendors' simulators do it.

``anynpu compare a.rknn --arithmetic chip,simulator`` compares a model with itself by the two rules: what differs is what a board would show
and a simulator would not.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np

from ..._util.types import Array
from ...errors import ParameterError
from ...program import Binary, Curve, Epilogue, FixedPoint, Model, Op, Pool
from ...program.arithmetic.thresholds import staircase_of

__all__ = ["ARITHMETICS", "by_arithmetic"]

ARITHMETICS = ("chip", "simulator")
_UNIT = float(1 << 14)


def by_arithmetic(model: Model, arithmetic: str) -> Model:
    """The model with its layers by that rule; the scales and weights stay.

    >>> by_arithmetic(anynpu.load("det.rknn"), "simulator").arithmetic    # doctest: +SKIP
    'simulator'
    """
    if arithmetic not in ARITHMETICS:
        raise ParameterError(f"there is no arithmetic '{arithmetic}'", hint=f"choose from: {', '.join(ARITHMETICS)}")
    if model.arithmetic == arithmetic:
        return model
    if arithmetic == "chip":
        raise ParameterError(
            f"{model.name or 'the model'} was compiled for the simulator's rule, which has no integers of the chip",
            hint="compile it again without arithmetic='simulator'; chips other than Rockchip's have that rule only",
        )
    programs = [
        replace(program, layers=tuple(replace(layer, op=_simulated(layer.op)) for layer in program.layers))
        for program in model.programs
    ]
    # as a plain model: what the file held of it is the chip's
    values = {field.name: getattr(model, field.name) for field in fields(Model)}
    return Model(**{**values, "programs": tuple(programs), "arithmetic": arithmetic})


def _simulated(op: Op) -> Op:
    stage = getattr(op, "epilogue", None)
    if not isinstance(stage, FixedPoint):
        return op
    if stage.curves:
        return _with(op, epilogue=_staircases(stage))
    if isinstance(op, Pool):
        assert op.divisors is not None
        return _with(op, epilogue=_epilogue(stage, _ratio(op.divisors[0, 1:2], op.divisors[1, 1:2])), divisors=None)
    factor = _ratio(stage.multiplier, stage.shift)
    if isinstance(op, Binary):
        end = replace(_epilogue(stage, factor), multiplier=np.zeros(0, np.float32))
        if op.kind == "mul":
            return _with(op, a_multiplier=factor.astype(np.float32), b_multiplier=np.ones(1, np.float32), epilogue=end)
        terms = [
            (_ratio(multiplier, np.array([shift])) * factor).astype(np.float32)
            for multiplier, shift in zip((op.a_multiplier, op.b_multiplier), op.shifts, strict=True)
        ]
        return _with(op, a_multiplier=terms[0], b_multiplier=terms[1], shifts=(0, 0), epilogue=end)
    channels = stage.channel_multiplier / _UNIT if stage.channel_multiplier.size else np.ones(1)
    made = _epilogue(stage, factor)
    return _with(op, epilogue=replace(made, multiplier=np.asarray(channels * factor, np.float32)))


def _with(op: Op, **changes: Any) -> Op:
    changed: Op = replace(op, **changes)
    return changed


def _staircases(stage: FixedPoint) -> Epilogue:
    """The end of a layer with a curve, in real numbers: one rounding at the end."""
    factors = stage.channel_multiplier / _UNIT if stage.channel_multiplier.size else np.ones(1)
    groups = stage.curve_groups
    firsts = np.cumsum((0, *groups[:-1])) if groups else [0]
    made = []
    for curve, first in zip(stage.curves, firsts, strict=True):
        multiplier, shift, zero = (
            values[min(int(first), values.size - 1)] for values in (stage.multiplier, stage.shift, stage.zero_point)
        )
        scale = 2.0 ** float(shift) / float(multiplier)
        made.append(staircase_of(partial(_value, curve), scale, int(zero), _reach(curve, scale), np.dtype(np.int8)))
    return Epilogue(factors.astype(np.float32), np.zeros(1, np.int32), staircases=tuple(made), staircase_groups=groups)


def _reach(curve: Curve, scale: float) -> float:
    """How far from 0 a scaled sum is from which on the code stays: beyond the tables, and where the line behind them has risen enough."""
    beyond = 256.0 * scale * 2.0**curve.slope_shift / curve.slope if curve.slope > 0 else 0.0
    return (16384.0 + beyond) * 2.0**curve.shift / max(abs(curve.multiplier), 1) + abs(curve.offset)


def _value(curve: Curve, scaled: Array) -> Array:
    """The value of *curve* without any rounding on the way."""
    index = (scaled + curve.offset) * curve.multiplier / 2.0**curve.shift
    entries = np.concatenate([curve.negative[:-1], curve.positive]).astype(np.float64)
    inside = np.interp(index, np.linspace(-16384.0, 16384.0, len(entries)), entries)
    beyond = np.maximum(index - 16384.0, 0.0) * (curve.slope / 2.0**curve.slope_shift)
    result: Array = inside + beyond
    return result


def _ratio(multiplier: Array, shift: Array) -> Array:
    result: Array = multiplier.astype(np.float64) / 2.0 ** shift.astype(np.float64)
    return result


def _epilogue(stage: FixedPoint, factor: Array) -> Epilogue:
    """The end of a layer with real numbers for its integers; *factor* leads from the scaled sum to codes."""
    clamp = None
    if stage.bounds is not None:
        codes = np.rint(stage.bounds * factor) + stage.zero_point
        clamp = np.clip(codes, -128, 127).astype(np.int32)
    residual = None
    if stage.residual_multiplier is not None:
        residual = np.asarray(stage.residual_multiplier / 2.0**stage.residual_shift * factor, np.float32)
    return Epilogue(
        multiplier=factor.astype(np.float32),
        zero_point=stage.zero_point,
        clamp=clamp,
        slope=None if stage.slope is None else (stage.slope / _UNIT).astype(np.float32),
        residual_multiplier=residual,
        table=stage.table,
        table_groups=stage.table_groups,
    )
