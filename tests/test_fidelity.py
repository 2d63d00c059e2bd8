"""What docs/validation.md states about the written arithmetic: how far it is from the same formula in real numbers."""

from __future__ import annotations

import numpy as np
import pytest

from anynpu.program import RESIZE_BITS, Epilogue, limits_of
from anynpu.program.arithmetic import apply_epilogue, resize_shift


@pytest.mark.parametrize(("dtype", "span"), [(np.int8, 128), (np.int16, 32768)])
def test_scaling_an_accumulator_is_within_one_step(dtype: type[np.generic], span: int) -> None:
    rng = np.random.default_rng(1)
    code_type = np.dtype(dtype)
    low, high = limits_of(code_type)
    accumulator = rng.integers(-(1 << 30), 1 << 30, (4000, 16))
    multiplier = 2.0 ** rng.uniform(-4, 0.5, 16) * span / (1 << 30)
    zero_point = rng.integers(-span // 4, span // 4, 16).astype(np.int32)
    codes = apply_epilogue(accumulator, Epilogue(multiplier.astype(np.float32), zero_point), code_type)
    real = np.clip(np.rint(accumulator * multiplier) + zero_point, low, high)
    difference = np.abs(codes - real)
    assert difference.max() <= 1
    assert (difference == 0).mean() > 0.98
    assert ((codes > low) & (codes < high)).mean() > 0.5  # most are not at the limits, which would hide a difference


@pytest.mark.parametrize(("dtype", "steps"), [(np.int8, 1), (np.int16, 32)])
def test_a_linear_resize_is_within_its_bound(dtype: type[np.generic], steps: int) -> None:
    rng = np.random.default_rng(2)
    low, high = limits_of(np.dtype(dtype))
    corners = rng.integers(low, high + 1, (50_000, 2, 2))
    weights = rng.random((50_000, 2))
    one = 1 << RESIZE_BITS
    fixed = np.rint(weights * one).astype(np.int64)
    rows, columns = (np.stack([one - fixed[:, axis], fixed[:, axis]], axis=1) for axis in (0, 1))
    codes = resize_shift(np.einsum("nij,ni,nj->n", corners, rows, columns))
    real_rows, real_columns = (np.stack([1 - weights[:, axis], weights[:, axis]], axis=1) for axis in (0, 1))
    real = np.rint(np.einsum("nij,ni,nj->n", corners.astype(np.float64), real_rows, real_columns))
    assert np.abs(codes - real).max() <= steps
    assert np.abs(codes - real).max() > 0
