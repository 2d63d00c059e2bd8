"""How a convolution is laid out on the RK3588 NPU: its geometry and numbers, banks of the convolution buffer, and slices.

The buffer between memory and the multipliers has 12 banks of 32 KiB. Where the input of a convolution does not fit beside its weights, the
convolution is cut into slices of rows, each a task of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...program import Curve
from .layouts import LANES, atoms

__all__ = ["BANKS", "Addition", "Addresses", "Banks", "Convolution", "Slice", "banks_of", "row_entries", "slices_of"]

BANKS = 12
_BANK_ENTRIES = 256
_ENTRY_BYTES = 128
_STREAMED_BANKS = 5


@dataclass(frozen=True)
class Addition:
    """A tensor that is added to the accumulator: ``RNE((x + offset) * multiplier, shift)``."""

    offset: int
    multiplier: int
    shift: int


@dataclass(frozen=True)
class Addresses:
    """Where the operands lie in the address space of the device."""

    input: int
    output: int
    weights: int
    bias: int
    commands: int
    added: int = 0


@dataclass(frozen=True)
class Convolution:
    """A convolution in the chip's own numbers. Values are int8 as the chip reads them.

    :ivar kernel: height and width; *strides* likewise; *pads*: top, left, bottom, right
    :ivar padding: the value of the padding
    :ivar weight_offset: is added to every weight
    :ivar multiplier: with *shift* and *output_zero*, from the accumulator to the output
    :ivar per_channel: biases and multipliers lie in a channel table
    :ivar channel_offsets: so do the numbers that are added to the weights, one for each output channel; *weight_offset* is 0
    :ivar curve: an activation on the accumulator, through the chip's lookup tables
    """

    height: int
    width: int
    in_channels: int
    out_channels: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    depthwise: bool
    padding: int
    weight_offset: int
    output_zero: int
    multiplier: int
    shift: int
    per_channel: bool = False
    channel_offsets: bool = False
    addition: Addition | None = None
    curve: Curve | None = None

    @property
    def tables(self) -> tuple[list[int], ...]:
        """The entries of the lookup tables; none without a curve."""
        return () if self.curve is None else (self.curve.negative.tolist(), self.curve.positive.tolist())

    @property
    def out_height(self) -> int:
        """Rows of the output."""
        return (self.height + self.pads[0] + self.pads[2] - self.kernel[0]) // self.strides[0] + 1

    @property
    def out_width(self) -> int:
        """Columns of the output."""
        return (self.width + self.pads[1] + self.pads[3] - self.kernel[1]) // self.strides[1] + 1

    @property
    def atoms(self) -> int:
        """Planes of the input."""
        return atoms(self.in_channels)

    @property
    def raw_input(self) -> bool:
        """Whether the input is one channel of unsigned bytes in rows, which the chip converts."""
        return self.in_channels == 1 and (self.out_channels > 1 or self.addition is not None)

    @property
    def raw_width(self) -> int:
        """Bytes of a row of such an input."""
        return max(self.width, LANES)


@dataclass(frozen=True)
class Banks:
    """Banks of the convolution buffer, and whether the weights of all kernels stay in it."""

    data: int
    weights: int
    resident: bool


@dataclass(frozen=True)
class Slice:
    """Some rows of a convolution: one task.

    :ivar first: first input row; *rows* of them
    :ivar out_first: first output row; *out_rows* of them
    :ivar top: rows of padding above
    """

    first: int
    rows: int
    out_first: int
    out_rows: int
    top: int


def row_entries(width: int, planes: int, unit: int) -> int:
    """Entries of the buffer that a row takes, where an entry holds *unit* planes of a pixel. Three planes in the rest take four.

    >>> row_entries(10, 3, 4), row_entries(10, 2, 4)
    (10, 5)
    """
    whole, rest = divmod(planes, unit)
    return width * whole + (width if rest == 3 else -(-rest * width // unit))


def banks_of(conv: Convolution) -> tuple[Banks, int]:
    """The banks of a convolution, and the rows of input that fit into the data banks."""
    kernels = 1 if conv.depthwise else conv.out_channels
    weight_bytes = conv.kernel[0] * conv.kernel[1] * conv.in_channels * kernels
    weight_banks = -(-weight_bytes // (_ENTRY_BYTES * _BANK_ENTRIES)) + 1
    entries = row_entries(conv.width, conv.atoms, 8)
    data_banks = -(-entries * conv.height // _BANK_ENTRIES)
    resident = weight_banks + 1 < BANKS
    available = BANKS - (weight_banks if resident else _STREAMED_BANKS)
    if data_banks <= available:
        return Banks(data_banks, BANKS - data_banks, resident), conv.height
    return Banks(available, BANKS - available, resident), _BANK_ENTRIES * available // entries


def slices_of(conv: Convolution, rows: int, *, mesa: bool = False) -> list[Slice]:
    """The slices of a convolution of which *rows* fit into the buffer at a time. Each but the first begins with the first window that did
    not fit.

    :param mesa: as Mesa's driver cuts: it divides towards zero, so that the last slice may be shorter than the kernel
    """
    kernel, stride = conv.kernel[0], conv.strides[0]
    top, _, bottom, _ = conv.pads
    found: list[Slice] = []
    first = out_first = 0
    while first < conv.height and (mesa or out_first < conv.out_height):
        above = top if not found else 0
        count = min(rows, conv.height - first)
        below = bottom if first + count == conv.height else 0
        span = count + above + below - kernel
        out_rows = (-(-span // stride) if mesa and span < 0 else span // stride) + 1
        found.append(Slice(first, count, out_first, out_rows, above))
        if first + count == conv.height or out_rows <= 0:
            break
        out_first += out_rows
        first = max(0, out_first * stride - top)
    return found
