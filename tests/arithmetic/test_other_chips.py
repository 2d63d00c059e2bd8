"""RK3588 and RK3576: bytes of a board and numbers of the vendor's compiler that are not part of this project.

``ANYNPU_BOARD_DATA`` names the folder that holds them (``rk3588/``, ``rk3576/``), in the form of tests/arithmetic/board.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anynpu.compiler.toolkit.quantizer import toolkit_bias, toolkit_weights
from anynpu.program.arithmetic import fixed_point
from anynpu.program.arithmetic.lookup_tables import CURVES, hard_sigmoid

FOLDER = Path(os.environ.get("ANYNPU_BOARD_DATA", ""))
pytestmark = pytest.mark.skipif(
    not (os.environ.get("ANYNPU_BOARD_DATA") and FOLDER.is_dir()),
    reason="data of other boards, whose license keeps them out of this project: set ANYNPU_BOARD_DATA to their folder",
)
SHAPES = {
    "elu": CURVES["Elu"],
    "hardsigmoid": hard_sigmoid(1.0 / 6.0, 0.5),
    "hardswish": CURVES["HardSwish"],
    "mish": CURVES["Mish"],
    "sigmoid": CURVES["Sigmoid"],
    "softplus": CURVES["Softplus"],
    "swish": CURVES["Swish"],
    "tanh": CURVES["Tanh"],
}


def record(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return data


def test_every_byte_of_an_rk3588() -> None:
    """A depthwise convolution of 3 x 3 with one scale; what its padding held was fitted by those who found the bytes."""
    case = record("rk3588/dw_teflon.json")
    params = case["params"]
    height, width, channels = params["shape"]
    data = np.frombuffer(bytes.fromhex(case["patterns"]["zero"]["input_hex"]), np.int8).reshape(height, width, channels)
    weights = (np.array(params["w"], np.int64) - np.array(params["wz"], np.int64)[:, None]).reshape(channels, 3, 3)
    padded = np.empty((height + 2, width + 2, channels), np.int64)
    padded[:] = np.array(params["pad_value"], np.int64)
    padded[1:-1, 1:-1] = data
    total = np.zeros((height, width, channels), np.int64) + np.array(params["bias"], np.int64)
    for row in range(3):
        for column in range(3):
            total += padded[row : row + height, column : column + width] * weights[:, row, column]
    scaled = fixed_point.scaled_accumulator(total, np.array(params["c"], np.int64))
    codes = fixed_point.output(scaled, params["m"], params["shift"], params["z_out"])
    board = np.frombuffer(bytes.fromhex(case["board_output_hex"]["zero"]), np.int8)
    assert board.size == 4096
    assert np.count_nonzero(codes.ravel() != board) == 0


def test_tables_of_an_rk3576_as_the_vendors_compiler_writes_them() -> None:
    entries = wrong = 0
    for name, shape in SHAPES.items():
        recorded = record(f"rk3576/lut_{name}.json")
        negative, positive = shape.tables()
        for ours, theirs in ((negative, recorded["le"]), (positive, recorded["lo"])):
            apart = np.abs(ours.astype(np.int64) - np.array(theirs))
            assert apart.max() <= 1, name
            entries, wrong = entries + len(theirs), wrong + int(np.count_nonzero(apart))
    assert entries == 8208
    assert wrong <= 12


@pytest.mark.parametrize("number", [0, 1])
def test_multipliers_and_zero_points_of_an_rk3576(number: int) -> None:
    """Of a convolution that is described in words: weights, biases and calibration data from the formulas."""
    case = record("rk3576/compiler_params.json")["cases"][number]
    index = np.arange(32 * 32 * 9).reshape(32, 32, 3, 3)
    channel = np.arange(32)
    weights = (((index + number) % 11) - 5).astype(np.float32) / 16
    bias = ((channel + 1) if not number else ((channel + 1) % 7 + 1)).astype(np.float32) / 8
    limit = 1.0 if number else 8.0
    x = np.random.RandomState(0).uniform(-limit, limit, (1, 32, 16, 16)).astype(np.float32)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    y = np.zeros((32, 16, 16)) + bias[:, None, None].astype(np.float64)
    for row in range(3):
        for column in range(3):
            window = padded[0, :, row : row + 16, column : column + 16].astype(np.float64)
            y += np.einsum("oc,chw->ohw", weights[:, :, row, column].astype(np.float64), window)
    scales = [(float(values.max()) - float(values.min())) / 255 for values in (x, y)]
    codes, weight_scales, _ = toolkit_weights(weights)
    assert codes.dtype == np.int8
    stage = fixed_point.multiplier_and_shift(float(weight_scales.max()) * scales[0] / float(np.float32(scales[1])))
    zero = int(np.rint(-128 - float(y.min()) / scales[1]))
    assert (stage[0], stage[1], zero) == tuple(case["registers"][key] for key in ("scale", "shift", "offset"))
    assert fixed_point.channel_multipliers(weight_scales).tolist() == [16384] * 32
    assert toolkit_bias(bias, np.array([scales[0]]), weights).shape == (32,)


def test_operands_of_an_add_on_an_rk3576() -> None:
    """The operand with the larger scale has 2**14, the other 15 bits and a shift of its own."""
    for case in record("rk3576/compiler_params.json")["add"]["cases"]:
        ratio = case["predicted"].get("s_b/s_a*2^15") or 0.0
        if ratio:
            assert fixed_point.operand_multiplier(ratio / 32768, 1.0) == (case["K"], case["K_shift"])
    assert fixed_point.operand_multiplier(0.068508, 1.0) == (17959, 4)
