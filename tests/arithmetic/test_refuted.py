"""Rival rules that the board's bytes refute: each choice of the chip's rule, turned the other way, gets bytes wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from anynpu.program import Curve
from anynpu.program.arithmetic import fixed_point
from anynpu.program.arithmetic.fixed_point import shift_right
from anynpu.program.arithmetic.lookup_tables import curve_of, evaluate

from .board_cases import Array, BoardCase, names
from .test_board_bytes import SHAPES, direct_layer, half_up, stem, truncated, wrong_bytes


def network(
    case: BoardCase, pattern: str, *, padding: int | None = None, average: Callable[[Array, int], Array] = shift_right
) -> Array:
    """A program of known integers; *padding* is what stands outside of the image, its zero point if not given."""
    params = case.record["params"]
    y = direct_layer(case.input(pattern)[0].astype(np.int64) - 128, params, -128 if padding is None else padding)
    for _ in range(params.get("levels", 1) if params.get("pool") else 0):
        height, width, channels = y.shape
        blocks = y.reshape(height // 2, 2, width // 2, 2, channels)
        y = blocks.max((1, 3)) if params["pool"] == "max" else average(blocks.sum((1, 3)), 2)
    second = params.get("second")
    return direct_layer(y, second, params["z_out"] if padding is None else padding) if second else y


def leaky(case: BoardCase, pattern: str, *, round_all: bool = False) -> Array:
    codes, scales, bias = stem(case)
    total = (case.input(pattern).reshape(-1, 3).astype(np.int64) - 128) @ codes.T + bias
    factors, one = fixed_point.channel_multipliers(scales), np.array([1 << fixed_point.CHANNEL_BITS])
    slope = np.rint(np.full(3, np.float32(0.1)) * 16384)
    end = (*fixed_point.multiplier_and_shift(float(scales.max()) / case.scale), case.zero_point)
    sums, factors = (fixed_point.scaled_accumulator(total, factors), one) if round_all else (total, factors)
    return fixed_point.leaky_output(sums, factors, slope, *end)


def curve_codes(case: BoardCase, pattern: str, look_up: Callable[[Curve, Array], Array], *, from_code: bool = False) -> Array:
    codes, scales, bias = stem(case)
    total = (case.input(pattern).reshape(-1, 3).astype(np.int64) - 128) @ codes.T + bias
    scaled, unit = fixed_point.scaled_accumulator(total, fixed_point.channel_multipliers(scales)), float(scales.max())
    if from_code:  # a quantized value of the range that the toolkit recorded for the same convolution stands in between
        scale, zero = BoardCase("transpose").scale, BoardCase("transpose").zero_point
        scaled = fixed_point.output(scaled, *fixed_point.multiplier_and_shift(unit / scale), zero) - zero
        unit = scale
    shape = SHAPES[case.record["lut"]["function"]]
    values = look_up(curve_of(shape, unit), scaled)
    stage = fixed_point.multiplier_and_shift(1.0 / (shape.table_scale * case.scale))
    return fixed_point.output(values, *stage, case.zero_point)


def without_interpolation(curve: Curve, scaled: Array) -> Array:
    index = shift_right((scaled + curve.offset) * curve.multiplier, curve.shift)
    place = np.where(index < 0, np.maximum(index, -16384) + 16384, np.minimum(index, 16384))
    inside = np.where(index < 0, curve.negative[place >> 5], curve.positive[place >> 5]).astype(np.int64)
    beyond = curve.positive[-1] + (((index - 16384) * curve.slope) >> curve.slope_shift)
    return np.where((index > 16384) & (curve.slope != 0), beyond, inside)


def without_slope(curve: Curve, scaled: Array) -> Array:
    return evaluate(Curve(curve.offset, curve.multiplier, curve.shift, curve.negative, curve.positive), scaled)


def total(cases: list[str], compute: Callable[[BoardCase, str], Array]) -> int:
    return sum(wrong_bytes(BoardCase(name), compute) for name in cases)


DIRECT = names("direct")
AVERAGES = [name for name in DIRECT if BoardCase(name).record["params"].get("pool") == "average"]


def test_the_rule_as_it_is_gets_every_byte_right() -> None:
    assert total(DIRECT, network) == 0
    assert total(["leakyrelu"], leaky) == 0
    assert total(sorted(SHAPES), lambda case, pattern: curve_codes(case, pattern, evaluate)) == 0


def test_padding_is_the_zero_point_not_the_code_zero() -> None:
    assert total(DIRECT, lambda case, pattern: network(case, pattern, padding=0)) > 100


@pytest.mark.parametrize("rival", [half_up, truncated])
def test_an_average_is_rounded_half_to_even(rival: Callable[[Array, int], Array]) -> None:
    assert AVERAGES
    assert total(AVERAGES, lambda case, pattern: network(case, pattern, average=rival)) > 0


@pytest.mark.parametrize("rival", [half_up, truncated])
def test_the_first_stage_alone_is_rounded_half_to_even(
    rival: Callable[[Array, int], Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        fixed_point, "scaled_accumulator", lambda sums, factors: rival(sums * factors.astype(np.int64), fixed_point.CHANNEL_BITS)
    )
    assert total(DIRECT, network) > 0


def test_what_these_bytes_do_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether positive sums of a leaky layer are rounded first, and whether the zero point comes after the last rounding.

    The rule has what those who had the board found with cases made for it. If new bytes decide one, this test reports it.
    """
    assert total(["leakyrelu"], lambda case, pattern: leaky(case, pattern, round_all=True)) == 0

    def late(scaled: Array, multiplier: int, shift: int, zero: int) -> Array:
        return np.clip(shift_right(scaled * multiplier, shift) + zero, -128, 127)

    monkeypatch.setattr(fixed_point, "output", late)
    assert total(DIRECT, network) == 0


@pytest.mark.parametrize("rival", [without_interpolation, without_slope])
def test_tables_are_interpolated_and_go_on_beyond_their_end(rival: Callable[[Curve, Array], Array]) -> None:
    assert total(sorted(SHAPES), lambda case, pattern: curve_codes(case, pattern, rival)) > 100


def test_an_activation_sees_the_unrounded_sum() -> None:
    assert total(sorted(SHAPES), lambda case, pattern: curve_codes(case, pattern, evaluate, from_code=True)) > 500
