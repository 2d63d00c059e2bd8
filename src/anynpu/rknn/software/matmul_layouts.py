"""Where the elements of A, B and C of a matrix product lie in memory, by chip, type and layout. Pure functions and data.

=============== =============================================== ==========================
layout          A, C                                            B
=============== =============================================== ==========================
normal          [M, K], [M, N]                                  [K, N]
native          [K/K2, M, K2], [N/N2, M, N2]                    [N/N2, K/K2, N2, K2]
transposed      (not for A and C)                               [N, K]
=============== =============================================== ==========================

The blocks K2 and N2 are those of :class:`anynpu.chips.MatMulRules`. Where A and B have different types, B's blocks are those of B in the
product of one type that gives C: of float16 where C is a float, of int8 where it is int32; K and N obey the limits of A's type. Results
that the rules do not name (int8, float16, bfloat16) have blocks of 16 bytes in the native layout, as int16 and int32 have. A native B of
more than ``segment_k`` rows is cut into segments of so many rows, each laid out by itself, one after the other.

Elements of four bits are two per byte, the first in the low half.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import numpy.typing as npt

from ..._util.types import Array
from ...chips import Chip, MatMulRules
from ...npu.matmul import Blocks
from ...program.convert import nc1hwc2_to_nhwc, nhwc_to_nc1hwc2, nhwc_to_nchw, pack_int4, unpack_int4
from ...tensor import DType
from ..constants import Code, rknn_matmul_layout, rknn_matmul_type, rknn_tensor_type
from .refusal import Refusal

__all__ = ["MatmulLayout", "MatrixAttributes", "TYPES", "types_of"]


_NORM, _NATIVE, _TRANSPOSED = rknn_matmul_layout
_ATOM = 16
"""Bytes of a block of C where the catalogue does not give it."""

TYPES: dict[rknn_matmul_type, tuple[DType, DType, DType]] = {
    kind: tuple(DType(part.lower()) for part in kind.name.removeprefix("RKNN_").replace("_TO_", "_MM_").split("_MM_"))  # type: ignore[misc]
    for kind in rknn_matmul_type
}
"""The types of A, B and C."""

_TENSOR_TYPES = {
    DType.FLOAT32: rknn_tensor_type.RKNN_TENSOR_FLOAT32,
    DType.FLOAT16: rknn_tensor_type.RKNN_TENSOR_FLOAT16,
    DType.BFLOAT16: rknn_tensor_type.RKNN_TENSOR_BFLOAT16,
    DType.INT8: rknn_tensor_type.RKNN_TENSOR_INT8,
    DType.INT16: rknn_tensor_type.RKNN_TENSOR_INT16,
    DType.INT32: rknn_tensor_type.RKNN_TENSOR_INT32,
    DType.INT4: rknn_tensor_type.RKNN_TENSOR_INT4,
}


@dataclass(frozen=True)
class MatrixAttributes:
    """What ``rknn_matmul_tensor_attr`` says of one matrix.

    :ivar name: "A", "B" or "C"
    :ivar dims: in the order of memory
    """

    name: str
    dims: tuple[int, ...]
    dtype: DType

    @cached_property
    def size(self) -> int:
        """Bytes."""
        return prod(self.dims) * self.dtype.bits // 8

    @property
    def tensor_type(self) -> rknn_tensor_type:
        return _TENSOR_TYPES[self.dtype]


def types_of(chip: Chip, kind: int) -> tuple[DType, DType, DType]:
    """The types of A, B and C of a ``rknn_matmul_type``; refused where the chip does not multiply them."""
    if not chip.matmul:
        raise Refusal(Code.RKNN_ERR_TARGET_PLATFORM_UNMATCH, f"{chip.name} has no matmul calls", "use a chip of the RK35 family")
    if kind not in TYPES:
        raise _invalid(f"there is no matmul type {kind}", "use a value of rknn_matmul_type")
    types = TYPES[rknn_matmul_type(kind)]
    if tuple(dtype.value for dtype in types) not in chip.matmul_types:
        known = ", ".join(f"{a} x {b} -> {c}" for a, b, c in chip.matmul_types)
        raise _invalid(f"{chip.name} does not multiply {_described(types)}", f"it multiplies {known}")
    return types


class MatmulLayout:
    """One product on one chip: M, K, N, the types, and how each matrix lies in memory. Immutable.

    :param kind: ``rknn_matmul_type``
    :param b_layout: ``rknn_matmul_layout`` of B
    :param ac_layout: of A and C

    >>> from anynpu import chips
    >>> layout = MatmulLayout(chips.get("rk3588"), 2, 4, 64, 32, b_layout=1)
    >>> [(matrix.name, matrix.dims, matrix.size) for matrix in layout.matrices]
    [('A', (4, 64), 256), ('B', (1, 2, 32, 32), 2048), ('C', (4, 32), 512)]
    """

    def __init__(self, chip: Chip, kind: int, m: int, k: int, n: int, *, b_layout: int = 0, ac_layout: int = 0) -> None:
        self.chip = chip
        self.types = types_of(chip, kind)
        self.m, self.k, self.n = m, k, n
        a_type, b_type, c_type = self.types
        limits = chip.matmul[a_type.value]
        _check_extents(chip, self.types, limits, m, k, n)
        if b_layout not in tuple(rknn_matmul_layout) or ac_layout not in (_NORM, _NATIVE):
            raise _invalid(
                f"there is no B_layout {b_layout} with AC_layout {ac_layout}", "B_layout is 0, 1 or 2, AC_layout 0 or 1"
            )
        if b_layout == _TRANSPOSED and not limits.transposed_b:
            raise _invalid(f"B cannot lie transposed on {chip.name}", "use RKNN_MM_LAYOUT_NORM or RKNN_MM_LAYOUT_NATIVE")
        self.b_layout, self.ac_layout = rknn_matmul_layout(b_layout), rknn_matmul_layout(ac_layout)
        self._b_rules = limits if a_type is b_type else chip.matmul[b_rules_of(c_type)]
        self._a_block = limits.a_block
        self._c_block = limits.c_block if c_type.bits == 32 or c_type is DType.INT16 else _ATOM * 8 // c_type.bits

    @cached_property
    def a(self) -> MatrixAttributes:
        """The attributes of A."""
        native = (self.k // self._a_block, self.m, self._a_block)
        return MatrixAttributes("A", native if self.ac_layout == _NATIVE else (self.m, self.k), self.types[0])

    @cached_property
    def b(self) -> MatrixAttributes:
        """The attributes of B."""
        if self.b_layout == _NATIVE:
            rules = self._b_rules
            dims: tuple[int, ...] = (self.n // rules.b_block_n, self.k // rules.b_block_k, rules.b_block_n, rules.b_block_k)
        else:
            dims = (self.k, self.n) if self.b_layout == _NORM else (self.n, self.k)
        return MatrixAttributes("B", dims, self.types[1])

    @cached_property
    def c(self) -> MatrixAttributes:
        """The attributes of C."""
        native = (self.n // self._c_block, self.m, self._c_block)
        return MatrixAttributes("C", native if self.ac_layout == _NATIVE else (self.m, self.n), self.types[2])

    @cached_property
    def matrices(self) -> tuple[MatrixAttributes, MatrixAttributes, MatrixAttributes]:
        """A, B and C."""
        return self.a, self.b, self.c

    @property
    def b_order(self) -> str | Blocks:
        """How B lies, in the words of :class:`anynpu.npu.matmul.StoredMatrix`."""
        if self.b_layout == _NATIVE:
            return self.blocks
        return "rows" if self.b_layout == _NORM else "columns"

    @property
    def blocks(self) -> Blocks:
        """The native layout of B."""
        rules = self._b_rules
        return Blocks(rules.b_block_n, rules.b_block_k, rules.segment_k or self.k)

    def read_a(self, memory: npt.NDArray[np.uint8]) -> Array:
        """A as ``[M, K]``: int8 (one element each for int4) or float16. A view where it lies so."""
        values = _elements(memory[: self.a.size], self.types[0])
        return from_blocks(values, self.m, self.k, self._a_block) if self.ac_layout == _NATIVE else values.reshape(self.m, self.k)

    def write_c(self, values: Array, memory: npt.NDArray[np.uint8]) -> None:
        """Put ``[M, N]`` into the memory of C; bfloat16 is held as 16 bits."""
        target = memory[: self.c.size]
        if target.ctypes.data % values.itemsize:
            target[:] = (to_blocks(values, self._c_block) if self.ac_layout == _NATIVE else values).reshape(-1).view(np.uint8)
        elif self.ac_layout == _NATIVE:
            to_blocks(values, self._c_block, out=target.view(values.dtype))
        elif values.ctypes.data != target.ctypes.data:
            np.copyto(target.view(values.dtype).reshape(values.shape), values)

    def direct_c(self, memory: npt.NDArray[np.uint8]) -> Array | None:
        """The memory of C as an array of its own type that a product may be written to; None where the layout is native."""
        if self.ac_layout == _NATIVE or self.types[2] is DType.BFLOAT16 or memory.ctypes.data % (self.types[2].bits // 8):
            return None
        array: Array = memory[: self.c.size].view(np.dtype(self.types[2].value)).reshape(self.m, self.n)
        return array


def b_rules_of(c_type: DType) -> str:
    """The type whose rules a B obeys that differs in type from A."""
    return "int8" if c_type is DType.INT32 else "float16"


def to_blocks(values: Array, block: int, *, out: Array | None = None) -> Array:
    """``[M, X]`` as ``[X / block, M, block]``.

    :param out: takes the elements, in one run

    >>> to_blocks(np.arange(8, dtype=np.int8).reshape(2, 4), 2).tolist()
    [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    """
    m, x = values.shape
    target = None if out is None else out.reshape(1, x // block, m, 1, block)
    return nhwc_to_nc1hwc2(np.ascontiguousarray(values).reshape(1, m, 1, x), block, out=target).reshape(x // block, m, block)


def from_blocks(values: Array, m: int, x: int, block: int) -> Array:
    """``[X / block, M, block]`` as ``[M, X]``."""
    return nc1hwc2_to_nhwc(np.ascontiguousarray(values).reshape(1, x // block, m, 1, block), x).reshape(m, x)


def b_to_native(values: Array, blocks: Blocks) -> Array:
    """``[K, N]``, one element each, as one run of elements in the native layout.

    >>> b_to_native(np.arange(8, dtype=np.int8).reshape(4, 2), Blocks(columns=2, rows=2, segment=4)).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    k, n = values.shape
    parts = []
    for first in range(0, k, blocks.segment):
        part = np.ascontiguousarray(values[first : first + blocks.segment])
        columns = nhwc_to_nchw(part.reshape(1, 1, -1, n))  # first of all [n, k]: what remains is to move whole runs
        cut = columns.reshape(n // blocks.columns, blocks.columns, len(part) // blocks.rows, blocks.rows)
        parts.append(cut.transpose(0, 2, 1, 3).reshape(-1))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def convert_b(memory: npt.NDArray[np.uint8], k: int, n: int, dtype: DType, blocks: Blocks) -> npt.NDArray[np.uint8]:
    """The bytes of a normal B in the native layout."""
    native = b_to_native(_elements(memory, dtype).reshape(k, n), blocks)
    return pack_int4(native) if dtype is DType.INT4 else native.view(np.uint8)


def _elements(memory: npt.NDArray[np.uint8], dtype: DType) -> Array:
    if dtype is DType.INT4:
        return unpack_int4(memory)
    element = np.dtype(dtype.value)
    if memory.ctypes.data % element.itemsize:
        memory = memory.copy()
    return memory.view(element)


def _check_extents(chip: Chip, types: tuple[DType, DType, DType], limits: MatMulRules, m: int, k: int, n: int) -> None:
    what = f"{_described(types)} on {chip.name}"
    if m < 1 or k < 1 or n < 1:
        raise _invalid(f"M, K and N are {m}, {k} and {n}", "each is at least 1")
    if k % limits.k_multiple or n % limits.n_multiple:
        raise _invalid(
            f"K = {k} and N = {n} do not fit {what}",
            f"K is a multiple of {limits.k_multiple} and N of {limits.n_multiple}; fill up with zeros",
        )
    if k > limits.k_max:
        raise _invalid(f"K = {k} is too long for {what}", f"K is at most {limits.k_max}: add the products of parts")
    if max(m * k, k * n, m * n) * 4 >= 1 << 32:
        raise _invalid(f"a matrix of {m} x {k} x {n} has more bytes than a size of 32 bits can say", "multiply in parts")


def _described(types: tuple[DType, DType, DType]) -> str:
    a, b, c = (dtype.value for dtype in types)
    return f"{a} x {b} -> {c}"


def _invalid(text: str, hint: str) -> Refusal[Code]:
    return Refusal(Code.RKNN_ERR_PARAM_INVALID, text, hint)
