"""Integer operators of the layer program: all that their arithmetic needs. What it means is written in :mod:`anynpu.program.arithmetic`.

Conventions that every operator follows:

* An integer tensor lies in memory with its channels last (``Layout.NHWC``, or ``Layout.PLAIN`` where the last axis is the channel).
  Axes in operators are axes of ``TensorSpec.memory_shape``, never of the ONNX shape. A tensor of rank 3 in NHWC is an image of height 1.
* The zero point of an input is the one of its tensor's quantization (per channel where that has groups); the numbers that lead to the
  output (multiplier, zero point, clamp, table) are stored in the operator.
* Arrays indexed per channel have one entry for each output channel, or a single one that serves all.
* Tables have one row (or one per group of channels); the index is the code's bits read as unsigned (256 or 65536 entries).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .._util.types import Array


@dataclass(frozen=True, eq=False)
class Staircase:
    """An activation as the code of every number: ``codes[i]`` where i of the edges are not above it.

    :ivar edges: float32[N], ascending, at least one
    :ivar codes: int8[N + 1]
    """

    edges: Array
    codes: Array


@dataclass(frozen=True, eq=False)
class Epilogue:
    """From an accumulator to the stored code, per output channel.

    In this order, all in float32 with every step rounded::

        f = float32(acc) * multiplier
        f = f + float32(residual - residual_zero) * residual_multiplier     where there is a residual input
        f = f * slope if f < 0 else f                                       where there is a slope
        code = clamp(round_half_even(f) + zero_point)                       to ``clamp``, or to the limits of the type
        code = table[code]                                                  where there is a table

    With threshold tables, which exclude all but the multiplier, an activation works on the unrounded number::

        f = float32(acc) * multiplier
        code = the threshold table's code of f

    :ivar multiplier: float32[C]
    :ivar zero_point: int32[C], of the code before the table
    :ivar clamp: int32[2, C], smallest and largest code before the table
    :ivar slope: float32[C], for LeakyRelu and PRelu
    :ivar residual_multiplier: float32[C]
    :ivar table: int8[G, 256] or int16[G, 65536]; its row for a channel follows from ``table_groups``
    :ivar table_groups: channels of each row, in order; empty where there is one row
    :ivar staircases: one, or one per group of channels
    :ivar staircase_groups: channels of each threshold table, in order; empty where there is one
    """

    multiplier: Array
    zero_point: Array
    clamp: Array | None = None
    slope: Array | None = None
    residual_multiplier: Array | None = None
    table: Array | None = None
    table_groups: tuple[int, ...] = ()
    staircases: tuple[Staircase, ...] = ()
    staircase_groups: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Curve:
    """An activation as two tables of 513 entries, with the numbers that lead into them; see :mod:`anynpu.program.arithmetic.lookup_tables`.

    :ivar offset: is added to the scaled accumulator first, where the range is not symmetric
    :ivar multiplier: with *shift*, from the scaled accumulator to the index
    :ivar negative: int16[513], for an index below zero
    :ivar positive: int16[513], for an index of zero and above
    :ivar slope: beyond the positive table the value grows by (index - 16384) * slope >> slope_shift
    """

    offset: int
    multiplier: int
    shift: int
    negative: Array
    positive: Array
    slope: int = 0
    slope_shift: int = 0


@dataclass(frozen=True, eq=False)
class FixedPoint:
    """From an accumulator to the stored code with integers only; see :mod:`anynpu.program.arithmetic.fixed_point`.

    In this order, where RNE(p, s) is p / 2**s rounded half to even::

        t = RNE(acc * channel_multiplier, 14)
        t = t + RNE((residual - residual_zero) * residual_multiplier, residual_shift)       where there is a residual input
        t = clamp(t)                                                                        to ``bounds``
        t = value of the curve for t                                                        where there is one
        code = clip(RNE(t * multiplier + zero_point * 2**shift, shift))
        code = table[code]                                                                  where there is a table

    With a slope (LeakyRelu and PRelu), which excludes bounds and a curve, positive sums skip the first rounding::

        p = t * slope if t < 0 else acc * channel_multiplier        t * 2**14 where there is a residual
        code = clip(RNE(p * multiplier + zero_point * 2**(shift + 14), shift + 14))

    :ivar channel_multiplier: int32[C] in units of 2**-14; empty where the accumulator is taken as it is
    :ivar multiplier: int32[C], at most 15 bits
    :ivar shift: int32[C], 0 to 31
    :ivar zero_point: int32[C]
    :ivar bounds: int32[2, C], smallest and largest t
    :ivar slope: int32[C] in units of 2**-14
    :ivar residual_multiplier: 16 bits; None without a residual
    :ivar curves: one, or one per group of channels
    :ivar curve_groups: channels of each curve, in order; empty where there is one
    :ivar table: as in :class:`Epilogue`
    """

    channel_multiplier: Array
    multiplier: Array
    shift: Array
    zero_point: Array
    bounds: Array | None = None
    slope: Array | None = None
    residual_multiplier: int | None = None
    residual_shift: int = 0
    curves: tuple[Curve, ...] = ()
    curve_groups: tuple[int, ...] = ()
    table: Array | None = None
    table_groups: tuple[int, ...] = ()


Finish = Epilogue | FixedPoint
"""How a layer ends: in rounding mode ``simulator`` or by the chip's integers."""


