"""A model as the simulator of Rockchip's toolkit computes it: a graph in float32, with codes where the toolkit has them.

Its layers are the steps of ``quantizer="vendor"``. Each reads what codes stand for, computes in float32 and ends with QuantizeLinear and
DequantizeLinear; weights and biases are what their codes stand for. With onnxruntime, whose graph optimisations are off, it gave every code
of the toolkit's simulator in whole networks: both then sum in float32, in the same order, where a twin sums in integers. So it tells ties
from everything else that could differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .. import chips
from .._optional import onnx
from ..arithmetic.curves import CURVES
from ..errors import CompileError
from ..program import Preprocess
from ..tensor import Quantization
from ..types import Array
from .arithmetic import SIMULATOR, with_arithmetic
from .calibrate import CalibratedRanges
from .compile_options import CompileOptions
from .curves import shape_of
from .driver import calibrated, graph_for, plan_steps, prepare
from .formats import format_of
from .forms import Form
from .fusion_rules import toolkit_rules
from .graph import Graph, Node
from .onnx_model import load_onnx
from .options import shape_sets
from .schedule import schedule
from .steps import Step
from .tail import split_tail
from .toolkit import VENDOR, given_quantization, toolkit_quantization, toolkit_units, toolkit_weights
from .toolkit_steps import quotients, with_changes_of_scale, without_copies

__all__ = ["simulation", "simulation_of"]

_FIRST_OPSET = 10
_LINEAR = (Form.CONV, Form.CONV_TRANSPOSE, Form.DENSE)
_RAW, _IN, _BETWEEN = "@raw", "@in", "@between"


def simulation(model: Any, target: str, options: CompileOptions) -> tuple[Graph, Mapping[str, Preprocess]]:
    """The graph that the simulator of the toolkit computes, and what happens to its inputs before it.

    :param options: as for :func:`anynpu.compile`, with the scales of the toolkit's configuration as ``ranges``
    """
    chip = chips.get(target)
    options = replace(options, quantizer=VENDOR, arithmetic=SIMULATOR)
    kind = with_arithmetic(format_of(options.dtype, chip), chip, SIMULATOR)
    proto, _, _ = split_tail(load_onnx(model))
    first = prepare(proto, shape_sets(options.shapes)[0], options, {})
    graph = graph_for(first.graph, chip, kind, options)
    steps = plan_steps(graph, kind, options.hybrid, toolkit_rules(chip))
    graph = replace(graph, coded=graph.coded | quotients(graph, steps))
    preprocess = first.normalisation.preprocess
    seen, _ = calibrated(replace(first, graph=graph), [(graph, steps)], options, {}, None)
    ranges = CalibratedRanges(seen.observer, "minmax", options.percentile)
    given = without_copies(given_quantization(options.ranges, graph), steps)
    quantization = toolkit_quantization(graph, steps, ranges, preprocess, given)
    return simulation_of(graph, with_changes_of_scale(graph, steps, quantization), quantization), preprocess


def simulation_of(graph: Graph, steps: list[Step], quantization: Mapping[str, Quantization]) -> Graph:
    """The graph of *steps*. Tensors keep their names; what a layer has before its codes ends in ``@raw``."""
    if graph.opset < _FIRST_OPSET:
        raise CompileError(
            f"the model has opset {graph.opset}, and codes are part of ONNX from {_FIRST_OPSET} on",
            hint=f"export it from its framework with opset {_FIRST_OPSET} or later",
        )
    return _Writer(graph, quantization).run(schedule(graph, steps))


class _Writer:
    def __init__(self, graph: Graph, quantization: Mapping[str, Quantization]) -> None:
        self._graph = graph
        self._quantization = quantization
        self._made = replace(
            graph, nodes=[], constants=dict(graph.constants), shapes=dict(graph.shapes), dtypes=dict(graph.dtypes)
        )
        self._read_as: dict[str, str] = {}

    def run(self, steps: list[Step]) -> Graph:
        for name in self._graph.inputs:
            if name in self._quantization:
                self._read_as[name] = self._rounded(name, name, name + _IN)
        for step in steps:
            self._step(step)
        return self._made

    def _step(self, step: Step) -> None:
        current: dict[str, str] = self._as_float16(step) if step.is_float else {}
        known = self._known(step)
        for node in step.nodes:
            if known and step.activation is not None and node in step.activation.nodes:
                continue
            inputs = [current.get(name) or self._read_as.get(name, name) for name in node.inputs]
            if node is step.node and not step.is_float:  # a change of scale may stand before it
                if len(step.inputs) == len(node.inputs):
                    inputs = [self._read_as.get(name, name) for name in step.inputs]
                elif step.inputs and step.form is not Form.FUNCTION:
                    inputs[0] = self._read_as.get(step.inputs[0], step.inputs[0])
            self._constants(step, node, inputs)
            outputs = [self._like(name, name + _RAW) for name in node.outputs]
            current.update(zip(node.outputs, outputs, strict=True))
            self._made.nodes.append(replace(node, inputs=inputs, outputs=outputs, name=f"{node.label}@computed"))
            if step.rounds_before_activation and step.before_activation in node.outputs:
                name = step.before_activation
                current[name] = self._rounded(name, current[name], name + _BETWEEN)
        if known:
            source = step.inputs[0] if step.form is Form.FUNCTION else step.before_activation
            current[step.outputs[0]] = self._activation(
                known, step.outputs[0], current.get(source) or self._read_as.get(source, source)
            )
        for name in step.outputs:
            if name in self._quantization and self._graph.is_float(name):
                self._rounded(name, current[name], name)
            elif self._graph.is_float(name):
                self._halved(name, current[name], name)
            else:
                self._made.nodes.append(Node("Identity", [current[name]], [name], {}, name))

    def _halved(self, name: str, source: str, result: str) -> str:
        """*source* rounded to float16, which is what a tensor without codes is in the toolkit's files."""
        types, half = onnx().TensorProto, f"{result}@half"
        self._like(name, result)
        self._made.shapes[half], self._made.dtypes[half] = self._graph.shapes[name], np.dtype(np.float16)
        self._made.nodes.append(Node("Cast", [source], [half], {"to": types.FLOAT16}, half))
        self._made.nodes.append(Node("Cast", [half], [result], {"to": types.FLOAT}, result))
        return result

    def _as_float16(self, step: Step) -> dict[str, str]:
        """What a layer in float reads in place of codes."""
        coded = [name for name in dict.fromkeys(step.reads) if name in self._quantization and self._graph.is_float(name)]
        return {name: self._halved(name, self._read_as.get(name, name), f"{name}@{step.outputs[0]}") for name in coded}

    @staticmethod
    def _known(step: Step) -> str:
        """The name of an activation whose operations are the simulator's own, not those of the model; else empty."""
        if step.is_float or step.activation is None or not step.activation.is_table:
            return ""
        shape = shape_of(step.activation)
        return next((name for name in ("HardSwish", "Swish") if CURVES[name] is shape), "")

    def _activation(self, known: str, name: str, source: str) -> str:
        if known == "HardSwish":
            gate = self._node("HardSigmoid", [source], name, "gate", alpha=1.0 / 6.0, beta=0.5)
        else:
            one = self._constant("@one", np.array(1.0, np.float32))
            power = self._node("Exp", [self._node("Neg", [source], name, "negative")], name, "power")
            gate = self._node("Div", [one, self._node("Add", [one, power], name, "sum")], name, "gate")
        return self._node("Mul", [source, gate], name, "raw")

    def _constants(self, step: Step, node: Node, inputs: list[str]) -> None:
        """Put what the codes of weights and bias stand for into *inputs*."""
        if step.is_float or step.form not in _LINEAR:
            return
        weights = self._graph.constants[step.node.inputs[1]]
        rows = _by_output(step, weights)
        units = toolkit_units(rows, np.float32(self._quantization[step.inputs[0]].scale))
        name = node.outputs[0]
        if node is step.node:
            codes, scales, zeros = toolkit_weights(rows)
            shape = (-1, *(1,) * (rows.ndim - 1))
            values = (codes.astype(np.int32) - zeros.reshape(shape)).astype(np.float32) * scales.reshape(shape)
            inputs[1] = self._constant(f"{name}@weights", _as_stored(step, values, weights.shape))
            position = 2 if len(node.inputs) > 2 and node.inputs[2] else None
        else:  # a constant that is added to a product is its bias
            found = [index for index, entry in enumerate(node.inputs) if entry in self._graph.constants]
            position = found[0] if node.op == "Add" and found and self._size(node.inputs[found[0]]) == len(rows) else None
        if position is not None:
            bias = self._graph.constants[node.inputs[position]].astype(np.float32)
            rounded = np.rint(bias.reshape(-1) / units) * units
            inputs[position] = self._constant(f"{name}@bias", rounded.astype(np.float32).reshape(bias.shape))

    def _size(self, name: str) -> int:
        return self._graph.constants[name].size

    def _rounded(self, name: str, source: str, result: str) -> str:
        """*source* rounded to the codes of the tensor *name*, as numbers."""
        entry = self._quantization[name]
        ends = [
            self._constant(f"{name}@scale", np.array(entry.scale, np.float32)),
            self._constant(f"{name}@zero", np.array(entry.zero_point, np.int8)),
        ]
        codes = f"{result}@codes"
        self._like(name, result)
        self._made.nodes.append(Node("QuantizeLinear", [source, *ends], [codes], {}, codes))
        self._made.nodes.append(Node("DequantizeLinear", [codes, *ends], [result], {}, result))
        self._made.shapes[codes], self._made.dtypes[codes] = self._made.shapes[result], np.dtype(np.int8)
        return result

    def _node(self, op: str, inputs: list[str], like: str, suffix: str, **attributes: float) -> str:
        made = self._like(like, f"{like}@{suffix}")
        self._made.nodes.append(Node(op, inputs, [made], dict(attributes), made))
        return made

    def _like(self, name: str, result: str) -> str:
        self._made.shapes[result], self._made.dtypes[result] = self._graph.shapes[name], self._graph.dtypes[name]
        return result

    def _constant(self, name: str, value: Array) -> str:
        self._made.constants[name] = np.ascontiguousarray(value)
        return name


def _by_output(step: Step, weights: Array) -> Array:
    """Weights with the output channel first."""
    if step.form is Form.DENSE:
        return np.asarray(weights.T)
    if step.form is Form.CONV:
        return weights
    groups = int(step.node.attribute("group", 1))
    grouped = weights.reshape(groups, weights.shape[0] // groups, *weights.shape[1:])
    rows: Array = np.moveaxis(grouped, 2, 1).reshape(-1, weights.shape[0] // groups, *weights.shape[2:])
    return rows


def _as_stored(step: Step, rows: Array, shape: tuple[int, ...]) -> Array:
    """The way back."""
    if step.form is Form.DENSE:
        return np.asarray(rows.T)
    if step.form is Form.CONV:
        return rows
    groups = int(step.node.attribute("group", 1))
    grouped = rows.reshape(groups, shape[1], shape[0] // groups, *shape[2:])
    stored: Array = np.moveaxis(grouped, 2, 1).reshape(shape)
    return stored
