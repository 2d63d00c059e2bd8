"""What the vendor's toolkit is given: a model with everything folded, and the range of every tensor, both chosen under its own rules.

Under these rules a tensor has one range, weights are rounded to the nearest code of their channel, and an activation works on the unrounded
result of its convolution. The candidates are whole ranges, as the toolkit itself takes them, and those of the quantization
config, without and with fitted weights. What is chosen is the best on the samples held out and on perturbed copies of them, the
worst case first; whole ranges stay where nothing is better.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._util.optional import onnx
from .._util.types import Array
from ..errors import CompileError
from ..program import Preprocess
from .compile_options import CompileOptions, shape_sets
from .graph import Graph, to_onnx
from .importers.onnx_model import load_onnx
from .lower.fuse import toolkit_rules
from .lower.steps import Step
from .pipeline import prepare
from .quantize.calibrate import CalibratedRanges
from .quantize.config import Recipe
from .quantize.lint import mixed_outputs
from .quantize.model_samples import Study, open_study
from .quantize.search import Score, Trial, Workbench
from .quantize.simulate import simulated_weights
from .quantize.tensor_scales import Ranges, exact_tensors
from .toolkit.graph_rules import with_selected_results
from .toolkit.quantizer import (
    VENDOR,
    WholeRanges,
    affine_of,
    given_quantization,
    toolkit_ends,
    toolkit_quantization,
    toolkit_weights,
)

# What the vendor's toolkit is given: a model with everything folded, and the range of every tensor, both chosen under its own
# rules.
#
# Under these rules a tensor has one range, weights are rounded to the nearest code of their channel, and an activation works on
# the unrounded result of its convolution. The candidates are whole ranges, as the toolkit itself takes them, and those of the
# quantization config, without and with fitted weights. What is chosen is the best on the samples held out and on perturbed copies of them,
# the worst case first; whole ranges stay where nothing is better.


_PLAIN = Recipe(algorithm="minmax", groups=1, heads=True, clip=False, refit=False)
_TRIED = (
    Recipe(groups=1, clip=False, refit=False),
    Recipe(percentile=99.999, groups=1, clip=False, refit=False),
)


@dataclass(frozen=True, eq=False, repr=False)
class Handover:
    """A model and its quantization, for another toolkit.

    :ivar model: an onnx.ModelProto with fixed shapes
    :ivar ranges: smallest and largest value of each tensor by name
    :ivar samples: the calibration data before normalization, by input, in the model's layout
    :ivar preprocess: what happens to an input before the model, by name
    :ivar notes: what was tried, what was chosen and why
    :ivar folded: the model without fitted weights
    :ivar score: how it does on the samples that evaluate; None where that is not known
    """

    model: Any
    ranges: Mapping[str, tuple[float, float]]
    samples: list[Mapping[str, Array]]
    preprocess: Mapping[str, Preprocess]
    notes: tuple[str, ...]
    folded: Any = None
    score: Score | None = None

    def __repr__(self) -> str:
        return f"Handover({len(self.ranges)} ranges)"


def handover(model: Any, target: str, *, refit: bool = True, **options: Any) -> Handover:
    """Choose what the toolkit is given for *model*; options as in :func:`anynpu.compile`, with one set of shapes.

    :param refit: also try fitted weights
    """
    study = open_study(model, target, rules=toolkit_rules, **options)
    bench, steps = study.bench, study.steps
    graph = bench.graph
    plain = _trial(bench, steps, _PLAIN)
    raw = _raw_samples(study)
    if not bench.can_judge:
        why = ("ranges: whole, since a custom operator stands in the network",)
        return Handover(_proto(graph), toolkit_ends(graph, steps, plain.quantization), raw, bench.preprocess, why)
    best, score = plain, bench.score(plain)
    notes = [f"plain min/max: {bench.metric_name} {score} on {bench.judges}"]
    for recipe in _TRIED:
        trial = _trial(bench, steps, recipe)
        its = bench.score(trial)
        notes.append(f"tried: {recipe.algorithm} {recipe.percentile:g}, {bench.metric_name} {its}")
        if better(its, score):
            best, score = trial, its
    if refit:
        fitted = bench.fitted(best)
        notes += fitted.notes[len(best.notes) :]
        if fitted.refined:
            changed = with_weights(graph, fitted)
            its = bench.with_graph(changed).score(replace(best, steps=_rebound(steps, graph, changed)))
            kept = better(its, score)
            notes.append(f"refit: {'' if kept else 'not kept, '}{bench.metric_name} {score} -> {its}")
            graph, score = (changed, its) if kept else (graph, score)
    notes.append(
        f"chosen: {best.recipe.algorithm}" + (f" {best.recipe.percentile:g}" if best.recipe.algorithm == "percentile" else "")
    )
    for joint in mixed_outputs(bench.graph, steps, bench.calibration.observer, best.quantization):
        names = " ".join(f"--hybrid {name}" for name in sorted(joint.tensors))
        remedy = f"{names} keeps it in float16" if bench.chip.float16 else "make an output of each part"
        notes.append(
            f"output '{joint.output}' joins values of different scale: '{joint.part}' has {joint.low:.3g} to {joint.high:.3g}, "
            f"one int8 step is {joint.step:.3g}; {remedy}"
        )
    return Handover(
        _proto(graph),
        toolkit_ends(bench.graph, steps, best.quantization),
        raw,
        bench.preprocess,
        tuple(notes),
        _proto(bench.graph),
        score,
    )


def plain_score(model: Any, target: str, **options: Any) -> Score | None:
    """How a model does in the toolkit's graph, under its rules, with plain min/max; None where it cannot be run here."""
    study = open_study(model, target, rules=toolkit_rules, quantizer=VENDOR, **options)
    return study.bench.score(_trial(study.bench, study.steps, _PLAIN)) if study.bench.can_judge else None


