"""compile and check: the compiler from end to end."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import chips
from .._util.options import keyword_form
from .._util.progress import Progress, tell
from .._util.types import Array
from ..errors import CalibrationError, CompileError, CompileOptionError, TensorNameError
from ..modelfile import CompiledModel
from ..modelfile.post_processing import checked_tail
from ..modelfile.validate import metadata_complaint
from ..program import Model, OnnxMetadata, Program
from ..program.report import Report, report
from ..tensor import DType
from ..vendors import Format, registry
from .compile_options import CompileOptions, Normalisation, preprocessing, shape_sets
from .custom_operators import CustomOperators, CustomTable, custom_table
from .graph import Graph
from .importers import KnownScales, known_scales
from .importers.onnx_graph import Shapes, give_constants, import_onnx
from .importers.onnx_model import detach, load_onnx
from .importers.quantized_models import Qdq, QdqWeights, taken_apart
from .importers.split_post_processing import KEEP, ModelWithTail, split_tail
from .lower.emit import STEEPEST
from .lower.formats import CHIP, SIMULATOR, format_of, with_arithmetic, without_zero_points
from .lower.forms import before_jumps, forms_of
from .lower.fuse import OWN_RULES, FusionRules, assign_curves, build_steps, leave_unrounded, toolkit_rules
from .lower.lower import lower
from .lower.steps import Step
from .passes.channel_order import reverse_channels
from .passes.integer_forms import integer_graph
from .passes.simplify import simplify
from .quantize.calibrate import CalibratedRanges, Calibration, UnknownRanges, calibrate
from .quantize.channel_groups import grouping_candidates
from .quantize.config import Recipe, recipe_of
from .quantize.dataset import Dataset, InputInfo, Sample, open_dataset
from .quantize.detect_preprocessing import MAX_PICTURES, check_preprocessing
from .quantize.given_scales import KeptRanges, as_qdq, kept_quantization, kept_weights, only_known, spread
from .quantize.lint import lint_steps, mixed_outputs, score_floors, summary
from .quantize.representable import made_up, near_the_end, too_coarse
from .quantize.search import Trial, Workbench, accuracy_text, remember, run_recipe, with_floats
from .quantize.tensor_scales import Ranges, assign_quantization, may_be_infinite, quantized_tensors
from .toolkit.graph_rules import is_float_result, simplify_as_toolkit
from .toolkit.quantizer import (
    VENDOR,
    WholeRanges,
    given_quantization,
    quotients,
    toolkit_quantization,
    with_changes_of_scale,
    with_copied_scales,
)
from .toolkit.simulation import lower_simulation
from .warnings import (
    float_ends,
    warn_of_later_sizes,
    warn_of_loss,
    warn_of_mixed_outputs,
    warn_of_unread_inputs,
    warn_of_wide_weights,
)

_log = logging.getLogger("anynpu.compiler")


@keyword_form(CompileOptions)
def compile(
    model: Any,
    target: str = "rk3588",
    options: CompileOptions | None = None,
    *,
    progress: Progress | None = None,
    example_inputs: Any = None,
    **changes: Any,
) -> CompiledModel:
    """Compile a model for one chip. Options come as an object, as keywords, or as both: then keywords change the object.

    :param model: an ONNX or TFLite model as path or bytes, an onnx.ModelProto (opset 7 or later), or a module of PyTorch
    :param target: a chip of the catalogue
    :param options: what is asked for
    :param progress: called with (stage, done, total)
    :param example_inputs: what a module of PyTorch is called with: a tensor, a tuple of them, or a dict by name

    >>> model = anynpu.compile("det.onnx", target="rk3588", dataset="pages/", std=(255, 255, 255))    # doctest: +SKIP
    >>> model.save("det.rknn")                                                                       # doctest: +SKIP
    """
    options = CompileOptions.merged(options, changes)
    if progress is not None and not callable(progress):
        raise CompileOptionError(
            f"progress takes a function, got {type(progress).__name__}", hint="it is called with (stage, done, total)"
        )
    chip = chips.get(target)
    kind = _format(options, chip)
    tell(progress, "importing", 0, 1)
    first = shape_sets(options.shapes)[0]
    whole = load_onnx(model, options.custom_ops, shapes=first, example_inputs=example_inputs, trust=options.trust)
    give_constants(whole, options.constants or {})
    own = _own_scales(whole, options, kind)
    if own.ranges:
        warn_of_wide_weights(own.weights)
        whole, options = own.model, replace(options, ranges=WholeRanges({**own.ranges, **(options.ranges or {})}))
    kept = KnownScales() if own.ranges else _kept_scales(whole, options, kind, own.refusal)
    proto, tail, note = split_tail(whole)
    if tail and options.tail == KEEP:
        tail = checked_tail(tail)
    if note:
        _log.warning("%s", note if options.tail == KEEP else f"{note.partition(', and ')[0]}; the rest is cut off")
    custom = custom_table(options.custom_ops)
    proto, values = detach(proto)
    whole, own = None, replace(own, model=None)  # the weights are in memory once from here on
    prepared = [prepare(proto, entry, options, custom, values, own.rounded) for entry in shape_sets(options.shapes)]
    values = {}
    warn_of_unread_inputs(proto, prepared[0].graph)
    tell(progress, "importing", 1, 1)
    prepared = [replace(entry, graph=graph_for(entry.graph, chip, kind, options)) for entry in prepared]
    rules = toolkit_rules(chip) if options.quantizer == VENDOR else OWN_RULES
    rules = replace(rules, codes=frozenset(own.ranges), curves="curves" not in options.without)
    plans = [plan_steps(entry.graph, kind, options.hybrid, rules) for entry in prepared]
    if options.quantizer == VENDOR:
        prepared = [
            replace(entry, graph=replace(entry.graph, coded=entry.graph.coded | quotients(entry.graph, steps)))
            for entry, steps in zip(prepared, plans, strict=True)
        ]
    if own.ranges:
        for index, entry in enumerate(prepared):  # what has no scale of its own is float: there are no data to find one with
            given = spread(entry.graph, plans[index], given_quantization(options.ranges, entry.graph))
            graph, plans[index] = only_known(entry.graph, plans[index], given)
            prepared[index] = replace(entry, graph=graph)
    algorithm = "minmax" if options.quantizer == VENDOR else options.algorithm
    recipe = recipe_of(options.accuracy, algorithm, options.percentile, kind.groups, options.without)
    if not recipe.asymmetric:
        kind = without_zero_points(kind)
    job = _Compilation(chip, kind, options, recipe, custom, prepared, plans, progress, proto, kept, own.weights)
    job.calibrate()
    programs = job.lower()
    metadata, left_out = onnx_metadata(proto)
    warn_of_later_sizes(programs)
    if not kind.floats:
        job.remarks |= float_ends(programs[0], kind, job.remarks.get("mixed_outputs", ""))
    if prepared[0].normalisation.trained:
        job.remarks["channel_order"] = json.dumps(dict(prepared[0].normalisation.trained))
    made = CompiledModel(
        chip=chip.name,
        dtype=kind.name,
        programs=programs,
        name=options.name or _name_of(model, proto),
        custom_string=options.custom_string,
        preprocess=prepared[0].normalisation.preprocess,
        provenance=_provenance(model, proto, prepared[0].graph, {**job.remarks, "metadata": left_out, "tail": note}),
        arithmetic=kind.arithmetic,
        metadata=metadata,
    )
    return ModelWithTail(**vars(made), tail=tail) if tail and options.tail == KEEP else made


def _format(options: CompileOptions, chip: chips.Chip) -> Format:
    """How the model holds its numbers, if the chip can have it and there is what it needs."""
    kind = format_of(options.dtype, chip, per_channel=options.per_channel, channel_groups=options.channel_groups)
    kind = with_arithmetic(kind, chip, options.arithmetic)
    if options.preprocess is not None and not registry.of_chip(chip).picture_node:
        raise CompileError(
            f"models of {chip.name} have no pre-process node",
            hint="leave preprocess out: with mean and std its calls take the bytes of an image and normalize them",
        )
    return kind


def _own_scales(proto: Any, options: CompileOptions, kind: Format) -> Qdq:
    """A model with QuantizeLinear nodes, taken apart, if its scales are to be kept: with calibration data all scales are found again.

    So is one that is annotated with scales, where all is to be computed as it states; otherwise layers with such scales are fused.
    """
    usable = kind.codes is DType.INT8 and not kind.fixed_point and not kind.floats and options.quantizer != VENDOR
    if not usable or options.dataset is not None:
        return Qdq(proto)
    found = taken_apart(proto)
    if not found.weights and options.arithmetic == SIMULATOR:
        found = as_qdq(proto)
    return found if found.weights else Qdq(proto, refusal=found.refusal)


def _kept_scales(proto: Any, options: CompileOptions, kind: Format, refusal: CompileError | None) -> KnownScales:
    """The scales that the model brings along, if they are to be kept: without calibration data nothing else is left.

    :param refusal: why those of its QuantizeLinear nodes cannot be kept
    """
    if kind.floats or options.dataset is not None:
        return KnownScales()
    usable = kind.codes is DType.INT8 and not kind.fixed_point and options.quantizer != VENDOR
    kept = known_scales(proto) if usable else KnownScales()
    if not kept.ranges:
        if refusal is not None:
            raise refusal
        raise CompileError(
            f"a {kind.name} model needs calibration data",
            hint="pass typical inputs, such as a folder of images (dataset=..., --dataset FOLDER), or use dtype fp16, which needs none",
        )
    return kept


@dataclass
class _Compilation:
    """One compilation: the graphs of all shape sets from calibration to programs.

    :ivar plans: the steps of each graph
    :ivar kept: scales that the model brings along, where there is no calibration data
    :ivar weights: quantized values that a model with QuantizeLinear nodes brings along
    :ivar trials: what the quantization config chose for each graph; empty where there was nothing to choose
    :ivar remarks: what the model's provenance states about calibration, accuracy and warnings
    """

    chip: chips.Chip
    kind: Format
    options: CompileOptions
    recipe: Recipe
    custom: CustomTable
    prepared: list[Prepared]
    plans: list[list[Step]]
    progress: Progress | None
    proto: Any
    kept: KnownScales = field(default_factory=KnownScales)
    weights: Mapping[str, QdqWeights] = field(default_factory=dict)
    ranges: Ranges = field(default_factory=UnknownRanges)
    trials: list[Trial] = field(default_factory=list)
    remarks: dict[str, str] = field(default_factory=dict)
    near_the_end: AbstractSet[str] = frozenset()

    @property
    def toolkit(self) -> bool:
        """Whether scales are chosen as the vendor's toolkit does."""
        return self.options.quantizer == VENDOR

    def calibrate(self) -> None:
        """Find the ranges of integer layers, and with int8 the quantization config that keeps the network's answers."""
        if self.kind.floats and self.kind.half is DType.FLOAT16:
            self._look_for_overflow()
        if self.kind.floats or all(step.is_float for step in self.plans[0]):
            return
        if self.kept.ranges:
            self.ranges, self.remarks["calibration"] = KeptRanges(), "none, the model's own scales"
            return
        if self.options.dataset is None:
            self.remarks["calibration"] = "none, the model's own scales"
            return
        options, first = self.options, self.prepared[0]
        # layers may be fused differently for other shapes, and then need ranges of other tensors
        graphs = [(entry.graph, steps) for entry, steps in zip(self.prepared, self.plans, strict=True)]
        eight = self.kind.codes is DType.INT8
        searched = eight and not self.toolkit and not options.ranges
        again = searched and (self.recipe.refit or options.accuracy == "best")
        seen, data = calibrated(first, graphs, options, self.custom, self.progress, groups=eight, again=again, check=self._check)
        real = seen.infinite if self.toolkit else seen.infinite.union(*(too_coarse(steps, seen) for steps in self.plans))
        if real:
            self._keep_real(real)
        self.ranges = CalibratedRanges(seen.observer, self.recipe.algorithm, options.percentile)
        count = "" if data.length is None else f"{data.length} samples, "  # no paths: a model file is given away
        self.remarks["calibration"] = f"{count}{self.recipe.algorithm}" + (", as the vendor's toolkit" if self.toolkit else "")
        if searched:
            self._search(seen, data)

    def _keep_real(self, tensors: frozenset[str]) -> None:
        """These tensors, such as masks, are never quantized values, also where they come in or go out."""
        self.plans = [with_floats(steps, tensors) for steps in self.plans]
        self.prepared = [replace(entry, graph=replace(entry.graph, coded=entry.graph.coded - tensors)) for entry in self.prepared]

    def _check(self, data: Dataset) -> None:
        """Compare the preprocessing with what the network reacts to, on the first images, before anything is done with them."""
        first = self.prepared[0]
        complaint = check_preprocessing(first.graph, first.normalisation, self.proto, data.first_images(MAX_PICTURES))
        if complaint:
            self.remarks["preprocessing"] = complaint

    def _look_for_overflow(self) -> None:
        first = self.prepared[0]
        samples: Iterable[Sample] = made_up(first.graph, first.normalisation.preprocess)
        given = False
        try:
            if self.options.dataset is not None:
                data = _dataset(first, self.options)
                self._check(data)
                samples, given = data, True
        except CalibrationError as error:  # a model of floats needs none
            _log.debug("the data are not used: %s", error)
        self.near_the_end = near_the_end(first.graph, self.plans[0], samples, self.custom, given=given)

    def _search(self, seen: Calibration, data: Dataset) -> None:
        options, progress, first = self.options, self.progress, self.prepared[0]
        benches = [
            Workbench(
                entry.graph,
                self.chip,
                seen,
                data,
                self.kind,
                entry.normalisation.preprocess,
                metric=options.metric,
                progress=progress,
            )
            for entry in self.prepared
        ]
        floors = score_floors(first.graph, self.plans[0], seen.observer) if self.recipe.clip else {}
        for bench in benches:
            bench.floors = floors
        if "mixed" not in options.without:
            self._part(benches, seen, floors)
        best = options.accuracy == "best"
        self.trials = run_recipe(benches, self.plans, self.recipe, best=best, time_budget=options.time_budget, progress=progress)
        self.plans = [trial.steps for trial in self.trials]
        block = self.chip.channel_block.get("int8", 1)
        left = lint_steps(first.graph, self.plans[0], seen, first.normalisation.preprocess, self.trials[0].quantization, block)
        self.remarks |= {"accuracy": accuracy_text(self.trials), "warnings": summary(left)}
        score = self.trials[0].score
        # the name of the metric takes a pass over the samples, which `fast` leaves out
        warn_of_loss(score, left, "" if score is None else benches[0].metric_name, first.graph.outputs)

    def _part(self, benches: Sequence[Workbench], seen: Calibration, floors: Mapping[str, float]) -> None:
        """Keep outputs that join values of different scale in float, so that each part has a scale of its own."""
        graph = self.prepared[0].graph
        mixed = [joint for joint in mixed_outputs(graph, self.plans[0], seen.observer) if joint.output not in floors]
        if not mixed:
            return
        floats, before, after = benches[0].parted(self.recipe, self.plans[0], mixed)
        self.plans = [with_floats(steps, floats) for steps in self.plans]
        for entry in self.prepared:
            entry.graph.coded -= {joint.output for joint in mixed}
        self.remarks["mixed_outputs"] = warn_of_mixed_outputs(mixed, self.chip, before, after)

    def lower(self) -> tuple[Program, ...]:
        """The program of each shape set."""
        programs = []
        for index in range(len(self.prepared)):
            tell(self.progress, "lowering", index, len(self.prepared))
            programs.append(self._lower(index))
        tell(self.progress, "lowering", len(self.prepared), len(self.prepared))
        return tuple(programs)

    def _lower(self, index: int) -> Program:
        entry, steps, kind = self.prepared[index], self.plans[index], self.kind
        if self.trials:
            trial = self.trials[index]
            return lower(entry.graph, steps, self.chip, trial.quantization, kind, refined=trial.refined)
        given = {
            **kept_quantization(self.kept.ranges, entry.graph, steps),
            **given_quantization(self.options.ranges, entry.graph),
        }
        if self.weights:
            spread(entry.graph, steps, given)
        preprocess = entry.normalisation.preprocess
        on_cpu: set[str] = set()
        if self.toolkit:
            on_cpu = quotients(entry.graph, steps)
            if kind.arithmetic != CHIP:  # the toolkit's simulator copies quantized values here, whatever its configuration states
                given = with_copied_scales(given, entry.graph, steps)
            quantization = toolkit_quantization(entry.graph, steps, self.ranges, preprocess, given)
            simulated = kind.unrounded and sums_in_float32(steps)
            steps = with_changes_of_scale(entry.graph, steps, quantization, moves=not simulated)
            if simulated:
                return lower_simulation(entry.graph, steps, self.chip, quantization, on_cpu)
        else:
            heads, clip = self.recipe.heads, self.recipe.clip
            quantization = assign_quantization(
                entry.graph, steps, self.ranges, kind, preprocess, exact_heads=heads, clip=clip, given=given
            )
            steps = with_changes_of_scale(entry.graph, steps, quantization, products=False) if given else steps
        return lower(
            entry.graph,
            steps,
            self.chip,
            quantization,
            kind,
            refined=kept_weights(entry.graph, steps, self.weights, kind.weights),
            toolkit=self.toolkit,
            on_cpu=on_cpu,
            kept=self.kept.weights,
            near_the_end=self.near_the_end,
            own=self.weights,
        )


