"""``anynpu twin``: a model that the software NPU runs in place of a vendor's file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import anynpu

from ...compiler import CompileOptions
from ...modelfile import vendorfile
from ...modelfile.stand_ins import twin_folders, twin_name
from ..helpers.console import print_json, progress_bar, results, size_text
from ..helpers.flags import with_flags
from ..helpers.options import JsonOption, dtype_name, dtype_words, optional_chip, read_inputs


@with_flags(CompileOptions, callbacks={"dtype": dtype_name})
def command(
    model: Annotated[
        Path, typer.Argument(metavar="FILE", help="The vendor's file: .rknn or .nb.", exists=True, dir_okay=False, readable=True)
    ],
    onnx: Annotated[
        Path, typer.Option("--onnx", metavar="MODEL", help="The ONNX model that it was made of.", exists=True, dir_okay=False)
    ],
    given: dict[str, Any],
    target: Annotated[
        str | None,
        typer.Option("--target", "-t", metavar="CHIP", help="By default the chip that the file is for.", callback=optional_chip),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder", metavar="FOLDER", help="Where to put it; by default ANYNPU_TWINS, or the cache.", file_okay=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make the anynpu model of a vendor's file, which programs then find by the file's hash.

    \b
    Example:
      anynpu twin yolo.rknn --onnx yolo.onnx --dataset street/ --std 255,255,255
      anynpu exec --chip rk3588 -- ./detector yolo.rknn street.jpg
    """
    info = vendorfile.read(model)
    chip = target or info.chip
    if not chip:
        raise typer.BadParameter(f"{model.name} does not name its chip: pass --target")
    with progress_bar(f"compiling {onnx.stem} for {chip} ({dtype_words(given['dtype'], chip)})") as progress:
        compiled = anynpu.compile(onnx, chip, CompileOptions(**read_inputs(onnx, given)), progress=progress)
    place = folder or twin_folders()[0]
    place.mkdir(parents=True, exist_ok=True)
    path = compiled.save(place / twin_name(model))
    if as_json:
        print_json({"path": str(path), "bytes": path.stat().st_size, "chip": chip, "twin_of": str(model)})
        return
    results().print(f"wrote {path} ({size_text(path.stat().st_size)}), the anynpu model of {model.name}")
