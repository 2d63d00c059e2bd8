"""From float weights, scales and quantized values to the chip's bytes, a second time: plain loops over Python integers.

Nothing of ``anynpu`` is used here. The rule is written down from what is known of the chip (docs/validation.md), operator by operator, each
with the numbers that the vendor's toolkit derives: weights per output channel with a zero point, in float32 steps; multipliers of 15 bits;
tables of 513 entries. Rounding half to even is Python's own ``round`` of a fraction.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
F = np.float32
Ending = Callable[[int, int], int]
"""From a sum and its output channel to a code."""


@dataclass
class Codes:
    """A tensor as the chip holds it: channels first, without the batch.

    :ivar values: Python integers
    """

    values: Array
    scale: float
    zero: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape


def rne(product: int, bits: int) -> int:
    """product / 2**bits, ties to even."""
    return round(Fraction(product, 2**bits))


def clip8(value: int) -> int:
    return max(-128, min(127, value))


def factor(real: float) -> tuple[int, int]:
    """The multiplier of at most 15 bits, and its shift."""
    shift = min(31, math.floor(math.log2(32767 / real)))
    return round(real * 2**shift), shift


def weight_codes(weights: Array) -> tuple[list[list[int]], list[Any]]:
    """Quantized values without zero points and float32 scales by row."""
    codes, scales = [], []
    for row in weights.reshape(len(weights), -1).astype(F):
        low, high = min(float(row.min()), 0.0), max(float(row.max()), 0.0)
        exact = (high - low) / 255  # in double, and stored as float32
        scale = F(exact)
        zero = clip8(round(-128 - low / exact))
        codes.append([clip8(round(float(F(value / scale))) + zero) - zero for value in row])
        scales.append(scale)
    return codes, scales


@dataclass
class Product:
    """A layer of products: what its ending needs besides the sum.

    :ivar real: what a unit of the sum is worth, per output channel
    """

    channel: list[int]
    unit: float
    scale: float
    zero: int
    real: list[Any]

    def scaled(self, total: int, out: int) -> int:
        return rne(total * self.channel[out], 14)

    def plain(self, low: float = -math.inf, high: float = math.inf) -> Ending:
        """No activation, or limits of the scaled sum."""
        m, s = factor(self.unit / float(F(self.scale)))
        floor = -math.inf if math.isinf(low) else round(low / self.unit)
        ceiling = math.inf if math.isinf(high) else round(high / self.unit)

        def end(total: int, out: int) -> int:
            t = int(max(floor, min(ceiling, self.scaled(total, out))))
            return clip8(rne(t * m + self.zero * 2**s, s))

        return end

    def leaky(self, slopes: Sequence[Any]) -> Ending:
        m, s = factor(self.unit / float(F(self.scale)))

        def end(total: int, out: int) -> int:
            product = total * self.channel[out]
            slope = round(float(F(slopes[out % len(slopes)])) * 16384)
            value = product if total >= 0 else rne(product, 14) * slope
            return clip8(rne(value * m + self.zero * 2 ** (s + 14), s + 14))

        return end

    def sum(self, added: Codes, low: float = -math.inf, high: float = math.inf) -> Callable[[int, int, tuple[int, ...]], int]:
        """Another tensor is added to the scaled sum, in its units; limits as in :meth:`plain`."""
        k, r = factor(float(F(added.scale)) / self.unit)
        m, s = factor(self.unit / float(F(self.scale)))
        floor = -math.inf if math.isinf(low) else round(low / self.unit)
        ceiling = math.inf if math.isinf(high) else round(high / self.unit)

        def end(total: int, out: int, place: tuple[int, ...]) -> int:
            t = self.scaled(total, out) + rne((added.values[(out, *place)] - added.zero) * k, r)
            return clip8(rne(int(max(floor, min(ceiling, t))) * m + self.zero * 2**s, s))

        return end

    def curve(self, name: str) -> Ending:
        lookup = curve(name, self.unit, self.scale, self.zero)
        return lambda total, out: lookup(self.scaled(total, out))

    def simulated(self, name: str) -> Ending:
        """The vendor's simulator: the activation of the unrounded sum in float, one rounding."""
        function = FUNCTIONS[name]

        def end(total: int, out: int) -> int:
            return clip8(round(function(float(F(total) * self.real[out])) / float(F(self.scale))) + self.zero)

        return end


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


