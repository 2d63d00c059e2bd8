"""``anynpu run``: run a compiled model on the software NPU."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import anynpu

from ...arrayfile import open_array
from ...errors import ImageError, ShapeError
from ...program import Model
from ...session import InferenceSession, SessionOptions
from ...tensor import DType, TensorSpec
from ...types import Array
from ..helpers.console import plain_table, results
from ..helpers.flags import with_flags
from ..helpers.options import SeedOption, optional_chip, parse_named_files
from ..helpers.summary import shape_text

__all__ = ["command"]


_TOP_VALUES = 5


@with_flags(SessionOptions)
def command(
    given: dict[str, Any],
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A compiled model.", exists=True, dir_okay=False, readable=True)],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", "-i", metavar="[NAME=]FILE", help="An image or .npy. Repeat for other inputs; the rest is random."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Save each output as .npy here.", file_okay=False)
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", "-t", metavar="CHIP", help="The chip. The model's own by default.", callback=optional_chip),
    ] = None,
    shape_set: Annotated[int, typer.Option(min=0, help="Which of the model's shape sets to run.")] = 0,
    seed: SeedOption = 0,
) -> None:
    """Run a compiled model on the software NPU.

    Without --input an input is random. An image is scaled to the size of the input.

    \b
    Example:
      anynpu run yolo.rknn --input street.jpg
      anynpu run yolo.rknn --input images=frame.npy --output results/
    """
    compiled = anynpu.load(model)
    if shape_set >= len(compiled.programs):
        raise typer.BadParameter(f"the model has {len(compiled.programs)} shape sets, counted from 0", param_hint="'--shape-set'")
    program = compiled.programs[shape_set]
    files = parse_named_files(inputs, program.inputs)
    arrays = _arrays(compiled, program.input_specs, files, seed)
    if given["isolate"]:
        with InferenceSession(model, provider_options=given, device=f"sim:{target or compiled.chip}") as session:
            values = session.run(None, arrays)
    else:
        with (
            anynpu.Device(target or compiled.chip) as device,
            device.load(compiled) as loaded,
            loaded.context(shapes=shape_set) as context,
        ):
            values = context.run(arrays)
    console = results()
    console.print(f"{model.name} on the software NPU: {target or compiled.chip}")
    for spec in program.input_specs:
        console.print(f"  input   {spec.name} {shape_text(spec.shape)}: {files.get(spec.name, f'random, seed {seed}')}")
    table = plain_table("output", "shape", "min", "max", "mean", "largest values", right=("min", "max", "mean"))
    for spec, value in zip(program.output_specs, values, strict=True):
        statistics = (f"{number:.5g}" for number in (value.min(), value.max(), value.mean(dtype=np.float64)))
        table.add_row(spec.name, shape_text(value.shape), *statistics, _largest(value))
    console.print(table)
    if output is not None:
        for path in _save(output, (spec.name for spec in program.output_specs), values):
            console.print(f"wrote {path}")


def _arrays(model: Model, specs: Iterable[TensorSpec], files: Mapping[str, Path], seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        spec.name: _from_file(files[spec.name], spec) if spec.name in files else _random(rng, spec, spec.name in model.preprocess)
        for spec in specs
    }


def _from_file(path: Path, spec: TensorSpec) -> Array:
    """The array of a .npy file, or a picture as N, C, H, W in the input's size."""
    if path.suffix.lower() == ".npy":
        try:
            return np.asarray(open_array(path))
        except ValueError as error:
            raise ShapeError(f"{path} is not a .npy file: {error}", hint="write it with numpy.save(path, array)") from error
    if len(spec.shape) != 4:
        raise ImageError(
            f"{path} is taken for a picture, but input '{spec.name}' has the shape {list(spec.shape)}",
            hint="save the values with numpy.save and pass the .npy file",
        )
    from ...compiler.images import load_image

    batch, channels, height, width = spec.shape
    image = load_image(path, height, width, channels)
    planes = np.ascontiguousarray(image.reshape(height, width, channels).transpose(2, 0, 1))
    return np.repeat(planes[None], batch, axis=0)


def _random(rng: np.random.Generator, spec: TensorSpec, is_raw: bool) -> Array:
    """Random bytes for a picture, small integers for an integer input, normal values for others."""
    if is_raw or (len(spec.shape) == 4 and spec.shape[1] in (1, 3, 4)):
        return rng.integers(0, 256, spec.shape, np.uint8)
    if spec.dtype in (DType.INT32, DType.INT64, DType.BOOL) and spec.quantization is None:
        return rng.integers(0, 2, spec.shape).astype(spec.dtype.storage)
    return rng.standard_normal(spec.shape, np.float32)


def _largest(value: Array) -> str:
    """The largest values with their places: ``[0, 17] 0.93  [0, 4] 0.02``."""
    flat = value.ravel()
    places = np.argsort(-flat, kind="stable")[:_TOP_VALUES]
    return "  ".join(f"{[int(i) for i in np.unravel_index(place, value.shape)]} {flat[place]:.4g}" for place in places)


def _save(folder: Path, names: Iterable[str], values: Iterable[Array]) -> list[Path]:
    """One .npy file for each output; characters that do not belong in a file name become underscores."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for index, (name, value) in enumerate(zip(names, values, strict=True)):
        stem = re.sub(r"[^\w.-]", "_", name).lstrip(".") or f"output{index}"
        path = folder / f"{stem}.npy"
        if path in paths:
            path = folder / f"{stem}.{index}.npy"
        np.save(path, value, allow_pickle=False)
        paths.append(path)
    return paths
