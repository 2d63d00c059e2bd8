"""A compiled model as one side of a comparison: its layers, one by one, on the software NPU's engines.

Every tensor has memory of its own here, unlike in the planned internal memory of a device, so all of them are there after a run. Each layer
is prepared once as a program of its own and then executed twice for a sample: in its place in the network, and alone on the values of the
other side. Engines give the same bytes for a layer wherever it stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

import numpy as np

from ..._util.types import Array
from ...errors import ModelError, ParameterError
from ...npu.control import RunControl
from ...npu.engines.base import BoundProgram, Engine, Executable
from ...npu.engines.choice import choose_engine
from ...npu.inputs import interpret
from ...npu.resident import shape_set as find_shape_set
from ...program import Custom, Dense, Float, FloatOp, Layer, MemoryPlan, Model, Program, convert
from ...tensor import DType, Layout, TensorSpec
from .side import InputSpec, Outcome, Sample, Subject, Unit

__all__ = ["CompiledSubject"]


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
    """The same program, of which every layer can be executed by itself.

    What passes between the layers of a stretch is float32, as it is where the stretch is executed as one: nothing is rounded that was not
    rounded before. A tensor that also leaves the stretch has both forms.
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
