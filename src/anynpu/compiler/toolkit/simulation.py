"""A model as the simulator of Rockchip's toolkit computes it: steps in float32, with quantized values where the toolkit has them.

The steps are those of ``quantizer="vendor"``. Each reads quantized values, computes in float32 what they stand for, and ends
with QuantizeLinear; weights and biases are what their quantized values stand for. Onnxruntime runs them operator by operator, as
the toolkit's simulator does. So both sum in the same order, and whole networks were seen to have every code of the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np

from ..._util.optional import onnx
from ..._util.types import Array
from ...chips import Chip
from ...errors import CompileError
from ...program import Layer, Placement, Program
from ...program.arithmetic.lookup_tables import CURVES
from ...tensor import DType, Layout, Quantization, TensorSpec
from ..graph import Graph, Node
from ..lower.float_layers import FloatEmitter, weight_bytes
from ..lower.forms import Form
from ..lower.fuse import shape_of
from ..lower.layout import Tensors, plan_memory
from ..lower.lower import float_macs
from ..lower.placement import place, schedule
from ..lower.steps import Step
from .quantizer import toolkit_units, toolkit_weights

_LINEAR = (Form.CONV, Form.CONV_TRANSPOSE, Form.DENSE)
_RAW, _BETWEEN = "@raw", "@between"


def simulated_steps(graph: Graph, steps: list[Step], quantization: Mapping[str, Quantization]) -> tuple[Graph, list[Step]]:
    """The steps as float steps, in an order in which they can run, and the graph of their nodes.

    A tensor that has quantized values is an int8 tensor of that graph. What lies between the operators of a step has an @ in its name.
    """
    writer = _Writer(graph, quantization)
    made = [writer.step(step) for step in schedule(graph, steps)]
    return writer.graph, made


class _Writer:
    """Writes steps one after the other.

    :ivar graph: what is written
    """

    def __init__(self, graph: Graph, quantization: Mapping[str, Quantization]) -> None:
        self._graph = graph
        self._quantization = quantization
        self.graph = replace(
            graph, nodes=[], constants=dict(graph.constants), shapes=dict(graph.shapes), dtypes=dict(graph.dtypes)
        )
        for name in graph.inputs:
            if self._is_coded(name):
                self.graph.dtypes[name] = np.dtype(np.int8)
        self._nodes: list[Node] = []
        self._values: dict[str, str] = {}
        self._added: dict[str, str] = {}
        self._mark = ""

    def step(self, step: Step) -> Step:
        """A step as one in float, from quantized values to quantized values."""
        self._nodes, self._values, self._mark = [], {}, step.outputs[0]
        current: dict[str, str] = {}
        known = self._known(step)
        for node in step.nodes:
            if known and step.activation is not None and node in step.activation.nodes:
                continue
            inputs = [current.get(name) or self._value(name, step) for name in node.inputs]
            if node is step.node and not step.is_float:  # a change of scale may stand before it
                if len(step.inputs) == len(node.inputs):
                    inputs = [self._value(name, step) for name in step.inputs]
                elif step.inputs and step.form is not Form.FUNCTION:
                    inputs[0] = self._value(step.inputs[0], step)
            self._constants(step, node, inputs)
            outputs = [self._like(name, name + _RAW) for name in node.outputs]
            current.update(zip(node.outputs, outputs, strict=True))
            self._add(replace(node, inputs=inputs, outputs=outputs, name=f"{node.label}@computed"))
            if step.rounds_before_activation and step.before_activation in node.outputs:
                name = step.before_activation
                current[name] = self._dequantized(name, self._quantized(name, current[name], name + _BETWEEN), f"{name}@rounded")
        if known:
            source = step.inputs[0] if step.form is Form.FUNCTION else step.before_activation
            current[step.outputs[0]] = self._activation(known, step.outputs[0], current.get(source) or self._value(source, step))
        for name in step.outputs:
            self._finish(name, current[name])
        reads = list(dict.fromkeys(name for node in self._nodes for name in node.inputs if name and self._is_outside(name)))
        self.graph.nodes += self._nodes
        return replace(step, nodes=self._nodes, inputs=reads, residual="", is_float=True)

    def _is_outside(self, name: str) -> bool:
        return name not in self.graph.constants and not any(name in node.outputs for node in self._nodes)

    def _is_coded(self, name: str) -> bool:
        return name in self._quantization and self._graph.is_float(name)

    def _value(self, name: str, step: Step) -> str:
        """What a step reads in place of a tensor: what its quantized values stand for, in a step in float rounded to float16."""
        if not name or not self._is_coded(name) or name in self._graph.constants:
            return name
        if name not in self._values:
            value = self._dequantized(name, name, f"{name}@{self._mark}")
            half = step.is_float and not all(map(self._is_coded, step.outputs))  # int8 to int8: float32 in between
            self._values[name] = self._halved(name, value, f"{name}@{self._mark}@float16") if half else value
        return self._values[name]

    def _finish(self, name: str, source: str) -> None:
        if self._is_coded(name):
            self._quantized(name, source, name)
        elif self._graph.is_float(name):
            self._halved(name, source, name)
        else:
            self._add(Node("Identity", [source], [name], {}, name))

    def _halved(self, name: str, source: str, result: str) -> str:
        """*source* rounded to float16, which is what a tensor without quantized values is in the toolkit's files."""
        types, half = onnx().TensorProto, self._like(name, f"{result}@half", np.float16)
        result = self._like(name, result)
        self._add(Node("Cast", [source], [half], {"to": types.FLOAT16}, half))
        self._add(Node("Cast", [half], [result], {"to": types.FLOAT}, result))
        return result

    def _quantized(self, name: str, source: str, result: str) -> str:
        """*source* as quantized values of the tensor *name*."""
        result = self._like(name, result, np.int8)
        self._add(Node("QuantizeLinear", [source, *self._ends(name)], [result], {}, result))
        return result

    def _dequantized(self, name: str, codes: str, result: str) -> str:
        result = self._like(name, result, np.float32)
        self._add(Node("DequantizeLinear", [codes, *self._ends(name)], [result], {}, result))
        return result

    def _ends(self, name: str) -> list[str]:
        entry = self._quantization[name]
        return [
            self._constant(f"{name}@scale", np.array(entry.scale, np.float32)),
            self._constant(f"{name}@zero", np.array(entry.zero_point, np.int8)),
        ]

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
        """Put what the quantized values of weights and bias stand for into *inputs*."""
        if step.is_float or step.form not in _LINEAR:
            return
        weights = self._graph.constants[step.node.inputs[1]]
        rows = _by_output(step, weights)
        units = toolkit_units(rows, np.float32(self._quantization[step.inputs[0]].scale))
        name = node.outputs[0]
        if node is step.node:
            inputs[1] = self._weights(step, rows, weights.shape)
            position = 2 if len(node.inputs) > 2 and node.inputs[2] else None
        else:  # a constant that is added to a product is its bias
            found = [index for index, entry in enumerate(node.inputs) if entry in self._graph.constants]
            position = found[0] if node.op == "Add" and found and self._size(node.inputs[found[0]]) == len(rows) else None
        if position is not None:
            bias = self._graph.constants[node.inputs[position]].astype(np.float32)
            rounded = np.rint(bias.reshape(-1) / units) * units
            inputs[position] = self._constant(f"{name}@bias", rounded.astype(np.float32).reshape(bias.shape))

    def _weights(self, step: Step, rows: Array, shape: tuple[int, ...]) -> str:
        """Weights as quantized values that are dequantized; as numbers where a scale belongs to one of several groups of them."""
        name = self.graph.free_name(f"{step.node.outputs[0]}@weights")
        codes, scales, zeros = toolkit_weights(rows)
        axis = {Form.CONV: 0, Form.DENSE: len(shape) - 1}.get(step.form or Form.CONV, 1)
        if shape[axis] != len(rows):
            column = (-1, *(1,) * (rows.ndim - 1))
            values = (codes.astype(np.int32) - zeros.reshape(column)).astype(np.float32) * scales.reshape(column)
            return self._constant(name, _as_stored(step, values, shape))
        stored = self._constant(f"{name}@codes", _as_stored(step, codes, shape))
        ends = [self._constant(f"{name}@scale", scales), self._constant(f"{name}@zero", zeros.astype(np.int8))]
        self.graph.shapes[name], self.graph.dtypes[name] = shape, np.dtype(np.float32)
        self._add(Node("DequantizeLinear", [stored, *ends], [name], {"axis": axis}, name))
        return name

    def _size(self, name: str) -> int:
        return self._graph.constants[name].size

    def _node(self, op: str, inputs: list[str], like: str, suffix: str, **attributes: float) -> str:
        made = self._like(like, f"{like}@{suffix}")
        self._add(Node(op, inputs, [made], dict(attributes), made))
        return made

    def _add(self, node: Node) -> None:
        self._nodes.append(node)

    def _like(self, name: str, result: str, dtype: Any = None) -> str:
        """A tensor of the shape of *name*: that one itself, or a new one that is called *result* or, where there is such a one, similar."""
        result = result if result == name else self.graph.free_name(result)
        self.graph.shapes[result] = self._graph.shapes[name]
        self.graph.dtypes[result] = self._graph.dtypes[name] if dtype is None else np.dtype(dtype)
        return result

    def _constant(self, name: str, value: Array) -> str:
        """A constant that is called *name* or similar; the same one for the same name."""
        if name not in self._added:
            self._added[name] = self.graph.add_constant(name, np.ascontiguousarray(value).reshape(value.shape))
        return self._added[name]


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


