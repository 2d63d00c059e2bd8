"""Recorded streams and jobs, and random ones."""

from __future__ import annotations

import base64
import gzip
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from anynpu.npu.rocket.plan import Convolution
from anynpu.program import Conv, FixedPoint, Layer, MemoryPlan, Program
from anynpu.program.arithmetic.lookup_tables import CURVES, curve_of
from anynpu.tensor import Affine, DType, Layout, TensorSpec

DATA = Path(__file__).parent / "data"
BOARD_DATA = Path(os.environ.get("ANYNPU_BOARD_DATA", ""))


def recorded_streams() -> list[dict[str, Any]]:
    """The cases of streams.jsonl.gz, raw weights and biases as arrays."""
    with gzip.open(DATA / "streams.jsonl.gz", "rt", encoding="utf-8") as file:
        cases = [json.loads(line) for line in file]
    for case in cases:
        if "weights" in case:
            case["weights"] = np.frombuffer(base64.b64decode(case["weights"]), np.uint8)
            case["bias"] = np.frombuffer(base64.b64decode(case["bias"]), "<i4")
    return cases


def has_packing_error(conv: Convolution) -> bool:
    """Whether Mesa packs the weights of this convolution wrongly: lanes of the last block of a depthwise one."""
    return conv.depthwise and conv.in_channels > 32 and -conv.in_channels % 16 != 0


KINDS = ("dense", "depthwise", "per_tensor", "per_channel", "strides", "padding", "slices", "additions", "one_channel", "lookups")
"""What :func:`random_program` makes."""


def random_program(kind: str, random: np.random.Generator) -> Program:
    """One convolution in the chip's integers, such as the compiler makes them."""
    depthwise = kind == "depthwise" or (kind != "one_channel" and random.random() < 0.3)
    kernel = (
        tuple(int(size) for size in random.choice([1, 2, 3, 5], 2)) if kind == "padding" else (int(random.choice([1, 3, 5])),) * 2
    )
    channels = int(random.integers(2, 70)) if random.random() < 0.7 else int(random.choice([16, 32, 48, 64, 112]))
    outputs = int(random.integers(1, 70))
    height, width = (int(random.integers(5, 15)), int(random.integers(5, 15)))
    strides = (int(random.integers(1, 4)), int(random.integers(1, 4))) if kind == "strides" else (1, 1)
    pads = (
        tuple(int(random.integers(0, max(1, kernel[axis % 2]))) for axis in range(4))
        if kind == "padding"
        else (kernel[0] // 2,) * 4
    )
    if kind == "slices":
        height, width, channels, outputs = (
            int(random.integers(150, 200)),
            int(random.integers(150, 200)),
            int(random.integers(2, 24)),
            8,
        )
    if kind == "one_channel":
        channels = 1
    if depthwise:
        outputs = channels
    out_height = (height + pads[0] + pads[2] - kernel[0]) // strides[0] + 1
    out_width = (width + pads[1] + pads[3] - kernel[1]) // strides[1] + 1
    per_channel = kind == "per_channel" or (kind != "per_tensor" and random.random() < 0.5)
    factors = random.integers(1000, 16385, outputs) if per_channel else np.zeros(0)
    spread = random.choice([3.0, 60.0])  # zero points far from 0 drive most outputs to a limit
    zeros = np.clip(np.rint(random.normal(size=outputs if per_channel and random.random() < 0.7 else 1) * spread), -128, 127)
    added = kind == "additions" and (out_height * out_width >= 12 or outputs <= 32)
    depth = 1 if depthwise else channels
    reach = 70.0 * 70.0 * np.sqrt(kernel[0] * kernel[1] * depth)
    shift = int(np.clip(np.floor(np.log2(32767 * reach / 60)), 0, 31))
    upper = int(reach * random.uniform(0.2, 3))
    bounds = np.array([[0], [upper]], np.int32) if random.random() < 0.3 else None
    curves = ()
    if kind == "lookups":
        # the sums cover the range of the function, its values that of the output
        shape = CURVES[str(random.choice(list(CURVES)))]
        curve = curve_of(shape, 3 * shape.half / reach)
        # a line that rises by less than a step in the whole range of sums, too
        curves = (replace(curve, slope=20000, slope_shift=int(random.integers(14, 32))) if random.random() < 0.2 else curve,)
        shift, bounds = int(np.clip(np.floor(np.log2(32767 / (250 / 32767))), 0, 31)) - int(random.integers(0, 2)), None
    stage = FixedPoint(
        channel_multiplier=factors.astype(np.int32),
        multiplier=np.array([random.integers(1 << 14, 1 << 15)], np.int32),
        shift=np.array([shift], np.int32),
        zero_point=np.array([random.integers(-128, 128) if bounds is None else random.integers(-128, 0)], np.int32),
        bounds=bounds,
        residual_multiplier=int(random.integers(1 << 14, 1 << 15)) if added else None,
        residual_shift=int(random.integers(3, 15)) if added else 0,
        curves=curves,
        table=random.integers(-128, 128, (1, 256)).astype(np.int8) if random.random() < 0.1 else None,
    )
    conv = Conv(
        weights=random.integers(-128, 128, (outputs, *kernel, depth)).astype(np.int8),
        weight_zero=zeros.astype(np.int32),
        bias=random.integers(-(1 << 15), 1 << 15, outputs).astype(np.int32),
        epilogue=stage,
        strides=strides,
        pads=pads,
        groups=channels if depthwise else 1,
    )

    def image(name: str, channels: int, height: int, width: int) -> TensorSpec:
        zero = Affine.per_tensor(0.1, int(np.clip(random.normal() * spread, -128, 127)))
        return TensorSpec(name, (1, channels, height, width), DType.INT8, Layout.NHWC, zero)

    tensors = {"x": image("x", channels, height, width), "y": image("y", outputs, out_height, out_width)}
    inputs = ("x", "a") if added else ("x",)
    if added:
        tensors["a"] = image("a", outputs, out_height, out_width)
    layer = Layer("conv", "Conv", conv, inputs, ("y",))
    return Program(inputs, ("y",), tensors, (layer,), MemoryPlan({}, 0))
