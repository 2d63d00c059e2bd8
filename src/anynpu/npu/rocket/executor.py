"""The register engine: executes the tasks of a job on memory.

A task becomes a layer of ours whose integers are the chip's, and runs on the C kernels of the native engine. The same task in plain numpy
(``engine="reference"``) is the oracle, and runs what the kernels have no form for: a shift before the bias, and shifts beyond 31 bits.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..._util.types import Array
from ...errors import CommandStreamError
from ...program import Conv, FixedPoint, Layer, MemoryPlan, Program
from ...program.arithmetic.fixed_point import saturate, shift_right
from ...program.arithmetic.lookup_tables import evaluate
from ...tensor import Affine, DType, Layout, TensorSpec
from ..control import RunControl
from ..engines.base import BoundProgram
from ..engines.native import NativeEngine
from ..engines.native_memory import int8_with_room
from .layouts import LANES, atoms, bias_size, unpack_channel_table, unpack_weights, weight_size
from .operation import Added, Operation, interpret
from .stream import Command, StreamTask, decode

__all__ = ["Executor", "MAX_MACS", "execute"]

Bytes = npt.NDArray[np.int8]
EngineName = Literal["native", "reference"]

MAX_MACS = 1 << 37
"""Of a task: a core would take more than a tenth of the driver's limit of 500 ms for more."""

_CACHE_BYTES = 256 << 20
_CHANNEL_BITS = 14
_MAX_SHIFT = 31
_INT32 = 1 << 31
_MAX_WORDS = 1 << 16
_MAX_OPERATIONS = 4096


def execute(memory: npt.NDArray[np.uint8], base: int, tasks: npt.ArrayLike, *, engine: EngineName = "native") -> None:
    """Run a recorded job in place.

    :param memory: the device's memory
    :param base: device address of its first byte
    :param tasks: rows of the address of a command stream and its number of 64-bit words
    :param engine: ``"native"`` for C kernels, ``"reference"`` for numpy; the bytes are the same
    :raises CommandStreamError: a task cannot be executed; the message names the register. Earlier tasks have run
    """
    Executor(engine).run(memory, base, tasks)


class _Parameters(NamedTuple):
    """What an operation reads besides features: weights [O, h, w, C]; per output channel what is added to them, biases and multipliers."""

    weights: Bytes
    offsets: Array
    bias: Array
    multipliers: Array | None


@dataclass
class _Prepared:
    bound: BoundProgram
    source: Bytes
    added: Bytes | None
    target: Bytes
    size: int


class Executor:
    """Executes tasks, and keeps what it prepared for those that come again. One thread at a time.

    :param engine: ``"native"`` or ``"reference"``
    """

    def __init__(self, engine: EngineName = "native") -> None:
        self.engine = engine
        self._prepared: OrderedDict[bytes, _Prepared] = OrderedDict()
        self._held = 0
        self._operations: dict[tuple[Command, ...], Operation] = {}

    @property
    def prepared(self) -> int:
        """How many layers are kept for tasks that come again."""
        return len(self._prepared)

    def run(self, memory: npt.NDArray[np.uint8], base: int, tasks: npt.ArrayLike) -> None:
        """Run the tasks of a job in order; see :func:`execute`."""
        rows = np.asarray(tasks)
        if rows.ndim != 2 or rows.shape[1] != 2 or rows.dtype.kind not in "iu":
            raise CommandStreamError(
                f"tasks are rows of address and number of words, got {rows.dtype} {list(rows.shape)}", hint="pass integers [N, 2]"
            )
        if memory.dtype != np.uint8 or memory.ndim != 1 or not memory.flags.c_contiguous:
            raise CommandStreamError(f"memory is {memory.dtype} {list(memory.shape)}", hint="pass contiguous uint8 [N]")
        for index, (address, words) in enumerate(rows.tolist()):
            try:
                self.compute(memory, base, self.read_task(memory, base, address, words))
            except CommandStreamError as error:
                raise CommandStreamError(f"task {index}: {error.message}", hint=error.hint) from None

    def read_task(self, memory: npt.NDArray[np.uint8], base: int, address: int, words: int) -> Operation:
        """What the stream at an address computes."""
        if not 0 < words <= _MAX_WORDS:
            raise CommandStreamError(f"a stream of {words} words", hint="a convolution task has 130")
        data = _Memory(memory, base).bytes_at(address, 8 * words, "the command stream")
        (task, *_) = decode(data)
        return self._read(task.commands[:words])

    def _read(self, commands: tuple[Command, ...]) -> Operation:
        operation = self._operations.get(commands)
        if operation is None:
            operation = interpret(StreamTask(commands))
            if operation.macs > MAX_MACS:
                raise CommandStreamError(
                    f"the task makes {operation.macs} multiplications",
                    hint=f"the driver ends jobs after 500 ms; at most {MAX_MACS} run",
                )
            if len(self._operations) >= _MAX_OPERATIONS:
                self._operations.clear()
            self._operations[commands] = operation
        return operation

    def compute(self, data: npt.NDArray[np.uint8], base: int, operation: Operation) -> Bytes:
        """Read the operands of an operation, compute, and write its output; gives the output's bytes."""
        memory = _Memory(data, base)
        values = memory.input(operation)
        output = memory.output(operation)
        added = None if operation.added is None else memory.added(operation, operation.added)
        if self.engine == "native" and operation.clip == 0 and operation.shift <= _MAX_SHIFT and _fits(operation.added):
            result = self._native(memory, operation, values, added)
        else:
            result = None
        if result is None:
            result = reference(operation, values, memory.parameters(operation), added)
        write_planes(output, result)
        return output

    def _native(self, memory: _Memory, operation: Operation, values: Bytes, added: Bytes | None) -> Bytes | None:
        """The result by C kernels; None where a bias leaves 32 bits."""
        key = memory.key(operation)
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = _prepare(operation, memory.parameters(operation))
            if prepared is None:
                return None
            self._held += prepared.size
            self._prepared[key] = prepared
            while self._held > _CACHE_BYTES and len(self._prepared) > 1:
                self._held -= self._prepared.popitem(last=False)[1].size
        else:
            self._prepared.move_to_end(key)
        prepared.source[...] = values[..., : prepared.source.shape[2]]  # depthwise has no channel slots beyond the channels
        if prepared.added is not None and added is not None:
            prepared.added[...] = added
        prepared.bound.run(RunControl())
        return prepared.target


