"""Values that look like a mistake are mentioned once."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from anynpu._util.types import Array
from anynpu.session.feeds import FeedReader
from anynpu.tensor import Affine, DType, DynamicFixedPoint, TensorSpec

UNIT = TensorSpec("image", (1, 100), DType.INT8, quantization=Affine.per_tensor(1 / 255, -128))
"""Calibrated for 0 to 1."""
BYTES = TensorSpec("image", (1, 100), DType.INT8, quantization=Affine.per_tensor(1.0, -128))
FIXED = TensorSpec("image", (1, 100), DType.INT8, quantization=DynamicFixedPoint(7))
HALF = TensorSpec("image", (1, 100), DType.FLOAT16)

RAMP = np.linspace(0, 1, 100, dtype=np.float32)[None]


def said(caplog: pytest.LogCaptureFixture, spec: TensorSpec, *arrays: Array) -> list[str]:
    """What is logged while a session reads these arrays."""
    reader = FeedReader([spec], (), "nchw")
    with caplog.at_level(logging.WARNING, "anynpu.session"):
        for array in arrays:
            reader.read([array], False)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("spec", "array", "text"),
    [
        (UNIT, RAMP * 255, "outside of 0 to 1, for which the model was calibrated"),
        (UNIT, RAMP * 2 - 1, "50% of the values lie outside"),
        (FIXED, RAMP.astype(np.float64) * 255, "outside of -1 to 0.9922"),
        (BYTES, RAMP, "all values lie between 0 and 1, which is less than 4 steps of the model's range (0 to 255)"),
        (HALF, RAMP * 1e6, "which ends at 65504"),
    ],
)
def test_values_that_cannot_be_meant(caplog: pytest.LogCaptureFixture, spec: TensorSpec, array: Array, text: str) -> None:
    (message,) = said(caplog, spec, array, array, array, array)
    assert text in message
    assert message.startswith("input 'image': ")


@pytest.mark.parametrize(
    ("spec", "array"),
    [
        (UNIT, RAMP),
        (UNIT, np.zeros((1, 100), np.float32)),  # a first run with zeros, to warm up
        (UNIT, np.where(np.arange(100) == 7, 3.0, RAMP).astype(np.float32)),  # one value, as percentiles leave it out
        (UNIT, np.full((1, 100), 100, np.int8)),  # codes
        (BYTES, np.arange(100, dtype=np.uint8)[None]),
        (HALF, RAMP * 255),
        (HALF, np.where(RAMP > 0.5, -np.inf, RAMP).astype(np.float32)),  # a mask
    ],
)
def test_values_that_may_be_meant(caplog: pytest.LogCaptureFixture, spec: TensorSpec, array: Array) -> None:
    assert said(caplog, spec, array, array) == []


def test_a_mistake_that_comes_later_is_found_before_twice_as_many_requests(caplog: pytest.LogCaptureFixture) -> None:
    assert said(caplog, UNIT, *[RAMP] * 100, *[RAMP * 255] * 27) == []
    assert len(said(caplog, UNIT, *[RAMP] * 100, *[RAMP * 255] * 28)) == 1
