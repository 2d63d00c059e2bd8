"""The quantized network as a float graph that onnxruntime runs: every tensor that has quantized values is rounded to them, every
weight to its own.

It is what the compiler evaluates its choices by. Rounding is where the program rounds (before a table, after it, at every result), but sums
are in float32: quantized values differ from the engine's by one step now and then, which changes a judgment as little as another
sample would.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..._util.types import Array, Floats
from ...program.arithmetic import WeightScales, quantize_weights
from ...tensor import Quantization
from ..graph import Graph, Node
from ..lower.forms import Form
from ..lower.steps import Step
from .calibrate import float_session
from .channel_groups import is_depthwise

Sample = Mapping[str, Array]
KnownWeights = dict[tuple[str, Form, int], Array]
"""Rounded weights of a network by the name of the weights, and the form and groups of the layer that has them."""

_DOMAIN = "com.microsoft"
"""Its QuantizeLinear takes a scale per channel at any opset."""

_SUFFIXES = ("rounded", "codes", "curve", "beyond")
_CODES = 255
_MOST_UNITS = 1 << 12
"""Units of the products in one step of the residual; a multiplier of 15 bits holds eight times as many."""

_FEW_UNITS = 4.0
"""A step of quantized values that has as many units of the chip's table is not worse for them."""

_KNOWN_BYTES = 1 << 26
"""Rounded weights that are kept for other simulations."""

_WEIGHTED = {Form.CONV, Form.CONV_TRANSPOSE, Form.DENSE}


@dataclass(frozen=True, eq=False)
class QuantizedWeights:
    """Weights that were rounded with care, instead of each to its nearest code.

    :ivar codes: as ONNX lays the weights out, with the ratio of the input's scales in their columns
    :ivar scales: per output channel
    :ivar zeros: zero points per output channel
    :ivar bias: in float, per output channel
    """

    codes: Array
    scales: Array
    zeros: Array
    bias: Floats


def column_ratio(graph: Graph, step: Step, quantization: Mapping[str, Quantization]) -> Floats | None:
    """What a dense convolution multiplies the columns of its weights with because its input has several scales; None if it has not."""
    source = quantization.get(step.inputs[0])
    if source is None or source.is_per_tensor or step.form is not Form.CONV or is_depthwise(graph, step):
        return None
    scales = source.expand(graph.shapes[step.inputs[0]][1])[0].astype(np.float64)
    ratio: Floats = scales / scales.max()
    return ratio


def round_weights(weights: Array, ratio: Floats | None, sharing: WeightScales = WeightScales.CHANNEL) -> Floats:
    """Convolution weights [Cout, Cin / g, ...] as their int8 values have them."""
    if ratio is None:
        return _as_rounded(weights, sharing)
    columns = ratio.reshape(1, -1, *(1,) * (weights.ndim - 2))
    codes, scales, zeros = quantize_weights(weights.astype(np.float64) * columns, scales=sharing)
    shape = (-1, *(1,) * (weights.ndim - 1))
    result: Floats = (codes.astype(np.float64) - zeros.reshape(shape)) * scales.reshape(shape).astype(np.float64) / columns
    return result


def _as_rounded(weights: Array, sharing: WeightScales, *, turned: bool = False) -> Array:
    """Weights as their int8 values have them, in float32: a code times a float32 is rounded once, so that float64 gives nothing else.

    :param turned: the output channels are the second axis of two
    """
    codes, scales, zeros = quantize_weights(weights.T if turned else weights, scales=sharing)
    shape = (1, -1) if turned else (-1, *(1,) * (weights.ndim - 1))
    result: Array = np.ascontiguousarray(codes.T if turned else codes).astype(np.float32)
    result -= zeros.reshape(shape).astype(np.float32)
    result *= scales.reshape(shape)
    return result