def sums_in_float32(steps: Iterable[Step]) -> bool:
    """Whether a model by the rule of the toolkit's simulator is computed as that one does it: custom operators are not part of it."""
    return not any(step.node.custom for step in steps)


def _dataset(first: Prepared, options: CompileOptions, infinite: AbstractSet[str] = frozenset()) -> Dataset:
    """The calibration data as the inputs take them.

    :param infinite: inputs that may hold infinity
    """
    graph, preprocess = first.graph, first.normalisation.preprocess
    infos = [
        InputInfo(name, graph.shapes[name], graph.dtypes[name], preprocess.get(name), name in infinite) for name in graph.inputs
    ]
    return open_dataset(options.dataset, infos, limit=options.calibration_limit)


def calibrated(
    first: Prepared,
    graphs: Sequence[tuple[Graph, list[Step]]],
    options: CompileOptions,
    custom: CustomTable,
    progress: Progress | None,
    *,
    groups: bool = True,
    again: bool = False,
    check: Callable[[Dataset], None] | None = None,
) -> tuple[Calibration, Dataset]:
    """Run the calibration data through the first graph, for the tensors that any of *graphs* has as integers.

    :param groups: whether tensors may have several scales
    :param again: whether the samples and the float network's answers will be needed again
    :param check: called with the samples before anything is done with them
    """
    graph = first.graph
    infinite = set.intersection(*(may_be_infinite(*pair) for pair in graphs))
    data = _dataset(first, options, infinite)
    if check is not None:
        check(data)
    known = {*graph.inputs, *graph.producers()}
    names = [name for pair in graphs for name in quantized_tensors(*pair) if name in known]
    candidates = [name for pair in graphs for name in grouping_candidates(*pair) if name in known and groups]
    watcher = remember(graph, graphs[0][1], data.length) if again else None
    return calibrate(graph, names, candidates, data, data.length, progress, custom, watcher, infinite), data


