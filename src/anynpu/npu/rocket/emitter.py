"""Writes the command stream of a convolution."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..._util.types import Array
from ...errors import CommandStreamError, ParameterError
from ...program.arithmetic.lookup_tables import HALF, STEP_BITS
from .layouts import LANES, pack_bias, pack_weights
from .plan import Addition, Addresses, Banks, Convolution, Slice, banks_of, row_entries, slices_of
from .registers import LOOKUP_DATA, LOOKUP_TABLE, field
from .stream import task_size, task_words

__all__ = ["Compatible", "Emitted", "check", "convolution_of", "emit", "registers_of", "write"]

Words = npt.NDArray[np.uint64]
Compatible = Literal["default", "mesa"]

_GRAINS = 50
_EIGHT_AS = 16
"""Columns that a map of 8 has where a tensor is added, as boards ran it; its strides stay those of 8."""

_EVEN_CHANNELS = 0x0101
_MAX_MULTIPLIER = 32767
_MAX_SHIFT = 31
_MAX_PARAMETER = 1 << 16
_MAX_ADDRESS = (1 << 32) - 1


@dataclass(frozen=True)
class Emitted:
    """The stream of a convolution with what it reads.

    :ivar commands: uint64 words, tasks 1,088 bytes apart
    :ivar weights: packed bytes; None where no weights were given
    :ivar bias: packed bytes; None where no weights were given
    :ivar convolution: in the chip's numbers
    :ivar tasks: how many
    """

    commands: Words
    weights: npt.NDArray[np.uint8] | None
    bias: npt.NDArray[np.uint8] | None
    convolution: Convolution
    tasks: int


def emit(case: Mapping[str, Any], compatible: Compatible = "default") -> Emitted:
    """The command stream of a quantized convolution of uint8 tensors.

    :param case: ``size`` (of the square input), ``in_channels``, ``out_channels``, ``kernel``, ``stride``, ``pad_before``, ``pad_after``,
        ``depthwise``, ``add``, scales and zero points (``in_scale``, ``in_zero``, ``weight_*``, ``conv_*``; with ``add`` ``add_*`` and
        ``sum_*``), ``addresses``, and as arrays of uint8 and int32, where the packed forms are wanted, ``weights`` [O, k, k, C]
        (depthwise [k, k, C]) and ``bias``
    :param compatible: ``"mesa"`` writes the words that Mesa's rocket driver writes, its rounding of scales and its special cases included
    :raises ParameterError: a parameter is missing or out of range
    :raises CommandStreamError: the convolution does not fit the chip's registers

    >>> case = {"size": 8, "in_channels": 16, "out_channels": 16, "kernel": 1, "stride": 1, "pad_before": 0, "pad_after": 0,
    ...         "depthwise": 0, "add": 0, "in_scale": 0.1, "in_zero": 128, "weight_scale": 0.1, "weight_zero": 128,
    ...         "conv_scale": 0.2, "conv_zero": 128,
    ...         "addresses": {"input": 0, "output": 4096, "weights": 8192, "bias": 12288, "commands": 16384}}
    >>> len(emit(case).commands) * 8
    1088
    """
    if compatible not in ("default", "mesa"):
        raise ParameterError(f"compatible is '{compatible}'", hint="use 'default' or 'mesa'")
    mesa = compatible == "mesa"
    try:
        conv, addresses = convolution_of(case, mesa=mesa), _addresses(case["addresses"])
        _check_fields(conv)
        commands, tasks = write(conv, addresses, mesa=mesa)
        weights, bias = _packed(case, conv)
        if mesa and weights is not None:
            weights = np.concatenate([weights, np.zeros(_mesa_buffer(conv) - weights.size, np.uint8)])
    except KeyError as error:
        raise ParameterError(f"the case has no {error}", hint="pass all parameters of a row of streams.jsonl.gz") from None
    return Emitted(commands, weights, bias, conv, tasks)


def _integer(given: Any, name: str, low: int, high: int) -> int:
    """An integer parameter within its limits."""
    if not isinstance(given, Mapping):
        raise ParameterError(f"expected a mapping with '{name}', got {type(given).__name__}", hint="pass a dict")
    value = given[name]
    try:
        number = operator.index(value)
    except TypeError:
        number = low - 1
    if not low <= number <= high:
        raise ParameterError(f"'{name}' is {value!r}", hint=f"pass an integer from {low} to {high}")
    return number


def _factor(case: Mapping[str, Any], name: str) -> np.float32:
    """A scale: a positive number of float32."""
    value = case[name]
    with np.errstate(over="ignore"):
        number: np.float32 = np.float32(value if isinstance(value, (int, float, np.floating)) else 0)
    if not 0 < number < np.inf:
        raise ParameterError(f"'{name}' is {value!r}", hint="pass a positive finite number")
    return number


def convolution_of(case: Mapping[str, Any], *, mesa: bool = False) -> Convolution:
    """The convolution of a case of :func:`emit`, in the chip's numbers."""
    added = bool(_integer(case, "add", 0, 1))
    source, target = ("add", "sum") if added else ("in", "conv")
    in_scale, out_scale = _factor(case, f"{source}_scale"), _factor(case, f"{target}_scale")
    weight_scale = _factor(case, "weight_scale")
    size, kernel, stride = (_integer(case, name, 1, _MAX_PARAMETER) for name in ("size", "kernel", "stride"))
    before, after = (_integer(case, name, 0, _MAX_PARAMETER) for name in ("pad_before", "pad_after"))
    channels, outputs = (_integer(case, name, 1, _MAX_PARAMETER) for name in ("in_channels", "out_channels"))
    depthwise = bool(_integer(case, "depthwise", 0, 1)) and channels > 1 and outputs > 1
    if depthwise and channels != outputs:
        raise ParameterError(
            f"a depthwise convolution of {channels} channels to {outputs}", hint="pass as many output as input channels"
        )
    if kernel > size + before + after:
        raise ParameterError(
            f"a convolution of {size}x{size}x{channels} to {outputs} channels with a kernel of {kernel}, stride {stride} and padding "
            f"{before}, {after} has no output",
            hint="pass a kernel that fits the padded input",
        )
    with np.errstate(all="ignore"):
        factor, added_factor = in_scale * weight_scale / out_scale, in_scale / (in_scale * weight_scale)
    for what, value in (("output", factor), *([("addition", added_factor)] if added else [])):
        if not 2.0**-48 < value < 1 << 14:
            raise CommandStreamError(
                f"the scales give the {what} a factor of {value:g}",
                hint="its 15 bits and shift take factors from 2**-48 to 2**14",
            )
    multiplier, shift = (_mesa_scale if mesa else _scale)(factor)
    addition = Addition(128 - _integer(case, "add_zero", 0, 255), *_mantissa(added_factor)) if added else None
    return Convolution(
        height=size,
        width=size,
        in_channels=channels,
        out_channels=outputs,
        kernel=(kernel, kernel),
        strides=(stride, stride),
        pads=(before, before, after, after),
        depthwise=depthwise,
        padding=_integer(case, f"{source}_zero", 0, 255) - 128,
        weight_offset=128 - _integer(case, "weight_zero", 0, 255),
        output_zero=_integer(case, f"{target}_zero", 0, 255) - 128,
        multiplier=multiplier,
        shift=shift,
        addition=addition,
    )


