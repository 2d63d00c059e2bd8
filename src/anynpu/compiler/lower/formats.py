"""Model formats: how values are held, by type and vendor, and how integer layers round."""

from __future__ import annotations

from dataclasses import replace

from ...chips import Chip
from ...errors import CompileError
from ...program.arithmetic import WeightScales
from ...program.arithmetic.fixed_point import EVIDENCE
from ...tensor import DType
from ...vendors import Alias, Format, registry


def format_words(dtype: str, chip: Chip) -> str:
    """What a model of the type *dtype* is called among people; the name itself where there is no such format.

    >>> from anynpu import chips
    >>> format_words("w8a8", chips.get("rk3588")), format_words("w8a8", chips.get("t527"))
    ('int8', 'uint8')
    """
    kind = registry.of_chip(chip).formats.get(dtype)
    return dtype if kind is None else kind.words


def known_types() -> tuple[str, ...]:
    """What this compiler writes for some chip. Chips name further types (w8a16, w4a16), which it does not write yet.

    >>> "w8a8" in known_types(), "w4a16" in known_types()
    (True, False)
    """
    return tuple(dict.fromkeys(name for vendor in registry.all_vendors() for name in vendor.formats))


def known_names() -> tuple[str, ...]:
    """All names of types that any chip understands.

    >>> "uint8" in known_names(), "int3" in known_names()
    (True, False)
    """
    return tuple(dict.fromkeys((*known_types(), *(name for vendor in registry.all_vendors() for name in vendor.aliases))))


def format_of(dtype: str, chip: Chip, *, per_channel: bool | None = None, channel_groups: int | None = None) -> Format:
    """The format that *dtype* names on *chip*, if the compiler writes it and the chip takes it.

    :param per_channel: weights with a scale for each output channel; None for what the format has
    :param channel_groups: None for what the format has
    """
    vendor = registry.of_chip(chip)
    alias = vendor.aliases.get(dtype) or Alias(dtype)
    name = alias.name
    taken = ", ".join(kind for kind in vendor.formats if kind in chip.quantized_types)
    if name not in known_types():
        if dtype in known_names():
            raise CompileError(f"'{dtype}' is not a type of {chip.name}'s family of chips", hint=f"{chip.name} takes: {taken}")
        raise CompileError(f"there is no type '{dtype}'", hint=f"choose one of: {', '.join(known_types())}")
    if name not in chip.quantized_types or name not in vendor.formats:
        raise CompileError(f"{chip.name} does not take {name} models", hint=f"it takes: {taken}")
    kind = vendor.formats[name]
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
    if groups > 1 and not registry.of_chip(chip).channel_groups:
        raise CompileError(
            f"a tensor of {chip.name} has one scale: there are no channel groups",
            hint="leave channel_groups out; for better accuracy use dtype int8 or int16",
        )
    return replace(kind, groups=groups if kind.groups > 1 else 1)


def without_zero_points(kind: Format) -> Format:
    """The format with weights that have no zero point, where they have one for each channel."""
    with_zeros = kind.weights in (WeightScales.CHANNEL, WeightScales.CHANNEL_STEPS)
    return replace(kind, weights=WeightScales.CHANNEL_SYMMETRIC) if with_zeros else kind


# By which rule the integer layers of a model round.


CHIP = "chip"
SIMULATOR = "simulator"


def with_arithmetic(kind: Format, chip: Chip, wanted: str | None) -> Format:
    """The format with the rule that was asked for, or with the default: that of the chip, where it is known."""
    known = chip.name in EVIDENCE and kind.codes is DType.INT8 and not kind.fixed_point and not kind.floats
    if wanted == CHIP and not known:
        raise CompileError(
            f"the chip's own arithmetic is not known for {kind.name} models of {chip.name}",
            hint=f"leave arithmetic out, or use {SIMULATOR}; it is known for int8 models of: {', '.join(EVIDENCE)}",
        )
    if wanted == SIMULATOR or not known:
        return replace(kind, unrounded=known)
    weights = WeightScales.CHANNEL_STEPS if kind.weights is WeightScales.CHANNEL else kind.weights
    return replace(kind, arithmetic=CHIP, weights=weights)
