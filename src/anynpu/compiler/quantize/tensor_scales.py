"""Scale and zero point for every tensor that integer steps read or write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...errors import CalibrationError
from ...program import Preprocess
from ...program.arithmetic import affine_from_range, fixed_point_from_range
from ...tensor import Affine, DType, Quantization
from ...vendors import Format
from ..graph import Graph
from ..lower.forms import Form
from ..lower.steps import Activation, Step
from .channel_groups import ChannelRanges, Grouping
from .ranges import clip_to_table

Floats = npt.NDArray[Any]

_KEEPS_SCALE = {Form.SLICE, Form.PAD, Form.RESIZE, Form.TRANSPOSE, Form.RESHAPE}
_MOVES = {*_KEEPS_SCALE, Form.CONCAT, Form.POOL}
_MAX_VALUE = 1e37
"""Values beyond this have no scale: a code times its scale has to be a float32, which ends at 3.4e38."""

_ANY = np.concatenate([np.linspace(-1e4, 1e4, 41), np.linspace(-8.0, 8.0, 41)])
"""Numbers at which an activation is looked at."""

_LINEAR = {Form.CONV, Form.CONV_TRANSPOSE, Form.DENSE, Form.MATMUL}


class Ranges(Protocol):
    """Where ranges come from: calibration, or nothing at all for a mere check."""

    def __call__(self, name: str, *, exact: bool) -> tuple[float, float]:
        """The range of a tensor; *exact* asks for its smallest and largest value, whatever the algorithm."""


@dataclass(frozen=True)
class FlooredRanges:
    """Ranges of which some begin at a floor: what lies below it is cut off.

    :ivar floors: by tensor
    """

    ranges: Ranges
    floors: Mapping[str, float]

    def __call__(self, name: str, *, exact: bool) -> tuple[float, float]:
        """The range of a tensor, not below its floor."""
        low, high = self.ranges(name, exact=exact)
        return max(low, self.floors.get(name, low)), high


def keeps_scale(step: Step) -> bool:
    """Whether the quantized values of a step's result mean what those of its input mean."""
    return step.form in _KEEPS_SCALE or (step.form is Form.POOL and "Max" in step.node.op)


def quantized_tensors(graph: Graph, steps: list[Step]) -> list[str]:
    """Tensors whose range has to be known, in the order of execution."""
    names: dict[str, None] = {}
    for step in steps:
        if step.is_float:
            continue
        names.update(dict.fromkeys(step.reads))
        if step.activation is not None and step.activation.is_table and step.form is not Form.FUNCTION:
            names[step.before_activation] = None
        names.update(dict.fromkeys(step.outputs))
    names.update(dict.fromkeys(sorted(graph.coded)))
    return list(names)


def may_be_infinite(graph: Graph, steps: list[Step]) -> set[str]:
    """Tensors that integers at most move, such as a mask: in float they may hold infinity, which no code stands for."""
    computed: set[str] = set()
    for step in reversed(steps):
        moves = step.is_float or step.form in _MOVES
        if not moves or (not step.is_float and not computed.isdisjoint(step.outputs)):
            computed.update(step.reads)
        if not moves:
            computed.update(step.outputs)
    return {*graph.inputs, *graph.producers()} - computed


def head_tensors(graph: Graph, steps: list[Step], outputs: Sequence[str] | None = None) -> set[str]:
    """Tensors between the last matmul and an output: clipping there loses rare, large answers.

    A product that stands for a sum or for arithmetic with constants is none of the network's own.

    :param outputs: the outputs that are looked at; all by default
    """
    return _before_outputs(steps, graph.outputs if outputs is None else outputs, set())


def head_products(steps: list[Step]) -> set[str]:
    """The results of matmuls that are the network's own."""
    return {name for step in steps if step.form in _LINEAR and not step.node.rewritten for name in step.outputs}


def exact_tensors(graph: Graph, steps: list[Step]) -> set[str]:
    """Tensors that keep their whole range: the heads, and scores that reach an output through linear or data-moving layers."""
    return _before_outputs(steps, graph.outputs, _scores(steps))


def _scores(steps: list[Step]) -> set[str]:
    """Results of a sigmoid or softmax, and what element-wise, linear and data-moving layers make of nothing else."""
    found: set[str] = set()
    for step in steps:
        alone = step.activation is None or step.form is Form.FUNCTION
        follows = alone and step.form in (*_LINEAR, *_MOVES, Form.FUNCTION, Form.BINARY)
        if _is_share(step.activation) or step.kind == "Softmax" or (follows and found.issuperset(step.reads)):
            found.update(step.outputs)
    return found