def check(
    model: Any,
    target: str = "rk3588",
    *,
    dtype: str = "w8a8",
    shapes: Shapes | None = None,
    batch: int | None = None,
    custom_ops: CustomOperators = (),
    example_inputs: Any = None,
    trust: bool = False,
) -> Report:
    """What compiling *model* for *target* would give, layer by layer, without calibration data.

    >>> anynpu.check("det.onnx", "rk3588").on_cpu    # doctest: +SKIP
    """
    subject = ModelCheck(model, shapes=shapes, batch=batch, custom_ops=custom_ops, example_inputs=example_inputs, trust=trust)
    return subject.report(target, dtype=dtype)


class ModelCheck:
    """A model that is checked for one chip after the other: what does not depend on the chip is done once.

    >>> reports = [ModelCheck("det.onnx").report(chip) for chip in ("rk3588", "rk3566")]    # doctest: +SKIP
    """

    def __init__(
        self,
        model: Any,
        *,
        shapes: Shapes | None = None,
        batch: int | None = None,
        custom_ops: CustomOperators = (),
        example_inputs: Any = None,
        trust: bool = False,
    ) -> None:
        whole = load_onnx(model, custom_ops, shapes=shape_sets(shapes)[0], example_inputs=example_inputs, trust=trust)
        proto, _, _ = split_tail(whole)
        options = CompileOptions(batch=batch)
        self._graph = prepare(proto, shape_sets(shapes)[0], options, custom_table(custom_ops)).graph
        self._name = _name_of(model, proto)
        self._provenance = _provenance(model, proto, self._graph, {})
        self._last: tuple[tuple[str, str], Program] | None = None

    def report(self, target: str, *, dtype: str = "w8a8") -> Report:
        """The report for one chip."""
        chip = chips.get(target)
        program, kind = self.program(target, dtype=dtype), format_of(dtype, chip)
        return report(Model(chip.name, kind.name, (program,), name=self._name, provenance=self._provenance))

    def program(self, target: str, *, dtype: str = "w8a8") -> Program:
        """The layers for one chip, as they would be placed; the last one asked for is kept."""
        if self._last is None or self._last[0] != (target, dtype):
            chip = chips.get(target)
            kind = format_of(dtype, chip)  # by whatever rule: places and sizes do not depend on it
            graph = graph_for(self._graph, chip, kind, CompileOptions())
            steps = plan_steps(graph, kind, ())
            quantization = assign_quantization(graph, steps, UnknownRanges(), kind)
            self._last = (target, dtype), lower(graph, steps, chip, quantization, kind)
        return self._last[1]


