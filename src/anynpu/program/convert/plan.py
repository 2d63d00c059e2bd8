"""How a conversion between two tensors is done: worked out once for each pair and kept."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from ..._native import lib
from ..._util.types import Array
from ...errors import InputError, ShapeError, TensorTypeError
from ...tensor import Affine, DType, Layout, Quantization, TensorSpec
from .. import Preprocess
from .bytetables import byte_job, is_byte
from .kernel import Geometry, KernelCall, Place, type_code
from .values import QUANTIZED_TYPES, meaning, parameters_of


class _Side:
    """What an array must be like to hold a tensor."""

    def __init__(self, spec: TensorSpec) -> None:
        self.name = spec.name
        self.dtype = spec.dtype.value
        self.storage = spec.dtype.storage
        self.shape = spec.memory_shape
        self.elements = math.prod(self.shape)
        self.nbytes = spec.nbytes
        self.packed = spec.dtype.bits == 4
        self.hint = f"that is the {spec.layout.value} order of {list(spec.shape)}"


class _Plan:
    """All that depends on the two tensors alone, made once for each pair."""

    def __init__(self, source: TensorSpec, target: TensorSpec, preprocess: Preprocess | None) -> None:
        if source.shape != target.shape:
            raise ShapeError(
                f"'{source.name}' has shape {list(source.shape)}, '{target.name}' {list(target.shape)}",
                hint="convert() changes type and layout, not the shape",
            )
        for spec in (source, target):
            _check(spec)
        self.source, self.target = _Side(source), _Side(target)
        self.middle = _between(source, target)
        if self.middle is None:
            self.call = _kernel_call(source, target, preprocess)


@lru_cache(maxsize=512)
def plan_conversion(source: TensorSpec, target: TensorSpec, preprocess: Preprocess | None) -> _Plan:
    return _Plan(source, target, preprocess)


def view_of(array: Any, side: _Side, what: str) -> Array:
    """*array* in memory order with the stored type: flat bytes for four bits, the stored shape for all others."""
    if not isinstance(array, np.ndarray):
        raise TensorTypeError(f"{what} for '{side.name}' is a {type(array).__name__}, not an array", hint="use np.asarray")
    if array.ndim == 1 and array.dtype == np.uint8 and array.size == side.nbytes and array.flags.c_contiguous:
        return array if side.packed else array.view(side.storage).reshape(side.shape)
    if array.dtype != side.storage:
        raise TensorTypeError(
            f"{what} for '{side.name}' is {array.dtype}, the tensor is {side.dtype}",
            hint=f"pass an array of {side.storage}, or the raw bytes as a flat uint8 array",
        )
    if not side.packed and array.shape == side.shape:
        return array
    if side.packed or array.ndim != 1 or array.size != side.elements:
        wanted = [side.nbytes] if side.packed else list(side.shape)
        raise ShapeError(f"{what} for '{side.name}' has shape {list(array.shape)}, memory has {wanted}", hint=side.hint)
    return array.reshape(side.shape)


def _between(source: TensorSpec, target: TensorSpec) -> TensorSpec | None:
    """The float32 tensor between, where one side is quantised along an axis that is not the channel of the other."""
    if len(source.shape) < 3 or (source.layout is Layout.PLAIN) == (target.layout is Layout.PLAIN):
        return None
    for spec in (source, target):
        if spec.layout is Layout.PLAIN and spec.quantization is not None and not spec.quantization.is_per_tensor:
            return TensorSpec(spec.name, spec.shape, DType.FLOAT32, Layout.PLAIN)
    return None


def _kernel_call(source: TensorSpec, target: TensorSpec, preprocess: Preprocess | None) -> KernelCall:
    """The kernel's descriptor."""
    from_quantization, to_quantization = meaning(source), meaning(target)
    geometry = _geometry(source, target)
    normalization = _normalization(preprocess, geometry.c, source.name)
    types = type_code(source.dtype), type_code(target.dtype)
    fill = _fill(target)
    if normalization is None and source.dtype is target.dtype and _same(source, target, from_quantization, to_quantization):
        if source.memory_shape == target.memory_shape and source.layout is target.layout and not _padded(target):
            geometry = Geometry.flat(source.elements)
        return KernelCall(geometry, *types, fill=fill)
    limits = (0, 1) if target.dtype is DType.BOOL else (0, 0) if target.dtype.is_float else target.dtype.limits
    if is_byte(source.dtype) and is_byte(target.dtype):
        return byte_job(source, target, geometry, normalization, fill, limits)
    if normalization is None and not any((from_quantization, to_quantization, source.dtype.is_float, target.dtype.is_float)):
        # above int64 a clamp to the limit of uint64 cannot happen: the kernel's numbers are int64
        limits = (limits[0], min(limits[1], 2**63 - 1))
        return KernelCall(geometry, *types, lib.ANYNPU_INTEGERS, fill=fill, limits=limits)
    arrays = _parameters("source", from_quantization, geometry.c) | _parameters("target", to_quantization, geometry.c)
    if normalization is not None:
        arrays |= {"mean": normalization[0], "std": normalization[1]}
    wide = target.dtype in (DType.INT64, DType.UINT64)
    return KernelCall(geometry, *types, lib.ANYNPU_VALUES, fill=fill, limits=(0, 0) if wide else limits, arrays=arrays)


