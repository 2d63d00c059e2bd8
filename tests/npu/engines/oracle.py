"""What the operators mean, a second time: plain loops over Python integers, one element after the other.

Nothing of the engine and nothing of ``anynpu.program.arithmetic`` is used here. Sums are Python integers, float32 steps are numpy scalars
that are rounded one at a time, rounding half to even is Python's own ``round``, or its definition where a fraction is meant.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from anynpu.program import (
    Binary,
    Concat,
    Conv,
    Convert,
    ConvTranspose,
    Curve,
    Dense,
    Epilogue,
    FixedPoint,
    MatMul,
    Op,
    Pad,
    Pool,
    Resize,
    Slice,
    Table,
    Transpose,
)
from anynpu.tensor import DType, DynamicFixedPoint, Layout, TensorSpec

Array = npt.NDArray[Any]
Index = tuple[int, ...]


def run(op: Op, inputs: Sequence[Array], input_specs: Sequence[TensorSpec], output_specs: Sequence[TensorSpec]) -> list[Array]:
    """The outputs of an operator, as arrays of the tensors' memory shapes."""
    outputs = [np.zeros(spec.memory_shape, spec.dtype.storage) for spec in output_specs]
    if isinstance(op, Slice):
        for output, starts, steps in zip(outputs, op.starts, op.steps, strict=True):
            for index in indices(output.shape):
                output[index] = inputs[0][tuple(s + i * t for s, i, t in zip(starts, index, steps, strict=True))]
        return outputs
    (output,), (spec,) = outputs, output_specs
    if isinstance(op, Conv | ConvTranspose | Dense | MatMul):
        _products(op, inputs, input_specs, output)
    elif isinstance(op, Binary):
        _binary(op, inputs, input_specs, output)
    elif isinstance(op, Pool):
        _pool(op, inputs[0], input_specs[0], output)
    elif isinstance(op, Table):
        for index in indices(output.shape):
            output[index] = look_up(op.table, op.table_groups, int(inputs[0][index]), index[-1])
    elif isinstance(op, Concat):
        _concat(op, inputs, output)
    elif isinstance(op, Pad):
        _pad(op, inputs[0], output)
    elif isinstance(op, Resize):
        _resize(op, inputs[0], output)
    elif isinstance(op, Transpose):
        flat = inputs[0].ravel().tolist()
        for place, index in enumerate(indices(tuple(op.view[axis] for axis in op.perm))):
            position = [0] * len(index)
            for axis, coordinate in zip(op.perm, index, strict=True):
                position[axis] = coordinate
            output.ravel()[place] = flat[offset(position, op.view)]
    elif isinstance(op, Convert):
        _convert(inputs[0], input_specs[0], output, spec)
    else:
        raise AssertionError(op)
    return outputs


def indices(shape: Sequence[int]) -> Iterator[Index]:
    return itertools.product(*(range(extent) for extent in shape))


def offset(index: Sequence[int], shape: Sequence[int]) -> int:
    place = 0
    for coordinate, extent in zip(index, shape, strict=True):
        place = place * extent + coordinate
    return place


def by_group(sizes: Sequence[int], channel: int) -> int:
    """The group that a channel belongs to."""
    for group, size in enumerate(sizes):
        if channel < size:
            return group
        channel -= size
    return 0


def scale_and_zero(spec: TensorSpec, channel: int) -> tuple[float, int]:
    quantization = spec.quantization
    assert quantization is not None
    if isinstance(quantization, DynamicFixedPoint):
        return 2.0**-quantization.fraction_bits, 0
    group = by_group(quantization.group_sizes, channel)
    return quantization.scales[group], quantization.zero_points[group]


def zero_of(spec: TensorSpec, channel: int) -> int:
    return scale_and_zero(spec, channel)[1]


def entry(array: Array, channel: int) -> Any:
    """An array per channel, or with a single entry that serves all."""
    return array[channel] if len(array) > 1 else array[0]


