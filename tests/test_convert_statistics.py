from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_convert_levels import level as level

from anynpu._native import ffi, lib

pytestmark = pytest.mark.usefixtures("level")


def floats(array: Any) -> Any:
    return ffi.from_buffer("float[]", array)


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 1000, 100_003])
def test_minmax_ignores_nan(count: int) -> None:
    rng = np.random.default_rng(count)
    for place in (0, count // 2, count - 1):
        values = rng.normal(size=count).astype(np.float32)
        values[rng.random(count) < 0.2] = np.nan
        values[place] = 7.0
        values[(place + 1) % count] = -7.0 if count > 1 else 7.0
        result = ffi.new("float[2]")
        lib.anynpu_minmax_f32(floats(values), count, result)
        assert list(result) == [np.nanmin(values), np.nanmax(values)]


def test_minmax_of_nothing() -> None:
    result = ffi.new("float[2]")
    lib.anynpu_minmax_f32(floats(np.full(100, np.nan, np.float32)), 100, result)
    assert list(result) == [np.inf, -np.inf]
    lib.anynpu_minmax_f32(ffi.NULL, 0, result)
    assert list(result) == [np.inf, -np.inf]


def test_minmax_by_channel() -> None:
    values = np.random.default_rng(1).normal(size=(3, 5, 77)).astype(np.float32)
    values[0, 2] = np.nan
    low, high = np.empty(5, np.float32), np.empty(5, np.float32)
    lib.anynpu_minmax_channels_f32(floats(values), 3, 5, 77, floats(low), floats(high))
    np.testing.assert_array_equal(low, np.nanmin(values, axis=(0, 2)))
    np.testing.assert_array_equal(high, np.nanmax(values, axis=(0, 2)))


@pytest.mark.parametrize("bins", [1, 2, 100, 2048, 2049, 5000])
def test_histogram_adds_and_clamps(bins: int) -> None:
    rng = np.random.default_rng(bins)
    values = rng.normal(size=10_001).astype(np.float32)
    values[::7] = 0.0
    values[5], values[6], values[8] = np.inf, -np.inf, np.nan
    low, inverse_step = np.float32(-2.0), np.float32(bins / 4)
    counts = np.full(bins, 3, np.uint64)
    lib.anynpu_histogram_f32(floats(values), values.size, low, inverse_step, bins, ffi.from_buffer("uint64_t[]", counts))
    position = (values[~np.isnan(values)] - low) * inverse_step
    index = np.clip(position, 0, bins - 1).astype(np.int64)
    np.testing.assert_array_equal(counts - 3, np.bincount(index, minlength=bins))
    assert counts.sum() - 3 * bins == values.size - 1
