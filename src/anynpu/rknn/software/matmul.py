"""The matmul calls: products of two matrices without a model.

A product reads A and B and writes C where the caller bound them, again each time: what changed in the memory of B since the last run is
seen. Nothing is kept of either.

``rknn_matmul_info`` had 24 bytes in SDK 1.6.0 and has 64 since 2.0. Its first 24 bytes mean the same in both (the old fields of 32 bits are
the new layout fields of 16 followed by a quantization type of 0). Later bytes are read in one case only: for the group size, if the
quantization of B is one by groups, which no program of 1.6.0 can ask for.

Who owns what: a context owns the description of its product and the working memory of the kernels; the memory of A, B and C belongs to
its creator. The scheduler of the device lets one run of a context go at a time, on the virtual cores that models use as well. Settings
are replaced as a whole under the context's lock, and a run takes those that it finds when it starts.

On a device in real time a product takes as long as the chip is predicted to; ``RKNN_QUERY_PERF_RUN`` gives that time after a run.
"""

from __future__ import annotations

import abc
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..._rknn import ffi
from ..._util.types import Array
from ...chips import Chip, MatMulRules
from ...chips.timing import predict_matmul
from ...errors import DeviceClosed
from ...npu import Buffer, Device
from ...npu.cores import host_threads
from ...npu.matmul import Blocks, StoredMatrix
from ...program import Epilogue
from ...program.arithmetic import apply_epilogue
from ...program.convert import (
    float32_to_bfloat16,
    float32_to_float16,
    nc1hwc2_to_nhwc,
    nhwc_to_nc1hwc2,
    nhwc_to_nchw,
    pack_int4,
    unpack_int4,
)
from ...tensor import DType
from ...vendors.libraries import Refusal
from ..constants import (
    RKNN_MAX_DYNAMIC_SHAPE_NUM,
    Code,
    rknn_matmul_layout,
    rknn_matmul_quant_type,
    rknn_matmul_type,
    rknn_query_cmd,
    rknn_tensor_type,
)
from .handles import Handles
from .memory import MemoryTable, TensorMemory, new_outside

