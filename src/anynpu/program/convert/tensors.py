"""From any tensor to any other."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from ..._native import ffi, lib
from ..._util.types import Array
from ...errors import ShapeError, TensorTypeError
from ...tensor import DType, Layout, TensorSpec
from .. import Preprocess
from .kernel import POINTER, check_out
from .plan import plan_conversion, view_of
from .values import pack_int4, unpack_int4


def convert(
    array: Array, source: TensorSpec, target: TensorSpec, out: Array | None = None, preprocess: Preprocess | None = None
) -> Array:
    """The tensor *target* from *array*, which holds *source*.

    Both specs have the same shape; everything else may differ. *array* is in memory order: ``source.memory_shape`` of
    ``source.dtype.storage``, or flat with as many elements, or the raw bytes as a flat uint8 array. The result is
    ``target.memory_shape`` (four-bit types: flat bytes); *out* may be flat or raw bytes too.

    A quantised code stands for its value, any other element for its number. Values go through float32 with the rounding of
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
    """The input tensor *target* from a picture of bytes, [H, W, C] or [N, H, W, C].

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
