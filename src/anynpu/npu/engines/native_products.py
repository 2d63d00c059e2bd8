"""Descriptors of sums of products for the native engine: Conv, ConvTranspose, Dense and MatMul."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np

from ..._native import lib
from ..._util.types import Array
from ...program import Conv, ConvTranspose, Dense, Finish, FixedPoint, Layer, MatMul
from .native_lowering import Lowering, NativeLayer, codes_of, image_shape
from .reference_common import largest_difference, zero_points

__all__ = ["lower_conv", "lower_dense", "lower_matmul"]


_SUM_LIMIT = 1 << 31
_WEIGHTS_AT_ONCE = 1 << 20
_MAX_WASTE = 4  # products with zero that a fast kernel makes up for
_OPERAND_LIMIT = (1 << 15) - 1 - 128
"""A zero point up to here leaves the difference to a byte within 16 bits."""


def lower_conv(lowering: Lowering, layer: Layer) -> list[NativeLayer] | None:
    """Conv and ConvTranspose."""
    op = layer.op
    assert isinstance(op, Conv | ConvTranspose)
    x, y = (image_shape(lowering.tensors[name].memory_shape) for name in (layer.inputs[0], layer.outputs[0]))
    if x is None or y is None:
        return None
    made = _convolution(lowering, layer, op, depth=math.prod(op.weights.shape[1:]))
    if made is None:
        return None
    conv = made.descriptor
    conv.n, conv.h, conv.w, conv.cin = x
    _, conv.oh, conv.ow, conv.cout = y
    conv.kh, conv.kw = op.weights.shape[1:3]
    conv.sh, conv.sw = op.strides
    conv.top, conv.left = op.pads[:2]
    conv.dh, conv.dw = op.dilations
    conv.groups = op.groups
    zero = zero_points(lowering.tensors[layer.inputs[0]])
    _fill_zeros(lowering, conv, zero, x[3])
    if isinstance(op, ConvTranspose) and made.codes == lib.ANYNPU_CODES_I8:
        made = replace(made, fast=_subpixel(lowering, layer, op, x, y, zero))
    return [made]


def _subpixel(
    lowering: Lowering, layer: Layer, op: ConvTranspose, x: tuple[int, ...], y: tuple[int, ...], zero: Array
) -> NativeLayer | None:
    """A transposed convolution as an ordinary one whose pixels hold all phases of the stride; None where it cannot be that.

    Output pixel t * stride + phase receives input pixel t + o through the kernel element phase + pad - o * stride.
    """
    in_range = int(op.weight_zero.min()) >= -128 and int(op.weight_zero.max()) <= 127
    if op.groups != 1 or len(layer.inputs) > 1 or op.dilations != (1, 1) or not in_range:
        return None
    sh, sw = op.strides
    cout, _, _, depth = op.weights.shape
    (top, rows), (left, columns) = (_subpixel_taps(op, axis) for axis in (0, 1))
    if len(rows) * len(columns) * sh * sw > _MAX_WASTE * op.weights[0, :, :, 0].size:
        return None
    absent = np.broadcast_to(op.weight_zero, cout).astype(np.int8)[:, np.newaxis]
    shape = (sh, sw, cout, len(rows), len(columns), depth)

    def spread() -> Array:
        made: Array = np.empty(shape, np.int8)
        for (i, row), (j, column) in itertools.product(enumerate(rows), enumerate(columns)):
            for (p, a), (q, b) in itertools.product(enumerate(row), enumerate(column)):
                made[p, q, :, i, j] = absent if a is None or b is None else op.weights[:, a, b]
        return made[:]  # a view: it is counted already

    keeper, channels = lowering.keeper, sh * sw * cout
    key = ("subpixel", op.strides, op.pads, absent.tobytes())
    weights = keeper.preparation.shared(key, op.weights, math.prod(shape), spread)
    made = keeper.struct("anynpu_subpixel")
    made.sh, made.sw, made.oh, made.ow, made.cout = sh, sw, y[1], y[2], cout
    conv = made.conv
    conv.n, conv.h, conv.w, conv.cin = x
    conv.oh, conv.ow, conv.cout = -(-y[1] // sh), -(-y[2] // sw), channels
    conv.kh, conv.kw, conv.top, conv.left = len(rows), len(columns), top, left
    conv.sh = conv.sw = conv.dh = conv.dw = conv.groups = 1
    conv.weights = keeper.pointer(weights)
    conv.weight_zero = keeper.by_channel(_tiled(op.weight_zero, cout, sh * sw), channels, np.int32)
    conv.bias = keeper.by_channel(_tiled(op.bias, cout, sh * sw), channels, np.int32)
    _fill_zeros(lowering, conv, zero, x[3])
    keeper.fill_epilogue(conv.epilogue, _tiled_epilogue(op.epilogue, cout, sh * sw), channels, np.dtype(np.int8))
    lowered = lowering.layer(lib.ANYNPU_LAYER_SUBPIXEL, lib.ANYNPU_CODES_I8, made, layer.inputs, layer.outputs[0])
    return replace(lowered, weights=weights)


def _subpixel_taps(op: ConvTranspose, axis: int) -> tuple[int, list[list[int | None]]]:
    """Pads before, and for each kernel element of the ordinary convolution the one that each phase has there, along one axis."""
    kernel, stride, pad = op.weights.shape[1 + axis], op.strides[axis], op.pads[axis]
    places = {}
    for tap in range(kernel):
        phase = (tap - pad) % stride
        places[(phase + pad - tap) // stride, phase] = tap
    first = min(0, *(offset for offset, _ in places))
    last = max(offset for offset, _ in places)
    taps = [[places.get((offset, phase)) for phase in range(stride)] for offset in range(first, last + 1)]
    return -first, taps


def _tiled(values: Array, channels: int, times: int) -> Array:
    return np.tile(np.broadcast_to(values, (*values.shape[:-1], channels)), times)


def _tiled_epilogue(epilogue: Finish, channels: int, times: int) -> Finish:
    """The epilogue for *times* as many channels: every array per channel, and every group, repeated."""

    def tiled(values: Array) -> Array:
        return _tiled(values, channels, times) if values.size else values

    def optional(values: Array | None) -> Array | None:
        return None if values is None else tiled(values)

    made: Finish
    if isinstance(epilogue, FixedPoint):
        made = replace(
            epilogue,
            channel_multiplier=tiled(epilogue.channel_multiplier),
            multiplier=tiled(epilogue.multiplier),
            shift=tiled(epilogue.shift),
            bounds=optional(epilogue.bounds),
            curves=epilogue.curves * (times if epilogue.curve_groups else 1),
            curve_groups=epilogue.curve_groups * times,
        )
    else:
        made = replace(epilogue, multiplier=tiled(epilogue.multiplier), clamp=optional(epilogue.clamp))
    return replace(
        made,
        zero_point=tiled(epilogue.zero_point),
        slope=optional(epilogue.slope),
        table=epilogue.table if epilogue.table is None or not epilogue.table_groups else np.tile(epilogue.table, (times, 1)),
        table_groups=epilogue.table_groups * times,
    )


def lower_dense(lowering: Lowering, layer: Layer) -> list[NativeLayer] | None:
    """A fully connected layer, as a convolution over rows."""
    op = layer.op
    assert isinstance(op, Dense)
    source = lowering.tensors[layer.inputs[0]]
    units, depth = op.weights.shape
    zero = zero_points(source)
    if zero.size > 1 and depth % zero.size:
        return None  # the rows cut through the channels: their zero points differ from row to row
    made = _convolution(lowering, layer, op, depth=depth)
    if made is None:
        return None
    conv = made.descriptor
    conv.n = conv.h = conv.oh = conv.kh = conv.kw = conv.sh = conv.sw = conv.dh = conv.dw = conv.groups = 1
    conv.w = conv.ow = math.prod(source.memory_shape) // depth
    conv.cin, conv.cout = depth, units
    _fill_zeros(lowering, conv, np.tile(zero, depth // zero.size) if zero.size > 1 else zero, depth)
    return [made]


def lower_matmul(lowering: Lowering, layer: Layer) -> list[NativeLayer] | None:
    """A product of two activations; a matrix that serves several products is named by its offset."""
    op = layer.op
    assert isinstance(op, MatMul)
    specs = [lowering.tensors[name] for name in (*layer.inputs, *layer.outputs)]
    codes = codes_of([spec.dtype.storage for spec in specs])
    if codes is None:
        return None
    a, b, out = (spec.memory_shape for spec in specs)
    a_zero, b_zero = (zero_points(spec) for spec in specs[:2])
    storage = specs[0].dtype.storage
    sums = a[-1] * largest_difference(storage, a_zero) * largest_difference(storage, b_zero)
    if codes == lib.ANYNPU_CODES_I8 and not (sums < _SUM_LIMIT and _fit_operands(a_zero, b_zero)):
        codes = lib.ANYNPU_CODES_I8_WIDE
    matmul = lowering.keeper.struct("anynpu_matmul")
    matmul.batch, matmul.m, matmul.k, matmul.n = math.prod(out[:-2]), out[-2], a[-1], out[-1]
    matmul.a_offsets = lowering.keeper.pointer(_matrix_offsets(a, out[:-2]))
    matmul.b_offsets = lowering.keeper.pointer(_matrix_offsets(b, out[:-2]))
    matmul.a_zero = lowering.keeper.by_channel(a_zero, a[-1], np.int32)
    matmul.b_zero = lowering.keeper.by_channel(b_zero, b[-1], np.int32)
    matmul.transpose_b = op.transpose_b
    lowering.keeper.fill_epilogue(matmul.epilogue, op.epilogue, out[-1], storage)
    return [lowering.layer(lib.ANYNPU_LAYER_MATMUL, codes, matmul, layer.inputs, layer.outputs[0])]


def _matrix_offsets(shape: tuple[int, ...], leading: tuple[int, ...]) -> Array:
    """Where the matrix for each of the *leading* places begins, in elements."""
    matrices = np.arange(math.prod(shape[:-2]), dtype=np.uintp).reshape(shape[:-2]) * np.uintp(shape[-2] * shape[-1])
    return np.broadcast_to(matrices, leading).reshape(-1)


def _convolution(lowering: Lowering, layer: Layer, op: Conv | ConvTranspose | Dense, depth: int) -> NativeLayer | None:
    """What convolutions and fully connected layers have in common: weights, bias and epilogue."""
    tensors, keeper = lowering.tensors, lowering.keeper
    source, target = tensors[layer.inputs[0]], tensors[layer.outputs[0]]
    residual = tensors[layer.inputs[1]] if len(layer.inputs) > 1 else None
    operands = [source, target, *([] if residual is None else [residual])]
    codes = codes_of([op.weights.dtype, *(spec.dtype.storage for spec in operands)])
    if codes is None or (residual is not None and residual.memory_shape != target.memory_shape):
        return None
    channels = op.weights.shape[0]
    wide = codes == lib.ANYNPU_CODES_I16
    if not wide and not _is_narrow(op, zero_points(source), depth):
        codes, wide = lib.ANYNPU_CODES_I8_WIDE, True
    conv = keeper.struct("anynpu_conv")
    weights = np.ascontiguousarray(op.weights)
    conv.weights = keeper.pointer(weights)
    conv.weight_zero = keeper.by_channel(op.weight_zero, channels, np.int32)
    conv.bias = keeper.by_channel(op.bias, channels, np.int64 if wide else np.int32)
    residual_zero = None if residual is None else zero_points(residual)
    keeper.fill_epilogue(conv.epilogue, op.epilogue, channels, target.dtype.storage, residual_zero)
    kind = lib.ANYNPU_LAYER_CONV_TRANSPOSE if isinstance(op, ConvTranspose) else lib.ANYNPU_LAYER_CONV
    lowered = lowering.layer(kind, codes, conv, layer.inputs, layer.outputs[0], least_inputs=2)
    return replace(lowered, weights=weights)


def _fill_zeros(lowering: Lowering, conv: Any, zero: Array, channels: int) -> None:
    if (zero == zero[0]).all():
        conv.input_zero = int(zero[0])
    else:
        conv.input_zeros = lowering.keeper.by_channel(zero, channels, np.int32)


def _fit_operands(*zeros: Array) -> bool:
    return all(int(np.abs(zero).max()) <= _OPERAND_LIMIT for zero in zeros)


def _is_narrow(op: Conv | ConvTranspose | Dense, zero: Array, depth: int) -> bool:
    """Whether no sum of the layer can leave 32 bits and every operand fits 16."""
    if not _fit_operands(zero, op.weight_zero):
        return False
    largest_input = largest_difference(np.dtype(np.int8), zero)
    largest_bias = int(np.abs(op.bias.astype(np.int64)).max())
    if depth * largest_input * largest_difference(np.dtype(np.int8), op.weight_zero) + largest_bias < _SUM_LIMIT:
        return True
    weights = op.weights.reshape(len(op.weights), -1)
    zeros = np.broadcast_to(op.weight_zero, len(weights))[:, np.newaxis]
    biases = np.broadcast_to(op.bias, len(weights)).astype(np.int64)
    at_once = max(1, _WEIGHTS_AT_ONCE // depth)
    for begin in range(0, len(weights), at_once):
        rows = slice(begin, begin + at_once)
        reach = np.abs(weights[rows].astype(np.int64) - zeros[rows]).sum(axis=1) * largest_input
        if int((reach + np.abs(biases[rows])).max()) >= _SUM_LIMIT:
            return False
    return True
