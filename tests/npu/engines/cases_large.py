"""Random operators with as many channels and pixels as kernels for single instruction sets work on at a time, and some more.

The oracle would take minutes for them: the truth is the reference engine, which the small cases check. Outputs are centerd as there, from
the sums that the reference engine itself gives in 16 bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from anynpu.npu.engines.reference import execute
from anynpu.program import Binary, Concat, Conv, ConvTranspose, Dense, Epilogue, MatMul, Pool, Resize, Slice, Table
from anynpu.tensor import DType, Quantization

from .cases_fixed import with_integers
from .ingredients import (
    NO_EPILOGUE,
    Array,
    Case,
    Rng,
    centred_epilogue,
    chance,
    codes,
    nhwc,
    partition,
    plain,
    quantization,
    random_table,
    weights,
)

__all__ = ["LARGE_BUILDERS", "large_case", "reference_result"]

LARGE_BUILDERS: dict[str, Callable[[Rng], Case]] = {}
INT8 = DType.INT8


@functools.lru_cache(maxsize=64)
def large_case(operator: str, seed: int) -> Case:
    """The case of that number; the same one every time."""
    return LARGE_BUILDERS[operator](np.random.default_rng([seed, *operator.encode()]))


def reference_result(made: Case) -> tuple[Array, ...]:
    """What the reference engine computes."""
    outputs = tuple(np.empty(spec.memory_shape, spec.dtype.storage) for spec in made.output_specs)
    execute(made.op, made.inputs, made.input_specs, made.output_specs, outputs)
    return outputs


def _large(name: str) -> Callable[[Callable[[Rng], Case]], Callable[[Rng], Case]]:
    def register(build: Callable[[Rng], Case]) -> Callable[[Rng], Case]:
        LARGE_BUILDERS[name] = build
        return build

    return register


def _channels(rng: Rng) -> int:
    """Often what a vector holds, or one more or less."""
    whole = int(rng.choice([8, 16, 24, 32, 48, 64, 96, 128]))
    return int(rng.choice([whole, whole, whole - 1, whole + 1, rng.integers(1, 140)]))


def _quantization(rng: Rng, channels: int) -> Quantization:
    return quantization(rng, INT8, channels, grouped=chance(rng, 0.15))


def _centred(rng: Rng, made: Case) -> Case:
    """The case with bias, multipliers and all the rest of an epilogue that keep the output in the middle of its range."""
    op = made.op
    assert isinstance(op, Conv | ConvTranspose | Dense)
    depth = op.weights[0].size
    gain = 30000 / (255.0 * 255.0 * depth)
    probe = Epilogue(np.array([gain], np.float32), np.zeros(1, np.int32))
    wide = replace(made.output_specs[0], dtype=DType.INT16)
    sums = np.empty(wide.memory_shape, np.int16)
    execute(replace(op, epilogue=probe), made.inputs[:1], made.input_specs[:1], [wide], [sums])
    scaled = sums.reshape(-1, sums.shape[-1]) / gain
    weight = 0.0
    if len(made.inputs) > 1:
        weight = float(rng.uniform(0.5, 1.5) * (scaled.std() + 1) / 74)
        scaled = scaled + made.inputs[1].reshape(scaled.shape) * weight
    bias = -np.rint(scaled.mean(axis=0) + scaled.std() * rng.uniform(-0.3, 0.3, scaled.shape[1])).astype(np.int32)
    epilogue, gains = centred_epilogue(rng, INT8, scaled + bias)
    epilogue = replace(epilogue, multiplier=gains.astype(np.float32))
    if weight:
        epilogue = replace(epilogue, residual_multiplier=(gains * weight).astype(np.float32))
    return replace(made, op=replace(op, bias=bias, epilogue=epilogue))


def _convolution(
    rng: Rng,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    size: tuple[int, int],
    groups: int,
    depth: int,
    per_group: int,
) -> Case:
    pads = [int(rng.integers(0, (kernel[axis % 2] - 1) * dilations[axis % 2] // 2 + 1)) for axis in range(4)]
    extents = []
    for axis in (0, 1):
        room = size[axis] + pads[axis] + pads[axis + 2] - (kernel[axis] - 1) * dilations[axis] - 1
        extents.append(max(room, 0) // strides[axis] + 1)
        pads[axis + 2] += max(-room, 0)
    batch = int(rng.choice([1, 1, 1, 2]))
    memory, out = (batch, *size, groups * depth), (batch, *extents, groups * per_group)
    kernels, zero = weights(rng, (groups * per_group, *kernel, depth), INT8)
    top, left, bottom, right = pads
    op = Conv(kernels, zero, np.zeros(1, np.int32), NO_EPILOGUE, strides, (top, left, bottom, right), dilations, groups)
    specs, inputs = [nhwc("x", memory, INT8, _quantization(rng, memory[-1]))], [codes(rng, memory, INT8)]
    if chance(rng, 0.25):
        specs.append(nhwc("r", out, INT8, _quantization(rng, out[-1])))
        inputs.append(codes(rng, out, INT8))
    return _centred(rng, Case(op, tuple(inputs), tuple(specs), (nhwc("y", out, INT8),)))


def _size(rng: Rng) -> tuple[int, int]:
    return int(rng.integers(1, 12)), int(rng.integers(1, 40))


@_large("conv 1x1")
def conv_1x1(rng: Rng) -> Case:
    strides = (1, 1) if chance(rng, 0.8) else (2, 2)
    return _convolution(rng, (1, 1), strides, (1, 1), _size(rng), 1, _channels(rng), _channels(rng))


@_large("conv 3x3")
def conv_3x3(rng: Rng) -> Case:
    stride, dilation = int(rng.choice([1, 1, 2])), int(rng.choice([1, 1, 1, 2]))
    return _convolution(rng, (3, 3), (stride, stride), (dilation, dilation), _size(rng), 1, _channels(rng), _channels(rng))


@_large("conv of any kernel")
def conv_any(rng: Rng) -> Case:
    kernel = (int(rng.integers(1, 8)), int(rng.integers(1, 8)))
    strides = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    depth = int(rng.choice([1, 3, 4, rng.integers(1, 70)]))
    return _convolution(rng, kernel, strides, (1, 1), _size(rng), 1, depth, _channels(rng))


@_large("conv of groups")
def conv_groups(rng: Rng) -> Case:
    groups = int(rng.integers(2, 5))
    return _convolution(rng, (3, 3), (1, 1), (1, 1), _size(rng), groups, int(rng.integers(1, 40)), int(rng.integers(1, 40)))


@_large("depthwise")
def depthwise(rng: Rng) -> Case:
    kernel = int(rng.choice([3, 3, 5, 7, rng.integers(1, 8)]))
    stride, dilation = int(rng.choice([1, 1, 2])), int(rng.choice([1, 1, 1, 2]))
    return _convolution(rng, (kernel, kernel), (stride, stride), (dilation, dilation), _size(rng), max(2, _channels(rng)), 1, 1)


@_large("conv transposed")
def conv_transposed(rng: Rng) -> Case:
    kernel, stride = [(2, 2), (2, 2), (3, 2), (4, 2), (3, 3), (3, 1)][int(rng.integers(0, 6))]
    height, width = int(rng.integers(1, 8)), int(rng.integers(1, 24))
    pad = int(rng.integers(0, 2)) if kernel > 2 else 0
    depth, channels = _channels(rng), int(rng.choice([1, 24, rng.integers(1, 70)]))
    memory = (1, height, width, depth)
    out = (1, *((extent - 1) * stride - 2 * pad + kernel for extent in (height, width)), channels)
    if min(out) < 1:
        return conv_transposed(rng)
    kernels, zero = weights(rng, (channels, kernel, kernel, depth), INT8)
    op = ConvTranspose(kernels, zero, np.zeros(1, np.int32), NO_EPILOGUE, (stride, stride), (pad,) * 4)
    specs = (nhwc("x", memory, INT8, _quantization(rng, depth)),)
    return _centred(rng, Case(op, (codes(rng, memory, INT8),), specs, (nhwc("y", out, INT8),)))


@_large("dense")
def dense(rng: Rng) -> Case:
    rows, depth, units = int(rng.choice([1, 1, 2, 7, 20])), int(rng.integers(1, 1200)), _channels(rng)
    matrix, zero = weights(rng, (units, depth), INT8)
    op = Dense(matrix, zero, np.zeros(1, np.int32), NO_EPILOGUE)
    spec = plain("x", (rows, depth), INT8, _quantization(rng, depth))
    return _centred(rng, Case(op, (codes(rng, (rows, depth), INT8),), (spec,), (plain("y", (rows, units), INT8),)))


@_large("matmul")
def matmul(rng: Rng) -> Case:
    batch, m, k, n = (int(rng.integers(1, extent)) for extent in (4, 60, 100, 100))
    transpose_b = chance(rng, 0.5)
    shapes = ((batch, m, k), (batch, n, k) if transpose_b else (batch, k, n))
    specs = tuple(plain(name, shape, INT8, quantization(rng, INT8, shape[-1])) for name, shape in zip("ab", shapes, strict=True))
    inputs = tuple(codes(rng, shape, INT8) for shape in shapes)
    op = MatMul(NO_EPILOGUE, transpose_b)
    probe = Epilogue(np.array([30000 / (255.0 * 255.0 * k)], np.float32), np.zeros(1, np.int32))
    wide = plain("y", (batch, m, n), DType.INT16)
    sums = np.empty(wide.memory_shape, np.int16)
    execute(replace(op, epilogue=probe), inputs, specs, [wide], [sums])
    epilogue, gain = centred_epilogue(rng, INT8, sums.reshape(-1, n) / float(probe.multiplier[0]))
    op = replace(op, epilogue=replace(epilogue, multiplier=gain.astype(np.float32)))
    return Case(op, inputs, specs, (replace(wide, dtype=INT8),))


def _binary(rng: Rng, kind: Literal["add", "sub", "mul", "max", "min"]) -> Case:
    out = (int(rng.choice([1, 2])), *_size(rng), _channels(rng))
    shapes: list[tuple[int, ...]] = [out, out]
    if chance(rng, 0.5):
        other = [(out[0], 1, 1, out[3]), (1, 1, 1, out[3]), (*out[:-1], 1), (1, 1, 1, 1), (out[0], 1, out[2], out[3])]
        shapes[int(rng.integers(0, 2))] = other[int(rng.integers(0, 5))]
    specs = tuple(
        nhwc(name, shape, INT8, quantization(rng, INT8, shape[-1], grouped=chance(rng, 0.2), middle=True))
        for name, shape in zip("ab", shapes, strict=True)
    )
    inputs = tuple(codes(rng, shape, INT8) for shape in shapes)
    values = []
    for array, spec in zip(inputs, specs, strict=True):
        assert spec.quantization is not None
        values.append(np.broadcast_to(array - spec.quantization.expand(spec.channels)[1].astype(np.float64), out))
    a, b = values
    combined = {"add": a + b, "sub": a - b, "mul": a * b, "max": np.maximum(a, b), "min": np.minimum(a, b)}[kind]
    epilogue, gain = centred_epilogue(rng, INT8, combined.reshape(-1, out[-1]))
    gain32 = gain.astype(np.float32)
    return Case(Binary(kind, gain32, gain32, epilogue), inputs, specs, (nhwc("y", out, INT8),))


for _kind in ("add", "sub", "mul", "max", "min"):
    _large(_kind)(functools.partial(_binary, kind=_kind))


def _pool(rng: Rng, kind: Literal["max", "average"], *, whole: bool = False) -> Case:
    height, width, channels = int(rng.integers(2, 12)), int(rng.integers(2, 30)), _channels(rng)
    kernel = (height, width) if whole else (int(rng.integers(1, 6)), int(rng.integers(1, 6)))
    stride = 1 if whole else int(rng.integers(1, 4))
    pads = [0 if whole else int(rng.integers(0, min(kernel[axis % 2], 3))) for axis in range(4)]
    extents = [(extent + pads[axis] + pads[axis + 2] - kernel[axis]) // stride + 1 for axis, extent in enumerate((height, width))]
    if min(extents) < 1:
        return _pool(rng, kind)
    batch = int(rng.choice([1, 2]))
    spec = nhwc("x", (batch, height, width, channels), INT8, _quantization(rng, channels))
    top, left, bottom, right = pads
    op = Pool(kind, kernel, (stride, stride), (top, left, bottom, right), count_include_pad=chance(rng, 0.5))
    x = codes(rng, spec.memory_shape, INT8)
    if kind == "average":
        zero = spec.quantization.expand(channels)[1] if spec.quantization is not None else 0
        spread = (x - zero).reshape(-1, channels) / (kernel[0] * kernel[1]) ** 0.5
        mean = (x - zero).reshape(-1, channels).mean(axis=0)
        epilogue, gain = centred_epilogue(rng, INT8, spread - spread.mean(axis=0) + mean)
        op = replace(op, epilogue=replace(epilogue, multiplier=gain.astype(np.float32)))
    return Case(op, (x,), (spec,), (nhwc("y", (batch, *extents, channels), INT8),))


_large("pool max")(functools.partial(_pool, kind="max"))
_large("pool average")(functools.partial(_pool, kind="average"))
_large("pool global")(functools.partial(_pool, kind="average", whole=True))


@_large("table")
def table(rng: Rng) -> Case:
    memory = (1, *_size(rng), _channels(rng))
    groups = partition(rng, memory[-1]) if memory[-1] > 1 and chance(rng, 0.3) else ()
    op = Table(random_table(rng, INT8, len(groups) or 1), groups)
    return Case(op, (codes(rng, memory, INT8),), (nhwc("x", memory, INT8),), (nhwc("y", memory, INT8),))


@_large("concat")
def concat(rng: Rng) -> Case:
    size, axis = _size(rng), int(rng.choice([1, 2, 3, 3, 3, 3]))
    base = (1, *size, _channels(rng))
    shapes: list[tuple[int, ...]] = []
    for _ in range(int(rng.integers(1, 5))):
        extent = _channels(rng) if axis == 3 else int(rng.integers(1, 9))
        shapes.append((*base[:axis], extent, *base[axis + 1 :]))
    tables = []
    for number, shape in enumerate(shapes):
        groups = partition(rng, shape[-1]) if shape[-1] > 1 and chance(rng, 0.2) else ()
        tables.append(None if number and chance(rng, 0.6) else Table(random_table(rng, INT8, len(groups) or 1), groups))
    out = (*base[:axis], sum(shape[axis] for shape in shapes), *base[axis + 1 :])
    inputs = tuple(codes(rng, shape, INT8) for shape in shapes)
    specs = tuple(nhwc(f"x{number}", shape, INT8) for number, shape in enumerate(shapes))
    return Case(Concat(axis, tuple(tables)), inputs, specs, (nhwc("y", out, INT8),))


@_large("slice")
def slice_(rng: Rng) -> Case:
    memory = (1, *_size(rng), _channels(rng))
    starts = tuple(int(rng.integers(0, extent)) for extent in memory)
    shape = tuple(int(rng.integers(1, extent - start + 1)) for extent, start in zip(memory, starts, strict=True))
    op = Slice((starts,), ((1,) * 4,))
    return Case(op, (codes(rng, memory, INT8),), (nhwc("x", memory, INT8),), (nhwc("y", shape, INT8),))


def _resize(rng: Rng, kind: Literal["nearest", "linear"]) -> Case:
    sources, channels = (int(rng.integers(1, 9)), int(rng.integers(1, 20))), _channels(rng)
    factor = int(rng.choice([1, 2, 4]))
    targets = [extent * factor if chance(rng, 0.7) else int(rng.integers(1, 30)) for extent in sources]
    memory, out = (1, *sources, channels), (1, *targets, channels)
    op = Resize(kind, *(_grid(source, target) for source, target in zip(sources, targets, strict=True)))
    return Case(op, (codes(rng, memory, INT8),), (nhwc("x", memory, INT8),), (nhwc("y", out, INT8),))


def _grid(source: int, target: int) -> Array:
    where = np.clip((np.arange(target) + 0.5) * source / target - 0.5, 0, source - 1)
    first = np.floor(where).astype(np.int64)
    return np.stack([first, np.minimum(first + 1, source - 1), np.rint((where - first) * 2048)], axis=1).astype(np.int32)


_large("resize nearest")(functools.partial(_resize, kind="nearest"))
_large("resize linear")(functools.partial(_resize, kind="linear"))


FIXED = (
    "conv 1x1",
    "conv 3x3",
    "conv of any kernel",
    "conv of groups",
    "depthwise",
    "conv transposed",
    "dense",
    "matmul",
    "add",
    "sub",
    "mul",
    "max",
    "min",
    "pool average",
    "pool global",
)
"""The operators that also end by the chip's rule."""


def _fixed(name: str, build: Callable[[Rng], Case]) -> None:
    def fixed(rng: Rng) -> Case:
        return with_integers(rng, build(rng), lambda made: reference_result(made)[0])

    LARGE_BUILDERS[f"{name}, fixed point"] = fixed


for _name in FIXED:
    _fixed(_name, LARGE_BUILDERS[_name])


def share_on_rails(outputs: Sequence[Array]) -> float:
    """How much of the outputs sits on the limits of int8."""
    flat = np.concatenate([output.ravel() for output in outputs])
    return float(np.mean((flat == -128) | (flat == 127)))