@dataclass(frozen=True, eq=False)
class Conv:
    """Convolution over NHWC: acc = bias + sum((x - x_zero) * (w - weight_zero)). Inputs: x, and the residual where there is one.

    :ivar weights: int8 or int16 [Cout, kernel_h, kernel_w, Cin / groups]
    :ivar weight_zero: int32[Cout]
    :ivar bias: int32[Cout], int64 for 16-bit weights
    :ivar pads: top, left, bottom, right; padding has the value zero
    """

    weights: Array
    weight_zero: Array
    bias: Array
    epilogue: Finish
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)
    groups: int = 1


@dataclass(frozen=True, eq=False)
class ConvTranspose:
    """Transposed convolution over NHWC; fields as in :class:`Conv`, weights [Cout, kernel_h, kernel_w, Cin / groups].

    Output pixel (y, x) receives input pixel (i, j) through kernel element (a, b) where y = i * stride - pad + a * dilation. The size
    of the output is that of the output tensor.
    """

    weights: Array
    weight_zero: Array
    bias: Array
    epilogue: Finish
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)
    groups: int = 1


@dataclass(frozen=True, eq=False)
class Dense:
    """Fully connected: the input's memory is read as rows of K elements. Inputs: x, and the residual where there is one.

    :ivar weights: int8 or int16 [N, K]
    :ivar weight_zero: int32[N]
    :ivar bias: int32[N], int64 for 16-bit weights
    """

    weights: Array
    weight_zero: Array
    bias: Array
    epilogue: Finish


@dataclass(frozen=True, eq=False)
class MatMul:
    """Product of two activations [..., M, K] x [..., K, N], leading axes broadcast; with *transpose_b*, b is [..., N, K]."""

    epilogue: Finish
    transpose_b: bool = False


@dataclass(frozen=True, eq=False)
class Binary:
    """Two inputs element by element, broadcast over memory axes as numpy does.

    ``add``: f = (a - a_zero) * a_multiplier + (b - b_zero) * b_multiplier. ``sub``: the same with a minus.
    ``mul``: f = ((a - a_zero) * (b - b_zero)) * a_multiplier. ``max`` and ``min`` compare the two terms of ``add``.
    All in float32, every step rounded; then the epilogue without its multiplier (which is empty here).

    With :class:`FixedPoint` the multipliers are int32[1] of 16 bits: a term is RNE((a - a_zero) * a_multiplier, shifts[0]), and ``mul``
    has none.
    """

    kind: Literal["add", "sub", "mul", "max", "min"]
    a_multiplier: Array
    b_multiplier: Array
    epilogue: Finish
    shifts: tuple[int, int] = (0, 0)


@dataclass(frozen=True, eq=False)
class Table:
    """y = table[x]: an activation, or a change of scale.

    :ivar table: int8[G, 256] or int16[G, 65536]
    """

    table: Array
    table_groups: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Concat:
    """Inputs one after the other along a memory axis, each through its table (None: as it is; then the scales are equal).

    A table has rows for the groups of its own input's channels, as in :class:`Table`.
    """

    axis: int
    tables: tuple[Table | None, ...] = ()


@dataclass(frozen=True, eq=False)
class Slice:
    """Each output is input[start::step] with the sizes of the output tensor, by memory axis. Split is a slice of several outputs."""

    starts: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class Pad:
    """Padding by memory axis. ``value`` is a code, for the mode ``constant``."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    mode: Literal["constant", "reflect", "edge"] = "constant"
    value: int = 0


@dataclass(frozen=True, eq=False)
class Pool:
    """Pooling over NHWC. ``max`` keeps the code. ``average``: acc = sum(x - x_zero) over the window's elements inside the input,

    f = float32(acc) * (multiplier / float32(count)) with both steps in float32, then the rest of the epilogue. ``count`` is the number
    of elements inside the input, or of those inside the padded input with *count_include_pad*. The epilogue is None for ``max``.

    With :class:`FixedPoint` its multiplier and shift are empty; those for each count are in *divisors*.

    :ivar divisors: int32[2, elements of the kernel + 1]: multiplier and shift by count
    """

    kind: Literal["max", "average"]
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)
    count_include_pad: bool = False
    epilogue: Finish | None = None
    divisors: Array | None = None


RESIZE_BITS = 11
"""Fraction bits of the weights of a linear resize; two axes make 22."""


@dataclass(frozen=True, eq=False)
class Resize:
    """Resize over NHWC, by index; the code's meaning does not change.

    ``nearest``: y[i, j] = x[rows[i, 0], columns[j, 0]]. ``linear``: acc = sum over the four neighbors of x * row weight * column weight,
    then a shift by 22 bits, rounded half to even.

    :ivar rows: int32[H_out, 3]: first row, second row, weight of the second in units of 2**-11 (the first has the rest)
    :ivar columns: int32[W_out, 3]
    """

    kind: Literal["nearest", "linear"]
    rows: Array
    columns: Array


@dataclass(frozen=True, eq=False)
class Transpose:
    """The input's memory, read as *view*, with its axes permuted. Integer or float; the code's meaning does not change."""

    view: tuple[int, ...]
    perm: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Convert:
    """Between float and integer, and between layouts: all of it follows from the two tensors (quantize, dequantize, cast, transpose)."""


def limits_of(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Smallest and largest code of a stored integer type."""
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)
