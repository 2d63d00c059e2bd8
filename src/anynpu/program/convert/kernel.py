"""One call of the conversion kernel: what is where, in which type, and what happens to each element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from ..._util.types import Array
from ...errors import MissingDependencyError, ShapeError, TensorTypeError
from ...tensor import DType, round_up

try:
    from ..._native import ffi as ffi  # the other modules of the package take them from here
    from ..._native import lib as lib
except ImportError as error:
    raise MissingDependencyError(
        f"the compiled extension anynpu._native cannot be loaded: {error}",
        hint="install the package, which compiles it: pip install . (or pip install -e . in a clone)",
    ) from error


_TYPES = {
    DType.FLOAT32: lib.ANYNPU_F32,
    DType.FLOAT16: lib.ANYNPU_F16,
    DType.BFLOAT16: lib.ANYNPU_BF16,
    DType.INT4: lib.ANYNPU_I8,  # unpacked before and packed after
    DType.UINT4: lib.ANYNPU_U8,
    DType.INT8: lib.ANYNPU_I8,
    DType.UINT8: lib.ANYNPU_U8,
    DType.INT16: lib.ANYNPU_I16,
    DType.UINT16: lib.ANYNPU_U16,
    DType.INT32: lib.ANYNPU_I32,
    DType.UINT32: lib.ANYNPU_U32,
    DType.INT64: lib.ANYNPU_I64,
    DType.UINT64: lib.ANYNPU_U64,
    DType.BOOL: lib.ANYNPU_BOOL,
}


def type_code(dtype: DType) -> int:
    """The kernel's number for an element type."""
    return _TYPES[dtype]


def type_of_size(itemsize: int) -> int:
    """The kernel's number for some type of *itemsize* bytes: enough for moving elements as they are."""
    sizes = {1: lib.ANYNPU_U8, 2: lib.ANYNPU_U16, 4: lib.ANYNPU_U32, 8: lib.ANYNPU_U64}
    if itemsize not in sizes:
        raise TensorTypeError(f"elements of {itemsize} bytes cannot be moved", hint="use a type of 1, 2, 4 or 8 bytes")
    return sizes[itemsize]


@dataclass(frozen=True)
class Place:
    """How one side lies in memory: [n][c1][d][h_stride][w_stride][c2]."""

    c1: int
    c2: int
    h_stride: int
    w_stride: int


@dataclass(frozen=True)
class Geometry:
    """The sizes that both sides share, and how each lies in memory."""

    n: int
    c: int
    d: int
    h: int
    w: int
    source: Place
    target: Place

    @classmethod
    def flat(cls, elements: int) -> Geometry:
        """One run of elements that all belong to one channel."""
        place = Place(1, 1, 1, elements)
        return cls(1, 1, 1, 1, elements, place, place)

    @classmethod
    def along(cls, shape: tuple[int, ...], axis: int) -> Geometry:
        """A row-major array whose channels are *axis*, in the same order on both sides."""
        outer, inner = int(np.prod(shape[:axis], dtype=np.int64)), int(np.prod(shape[axis + 1 :], dtype=np.int64))
        if inner == 1:
            place = Place(1, shape[axis], 1, outer)
            return cls(1, shape[axis], 1, 1, outer, place, place)
        place = Place(shape[axis], 1, 1, inner)
        return cls(outer, shape[axis], 1, 1, inner, place, place)

    @property
    def parameters(self) -> int:
        """Entries of an array per channel: the kernel reads whole blocks of the source."""
        block = max(self.source.c2, 1)
        return round_up(self.c, block)


POINTER = ffi.typeof("void *")


class KernelCall:
    """A descriptor for the kernel, ready to run on any two buffers of the right size. Immutable once built, so threads may share it.

    :param arrays: parameters by field name, one entry each or (where any has more) one for each channel
    """

    def __init__(
        self,
        geometry: Geometry,
        source_type: int,
        target_type: int,
        step: int = lib.ANYNPU_MOVE,
        *,
        fill: int = 0,
        flip: int = 0,
        limits: tuple[int, int] = (0, 0),
        table: Array | None = None,
        arrays: Mapping[str, Array] = MappingProxyType({}),
    ) -> None:
        self._struct: Any = ffi.new("struct anynpu_conversion *")
        self._alive: list[Array] = []
        struct = self._struct
        struct.n, struct.c, struct.d, struct.h, struct.w = geometry.n, geometry.c, geometry.d, geometry.h, geometry.w
        for side, place, code in (
            (struct.source, geometry.source, source_type),
            (struct.target, geometry.target, target_type),
        ):
            side.type, side.c1, side.c2, side.h_stride, side.w_stride = code, place.c1, place.c2, place.h_stride, place.w_stride
        struct.step, struct.fill, struct.flip = step, fill, flip
        struct.low, struct.high = limits
        struct.by_channel = any(len(values) > 1 for values in (*arrays.values(), *(() if table is None else (table,))))
        count = geometry.parameters if struct.by_channel else 1
        for name, values in arrays.items():
            c_type, numpy_type = ("float[]", np.float32) if name in _REAL else ("int32_t[]", np.int32)
            filler = 1 if name in _DIVISORS else 0
            setattr(struct, name, self._keep(c_type, _stretched(values, count, geometry.c, filler).astype(numpy_type)))
        if table is not None:
            struct.table = self._keep("uint8_t[]", _stretched(table, count, geometry.c, 0).astype(np.uint8))

    @property
    def descriptor(self) -> Any:
        """The ``struct anynpu_conversion``, which lives as long as this object."""
        return self._struct

    def _keep(self, c_type: str, values: Array) -> Any:
        values = np.ascontiguousarray(values)
        self._alive.append(values)
        return ffi.from_buffer(c_type, values)

    def run(self, source: Array, target: Array) -> None:
        """Convert the contiguous *source* into *target*."""
        if target.size:
            lib.anynpu_convert(self._struct, ffi.from_buffer(source), ffi.from_buffer(target))


_REAL = frozenset({"source_scale", "target_scale", "mean", "std"})
_DIVISORS = frozenset({"source_scale", "target_scale", "std"})


def _stretched(values: Array, count: int, channels: int, filler: int) -> Array:
    """*values* for *count* channels: repeated where there is one, followed by *filler* where the blocks are padded."""
    if count == 1:
        return values
    by_channel = np.broadcast_to(values, (channels, *values.shape[1:])) if len(values) == 1 else values
    padding = [(0, count - channels)] + [(0, 0)] * (values.ndim - 1)
    return np.pad(by_channel, padding, constant_values=filler)


def check_out(out: Array | None, shape: Sequence[int], dtype: np.dtype[Any], source: Array) -> tuple[Array, Array]:
    """The array to write into, and *source* or (where the two overlap) a copy of it."""
    if out is None:
        return np.empty(tuple(shape), dtype), source
    if not isinstance(out, np.ndarray) or out.dtype != dtype:
        kind = out.dtype if isinstance(out, np.ndarray) else type(out).__name__
        raise TensorTypeError(f"out is {kind}, the result is {dtype}", hint=f"pass out=np.empty({tuple(shape)}, np.{dtype})")
    if out.shape != tuple(shape):
        raise ShapeError(f"out has shape {list(out.shape)}, the result {list(shape)}", hint="leave out= away to get a new array")
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise ShapeError("out must be contiguous and writeable", hint="pass a whole array, not a slice or a transposed view")
    return out, source.copy() if np.may_share_memory(source, out) else source
