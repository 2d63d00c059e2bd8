"""What a task computes, read from its registers, or the reason why that is not known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...errors import CommandStreamError
from ...program import Curve
from ...program.arithmetic.lookup_tables import ENTRIES
from .emitter import registers_of
from .layouts import LANES, atoms
from .plan import Addition, Addresses, Banks, Convolution, Slice
from .registers import LOOKUP_DATA, ORDER, REGISTERS, describe, field, signed
from .stream import StreamTask

__all__ = ["Added", "Operation", "interpret"]

_BLOCKS_OF_A_CONVOLUTION = 0x1D
_PER_CHANNEL = 0x20140
_RAW_INPUT = 8
_MAX_OUTPUT_SHIFT = 55
_MAX_CURVE_SHIFT = 31
_BLOCK_WIDTH = 16

_FREE = frozenset(
    {0x1010, 0x1020, 0x1040, 0x1044, 0x104C, 0x1050, 0x1054, 0x1058, 0x105C, 0x1068, 0x1070, 0x1078, 0x107C, 0x1080}
)
_FREE |= {0x1110, 0x1184, 0x301C, 0x4004, 0x4020, 0x4024, 0x4054, 0x4074, 0x4078, 0x4080, 0x4084, 0x4088, 0x40C0}
_FREE |= {0x5004, 0x5018, 0x5020, 0x5038, 0x5040, 0x504C, 0x5068, 0x506C}
"""Registers that :func:`interpret` reads itself, and those that do not change what a task computes."""


@dataclass(frozen=True)
class Added:
    """The tensor that is added: addresses of its even and odd planes, bytes to the next plane of the same parity, and its numbers."""

    even: int
    odd: int
    even_step: int
    odd_step: int
    numbers: Addition


@dataclass(frozen=True)
class Operation:
    """A task in the chip's own numbers.

    :ivar lanes: channels of the input that are multiplied, those that only fill planes up included
    :ivar line: bytes from one input row to the next; *plane*: from one plane to the next; *out_plane* likewise
    :ivar raw: scale, shift and offset that make a raw byte an input value; None where the input lies in planes
    :ivar padding: values of the padding, for even and for odd channels
    :ivar clip: right shift of the sum before the bias
    :ivar curve: what the lookup tables make of the sum
    """

    rows: int
    width: int
    in_channels: int
    lanes: int
    out_channels: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    top: int
    left: int
    out_rows: int
    out_width: int
    depthwise: bool
    per_channel: bool
    channel_offsets: bool
    raw: tuple[int, int, int] | None
    padding: tuple[int, int]
    weight_offset: int
    clip: int
    output_zero: int
    multiplier: int
    shift: int
    input: int
    weights: int
    bias: int
    output: int
    line: int
    plane: int
    out_plane: int
    added: Added | None
    curve: Curve | None

    @property
    def macs(self) -> int:
        """Multiplications."""
        depth = 1 if self.depthwise else self.lanes
        return self.out_rows * self.out_width * self.out_channels * self.kernel[0] * self.kernel[1] * depth


class _Reader:
    def __init__(self, registers: Mapping[int, int]) -> None:
        self.values = registers

    def __getitem__(self, register: int) -> int:
        return self.values[register]

    def get(self, register: int, name: str) -> int:
        return field(register, name).read(self.values[register])


def interpret(task: StreamTask) -> Operation:
    """What *task* computes.

    :raises CommandStreamError: a register is missing or has a value whose effect is not known; the message names it
    """
    registers = task.registers()
    missing = [number for number in ORDER if number not in registers]
    if missing:
        names = ", ".join(REGISTERS[number].label for number in missing[:3])
        raise CommandStreamError(
            f"the task does not write {names}{' and others' if len(missing) > 3 else ''}",
            hint="two groups of registers alternate: a task that does not write all 126 does not start",
        )
    if task.enabled != _BLOCKS_OF_A_CONVOLUTION:
        raise CommandStreamError(
            f"PC.ENABLE starts the blocks {'none' if task.enabled is None else hex(task.enabled)}; a convolution starts 0x1d",
            hint="only convolution tasks are executed",
        )
    read = _Reader(registers)
    conv, part = _geometry(read, _curve(read, task))
    _check_others(read, conv, part)
    return _operation(read, conv, part)


def _reject(register: int, value: int, why: str = "") -> CommandStreamError:
    entry = REGISTERS[register]
    return CommandStreamError(
        f"{entry.label} ({register:04X}) is {value:#x} ({describe(entry, value)}){f': {why}' if why else ''}",
        hint="the effect of this value is not known; convolutions as anynpu.npu.rocket.emit writes them are executed",
    )


def _curve(read: _Reader, task: StreamTask) -> Curve | None:
    """The activation of a task; None where its tables are bypassed."""
    if read.get(0x4070, "BYPASS") or read.get(0x4070, "LUT_BYPASS"):
        return None
    written = task.tables()
    places = [(table, place) for table in range(2) for place in range(ENTRIES)]
    missing = [place for place in places if place not in written]
    if missing or len(written) > len(places):
        raise _reject(LOOKUP_DATA, read[LOOKUP_DATA], f"{len(missing)} of {len(places)} entries of the tables are not written")
    entries = np.array([written[place] for place in places], np.uint32).astype(np.uint16).view(np.int16).reshape(2, ENTRIES)
    return Curve(
        offset=signed(read[0x4064], 32),
        multiplier=read.get(0x4068, "OPERAND"),
        shift=read.get(0x4068, "SHIFT"),
        negative=entries[0],
        positive=entries[1],
        slope=read.get(0x4128, "OFLOW"),
        slope_shift=read.get(0x412C, "OFLOW"),
    )


def _geometry(read: _Reader, curve: Curve | None) -> tuple[Convolution, Slice]:
    """The convolution of the rows that the task has."""
    kernel = (read.get(0x1038, "HEIGHT"), read.get(0x1038, "WIDTH"))
    strides = (read.get(0x1014, "Y_STRIDE"), read.get(0x1014, "X_STRIDE"))
    width, rows = read.get(0x1084, "DMA_WIDTH"), read.get(0x1084, "DMA_HEIGHT")
    out_width, out_rows = read.get(0x4030, "WIDTH") + 1, read.get(0x4034, "HEIGHT") + 1
    top, left = read.get(0x1068, "TOP"), read.get(0x1068, "LEFT")
    for register, value in ((0x1038, min(kernel)), (0x1014, min(strides)), (0x1084, min(width, rows))):
        if value < 1:
            raise _reject(register, read[register], "a size is 0")
    bottom = (out_rows - 1) * strides[0] + kernel[0] - rows - top
    right = (out_width - 1) * strides[1] + kernel[1] - width - left
    if bottom >= kernel[0] or right >= kernel[1] or top >= kernel[0] or left >= kernel[1]:
        raise _reject(
            0x4034 if bottom >= kernel[0] else 0x4030 if right >= kernel[1] else 0x1068, read[0x4034], "more output than input"
        )
    depthwise = read.get(0x100C, "CONV_MODE") == 3
    per_channel = read[0x4040] == _PER_CHANNEL
    conv = Convolution(
        height=rows,
        width=width,
        in_channels=read.get(0x1024, "CHANNEL_REAL") + 1,
        out_channels=read.get(0x403C, "ORIG_CHANNEL") + 1,
        kernel=kernel,
        strides=strides,
        pads=(top, left, bottom, right),
        depthwise=depthwise,
        padding=0,
        weight_offset=0,
        output_zero=0,
        multiplier=0,
        shift=0,
        per_channel=per_channel,
        channel_offsets=per_channel and bool(read.get(0x4050, "OW_SRC")),
        addition=None if read[0x5034] == 1 else Addition(0, 0, 0),
        curve=curve,
    )
    if curve is not None and (conv.addition is not None or curve.multiplier < 0 or curve.shift > _MAX_CURVE_SHIFT):
        raise _reject(0x4068, read[0x4068], "tables after an addition, or with such a multiplier, are not executed")
    return conv, Slice(0, rows, 0, out_rows, top)


def _check_others(read: _Reader, conv: Convolution, part: Slice) -> None:
    """Every register whose value follows from the geometry has it."""
    expected = registers_of(conv, Addresses(0, 0, 0, 0, 0), Banks(0, 0, False), part, reuse=False, mesa=False)
    if bool(read.get(0x100C, "ARGB_IN")) != conv.raw_input and conv.in_channels == 1:
        # one channel in planes: the ordinary registers of an input
        ordinary = registers_of(_in_planes(conv), Addresses(0, 0, 0, 0, 0), Banks(0, 0, False), part, reuse=False, mesa=False)
        expected |= {number: ordinary[number] for number in (0x100C, 0x1180)}
    for number in ORDER:
        if number not in _FREE and read[number] != expected.get(number, 0):
            raise _reject(number, read[number], f"{describe(REGISTERS[number], expected.get(number, 0))} expected")
    raw = conv.raw_width if read.get(0x100C, "ARGB_IN") else conv.width
    width = read.get(0x1020, "WIDTH")
    joined_eight = conv.addition is not None and conv.width == 8 and width == _BLOCK_WIDTH
    if (width != raw and not joined_eight) or read.get(0x1020, "HEIGHT") != conv.height:
        raise _reject(0x1020, read[0x1020], "differs from FC_DATA_SIZE0")
    planes = 4 if conv.depthwise else 2
    if read[0x40C0] & ~0xF != (read[0x4024] & ~0xF) * planes & 0xFFFFFFFF:
        raise _reject(0x40C0, read[0x40C0], f"{planes} times DST_SURF_STRIDE expected")
    if conv.depthwise and conv.in_channels != conv.out_channels:
        raise _reject(0x403C, read[0x403C], "a depthwise convolution has as many output as input channels")


def _in_planes(conv: Convolution) -> Convolution:
    """The same convolution of two channels, whose input is not raw."""
    return Convolution(**{**conv.__dict__, "in_channels": 2})


def _operation(read: _Reader, conv: Convolution, part: Slice) -> Operation:
    raw = _converter(read) if read.get(0x100C, "ARGB_IN") == _RAW_INPUT else None
    if raw is None and read[0x104C] != 0xB:
        raise _reject(0x104C, read[0x104C], "only bypassed for an input in planes")
    line = read.get(0x107C, "LINE_STRIDE")
    lanes = 1 if raw else atoms(conv.in_channels) * LANES
    if raw is None:
        plane = LANES * (read.get(0x1080, "SURF_STRIDE") + line)
        line *= 4
    else:
        plane = 0
    shift = read[0x4088]
    if shift > _MAX_OUTPUT_SHIFT:
        raise _reject(0x4088, shift, f"only ties to even and shifts up to {_MAX_OUTPUT_SHIFT} are executed")
    if read[0x4084] >> 16:
        raise _reject(0x4084, read[0x4084], "float output")
    if read[0x301C] > 31:
        raise _reject(0x301C, read[0x301C])
    if conv.out_channels > 1 + read.get(0x403C, "CHANNEL"):
        raise _reject(0x403C, read[0x403C])
    zero = signed(read[0x4080], 32)
    if abs(zero) > 1 << 15:
        raise _reject(0x4080, read[0x4080], "beyond 16 bits")
    padding = read[0x1184]
    return Operation(
        rows=conv.height,
        width=conv.width,
        in_channels=conv.in_channels,
        lanes=lanes,
        out_channels=conv.out_channels,
        kernel=conv.kernel,
        strides=conv.strides,
        top=conv.pads[0],
        left=conv.pads[1],
        out_rows=part.out_rows,
        out_width=conv.out_width,
        depthwise=conv.depthwise,
        per_channel=conv.per_channel,
        channel_offsets=conv.channel_offsets,
        raw=raw,
        padding=(signed(padding, 8), signed(padding >> 8 if conv.depthwise else padding, 8)),
        weight_offset=read.get(0x4054, "OW_OP"),
        clip=read.get(0x301C, "CLIP_TRUNCATE"),
        output_zero=zero,
        multiplier=read.get(0x4084, "SCALE"),
        shift=shift,
        input=read[0x1070],
        weights=read[0x1110],
        bias=read[0x5020],
        output=read[0x4020],
        line=line,
        plane=plane,
        out_plane=read[0x4024] & ~0xF,
        added=None if conv.addition is None else _added(read, conv, part),
        curve=conv.curve,
    )


def _converter(read: _Reader) -> tuple[int, int, int]:
    """Scale, shift and offset of a raw input; all four converters have the same."""
    truncations = {read.get(0x104C, f"TRUNCATE_{index}") for index in range(4)}
    converters = {read[number] for number in (0x1050, 0x1054, 0x1058, 0x105C)}
    if len(truncations) > 1 or read[0x104C] & 0xF or read[0x104C] >> 28:
        raise _reject(0x104C, read[0x104C])
    if len(converters) > 1:
        raise _reject(0x1054, read[0x1054], "differs from CVT_CON1")
    (truncate,), (converter,) = truncations, converters
    return converter >> 16, truncate, field(0x1050, "OFFSET").read(converter)


def _added(read: _Reader, conv: Convolution, part: Slice) -> Added:
    if read.get(0x4078, "TRUNCATE"):
        raise _reject(0x4078, read[0x4078])
    slice_bytes = LANES * conv.out_width * part.out_rows
    numbers = Addition(signed(read[0x4074], 32), read.get(0x4078, "SCALE"), read.get(0x4078, "SHIFT"))
    return Added(
        even=read[0x5018],
        odd=read[0x5038],
        even_step=slice_bytes + (read[0x504C] & ~0xF),
        odd_step=slice_bytes + (read[0x506C] & ~0xF),
        numbers=numbers,
    )