def _check(spec: TensorSpec) -> None:
    quantization = spec.quantization
    if quantization is not None and spec.dtype not in QUANTIZED_TYPES:
        trivial = quantization.is_per_tensor and quantization.scale == 1.0 and quantization.zero_point == 0
        if not trivial:
            raise TensorTypeError(
                f"'{spec.name}' is {spec.dtype.value} and carries a quantisation",
                hint="only integers of at most 32 bits are quantised",
            )
    if spec.layout is Layout.NC1HWC2 and spec.c2 <= 0:
        raise ShapeError(f"'{spec.name}' is nc1hwc2 without a channel block", hint="set c2 in its TensorSpec")
    if spec.layout in (Layout.NHWC, Layout.NC1HWC2) and len(spec.shape) < 2:
        raise ShapeError(f"'{spec.name}' of rank {len(spec.shape)} cannot be {spec.layout.value}", hint="use Layout.PLAIN")
    if spec.layout is Layout.NC1HWC2 and spec.memory_shape[1] * spec.c2 < spec.shape[1]:
        raise ShapeError(
            f"'{spec.name}' has {spec.shape[1]} channels, {spec.c1} blocks of {spec.c2} hold fewer", hint="set c1 to 0 or larger"
        )


def _same(source: TensorSpec, target: TensorSpec, first: Quantization | None, second: Quantization | None) -> bool:
    """Whether a code stands for the same value on both sides."""
    if first is None or second is None:
        return first is second
    if first.is_per_tensor and second.is_per_tensor:
        return np.float32(first.scale) == np.float32(second.scale) and first.zero_point == second.zero_point
    # by channel the axis matters too: for PLAIN it is the last one
    return first == second and (len(source.shape) < 3 or (source.layout is Layout.PLAIN) == (target.layout is Layout.PLAIN))


def _padded(spec: TensorSpec) -> bool:
    return math.prod(spec.memory_shape) != spec.elements


def _geometry(source: TensorSpec, target: TensorSpec) -> Geometry:
    shape = source.shape
    if len(shape) < 2 or (source.layout is Layout.PLAIN and target.layout is Layout.PLAIN):
        return Geometry.along(shape or (1,), len(shape or (1,)) - 1)
    spatial = shape[2:]
    height, width = (1, 1, *spatial)[-2:]
    return Geometry(shape[0], shape[1], math.prod(spatial[:-2]), height, width, _place(source), _place(target))


def _place(spec: TensorSpec) -> Place:
    memory = spec.memory_shape
    if spec.layout is Layout.NHWC:
        blocks, stored = (1, memory[-1]), memory[1:-1]
    elif spec.layout is Layout.NC1HWC2:
        blocks, stored = (memory[1], memory[-1]), memory[2:-1]
    else:
        blocks, stored = (memory[1], 1), memory[2:]
    return Place(*blocks, *(1, 1, *stored)[-2:])


def _fill(target: TensorSpec) -> int:
    """An element of padding, as its bits."""
    if target.dtype not in QUANTIZED_TYPES or target.quantization is None:
        return 0
    quantization = target.quantization
    code = quantization.zero_points[0] if isinstance(quantization, Affine) else 0
    first, last = target.dtype.limits
    size = target.dtype.storage.itemsize
    return max(first, min(code, last)) & ((1 << (8 * size)) - 1)


def _normalization(preprocess: Preprocess | None, channels: int, name: str) -> tuple[Array, Array] | None:
    """Mean and std as float32, one entry or one for each channel; None where they change nothing."""
    if preprocess is None:
        return None
    mean, std = np.asarray(preprocess.mean, np.float32), np.asarray(preprocess.std, np.float32)
    if {len(mean), len(std)} - {1, channels}:
        raise ShapeError(
            f"'{name}' has {channels} channels, got {len(mean)} means and {len(std)} stds",
            hint="give one, or one for each channel",
        )
    if not (np.isfinite(mean).all() and np.isfinite(std).all() and std.all()):
        raise InputError(
            f"mean and std of '{name}' must be finite and std not zero", hint="use std 1 to leave values as they are"
        )
    if not mean.any() and (std == 1).all():
        return None
    return _single_if_equal(mean), _single_if_equal(std)


def _single_if_equal(values: Array) -> Array:
    return values[:1] if (values == values[0]).all() else values


def _parameters(side: str, quantization: Quantization | None, channels: int) -> dict[str, Array]:
    if quantization is None:
        scale, zero = np.ones(1, np.float32), np.zeros(1, np.int32)
    else:
        scale, zero = parameters_of(quantization, channels)
    return {f"{side}_scale": scale, f"{side}_zero": zero}