# A program that computes in float32 what the simulator of Rockchip's toolkit computes: ``quantizer="vendor",
# arithmetic="simulator"``.
#
# Its layers have the quantized values, names and places of the program for the chip. All of them form one segment, which onnxruntime runs.


def lower_simulation(
    graph: Graph, steps: Sequence[Step], chip: Chip, quantization: Mapping[str, Quantization], on_cpu: Set[str] = frozenset()
) -> Program:
    """The program of *steps*. *on_cpu* are results that the CPU of a board computes, whatever its NPU could."""
    passed = [name for name in graph.outputs if name in graph.inputs]
    if passed:
        raise CompileError("an output of the model is also an input", tensor=passed[0], hint="remove it from the model's outputs")
    ordered = schedule(graph, list(steps))
    places = [_place(graph, step, chip, on_cpu) for step in ordered]
    made, simulated = simulated_steps(graph, ordered, quantization)
    layers: list[Layer] = []
    tensors = Tensors(DType.INT8, quantization, layers)
    names = {name: _input(tensors, made, name) for name in made.inputs}
    floats = FloatEmitter(made, DType.FLOAT16)
    for original, step, (placement, reason) in zip(ordered, simulated, places, strict=True):
        for name in step.outputs:
            _output(tensors, made, name)
        ends = {name: names.get(name, name) for name in (*step.inputs, *step.outputs)}
        op, inner = floats.operator(step, ends, frozenset(), DType.FLOAT32)
        for name, (shape, dtype) in inner.items():
            tensors.add(TensorSpec(name, shape, _type(name, dtype), Layout.row_major(len(shape))))
        layers.append(
            Layer(
                name=original.node.label,
                kind=original.kind,
                op=op,
                inputs=tuple(ends[name] for name in step.inputs),
                outputs=tuple(step.outputs),
                placement=placement,
                reason=reason,
                macs=float_macs(made, step),
                weight_bytes=weight_bytes(op),
                nodes=tuple(node.label for node in original.nodes),
                operator=original.operator,
                activation=original.function,
            )
        )
    inputs, outputs = tuple(graph.inputs), tuple(graph.outputs)
    return Program(
        inputs=inputs,
        outputs=outputs,
        tensors=tensors.specs,
        layers=tuple(layers),
        memory=plan_memory(layers, tensors.specs, tensors.views, (*inputs, *outputs)),
        views=tensors.views,
    )


