"""Lint: what in a network is known to suffer from int8, tensor by tensor, with the remedy.

Every rule looks at numbers from calibration alone and at the network as one scale for each tensor would have it, so that it also speaks
to users of other quantizers. Thresholds are experience with a handful of networks, not laws.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...program import Preprocess
from ...program.arithmetic import affine_from_range
from ...tensor import Affine, DType, Quantization
from ..graph import Graph
from ..lower.forms import Form
from ..lower.steps import Step
from .calibrate import Calibration
from .channel_groups import WORTHWHILE, group_scores, is_depthwise
from .ranges import RangeObserver, clip_to_table
from .representable import SMALLEST_FEW
from .tensor_scales import exact_tensors, keeps_scale

RULES = {
    "group-noise": "channels of a tensor differ so much in range that one scale drowns the small ones",
    "first-layers": "one of the first three convolutions has channels far larger than the median",
    "starved-channels": "more than a tenth of the channels have fewer than four quantized values, and they matter",
    "cancellation": "a depthwise convolution subtracts numbers that are coarse in relation to its result",
    "flat-table": "much of the range before an activation ends up at one value",
    "coarse-table": "the results of an activation are so small that the chip's table for it has few values for them",
    "clipped-head": "values between the last convolution and an output are cut off",
    "mixed-output": "an output joins tensors of so unlike range, such as boxes and scores, that one scale is too coarse for the small one",
    "one-sample": "the range is set by a single sample",
    "second-reader": "a second reader keeps an activation from joining its convolution",
    "input-steps": "the channels of an image have different scales, so that bytes do not map to quantized values one by one",
    "two-classes": "cosine is no measure for an output of two classes",
}
"""What each rule is about."""

_SEVERE = 30.0
_WIDE = 4.0
_FIRST = 3
_FEW_CODES = 4.0
_FEW_CODES_OF_SCORES = 16.0
_COARSE = 0.05
_FLAT = 0.3
LOST = 64.0
"""Values of the chip's table below which little is left of a tensor."""

_ENOUGH = 1024.0
"""Values of the chip's table from which a tensor's quantized values are not worse for it."""

_HARDLY_ANY_VALUES = 16.0
_OUTLIER = 3.0
_BOX = 4
_NO_SCORE = 12.0
"""A score of minus this before a sigmoid is 0.000006 after it."""

_FEWEST_SAMPLES = 4
_MATTERS = 1e-3
_STARVED = 0.1
_MAX_TEXTS = 8
_TINY = 1e-12


