"""Between NCHW, NHWC and NC1HWC2, with padding and strides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import numpy.typing as npt

from ..._util.types import Array
from ...errors import ShapeError, TensorTypeError
from .kernel import Geometry, KernelCall, Place, check_out, type_of_size

if TYPE_CHECKING:
    from typing_extensions import Unpack


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
        raise ShapeError(f"strides {rows}x{columns} for an image of {h}x{w}", hint="strides are 0 or at least the extent")
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
