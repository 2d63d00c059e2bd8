"""How pictures are prepared for a network: what a file says, and what the network itself reacts to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import AnynpuError
from ...program import Model

__all__ = ["complaint_of", "reaction_line", "reversed_orders", "trained_orders"]


def trained_orders(model: Model) -> dict[str, str]:
    """The order of channels that each input was trained with, as far as the file says it."""
    try:
        entries = json.loads(model.provenance.get("channel_order", ""))
    except (ValueError, RecursionError):
        return {}
    names = {spec.name for spec in model.inputs}
    if not isinstance(entries, dict):
        return {}
    return {name: order for name, order in entries.items() if name in names and order in ("rgb", "bgr")}


def reversed_orders(model: Model) -> dict[str, str]:
    """Inputs whose channels the ONNX model takes in another order than the file does, which is RGB but for some pre-process nodes."""
    taken = {name: entry.picture or "rgb" for name, entry in model.preprocess.items()}
    return {name: "bgr" for name, order in trained_orders(model).items() if order != taken.get(name, "rgb")}


def reaction_line(file: Path, dataset: Path, shapes: Mapping[str, tuple[int, ...]] | None) -> tuple[str, dict[str, Any]]:
    """What an ONNX model reacts to on the pictures of *dataset*, in one line and as data."""
    from ...compiler.quantize.detect_preprocessing import find_recipe, pictures_of

    found = find_recipe(file, pictures_of(dataset), shapes=dict(shapes) if shapes else None)
    tried = {f"{recipe.name} {recipe.order}": round(value, 3) for recipe, value in found.values.items()}
    facts = {"reacts_to": None if found.best is None else found.best.flags, "order_known": found.order_known, "tried": tried}
    return found.words or "cannot be told: no usual preprocessing stands out on these pictures", facts


def complaint_of(model: Path, options: Any) -> str:
    """What is wrong with the preprocessing that a compilation was asked for; empty if nothing is, or if it cannot be told.

    :param options: the :class:`~anynpu.CompileOptions`
    """
    from ...compiler.quantize.detect_preprocessing import RECIPES, PictureRecipe, find_recipe, pictures_of

    shapes = options.shapes[0] if isinstance(options.shapes, list) else options.shapes
    mean, std = (_three(value, default) for value, default in ((options.mean, 0.0), (options.std, 1.0)))
    pictures = [] if options.dataset is None or options.preprocess or options.custom_ops else pictures_of(options.dataset)
    if (
        mean is None
        or std is None
        or isinstance(options.channel_order, Mapping)
        or options.batch not in (None, 1)
        or not pictures
    ):
        return ""
    order = options.channel_order or "rgb"
    if order == "bgr":
        mean, std = mean[::-1], std[::-1]
    asked = next(
        (recipe for recipe in RECIPES if recipe.order == order and _near(recipe.mean, mean) and _near(recipe.std, std)),
        PictureRecipe("what was asked for", mean, std, order),
    )
    try:
        return find_recipe(model, pictures_of(options.dataset), shapes=shapes, asked=asked).complaint(asked)
    except AnynpuError:  # it is compiled already: what cannot be tried is not judged
        return ""


def _three(value: Any, default: float) -> tuple[float, float, float] | None:
    """Mean or std of the one input, for three channels."""
    if isinstance(value, Mapping):
        if len(value) != 1:
            return None
        (value,) = value.values()
    numbers = [default] if value is None else [float(entry) for entry in value] if hasattr(value, "__iter__") else [float(value)]
    numbers = numbers * 3 if len(numbers) == 1 else numbers
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 else None


def _near(first: tuple[float, ...], second: tuple[float, ...]) -> bool:
    return all(abs(a - b) <= 1.0 and (a > 2.0) == (b > 2.0) for a, b in zip(first, second, strict=True))
