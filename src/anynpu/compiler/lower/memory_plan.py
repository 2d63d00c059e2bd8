"""Internal memory by liveness: tensors that never live at the same time share their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...program import Layer, MemoryPlan, float_stretches
from ...tensor import TensorSpec

__all__ = ["plan_memory"]

ALIGNMENT = 64
SLACK = 64
"""Bytes after each tensor that a kernel may read, though not use."""


def plan_memory(
    layers: Sequence[Layer], tensors: Mapping[str, TensorSpec], views: Mapping[str, str], external: Sequence[str]
) -> MemoryPlan:
    """Offsets for all tensors but the *external* ones (inputs and outputs of the program), first fit, largest first where it matters.

    What goes in and out of a stretch of float layers lives as long as the whole stretch runs, because it is executed as one.
    """
    spans = _life_spans(layers, views, external)
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


def _life_spans(layers: Sequence[Layer], views: Mapping[str, str], external: Sequence[str]) -> dict[str, tuple[int, int]]:
    """First and last layer at which the memory of a tensor is in use, by owner."""
    spans: dict[str, tuple[int, int]] = {}

    def use(name: str, first: int, last: int) -> None:
        owner = views.get(name, name)
        before = spans.get(owner, (first, last))
        spans[owner] = (min(first, before[0]), max(last, before[1]))

    for index, layer in enumerate(layers):
        for name in (*layer.inputs, *layer.outputs):
            use(name, index, index)
    for stretch in float_stretches(layers, external, views):
        for name in (*stretch.inputs, *stretch.outputs):
            use(name, stretch.first, stretch.last - 1)
    return spans
