"""Activations and changes of scale as tables: the quantized values that the engine gives are the rounded values of the function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from anynpu.program import Table
from anynpu.program.arithmetic import affine_from_range, function_table, requantize_table
from anynpu.tensor import Affine, DType

from .ingredients import Case, nhwc
from .support import run_guarded

Array = npt.NDArray[Any]


def _erf(values: Array) -> Array:
    results: Array = np.vectorize(math.erf, otypes=[np.float64])(values)
    return results


# name -> the function on arrays, as a compiler would write it; on one number, as a book would; and its interval
ACTIVATIONS: dict[str, tuple[Callable[[Array], Array], Callable[[float], float], float, float]] = {
    "Relu": (lambda x: np.maximum(x, 0), lambda x: x if x > 0 else 0.0, -5, 5),
    "Relu6": (lambda x: np.clip(x, 0, 6), lambda x: min(max(x, 0.0), 6.0), -4, 9),
    "LeakyRelu": (lambda x: np.where(x < 0, 0.1 * x, x), lambda x: 0.1 * x if x < 0 else x, -6, 6),
    "Sigmoid": (lambda x: 1 / (1 + np.exp(-x)), lambda x: 0.5 * (1 + math.tanh(x / 2)), -6, 6),
    "Tanh": (np.tanh, lambda x: (math.exp(x) - math.exp(-x)) / (math.exp(x) + math.exp(-x)), -4, 4),
    "HardSigmoid": (lambda x: np.clip(0.2 * x + 0.5, 0, 1), lambda x: min(1.0, max(0.0, 0.2 * x + 0.5)), -5, 5),
    "HardSwish": (lambda x: x * np.clip(x / 6 + 0.5, 0, 1), lambda x: x * min(max(x + 3, 0.0), 6.0) / 6, -6, 6),
    "SiLU": (lambda x: x / (1 + np.exp(-x)), lambda x: x * 0.5 * (1 + math.tanh(x / 2)), -8, 8),
    "Mish": (
        lambda x: x * np.tanh(np.log1p(np.exp(x))),
        lambda x: x * ((1 + math.exp(x)) ** 2 - 1) / ((1 + math.exp(x)) ** 2 + 1),
        -5,
        5,
    ),
    "Gelu": (lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))), lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2)), -4, 4),
    "Elu": (lambda x: np.where(x < 0, np.expm1(np.minimum(x, 0)), x), lambda x: x if x >= 0 else math.exp(x) - 1, -4, 4),
    "Softplus": (lambda x: np.logaddexp(0, x), lambda x: math.log(1 + math.exp(x)), -6, 6),
    "Softsign": (lambda x: x / (1 + np.abs(x)), lambda x: x / (1 + abs(x)), -6, 6),
    "Exp": (np.exp, lambda x: math.e**x, -3, 2),
    "Sqrt": (np.sqrt, lambda x: x**0.5 if x >= 0 else 0.0, 0, 9),
    "Log": (lambda x: np.log(np.maximum(x, 0.01)), lambda x: math.log(x) if x > 0.01 else math.log(0.01), 0, 7),
    "Reciprocal": (lambda x: 1 / np.maximum(x, 0.1), lambda x: 1 / max(x, 0.1), 0, 4),
    "Abs": (np.abs, lambda x: -x if x < 0 else x, -3, 5),
    "Neg": (np.negative, lambda x: 0 - x, -3, 5),
    "Floor": (np.floor, lambda x: float(math.floor(x)), -6, 6),
    "Square": (np.square, lambda x: x * x, -2, 3),
    "Clip": (lambda x: np.clip(x, -1.5, 2.5), lambda x: sorted((-1.5, x, 2.5))[1], -4, 4),
}


def wanted_code(value: float, target: Affine, dtype: DType) -> set[int]:
    """The code of a value; both neighbors where the value is so near to a tie that the last bit of the function decides."""
    low, high = dtype.limits
    steps = value / target.scale
    near = {round(steps), round(steps - 1e-7), round(steps + 1e-7)}
    return {min(high, max(low, code + target.zero_point)) for code in near}


@pytest.mark.parametrize("dtype", [DType.INT8, DType.INT16], ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activation(name: str, dtype: DType) -> None:
    function, by_book, low, high = ACTIVATIONS[name]
    source = affine_from_range(low, high, dtype)
    results = [by_book(low + (high - low) * step / 200) for step in range(201)]
    room = 0.1 * (max(results) - min(results))
    target = affine_from_range(min(results) - room, max(results) + room, dtype)
    rng = np.random.default_rng(len(name))
    first, last = dtype.limits
    x = rng.integers(first, last + 1, (1, 12, 12, 4)).astype(dtype.storage)
    x.ravel()[:2] = first, last
    made = Case(
        Table(function_table(function, source, target, dtype)),
        (x,),
        (nhwc("x", x.shape, dtype, source),),
        (nhwc("y", x.shape, dtype, target),),
    )
    (y,) = run_guarded(made)
    for code, result in zip(x.ravel().tolist(), y.ravel().tolist(), strict=True):
        assert result in wanted_code(by_book((code - source.zero_point) * source.scale), target, dtype), code
    assert np.mean((y == first) | (y == last)) < 0.05
    assert len(np.unique(y)) > 5


@pytest.mark.parametrize("dtype", [DType.INT8, DType.INT16], ids=lambda dtype: dtype.value)
def test_change_of_scale_by_group(dtype: DType) -> None:
    rng = np.random.default_rng(3)
    sources = [affine_from_range(-1.0, 3.0, dtype), affine_from_range(-4.0, 1.0, dtype)]
    targets = [affine_from_range(-2.0, 4.0, dtype), affine_from_range(-5.0, 5.0, dtype)]
    table = np.concatenate([requantize_table(s, t, dtype) for s, t in zip(sources, targets, strict=True)])
    first, last = dtype.limits
    x = rng.integers(first, last + 1, (1, 8, 8, 5)).astype(dtype.storage)
    specs = [
        nhwc(name, x.shape, dtype, Affine(tuple(p.scale for p in pair), tuple(p.zero_point for p in pair), (2, 3)))
        for name, pair in (("x", sources), ("y", targets))
    ]
    (y,) = run_guarded(Case(Table(table, (2, 3)), (x,), (specs[0],), (specs[1],)))
    for index in np.ndindex(x.shape):
        group = 0 if index[-1] < 2 else 1
        value = (int(x[index]) - sources[group].zero_point) * sources[group].scale
        assert int(y[index]) in wanted_code(value, targets[group], dtype)
