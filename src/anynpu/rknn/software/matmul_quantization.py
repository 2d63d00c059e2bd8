"""The quantisation of matrix products: which schemes a product can have, its parameters, and the arithmetic from sums to C.

With ``za``, ``zb`` zero points and ``sa``, ``sb``, ``sc`` scales of A, B and C (all 0 and 1 unless set)::

    acc   = sum over k of (a - za) * (b - zb)                  exact integers, or float32 in the order of k where A is float16
    int32 = acc;  with scales of B by channel  round(acc * sb[n] / s),  s = max(sb)
    int16 = acc, saturated
    int8  = clamp(round(float32(acc) * float32(sa * sb / sc)) + zc)
    float = acc * float32(sa * sb), in float32; then rounded to float16 or bfloat16 where C has that type

Rounding is half to even. ``sa * sb`` and ``sa * sb / sc`` are computed in float64 and rounded once. Where B is quantised by groups of rows,
*float* is the sum over the groups, in their order, of each group's acc times its own scale, in float32. ``s`` is what
``rknn_matmul_get_quant_params`` gives: an int32 C stands for ``C * sa * s``.

The vendor documents the meaning of the parameters and that int32 is normalised to one scale; which one, the roundings and what happens at
the limits of a type are choices made here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..._util.types import Array
from ...npu.matmul import StoredMatrix
from ...program import Epilogue
from ...program.arithmetic import apply_epilogue
from ...program.convert import float32_to_bfloat16, float32_to_float16
from ...tensor import DType
from ..constants import Code, rknn_matmul_quant_type
from .refusal import Refusal

__all__ = ["Parameters", "Quantization", "check_scheme"]

Types = tuple[DType, DType, DType]

_PER_LAYER = (rknn_matmul_quant_type.RKNN_QUANT_TYPE_PER_LAYER_SYM, rknn_matmul_quant_type.RKNN_QUANT_TYPE_PER_LAYER_ASYM)
_PER_CHANNEL = (rknn_matmul_quant_type.RKNN_QUANT_TYPE_PER_CHANNEL_SYM, rknn_matmul_quant_type.RKNN_QUANT_TYPE_PER_CHANNEL_ASYM)
_PER_GROUP = (rknn_matmul_quant_type.RKNN_QUANT_TYPE_PER_GROUP_SYM, rknn_matmul_quant_type.RKNN_QUANT_TYPE_PER_GROUP_ASYM)
_GROUP_MULTIPLE = 32


@dataclass(frozen=True, eq=False)
class Parameters:
    """Scales and zero points of one matrix: one each, or for B one by channel, or by group and channel ([K / group, N])."""

    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int32]

    @property
    def symmetric(self) -> bool:
        return not self.zero_point.any()


_NEUTRAL = Parameters(np.ones(1, np.float32), np.zeros(1, np.int32))


def check_scheme(types: Types, b_scheme: int, ac_scheme: int) -> None:
    """Refuse a scheme that products of these types do not have."""
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
    :param group_size: rows of a group, where B is quantised by groups
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
        """Refuse a number of rows that does not make whole groups."""
        if self.by_group and (self.group_size < 1 or self.group_size % _GROUP_MULTIPLE or k % self.group_size):
            raise _invalid(
                f"a group_size of {self.group_size} does not fit K = {k}",
                f"group_size is a multiple of {_GROUP_MULTIPLE}, and K a multiple of it",
            )

    def of(self, name: str) -> Parameters:
        """The parameters of "A", "B" or "C"."""
        return self._parameters.get(name) or _NEUTRAL

    def check_lengths(self, name: str, scales: int, zero_points: int, extents: list[tuple[int, int]]) -> None:
        """Refuse a number of parameters that a matrix does not have; to be asked before they are read."""
        lengths = self._lengths(name, extents)
        if scales not in lengths or zero_points not in (0, scales):
            scheme = self.b_scheme if name == "B" else self.ac_scheme
            raise _invalid(
                f"{scales} scales and {zero_points} zero points do not fit {name} with {scheme.name}",
                f"pass {' or '.join(map(str, sorted(lengths)))} of each, or no zero points",
            )

    def with_parameters(self, name: str, given: Parameters) -> Quantization:
        """The same with the parameters of one matrix replaced; refused where their values do not fit."""
        dtype = self.types["ABC".index(name)]
        scheme = self.b_scheme if name == "B" else self.ac_scheme
        if dtype.is_float:
            raise _invalid(f"{name} is {dtype.value}, which is not quantised", "set parameters of integer matrices only")
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
        """The scale of B to which an int32 C is normalised; refused where there is none."""
        if self.types[2] is not DType.INT32 or not self.by_channel:
            raise _invalid(
                "only an int32 C with scales of B by channel is normalised",
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
            raise _invalid("B has parameters by channel and shapes of different K and N", "give all shapes the same K and N")
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


def _invalid(text: str, hint: str) -> Refusal[Code]:
    return Refusal(Code.RKNN_ERR_PARAM_INVALID, text, hint)
