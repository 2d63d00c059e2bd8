"""The seam between the software NPU and what executes layers.

An *engine* prepares a program once per loaded model and sees all of it, so that it may pack weights or build sessions then. What it gives,
an :class:`Executable`, is shared by all contexts of the model and holds nothing that a run changes. A context binds it to its own arrays
(inputs, outputs, internal memory); the :class:`BoundProgram` belongs to that context alone and runs one job at a time.

A bound program runs layer by layer. Before each layer it looks whether the job was cancelled or is out of time, so that stopping a job
costs nothing in the layers themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ..._util.optional import MAX_TENSOR_VARIABLE, max_tensor_bytes
from ..._util.types import Array
from ...errors import DeviceError, DeviceMemoryError, ModelFormatError
from ...modelfile.float_rules import check_float
from ...modelfile.operator_rules import RuleBroken
from ...program import Custom, Float, FloatStretch, Layer, Program
from ..control import RunControl
from . import reference
from .float_onnxruntime import OnnxStretch
from .preparation import Preparation

__all__ = [
    "BoundProgram",
    "CustomSteps",
    "Engine",
    "Executable",
    "LayerTime",
    "ReferenceEngine",
    "Step",
    "StretchRunner",
    "check_sizes",
    "checked_stretches",
    "no_custom_steps",
]

Step = Callable[[RunControl], None]
"""Executes one layer on arrays that it already knows."""

CustomSteps = Callable[[int, Mapping[str, Array]], Step]
"""Gives what executes a custom operator: called with the index of its layer, and with the arrays of all tensors as the engine has them."""

_LIVE = 4
"""How many of the largest tensors a segment may hold at a time."""


def no_custom_steps(index: int, arrays: Mapping[str, Array]) -> Step:
    """For a program without custom operators: rejects every layer."""
    raise DeviceError(f"layer {index} is a custom operator, and nothing was given to compute it", hint="run it in a context")


class LayerTime(NamedTuple):
    """Host time of one layer. That of a segment of float layers stands at its first one; the others have no entry."""

    layer: int
    ns: int


class BoundProgram:
    """A program with its memory, ready to run."""

    def __init__(self, steps: Sequence[tuple[int, Step]]) -> None:
        self._steps = tuple(steps)

    def run(
        self,
        control: RunControl,
        *,
        between: Callable[[int], None] | None = None,
        clock: list[LayerTime] | None = None,
        threads: int = 1,
    ) -> None:
        """Execute all layers.

        :param control: raises between layers if the job is cancelled or out of time
        :param between: called before each step with the index of its layer
        :param clock: receives the host time of each step
        :param threads: host threads that may share the work; an engine need not use them, and the results do not depend on it
        """
        for index, step in self._steps:
            control.check()
            if between is not None:
                between(index)
                control.check()
            if clock is None:
                step(control)
            else:
                begin = time.perf_counter_ns()
                step(control)
                clock.append(LayerTime(index, time.perf_counter_ns() - begin))

    def close(self) -> None:
        """Give back what runs have started, such as threads. Not during a run."""


class Executable(Protocol):
    """A prepared program; may be used by several threads at a time."""

    def bind(self, arrays: Mapping[str, Array], custom: CustomSteps = no_custom_steps) -> BoundProgram:
        """Tie it to memory.

        :param arrays: every tensor of the program by name, each with the ``memory_shape`` and storage type of its TensorSpec
        :param custom: executes the custom operators
        """
        ...


class Engine(Protocol):
    """Something that executes programs."""

    name: str

    def prepare(self, program: Program, preparation: Preparation | None = None) -> Executable:
        """Get a program ready; called once per loaded model and shape set.

        :param preparation: what the programs of one model share, with a limit for what they take
        """
        ...


class StretchRunner(Protocol):
    """A segment of float layers that can be tied to memory: in C, or a session of onnxruntime."""

    def bind(self, arrays: Mapping[str, Array]) -> Step:
        """Tie it to the memory of one context; gives what runs it there."""
        ...


def checked_stretches(program: Program) -> tuple[FloatStretch, ...]:
    """The segments of float layers of a program, each of which keeps the rules: also in a program that was never in a file."""
    for layer in program.layers:
        if isinstance(layer.op, Float):
            inputs = {name: program.tensors[name] for name in layer.inputs}
            try:
                check_float(layer.op, inputs, program.tensors, layer.outputs, contents=True)
            except RuleBroken as refusal:
                raise ModelFormatError(f"layer '{layer.name}': {refusal}", hint="compile the model again") from None
    check_sizes(program)
    return program.float_stretches()


def check_sizes(program: Program) -> None:
    """Reject float layers that make more than a run could give up in time: one operator is not stopped, and its memory is on no account.

    :raises DeviceMemoryError: they do
    """
    for stretch in program.float_stretches():
        _check_sizes(program, stretch)


def _check_sizes(program: Program, stretch: FloatStretch) -> None:
    operators = [
        operator
        for layer in program.layers[stretch.first : stretch.last]
        if isinstance(layer.op, Float)
        for operator in layer.op.operators
    ]
    last_use = {name: index for index, operator in enumerate(operators) for name in operator.inputs}
    limit, held = max_tensor_bytes(), 0
    ending: dict[int, int] = {}
    for index, operator in enumerate(operators):
        for name in filter(None, operator.outputs):
            size = 4 * program.tensors[name].elements
            held += size
            if size > limit or held > _LIVE * limit:
                what, most = ("", limit) if size > limit else (" and what it is made of", _LIVE * limit)
                taken = size if size > limit else held
                raise DeviceMemoryError(
                    f"the tensor '{name[:64]}'{what} would take {taken >> 20} MB in a float layer; at most {most >> 20} are possible",
                    hint=f"run the model in a process with limits (isolate=True, --isolate); if you trust it, set {MAX_TENSOR_VARIABLE}",
                )
            end = last_use.get(name, index)
            ending[end] = ending.get(end, 0) + size
        held -= ending.pop(index, 0)


class ReferenceEngine:
    """Integer layers with numpy, exactly; float layers with onnxruntime.

    :param threads: host threads that float layers may use
    """

    name = "reference"

    def __init__(self, *, threads: int = 1) -> None:
        self._threads = threads

    def prepare(self, program: Program, preparation: Preparation | None = None) -> Executable:
        """Build the sessions of the program's float layers; weights of integer layers are used where they are."""
        stretches = checked_stretches(program)
        sessions = {
            stretch.first: OnnxStretch(program, stretch, threads=self._threads, preparation=preparation) for stretch in stretches
        }
        return _ReferenceExecutable(program, sessions)


class _ReferenceExecutable:
    def __init__(self, program: Program, stretches: Mapping[int, StretchRunner]) -> None:
        self._program = program
        self._stretches = stretches

    def bind(self, arrays: Mapping[str, Array], custom: CustomSteps = no_custom_steps) -> BoundProgram:
        steps: list[tuple[int, Step]] = []
        for index, layer in enumerate(self._program.layers):
            if isinstance(layer.op, Custom):
                steps.append((index, custom(index, arrays)))
            elif not isinstance(layer.op, Float):
                steps.append((index, self._integer_step(layer, arrays)))
            elif index in self._stretches:
                steps.append((index, self._stretches[index].bind(arrays)))
        return BoundProgram(steps)

    def _integer_step(self, layer: Layer, arrays: Mapping[str, Array]) -> Step:
        tensors = self._program.tensors
        inputs = [arrays[name] for name in layer.inputs]
        outputs = [arrays[name] for name in layer.outputs]
        input_specs = [tensors[name] for name in layer.inputs]
        output_specs = [tensors[name] for name in layer.outputs]
        op = layer.op

        def step(control: RunControl) -> None:
            reference.execute(op, inputs, input_specs, output_specs, outputs, control.check)

        return step
