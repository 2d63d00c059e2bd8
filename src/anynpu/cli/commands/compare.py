"""``anynpu compare``: where two forms of one network part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ... import modelfile
from ..._util.output_files import write_output
from ..._util.types import Array
from ...analysis.compare import (
    ARITHMETICS,
    CodesUsed,
    Comparison,
    CompiledSubject,
    Figures,
    InputSpec,
    LayerComparison,
    LayersSubject,
    Limits,
    OnnxSubject,
    OutputsSubject,
    Sample,
    Subject,
    Threshold,
    by_arithmetic,
    compare,
    comparison_data,
    comparison_page,
    dataset_samples,
    parse_threshold,
    random_samples,
    rule_sentences,
    sentences,
    steps_apart,
)
from ...compiler.board import find_toolkit
from ...compiler.board.simulator import VendorSimulation, read_job, simulator_twin
from ...errors import DeviceUnavailable, ModelFormatError, ParameterError, ShapeError, ToolkitError
from ...modelfile import FileKind, identify
from ...program import Model, Preprocess
from ...session import InferenceSession
from ...vendors.devices import choose_device
from ..helpers.console import plain_table, print_json, progress_bar, results
from ..helpers.models import no_model
from ..helpers.onnxfile import input_names, reversed_orders
from ..helpers.options import ChannelOrder, JsonOption, SeedOption, ShapeOption, parse_channel_values, parse_shapes

# The two sides of ``anynpu compare``: files and devices, opened so that both take the same inputs.


@dataclass(frozen=True)
class SideOptions:
    """What the command line states about the sides.

    :ivar shapes: of an ONNX model's inputs; those of the compiled model if not given
    :ivar shape_set: of a compiled model
    :ivar mean: by input, for an ONNX model that is not compared with a compiled one
    :ivar model: what a device runs, if not the other side's file
    """

    shapes: Mapping[str, tuple[int, ...]] | None = None
    shape_set: int = 0
    mean: Mapping[str, tuple[float, ...]] | None = None
    std: Mapping[str, tuple[float, ...]] | None = None
    channel_order: str | None = None
    model: Path | None = None


@dataclass(frozen=True)
class _Side:
    """An argument, recognized. One of *path* and *device* is set; *model* is set where the path is a compiled model."""

    title: str
    path: Path | None = None
    device: str = ""
    model: Model | None = None


@contextmanager
def open_sides(a: str, b: str, options: SideOptions) -> Iterator[tuple[Subject, Subject]]:
    """Both sides, ready to run; a device is closed at the end."""
    first, second = _recognise(a), _recognise(b)
    if first.device and second.device:
        raise ParameterError(
            f"{a} and {b} are both devices", hint="compare a file with a device: anynpu compare yolo.onnx rknn --model yolo.rknn"
        )
    compiled = first.model or second.model
    if options.model is not None and not (first.device or second.device):
        raise ParameterError("--model is the model that a device runs, but neither side is a device", hint="leave it out")
    if compiled is None and options.model is not None and identify(options.model) is FileKind.ANYNPU:
        compiled = modelfile.read(options.model)
    if not (first.device or second.device):
        yield _open_file(first, compiled, options), _open_file(second, compiled, options)
        return
    file = second if first.device else first
    subject = _open_file(file, compiled, options)
    with _session(first.device or second.device, file, options) as session:
        device = _device_subject(session, subject)
        yield (device, subject) if first.device else (subject, device)


@contextmanager
def open_rules(a: str, arithmetic: str, options: SideOptions) -> Iterator[tuple[Subject, Subject]]:
    """One compiled model by two rules of rounding, such as ``chip,simulator``."""
    side = _recognise(a)
    rules = [entry.strip() for entry in arithmetic.split(",")]
    if side.model is None:
        raise ParameterError(
            f"{a} is not a compiled model", hint="compile it first; --arithmetic compares a compiled model with itself"
        )
    if len(rules) != 2:
        raise ParameterError(f"--arithmetic takes two rules, got '{arithmetic}'", hint=f"give: {','.join(ARITHMETICS)}")
    first, second = (
        CompiledSubject(by_arithmetic(side.model, rule), f"{side.title} ({rule})", shape_set=options.shape_set) for rule in rules
    )
    yield first, second


@contextmanager
def open_simulation(job: Path, b: str | None, toolkit: Path | None, options: SideOptions) -> Iterator[tuple[Subject, Subject]]:
    """The vendor's simulator in a folder of ``anynpu build``, and a compiled model: *b*, or the anynpu model by the simulator's rule."""
    read_job(job)  # rejects other folders
    found = find_toolkit(toolkit)
    if found is None:
        raise ToolkitError(
            "the vendor's simulator is part of rknn-toolkit2, which is not here",
            hint="install it with 'anynpu toolkit install', or name its environment: --toolkit FOLDER",
        )
    simulation = VendorSimulation(job, found)
    title, model = f"{simulation.document['name']} (simulator)", None
    if b is not None:
        side = _recognise(b)
        title, model = side.title, side.model
        if model is None:
            raise ParameterError(
                f"{b} is not a compiled model", hint="give the anynpu model that 'anynpu build' wrote, or leave B out"
            )
    subject = CompiledSubject(model or simulator_twin(job), title, shape_set=options.shape_set)
    names = simulation.tensors
    yield LayersSubject(simulation.title, subject.inputs, subject.outputs, names, simulation.values), subject


def _recognise(text: str) -> _Side:
    path = Path(text)
    if path.is_file():
        kind = identify(path)
        if kind is FileKind.ANYNPU or kind.of_a_vendor:
            return _Side(path.name, path, model=modelfile.read_or_twin(path))
        if kind is FileKind.ONNX or path.suffix.lower() == ".onnx":
            return _Side(path.name, path)
        raise no_model(path, "give an .onnx, .rknn, .nb or .anynpu file")
    try:
        choose_device(text)
    except DeviceUnavailable:
        raise ModelFormatError(
            f"'{text}' is neither a file nor a device", hint="give a model file, or a device: sim, sim:rk3588, rknn, vip"
        ) from None
    return _Side(text, device=text)


def _open_file(side: _Side, compiled: Model | None, options: SideOptions) -> Subject:
    assert side.path is not None
    if side.model is not None:
        return CompiledSubject(side.model, side.title, shape_set=options.shape_set)
    shapes, preprocess = options.shapes, _given_preprocess(options)
    order: str | Mapping[str, str] | None = options.channel_order
    if compiled is not None:
        order = order or reversed_orders(compiled) or None
        if not 0 <= options.shape_set < len(compiled.programs):
            raise ShapeError(f"there is no shape set {options.shape_set}", hint=f"the model has {len(compiled.programs)}")
        shapes = shapes or {spec.name: spec.shape for spec in compiled.programs[options.shape_set].input_specs}
        if preprocess and compiled.preprocess:
            raise ParameterError("the compiled model has its own mean and std", hint="leave --mean and --std out")
        preprocess = preprocess or compiled.preprocess
    return OnnxSubject(side.path, side.title, shapes=shapes, preprocess=preprocess, channel_order=order)


def _given_preprocess(options: SideOptions) -> Mapping[str, Preprocess]:
    means, deviations = options.mean or {}, options.std or {}
    result = {}
    for name in {*means, *deviations}:
        mean, std = means.get(name, (0.0,)), deviations.get(name, (1.0,))
        length = max(len(mean), len(std))
        if len(mean) not in (1, length) or len(std) not in (1, length) or 0.0 in std:
            raise ParameterError(
                f"mean {list(mean)} and std {list(std)} of input '{name}' do not fit", hint="one for each channel"
            )
        result[name] = Preprocess(mean * (length // len(mean)), std * (length // len(std)))
    return result


def _session(device: str, file: _Side, options: SideOptions) -> InferenceSession:
    model = options.model or (file.path if file.model is not None else None)
    if model is None:
        raise ParameterError(
            f"{file.title} is an ONNX model, which no device runs", hint=f"state what {device} runs: --model FILE.rknn"
        )
    try:
        return InferenceSession(model, device=device)
    except DeviceUnavailable as error:
        raise DeviceUnavailable(
            f"the device '{device}' is not here: {error.message}",
            hint="run this on the board, or compare with the software NPU: sim",
        ) from error


def _device_subject(session: InferenceSession, other: Subject) -> OutputsSubject:
    names = session.input_names
    inputs, outputs = other.inputs, other.outputs
    if len(names) != len(inputs):
        raise ShapeError(
            f"the device's model has {len(names)} inputs, {other.title} has {len(inputs)}",
            hint="let the device run a model of the same network",
        )

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        return list(session.run(None, dict(zip(names, arrays, strict=True))))

    return OutputsSubject(session.device, inputs, outputs, run)


THRESHOLD_MISSED = 3
"""Exit status where the comparison worked and a threshold was missed."""

_SAMPLES = 8
_FIGURES = ("cosine", "SNR", "error", "alone: cosine", "SNR", "error", "scale", "codes", "rails", "clipped")
_RULE_FIGURES = ("differ", "steps", "alone: differ", "steps", "cosine")


def command(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A", help="Reference: an ONNX file, a compiled model, a device, or a folder that 'anynpu build' wrote."
        ),
    ],
    b: Annotated[
        str | None,
        typer.Argument(
            metavar="B", help="What to compare with A. Omit it with --arithmetic, or if A is a folder of 'anynpu build'."
        ),
    ] = None,
    dataset: Annotated[
        Path | None, typer.Option(help="Inputs: a folder of images, a list file, .npy or .npz. Random by default.", exists=True)
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Maximum number of samples.")] = _SAMPLES,
    seed: SeedOption = 0,
    model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Model that a device runs, if not the other argument.", exists=True, dir_okay=False),
    ] = None,
    shape: ShapeOption = None,
    shape_set: Annotated[int, typer.Option(min=0, help="Which shape set of a compiled model.")] = 0,
    mean: Annotated[
        list[str] | None, typer.Option(metavar="[NAME=]a,b,c", help="For an ONNX model without a compiled one beside it.")
    ] = None,
    std: Annotated[list[str] | None, typer.Option(metavar="[NAME=]a,b,c", help="The same.")] = None,
    channel_order: Annotated[
        ChannelOrder | None, typer.Option(help="The order that the ONNX model was trained with, as given to compile.")
    ] = None,
    arithmetic: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Compare the compiled model A with itself in two rounding modes: chip,simulator."),
    ] = None,
    toolkit: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="The environment of rknn-toolkit2, whose simulator runs a folder of build.", exists=True
        ),
    ] = None,
    alone: Annotated[bool, typer.Option("--alone/--no-alone", help="Also run each layer alone on the values of A.")] = True,
    cosine: Annotated[float, typer.Option(min=-1.0, max=1.0, help="Cosine below which a layer diverges.")] = Limits.cosine,
    scale: Annotated[float, typer.Option(min=0.0, help="Scale error above which a layer diverges.")] = Limits.scale,
    top: Annotated[int | None, typer.Option("--top", min=1, help="List only this many layers, the worst first.")] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with images.", dir_okay=False)] = None,
    fail_below: Annotated[
        list[str] | None,
        typer.Option(metavar="[SCOPE.]METRIC=X", help="Exit with status 3 if a metric is below the value. Repeat for more."),
    ] = None,
    fail_above: Annotated[
        list[str] | None,
        typer.Option(metavar="[SCOPE.]METRIC=X", help="Exit with status 3 if a metric is above the value. Repeat for more."),
    ] = None,
    fail_diverging: Annotated[bool, typer.Option("--fail-diverging", help="Exit with status 3 if a layer diverges.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare two forms of one network, layer by layer.

    Each layer is evaluated within the network so far, and alone on the values of A. The first diverging layer is named.
    Metrics: cosine, worst-cosine, snr, error, scale, codes, saturation, clipped. Scopes: outputs (the default), layers, alone.

    \b
    Example:
      anynpu compare yolo.onnx yolo.rknn --dataset street/ --html compare.html
      anynpu compare old.rknn new.rknn --fail-below cosine=0.99
      anynpu compare yolo.onnx rknn --model yolo.rknn --dataset street/
      anynpu compare yolo.rknn --arithmetic chip,simulator --dataset street/
      anynpu compare out/yolo.toolkit --samples 1
    """
    thresholds = [parse_threshold(text, below=True) for text in fail_below or ()]
    thresholds += [parse_threshold(text, below=False) for text in fail_above or ()]
    shapes = parse_shapes(shape)
    if isinstance(shapes, list):
        raise typer.BadParameter("a comparison takes one shape per input", param_hint="'--shape'")
    simulated = Path(a).is_dir()
    if toolkit is not None and not simulated:
        raise typer.BadParameter(
            "it runs a folder NAME.toolkit that 'anynpu build' wrote: pass that folder as A", param_hint="'--toolkit'"
        )
    if simulated and arithmetic is not None:
        raise typer.BadParameter(
            "a folder of build is compared with its anynpu model by the simulator's rule", param_hint="'--arithmetic'"
        )
    if not simulated and (b is None) == (arithmetic is None):
        raise typer.BadParameter("give what A is compared with: B, or --arithmetic chip,simulator", param_hint="'B'")
    names = _onnx_inputs((a, b or a)) if mean or std else []
    options = SideOptions(
        shapes=shapes,
        shape_set=shape_set,
        mean=parse_channel_values(mean, "--mean", names),
        std=parse_channel_values(std, "--std", names),
        channel_order=None if channel_order is None else channel_order.value,
        model=model,
    )
    itself = b is not None and Path(a).is_file() and Path(b).is_file() and Path(a).samefile(b)
    if itself and (thresholds or fail_diverging):
        raise ParameterError(
            f"{a} is compared with itself, so no threshold can be missed", hint="name the file that it is to be compared with"
        )
    if simulated:
        sides = open_simulation(Path(a), b, toolkit, options)
        dataset = dataset or Path(a) / "dataset.txt"
    else:
        sides = open_sides(a, b, options) if b is not None else open_rules(a, str(arithmetic), options)
    with sides as (first, second), progress_bar(f"comparing {Path(b or a).name}") as progress:
        inputs = _input_specs(first, second)
        given: Iterable[Sample]
        total: int | None
        if dataset is None:
            given, total = random_samples(inputs, samples, seed), samples
        else:
            data = dataset_samples(dataset, inputs, samples)
            given, total = data, data.length
        made = compare(first, second, given, alone=alone, limits=Limits(cosine, scale), total=total, progress=progress)
    if html is not None:
        write_output(html, comparison_page(made))
    missed = _missed(made, thresholds, fail_diverging)
    by_codes = simulated or arithmetic is not None
    if as_json:
        facts = {**comparison_data(made), "same_file": itself, "inputs": str(dataset or f"random, seed {seed}"), "missed": missed}
        print_json({**facts, "rules": rule_sentences(made)} if by_codes else facts)
    else:
        _print(made, top, missed, rules=by_codes)
        if itself:
            results().print(f"A and B are the same file, {a}: comparing a file with itself has no result.")
    if missed:
        raise typer.Exit(THRESHOLD_MISSED)


