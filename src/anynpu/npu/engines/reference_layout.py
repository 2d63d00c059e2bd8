"""Operators that move elements or change their type, in the reference engine: Slice, Pad, Transpose and Convert."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..._util.types import Array
from ...errors import DeviceError
from ...program import Pad, Slice, Transpose
from ...program.arithmetic import dequantize, quantize
from ...program.convert import bfloat16_to_float32, float32_to_bfloat16
from ...tensor import DType, Layout, Quantization, TensorSpec
from .reference_common import blocks

_CONVERTIBLE = frozenset(DType) - {DType.INT4, DType.UINT4}


def slices(op: Slice, source: Array, outputs: Sequence[Array]) -> None:
    """A part of the input for each output."""
    for output, starts, steps in zip(outputs, op.starts, op.steps, strict=True):
        output[...] = source[
            tuple(
                _steps(start, step, count, extent)
                for start, step, count, extent in zip(starts, steps, output.shape, source.shape, strict=True)
            )
        ]


def _steps(start: int, step: int, count: int, extent: int) -> slice:
    first = start + extent if start < 0 else start
    stop = first + step * count
    return slice(first, stop if stop >= 0 else None, step)


def pad(op: Pad, source: Array, output: Array) -> None:
    """The input with a border."""
    border = tuple(zip(op.before, op.after, strict=True))
    if op.mode == "constant":
        output[...] = np.pad(source, border, constant_values=op.value)
    else:
        output[...] = np.pad(source, border, mode=op.mode)


def transpose(op: Transpose, source: Array, output: Array) -> None:
    """The memory as another shape, its axes permuted."""
    output[...] = source.reshape(op.view).transpose(op.perm).reshape(output.shape)


def convert(source: Array, source_spec: TensorSpec, output: Array, output_spec: TensorSpec) -> None:
    """The same values in another type, quantization or layout.

    A quantized integer stands for its value; any other number stands for itself. Between the same type and quantization
    quantized values are copied. A cast to an integer type that has no quantization drops the fraction, as ONNX does.
    """
    for spec in (source_spec, output_spec):
        if spec.dtype not in _CONVERTIBLE or spec.layout is Layout.NC1HWC2:
            raise DeviceError(
                f"the reference engine does not convert tensor '{spec.name}' ({spec.dtype.value}, {spec.layout.value})",
                hint="inside a program use floats, bool or integers of 8 bits and more, in layout nchw, nhwc or plain",
            )
    codes, target = _onnx_order(source, source_spec), _onnx_order(output, output_spec)
    before, after = _quantization(source_spec), _quantization(output_spec)
    if source_spec.dtype is output_spec.dtype and before == after and _same_axis(source_spec, output_spec):
        target[...] = codes
        return
    if source_spec.dtype is DType.BFLOAT16:
        codes = bfloat16_to_float32(np.ascontiguousarray(codes))
    values = codes if before is None else _values(codes, source_spec, before)
    values, target = _channels_last(values, output_spec), _channels_last(target, output_spec)
    for block in blocks(target.shape, 16):
        with np.errstate(over="ignore", invalid="ignore"):  # what is too large saturates, or is infinite in float16
            if output_spec.dtype is DType.BFLOAT16:
                target[block] = float32_to_bfloat16(np.ascontiguousarray(values[block], np.float32))
            elif after is None:
                target[block] = values[block].astype(target.dtype)
            else:
                target[block] = quantize(values[block], after, output_spec.dtype)


def _values(codes: Array, spec: TensorSpec, quantization: Quantization) -> Array:
    """What *codes* stand for, in the order of the shape."""
    values = np.empty(codes.shape, np.float32)
    codes, target = _channels_last(codes, spec), _channels_last(values, spec)
    for block in blocks(codes.shape, 16):
        target[block] = dequantize(codes[block], quantization)
    return values


def _quantization(spec: TensorSpec) -> Quantization | None:
    """The quantization of an integer tensor; a float or a truth value always stands for itself."""
    return None if spec.dtype.is_float or spec.dtype is DType.BOOL else spec.quantization


def _same_axis(a: TensorSpec, b: TensorSpec) -> bool:
    """Whether groups of channels, if there are any, lie along the same axis of the shape."""
    return a.quantization is None or a.quantization.is_per_tensor or (a.layout is Layout.PLAIN) == (b.layout is Layout.PLAIN)


def _onnx_order(array: Array, spec: TensorSpec) -> Array:
    """A view of a tensor's memory with the axes of its shape; padding is left out. A scalar gets one axis."""
    if not spec.shape:
        return array.reshape(1)
    if spec.layout is Layout.NHWC:
        array = np.moveaxis(array, -1, 1)
    return array[tuple(slice(extent) for extent in spec.shape)]


def _channels_last(array: Array, spec: TensorSpec) -> Array:
    """A view of an array in the order of the shape, with the axis that *spec* counts as channels at the end."""
    return array if spec.layout is Layout.PLAIN or array.ndim < 2 else np.moveaxis(array, 1, -1)
