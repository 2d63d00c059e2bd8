"""The native engine: integer layers in C, float layers in C where it has kernels for a whole segment of them, else in onnxruntime.

A program is prepared once: every layer becomes a descriptor, gets the best kernel that the processor has for it, and its weights are packed
the way that kernel wants them. All contexts share that. A context adds a table of pointers to its tensors and some scratch memory; a run
hands C one run of integer layers after the other, without the GIL, and executes in between what is not: segments of float layers, custom
operators, and the few layers that C has nothing for, which run in the reference engine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from ..._native import ffi, lib
from ..._util.types import Array
from ...program import Custom, Float, Program
from ..control import RunControl
from . import native_arrays, reference
from .base import BoundProgram, CustomSteps, Executable, LayerTime, Step, StretchRunner, checked_stretches, no_custom_steps
from .float_native import NativeStretch, native_stretch
from .float_onnxruntime import OnnxStretch
from .native_levels import choose_level, level_names
from .native_lowering import Lowering, NativeLayer
from .native_memory import check_array, with_room
from .native_operators import lower
from .native_workers import IDLE_WORK, WorkerThreads
from .preparation import Preparation

__all__ = ["NativeEngine"]


class NativeEngine:
    """Integer layers in C, with the bytes of the reference engine. Float layers in C if it has their kernels, else in onnxruntime.

    :param threads: host threads that a run uses, for integer and for float layers; if not given, as many as the job occupies cores,
        and one for float layers in onnxruntime
    :param idle: without *threads*, a run also uses processors of the machine on which nothing else runs; several runs share them
    :param isa: the instruction set, one of ``native_levels.level_names()``; if not given, what the environment variable ``ANYNPU_ISA``
        states, and without that the best that the processor has
    :param native_floats: False runs all float layers in onnxruntime, as the reference engine does

    >>> NativeEngine(isa="generic").isa
    'generic'
    """

    name = "native"

    def __init__(
        self, *, threads: int | None = None, isa: str | None = None, native_floats: bool = True, idle: bool = False
    ) -> None:
        self._threads = threads
        self._idle = idle and threads is None
        self._native_floats = native_floats
        self.isa = choose_level(isa)

    def prepare(self, program: Program, preparation: Preparation | None = None) -> Executable:
        """Choose kernels, pack weights, get the program's float layers ready."""
        preparation = preparation or Preparation()
        level = level_names().index(self.isa)
        runners: dict[int, StretchRunner] = {}
        for stretch in checked_stretches(program):
            made = native_stretch(program, stretch, level=level, preparation=preparation) if self._native_floats else None
            runners[stretch.first] = made or OnnxStretch(program, stretch, threads=self._threads or 1, preparation=preparation)
        return NativeExecutable(program, runners, level, preparation, self._threads, idle=self._idle)


@dataclass(frozen=True)
class _Run:
    """Native layers [first, last) of an executable, which make up one layer of the program each or together."""

    first: int
    last: int