def _onnx_inputs(sides: Iterable[str]) -> list[str]:
    path = next((Path(side) for side in sides if side.lower().endswith(".onnx") and Path(side).is_file()), None)
    if path is None:
        raise typer.BadParameter("mean and std belong to an ONNX model", param_hint="'--mean'")
    return input_names(path)


def _input_specs(a: Subject, b: Subject) -> Sequence[InputSpec]:
    """The inputs of the side that knows which values they take."""
    return b.inputs if any(entry.low is not None for entry in b.inputs) else a.inputs


def _missed(comparison: Comparison, thresholds: Iterable[Threshold], fail_diverging: bool) -> list[str]:
    missed = [sentence for threshold in thresholds for sentence in threshold.misses(comparison)]
    found = comparison.first_diverging
    if fail_diverging and found is not None:
        missed.append(f"layer {found.layer.layer} diverges: {found.reason}")
    return missed


def _print(comparison: Comparison, top: int | None, missed: Sequence[str], *, rules: bool) -> None:
    console = results()
    samples = f"{comparison.samples} sample{'' if comparison.samples == 1 else 's'}"
    console.print(f"{comparison.b} compared with {comparison.a}, {samples}")
    console.print()
    figures = _RULE_FIGURES if rules else _FIGURES
    table = plain_table("#", "layer", "operator", *figures, right=("#", *figures))
    for entry in comparison.layers if top is None else comparison.worst(top):
        table.add_row(*(_rule_cells(entry) if rules else _cells(entry)))
    console.print(table)
    if top is not None and len(comparison.layers) > top:
        console.print(f"... and {len(comparison.layers) - top} more")
    console.print()
    said = rule_sentences(comparison) if rules else sentences(comparison)
    for sentence in [*said, *(f"threshold missed: {text}" for text in missed)]:
        console.print(sentence)