def toolkit_score(given: Handover, target: str, **options: Any) -> Score | None:
    """How a handover does in the toolkit's own graph, with its splits and stages; None where it cannot be run here.

    Tensors that only the toolkit has get their range from the samples, as they do there.
    """
    if given.folded is None:
        return None
    judge, study = (
        open_study(model, target, rules=toolkit_rules, quantizer=VENDOR, **options) for model in (given.folded, given.model)
    )
    graph, steps = study.bench.graph, study.steps
    known = {name: affine_of(*ends) for name, ends in given.ranges.items()}
    chosen = given_quantization(WholeRanges(known), graph)
    ranges = CalibratedRanges(study.bench.calibration.observer, _PLAIN.algorithm, _PLAIN.percentile)
    quantization = toolkit_quantization(graph, steps, ranges, study.bench.preprocess, chosen)
    return judge.bench.with_graph(graph).score(Trial(_PLAIN, steps, quantization))


def float_handover(model: Any, options: CompileOptions) -> Handover:
    """What the toolkit is given for a float16 model: no samples and no ranges."""
    prepared = prepare(load_onnx(model), shape_sets(options.shapes)[0], options, {})
    return Handover(_proto(prepared.graph), {}, [], prepared.normalisation.preprocess, ())


def better(candidate: Score, other: Score) -> bool:
    """Whether a candidate is better, and no sample clearly worse."""
    return candidate.beats(other) and not candidate.harms(other)


def _proto(graph: Graph) -> Any:
    graph = with_selected_results(graph)
    return to_onnx(graph, graph.nodes, graph.inputs, graph.outputs, name="anynpu")


def _trial(bench: Workbench, steps: list[Step], recipe: Recipe) -> Trial:
    seen = CalibratedRanges(bench.calibration.observer, recipe.algorithm, recipe.percentile)
    heads = exact_tensors(bench.graph, steps)

    def ranges(name: str, *, exact: bool) -> tuple[float, float]:
        return seen(name, exact=name in heads or name in bench.graph.inputs)

    chosen: Ranges = ranges
    return Trial(recipe, steps, toolkit_quantization(bench.graph, steps, chosen, bench.preprocess, {}))