@dataclass(frozen=True)
class Finding:
    """One thing that a rule found.

    :ivar severity: ``error``, ``warning`` or ``note``
    :ivar numbers: what the rule measured
    """

    rule: str
    severity: str
    tensor: str
    text: str
    remedy: str
    numbers: Mapping[str, float]

    def __str__(self) -> str:
        return f"{self.severity}: {self.tensor}: {self.text}"

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON-ready data."""
        return asdict(self)


def lint_steps(
    graph: Graph,
    steps: list[Step],
    seen: Calibration,
    preprocess: Mapping[str, Preprocess] | None = None,
    quantization: Mapping[str, Quantization] | None = None,
    block: int = 1,
) -> list[Finding]:
    """The findings of a calibrated network; with the *quantization* that it got, only what that leaves over.

    :param block: channels that groups fill on the chip
    """
    rules = _Rules(graph, steps, seen, quantization, block)
    found = [
        *rules.groups(),
        *rules.tables(),
        *rules.coarse_tables(),
        *rules.heads(),
        *rules.mixed(),
        *rules.samples(),
        *rules.readers(),
    ]
    found += _inputs(graph, preprocess or {})
    found += _outputs(graph)
    order = {"error": 0, "warning": 1, "note": 2}
    return sorted(found, key=lambda finding: order[finding.severity])


class _Rules:
    def __init__(
        self,
        graph: Graph,
        steps: list[Step],
        seen: Calibration,
        quantization: Mapping[str, Quantization] | None,
        block: int,
    ) -> None:
        self._block = block
        self._graph = graph
        self._steps = [step for step in steps if not step.is_float]
        self._seen = seen
        self._quantization = quantization
        self._made_by = {name: step for step in steps for name in step.outputs}

    def _grouped(self, name: str) -> bool:
        chosen = (self._quantization or {}).get(name)
        return chosen is not None and not chosen.is_per_tensor

    def _range(self, name: str) -> tuple[float, float]:
        return self._seen.observer.range(name, "percentile")

    def groups(self) -> Iterator[Finding]:
        """Rules about channels of unlike range."""
        convolutions = [step for step in self._steps if step.form is Form.CONV]
        first = {step.outputs[0] for step in convolutions[:_FIRST]}
        scores = group_scores(self._graph, self._steps, self._seen.channels, self._block)
        for name, (gain, (low, high, importance)) in scores.items():
            if self._grouped(name):
                continue
            extent = high - low
            scale = affine_from_range(*self._range(name)).scale
            if gain > WORTHWHILE:
                yield Finding(
                    "group-noise",
                    "error" if gain > _SEVERE else "warning",
                    name,
                    f"two groups of channels would have {gain:.0f} times less noise than one scale; "
                    f"channel ranges {extent.min():.3g} to {extent.max():.3g}",
                    "compile with channel groups (on by default), or 'anynpu optimize' for another quantizer",
                    {"gain": gain, "smallest": float(extent.min()), "largest": float(extent.max())},
                )
            spread = float(extent.max() / max(np.median(extent), _TINY))
            if name in first and spread > _WIDE:
                yield Finding(
                    "first-layers",
                    "warning",
                    name,
                    f"largest channel range is {spread:.1f} times the median, and all that follows depends on it",
                    "channel groups, or float16 for this tensor (--hybrid)",
                    {"spread": spread},
                )
            share = importance / max(float(importance.max()), _TINY)
            starved = np.flatnonzero((extent / scale < _FEW_CODES) & (share > _MATTERS) & (extent > 0))
            if len(starved) > _STARVED * len(extent):
                yield Finding(
                    "starved-channels",
                    "warning",
                    name,
                    f"{len(starved)} of {len(extent)} channels have fewer than {_FEW_CODES:.0f} quantized values",
                    "channel groups, or float16 for this tensor (--hybrid)",
                    {"channels": float(len(starved))},
                )
            yield from self._cancellation(name, scale)

    def _cancellation(self, name: str, scale: float) -> Iterator[Finding]:
        for reader in self._steps:
            result = reader.before_activation or (reader.outputs[0] if reader.outputs else "")
            if name not in reader.inputs or reader.form is not Form.CONV or not is_depthwise(self._graph, reader):
                continue
            if result not in self._seen.channels:
                continue
            low, high = self._seen.channels[result]
            typical = float(np.median(high - low))
            if scale > _COARSE * typical:
                yield Finding(
                    "cancellation",
                    "warning",
                    reader.outputs[0],
                    f"its input '{name}' has steps of {scale:.3g}, its own channels a median range of {typical:.3g}",
                    f"channel groups for '{name}', or float16 for it (--hybrid)",
                    {"step": scale, "range": typical},
                )

    def tables(self) -> Iterator[Finding]:
        """Ranges before tables that the table does not distinguish."""
        for step in self._steps:
            activation, before = step.activation, step.before_activation
            if activation is None or not step.rounds_before_activation or self._quantization is not None:
                continue
            low, high = self._range(before)
            target = affine_from_range(*self._range(step.outputs[0]))
            new = clip_to_table(activation.function, low, high, target, DType.INT8)
            width = max(high, 0.0) - min(low, 0.0)
            flat = 1.0 - (max(new[1], 0.0) - min(new[0], 0.0)) / max(width, _TINY)
            if flat > _FLAT:
                yield Finding(
                    "flat-table",
                    "note",
                    before,
                    f"{100 * flat:.0f} % of the range {low:.3g} to {high:.3g} is flat in {activation.label}",
                    "nothing to do here (the step 'clip' draws the range in); elsewhere clip it by hand before the activation",
                    {"flat": flat},
                )

    def coarse_tables(self) -> Iterator[Finding]:
        """Results that are small beside the units of the chip's tables, which do not follow the scale of a tensor."""
        for step, values in few_values(self._steps, self._seen.observer):
            if values < LOST and step.activation is not None:
                name = step.outputs[0]
                low, high = self._seen.observer.range(name, "minmax")
                tiny = max(-low, high) < SMALLEST_FEW
                instead = "float16 has hardly any, too" if tiny else f"--hybrid {name} keeps it in float16"
                yield Finding(
                    "coarse-table",
                    "error" if values < _HARDLY_ANY_VALUES else "warning",
                    name,
                    f"its results lie between {low:.3g} and {high:.3g}, where the chip's table of {step.activation.label} has "
                    f"{values:.0f} values ({instead})",
                    f"{'' if tiny else f'--hybrid {name}, or '}larger weights before it and smaller ones after it",
                    {"values": values},
                )

    def heads(self) -> Iterator[Finding]:
        """Clipped values next to an output; needs the quantization that was chosen."""
        floors = score_floors(self._graph, self._steps, self._seen.observer)
        before_tables = {step.before_activation for step in self._steps}  # flat tails are drawn in there without loss
        for name in sorted(exact_tensors(self._graph, self._steps) - before_tables):
            chosen = (self._quantization or {}).get(name)
            if not isinstance(chosen, Affine) or not chosen.is_per_tensor or name not in self._seen.observer.names:
                continue
            low, high = self._seen.observer.range(name, "minmax")
            low = max(low, floors.get(name, low))
            first, last = (limit - chosen.zero_point for limit in DType.INT8.limits)
            covered = first * chosen.scale, last * chosen.scale
            if low < covered[0] - chosen.scale or high > covered[1] + chosen.scale:
                yield Finding(
                    "clipped-head",
                    "error",
                    name,
                    f"values from {low:.3g} to {high:.3g} are cut to {covered[0]:.3g} to {covered[1]:.3g}: rare answers may be lost",
                    "do not leave the step 'heads' out",
                    {"low": low, "high": high},
                )

    def mixed(self) -> Iterator[Finding]:
        """Outputs that join boxes in pixels and scores from 0 to 1: a chip has one scale for an output."""
        for joint in mixed_outputs(self._graph, self._steps, self._seen.observer, self._quantization):
            left = "no quantized value is" if joint.codes < 1 else f"{joint.codes:.0f} quantized values are"
            yield Finding(
                "mixed-output",
                "error",
                joint.output,
                f"it has one scale, with steps of {joint.step:.3g}, but '{joint.part}' in it has values from {joint.low:.3g} to "
                f"{joint.high:.3g}: {left} left for them (--hybrid {joint.output} keeps it in float16)",
                f"--hybrid {joint.output}, or export the model with boxes and scores as outputs of their own",
                {"step": joint.step, "codes": joint.codes},
            )

    def samples(self) -> Iterator[Finding]:
        """Ranges that one sample sets."""
        for name in self._seen.observer.names:
            ranges = self._seen.observer.sample_ranges(name)
            if len(ranges) < _FEWEST_SAMPLES or name in self._graph.inputs:
                continue
            widths = np.maximum(ranges[:, 1], 0.0) - np.minimum(ranges[:, 0], 0.0)
            worst = int(widths.argmax())
            others = float(np.delete(widths, worst).max())
            if others > 0 and widths[worst] > _OUTLIER * others:
                yield Finding(
                    "one-sample",
                    "warning",
                    name,
                    f"sample {worst + 1} reaches {widths[worst]:.3g}, all others at most {others:.3g}",
                    "look at that sample; if it is right, use the algorithm percentile and more like it",
                    {"sample": float(worst + 1), "range": float(widths[worst]), "others": others},
                )

    def readers(self) -> Iterator[Finding]:
        """Activations that cannot join their convolution."""
        readers: dict[str, list[Step]] = {}
        for step in self._steps:
            for name in step.reads:
                readers.setdefault(name, []).append(step)
        for step in self._steps:
            maker = self._made_by.get(step.inputs[0]) if step.form is Form.FUNCTION else None
            if maker is None or maker.form is not Form.CONV or maker.activation is not None:
                continue
            others = [entry.node.label for entry in readers[step.inputs[0]] if entry is not step]
            if others or step.inputs[0] in self._graph.outputs:
                who = f"'{others[0]}' reads it too" if others else "it is an output as well"
                yield Finding(
                    "second-reader",
                    "note",
                    step.inputs[0],
                    f"the activation {step.kind} stays a layer of its own, because {who}",
                    "let the other reader take the activation's result, if the model allows it",
                    {"readers": float(len(others) + 1)},
                )