def _rule_cells(entry: LayerComparison) -> list[str]:
    """How many codes of a layer differ between two rules, and by how many steps."""
    number = "" if entry.index < 0 else str(entry.index)
    unknown = "not comparable" if entry.index >= 0 else "-"
    alone = (unknown, "-") if entry.alone is None else _apart(entry.alone, entry.step)
    return [number, entry.layer, entry.kind, *_apart(entry.so_far, entry.step), *alone, f"{entry.so_far.cosine:.5f}"]


def _apart(figures: Figures, step: float) -> tuple[str, str]:
    if not figures.differing:
        return "equal", ""
    return f"{100 * figures.differing:.2f} %", str(steps_apart(figures, step)) if step else f"{figures.error:.3g}"


def _cells(entry: LayerComparison) -> list[str]:
    alone, codes = entry.alone, entry.codes
    return [
        "" if entry.index < 0 else str(entry.index),
        entry.layer,
        entry.kind,
        *_figures(entry.so_far),
        *(("-",) * 4 if alone is None else (*_figures(alone), f"{alone.scale:.4f}")),
        *(("-",) * 3 if codes is None else _codes(codes)),
    ]


def _figures(figures: Figures) -> tuple[str, str, str]:
    return f"{figures.cosine:.5f}", "equal" if figures.exact else f"{figures.snr:.1f} dB", f"{figures.error:.3g}"


def _codes(codes: CodesUsed) -> tuple[str, str, str]:
    return f"{codes.used}/{codes.available}", f"{100 * codes.rails:.1f} %", f"{100 * codes.clipped:.1f} %"
