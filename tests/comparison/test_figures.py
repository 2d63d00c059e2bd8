"""The numbers are what their names state."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from anynpu.analysis.compare import Comparison, Limits, parse_threshold
from anynpu.analysis.compare.layers import LayerComparison
from anynpu.analysis.compare.metrics import ChannelRanges, CodeCount, CodesUsed, Difference, Figures, Histograms
from anynpu.errors import ParameterError
from anynpu.tensor import Affine, DType, Layout, TensorSpec

RANDOM = np.random.default_rng(1)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Each test draws the same numbers, whatever ran before it in this process."""
    RANDOM.bit_generator.state = np.random.default_rng(1).bit_generator.state


def test_samples_add_up_to_the_figures_of_all_of_them() -> None:
    a, b = RANDOM.standard_normal((2, 3, 500)) + 2.0
    parts, whole = Difference(), Difference()
    for one, other in zip(a, b, strict=True):
        parts.add(one, other)
    whole.add(a, b)
    got, expected = parts.figures(), whole.figures()
    assert got.cosine == pytest.approx(expected.cosine)
    assert got.cosine == pytest.approx((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b))
    assert got.snr == pytest.approx(20 * math.log10(np.linalg.norm(a) / np.linalg.norm(a - b)))
    assert got.error == pytest.approx(np.abs(a - b).max())
    assert got.scale == pytest.approx(np.polyfit(a.reshape(-1), b.reshape(-1), 1)[0])
    assert got.worst_cosine < got.cosine
    assert expected.worst_cosine == expected.cosine


def test_the_scale_is_seen_through_noise_and_an_offset() -> None:
    a = RANDOM.standard_normal(20_000)
    difference = Difference()
    difference.add(a, 0.98 * a + 0.3 + 0.02 * RANDOM.standard_normal(a.size))
    figures = difference.figures()
    assert figures.scale == pytest.approx(0.98, abs=4 * figures.scale_uncertainty)
    assert figures.scale_uncertainty == pytest.approx(0.02 / math.sqrt(a.size), rel=0.1)


@pytest.mark.parametrize(
    ("a", "b", "cosine", "error"),
    [
        ([0.0, 0.0], [0.0, 0.0], 1.0, 0.0),
        ([0.0, 0.0], [1.0, 0.0], 0.0, 1.0),
        ([3.0, 3.0], [3.0, 3.0], 1.0, 0.0),
        ([1.0, math.inf], [1.0, math.inf], 1.0, 0.0),
        ([1.0, 2.0], [1.0, math.nan], -1.0, math.inf),
        ([1.0, 2.0], [1.0, math.inf], -1.0, math.inf),
    ],
)
def test_values_that_are_constant_or_not_finite(a: list[float], b: list[float], cosine: float, error: float) -> None:
    difference = Difference()
    difference.add(np.array(a), np.array(b))
    figures = difference.figures()
    assert figures.cosine == pytest.approx(cosine)
    assert figures.error == error
    assert figures.exact is (error == 0.0)
    assert math.isfinite(figures.snr)


def test_codes_at_the_rails_count_unless_they_stand_for_zero() -> None:
    relu = CodeCount(TensorSpec("x", (1, 8), DType.INT8, Layout.PLAIN, Affine.per_tensor(0.1, -128)))
    clipped = relu.beyond(np.array([-1.0, 0.0, 0.0, 12.8, 13.3, 13.3, 25.54, 26.0]))
    assert clipped.tolist() == [True, False, False, False, False, False, False, True]
    relu.add(np.array([-128, -128, -128, 0, 5, 5, 127, 127], np.int8), clipped)
    assert relu.codes_used() == CodesUsed(used=4, available=256, rails=0.25, clipped=0.25)
    even = CodeCount(TensorSpec("x", (1, 4), DType.INT16, Layout.PLAIN, Affine.per_tensor(0.1, 0)))
    even.add(np.array([-32768, 0, 1, 32767], np.int16), np.zeros(4, bool))
    assert even.codes_used() == CodesUsed(used=4, available=65536, rails=0.5, clipped=0.0)