@dataclass(frozen=True)
class Prepared:
    graph: Graph
    normalisation: Normalisation


def prepare(
    proto: Any,
    shapes: Shapes,
    options: CompileOptions,
    custom: CustomTable,
    detached: Mapping[str, Array] | None = None,
    rounded: frozenset[str] = frozenset(),
) -> Prepared:
    """The simplified graph of a checked model.

    :param detached: values of constants that it has without values
    :param rounded: tensors that it rounds to quantized values
    """
    graph = import_onnx(_copy(proto), shapes, options.batch, custom, detached=detached)
    graph.rounded = rounded
    normalisation = preprocessing(graph.inputs, graph.shapes, options)
    if options.quantizer == VENDOR:
        simplify_as_toolkit(graph)
    else:
        simplify(graph)
    for name in normalisation.reversed_inputs:
        reverse_channels(graph, name)
    return Prepared(graph, normalisation)


def _copy(proto: Any) -> Any:
    copy = type(proto)()
    copy.CopyFrom(proto)
    return copy


def graph_for(graph: Graph, chip: chips.Chip, kind: Format, options: CompileOptions) -> Graph:
    """The graph as a model of this type has it: with integers, what can be computed in them is, and so are the model's ends."""
    if kind.floats:
        return graph
    graph = integer_graph(graph, STEEPEST if kind.arithmetic == CHIP else math.inf)
    if not registry.of_chip(chip).integer_ends or options.keep_float_outputs:
        return graph
    forms = forms_of(graph)
    if not forms:
        return graph  # nothing in it is computed in integers
    opaque = _behind_custom(graph)
    ends = (*graph.inputs, *graph.outputs)
    coded = {name for name in ends if graph.is_float(name) and name not in opaque and name not in options.hybrid}
    coded = {name for name in coded if 0 not in graph.shapes[name]}
    if options.quantizer == VENDOR:
        coded -= {name for name in graph.outputs if is_float_result(graph, name, forms)}
    else:
        coded -= before_jumps(graph, forms)
    return replace(graph, coded=frozenset(coded - _custom_alone(graph)))


