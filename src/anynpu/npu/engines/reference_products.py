"""Sums of products in the reference engine: Conv, ConvTranspose, Dense and MatMul.

Products run as float matmuls (BLAS), in a type in which no partial sum can be rounded; see ``reference_common.sum_type``.
Padding is never stored: a kernel element adds only where it meets the input, which is what a padding of value zero means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..._util.types import Array
from ...program import Conv, ConvTranspose, Dense, Finish, MatMul
from ...program.arithmetic import apply_epilogue
from ...tensor import TensorSpec
from . import reference_common as common
from .reference_common import image, largest_difference, no_check, overlap, spans, sum_type, zero_points


def convolve(
    op: Conv | ConvTranspose,
    inputs: Sequence[Array],
    specs: Sequence[TensorSpec],
    output: Array,
    check: Callable[[], None] = no_check,
) -> None:
    """Conv and ConvTranspose, by image and by band of output rows."""
    x, y = image(inputs[0]), image(output)
    zero = zero_points(specs[0])
    residual = np.broadcast_to(image(inputs[1]), y.shape) if len(inputs) > 1 else None
    residual_zero = zero_points(specs[1]) if len(inputs) > 1 else 0

    channels, kernel_h, kernel_w, depth = op.weights.shape
    term = largest_difference(x.dtype, zero) * largest_difference(op.weights.dtype, op.weight_zero)
    product_type = _float_type(term * depth)
    weights = op.weights.astype(product_type) - op.weight_zero.reshape(-1, 1, 1, 1).astype(product_type)
    # [kernel_h, kernel_w, group, input channel, output channel]
    taps = weights.reshape(op.groups, channels // op.groups, kernel_h, kernel_w, depth).transpose(2, 3, 0, 4, 1)
    taps = np.ascontiguousarray(taps)
    accumulator_type = sum_type(term * depth * kernel_h * kernel_w)

    row_bytes = y.shape[2] * channels * 40 + x.shape[2] * x.shape[3] * (product_type.itemsize * 2)
    for index in range(y.shape[0]):
        for band in spans(y.shape[1], common.BLOCK_BYTES // row_bytes):
            accumulator = np.zeros((band.stop - band.start, y.shape[2], op.groups, channels // op.groups), accumulator_type)
            _add_taps(op, x[index], zero, taps, term, accumulator, band.start, check)
            total = accumulator.reshape(*accumulator.shape[:2], channels).astype(np.int64) + op.bias
            extra = None if residual is None else residual[index, band]
            y[index, band] = apply_epilogue(total, op.epilogue, y.dtype, extra, residual_zero)


def _add_taps(
    op: Conv | ConvTranspose,
    x: Array,
    zero: Array,
    taps: Array,
    term: int,
    accumulator: Array,
    first_row: int,
    check: Callable[[], None],
) -> None:
    """Add every kernel element's share to the accumulator of the output rows that begin at *first_row*."""
    kernel_h, kernel_w, groups, depth, _ = taps.shape
    last_row, width = first_row + accumulator.shape[0], accumulator.shape[1]
    top, bottom = _input_rows(op, kernel_h, first_row, last_row, x.shape[0])
    values = x[top:bottom].astype(taps.dtype) - zero.astype(taps.dtype)
    values = values.reshape(bottom - top, x.shape[1], groups, depth)
    for a in range(kernel_h):
        check()
        row_offset = a * op.dilations[0] - op.pads[0]
        rows = _meeting(op, 0, row_offset, (first_row, last_row), (top, bottom))
        for b in range(kernel_w):
            column_offset = b * op.dilations[1] - op.pads[1]
            columns = _meeting(op, 1, column_offset, (0, width), (0, x.shape[1]))
            share = accumulator[rows[0], columns[0]]
            if share.size:
                check()
                source = values[rows[1], columns[1]]
                share += _tap_product(source, taps[a, b], term).astype(accumulator.dtype, copy=False)


def _tap_product(source: Array, tap: Array, term: int) -> Array:
    """[rows, columns, group, input channel] with one kernel element [group, input channel, output channel]."""
    if tap.shape[1] == 1:
        return np.asarray(source * tap[:, 0])
    product = _exact_matmul(source.transpose(0, 2, 1, 3), tap, term)
    return np.transpose(product, (0, 2, 1, 3))


def _meeting(
    op: Conv | ConvTranspose, axis: int, offset: int, outputs: tuple[int, int], inputs: tuple[int, int]
) -> tuple[slice, slice]:
    """Slices of output and input that one kernel element joins along an axis."""
    stride = op.strides[axis]
    if isinstance(op, Conv):  # input = output * stride + offset
        return overlap(*outputs, stride, offset, *inputs)
    source, target = overlap(*inputs, stride, offset, *outputs)  # output = input * stride + offset
    return target, source


