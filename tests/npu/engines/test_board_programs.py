"""Programs that a real RV1103 ran, with the very integers they had there, in every engine at every level."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arithmetic.board_cases import BoardCase, names

from anynpu.npu.engines.native import NativeEngine
from anynpu.npu.engines.native_levels import available
from anynpu.program import Conv, FixedPoint, Op, Pool
from anynpu.program.arithmetic.fixed_point import multiplier_and_shift
from anynpu.tensor import Affine, DType

from .cases_large import reference_result
from .ingredients import Array, Case, nhwc
from .native_support import run_native

INT8 = DType.INT8
NONE = np.zeros(0, np.int32)


def numbers(values: Any) -> Array:
    return np.atleast_1d(np.array(values, np.int32))


def convolution(params: dict[str, Any], channels: int, zero: int) -> Conv:
    """The layer as the program had it. Its bias holds the zero point of the input already, which ours does not."""
    kernel = params["k"]
    weights = np.array(params["w"], np.int8).reshape(-1, channels, kernel, kernel)
    centred = weights.astype(np.int64) - np.array(params["wz"])[:, None, None, None]
    bias = np.array(params["bias"]) + zero * centred.sum((1, 2, 3))
    bounds = np.array([[0], [2**31 - 1]], np.int32) if params["relu"] else None
    stage = FixedPoint(numbers(params["c"]), numbers(params["m"]), numbers(params["shift"]), numbers(params["z_out"]), bounds)
    pad = kernel // 2
    ordered = np.ascontiguousarray(weights.transpose(0, 2, 3, 1))
    return Conv(ordered, numbers(params["wz"]), bias.astype(np.int32), stage, pads=(pad,) * 4)


def pooling(kind: str, zero: int) -> Pool:
    if kind == "max":
        return Pool("max", (2, 2), (2, 2))
    divisors = np.array([(0, 0), *(multiplier_and_shift(1 / count) for count in range(1, 5))], np.int32).T
    stage = FixedPoint(NONE, NONE, NONE, numbers(zero))
    return Pool("average", (2, 2), (2, 2), epilogue=stage, divisors=np.ascontiguousarray(divisors))


def layers(case: BoardCase) -> list[tuple[Op, int, int]]:
    """Operators, each with the zero points of its input and its output."""
    params = case.record["params"]
    zero = params["z_out"]
    found: list[tuple[Op, int, int]] = [(convolution(params, params["shape"][2], -128), -128, zero)]
    if params.get("pool"):
        found += [(pooling(params["pool"], zero), zero, zero)] * params.get("levels", 1)
    if params.get("second"):
        second = params["second"]
        found.append((convolution(second, len(params["w"]), zero), zero, second["z_out"]))
    return found


def run(case: BoardCase, pattern: str, level: str) -> Array:
    x = (case.input(pattern).astype(np.int16) - 128).astype(np.int8)
    for op, zero, result in layers(case):
        _, height, width, channels = x.shape
        if isinstance(op, Pool):
            height, width = height // 2, width // 2
        else:
            assert isinstance(op, Conv)
            channels = len(op.weights)
        specs = (
            nhwc("x", x.shape, INT8, Affine.per_tensor(1.0, zero)),
            nhwc("y", (1, height, width, channels), INT8, Affine.per_tensor(1.0, result)),
        )
        made = Case(op, (x,), specs[:1], specs[1:])
        (x,) = reference_result(made) if level == "reference" else run_native(made, NativeEngine(isa=level))
    return x


@pytest.mark.parametrize("level", ["reference", *available()])
@pytest.mark.parametrize("name", names("direct"))
def test_the_bytes_of_the_board(name: str, level: str) -> None:
    case = BoardCase(name)
    for pattern in case.patterns:
        assert np.array_equal(run(case, pattern, level).ravel(), case.output(pattern)), pattern