FUNCTIONS: dict[str, Callable[[float], float]] = {
    "Sigmoid": _logistic,
    "Tanh": math.tanh,
    "HardSigmoid": lambda x: min(max(0.2 * x + 0.5, 0.0), 1.0),
    "HardSwish": lambda x: x * min(max(x / 6 + 0.5, 0.0), 1.0),
    "Softplus": lambda x: math.log1p(math.exp(x)),
    "Swish": lambda x: x * _logistic(x),
    "Elu": lambda x: x if x > 0 else math.expm1(x),
    "Mish": lambda x: x * math.tanh(math.log1p(math.exp(x))),
}
RANGES = {
    "Sigmoid": (6.31, 0.0),
    "Tanh": (3.02, 0.0),
    "HardSigmoid": (2.5, 0.0),
    "HardSwish": (3.0, 0.0),
    "Softplus": (4.0, 0.0),
    "Swish": (5.8, 0.0),
    "Elu": (5.0, 5.0),
    "Mish": (5.0, 1.0),
}
"""Half of the range, and what is added to the argument before it."""

INDEX_RANGES = {"Sigmoid": 6.310027, "Swish": 5.8001, "HardSigmoid": 2.500075}
"""Half ranges of the index, where the recorded registers state another one than the tables."""

UNIT_PEAK = ("Sigmoid", "Tanh", "HardSigmoid", "Elu")
"""Their tables are in units of 1 / 32767."""

SLOPES = {"HardSwish": 1.0, "Softplus": _logistic(4.0), "Swish": 1.0, "Elu": 1.0, "Mish": 1.0}


def curve(name: str, unit: float, scale: float, zero: int) -> Callable[[int], int]:
    """An activation of a scaled sum with this unit, to quantized values."""
    function, (half, offset) = FUNCTIONS[name], RANGES[name]
    places = [[(k - 512) * half / 512 - offset for k in range(513)], [k * half / 512 - offset for k in range(513)]]
    peak = 1.0 if name in UNIT_PEAK else max(abs(function(x)) for part in places for x in part)
    tables = [[round(function(x) * 32767 / peak) for x in part] for part in places]
    im, ish = factor(unit * 16384 / INDEX_RANGES.get(name, half))
    add = round(offset / unit)
    m, s = factor(peak / 32767 / float(F(scale)))
    rise = factor(SLOPES[name] * 32768 / peak * half / 16384) if name in SLOPES else None

    def look(t: int) -> int:
        v = rne((t + add) * im, ish)
        table = tables[0 if v < 0 else 1]
        place = max(v, -16384) + 16384 if v < 0 else min(v, 16384)
        index = min(place >> 5, 511)
        value = table[index] + (((table[index + 1] - table[index]) * (place - 32 * index)) >> 5)
        if rise is not None and v > 16384:
            value = tables[1][512] + (((v - 16384) * rise[0]) >> rise[1])
        return clip8(rne(value * m + zero * 2**s, s))

    return look


def _product(x: Codes, weights: Array, bias: Array | None, scale: float, zero: int) -> tuple[list[list[int]], list[int], Product]:
    codes, scales = weight_codes(weights)
    largest = max(scales)
    bias = np.zeros(len(weights), F) if bias is None else bias.astype(F)
    offsets = [round(float(F(b / F(ws * F(x.scale))))) for b, ws in zip(bias, scales, strict=True)]
    channel = [round(float(F(F(ws / largest) * F(16384)))) for ws in scales]
    real = [F(float(F(x.scale)) * float(ws)) for ws in scales]
    return codes, offsets, Product(channel, float(largest) * float(F(x.scale)), scale, zero, real)


Choice = Callable[[Product], Ending]


