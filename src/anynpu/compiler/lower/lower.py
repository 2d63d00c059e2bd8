"""From steps to a program: layers in order, tensors in memory layouts, memory plan and costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...chips import Chip
from ...errors import CompileError
from ...modelfile.float_rules import check_float
from ...modelfile.operator_rules import RuleBroken
from ...program import (
    Conv,
    Convert,
    ConvTranspose,
    Curve,
    Custom,
    CustomConstant,
    Dense,
    Float,
    Layer,
    MatMul,
    Op,
    Pad,
    Placement,
    Pool,
    Program,
    Slice,
    Transpose,
)
from ...tensor import DType, Layout, Quantization, TensorSpec
from ...vendors import Format
from ..graph import Graph
from ..importers.quantized_models import QdqWeights
from ..passes.simplify import pad_amounts, pad_value, shuffle_groups
from ..quantize.given_scales import KeptScales
from ..quantize.simulate import QuantizedWeights
from .attributes import slice_bounds
from .emit import ChipEmitter, Emitter, KnownOperators, OutlineEmitter
from .float_layers import FloatEmitter, weight_bytes
from .formats import CHIP
from .forms import Form
from .layout import Tensors, memory_order, plan_memory
from .placement import place, schedule
from .steps import Step

# What layers cost in weight bytes and multiply-accumulates.


def constant_bytes(op: Any) -> int:
    """Bytes of all arrays of an operator, but for what a chip holds in memory of its own: tables, and factors of an average."""
    if isinstance(op, Curve):
        return 0
    if isinstance(op, Pool):
        return constant_bytes(op.epilogue)
    if isinstance(op, np.ndarray):
        return int(op.nbytes)
    if isinstance(op, tuple):
        return sum(map(constant_bytes, op))
    return sum(constant_bytes(getattr(op, name)) for name in _FIELDS[type(op)])


class _Fields(dict[type, tuple[str, ...]]):
    """The names of what a dataclass has, looked up once; nothing for any other type."""

    def __missing__(self, kind: type) -> tuple[str, ...]:
        self[kind] = tuple(entry.name for entry in fields(kind)) if is_dataclass(kind) else ()
        return self[kind]


_FIELDS = _Fields()


def float_macs(graph: Graph, step: Step) -> int:
    """Multiply-accumulates of a float step; element-wise work does not count."""
    total = 0
    for node in step.nodes:
        result = graph.shapes[node.outputs[0]]
        if node.op == "Conv":
            total += math.prod(result) * math.prod(graph.shapes[node.inputs[1]][1:])
        elif node.op == "ConvTranspose":
            source = graph.shapes[node.inputs[0]]
            total += math.prod(source) // source[1] * math.prod(graph.shapes[node.inputs[1]])
        elif node.op in ("MatMul", "Gemm"):
            total += math.prod(result) * graph.shapes[node.inputs[0]][-1]
        elif node.op in ("LSTM", "GRU"):
            steps, batch = graph.shapes[node.inputs[0]][:2]
            total += steps * batch * sum(math.prod(graph.shapes[name]) for name in node.inputs[1:3])
    return total


_SPATIAL = {Form.CONV, Form.CONV_TRANSPOSE, Form.POOL, Form.RESIZE}


def lower(
    graph: Graph,
    steps: list[Step],
    chip: Chip,
    quantization: Mapping[str, Quantization],
    kind: Format,
    *,
    outline: bool = False,
    refined: Mapping[str, QuantizedWeights | KeptScales] | None = None,
    toolkit: bool = False,
    on_cpu: Set[str] = frozenset(),
    kept: Mapping[str, npt.NDArray[Any]] | None = None,
    near_the_end: Set[str] = frozenset(),
    known: KnownOperators | None = None,
    own: Mapping[str, QdqWeights] | None = None,
) -> Program:
    """The program of *steps* on *chip*, with numbers held as *kind* states.

    An *outline* has the layers, tensors, sizes and places of the program, but zeros for weights and tables.
    *refined* are weights that were rounded with care, by the result of their step; with *toolkit* all are rounded as the vendor's toolkit
    does. *on_cpu* are results that the CPU computes, whatever the chip could. *kept* are scales of weights that were quantized
    values already.
    *near_the_end* are results that may be beyond float16. *known* is what other outlines of the same graph have built, and grows.
    *own* are the constants of a model that is quantized already.
    """
    if outline:
        emit: Emitter = OutlineEmitter(graph, quantization, kind.codes, kind.weights, known={} if known is None else known)
    else:
        emitter = ChipEmitter if kind.arithmetic == CHIP else Emitter
        emit = emitter(graph, quantization, kind.codes, kind.weights, refined or {}, toolkit, kept or {}, own or {})
    floats = FloatEmitter(graph, kind.half, outline, near_the_end)
    return _Lowering(graph, schedule(graph, steps), chip, quantization, kind, emit, floats, on_cpu=on_cpu).run()


@dataclass(frozen=True)
class _Placed:
    step: Step
    placement: Placement
    reason: str


class _Lowering:
    def __init__(
        self,
        graph: Graph,
        steps: list[Step],
        chip: Chip,
        quantization: Mapping[str, Quantization],
        kind: Format,
        emitter: Emitter,
        floats: FloatEmitter,
        *,
        on_cpu: Set[str],
    ) -> None:
        self._graph = graph
        self._chip = chip
        self._emitter = emitter
        self._on_cpu = on_cpu
        self._half = kind.half
        self._floats = floats
        self._layers: list[Layer] = []
        self._tensors = Tensors(kind.codes, quantization, self._layers)
        self._steps = [_Placed(step, *self._place(step)) for step in steps]
        self._readers: dict[str, list[_Placed]] = {}
        self._flattened: dict[str, tuple[int, ...]] = {}  # tensors flattened in memory order, with their (C, H, W)
        for placed in self._steps:
            for name in placed.step.reads:
                self._readers.setdefault(name, []).append(placed)

    def _place(self, step: Step) -> tuple[Placement, str]:
        if not self._on_cpu.isdisjoint(step.outputs):
            return Placement.CPU, f"the vendor's runtime computes {step.node.op} on the CPU"
        return place(self._graph, step, self._chip)

    def run(self) -> Program:
        for name in self._graph.inputs:
            self._add_input(name)
        waiting: list[_Placed] = []
        for placed in self._steps:
            if placed.step.is_float and not placed.step.node.custom:
                waiting.append(placed)
                continue
            self._finish_stretch(waiting)
            waiting = []
            if placed.step.node.custom:
                self._custom_step(placed)
            else:
                self._integer_step(placed)
        self._finish_stretch(waiting)
        inputs, outputs = tuple(self._graph.inputs), tuple(self._graph.outputs)
        for name in outputs:
            if name in inputs:
                raise CompileError(
                    "an output of the model is also an input", tensor=name, hint="remove it from the model's outputs"
                )
        self._tensors.release(outputs, inputs)
        return Program(
            inputs=inputs,
            outputs=outputs,
            tensors=self._tensors.specs,
            layers=tuple(self._layers),
            memory=plan_memory(self._layers, self._tensors.specs, self._tensors.views, (*inputs, *outputs)),
            views=self._tensors.views,
        )

    # inputs

    def _add_input(self, name: str) -> None:
        shape = self._graph.shapes[name]
        integer = name in self._graph.coded or any(not placed.step.is_float for placed in self._readers.get(name, ()))
        if integer:
            spatial = any(placed.step.form in _SPATIAL for placed in self._readers.get(name, ()))
            layout = Layout.NHWC if len(shape) == 4 or (spatial and len(shape) == 3) else Layout.row_major(len(shape))
            self._tensors.add_codes(name, shape, layout)
        else:
            half = any(not placed.step.node.custom for placed in self._readers.get(name, ()))
            self._tensors.add(TensorSpec(name, shape, self._float_type(name, half=half), Layout.row_major(len(shape))))

    def _float_type(self, name: str, *, half: bool) -> DType:
        """The program's type of a graph tensor outside integers: float32 may be halved, other types stay."""
        return self._type_of(name, self._graph.dtypes[name], half=half)

    def _type_of(self, name: str, dtype: np.dtype[Any], *, half: bool) -> DType:
        if dtype in (np.float32, np.float64):
            return self._half if half else DType.FLOAT32
        try:
            return DType(dtype.name)
        except ValueError:
            raise CompileError(
                f"a tensor has the type {dtype.name}", tensor=name, hint="only numeric and boolean tensors can run on an NPU"
            ) from None

    # custom steps

    def _custom_step(self, placed: _Placed) -> None:
        """Its tensors are row-major, those of real numbers in float32, whatever the model's type."""
        step, node = placed.step, placed.step.node
        constants = tuple(
            CustomConstant(position, name, self._custom_constant(name))
            for position, name in enumerate(node.inputs)
            if name in self._graph.constants
        )
        inputs = [self._tensors.floats32(name) for name in node.inputs if name not in self._graph.constants]
        for name in step.outputs:
            shape = self._graph.shapes[name]
            self._tensors.add(TensorSpec(name, shape, self._custom_type(name), Layout.row_major(len(shape))))
        self._append(placed, Custom(node.custom, node.attributes, constants), inputs, step.outputs)

    def _custom_constant(self, name: str) -> npt.NDArray[Any]:
        value = self._graph.constants[name]
        return np.ascontiguousarray(value, self._custom_type(name).storage).reshape(value.shape)

    def _custom_type(self, name: str) -> DType:
        if self._graph.dtypes[name].kind == "f":
            return DType.FLOAT32
        dtype = self._float_type(name, half=False)
        if dtype in (DType.BFLOAT16, DType.INT4, DType.UINT4):
            raise CompileError(
                f"a custom operator has a tensor of the type {dtype.value}",
                tensor=name,
                hint="use a type that numpy has, such as float32 or int8",
            )
        return dtype

    # float steps

    def _finish_stretch(self, group: list[_Placed]) -> None:
        if not group:
            return
        steps = [placed.step for placed in group]
        made = {name for step in steps for name in step.outputs}
        mine = {id(step) for step in steps}
        boundary: dict[str, TensorSpec] = {}
        for step in steps:
            for name in self._external_reads(step):
                if name not in made and name not in boundary:
                    readers = [placed for placed in group if name in self._external_reads(placed.step)]
                    half = all(self._is_half(placed) for placed in readers)
                    boundary[name] = self._tensors.specs[self._entering(name, half=half)]
        leaving = []
        for placed in group:
            for name in placed.step.outputs:
                is_output = name in self._graph.outputs
                spec = self._float_spec(name, half=self._is_half(placed) or (is_output and name not in self._graph.coded))
                self._tensors.add(spec)
                if name in self._graph.coded:
                    leaving.append(name)
                    boundary[name] = self._coded(spec)
                elif is_output or any(id(reader.step) not in mine for reader in self._readers.get(name, ())):
                    leaving.append(name)
                    boundary[name] = self._leaving(spec)
        # a constant that the NPU reads is rounded for all of the segment
        rounded = {name for placed in group if self._is_half(placed) for node in placed.step.nodes for name in node.inputs}
        for placed in group:
            self._float_layer(placed, boundary, rounded)
        for name in leaving:
            if name in self._graph.coded:
                source = boundary[name].name
                self._layers.append(Layer(f"{name}:quantize", "Quantize", Convert(), (source,), (name,), operator="Quantize"))
            elif boundary[name].name != name:
                self._layers.append(Layer(f"{name}:cast", "Cast", Convert(), (boundary[name].name,), (name,), operator="Cast"))

    def _entering(self, name: str, *, half: bool) -> str:
        """A tensor as float layers take it: what goes in and out of them is never bfloat16."""
        if self._tensors.specs[name].dtype is DType.BFLOAT16:
            return self._tensors.floats32(name)
        return self._tensors.floats(name, self._half if half else DType.FLOAT32)

    def _leaving(self, spec: TensorSpec) -> TensorSpec:
        """What float layers write for a tensor: itself, or the float32 that a cast makes bfloat16 of."""
        if spec.dtype is not DType.BFLOAT16:
            return spec
        wide = replace(spec, name=f"{spec.name}@wide", dtype=DType.FLOAT32)
        self._tensors.add(wide)
        return wide

    def _coded(self, spec: TensorSpec) -> TensorSpec:
        """What float layers write for an output of the model that is quantized values; the tensor itself becomes the quantized values."""
        real = replace(spec, name=f"{spec.name}@real")
        if real.dtype is DType.BFLOAT16:
            real = replace(real, dtype=DType.FLOAT32)
        self._tensors.add(real)
        self._tensors.add_codes(spec.name, spec.shape, spec.layout)
        return real

    def _external_reads(self, step: Step) -> list[str]:
        """Graph tensors that the nodes of a step read from outside of it."""
        made = {name for node in step.nodes for name in node.outputs}
        return [
            name
            for name in dict.fromkeys(name for node in step.nodes for name in node.inputs)
            if name and name not in made and name not in self._graph.constants
        ]

    def _is_half(self, placed: _Placed) -> bool:
        return placed.placement is Placement.NPU

    def _float_spec(self, name: str, *, half: bool) -> TensorSpec:
        shape = self._graph.shapes[name]
        return TensorSpec(name, shape, self._float_type(name, half=half), Layout.row_major(len(shape)))

    def _float_layer(self, placed: _Placed, boundary: Mapping[str, TensorSpec], rounded: set[str]) -> None:
        step = placed.step
        half = self._is_half(placed)
        names = {name: boundary[name].name if name in boundary else name for name in (*self._external_reads(step), *step.outputs)}
        op, inner = self._floats.operator(step, names, rounded, self._half if half else DType.FLOAT32)
        for name, (shape, kind) in inner.items():
            if name not in self._tensors.specs:
                self._tensors.add(TensorSpec(name, shape, self._type_of(name, kind, half=half), Layout.row_major(len(shape))))
        reads = list(dict.fromkeys((*step.reads, *self._external_reads(step))))
        self._check_float(step, op, {names[name]: self._tensors.specs[names[name]] for name in reads})
        self._layers.append(
            Layer(
                name=step.node.label,
                kind=step.kind,
                op=op,
                inputs=tuple(names[name] for name in (*step.reads, *reads[len(set(step.reads)) :])),
                outputs=tuple(names[name] for name in step.outputs),
                placement=placed.placement,
                reason=placed.reason,
                macs=float_macs(self._graph, step),
                weight_bytes=weight_bytes(op),
                nodes=tuple(node.label for node in step.nodes),
                operator=step.operator,
                activation=step.function,
            )
        )

    def _check_float(self, step: Step, op: Float, inputs: Mapping[str, TensorSpec]) -> None:
        """Reject now what every reader of the model file would reject."""
        try:
            check_float(op, inputs, self._tensors.specs, (), contents=True)
        except RuleBroken as refusal:
            raise CompileError(
                f"the operator makes no sense: {refusal}",
                node=step.node.label,
                operator=step.node.op,
                hint="export the model again, with numbers that chips can handle",
            ) from None

    # integer steps

    def _integer_step(self, placed: _Placed) -> None:
        step = placed.step
        if step.form is Form.RESHAPE:
            self._reshape(step)
            return
        if step.form is Form.TRANSPOSE:
            self._transpose(placed)
            return
        handlers = {
            Form.CONV: self._spatial,
            Form.CONV_TRANSPOSE: self._spatial,
            Form.POOL: self._spatial,
            Form.RESIZE: self._spatial,
            Form.DENSE: self._dense,
            Form.MATMUL: self._matmul,
            Form.BINARY: self._binary,
            Form.FUNCTION: self._function,
            Form.CONCAT: self._concat,
            Form.SLICE: self._slice,
            Form.PAD: self._pad,
        }
        assert step.form is not None
        handlers[step.form](placed)

    def _append(self, placed: _Placed, op: Op, inputs: list[str], outputs: list[str], macs: int = 0) -> None:
        step = placed.step
        self._layers.append(
            Layer(
                name=step.node.label,
                kind=step.kind,
                op=op,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                placement=placed.placement,
                reason=placed.reason,
                macs=macs,
                weight_bytes=constant_bytes(op),
                nodes=tuple(node.label for node in step.nodes),
                operator=step.operator,
                activation=step.function,
            )
        )

    def _result(self, step: Step, layout: Layout, index: int = 0) -> str:
        name = step.outputs[index]
        return self._tensors.add_codes(name, self._graph.shapes[name], layout)

    def _spatial(self, placed: _Placed) -> None:
        step = placed.step
        inputs = [self._tensors.codes(step.inputs[0], Layout.NHWC)]
        if step.residual:
            inputs.append(self._tensors.codes(step.residual, Layout.NHWC))
        emit: dict[Form, Callable[[Step], Op]] = {
            Form.CONV: self._emitter.conv,
            Form.CONV_TRANSPOSE: self._emitter.conv_transpose,
            Form.POOL: self._emitter.pool,
            Form.RESIZE: self._emitter.resize,
        }
        assert step.form is not None
        op = emit[step.form](step)
        output = self._result(step, Layout.NHWC)
        macs = 0
        if isinstance(op, Conv):
            macs = math.prod(self._tensors.specs[output].shape) * math.prod(op.weights.shape[1:])
        elif isinstance(op, ConvTranspose):
            source = self._tensors.specs[inputs[0]]
            macs = source.elements // source.channels * op.weights.size
        self._append(placed, op, inputs, [output], macs)

    def _rows(self, name: str) -> str:
        return self._tensors.codes(name, Layout.row_major(self._graph.rank(name)))

    def _dense(self, placed: _Placed) -> None:
        step = placed.step
        name = step.inputs[0]
        source = name if name in self._flattened else self._rows(name)
        op: Dense = self._emitter.dense(step, self._flattened.get(name, ()))
        rows = self._graph.shapes[step.outputs[0]]
        output = self._result(step, Layout.row_major(len(rows)))
        self._append(placed, op, [source], [output], math.prod(rows[:-1]) * op.weights.size)

    def _matmul(self, placed: _Placed) -> None:
        step = placed.step
        op: MatMul = self._emitter.matmul(step)
        inputs = [self._rows(name) for name in step.inputs]
        shape = self._graph.shapes[step.outputs[0]]
        inner = self._graph.shapes[step.inputs[0]][-1]
        self._append(placed, op, inputs, [self._result(step, Layout.row_major(len(shape)))], math.prod(shape) * inner)

    def _binary(self, placed: _Placed) -> None:
        step = placed.step
        rank = self._graph.rank(step.outputs[0])
        layouts = {self._home_layout(name) for name in step.inputs if self._graph.rank(name) == rank}
        layout = Layout.NHWC if Layout.NHWC in layouts else Layout.row_major(rank)
        inputs = [self._broadcast(name, rank, layout) for name in step.inputs]
        self._append(placed, self._emitter.binary(step), inputs, [self._result(step, layout)])

    def _home_layout(self, name: str) -> Layout:
        return self._tensors.specs[name].layout if self._tensors.is_codes(name) else Layout.row_major(self._graph.rank(name))

    def _broadcast(self, name: str, rank: int, layout: Layout) -> str:
        if self._graph.rank(name) == rank:
            return self._tensors.codes(name, layout)
        self._tensors.codes(name, Layout.row_major(self._graph.rank(name)))
        full = self._tensors.padded_rank(name, rank)
        return self._tensors.codes(full, layout)

    def _function(self, placed: _Placed) -> None:
        step = placed.step
        layout = self._home_layout(step.inputs[0])
        source = self._tensors.codes(step.inputs[0], layout)
        self._append(placed, self._emitter.table(step), [source], [self._result(step, layout)])

    def _concat(self, placed: _Placed) -> None:
        step = placed.step
        rank = self._graph.rank(step.outputs[0])
        layouts = [self._home_layout(name) for name in step.inputs]
        layout = Layout.NHWC if Layout.NHWC in layouts else Layout.row_major(rank)
        axis = memory_order(layout, rank).index(int(step.node.attribute("axis", 1)) % rank)
        inputs = [self._tensors.codes(name, layout) for name in step.inputs]
        self._append(placed, self._emitter.concat(step, axis), inputs, [self._result(step, layout)])

    def _slice(self, placed: _Placed) -> None:
        step = placed.step
        layout = self._home_layout(step.inputs[0])
        source = self._tensors.codes(step.inputs[0], layout)
        order = memory_order(layout, self._graph.rank(step.inputs[0]))
        bounds = slice_bounds(self._graph, step.node)
        starts = tuple(tuple(start[axis] for axis in order) for start, _ in bounds)
        steps = tuple(tuple(stride[axis] for axis in order) for _, stride in bounds)
        outputs = [self._result(step, layout, index) for index in range(len(step.outputs))]
        self._append(placed, Slice(starts, steps), [source], outputs)

    def _pad(self, placed: _Placed) -> None:
        step = placed.step
        layout = self._home_layout(step.inputs[0])
        source = self._tensors.codes(step.inputs[0], layout)
        rank = self._graph.rank(step.inputs[0])
        order = memory_order(layout, rank)
        amounts = pad_amounts(self._graph, step.node)
        value = pad_value(self._graph, step.node)
        assert amounts is not None  # forms_of has looked
        assert value is not None
        before = tuple(amounts[axis] for axis in order)
        after = tuple(amounts[axis + rank] for axis in order)
        op = Pad(before, after, step.node.attribute("mode", "constant"), self._emitter.pad_code(step, value))
        self._append(placed, op, [source], [self._result(step, layout)])

    def _reshape(self, step: Step) -> None:
        """A reshape is another view of the same memory, once that is in row-major order."""
        name, result = step.inputs[0], step.outputs[0]
        shape = self._graph.shapes[result]
        before = self._graph.shapes[name]
        flattens = len(shape) == 2 and len(before) in (3, 4) and before[0] == shape[0]
        readers = self._readers.get(result, [])
        dense = bool(readers) and all(reader.step.form is Form.DENSE and not reader.step.is_float for reader in readers)
        spec = TensorSpec(result, shape, self._tensors.dtype, Layout.row_major(len(shape)), self._tensors.quantization[result])
        if flattens and dense and result not in self._graph.outputs and self._home_layout(name) is Layout.NHWC:
            # The weights' columns are put in the order of the memory instead.
            self._flattened[result] = before[1:]
            self._tensors.view(self._tensors.codes(name, Layout.NHWC), spec)
            return
        keeps_channels = len(shape) > 2 and len(before) > 2 and shape[:2] == before[:2]
        if keeps_channels and result not in self._graph.outputs and self._home_layout(name) is Layout.NHWC:
            # Only pixels are joined or split, and those are in row-major order already.
            self._tensors.view(self._tensors.codes(name, Layout.NHWC), replace(spec, layout=Layout.NHWC))
            return
        self._tensors.view(self._rows(name), spec)

    def _transpose(self, placed: _Placed) -> None:
        step = placed.step
        if step.node.op != "Transpose":
            self._rearrange(placed)
            return
        name, result = step.inputs[0], step.outputs[0]
        shape = self._graph.shapes[result]
        rank = len(shape)
        perm = [int(axis) for axis in step.node.attribute("perm", list(range(rank))[::-1])]
        layout = self._home_layout(name)
        source = self._tensors.codes(name, layout)
        here = memory_order(layout, rank)
        wants_image = any(reader.step.form in _SPATIAL and not reader.step.is_float for reader in self._readers.get(result, ()))
        choices = [Layout.NHWC, Layout.row_major(rank)] if wants_image else [Layout.row_major(rank), Layout.NHWC]
        moves = {
            choice: tuple(here.index(perm[axis]) for axis in memory_order(choice, rank))
            for choice in (choices if rank > 2 else choices[:1] if not wants_image else choices[1:])
        }
        free = next((choice for choice, move in moves.items() if move == tuple(range(rank))), None)
        target = free or next(iter(moves))
        spec = TensorSpec(result, shape, self._tensors.dtype, target, self._tensors.quantization[result])
        if free is not None:
            self._tensors.view(source, spec)
            return
        self._tensors.add(spec)
        view = self._tensors.specs[source].memory_shape
        self._append(placed, Transpose(view, moves[target]), [source], [result])

    def _rearrange(self, placed: _Placed) -> None:
        """DepthToSpace, SpaceToDepth and the channel shuffle, on channels-last memory."""
        step = placed.step
        node = step.node
        source = self._tensors.codes(step.inputs[0], Layout.NHWC)
        count, height, width, channels = self._tensors.specs[source].memory_shape
        if node.op == "Gather":
            groups = shuffle_groups(self._graph, node)
            assert groups is not None
            op = Transpose((count, height, width, groups, channels // groups), (0, 1, 2, 4, 3))
        else:
            block = int(node.attribute("blocksize"))
            if node.op == "SpaceToDepth":
                op = Transpose((count, height // block, block, width // block, block, channels), (0, 1, 3, 2, 4, 5))
            elif node.attribute("mode", "DCR") == "DCR":
                op = Transpose((count, height, width, block, block, channels // block**2), (0, 1, 3, 2, 4, 5))
            else:
                op = Transpose((count, height, width, channels // block**2, block, block), (0, 1, 4, 2, 5, 3))
        self._append(placed, op, [source], [self._result(step, Layout.NHWC)])
