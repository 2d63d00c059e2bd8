"""Outputs as the NPU writes them: where a channel lies in NC1HWC2, and what its quantized values are worth.

Names and arguments follow the ``rknn-runtime`` crate, as :class:`anynpu.rknn.RknnModel` does.

>>> nc1hwc2_to_flat(np.arange(8, dtype=np.int8), c1=1, h=1, w=2, c2=4, total_channels=2).tolist()
[0, 4, 1, 5]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ShapeError
from ..program.convert import dequantize_affine as _dequantize_affine
from ..program.convert import nc1hwc2_to_flat as _nc1hwc2_to_flat
from .constants import rknn_tensor_format
from .info import TensorInfo

_FIRST, _LAST = -128, 127


def nc1hwc2_to_flat(data: npt.ArrayLike, c1: int, h: int, w: int, c2: int, total_channels: int) -> npt.NDArray[Any]:
    """A raw output as a flat array in NCHW order: element ``channel * h * w + y * w + x``."""
    return _nc1hwc2_to_flat(data, c1, h, w, c2, channels=total_channels)


def dequantize_affine(data: npt.ArrayLike, zp: int, scale: float) -> npt.NDArray[np.float32]:
    """The real numbers that codes stand for: (code - zp) * scale."""
    return _dequantize_affine(np.asarray(data), zp, scale)


@dataclass(frozen=True)
class Nc1hwc2Layout:
    """Where the channels of an output [1, C1, H, W, C2] lie: computed once, so that a loop over predictions only adds.

    >>> layout = Nc1hwc2Layout(h=2100, w=1, block=16, zero_point=-128, step=0.5)
    >>> layout.channel_offset(17), layout.prediction_stride(), layout.num_predictions()
    (33601, 16, 2100)
    """

    h: int
    w: int
    block: int
    zero_point: int
    step: float

    @classmethod
    def from_attr(cls, attr: TensorInfo) -> Nc1hwc2Layout:
        """The layout of an output of five axes."""
        if attr.fmt != rknn_tensor_format.RKNN_TENSOR_NC1HWC2 or len(attr.shape) != 5:
            raise ShapeError(
                f"output '{attr.name}' of shape {list(attr.shape)} is {attr.layout}, not NC1HWC2", hint="read it as it is"
            )
        _, _, h, w, c2 = attr.shape
        return cls(h, w, c2, attr.zp, attr.scale)

    def channel_offset(self, ch: int) -> int:
        """Elements from the first channel of a prediction to its channel *ch*."""
        return ch // self.block * self.h * self.w * self.block + ch % self.block

    def precompute_channel_offsets(self, start_ch: int, count: int) -> list[int]:
        """The offsets of *count* channels from *start_ch* on."""
        return [self.channel_offset(start_ch + index) for index in range(count)]

    def prediction_stride(self) -> int:
        """Elements from one prediction (pixel) to the next."""
        return self.block

    def num_predictions(self) -> int:
        """Pixels of the output."""
        return self.h * self.w

    def c2(self) -> int:
        """Channels of a block."""
        return self.block

    def zp(self) -> int:
        """The zero point."""
        return self.zero_point

    def scale(self) -> float:
        """The scale."""
        return self.step

    def dequant(self, raw: int) -> float:
        """The real number that a code stands for."""
        return (int(raw) - self.zero_point) * self.step

    def threshold_i8(self, conf: float) -> int:
        """The smallest code whose value is at least *conf*; the smallest of all where scales are not positive."""
        if self.step <= 0:
            return _FIRST
        return min(max(math.ceil(conf / self.step + self.zero_point), _FIRST), _LAST)