# Where the elements of A, B and C of a matmul lie in memory, by chip, type and layout. Pure functions and data.
#
# =============== =============================================== ==========================
# layout          A, C                                            B
# =============== =============================================== ==========================
# normal          [M, K], [M, N]                                  [K, N]
# native          [K/K2, M, K2], [N/N2, M, N2]                    [N/N2, K/K2, N2, K2]
# transposed      (not for A and C)                               [N, K]
# =============== =============================================== ==========================
#
# The blocks K2 and N2 are those of :class:`anynpu.chips.MatMulRules`. Where A and B have different types, B's blocks are those of B in the
# product of one type that gives C: of float16 where C is a float, of int8 where it is int32; K and N obey the limits of A's type. Results
# that the rules do not name (int8, float16, bfloat16) have blocks of 16 bytes in the native layout, as int16 and int32 have. A native B of
# more than ``segment_k`` rows is cut into segments of so many rows, each laid out on its own, one after the other.
#
# Elements of four bits are two per byte, the first in the low half.


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
    """What ``rknn_matmul_tensor_attr`` states of one matrix.

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
    """The types of A, B and C of a ``rknn_matmul_type``; rejected where the chip does not multiply them."""
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
        raise _invalid(f"a matrix of {m} x {k} x {n} has more bytes than a 32-bit size can hold", "multiply in parts")


def _described(types: tuple[DType, DType, DType]) -> str:
    a, b, c = (dtype.value for dtype in types)
    return f"{a} x {b} -> {c}"


# The quantization of matmuls: which schemes a product can have, its parameters, and the arithmetic from sums to C.
#
# With ``za``, ``zb`` zero points and ``sa``, ``sb``, ``sc`` scales of A, B and C (all 0 and 1 unless set)::
#
#     acc   = sum over k of (a - za) * (b - zb)                  exact integers, or float32 in the order of k where A is float16
#     int32 = acc;  with scales of B per channel  round(acc * sb[n] / s),  s = max(sb)
#     int16 = acc, saturated
#     int8  = clamp(round(float32(acc) * float32(sa * sb / sc)) + zc)
#     float = acc * float32(sa * sb), in float32; then rounded to float16 or bfloat16 where C has that type
#
# Rounding is half to even. ``sa * sb`` and ``sa * sb / sc`` are computed in float64 and rounded once. Where B is quantized by
# groups of rows, *float* is the sum over the groups, in their order, of each group's acc times its own scale, in float32. ``s`` is
# what ``rknn_matmul_get_quant_params`` gives: an int32 C stands for ``C * sa * s``.
#
# The vendor documents the meaning of the parameters and that int32 is normalized to one scale; which one, the roundings and what
# happens at the limits of a type are choices made here.


Types = tuple[DType, DType, DType]

_PER_LAYER = (rknn_matmul_quant_type.RKNN_QUANT_TYPE_PER_LAYER_SYM, rknn_matmul_quant_type.RKNN_QUANT_TYPE_PER_LAYER_ASYM)
_PER_CHANNEL = (rknn_matmul_quant_type.RKNN_QUANT_TYPE_PER_CHANNEL_SYM, rknn_matmul_quant_type.RKNN_QUANT_TYPE_PER_CHANNEL_ASYM)
_PER_GROUP = (rknn_matmul_quant_type.RKNN_QUANT_TYPE_PER_GROUP_SYM, rknn_matmul_quant_type.RKNN_QUANT_TYPE_PER_GROUP_ASYM)
_GROUP_MULTIPLE = 32


@dataclass(frozen=True, eq=False)
class Parameters:
    """Scales and zero points of one matrix: one each, or for B one per channel, or by group and channel ([K / group, N])."""

    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int32]

    @property
    def symmetric(self) -> bool:
        return not self.zero_point.any()


_NEUTRAL = Parameters(np.ones(1, np.float32), np.zeros(1, np.int32))


def check_scheme(types: Types, b_scheme: int, ac_scheme: int) -> None:
    """Reject a scheme that products of these types do not have."""
    a_type, b_type, c_type = types
    known = tuple(rknn_matmul_quant_type)
    if b_scheme not in known or ac_scheme not in _PER_LAYER:
        raise _invalid(
            f"there is no B_quant_type {b_scheme} with AC_quant_type {ac_scheme}",
            f"B_quant_type is 0 to {max(known)}, AC_quant_type 0 or 1",
        )
    possible = list(_PER_LAYER)
    if b_type is DType.FLOAT16:
        possible = [_PER_LAYER[0]]
    elif a_type is not b_type:
        possible += [*_PER_CHANNEL, *(_PER_GROUP if c_type.is_float else ())]
    elif b_type is DType.INT8:
        possible += _PER_GROUP if c_type.is_float else _PER_CHANNEL
    if b_scheme not in possible:
        names = ", ".join(scheme.name for scheme in possible)
        raise _invalid(
            f"{rknn_matmul_quant_type(b_scheme).name} is not possible for {a_type.value} x {b_type.value} -> {c_type.value}",
            f"possible are {names}",
        )


class Quantization:
    """The parameters of one product, and what they make of its sums. Immutable.

    :param b_scheme: ``rknn_matmul_quant_type`` of B
    :param ac_scheme: of A and C
    :param group_size: rows of a group, where B is quantized by groups
    """

    def __init__(
        self,
        types: Types,
        b_scheme: int = 0,
        ac_scheme: int = 0,
        group_size: int = 0,
        parameters: dict[str, Parameters] | None = None,
    ) -> None:
        check_scheme(types, b_scheme, ac_scheme)
        self.types = types
        self.b_scheme, self.ac_scheme = rknn_matmul_quant_type(b_scheme), rknn_matmul_quant_type(ac_scheme)
        self.group_size = group_size if self.b_scheme in _PER_GROUP else 0
        self._parameters = parameters or {}
        left, right = self.of("A"), self.of("B")
        self._factor = _product_of(left.scale, right.scale)
        same = bool(np.all(right.scale == right.scale[0]))
        self._sums_are_c = left.symmetric and right.symmetric and types[2] is DType.INT32 and (same or not self.by_channel)

    @property
    def by_group(self) -> bool:
        return self.b_scheme in _PER_GROUP

    @property
    def by_channel(self) -> bool:
        return self.b_scheme in _PER_CHANNEL

    def check_extents(self, k: int) -> None:
        """Reject a number of rows that does not make whole groups."""
        if self.by_group and (self.group_size < 1 or self.group_size % _GROUP_MULTIPLE or k % self.group_size):
            raise _invalid(
                f"a group_size of {self.group_size} does not fit K = {k}",
                f"group_size is a multiple of {_GROUP_MULTIPLE}, and K a multiple of it",
            )

    def of(self, name: str) -> Parameters:
        """The parameters of "A", "B" or "C"."""
        return self._parameters.get(name) or _NEUTRAL

    def check_lengths(self, name: str, scales: int, zero_points: int, extents: list[tuple[int, int]]) -> None:
        """Reject a number of parameters that a matrix does not have; to be asked before they are read."""
        lengths = self._lengths(name, extents)
        if scales not in lengths or zero_points not in (0, scales):
            scheme = self.b_scheme if name == "B" else self.ac_scheme
            raise _invalid(
                f"{scales} scales and {zero_points} zero points do not fit {name} with {scheme.name}",
                f"pass {' or '.join(map(str, sorted(lengths)))} of each, or no zero points",
            )

    def with_parameters(self, name: str, given: Parameters) -> Quantization:
        """The same with the parameters of one matrix replaced; rejected where their values do not fit."""
        dtype = self.types["ABC".index(name)]
        scheme = self.b_scheme if name == "B" else self.ac_scheme
        if dtype.is_float:
            raise _invalid(f"{name} is {dtype.value}, which is not quantized", "set parameters of integer matrices only")
        if not np.all(np.isfinite(given.scale) & (given.scale > 0)):
            raise _invalid(f"a scale of {name} is not a positive number", "scales are finite and above 0")
        low, high = (-8, 7) if dtype is DType.INT4 else (-128, 127) if dtype is DType.INT8 else (-32768, 32767)
        if given.zero_point.min() < low or given.zero_point.max() > high:
            raise _invalid(f"a zero point of {name} is not a value of {dtype.value}", f"zero points are {low} to {high}")
        if not given.symmetric and scheme.name.endswith("_SYM"):
            raise _invalid(
                f"{name} has zero points but {scheme.name}",
                f"use {scheme.name.replace('_SYM', '_ASYM')} for what is not symmetric",
            )
        return Quantization(self.types, self.b_scheme, self.ac_scheme, self.group_size, {**self._parameters, name: given})

    def normalised_scale(self) -> float:
        """The scale of B to which an int32 C is normalized; rejected where there is none."""
        if self.types[2] is not DType.INT32 or not self.by_channel:
            raise _invalid(
                "only an int32 C with scales of B per channel is normalized",
                "create the product with RKNN_QUANT_TYPE_PER_CHANNEL_SYM",
            )
        return float(self.of("B").scale.max())

    def prepared(self, a: Array, memory: npt.NDArray[np.uint8], b: StoredMatrix, out: Array) -> Callable[[], None] | None:
        """What computes the same :meth:`product` again, see :meth:`StoredMatrix.prepared`; None where more than that is to be done."""
        return b.prepared(a, memory, out) if self._sums_are_c else None

    def product(self, a: Array, memory: npt.NDArray[np.uint8], b: StoredMatrix, out: Array | None) -> Array:
        """C ``[M, N]`` in its own type (bfloat16 as 16 bits).

        :param a: ``[M, K]``
        :param memory: of B
        :param out: may take the result, if it has the type of the sums
        """
        c_type = self.types[2]
        if self._sums_are_c:
            return b.multiply(a, memory, out=out)
        if self.by_group:
            return _as_float(self._by_groups(a, memory, b), c_type)
        right = self.of("B")
        target = out if out is not None and out.dtype == b.result_type else None
        sums = self._sums(a, memory, b, right.zero_point, (0, b.shape[0]), target)
        if c_type.is_float:
            if sums.dtype != np.float32:
                sums = np.multiply(sums, self._factor, dtype=np.float32, casting="unsafe")
            elif np.any(self._factor != 1):
                sums *= self._factor
            return _as_float(sums, c_type)
        if c_type is DType.INT32:
            return self._normalised(sums, right.scale)
        if c_type is DType.INT16:
            return np.clip(sums, -32768, 32767).astype(np.int16)
        result = self.of("C")
        factor = _product_of(self.of("A").scale, right.scale, result.scale)
        epilogue = Epilogue(multiplier=np.broadcast_to(factor, sums.shape[1:]), zero_point=result.zero_point)
        return apply_epilogue(sums, epilogue, np.dtype(np.int8))

    def _sums(
        self,
        a: Array,
        memory: npt.NDArray[np.uint8],
        b: StoredMatrix,
        zero_b: npt.NDArray[np.int32],
        steps: tuple[int, int],
        out: Array | None,
    ) -> Array:
        """The sums of some rows of B, without the zero points."""
        n = b.shape[1]
        if a.dtype == np.float16:
            zeros = np.ascontiguousarray(np.broadcast_to(zero_b, (n,))) if zero_b.any() else None
            return b.multiply(a, memory, steps=steps, zero_point=zeros, out=out)
        zero_a = int(self.of("A").zero_point[0])
        sums = b.multiply(a, memory, steps=steps, out=out)
        if zero_b.any():
            first, count = steps
            rows = a[:, first : first + count].sum(axis=1, dtype=np.int32)
            sums -= rows[:, None] * zero_b
        if zero_a:
            columns = b.multiply(np.ones((1, b.shape[0]), np.int8), memory, steps=steps)
            sums -= zero_a * (columns - steps[1] * zero_b)
        return sums

    def _by_groups(self, a: Array, memory: npt.NDArray[np.uint8], b: StoredMatrix) -> Array:
        k, n = b.shape
        groups = k // self.group_size
        right = self.of("B")
        scales = np.broadcast_to(self._factor.reshape(-1, n if len(self._factor) > 1 else 1), (groups, n))
        zeros = np.broadcast_to(right.zero_point.reshape(-1, n if len(right.zero_point) > 1 else 1), (groups, n))
        total = np.zeros((len(a), n), np.float32)
        part: Array | None = None
        for group in range(groups):
            part = self._sums(a, memory, b, zeros[group], (group * self.group_size, self.group_size), part)
            total += np.multiply(part, scales[group], dtype=np.float32, casting="unsafe")
        return total

    def _normalised(self, sums: Array, scale: npt.NDArray[np.float32]) -> Array:
        if not self.by_channel:
            return sums
        ratio = scale.astype(np.float64) / float(scale.max())
        return np.rint(sums * ratio, out=sums, casting="unsafe")

    def _lengths(self, name: str, extents: list[tuple[int, int]]) -> set[int]:
        """How many parameters a matrix may have."""
        if name != "B":
            return {1}
        if len(set(extents)) > 1 and (self.by_channel or self.by_group):
            raise _invalid("B has parameters per channel and shapes of different K and N", "give all shapes the same K and N")
        k, n = extents[0]
        if self.by_group:
            return {k // self.group_size * n}
        if self.by_channel:
            return {n}
        return {1, n} if self.b_scheme == _PER_LAYER[1] else {1}


_FINISH: dict[DType, Callable[[Array], Array]] = {
    DType.FLOAT32: lambda values: values,
    DType.FLOAT16: float32_to_float16,
    DType.BFLOAT16: float32_to_bfloat16,
}


def _as_float(values: Array, c_type: DType) -> Array:
    return _FINISH[c_type](values)


def _product_of(left: Array, right: Array, over: Array | None = None) -> npt.NDArray[np.float32]:
    factor = left.astype(np.float64) * right
    result: npt.NDArray[np.float32] = (factor if over is None else factor / over).astype(np.float32)
    return result


_FIRST_PAGE = 4096
"""No struct lies below: a caller of SDK 2.0 passes a small number where there is a pointer now."""

_GROUPED = (rknn_matmul_quant_type.RKNN_QUANT_TYPE_PER_GROUP_SYM, rknn_matmul_quant_type.RKNN_QUANT_TYPE_PER_GROUP_ASYM)


class _Ready(NamedTuple):
    """A product that has run, and what it ran with."""

    layout: MatmulLayout
    quantization: Quantization
    bound: dict[str, TensorMemory]
    cores: int
    closings: object
    spent_us: float
    again: Callable[[], None]


class MatmulState:
    """One context of the matmul calls.

    :param layouts: one, or those of all dynamic shapes
    :param dynamic: a shape must be chosen before the first run
    :ivar device: whose cores it runs on
    """

    def __init__(self, device: Device, layouts: Sequence[MatmulLayout], quantization: Quantization, *, dynamic: bool) -> None:
        self.device = device
        self._layouts = tuple(layouts)
        self._lock = threading.Lock()
        self._layout = None if dynamic else layouts[0]
        self._quantization = quantization
        self._bound: dict[str, TensorMemory] = {}
        self._mask = 0
        self._closed = False
        self._matrix: tuple[tuple[int, int, int], StoredMatrix] | None = None  # of the run that has the context to itself
        self._sums: npt.NDArray[Any] | None = None  # the same
        self._ready: _Ready | None = None  # the same
        self._given: Any = None
        self._times: dict[tuple[int, int, int, int], float] = {}
        self._spent_us: float | None = None  # of the last run

    @property
    def spent_us(self) -> float:
        """What the chip is predicted to have taken for the last run."""
        if self._spent_us is None:
            raise Refusal(Code.RKNN_ERR_FAIL, "the product has not run yet", "call rknn_matmul_run before")
        return self._spent_us

    def predicted_us(self, layout: MatmulLayout, cores: int) -> float:
        """What the chip is predicted to take for a product on so many cores."""
        key = (layout.m, layout.k, layout.n, cores)
        if key not in self._times:
            a, b, c = (dtype.value for dtype in layout.types)
            normal = layout.ac_layout == rknn_matmul_layout.RKNN_MM_LAYOUT_NORM
            self._times[key] = predict_matmul(
                self.device.chip,
                layout.m,
                layout.k,
                layout.n,
                dtype=a,
                weight_type=b,
                result_type=c,
                layout="normal" if normal else "native",
                cores=cores,
                profile=self.device.timing,
            ).time_us
        return self._times[key]

    def bind(self, name: str, size: int, memory: TensorMemory) -> None:
        """Use *memory* for one matrix.

        :param size: what the caller's attributes state
        """
        sizes = sorted({_named(layout, name).size for layout in self._layouts})
        if size not in sizes:
            raise _invalid(
                f"matrix {name} does not take {size} bytes",
                f"it takes {' or '.join(map(str, sizes))}: pass the attributes as given",
            )
        if memory.size < size:
            raise _invalid(f"memory of {memory.size} bytes is too small for matrix {name}", f"make it with {size} bytes")
        with self._lock:
            self._bound = {**self._bound, name: memory}
            self._ready = None

    def set_mask(self, mask: int) -> None:
        """Choose the cores."""
        chip = self.device.chip
        if not chip.core_masks:
            raise Refusal(
                Code.RKNN_ERR_TARGET_PLATFORM_UNMATCH, f"{chip.name} has one core", "leave out rknn_matmul_set_core_mask"
            )
        if mask not in chip.core_masks:
            known = ", ".join(map(hex, chip.core_masks))
            raise _invalid(f"{mask:#x} is not a core mask of {chip.name}", f"it has {known}")
        self._mask = mask

    def set_parameters(self, name: str, params: Any) -> None:
        """Copy scales and zero points of one matrix from where the caller's struct points."""
        count, zeros = params.scale_len, params.zp_len
        with self._lock:
            self._quantization.check_lengths(name, count, zeros, [(layout.k, layout.n) for layout in self._layouts])
            if params.scale == ffi.NULL or (zeros and params.zp == ffi.NULL):
                raise _invalid(f"the parameters of {name} are a null pointer", "point to as many as the lengths state")
            scale = np.frombuffer(ffi.buffer(params.scale, 4 * count), np.float32).copy()
            zero_point = np.frombuffer(ffi.buffer(params.zp, 4 * zeros), np.int32).copy() if zeros else np.zeros(count, np.int32)
            self._quantization = self._quantization.with_parameters(name, Parameters(scale, zero_point))

    def give_parameters(self, params: Any) -> float:
        """Let *params* point to the parameters of B, which live until this is called again or the context ends.

        :return: the scale to which C is normalized
        """
        scale = self._quantization.normalised_scale()
        if params != ffi.NULL:
            held = self._quantization.of("B")
            scales, zeros = new_outside("float[]", held.scale.tolist()), new_outside("int32_t[]", held.zero_point.tolist())
            self._given = (scales, zeros)
            params.name = b"B"
            params.scale, params.scale_len = scales, len(scales)
            params.zp, params.zp_len = zeros, len(zeros)
        return scale

    def set_shape(self, m: int, k: int, n: int) -> None:
        """Choose one of the shapes."""
        for layout in self._layouts:
            if (layout.m, layout.k, layout.n) == (m, k, n):
                self._layout = layout
                return
        known = ", ".join(f"{layout.m} x {layout.k} x {layout.n}" for layout in self._layouts)
        raise _invalid(f"{m} x {k} x {n} is not a shape of this context", f"it was created for {known}")

    def run(self) -> None:
        """Multiply."""
        with self.device.scheduler.acquire(self._mask, exclusive=(self,)) as lease:
            with self._lock:
                if self._closed:
                    raise Refusal(Code.RKNN_ERR_CTX_INVALID, "the context was destroyed")
                layout, quantization, bound = self._layout, self._quantization, self._bound
            if layout is None:
                raise _invalid("no shape is chosen", "call rknn_matmul_set_dynamic_shape before")
            faults, real = self.device.faults, self.device.clock
            if faults is None and real is None and self._ran_again(layout, quantization, bound, len(lease.cores)):
                return
            closings = Buffer.closings
            a, b, c = (_memory_of(matrix, bound) for matrix in layout.matrices)
            faulty = None if faults is None else faults.begin(lease.cores, self.device.scheduler.busy, lease.control)
            spent = self.predicted_us(layout, max(len(lease.cores), 1))
            started = time.monotonic()
            ends = real.begin(lease.cores, spent) if real is not None else 0.0
            threads = host_threads(len(lease.cores))
            matrix = self._matrix_of(layout, threads)
            target = layout.direct_c(c)
            direct = target is not None and threads == 1
            if target is None:
                target = self._working_c(layout)
            left, right = layout.read_a(a), b[: layout.b.size]
            values = quantization.product(left, right, matrix, target)
            layout.write_c(values, c)
            if direct and values is target and np.may_share_memory(left, a) and not np.may_share_memory(left, target):
                again = quantization.prepared(left, right, matrix, target)
                self._ready = again and _Ready(layout, quantization, bound, len(lease.cores), closings, spent, again)
            if real is not None:
                real.finish(lease.cores, spent, started, ends, lease.control)
            if faulty is not None:
                faulty.end(time.monotonic() - started, lambda: (c,), lease.control)
            self._spent_us = spent

    def _ran_again(self, layout: MatmulLayout, quantization: Quantization, bound: dict[str, TensorMemory], cores: int) -> bool:
        """Multiply as in the last run, if all is as it was then: what a run looks up and checks costs as much as a small product, and
        far more where the matrices have displaced the interpreter from the caches."""
        ready = self._ready
        if ready is None or ready.bound is not bound or ready.layout is not layout or ready.quantization is not quantization:
            return False
        try:
            held = [memory.buffer.view() for memory in bound.values()]  # from here on the memory cannot be taken away
        except DeviceClosed:
            return False
        if ready.closings is not Buffer.closings or ready.cores != cores:
            return False
        ready.again()
        self._spent_us = ready.spent_us
        del held
        return True

    def close(self) -> None:
        """End the context when its run has ended; runs that wait are rejected."""
        with self._lock:
            self._closed = True
            self._bound = {}
            self._ready = None
        try:
            lease = self.device.scheduler.acquire(exclusive=(self,), no_cores=True)
        except DeviceClosed:
            return  # nothing runs on a closed device, and what is left goes with the object
        with lease:
            if self._matrix is not None:
                self._matrix[1].close()
                self._matrix = self._sums = None

    def _working_c(self, layout: MatmulLayout) -> npt.NDArray[Any]:
        """Memory for the sums where C lies in another way: new memory in each run would cost as much as a small product."""
        elements = layout.m * layout.n
        dtype = np.float32 if layout.types[0] is DType.FLOAT16 else np.int32
        if self._sums is None or self._sums.size < elements or self._sums.dtype != dtype:
            self._sums = np.empty(elements, dtype)
        return self._sums[:elements].reshape(layout.m, layout.n)

    def _matrix_of(self, layout: MatmulLayout, threads: int) -> StoredMatrix:
        key = (layout.k, layout.n, threads)
        if self._matrix is None or self._matrix[0] != key:
            if self._matrix is not None:
                self._matrix[1].close()
            a_type, b_type, _ = layout.types
            matrix = StoredMatrix(layout.k, layout.n, b_type, a_type, order=layout.b_order, threads=threads)
            self._matrix = (key, matrix)
        return self._matrix[1]


