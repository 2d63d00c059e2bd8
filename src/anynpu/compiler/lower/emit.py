"""Integer operators from steps: weights, multipliers and tables, once all quantization is known; in either rounding mode."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ..._util.types import Array
from ...errors import CompileError
from ...modelfile.operator_rules import MAX_SLOPE
from ...program import Binary, Concat, Conv, ConvTranspose, Dense, Epilogue, Finish, FixedPoint, MatMul, Pool, Resize, Table
from ...program.arithmetic import WeightScales, code_values, function_table, quantize_bias, quantize_weights
from ...program.arithmetic.fixed_point import (
    CHANNEL_BITS,
    channel_multipliers,
    leaky_output,
    multiplier_and_shift,
    operand_multiplier,
    output,
)
from ...program.arithmetic.lookup_tables import Shape, curve_of, evaluate
from ...program.arithmetic.thresholds import staircase_of
from ...tensor import Affine, DType, Quantization
from ..graph import Graph, Node
from ..importers.quantized_models import QdqWeights
from ..quantize.channel_groups import is_depthwise
from ..quantize.given_scales import KeptScales, kept_codes, product_multiplier, rounded_table
from ..quantize.simulate import QuantizedWeights, least_scale
from ..toolkit.quantizer import CHANGE_OF_SCALE, toolkit_bias, toolkit_weights
from .attributes import resize_indices, resize_scales, window_of
from .forms import resize_modes
from .fuse import shape_of, simulated_function
from .steps import Activation, Step

_MAX_BIAS = 2.0**30
_MAX_WEIGHT = 1e20
_TAIL = 32.0
"""Beyond it an activation is a straight line or stays where it is, in any number of 8 bits."""
_SAME_CODE = 1e-2
"""Weights that lie within this share of a step at a code are that code."""


KnownOperators = dict[tuple[int, tuple[Quantization | None, ...]], tuple[Node, Conv]]
"""Operators by the identity of their node and the quantization of their tensors. The node is kept: another would get its identity."""


@dataclass(frozen=True, eq=False)
class Emitter:
    """Builds the operators of one program.

    :ivar dtype: type of the quantized values, INT8 or INT16
    :ivar weights: how weights share scales
    :ivar refined: weights that were rounded with care, or whose scales are decided, by the result of their step
    :ivar toolkit: round weights and biases as the vendor's toolkit does
    :ivar kept: scales of weights that were quantized values already, one or per output channel, by the result of the node
    :ivar own: constants of a model that is quantized already, by name: all is rounded as onnxruntime rounds such a model
    """

    graph: Graph
    quantization: Mapping[str, Quantization]
    dtype: DType
    weights: WeightScales
    refined: Mapping[str, QuantizedWeights | KeptScales] = field(default_factory=dict)
    toolkit: bool = False
    kept: Mapping[str, Array] = field(default_factory=dict)
    own: Mapping[str, QdqWeights] = field(default_factory=dict)

    def conv(self, step: Step) -> Conv:
        """A convolution with what is fused to it."""
        window = window_of(self.graph, step.node)
        weights = self._image_weights(self.graph.constants[step.node.inputs[1]])
        depthwise = is_depthwise(self.graph, step)
        scales, _ = self.quantization[step.inputs[0]].expand(self.graph.shapes[step.inputs[0]][1])
        source: Array | None = None
        if not self.quantization[step.inputs[0]].is_per_tensor:
            source = scales.astype(np.float64)
            if not depthwise:  # the ratio of the scales goes into the columns of the weights
                weights = self._in_columns(weights, source / source.max())
                source = np.full(1, source.max())
        codes, zero, bias, epilogue = self._linear(step, weights, self._bias(step, weights.shape[0]), source)
        return Conv(
            self._in_order(codes.transpose(0, 2, 3, 1)),
            zero,
            bias,
            epilogue,
            window.strides,
            window.pads,
            window.dilations,
            window.groups,
        )

    def conv_transpose(self, step: Step) -> ConvTranspose:
        """A transposed convolution with what is fused to it."""
        window = window_of(self.graph, step.node)
        stored = self._image_weights(self.graph.constants[step.node.inputs[1]])  # [Cin, Cout / g, kh, kw]
        groups = window.groups
        grouped = stored.reshape(groups, stored.shape[0] // groups, *stored.shape[1:])
        weights = grouped.transpose(0, 2, 1, 3, 4).reshape(-1, stored.shape[0] // groups, *stored.shape[2:])
        codes, zero, bias, epilogue = self._linear(step, weights, self._bias(step, weights.shape[0]))
        return ConvTranspose(
            self._in_order(codes.transpose(0, 2, 3, 1)),
            zero,
            bias,
            epilogue,
            window.strides,
            window.pads,
            window.dilations,
            groups,
        )

    def dense(self, step: Step, features: tuple[int, ...] = ()) -> Dense:
        """A matmul with constant weights. *features* are (C, H, W) where the input was flattened from memory in HWC order."""
        stored = self.graph.constants[step.node.inputs[1]]  # [K, N]
        weights = stored.T
        if features:
            channels, *spatial = features
            weights = weights.reshape(-1, channels, math.prod(spatial)).transpose(0, 2, 1).reshape(weights.shape[0], -1)
        codes, zero, bias, epilogue = self._linear(step, weights, self._bias(step, weights.shape[0]))
        return Dense(self._in_order(codes), zero, bias, epilogue)

    def matmul(self, step: Step) -> MatMul:
        """A product of two activations."""
        source = np.array([self._scale(step.inputs[0]) * self._scale(step.inputs[1])])
        return MatMul(self._product_epilogue(step, source, np.ones(1, np.float32)))

    def binary(self, step: Step) -> Binary:
        """Two tensors element by element."""
        left, right = (self._scale(name) for name in step.inputs)
        result = self._result(step).scale
        kind = step.node.op.lower()
        multipliers = (left * right / result, 1.0) if kind == "mul" else (left / result, right / result)
        if self.own and kind == "mul":
            multipliers = float(product_multiplier(np.array(left), np.array(right), np.array(result))), 1.0
        return Binary(
            kind,  # type: ignore[arg-type]
            np.array([multipliers[0]], np.float32),
            np.array([multipliers[1]], np.float32),
            self._epilogue(step, np.zeros(0, np.float32)),
        )

    def table(self, step: Step) -> Table:
        """A function of one tensor."""
        assert step.activation is not None
        source, target = self.quantization[step.inputs[0]], self.quantization[step.outputs[0]]
        return Table(self._function_table(step.activation, source, target))

    def concat(self, step: Step, axis: int) -> Concat:
        """Tensors one after the other, brought to one scale."""
        target = self.quantization[step.outputs[0]]
        tables = []
        for name in step.inputs:
            source = self.quantization[name]
            tables.append(None if source == target else Table(self._requantize_table(source, target)))
        return Concat(axis, tuple(tables))

    def pool(self, step: Step) -> Pool:
        """Max, average or global pooling."""
        window = window_of(self.graph, step.node)
        if "Max" in step.node.op:
            return Pool("max", window.kernel, window.strides, window.pads, window.dilations)
        multiplier = np.array([self._scale(step.inputs[0]) / self._result(step).scale], np.float32)
        include = bool(step.node.attribute("count_include_pad", 0))
        return Pool(
            "average", window.kernel, window.strides, window.pads, window.dilations, include, self._epilogue(step, multiplier)
        )

    def resize(self, step: Step) -> Resize:
        """Nearest or linear resize."""
        source, result = self.graph.shapes[step.inputs[0]], self.graph.shapes[step.outputs[0]]
        kind = step.node.attribute("mode", "nearest")
        scales = resize_scales(self.graph, step.node)
        modes = resize_modes(self.graph, step.node)
        tables = [resize_indices(kind, source[axis], result[axis], scales[axis], *modes) for axis in range(2, len(source))]
        if len(tables) == 1:
            tables.insert(0, np.zeros((1, 3), np.int32))
        rows, columns = tables
        assert rows is not None  # forms_of has looked
        assert columns is not None
        return Resize(kind, rows, columns)

    def pad_code(self, step: Step, value: float) -> int:
        """The code of the number that a Pad fills with."""
        quantization = self.quantization[step.inputs[0]]
        first, last = self.dtype.limits
        return int(np.clip(round(value / quantization.scale) + quantization.zero_point, first, last))

    def _scale(self, name: str) -> float:
        return float(np.float32(self.quantization[name].scale))

    def _result(self, step: Step) -> Quantization:
        """The quantization of what the accumulator becomes: before the table, if there is one."""
        return self.quantization[step.before_activation if step.rounds_before_activation else step.outputs[0]]

    def _function_table(self, activation: Activation, source: Quantization, target: Quantization) -> Array:
        if self.own:
            return rounded_table(self.graph, activation, source, target, self.own)
        function = simulated_function(activation) if self._narrow else activation.function
        return function_table(function, source, target, self.dtype, wide=not self._narrow)

    def _requantize_table(self, source: Quantization, target: Quantization) -> Array:
        wide = not (self._narrow or self.own)
        return function_table(lambda values: values, source, target, self.dtype, wide=wide)

    @property
    def _narrow(self) -> bool:
        """Whether functions are computed in float32, as by the simulator of the toolkit whose scales these are."""
        return self.toolkit and self.dtype is DType.INT8

    def _linear(self, step: Step, weights: Array, bias: Array, source: Array | None = None) -> tuple[Array, Array, Array, Finish]:
        """Quantized values, zero points, bias and epilogue of weights whose first axis is the output channel.

        *source* is the scale of the input per output channel, where the input has more than one.
        """
        if not (np.abs(weights).max(initial=0.0) < _MAX_WEIGHT and np.abs(bias).max(initial=0.0) < _MAX_WEIGHT):
            raise CompileError(
                "a weight is not a number, or far too large for integers",
                node=step.node.label,
                operator=step.node.op,
                hint="export the model again; if it is meant so, compile with dtype fp16",
            )
        source = np.full(1, self._scale(step.inputs[0])) if source is None else source
        wide = self.dtype is DType.INT16
        smallest = np.maximum(np.abs(bias) / (source * _MAX_BIAS), 1e-9) if not wide else 1e-9
        if not self.toolkit:
            smallest = np.maximum(smallest, least_scale(step, weights, source, self.quantization))
        made = self.refined.get(step.outputs[0])
        if isinstance(made, KeptScales):
            codes, scales, zero = kept_codes(weights, made)
            return codes, zero, quantize_bias(bias, source, scales, wide=wide), self._product_epilogue(step, source, scales)
        if self.toolkit:
            codes, scales, zero = toolkit_weights(weights, smallest)
            return codes, zero, toolkit_bias(bias, source, weights, smallest), self._product_epilogue(step, source, scales)
        known = self._known_codes(step, weights) if made is None else None
        if known is not None:
            codes, scales, zero = known
        elif made is None:
            codes, scales, zero = quantize_weights(weights, self.dtype, smallest, self.weights)
        else:
            codes, scales, zero, bias = made.codes.reshape(weights.shape), made.scales, made.zeros, made.bias
        return codes, zero, quantize_bias(bias, source, scales, wide=wide), self._product_epilogue(step, source, scales)

    def _known_codes(self, step: Step, weights: Array) -> tuple[Array, Array, Array] | None:
        """The quantized values that weights were before; None where they were none, or where a rewrite has changed them since."""
        given = self.kept.get(step.node.outputs[0])
        if given is None or len(given) not in (1, len(weights)) or self.dtype is not DType.INT8:
            return None
        scales = np.broadcast_to(given, len(weights)).astype(np.float32)
        steps = weights / scales.astype(np.float64).reshape(-1, *(1,) * (weights.ndim - 1))
        codes = np.rint(steps)
        if np.abs(steps - codes).max(initial=0.0) > _SAME_CODE or np.abs(codes).max(initial=0.0) > DType.INT8.limits[1]:
            return None
        return codes.astype(np.int8), scales, np.zeros(len(weights), np.int32)

    def _product_epilogue(self, step: Step, source: Array, scales: Array) -> Finish:
        """How a sum of products ends.

        :param source: scale of the input, one or per output channel
        :param scales: scale of the weights per output channel
        """
        if step.unrounded:
            return self._staircases(step, np.asarray(source * scales.astype(np.float64), np.float32))
        result, _ = self._result(step).expand(len(scales))
        if self.own:
            return self._epilogue(step, product_multiplier(source, scales, result))
        return self._epilogue(step, (source * scales.astype(np.float64) / result.astype(np.float64)).astype(np.float32))

    def _staircases(self, step: Step, multiplier: Array) -> Epilogue:
        """The end of a layer whose activation takes the unrounded sum, in float; *multiplier* leads to real numbers."""
        assert step.activation is not None
        result = self.quantization[step.outputs[0]]
        made = []
        for group in by_group(result):
            scale = float(np.float32(group.scale))
            reach = _TAIL + 4.0 * scale * (1 << self.dtype.bits)
            function = simulated_function(step.activation) if self._narrow else step.activation.function
            made.append(staircase_of(function, scale, group.zero_point, reach, self.dtype.storage, wide=not self._narrow))
        groups = result.group_sizes if isinstance(result, Affine) else ()
        return Epilogue(multiplier, np.zeros(1, np.int32), staircases=tuple(made), staircase_groups=groups)

    def _epilogue(self, step: Step, multiplier: Array) -> Epilogue:
        activation, result = step.activation, self._result(step)
        residual = None
        if step.residual:
            residual = np.array([self._scale(step.residual) / result.scale], np.float32)
        groups = result.group_sizes if isinstance(result, Affine) else ()
        table = None
        if activation is not None and activation.is_table:
            table = self._activation_table(step, activation, result)
        return Epilogue(
            multiplier=multiplier,
            zero_point=self._zero_point(result),
            clamp=self._clamp(activation, result),
            slope=activation.slope if activation is not None else None,
            residual_multiplier=residual,
            table=table,
            table_groups=groups if table is not None else (),
        )

    def _activation_table(self, step: Step, activation: Activation, before: Quantization) -> Array:
        """The table of an activation after a code, a row by group of channels."""
        pairs = list(zip(by_group(before), by_group(self.quantization[step.outputs[0]]), strict=True))
        rows = {pair: self._function_table(activation, *pair) for pair in dict.fromkeys(pairs)}
        return np.concatenate([rows[pair] for pair in pairs])

    @staticmethod
    def _zero_point(quantization: Quantization) -> Array:
        """One number, or one per channel where there are groups."""
        sizes = quantization.group_sizes if isinstance(quantization, Affine) else ()
        return quantization.expand(sum(sizes) or 1)[1]

    def _clamp(self, activation: Activation | None, result: Quantization) -> Array | None:
        if activation is None or activation.bounds is None:
            return None
        first, last = self.dtype.limits
        codes = [
            [
                limit if math.isinf(bound) else int(np.clip(round(bound / group.scale) + group.zero_point, first, last))
                for group in by_group(result)
            ]
            for bound, limit in zip(activation.bounds, (first, last), strict=True)
        ]
        clamp = np.array(codes, np.int32)
        if np.all(clamp[0] == first) and np.all(clamp[1] == last):
            return None
        sizes = result.group_sizes if isinstance(result, Affine) else ()
        return np.repeat(clamp, sizes, axis=1) if sizes else clamp

    def _bias(self, step: Step, channels: int) -> Array:
        bias = np.zeros(channels, np.float64)
        if step.node.op != "MatMul" and len(step.node.inputs) > 2 and step.node.inputs[2]:
            given = self.graph.constants[step.node.inputs[2]].astype(np.float64).reshape(-1)
            if given.size not in (1, channels):  # onnxruntime before 1.24 lets it pass
                raise CompileError(
                    f"the bias has {given.size} values for {channels} channels",
                    node=step.node.label,
                    operator=step.node.op,
                    hint="export the model again",
                )
            bias = bias + given
        for node in step.nodes[1:]:
            if node.op == "Add" and step.node.op == "MatMul":  # an Add of a constant that was absorbed is the bias
                constants = [self.graph.constants[name] for name in node.inputs if name in self.graph.constants]
                if constants and constants[0].size == channels and channels > 1:
                    bias = bias + constants[0].astype(np.float64).reshape(-1)
                    break
        return bias

    @staticmethod
    def _in_columns(weights: Array, ratio: Array) -> Array:
        """Weights of a dense convolution, their columns multiplied with the ratio of the input's scales."""
        result: Array = weights.astype(np.float64) * ratio[None, :, None, None]
        return result

    @staticmethod
    def _in_order(codes: Array) -> Array:
        """Quantized values as they lie in memory."""
        return np.ascontiguousarray(codes)

    @staticmethod
    def _image_weights(weights: Array) -> Array:
        """Weights of a one-dimensional convolution as those of one of height 1."""
        return weights[:, :, None, :] if weights.ndim == 3 else weights


