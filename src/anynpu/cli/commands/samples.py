"""``anynpu samples``: the files that the documentation's examples name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..helpers.console import print_json, results
from ..helpers.options import JsonOption


def command(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where to write them.", file_okay=False)] = Path("samples"),
    as_json: JsonOption = False,
) -> None:
    """Write small models and images to try the examples of the documentation with.

    detector.onnx finds colorful boxes in the images. yolo.onnx, det.onnx and tiny.onnx have random weights: they show how things work,
    and detect nothing.

    \b
    Example:
      anynpu samples
      cd samples && anynpu run detector.rknn street/001.jpg --float detector.onnx --draw both.png
    """
    from ..demo.samples import write_samples

    made = write_samples(folder)
    if as_json:
        print_json([str(path) for path in made])
        return
    pictures = sum(path.suffix == ".jpg" for path in made)
    models = ", ".join(path.name for path in made if path.suffix != ".jpg")
    results().print(f"wrote {models} and {pictures} images to {folder}")
