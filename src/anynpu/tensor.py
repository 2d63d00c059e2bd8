"""What a tensor is: name, shape, type, memory layout, quantization, strides.

Shapes are always in the order of the ONNX model (N, C, H, W for images), whatever the memory layout is. ``memory_shape`` gives the
sizes in the order in which they lie in memory.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple that is not less than *value*.

    >>> round_up(13, 8)
    16
    """
    return -(-value // multiple) * multiple


def row_major_strides(shape: Sequence[int]) -> list[int]:
    """Elements from one index to the next, by axis of a row-major array.

    >>> row_major_strides((2, 3, 4))
    [12, 4, 1]
    """
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


class DType(str, enum.Enum):
    """An element type. ``bfloat16`` is held as its 16 bits, ``int4`` and ``uint4`` as two elements per byte, the first in the low half."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT4 = "int4"
    UINT4 = "uint4"
    INT8 = "int8"
    UINT8 = "uint8"
    INT16 = "int16"
    UINT16 = "uint16"
    INT32 = "int32"
    UINT32 = "uint32"
    INT64 = "int64"
    UINT64 = "uint64"
    BOOL = "bool"

    @property
    def bits(self) -> int:
        """Bits per element: 4 for the packed types."""
        return 4 if self in (DType.INT4, DType.UINT4) else self.storage.itemsize * 8

    @property
    def storage(self) -> np.dtype[np.generic]:
        """The numpy type that holds it in memory."""
        return _STORAGE[self]

    @property
    def is_float(self) -> bool:
        return self in (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)

    @property
    def limits(self) -> tuple[int, int]:
        """Smallest and largest code of an integer type.

        >>> DType.INT8.limits
        (-128, 127)
        """
        if self.is_float or self is DType.BOOL:
            raise ValueError(f"{self.value} has no integer limits")
        if self.value.startswith("u"):
            return 0, (1 << self.bits) - 1
        return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1

    def nbytes(self, elements: int) -> int:
        """Bytes that *elements* of this type take, tightly packed."""
        return (elements * self.bits + 7) // 8


_HELD_AS = {DType.BFLOAT16: "uint16", DType.INT4: "uint8", DType.UINT4: "uint8"}
_STORAGE: dict[DType, np.dtype[np.generic]] = {dtype: np.dtype(_HELD_AS.get(dtype, dtype.value)) for dtype in DType}


class Layout(str, enum.Enum):
    """The order of the axes in memory."""

    PLAIN = "plain"  # row-major in the order of the shape; what the vendors call undefined
    NCHW = "nchw"  # the same for an image
    NHWC = "nhwc"  # channels last; also for rank 3 (N, L, C) and 5
    NC1HWC2 = "nc1hwc2"  # channels in blocks of C2, the block innermost

    @classmethod
    def row_major(cls, rank: int) -> Layout:
        """The name of the row-major layout at *rank*."""
        return cls.NCHW if rank == 4 else cls.PLAIN


@dataclass(frozen=True)
class Affine:
    """value = (code - zero_point) * scale, for the whole tensor or by group of consecutive channels.

    Channels are what ``TensorSpec.channels`` counts. ``group_sizes`` is empty for one scale over the whole tensor; all ones is per channel.

    >>> Affine.per_tensor(0.5, -128).expand(3)[0].tolist()
    [0.5, 0.5, 0.5]
    >>> Affine((0.5, 0.1), (0, 3), (2, 1)).expand(3)[1].tolist()
    [0, 0, 3]
    """

    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    group_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        groups = len(self.group_sizes) or 1
        if len(self.scales) != groups or len(self.zero_points) != groups:
            raise ValueError(f"{groups} groups need as many scales and zero points")
        if any(size <= 0 for size in self.group_sizes):
            raise ValueError("group sizes must be positive")
        if any(not (scale > 0 and math.isfinite(scale)) for scale in self.scales):
            raise ValueError("scales must be positive and finite")

    @classmethod
    def per_tensor(cls, scale: float, zero_point: int) -> Affine:
        """One scale and zero point for all elements."""
        return cls((float(scale),), (int(zero_point),))

    @property
    def scale(self) -> float:
        """The scale, where there is one for the whole tensor."""
        (scale,) = self.scales
        return scale

    @property
    def zero_point(self) -> int:
        """The zero point, where there is one for the whole tensor."""
        (zero_point,) = self.zero_points
        return zero_point

    @property
    def is_per_tensor(self) -> bool:
        return not self.group_sizes

    def expand(self, channels: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
        """Scale and zero point for each of *channels* channels."""
        sizes = self.group_sizes or (channels,)
        if sum(sizes) != channels:
            raise ValueError(f"groups of {sum(sizes)} channels on a tensor of {channels}")
        scales = np.repeat(np.asarray(self.scales, np.float32), sizes)
        return scales, np.repeat(np.asarray(self.zero_points, np.int32), sizes)


@dataclass(frozen=True)
class DynamicFixedPoint:
    """value = code / 2**fraction_bits: a scale that is a power of two and no zero point."""

    fraction_bits: int

    @property
    def scale(self) -> float:
        return math.ldexp(1.0, -self.fraction_bits)

    @property
    def zero_point(self) -> int:
        return 0

    @property
    def is_per_tensor(self) -> bool:
        return True

    def expand(self, channels: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
        """Scale and zero point for each of *channels* channels."""
        return np.full(channels, self.scale, np.float32), np.zeros(channels, np.int32)


Quantization = Affine | DynamicFixedPoint


@dataclass(frozen=True)
class TensorSpec:
    """A tensor without its data.

    ``c2`` is the channel block of NC1HWC2 and ``c1`` the number of blocks (0: as many as the channels need). ``w_stride`` and
    ``h_stride`` are the stored width and height in elements where they exceed the shape (0: no padding).

    >>> TensorSpec("x", (1, 3, 480, 480), DType.INT8, Layout.NHWC).memory_shape
    (1, 480, 480, 3)
    >>> TensorSpec("y", (1, 80, 20, 20), DType.INT8, Layout.NC1HWC2, c2=16, c1=6).memory_shape
    (1, 6, 20, 20, 16)
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    layout: Layout = Layout.PLAIN
    quantization: Quantization | None = field(default=None)
    c2: int = 0
    c1: int = 0
    w_stride: int = 0
    h_stride: int = 0

    @property
    def elements(self) -> int:
        """Elements of the shape, without padding."""
        return math.prod(self.shape)

    @property
    def channels(self) -> int:
        """Size of the channel axis: axis 1 of an image, the last axis of a plain tensor."""
        if not self.shape:
            return 1
        return self.shape[-1] if self.layout is Layout.PLAIN or len(self.shape) < 2 else self.shape[1]

    @property
    def memory_shape(self) -> tuple[int, ...]:
        """Sizes in memory order, padding of channels and strides included."""
        shape = self.shape
        if self.layout is Layout.NHWC:
            n, c, *spatial = shape
            return (n, *self._strided(spatial), c)
        if self.layout is Layout.NC1HWC2:
            n, c, *spatial = shape
            blocks = self.c1 or -(-c // self.c2)
            return (n, blocks, *self._strided(spatial), self.c2)
        if self.layout is Layout.NCHW and len(shape) == 4:
            return (*shape[:2], *self._strided(list(shape[2:])))
        return shape

    def _strided(self, spatial: list[int]) -> list[int]:
        padded = list(spatial)
        if padded and self.w_stride:
            padded[-1] = max(self.w_stride, padded[-1])
        if len(padded) > 1 and self.h_stride:
            padded[-2] = max(self.h_stride, padded[-2])
        return padded

    @property
    def nbytes(self) -> int:
        """Bytes in memory, padding and strides included."""
        return self.dtype.nbytes(math.prod(self.memory_shape))

    def renamed(self, name: str) -> TensorSpec:
        """The same tensor under another name."""
        return replace(self, name=name)
