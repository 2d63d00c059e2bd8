"""A convolution whose sums are larger than what float32 holds exactly."""

from __future__ import annotations

import numpy as np

from anynpu.program import Conv, FixedPoint
from anynpu.program.arithmetic.lookup_tables import CURVES, curve_of
from anynpu.tensor import Affine, DType

from .ingredients import Case, nhwc

CHANNELS, OUTS, PIXELS = 1100, 24, 24
"""Sums reach 1100 * 255 * 255, more than four times 2**24."""

FACTORS = (1e-2, 1e-4, 3e-5, 1e-5, 3e-6)
"""Of the second stage. With the first ones every such sum has the smallest or the largest code; with the last ones it has not."""

ENDINGS = ("", "Relu", "Add", "LeakyRelu", "Swish")


def large_sums(factor: float, ending: str) -> Case:
    """A pointwise convolution whose second stage has this *factor*, from sums of nothing to the largest there are, both ways."""
    rng = np.random.default_rng(7)
    multiplier = np.array([round(factor * 2**30)], np.int32)
    shift = np.array([30], np.int32)
    while multiplier[0] > 32767:
        multiplier, shift = (multiplier + 1) // 2, shift - 1
    factors = np.linspace(1, 16384, OUTS).astype(np.int32)
    bounds = np.array([[0], [2**31 - 1]], np.int32) if ending == "Relu" else None
    curves = (curve_of(CURVES["Swish"], 1e-5),) if ending == "Swish" else ()
    slope = np.full(1, 1638, np.int32) if ending == "LeakyRelu" else None
    residual = (30000, 3) if ending == "Add" else (None, 0)
    stage = FixedPoint(factors, multiplier, shift, np.array([-5], np.int32), bounds, slope, *residual, curves=curves)
    weights = rng.integers(-128, 128, (OUTS, 1, 1, CHANNELS), np.int8)
    weights[::3], weights[1::3] = 127, -128
    zeros = np.where(np.arange(OUTS) % 2, -128, 127).astype(np.int32)
    conv = Conv(weights, zeros, rng.integers(-(2**20), 2**20, OUTS, np.int32), stage)
    x = rng.integers(-128, 128, (1, 1, PIXELS, CHANNELS), np.int8)
    for pixel in range(PIXELS):  # from all of one end through all mixtures to all of the other
        x[0, 0, pixel, : pixel * CHANNELS // PIXELS] = 127 if pixel % 2 else -128
    specs = [nhwc("x", x.shape, DType.INT8, Affine.per_tensor(1.0, 3))]
    inputs = [x]
    result = nhwc("y", (1, 1, PIXELS, OUTS), DType.INT8, Affine.per_tensor(1.0, -5))
    if ending == "Add":
        specs.append(nhwc("r", result.memory_shape, DType.INT8, Affine.per_tensor(1.0, 11)))
        inputs.append(rng.integers(-128, 128, result.memory_shape, np.int8))
    return Case(conv, tuple(inputs), tuple(specs), (result,))
