"""compile and check: the compiler from end to end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import chips
from ..errors import CompileError, TensorNameError
from ..modelfile import CompiledModel
from ..program import Model, Program
from ..reports import Report, report
from ..tensor import DType
from ..vendors import registry
from .arithmetic import CHIP, with_arithmetic
from .calibrate import CalibratedRanges, UnknownRanges, calibrate
from .curves import assign_curves
from .custom import CustomOperators, CustomTable, custom_table
from .dataset import InputInfo, open_dataset
from .formats import Format, format_of, without_zero_points
from .forms import forms_of
from .graph import Graph
from .groups import grouping_candidates
from .importer import Shapes, import_onnx, load_onnx
from .lint import lint_steps, summary
from .lower import lower
from .metrics import Metric
from .options import InputOptions, Normalisation, PerInput, preprocessing, shape_sets
from .quantize import Ranges, assign_quantization, quantized_tensors
from .recipe import recipe_of
from .search import run_recipe
from .simplify import reverse_channels, simplify
from .steps import Step, build_steps
from .toolkit import QUANTIZERS, VENDOR, GivenRanges, given_quantization, toolkit_quantization
from .workbench import Trial, Workbench, accuracy_text

__all__ = ["ModelCheck", "check", "compile"]

Progress = Callable[[str, int, "int | None"], None]


def compile(
    model: Any,
    target: str = "rk3588",
    *,
    dataset: Any = None,
    mean: PerInput = None,
    std: PerInput = None,
    channel_order: str | Mapping[str, str] | None = None,
    dtype: str = "w8a8",
    algorithm: str = "percentile",
    percentile: float = 99.99,
    channel_groups: int | None = None,
    per_channel: bool | None = None,
    preprocess: str | Mapping[str, str] | None = None,
    accuracy: str = "default",
    without: Sequence[str] = (),
    metric: str | Metric | None = None,
    time_budget: float = 0.2,
    shapes: Shapes | Sequence[Shapes] | None = None,
    hybrid: Sequence[str] = (),
    batch: int | None = None,
    custom_string: str = "",
    name: str = "",
    calibration_limit: int | None = None,
    custom_ops: CustomOperators = (),
    arithmetic: str | None = None,
    quantizer: str = "anynpu",
    ranges: GivenRanges | None = None,
    progress: Progress | None = None,
) -> CompiledModel:
    """Compile an ONNX model for one chip.

    :param model: path, bytes or onnx.ModelProto; opset 7 or later
    :param target: a chip of the catalogue
    :param dataset: calibration data: a folder of images, a text file with a sample a line, .npy, .npz, or any iterable of samples
    :param mean: by channel, subtracted from raw input values; a dict by input name where there are several inputs
    :param std: by channel, raw values are divided by it
    :param channel_order: what the model was trained on; ``bgr`` lets it take RGB pictures all the same
    :param dtype: ``w8a8``, ``fp16`` or ``w16a16``; for Allwinner's chips also ``i8``, ``i8dfp`` or ``bf16``. Usual names (``int8``,
        ``uint8``, ``float16``) and those of ACUITY (``asymmetric_affine``, ``dynamic_fixed_point-i16`` ...) work too
    :param algorithm: how ranges are found: ``minmax``, ``percentile``, ``kl`` or ``mse``
    :param channel_groups: most groups of channels with a scale of their own, where a tensor gains by it; 1 for one scale a tensor.
        By default 2 for Rockchip's chips in ``w8a8``; Allwinner's have none
    :param per_channel: weights with a scale for each output channel (by default for Rockchip's chips and for ``i8`` of Allwinner's), or one
        for all of a layer (all that other types of Allwinner's chips have)
    :param preprocess: ``rgb`` or ``bgr`` to begin the model with a pre-process node: it takes a picture's bytes in that order of channels
        and applies mean and std itself; a dict by input name where there are several inputs. Allwinner's chips only
    :param accuracy: ``fast`` leaves the re-fit of weights out; ``best`` tries recipes and float16 layers against each other
    :param without: steps of the recipe to leave out: ``heads``, ``clip``, ``groups``, ``asymmetric``, ``refit``
    :param metric: what ``best`` and the re-fit judge by: ``cosine``, ``top1``, ``margin``, ``detections``, ``map``, or a function of
        (expected outputs, given outputs) whose result is larger the better; chosen by the shape of the outputs by default
    :param time_budget: by how much of the predicted time float16 layers of ``best`` may slow the model down
    :param shapes: shape of each input whose shape is not fixed; a list of such dicts for dynamic shapes
    :param hybrid: tensors that stay in float16
    :param batch: extent of the first axis of every input
    :param custom_string: any text, stored in the file
    :param calibration_limit: use at most this many samples
    :param custom_ops: types of nodes to compile as custom operators, which the program that runs the model computes itself; besides those
        of domains that ONNX does not know. A mapping says more: name -> function of (input_shapes, attributes) that gives the shapes of the
        outputs, or name -> :class:`anynpu.compiler.CustomOperator`
    :param arithmetic: how integer layers round: ``chip`` as the NPU itself does (Rockchip's int8 models), ``simulator`` with one float32
        multiplication per output, as the vendors' simulators do
    :param quantizer: ``vendor`` chooses scales and weights as Rockchip's toolkit does: min/max, one range per tensor, no re-fit
    :param ranges: (scale, int8 zero point) of tensors whose quantisation is decided already, by name
    :param progress: called with (stage, done, total)

    >>> model = anynpu.compile("det.onnx", target="rk3588", dataset="pages/", std=(255, 255, 255))    # doctest: +SKIP
    >>> model.save("det.rknn")                                                                       # doctest: +SKIP
    """
    chip = chips.get(target)
    kind = with_arithmetic(format_of(dtype, chip, per_channel=per_channel, channel_groups=channel_groups), chip, arithmetic)
    if not kind.floats and dataset is None:
        raise CompileError(
            f"a {kind.name} model needs calibration data",
            hint="pass a folder of typical images (dataset=..., --dataset FOLDER), or compile with dtype fp16, which needs none",
        )
    if preprocess is not None and not registry.of_chip(chip).picture_node:
        raise CompileError(
            f"models of {chip.name} have no pre-process node",
            hint="leave preprocess out: with mean and std its calls take the bytes of a picture and normalise them",
        )
    _tell(progress, "importing", 0, 1)
    proto = load_onnx(model, custom_ops)
    custom = custom_table(custom_ops)
    sets = shape_sets(shapes)
    inputs = InputOptions(mean, std, channel_order, preprocess)
    prepared = [prepare(proto, entry, batch, inputs, custom) for entry in sets]
    first = prepared[0]
    _tell(progress, "importing", 1, 1)
    plans = [plan_steps(entry.graph, kind, hybrid) for entry in prepared]
    if quantizer not in QUANTIZERS:
        raise CompileError(f"there is no quantizer '{quantizer}'", hint=f"choose one of: {', '.join(QUANTIZERS)}")
    toolkit = quantizer == VENDOR
    recipe = recipe_of(accuracy, "minmax" if toolkit else algorithm, percentile, kind.groups, without)
    if not recipe.asymmetric:
        kind = without_zero_points(kind)
    seen_ranges: Ranges = UnknownRanges()
    calibration, remarks, warnings = "", "", ""
    trials: list[Trial] = []
    if not kind.floats and any(not step.is_float for step in plans[0]):
        infos = [
            InputInfo(
                entry,
                first.graph.shapes[entry],
                first.graph.dtypes[entry],
                first.normalisation.preprocess.get(entry),
            )
            for entry in first.graph.inputs
        ]
        data = open_dataset(dataset, infos, limit=calibration_limit)
        # layers may be fused differently for other shapes, and then need ranges of other tensors
        graphs = [(entry.graph, steps) for entry, steps in zip(prepared, plans, strict=True)]
        known = {*first.graph.inputs, *first.graph.producers()}
        names = [name for pair in graphs for name in quantized_tensors(*pair) if name in known]
        eight = kind.codes is DType.INT8
        candidates = [name for pair in graphs for name in grouping_candidates(*pair) if name in known and eight]
        seen = calibrate(first.graph, names, candidates, data, data.length, progress, custom)
        seen_ranges = CalibratedRanges(seen.observer, recipe.algorithm, percentile)
        count = "" if data.length is None else f"{data.length} samples, "  # no paths: a model file is given away
        calibration = f"{count}{recipe.algorithm}" + (", as the vendor's toolkit" if toolkit else "")
        if eight and not toolkit and not ranges:
            benches = [
                Workbench(entry.graph, chip, seen, data, kind, entry.normalisation.preprocess, metric=metric, progress=progress)
                for entry in prepared
            ]
            trials = run_recipe(benches, plans, recipe, best=accuracy == "best", time_budget=time_budget, progress=progress)
            plans = [trial.steps for trial in trials]
            remarks = accuracy_text(trials)
            block = chip.channel_block.get("int8", 1)
            left = lint_steps(first.graph, plans[0], seen, first.normalisation.preprocess, trials[0].quantization, block)
            warnings = summary(left)
    programs: list[Program] = []
    for index, (entry, steps) in enumerate(zip(prepared, plans, strict=True)):
        _tell(progress, "lowering", index, len(prepared))
        if trials:
            programs.append(lower(entry.graph, steps, chip, trials[index].quantization, kind, refined=trials[index].refined))
            continue
        given = given_quantization(ranges, entry.graph)
        preprocess_of = entry.normalisation.preprocess
        if toolkit:
            quantization = toolkit_quantization(entry.graph, steps, seen_ranges, preprocess_of, given)
        else:
            quantization = assign_quantization(
                entry.graph, steps, seen_ranges, kind, preprocess_of, exact_heads=recipe.heads, clip=recipe.clip, given=given
            )
        programs.append(lower(entry.graph, steps, chip, quantization, kind, toolkit=toolkit))
    _tell(progress, "lowering", len(prepared), len(prepared))
    return CompiledModel(
        chip=chip.name,
        dtype=kind.name,
        programs=tuple(programs),
        name=name or _name_of(model, proto),
        custom_string=custom_string,
        preprocess=first.normalisation.preprocess,
        provenance=_provenance(model, proto, first.graph, calibration, remarks, warnings),
        arithmetic=kind.arithmetic,
    )


def check(
    model: Any,
    target: str = "rk3588",
    *,
    dtype: str = "w8a8",
    shapes: Shapes | None = None,
    batch: int | None = None,
    custom_ops: CustomOperators = (),
) -> Report:
    """What compiling *model* for *target* would give, layer by layer, without calibration data.

    >>> anynpu.check("det.onnx", "rk3588").on_cpu    # doctest: +SKIP
    """
    return ModelCheck(model, shapes=shapes, batch=batch, custom_ops=custom_ops).report(target, dtype=dtype)


class ModelCheck:
    """A model that is checked for one chip after the other: what does not depend on the chip is done once.

    >>> reports = [ModelCheck("det.onnx").report(chip) for chip in ("rk3588", "rk3566")]    # doctest: +SKIP
    """

    def __init__(
        self, model: Any, *, shapes: Shapes | None = None, batch: int | None = None, custom_ops: CustomOperators = ()
    ) -> None:
        proto = load_onnx(model, custom_ops)
        self._graph = prepare(proto, shape_sets(shapes)[0], batch, InputOptions(), custom_table(custom_ops)).graph
        self._name = _name_of(model, proto)
        self._provenance = _provenance(model, proto, self._graph, "")

    def report(self, target: str, *, dtype: str = "w8a8") -> Report:
        """The report for one chip."""
        chip = chips.get(target)
        kind = format_of(dtype, chip)
        steps = plan_steps(self._graph, kind, ())
        quantization = assign_quantization(self._graph, steps, UnknownRanges(), kind)
        program = lower(self._graph, steps, chip, quantization, kind)
        return report(Model(chip.name, kind.name, (program,), name=self._name, provenance=self._provenance))


@dataclass(frozen=True)
class Prepared:
    graph: Graph
    normalisation: Normalisation


def prepare(proto: Any, shapes: Shapes, batch: int | None, inputs: InputOptions, custom: CustomTable) -> Prepared:
    graph = import_onnx(_copy(proto), shapes, batch, custom)
    normalisation = preprocessing(graph.inputs, graph.shapes, inputs)
    simplify(graph)
    for name in normalisation.reversed_inputs:
        reverse_channels(graph, name)
    return Prepared(graph, normalisation)


def _copy(proto: Any) -> Any:
    copy = type(proto)()
    copy.CopyFrom(proto)
    return copy


def plan_steps(graph: Graph, kind: Format, hybrid: Sequence[str]) -> list[Step]:
    """The steps, with those that are computed in float marked."""
    steps = build_steps(graph, forms_of(graph))
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
        assign_curves(graph, steps)
    return steps


def _name_of(model: Any, proto: Any) -> str:
    return Path(model).stem if isinstance(model, (str, Path)) else str(proto.graph.name)


def _provenance(model: Any, proto: Any, graph: Graph, calibration: str, accuracy: str = "", warnings: str = "") -> dict[str, str]:
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
        "calibration": calibration,
        "accuracy": accuracy,
        "warnings": warnings,
    }
    return {key: value for key, value in entries.items() if value}


def _tell(progress: Progress | None, stage: str, done: int, total: int | None) -> None:
    if progress is not None:
        progress(stage, done, total)
