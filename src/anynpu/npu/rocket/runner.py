"""Runs the segments of a program on one open file of the device: buffers, streams, jobs, and the check of results."""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..._util.types import Array
from ...errors import DeviceMemoryError, DeviceResultError, DeviceTimeout, DeviceUnavailable
from ...program.convert import Conversion
from ...tensor import Layout, TensorSpec, round_up
from ..control import RunControl
from ..engines.native_memory import int8_with_room
from .device import JobRequest
from .emitter import write
from .kernel import DeviceFile
from .layouts import LANES, atoms, pack_features, plane_bytes, unpack_features
from .lower import Lowered
from .plan import Addresses, banks_of, slices_of
from .segments import Features, Part, Streams
from .stream import task_size

__all__ = ["Runner"]

Bytes = npt.NDArray[np.uint8]

_ALIGNMENT = 64
_PATIENCE_SECONDS = 120.0
_JOB_MACS = 20_000_000_000
"""Of one job: a core at 200 MHz makes them in a fifth of the driver's limit."""

_MARK_BYTES = 32


@dataclass
class _Buffer:
    handle: int
    address: int
    memory: Bytes
    mapping: mmap.mmap


@dataclass(frozen=True)
class _Step:
    """Layers that are submitted together; the last may have a table, which the CPU applies.

    :ivar jobs: in order
    """

    layers: tuple[int, ...]
    jobs: tuple[JobRequest, ...]


