"""From any tensor to any other."""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import numpy.typing as npt

from ..._util.types import Array
from ...errors import InputError, ShapeError, TensorTypeError
from ...tensor import Affine, DType, Layout, Quantization, TensorSpec
from .. import Preprocess
from .kernel import POINTER, Geometry, KernelCall, Place, check_out, ffi, lib, type_code, type_of_size
from .values import QUANTIZED_TYPES, byte_job, is_byte, meaning, pack_int4, parameters_of, unpack_int4

if TYPE_CHECKING:
    from typing_extensions import Unpack


# Between NCHW, NHWC and NC1HWC2, with padding and strides.


class Stored(TypedDict, total=False):
    """Options of the layout functions.

    :ivar height: rows of the source that are the image, where it is stored with padding; 0: all of them
    :ivar width: the same of its columns
    :ivar h_stride: stored rows of the result; 0: none but those of the image
    :ivar w_stride: the same of its columns
    :ivar fill: what padding becomes
    :ivar out: the array to write to
    """

    height: int
    width: int
    h_stride: int
    w_stride: int
    fill: float
    out: Array | None


_AXES = {"nchw": "[N, C, H, W]", "nhwc": "[N, H, W, C]", "nc1hwc2": "[N, C1, H, W, C2]"}


def nchw_to_nhwc(array: Array, **stored: Unpack[Stored]) -> Array:
    """[N, C, H, W] to [N, H, W, C]."""
    return _relayout(array, "nchw", "nhwc", **stored)


def nhwc_to_nchw(array: Array, **stored: Unpack[Stored]) -> Array:
    """[N, H, W, C] to [N, C, H, W]."""
    return _relayout(array, "nhwc", "nchw", **stored)


def nchw_to_nc1hwc2(array: Array, c2: int, *, c1: int = 0, **stored: Unpack[Stored]) -> Array:
    """[N, C, H, W] to [N, C1, H, W, C2]. *c1* is the number of blocks (0: as many as the channels need).

    >>> nchw_to_nc1hwc2(np.arange(3, dtype=np.int8).reshape(1, 3, 1, 1), 4, fill=-1).ravel().tolist()
    [0, 1, 2, -1]
    """
    return _relayout(array, "nchw", "nc1hwc2", c1=c1, c2=c2, **stored)


def nhwc_to_nc1hwc2(array: Array, c2: int, *, c1: int = 0, **stored: Unpack[Stored]) -> Array:
    """[N, H, W, C] to [N, C1, H, W, C2]. *c1* is the number of blocks (0: as many as the channels need)."""
    return _relayout(array, "nhwc", "nc1hwc2", c1=c1, c2=c2, **stored)


def nc1hwc2_to_nchw(array: Array, channels: int, **stored: Unpack[Stored]) -> Array:
    """[N, C1, H, W, C2] to [N, C, H, W] with the first *channels* channels."""
    return _relayout(array, "nc1hwc2", "nchw", channels=channels, **stored)


def nc1hwc2_to_nhwc(array: Array, channels: int, **stored: Unpack[Stored]) -> Array:
    """[N, C1, H, W, C2] to [N, H, W, C] with the first *channels* channels."""
    return _relayout(array, "nc1hwc2", "nhwc", channels=channels, **stored)


def nc1hwc2_to_flat(raw: npt.ArrayLike, c1: int, h: int, w: int, c2: int, channels: int) -> Array:
    """A raw NC1HWC2 output of batch 1 as a flat array in NCHW order: element ``channel * h * w + y * w + x``.

    *raw* may be longer than the tensor, as device buffers are.

    >>> nc1hwc2_to_flat(np.arange(8, dtype=np.int8), 1, 1, 2, 4, channels=2).tolist()
    [0, 4, 1, 5]
    """
    if isinstance(raw, (bytes, bytearray, memoryview)):
        raw = np.frombuffer(raw, np.int8)
    values = np.asarray(raw).reshape(-1)
    needed = c1 * h * w * c2
    if min(c1, h, w, c2) <= 0 or values.size < needed:
        raise ShapeError(
            f"{values.size} elements are not a tensor of c1={c1}, h={h}, w={w}, c2={c2}",
            hint="take the four numbers from the output's native attributes",
        )
    return nc1hwc2_to_nchw(values[:needed].reshape(1, c1, h, w, c2), channels).reshape(-1)