def test_what_is_clipped_follows_the_scales_of_channel_groups() -> None:
    groups = Affine((0.1, 1.0), (0, 0), (1, 2))
    count = CodeCount(TensorSpec("x", (1, 3, 1, 2), DType.INT8, Layout.NHWC, groups))
    values = np.array([12.0, 13.0, 12.0, 13.0, 127.0, -129.0]).reshape(1, 3, 1, 2)
    assert count.beyond(values).reshape(-1).tolist() == [False, True, False, False, False, True]


def test_the_scale_is_that_of_what_is_not_clipped() -> None:
    a = RANDOM.standard_normal(1000)
    difference = Difference()
    difference.add(a, np.minimum(a, 0.5), a > 0.5)
    figures = difference.figures()
    assert figures.scale == pytest.approx(1.0)
    assert figures.snr < 10


def test_a_histogram_widens_and_loses_nothing() -> None:
    histograms = Histograms()
    histograms.add(np.zeros(5), np.zeros(5))
    for size in (1.0, 10.0, 3.0):
        histograms.add(np.linspace(-size, size, 100), np.array([size, math.nan]))
    assert histograms.low <= -10.0
    assert histograms.high >= 10.0
    assert histograms.counts.sum(axis=1).tolist() == [305, 8]


def test_ranges_are_those_of_axis_one_or_of_the_last() -> None:
    image = RANDOM.standard_normal((2, 3, 4, 5))
    ranges = ChannelRanges(3)
    ranges.add(image, 2 * image)
    np.testing.assert_allclose(ranges.limits[0, 0], image.min(axis=(0, 2, 3)))
    np.testing.assert_allclose(ranges.limits[1, 1], 2 * image.max(axis=(0, 2, 3)))
    rows = ChannelRanges(7)
    rows.add(np.ones((4, 7)), np.zeros((4, 7)))
    assert rows.limits[0].tolist() == [[1.0] * 7] * 2


def a_comparison(cosine: float, snr: float) -> Comparison:
    figures = Figures(cosine, cosine, snr, 0.5, 1.03)
    ranges = ChannelRanges(1)
    entry = LayerComparison(
        0, "conv", "Conv", "y", (1,), (), figures, figures, CodesUsed(9, 256, 0.02, 0.01), False, Histograms(), ranges
    )
    return Comparison("a", "b", 1, (entry,), ("y",), Limits())


def test_a_scale_needs_codes_to_be_judged() -> None:
    (entry,) = a_comparison(0.999, 30.0).layers
    assert entry.codes is not None
    assert not entry.fails_alone(Limits())
    finer = replace(entry, codes=replace(entry.codes, used=16))
    assert finer.fails_alone(Limits()) == "alone its results are 3.0 % too large"
    assert not finer.fails_alone(Limits(scale=0.04))
    uncertain = replace(finer, alone=replace(finer.so_far, scale_uncertainty=0.011))
    assert not uncertain.fails_alone(Limits())


@pytest.mark.parametrize(
    ("text", "below", "misses"),
    [
        ("cosine=0.99", True, True),
        ("cosine=0.97", True, False),
        ("worst_cosine=0.99", True, True),
        ("alone.snr=20.5", True, True),
        ("layers.snr=19", True, False),
        ("error=0.4", False, True),
        ("alone.scale=0.02", False, True),
        ("outputs.scale=0.04", False, False),
        ("layers.codes=10", True, True),
        ("rails=0.01", False, True),
        ("layers.clipped=0.02", False, False),
    ],
)
def test_thresholds(text: str, below: bool, misses: bool) -> None:
    assert bool(list(parse_threshold(text, below=below).misses(a_comparison(0.98, 20.0)))) is misses


@pytest.mark.parametrize("text", ["cosine", "cosine=", "cosine=x", "cosine=nan", "quality=1", "inputs.cosine=1", ".cosine=1", ""])
def test_texts_that_are_no_thresholds(text: str) -> None:
    with pytest.raises(ParameterError, match="is no threshold"):
        parse_threshold(text, below=True)
