"""Matmul: what the matrix calls of Rockchip's NPUs compute, on the kernels of the native engine.

======== ================= ========= ==============================================================
a        b                 sums      arithmetic
======== ================= ========= ==============================================================
int8     int8, int4        int32     exact
int4     int4              int32     exact; the caller saturates them at -32768 and 32767
float16  float16           float32   one rounding a step, in the order of k
float16  int8, int4        float32   as above of a * (quantized value - zero point); the caller scales them
======== ================= ========= ==============================================================

A product of two float16 values, or of one and a quantized value, is exact in float32, so a fused multiply and add changes nothing: every
instruction set gives the same bytes (only which NaN a NaN is depends on the processor). Vendors do not document whether int16 saturates or
wraps around, nor the order of their sums; both are choices of this module.

The right factor is read again for each product, as an NPU reads it: its owner may change it in between. It is packed on the way or, for a
few rows of int8, read by kernels that need no packing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._native import ffi, lib
from .._util.types import Array
from ..errors import ShapeError, TensorTypeError
from ..program.convert.kernel import check_out
from ..tensor import DType
from .engines.native_arrays import aligned_bytes
from .engines.native_levels import choose_level, level_names

MAX_STEPS = 131_071
"""The longest inner dimension of integer products: their sums fit 32 bits."""

_PRODUCTS = {
    *((DType.INT8, DType.INT8), (DType.INT8, DType.INT4), (DType.INT4, DType.INT4)),
    *((DType.FLOAT16, DType.FLOAT16), (DType.FLOAT16, DType.INT8), (DType.FLOAT16, DType.INT4)),
}
_HELD_AS = {DType.INT4: np.dtype(np.int8), DType.INT8: np.dtype(np.int8), DType.FLOAT16: np.dtype(np.float16)}
"""Arrays of int4 hold one element a byte; :func:`anynpu.program.convert.unpack_int4` makes them."""


@dataclass(frozen=True)
class Blocks:
    """An order of b in memory: segments of rows, each ``[n / columns, rows of the segment / rows, columns, rows]``.

    :ivar columns: of a block; n is a multiple of it
    :ivar rows: of a block; k is a multiple of it
    :ivar segment: rows of a segment, a multiple of *rows*; the last one may have fewer
    """

    columns: int
    rows: int
    segment: int


class StoredMatrix:
    """The right factor of products, in memory that belongs to another owner. Only its shape, type and order are kept here.

    A product uses working memory and, with several threads, a pool that belong to the object: one product at a time.

    :param k: rows of b
    :param n: columns of b
    :param b_type: ``int8``, ``int4`` (two elements a byte, the first in the low half) or ``float16``
    :param a_type: the left factor's type; sums are float32 where it is float16, else int32
    :param order: ``"rows"`` ([k, n]), ``"columns"`` ([n, k]) or blocks
    :param threads: host threads that share the columns
    :param isa: the instruction set, as for :class:`~anynpu.npu.NativeEngine`
    :ivar shape: of b
    :ivar result_type: of the sums

    >>> b = np.array([[1, -2], [3, 4]], np.int8)
    >>> StoredMatrix(2, 2, DType.INT8, DType.INT8, order="columns").multiply(np.array([[1, 10]], np.int8), b).tolist()
    [[-19, 43]]
    """

    def __init__(
        self,
        k: int,
        n: int,
        b_type: DType,
        a_type: DType,
        *,
        order: str | Blocks = "rows",
        threads: int = 1,
        isa: str | None = None,
    ) -> None:
        if (a_type, b_type) not in _PRODUCTS:
            raise TensorTypeError(f"there is no product of {a_type.value} and {b_type.value}", hint="see anynpu.npu.matmul")
        self.shape = (k, n)
        self.a_type, self.b_type = a_type, b_type
        self._check_order(order)
        is_float = a_type is DType.FLOAT16
        if k < 1 or n < 1 or (not is_float and k > MAX_STEPS):
            raise ShapeError(f"b has shape {[k, n]}", hint=f"k and n are at least 1, and k at most {MAX_STEPS} for integers")
        level = level_names().index(choose_level(isa))
        self._matrix = ffi.new("struct anynpu_matrix *", [lib.ANYNPU_F16 if is_float else lib.ANYNPU_I8, level, k, n])
        blocks = order if isinstance(order, Blocks) else Blocks(0, 0, 0)
        orders = {"rows": lib.ANYNPU_BY_ROW, "columns": lib.ANYNPU_BY_COLUMN}
        self._source = ffi.new(
            "struct anynpu_matrix_source *",
            {
                "order": lib.ANYNPU_BLOCKED if isinstance(order, Blocks) else orders[order],
                "bits": b_type.bits,
                "k": k,
                "n": n,
                "block_k": blocks.rows,
                "block_n": blocks.columns,
                "segment": blocks.segment,
            },
        )
        self.result_type = np.dtype(np.float32 if is_float else np.int32)
        self._scratch = aligned_bytes(0)
        self._threads = threads
        self._pool: Any = None

    @property
    def size(self) -> int:
        """Bytes that b takes."""
        k, n = self.shape
        return (k * n * self.b_type.bits + 7) // 8

    def multiply(
        self,
        a: Array,
        b: Array,
        *,
        steps: tuple[int, int] | None = None,
        zero_point: npt.NDArray[np.int32] | None = None,
        out: Array | None = None,
    ) -> Array:
        """The sums of products of *a* ``[m, k]`` and what *b* holds now: ``[m, n]`` in int32 or float32, without the GIL.

        :param a: int8 (also for int4, one element a byte) or float16; rows without gaps
        :param b: memory of at least :attr:`size` bytes without gaps, whatever its type
        :param steps: the first row of b and how many; if not given, all. Both are multiples of 4 unless b lies in rows, and even for int4
        :param zero_point: where a is float16 and b has quantized values: by column, subtracted from the quantized values
        :param out: takes the sums and is returned
        """
        k, n = self.shape
        first, count = steps or (0, k)
        if a.ndim != 2 or a.shape[1] != k or a.dtype != _HELD_AS[self.a_type] or not a.flags.c_contiguous:
            raise ShapeError(f"a is {a.dtype}{list(a.shape)}", hint=f"a is {_HELD_AS[self.a_type]}[m, {k}] without gaps")
        if b.nbytes < self.size or not b.flags.c_contiguous:
            raise ShapeError(f"b has {b.nbytes} bytes", hint=f"{self.size} bytes without gaps are needed")
        if first < 0 or count < 1 or first + count > k:
            raise ShapeError(f"rows {first} to {first + count} are not inside b", hint=f"b has {k} rows")
        unit = 4 if self._source.order != lib.ANYNPU_BY_ROW else 2 if self.b_type is DType.INT4 else 1
        if (first, count) != (0, k) and (first % unit or count % unit):
            raise ShapeError(f"{count} rows from {first} on cannot be taken alone", hint=f"both are multiples of {unit} here")
        if zero_point is not None and (zero_point.dtype != np.int32 or zero_point.shape != (n,)):
            raise ShapeError(f"zero_point has shape {list(zero_point.shape)}", hint=f"pass int32[{n}]")
        m = len(a)
        result, a = check_out(out, (m, n), self.result_type, a)
        self._matrix.k = count
        self._source.first = first
        self._source.zero = ffi.NULL if zero_point is None else ffi.cast("int32_t *", zero_point.ctypes.data)
        left = ffi.cast("void *", a.ctypes.data + first * a.itemsize)
        lib.anynpu_matrix_multiply_source(
            self._matrix, self._source, _pointer(b), left, k, m, _pointer(result), self._workers(), self._working_memory(m)
        )
        return result

    def prepared(self, a: Array, b: Array, out: Array) -> Callable[[], None]:
        """What multiplies these three again, on the calling thread and with nothing left to check, after :meth:`multiply` has once.

        It keeps their addresses, not the arrays: these must live, and a must not overlap out. It uses the same working memory.
        """
        k, m = self.shape[0], len(a)
        matrix = ffi.new("struct anynpu_matrix *", self._matrix[0])
        source = ffi.new("struct anynpu_matrix_source *", self._source[0])
        matrix.k, source.first, source.zero = k, 0, ffi.NULL
        left, right, target, memory = _pointer(a), _pointer(b), _pointer(out), self._working_memory(m)
        multiply, none, scratch = lib.anynpu_matrix_multiply_source, ffi.NULL, self._scratch

        def again(_kept: Array = scratch) -> None:
            multiply(matrix, source, right, left, k, m, target, none, memory)

        return again

    def close(self) -> None:
        """End the threads, if there are any; a later product starts new ones."""
        if self._pool is not None:
            ffi.release(self._pool)
            self._pool = None

    def _working_memory(self, m: int) -> Any:
        size = self._threads * lib.anynpu_matrix_source_scratch_size(self._matrix, m)
        if self._scratch.nbytes < size:
            self._scratch = aligned_bytes(size)
        return _pointer(self._scratch)

    def _workers(self) -> Any:
        if self._threads > 1 and self._pool is None:
            pool = lib.anynpu_workers_open(self._threads)
            if not pool:
                self._threads = 1
            else:
                self._pool = ffi.gc(pool, lib.anynpu_workers_close)
        return ffi.NULL if self._pool is None else self._pool

    def _check_order(self, order: str | Blocks) -> None:
        k, n = self.shape
        if isinstance(order, Blocks):
            bad = min(order.columns, order.rows, order.segment) < 1 or n % order.columns or k % order.rows or order.rows % 4
            if bad or order.segment % order.rows:
                raise ShapeError(
                    f"b of {k} x {n} cannot lie in {order}", hint="k and n are multiples of a block's rows and columns"
                )
        elif order not in ("rows", "columns"):
            raise ShapeError(f"there is no order '{order}'", hint='use "rows", "columns" or Blocks')
        if self.b_type is DType.INT4 and (k % 2 or n % 2):
            raise ShapeError(f"int4 of {k} x {n} does not fill whole bytes", hint="k and n are even for int4")


def _pointer(array: Array) -> Any:
    return ffi.cast("void *", array.ctypes.data)
