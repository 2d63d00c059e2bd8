"""Random cases of the operators that move, look up or convert quantized values."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Literal

import numpy as np

from anynpu.program import Concat, Convert, Pad, Resize, Slice, Table, Transpose
from anynpu.tensor import DType, Layout, TensorSpec

from . import oracle
from .ingredients import Case, Rng, builder, chance, codes, nhwc, partition, plain, quantization, random_table


@builder("table")
def table(rng: Rng, dtype: DType) -> Case:
    memory = (1, int(rng.integers(2, 6)), int(rng.integers(2, 6)), int(rng.integers(2, 6)))
    groups = partition(rng, memory[-1]) if chance(rng, 0.5) else ()
    op = Table(random_table(rng, dtype, len(groups) or 1), groups)
    spec = nhwc("x", memory, dtype, quantization(rng, dtype, memory[-1]))
    return Case(op, (codes(rng, memory, dtype),), (spec,), (nhwc("y", memory, dtype),))


@builder("concat")
def concat(rng: Rng, dtype: DType) -> Case:
    base = (int(rng.integers(1, 3)), int(rng.integers(2, 5)), int(rng.integers(2, 5)), int(rng.integers(2, 5)))
    axis = int(rng.choice([1, 2, 3, 3, 3]))
    inputs, specs, tables = [], [], []
    for number in range(int(rng.integers(2, 5))):
        memory = tuple(int(rng.integers(2, 5)) if place == axis else extent for place, extent in enumerate(base))
        inputs.append(codes(rng, memory, dtype))
        specs.append(nhwc(f"x{number}", memory, dtype, quantization(rng, dtype, memory[-1])))
        groups = partition(rng, memory[-1]) if chance(rng, 0.4) else ()
        keep = number > 0 and chance(rng, 0.4)
        tables.append(None if keep else Table(random_table(rng, dtype, len(groups) or 1), groups))
    out = list(base)
    out[axis] = sum(array.shape[axis] for array in inputs)
    op = Concat(axis, tuple(tables) if chance(rng, 0.85) else ())
    return Case(op, tuple(inputs), tuple(specs), (nhwc("y", out, dtype),))


@builder("slice")
def slice_(rng: Rng, dtype: DType) -> Case:
    memory = tuple(int(rng.integers(2, 8)) for _ in range(int(rng.integers(2, 5))))
    outputs, starts, steps = [], [], []
    for number in range(int(rng.integers(1, 4))):
        start, step, shape = [], [], []
        for extent in memory:
            by = int(rng.choice([1, 1, 2, 3, -1, -2]))
            first = int(rng.integers(0, extent))
            count = (first // -by if by < 0 else (extent - 1 - first) // by) + 1
            start.append(first)
            step.append(by)
            shape.append(int(rng.integers(1, count + 1)))
        starts.append(tuple(start))
        steps.append(tuple(step))
        outputs.append(plain(f"y{number}", shape, dtype))
    op = Slice(tuple(starts), tuple(steps))
    return Case(op, (codes(rng, memory, dtype),), (plain("x", memory, dtype),), tuple(outputs))


@builder("split")
def split(rng: Rng, dtype: DType) -> Case:
    memory = (1, int(rng.integers(2, 5)), int(rng.integers(2, 5)), int(rng.integers(3, 9)))
    sizes = partition(rng, memory[-1])
    begins = [sum(sizes[:number]) for number in range(len(sizes))]
    op = Slice(tuple((0, 0, 0, begin) for begin in begins), ((1, 1, 1, 1),) * len(sizes))
    outputs = tuple(nhwc(f"y{number}", (*memory[:-1], size), dtype) for number, size in enumerate(sizes))
    return Case(op, (codes(rng, memory, dtype),), (nhwc("x", memory, dtype),), outputs)


@builder("pad")
def pad(rng: Rng, dtype: DType) -> Case:
    memory = tuple(int(rng.integers(2, 6)) for _ in range(int(rng.integers(2, 5))))
    mode: Literal["constant", "reflect", "edge"] = ("constant", "reflect", "edge")[int(rng.integers(0, 3))]
    before, after = ([int(rng.integers(0, min(3, extent))) for extent in memory] for _ in range(2))
    before[0] = max(before[0], 1)
    value = int(rng.integers(-100, 100))
    out = tuple(b + extent + a for b, extent, a in zip(before, memory, after, strict=True))
    op = Pad(tuple(before), tuple(after), mode, value)
    return Case(op, (codes(rng, memory, dtype, spread=0.3),), (plain("x", memory, dtype),), (plain("y", out, dtype),))


def resizing(rng: Rng, dtype: DType, kind: Literal["nearest", "linear"]) -> Case:
    flat = chance(rng, 0.15)
    memory = (1, int(rng.integers(3, 6)), 3) if flat else (2, int(rng.integers(2, 6)), int(rng.integers(2, 6)), 3)
    sources = [1, memory[1]] if flat else list(memory[1:3])
    targets = [1 if flat else int(rng.integers(2, 9)), int(rng.integers(2, 9))]
    grids = []
    for source, target in zip(sources, targets, strict=True):
        where = np.clip((np.arange(target) + 0.5) * source / target - 0.5, 0, source - 1)
        first = np.floor(where).astype(np.int64)
        second = np.minimum(first + 1, source - 1)
        grids.append(np.stack([first, second, np.rint((where - first) * 2048)], axis=1).astype(np.int32))
    out = (1, targets[1], 3) if flat else (2, *targets, 3)
    op = Resize(kind, grids[0], grids[1])
    return Case(op, (codes(rng, memory, dtype),), (nhwc("x", memory, dtype),), (nhwc("y", out, dtype),))


builder("resize_nearest")(functools.partial(resizing, kind="nearest"))
builder("resize_linear")(functools.partial(resizing, kind="linear"))


@builder("transpose")
def transpose(rng: Rng, dtype: DType) -> Case:
    view = tuple(int(rng.integers(2, 5)) for _ in range(int(rng.integers(2, 6))))
    perm = tuple(int(axis) for axis in rng.permutation(len(view)))
    total = int(np.prod(view))
    out = tuple(view[axis] for axis in perm) if chance(rng, 0.5) else (1, total)
    kind = DType(rng.choice([dtype.value, "float32", "float16", "int64"]))
    x = codes(rng, (total,), dtype).astype(kind.storage)
    return Case(Transpose(view, perm), (x,), (plain("x", (total,), kind),), (plain("y", out, kind),))


def image_or_plain(rng: Rng, name: str, shape: tuple[int, ...], dtype: DType, quantized: bool) -> TensorSpec:
    layout = (Layout.NHWC, Layout.PLAIN, Layout.NCHW)[int(rng.integers(0, 3 if len(shape) == 4 else 2))]
    spec = TensorSpec(name, shape, dtype, layout)
    return replace(spec, quantization=quantization(rng, dtype, spec.channels, grouped=chance(rng, 0.5))) if quantized else spec


def reach_of(spec: TensorSpec) -> tuple[float, float]:
    """The smallest interval of values that all groups of channels of a tensor can hold."""
    low, high = spec.dtype.limits
    pairs = [oracle.scale_and_zero(spec, channel) for channel in range(spec.channels)]
    return max((low - zero) * scale for scale, zero in pairs), min((high - zero) * scale for scale, zero in pairs)


@builder("quantize")
def quantize(rng: Rng, dtype: DType) -> Case:
    shape = tuple(int(rng.integers(2, 6)) for _ in range(int(rng.integers(3, 5))))
    source = image_or_plain(rng, "x", shape, DType(rng.choice(["float32", "float16"])), False)
    target = image_or_plain(rng, "y", shape, dtype, True)
    low, high = reach_of(target)
    if high - low < 0.005 * dtype.limits[1]:
        return quantize(rng, dtype)  # groups that share no range would all saturate
    values = rng.uniform(low, high, source.memory_shape).astype(source.dtype.storage)
    return Case(Convert(), (values,), (source,), (target,))


@builder("dequantize")
def dequantize(rng: Rng, dtype: DType) -> Case:
    shape = tuple(int(rng.integers(2, 6)) for _ in range(int(rng.integers(3, 5))))
    source = image_or_plain(rng, "x", shape, dtype, True)
    target = image_or_plain(rng, "y", shape, DType(rng.choice(["float32", "float16"])), False)
    return Case(Convert(), (codes(rng, source.memory_shape, dtype),), (source,), (target,))


@builder("requantize")
def requantize(rng: Rng, dtype: DType) -> Case:
    """Quantized values to quantized values of another layout, scale or zero point."""
    shape = tuple(int(rng.integers(2, 6)) for _ in range(4))
    source = image_or_plain(rng, "x", shape, dtype, True)
    target = image_or_plain(rng, "y", shape, dtype, True)
    if chance(rng, 0.3):
        target = replace(source, name="y")
        if source.quantization is not None and source.quantization.is_per_tensor:
            target = replace(target, layout=Layout.PLAIN)
    (low, high), (other_low, other_high) = reach_of(source), reach_of(target)
    low, high = max(low, other_low), min(high, other_high)
    if high - low < 0.005 * dtype.limits[1]:
        return requantize(rng, dtype)
    values = rng.uniform(low, high, source.memory_shape)
    index_axis = 1 if source.layout is Layout.NCHW else len(shape) - 1
    grids = np.moveaxis(values, index_axis, -1)
    for channel in range(source.channels):
        scale, zero = oracle.scale_and_zero(source, channel)
        grids[..., channel] = np.clip(np.rint(grids[..., channel] / scale) + zero, *dtype.limits)
    return Case(Convert(), (values.astype(dtype.storage),), (source,), (target,))


@builder("cast")
def cast(rng: Rng, dtype: DType) -> Case:
    shape = tuple(int(rng.integers(2, 5)) for _ in range(int(rng.integers(2, 5))))
    kinds = ["float32", "float16", "int64", "int32", "uint8", "bool", dtype.value]
    source = image_or_plain(rng, "x", shape, DType(rng.choice(kinds)), False)
    target = image_or_plain(rng, "y", shape, DType(rng.choice(kinds)), False)
    values = rng.uniform(0, 100, source.memory_shape) * (rng.random(source.memory_shape) < 0.7)
    return Case(Convert(), (values.astype(source.dtype.storage),), (source,), (target,))