@dataclass(frozen=True)
class MixedOutput:
    """An output that joins tensors of so different scale that one scale leaves the smallest hardly any quantized values.

    :ivar part: the tensor that suffers most, with values from *low* to *high*
    :ivar step: the step of the output's scale
    :ivar codes: how many steps *part* has
    :ivar tensors: the output and what lies between it and the joint
    """

    output: str
    part: str
    low: float
    high: float
    step: float
    codes: float
    tensors: frozenset[str]


def mixed_outputs(
    graph: Graph, steps: Sequence[Step], seen: RangeObserver, quantization: Mapping[str, Quantization] | None = None
) -> Iterator[MixedOutput]:
    """The outputs that join values of different scale, by the ranges that calibration saw.

    :param quantization: the scales that were chosen; without it, outputs are taken to have their whole range
    """
    made_by = {name: step for step in steps if not step.is_float for name in step.outputs}
    for output in graph.outputs:
        parts, between = _joined(output, made_by)
        if len(parts) < 2 or not parts <= set(seen.names):
            continue
        ranges = {part: seen.range(part, "minmax") for part in parts}
        extents = {part: high - low for part, (low, high) in ranges.items()}
        chosen = (quantization or {}).get(output)
        scale = chosen.scale if isinstance(chosen, Affine) and chosen.is_per_tensor else max(extents.values()) / 255.0
        part = min(extents, key=lambda part: (extents[part] or np.inf, part))
        codes = extents[part] / max(scale, _TINY)
        if not 0 < codes < _FEW_CODES_OF_SCORES:
            continue
        widths = {name: [extents[part] for part in _joined(name, made_by)[0]] for name in between}
        mixed = {name for name, parts in widths.items() if min(parts) * 255.0 < _FEW_CODES_OF_SCORES * max(parts)}
        yield MixedOutput(output, part, *ranges[part], scale, codes, frozenset(mixed | {output}))