def _place(graph: Graph, step: Step, chip: Chip, on_cpu: Set[str]) -> tuple[Placement, str]:
    if not on_cpu.isdisjoint(step.outputs):
        return Placement.CPU, f"the vendor's runtime computes {step.node.op} on the CPU"
    return place(graph, step, chip)


def _input(tensors: Tensors, graph: Graph, name: str) -> str:
    """Enter an input as models for the chip have it; gives the name of its row-major form."""
    shape, rows = graph.shapes[name], Layout.row_major(len(graph.shapes[name]))
    if graph.dtypes[name] == np.int8 and name in tensors.quantization:
        tensors.add_codes(name, shape, Layout.NHWC if len(shape) == 4 else rows)
        return tensors.codes(name, rows)
    return tensors.add(TensorSpec(name, shape, _stored(graph, name), rows))


def _output(tensors: Tensors, graph: Graph, name: str) -> None:
    shape, rows = graph.shapes[name], Layout.row_major(len(graph.shapes[name]))
    if graph.dtypes[name] == np.int8 and name in tensors.quantization:
        tensors.add_codes(name, shape, rows)
    else:
        tensors.add(TensorSpec(name, shape, _stored(graph, name), rows))


def _stored(graph: Graph, name: str) -> DType:
    """Real numbers without quantized values are float16 in the toolkit's files."""
    dtype = graph.dtypes[name]
    return DType.FLOAT16 if dtype in (np.float32, np.float64) else _type(name, dtype)


def _type(name: str, dtype: np.dtype[Any]) -> DType:
    try:
        return DType.FLOAT32 if dtype == np.float64 else DType(dtype.name)
    except ValueError:
        raise CompileError(
            f"a tensor has the type {dtype.name}", tensor=name, hint="only numeric and boolean tensors can run on an NPU"
        ) from None