@dataclass(frozen=True, eq=False)
class OutlineEmitter(Emitter):
    """Builds operators of the right kind and size without looking at weights: these and all tables are zero.

    :ivar known: operators of convolutions that were built before, also by other emitters of the same graph
    """

    known: KnownOperators = field(default_factory=dict)

    def conv(self, step: Step) -> Conv:
        """A convolution with what is fused to it: the one of before where its tensors have the scales of before."""
        key = id(step.node), tuple(map(self.quantization.get, (*step.reads, step.before_activation, *step.outputs)))
        if key not in self.known:
            self.known[key] = step.node, super().conv(step)
        return self.known[key][1]

    def _linear(self, step: Step, weights: Array, bias: Array, source: Array | None = None) -> tuple[Array, Array, Array, Finish]:
        wide = self.dtype is DType.INT16
        channels = len(bias)
        codes = np.broadcast_to(np.zeros((), np.int16 if wide else np.int8), weights.shape)
        sums = np.zeros(channels, np.int64 if wide else np.int32)
        return codes, np.zeros(channels, np.int32), sums, self._epilogue(step, np.ones(channels, np.float32))

    @staticmethod
    def _in_columns(weights: Array, ratio: Array) -> Array:
        return weights

    @staticmethod
    def _in_order(codes: Array) -> Array:
        return codes

    def _function_table(self, activation: Activation, source: Quantization, target: Quantization) -> Array:
        return self._empty_table

    def _requantize_table(self, source: Quantization, target: Quantization) -> Array:
        return self._empty_table

    @property
    def _empty_table(self) -> Array:
        return np.zeros((1, 1 << self.dtype.bits), self.dtype.storage)