def simulated_weights(
    graph: Graph,
    steps: Iterable[Step],
    quantization: Mapping[str, Quantization],
    refined: Mapping[str, QuantizedWeights],
    sharing: WeightScales = WeightScales.CHANNEL,
    known: KnownWeights | None = None,
) -> dict[str, tuple[Array, Array | None]]:
    """Weights, and bias where it changed, of every integer step by its result, as the quantized values have them.

    :param known: rounded weights of earlier calls with the same weights and *sharing*; it grows, within a bound
    """
    result: dict[str, tuple[Array, Array | None]] = {}
    known = {} if known is None else known
    room = _KNOWN_BYTES - sum(array.nbytes for array in known.values())
    for step in steps:
        if step.is_float or step.form not in _WEIGHTED:
            continue
        name = step.outputs[0]
        stored = graph.constants[step.node.inputs[1]]
        ratio = column_ratio(graph, step, quantization)
        if name in refined:
            made = refined[name]
            shape = (-1, *(1,) * (stored.ndim - 1))
            columns = 1.0 if ratio is None else ratio.reshape(1, -1, *(1,) * (stored.ndim - 2))
            values = (made.codes.astype(np.float64) - made.zeros.reshape(shape)) * made.scales.reshape(shape) / columns
            result[name] = values.astype(np.float32), made.bias.astype(np.float32)
        elif ratio is not None:
            result[name] = round_weights(stored, ratio, sharing).astype(np.float32, copy=False), None
        else:
            key = (step.node.inputs[1], step.form, int(step.node.attribute("group", 1)))
            rounded = known[key] if key in known else _plainly_rounded(step, stored, sharing)
            if room >= rounded.nbytes and key not in known:
                known[key] = rounded
                room -= rounded.nbytes
            result[name] = rounded, None
    return result


