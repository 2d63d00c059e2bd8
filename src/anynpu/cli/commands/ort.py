"""``anynpu ort``: compiled models for programs that use onnxruntime."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from ...session.onnxruntime.context_model import InputForm, OutputForm, wrap_model
from ..helpers.console import print_json, results, size_text
from ..helpers.options import JsonOption

__all__ = ["command"]


class Action(str, enum.Enum):
    """What to do."""

    WRAP = "wrap"


def command(
    action: Annotated[Action, typer.Argument(help="wrap: write an EPContext model for a compiled model.")],
    model: Annotated[
        Path, typer.Argument(metavar="FILE", help="Compiled model: .rknn or .nb.", exists=True, dir_okay=False, readable=True)
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT.onnx", help="ONNX file to write.", dir_okay=False)],
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
    as_json: JsonOption = False,
) -> None:
    """Write compiled models for programs that use onnxruntime.

    The EPContext model is an ONNX file with one node, which the plug-in execution provider opens (anynpu lib --ep).

    \b
    Example:
      anynpu ort wrap yolo.rknn -o yolo_ctx.onnx
      anynpu ort wrap yolo.rknn -o yolo_ctx.onnx --embed --inputs uint8
    """
    path = wrap_model(model, output, embed=embed, inputs=inputs, outputs=outputs)
    size = path.stat().st_size
    if as_json:
        print_json({"path": str(path), "bytes": size, "embed_mode": int(embed)})
        return
    results().print(f"wrote {path} ({size_text(size)}), {'with' if embed else 'with the path of'} {model.name}")
