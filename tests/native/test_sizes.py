"""Sizes that C computes for extreme geometries, against Python integers, at every instruction set of this processor."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from anynpu._native import ffi, lib
from anynpu.npu.engines import native_levels
from anynpu.npu.engines.native_arrays import Keeper
from anynpu.program import Epilogue

MAX_SCRATCH = 64 << 20
STEPS = (1, 3, 255, 4096, (1 << 20) - 1, 1 << 20)
CHANNELS = (2, 512, 1 << 14)
OUTPUTS = (1, 2, 1 << 12)
DENSE = {"conv_avx2": (2, False), "conv_vnni": (1, True), "conv_neon": (2, False), "conv_neon_dotprod": (1, True)}
"""Bytes of an element in the ring, and whether there are sums."""
DEPTHWISE = {"depthwise_avx2": 2, "depthwise_vnni": 2, "depthwise_bytes_vnni": 4, "depthwise_neon": 1}
"""Rows that lie together."""


def whole(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def dense_scratch(name: str, conv: Any) -> int:
    """For one output channel, whose weights fit into the cache: bands of one row."""
    element, sums = DENSE[name]
    taps = 1 if conv.dw == 1 else conv.kw
    window = (conv.kh - 1) * conv.dh + 1
    width = (conv.ow - 1) * conv.sw + (conv.kw - 1) * conv.dw + 1
    rows = window * whole(width * conv.cin * element + 64, 64)
    stride = whole(conv.ow, 16) * 4 if sums else 0
    return whole(conv.kh * taps * 8, 64) + rows + window * stride + stride


def depthwise_scratch(name: str, conv: Any) -> int:
    together = DEPTHWISE[name]
    slack = 256 if together > 2 else 128
    width = (conv.ow - 1) * conv.sw + (conv.kw - 1) * conv.dw + 1
    height = -(-conv.kh // together)
    step = math.gcd(conv.sh, together * conv.dh)
    slots = (height - 1) * together * conv.dh // step + 1
    return max(width, conv.w) * conv.cin + slack + slots * (together * width * conv.cin + slack)


def plain_scratch(conv: Any) -> int:
    taps, channels = conv.kh * conv.kw, whole(conv.cin, 64)
    gathered = 32 * 8 * whole(conv.cout, 64) + 36 * 4 * whole(taps * (conv.cin // conv.groups), 16)
    depthwise = channels * (8 + 4 * (taps + 1)) if 1 < conv.groups == conv.cin == conv.cout else 0
    return max(gathered, depthwise)


def layer_of(keeper: Keeper, cin: int, kernel: int, step: int, stride: int, outputs: int, *, depthwise: bool) -> tuple[Any, Any]:
    cout = cin if depthwise else 1
    conv = keeper.struct("anynpu_conv")
    conv.n, conv.h, conv.w, conv.cin = 1, 1, 1, cin
    conv.oh, conv.ow, conv.cout = outputs, outputs, cout
    conv.kh = conv.kw = kernel
    conv.sh = conv.sw = stride
    conv.dh = conv.dw = step
    conv.top = conv.left = (kernel - 1) * step
    conv.groups = cin if depthwise else 1
    conv.weights = keeper.pointer(np.zeros(cout * kernel * kernel * cin // conv.groups, np.int8))
    conv.weight_zero = keeper.by_channel(np.zeros(1, np.int32), cout, np.int32)
    conv.bias = keeper.by_channel(np.zeros(1, np.int32), cout, np.int32)
    keeper.fill_epilogue(conv.epilogue, Epilogue(np.ones(1, np.float32), np.zeros(1, np.int32)), cout, np.dtype(np.int8))
    layer = keeper.struct("anynpu_layer")
    layer.kind, layer.codes, layer.descriptor = lib.ANYNPU_LAYER_CONV, lib.ANYNPU_CODES_I8, conv
    return layer, conv


@pytest.mark.parametrize("depthwise", [False, True], ids=["dense", "depthwise"])
@pytest.mark.parametrize("isa", native_levels.available())
def test_sizes_of_extreme_geometries(isa: str, depthwise: bool) -> None:
    level = native_levels.level_names().index(isa)
    beyond, wrapping, fast = 0, 0, 0
    for cin in CHANNELS:
        for step, stride, outputs in itertools.product(STEPS, STEPS, OUTPUTS):
            keeper = Keeper()
            layer, conv = layer_of(keeper, cin, 3, step, stride, outputs, depthwise=depthwise)
            lib.anynpu_choose(layer, level)
            name = ffi.string(lib.anynpu_kernel_name(layer)).decode()
            size = lib.anynpu_scratch_size(layer)
            if name == "plain":
                assert size == plain_scratch(conv)
                known = [
                    kernel
                    for kernel in (DEPTHWISE if depthwise else DENSE)
                    if isa.endswith(kernel.partition("_")[2].removeprefix("bytes_"))
                ]
                needed = [(depthwise_scratch if depthwise else dense_scratch)(kernel, conv) for kernel in known]
                assert all(bytes_ > MAX_SCRATCH for bytes_ in needed), (cin, step, stride, outputs)
                beyond += bool(needed)
                wrapping += any(bytes_ >= 1 << 64 for bytes_ in needed)
            else:
                assert size == (depthwise_scratch if depthwise else dense_scratch)(name, conv)
                assert size <= MAX_SCRATCH
                fast += 1
    assert isa == "generic" or min(beyond, wrapping, fast) > 0


@pytest.mark.parametrize("isa", native_levels.available())
def test_a_size_that_wraps_to_a_small_one(isa: str) -> None:
    """2^14 rows of 2^26 x 2^24 bytes are 2^64, which 64 bits hold as 0: without a check a fast kernel would take 5 MB and write beyond."""
    keeper = Keeper()
    layer, conv = layer_of(keeper, 1 << 24, 2, (1 << 20) - 1, 1 << 20, 64, depthwise=False)
    conv.dh, conv.top = (1 << 14) - 1, (1 << 14) - 1
    for name in DENSE:
        needed = dense_scratch(name, conv)
        assert needed >= 1 << 64
        assert needed % (1 << 64) < MAX_SCRATCH
    lib.anynpu_choose(layer, native_levels.level_names().index(isa))
    assert ffi.string(lib.anynpu_kernel_name(layer)).decode() == "plain"