class NativeExecutable:
    """A program in the form that C executes.

    :ivar kernels: the kernel of each layer of the program by its index, as text; layers that are not C have none
    """

    def __init__(
        self,
        program: Program,
        stretches: Mapping[int, StretchRunner],
        level: int,
        preparation: Preparation,
        threads: int | None = None,
        *,
        idle: bool = False,
    ) -> None:
        self._program = program
        self._threads = threads
        self._stretches = stretches
        self._lowering = Lowering(program.tensors, preparation)
        self._parts: list[_Run | int] = []
        """In order: segments of native layers, and indices of layers that are not native."""
        self._indices: list[int] = []
        """For each native layer the index of its layer in the program."""
        native: list[NativeLayer] = []
        for index, layer in enumerate(program.layers):
            if isinstance(layer.op, Float):
                if index in stretches:
                    self._parts.append(index)
                continue
            lowered = lower(self._lowering, layer)
            if lowered is None:
                self._parts.append(index)
                continue
            first = len(native)
            native += lowered
            self._indices += [index] * len(lowered)
            if self._parts and isinstance(self._parts[-1], _Run):
                first = self._parts.pop().first  # type: ignore[union-attr]
            self._parts.append(_Run(first, len(native)))
        self._layers = ffi.new("struct anynpu_layer[]", max(1, len(native)))
        self.kernels: dict[int, str] = {}
        self.scratch_size = 0
        for index, made, place in zip(self._indices, native, self._layers, strict=False):
            chosen = made
            if made.fast is not None and self._choose(place, made.fast, level):
                chosen = made.fast
            else:
                self._choose(place, made, level)
            self._pack(place, chosen)
            self.kernels[index] = ffi.string(lib.anynpu_kernel_name(ffi.addressof(place))).decode()
        floats = [stretch.layers for stretch in stretches.values() if isinstance(stretch, NativeStretch)]
        idle = idle and any(
            lib.anynpu_worth_sharing(layers, count, float(IDLE_WORK)) for layers, count in [(self._layers, len(native)), *floats]
        )
        self.idle = idle
        """Whether runs use idle processors: not where handing out the work takes longer than the work."""
        preparation.take(self.scratch_size)  # each context has it once for each thread

    def _choose(self, place: Any, made: NativeLayer, level: int) -> bool:
        """Fill in a layer and choose its kernel; whether there is a fast one."""
        place.kind, place.codes, place.output = made.kind, made.codes, made.output
        place.descriptor, place.inputs = made.descriptor, made.inputs
        lib.anynpu_choose(ffi.addressof(place), level)
        return bool(place.kernel)

    def _pack(self, place: Any, made: NativeLayer) -> None:
        address = ffi.addressof(place)
        size = lib.anynpu_packed_size(address)
        if size:
            place.packed = self._lowering.keeper.memory(size)
            lib.anynpu_pack(address, self._packed_weights(address, made), place.packed)
        self.scratch_size = max(self.scratch_size, lib.anynpu_scratch_size(address))

    def _packed_weights(self, address: Any, made: NativeLayer) -> Any:
        """The weights as the layer's kernel wants them, which layers with the same weights share; NULL where it packs none."""
        size = lib.anynpu_packed_weights_size(address)
        if not size or made.weights is None:
            return ffi.NULL
        conv = made.descriptor.conv if made.kind == lib.ANYNPU_LAYER_SUBPIXEL else made.descriptor
        # kernels choose tiles by the pixels of a short line, too
        shape = (conv.kh, conv.kw, conv.cin, conv.cout, conv.dw, conv.groups, min(conv.ow, 9))
        zeros = bytes(ffi.buffer(conv.weight_zero, conv.cout * ffi.sizeof("int32_t")))

        def pack() -> Array:
            memory = native_arrays.aligned_bytes(size)
            lib.anynpu_pack_weights(address, ffi.from_buffer(memory))
            return memory

        kernel = ffi.string(lib.anynpu_kernel_name(address))
        keeper = self._lowering.keeper
        return ffi.from_buffer(keeper.keep(keeper.preparation.shared((kernel, shape, zeros), made.weights, size, pack)))

    def bind(self, arrays: Mapping[str, Array], custom: CustomSteps = no_custom_steps) -> BoundProgram:
        """Tie the program to the memory of one context."""
        for name in self._lowering.places:
            check_array(arrays[name], self._program.tensors[name])
        held, before, after = with_room(self._program, arrays, self._lowering.places.keys())
        workers = WorkerThreads(self.scratch_size, self.idle)
        parts = [
            part if isinstance(part, _Run) else (part, self._python_step(part, held, custom, workers)) for part in self._parts
        ]
        pointers = [held[name] for name in self._lowering.places]
        return _NativeBound(self, parts, pointers, before, after, self._threads, workers)

    def _python_step(self, index: int, arrays: Mapping[str, Array], custom: CustomSteps, workers: WorkerThreads) -> Step:
        layer = self._program.layers[index]
        if isinstance(layer.op, Custom):
            return custom(index, arrays)
        if isinstance(layer.op, Float):
            stretch = self._stretches[index]
            return stretch.bind(arrays, workers) if isinstance(stretch, NativeStretch) else stretch.bind(arrays)
        program = self._program

        def step(control: RunControl) -> None:
            reference.execute_layer(program, layer, arrays, control.check)

        return step


