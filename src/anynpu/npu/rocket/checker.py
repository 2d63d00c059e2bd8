"""Finds what is wrong with the tasks of a job. A board would hang, write elsewhere or compute garbage, and the kernel reports nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...errors import CommandStreamError
from .layouts import LANES, atoms, unpack_weights, weight_size
from .operation import Operation, interpret
from .plan import BANKS, row_entries
from .registers import ORDER, REGISTERS, field, signed
from .stream import StreamTask, decode

__all__ = ["Span", "StreamFinding", "check_job", "check_task"]

_BANK_BYTES = 32768
_ENTRY = 64
_RDMA = tuple(number for number in ORDER if REGISTERS[number].block == "DPU_RDMA")
_LIMITS = (
    (0x1084, "DMA_WIDTH", 1024, "columns"),
    (0x1084, "DMA_HEIGHT", 1024, "rows"),
    (0x1024, "CHANNEL_REAL", 8191, "input channels less 1"),
    (0x403C, "ORIG_CHANNEL", 8191, "output channels less 1"),
)
_NO_ROWS = 0x1FFF


@dataclass(frozen=True)
class Span:
    """A buffer of the program: bytes [first, last) of the device's address space."""

    first: int
    last: int
    handle: int = 0


@dataclass(frozen=True)
class StreamFinding:
    """One fault of a command stream.

    :ivar kind: a kind of the sanitizer, such as ``stream-incomplete``
    :ivar task: index within the job
    """

    kind: str
    task: int
    text: str


def check_job(memory: npt.NDArray[np.uint8], base: int, tasks: npt.ArrayLike, spans: Iterable[Span] = ()) -> list[StreamFinding]:
    """The faults of a recorded job.

    :param memory: the device's memory, *base* the address of its first byte
    :param tasks: rows of address and number of words
    :param spans: the buffers; without them all of the memory is one

    >>> [found.kind for found in check_job(np.zeros(4096, np.uint8), 0, [[0, 10]])]
    ['stream-rdma', 'stream-incomplete']
    """
    held = tuple(spans) or (Span(base, base + memory.size),)
    found: list[StreamFinding] = []
    for index, (address, words) in enumerate(np.asarray(tasks).tolist()):
        first = address - base
        if first < 0 or words <= 0 or first + 8 * words > memory.size:
            text = f"the command stream lies at {address:#x} with {words} words, outside the memory"
            found.append(StreamFinding("stream-address", index, text))
            continue
        (task, *_) = decode(memory[first : first + 8 * words])
        found += check_task(task, index, held, memory, base)
    return found


def check_task(
    task: StreamTask, index: int, spans: tuple[Span, ...], memory: npt.NDArray[np.uint8] | None = None, base: int = 0
) -> list[StreamFinding]:
    """The faults of one task; the contents of its weights are looked at where *memory* is given."""
    return [StreamFinding(kind, index, text) for kind, text in _faults(task, spans, memory, base)]


def _faults(
    task: StreamTask, spans: tuple[Span, ...], memory: npt.NDArray[np.uint8] | None, base: int
) -> Iterator[tuple[str, str]]:
    try:
        registers = task.registers()
    except CommandStreamError as error:
        yield "stream-unknown", error.message
        return
    missing = [number for number in dict.fromkeys(ORDER) if number not in registers]
    absent = [REGISTERS[number].label for number in missing if number not in _RDMA]
    if any(number in missing for number in _RDMA):
        names = [REGISTERS[number].label for number in missing if number in _RDMA]
        yield "stream-rdma", f"{', '.join(names[:3])} {'and others are' if len(names) > 3 else 'is'} not written"
    if absent or task.enabled is None:
        what = f"{len(absent)} registers are not written, the first is {absent[0]}" if absent else "no word starts the blocks"
        yield "stream-incomplete", what
    if missing or task.enabled is None:
        return
    if registers[0x4034] == _NO_ROWS or registers[0x102C] == 0:
        yield "stream-empty-slice", f"DPU.DATA_CUBE_HEIGHT is {registers[0x4034]:#x}: the slice has no output row"
        return
    yield from _limits(registers)
    try:
        operation = interpret(task)
    except CommandStreamError as error:
        yield "stream-unknown", error.message
        return
    yield from _sizes(operation, registers)
    yield from _places(operation, spans)
    if memory is not None:
        yield from _weights(operation, memory, base)


def _limits(registers: Mapping[int, int]) -> Iterator[tuple[str, str]]:
    for number, name, limit, what in _LIMITS:
        value = field(number, name).read(registers[number])
        if value > limit:
            yield "stream-limit", f"{REGISTERS[number].label} has {value} {what}; the chip takes {limit}"
    data, weights = (field(0x1040, name).read(registers[0x1040]) for name in ("DATA_BANK", "WEIGHT_BANK"))
    if not data or not weights or data + weights > BANKS:
        yield "stream-limit", f"CNA.CBUF_CON0 gives {data} banks to features and {weights} to weights; there are {BANKS}"


