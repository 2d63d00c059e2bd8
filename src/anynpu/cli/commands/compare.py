"""``anynpu compare``: where two forms of one network part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from ..._util.output_files import write_output
from ...analysis.compare import (
    CodesUsed,
    Comparison,
    Figures,
    InputSpec,
    LayerComparison,
    Limits,
    Sample,
    Subject,
    Threshold,
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
from ...errors import ParameterError
from ..helpers.compare_sides import SideOptions, open_rules, open_sides, open_simulation
from ..helpers.console import plain_table, print_json, progress_bar, results
from ..helpers.onnxfile import input_names
from ..helpers.options import ChannelOrder, JsonOption, SeedOption, ShapeOption, parse_channel_values, parse_shapes

__all__ = ["THRESHOLD_MISSED", "command"]

THRESHOLD_MISSED = 3
"""Exit status where the comparison worked and a threshold was missed."""

_SAMPLES = 8
_FIGURES = ("cosine", "SNR", "error", "alone: cosine", "SNR", "error", "scale", "codes", "rails", "clipped")
_RULE_FIGURES = ("differ", "steps", "alone: differ", "steps", "cosine")


def command(
    a: Annotated[
        str, typer.Argument(metavar="A", help="What is right: an ONNX file, a compiled model, a device, or a folder of build.")
    ],
    b: Annotated[
        str | None,
        typer.Argument(
            metavar="B", help="What is judged: the same. Left out with --arithmetic, and where A is a folder of build."
        ),
    ] = None,
    dataset: Annotated[
        Path | None, typer.Option(help="Inputs: a folder of images, a list file, .npy or .npz. Random by default.", exists=True)
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Use no more than this number of samples.")] = _SAMPLES,
    seed: SeedOption = 0,
    model: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What a device runs, if not the other file.", exists=True, dir_okay=False)
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
        typer.Option(metavar="A,B", help="Compare the compiled model A with itself by two rules of rounding: chip,simulator."),
    ] = None,
    toolkit: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="The environment of rknn-toolkit2, whose simulator runs a folder of build.", exists=True
        ),
    ] = None,
    alone: Annotated[bool, typer.Option("--alone/--no-alone", help="Also run each layer alone on the values of A.")] = True,
    cosine: Annotated[float, typer.Option(min=-1.0, max=1.0, help="A layer below this cosine diverges.")] = Limits.cosine,
    scale: Annotated[float, typer.Option(min=0.0, help="A layer whose scale is off by more diverges.")] = Limits.scale,
    top: Annotated[int | None, typer.Option("--top", min=1, help="List only this many layers, the worst first.")] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with pictures.", dir_okay=False)
    ] = None,
    fail_below: Annotated[
        list[str] | None,
        typer.Option(metavar="[SCOPE.]FIGURE=X", help="Exit with status 3 if a figure is smaller. Repeat for more."),
    ] = None,
    fail_above: Annotated[
        list[str] | None,
        typer.Option(metavar="[SCOPE.]FIGURE=X", help="Exit with status 3 if a figure is larger. Repeat for more."),
    ] = None,
    fail_diverging: Annotated[bool, typer.Option("--fail-diverging", help="Exit with status 3 if a layer diverges.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare two forms of one network, layer by layer.

    Each layer is judged within the network so far, and alone on the values of A. The first diverging layer is named.
    Figures: cosine, worst-cosine, snr, error, scale, codes, rails, clipped. Scopes: outputs (the default), layers, alone.

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
        raise typer.BadParameter("a comparison has one shape for each input", param_hint="'--shape'")
    simulated = Path(a).is_dir()
    if toolkit is not None and not simulated:
        raise typer.BadParameter(
            "it runs a folder NAME.toolkit that 'anynpu build' wrote: give that as A", param_hint="'--toolkit'"
        )
    if simulated and arithmetic is not None:
        raise typer.BadParameter(
            "a folder of build is compared with its twin by the simulator's rule", param_hint="'--arithmetic'"
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
            results().print(f"A and B are the same file, {a}: this comparison says nothing about it.")
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
