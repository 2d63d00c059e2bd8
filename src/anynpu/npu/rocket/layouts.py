"""How features, weights and biases of convolutions lie in the memory of the RK3588 NPU.

Features are planes of 16 channels: the byte of channel c at (y, x) is at ``c // 16 * 16 * W * H + (y * W + x) * 16 + c % 16``. All values
are int8 as the chip reads them. Arrays are [H, W, C] and weights [O, kernel_h, kernel_w, C / groups], as in the layer program.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..._util.types import Array

__all__ = [
    "LANES",
    "atoms",
    "bias_size",
    "pack_bias",
    "pack_channel_table",
    "pack_features",
    "pack_weights",
    "plane_bytes",
    "unpack_channel_table",
    "unpack_features",
    "unpack_weights",
    "weight_size",
]

Bytes = npt.NDArray[np.int8]

LANES = 16
"""Channels of a plane."""

_BLOCK = 32
"""Kernels, and input channels, of a block of dense weights."""

_DEPTHWISE_BLOCK = 64
_TABLE_CHANNELS = 8
_TABLE_BYTES = 64


def atoms(channels: int) -> int:
    """Planes that *channels* take.

    >>> atoms(16), atoms(17)
    (1, 2)
    """
    return -(-channels // LANES)


def plane_bytes(height: int, width: int) -> int:
    """Bytes of a plane."""
    return LANES * height * width


def pack_features(values: Array, fill: int = 0) -> Bytes:
    """[H, W, C] as planes; unused channel slots hold *fill*."""
    height, width, channels = values.shape
    padded = np.full((height, width, atoms(channels) * LANES), fill, np.int8)
    padded[..., :channels] = values
    return np.ascontiguousarray(padded.reshape(height, width, -1, LANES).transpose(2, 0, 1, 3)).reshape(-1)


def unpack_features(memory: Array, height: int, width: int, channels: int) -> Bytes:
    """The inverse of :func:`pack_features`."""
    planes = memory[: atoms(channels) * plane_bytes(height, width)].view(np.int8).reshape(-1, height, width, LANES)
    return np.ascontiguousarray(planes.transpose(1, 2, 0, 3).reshape(height, width, -1)[..., :channels])


def _kernels(channels: int) -> int:
    """Kernels in memory: an odd number gets one more."""
    return channels + channels % 2


def weight_size(out_channels: int, kernel: tuple[int, int], in_channels: int, *, depthwise: bool) -> int:
    """Bytes of packed weights."""
    lanes = atoms(in_channels) * LANES
    return kernel[0] * kernel[1] * lanes * (1 if depthwise else _kernels(out_channels))


def pack_weights(weights: Array, fill: Array | int = 0, *, depthwise: bool) -> Bytes:
    """Weights as the chip reads them.

    Dense: blocks of 32 kernels, then of 32 input channels, then row, column, kernel, channel. Depthwise: blocks of 64 channels, then row,
    column, channel. The last block of channels is as wide as whole planes need; a kernel that fills an odd number up is 0.

    :param weights: [O, kernel_h, kernel_w, C], or [C, kernel_h, kernel_w, 1] for depthwise
    :param fill: what channel slots without a channel hold, one number or one by kernel: minus the offset that is added to every
      weight, so that they add nothing
    """
    out, height, width, depth = weights.shape
    if depthwise:
        lanes = atoms(out) * LANES
        padded = np.full((lanes, height, width), fill if np.ndim(fill) == 0 else 0, np.int8)
        padded[:out] = weights[..., 0]
        parts = [padded[first : first + _DEPTHWISE_BLOCK].transpose(1, 2, 0) for first in range(0, lanes, _DEPTHWISE_BLOCK)]
        return np.concatenate([part.reshape(-1) for part in parts])
    lanes = atoms(depth) * LANES
    dense = np.zeros((_kernels(out), height, width, lanes), np.int8)
    dense[:out] = np.reshape(fill, (-1, 1, 1, 1))
    dense[:out, ..., :depth] = weights
    parts = [
        dense[kernel : kernel + _BLOCK, :, :, lane : lane + _BLOCK].transpose(1, 2, 0, 3).reshape(-1)
        for kernel in range(0, len(dense), _BLOCK)
        for lane in range(0, lanes, _BLOCK)
    ]
    return np.concatenate(parts)


def unpack_weights(memory: Array, out_channels: int, kernel: tuple[int, int], in_channels: int, *, depthwise: bool) -> Bytes:
    """The inverse of :func:`pack_weights`: [O, kernel_h, kernel_w, C]."""
    height, width = kernel
    lanes = atoms(in_channels) * LANES
    held = memory.view(np.int8)
    place = 0
    if depthwise:
        channels = np.empty((lanes, height, width, 1), np.int8)
        for first in range(0, lanes, _DEPTHWISE_BLOCK):
            count = min(_DEPTHWISE_BLOCK, lanes - first)
            part = held[place : place + height * width * count].reshape(height, width, count, 1)
            channels[first : first + count] = part.transpose(2, 0, 1, 3)
            place += part.size
        return channels[:out_channels]
    dense = np.empty((_kernels(out_channels), height, width, lanes), np.int8)
    for first in range(0, len(dense), _BLOCK):
        kernels = min(_BLOCK, len(dense) - first)
        for lane in range(0, lanes, _BLOCK):
            count = min(_BLOCK, lanes - lane)
            part = held[place : place + height * width * kernels * count].reshape(height, width, kernels, count)
            dense[first : first + kernels, :, :, lane : lane + count] = part.transpose(2, 0, 1, 3)
            place += part.size
    return dense[:out_channels, ..., :in_channels]


def bias_size(channels: int, *, per_channel: bool) -> int:
    """Bytes of the biases, or of the channel table."""
    return -(-channels // _TABLE_CHANNELS) * _TABLE_BYTES if per_channel else 4 * channels


def pack_bias(bias: Array) -> npt.NDArray[np.uint8]:
    """Biases for a scale that serves all channels: int32 each."""
    return np.ascontiguousarray(bias, "<i4").view(np.uint8)


def pack_channel_table(bias: Array, multipliers: Array, offsets: Array | int = 0) -> npt.NDArray[np.uint8]:
    """Numbers per channel: 64 bytes for 8 channels, int32 bias, int16 factor of the window sum, int16 multiplier.

    :param offsets: the factors of the window sum: what is added to every weight of a channel
    """
    blocks = -(-len(bias) // _TABLE_CHANNELS)
    table = np.zeros((blocks, _TABLE_BYTES), np.uint8)
    for values, kind, first, last in ((bias, "<i4", 0, 32), (offsets, "<i2", 32, 48), (multipliers, "<i2", 48, 64)):
        padded = np.zeros(blocks * _TABLE_CHANNELS, np.int64)
        padded[: len(bias)] = values
        table[:, first:last] = padded.astype(kind).view(np.uint8).reshape(blocks, -1)
    return table.reshape(-1)


def unpack_channel_table(memory: Array, channels: int) -> tuple[Array, Array, Array]:
    """Biases, factors of the window sum and multipliers of :func:`pack_channel_table`."""
    table = memory[: bias_size(channels, per_channel=True)].reshape(-1, _TABLE_BYTES)
    bias, factors, multipliers = (
        np.ascontiguousarray(table[:, first:last]).view(kind).reshape(-1)[:channels]
        for first, last, kind in ((0, 32, "<i4"), (32, 48, "<i2"), (48, 64, "<i2"))
    )
    return bias, factors, multipliers
