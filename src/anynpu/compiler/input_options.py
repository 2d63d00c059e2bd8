"""What options say about the inputs of a model, checked once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..errors import CompileError, TensorNameError
from ..program import Preprocess
from .compile_options import CompileOptions, Order, PerInput
from .importers.onnx_graph import Shapes

__all__ = ["Normalisation", "preprocessing", "shape_sets"]


@dataclass(frozen=True)
class Normalisation:
    """Preprocessing by input name, and the inputs whose channels are fed in reverse order.

    :ivar trained: the order of channels that each input was said to be trained with
    """

    preprocess: Mapping[str, Preprocess] = field(default_factory=dict)
    reversed_inputs: tuple[str, ...] = ()
    trained: Mapping[str, str] = field(default_factory=dict)


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


def preprocessing(inputs: Sequence[str], shapes: Mapping[str, tuple[int, ...]], options: CompileOptions) -> Normalisation:
    """Mean, std and channel order for each input."""
    means, stds = _by_input("mean", options.mean, inputs), _by_input("std", options.std, inputs)
    trained = _orders("channel_order", options.channel_order, inputs, shapes)
    pictures = _orders("preprocess", options.preprocess, inputs, shapes)
    if options.preprocess is not None and not pictures:
        raise CompileError(
            "a pre-process node takes pictures, and no input is one", hint="leave preprocess out: it needs an input [N, 3, H, W]"
        )
    result: dict[str, Preprocess] = {}
    for name in inputs:
        if name not in means and name not in stds and name not in pictures:
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
        result[name] = Preprocess(values["mean"], values["std"], pictures.get(name, ""))
    turned = tuple(name for name in inputs if trained.get(name, "rgb") != pictures.get(name, "rgb"))
    return Normalisation(result, turned, trained)


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


def _orders(
    what: str, order: Order, inputs: Sequence[str], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Literal["rgb", "bgr"]]:
    """The order of channels by input name; a single one is for all pictures of three channels."""
    if order is None:
        return {}
    images = [name for name in inputs if len(shapes[name]) == 4 and shapes[name][1] == 3]
    orders = dict(order) if isinstance(order, Mapping) else dict.fromkeys(images, order)
    result: dict[str, Literal["rgb", "bgr"]] = {}
    for name, text in orders.items():
        if name not in inputs:
            raise TensorNameError(f"{what} is given for '{name}', which is not an input", hint=f"inputs are: {', '.join(inputs)}")
        if text not in ("rgb", "bgr"):
            raise CompileError(f"there is no channel order '{text}'", tensor=name, hint=f"choose rgb or bgr for {what}")
        if name not in images:
            raise CompileError(f"input '{name}' is not a picture of three channels", tensor=name, hint=f"leave {what} out for it")
        result[name] = "bgr" if text == "bgr" else "rgb"
    return result
