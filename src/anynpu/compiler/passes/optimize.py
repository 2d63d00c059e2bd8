"""ONNX to ONNX: the same function, written so that any quantizer keeps more of it.

What the compiler folds is folded (batch normalization, scales, biases). A convolution whose channels differ widely in range becomes
several convolutions, one for each group of like channels, with an activation of their own; each then gets a scale of its own from any
quantizer. A depthwise convolution behind it is split the same way, a dense one becomes a sum. Slices of an image that are joined for a
convolution (Focus) become one convolution. What is kept is evaluated under the rules of the vendor's toolkit. The difference to the
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
from ..export import better, plain_score
from ..graph import Graph, Node, to_onnx
from ..lower.attributes import slice_bounds
from ..lower.forms import Form
from ..lower.functions import clip_bounds
from ..lower.steps import Step
from ..quantize.calibrate import FloatModel
from ..quantize.channel_groups import GroupChoice, choose_groups, is_depthwise
from ..quantize.model_samples import Study, open_study

# Focus stems as one convolution.
#
# YOLOX and early YOLOv5 begin with four slices of the image, every second pixel of every second line, which are joined by
# channel and go into a convolution. That is one convolution of the image itself with a window twice as large and twice the
# stride. Rockchip's toolkit would split the Concat into a convolution for each part and round the sums between them.


def fold_focus(graph: Graph) -> list[str]:
    """Rewrite such stems in place; the results of their convolutions."""
    found = [node for node in graph.nodes if _fold(graph, node)]
    if found:
        graph.remove_unused()
    return [node.outputs[0] for node in found]


def _fold(graph: Graph, conv: Node) -> bool:
    weights = graph.constant(conv.inputs[1]) if conv.op == "Conv" and not conv.domain else None
    if weights is None or weights.ndim != 4 or int(conv.attribute("group", 1)) != 1:
        return False
    if list(conv.attribute("dilations", [1, 1])) != [1, 1] or conv.attribute("auto_pad", "NOTSET") != "NOTSET":
        return False
    concat = graph.producers().get(conv.inputs[0])
    if concat is None or concat.op != "Concat" or int(concat.attribute("axis", 1)) % 4 != 1:
        return False
    parts = [_part(graph, name) for name in concat.inputs]
    sources = {source for source, _, _ in parts}
    strides = {stride for _, _, stride in parts}
    source, (rows, columns) = next(iter(sources)), next(iter(strides))
    if len(sources) != 1 or len(strides) != 1 or rows < 2 or columns < 2:
        return False
    count, channels, height, width = graph.shapes[source]
    expected = (count, channels, height // rows, width // columns)
    # slices of this size begin within the first stride and end with the image
    if height % rows or width % columns or any(graph.shapes[name] != expected for name in concat.inputs):
        return False
    window = weights.shape[2:]
    wide = np.zeros((len(weights), channels, rows * window[0], columns * window[1]), weights.dtype)
    for number, (_, (top, left), _) in enumerate(parts):
        wide[:, :, top::rows, left::columns] += weights[:, number * channels : (number + 1) * channels]
    name = graph.add_constant(f"{conv.outputs[0]}.stem", wide)
    steps = (rows, columns)
    conv.inputs = [source, name, *conv.inputs[2:]]
    conv.attributes = {
        **conv.attributes,
        "kernel_shape": list(wide.shape[2:]),
        "strides": [step * stride for step, stride in zip(steps, conv.attribute("strides", [1, 1]), strict=True)],
        "pads": [step * pad for step, pad in zip(steps * 2, conv.attribute("pads", [0] * 4), strict=True)],
    }
    return True


def _part(graph: Graph, name: str) -> tuple[str, tuple[int, int], tuple[int, int]]:
    """What a tensor is a slice of, from which pixel on and with which stride: a row of slices is one."""
    makers = graph.producers()
    offset, stride = [0, 0, 0, 0], [1, 1, 1, 1]
    while graph.rank(name) == 4 and (maker := makers.get(name)) is not None and maker.op == "Slice" and not maker.domain:
        ((first, steps),) = slice_bounds(graph, maker)
        offset = [start + step * own for start, step, own in zip(first, steps, offset, strict=True)]
        stride = [step * own for step, own in zip(steps, stride, strict=True)]
        name = maker.inputs[0]
    # a slice of channels or of the batch, or one backwards, is none of a stem
    spatial = offset[:2] == [0, 0] and stride[:2] == [1, 1] and min(stride) > 0
    return (name, (offset[2], offset[3]), (stride[2], stride[3])) if spatial else ("", (0, 0), (1, 1))


# HardSwish that an exporter wrote as ``x * clip(x + 3, 0, 6) / 6``, written so that it stays one function.
#
# Where three or more parts of a Concat end with the same division, Rockchip's toolkit takes it behind the Concat, and what is
# left of the function is computed operator by operator, in quantized values (:mod:`anynpu.compiler.toolkit.graph_rules`). With a product as
# its last operator it stays whole: seen in graphs that the toolkit wrote.


def write_hard_swish_as_gate(graph: Graph) -> int:
    """Rewrite such functions in place as ``x * HardSigmoid(x)``; how many there were."""
    count = 0
    for node in list(graph.nodes):
        source = _source(graph, node)
        if source:
            gate = graph.free_name(f"{node.outputs[0]}/gate")
            graph.shapes[gate], graph.dtypes[gate] = graph.shapes[source], graph.dtypes[source]
            place = next(index for index, entry in enumerate(graph.nodes) if entry is node)
            product = Node("Mul", [source, gate], list(node.outputs), {}, node.name)
            graph.nodes[place : place + 1] = [
                Node("HardSigmoid", [source], [gate], {"alpha": 1.0 / 6.0, "beta": 0.5}, gate),
                product,
            ]
            count += 1
    if count:
        graph.remove_unused()
    return count


def _source(graph: Graph, div: Node) -> str:
    """The argument of the HardSwish that a node ends; empty where it ends none."""
    makers = graph.producers()
    product = makers.get(div.inputs[0]) if div.op == "Div" and not div.domain and graph.number(div.inputs[1]) == 6 else None
    if product is None or product.op != "Mul" or product.domain or len(graph.consumers()[product.outputs[0]]) > 1:
        return ""
    for source, other in (product.inputs, product.inputs[::-1]):
        clip = makers.get(other)
        if clip is None or clip.domain or clip.op != "Clip" or clip_bounds(graph, clip) != (0.0, 6.0):
            continue
        add = makers.get(clip.inputs[0])
        if add is None or add.op != "Add" or add.domain or source not in add.inputs:
            continue
        number = add.inputs[1 - add.inputs.index(source)]
        if graph.number(number) == 3 and graph.shapes[source] == graph.shapes[div.outputs[0]]:
            return source
    return ""


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
    :ivar note: how the split model was evaluated; empty where it was not
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
    """Rewrite an ONNX model so that any int8 quantizer keeps more of it.

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

    Evaluated is what the vendor's toolkit with plain min/max would make of it, on samples held out and on perturbed copies of them.
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