def _sizes(operation: Operation, registers: Mapping[int, int]) -> Iterator[tuple[str, str]]:
    """Entries, padding and banks, compared with what the convolution needs."""
    entries = field(0x1044, "DATA_ENTRIES").read(registers[0x1044])
    width = field(0x1020, "WIDTH").read(registers[0x1020])
    if operation.raw is None:
        needed = row_entries(width, operation.lanes // LANES, 4)
        if entries < needed and max(operation.kernel) > 1:
            yield "stream-entries", f"CNA.CBUF_CON1 has {entries} entries for a row that takes {needed} (three planes take four)"
        banks = field(0x1040, "DATA_BANK").read(registers[0x1040])
        size = row_entries(operation.width, operation.lanes // LANES, 8) * 2 * _ENTRY * operation.rows
        if size > banks * _BANK_BYTES:
            yield (
                "stream-limit",
                f"{operation.rows} rows take {size} bytes of the buffer, {banks} banks hold {banks * _BANK_BYTES}",
            )
    padded = operation.top or operation.left or _beyond(operation)
    even, odd = (signed(registers[0x1184] >> shift, 8) for shift in (0, 8))
    if operation.depthwise and padded and even != odd:
        yield (
            "stream-padding",
            f"CNA.PAD_CON1 is {registers[0x1184]:#x}: even channels are padded with {even}, odd channels below 32 of each 64 with {odd}",
        )


def _beyond(operation: Operation) -> bool:
    """Whether windows reach beyond the last row or column."""
    tall = (operation.out_rows - 1) * operation.strides[0] + operation.kernel[0] > operation.top + operation.rows
    return tall or (operation.out_width - 1) * operation.strides[1] + operation.kernel[1] > operation.left + operation.width


def _places(operation: Operation, spans: tuple[Span, ...]) -> Iterator[tuple[str, str]]:
    """Every operand lies in one buffer."""
    planes, outputs = operation.lanes // LANES, atoms(operation.out_channels)
    for name, count, rows, width, line, plane in _strides(operation):
        size = (1 if operation.raw else LANES) * width
        if (rows > 1 and line < size) or (count > 1 and plane < (rows - 1) * line + size):
            yield "stream-address", f"{name}: rows or planes overlap (strides {line} and {plane})"
            return
    row = operation.line if operation.raw else LANES * operation.width
    feature = max(0, planes - 1) * operation.plane + (operation.rows - 1) * operation.line + row
    written = (outputs - 1) * operation.out_plane + operation.out_rows * LANES * operation.out_width
    size = weight_size(operation.out_channels, operation.kernel, operation.in_channels, depthwise=operation.depthwise)
    places = [
        ("CNA.FEATURE_DATA_ADDR", operation.input, feature),
        ("CNA.DCOMP_ADDR0", operation.weights, size),
        ("DPU_RDMA.BS_BASE_ADDR", operation.bias, (8 if operation.per_channel else 4) * operation.out_channels),
        ("DPU.DST_BASE_ADDR", operation.output, written),
    ]
    if operation.added is not None:
        added, line = operation.added, operation.out_rows * LANES * operation.out_width
        places.append(("DPU_RDMA.SRC_BASE_ADDR", added.even, (outputs - 1) // 2 * added.even_step + line))
        if outputs > 1:
            places.append(("DPU_RDMA.EW_BASE_ADDR", added.odd, (outputs // 2 - 1) * added.odd_step + line))
    for name, address, length in places:
        if not any(span.first <= address and address + length <= span.last for span in spans):
            yield "stream-address", f"{name} is {address:#x} with {length} bytes, which lie in no buffer of the program"


def _strides(operation: Operation) -> Iterator[tuple[str, int, int, int, int, int]]:
    """Of each tensor of an operation: name of the register, planes, rows, columns, bytes to the next row and to the next plane."""
    outputs, rows, width = atoms(operation.out_channels), operation.out_rows, operation.out_width
    yield (
        *("CNA.FEATURE_DATA_ADDR", operation.lanes // LANES, operation.rows, operation.width),
        *(operation.line, operation.plane),
    )
    yield "DPU.DST_BASE_ADDR", outputs, rows, width, LANES * width, operation.out_plane
    if operation.added is not None:
        yield "DPU_RDMA.SRC_BASE_ADDR", -(-outputs // 2), rows, width, LANES * width, operation.added.even_step
        yield "DPU_RDMA.EW_BASE_ADDR", outputs // 2, rows, width, LANES * width, operation.added.odd_step


def _weights(operation: Operation, memory: npt.NDArray[np.uint8], base: int) -> Iterator[tuple[str, str]]:
    """Channel slots without a channel must add nothing."""
    size = weight_size(operation.out_channels, operation.kernel, operation.in_channels, depthwise=operation.depthwise)
    first = operation.weights - base
    if operation.channel_offsets or operation.raw or first < 0 or first + size > memory.size:
        return
    packed = memory[first : first + size]
    lanes = atoms(operation.in_channels) * LANES
    neutral = signed(-operation.weight_offset, 8)
    if operation.depthwise:
        held = unpack_weights(packed, lanes, operation.kernel, lanes, depthwise=True)
        surplus = held[operation.in_channels :]
    else:
        held = unpack_weights(
            packed, operation.out_channels + operation.out_channels % 2, operation.kernel, lanes, depthwise=False
        )
        surplus = held[: operation.out_channels, ..., operation.in_channels :]
        if held[operation.out_channels :].any():
            yield (
                "stream-weights",
                "the kernel that fills an odd number up is not 0: the weights are not where the chip reads them",
            )
            return
    behind = memory[first + size : first + size + LANES].view(np.int8)
    if operation.depthwise and surplus.size and neutral and behind.size and (behind == neutral).all():
        yield (
            "stream-weights",
            f"channel slots of {neutral} go on behind the {size} bytes of weights: the last block of channels is too wide",
        )
        return
    wrong = int(np.count_nonzero(surplus != neutral))
    if wrong:
        yield (
            "stream-weights",
            f"{wrong} of {surplus.size} weights of channel slots without a channel are not {neutral}: the last block is packed wrongly",
        )