def _input_rows(op: Conv | ConvTranspose, kernel_h: int, first: int, last: int, height: int) -> tuple[int, int]:
    """The input rows that the output rows [first, last) need."""
    stride, pad, reach = op.strides[0], op.pads[0], (kernel_h - 1) * op.dilations[0]
    if isinstance(op, Conv):
        low, high = first * stride - pad, (last - 1) * stride - pad + reach + 1
    else:
        low, high = -((reach - pad - first) // stride), (last - 1 + pad) // stride + 1
    low = min(max(low, 0), height)
    return low, max(low, min(high, height))


def dense(op: Dense, inputs: Sequence[Array], specs: Sequence[TensorSpec], output: Array) -> None:
    """Fully connected layer over rows of K elements, by block of rows."""
    count, depth = op.weights.shape
    x = inputs[0].reshape(-1, depth)
    # the zero point belongs to the channels of the tensor, which need not be the K elements of a row
    zero = np.broadcast_to(zero_points(specs[0]), inputs[0].shape).reshape(-1, depth)
    residual, residual_zero = None, np.zeros((len(x), 1), np.int32)
    if len(inputs) > 1:
        residual = inputs[1].reshape(-1, count)
        residual_zero = np.broadcast_to(zero_points(specs[1]), inputs[1].shape).reshape(-1, count)
    term = largest_difference(x.dtype, zero) * largest_difference(op.weights.dtype, op.weight_zero)
    product_type = _float_type(term * depth)
    weight_zero = np.broadcast_to(op.weight_zero, count)[:, np.newaxis]
    codes = np.empty((len(x), count), output.dtype)
    for rows in spans(len(x), common.BLOCK_BYTES // (40 * count + 16 * depth)):
        values = x[rows].astype(product_type) - zero[rows].astype(product_type)
        total = np.empty((len(values), count), np.int64)
        for columns in spans(count, common.BLOCK_BYTES // (16 * depth)):
            weights = op.weights[columns].astype(product_type) - weight_zero[columns].astype(product_type)
            total[:, columns] = _exact_matmul(values, weights.T, term)
        total += op.bias
        extra = None if residual is None else residual[rows]
        codes[rows] = apply_epilogue(total, op.epilogue, output.dtype, extra, residual_zero[rows])
    output[...] = codes.reshape(output.shape)


def matmul(op: MatMul, inputs: Sequence[Array], specs: Sequence[TensorSpec], output: Array) -> None:
    """Product of two activations, by matrix of the leading axes and by block of rows."""
    a, b = inputs
    a_zero, b_zero = zero_points(specs[0]), zero_points(specs[1])
    leading = output.shape[:-2]
    a = np.broadcast_to(a, leading + a.shape[-2:])
    b = np.broadcast_to(b, leading + b.shape[-2:])
    for index in np.ndindex(leading):
        _matmul_2d(op.epilogue, a[index], a_zero, b[index], b_zero, op.transpose_b, output[index])


def _matmul_2d(epilogue: Finish, a: Array, a_zero: Array, b: Array, b_zero: Array, transpose_b: bool, output: Array) -> None:
    term = largest_difference(a.dtype, a_zero) * largest_difference(b.dtype, b_zero)
    product_type = _float_type(term * a.shape[-1])
    right = b.astype(product_type) - b_zero.astype(product_type)
    right = right.T if transpose_b else right
    for rows in spans(len(a), common.BLOCK_BYTES // (40 * output.shape[-1] + 16 * a.shape[-1])):
        left = a[rows].astype(product_type) - a_zero.astype(product_type)
        output[rows] = apply_epilogue(_exact_matmul(left, right, term).astype(np.int64), epilogue, output.dtype)


def _float_type(bound: int) -> np.dtype[np.generic]:
    """The float type for products whose sums reach *bound*; beyond float64, ``_exact_matmul`` splits the sum."""
    return np.dtype(np.float32) if bound < common.EXACT_FLOAT32 else np.dtype(np.float64)


def _exact_matmul(left: Array, right: Array, term: int) -> Array:
    """left @ right for integers held as floats, where no product of two elements exceeds *term*."""
    depth = left.shape[-1]
    count = (common.EXACT_FLOAT64 - 1) // term
    if depth <= count:
        product: Array = np.matmul(left, right)
        return product
    total: Array = np.zeros((), np.int64)
    for part in spans(depth, count):
        total = total + np.matmul(left[..., part], right[..., part, :]).astype(np.int64)
    return total
