"""What a comparison asks of its two sides.

A :class:`Subject` runs samples and reports the values of its tensors, by the names that they have in the ONNX model and in its order of
axes. The side that is evaluated is also asked for its *units*: what it executes step by step, each of which can be run alone on
values of the other side.

A subject keeps the tensors of its last run, so one thread at a time uses it; there is no lock in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from ..._util.types import Array
from ...compiler.compile_options import CompileOptions, preprocessing
from ...compiler.graph import Graph, Node
from ...compiler.importers.onnx_graph import Shapes, import_onnx
from ...compiler.importers.onnx_model import load_onnx
from ...compiler.passes.channel_order import channel_orders
from ...compiler.quantize.calibrate import float_session
from ...errors import InputError, ModelError, ParameterError, ShapeError, TensorNameError
from ...npu.context import interpret
from ...npu.control import RunControl
from ...npu.engines.base import BoundProgram, Engine, Executable
from ...npu.engines.choice import choose_engine
from ...npu.memory import shape_set as find_shape_set
from ...program import (
    Binary,
    Curve,
    Custom,
    Dense,
    Epilogue,
    FixedPoint,
    Float,
    FloatOp,
    Layer,
    MemoryPlan,
    Model,
    Op,
    Pool,
    Preprocess,
    Program,
    convert,
)
from ...program.arithmetic.thresholds import staircase_of
from ...tensor import DType, Layout, TensorSpec

Sample = Mapping[str, Array]
"""Raw inputs by name: what a program would feed to the compiled model, in the shape of the ONNX model."""


@dataclass(frozen=True)
class InputSpec:
    """An input as a sample has it.

    :ivar low: smallest value that it can stand for, where that is known
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Unit:
    """One step of the side that is evaluated.

    :ivar index: number of the layer, -1 for an input
    :ivar tensors: what it makes, by the names of the ONNX model
    :ivar specs: the same as they lie in memory; empty where that is not known
    :ivar nodes: the ONNX nodes in it
    """

    index: int
    name: str
    kind: str
    tensors: tuple[str, ...]
    specs: tuple[TensorSpec, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What a unit made of one sample: values by tensor and, where they are quantized, their quantized values."""

    values: Mapping[str, Array]
    codes: Mapping[str, Array] = field(default_factory=dict)


class Subject(Protocol):
    """One side of a comparison."""

    title: str
    """What reports call it."""

    @property
    def inputs(self) -> Sequence[InputSpec]: ...

    @property
    def outputs(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each output, by name and in order."""
        ...

    @property
    def tensors(self) -> AbstractSet[str]:
        """Names of all tensors whose values it can report."""
        ...

    def watch(self, names: AbstractSet[str]) -> None:
        """Called once, before the first sample: only these tensors matter."""
        ...

    def units(self) -> Sequence[Unit]:
        """The steps, in the order of execution, where they make tensors that are watched."""
        ...

    def run(self, sample: Sample) -> Mapping[str, Array]:
        """Values of the watched tensors."""
        ...

    def outcome(self, unit: Unit) -> Outcome:
        """What a unit made in the last run."""
        ...

    def alone(self, unit: Unit, values: Mapping[str, Array]) -> Outcome | None:
        """What a unit makes of *values*, those of the other side; None where they do not have all that it reads."""
        ...

    def same_arithmetic(self, unit: Unit, other: Subject) -> bool:
        """Whether the other side computes these tensors from the same quantized values to the same quantized values, so that
        nothing may differ."""
        ...


def check_interfaces(a: Subject, b: Subject) -> None:
    """Reject two sides that do not take and give the same tensors."""
    sides = (
        (a.title, {entry.name: entry.shape for entry in a.inputs}),
        (b.title, {entry.name: entry.shape for entry in b.inputs}),
    )
    _check("input", *sides)
    _check("output", (a.title, dict(a.outputs)), (b.title, dict(b.outputs)))


def _check(what: str, a: tuple[str, Mapping[str, tuple[int, ...]]], b: tuple[str, Mapping[str, tuple[int, ...]]]) -> None:
    (first, left), (second, right) = a, b
    if left.keys() != right.keys():
        raise TensorNameError(
            f"the {what}s differ: {first} has {', '.join(left)}; {second} has {', '.join(right)}",
            hint="compare two forms of one network",
        )
    for name, shape in left.items():
        if shape != right[name]:
            raise ShapeError(
                f"{what} '{name}' is {list(shape)} in {first} and {list(right[name])} in {second}",
                hint="compare them at one shape: --shape for an ONNX model, --shape-set for a compiled one",
            )


# An ONNX model as one side of a comparison, in onnxruntime and float32.


class OnnxSubject:
    """An ONNX model.

    :param model: path, bytes, onnx.ModelProto or the compiler's graph
    :param shapes: of inputs that are not fixed
    :param preprocess: what a compiled model does to raw inputs itself, and what has to be done for this one
    :param channel_order: ``bgr`` where the model was trained on BGR and samples are RGB
    """

    def __init__(
        self,
        model: Any,
        title: str,
        *,
        shapes: Shapes | None = None,
        preprocess: Mapping[str, Preprocess] | None = None,
        channel_order: str | Mapping[str, str] | None = None,
    ) -> None:
        self.title = title
        self._graph: Graph = model if isinstance(model, Graph) else import_onnx(load_onnx(model), shapes)
        customs = sorted({node.custom for node in self._graph.nodes if node.custom})
        if customs:
            raise ParameterError(
                f"{title} has custom operators ({', '.join(customs)}), which only its program can compute",
                hint="compare a model that ends before them",
            )
        self._preprocess = preprocess or {}
        order = preprocessing(self._graph.inputs, self._graph.shapes, CompileOptions(channel_order=channel_order))
        self._orders = channel_orders(self._graph, order.reversed_inputs)
        self._makers = self._graph.producers()
        self._watched: list[str] = []
        self._session: Any = None
        self._pieces: dict[str, tuple[list[str], Any]] = {}
        self._last: Mapping[str, Array] = {}

    @property
    def inputs(self) -> Sequence[InputSpec]:
        return [self._input(name) for name in self._graph.inputs]

    @property
    def outputs(self) -> Mapping[str, tuple[int, ...]]:
        return {name: self._graph.shapes[name] for name in self._graph.outputs}

    @property
    def tensors(self) -> AbstractSet[str]:
        return {*self._graph.inputs, *self._makers}

    def watch(self, names: AbstractSet[str]) -> None:
        """See :meth:`Subject.watch`."""
        self._watched = [name for name in self._makers if name in names]
        self._session = float_session(self._graph, self._graph.nodes, self._graph.inputs, self._watched)
        self._pieces = {}

    def units(self) -> Sequence[Unit]:
        """The nodes whose results are watched; each stands for all nodes since the watched ones before it."""
        watched = set(self._watched)
        made = []
        for index, node in enumerate(self._graph.nodes):
            tensors = tuple(name for name in node.outputs if name in watched)
            if tensors:
                nodes = tuple(part.label for part in self._between(tensors)[0])
                made.append(Unit(index, node.label, node.op, tensors, nodes=nodes))
        return made

    def run(self, sample: Sample) -> Mapping[str, Array]:
        """See :meth:`Subject.run`."""
        taken = {name: self._normalised(name, sample[name]) for name in self._graph.inputs}
        feeds = {name: self._as_trained(name, value) for name, value in taken.items()}
        try:
            results = self._session.run(self._watched, feeds)
        except Exception as error:  # onnxruntime's exception classes are private
            raise InputError(f"{self.title} failed in onnxruntime: {error}", hint="check the inputs") from error
        made = {name: self._as_compiled(name, value) for name, value in zip(self._watched, results, strict=True)}
        self._last = {**taken, **made}
        return self._last

    def outcome(self, unit: Unit) -> Outcome:
        """See :meth:`Subject.outcome`."""
        return Outcome({name: self._last[name] for name in unit.tensors})

    def alone(self, unit: Unit, values: Mapping[str, Array]) -> Outcome | None:
        """See :meth:`Subject.alone`."""
        first = unit.tensors[0]
        if first not in self._pieces:
            nodes, inputs = self._between(unit.tensors)
            self._pieces[first] = inputs, float_session(self._graph, nodes, inputs, unit.tensors)
        inputs, session = self._pieces[first]
        feeds = {}
        for name in inputs:
            value = values.get(name)
            if value is None or value.shape != self._graph.shapes[name]:
                return None
            feeds[name] = np.ascontiguousarray(self._as_trained(name, value), self._graph.dtypes[name])
        results = session.run(list(unit.tensors), feeds)
        return Outcome({name: self._as_compiled(name, value) for name, value in zip(unit.tensors, results, strict=True)})

    def same_arithmetic(self, unit: Unit, other: Subject) -> bool:
        """Two ONNX models are compared as real numbers."""
        return False

    def _as_compiled(self, name: str, value: Array) -> Array:
        """The channels of a tensor in the order of a compiled model: before its first convolutions, that of the samples."""
        return np.ascontiguousarray(value[:, self._orders[name]]) if name in self._orders else value

    def _as_trained(self, name: str, value: Array) -> Array:
        """The opposite of :meth:`_as_compiled`."""
        return np.ascontiguousarray(value[:, np.argsort(self._orders[name])]) if name in self._orders else value

    def _between(self, tensors: Sequence[str]) -> tuple[list[Node], list[str]]:
        """The nodes that lead to *tensors* from inputs and other watched tensors, and these."""
        watched = set(self._watched) - set(tensors)
        found: set[int] = set()
        inputs: dict[str, None] = {}
        waiting = list(tensors)
        while waiting:
            name = waiting.pop()
            if name in watched or name not in self._makers:
                if name and name not in self._graph.constants:
                    inputs[name] = None
            elif id(self._makers[name]) not in found:
                found.add(id(self._makers[name]))
                waiting.extend(self._makers[name].inputs)
        return [node for node in self._graph.nodes if id(node) in found], list(inputs)

    def _input(self, name: str) -> InputSpec:
        dtype = self._graph.dtypes[name]
        real = dtype.kind == "f"
        pixels = name in self._preprocess
        return InputSpec(
            name,
            self._graph.shapes[name],
            np.dtype(np.float32) if real else dtype,
            0.0 if pixels else None,
            255.0 if pixels else None,
        )

    def _normalised(self, name: str, value: Array) -> Array:
        preprocess = self._preprocess.get(name)
        if preprocess is not None:
            along = [1] * value.ndim
            if value.ndim > 1:
                along[1] = -1
            mean, std = (np.asarray(numbers, np.float32).reshape(along) for numbers in (preprocess.mean, preprocess.std))
            value = (value.astype(np.float32) - mean) / std
        return np.ascontiguousarray(value, self._graph.dtypes[name])


# A compiled model as one side of a comparison: its layers, one by one, on the software NPU's engines.
#
# Every tensor has memory of its own here, unlike in the planned internal memory of a device, so all of them are there after a run.
# Each layer is prepared once as a program of its own and then executed twice for a sample: in its place in the network, and alone
# on the values of the other side. Engines give the same bytes for a layer wherever it stands.


_ALIGNMENT = 64
_SLACK = 64
"""Bytes after a tensor that kernels may read."""


class CompiledSubject:
    """A compiled model.

    :param shape_set: which of its programs
    :param engine: name of the engine; the usual choice if not given
    """

    def __init__(self, model: Model, title: str, *, shape_set: int = 0, engine: Engine | str | None = None) -> None:
        if model.weightless:
            raise ModelError(f"{title} was saved without its weights", hint="compare the complete model")
        if model.custom_operators:
            raise ParameterError(
                f"{title} has custom operators ({', '.join(model.custom_operators)}), which only its program can compute",
                hint="compare a model that ends before them",
            )
        self.title = title
        self.model = model
        self.program = _with_wide_floats(model.programs[find_shape_set(model, shape_set)])
        self._engine = choose_engine(engine)
        self._memory = _Memory(self.program, _held(self.program))
        self._executables = [self._prepare(layer) for layer in self.program.layers]
        self._steps: list[BoundProgram] = [made.bind(self._memory.arrays) for made in self._executables]
        self._homes = self._find_homes()
        self._watched: list[str] = []

    @property
    def inputs(self) -> Sequence[InputSpec]:
        return [self._input(spec) for spec in self.program.input_specs]

    @property
    def outputs(self) -> Mapping[str, tuple[int, ...]]:
        return {spec.name: spec.shape for spec in self.program.output_specs}

    @property
    def tensors(self) -> AbstractSet[str]:
        return self._homes.keys()

    def watch(self, names: AbstractSet[str]) -> None:
        """See :meth:`Subject.watch`."""
        self._watched = [name for name in self._homes if name in names]

    def units(self) -> Sequence[Unit]:
        """The inputs as they are stored, then the layers."""
        watched = set(self._watched)
        made = [Unit(-1, spec.name, "Input", (spec.name,), (spec,)) for spec in self.program.input_specs]
        for index, layer in enumerate(self.program.layers):
            chosen = self._results(layer)
            specs = tuple(self.program.tensors[name] for name in chosen.values())
            made.append(Unit(index, layer.name, layer.kind, tuple(chosen), specs, layer.nodes))
        return [unit for unit in made if watched.intersection(unit.tensors)]

    def run(self, sample: Sample) -> Mapping[str, Array]:
        """See :meth:`Subject.run`."""
        for spec in self.program.input_specs:
            array, source, preprocess = interpret(sample[spec.name], spec, preprocess=self.model.preprocess.get(spec.name))
            convert.convert(np.ascontiguousarray(array), source, spec, self._memory.arrays[spec.name], preprocess)
        for step in self._steps:
            step.run(RunControl())
        return {name: self._value(self._memory, self._homes[name]) for name in self._watched}

    def outcome(self, unit: Unit) -> Outcome:
        """See :meth:`Subject.outcome`."""
        return self._outcome(unit, self._memory)

    def alone(self, unit: Unit, values: Mapping[str, Array]) -> Outcome | None:
        """See :meth:`Subject.alone`."""
        if unit.index < 0:
            return None
        layer = self.program.layers[unit.index]
        memory = _Memory(self.program, {*layer.inputs, *layer.outputs, *(spec.name for spec in unit.specs)})
        for name in layer.inputs:
            if not self._fill(memory, name, values):
                return None
        self._executables[unit.index].bind(memory.arrays).run(RunControl())
        return self._outcome(unit, memory)

    def same_arithmetic(self, unit: Unit, other: Subject) -> bool:
        """See :meth:`Subject.same_arithmetic`."""
        if unit.index < 0 or not isinstance(other, CompiledSubject):
            return False
        layer = self.program.layers[unit.index]
        if isinstance(layer.op, (Float, Custom)):
            return False
        theirs, ours = other.program.tensors, self.program.tensors
        if other.model.arithmetic != self.model.arithmetic:
            return False
        return all(name in theirs and theirs[name] == ours[name] for name in (*layer.inputs, *layer.outputs))

    def _prepare(self, layer: Layer) -> Executable:
        memory = MemoryPlan({}, 0)
        return self._engine.prepare(
            replace(self.program, inputs=layer.inputs, outputs=layer.outputs, layers=(layer,), memory=memory)
        )

    def _input(self, spec: TensorSpec) -> InputSpec:
        if spec.quantization is None and not spec.dtype.is_float:
            return InputSpec(spec.name, spec.shape, spec.dtype.storage)
        if spec.name in self.model.preprocess:
            return InputSpec(spec.name, spec.shape, np.dtype(np.float32), 0.0, 255.0)
        if spec.quantization is None:
            return InputSpec(spec.name, spec.shape, np.dtype(np.float32))
        scales, zeros = spec.quantization.expand(spec.channels)
        first, last = spec.dtype.limits
        low, high = float(((first - zeros) * scales).min()), float(((last - zeros) * scales).max())
        return InputSpec(spec.name, spec.shape, np.dtype(np.float32), low, high)

    def _public(self, name: str) -> str:
        """What the ONNX model calls a tensor: forms of one tensor are named after it, with an @ and the form."""
        stem, mark, _ = name.rpartition("@")
        return self._public(stem) if mark and stem in self.program.tensors else name

    def _results(self, layer: Layer) -> dict[str, str]:
        """For each tensor that a layer makes the form to look at: its own, if there are several."""
        chosen: dict[str, str] = {}
        for name in layer.outputs:
            public = self._public(name)
            if public not in chosen or name == public:
                chosen[public] = name
        made = {self._memory.owner(name) for name in layer.outputs}
        for name in self.program.outputs:  # an output may be another view of what a layer makes
            if self._memory.owner(name) in made:
                chosen.setdefault(name, name)
        return chosen

    def _find_homes(self) -> dict[str, str]:
        """For each tensor of the ONNX model that is in memory the form to look at."""
        homes: dict[str, str] = {}
        for name in self._memory.arrays:
            public = self._public(name)
            if not self._is_reordered(name) and (public not in homes or name == public):
                homes[public] = name
        return homes

    def _is_reordered(self, name: str) -> bool:
        """Whether a tensor is an image's memory read as rows, in the order of that memory: only a dense layer does so."""
        owner = self._memory.owner(name)
        image = self.program.tensors[owner]
        if owner == name or image.layout is not Layout.NHWC or len(self.program.tensors[name].shape) > 2:
            return False
        return any(isinstance(layer.op, Dense) and name in layer.inputs for layer in self.program.layers)

    def _fill(self, memory: _Memory, name: str, values: Mapping[str, Array]) -> bool:
        """Put the other side's value into the memory of an input; whether it has one."""
        for form in dict.fromkeys((memory.owner(name), name)):
            value = values.get(self._public(form))
            spec = self.program.tensors[form]
            if value is None or value.size != spec.elements or (form == name and self._is_reordered(name)):
                continue
            order = Layout.PLAIN if spec.layout is Layout.PLAIN else Layout.NCHW
            if spec.quantization is None and not spec.dtype.is_float:
                source = TensorSpec(form, spec.shape, spec.dtype, order)
            else:
                source = TensorSpec(form, spec.shape, DType.FLOAT32, order)
            array = np.ascontiguousarray(value.reshape(spec.shape), source.dtype.storage)
            convert.convert(array, source, spec, memory.array(form))
            return True
        return False

    def _outcome(self, unit: Unit, memory: _Memory) -> Outcome:
        names = {tensor: spec.name for tensor, spec in zip(unit.tensors, unit.specs, strict=True)}
        codes = {
            tensor: memory.arrays[spec.name]
            for tensor, spec in zip(unit.tensors, unit.specs, strict=True)
            if spec.quantization is not None
        }
        return Outcome({tensor: self._value(memory, name) for tensor, name in names.items()}, codes)

    def _value(self, memory: _Memory, name: str) -> Array:
        """A tensor in the order of the ONNX model: float32 for real numbers, else its own type."""
        spec = self.program.tensors[name]
        order = Layout.PLAIN if spec.layout is Layout.PLAIN else Layout.NCHW
        real = spec.quantization is not None or spec.dtype.is_float
        return convert.convert(
            memory.arrays[name], spec, TensorSpec(name, spec.shape, DType.FLOAT32 if real else spec.dtype, order)
        )


def _with_wide_floats(program: Program) -> Program:
    """The same program, of which every layer can be executed on its own.

    What passes between the layers of a segment is float32, as it is where the segment is executed as one: nothing is rounded that was not
    rounded before. A tensor that also leaves the segment has both forms.
    """
    tensors, layers = dict(program.tensors), list(program.layers)
    for stretch in program.float_stretches():
        places = range(stretch.first, stretch.last)
        read = {name for index in places for name in layers[index].inputs}
        made = [name for index in places for name in layers[index].outputs if name in read and tensors[name].dtype.is_float]
        both = {name: f"{name}@inside" for name in made if name in stretch.outputs}
        for name in made:
            inside = both.get(name, name)
            tensors[inside] = replace(tensors[name], name=inside, dtype=DType.FLOAT32)
        for index in places:
            layers[index] = _renamed(layers[index], both)
    return replace(program, tensors=tensors, layers=tuple(layers))


def _renamed(layer: Layer, both: Mapping[str, str]) -> Layer:
    """A float layer that reads and makes the inner form of some tensors, and the outer form of those that it makes."""
    assert isinstance(layer.op, Float)

    def inner(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(both.get(name, name) for name in names)

    operators = [replace(op, inputs=inner(op.inputs), outputs=inner(op.outputs)) for op in layer.op.operators]
    leaving = [name for name in layer.outputs if name in both]
    operators += [FloatOp("Identity", (both[name],), (name,)) for name in leaving]
    op = replace(layer.op, operators=tuple(operators))
    return replace(layer, op=op, inputs=inner(layer.inputs), outputs=(*inner(layer.outputs), *leaving))


class _Memory:
    """Memory for some tensors of a program; views share that of their owners, nothing else is shared."""

    def __init__(self, program: Program, names: AbstractSet[str]) -> None:
        self._program = program
        self._blocks: dict[str, Array] = {}
        self.arrays: dict[str, Array] = {}
        for name in sorted(names):
            self.arrays[name] = self.array(name)

    def owner(self, name: str) -> str:
        """The tensor whose memory this one is."""
        while name in self._program.views:
            name = self._program.views[name]
        return name

    def array(self, name: str) -> Array:
        """The memory of a tensor."""
        spec, owner = self._program.tensors[name], self.owner(name)
        if owner not in self._blocks:
            self._blocks[owner] = _block(max(spec.nbytes, self._program.tensors[owner].nbytes))
        return self._blocks[owner][: spec.nbytes].view(spec.dtype.storage).reshape(spec.memory_shape)


def _block(size: int) -> Array:
    memory = np.zeros(size + _ALIGNMENT + _SLACK, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    return memory[first : first + size + _SLACK]


def _held(program: Program) -> set[str]:
    names = {*program.inputs, *program.outputs}
    for layer in program.layers:
        names.update(layer.inputs, layer.outputs)
    return names


# A model by another rule: the layers of the chip's integers, ended as the vendors' simulators do it.
#
# ``anynpu compare a.rknn --arithmetic chip,simulator`` compares a model with itself by the two rules: what differs is what a board
# would show and a simulator would not.


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
    """The end of a layer with real numbers for its integers; *factor* leads from the scaled sum to quantized values."""
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


# What runs elsewhere as one side of a comparison: a device, of which outputs are seen, or a simulator that reports its layers too.


class OutputsSubject:
    """Something that runs a whole network.

    The names of its tensors are those of the other side, by position: a vendor's tool may have given them others.

    :param inputs: as the other side has them
    :param outputs: as the other side has them
    :param run: from raw inputs, in order, to outputs as real numbers, in order
    """

    def __init__(
        self,
        title: str,
        inputs: Sequence[InputSpec],
        outputs: Mapping[str, tuple[int, ...]],
        run: Callable[[Sequence[Array]], Sequence[Array]],
    ) -> None:
        self.title = title
        self.inputs = tuple(inputs)
        self.outputs = dict(outputs)
        self._run = run
        self._last: dict[str, Array] = {}

    @property
    def tensors(self) -> AbstractSet[str]:
        return self.outputs.keys()

    def watch(self, names: AbstractSet[str]) -> None:
        """Its outputs are all that there is."""

    def units(self) -> Sequence[Unit]:
        """One for each output."""
        return [Unit(index, name, "Output", (name,)) for index, name in enumerate(self.outputs)]

    def run(self, sample: Sample) -> Mapping[str, Array]:
        """See :meth:`Subject.run`."""
        results = [np.asarray(value) for value in self._run([sample[entry.name] for entry in self.inputs])]
        wanted = list(self.outputs.items())
        if len(results) != len(wanted):
            raise ShapeError(
                f"{self.title} gives {len(results)} outputs, the other side {len(wanted)}",
                hint="let the device run a model of the same network",
            )
        self._last = {}
        for (name, shape), value in zip(wanted, results, strict=True):
            if value.size != int(np.prod(shape)):
                raise ShapeError(
                    f"output '{name}' is {list(value.shape)} on {self.title}, and {list(shape)} on the other side",
                    hint="let the device run a model of the same network and shape",
                )
            self._last[name] = value.reshape(shape)
        return self._last

    def outcome(self, unit: Unit) -> Outcome:
        """See :meth:`Subject.outcome`."""
        return Outcome({name: self._last[name] for name in unit.tensors})

    def alone(self, unit: Unit, values: Mapping[str, Array]) -> Outcome | None:
        """A device cannot run a part of a network."""
        return None

    def same_arithmetic(self, unit: Unit, other: Subject) -> bool:
        """Nothing is known about how it computes."""
        return False


class LayersSubject(OutputsSubject):
    """Something that runs a whole network and reports the results of its layers, too.

    :param tensors: names of all that it may report
    :param layers: from a sample to values by name
    """

    def __init__(
        self,
        title: str,
        inputs: Sequence[InputSpec],
        outputs: Mapping[str, tuple[int, ...]],
        tensors: AbstractSet[str],
        layers: Callable[[Sample], Mapping[str, Array]],
    ) -> None:
        super().__init__(title, inputs, outputs, lambda arrays: ())
        self._tensors = frozenset(tensors)
        self._layers = layers

    @property
    def tensors(self) -> AbstractSet[str]:
        return self._tensors

    def run(self, sample: Sample) -> Mapping[str, Array]:
        """See :meth:`Subject.run`."""
        self._last = dict(self._layers(sample))
        return self._last
