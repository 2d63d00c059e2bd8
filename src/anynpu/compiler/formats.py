"""The formats of models: how numbers are held, by type and family of chips.

A chip of Rockchip has weights with a scale for each output channel. A VIP (Allwinner) has the formats of its vendor's compiler: 8 bits with
one scale and zero point for a whole tensor, weights included; int8 weights by channel without zero points; dynamic fixed point, where every
scale is a power of two; and floats of 16 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ..arithmetic import WeightScales
from ..chips import Chip
from ..errors import CompileError
from ..tensor import DType

__all__ = ["DTYPES", "Format", "format_of", "format_words", "known_names", "without_zero_points"]

DTYPES = ("w8a8", "fp16", "w16a16", "i8", "i8dfp", "bf16")
"""What this compiler writes. Chips name further ones (w8a16, w4a16), which it does not write yet."""

Family = Literal["rknn", "vip"]


@dataclass(frozen=True)
class _Alias:
    """Another name of a type, which may ask for weights by channel or for one scale."""

    name: str
    per_channel: bool | None = None


_ALIASES: Mapping[Family, Mapping[str, _Alias]] = {
    "rknn": {"int8": _Alias("w8a8"), "int16": _Alias("w16a16"), "float16": _Alias("fp16")},
    "vip": {
        "uint8": _Alias("w8a8"),
        "asymmetric_affine": _Alias("w8a8"),
        "asymmetric_affine-u8": _Alias("w8a8"),
        "int8": _Alias("i8"),
        "asymmetric_affine-i8": _Alias("i8", per_channel=False),
        "pcq": _Alias("i8", per_channel=True),
        "perchannel_symmetric_affine": _Alias("i8", per_channel=True),
        "perchannel_symmetric_affine-i8": _Alias("i8", per_channel=True),
        "int8_dfp": _Alias("i8dfp"),
        "dynamic_fixed_point-i8": _Alias("i8dfp"),
        "int16": _Alias("w16a16"),
        "dynamic_fixed_point": _Alias("w16a16"),
        "dynamic_fixed_point-i16": _Alias("w16a16"),
        "float16": _Alias("fp16"),
        "bfloat16": _Alias("bf16"),
        "qbfloat16": _Alias("bf16"),
    },
}
"""The names that users of the vendors' compilers know."""

_GROUPS = 2
"""Channel groups that the compiler uses unless it is told otherwise, where the chip can have them."""


@dataclass(frozen=True)
class Format:
    """How a model holds its numbers.

    :ivar name: what ``Model.dtype`` says
    :ivar words: the same for people
    :ivar codes: type of integer layers
    :ivar weights: how weights share scales
    :ivar fixed_point: scales of activations are powers of two, without zero points
    :ivar half: type of float layers on the NPU
    :ivar floats: there are no integer layers
    :ivar arithmetic: by which rule integer layers end: ``chip`` or ``simulator``
    :ivar groups: most groups of channels with a scale of their own in one tensor
    """

    name: str
    words: str
    codes: DType = DType.INT8
    weights: WeightScales = WeightScales.CHANNEL
    fixed_point: bool = False
    half: DType = DType.FLOAT16
    floats: bool = False
    groups: int = 1
    arithmetic: str = "simulator"


_FLOAT16 = Format("fp16", "float16", floats=True)
_FORMATS: Mapping[Family, Mapping[str, Format]] = {
    "rknn": {
        "w8a8": Format("w8a8", "int8", groups=_GROUPS),
        "w16a16": Format("w16a16", "int16", DType.INT16, fixed_point=True),
        "fp16": _FLOAT16,
    },
    "vip": {
        "w8a8": Format("w8a8", "uint8", weights=WeightScales.TENSOR),
        "i8": Format("i8", "int8", weights=WeightScales.CHANNEL_SYMMETRIC),
        "i8dfp": Format("i8dfp", "int8 dynamic fixed point", weights=WeightScales.FIXED_POINT, fixed_point=True),
        "w16a16": Format("w16a16", "int16 dynamic fixed point", DType.INT16, WeightScales.FIXED_POINT, fixed_point=True),
        "fp16": _FLOAT16,
        "bf16": Format("bf16", "bfloat16", half=DType.BFLOAT16, floats=True),
    },
}


def format_words(dtype: str, chip: Chip) -> str:
    """What a model of the type *dtype* is called among people; the name itself where there is no such format.

    >>> from anynpu import chips
    >>> format_words("w8a8", chips.get("rk3588")), format_words("w8a8", chips.get("t527"))
    ('int8', 'uint8')
    """
    kind = _FORMATS[chip.family].get(dtype)
    return dtype if kind is None else kind.words


def known_names() -> tuple[str, ...]:
    """All names of types that any chip understands.

    >>> "uint8" in known_names(), "int3" in known_names()
    (True, False)
    """
    return tuple(dict.fromkeys((*DTYPES, *(name for aliases in _ALIASES.values() for name in aliases))))


def format_of(dtype: str, chip: Chip, *, per_channel: bool | None = None, channel_groups: int | None = None) -> Format:
    """The format that *dtype* names on *chip*, if the compiler writes it and the chip takes it.

    :param per_channel: weights with a scale for each output channel; None for what the format has
    :param channel_groups: None for what the format has
    """
    alias = _ALIASES[chip.family].get(dtype) or _Alias(dtype)
    name = alias.name
    taken = ", ".join(kind for kind in DTYPES if kind in chip.quantized_types)
    if name not in DTYPES:
        if dtype in known_names():
            raise CompileError(f"'{dtype}' is not a type of {chip.name}'s family of chips", hint=f"{chip.name} takes: {taken}")
        raise CompileError(f"there is no type '{dtype}'", hint=f"choose one of: {', '.join(DTYPES)}")
    if name not in chip.quantized_types:
        raise CompileError(f"{chip.name} does not take {name} models", hint=f"it takes: {taken}")
    kind = _FORMATS[chip.family][name]
    wanted = alias.per_channel if per_channel is None else per_channel
    return _with_groups(_with_weights(kind, chip, wanted), chip, channel_groups)


def _with_weights(kind: Format, chip: Chip, per_channel: bool | None) -> Format:
    if per_channel is None or kind.floats or per_channel is kind.weights.by_channel:
        return kind
    if per_channel:
        raise CompileError(
            f"weights of {kind.name} models of {chip.name} have one scale for all channels",
            hint="dtype int8 has a scale for each channel; its activations are the same but for the offset of 128",
        )
    return replace(kind, weights=WeightScales.TENSOR)


def _with_groups(kind: Format, chip: Chip, groups: int | None) -> Format:
    if groups is None or groups == kind.groups:
        return kind
    if groups > 1 and chip.family == "vip":
        raise CompileError(
            f"a tensor of {chip.name} has one scale: there are no channel groups",
            hint="leave channel_groups out; for better accuracy use dtype int8 or int16",
        )
    return replace(kind, groups=groups if kind.groups > 1 else 1)


def without_zero_points(kind: Format) -> Format:
    """The format with weights that have no zero point, where they have one for each channel."""
    return replace(kind, weights=WeightScales.CHANNEL_SYMMETRIC) if kind.weights is WeightScales.CHANNEL else kind
