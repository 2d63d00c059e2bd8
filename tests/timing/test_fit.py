"""Fitting the timing model: what measurements report, and what one wrong measurement must not do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anynpu import chips
from anynpu.chips.timing import predict_work
from anynpu.chips.timing.calibration import FULL_FORM, Measurement, fit
from anynpu.chips.timing.layers import ProgramWork, work_of
from anynpu.chips.timing.parameters import TimingParameters, derived_parameters, timing_profile
from anynpu.errors import CalibrationError

from .nets import Chain

CHIP = chips.get("rk3588")
TRUTH = TimingParameters(600.0, 5.0, 30.0, 40_000.0, 1.5, 3.0)


def network(index: int) -> Chain:
    """One of a family of networks that differ in size, depth and activation."""
    size = (96, 160, 224, 320)[index % 4]
    chain = Chain(1, 3, size, size)
    for depth in range(2 + index % 5):
        activation = ("Relu", "Silu", "Sigmoid")[(index + depth) % 3]
        chain.conv((16, 32, 64, 96, 128)[(index + depth) % 5], 3 if depth % 2 else 1, activation=activation)
    if index % 3 == 0:
        chain.op("Softmax", axis=1)
    chain.op("GlobalAveragePool")
    return chain


@pytest.fixture(scope="module")
def works() -> list[ProgramWork]:
    return [work_of(network(index).program(), CHIP) for index in range(14)]


def milliseconds(work: ProgramWork, parameters: TimingParameters, cores: int = 1) -> float:
    profile = replace(timing_profile(CHIP), parameters=parameters)
    return predict_work(work, CHIP, profile, cores=cores).latency_us / 1000


def measured(works: list[ProgramWork], parameters: TimingParameters = TRUTH) -> list[Measurement]:
    return [Measurement(f"net {index}", work, milliseconds(work, parameters)) for index, work in enumerate(works)]


def test_many_models_give_all_parameters(works: list[ProgramWork]) -> None:
    fitted = fit(measured(works), CHIP, derived_parameters(CHIP))
    assert fitted.form == "full"
    assert max(map(abs, fitted.errors.values())) < 0.02
    assert fitted.median_error < 0.02
    for name in ("macs_per_ns", "lookup_ns"):
        assert getattr(fitted.parameters, name) == pytest.approx(getattr(TRUTH, name), rel=0.1)


def test_one_model_that_does_not_fit_does_not_spoil_the_others(works: list[ProgramWork]) -> None:
    entries = measured(works)
    entries[3] = replace(entries[3], milliseconds=entries[3].milliseconds * 3)
    fitted = fit(entries, CHIP, derived_parameters(CHIP))
    errors = dict(fitted.errors)
    assert errors.pop("net 3") == pytest.approx(-2 / 3, abs=0.05)
    assert sorted(map(abs, errors.values()))[len(errors) // 2] < 0.03


def test_few_models_give_scale_and_offset(works: list[ProgramWork]) -> None:
    known = timing_profile(CHIP).parameters
    truth = replace(known, scale=1.31, offset_ns=2.9e6)
    fitted = fit(measured([works[0], works[7]], truth), CHIP)
    assert fitted.form == "scale and offset"
    assert fitted.parameters.scale == pytest.approx(1.31)
    assert fitted.parameters.offset_ns == pytest.approx(2.9e6)
    assert fitted.parameters.macs_per_ns == known.macs_per_ns
    assert max(map(abs, fitted.errors.values())) < 1e-6
    assert set(fitted.left_out) == {"net 0", "net 1"}


def test_five_models_predict_the_one_that_is_left_out(works: list[ProgramWork]) -> None:
    truth = replace(timing_profile(CHIP).parameters, scale=1.58, offset_ns=2.9e6)
    fitted = fit(measured(works[:5], truth), CHIP)
    assert fitted.worst_error < 1e-6


def test_a_single_model_gives_a_scale(works: list[ProgramWork]) -> None:
    fitted = fit(measured(works[:1], replace(timing_profile(CHIP).parameters, scale=1.5)), CHIP)
    assert fitted.parameters.scale == pytest.approx(1.5)
    assert fitted.parameters.offset_ns == 0
    assert fitted.left_out["net 0"] == pytest.approx(1 / 1.5 - 1)


def test_models_that_take_equally_long_give_a_scale_only(works: list[ProgramWork]) -> None:
    entries = measured([works[0], works[0]], replace(timing_profile(CHIP).parameters, scale=2.0))
    assert fit(entries, CHIP).parameters.offset_ns == 0


def test_a_line_that_would_end_below_zero_is_not_taken(works: list[ProgramWork]) -> None:
    small, large = sorted(measured(works[:8]), key=lambda entry: entry.milliseconds)[::7]
    backwards = [replace(small, milliseconds=large.milliseconds), replace(large, milliseconds=small.milliseconds)]
    parameters = fit(backwards, CHIP).parameters
    assert parameters.scale > 0
    assert parameters.offset_ns == 0


def test_float16_and_several_cores_are_no_part_of_a_full_fit(works: list[ProgramWork]) -> None:
    half = work_of(network(4).program(dtype="fp16"), CHIP)
    entries = measured(works[:FULL_FORM])
    others = [Measurement("half", half, 1000.0), Measurement("shared", works[1], 500.0, cores=3)]
    alone, together = fit(entries, CHIP, TRUTH), fit([*entries, *others], CHIP, TRUTH)
    assert together.parameters == alone.parameters
    assert together.left_out == alone.left_out
    assert set(together.errors) - set(alone.errors) == {"half", "shared"}


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(CalibrationError, match="no measurements"):
        fit([], CHIP)


def test_published_profiles_say_what_they_rest_on() -> None:
    for name in ("rk3588", "rk3576", "rk3566", "rk3562"):
        profile = timing_profile(chips.get(name))
        assert profile.calibrated
        assert profile.sdk == "2.3.2"
        assert profile.models == 18
        assert profile.median_error is not None
        assert profile.median_error <= 0.04
        assert len(profile.outliers) <= 2
