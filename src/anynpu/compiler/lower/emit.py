"""Integer operators from steps: weights, multipliers and tables, once all quantisation is known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ..._util.types import Array
from ...errors import CompileError
from ...program import Binary, Concat, Conv, ConvTranspose, Dense, Epilogue, Finish, MatMul, Pool, Resize, Table
from ...program.arithmetic import WeightScales, function_table, quantize_bias, quantize_weights
from ...program.arithmetic.thresholds import staircase_of
from ...tensor import Affine, DType, Quantization
from ..graph import Graph, Node
from ..importers.qdq import QdqWeights
from ..quantize.channel_groups import is_depthwise
from ..quantize.qdq_rounding import product_multiplier, rounded_table
from ..quantize.qdq_scales import KeptScales, kept_codes
from ..quantize.simulate import QuantizedWeights, least_scale
from ..toolkit.quantizer import toolkit_bias, toolkit_weights
from .forms import resize_modes
from .steps import Activation, Step
from .unrounded_activations import simulated_function
from .windows import resize_indices, resize_scales, window_of

__all__ = ["Emitter", "KnownOperators", "OutlineEmitter", "by_group"]


_MAX_BIAS = 2.0**30
_MAX_WEIGHT = 1e20
_TAIL = 32.0
"""Beyond it an activation is a straight line or stays where it is, in any number of 8 bits."""
_SAME_CODE = 1e-2
"""Weights that lie within this share of a step at a code are that code."""


KnownOperators = dict[tuple[int, tuple[Quantization | None, ...]], tuple[Node, Conv]]
"""Operators by the identity of their node and the quantisation of their tensors. The node is kept: another would get its identity."""


@dataclass(frozen=True, eq=False)
class Emitter:
    """Builds the operators of one program.

    :ivar dtype: type of the codes, INT8 or INT16
    :ivar weights: how weights share scales
    :ivar refined: weights that were rounded with care, or whose scales are decided, by the result of their step
    :ivar toolkit: round weights and biases as the vendor's toolkit does
    :ivar kept: scales of weights that were codes already, one or by output channel, by the result of the node
    :ivar own: constants of a model that is quantised already, by name: all is rounded as onnxruntime rounds such a model
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
        """A matrix product with constant weights. *features* are (C, H, W) where the input was flattened from memory in HWC order."""
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
        """The quantisation of what the accumulator becomes: before the table, if there is one."""
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
        """Codes, zero points, bias and epilogue of weights whose first axis is the output channel.

        *source* is the scale of the input by output channel, where the input has more than one.
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
        """The codes that weights were before; None where they were none, or where a rewrite has changed them since."""
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

        :param source: scale of the input, one or by output channel
        :param scales: scale of the weights by output channel
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
        """Codes as they lie in memory."""
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
    """The quantisation of each group by itself."""
    if not isinstance(quantization, Affine):
        return [quantization]
    return [Affine.per_tensor(scale, zero) for scale, zero in zip(quantization.scales, quantization.zero_points, strict=True)]