def _is_share(activation: Activation | None) -> bool:
    """Whether all results of an activation lie between 0 and 1."""
    if activation is None or activation.slope is not None:
        return False
    if activation.bounds is not None:
        return activation.bounds[0] >= 0.0 and activation.bounds[1] <= 1.0
    with np.errstate(all="ignore"):
        values = activation.function(_ANY)
    return bool(np.all((values >= 0.0) & (values <= 1.0)))


def _before_outputs(steps: list[Step], outputs: Sequence[str], scores: Set[str]) -> set[str]:
    """Tensors between the last matmul and an output, and before it those of *scores*."""
    made_by = {name: step for step in steps for name in step.outputs}
    heads: set[str] = set()
    waiting = list(outputs)
    while waiting:
        name = waiting.pop()
        if name in heads:
            continue
        heads.add(name)
        step = made_by.get(name)
        if step is None:
            continue
        if step.before_activation:
            heads.add(step.before_activation)
        if step.form not in _LINEAR or step.is_float or step.node.rewritten:
            waiting += step.reads
        elif step.activation is None:
            waiting += [read for read in step.reads if read in scores]
    return heads


class Clips:
    """Ranges before tables, each drawn in once: what is asked again is remembered."""

    def __init__(self) -> None:
        self._known: dict[tuple[Activation, float, float, Quantization, DType], tuple[float, float]] = {}

    def of(self, activation: Activation, low: float, high: float, target: Quantization, dtype: DType) -> tuple[float, float]:
        """The part of a range that an activation's table resolves; see :func:`~anynpu.compiler.quantize.ranges.clip_to_table`."""
        key = (activation, low, high, target, dtype)
        if key not in self._known:
            self._known[key] = clip_to_table(activation.function, low, high, target, dtype)
        return self._known[key]


def assign_quantization(
    graph: Graph,
    steps: list[Step],
    ranges: Ranges,
    kind: Format,
    preprocess: Mapping[str, Preprocess] | None = None,
    groups: Mapping[str, Grouping] | None = None,
    channels: ChannelRanges | None = None,
    *,
    exact_heads: bool = True,
    clip: bool = True,
    given: Mapping[str, Quantization] | None = None,
    clips: Clips | None = None,
) -> dict[str, Quantization]:
    """The quantization of each tensor of :func:`quantized_tensors`.

    :param groups: tensors with a scale by group of channels
    :param channels: ranges per channel, for the tensors of *groups* and what lies before their activation
    :param exact_heads: whatever lies between the last convolution and an output keeps its whole range, and so do scores before it
    :param clip: draw in the range before a table where the table is flat
    :param given: the quantization of tensors that the caller has decided
    :param clips: what earlier calls for the same steps have found out about ranges before tables
    """
    known = Clips() if clips is None else clips
    groups, channels, dtype = groups or {}, channels or {}, kind.codes
    heads = exact_tensors(graph, steps) if exact_heads else set()
    made_by = {name: step for step in steps for name in step.outputs}
    joined = _joined_by_concat(graph, steps, made_by)
    gathered = _gathered(steps, made_by)
    result: dict[str, Quantization] = dict(given or {})

    def from_range(name: str, low: float, high: float) -> Quantization:
        if max(-low, high) > _MAX_VALUE:
            raise CalibrationError(
                f"a tensor reaches {-low if -low > high else high:g}, for which integers have no scale",
                tensor=name,
                hint=f"keep it in float16: hybrid=['{name}']",
            )
        return fixed_point_from_range(low, high, dtype) if kind.fixed_point else affine_from_range(low, high, dtype)

    def follows(name: str) -> str | None:
        """The tensor whose scale this one has, if it has none of its own."""
        step = made_by.get(name)
        if name not in joined and step is not None and not step.is_float and keeps_scale(step):
            return step.inputs[0]
        return joined.get(name) or gathered.get(name)

    def of(name: str) -> Quantization:
        # a loop and not a recursion: thousands of layers in a row may keep one scale
        path: dict[str, None] = {}
        while name not in result:
            path[name] = None
            other = follows(name)
            if other is None or other in path:
                result[name] = decide(name)
                break
            name = other
        result.update(dict.fromkeys(path, result[name]))
        return result[name]

    def decide(name: str) -> Quantization:
        if name in graph.inputs:
            pixels = pixel_range(graph, name, (preprocess or {}).get(name))
            return from_range(name, *(pixels or ranges(name, exact=True)))
        if name in groups:
            return _grouped(groups[name], channels[name], ranges(name, exact=name in heads), dtype, known)
        return from_range(name, *ranges(name, exact=name in heads))

    for step in steps:
        if step.is_float:
            continue
        for name in (*step.reads, *step.outputs):
            of(name)
        activation = step.activation
        if activation is not None and step.rounds_before_activation and step.before_activation not in result:
            before = step.before_activation
            target = result[step.outputs[0]]
            if step.outputs[0] in groups:
                grouping = groups[step.outputs[0]]
                wide = ranges(before, exact=before in heads)
                result[before] = _grouped(grouping, channels[before], wide, dtype, known, activation if clip else None, target)
                continue
            low, high = ranges(before, exact=before in heads)
            if clip and dtype is DType.INT8:  # 16 bits have quantized values enough for the flat parts
                low, high = known.of(activation, low, high, target, dtype)
            result[before] = from_range(before, low, high)
    for name in sorted(graph.coded):
        of(name)
    return result