def _relayout(
    array: Any,
    source: str,
    target: str,
    *,
    channels: int = 0,
    c1: int = 0,
    c2: int = 0,
    height: int = 0,
    width: int = 0,
    h_stride: int = 0,
    w_stride: int = 0,
    fill: float = 0,
    out: Array | None = None,
) -> Array:
    if not isinstance(array, np.ndarray):
        raise TensorTypeError(f"got a {type(array).__name__}, not an array", hint="wrap it in np.asarray")
    if array.ndim != len(_AXES[source].split(",")):
        raise ShapeError(f"got shape {list(array.shape)}, not {_AXES[source]}", hint="add the missing axes with np.expand_dims")
    n = array.shape[0]
    stored_h, stored_w = array.shape[1:3] if source == "nhwc" else array.shape[2:4]
    h, w = height or stored_h, width or stored_w
    if not (0 <= h <= stored_h and 0 <= w <= stored_w):
        raise ShapeError(f"an image of {h}x{w} in an array stored as {stored_h}x{stored_w}", hint="check height and width")
    blocks = {"nchw": (array.shape[1], 1), "nhwc": (1, array.shape[-1]), "nc1hwc2": (array.shape[1], array.shape[-1])}[source]
    c = channels if source == "nc1hwc2" else blocks[0] * blocks[1]
    if not 0 <= c <= blocks[0] * blocks[1]:
        raise ShapeError(f"{c} channels from {blocks[0]} blocks of {blocks[1]}", hint="check channels against C1 * C2")
    if target == "nc1hwc2" and (c2 <= 0 or (c1 and c1 * c2 < c)):
        raise ShapeError(f"{c} channels do not fit {c1} blocks of {c2}", hint="c2 is positive, c1 is 0 or large enough")
    result_blocks = {"nchw": (c, 1), "nhwc": (1, c), "nc1hwc2": (c1 or -(-c // max(c2, 1)), c2)}[target]
    rows, columns = h_stride or h, w_stride or w
    if rows < h or columns < w:
        raise ShapeError(f"strides {rows}x{columns} for an image of {h}x{w}", hint="strides are 0 or at least the size")
    shape = {
        "nchw": (n, c, rows, columns),
        "nhwc": (n, rows, columns, c),
        "nc1hwc2": (n, result_blocks[0], rows, columns, result_blocks[1]),
    }[target]
    geometry = Geometry(n, c, 1, h, w, Place(*blocks, stored_h, stored_w), Place(*result_blocks, rows, columns))
    kind = type_of_size(array.dtype.itemsize)
    result, values = check_out(out, shape, array.dtype, np.ascontiguousarray(array))
    try:
        if array.dtype.kind in "iu" and not np.iinfo(array.dtype).min <= fill <= np.iinfo(array.dtype).max:
            raise OverflowError(fill)  # numpy 1 would take its lowest bits
        pattern = int.from_bytes(np.array(fill, array.dtype).tobytes(), "little")
    except (OverflowError, ValueError):
        raise TensorTypeError(f"fill={fill} is not a value of {array.dtype}", hint="use the tensor's zero point") from None
    KernelCall(geometry, kind, kind, fill=pattern).run(values, result)
    return result


# How a conversion between two tensors is done: worked out once for each pair and kept.


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
    """The float32 tensor between, where one side is quantized along an axis that is not the channel of the other."""
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
                f"'{spec.name}' is {spec.dtype.value} and carries a quantization",
                hint="only integers of at most 32 bits are quantized",
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
    # per channel the axis matters too: for PLAIN it is the last one
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


def convert(
    array: Array, source: TensorSpec, target: TensorSpec, out: Array | None = None, preprocess: Preprocess | None = None
) -> Array:
    """The tensor *target* from *array*, which holds *source*.

    Both specs have the same shape; everything else may differ. *array* is in memory order: ``source.memory_shape`` of
    ``source.dtype.storage``, or flat with as many elements, or the raw bytes as a flat uint8 array. The result is
    ``target.memory_shape`` (four-bit types: flat bytes); *out* may be flat or raw bytes too.

    A quantized code stands for its value, any other element for its number. Values go through float32 with the rounding of
    :mod:`anynpu.program.arithmetic`; numbers that an integer type cannot hold are clamped; integers become other integers without a
    detour. Padding of the target becomes its zero point. With *preprocess* each value becomes (value - mean) / std before it is stored.

    >>> image = np.array([0, 128, 255], np.uint8).reshape(1, 1, 1, 3)
    >>> pixels = TensorSpec("x", (1, 3, 1, 1), DType.UINT8, Layout.NHWC)
    >>> from anynpu.tensor import Affine
    >>> codes = TensorSpec("x", (1, 3, 1, 1), DType.INT8, Layout.NHWC, Affine.per_tensor(1 / 255, -128))
    >>> convert(image, pixels, codes, preprocess=Preprocess((0.0,), (255.0,))).ravel().tolist()
    [-128, 0, 127]
    """
    plan = plan_conversion(source, target, preprocess)
    if plan.middle is not None:
        # mean and std belong to the pass that knows the image's channels
        first, second = (None, preprocess) if source.layout is Layout.PLAIN else (preprocess, None)
        return convert(convert(array, source, plan.middle, preprocess=first), plan.middle, target, out, second)
    values = np.ascontiguousarray(view_of(array, plan.source, "the array"))
    given = None if out is None else view_of(out, plan.target, "out")
    if plan.source.packed:
        values = unpack_int4(values, plan.source.elements, signed=source.dtype is DType.INT4)
    if plan.target.packed:
        codes = np.empty(plan.target.elements, np.uint8)
        plan.call.run(values, codes)
        result = pack_int4(codes, out=given)
    else:
        result, values = check_out(given, plan.target.shape, plan.target.storage, values)
        plan.call.run(values, result)
    return result if out is None else out


class Conversion:
    """A conversion that is done often: from memory that holds *source* to memory that holds *target*, by address.

    Nothing is checked: both addresses must have ``nbytes`` of their tensor, and the two must not overlap.

    >>> source = TensorSpec("x", (1, 2, 1, 2), DType.UINT8, Layout.NCHW)
    >>> target = TensorSpec("x", (1, 2, 1, 2), DType.FLOAT32, Layout.NHWC)
    >>> values, result = np.arange(4, dtype=np.uint8), np.empty(4, np.float32)
    >>> Conversion(source, target).run(values.ctypes.data, result.ctypes.data)
    >>> result.tolist()
    [0.0, 2.0, 1.0, 3.0]
    """

    def __init__(self, source: TensorSpec, target: TensorSpec, preprocess: Preprocess | None = None) -> None:
        self.source = source
        self.target = target
        self.preprocess = preprocess
        plan = plan_conversion(source, target, preprocess)
        direct = plan.middle is None and not plan.source.packed and not plan.target.packed
        self._call = plan.call if direct else None
        self._struct = plan.call.descriptor if direct else None

    def run(self, source: int, target: int) -> None:
        """Convert what lies at the address *source* to the address *target*."""
        if self._struct is not None:
            lib.anynpu_convert(self._struct, ffi.cast(POINTER, source), ffi.cast(POINTER, target))
        else:
            convert(bytes_at(source, self.source), self.source, self.target, bytes_at(target, self.target), self.preprocess)


def bytes_at(address: int, spec: TensorSpec) -> Array:
    """The memory of a tensor at an address, as flat bytes."""
    return np.ctypeslib.as_array((ctypes.c_ubyte * spec.nbytes).from_address(address))


def image_to_codes(
    image: npt.NDArray[np.uint8], target: TensorSpec, preprocess: Preprocess | None = None, out: Array | None = None
) -> Array:
    """The input tensor *target* from an image of bytes, [H, W, C] or [N, H, W, C].

    Each byte becomes the code of (byte - mean) / std, by an exact table for each channel; where that table is a straight line or a
    mere change of sign the kernel computes it instead. *target* may be of any type and layout, with strides.

    >>> from anynpu.tensor import Affine
    >>> codes = TensorSpec("x", (1, 3, 1, 2), DType.INT8, Layout.NHWC, Affine.per_tensor(1 / 255, -128))
    >>> image_to_codes(np.full((1, 2, 3), 255, np.uint8), codes, Preprocess((0.0,), (255.0,))).ravel().tolist()
    [127, 127, 127, 127, 127, 127]
    """
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8:
        kind = image.dtype if isinstance(image, np.ndarray) else type(image).__name__
        raise TensorTypeError(f"the image for '{target.name}' is {kind}, not uint8", hint="convert() takes other types")
    if len(target.shape) != 4:
        raise ShapeError(f"'{target.name}' has shape {list(target.shape)}: not an image", hint="use convert()")
    n, c, h, w = target.shape
    if image.shape != (n, h, w, c) and (n != 1 or image.shape != (h, w, c)):
        raise ShapeError(
            f"the image for '{target.name}' has shape {list(image.shape)}, it takes {[n, h, w, c]}",
            hint="resize it, and put the channels last",
        )
    pixels = TensorSpec(target.name, target.shape, DType.UINT8, Layout.NHWC)
    return convert(image.reshape(n, h, w, c), pixels, target, out, preprocess)