def _plainly_rounded(step: Step, stored: Array, sharing: WeightScales) -> Array:
    """The weights of a step whose input has one scale."""
    if step.form is Form.DENSE:
        return _as_rounded(stored, sharing, turned=True)
    if step.form is not Form.CONV_TRANSPOSE:
        return round_weights(stored, None, sharing).astype(np.float32, copy=False)
    groups = int(step.node.attribute("group", 1))
    parts = stored.reshape(groups, stored.shape[0] // groups, *stored.shape[1:])
    turned = parts.transpose(0, 2, 1, *range(3, parts.ndim))
    rounded = round_weights(turned.reshape(-1, *turned.shape[2:]), None, sharing).reshape(turned.shape)
    back = rounded.transpose(0, 2, 1, *range(3, parts.ndim)).reshape(stored.shape)
    return np.ascontiguousarray(back, np.float32)


def least_scale(step: Step, weights: Array, source: Array, quantization: Mapping[str, Quantization]) -> float:
    """The least scale of a step's weights with which a chip's integers can still add the residual; 0 where it does not matter.

    A chip brings the residual to the unit of the products by a multiplier of 15 bits. Where weights are so small that the residual is far
    more than that (a branch that is scaled by 1e-5, as in PoolFormer or CaiT), they get fewer quantized values, which no reader
    sees in the sum.
    """
    if not step.residual or weights.size == 0:
        return 0.0
    least = float(quantization[step.residual].scale) / (_MOST_UNITS * float(source.max()))
    return least if float(np.ptp(weights)) / _CODES < least else 0.0


@dataclass(eq=False)
class Rewriter:
    """Rewrites nodes so that they read rounded tensors and rounded weights.

    :ivar constants: what it added
    """

    graph: Graph
    quantization: Mapping[str, Quantization]
    constants: dict[str, Array] = field(default_factory=dict)

    def rounded(self, name: str) -> str:
        """What a tensor is called after rounding."""
        return f"{name}@rounded"

    def reads(self, node: Node, made_float: Set[str], *, in_float: bool) -> list[str]:
        """What a node reads: rounded tensors, except that float results and float inputs go to float nodes as they are."""
        unrounded = set(self.graph.inputs) - self.graph.coded
        return [
            self.rounded(name)
            if name in self.quantization and not (in_float and (name in made_float or name in unrounded))
            else name
            for name in node.inputs
        ]

    def within_table(self, step: Step | None, node: Node, inputs: list[str]) -> list[str]:
        """What a node reads where it is part of an activation that the chip tabulates: the argument within the table's range."""
        if step is None or not _is_tabulated(step) or node is step.node:
            return inputs
        before = (step.before_activation, self.rounded(step.before_activation))
        result = [f"{step.outputs[0]}@curve" if name in before else name for name in inputs]
        return [*result, *self._beyond(step)] if step.outputs[0] in node.outputs else result

    def rewritten(self, step: Step | None, node: Node, inputs: list[str]) -> list[Node]:
        """The node with other inputs. Around an activation that the chip tabulates: what keeps its argument within the table, and the
        straight line beyond it."""
        result = Node(node.op, inputs, node.outputs, node.attributes, node.name, node.domain)
        if step is None or not _is_tabulated(step):
            return [result]
        if node is step.node:
            return [result, *self._entry(step)]
        if step.outputs[0] not in node.outputs:
            return [result]
        extra, units = self._beyond(step), self._few_units(step)
        result.inputs = inputs[: len(inputs) - len(extra)]
        nodes, last = [result], step.outputs[0]
        if extra:
            nodes.append(Node("Add", [f"{last}@base", *extra], [last]))
            nodes[0] = replace(result, outputs=[f"{last}@base"])
        if units:
            nodes[-1] = replace(nodes[-1], outputs=[f"{last}@fine"])
            nodes += self._in_units(f"{last}@fine", last, units)
        return nodes

    def _few_units(self, step: Step) -> float:
        """Units of the chip's table per unit of its result, where a step of the result's quantized values has so few of them
        that it matters."""
        quantization = self.quantization.get(step.outputs[0])
        if quantization is None or step.curve is None:
            return 0.0
        scales, _ = quantization.expand(1 if quantization.is_per_tensor else self.graph.shapes[step.outputs[0]][1])
        units = step.curve.table_scale
        return units if float(np.min(scales)) * units < _FEW_UNITS else 0.0

    def _in_units(self, source: str, result: str, units: float, offset: float = 0.0) -> list[Node]:
        """The nodes that round a tensor to units of a table, counted from *offset*."""
        names = [f"{result}@{part}" for part in ("whole", "half", "floor", "back")]
        many, half, back, start = (
            self._constant(f"{result}@{part}", np.array(value, np.float32))
            for part, value in (("many", units), ("middle", 0.5 - offset * units), ("one", 1.0 / units), ("start", offset))
        )
        return [
            Node("Mul", [source, many], names[:1]),
            Node("Add", [names[0], half], names[1:2]),
            Node("Floor", [names[1]], names[2:3]),
            Node("Mul", [names[2], back], names[3:]),
            Node("Add", [names[3], start], [result]),
        ]

    @staticmethod
    def _beyond(step: Step) -> list[str]:
        return [f"{step.outputs[0]}@beyond"] if step.curve is not None and step.curve.end_slope else []

    def _entry(self, step: Step) -> list[Node]:
        """The argument of a step's activation within the table, and what its line adds beyond it."""
        shape, name, result = step.curve, step.before_activation, step.outputs[0]
        assert shape is not None
        low, high = (np.array(shape.centre + end, np.float32) for end in (-shape.half, shape.half))
        clipped = f"{result}@curve"
        nodes = [Node("Max", [name, self._constant(f"{clipped}.low", low)], [f"{clipped}.above"])]
        within = f"{clipped}.within" if self._few_units(step) else clipped
        nodes.append(Node("Min", [f"{clipped}.above", self._constant(f"{clipped}.high", high)], [within]))
        if within != clipped:
            nodes += self._in_units(within, clipped, shape.index_scale, shape.centre)
        for beyond in self._beyond(step):
            nodes.append(Node("Sub", [name, f"{clipped}.high"], [f"{beyond}.difference"]))
            nodes.append(Node("Relu", [f"{beyond}.difference"], [f"{beyond}.above"]))
            slope = self._constant(f"{beyond}.slope", np.array(shape.end_slope, np.float32))
            nodes.append(Node("Mul", [f"{beyond}.above", slope], [beyond]))
        return nodes

    def _constant(self, name: str, value: Array) -> str:
        self.constants[name] = value
        return name

    def with_weights(self, step: Step, inputs: list[str], weights: Array, bias: Array | None) -> list[str]:
        """The inputs of a step's node with other weights, and with another bias where one is given."""
        name = f"{step.outputs[0]}@weights"
        self.constants[name] = weights
        if bias is None:
            return [inputs[0], name, *inputs[2:]]
        offset = f"{step.outputs[0]}@bias"
        self.constants[offset] = bias
        return [inputs[0], name, offset]

    def rounding(self, name: str) -> list[Node]:
        """The two nodes that round a tensor."""
        quantization = self.quantization[name]
        channels = self.graph.shapes[name][1] if not quantization.is_per_tensor else 1
        scales, zeros = quantization.expand(channels)
        scale, zero = f"{name}@scale", f"{name}@zero"
        attributes: dict[str, Any] = {}
        if quantization.is_per_tensor:
            scales, zeros = scales.reshape(()), zeros.reshape(())
        else:
            attributes["axis"] = 1
        self.constants[scale], self.constants[zero] = scales, zeros.astype(np.int8)
        codes = f"{name}@codes"
        return [
            Node("QuantizeLinear", [name, scale, zero], [codes], dict(attributes), domain=_DOMAIN),
            Node("DequantizeLinear", [codes, scale, zero], [self.rounded(name)], dict(attributes), domain=_DOMAIN),
        ]


def _is_tabulated(step: Step) -> bool:
    return step.curve is not None and not step.is_float


class Simulation:
    """A quantized network in onnxruntime.

    :param quantization: of every tensor that has quantized values; int8 only
    :param refined: weights that were rounded with care, by the result of their step
    :param wanted: the tensors that a run gives; the model's outputs by default
    :param weights: round weights too
    :param sharing: how weights share scales
    :param threads: how many threads run it at a time; with one, onnxruntime uses threads of its own
    :param known: rounded weights of other simulations of the same network
    """

    def __init__(
        self,
        graph: Graph,
        steps: Sequence[Step],
        quantization: Mapping[str, Quantization],
        *,
        refined: Mapping[str, QuantizedWeights] | None = None,
        wanted: Sequence[str] | None = None,
        weights: bool = True,
        sharing: WeightScales = WeightScales.CHANNEL,
        threads: int = 1,
        known: KnownWeights | None = None,
    ) -> None:
        self._outputs = list(graph.outputs if wanted is None else wanted)
        rewriter = Rewriter(graph, quantization)
        changed = simulated_weights(graph, steps, quantization, refined or {}, sharing, known) if weights else {}
        readers = step_of_node(steps)
        made_float = {name for step in steps if step.is_float for name in step.outputs}
        nodes: list[Node] = []
        for name in graph.inputs:
            if name in quantization:
                nodes += rewriter.rounding(name)
        for node in graph.nodes:
            step = readers.get(id(node))
            inputs = rewriter.reads(node, made_float, in_float=step is not None and step.is_float)
            if step is not None and step.node is node and step.outputs[0] in changed:
                inputs = rewriter.with_weights(step, inputs, *changed[step.outputs[0]])
            nodes += rewriter.rewritten(step, node, rewriter.within_table(step, node, inputs))
            for name in node.outputs:
                if name in quantization:
                    nodes += rewriter.rounding(name)
        self._names = [
            rewriter.rounded(name) if name in quantization and (name not in made_float or name in graph.coded) else name
            for name in self._outputs
        ]
        self._session = session_of(graph, nodes, rewriter.constants, graph.inputs, self._names, threads=threads)
        self._inputs = graph.inputs

    def run(self, sample: Sample) -> list[Array]:
        """The outputs (or the *wanted* tensors) for a normalized sample."""
        feeds = {name: np.asarray(sample[name]) for name in self._inputs}
        results: list[Array] = self._session.run(self._names, feeds)
        return results


def step_of_node(steps: Iterable[Step]) -> dict[int, Step]:
    """The step that each node went into, by ``id(node)``."""
    return {id(node): step for step in steps for node in step.nodes}


def session_of(
    graph: Graph,
    nodes: Sequence[Node],
    constants: Mapping[str, Array],
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    threads: int = 1,
) -> Any:
    """A session of rewritten nodes of *graph*; *constants* are what rewriting added, and *threads* run it at a time."""
    whole = Graph(
        list(nodes),
        list(inputs),
        list(outputs),
        {**graph.constants, **constants},
        dict(graph.shapes),
        dict(graph.dtypes),
        {**graph.opsets, _DOMAIN: 1},
        graph.ir_version,
    )
    for name in (*inputs, *outputs):
        original, _, form = name.partition("@")
        if name not in whole.shapes and form in _SUFFIXES:
            whole.shapes[name] = graph.shapes[original]
            whole.dtypes[name] = np.dtype(np.int8) if form == "codes" else np.dtype(np.float32)
    return float_session(whole, whole.nodes, whole.inputs, whole.outputs, rounding=True, threads=threads)
