"""``anynpu compile``: ONNX in, a model file for one chip out."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

import anynpu

from ...reports import report
from ..helpers.console import progress_bar, results, size_text
from ..helpers.onnxfile import input_names
from ..helpers.options import (
    BatchOption,
    ChannelOrder,
    CustomOpOption,
    DTypeOption,
    OnnxArgument,
    ShapeOption,
    TargetOption,
    dtype_words,
    parse_channel_values,
    parse_shapes,
)
from ..helpers.summary import accuracy_lines, shape_text, summary_line

__all__ = ["command"]


class Algorithm(str, enum.Enum):
    """How the range of an activation follows from what calibration saw."""

    PERCENTILE = "percentile"
    MINMAX = "minmax"
    KL = "kl"
    MSE = "mse"


class Accuracy(str, enum.Enum):
    """How far the quantiser goes."""

    FAST = "fast"
    DEFAULT = "default"
    BEST = "best"


def command(
    model: OnnxArgument,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="The model file to write.", dir_okay=False)],
    target: TargetOption,
    dataset: Annotated[
        Path | None,
        typer.Option(help="Calibration data: a folder of images, a list file, .npy or .npz. Not needed for fp16.", exists=True),
    ] = None,
    mean: Annotated[
        list[str] | None, typer.Option(metavar="[NAME=]a,b,c", help="Subtracted from each channel. Repeat for other inputs.")
    ] = None,
    std: Annotated[
        list[str] | None, typer.Option(metavar="[NAME=]a,b,c", help="Divides each channel. Repeat for other inputs.")
    ] = None,
    channel_order: Annotated[
        ChannelOrder | None, typer.Option(help="Order of the channels that the model was trained with.")
    ] = None,
    dtype: DTypeOption = "w8a8",
    shape: ShapeOption = None,
    batch: BatchOption = None,
    algorithm: Annotated[Algorithm, typer.Option(help="How ranges follow from the calibration data.")] = Algorithm.PERCENTILE,
    channel_groups: Annotated[
        int | None,
        typer.Option(
            min=1, help="Most groups of channels with a scale of their own in one tensor; 2 by default on Rockchip's chips."
        ),
    ] = None,
    per_channel: Annotated[
        bool | None,
        typer.Option("--per-channel/--per-tensor", help="Weights with a scale for each channel, or one for all of a layer."),
    ] = None,
    preprocess: Annotated[
        ChannelOrder | None,
        typer.Option(help="Begin with a pre-process node, which takes a picture of this order of channels (Allwinner's chips)."),
    ] = None,
    accuracy: Annotated[
        Accuracy, typer.Option(help="How far to go: fast leaves the re-fit out, best tries recipes and float16 layers.")
    ] = Accuracy.DEFAULT,
    without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STEP", help="Leave a step of the recipe out: heads, clip, groups, asymmetric, refit. Repeat for more."
        ),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="What best and the re-fit judge by: cosine, top1, margin, detections or map.")
    ] = None,
    time_budget: Annotated[
        float, typer.Option(min=0.0, metavar="SHARE", help="By how much of the predicted time best may slow the model down.")
    ] = 0.2,
    limit: Annotated[int | None, typer.Option(min=1, help="Use no more than this number of calibration samples.")] = None,
    hybrid: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Keep this tensor in float16. Repeat for more.")
    ] = None,
    custom_op: CustomOpOption = None,
    remove_weight: Annotated[bool, typer.Option("--remove-weight", help="Leave the weights out of the file.")] = False,
    custom_string: Annotated[str, typer.Option(metavar="TEXT", help="Text that the program can query.")] = "",
    name: Annotated[str, typer.Option(metavar="TEXT", help="Name of the model. That of the ONNX file by default.")] = "",
) -> None:
    """Compile an ONNX model for one chip.

    \b
    Example:
      anynpu compile yolo.onnx -o yolo.rknn --target rk3588 \\
          --dataset street/ --std 255,255,255
      anynpu compile yolo.onnx -o yolo.rknn --target rk3588 --dtype fp16
      anynpu compile yolo.onnx -o yolo.rknn --target rk3588 \\
          --dataset street/ --std 255,255,255 --accuracy best --metric detections
      anynpu compile yolo.onnx -o yolo.nb --target t527 --dtype uint8 \\
          --dataset street/ --std 255,255,255 --preprocess rgb
    """
    shapes = parse_shapes(shape)
    names = input_names(model) if mean or std else []
    means = parse_channel_values(mean, "--mean", names)
    deviations = parse_channel_values(std, "--std", names)
    with progress_bar(f"compiling {model.stem} for {target} ({dtype_words(dtype, target)})") as progress:
        compiled = anynpu.compile(
            model,
            target,
            dataset=dataset,
            mean=means,
            std=deviations,
            channel_order=None if channel_order is None else channel_order.value,
            dtype=dtype,
            algorithm=algorithm.value,
            channel_groups=channel_groups,
            per_channel=per_channel,
            preprocess=None if preprocess is None else preprocess.value,
            accuracy=accuracy.value,
            without=tuple(without or ()),
            metric=metric,
            time_budget=time_budget,
            shapes=shapes,
            hybrid=tuple(hybrid or ()),
            batch=batch,
            custom_string=custom_string,
            name=name,
            calibration_limit=limit,
            custom_ops=tuple(custom_op or ()),
            progress=progress,
        )
    path = compiled.save(output, remove_weight=remove_weight)
    console = results()
    for index, program in enumerate(compiled.programs):
        if len(compiled.programs) > 1:
            console.print(f"  shape set {index}: {', '.join(f'{s.name} {shape_text(s.shape)}' for s in program.input_specs)}")
        console.print(summary_line(report(compiled, index)))
    for line in accuracy_lines(compiled):
        console.print(line)
    console.print(f"wrote {path} ({size_text(path.stat().st_size)})")
