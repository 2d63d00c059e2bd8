"""Channel groups: the least noise, as trying every cut finds it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from anynpu.compiler.quantize.channel_groups import _noise

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


def tried(low: Floats, high: Floats, importance: Floats, most: int, block: int) -> float:
    """The least noise over all cuts of the channels in the order of their sizes."""
    order = np.argsort(high - low, kind="stable")
    count = len(order)
    places = [place for place in range(1, count) if block == 1 or count <= block or (count - place) % block == 0]
    least = np.inf
    for number in range(min(most - 1, len(places)) + 1):
        for cuts in itertools.combinations(places, number):
            parts = itertools.pairwise([0, *cuts, count])
            groups = [order[first:last] for first, last in parts]
            least = min(least, sum((high[g].max() - low[g].min()) ** 2 * importance[g].sum() for g in groups))
    return float(least)


@pytest.mark.parametrize("most", [1, 2, 3, 4])
@pytest.mark.parametrize("block", [1, 2, 4])
def test_groups_have_the_least_noise(most: int, block: int) -> None:
    random = np.random.default_rng(most * 10 + block)
    for count in (1, 2, 5, 8, 9):
        low, high = -random.exponential(1.0, count), random.exponential(1.0, count) * 10.0 ** random.uniform(-2, 2, count)
        importance = random.exponential(1.0, count)
        noise, group_of = _noise(low, high, importance, most, block)
        assert noise == pytest.approx(tried(low, high, importance, most, block))
        members = [group_of == group for group in np.unique(group_of)]
        assert len(members) <= most
        assert sum((high[m].max() - low[m].min()) ** 2 * importance[m].sum() for m in members) == pytest.approx(noise)