def _grouped(
    grouping: Grouping,
    channels: tuple[Floats, Floats],
    whole: tuple[float, float],
    dtype: DType,
    clips: Clips,
    activation: Activation | None = None,
    target: Quantization | None = None,
) -> Affine:
    """A scale by group, from the ranges of its channels, within that of the whole tensor.

    With *activation* it is the tensor before it, whose quantized values a table turns into those of *target*.
    """
    low, high = channels
    runs = grouping.runs
    found: dict[int, Affine] = {}
    for index, (group, _) in enumerate(runs):
        if group in found:
            continue
        members = grouping.group_of == group
        least, most = max(float(low[members].min()), whole[0]), min(float(high[members].max()), whole[1])
        if activation is not None and isinstance(target, Affine):
            after = Affine.per_tensor(target.scales[index], target.zero_points[index])
            least, most = clips.of(activation, min(least, 0.0), max(most, 0.0), after, dtype)
        found[group] = affine_from_range(least, most, dtype)
    made = [found[group] for group, _ in runs]
    sizes = tuple(size for _, size in runs)
    return Affine(tuple(affine.scale for affine in made), tuple(affine.zero_point for affine in made), sizes)


def pixel_range(graph: Graph, name: str, preprocess: Preprocess | None) -> tuple[float, float] | None:
    """The range of a normalized image is known: a byte goes from 0 to 255. With it, bytes map to quantized values without loss."""
    shape = graph.shapes[name]
    if preprocess is None or len(shape) != 4 or shape[1] not in (1, 3, 4):
        return None
    mean, std = np.asarray(preprocess.mean), np.asarray(preprocess.std)
    ends = np.concatenate([(0.0 - mean) / std, (255.0 - mean) / std])
    return float(ends.min()), float(ends.max())


def _joined_by_concat(graph: Graph, steps: list[Step], made_by: Mapping[str, Step]) -> dict[str, str]:
    """Tensors that only a Concat reads, each with the Concat's result: they take its scale, which saves a change of scale."""
    readers: dict[str, int] = {}
    for step in steps:
        for name in step.reads:
            readers[name] = readers.get(name, 0) + 1
    joined = {}
    for step in steps:
        if step.form is not Form.CONCAT or step.is_float:
            continue
        for name in step.inputs:
            maker = made_by.get(name)
            alone = readers[name] == 1 and name not in graph.outputs
            if maker is not None and not maker.is_float and alone and not keeps_scale(maker):
                joined[name] = step.outputs[0]
    for name in reversed(joined):  # a Concat of Concats has one scale, that of the last
        joined[name] = joined.get(joined[name], joined[name])
    return joined


def _gathered(steps: list[Step], made_by: Mapping[str, Step]) -> dict[str, str]:
    """Results of a Concat that only puts parts of one tensor together again, each with that tensor: quantized values keep their meaning."""

    def root(name: str) -> str:
        step = made_by.get(name)
        if step is None or step.is_float:
            return name
        if keeps_scale(step):
            return root(step.inputs[0])
        return found.get(name, name)

    found: dict[str, str] = {}
    for step in steps:
        if step.form is Form.CONCAT and not step.is_float:
            roots = {root(name) for name in step.inputs}
            if len(roots) == 1:
                found[step.outputs[0]] = roots.pop()
    return found
