"""Integer operators with the chip's own integers: multipliers, shifts, factors and tables; no float is left in them.

What the numbers mean is written in :mod:`anynpu.program.arithmetic.fixed_point`.
"""

from __future__ import annotations

import math

import numpy as np

from ..._util.types import Array
from ...modelfile.operator_rules import MAX_SLOPE
from ...program import Binary, FixedPoint, Pool
from ...program.arithmetic import code_values
from ...program.arithmetic.fixed_point import (
    CHANNEL_BITS,
    channel_multipliers,
    leaky_output,
    multiplier_and_shift,
    operand_multiplier,
    output,
)
from ...program.arithmetic.lookup_tables import Shape, curve_of, evaluate
from ...tensor import Affine, Quantization
from ..toolkit.steps import CHANGE_OF_SCALE
from .emit import Emitter, by_group
from .steps import Activation, Step
from .unrounded_activations import shape_of
from .windows import window_of

__all__ = ["STEEPEST", "ChipEmitter"]

STEEPEST = MAX_SLOPE / (1 << CHANNEL_BITS)
"""The largest slope of a PRelu or LeakyRelu after a convolution."""

_ONE = np.array([1 << CHANNEL_BITS], np.int32)
_NONE = np.zeros(0, np.int32)
_LIMITS = np.iinfo(np.int32)


class ChipEmitter(Emitter):
    """Builds the operators of one program for the chip's rule. Codes are int8."""

    def binary(self, step: Step) -> Binary:
        """Two tensors element by element."""
        scales = [self._scale(name) for name in step.inputs]
        kind = step.node.op.lower()
        if kind == "mul":
            stage = self._stage(step, _NONE, [scales[0] * scales[1]], (1,))
            return Binary(kind, _NONE, _NONE, stage)  # type: ignore[arg-type]
        largest = max(scales)
        (a, a_shift), (b, b_shift) = (operand_multiplier(scale, largest) for scale in scales)
        stage = self._stage(step, _NONE, [largest / (1 << CHANNEL_BITS)], (1,))
        factors = np.array([a], np.int32), np.array([b], np.int32)
        return Binary(kind, *factors, stage, (a_shift, b_shift))  # type: ignore[arg-type]

    def pool(self, step: Step) -> Pool:
        """Max, average or global pooling; an average has a multiplier for each number of elements that a window may hold."""
        if "Max" in step.node.op:
            return super().pool(step)
        window = window_of(self.graph, step.node)
        factor = self._scale(step.inputs[0]) / self._result(step).scale
        stages = [multiplier_and_shift(factor / count) for count in range(1, math.prod(window.kernel) + 1)]
        stage = self._stage(step, _NONE, [self._scale(step.inputs[0])], (1,))
        return Pool(
            "average",
            window.kernel,
            window.strides,
            window.pads,
            window.dilations,
            bool(step.node.attribute("count_include_pad", 0)),
            FixedPoint(_NONE, _NONE, _NONE, stage.zero_point, table=self._pool_table(step, stage)),
            np.ascontiguousarray(np.array([(0, 0), *stages], np.int32).T),
        )

    def _pool_table(self, step: Step, stage: FixedPoint) -> Array | None:
        """Pooling only rounds: whatever else is fused to it becomes a table of its result."""
        if step.activation is None or stage.table is not None:
            return stage.table
        result = self.quantization[step.outputs[0]]
        return self._function_table(step.activation, result, result)

    def _product_epilogue(self, step: Step, source: Array, scales: Array) -> FixedPoint:
        result = self._result(step)
        # A residual meets all channels in one unit, so there is only one.
        sizes = (result.group_sizes if isinstance(result, Affine) and not step.residual else ()) or (len(scales),)
        products = scales if len(source) == 1 else (source * scales).astype(np.float32)
        factors = np.empty(len(scales), np.int32)
        units = []
        first = 0
        for size in sizes:
            group = slice(first, first + size)
            factors[group] = channel_multipliers(products[group])
            units.append(float(products[group].max()) * (float(source[0]) if len(source) == 1 else 1.0))
            first += size
        return self._stage(step, factors, units, sizes)

    def _stage(self, step: Step, factors: Array, units: list[float], sizes: tuple[int, ...]) -> FixedPoint:
        """The end of a layer whose scaled accumulator has *units*, one by group of channels."""
        activation, result = step.activation, by_group(self._result(step))
        groups = result if len(units) == len(result) else result[:1]
        if len(units) < len(result):  # a residual: one unit, several scales
            units, sizes, groups = units * len(result), _sizes(self._result(step)), result
        shape = step.curve
        scales = [_unit_of(shape, unit) / float(np.float32(group.scale)) for unit, group in zip(units, groups, strict=True)]
        stages = [multiplier_and_shift(scale) for scale in scales]
        curves = () if shape is None else tuple(curve_of(shape, unit) for unit in units)
        grouped = len(units) > 1
        residual, residual_shift = multiplier_and_shift(self._scale(step.residual) / units[0]) if step.residual else (None, 0)
        table = (
            self._activation_table(step, activation, self._result(step)) if step.rounds_before_activation and activation else None
        )
        return FixedPoint(
            channel_multiplier=factors,
            multiplier=_spread([multiplier for multiplier, _ in stages], sizes, grouped),
            shift=_spread([shift for _, shift in stages], sizes, grouped),
            zero_point=_spread([group.zero_point for group in groups], sizes, grouped),
            bounds=_bounds(activation, units, sizes, grouped),
            slope=_slope(activation),
            residual_multiplier=residual,
            residual_shift=residual_shift,
            curves=curves,
            curve_groups=sizes if grouped and curves else (),
            table=table,
            table_groups=sizes if grouped and table is not None else (),
        )

    @property
    def _narrow(self) -> bool:
        return False

    def _function_table(self, activation: Activation, source: Quantization, target: Quantization) -> Array:
        """An activation of codes, as the chip computes it: a code is its accumulator."""
        shape = shape_of(activation) if activation.is_table else None
        unit, step = float(np.float32(source.scale)), float(np.float32(target.scale))
        differences = code_values(self.dtype).astype(np.int64) - source.zero_point
        if activation.label == CHANGE_OF_SCALE:  # a convolution with the weight 1, whose code is 255
            weight = float(np.float32(1.0) / np.float32(255.0))
            codes = output(differences * 255, *multiplier_and_shift(weight * unit / step), target.zero_point)
        elif shape is not None:
            stage = multiplier_and_shift(_unit_of(shape, unit) / step)
            codes = output(evaluate(curve_of(shape, unit), differences), *stage, target.zero_point)
        elif activation.slope is not None and activation.slope.size == 1:
            stage = multiplier_and_shift(unit / step)
            codes = leaky_output(differences, _ONE, np.rint(activation.slope * (1 << CHANNEL_BITS)), *stage, target.zero_point)
        elif activation.bounds is not None:
            low, high = _limits_of(activation.bounds, unit)
            codes = output(np.clip(differences, low, high), *multiplier_and_shift(unit / step), target.zero_point)
        else:
            return super()._function_table(activation, source, target)
        return codes.astype(self.dtype.storage)[None]

    def _requantize_table(self, source: Quantization, target: Quantization) -> Array:
        stage = multiplier_and_shift(float(np.float32(source.scale)) / float(np.float32(target.scale)))
        differences = code_values(self.dtype).astype(np.int64) - source.zero_point
        return output(differences, *stage, target.zero_point).astype(self.dtype.storage)[None]


