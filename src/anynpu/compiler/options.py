"""What a caller can ask of the compiler, checked once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..chips import Chip
from ..errors import CompileError, TensorNameError
from ..program import Preprocess
from .importer import Shapes

__all__ = ["DTYPES", "PerInput", "preprocessing", "shape_sets"]

DTYPES = ("w8a8", "fp16", "w16a16")
"""What this compiler writes. Chips name further ones (w8a16, w4a16), which it does not write yet."""

PerInput = Sequence[float] | float | Mapping[str, "Sequence[float] | float"] | None


@dataclass(frozen=True)
class Normalisation:
    """Preprocessing by input name, and the inputs whose channels are fed in reverse order."""

    preprocess: Mapping[str, Preprocess] = field(default_factory=dict)
    reversed_inputs: tuple[str, ...] = ()


def check_dtype(dtype: str, chip: Chip) -> str:
    """*dtype* if the compiler writes it and the chip takes it."""
    known = {"float16": "fp16", "int8": "w8a8", "int16": "w16a16"}
    dtype = known.get(dtype, dtype)
    if dtype not in DTYPES:
        raise CompileError(f"there is no type '{dtype}'", hint=f"choose one of: {', '.join(DTYPES)}")
    if dtype not in chip.quantized_types:
        taken = ", ".join(sorted(set(DTYPES) & set(chip.quantized_types)))
        raise CompileError(f"{chip.name} does not take {dtype} models", hint=f"it takes: {taken}")
    return dtype


def shape_sets(shapes: Shapes | Sequence[Shapes] | None) -> list[Shapes]:
    """The shape sets of a request: one, or several for dynamic shapes."""
    if shapes is None:
        return [{}]
    if isinstance(shapes, Mapping):
        return [shapes]
    sets = list(shapes)
    if not sets or not all(isinstance(entry, Mapping) for entry in sets):
        raise CompileError(
            "shapes is a dict of input name to shape, or a list of such dicts", hint="for example shapes={'x': (1, 3, 480, 480)}"
        )
    return sets


def preprocessing(
    inputs: Sequence[str],
    shapes: Mapping[str, tuple[int, ...]],
    mean: PerInput,
    std: PerInput,
    channel_order: str | Mapping[str, str] | None,
) -> Normalisation:
    """Mean, std and channel order for each input."""
    means, stds = _by_input("mean", mean, inputs), _by_input("std", std, inputs)
    result: dict[str, Preprocess] = {}
    for name in inputs:
        if name not in means and name not in stds:
            continue
        channels = shapes[name][1] if len(shapes[name]) > 1 else 1
        values = {
            "mean": _one_each("mean", means.get(name, 0.0), channels, name),
            "std": _one_each("std", stds.get(name, 1.0), channels, name),
        }
        if any(value == 0 for value in values["std"]):
            raise CompileError(
                f"std of input '{name}' has a zero, and values are divided by it", tensor=name, hint="pass the real std, or 1"
            )
        result[name] = Preprocess(values["mean"], values["std"])
    return Normalisation(result, _reversed(inputs, shapes, channel_order))


def _by_input(what: str, value: PerInput, inputs: Sequence[str]) -> dict[str, Sequence[float] | float]:
    if value is None:
        return {}
    if isinstance(value, Mapping):
        for name in value:
            if name not in inputs:
                raise TensorNameError(
                    f"{what} is given for '{name}', which is not an input", hint=f"inputs are: {', '.join(inputs)}"
                )
        return dict(value)
    if len(inputs) != 1:
        raise CompileError(
            f"the model has {len(inputs)} inputs: say which one {what} is for", hint=f"{what}={{'{inputs[0]}': (0, 0, 0)}}"
        )
    return {inputs[0]: value}


def _one_each(what: str, value: Sequence[float] | float, channels: int, name: str) -> tuple[float, ...]:
    numbers = [float(entry) for entry in value] if isinstance(value, Sequence) else [float(value)]
    if len(numbers) == 1:
        numbers *= channels
    if len(numbers) != channels:
        raise CompileError(
            f"{what} of input '{name}' has {len(numbers)} numbers, but the input has {channels} channels",
            tensor=name,
            hint=f"give {channels} numbers, or one for all",
        )
    return tuple(numbers)


def _reversed(
    inputs: Sequence[str], shapes: Mapping[str, tuple[int, ...]], order: str | Mapping[str, str] | None
) -> tuple[str, ...]:
    if order is None:
        return ()
    images = [name for name in inputs if len(shapes[name]) == 4 and shapes[name][1] == 3]
    orders = dict(order) if isinstance(order, Mapping) else dict.fromkeys(images, order)
    for name, text in orders.items():
        if name not in inputs:
            raise TensorNameError(
                f"channel_order is given for '{name}', which is not an input", hint=f"inputs are: {', '.join(inputs)}"
            )
        if text not in ("rgb", "bgr"):
            raise CompileError(
                f"there is no channel order '{text}'", tensor=name, hint="choose rgb or bgr: what the model was trained on"
            )
        if len(shapes[name]) != 4 or shapes[name][1] != 3:
            raise CompileError(
                f"input '{name}' is not a picture of three channels", tensor=name, hint="leave channel_order out for it"
            )
    return tuple(name for name, text in orders.items() if text == "bgr")
