"""``anynpu ort``: compiled models for programs that use onnxruntime."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from ...compiler import CompileOptions
from ...errors import OptionError
from ...session.onnxruntime.context_model import InputForm, OutputForm, wrap_model
from ...session.onnxruntime.parts import PartPlan, compile_parts, default_dtype, write_parts
from ..helpers.console import print_json, results, size_text
from ..helpers.options import DEFAULT_CHIP, JsonOption, dtype_name, optional_chip, read_inputs


class Action(str, enum.Enum):
    """What to do."""

    WRAP = "wrap"
    PARTS = "parts"


def command(
    action: Annotated[
        Action,
        typer.Argument(help="wrap: write an EPContext model. parts: compile the nodes of an ONNX model that the NPU takes."),
    ],
    model: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Compiled model (.rknn, .nb); for parts, an ONNX model.", exists=True, dir_okay=False
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUT.onnx", help="ONNX file to write; for parts, a folder.", exists=False)
    ],
    embed: Annotated[bool, typer.Option("--embed", help="Store the model in the ONNX file instead of its path.")] = False,
    inputs: Annotated[
        InputForm,
        typer.Option(
            "--inputs", help="Types of the inputs: float32, uint8 pixels in NHWC, or the values that the NPU reads, in NHWC."
        ),
    ] = InputForm.FLOAT,
    outputs: Annotated[
        OutputForm, typer.Option("--outputs", help="Types of the outputs: float32, or the values that the NPU writes.")
    ] = OutputForm.FLOAT,
    target: Annotated[
        str | None, typer.Option("--target", "-t", metavar="CHIP", help="For parts: the chip.", callback=optional_chip)
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype", metavar="TYPE", help="For parts: type of the models; by default fp16, and int8 with --dataset or scales."
        ),
    ] = None,
    dataset: Annotated[Path | None, typer.Option("--dataset", metavar="PATH", help="For parts: calibration data.")] = None,
    mean: Annotated[list[str] | None, typer.Option("--mean", metavar="[NAME=]a,b,c", help="For parts: mean of the data.")] = None,
    std: Annotated[list[str] | None, typer.Option("--std", metavar="[NAME=]a,b,c", help="For parts: its deviation.")] = None,
    shapes: Annotated[
        list[str] | None, typer.Option("--shape", metavar="NAME=1,3,480,480", help="For parts: shape of an input.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write compiled models for programs that use onnxruntime.

    The EPContext model is an ONNX file with one node, which the plug-in execution provider opens (anynpu lib --ep). The provider runs
    'anynpu ort parts' itself for ONNX models that are not compiled.

    \b
    Example:
      anynpu ort wrap yolo.rknn -o yolo_ctx.onnx
      anynpu ort wrap yolo.rknn -o yolo_ctx.onnx --embed --inputs uint8
    """
    if action is Action.PARTS:
        kind = dtype_name(dtype or default_dtype(model, dataset))
        options = read_inputs(model, {"dtype": kind, "dataset": dataset, "mean": mean, "std": std, "shapes": shapes})
        _report(_parts(model, output, target or DEFAULT_CHIP, CompileOptions(**options)), as_json)
        return
    path = wrap_model(model, output, embed=embed, inputs=inputs, outputs=outputs)
    size = path.stat().st_size
    if as_json:
        print_json({"path": str(path), "bytes": size, "embed_mode": int(embed)})
        return
    results().print(f"wrote {path} ({size_text(size)}), {'with' if embed else 'with the path of'} {model.name}")


def _parts(model: Path, folder: Path, target: str, options: CompileOptions) -> PartPlan:
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{folder} is not a folder", hint="name a folder with -o")
    folder.mkdir(parents=True, exist_ok=True)
    plan = compile_parts(model, target, options)
    write_parts(plan, folder)
    return plan


def _report(plan: PartPlan, as_json: bool) -> None:
    counts = [len(part.nodes) for part in plan.parts]
    if as_json:
        print_json({"nodes": plan.count, "parts": counts, "left": {str(node): reason for node, reason in plan.left.items()}})
        return
    results().print(f"{sum(counts)} of {plan.count} nodes in {len(counts)} part{'' if len(counts) == 1 else 's'}")
    for line in plan.reasons():
        results().print(f"  {line}")
