"""Statistics over samples, and the ranges that follow from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from anynpu.compiler.quantize.ranges import ALGORITHMS, RangeObserver, clip_to_table
from anynpu.errors import CalibrationError, CompileError
from anynpu.program.arithmetic import affine_from_range, dequantize, function_table, quantize
from anynpu.tensor import Affine, DType

Floats = npt.NDArray[Any]


def observed(*samples: Floats) -> RangeObserver:
    observer = RangeObserver()
    for sample in samples:
        observer.observe("x", np.asarray(sample, np.float32))
    return observer


def squared_error(values: Floats, low: float, high: float) -> float:
    affine = affine_from_range(low, high)
    values = values.astype(np.float32).reshape(-1, 1)
    return float(np.square(dequantize(quantize(values, affine, DType.INT8), affine).astype(np.float64) - values).mean())


def distributions() -> dict[str, Floats]:
    random = np.random.default_rng(0)
    normal = random.normal(size=200_000)
    return {
        "normal": normal,
        "relu": np.maximum(normal, 0),
        "swish": 3 * normal / (1 + np.exp(-3 * normal)),
        "laplace": random.laplace(size=200_000),
        "heavy tails": random.standard_t(3, 200_000),
        "uniform": random.uniform(-1, 3, 200_000),
        "positive": random.uniform(5, 10, 200_000),
        "negative": -random.exponential(size=200_000),
        "outlier": np.append(normal, 100.0),
        "few": random.normal(size=300),
    }


DISTRIBUTIONS = distributions()
over_distributions = pytest.mark.parametrize("name", list(DISTRIBUTIONS))


class TestHistogram:
    def check(self, samples: list[Floats], misplaced: float = 0.001) -> None:
        counts, edges = observed(*samples).histogram("x")
        values = np.concatenate([np.ravel(sample) for sample in samples]).astype(np.float32).astype(np.float64)
        assert len(counts) == len(edges) - 1
        assert counts.sum() == values.size
        expected, _ = np.histogram(values, edges)
        # Float32 puts a value close to an edge on either side of it, so what lies below an edge is known to within one bin.
        below, wanted = np.cumsum(counts), np.cumsum(expected)
        assert (below[1:] >= wanted[:-1]).all()
        assert (below[:-1] <= wanted[1:]).all()
        assert np.abs(counts.astype(np.int64) - expected).sum() <= misplaced * values.size

    @over_distributions
    def test_one_sample(self, name: str) -> None:
        self.check([DISTRIBUTIONS[name]])

    def test_grows_to_both_sides(self) -> None:
        random = np.random.default_rng(1)
        self.check(
            [random.normal(size=5000) * scale + shift for scale, shift in ((0.01, 0.3), (1, 2), (30, -100), (0.1, 50), (500, 0))]
        )

    def test_shrinking_samples_lose_nothing(self) -> None:
        self.check([np.random.default_rng(2).normal(size=5000) * scale for scale in (1000, 1, 0.001)], misplaced=0.1)

    def test_keeps_its_resolution(self) -> None:
        random = np.random.default_rng(3)
        samples = [random.uniform(-(2**power), 3 * 2**power, 1000) for power in range(-12, 12)]
        counts, _ = observed(*samples).histogram("x")
        used = np.flatnonzero(counts)
        assert used[-1] - used[0] >= 2046

    def test_far_from_zero(self) -> None:
        self.check([np.random.default_rng(4).uniform(1000, 1001, 5000), np.random.default_rng(5).uniform(1000.5, 1002, 5000)])

    def test_equal_samples_first(self) -> None:
        self.check([np.zeros(100), np.zeros(50), np.random.default_rng(6).normal(size=1000), np.zeros(10)])
        self.check([np.full(100, 7.0), np.linspace(0, 1, 1000)])

    def test_tiny_and_huge_values(self) -> None:
        self.check([np.linspace(0, 1e-30, 1000), np.linspace(0, 1e-20, 1000)])
        self.check([np.linspace(-1, 1, 1000), np.linspace(-1e30, 1e30, 1000)])
        for algorithm in ALGORITHMS:
            low, high = observed(np.array([0, 1e-40, 3e-41] * 10_000)).range("x", algorithm)
            assert 0 <= low <= high <= 1.0001e-40


class TestObserver:
    def test_minmax_and_samples(self) -> None:
        observer = observed(np.array([[1.0, -2.0], [0.5, 0]]), np.array([3.0]), np.array([0.0, -1.0]))
        assert observer.range("x", "minmax") == (-2.0, 3.0)
        assert observer.sample_ranges("x").tolist() == [[-2, 1], [3, 3], [-1, 0]]
        assert observer.names == ("x",)

    def test_tensors_are_apart(self) -> None:
        observer = observed(np.array([1.0, 2.0]))
        observer.observe("y", np.array([-5.0, 5.0]))
        assert observer.range("x", "minmax") == (1, 2)
        assert observer.range("y", "minmax") == (-5, 5)

    @pytest.mark.parametrize("dtype", ["float16", "float64", "int64", "uint8", "bool"])
    def test_other_types(self, dtype: str) -> None:
        observer = RangeObserver()
        observer.observe("x", np.array([0, 1, 1], dtype))
        assert observer.range("x", "minmax") == (0, 1)

    def test_views(self) -> None:
        whole = np.arange(100, dtype=np.float32).reshape(10, 10)
        observer = observed(whole[::3, 5:7].T)
        counts, edges = observer.histogram("x")
        assert observer.range("x", "minmax") == (5, 96)
        np.testing.assert_array_equal(edges[:-1][counts > 0], [5, 6, 35, 36, 65, 66, 95, 96])

    def test_empty_arrays_are_passed_over(self) -> None:
        assert observed(np.zeros((0, 3)), np.ones(2)).sample_ranges("x").tolist() == [[1, 1]]

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
    @pytest.mark.parametrize("rest", [0.0, 1.0])
    @pytest.mark.parametrize("size", [1, 1000])
    def test_not_finite(self, bad: float, rest: float, size: int) -> None:
        observer = RangeObserver()
        observer.observe("conv1", np.linspace(0, rest, 50))
        values = np.linspace(0, rest, size)
        values[-1] = bad
        with pytest.raises(CalibrationError, match="NaN or infinity") as caught:
            observer.observe("conv1", values)
        assert caught.value.tensor == "conv1"
        assert caught.value.hint

    def test_unknown_algorithm(self) -> None:
        with pytest.raises(CompileError, match="'median'") as caught:
            observed(np.ones(3)).range("x", "median")
        assert all(name in caught.value.hint for name in ALGORITHMS)

    @pytest.mark.parametrize("percentile", [50, 0, 100.1, float("nan")])
    def test_percentile_out_of_range(self, percentile: float) -> None:
        with pytest.raises(CompileError, match="percentile"):
            observed(np.ones(3)).range("x", "percentile", percentile=percentile)

    def test_unknown_tensor(self) -> None:
        with pytest.raises(CalibrationError, match="never observed") as caught:
            RangeObserver().range("y", "minmax")
        assert caught.value.tensor == "y"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
class TestEveryAlgorithm:
    @pytest.mark.parametrize("value", [0.0, 3.5, -2.0])
    def test_constant(self, algorithm: str, value: float) -> None:
        assert observed(np.full(1000, value), np.full(10, value)).range("x", algorithm) == (value, value)

    @over_distributions
    def test_within_what_was_seen(self, algorithm: str, name: str) -> None:
        values = DISTRIBUTIONS[name].astype(np.float32)
        low, high = observed(values).range("x", algorithm)
        assert values.min() <= low < high <= values.max()
        assert type(low) is type(high) is float

    @over_distributions
    def test_same_result_each_time_and_in_any_order(self, algorithm: str, name: str) -> None:
        parts = np.array_split(DISTRIBUTIONS[name], 5)
        observer = observed(*parts)
        low, high = observer.range("x", algorithm)
        assert observer.range("x", algorithm) == observed(*parts).range("x", algorithm) == (low, high)
        _, edges = observer.histogram("x")
        other = observed(*reversed(parts)).range("x", algorithm)
        assert other == pytest.approx((low, high), abs=2 * (edges[1] - edges[0]))

    def test_rare_values_of_a_sparse_tensor_survive(self, algorithm: str) -> None:
        values = np.zeros(500_000)
        values[:: 500_000 // 20] = np.linspace(5, 10, 20)
        low, high = observed(values).range("x", algorithm)
        assert low == 0
        assert high > 9.9


class TestPercentile:
    @over_distributions
    @pytest.mark.parametrize("percentile", [90, 99, 99.9])
    def test_as_of_the_raw_values(self, name: str, percentile: float) -> None:
        values = DISTRIBUTIONS[name].astype(np.float32)
        observer = observed(*np.array_split(values, 3))
        _, edges = observer.histogram("x")
        tail = (100 - percentile) / 2
        wanted = np.percentile(values, [tail, 100 - tail])
        # where values are further apart than bins, any point between two of them is right
        ranks = np.array([tail, 100 - tail]) / 100 * len(values)
        ordered = np.sort(values)
        near = ordered[np.clip(ranks[:, None].astype(int) + np.array([-2, 2]), 0, len(values) - 1)]
        slack = np.maximum(near[:, 1] - near[:, 0], edges[1] - edges[0])
        assert (np.abs(np.array(observer.range("x", "percentile", percentile=percentile)) - wanted) <= slack).all()

    @over_distributions
    def test_hundred_is_minmax(self, name: str) -> None:
        observer = observed(DISTRIBUTIONS[name])
        assert observer.range("x", "percentile", percentile=100) == observer.range("x", "minmax")

    def test_cuts_an_outlier_off(self) -> None:
        low, high = observed(DISTRIBUTIONS["outlier"]).range("x", "percentile")
        assert -4.5 < low < -3.5
        assert 3.5 < high < 4.5

    def test_default_keeps_9999_of_10000(self) -> None:
        low, high = observed(np.linspace(0, 1, 1_000_001)).range("x", "percentile")
        assert (low, high) == pytest.approx((0.00005, 0.99995), abs=2e-6)


class TestLeastSquares:
    @over_distributions
    def test_not_worse_than_minmax(self, name: str) -> None:
        values = DISTRIBUTIONS[name]
        observer = observed(values)
        least = squared_error(values, *observer.range("x", "mse"))
        assert least <= squared_error(values, *observer.range("x", "minmax")) * 1.001
        # nor than any of these, but for what the search leaves
        for fraction in np.linspace(0.1, 1, 40):
            low, high = observer.range("x", "minmax")
            assert least <= 1.03 * squared_error(values, low * fraction, high * fraction)

    @pytest.mark.parametrize("name", ["normal", "laplace", "heavy tails", "outlier", "swish"])
    def test_clearly_better_where_tails_are_long(self, name: str) -> None:
        observer = observed(DISTRIBUTIONS[name])
        assert squared_error(DISTRIBUTIONS[name], *observer.range("x", "mse")) < 0.9 * squared_error(
            DISTRIBUTIONS[name], *observer.range("x", "minmax")
        )

    def test_uniform_is_not_clipped(self) -> None:
        observer = observed(DISTRIBUTIONS["uniform"])
        assert observer.range("x", "mse") == observer.range("x", "minmax")

    def test_ends_are_chosen_apart(self) -> None:
        values = np.concatenate((np.random.default_rng(0).uniform(-1, 2, 1_000_000), [40.0]))
        low, high = observed(values).range("x", "mse")
        assert low < -0.9
        assert 14 < high < 22


class TestDivergence:
    def test_clips_an_outlier(self) -> None:
        low, high = observed(DISTRIBUTIONS["outlier"]).range("x", "kl")
        assert -5 < low < -3.2
        assert 3.2 < high < 8

    def test_clips_an_outlier_at_the_low_end(self) -> None:
        low, high = observed(-DISTRIBUTIONS["outlier"]).range("x", "kl")
        assert -8 < low < -3.2
        assert 3.2 < high < 5

    @pytest.mark.parametrize("name", ["uniform", "positive"])
    def test_leaves_what_has_no_tails(self, name: str) -> None:
        observer = observed(DISTRIBUTIONS[name])
        assert observer.range("x", "kl") == pytest.approx(observer.range("x", "minmax"), rel=0.003)

    def test_the_peak_of_zeros_does_not_draw_it_in(self) -> None:
        values = np.maximum(np.random.default_rng(0).normal(size=1_000_000) - 1.5, 0)
        assert (values == 0).mean() > 0.9
        assert observed(values).range("x", "kl")[1] > 3

    @over_distributions
    def test_keeps_nearly_all_values(self, name: str) -> None:
        values = DISTRIBUTIONS[name].astype(np.float32)
        low, high = observed(values).range("x", "kl")
        assert ((values < min(low, 0)) | (values > max(high, 0))).mean() <= 0.00101

    def test_too_few_values_to_judge(self) -> None:
        observer = observed(DISTRIBUTIONS["few"])
        assert observer.range("x", "kl") == observer.range("x", "minmax")


def swish(x: Floats) -> Floats:
    return x / (1 + np.exp(-x))


def hard_swish(x: Floats) -> Floats:
    return x * np.clip(x / 6 + 0.5, 0, 1)


def softplus(x: Floats) -> Floats:
    return np.logaddexp(x, 0)


def sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))


class TestClipToTable:
    @pytest.mark.parametrize("function", [swish, hard_swish, sigmoid, softplus, np.tanh, np.square, np.abs])
    @pytest.mark.parametrize(
        "ends", [(-118.0, 124.0), (-128.0, 26.0), (-4.0, 90.0), (-0.5, 0.5), (0.0, 30.0), (-30.0, 0.0), (2.0, 9.0)]
    )
    def test_nothing_is_lost(self, function: Any, ends: tuple[float, float]) -> None:
        low, high = ends
        x = np.linspace(low, high, 10_001)
        y = function(x)
        target = affine_from_range(float(y.min()), float(y.max()))
        new_low, new_high = clip_to_table(function, low, high, target, DType.INT8)
        assert low <= new_low <= new_high <= high
        if low <= 0 <= high:
            assert new_low <= 0 <= new_high
        # what is cut off has the output code of the outermost code before the table, and that is right for all of it
        source = affine_from_range(new_low, new_high)
        table = function_table(function, source, target, DType.INT8)[0]
        cut = x[(x < new_low) | (x > new_high)].reshape(-1, 1)
        outputs = dequantize(table[quantize(cut, source, DType.INT8).view(np.uint8)], target)
        limits = dequantize(np.array(DType.INT8.limits, np.int8), target)
        assert (np.abs(outputs - np.clip(function(cut), *limits)) <= 0.61 * target.scale).all()

    def test_flat_tail_goes(self) -> None:
        low, high = clip_to_table(swish, -128.0, 26.0, affine_from_range(-0.28, 26.0), DType.INT8)
        assert high == 26.0
        assert abs(swish(np.array(low))) == pytest.approx(26.28 / 255 / 2, rel=0.15)

    def test_the_table_gets_finer(self) -> None:
        target = affine_from_range(-0.28, 26.0)
        low, high = clip_to_table(swish, -128.0, 26.0, target, DType.INT8)
        x = np.linspace(-128, 26, 5001).reshape(-1, 1)

        def error(source: Affine) -> float:
            codes = function_table(swish, source, target, DType.INT8)[0][quantize(x, source, DType.INT8).view(np.uint8)]
            return float(np.square(dequantize(codes, target) - swish(x)).mean())

        assert error(affine_from_range(low, high)) < 0.2 * error(affine_from_range(-128.0, 26.0))

    def test_both_ends(self) -> None:
        low, high = clip_to_table(sigmoid, -100.0, 80.0, affine_from_range(0.0, 1.0), DType.INT8)
        assert low == pytest.approx(-6.25, abs=0.1)
        assert high == pytest.approx(6.25, abs=0.1)

    def test_what_the_output_clips_is_flat(self) -> None:
        _, high = clip_to_table(lambda x: x, -5.0, 50.0, affine_from_range(-5.0, 10.0), DType.INT8)
        assert high == pytest.approx(10.0, abs=0.1)

    def test_straight_line_stays(self) -> None:
        target = affine_from_range(-3.0, 5.0)
        assert clip_to_table(lambda x: x, -3.0, 5.0, target, DType.INT8) == (-3.0, 5.0)

    def test_a_flat_part_in_the_middle_stays(self) -> None:
        def dead_zone(x: Floats) -> Floats:
            return np.sign(x) * np.maximum(np.abs(x) - 5, 0)

        assert clip_to_table(dead_zone, -10.0, 10.0, affine_from_range(-5.0, 5.0), DType.INT8) == (-10.0, 10.0)

    def test_flat_up_to_zero_and_beyond_stops_at_zero(self) -> None:
        low, high = clip_to_table(lambda x: np.maximum(x - 3, 0), -10.0, 10.0, affine_from_range(0.0, 7.0), DType.INT8)
        assert -10 / 255 <= low <= 0.0
        assert high == 10.0

    def test_constant_function_changes_nothing(self) -> None:
        assert clip_to_table(np.zeros_like, -10.0, 10.0, affine_from_range(0.0, 1.0), DType.INT8) == (-10.0, 10.0)

    def test_sixteen_bits_keep_more(self) -> None:
        bytes_low, _ = clip_to_table(sigmoid, -100.0, 80.0, affine_from_range(0.0, 1.0), DType.INT8)
        words_low, _ = clip_to_table(sigmoid, -100.0, 80.0, affine_from_range(0.0, 1.0, DType.INT16), DType.INT16)
        assert words_low == pytest.approx(-11.8, abs=0.1)
        assert words_low < bytes_low

    def test_where_the_function_has_no_value(self) -> None:
        low, high = clip_to_table(np.log, -10.0, 10.0, affine_from_range(-3.0, 2.3), DType.INT8)
        assert -0.05 <= low <= 0.0
        assert high == 10.0