class Runner:
    """A program's streams in the memory of one open file.

    :raises DeviceMemoryError: the device has no memory for them
    """

    def __init__(self, streams: Streams, file: DeviceFile) -> None:
        self.streams = streams
        self._file = file
        self._random = np.random.default_rng()
        self._buffers = {name: self._allocate(each.size) for name, each in streams.features.items()}
        self._tasks: dict[int, tuple[tuple[int, int], ...]] = {}
        self._constants = self._write_constants()
        self._steps = {part.first: self._make_steps(part) for part in streams.parts if part.streams}
        self._conversions: dict[tuple[str, bool], Conversion] = {}

    def close(self) -> None:
        """Give memory and file back."""
        self._buffers.clear()
        self._steps.clear()
        self._file.close()

    def _allocate(self, size: int) -> _Buffer:
        try:
            handle, address, offset = self._file.create_bo(size)
            mapping = mmap.mmap(self._file.fd, round_up(size, mmap.PAGESIZE), offset=offset)
        except OSError as error:
            raise DeviceMemoryError(
                f"the NPU has no buffer of {size} bytes: {error.strerror}", hint="close contexts that are not used"
            ) from error
        return _Buffer(handle, address, np.frombuffer(mapping, np.uint8), mapping)

    def _write_constants(self) -> _Buffer | None:
        """Weights, biases and command streams of all layers, in one buffer."""
        places: list[tuple[int, Lowered, tuple[int, ...]]] = []
        end = 0
        for index, lowered in ((index, part) for index, parts in self.streams.lowered.items() for part in parts):
            _, rows = banks_of(lowered.convolution)
            _, task_bytes = task_size(lowered.convolution.tables)
            sizes = (lowered.weights.size, lowered.bias.size, len(slices_of(lowered.convolution, rows)) * task_bytes)
            offsets = []
            for size in sizes:
                offsets.append(end)
                end = round_up(end + size, _ALIGNMENT)
            places.append((index, lowered, tuple(offsets)))
        if not end:
            return None
        held = self._allocate(end)
        self._prepare((held.handle,))
        for index, lowered, (weights, bias, commands) in places:
            layer, conv = self.streams.program.layers[index], lowered.convolution
            first = lowered.target * plane_bytes(conv.out_height, conv.out_width)
            added = self._buffers[layer.inputs[1]].address + first if len(layer.inputs) > 1 else 0
            where = Addresses(
                input=self._buffers[layer.inputs[0]].address + lowered.source * plane_bytes(conv.height, conv.width),
                output=self._buffers[layer.outputs[0]].address + first,
                weights=held.address + weights,
                bias=held.address + bias,
                commands=held.address + commands,
                added=added,
            )
            words, count = write(lowered.convolution, where)
            for offset, data in ((weights, lowered.weights), (bias, lowered.bias), (commands, words.view(np.uint8))):
                held.memory[offset : offset + data.size] = data
            task_words, task_bytes = task_size(lowered.convolution.tables)
            tasks = tuple((where.commands + task * task_bytes, task_words) for task in range(count))
            self._tasks[index] = self._tasks.get(index, ()) + tasks
        self._finish((held.handle,))
        return held

    def _make_steps(self, part: Part) -> list[_Step]:
        steps: list[_Step] = []
        layers: list[int] = []
        for index in range(part.first, part.last):
            layers.append(index)
            if any(each.table is not None for each in self.streams.lowered[index]) or index == part.last - 1:
                steps.append(_Step(tuple(layers), tuple(self._jobs(layers))))
                layers = []
        return steps

    def _jobs(self, layers: Iterable[int]) -> Iterable[JobRequest]:
        """The tasks of layers as jobs, none of which takes too long."""
        held: list[int] = []
        macs = 0
        for index in layers:
            more = self.streams.program.layers[index].macs
            if held and macs + more > _JOB_MACS:
                yield self._job(held)
                held, macs = [], 0
            held.append(index)
            macs += more
        yield self._job(held)

    def _job(self, layers: list[int]) -> JobRequest:
        program = self.streams.program
        written = dict.fromkeys(program.layers[index].outputs[0] for index in layers)
        read = dict.fromkeys(name for index in layers for name in program.layers[index].inputs if name not in written)
        assert self._constants is not None
        return JobRequest(
            tasks=tuple(task for index in layers for task in self._tasks[index]),
            reads=(self._constants.handle, *(self._buffers[name].handle for name in read)),
            writes=tuple(self._buffers[name].handle for name in written),
        )

    def run(self, part: Part, arrays: Mapping[str, Array], control: RunControl) -> None:
        """Run a segment: convert what it reads, submit, convert what others read."""
        for name in part.loads:
            self.load(name, arrays[name], control)
        for step in self._steps[part.first]:
            control.check()
            self._run_step(step, control)
        for name in part.stores:
            self.store(name, arrays[name], control)

    def run_layer(self, index: int, control: RunControl) -> None:
        """Run one layer on what its buffers hold."""
        self._run_step(_Step((index,), (self._job([index]),)), control)

    def load(self, name: str, array: Array, control: RunControl) -> None:
        """Write a tensor into its buffer."""
        features, buffer = self.streams.features[name], self._buffers[name]
        values = np.ascontiguousarray(array)
        with self._cpu(buffer, control):
            if features.raw:
                width = max(features.width, LANES)
                rows = buffer.memory[: features.height * width].reshape(features.height, width)
                np.bitwise_xor(
                    values.reshape(features.height, features.width).view(np.uint8), 0x80, out=rows[:, : features.width]
                )
            elif features.lanes is not None:
                ordered = values[0][..., np.maximum(features.lanes, 0)]
                packed = pack_features(ordered)
                buffer.memory[: packed.size] = packed.view(np.uint8)
            else:
                self._conversion(name, into=True).run(values.ctypes.data, buffer.memory.ctypes.data)

    def store(self, name: str, array: Array, control: RunControl) -> None:
        """Read a tensor from its buffer into *array*."""
        features, buffer = self.streams.features[name], self._buffers[name]
        result = array if array.flags.c_contiguous else np.empty(array.shape, array.dtype)
        with self._cpu(buffer, control):
            if features.raw:
                width = max(features.width, LANES)
                rows = buffer.memory[: features.height * width].reshape(features.height, width)[:, : features.width]
                result.reshape(-1).view(np.uint8)[:] = (rows ^ 0x80).reshape(-1)
            elif features.lanes is not None:
                ordered = unpack_features(buffer.memory, features.height, features.width, features.channels)
                result[0][...] = ordered[..., np.argsort(features.lanes, kind="stable")[-result.shape[-1] :]]
            else:
                self._conversion(name, into=False).run(buffer.memory.ctypes.data, result.ctypes.data)
        if result is not array:
            array[...] = result

    def read(self, name: str, control: RunControl) -> Array:
        """What a tensor's buffer holds, as a new array."""
        array = int8_with_room(self.streams.program.tensors[name].memory_shape)
        self.store(name, array, control)
        return array

    def fill(self, name: str) -> None:
        """Random bytes in a buffer, channel slots without a channel included."""
        buffer = self._buffers[name]
        with self._cpu(buffer, RunControl()):
            buffer.memory[:] = self._random.integers(0, 256, buffer.memory.size, np.uint8)

    def _conversion(self, name: str, *, into: bool) -> Conversion:
        found = self._conversions.get((name, into))
        if found is None:
            outside = self.streams.program.tensors[name]
            inside = _in_planes(outside, self.streams.features[name])
            found = Conversion(outside, inside) if into else Conversion(inside, outside)
            self._conversions[name, into] = found
        return found

    def _run_step(self, step: _Step, control: RunControl) -> None:
        marks = [self._mark(job, step) for job in step.jobs]
        self._submit(step)
        if any(mark.is_intact(self, control) for mark in marks):
            # by chance a result can be what was written before: it cannot be the opposite as well
            for mark in marks:
                mark.write(self, control)
            self._submit(step)
            for mark in marks:
                if mark.is_intact(self, control):
                    self._raise_unwritten(mark)
        for lowered in self.streams.lowered[step.layers[-1]]:
            if lowered.table is not None:
                self._apply(lowered.table, lowered, step.layers[-1], control)

    def _raise_unwritten(self, mark: _Mark) -> None:
        layer = self.streams.program.layers[mark.layer]
        raise DeviceResultError(
            f"the NPU did not write the output of layer '{layer.name}'; the kernel reports no reason",
            hint="look into the kernel's log (dmesg) for rocket; run `anynpu selftest --device rocket` and send its report",
        )

    def _mark(self, job: JobRequest, step: _Step) -> _Mark:
        """Write a mark where the last task of a job writes last."""
        last = next(index for index in reversed(step.layers) if self._tasks[index][-1] == job.tasks[-1])
        mark = _Mark(last, self._random.integers(0, 256, _MARK_BYTES, np.uint8))
        mark.write(self, RunControl())
        return mark

    def tail(self, layer: int) -> tuple[_Buffer, Bytes]:
        """The last bytes that a layer writes, as rows of pixels, and their buffer."""
        lowered = self.streams.lowered[layer][-1]
        conv = lowered.convolution
        buffer = self._buffers[self.streams.program.layers[layer].outputs[0]]
        planes = atoms(conv.out_channels)
        lanes = conv.out_channels - LANES * (planes - 1)
        pixels = conv.out_height * conv.out_width
        planes += lowered.target
        last = buffer.memory[(planes - 1) * pixels * LANES : planes * pixels * LANES].reshape(pixels, LANES)
        return buffer, last[-max(1, _MARK_BYTES // lanes) :, :lanes]

    def _apply(self, table: npt.NDArray[np.int8], lowered: Lowered, layer: int, control: RunControl) -> None:
        """What the CPU does with each value of some planes of a layer's output."""
        conv = lowered.convolution
        buffer = self._buffers[self.streams.program.layers[layer].outputs[0]]
        plane = plane_bytes(conv.out_height, conv.out_width)
        values = buffer.memory[lowered.target * plane :][: atoms(conv.out_channels) * plane]
        with self._cpu(buffer, control):
            np.take(table.view(np.uint8), values, out=values)

    def _submit(self, step: _Step) -> None:
        try:
            self._file.submit(step.jobs)
        except OSError as error:
            raise DeviceUnavailable(f"the driver did not take a job: {error.strerror}", hint="run `anynpu doctor`") from error

    def _cpu(self, buffer: _Buffer, control: RunControl) -> _Cpu:
        return _Cpu(self, buffer.handle, control)

    def _prepare(self, handles: Iterable[int], control: RunControl | None = None) -> None:
        """Give buffers to the CPU."""
        remaining = None if control is None else control.remaining
        seconds = _PATIENCE_SECONDS if remaining is None else min(remaining, _PATIENCE_SECONDS)
        deadline = time.monotonic_ns() + int(seconds * 1e9)
        for handle in handles:
            try:
                self._file.prep_bo(handle, deadline)
            except OSError as error:
                raise DeviceTimeout(
                    f"the NPU did not finish in time: {error.strerror}", hint="look at what else uses it"
                ) from error

    def _finish(self, handles: Iterable[int]) -> None:
        """Give buffers to the NPU."""
        for handle in handles:
            self._file.fini_bo(handle)


class _Cpu:
    """A block in which the CPU has a buffer."""

    def __init__(self, runner: Runner, handle: int, control: RunControl) -> None:
        self._runner, self._handle, self._control = runner, handle, control

    def __enter__(self) -> None:
        self._runner._prepare((self._handle,), self._control)

    def __exit__(self, *_: object) -> None:
        self._runner._finish((self._handle,))


@dataclass
class _Mark:
    """Bytes in an output that a job must overwrite: SUBMIT succeeds even where a job fails."""

    layer: int
    data: Bytes

    def write(self, runner: Runner, control: RunControl) -> None:
        """Put the mark where the layer writes last; the next one is its opposite."""
        self.data = ~self.data
        buffer, place = runner.tail(self.layer)
        with runner._cpu(buffer, control):
            place[...] = np.resize(self.data, place.shape)

    def is_intact(self, runner: Runner, control: RunControl) -> bool:
        """Whether the mark is still there."""
        buffer, place = runner.tail(self.layer)
        with runner._cpu(buffer, control):
            return bool((place == np.resize(self.data, place.shape)).all())


def _in_planes(spec: TensorSpec, features: Features) -> TensorSpec:
    return replace(spec, layout=Layout.NC1HWC2, c2=LANES, c1=atoms(features.channels))