def conv(
    x: Codes,
    weights: Array,
    bias: Array | None,
    scale: float,
    zero: int,
    ending: Choice = Product.plain,
    *,
    strides: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    dilations: Sequence[int] = (1, 1),
    groups: int = 1,
    added: Codes | None = None,
    limits: tuple[float, float] = (-math.inf, math.inf),
) -> Codes:
    """A convolution; weights [out, in / groups, height, width]; taps in the padding have the value zero.

    With *added* that tensor is added before the rounding, and the sum stays within *limits*.
    """
    codes, offsets, product = _product(x, weights, bias, scale, zero)
    end = ending(product)
    end_of_sum = product.sum(added, *limits) if added is not None else None
    outs, ins, kh, kw = weights.shape
    channels, height, width = x.shape
    rows = (height + pads[0] + pads[2] - dilations[0] * (kh - 1) - 1) // strides[0] + 1
    columns = (width + pads[1] + pads[3] - dilations[1] * (kw - 1) - 1) // strides[1] + 1
    result = np.empty((outs, rows, columns), object)
    for out, row, column in itertools.product(range(outs), range(rows), range(columns)):
        total, first = offsets[out], out // (outs // groups) * (channels // groups)
        for index, (i, a, b) in enumerate(itertools.product(range(ins), range(kh), range(kw))):
            y, z = row * strides[0] - pads[0] + a * dilations[0], column * strides[1] - pads[1] + b * dilations[1]
            if 0 <= y < height and 0 <= z < width:
                total += (x.values[first + i, y, z] - x.zero) * codes[out][index]
        result[out, row, column] = end_of_sum(total, out, (row, column)) if end_of_sum else end(total, out)
    return Codes(result, scale, zero)


def transposed(
    x: Codes,
    weights: Array,
    bias: Array | None,
    scale: float,
    zero: int,
    ending: Choice = Product.plain,
    *,
    strides: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    groups: int = 1,
) -> Codes:
    """A transposed convolution; weights as ONNX has them, [in, out / groups, height, width]: zeros are inserted, the kernel is flipped."""
    channels, height, width = x.shape
    ins, per, kh, kw = channels // groups, weights.shape[1], *weights.shape[2:]
    turned = weights.reshape(groups, ins, per, kh, kw).transpose(0, 2, 1, 3, 4).reshape(groups * per, ins, kh, kw)
    spread = np.full((channels, (height - 1) * strides[0] + 1, (width - 1) * strides[1] + 1), x.zero, object)
    spread[:, :: strides[0], :: strides[1]] = x.values
    outer = [size - 1 - pad for size, pad in zip((kh, kw, kh, kw), pads, strict=True)]
    flipped = np.ascontiguousarray(turned[:, :, ::-1, ::-1])
    return conv(Codes(spread, x.scale, x.zero), flipped, bias, scale, zero, ending, pads=outer, groups=groups)


def dense(x: Codes, weights: Array, bias: Array | None, scale: float, zero: int, ending: Choice = Product.plain) -> Codes:
    """Rows times constant weights [in, out]."""
    codes, offsets, product = _product(x, weights.T, bias, scale, zero)
    end = ending(product)
    rows = x.values.reshape(-1, weights.shape[0])
    values = [
        [
            end(offsets[out] + sum((v - x.zero) * w for v, w in zip(row, codes[out], strict=True)), out)
            for out in range(len(codes))
        ]
        for row in rows
    ]
    return Codes(np.array(values, object).reshape(*x.shape[:-1], len(codes)), scale, zero)


def each(x: Codes, end: Callable[[int], int], scale: float, zero: int) -> Codes:
    values = np.array([end(int(value)) for value in x.values.ravel()], object)
    return Codes(values.reshape(x.shape), scale, zero)


def function(x: Codes, name: str, scale: float, zero: int) -> Codes:
    """An activation of quantized values: a code without its zero point is the scaled sum."""
    look = curve(name, float(F(x.scale)), scale, zero)
    return each(x, lambda value: look(value - x.zero), scale, zero)


def leak(x: Codes, alpha: float, scale: float, zero: int) -> Codes:
    """LeakyRelu of quantized values: a code without its zero point is the sum."""
    end = Product([16384], float(F(x.scale)), scale, zero, []).leaky([alpha])
    return each(x, lambda value: end(value - x.zero, 0), scale, zero)


def requantised(x: Codes, scale: float, zero: int) -> Codes:
    """Another scale, as a depthwise convolution with the weight 1."""
    m, s = factor(float(F(1) / F(255)) * float(F(x.scale)) / float(F(scale)))
    return each(x, lambda value: clip8(rne((value - x.zero) * 255 * m + zero * 2**s, s)), scale, zero)


