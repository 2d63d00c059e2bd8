"""A segment of float layers on its way to C: its tensors, the layers that compute them, and the memory for what lies between.

Kernels (:mod:`.float_kernels`) add layers to a :class:`FloatPlan`. What depends on constants alone is computed once, while planning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._native import ffi, lib
from ..._util.types import Array
from .native_arrays import ALIGNMENT, Keeper
from .preparation import Preparation

__all__ = ["FloatPlan", "NoKernel", "Value"]


FLOATS = (np.dtype(np.float32), np.dtype(np.float16))
_MAX_BYTES = 1 << 30
"""Of one tensor, of all tensors between layers, and of all constants that are computed: more is not for here."""


class NoKernel(Exception):
    """C has no kernel for an operator as it is used; onnxruntime has to run the segment."""


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor inside a segment.

    :ivar place: where it is in the table of pointers; values of several shapes may share one. None for a constant that no layer reads
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    place: int | None = None
    constant: Array | None = None

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(eq=False)
class _Place:
    """What one pointer of the table points to: a tensor of the program, a constant, or private memory."""

    nbytes: int
    outside: str = ""
    constant: Array | None = None
    first: int = 0
    last: int = 0
    offset: int = 0


class FloatPlan:
    """Layers and places of one segment.

    :param level: index of the instruction set
    :param preparation: what counts the memory of constants
    """

    def __init__(self, level: int, preparation: Preparation | None = None) -> None:
        self.keeper = Keeper(preparation)
        self.places: list[_Place] = []
        self._level = level
        self._layers: list[tuple[int, Any, Any, int]] = []
        self._folded_bytes = 0

    def enter(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Value:
        """A tensor of the program that comes in."""
        self._check_size(shape, dtype)
        return Value(shape, dtype, self._add(_Place(0, outside=name)))

    def constant(self, array: Array) -> Value:
        """A constant."""
        return Value(array.shape, array.dtype, constant=np.require(array, requirements=["C", "A"]))

    def view(self, value: Value, shape: tuple[int, ...]) -> Value:
        """The same elements in another shape."""
        held = None if value.constant is None else value.constant.reshape(shape)
        return Value(shape, value.dtype, value.place, held)

    def layer(
        self,
        kind: int,
        descriptor: Any,
        inputs: Sequence[Value | None],
        shape: tuple[int, ...],
        dtype: npt.DTypeLike = np.float32,
    ) -> Value:
        """The result of one more layer, which is computed at once if it has constant inputs only."""
        kept = np.dtype(dtype)
        nbytes = self._check_size(shape, kept)
        given = [value for value in inputs if value is not None]
        if all(value.constant is not None for value in given):
            return self._fold(kind, descriptor, inputs, shape, kept)
        number = len(self._layers)
        places = [-1 if value is None else self._place_of(value) for value in inputs]
        for place in places:
            if place >= 0:
                self.places[place].last = number
        output = self._add(_Place(nbytes, first=number, last=number))
        self._layers.append((kind, descriptor, self.keeper.pointer(np.array(places, np.int32)), output))
        return Value(shape, kept, output)

    def cast(self, value: Value, dtype: npt.DTypeLike) -> Value:
        """The same numbers as float32 or float16."""
        wanted = np.dtype(dtype)
        if value.dtype == wanted:
            return value
        descriptor = self.keeper.struct("anynpu_float_cast")
        descriptor.count, descriptor.to_half = value.size, wanted == np.float16
        return self.layer(lib.ANYNPU_LAYER_FLOAT_CAST, descriptor, [value], value.shape, wanted)

    def leave(self, name: str, value: Value) -> None:
        """Let a tensor go out to the program's tensor *name*."""
        held = None if value.place is None else self.places[value.place]
        if held is None or held.outside or held.constant is not None:
            value = self._copy(value)
            held = self.places[value.place or 0]
        held.outside = name

    def finish(self) -> tuple[Any, int, int]:
        """The layers for C, how many there are, and the bytes of private memory that a context needs."""
        layers = self.keeper.keep(ffi.new("struct anynpu_layer[]", max(1, len(self._layers))))
        for target, layer in zip(layers, self._layers, strict=False):
            self._fill(target, *layer)
        return layers, len(self._layers), self._plan_memory()

    def _copy(self, value: Value) -> Value:
        move = self.keeper.struct("anynpu_move")
        move.axes, move.shape[0], move.strides[0], move.element_size = 1, value.size, 1, value.dtype.itemsize
        made = self.layer(lib.ANYNPU_LAYER_MOVE, move, [value], value.shape, value.dtype)
        if made.constant is not None:
            raise NoKernel("an output is a constant")
        return made

    def _fill(self, target: Any, kind: int, descriptor: Any, inputs: Any, output: int) -> None:
        target.kind, target.descriptor, target.inputs, target.output = kind, descriptor, inputs, output
        target.codes = lib.ANYNPU_CODES_I16  # plain C, which reads nothing after a tensor
        if not lib.anynpu_choose(ffi.addressof(target), self._level):
            raise NoKernel("the processor does not have the instruction set")

    def _fold(
        self, kind: int, descriptor: Any, inputs: Sequence[Value | None], shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Value:
        self._folded_bytes += self._check_size(shape, dtype)
        if self._folded_bytes > _MAX_BYTES:
            raise NoKernel("its constants are too large")
        self.keeper.preparation.take(self._check_size(shape, dtype))
        result = np.empty(shape, dtype)
        arrays = [None if value is None else value.constant for value in inputs]
        table = ffi.new("void *[]", [ffi.cast("void *", a.ctypes.data) for a in (*arrays, result) if a is not None])
        numbers = iter(range(len(arrays)))
        places = np.array([-1 if array is None else next(numbers) for array in arrays], np.int32)
        layer = ffi.new("struct anynpu_layer *")
        self._fill(layer[0], kind, descriptor, ffi.from_buffer("int32_t[]", places), len(table) - 1)
        lib.anynpu_execute(layer, 1, table, ffi.NULL, ffi.new("int32_t *"), -1, ffi.NULL, ffi.new("size_t *"))
        return Value(shape, dtype, constant=result)

    def _place_of(self, value: Value) -> int:
        if value.place is not None:
            return value.place
        for number, place in enumerate(self.places):
            if place.constant is not None and place.constant is value.constant:
                return number
        return self._add(_Place(0, constant=value.constant))

    def _add(self, place: _Place) -> int:
        self.places.append(place)
        return len(self.places) - 1

    def _check_size(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
        nbytes = math.prod(shape) * dtype.itemsize
        if not 0 < nbytes <= _MAX_BYTES:
            raise NoKernel(f"a tensor has the shape {list(shape)}")
        return nbytes

    def _plan_memory(self) -> int:
        """Give every tensor between layers the lowest offset that is free while it is needed."""
        done: list[_Place] = []
        end = 0
        for place in self.places:
            if place.outside or place.constant is not None:
                continue
            offset = 0
            for other in sorted((other for other in done if other.last >= place.first), key=lambda other: other.offset):
                if offset + place.nbytes <= other.offset:
                    break
                offset = max(offset, -(-(other.offset + other.nbytes) // ALIGNMENT) * ALIGNMENT)
            place.offset = offset
            end = max(end, offset + place.nbytes)
            done.append(place)
        if end > _MAX_BYTES:
            raise NoKernel(f"it needs {end} bytes between its layers")
        return end
