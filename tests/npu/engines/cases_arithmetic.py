"""Random cases of the operators that compute: products, element-wise operators and pooling."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from anynpu.program import Binary, Conv, ConvTranspose, Dense, MatMul, Pool
from anynpu.tensor import DType, TensorSpec

from . import oracle
from .ingredients import (
    NO_EPILOGUE,
    Array,
    Case,
    Rng,
    as_rows,
    builder,
    centred_epilogue,
    chance,
    codes,
    nhwc,
    plain,
    quantization,
    weights,
    with_centred_products,
)


def convolution(rng: Rng, dtype: DType, groups: int, depth: int, per_group: int, *, transposed: bool = False) -> Case:
    flat = chance(rng, 0.15)
    height, width = (1 if flat else int(rng.integers(4, 10))), int(rng.integers(5, 12))
    batch = int(rng.choice([1, 1, 2]))
    kernel = (1 if flat else int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    strides = (1 if flat else int(rng.integers(1, 3)), int(rng.integers(1, 4)))
    dilations = (1 if flat else int(rng.integers(1, 3)), int(rng.integers(1, 3)))
    reach = tuple((k - 1) * d for k, d in zip(kernel, dilations, strict=True))
    pads: list[int] = [int(rng.integers(0, reach[axis % 2] + 1)) for axis in range(4)]
    extents = []
    for axis, extent in enumerate((height, width)):
        if transposed:
            size = (extent - 1) * strides[axis] - pads[axis] - pads[axis + 2] + reach[axis] + 1
            if size < 1:
                pads[axis] = pads[axis + 2] = 0
                size = (extent - 1) * strides[axis] + reach[axis] + 1
            size += int(rng.integers(0, strides[axis]))  # output_padding
        else:
            size = (extent + pads[axis] + pads[axis + 2] - reach[axis] - 1) // strides[axis] + 1
            if size < 1:
                pads[axis] = pads[axis + 2] = reach[axis]
                size = (extent + reach[axis] - 1) // strides[axis] + 1
        extents.append(size)
    memory = (batch, width, groups * depth) if flat else (batch, height, width, groups * depth)
    out = (batch, extents[1], groups * per_group) if flat else (batch, *extents, groups * per_group)
    kernels, kernel_zero = weights(rng, (groups * per_group, *kernel, depth), dtype)
    kind = ConvTranspose if transposed else Conv
    top, left, bottom, right = pads
    op = kind(kernels, kernel_zero, np.zeros(1, np.int32), NO_EPILOGUE, strides, (top, left, bottom, right), dilations, groups)
    specs = [nhwc("x", memory, dtype, quantization(rng, dtype, memory[-1], grouped=chance(rng, 0.4)))]
    inputs = [codes(rng, memory, dtype)]
    if chance(rng, 0.4):
        specs.append(nhwc("r", out, dtype, quantization(rng, dtype, out[-1], grouped=chance(rng, 0.4))))
        inputs.append(codes(rng, out, dtype))
    made = Case(op, tuple(inputs), tuple(specs), (nhwc("y", out, dtype),))
    return with_centred_products(rng, made, dtype, out)


@builder("conv")
def conv(rng: Rng, dtype: DType) -> Case:
    return convolution(rng, dtype, 1, int(rng.integers(1, 7)), int(rng.integers(1, 6)))


@builder("conv_grouped")
def conv_grouped(rng: Rng, dtype: DType) -> Case:
    return convolution(rng, dtype, int(rng.integers(2, 4)), int(rng.integers(2, 4)), int(rng.integers(1, 4)))


@builder("conv_depthwise")
def conv_depthwise(rng: Rng, dtype: DType) -> Case:
    return convolution(rng, dtype, int(rng.integers(2, 7)), 1, int(rng.choice([1, 1, 2])))


@builder("conv_transpose")
def conv_transpose(rng: Rng, dtype: DType) -> Case:
    groups, depth = (1, int(rng.integers(1, 5))) if chance(rng, 0.6) else (2, int(rng.integers(1, 3)))
    return convolution(rng, dtype, groups, depth, int(rng.integers(1, 4)), transposed=True)


@builder("dense")
def dense(rng: Rng, dtype: DType) -> Case:
    rows, count = int(rng.integers(8, 20)), int(rng.integers(2, 9))
    if chance(rng, 0.5):
        memory: tuple[int, ...] = (rows, 2, int(rng.integers(1, 4)), int(rng.integers(2, 5)))
        spec = nhwc("x", memory, dtype, quantization(rng, dtype, memory[-1], grouped=chance(rng, 0.5)))
    else:
        memory = (rows, int(rng.integers(2, 20)))
        spec = plain("x", memory, dtype, quantization(rng, dtype, memory[-1], grouped=chance(rng, 0.5)))
    depth = int(np.prod(memory[1:]))
    matrix, matrix_zero = weights(rng, (count, depth), dtype)
    out = (rows, count)
    specs, inputs = [spec], [codes(rng, memory, dtype)]
    if chance(rng, 0.4):
        specs.append(plain("r", out, dtype, quantization(rng, dtype, count, grouped=chance(rng, 0.4))))
        inputs.append(codes(rng, out, dtype))
    op = Dense(matrix, matrix_zero, np.zeros(1, np.int32), NO_EPILOGUE)
    return with_centred_products(rng, Case(op, tuple(inputs), tuple(specs), (plain("y", out, dtype),)), dtype, out)


@builder("matmul")
def matmul(rng: Rng, dtype: DType) -> Case:
    m, k, n = (int(rng.integers(2, 8)) for _ in range(3))
    lead_a, lead_b = [((), ()), ((2,), (2,)), ((2, 1), (1, 3)), ((3,), ()), ((), (2,)), ((2, 2), (2,))][int(rng.integers(0, 6))]
    transpose_b = chance(rng, 0.5)
    shapes = ((*lead_a, m, k), (*lead_b, *((n, k) if transpose_b else (k, n))))
    out = (*np.broadcast_shapes(lead_a, lead_b), m, n)
    specs = tuple(
        plain(name, shape, dtype, quantization(rng, dtype, shape[-1], grouped=chance(rng, 0.3)))
        for name, shape in zip("ab", shapes, strict=True)
    )
    inputs = tuple(codes(rng, shape, dtype) for shape in shapes)
    op = MatMul(NO_EPILOGUE, transpose_b)
    epilogue, gain = centred_epilogue(rng, dtype, as_rows(op, inputs, specs, out))
    op = replace(op, epilogue=replace(epilogue, multiplier=gain.astype(np.float32)))
    return Case(op, inputs, specs, (plain("y", out, dtype),))


def binary(rng: Rng, dtype: DType, kind: Literal["add", "sub", "mul", "max", "min"]) -> Case:
    out = (int(rng.choice([1, 2])), int(rng.integers(4, 9)), int(rng.integers(4, 9)), int(rng.integers(2, 6)))
    shapes: list[tuple[int, ...]] = [out, out]
    if chance(rng, 0.5):
        other = [out[-1:], (1, 1, 1, out[-1]), (*out[:-1], 1), (1,), (out[0], 1, out[2], out[3])][int(rng.integers(0, 5))]
        shapes[int(rng.integers(0, 2))] = other
    specs = tuple(
        (nhwc if len(shape) == 4 else plain)(
            name, shape, dtype, quantization(rng, dtype, shape[-1], grouped=chance(rng, 0.3), middle=kind in ("max", "min"))
        )
        for name, shape in zip("ab", shapes, strict=True)
    )
    inputs = tuple(codes(rng, shape, dtype) for shape in shapes)
    ratio = np.ones(1) if kind == "mul" else rng.uniform(0.5, 2.0, out[-1] if chance(rng, 0.4) else 1)
    op = Binary(kind, np.ones(1, np.float32), ratio.astype(np.float32), NO_EPILOGUE)
    values = [oracle.binary_value(op, inputs, specs, index) for index in oracle.indices(out)]
    scaled = np.array(values, np.float64).reshape(-1, out[-1])
    if kind in ("max", "min") and not _both_win(inputs, specs, scaled):
        return binary(rng, dtype, kind)
    epilogue, gain = centred_epilogue(rng, dtype, scaled)
    op = replace(op, a_multiplier=gain.astype(np.float32), b_multiplier=(gain * ratio).astype(np.float32), epilogue=epilogue)
    return Case(op, inputs, specs, (nhwc("y", out, dtype),))


def _both_win(inputs: Sequence[Array], specs: Sequence[TensorSpec], chosen: Array) -> bool:
    """Whether max or min takes each input at times, in every channel; else an error in the other one could not show."""
    shape = np.broadcast_shapes(*(array.shape for array in inputs))
    zeros = [oracle.zero_of(specs[0], channel) for channel in range(inputs[0].shape[-1])]
    a = np.broadcast_to(inputs[0] - np.array(zeros, np.float64), shape).reshape(chosen.shape)
    won = np.mean(a == chosen, axis=0)
    return bool(np.all((won > 0.15) & (won < 0.85)))


for _kind in ("add", "sub", "mul", "max", "min"):
    builder(_kind)(functools.partial(binary, kind=_kind))


def pooling(rng: Rng, dtype: DType, kind: Literal["max", "average"], *, whole: bool = False) -> Case:
    flat = not whole and chance(rng, 0.15)
    channels, batch = int(rng.integers(2, 5)), int(rng.choice([1, 2]))
    height, width = (1 if flat else int(rng.integers(3, 8))), int(rng.integers(4, 9))
    if whole:
        kernel, strides, dilations, pads = (height, width), (1, 1), (1, 1), [0, 0, 0, 0]
        extents = [1, 1]
        batch, channels = 8, 6
    else:
        kernel = (1 if flat else int(rng.integers(1, 4)), int(rng.integers(2, 4)))
        strides = (1 if flat else int(rng.integers(1, 3)), int(rng.integers(1, 3)))
        dilations = (1 if flat else int(rng.choice([1, 1, 2])), int(rng.choice([1, 1, 2])))
        # less than the kernel, so that no window lies in the padding alone
        pads = [int(rng.integers(0, kernel[axis % 2])) for axis in range(4)]
        extents = []
        for axis, extent in enumerate((height, width)):
            span = extent + pads[axis] + pads[axis + 2] - (kernel[axis] - 1) * dilations[axis] - 1
            if span < 0:
                return pooling(rng, dtype, kind)
            size = span // strides[axis] + 1
            more = size * strides[axis] - pads[axis] < extent and chance(rng, 0.5)  # ceil_mode
            extents.append(size + more)
    memory = (batch, width, channels) if flat else (batch, height, width, channels)
    out = (batch, extents[1], channels) if flat else (batch, *extents, channels)
    spec = nhwc("x", memory, dtype, quantization(rng, dtype, channels, grouped=chance(rng, 0.4)))
    x = codes(rng, memory, dtype, spread=0.3)
    top, left, bottom, right = pads
    op = Pool(kind, kernel, strides, (top, left, bottom, right), dilations, chance(rng, 0.5))
    if kind == "average":
        values = []
        for index in oracle.indices(out):
            found, padded = oracle.window(op, x, index)
            total = sum(found) - len(found) * oracle.zero_of(spec, index[-1])
            values.append(total / (padded if op.count_include_pad else max(1, len(found))))
        epilogue, gain = centred_epilogue(rng, dtype, np.array(values).reshape(-1, channels))
        op = replace(op, epilogue=replace(epilogue, multiplier=gain.astype(np.float32)))
    if any(not oracle.window(op, x, index)[0] for index in oracle.indices(out)):
        return pooling(rng, dtype, kind, whole=whole)  # dilation can jump over the whole input
    return Case(op, (x,), (spec,), (nhwc("y", out, dtype),))


builder("pool_max")(functools.partial(pooling, kind="max"))
builder("pool_average")(functools.partial(pooling, kind="average"))
builder("pool_global")(functools.partial(pooling, kind="average", whole=True))
