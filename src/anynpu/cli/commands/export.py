"""``anynpu export``: the scales of our config: in a quantized ONNX model, alone, or in a configuration of the vendor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ..._util.output_files import write_output
from ...compiler.board.worker import edited
from ...compiler.compile_options import CompileOptions
from ...compiler.export import handover, scales_of, to_qdq
from ...errors import ModelError
from ..helpers.console import print_json, progress_bar, results, size_text
from ..helpers.flags import with_flags
from ..helpers.options import DEFAULT_CHIP, JsonOption, OnnxArgument, TargetOption, read_inputs

_OPTIONS = ("dataset", "mean", "std", "channel_order", "shapes", "batch", "accuracy", "calibration_limit")


@with_flags(CompileOptions, only=_OPTIONS, required=("dataset",))
def command(
    model: OnnxArgument,
    given: dict[str, Any],
    target: TargetOption = DEFAULT_CHIP,
    qdq: Annotated[
        Path | None,
        typer.Option("--qdq", metavar="OUT.onnx", help="Write the quantized model, which onnxruntime runs.", dir_okay=False),
    ] = None,
    scales: Annotated[
        Path | None,
        typer.Option(
            "--scales", metavar="OUT.json", help="Write scale and zero point by tensor, as --ranges reads them.", dir_okay=False
        ),
    ] = None,
    cfg: Annotated[
        Path | None,
        typer.Option(
            "--cfg",
            metavar="FILE",
            help="Set the ranges in a .quantization.cfg, between the two steps of the vendor's hybrid quantization.",
            exists=True,
            dir_okay=False,
            writable=True,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a quantized ONNX model with the scales of the config, for other tools.

    The scales are chosen as for the vendor's toolkit: one range per tensor, weights per output channel.

    \b
    Example:
      anynpu export yolo.onnx --qdq yolo.qdq.onnx --target rk3588 --dataset street/ --std 255,255,255
      anynpu export yolo.onnx --scales yolo.json --target rk3588 --dataset street/ --std 255,255,255
      anynpu export yolo.onnx --cfg yolo.quantization.cfg --target rk3588 --dataset street/ --std 255,255,255
    """
    if qdq is None and scales is None and cfg is None:
        raise typer.BadParameter("choose what to write: --qdq OUT.onnx, --scales OUT.json, --cfg FILE", param_hint="'--qdq'")
    options = read_inputs(model, given, "export")
    # the toolkit has the model's own weights already where it wrote a configuration
    refit = options.pop("accuracy") != "fast" and cfg is None
    with progress_bar(f"choosing scales of {model.stem} for {target}") as progress:
        chosen = handover(model, target, refit=refit, progress=progress, **options)
    written = []
    if qdq is not None:
        write_output(qdq, to_qdq(chosen).SerializeToString())
        written.append(qdq)
    if scales is not None:
        write_output(scales, json.dumps(scales_of(chosen), indent=1) + "\n")
        written.append(scales)
    if cfg is not None:
        _set_ranges(cfg, chosen.ranges)
        written.append(cfg)
    if as_json:
        print_json({"written": [str(path) for path in written], "tensors": len(chosen.ranges), "notes": list(chosen.notes)})
        return
    console = results()
    for note in chosen.notes:
        console.print(f"  {note}")
    for path in written:
        console.print(f"wrote {path} ({size_text(path.stat().st_size)})")


def _set_ranges(cfg: Path, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Change ``min`` and ``max`` of a configuration, and no other byte of it."""
    text, changed = edited(cfg.read_text(encoding="utf-8"), dict(ranges))
    if not changed:
        raise ModelError(
            f"{cfg} has no int8 tensor of this model",
            hint="give the .quantization.cfg that hybrid_quantization_step1 wrote for it",
        )
    write_output(cfg, text)
