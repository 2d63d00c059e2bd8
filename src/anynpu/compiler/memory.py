"""Internal memory by liveness: tensors that never live at the same time share their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..program import Float, Layer, MemoryPlan
from ..tensor import TensorSpec

__all__ = ["plan_memory"]

ALIGNMENT = 64
SLACK = 64
"""Bytes after each tensor that a kernel may read, though not use."""


def plan_memory(
    layers: Sequence[Layer], tensors: Mapping[str, TensorSpec], views: Mapping[str, str], external: Sequence[str]
) -> MemoryPlan:
    """Offsets for all tensors but the *external* ones (inputs and outputs of the program), first fit, largest first where it matters.

    The tensors at the border of a float island live as long as the whole island runs, because it is executed as one.
    """
    spans = _life_spans(layers, views)
    outside = set(external)
    owners = [name for name in spans if name not in outside]
    # Large tensors first, then by birth: the large ones decide the peak, and the small ones fit into the gaps.
    owners.sort(key=lambda name: (-_size(tensors[name]), spans[name]))
    placed: list[tuple[int, int, str]] = []
    offsets: dict[str, int] = {}
    peak = 0
    for name in owners:
        size = _size(tensors[name])
        first, last = spans[name]
        offset = 0
        for start, end, other in placed:
            if spans[other][1] < first or spans[other][0] > last:
                continue
            if offset + size <= start:
                break
            offset = max(offset, end)
        offsets[name] = offset
        placed.append((offset, offset + size, name))
        placed.sort()
        peak = max(peak, offset + size)
    return MemoryPlan({name: offsets[name] for name in spans if name in offsets}, peak)


def _size(spec: TensorSpec) -> int:
    return -(-(spec.nbytes + SLACK) // ALIGNMENT) * ALIGNMENT


def _life_spans(layers: Sequence[Layer], views: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """First and last layer at which the memory of a tensor is in use, by owner."""
    spans: dict[str, tuple[int, int]] = {}
    islands = _island_spans(layers)
    inside = _inside_one_island(layers, views)
    for index, layer in enumerate(layers):
        for name in (*layer.inputs, *layer.outputs):
            owner = views.get(name, name)
            first, last = index, index
            if isinstance(layer.op, Float) and owner not in inside:
                first, last = islands[layer.op.island]
            if owner in spans:
                first, last = min(first, spans[owner][0]), max(last, spans[owner][1])
            spans[owner] = (first, last)
    return spans


def _island_spans(layers: Sequence[Layer]) -> dict[int, tuple[int, int]]:
    spans: dict[int, tuple[int, int]] = {}
    for index, layer in enumerate(layers):
        if isinstance(layer.op, Float):
            first, _ = spans.get(layer.op.island, (index, index))
            spans[layer.op.island] = (first, index)
    return spans


def _inside_one_island(layers: Sequence[Layer], views: Mapping[str, str]) -> set[str]:
    """Tensors that one island makes and nobody else reads."""
    users: dict[str, set[int]] = {}
    made: set[str] = set()
    for layer in layers:
        island = layer.op.island if isinstance(layer.op, Float) else -1
        for name in (*layer.inputs, *layer.outputs):
            users.setdefault(views.get(name, name), set()).add(island)
        if island >= 0:
            made.update(layer.outputs)
    return {name for name, where in users.items() if len(where) == 1 and -1 not in where and name in made}