def with_weights(graph: Graph, trial: Trial) -> Graph:
    """The graph with the fitted weights of a trial in place of its own, in float."""
    made = simulated_weights(graph, trial.steps, trial.quantization, trial.refined)
    constants = dict(graph.constants)
    nodes = {id(node): node for node in graph.nodes}
    replaced: dict[int, Any] = {}
    for step in trial.steps:
        if step.outputs[0] not in trial.refined:
            continue
        weights, bias = made[step.outputs[0]]
        node = step.node
        inputs = [node.inputs[0], f"{node.outputs[0]}.fitted", *node.inputs[2:]]
        constants[inputs[1]] = np.ascontiguousarray(weights, np.float32)
        if bias is not None:
            inputs = [*inputs[:2], f"{node.outputs[0]}.fitted_bias"]
            constants[inputs[2]] = np.ascontiguousarray(bias, np.float32)
        replaced[id(node)] = replace(nodes[id(node)], inputs=inputs)
    changed = replace(graph, nodes=[replaced.get(id(node), node) for node in graph.nodes], constants=constants)
    for name, value in constants.items():
        changed.shapes.setdefault(name, value.shape)
        changed.dtypes.setdefault(name, value.dtype)
    return changed


def _rebound(steps: list[Step], graph: Graph, changed: Graph) -> list[Step]:
    """The same steps on the nodes of another graph with the same structure."""
    other = {id(old): new for old, new in zip(graph.nodes, changed.nodes, strict=True)}
    return [
        replace(step, node=other.get(id(step.node), step.node), nodes=[other.get(id(node), node) for node in step.nodes])
        for step in steps
    ]


def _raw_samples(study: Study) -> list[Mapping[str, Array]]:
    """The samples that a program would feed: normalization undone."""
    result: list[Mapping[str, Array]] = []
    for sample in study.data:
        raw = dict(sample)
        for name, preprocess in study.bench.preprocess.items():
            shape = (1, -1, *(1,) * (sample[name].ndim - 2))
            mean, std = (np.asarray(values, np.float32).reshape(shape) for values in (preprocess.mean, preprocess.std))
            raw[name] = (sample[name] * std + mean).astype(np.float32)
        result.append(raw)
    return result


# The quantization config's result in ONNX's own form: QuantizeLinear and DequantizeLinear after every tensor that has quantized
# values, weights as quantized values.
#
# Such a model runs in onnxruntime, can be given to other toolkits, and compiles here without calibration data, with its scales
# kept (:mod:`anynpu.compiler.importers.quantized_models` is the way back).


_OPSET = 13
"""The first in which the scales of a constant can differ per channel."""

_INT8 = (-128, 127)


def to_qdq(handed: Handover) -> Any:
    """The model of a handover with its ranges and weights as QuantizeLinear and DequantizeLinear."""
    return _Writer(_modern(handed.model), handed).run()


def scales_of(handed: Handover) -> dict[str, tuple[float, int]]:
    """Scale and zero point of every tensor that has quantized values, as ``compile(ranges=...)`` takes them."""
    return {name: _scale(low, high) for name, (low, high) in handed.ranges.items()}


def _scale(low: float, high: float) -> tuple[float, int]:
    scale = (high - low) / (_INT8[1] - _INT8[0])
    return scale, int(np.clip(np.rint(_INT8[0] - low / scale), *_INT8))


def _modern(proto: Any) -> Any:
    package = onnx()
    versions = {entry.domain: entry.version for entry in proto.opset_import}
    if versions.get("", 0) >= _OPSET:
        copy = type(proto)()
        copy.CopyFrom(proto)
        return copy
    from onnx import version_converter

    try:
        return version_converter.convert_version(proto, _OPSET)
    except (RuntimeError, ValueError, IndexError, package.checker.ValidationError) as error:
        raise CompileError(
            f"the model has opset {versions.get('', 0)}, and its operators cannot be converted to {_OPSET}: {error}",
            hint="export it from its framework with opset 13 or later",
        ) from error


