"""Channel groups: one scale for channels of like range, where one scale for all would drown the small ones.

Early, high-resolution layers next to depthwise convolutions often have channels whose ranges differ by a factor of a hundred. A scale by
group of channels costs nothing there: a convolution requantizes per channel anyway, a depthwise consumer reads per channel, and a dense
consumer takes the ratio of the scales into its weights. Groups are chosen from calibration data alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._util.types import Floats
from ..graph import Graph
from ..lower.attributes import window_of
from ..lower.forms import Form
from ..lower.steps import Step

ChannelRanges = Mapping[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]

WORTHWHILE = 8.0
"""How much less noise two groups must give than one."""

_MAX_LAYERS = 12
_TINY = 1e-12


@dataclass(frozen=True, eq=False)
class Grouping:
    """The groups of a tensor: the group of each channel."""

    group_of: npt.NDArray[np.int64]

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """Consecutive channels of one group, as (group, number of channels)."""
        cuts = np.flatnonzero(np.diff(self.group_of)) + 1
        starts = [0, *cuts.tolist()]
        ends = [*cuts.tolist(), len(self.group_of)]
        return tuple((int(self.group_of[start]), end - start) for start, end in zip(starts, ends, strict=True))


@dataclass(frozen=True, eq=False)
class GroupChoice:
    """Groups of a tensor, and what they are good for.

    :ivar gain: how much less noise two groups give than one
    :ivar numbers: smallest value, largest value and importance of each channel
    :ivar block: channels that groups fill
    """

    grouping: Grouping
    gain: float
    numbers: tuple[Floats, Floats, Floats]
    block: int = 1

    def with_fewer(self) -> GroupChoice:
        """The best choice with one group less."""
        return replace(self, grouping=Grouping(_noise(*self.numbers, self.count - 1, self.block)[1]))

    @property
    def count(self) -> int:
        """The number of groups."""
        return len(np.unique(self.grouping.group_of))


@dataclass(frozen=True, eq=False)
class _Candidate:
    step: Step
    readers: tuple[Step, ...]

    @property
    def tensors(self) -> list[str]:
        steps = (self.step, *self.readers)
        return [name for step in steps for name in (step.outputs[0], step.before_activation) if name]


def grouping_candidates(graph: Graph, steps: list[Step]) -> list[str]:
    """Tensors whose ranges per channel decide about groups."""
    names: dict[str, None] = {}
    for candidate in _candidates(graph, steps):
        names.update(dict.fromkeys(candidate.tensors))
    return list(names)


def choose_groups(graph: Graph, steps: list[Step], ranges: ChannelRanges, most: int, block: int = 1) -> dict[str, GroupChoice]:
    """Groups for the tensors that gain from them, at most *most* for each.

    Groups of a tensor that has more than *block* channels fill whole blocks: what a chip pads a part of a tensor to.
    """
    if most < 2:
        return {}
    found = {
        name: GroupChoice(Grouping(_noise(*numbers, most, block)[1]), gain, numbers, block)
        for name, (gain, numbers) in group_scores(graph, steps, ranges, block).items()
        if gain > WORTHWHILE
    }
    best = sorted(found, key=lambda name: -found[name].gain)
    return {name: found[name] for name in best[:_MAX_LAYERS]}


def group_scores(
    graph: Graph, steps: list[Step], ranges: ChannelRanges, block: int = 1
) -> dict[str, tuple[float, tuple[Floats, Floats, Floats]]]:
    """For each tensor that could have groups: how much less noise two of them give, and smallest value, largest value and importance
    of its channels."""
    found: dict[str, tuple[float, tuple[Floats, Floats, Floats]]] = {}
    for candidate in _candidates(graph, steps):
        if not ranges.keys() >= set(candidate.tensors):
            continue  # calibrated for other shapes, where it was fused differently
        name = candidate.step.outputs[0]
        low, high = _with_zero(ranges[name])
        importance = sum((_importance(graph, reader, ranges) for reader in candidate.readers), np.zeros(len(low)))
        one = _noise(low, high, importance, 1)[0]
        two = _noise(low, high, importance, 2, block)[0]
        found[name] = one / max(two, _TINY), (low, high, importance)
    return found


def _candidates(graph: Graph, steps: list[Step]) -> list[_Candidate]:
    readers: dict[str, list[Step]] = {}
    for step in steps:
        for name in step.reads:
            readers.setdefault(name, []).append(step)
    result = []
    for step in steps:
        if (
            step.form is not Form.CONV
            or step.is_float
            or step.residual
            or graph.rank(step.outputs[0]) != 4
            or step.node.rewritten
        ):
            continue
        name = step.outputs[0]
        users = readers.get(name, [])
        if users and name not in graph.outputs and all(_can_read(graph, user, name) for user in users):
            result.append(_Candidate(step, tuple(users)))
    return result


def is_depthwise(graph: Graph, step: Step) -> bool:
    """Whether each output channel of a convolution reads just the input channel of the same number."""
    weights = graph.shapes[step.node.inputs[1]]
    return weights[1] == 1 and weights[0] == graph.shapes[step.node.inputs[0]][1] == int(step.node.attribute("group", 1))


def is_depthwise_layer(graph: Graph, step: Step) -> bool:
    """Whether a convolution is a depthwise layer of the chip. That of a single channel is a dense one."""
    return is_depthwise(graph, step) and int(step.node.attribute("group", 1)) > 1


def _can_read(graph: Graph, step: Step, name: str) -> bool:
    """Depthwise convolutions, and dense ones without padding: a chip pads with one zero point for all channels."""
    if step.form is not Form.CONV or step.is_float or step.residual == name:
        return False
    window = window_of(graph, step.node)
    return is_depthwise(graph, step) or (window.groups == 1 and not any(window.pads))


def _with_zero(ranges: tuple[npt.NDArray[Any], npt.NDArray[Any]]) -> tuple[Floats, Floats]:
    low, high = ranges
    return np.minimum(low.astype(np.float64), 0.0), np.maximum(high.astype(np.float64), 0.0)


def _importance(graph: Graph, step: Step, ranges: ChannelRanges) -> Floats:
    """How much noise on an input channel disturbs the outputs of a convolution, relative to their ranges."""
    weights = graph.constants[step.node.inputs[1]].astype(np.float64)
    low, high = _with_zero(ranges[step.before_activation or step.outputs[0]])
    extent = np.maximum(high - low, _TINY)
    squares = (weights**2).sum(axis=tuple(range(2, weights.ndim))) / extent[:, None] ** 2  # [Cout, Cin / g]
    result: Floats = squares[:, 0] if is_depthwise(graph, step) else squares.sum(axis=0)
    return result


def _noise(low: Floats, high: Floats, importance: Floats, most: int, block: int = 1) -> tuple[float, npt.NDArray[np.int64]]:
    """The least noise with at most *most* groups, and the group of each channel: exact, over channels sorted by size.

    More channels than *block* are cut only after whole blocks, counted from the largest size down.
    """
    order = np.argsort(high - low, kind="stable")
    count = len(order)
    cost, bounds = _costs(low[order], high[order], importance[order], most, block)
    best = cost[0].copy()
    cuts: list[npt.NDArray[np.int64]] = []
    for _ in range(most - 1):
        total = best[:, None] + cost
        cut = np.argmin(total, axis=0)
        split = total[cut, np.arange(len(bounds))]
        cuts.append(np.where(split < best, cut, -1))
        best = np.minimum(best, split)
    group_of = np.zeros(count, np.int64)
    end, group = len(bounds) - 1, 0
    for cut in reversed(cuts):
        if cut[end] < 0:
            continue
        group_of[order[bounds[cut[end]] : bounds[end]]] = group
        group += 1
        end = int(cut[end])
    group_of[order[: bounds[end]]] = group
    return float(best[-1]), group_of


def _costs(low: Floats, high: Floats, importance: Floats, most: int, block: int) -> tuple[Floats, npt.NDArray[np.int64]]:
    """The noise of one group from each place where a cut may be to each later one, and those places.

    One group has one cost; of two, the first begins at 0 and the last ends at the end. Only for more are all pairs needed.
    """
    count = len(low)
    inside = np.arange(1, count) if most > 1 else np.zeros(0, np.int64)
    if block > 1 and count > block:
        inside = inside[(count - inside) % block == 0]
    bounds = np.concatenate([[0], inside, [count]]).astype(np.int64)
    cost = np.full((len(bounds), len(bounds)), np.inf)
    starts = bounds[:-1] if most > 2 else bounds[:1]
    for index, start in enumerate(starts):
        extent = np.maximum.accumulate(high[start:]) - np.minimum.accumulate(low[start:])
        noise = extent**2 * np.cumsum(importance[start:])
        cost[index, index + 1 :] = noise[bounds[index + 1 :] - start - 1]
    if most == 2 and len(inside):
        extent = np.maximum.accumulate(high[::-1])[::-1] - np.minimum.accumulate(low[::-1])[::-1]
        noise = extent**2 * np.cumsum(importance[::-1])[::-1]
        cost[1:-1, -1] = noise[inside]
    return cost, bounds