class _NativeBound(BoundProgram):
    """An executable with the memory of one context. Runs one job at a time."""

    def __init__(
        self,
        executable: NativeExecutable,
        parts: Sequence[_Run | tuple[int, Step]],
        arrays: Sequence[Array],
        before: Sequence[tuple[Array, Array]],
        after: Sequence[tuple[Array, Array]],
        threads: int | None,
        workers: WorkerThreads,
    ) -> None:
        super().__init__(())
        self._executable = executable
        self._parts = tuple(parts)
        self._before, self._after = before, after
        self._held = arrays  # the table has bare pointers
        self._tensors = ffi.new("void *[]", [ffi.cast("void *", array.ctypes.data) for array in arrays] or 1)
        self._memory = native_arrays.aligned_bytes(executable.scratch_size)
        self._scratch = ffi.cast("void *", self._memory.ctypes.data)
        self._stop = ffi.new("int32_t *")
        self._reached = ffi.new("size_t *")
        self._threads = threads
        self._workers = workers

    def run(
        self,
        control: RunControl,
        *,
        between: Callable[[int], None] | None = None,
        clock: list[LayerTime] | None = None,
        threads: int = 1,
    ) -> None:
        """Execute all layers; see :meth:`BoundProgram.run`. What the engine received about threads goes before *threads*."""
        threads = self._workers.threads = self._threads or threads
        for target, source in self._before:
            np.copyto(target, source)
        self._stop[0] = 0
        control.watch(self._request_stop)
        try:
            for part in self._parts:
                if not isinstance(part, _Run):
                    self._run_step(*part, control, between, clock)
                elif between is None:
                    self._execute(part, control, clock, threads)
                else:
                    self._run_stretch(part, control, between, clock, threads)
        finally:
            control.unwatch(self._request_stop)
        for target, source in self._after:
            np.copyto(target, source)

    def _request_stop(self) -> None:
        self._stop[0] = 1

    def close(self) -> None:
        """End the threads of runs on several."""
        self._workers.close()

    def _run_stretch(
        self,
        stretch: _Run,
        control: RunControl,
        between: Callable[[int], None],
        clock: list[LayerTime] | None,
        threads: int,
    ) -> None:
        """A segment with something to do before each layer of the program."""
        numbers = range(stretch.first, stretch.last)
        for index, group in groupby(numbers, key=self._executable._indices.__getitem__):
            layers = list(group)
            control.check()
            between(index)
            self._execute(_Run(layers[0], layers[-1] + 1), control, clock, threads)

    def _execute(self, stretch: _Run, control: RunControl, clock: list[LayerTime] | None, threads: int) -> None:
        sharing = self._workers.sharing(threads) if threads > 1 or self._executable.idle else ffi.NULL
        count = stretch.last - stretch.first
        times = ffi.NULL if clock is None else ffi.new("int64_t[]", count)
        deadline = -1 if control.deadline is None else math.ceil(control.deadline * 1e9)
        end = lib.anynpu_execute_shared(
            sharing,
            self._executable._layers + stretch.first,
            count,
            self._tensors,
            self._workers.scratch if sharing else self._scratch,
            self._stop,
            deadline,
            times,
            self._reached,
        )
        if clock is not None:
            self._append_times(stretch, times, clock)
        if end != lib.ANYNPU_FINISHED:
            raise control.reason("did not finish")

    def _append_times(self, stretch: _Run, times: Any, clock: list[LayerTime]) -> None:
        """The times of the layers that were run; those of one layer of the program together."""
        done = self._reached[0]
        indices = self._executable._indices[stretch.first : stretch.first + done]
        for index, ns in zip(indices, ffi.unpack(times, done) if done else (), strict=True):
            if clock and clock[-1].layer == index:
                ns += clock.pop().ns
            clock.append(LayerTime(index, ns))

    def _run_step(
        self,
        index: int,
        step: Step,
        control: RunControl,
        between: Callable[[int], None] | None,
        clock: list[LayerTime] | None,
    ) -> None:
        control.check()
        if between is not None:
            between(index)
            control.check()
        begin = time.perf_counter_ns()
        step(control)
        if clock is not None:
            clock.append(LayerTime(index, time.perf_counter_ns() - begin))
