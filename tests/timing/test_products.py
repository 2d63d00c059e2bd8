"""Matmuls."""

from __future__ import annotations

import pytest

from anynpu import chips
from anynpu.chips.timing import Bound, predict_matmul
from anynpu.chips.timing.matmul import parse_types
from anynpu.errors import DeviceError

RK3588 = chips.get("rk3588")


def test_a_call_costs_something_and_a_vector_its_weights() -> None:
    tiny = predict_matmul(RK3588, 1, 64, 64)
    assert 25 < tiny.time_us < 60
    assert tiny.bound is Bound.FLOOR
    vector = predict_matmul(RK3588, 1, 4096, 4096, dtype="float16")
    assert vector.bound is Bound.MEMORY
    assert vector.time_us == pytest.approx(4400, rel=0.1)


def test_rows_beyond_the_buffer_read_b_again() -> None:
    few, many = (predict_matmul(RK3588, m, 4096, 4096, dtype="float16") for m in (8, 64))
    assert many.read_bytes > 3 * few.read_bytes
    assert many.time_us > 3 * few.time_us


def test_int4_in_the_normal_layout_goes_row_by_row() -> None:
    one, many = (predict_matmul(RK3588, m, 4096, 4096, dtype="int4", layout="normal") for m in (1, 32))
    native = predict_matmul(RK3588, 32, 4096, 4096, dtype="int4")
    assert many.time_us == pytest.approx(32 * one.time_us, rel=0.1)
    assert native.time_us < 2 * one.time_us


def test_the_normal_layout_costs_nothing_for_one_row() -> None:
    native, normal = (predict_matmul(RK3588, 1, 1024, 4096, layout=layout) for layout in ("native", "normal"))
    assert normal.time_us == native.time_us
    several = predict_matmul(RK3588, 64, 1024, 4096, layout="normal")
    assert several.time_us > predict_matmul(RK3588, 64, 1024, 4096).time_us + 1000


def test_cores_share_a_product_but_not_the_memory() -> None:
    one, three = (predict_matmul(RK3588, 1, 4096, 4096, cores=cores) for cores in (1, 3))
    assert one.time_us > three.time_us > one.time_us / 3
    with pytest.raises(DeviceError, match="rk3588 has 3 cores"):
        predict_matmul(RK3588, 1, 64, 64, cores=4)


def test_other_chips_say_that_they_are_extrapolated() -> None:
    there, elsewhere = (predict_matmul(chips.get(name), 16, 2048, 2048) for name in ("rk3588", "rk3562"))
    assert there.confidence.level == "calibrated"
    assert "rk3588 only" in str(elsewhere.confidence)
    assert elsewhere.confidence.spread > there.confidence.spread


@pytest.mark.parametrize("text", ["", "int7", "int8*int8->float80", "float32"])
def test_unknown_types_are_refused(text: str) -> None:
    with pytest.raises(DeviceError, match="there is no matmul"):
        parse_types(text)
    with pytest.raises(DeviceError, match="no matmul"):
        predict_matmul(RK3588, 0, 64, 64)