def _behind_custom(graph: Graph) -> set[str]:
    """Tensors that depend on a custom operator: calibration may not be able to compute them."""
    found: set[str] = set()
    for node in graph.nodes:
        if node.custom or not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return found


def _custom_alone(graph: Graph) -> set[str]:
    """Inputs that only custom operators read, which take real numbers."""
    readers = graph.consumers()
    return {name for name in graph.inputs if name in readers and all(node.custom for node in readers[name])}


def plan_steps(graph: Graph, kind: Format, hybrid: Sequence[str], rules: FusionRules = OWN_RULES) -> list[Step]:
    """The steps, with those that are computed in float marked."""
    steps = build_steps(graph, forms_of(graph), rules)
    if kind.floats:
        for step in steps:
            step.is_float = True
        return steps
    known = {name for step in steps for name in (*step.reads, *step.outputs)}
    for tensor in hybrid:
        if tensor not in known:
            raise TensorNameError(
                f"there is no tensor '{tensor}' to keep in float16 (it may have been folded away)",
                hint="take a name from 'anynpu inspect FILE --layers' or 'anynpu check MODEL --layers'",
            )
        for step in steps:
            if tensor in step.reads or tensor in step.outputs:
                step.is_float = True
    if kind.arithmetic == CHIP:
        if rules.curves:
            assign_curves(graph, steps, rules)
    elif kind.unrounded:
        leave_unrounded(graph, steps, rules)
    return steps


