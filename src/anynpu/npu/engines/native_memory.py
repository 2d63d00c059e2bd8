"""Memory that kernels may read a little past.

A fast kernel reads whole vectors, and so up to 64 bytes after a tensor. The compiler leaves that space inside internal memory. A buffer of
the caller may end with its tensor, at the end of a page after which nothing is mapped; such a tensor gets memory of the engine's own, which
is copied from (an input) or to (an output) the caller's.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping, Set
from typing import Any

import numpy as np

from ..._util.types import Array
from ...errors import ShapeError
from ...program import Program
from ...tensor import TensorSpec
from .native_arrays import aligned_bytes

__all__ = ["SLACK", "check_array", "has_room", "int8_with_room", "with_room"]


SLACK = 64


def with_room(
    program: Program, arrays: Mapping[str, Array], used: Set[str]
) -> tuple[dict[str, Array], list[tuple[Array, Array]], list[tuple[Array, Array]]]:
    """Arrays that may all be read past, and what to copy before and after a run, as pairs of target and source.

    :param used: the tensors that native layers read or write: an output too is read where a table is applied to it in place
    """
    held = dict(arrays)
    before: list[tuple[Array, Array]] = []
    after: list[tuple[Array, Array]] = []
    tight = {_owner(program, name) for name in used if not has_room(arrays[name])}
    for owner in tight:
        names = [name for name in arrays if _owner(program, name) == owner]
        memory = aligned_bytes(max(arrays[name].nbytes for name in names) + SLACK)
        for name in names:
            array = arrays[name]
            held[name] = memory[: array.nbytes].view(array.dtype).reshape(array.shape)
        if owner in program.inputs:
            before.append((held[owner], arrays[owner]))
        after += [(arrays[name], held[name]) for name in names if name in program.outputs]
    return held, before, after


def int8_with_room(shape: tuple[int, ...]) -> Array:
    """An array of int8 that kernels may read past; its values are whatever was there."""
    size = math.prod(shape)
    return aligned_bytes(size + SLACK)[:size].view(np.int8).reshape(shape)


def check_array(array: Array, spec: TensorSpec) -> None:
    """Reject an array that is not a tensor's memory."""
    if array.shape != spec.memory_shape or array.dtype != spec.dtype.storage or not array.flags.c_contiguous:
        raise ShapeError(
            f"tensor '{spec.name}' lies in memory as {list(spec.memory_shape)} of {spec.dtype.storage}, "
            f"got {list(array.shape)} of {array.dtype}",
            hint="pass whole arrays in memory order: channels last for layout nhwc",
        )


def _owner(program: Program, name: str) -> str:
    while name in program.views:
        name = program.views[name]
    return name


def has_room(array: Array) -> bool:
    """Whether the bytes after an array are surely mapped: on the page where it ends, or in the memory that it is a part of."""
    end = array.ctypes.data + array.nbytes
    if (end - 1) // mmap.PAGESIZE == (end + SLACK - 1) // mmap.PAGESIZE:
        return True
    base: Any = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    if isinstance(base, memoryview) and isinstance(base.obj, mmap.mmap):
        base = base.obj  # a buffer may be less than what is mapped
    memory = base if isinstance(base, np.ndarray) else np.frombuffer(base, np.uint8)
    return bool(memory.flags.c_contiguous and end + SLACK <= memory.ctypes.data + memory.nbytes)
