"""How pictures are prepared for a network: what a file says, and what the network itself reacts to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...program import Model

__all__ = ["reaction_line", "reversed_orders", "trained_orders"]


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