def _name_of(model: Any, proto: Any) -> str:
    return Path(model).stem if isinstance(model, (str, Path)) else str(proto.graph.name)


def onnx_metadata(proto: Any) -> tuple[OnnxMetadata, str]:
    """What the ONNX model states about itself, and why that is not in the file: text that is too long, or no Unicode, is not."""
    found = OnnxMetadata(
        {entry.key: entry.value for entry in proto.metadata_props},
        producer_name=proto.producer_name,
        graph_name=proto.graph.name,
        domain=proto.domain,
        description=proto.doc_string,
        graph_description=proto.graph.doc_string,
        version=proto.model_version,
    )
    complaint = metadata_complaint(found)
    return (OnnxMetadata(), f"left out: {complaint}") if complaint else (found, "")


def _provenance(model: Any, proto: Any, graph: Graph, remarks: Mapping[str, str]) -> dict[str, str]:
    from importlib import metadata

    try:
        version = metadata.version("anynpu")
    except metadata.PackageNotFoundError:
        version = "unknown"
    entries = {
        "compiler": f"anynpu {version}",
        "source": Path(model).name if isinstance(model, (str, Path)) else "",
        "producer": f"{proto.producer_name} {proto.producer_version}".strip(),
        "opset": str(graph.opset),
        "nodes": str(graph.source_nodes),
        **remarks,
    }
    return {key: value for key, value in entries.items() if value}