class MatmulCalls(abc.ABC):
    """The matmul functions of the interface; parameters as in ``abi.h``. Failures are raised."""

    handles: Handles
    memories: MemoryTable

    @abc.abstractmethod
    def chip_for_matmul(self) -> Chip:
        """The chip whose rules hold."""

    @abc.abstractmethod
    def device_for(self, chip: Chip) -> Device:
        """The device that stands for *chip*."""

    def rknn_matmul_create(self, ctx: Any, info: Any, io_attr: Any) -> int:
        """Make a context for one product and state how its matrices lie."""
        _check_pointers(ctx=ctx, info=info, io_attr=io_attr)
        return self._create(ctx, info, [(info.M, info.K, info.N)], io_attr, dynamic=False)

    def rknn_matmul_create_dynamic_shape(self, ctx: Any, info: Any, shape_num: int, dynamic_shapes: Any, io_attrs: Any) -> int:
        """Make a context for products of several shapes; M, K and N of *info* are not read."""
        _check_pointers(ctx=ctx, info=info, dynamic_shapes=dynamic_shapes, io_attrs=io_attrs)
        if not 1 <= shape_num <= RKNN_MAX_DYNAMIC_SHAPE_NUM:
            raise _invalid(f"{shape_num} shapes cannot be", f"give 1 to {RKNN_MAX_DYNAMIC_SHAPE_NUM}")
        shapes = [(shape.M, shape.K, shape.N) for shape in (dynamic_shapes[index] for index in range(shape_num))]
        return self._create(ctx, info, shapes, io_attrs, dynamic=True)

    def rknn_matmul_create_dyn_shape(self, ctx: Any, info: Any, shape_num: int, dynamic_shapes: Any, io_attrs: Any) -> int:
        """The same under its name of SDK 2.0."""
        return MatmulCalls.rknn_matmul_create_dynamic_shape(self, ctx, info, shape_num, dynamic_shapes, io_attrs)

    def rknn_matmul_set_io_mem(self, ctx: int, mem: Any, attr: Any) -> int:
        """Bind memory to the matrix that the attributes name."""
        state = self.handles.get(ctx, MatmulState)
        _check_pointers(attr=attr)
        state.bind(_name_of(attr), attr.size, self.memories.find(mem))
        return 0

    def rknn_matmul_set_core_mask(self, ctx: int, core_mask: int) -> int:
        """Choose the cores that the product runs on."""
        self.handles.get(ctx, MatmulState).set_mask(int(core_mask))
        return 0

    def rknn_matmul_set_quant_params(self, ctx: int, params: Any) -> int:
        """Set scales and zero points of the matrix that the parameters name; they are copied."""
        state = self.handles.get(ctx, MatmulState)
        _check_pointers(params=params)
        state.set_parameters(_name_of(params), params)
        return 0

    def rknn_matmul_get_quant_params(self, ctx: int, params: Any, scale: Any) -> int:
        """Give the scale to which an int32 C is normalized, and let *params* point to those of B."""
        state = self.handles.get(ctx, MatmulState)
        _check_pointers(scale=scale)
        scale[0] = state.give_parameters(params)
        return 0

    def rknn_matmul_set_dynamic_shape(self, ctx: int, shape: Any) -> int:
        """Choose the shape of the next runs."""
        state = self.handles.get(ctx, MatmulState)
        _check_pointers(shape=shape)
        state.set_shape(shape.M, shape.K, shape.N)
        return 0

    def rknn_matmul_run(self, ctx: int) -> int:
        """Multiply; returns when C is written."""
        self.handles.get(ctx, MatmulState).run()
        return 0

    def answers_product(self, ctx: int, cmd: int, info: Any, size: int) -> bool:
        """Write the time of a product's last run, which is the one query that a product answers; False for anything else."""
        if cmd != rknn_query_cmd.RKNN_QUERY_PERF_RUN or not self.handles.holds(ctx, MatmulState):
            return False
        if info == ffi.NULL or size < ffi.sizeof("rknn_perf_run"):
            raise _invalid(f"the answer takes {ffi.sizeof('rknn_perf_run')} bytes", "pass a rknn_perf_run and its size")
        ffi.cast("rknn_perf_run *", info).run_duration = round(self.handles.get(ctx, MatmulState).spent_us)
        return True

    def rknn_matmul_destroy(self, ctx: int) -> int:
        """End a context; the memory that it used stays."""
        self.handles.remove(ctx, MatmulState).close()
        return 0

    def matrix_bytes(self, type: int, k: int, n: int) -> int:
        """Bytes of matrix B of a product of this type; 0 where there is no such matrix."""
        try:
            return int(MatmulLayout(self.chip_for_matmul(), type, 1, k, n, b_layout=1).b.size)
        except Refusal:
            return 0

    def rknn_B_normal_layout_to_native_layout(  # noqa: N802 (the interface has it so)
        self, b_input: Any, b_output: Any, k: int, n: int, info: Any
    ) -> int:
        """Write the normal B at one place in the native layout to another."""
        _check_pointers(B_input=b_input, B_output=b_output, info=info)
        if int(ffi.cast("uintptr_t", info)) < _FIRST_PAGE:
            raise _invalid("the information is not a pointer", "call it as since SDK 2.1: B_input, B_output, K, N, info")
        layout = MatmulLayout(self.chip_for_matmul(), info.type, 1, k, n, b_layout=1)
        dtype: DType = layout.types[1]
        source = _bytes_at(b_input, layout.b.size)
        _bytes_at(b_output, layout.b.size)[:] = convert_b(source, k, n, dtype, layout.blocks)
        return 0

    def _create(self, ctx: Any, info: Any, shapes: list[tuple[int, int, int]], io_attrs: Any, *, dynamic: bool) -> int:
        chip = self.chip_for_matmul()
        layouts = [MatmulLayout(chip, info.type, m, k, n, b_layout=info.B_layout, ac_layout=info.AC_layout) for m, k, n in shapes]
        group_size = info.group_size if info.B_quant_type in _GROUPED else 0
        quantization = Quantization(layouts[0].types, info.B_quant_type, info.AC_quant_type, group_size)
        for layout in layouts:
            quantization.check_extents(layout.k)
        state = MatmulState(self.device_for(chip), layouts, quantization, dynamic=dynamic)
        for index, layout in enumerate(layouts):
            for matrix, attr in zip(layout.matrices, (io_attrs[index].A, io_attrs[index].B, io_attrs[index].C), strict=True):
                _fill(attr, matrix)
        ctx[0] = self.handles.add(state)
        return 0