def score_floors(graph: Graph, steps: Sequence[Step], seen: RangeObserver) -> dict[str, float]:
    """Scores before a sigmoid that the host computes, whose values lie mostly far below any threshold: the value below which none matters.

    Such an output stands next to one of boxes for the same anchors. Its floor also holds for the tensors that data movement makes it of.
    """
    made_by = {name: step for step in steps if not step.is_float for name in step.outputs}
    floors: dict[str, float] = {}
    for output in graph.outputs:
        parts, between = _joined(output, made_by)
        if not parts <= set(seen.names) or not any(
            _is_beside(graph.shapes[output], graph.shapes[name]) for name in graph.outputs
        ):
            continue
        ends = [seen.range(part, "minmax") for part in parts]
        low, high = min(end[0] for end in ends), max(end[1] for end in ends)
        floor = -max(_NO_SCORE, high)
        if low < 2.0 * floor and high > floor / 2.0:
            floors.update(dict.fromkeys({output, *between, *parts}, floor))
    return floors


def _is_beside(scores: tuple[int, ...], boxes: tuple[int, ...]) -> bool:
    """Whether the shape of *boxes* is that of *scores* but for one axis, which has at least the four numbers of a box."""
    if len(scores) != len(boxes):
        return False
    apart = [(mine, its) for mine, its in zip(scores, boxes, strict=True) if mine != its]
    return len(apart) == 1 and apart[0][0] < apart[0][1] and apart[0][1] >= _BOX


def _joined(name: str, made_by: Mapping[str, Step]) -> tuple[set[str], set[str]]:
    """The tensors whose quantized values a tensor holds: itself, or what was joined; and the tensors in between."""
    found: set[str] = set()
    between: set[str] = set()
    left = [name]
    while left:  # no recursion: thousands of layers in a row may keep one scale
        name = left.pop()
        step = made_by.get(name)
        if step is not None and step.form is Form.CONCAT:
            between.add(name)
            left.extend(step.inputs)
        elif step is not None and keeps_scale(step):
            between.add(name)
            left.append(step.inputs[0])
        else:
            found.add(name)
    return found, between


def _inputs(graph: Graph, preprocess: Mapping[str, Preprocess]) -> Iterator[Finding]:
    for name in graph.inputs:
        entry = preprocess.get(name)
        if entry is None or len(graph.shapes[name]) != 4:
            continue
        steps: npt.NDArray[np.float64] = 1.0 / np.asarray(entry.std, np.float64)
        low = (0.0 - np.asarray(entry.mean)) * steps
        high = (255.0 - np.asarray(entry.mean)) * steps
        scale = (max(float(high.max()), 0.0) - min(float(low.min()), 0.0)) / 255.0
        if scale > 1.01 * float(steps.min()):
            yield Finding(
                "input-steps",
                "note",
                name,
                f"one quantized value is {scale / float(steps.min()):.2f} gray levels of the finest channel",
                "mean and std that are the same for all channels lose nothing, if the model can be trained or folded that way",
                {"levels": scale / float(steps.min())},
            )


def _outputs(graph: Graph) -> Iterator[Finding]:
    for name in graph.outputs:
        shape = graph.shapes[name]
        if len(shape) == 2 and shape[1] == 2:
            yield Finding(
                "two-classes",
                "note",
                name,
                "an output of two classes: a cosine of 0.99 can hide a changed answer",
                "evaluate by the class or by its margin (metric top1 or margin)",
                {"classes": 2.0},
            )


def few_values(steps: Sequence[Step], seen: RangeObserver) -> Iterator[tuple[Step, float]]:
    """Steps whose results are small beside the units of the chip's table that makes them, and how many values it has for them."""
    for step in steps:
        name = step.outputs[0] if step.outputs else ""
        if step.curve is None or step.is_float or name not in seen.names:
            continue
        low, high = seen.range(name, "minmax")
        values = (high - low) * step.curve.table_scale
        if 0 < values < _ENOUGH:
            yield step, values


def summary(findings: Sequence[Finding]) -> str:
    """What is more than a note in one line, for the model file."""
    texts = [str(finding) for finding in findings if finding.severity != "note"]
    more = [f"and {len(texts) - _MAX_TEXTS} more"] if len(texts) > _MAX_TEXTS else []
    return "; ".join([*texts[:_MAX_TEXTS], *more])