@functools.cache
def limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def look_up(table: Array, groups: Sequence[int], code: int, channel: int) -> int:
    return int(table[by_group(groups, channel)][code % table.shape[1]])


def finish(f: Any, epilogue: Epilogue, channel: int, dtype: np.dtype[Any]) -> int:
    assert isinstance(f, np.float32)
    if epilogue.slope is not None and f < 0:
        f = f * np.float32(entry(epilogue.slope, channel))
    code = round(float(f)) + int(entry(epilogue.zero_point, channel))
    low, high = limits(dtype)
    if epilogue.clamp is not None:
        low, high = (int(entry(bound, channel)) for bound in epilogue.clamp)
    code = max(low, min(high, code))
    return code if epilogue.table is None else look_up(epilogue.table, epilogue.table_groups, code, channel)


def half_even(product: int, bits: int) -> int:
    """product / 2**bits, rounded half to even."""
    whole, rest = divmod(product, 2**bits)
    return whole + (2 * rest > 2**bits or (2 * rest == 2**bits and whole % 2 == 1))


def register(value: int) -> int:
    """What the chip keeps of a number: 32 bits."""
    return max(-(2**31), min(2**31 - 1, value))


def fixed_code(sum_: int, stage: FixedPoint, channel: int, dtype: np.dtype[Any], residual: int | None = None) -> int:
    """A sum to its code by the chip's integers."""
    factor = int(entry(stage.channel_multiplier, channel)) if stage.channel_multiplier.size else 2**14
    multiplier, shift, zero = (int(entry(array, channel)) for array in (stage.multiplier, stage.shift, stage.zero_point))
    sum_ = register(sum_)
    value = register(half_even(sum_ * factor, 14))
    exact = sum_ * factor
    if residual is not None and stage.residual_multiplier:
        value = register(value + half_even(residual * stage.residual_multiplier, stage.residual_shift))
        exact = value * 2**14
    if stage.slope is not None:
        value = value * int(entry(stage.slope, channel)) if exact < 0 else exact
        shift += 14
    else:
        if stage.bounds is not None:
            low, high = (int(entry(bound, channel)) for bound in stage.bounds)
            value = max(low, min(high, value))
        if stage.curves:
            value = curve_value(stage.curves[by_group(stage.curve_groups, channel)], value)
    code = half_even(value * multiplier + zero * 2**shift, shift)
    low, high = limits(dtype)
    code = max(low, min(high, code))
    return code if stage.table is None else look_up(stage.table, stage.table_groups, code, channel)


