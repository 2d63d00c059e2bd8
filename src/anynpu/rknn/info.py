"""What queries answer, as Python objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .._rknn import ffi
from .attributes import DTYPE_OF
from .constants import rknn_tensor_format, rknn_tensor_qnt_type, rknn_tensor_type

__all__ = ["MemorySizes", "ShapeRange", "TensorInfo", "Version", "read_attr", "write_attr"]


@dataclass(frozen=True)
class TensorInfo:
    """The attributes of an input or output.

    :ivar shape: its extents in the order of ``fmt``
    :ivar elements: how many, padding of channel blocks included
    :ivar size: bytes without the padding of rows; ``size_with_stride`` with it
    :ivar w_stride: stored pixels of a row; 0 where that does not apply
    """

    index: int
    name: str
    shape: tuple[int, ...]
    elements: int
    size: int
    fmt: rknn_tensor_format
    type: rknn_tensor_type
    qnt_type: rknn_tensor_qnt_type
    fl: int
    zp: int
    scale: float
    w_stride: int
    size_with_stride: int
    h_stride: int

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The numpy type of an element; bfloat16 and int4 are held as raw bits."""
        return DTYPE_OF[self.type].storage

    @property
    def n_elems(self) -> int:
        """``elements`` under the interface's name."""
        return self.elements

    @property
    def format(self) -> rknn_tensor_format:
        """``fmt``, in full."""
        return self.fmt

    @property
    def data_type(self) -> rknn_tensor_type:
        """``type``, in full."""
        return self.type

    @property
    def layout(self) -> str:
        """``nchw``, ``nhwc``, ``nc1hwc2`` or ``undefined``."""
        return self.fmt.name.removeprefix("RKNN_TENSOR_").lower()


@dataclass(frozen=True)
class MemorySizes:
    """What a model needs and what the chip has, in bytes."""

    weights: int
    internal: int
    allocated: int
    sram: int
    sram_free: int


@dataclass(frozen=True)
class ShapeRange:
    """The shapes that an input may have."""

    index: int
    name: str
    fmt: rknn_tensor_format
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Version:
    """Of library and driver, as they state it."""

    api: str
    driver: str


def read_attr(struct: Any) -> TensorInfo:
    """From a ``rknn_tensor_attr``."""
    return TensorInfo(
        index=struct.index,
        name=ffi.string(struct.name).decode("utf-8", "replace"),
        shape=tuple(struct.dims[0 : struct.n_dims]),
        elements=struct.n_elems,
        size=struct.size,
        fmt=rknn_tensor_format(struct.fmt),
        type=rknn_tensor_type(struct.type),
        qnt_type=rknn_tensor_qnt_type(struct.qnt_type),
        fl=struct.fl,
        zp=struct.zp,
        scale=struct.scale,
        w_stride=struct.w_stride,
        size_with_stride=struct.size_with_stride,
        h_stride=struct.h_stride,
    )


def write_attr(info: TensorInfo, *, pass_through: bool = False) -> Any:
    """A ``rknn_tensor_attr *`` with these values."""
    struct = ffi.new("rknn_tensor_attr *")
    struct.index, struct.n_dims = info.index, len(info.shape)
    for axis, extent in enumerate(info.shape):
        struct.dims[axis] = extent
    struct.name = info.name.encode()[:255]
    struct.n_elems, struct.size = info.elements, info.size
    struct.fmt, struct.type, struct.qnt_type = int(info.fmt), int(info.type), int(info.qnt_type)
    struct.fl, struct.zp, struct.scale = info.fl, info.zp, info.scale
    struct.w_stride, struct.size_with_stride, struct.h_stride = info.w_stride, info.size_with_stride, info.h_stride
    struct.pass_through = pass_through
    return struct
