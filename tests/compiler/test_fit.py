"""The arithmetic of weight reconstruction, and samples in several threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from anynpu.compiler.lower.attributes import Window
from anynpu.compiler.quantize import reconstruction as fit_module
from anynpu.compiler.quantize.reconstruction import at_positions, channel_columns_of, columns_of, fit_dense, fit_depthwise
from anynpu.compiler.quantize.threads import _openblas, in_order, one_blas_thread, thread_count
from anynpu.program.arithmetic import WeightScales

RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Each test draws the same numbers, whatever ran before it in this process."""
    RNG.bit_generator.state = np.random.default_rng(5).bit_generator.state


@pytest.mark.parametrize("batch", [1, 2])
def test_positions_count_over_pictures_rows_and_columns(batch: int) -> None:
    values = RNG.standard_normal((batch, 3, 4, 5), np.float32)
    taken = RNG.permutation(batch * 20)[:7]
    rows = values.transpose(0, 2, 3, 1).reshape(-1, 3)
    np.testing.assert_array_equal(at_positions(values, taken), rows[taken].T)


@pytest.mark.parametrize("batch", [1, 2])
def test_columns_times_weights_are_the_convolution(batch: int) -> None:
    window = Window((3, 2), (2, 1), (1, 0, 1, 1), (1, 2))
    weights = RNG.standard_normal((4, 3, 3, 2), np.float32)
    samples = [RNG.standard_normal((batch, 3, 7, 6), np.float32) for _ in range(3)]
    extent = (4, 5)
    taken = [RNG.permutation(batch * 20)[:9] for _ in samples]
    columns = columns_of(window, extent, samples, taken)
    assert columns.shape == (27, 3, 6)
    np.testing.assert_array_equal(channel_columns_of(window, extent, samples, taken), columns.transpose(1, 2, 0))
    given = weights.reshape(4, -1) @ columns.reshape(27, -1).T
    expected = []
    for sample, positions in zip(samples, taken, strict=True):
        padded = np.pad(sample, ((0, 0), (0, 0), (1, 1), (0, 1)))
        for position in positions:
            image, row, column = np.unravel_index(position, (batch, *extent))
            seen = padded[image, :, row * 2 : row * 2 + 3, column : column + 3 : 2]
            expected.append(np.tensordot(weights, seen, 3))
    np.testing.assert_allclose(given, np.transpose(expected), rtol=1e-4, atol=1e-4)


def test_a_fit_finds_the_weights_that_give_what_is_wanted() -> None:
    columns = RNG.standard_normal((400, 6, 1)).astype(np.float32)
    weights = RNG.standard_normal((5, 6))
    wanted = (weights @ columns[:, :, 0].T + 3.0).astype(np.float32)
    codes, scales, zeros, bias = fit_dense(columns, wanted, 0.9 * weights, np.full(5, 1e-9), WeightScales.CHANNEL)
    np.testing.assert_allclose((codes - zeros[:, None]) * scales[:, None], weights, atol=0.05)
    np.testing.assert_allclose(bias, 3.0, atol=0.05)


def test_a_depthwise_fit_takes_each_channel_by_itself() -> None:
    columns = RNG.standard_normal((3, 9, 400)).astype(np.float32)
    weights = RNG.standard_normal((3, 9))
    wanted = ((weights[:, :, None] * columns).sum(axis=1) - 2.0).astype(np.float32)
    codes, scales, zeros, bias = fit_depthwise(
        lambda part: columns[part].copy(), wanted, 0.9 * weights, np.full(3, 1e-9), WeightScales.CHANNEL
    )
    np.testing.assert_allclose((codes - zeros[:, None]) * scales[:, None], weights, atol=0.05)
    np.testing.assert_allclose(bias, -2.0, atol=0.05)


