"""The integer rule against the bytes of a board, and rival rules that the bytes refute.

Here single layers are computed with the functions of the space alone; tests/compiler has the same cases through compiler and engine.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from anynpu.program import Curve
from anynpu.program.arithmetic import fixed_point
from anynpu.program.arithmetic.fixed_point import shift_right
from anynpu.program.arithmetic.lookup_tables import CURVES, Shape, curve_of, evaluate, hard_sigmoid

from .board_cases import Array, BoardCase, names

SHAPES: dict[str, Shape] = {
    "elu": CURVES["Elu"],
    "hardsigmoid": hard_sigmoid(0.2, 0.5),
    "hardswish": CURVES["HardSwish"],
    "sigmoid": CURVES["Sigmoid"],
    "softplus": CURVES["Softplus"],
    "swish": CURVES["Swish"],
}


def direct_layer(x: Array, params: dict[str, object], zero: int) -> Array:
    """One convolution of an open compiler's program, with its own integers."""
    height, width, channels = x.shape
    kernel = int(params["k"])  # type: ignore[call-overload]
    weights = np.array(params["w"], np.int64).reshape(-1, channels, kernel, kernel)
    weights = weights - np.array(params["wz"], np.int64)[:, None, None, None]
    pad = kernel // 2
    padded = np.pad(x, ((pad, pad), (pad, pad), (0, 0)), constant_values=zero)
    total = np.zeros((height, width, len(weights)), np.int64) + np.array(params["bias"], np.int64)
    for row in range(kernel):
        for column in range(kernel):
            total += padded[row : row + height, column : column + width] @ weights[:, :, row, column].T
    scaled = fixed_point.scaled_accumulator(total, np.array(params["c"], np.int64))
    if params["relu"]:
        scaled = np.maximum(scaled, 0)
    return fixed_point.output(scaled, params["m"], params["shift"], params["z_out"])  # type: ignore[arg-type]