def by_group(quantization: Quantization) -> list[Quantization]:
    """The quantization of each group on its own."""
    if not isinstance(quantization, Affine):
        return [quantization]
    return [Affine.per_tensor(scale, zero) for scale, zero in zip(quantization.scales, quantization.zero_points, strict=True)]


# Integer operators with the chip's own integers: multipliers, shifts, factors and tables; no float is left in them.
#
# What the numbers mean is written in :mod:`anynpu.program.arithmetic.fixed_point`.


STEEPEST = MAX_SLOPE / (1 << CHANNEL_BITS)
"""The largest slope of a PRelu or LeakyRelu after a convolution."""

_ONE = np.array([1 << CHANNEL_BITS], np.int32)
_NONE = np.zeros(0, np.int32)
_LIMITS = np.iinfo(np.int32)


class ChipEmitter(Emitter):
    """Builds the operators of one program for the chip's rule. Quantized values are int8."""

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
        # runs of channels with one scale are computed together: an output has one multiplier
        runs = (
            zip(result.scales, result.zero_points, strict=True) if isinstance(result, Affine) and len(sizes) > 1 else ((1.0, 0),)
        )
        kinds = list(runs)
        kind_of = np.repeat([kinds.index(kind) for kind in kinds], sizes)
        largest = {}
        for kind in np.unique(kind_of).tolist():
            group = kind_of == kind
            factors[group] = channel_multipliers(products[group])
            largest[kinds[kind]] = float(products[group].max()) * (float(source[0]) if len(source) == 1 else 1.0)
        units = [largest[kind] for kind in kinds]
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
        """An activation of quantized values, as the chip computes it: a code is its accumulator."""
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
    """One number, or one per channel where there are groups."""
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