def _fits(added: Added | None) -> bool:
    """Whether the numbers of an addition are those that a layer may have."""
    return added is None or (
        added.numbers.shift <= _MAX_SHIFT and 0 < added.numbers.multiplier <= 1 << 15 and abs(added.numbers.offset) <= 1 << 15
    )


class _Memory:
    """Device memory, with a check of every address."""

    def __init__(self, memory: npt.NDArray[np.uint8], base: int) -> None:
        self._memory = memory
        self._base = int(base)

    def bytes_at(self, address: int, size: int, what: str) -> npt.NDArray[np.uint8]:
        """*size* bytes at a device address, which *what* has."""
        first = address - self._base
        if first < 0 or first + size > self._memory.size:
            raise CommandStreamError(
                f"{what} is {address:#x} with {size} bytes, outside the memory from {self._base:#x} to "
                f"{self._base + self._memory.size:#x}",
                hint="check the address and the size of its buffer",
            )
        return self._memory[first : first + size]

    def _planes(self, address: int, shape: tuple[int, int, int], steps: tuple[int, int], what: str) -> Bytes:
        """[planes, rows, columns, 16] at an address; planes and rows must not overlap."""
        planes, rows, columns = shape
        plane, line = steps
        row = LANES * columns
        if (rows > 1 and line < row) or (planes > 1 and plane < (rows - 1) * line + row):
            raise CommandStreamError(f"{what}: rows or planes overlap (strides {line} and {plane})", hint="check the strides")
        memory = self.bytes_at(address, (planes - 1) * plane + (rows - 1) * line + row, what)
        strides = (plane, line, LANES, 1)
        found: Bytes = np.lib.stride_tricks.as_strided(memory.view(np.int8), (planes, rows, columns, LANES), strides)
        return found

    def input(self, operation: Operation) -> Bytes:
        """[rows, columns, channel slots] of the input."""
        if operation.raw is not None:
            return self._raw(operation, *operation.raw)
        what = "CNA.FEATURE_DATA_ADDR"
        shape = (operation.lanes // LANES, operation.rows, operation.width)
        planes = self._planes(operation.input, shape, (operation.plane, operation.line), what)
        return np.asarray(planes.transpose(1, 2, 0, 3)).reshape(operation.rows, operation.width, operation.lanes)

    def _raw(self, operation: Operation, scale: int, truncate: int, offset: int) -> Bytes:
        rows, width, line = operation.rows, operation.width, operation.line
        if line < width and rows > 1:
            raise CommandStreamError(f"CNA.DMA_CON1: rows of {line} bytes for {width} columns", hint="check the stride")
        memory = self.bytes_at(operation.input, (rows - 1) * line + width, "CNA.FEATURE_DATA_ADDR")
        raw = np.lib.stride_tricks.as_strided(memory, (rows, width), (line, 1)).astype(np.int64)
        values: Bytes = np.clip((raw * scale >> truncate) + offset, -128, 127).astype(np.int8)
        return values[..., np.newaxis]

    def output(self, operation: Operation) -> Bytes:
        """The output planes, of as many channels as there are."""
        shape = (atoms(operation.out_channels), operation.out_rows, operation.out_width)
        line = LANES * operation.out_width
        planes = self._planes(operation.output, shape, (operation.out_plane, line), "DPU.DST_BASE_ADDR")
        return np.asarray(planes.transpose(1, 2, 0, 3))

    def added(self, operation: Operation, added: Added) -> Bytes:
        """[rows, columns, channels] of the tensor that is added."""
        count = atoms(operation.out_channels)
        line = LANES * operation.out_width
        shape = (operation.out_rows, operation.out_width)
        result = np.empty((*shape, count, LANES), np.int8)
        for parity, (address, step, what) in enumerate(
            ((added.even, added.even_step, "DPU_RDMA.SRC_BASE_ADDR"), (added.odd, added.odd_step, "DPU_RDMA.EW_BASE_ADDR"))
        ):
            planes = (count - parity + 1) // 2
            if planes:
                found = self._planes(address, (planes, *shape), (step, line), what)
                result[:, :, parity::2] = found.transpose(1, 2, 0, 3)
        return result.reshape(*shape, -1)[..., : operation.out_channels]

    def _parameter_bytes(self, operation: Operation) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        size = weight_size(operation.out_channels, operation.kernel, operation.in_channels, depthwise=operation.depthwise)
        table = bias_size(operation.out_channels, per_channel=operation.per_channel)
        return (
            self.bytes_at(operation.weights, size, "CNA.DCOMP_ADDR0"),
            self.bytes_at(operation.bias, table, "DPU_RDMA.BS_BASE_ADDR"),
        )

    def key(self, operation: Operation) -> bytes:
        """What two operations have in common that are prepared in the same way."""
        weights, bias = self._parameter_bytes(operation)
        added = None if operation.added is None else operation.added.numbers
        curve = operation.curve
        alike = replace(operation, input=0, output=0, weights=0, bias=0, line=0, plane=0, out_plane=0, added=None, curve=None)
        numbers = None if curve is None else (curve.offset, curve.multiplier, curve.shift, curve.slope, curve.slope_shift)
        digest = hashlib.blake2b(repr((alike, added, numbers)).encode(), digest_size=32)
        if curve is not None:
            digest.update(curve.negative.tobytes() + curve.positive.tobytes())
        digest.update(weights.data)
        digest.update(bias.data)
        return digest.digest()

    def parameters(self, operation: Operation) -> _Parameters:
        """Weights, biases and the numbers per channel."""
        memory, table = self._parameter_bytes(operation)
        outputs = operation.out_channels
        depth = operation.in_channels if operation.raw or operation.depthwise else operation.lanes
        weights = unpack_weights(memory, outputs, operation.kernel, depth, depthwise=operation.depthwise)
        offsets = np.full(outputs, operation.weight_offset, np.int64)
        if not operation.per_channel:
            return _Parameters(weights, offsets, table.copy().view("<i4").astype(np.int64), None)
        bias, factors, multipliers = unpack_channel_table(table, outputs)
        if operation.channel_offsets:
            offsets = factors.astype(np.int64)
        return _Parameters(weights, offsets, bias.astype(np.int64), multipliers.astype(np.int64))


def write_planes(output: Bytes, values: Bytes) -> None:
    """Write [rows, columns, channels] to planes; channel slots beyond the channels stay as they are."""
    whole, rest = divmod(values.shape[2], LANES)
    if whole:
        output[:, :, :whole] = values[..., : whole * LANES].reshape(*values.shape[:2], whole, LANES)
    if rest:
        output[:, :, whole, :rest] = values[..., whole * LANES :]


def _paddings(operation: Operation, channels: int) -> npt.NDArray[np.int64]:
    """The value of the padding per channel. Channel slots 32 to 63 of each 64 have the even one."""
    lanes = np.arange(channels)
    odd = (lanes % 2 == 1) & (lanes % 64 < 32)
    return np.where(odd, operation.padding[1], operation.padding[0]).astype(np.int64)


def reference(operation: Operation, values: Bytes, parameters: _Parameters, added: Bytes | None) -> Bytes:
    """The result of an operation with numpy: int8 [rows, columns, channels]."""
    (kernel_h, kernel_w), (step_y, step_x) = operation.kernel, operation.strides
    rows, width = operation.out_rows, operation.out_width
    channels = operation.out_channels if operation.depthwise else values.shape[2]
    values = values[..., :channels]
    tall, wide = (rows - 1) * step_y + kernel_h, (width - 1) * step_x + kernel_w
    padded = np.empty((max(tall, operation.top + operation.rows), max(wide, operation.left + operation.width), channels))
    padded[...] = _paddings(operation, channels)
    padded[operation.top : operation.top + operation.rows, operation.left : operation.left + operation.width] = values
    taps = parameters.weights + parameters.offsets.reshape(-1, 1, 1, 1).astype(np.float64)
    total = np.zeros((rows, width, operation.out_channels))
    for y in range(kernel_h):
        for x in range(kernel_w):
            window = padded[y : y + tall - kernel_h + 1 : step_y, x : x + wide - kernel_w + 1 : step_x]
            total += window * taps[:, y, x, 0] if operation.depthwise else window @ taps[:, y, x].T
    sums = saturate(shift_right(saturate(total.astype(np.int64)), operation.clip) + parameters.bias)
    if parameters.multipliers is not None:
        sums = saturate(shift_right(sums * parameters.multipliers, _CHANNEL_BITS))
    if operation.added is not None and added is not None:
        numbers = operation.added.numbers
        sums = saturate(sums + shift_right((added.astype(np.int64) + numbers.offset) * numbers.multiplier, numbers.shift))
    if operation.curve is not None:
        sums = evaluate(operation.curve, sums)
    product = sums * operation.multiplier + (operation.output_zero << operation.shift)
    return np.clip(shift_right(product, operation.shift), -128, 127).astype(np.int8)


def _prepare(operation: Operation, parameters: _Parameters) -> _Prepared | None:
    """The layer of an operation on the native engine; None where its bias, with the padding in it, leaves 32 bits."""
    weights, offsets, bias, multipliers = parameters
    channels = operation.out_channels if operation.depthwise else operation.lanes
    zeros = _paddings(operation, channels)
    shifted = weights.astype(np.int64) + offsets.reshape(-1, 1, 1, 1)
    if operation.depthwise:
        folded = bias + shifted.reshape(channels, -1).sum(axis=1) * zeros
    else:
        folded = bias + (shifted * zeros).reshape(len(weights), -1).sum(axis=1)
    if np.abs(folded).max() >= _INT32:
        return None
    alike = bool((zeros == zeros[0]).all())
    zero = Affine.per_tensor(1.0, int(zeros[0])) if alike else Affine((1.0,) * channels, tuple(zeros.tolist()), (1,) * channels)
    outputs, rows, width = operation.out_channels, operation.out_rows, operation.out_width
    tensors = {
        "x": TensorSpec("x", (1, channels, operation.rows, operation.width), DType.INT8, Layout.NHWC, zero),
        "y": TensorSpec("y", (1, outputs, rows, width), DType.INT8, Layout.NHWC, Affine.per_tensor(1.0, operation.output_zero)),
    }
    inputs = ["x"]
    numbers = None if operation.added is None else operation.added.numbers
    if numbers is not None:
        quantization = Affine.per_tensor(1.0, -numbers.offset)
        tensors["a"] = TensorSpec("a", (1, outputs, rows, width), DType.INT8, Layout.NHWC, quantization)
        inputs.append("a")
    stage = FixedPoint(
        channel_multiplier=np.zeros(0, np.int32) if multipliers is None else multipliers.astype(np.int32),
        multiplier=np.array([operation.multiplier], np.int32),
        shift=np.array([operation.shift], np.int32),
        zero_point=np.array([operation.output_zero], np.int32),
        residual_multiplier=None if numbers is None else numbers.multiplier,
        residual_shift=0 if numbers is None else numbers.shift,
        curves=() if operation.curve is None else (operation.curve,),
    )
    (kernel_h, kernel_w), (step_y, step_x) = operation.kernel, operation.strides
    conv = Conv(
        weights=np.ascontiguousarray(weights),
        weight_zero=-offsets.astype(np.int32),
        bias=folded.astype(np.int32),
        epilogue=stage,
        strides=operation.strides,
        pads=(
            operation.top,
            operation.left,
            max(0, (rows - 1) * step_y + kernel_h - operation.rows - operation.top),
            max(0, (width - 1) * step_x + kernel_w - operation.width - operation.left),
        ),
        groups=channels if operation.depthwise else 1,
    )
    layer = Layer("task", "Conv", conv, tuple(inputs), ("y",))
    program = Program(tuple(inputs), ("y",), tensors, (layer,), MemoryPlan({}, 0))
    arrays: dict[str, Bytes] = {name: int8_with_room(tensors[name].memory_shape) for name in (*inputs, "y")}
    bound = NativeEngine(threads=1).prepare(program).bind(arrays)
    added = arrays["a"][0] if numbers is not None else None
    size = sum(array.nbytes for array in arrays.values()) + 2 * weights.nbytes
    return _Prepared(bound, arrays["x"][0], added, arrays["y"][0], size)