def direct_network(case: BoardCase, pattern: str) -> Array:
    params = case.record["params"]
    y = direct_layer(case.input(pattern)[0].astype(np.int64) - 128, params, -128)
    for _ in range(params.get("levels", 1) if params.get("pool") else 0):
        height, width, channels = y.shape
        blocks = y.reshape(height // 2, 2, width // 2, 2, channels)
        y = blocks.max((1, 3)) if params["pool"] == "max" else shift_right(blocks.sum((1, 3)), 2)
    return direct_layer(y, params["second"], params["z_out"]) if params.get("second") else y


def stem(case: BoardCase) -> tuple[Array, Array, Array]:
    """Weights without zero points, their scales, and the folded bias of the first convolution, by the vendor's float32 steps."""
    weights, bias = case.tensor("stem_w").reshape(3, 3), case.tensor("stem_b")
    low, high = np.minimum(weights.min(1), 0), np.maximum(weights.max(1), 0)
    scales = ((high - low) / np.float32(255)).astype(np.float32)
    zeros = np.clip(np.rint(-128 - low / scales), -128, 127).astype(np.int64)
    codes = np.clip(np.rint(weights / scales[:, None]) + zeros[:, None], -128, 127).astype(np.int64) - zeros[:, None]
    return codes, scales, np.rint(bias / scales).astype(np.int64) + 128 * codes.sum(1)


def curve_codes(case: BoardCase, pattern: str) -> Array:
    codes, scales, bias = stem(case)
    total = (case.input(pattern).reshape(-1, 3).astype(np.int64) - 128) @ codes.T + bias
    scaled = fixed_point.scaled_accumulator(total, fixed_point.channel_multipliers(scales))
    shape = SHAPES[case.record["lut"]["function"]]
    values = evaluate(curve_of(shape, float(scales.max())), scaled)
    stage = fixed_point.multiplier_and_shift(1.0 / (shape.table_scale * case.scale))
    return fixed_point.output(values, *stage, case.zero_point)


def wrong_bytes(case: BoardCase, compute: Callable[[BoardCase, str], Array]) -> int:
    return sum(int((compute(case, pattern).reshape(-1) != case.output(pattern)).sum()) for pattern in case.patterns)


@pytest.mark.parametrize("name", names("direct"))
def test_a_program_with_known_integers_gives_the_bytes_of_the_board(name: str) -> None:
    assert wrong_bytes(BoardCase(name), direct_network) == 0


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_an_activation_after_a_convolution_gives_the_bytes_of_the_board(name: str) -> None:
    assert wrong_bytes(BoardCase(name), curve_codes) == 0


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_a_curve_has_the_registers_that_the_vendor_wrote(name: str) -> None:
    case = BoardCase(name)
    recorded = case.record["lut"]
    shape = SHAPES[name]
    curve = curve_of(shape, float(stem(case)[1].max()))
    assert (curve.multiplier, curve.shift, curve.offset) == tuple(
        recorded[key] for key in ("index_mult", "index_shift", "index_add")
    )
    assert (curve.slope, curve.slope_shift) == (recorded["oflow_slope"], recorded["oflow_shift"])
    assert fixed_point.multiplier_and_shift(1.0 / (shape.table_scale * case.scale)) == (
        recorded["out_mult"],
        recorded["out_shift"],
    )
    assert curve.positive[-1] == recorded["last_entry_register_0x4104"]
    differences = np.concatenate([curve.negative - recorded["le"], curve.positive - recorded["lo"]])
    assert np.abs(differences).max() <= 1
    assert np.count_nonzero(differences) <= 2


def half_up(value: Array, bits: Array | int) -> Array:
    shift = np.asarray(bits, np.int64)
    return np.where(shift == 0, value, (np.asarray(value, np.int64) + (1 << np.maximum(shift - 1, 0))) >> shift)


def truncated(value: Array, bits: Array | int) -> Array:
    return np.asarray(value, np.int64) >> np.asarray(bits, np.int64)


@pytest.mark.parametrize("rival", [half_up, truncated])
def test_the_bytes_refute_another_rounding(rival: Callable[[Array, Array | int], Array], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_point, "shift_right", rival)
    assert sum(wrong_bytes(BoardCase(name), direct_network) for name in names("direct")) > 0


def test_the_bytes_refute_one_rounding_for_both_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    def unrounded(total: Array, multiplier: Array) -> Array:
        return total * multiplier

    def merged(scaled: Array, multiplier: int, shift: int, zero_point: int) -> Array:
        bits = shift + fixed_point.CHANNEL_BITS
        return np.clip(shift_right(scaled * multiplier + (zero_point << bits), bits), -128, 127)

    monkeypatch.setattr(fixed_point, "scaled_accumulator", unrounded)
    monkeypatch.setattr(fixed_point, "output", merged)
    assert sum(wrong_bytes(BoardCase(name), direct_network) for name in names("direct")) > 0


def test_the_bytes_refute_a_rounded_interpolation(monkeypatch: pytest.MonkeyPatch) -> None:
    def rounded(curve: Curve, scaled: Array) -> Array:
        index = shift_right((scaled + curve.offset) * curve.multiplier, curve.shift)
        table = np.concatenate([curve.negative[:-1], curve.positive]).astype(np.int64)
        place = np.clip(index + 16384, 0, 32768)
        entry = np.minimum(place >> 5, len(table) - 2)
        inside = table[entry] + shift_right((table[entry + 1] - table[entry]) * (place - (entry << 5)), 5)
        beyond = table[-1] + (((index - 16384) * curve.slope) >> curve.slope_shift)
        return np.where((index > 16384) & (curve.slope != 0), beyond, inside)

    monkeypatch.setattr(f"{__name__}.evaluate", rounded)
    assert sum(wrong_bytes(BoardCase(name), curve_codes) for name in SHAPES) > 0