def _unit_of(shape: Shape | None, unit: float) -> float:
    """The unit of what the second stage takes: of the scaled accumulator, or of a curve's values."""
    return unit if shape is None else 1.0 / shape.table_scale


def _sizes(quantization: Quantization) -> tuple[int, ...]:
    return quantization.group_sizes if isinstance(quantization, Affine) else ()


def _spread(values: list[int], sizes: tuple[int, ...], grouped: bool) -> Array:
    """One number, or one by channel where there are groups."""
    return np.repeat(np.array(values, np.int32), sizes) if grouped else np.array(values[:1], np.int32)


def _limits_of(bounds: tuple[float, float], unit: float) -> tuple[int, int]:
    low, high = (float(np.clip(np.rint(bound / unit), _LIMITS.min, _LIMITS.max)) for bound in bounds)
    return int(low), int(high)


def _bounds(activation: Activation | None, units: list[float], sizes: tuple[int, ...], grouped: bool) -> Array | None:
    if activation is None or activation.bounds is None:
        return None
    limits = [_limits_of(activation.bounds, unit) for unit in units]
    return np.stack([_spread([pair[side] for pair in limits], sizes, grouped) for side in (0, 1)])


def _slope(activation: Activation | None) -> Array | None:
    if activation is None or activation.slope is None:
        return None
    return np.rint(activation.slope.astype(np.float64) * (1 << CHANNEL_BITS)).astype(np.int32)
