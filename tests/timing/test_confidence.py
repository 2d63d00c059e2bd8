"""Ranges and levels: what makes a prediction less sure."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from anynpu import chips
from anynpu.chips.timing.model import Confidence, Kind, kind_of

from .nets import Chain, one_conv
from .transformers import block


def test_a_range_is_around_the_value() -> None:
    low, high = Confidence("calibrated", spread=0.2).range(50.0)
    assert low < 50 < high
    assert high / 50 == pytest.approx(50 / low) == pytest.approx(math.exp(0.2))


def test_the_range_of_a_prediction_grows_with_doubt() -> None:
    chain = one_conv(256, 256, 80)
    one = chain.predict()
    spreads = [
        one.confidence.spread,
        chain.predict(sram_bytes=1 << 20).confidence.spread,
        chain.predict(cores=3).confidence.spread,
        chain.predict("rv1106").confidence.spread,
    ]
    assert spreads == sorted(set(spreads))
    assert one.range_us[0] < one.latency_us < one.range_us[1]


def test_kinds_of_networks() -> None:
    assert kind_of(one_conv(256, 256, 80).predict()) is Kind.INT8
    assert kind_of(one_conv(256, 256, 80).predict(dtype="fp16")) is Kind.FLOAT16
    small = Chain(1, 16, 8, 8)
    for _ in range(6):
        small.conv(16, 1)
    assert kind_of(small.predict()) is Kind.SMALL_LAYERS
    assert kind_of(block(128, 4, 16).predict("rk3566", "fp16")) is Kind.FLOAT16_CPU


def test_chips_that_users_reported_are_surer_than_unknown_ones() -> None:
    chain = one_conv(256, 256, 80)
    reported, unknown = chain.predict("a733"), chain.predict("v853")
    assert reported.confidence.level == unknown.confidence.level == "uncalibrated"
    assert reported.confidence.spread < unknown.confidence.spread
    assert "users reported" in str(reported.confidence)


def test_a_profile_without_float_figures_says_so() -> None:
    chain = one_conv(128, 128, 80)
    made = chain.predict(dtype="fp16")
    lacking = replace(made.profile, float_error=None)
    assert "not float16" in str(chain.predict(dtype="fp16", profile=lacking).confidence)


def test_every_chip_gives_a_range() -> None:
    for chip in chips.all_chips():
        low, high = one_conv(32, 32, 40).predict(chip.name).range_us
        assert 0 < low < high