def _fill(attr: Any, matrix: MatrixAttributes) -> None:
    attr.name = matrix.name.encode()
    attr.n_dims = len(matrix.dims)
    attr.dims = [*matrix.dims, *[0] * (len(attr.dims) - len(matrix.dims))]
    attr.size = matrix.size
    attr.type = int(matrix.tensor_type)


def _name_of(struct: Any) -> str:
    name = ffi.string(struct.name, len(struct.name)).decode("ascii", "replace")
    if name not in ("A", "B", "C"):
        raise _invalid(f"there is no matrix '{name}'", "copy the name from the attributes that rknn_matmul_create gave")
    return str(name)


def _named(layout: MatmulLayout, name: str) -> MatrixAttributes:
    return layout.matrices["ABC".index(name)]


def _memory_of(matrix: MatrixAttributes, bound: dict[str, TensorMemory]) -> npt.NDArray[np.uint8]:
    code = Code.RKNN_ERR_OUTPUT_INVALID if matrix.name == "C" else Code.RKNN_ERR_INPUT_INVALID
    memory = bound.get(matrix.name)
    if memory is None:
        raise Refusal(code, f"matrix {matrix.name} has no memory", "call rknn_matmul_set_io_mem for A, B and C before")
    if memory.buffer.closed:
        raise Refusal(code, f"the memory of matrix {matrix.name} was destroyed", "bind other memory")
    if memory.size < matrix.size:
        raise Refusal(
            code,
            f"the memory of matrix {matrix.name} has {memory.size} bytes, {matrix.size} are needed for this shape",
            "make memory for the largest shape",
        )
    return memory.bytes()


def _bytes_at(pointer: Any, size: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(ffi.buffer(ffi.cast("uint8_t *", pointer), size), np.uint8)


def _check_pointers(**pointers: Any) -> None:
    for name, pointer in pointers.items():
        if pointer == ffi.NULL:
            raise _invalid(f"{name} is a null pointer", f"pass a pointer for {name}")


def _invalid(text: str, hint: str) -> Refusal[Code]:
    return Refusal(Code.RKNN_ERR_PARAM_INVALID, text, hint)