def _weight_axis(node: Any, weights: Array) -> int | None:
    """The axis of the output channels in a node's weights; None if they have none of their own."""
    values = {entry.name: entry.i for entry in node.attribute}
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1 if values.get("group", 1) == 1 else None
    if node.op_type == "Gemm" and weights.ndim == 2:
        return 0 if values.get("transB", 0) else 1
    return 1 if node.op_type == "MatMul" and weights.ndim == 2 else None


class _Writer:
    def __init__(self, proto: Any, handed: Handover) -> None:
        self._proto, self._handed = proto, handed
        self._helper, self._arrays = onnx().helper, onnx().numpy_helper
        self._constants: dict[str, Array] = {entry.name: self._arrays.to_array(entry) for entry in proto.graph.initializer}
        self._added: dict[str, Array] = {}
        self._read_as: dict[str, str] = {}

    def run(self) -> Any:
        graph = self._proto.graph
        outputs = {entry.name for entry in graph.output}
        nodes: list[Any] = []
        for entry in graph.input:
            nodes += self._pair(entry.name, entry.name, f"{entry.name}.rounded")
        for node in graph.node:
            nodes += self._weights(node)
            for index, name in enumerate(node.input):
                node.input[index] = self._read_as.get(name, name)
            nodes.append(node)
            for index, name in enumerate(node.output):
                if name in self._handed.ranges and name in outputs:
                    node.output[index] = f"{name}.float"
                    nodes += self._pair(name, node.output[index], name)
                else:
                    nodes += self._pair(name, name, f"{name}.rounded")
        del graph.node[:]
        graph.node.extend(nodes)
        used = {name for node in nodes for name in node.input} | outputs
        kept = [entry for entry in graph.initializer if entry.name in used]
        del graph.initializer[:]
        graph.initializer.extend(kept)
        graph.initializer.extend(self._arrays.from_array(value, name) for name, value in self._added.items())
        return self._proto

    def _pair(self, name: str, source: str, result: str) -> list[Any]:
        """The two nodes that round *source* to the quantized values of the tensor *name*; none if it has no quantized values."""
        if name not in self._handed.ranges:
            return []
        scale, zero = _scale(*self._handed.ranges[name])
        self._added[f"{name}.scale"], self._added[f"{name}.zero"] = np.array(scale, np.float32), np.array(zero, np.int8)
        if result != name:
            self._read_as[name] = result
        return self._nodes(name, source, result, axis=None)

    def _nodes(self, name: str, source: str, result: str, *, axis: int | None, codes: str = "") -> list[Any]:
        facts = {} if axis is None else {"axis": axis}
        ends = [f"{name}.scale", f"{name}.zero"]
        made = []
        if not codes:
            codes = f"{name}.codes"
            made.append(self._helper.make_node("QuantizeLinear", [source, *ends], [codes], **facts))
        made.append(self._helper.make_node("DequantizeLinear", [codes, *ends], [result], **facts))
        return made

    def _weights(self, node: Any) -> list[Any]:
        """Weights of an integer operator as quantized values, and the node that reads them; none if they stay as they are."""
        name = node.input[1] if len(node.input) > 1 else ""
        values = self._constants.get(name)
        if values is None or values.dtype != np.float32 or name in self._read_as or node.input[0] not in self._read_as:
            return []
        axis = _weight_axis(node, values)
        if axis is None:
            return []
        codes, scales, zeros = toolkit_weights(np.moveaxis(values, axis, 0))
        self._added[f"{name}.codes"] = np.ascontiguousarray(np.moveaxis(codes, 0, axis), np.int8)
        self._added[f"{name}.scale"], self._added[f"{name}.zero"] = scales.astype(np.float32), zeros.astype(np.int8)
        self._read_as[name] = f"{name}.rounded"
        return self._nodes(name, "", self._read_as[name], axis=axis, codes=f"{name}.codes")
