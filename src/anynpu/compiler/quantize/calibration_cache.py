"""What calibration sees and the search for a recipe needs again, so that no sample is read and run twice.

Of the first samples, every third is kept apart and judges: the float network's answers for it are kept. The others are what weights are
fitted to: what the convolutions give is kept for them, at the positions that are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from ..._util.types import Array
from ..graph import Graph
from ..lower.steps import Step
from .least_squares import at_positions
from .reconstruction import FEWEST_SAMPLES, MAX_KEPT, FloatAnswers, Target, targets_of
from .tensor_scales import quantized_tensors

__all__ = ["LIVE", "MAX_SAMPLES", "Remembered", "fitting_count", "kept_apart", "others", "remember"]

Sample = Mapping[str, Array]
Item = TypeVar("Item")

MAX_SAMPLES = 24
"""Samples that weights are fitted to or that judge."""

LIVE = 6
"""Tensors of the largest size that are alive at a time, in a usual network."""

_EVERY = 3
_FIT_BYTES = 1 << 31


def kept_apart(samples: Sequence[Item]) -> list[Item]:
    """Every third of the *samples*, which judge; all where there are too few to keep some apart."""
    return list(samples[_EVERY - 1 :: _EVERY] or samples)


def others(samples: Sequence[Item]) -> list[Item]:
    """The *samples* that weights are fitted to.

    >>> others(range(8)), kept_apart(range(8))
    ([0, 1, 3, 4, 6, 7], [2, 5])
    """
    return [sample for index, sample in enumerate(samples) if index % _EVERY != _EVERY - 1]


def fitting_count(graph: Graph, names: Iterable[str]) -> int:
    """How many samples fit into memory where the tensors *names* are rounded."""
    return _FIT_BYTES // (LIVE * max(4 * math.prod(graph.shapes[name]) for name in names))


class Remembered:
    """The first samples of a calibration and the float network's answers to them.

    :ivar samples: normalised
    :ivar outputs: of the samples that were kept apart
    """

    def __init__(self, graph: Graph, targets: Sequence[Target], count: int) -> None:
        self.graph = graph
        self.samples: list[Sample] = []
        self.outputs: list[list[Array]] = []
        self._targets = targets
        self._apart = set(kept_apart(range(count)))
        self._fitted = {index: number for number, index in enumerate(others(range(count)))}
        self._parts: dict[str, list[Array]] = {target.node.outputs[0]: [] for target in targets}

    @property
    def names(self) -> list[str]:
        """The tensors that are looked at."""
        return [*self._parts, *self.graph.outputs]

    def see(self, sample: Sample, values: Mapping[str, Array]) -> None:
        """Take what is needed of the next sample."""
        index = len(self.samples)
        if index >= MAX_SAMPLES:
            return
        self.samples.append(sample)
        if index in self._apart:
            self.outputs.append([np.array(values[name]) for name in self.graph.outputs])
            return
        number = self._fitted.get(index, -1)
        for target in self._targets:
            name = target.node.outputs[0]
            if 0 <= number < len(target.positions):
                self._parts[name].append(at_positions(values[name], target.positions[number]))

    def answers(self) -> FloatAnswers:
        """What the float network gives at the positions of convolutions; none where there were other samples than announced."""
        complete = all(len(self._parts[target.node.outputs[0]]) == len(target.positions) for target in self._targets)
        found = {name: np.concatenate(self._parts.pop(name), axis=1) for name in list(self._parts) if complete}
        return FloatAnswers(
            {target.node.outputs[0]: (target, found[target.node.outputs[0]]) for target in self._targets if found}
        )


def remember(graph: Graph, steps: list[Step], count: int | None) -> Remembered | None:
    """What is to be remembered of a calibration with *count* samples; None where weights will not be fitted."""
    if count is None or count < FEWEST_SAMPLES or any(node.custom for node in graph.nodes):
        return None
    count = min(count, MAX_SAMPLES)
    fitted = others(range(count))[: fitting_count(graph, quantized_tensors(graph, steps))]
    targets = targets_of(graph, steps, len(fitted))
    size = sum(4 * graph.shapes[target.node.outputs[0]][1] * sum(map(len, target.positions)) for target in targets)
    return Remembered(graph, targets if size <= MAX_KEPT else (), count)
