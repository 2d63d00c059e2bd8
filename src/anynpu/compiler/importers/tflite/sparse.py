"""Constants that a TFLite file holds sparsely: their zeros are left out, and lists say where the other numbers belong.

The numbers are the leaves of a tree. Each level of it is one axis, or one axis of a block, and has all of its places or those that a list
names for each node above it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...._util.types import Array
from ....errors import ModelFormatError
from .flatbuffer import Table

__all__ = ["dense_bytes"]

_LISTED = 1
_INDEX_TYPES = {1: "<i4", 2: "<u2", 3: "u1"}


def dense_bytes(sparsity: Table, stored: Array, shape: Sequence[int], size: int) -> Array:
    """The bytes of all numbers of a constant.

    :param stored: the bytes of those that are not left out
    :param size: bytes of a number
    """
    rank = len(shape)
    order = [int(axis) for axis in sparsity.numbers(0, "<i4")]
    blocked = [int(axis) for axis in sparsity.numbers(1, "<i4")]
    levels = sparsity.tables(2)
    if (
        sorted(order) != list(range(rank + len(blocked)))
        or len(levels) != len(order)
        or any(not 0 <= axis < rank for axis in blocked)
    ):
        raise _damaged("its axes do not fit its shape")
    count = math.prod(shape)
    sparsity.account.take(size * count)
    places = _leaves(levels, stored.size // size, count, sparsity)
    extents = {axis: levels[order.index(rank + index)].integer(1) for index, axis in enumerate(blocked)}
    target = np.zeros(places.shape[1], np.int64)
    for axis, extent in enumerate(shape):
        along = places[order.index(axis)] * extents.get(axis, 1)
        if axis in extents:
            along = along + places[order.index(rank + blocked.index(axis))]
        if along.size and (along.min() < 0 or along.max() >= extent):
            raise _damaged("a number lies outside of its shape")
        target = target * extent + along
    made = np.zeros((count, size), np.uint8)
    made[target] = stored[: places.shape[1] * size].reshape(-1, size)
    return made.reshape(-1)


def _leaves(levels: Sequence[Table], count: int, most: int, sparsity: Table) -> Array:
    """The place of each leaf on every level, as [levels, leaves].

    :param count: of leaves there are at most so many
    :param most: and of nodes on any level
    """
    places = np.zeros((0, 1), np.int64)
    for level in levels:
        nodes = places.shape[1]
        if level.integer(0, "b") == _LISTED:
            starts, listed = (_numbers(level, field) for field in (2, 4))
            if starts.size != nodes + 1 or starts[0] != 0 or np.any(np.diff(starts) < 0) or starts[-1] != listed.size:
                raise _damaged("its lists do not fit each other")
            parents = np.repeat(np.arange(nodes), np.diff(starts))
        else:
            extent = level.integer(1)
            if extent < 1 or nodes * extent > most:
                raise _damaged("it has more places than its shape")
            parents, listed = np.repeat(np.arange(nodes), extent), np.tile(np.arange(extent), nodes)
        sparsity.account.take(parents.size)
        places = np.concatenate([places[:, parents], listed[None].astype(np.int64)])
    if places.shape[1] > count:
        raise _damaged("it has fewer numbers than its lists say")
    return places


def _numbers(level: Table, field: int) -> Array:
    """A list of a level: its type stands before it."""
    held = level.table(field + 1)
    kind = _INDEX_TYPES.get(level.integer(field, "B"))
    if held is None or kind is None:
        raise _damaged("a list is missing")
    return held.numbers(0, kind).astype(np.int64)


def _damaged(what: str) -> ModelFormatError:
    return ModelFormatError(f"a sparse constant of the TFLite file is damaged: {what}", hint="convert the model again")