def curve_value(curve: Curve, scaled: int) -> int:
    index = register(half_even((scaled + curve.offset) * curve.multiplier, curve.shift))
    if index > 16384 and curve.slope:
        value = int(curve.positive[512]) + math.floor(Fraction((index - 16384) * curve.slope, 2**curve.slope_shift))
        return register(value)
    table, place = (curve.negative, max(index, -16384) + 16384) if index < 0 else (curve.positive, min(index, 16384))
    if place == 16384:
        return int(table[512])
    before, after = int(table[place // 32]), int(table[place // 32 + 1])
    return before + math.floor(Fraction((after - before) * (place % 32), 32))


def float32(integer: int) -> Any:
    assert abs(integer) < 2**53, "through float64 this would round twice"
    return np.float32(float(integer))


# --- sums of products ---------------------------------------------------------------------------------------------------------------


def sums(op: Op, inputs: Sequence[Array], specs: Sequence[TensorSpec], shape: Sequence[int]) -> dict[Index, int]:
    """The accumulator of every output element, by its index in *shape*; for Dense in [rows, N]."""
    if isinstance(op, Conv | ConvTranspose):
        return dict(_convolution_sums(op, inputs[0], specs[0], shape))
    if isinstance(op, Dense):
        return dict(_dense_sums(op, inputs[0], specs[0]))
    assert isinstance(op, MatMul)
    return dict(_matmul_sums(op, inputs, specs, shape))


def _convolution_sums(op: Conv | ConvTranspose, x: Array, spec: TensorSpec, shape: Sequence[int]) -> Iterator[tuple[Index, int]]:
    flat = len(shape) == 3
    codes = (x[:, None] if flat else x).tolist()
    height, width = len(codes[0]), len(codes[0][0])
    count, kernel_h, kernel_w, depth = op.weights.shape
    zeros = [zero_of(spec, channel) for channel in range(depth * op.groups)]
    weights = op.weights.tolist()
    meetings: dict[Index, list[Index]] = {}  # the same for all channels and images
    for index in indices(shape):
        n, row, column, out = (index[0], 0, *index[1:]) if flat else index
        first = out // (count // op.groups) * depth
        weight_zero = int(entry(op.weight_zero, out))
        total = int(entry(op.bias, out))
        if (row, column) not in meetings:
            reached = ((a, b, _meeting_pixels(op, row, column, a, b, height, width)) for a, b in indices((kernel_h, kernel_w)))
            meetings[row, column] = [(a, b, i, j) for a, b, pixels in reached for i, j in pixels]
        for a, b, i, j in meetings[row, column]:
            for c in range(depth):
                total += (codes[n][i][j][first + c] - zeros[first + c]) * (weights[out][a][b][c] - weight_zero)
        yield index, total


def _meeting_pixels(op: Conv | ConvTranspose, row: int, column: int, a: int, b: int, height: int, width: int) -> Iterator[Index]:
    """The input pixels (none or one) that reach an output pixel through the kernel element (a, b)."""
    down, right = a * op.dilations[0] - op.pads[0], b * op.dilations[1] - op.pads[1]
    if isinstance(op, Conv):
        i, j = row * op.strides[0] + down, column * op.strides[1] + right
        if 0 <= i < height and 0 <= j < width:
            yield i, j
        return
    for i, j in indices((height, width)):
        if row == i * op.strides[0] + down and column == j * op.strides[1] + right:
            yield i, j


def _dense_sums(op: Dense, x: Array, spec: TensorSpec) -> Iterator[tuple[Index, int]]:
    count, depth = op.weights.shape
    values = [int(x[index]) - zero_of(spec, index[-1]) for index in indices(x.shape)]
    weights = op.weights.tolist()
    for row, out in indices((len(values) // depth, count)):
        zero = int(entry(op.weight_zero, out))
        total = sum(values[row * depth + k] * (weights[out][k] - zero) for k in range(depth))
        yield (row, out), total + int(entry(op.bias, out))


def _matmul_sums(
    op: MatMul, inputs: Sequence[Array], specs: Sequence[TensorSpec], shape: Sequence[int]
) -> Iterator[tuple[Index, int]]:
    a, b = inputs
    for index in indices(shape):
        *batch, m, n = index
        total = 0
        for k in range(a.shape[-1]):
            at_a = (*_broadcast(batch, a.shape[:-2]), m, k)
            at_b = (*_broadcast(batch, b.shape[:-2]), *((n, k) if op.transpose_b else (k, n)))
            total += (int(a[at_a]) - zero_of(specs[0], at_a[-1])) * (int(b[at_b]) - zero_of(specs[1], at_b[-1]))
        yield index, total


def _broadcast(index: Sequence[int], shape: Sequence[int]) -> Index:
    """The element of a tensor of *shape* that an output's *index* sees."""
    return tuple(i if extent > 1 else 0 for i, extent in zip(index[len(index) - len(shape) :], shape, strict=True))


def _products(
    op: Conv | ConvTranspose | Dense | MatMul, inputs: Sequence[Array], specs: Sequence[TensorSpec], output: Array
) -> None:
    for index, total in sums(op, inputs, specs, output.shape).items():
        channel = index[-1]
        place = offset(index, (output.size // len(op.weights), len(op.weights)) if isinstance(op, Dense) else output.shape)
        difference = None
        if not isinstance(op, MatMul) and len(inputs) > 1:
            assert op.epilogue.residual_multiplier is not None
            difference = int(inputs[1].ravel()[place]) - zero_of(specs[1], place % inputs[1].shape[-1])
        if isinstance(op.epilogue, FixedPoint):
            output.ravel()[place] = fixed_code(total, op.epilogue, channel, output.dtype, difference)
            continue
        f = float32(total) * np.float32(entry(op.epilogue.multiplier, channel))
        if difference is not None:
            f = f + float32(difference) * np.float32(entry(op.epilogue.residual_multiplier, channel))
        output.ravel()[place] = finish(f, op.epilogue, channel, output.dtype)


# --- the others ---------------------------------------------------------------------------------------------------------------------


def binary_value(op: Binary, inputs: Sequence[Array], specs: Sequence[TensorSpec], index: Index) -> Any:
    """The float32 that goes into the epilogue."""
    at_a, at_b = (_broadcast(index, array.shape) for array in inputs)
    a = float32(int(inputs[0][at_a]) - zero_of(specs[0], at_a[-1]))
    b = float32(int(inputs[1][at_b]) - zero_of(specs[1], at_b[-1]))
    by_a, by_b = (np.float32(entry(array, index[-1])) for array in (op.a_multiplier, op.b_multiplier))
    if op.kind == "mul":
        return (a * b) * by_a
    a, b = a * by_a, b * by_b
    return {"add": a + b, "sub": a - b, "max": a if a > b else b, "min": a if a < b else b}[op.kind]


def _binary(op: Binary, inputs: Sequence[Array], specs: Sequence[TensorSpec], output: Array) -> None:
    for index in indices(output.shape):
        if isinstance(op.epilogue, FixedPoint):
            output[index] = fixed_code(binary_sum(op, inputs, specs, index), op.epilogue, index[-1], output.dtype)
        else:
            output[index] = finish(binary_value(op, inputs, specs, index), op.epilogue, index[-1], output.dtype)


def binary_sum(op: Binary, inputs: Sequence[Array], specs: Sequence[TensorSpec], index: Index) -> int:
    """The integer that goes into the chip's stages."""
    at_a, at_b = (_broadcast(index, array.shape) for array in inputs)
    a = int(inputs[0][at_a]) - zero_of(specs[0], at_a[-1])
    b = int(inputs[1][at_b]) - zero_of(specs[1], at_b[-1])
    if op.kind == "mul":
        return a * b
    a, b = half_even(a * int(op.a_multiplier[0]), op.shifts[0]), half_even(b * int(op.b_multiplier[0]), op.shifts[1])
    return {"add": a + b, "sub": a - b, "max": max(a, b), "min": min(a, b)}[op.kind]


def window(op: Pool, x: Array, index: Index) -> tuple[list[int], int]:
    """The quantized values of a pooling window that are inside the input, and its number of elements inside the padded input."""
    x = x[:, None] if x.ndim == 3 else x
    n, row, column, channel = (index[0], 0, *index[1:]) if len(index) == 3 else index
    codes, padded = [], 0
    for a, b in indices(op.kernel):
        i = row * op.strides[0] - op.pads[0] + a * op.dilations[0]
        j = column * op.strides[1] - op.pads[1] + b * op.dilations[1]
        if 0 <= i < x.shape[1] and 0 <= j < x.shape[2]:
            codes.append(int(x[n, i, j, channel]))
        if -op.pads[0] <= i < x.shape[1] + op.pads[2] and -op.pads[1] <= j < x.shape[2] + op.pads[3]:
            padded += 1
    return codes, padded


def _pool(op: Pool, x: Array, spec: TensorSpec, output: Array) -> None:
    for index in indices(output.shape):
        codes, padded = window(op, x, index)
        if op.kind == "max":
            output[index] = max(codes)
            continue
        assert op.epilogue is not None
        channel = index[-1]
        total = sum(code - zero_of(spec, channel) for code in codes)
        count = padded if op.count_include_pad else len(codes)
        if isinstance(op.epilogue, FixedPoint):
            assert op.divisors is not None
            stage = replace(op.epilogue, multiplier=op.divisors[0, [count]], shift=op.divisors[1, [count]])
            output[index] = fixed_code(total, stage, channel, output.dtype)
            continue
        multiplier = np.float32(entry(op.epilogue.multiplier, channel)) / np.float32(count)
        output[index] = finish(float32(total) * multiplier, op.epilogue, channel, output.dtype)


def _concat(op: Concat, inputs: Sequence[Array], output: Array) -> None:
    start = 0
    for number, array in enumerate(inputs):
        table = op.tables[number] if op.tables else None
        for index in indices(array.shape):
            code = int(array[index])
            place = list(index)
            place[op.axis] += start
            output[tuple(place)] = code if table is None else look_up(table.table, table.table_groups, code, index[-1])
        start += array.shape[op.axis]


def _pad(op: Pad, x: Array, output: Array) -> None:
    for index in indices(output.shape):
        position = [i - before for i, before in zip(index, op.before, strict=True)]
        outside = any(not 0 <= p < extent for p, extent in zip(position, x.shape, strict=True))
        if op.mode == "constant" and outside:
            output[index] = op.value
            continue
        for axis, extent in enumerate(x.shape):
            if op.mode == "reflect":
                while not 0 <= position[axis] < extent:
                    position[axis] = -position[axis] if position[axis] < 0 else 2 * (extent - 1) - position[axis]
            else:
                position[axis] = max(0, min(extent - 1, position[axis]))
        output[index] = x[tuple(position)]


def _resize(op: Resize, x: Array, output: Array) -> None:
    x, y = (array[:, None] if array.ndim == 3 else array for array in (x, output))
    for n, row, column, channel in indices(y.shape):
        i0, i1, down = (int(v) for v in op.rows[row])
        j0, j1, right = (int(v) for v in op.columns[column])
        if op.kind == "nearest":
            y[n, row, column, channel] = x[n, i0, j0, channel]
            continue
        total = 0
        for i, by_row in ((i0, 2048 - down), (i1, down)):
            for j, by_column in ((j0, 2048 - right), (j1, right)):
                total += int(x[n, i, j, channel]) * by_row * by_column
        y[n, row, column, channel] = round(Fraction(total, 2048 * 2048))


def memory_index(spec: TensorSpec, index: Index) -> Index:
    """Where the element of the ONNX shape lies in memory."""
    return (index[0], *index[2:], index[1]) if spec.layout is Layout.NHWC and len(index) > 1 else index


def channel_of(spec: TensorSpec, index: Index) -> int:
    if not index:
        return 0
    return index[-1] if spec.layout is Layout.PLAIN or len(index) < 2 else index[1]


def _convert(x: Array, source: TensorSpec, output: Array, target: TensorSpec) -> None:
    for index in indices(source.shape):
        value = x[memory_index(source, index)]
        if source.quantization is not None and source.dtype in (DType.INT8, DType.UINT8, DType.INT16):
            scale, zero = scale_and_zero(source, channel_of(source, index))
            value = float32(int(value) - zero) * np.float32(scale)
        place = memory_index(target, index)
        if target.quantization is not None and target.dtype in (DType.INT8, DType.UINT8, DType.INT16):
            scale, zero = scale_and_zero(target, channel_of(target, index))
            steps = float(np.float32(value) / np.float32(scale))
            low, high = target.dtype.limits
            code = (high if steps > 0 else low) if math.isinf(steps) else round(steps) + zero
            output[place] = max(low, min(high, code))
        elif target.dtype.is_float:
            with np.errstate(over="ignore"):
                output[place] = target.dtype.storage.type(value)
        elif target.dtype is DType.BOOL:
            output[place] = bool(value != 0)
        else:
            output[place] = int(value)