@pytest.mark.parametrize("depthwise", [False, True])
def test_weights_move_far_only_where_other_samples_agree(monkeypatch: pytest.MonkeyPatch, depthwise: bool) -> None:
    """What is missing at random reports nothing about other samples: weights that are held weakly follow it, the fit does not."""
    columns = RNG.standard_normal((4, 9, 60)).astype(np.float32)
    weights = RNG.standard_normal((4, 9) if depthwise else (4, 36))
    product = (weights[:, :, None] * columns).sum(axis=1) if depthwise else weights @ columns.reshape(36, 60)
    wanted = (product + 4.0 * RNG.standard_normal((4, 60))).astype(np.float32)

    def moved() -> float:
        given = (wanted, weights, np.full(4, 1e-9), WeightScales.CHANNEL)
        if depthwise:
            codes, scales, zeros, _ = fit_depthwise(lambda part: columns[part].copy(), *given)
        else:
            codes, scales, zeros, _ = fit_dense(columns.transpose(2, 0, 1).copy(), *given)
        return float(np.abs((codes - zeros[:, None]) * scales[:, None] - weights).mean())

    held = moved()
    monkeypatch.setattr(fit_module, "_RIDGES", fit_module._RIDGES[:1])
    assert held < 0.6 * moved()


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_depthwise_fit_is_the_same_in_pieces(monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
    columns = RNG.standard_normal((7, 9, 50)).astype(np.float32)
    weights = RNG.standard_normal((7, 9))
    given = (RNG.standard_normal((7, 50)).astype(np.float32), weights, np.full(7, 1e-9), WeightScales.CHANNEL)
    whole = fit_depthwise(lambda part: columns[part].copy(), *given)
    monkeypatch.setattr(fit_module, "_CACHED", pieces * 9 * 50)
    monkeypatch.setattr(fit_module, "_WORTH_THREADS", 0)
    for one, other in zip(whole, fit_depthwise(lambda part: columns[part].copy(), *given), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("size", [5, 128, 200, 321])
@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 1e-4), (np.float64, 1e-12)])
def test_large_systems_are_solved_block_by_block(size: int, dtype: type, error: float) -> None:
    seen = RNG.standard_normal((2 * size, size)).astype(dtype)
    matrix = (seen.T @ seen / len(seen) + 0.05 * np.eye(size, dtype=dtype))[None]
    right = RNG.standard_normal((1, size, 3)).astype(dtype)
    before = matrix.copy(), right.copy()
    solved = fit_module._solved(matrix, right)
    assert solved.dtype == dtype
    np.testing.assert_allclose(matrix @ solved, right, atol=10 * error)
    np.testing.assert_array_equal(matrix, before[0])
    np.testing.assert_array_equal(right, before[1])


def test_columns_are_rounded_so_that_each_makes_up_for_those_before_it() -> None:
    """The C loop gives what the definition does, column by column."""
    better, start = (RNG.standard_normal((4, 150)) for _ in range(2))
    seen = RNG.standard_normal((300, 150))
    energy, size, zero = seen.T @ seen / 300, np.array([0.02, 0.03, 0.01, 0.05]), np.array([-3.0, 0.0, 9.0, 100.0])
    expected = start.copy()
    for _ in range(fit_module._ROUNDS):
        for column in range(150):
            gradient = (better - expected) @ energy[:, column]
            codes = np.rint((expected[:, column] + gradient / energy[column, column]) / size)
            expected[:, column] = np.clip(codes, -128 - zero, 127 - zero) * size
    found = fit_module._round_columns(better, start, energy, size, zero)
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_come_in_the_order_of_the_items(threads: int) -> None:
    assert list(in_order(lambda value: value * value, range(20), threads)) == [value * value for value in range(20)]


def test_items_are_read_no_further_ahead_than_there_are_threads() -> None:
    read = []

    def items() -> Iterator[int]:
        for value in range(10):
            read.append(value)
            yield value

    results = in_order(str, items(), 2)
    assert next(results) == "0"
    assert len(read) == 3
    results.close()  # type: ignore[attr-defined]


def test_two_samples_are_worked_on_at_a_time() -> None:
    both = threading.Barrier(2, timeout=300)
    assert sorted(in_order(lambda _: both.wait(), range(2), 2)) == [0, 1]


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_reaches_the_caller(threads: int) -> None:
    def fail(value: int) -> int:
        if value == 3:
            raise ValueError("three")
        return value

    results = in_order(fail, range(10), threads)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)


def test_large_samples_come_one_at_a_time() -> None:
    assert thread_count(1 << 30) == 1
    assert thread_count() >= 1


def test_products_run_on_one_thread_inside_a_block_and_as_before_after_it() -> None:
    found = _openblas()
    if found is None:
        pytest.skip("numpy has another library than OpenBLAS")
    get, put = found
    before = get()
    put(2)
    wide = get()  # 1 where the library knows no threads
    try:
        with one_blas_thread():
            assert get() == 1
            with one_blas_thread():
                assert get() == 1
            assert get() == 1
        assert get() == wide
    finally:
        put(before)


@pytest.mark.parametrize("valley", range(4))
def test_how_strongly_weights_are_held_is_found_in_three_steps(valley: int) -> None:
    """Each try is a system of equations to solve, the larger part of a fit; the least loss is found wherever it lies."""
    tried: list[float] = []

    def loss(ridge: float) -> float:
        tried.append(ridge)
        return abs(fit_module._RIDGES.index(ridge) - valley)

    assert fit_module._least(loss) == fit_module._RIDGES[valley]
    assert len(tried) <= 3