def _mantissa(factor: np.float32) -> tuple[int, int]:
    """15 bits and a shift that stand for *factor*, the bits below cut off."""
    bits = int(np.float32(factor).view(np.uint32))
    return 1 << 14 | (bits >> 9 & 0x3FFF), 141 - (bits >> 23 & 0xFF)


def _mesa_scale(factor: np.float32) -> tuple[int, int]:
    """As :func:`_mantissa`, with one more; a carry out of the mantissa meets the lowest bit of the exponent, which is 0 or 1."""
    bits = int(np.float32(factor).view(np.uint32))
    multiplier = (bits >> 9 & 0x7FFF) + 1
    return multiplier | (1 << 14 if multiplier < 1 << 14 else 0), 141 - (bits >> 23 & 0xFF)


def _scale(factor: np.float32) -> tuple[int, int]:
    """The nearest multiplier of 15 bits, and its shift."""
    shift = min(_MAX_SHIFT, math.floor(math.log2(_MAX_MULTIPLIER / float(factor))))
    return round(float(factor) * 2.0**shift), shift


def _mesa_buffer(conv: Convolution) -> int:
    """Bytes of the buffer for weights: twice those of whole blocks of 32 channels. What the weights leave of it is 0."""
    kernels = 1 if conv.depthwise else conv.out_channels + conv.out_channels % 2
    return 2 * conv.kernel[0] * conv.kernel[1] * (-(-conv.in_channels // 32) * 32) * kernels


def _addresses(given: Mapping[str, int]) -> Addresses:
    return Addresses(
        **{name: _integer(given, name, 0, _MAX_ADDRESS) for name in ("input", "output", "weights", "bias", "commands")},
        added=_integer(given, "added", 0, _MAX_ADDRESS) if "added" in given else 0,
    )


def _packed(case: Mapping[str, Any], conv: Convolution) -> tuple[Array, Array] | tuple[None, None]:
    """Weights and biases of a case as the chip reads them."""
    if case.get("weights") is None or case.get("bias") is None:
        return None, None
    kernel, depth = conv.kernel[0], 1 if conv.depthwise else conv.in_channels
    count = conv.out_channels * kernel * kernel * depth
    given = _integers(case, "weights", 0, 255)
    bias = _integers(case, "bias", -(1 << 31), (1 << 31) - 1)
    if given.size != count or bias.size != conv.out_channels:
        raise ParameterError(
            f"{given.size} weights and {bias.size} biases for a convolution with {count} and {conv.out_channels}",
            hint="pass weights as [O, k, k, C], or [k, k, C] for depthwise",
        )
    given = given - 128
    weights = (
        given.reshape(kernel, kernel, -1, 1).transpose(2, 0, 1, 3) if conv.depthwise else given.reshape(-1, kernel, kernel, depth)
    )
    folded = bias - ((weights + conv.weight_offset) * conv.padding).reshape(len(weights), -1).sum(axis=1)
    packed = pack_weights(weights, -conv.weight_offset, depthwise=conv.depthwise).view(np.uint8)
    return packed, pack_bias(folded.astype(np.int32))


def _integers(case: Mapping[str, Any], name: str, low: int, high: int) -> Array:
    """An array parameter within its limits, as one row."""
    try:
        values = np.asarray(case[name])
    except ValueError:
        values = np.zeros(0)
    if values.dtype.kind not in "iu" or (values.size and not low <= int(values.min()) <= int(values.max()) <= high):
        raise ParameterError(
            f"'{name}' has the type {values.dtype}, or values out of range",
            hint=f"pass an array of integers from {low} to {high}",
        )
    return values.astype(np.int64).reshape(-1)


def write(conv: Convolution, addresses: Addresses, *, mesa: bool = False) -> tuple[Words, int]:
    """The words of a convolution, and how many tasks they are.

    :param mesa: with the special cases of Mesa's driver
    :raises CommandStreamError: it does not fit the chip's registers
    """
    banks, rows = banks_of(conv)
    if not mesa:
        check(conv)
    slices = slices_of(conv, rows, mesa=mesa)
    _, size = task_size(conv.tables)
    words = []
    for index, part in enumerate(slices):
        last = index == len(slices) - 1
        following = None if len(slices) == 1 else 0 if last else addresses.commands + (index + 1) * size
        registers = registers_of(conv, addresses, banks, part, reuse=index > 0 and banks.resident, mesa=mesa)
        words.append(task_words(registers, next_task=following, last=last, tables=conv.tables))
    return np.concatenate(words), len(slices)


def _check_fields(conv: Convolution) -> None:
    """Look whether sizes fit the fields of their registers, whatever the chip makes of them."""
    for value, limit, what in (
        (max(conv.width, conv.height), 2047, "columns or rows"),
        (max(conv.kernel), 31, "kernel rows or columns"),
        (max(conv.strides), 7, "steps of the stride"),
        (max(conv.pads), 15, "rows or columns of padding"),
        (max(conv.in_channels, conv.out_channels), 8192, "channels"),
    ):
        if value > limit:
            raise CommandStreamError(f"the convolution has {value} {what}; the registers take {limit}", hint="run it on the CPU")


def check(conv: Convolution) -> None:
    """Look whether every number of a convolution fits its register.

    :raises CommandStreamError: one does not
    """
    _, rows = banks_of(conv)
    limits = (
        (conv.width, 1024, "columns"),
        (conv.height, 1024, "rows"),
        (max(conv.kernel), 31, "kernel rows or columns"),
        (max(conv.strides), 7, "steps of the stride"),
        (max(conv.pads[:2]), 15, "rows or columns of padding"),
        (max(conv.in_channels, conv.out_channels), 8192, "channels"),
    )
    for value, limit, what in limits:
        if value > limit:
            raise CommandStreamError(f"the convolution has {value} {what}; the chip takes {limit}", hint="run it on the CPU")
    if conv.kernel[0] > rows + conv.pads[0]:
        raise CommandStreamError(
            f"a window of {conv.kernel[0]} rows does not fit the convolution buffer, which holds {rows} rows of this input",
            hint="run it on the CPU",
        )
    if not 0 <= conv.shift <= _MAX_SHIFT or not -(1 << 15) <= conv.multiplier < 1 << 15:
        raise CommandStreamError(
            f"multiplier {conv.multiplier} and shift {conv.shift} do not fit the output stage",
            hint=f"scales must give a multiplier of 16 bits and a shift of 0 to {_MAX_SHIFT}",
        )
    if conv.curve is not None and conv.addition is not None:
        raise CommandStreamError(
            "an activation of a sum: the tables come before the tensor that is added", hint="run it on the CPU"
        )


def _put(register: int, **fields: int) -> int:
    """A register value from its fields by name."""
    value = 0
    for name, number in fields.items():
        value |= field(register, name).write(number)
    return value


def registers_of(
    conv: Convolution, addresses: Addresses, banks: Banks, part: Slice, *, reuse: bool, mesa: bool
) -> dict[int, int]:
    """All registers of one slice that are not 0."""
    found = _feature_registers(conv, addresses, banks, part, reuse=reuse, mesa=mesa)
    found |= _weight_registers(conv, addresses)
    found |= _output_registers(conv, addresses, part)
    found |= _added_registers(conv, addresses, part, mesa=mesa)
    found |= _lookup_registers(conv)
    return {number: value & 0xFFFFFFFF for number, value in found.items()}


def _feature_registers(
    conv: Convolution, addresses: Addresses, banks: Banks, part: Slice, *, reuse: bool, mesa: bool
) -> dict[int, int]:
    joined = conv.addition is not None
    raw, lanes = conv.raw_input, conv.atoms * LANES
    width = conv.raw_width if raw else _EIGHT_AS if joined and conv.width == 8 else conv.width
    line, plane = (
        (conv.raw_width, conv.raw_width * (conv.height - 1)) if raw else (4 * conv.width, conv.width * (conv.height - 4))
    )
    offset = part.first * (conv.raw_width if raw else LANES * conv.width)
    truncate, scale = ((15, 32388) if mesa and joined else (14, 16384)) if raw else (0, 1)
    one_channel = {"ARGB_IN": 8, "GROUP_LINE_OFF": 1, "NONALIGN_DMA": 1} if raw else {}
    converter = _put(0x1050, SCALE=scale, OFFSET=-128 if raw else 0)
    if raw:
        bypass = _put(0x104C, **{f"TRUNCATE_{index}": truncate for index in range(4)})
    else:
        bypass = _put(0x104C, BYPASS=1, TYPE=1, SIGN=1)
    return {
        0x100C: _put(
            0x100C,
            CONV_MODE=3 if conv.depthwise else 0,
            **one_channel,
        ),
        0x1010: _put(0x1010, FEATURE_GRAINS=_GRAINS + conv.strides[0] + 1),
        0x1014: _put(0x1014, X_STRIDE=conv.strides[1], Y_STRIDE=conv.strides[0]),
        0x1020: _put(0x1020, WIDTH=width, HEIGHT=part.rows),
        0x1024: _put(0x1024, CHANNEL_REAL=conv.in_channels - 1, CHANNEL=lanes),
        0x1028: _put(0x1028, DATAOUT_WIDTH=conv.out_width),
        0x102C: _put(0x102C, ATOMICS=conv.out_width * part.out_rows),
        0x1040: _put(0x1040, DATA_BANK=banks.data, WEIGHT_BANK=banks.weights, WEIGHT_REUSE=int(reuse)),
        0x1044: _put(0x1044, DATA_ENTRIES=_data_entries(conv, width, mesa=mesa)),
        0x104C: bypass,
        **dict.fromkeys((0x1050, 0x1054, 0x1058, 0x105C), converter),
        0x1068: _put(0x1068, LEFT=conv.pads[1], TOP=part.top),
        0x1070: addresses.input + offset,
        0x1078: _put(0x1078, DATA_BURST=15, WEIGHT_BURST=15),
        0x107C: _put(0x107C, LINE_STRIDE=line),
        0x1080: _put(0x1080, SURF_STRIDE=plane),
        0x1084: _put(0x1084, DMA_WIDTH=conv.width, DMA_HEIGHT=part.rows),
        0x1088: _put(0x1088, DMA_CHANNEL=lanes),
        0x1180: 0xFFFF if raw else 0,
        0x1184: _padding(conv, mesa=mesa),
    }


def _data_entries(conv: Convolution, width: int, *, mesa: bool) -> int:
    if conv.raw_input:
        return width * conv.height
    if not mesa:
        return row_entries(width, conv.atoms, 4)
    if (conv.width, conv.in_channels) == (40, 40):
        return 40
    return -(-width * conv.atoms // 4)


def _padding(conv: Convolution, *, mesa: bool) -> int:
    """The byte of the padding for even and for odd channels; Mesa's driver has special cases."""
    if not mesa:
        return (conv.padding & 0xFF) * _EVEN_CHANNELS
    if conv.addition is not None:
        return 0xFFFFFF80
    if conv.padding == -128 and conv.kernel[0] >= 3:
        return 0xFFFF8080
    if conv.padding == 11 and conv.depthwise:
        return 0x0B0B
    return conv.padding


def _weight_registers(conv: Convolution, addresses: Addresses) -> dict[int, int]:
    kernels = 1 if conv.depthwise else conv.out_channels + conv.out_channels % 2
    height, width = conv.kernel
    kernel_bytes = height * width * conv.atoms * LANES
    return {
        0x1030: kernel_bytes * kernels,
        0x1034: _put(0x1034, BYTES_PER_KERNEL=kernel_bytes),
        0x1038: _put(0x1038, WIDTH=width, HEIGHT=height, KERNELS=kernels),
        0x1110: addresses.weights,
    }


def _output_registers(conv: Convolution, addresses: Addresses, part: Slice) -> dict[int, int]:
    block = 64 if conv.depthwise else 32
    channels = -(-conv.out_channels // block) * block
    width, height = conv.out_width - 1, part.out_rows - 1
    plane = conv.out_width * conv.out_height
    size = 3 if conv.depthwise else 1
    mode = 3 if conv.depthwise else 0
    per_channel = conv.per_channel
    return {
        0x3010: _put(0x3010, QD_EN=1, DW_EN=int(conv.depthwise)),
        0x3014: _put(0x3014, WIDTH=width, HEIGHT=height),
        0x3018: _put(0x3018, CHANNEL=channels - 1),
        0x4004: _put(0x4004, POINTER_PP_EN=1, EXECUTER_PP_EN=1, PP_MODE=1),
        0x400C: _put(0x400C, OUTPUT_MODE=2, CONV_MODE=mode, BURST=15),
        0x4010: _put(0x4010, BS_MUL_SHIFT_NEG=14 if per_channel else 0),
        0x4020: addresses.output + part.out_first * LANES * conv.out_width,
        0x4024: _put(0x4024, DST_SURF_STRIDE=plane),
        0x4030: _put(0x4030, WIDTH=width),
        0x4034: _put(0x4034, HEIGHT=height),
        0x403C: _put(0x403C, CHANNEL=channels - 1, ORIG_CHANNEL=conv.out_channels - 1),
        0x4040: _put(0x4040, ALU_ALGO=2, ALU_SRC=1, RELU_BYPASS=1, MUL_BYPASS=0 if per_channel else 1),
        0x4048: _put(0x4048, SHIFT=14, SRC=1) if per_channel else 0,
        0x4050: _put(0x4050, SIZE_E_0=size, SIZE_E_1=size, SIZE_E_2=size, OW_SRC=int(conv.channel_offsets)),
        0x4054: _put(0x4054, OW_OP=conv.weight_offset),
        0x4058: _put(0x4058, CHANNEL=channels - 1),
        0x405C: _put(0x405C, WIDTH=width, HEIGHT=height),
        0x4060: _put(0x4060, BYPASS=1, ALU_BYPASS=1, MUL_BYPASS=1, RELU_BYPASS=1),
        0x4080: conv.output_zero,
        0x4084: _put(0x4084, SCALE=conv.multiplier),
        0x4088: _put(0x4088, SHIFT=conv.shift),
        0x40C0: _put(0x40C0, SURFACE_ADD=plane * (4 if conv.depthwise else 2)),
        0x5004: _put(0x5004, POINTER_PP_EN=1, EXECUTER_PP_EN=1, PP_MODE=1),
        0x500C: _put(0x500C, WIDTH=width),
        0x5010: _put(0x5010, HEIGHT=height),
        0x5014: _put(0x5014, CHANNEL=channels - 1),
        0x501C: _put(0x501C, DATA_USE=7 if per_channel else 1),
        0x5020: addresses.bias,
        0x5068: 0x01010101,
    }


def _lookup_registers(conv: Convolution) -> dict[int, int]:
    """Registers of the lookup tables: the accumulator becomes an index in the BN stage, and goes through the tables in the EW stage."""
    curve = conv.curve
    if curve is None:
        return {}
    return {
        0x4010: _put(0x4010, BS_MUL_SHIFT_NEG=14 if conv.per_channel else 0, BN_MUL_SHIFT_NEG=curve.shift),
        0x4060: _put(0x4060, ALU_ALGO=2, RELU_BYPASS=1),
        0x4064: curve.offset,
        0x4068: _put(0x4068, OPERAND=curve.multiplier, SHIFT=curve.shift),
        0x4070: _put(0x4070, OP_CVT_BYPASS=1, RELU_BYPASS=1),
        LOOKUP_TABLE: _put(LOOKUP_TABLE, WRITE=1, TABLE=1),
        LOOKUP_DATA: _put(LOOKUP_DATA, DATA=int(curve.positive[-1])) & 0xFFFF,
        0x4108: _put(0x4108, LO_LE_MUX=2, OFLOW_PRIORITY=1, HYBRID_PRIORITY=1),
        0x410C: _put(0x410C, LE_INDEX_SELECT=STEP_BITS, LO_INDEX_SELECT=STEP_BITS),
        0x4110: -HALF,
        0x411C: HALF,
        0x4128: _put(0x4128, OFLOW=curve.slope),
        0x412C: _put(0x412C, OFLOW=curve.slope_shift),
    }


def _added_registers(conv: Convolution, addresses: Addresses, part: Slice, *, mesa: bool) -> dict[int, int]:
    """Registers of the tensor that is added; without one, what switches its readers off."""
    mode = 3 if conv.depthwise else 0
    if conv.addition is None:
        return {
            0x4070: _put(0x4070, BYPASS=1, OP_BYPASS=1, LUT_BYPASS=1, OP_CVT_BYPASS=1, RELU_BYPASS=1),
            0x4078: _put(0x4078, SCALE=1),
            0x5034: _put(0x5034, DISABLE=1),
            0x5044: _put(0x5044, CONV_MODE=mode, MRDMA_DISABLE=1, BURST=15),
        }
    pixels = conv.out_width * conv.out_height
    stride = max(pixels, 12)
    notch = 15 if mesa and conv.width == 3 else stride + conv.out_width * (conv.out_height - part.out_rows)
    even = addresses.added + part.out_first * LANES * conv.out_width
    return {
        0x4070: _put(0x4070, OP_SRC=1, LUT_BYPASS=1, RELU_BYPASS=1, ALU_ALGO=2, EDATA_SIZE=1, DATA_MODE=1, CVT_TYPE=1),
        0x4074: conv.addition.offset,
        0x4078: _put(0x4078, SCALE=conv.addition.multiplier, SHIFT=conv.addition.shift),
        0x5018: even,
        0x5034: _put(0x5034, DATA_SIZE=1, DATA_MODE=1),
        0x5038: even + LANES * pixels,
        0x5040: _put(0x5040, EW_SURF_STRIDE=stride),
        0x5044: _put(0x5044, CONV_MODE=mode, COMB_USE=5, BURST=15),
        0x504C: _put(0x504C, SURF_NOTCH=notch),
        0x506C: _put(0x506C, EW_SURF_NOTCH=notch),
    }
