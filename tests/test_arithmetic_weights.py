"""Quantization of weights: large ones are worked through in blocks of rows, which must not show."""

from __future__ import annotations

import numpy as np
import pytest

from anynpu.program import arithmetic
from anynpu.tensor import DType


@pytest.mark.parametrize("dtype", [DType.INT8, DType.INT16])
@pytest.mark.parametrize("shape", [(7, 30_000), (300, 16, 9, 9), (3, 1), (2, 70_000)])
def test_each_row_is_quantised_by_itself(shape: tuple[int, ...], dtype: DType) -> None:
    rng = np.random.default_rng(4)
    weights = rng.standard_normal(shape).astype(np.float32) * rng.uniform(0.01, 3, (shape[0], *[1] * (len(shape) - 1)))
    smallest = rng.uniform(0, 0.01, shape[0])
    codes, scales, zeros = arithmetic.quantize_weights(weights, dtype, smallest)
    assert codes.shape == shape
    assert codes.dtype == dtype.storage
    for row in range(shape[0]):
        code, scale, zero = arithmetic.quantize_weights(weights[row : row + 1], dtype, smallest[row : row + 1])
        np.testing.assert_array_equal(code[0], codes[row])
        assert (scale[0], zero[0]) == (scales[row], zeros[row])


@pytest.mark.parametrize("order", ["C", "F"])
def test_codes_are_the_nearest_to_the_weights(order: str) -> None:
    rng = np.random.default_rng(5)
    weights = np.asarray(rng.standard_normal((64, 4000)), np.float32, order=order)  # type: ignore[call-overload]
    codes, scales, zeros = arithmetic.quantize_weights(weights)
    values = (codes.astype(np.float64) - zeros[:, None]) * scales[:, None].astype(np.float64)
    assert np.abs(values - weights).max() <= scales.max() * 0.5001 + scales.max() * 0.5  # a zero point is rounded too
    inside = (codes > -128) & (codes < 127)
    assert (np.abs(values - weights)[inside] <= (scales[:, None] * 0.5001 * np.ones_like(weights))[inside]).all()
    assert codes.min() == -128
    assert codes.max() == 127
