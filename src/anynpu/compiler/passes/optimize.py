"""ONNX to ONNX: the same function, written so that any quantiser keeps more of it.

What the compiler folds is folded (batch normalisation, scales, biases). A convolution whose channels differ widely in range becomes
several convolutions, one for each group of like channels, with an activation of their own; each then gets a scale of its own from any
quantiser. A depthwise convolution behind it is split the same way, a dense one becomes a sum. Slices of a picture that are joined for a
convolution (Focus) become one convolution. What is kept is judged under the rules of the vendor's toolkit. The difference to the
original in float32 is measured, never assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._util.types import Array
from ..graph import Graph, Node, to_onnx
from ..lower.forms import Form
from ..lower.steps import Step
from ..quantize.calibrate import FloatModel
from ..quantize.channel_groups import GroupChoice, choose_groups, is_depthwise
from ..quantize.model_samples import Study, open_study
from ..toolkit.export import better, plain_score
from .focus import fold_focus
from .hard_swish import write_hard_swish_as_gate

__all__ = ["Optimized", "optimize"]

Members = list[npt.NDArray[np.intp]]

_MEASURED = 4
_BLOCK = 16
"""Channels that a part of a tensor is a multiple of: the toolkit pads, and splits what is joined, by such blocks."""
_TINY = 1e-30


@dataclass(frozen=True, eq=False, repr=False)
class Optimized:
    """A rewritten model.

    :ivar model: an onnx.ModelProto
    :ivar groups: tensors that were split, with the number of groups and how much less noise two of them have
    :ivar largest_error: largest absolute difference to the original in float32, over a few samples
    :ivar relative_error: the same, relative to the largest value of that output
    :ivar nodes: number of nodes before and after
    :ivar note: how the split model was judged; empty where it was not
    :ivar stems: results of convolutions that took the place of slices, a Concat and a convolution
    """

    model: Any
    groups: dict[str, tuple[int, float]]
    largest_error: float
    relative_error: float
    nodes: tuple[int, int]
    note: str = ""
    stems: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Optimized({len(self.groups)} tensors split, nodes {self.nodes[0]} -> {self.nodes[1]})"


def optimize(
    model: Any,
    target: str = "rk3588",
    *,
    channel_groups: int = 4,
    split_outputs: bool = False,
    judged: bool = True,
    **options: Any,
) -> Optimized:
    """Rewrite an ONNX model so that any int8 quantiser keeps more of it.

    :param channel_groups: most groups that a tensor is split into; 1 to leave all tensors whole
    :param split_outputs: an output that concatenates tensors becomes several outputs, each with a range of its own
    :param judged: split only what is better then, with the rules of the vendor's toolkit and plain min/max
    :param options: ``dataset`` and how it is read, as in :func:`anynpu.compile`

    >>> better = anynpu.compiler.passes.optimize("yolo.onnx", dataset="street/")    # doctest: +SKIP
    >>> onnx.save(better.model, "better.onnx")                               # doctest: +SKIP
    """
    study = open_study(model, target, **options)
    graph = study.bench.graph
    before = graph.source_nodes or len(graph.nodes)
    choices = _choices(study, channel_groups)
    plan, note = _Plan(choices, stems=True), ""
    if judged and study.bench.can_judge:
        plan, note = _worth(study, choices, target, options)
    rewritten, stems = _rewritten(study, plan)
    if split_outputs:
        _split_outputs(rewritten)
        rewritten.remove_unused()
    largest, relative = _difference(study, graph, rewritten)
    found = {name: (choice.count, choice.gain) for name, choice in plan.choices.items()}
    return Optimized(_proto(rewritten), found, largest, relative, (before, len(rewritten.nodes)), note, stems)


@dataclass(frozen=True, eq=False)
class _Plan:
    """What to rewrite: tensors to split, and whether Focus stems become convolutions."""

    choices: dict[str, GroupChoice]
    stems: bool = False


def _choices(study: Study, most: int) -> dict[str, GroupChoice]:
    """Which tensors gain from being split: those of few channels anywhere, others into multiples of a block."""
    bench = study.bench
    found = choose_groups(bench.graph, study.steps, bench.calibration.channels, most, _BLOCK)
    return {name: choice for name, choice in found.items() if _can_split(study, name)}


def _in_blocks(choice: GroupChoice) -> bool:
    return not any(size % _BLOCK for size in np.bincount(choice.grouping.group_of))


def _rewritten(study: Study, plan: _Plan) -> tuple[Graph, tuple[str, ...]]:
    """The graph by a plan, and the stems in it that became convolutions."""
    result = _Splitter(study.bench.graph, study.steps, plan.choices).run()
    if plan.choices:
        write_hard_swish_as_gate(result)
    stems = tuple(fold_focus(result)) if plan.stems else ()
    result.remove_unused()
    return result, stems


def _proto(graph: Graph) -> Any:
    return to_onnx(graph, graph.nodes, graph.inputs, graph.outputs, name="optimized")


def _worth(study: Study, choices: dict[str, GroupChoice], target: str, options: dict[str, Any]) -> tuple[_Plan, str]:
    """What to rewrite: stems and all tensors that gain, those that are split into whole blocks, the one that gains most, or nothing.

    Judged is what the vendor's toolkit with plain min/max would make of it, on samples kept apart and on perturbed copies of them.
    """
    # what the rewritten model is given is what the original one is: shapes are fixed already
    same = {key: value for key, value in options.items() if key not in ("shapes", "batch", "channel_order", "progress")}
    none = _Plan({})
    plans = _plans(study, choices)
    if not plans:
        return none, ""
    whole = plain_score(_proto(_rewritten(study, none)[0]), target, **same)
    best, reached, texts = none, whole, []
    for plan in plans:
        score = plain_score(_proto(_rewritten(study, plan)[0]), target, **same)
        texts.append(f"{'Focus folded, ' if plan.stems else ''}{len(plan.choices)} split: {score}")
        if whole is not None and reached is not None and score is not None and better(score, reached) and better(score, whole):
            best, reached = plan, score
    before = f"{'not kept, ' if best is none else ''}{study.bench.metric_name} {whole}"
    return best, f"{before} -> {'; '.join(texts)}; with plain min/max on {study.bench.judges}"


def _plans(study: Study, choices: dict[str, GroupChoice]) -> list[_Plan]:
    """What is tried, without what comes to the same."""
    stems = bool(_rewritten(study, _Plan({}, stems=True))[1])
    blocks = {name: choice for name, choice in choices.items() if _in_blocks(choice)}
    first = dict([*choices.items()][:1])
    plans = [_Plan({}, stems=True), _Plan(choices)] if stems else []
    plans += [_Plan(candidate, stems) for candidate in (choices, blocks, first)]
    found = {(plan.stems, *plan.choices): plan for plan in plans if plan.stems or plan.choices}
    return [*found.values()]


def _can_split(study: Study, name: str) -> bool:
    """An activation with a slope for each channel stays whole, and so does a convolution that a residual was added to."""
    for step in study.steps:
        if name in step.outputs or name in step.reads:
            slope = step.activation.slope if step.activation is not None else None
            if (slope is not None and slope.size > 1) or (step.residual and name in step.outputs):
                return False
    return True


def _split_outputs(graph: Graph) -> None:
    makers = graph.producers()
    outputs: list[str] = []
    for name in graph.outputs:
        maker = makers.get(name)
        outputs += list(maker.inputs) if maker is not None and maker.op == "Concat" else [name]
    graph.outputs = [name for name in dict.fromkeys(outputs) if name not in graph.constants]


class _Splitter:
    """Rewrites the nodes of a graph, with some tensors in parts."""

    def __init__(self, graph: Graph, steps: Sequence[Step], choices: dict[str, GroupChoice]) -> None:
        self._graph = graph
        self._choices = choices
        self._steps = {id(step.node): step for step in steps if step.form is Form.CONV and not step.is_float}
        self._inside = {id(node) for step in self._steps.values() for node in step.nodes}
        self._parts: dict[str, tuple[list[str], Members]] = {}
        self._readers = graph.consumers()
        self._nodes: list[Node] = []
        self._new = Graph(
            [],
            list(graph.inputs),
            list(graph.outputs),
            dict(graph.constants),
            dict(graph.shapes),
            dict(graph.dtypes),
            dict(graph.opsets),
            graph.ir_version,
            graph.source_nodes,
        )

    def run(self) -> Graph:
        done: set[int] = set()
        for node in self._graph.nodes:
            if id(node) in done:
                continue
            step = self._steps.get(id(node))
            if step is not None and self._splits(step):
                done.update(id(entry) for entry in step.nodes)
                self._split(step)
            elif step is not None and node.inputs[0] in self._parts:
                self._sum(node)
            else:
                self._nodes.append(replace(node))
        self._new.nodes = self._nodes
        return self._new

    def _splits(self, step: Step) -> bool:
        """Whether the result of a step is made in parts: because it gains from it, or because its input lies in parts."""
        behind = step.inputs[0] in self._parts and is_depthwise(self._graph, step)
        plain = not step.residual and (
            step.activation is None or step.activation.slope is None or step.activation.slope.size == 1
        )
        return plain and (step.outputs[0] in self._choices or behind)

    def _split(self, step: Step) -> None:
        name = step.outputs[0]
        members = self._members(step)
        source = self._parts.get(step.inputs[0])
        parts = []
        for index, channels in enumerate(members):
            renamed = {output: f"{output}/group{index}" for node in step.nodes for output in node.outputs}
            if is_depthwise(self._graph, step):
                self._depthwise_part(step.node, renamed[step.node.outputs[0]], source, index, channels)
            else:
                self._dense(step.node, renamed[step.node.outputs[0]], channels, source)
            for node in step.nodes:
                if node is not step.node:
                    inputs = [renamed.get(entry, entry) for entry in node.inputs]
                    outputs = [renamed[entry] for entry in node.outputs]
                    self._nodes.append(replace(node, inputs=inputs, outputs=outputs, name=f"{node.label}/group{index}"))
            for old, new in renamed.items():
                self._shape(new, old, len(channels))
            parts.append(renamed[name])
        if name in self._choices:
            self._parts[name] = parts, members
        needs_whole = name in self._graph.outputs or any(id(reader) not in self._steps for reader in self._readers.get(name, ()))
        if name not in self._choices or needs_whole:
            self._join(name, parts, members)

    def _members(self, step: Step) -> Members:
        """The channels of each part: like range, and for a depthwise convolution also within one part of its input."""
        channels = self._graph.shapes[step.outputs[0]][1]
        labels = np.zeros(channels, np.int64)
        if step.outputs[0] in self._choices:
            labels = self._choices[step.outputs[0]].grouping.group_of
        source = self._parts.get(step.inputs[0])
        if source is not None and is_depthwise(self._graph, step):
            within = np.zeros(channels, np.int64)
            for index, entry in enumerate(source[1]):
                within[entry] = index
            labels = within * (int(labels.max()) + 1) + labels
        return [np.flatnonzero(labels == label) for label in np.unique(labels)]

    def _depthwise_part(
        self, node: Node, result: str, source: tuple[list[str], Members] | None, index: int, channels: npt.NDArray[np.intp]
    ) -> None:
        if source is None:
            reads = self._gathered(node.inputs[0], f"{node.inputs[0]}/for/{result}", channels)
        else:
            part, members = next(entry for entry in zip(*source, strict=True) if set(channels) <= set(entry[1]))
            reads = part
            if len(members) != len(channels):
                reads = self._gathered(part, f"{part}/{index}", np.searchsorted(members, channels))
        weights = self._constant(f"{result}/weights", self._graph.constants[node.inputs[1]][channels])
        inputs = [reads, weights, *self._bias(node, result, channels)]
        attributes = {**node.attributes, "group": len(channels)}
        self._nodes.append(replace(node, inputs=inputs, outputs=[result], attributes=attributes, name=result))

    def _dense(
        self, node: Node, result: str, channels: npt.NDArray[np.intp] | None, source: tuple[list[str], Members] | None
    ) -> None:
        """A dense convolution for some output *channels*; of an input in parts it is a sum."""
        weights = self._graph.constants[node.inputs[1]]
        rows = weights if channels is None else weights[channels]
        bias = self._bias(node, result, channels)
        if source is None:
            inputs = [node.inputs[0], self._constant(f"{result}/weights", rows), *bias]
            self._nodes.append(replace(node, inputs=inputs, outputs=[result], name=result))
            return
        total = ""
        for index, (part, members) in enumerate(zip(*source, strict=True)):
            last = index == len(source[0]) - 1
            made = f"{result}/from{index}"
            inputs = [part, self._constant(f"{made}/weights", rows[:, members]), *(bias if index == 0 else [])]
            self._nodes.append(replace(node, inputs=inputs, outputs=[made], name=made))
            self._shape(made, node.outputs[0], len(rows))
            if total:
                summed = result if last else f"{result}/sum{index}"
                self._nodes.append(Node("Add", [total, made], [summed], name=summed))
                self._shape(summed, node.outputs[0], len(rows))
                made = summed
            total = made

    def _sum(self, node: Node) -> None:
        self._dense(node, node.outputs[0], None, self._parts[node.inputs[0]])

    def _join(self, name: str, parts: list[str], members: Members) -> None:
        """The whole tensor from its parts, in the original order of the channels."""
        joined = f"{name}/joined"
        self._nodes.append(Node("Concat", parts, [joined], {"axis": 1}, joined))
        self._shape(joined, name, self._graph.shapes[name][1])
        self._gathered(joined, name, np.argsort(np.concatenate(members)))

    def _gathered(self, source: str, result: str, channels: npt.NDArray[np.intp]) -> str:
        indices = self._constant(f"{result}/channels", channels.astype(np.int64))
        self._nodes.append(Node("Gather", [source, indices], [result], {"axis": 1}, f"{result}/gather"))
        self._shape(result, source, len(channels))
        return result

    def _bias(self, node: Node, result: str, channels: npt.NDArray[np.intp] | None) -> list[str]:
        if len(node.inputs) < 3 or not node.inputs[2]:
            return []
        bias = self._graph.constants[node.inputs[2]]
        return [self._constant(f"{result}/bias", bias if channels is None else bias[channels])]

    def _constant(self, name: str, value: Array) -> str:
        return self._new.add_constant(name, np.ascontiguousarray(value))

    def _shape(self, name: str, like: str, channels: int) -> None:
        shape = self._new.shapes[like]
        self._new.shapes.setdefault(name, (shape[0], channels, *shape[2:]))
        self._new.dtypes.setdefault(name, self._new.dtypes[like])


def _difference(study: Study, original: Graph, rewritten: Graph) -> tuple[float, float]:
    """The largest difference of the outputs that both have, absolute and relative."""
    if any(node.custom for node in original.nodes):
        return float("nan"), float("nan")
    names = list(rewritten.outputs)
    first, second = FloatModel(original, names, {}), FloatModel(rewritten, names, {})
    largest, relative = 0.0, 0.0
    for sample in islice(study.data, _MEASURED):
        expected, given = first.run(sample), second.run(sample)
        for name in names:
            error = float(np.abs(expected[name].astype(np.float64) - given[name]).max(initial=0.0))
            largest = max(largest, error)
            relative = max(relative, error / max(float(np.abs(expected[name]).max(initial=0.0)), _TINY))
    return largest, relative