def binary(kind: str, a: Codes, b: Codes, scale: float, zero: int) -> Codes:
    """Add, Sub, Max, Min and Mul of two tensors of one shape."""
    sa, sb, so = (float(F(value)) for value in (a.scale, b.scale, scale))
    pairs = list(zip((int(v) - a.zero for v in a.values.ravel()), (int(v) - b.zero for v in b.values.ravel()), strict=True))
    if kind == "Mul":
        m, s = factor(sa * sb / so)
        sums = [x * y for x, y in pairs]
    else:
        largest = max(sa, sb)
        m, s = factor(largest / 16384 / so)
        operands = []
        for own in (sa, sb):
            shift = 0 if own == largest else min(15, math.floor(math.log2(32767 / (own / largest * 16384))))
            operands.append((round(own / largest * 2 ** (14 + shift)), shift))
        (ka, ra), (kb, rb) = operands
        combine = {"Add": lambda x, y: x + y, "Sub": lambda x, y: x - y, "Max": max, "Min": min}[kind]
        sums = [combine(rne(x * ka, ra), rne(y * kb, rb)) for x, y in pairs]
    values = np.array([clip8(rne(total * m + zero * 2**s, s)) for total in sums], object)
    return Codes(values.reshape(a.shape), scale, zero)


def quotient(a: Codes, b: Codes, scale: float, zero: int) -> Codes:
    """Div on the CPU of the board, in float32."""
    values = []
    for x, y in zip(a.values.ravel(), b.values.ravel(), strict=True):
        real = F(F(F(x - a.zero) * F(a.scale)) / F(F(y - b.zero) * F(b.scale)))
        values.append(clip8(round(float(F(real / F(scale)))) + zero))
    return Codes(np.array(values, object).reshape(a.shape), scale, zero)


def product_of_two(a: Codes, b: Codes, scale: float, zero: int) -> Codes:
    """MatMul of two tensors [rows, inner] x [inner, columns]; the second one is quantized again, without a zero point."""
    largest = max(abs(-128 - b.zero), abs(127 - b.zero)) * float(F(b.scale))
    second = requantised(b, float(F(largest / 127)), 0)
    m, s = factor(float(F(a.scale)) * float(F(second.scale)) / float(F(scale)))
    totals = (a.values - a.zero).dot(second.values)
    return each(Codes(totals, 1.0, 0), lambda total: clip8(rne(total * m + zero * 2**s, s)), scale, zero)


def average(x: Codes, kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int], include: bool) -> Codes:
    """AveragePool: the output has the input's scale; the sum is multiplied with the number of elements' reciprocal."""
    channels, height, width = x.shape
    rows = (height + pads[0] + pads[2] - kernel[0]) // strides[0] + 1
    columns = (width + pads[1] + pads[3] - kernel[1]) // strides[1] + 1
    result = np.empty((channels, rows, columns), object)
    for c, row, column in itertools.product(range(channels), range(rows), range(columns)):
        taps = [
            (row * strides[0] - pads[0] + a, column * strides[1] - pads[1] + b)
            for a, b in itertools.product(range(kernel[0]), range(kernel[1]))
        ]
        inside = [int(x.values[c, y, z]) - x.zero for y, z in taps if 0 <= y < height and 0 <= z < width]
        m, s = factor(1 / (len(taps) if include else len(inside)))
        result[c, row, column] = clip8(rne(sum(inside) * m + x.zero * 2**s, s))
    return Codes(result, x.scale, x.zero)


def maximum(x: Codes, kernel: int, stride: int) -> Codes:
    """MaxPool without padding: quantized values are kept."""
    channels, height, width = x.shape
    rows, columns = (height - kernel) // stride + 1, (width - kernel) // stride + 1
    result = np.empty((channels, rows, columns), object)
    for c, row, column in itertools.product(range(channels), range(rows), range(columns)):
        y, z = row * stride, column * stride
        result[c, row, column] = x.values[c, y : y + kernel, z : z + kernel].max()
    return Codes(result, x.scale, x.zero)


def global_average(x: Codes, stages: Sequence[tuple[float, int]]) -> Codes:
    """The mean of all pixels as depthwise convolutions of at most 7 x 7; *stages* are the scale and zero point of each."""
    weight = F(math.prod(x.shape[1:]) ** (-1 / len(stages)))
    for scale, zero in stages:
        channels, *spatial = x.shape
        kernel = [min(extent, 7) for extent in spatial]
        windows = [-(-extent // size) for extent, size in zip(spatial, kernel, strict=True)]
        missing = [count * size - extent for count, size, extent in zip(windows, kernel, spatial, strict=True)]
        before = [extent // 2 for extent in missing]
        weights = np.full((channels, 1, *kernel), weight, F)
        after = [extent - first for extent, first in zip(missing, before, strict=True)]
        x = conv(x, weights, None, scale, zero, strides=kernel, pads=[*before, *after], groups=channels)
    return x
