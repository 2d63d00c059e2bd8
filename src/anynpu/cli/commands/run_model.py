"""``anynpu run``: run a compiled model on the software NPU."""

from __future__ import annotations

import contextlib
import enum
import io
import itertools
import os
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

import anynpu

from ..._util import optional as _optional
from ..._util.array_files import open_array
from ..._util.output_files import check_output, write_output
from ..._util.types import Array
from ...compiler.images import IMAGE_SUFFIXES
from ...errors import ImageError, ParameterError, ShapeError
from ...modelfile import FileKind, identify
from ...program import Model
from ...session import InferenceSession, SessionOptions
from ...tasks import Result, TextLine, TextRegions, Thresholds, labels_from_file
from ...tasks.draw import draw
from ...tensor import DType, TensorSpec
from ..demo.pages import captioned, side_by_side
from ..helpers.console import plain_table, print_json, results
from ..helpers.flags import with_flags
from ..helpers.image_models import VIDEO_SUFFIXES, FloatPictureModel, Frame, FrameSource, PictureModel, open_source, predicted_fps
from ..helpers.options import JsonOption, SeedOption, optional_chip, parse_named_files
from ..helpers.summary import shape_text
from ..helpers.verbosity import named_files

# ``anynpu run`` on images: what is printed, and what is drawn.


_TABLE_ROWS = 20
_FPS = 25.0


@dataclass(frozen=True)
class Shown:
    """What a model states about one image.

    :ivar drawn: the file that it was drawn into, if any
    :ivar in_float: the result of the float model, if it was asked for
    """

    name: str
    result: Result
    rows: list[dict[str, Any]]
    drawn: Path | None
    in_float: Shown | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON-ready data."""
        data = {"picture": self.name, "results": self.rows, "drawn": None if self.drawn is None else str(self.drawn)}
        return data if self.in_float is None else {**data, "float": self.in_float.rows}

    @property
    def words(self) -> str:
        """One line: ``2 person, 1 dog``."""
        if isinstance(self.result, TextLine):
            return f"{self.result.text!r} {self.result.score:.2f}"
        if isinstance(self.result, TextRegions) and not self.result.lines:
            return f"{len(self.rows)} regions of text"
        if isinstance(self.result, TextRegions):
            return " | ".join(line.text for line in self.result.lines) or "no text"
        if self.rows and "box" not in self.rows[0]:
            return ", ".join(f"{row['label']} {row.get('score', row.get('share')):.2f}" for row in self.rows[:3])
        counted = Counter(row["label"] for row in self.rows)
        return ", ".join(f"{count} {label}" for label, count in counted.most_common()) or "nothing found"


class Canvas:
    """Where drawn images go: a file, a folder, or a video."""

    def __init__(self, path: Path, source: FrameSource) -> None:
        self._path = path
        self._source = source
        self._writer: Any = None
        self._unfinished = path.with_name(f".{path.stem}.{secrets.token_hex(6)}{path.suffix}")
        suffix = path.suffix.lower()
        self._is_video = suffix in VIDEO_SUFFIXES
        self._is_file = suffix in IMAGE_SUFFIXES
        if self._is_video and not source.is_moving:
            raise ParameterError(f"--draw {path}: a {source.kind} is not drawn into a video", hint="give an image or a folder")
        if self._is_file and source.kind != "picture":
            raise ParameterError(
                f"--draw {path}: a {source.kind} has many images", hint="give a folder, or for frames a video such as out.mp4"
            )
        if not self._is_file and not self._is_video and (path.suffix and not path.is_dir()) and source.kind == "picture":
            raise ParameterError(
                f"--draw {path}: images are not written as {path.suffix}", hint="write .jpg or .png, or give a folder"
            )
        drawn = [path] if self._is_file or self._is_video else [path / _file_name(file.name) for file in source.files]
        for file in drawn:
            check_output(file, source.files)
        folder = path.parent if self._is_file or self._is_video else path
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ParameterError(
                f"--draw {path}: the folder {folder} cannot be made: {error.strerror}", hint="name another place"
            ) from None

    def put(self, name: str, picture: Array) -> Path:
        """Write one image; the path of the file that it is in."""
        cv2 = _optional.cv2()
        turned = cv2.cvtColor(picture, cv2.COLOR_RGB2BGR)
        if self._is_video:
            if self._writer is None:
                code = cv2.VideoWriter_fourcc(*("MJPG" if self._path.suffix.lower() == ".avi" else "mp4v"))
                extent = (picture.shape[1], picture.shape[0])
                self._writer = cv2.VideoWriter(str(self._unfinished), code, self._source.fps or _FPS, extent)
                if not self._writer.isOpened():
                    raise ImageError(f"cannot write the video '{self._path}'", hint="write .avi or .mp4, or give a folder")
            self._writer.write(turned)
            return self._path
        path = self._path if self._is_file else self._path / _file_name(name)
        return write_output(path, cv2.imencode(path.suffix, turned)[1].tobytes(), inputs=self._source.files)

    def close(self) -> None:
        """End a video."""
        if self._writer is not None:
            self._writer.release()
            os.replace(self._unfinished, os.path.realpath(self._path))


@contextmanager
def open_canvas(path: Path | None, source: FrameSource) -> Iterator[Canvas | None]:
    """The canvas for *path*, checked before any work; None without a path."""
    if path is None:
        yield None
        return
    canvas = Canvas(path, source)
    try:
        yield canvas
    finally:
        canvas.close()


def _file_name(name: str) -> str:
    if Path(name).suffix.lower() in IMAGE_SUFFIXES:
        return Path(name).name
    return f"{name.replace(' ', '_').replace('/', '_')}.jpg"


def show(
    model: PictureModel | FloatPictureModel,
    recognizer: PictureModel | None,
    frames: Iterable[Frame],
    canvas: Canvas | None,
    thresholds: Thresholds | None,
    in_float: FloatPictureModel | None = None,
) -> Iterator[Shown]:
    """Each image's result, drawn where there is a canvas.

    :param in_float: the float model, whose result is drawn to the left
    """
    for frame in frames:
        result = model.result(frame.picture, thresholds)
        if recognizer is not None and isinstance(result, TextRegions):
            result = recognizer.read_regions(frame.picture, result)
        labels, other = model.labels, None
        if in_float is not None:
            found = in_float.result(frame.picture, thresholds)
            other = Shown(frame.name, found, list(found.rows(in_float.labels)), None)
        drawn = None
        if canvas is not None:
            image = draw(frame.picture, result, labels)
            if other is not None and isinstance(model, PictureModel):
                panels = [(draw(frame.picture, other.result, labels), "float32"), (image, f"{model.model.dtype}, {model.chip}")]
                image = side_by_side([captioned(panel, caption) for panel, caption in panels])
            drawn = canvas.put(frame.name, image)
        yield Shown(frame.name, result, list(result.rows(labels)), drawn, other)


def print_shown(console: Console, shown: Shown, *, alone: bool) -> None:
    """One line, and for a single image a table."""
    console.print(f"{shown.name}: {shown.words}")
    if shown.in_float is not None:
        console.print(f"  float32: {shown.in_float.words}")
    if not alone or isinstance(shown.result, TextLine) or not shown.rows:
        return
    number = ("score", "box", "share", "text score")
    columns = [key for key in ("text", "label", "score", "text_score", "share", "box", "corners") if key in shown.rows[0]]
    table = plain_table(*(key.replace("_", " ") for key in columns), right=number)
    for row in shown.rows[:_TABLE_ROWS]:
        table.add_row(*(_cell(row[key]) for key in columns))
    console.print(table)
    if len(shown.rows) > _TABLE_ROWS:
        console.print(f"and {len(shown.rows) - _TABLE_ROWS} more; --json has all")


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, list):
        return " ".join(
            f"{entry:.0f}" if isinstance(entry, float) else ",".join(f"{part:.0f}" for part in entry) for entry in value
        )
    return str(value)


def speed_line(model: PictureModel | FloatPictureModel, shape_set: int) -> str:
    """Images per second here, and as predicted for the chip."""
    spent = model.spent
    here = f"{spent.fps:.1f} images per second here ({1000 * spent.running / max(spent.pictures, 1):.1f} ms network"
    here = f"{here}, {1000 * spent.reading / max(spent.pictures, 1):.1f} ms outputs)"
    if not isinstance(model, PictureModel):
        return here
    fps, confidence = predicted_fps(model.model, shape_set, model.chip)
    return f"{here}; {model.chip}: {fps:.0f} per second predicted on all cores, {confidence}"


_TOP_VALUES = 5


class _Task(str, enum.Enum):
    """What the outputs are."""

    DETECT = "detect"
    POSE = "pose"
    SEGMENT = "segment"
    OBB = "obb"
    FACE = "face"
    CLASSIFY = "classify"
    OCR = "ocr"
    RAW = "raw"


class _Fit(str, enum.Enum):
    """How an image gets into the input."""

    LETTERBOX = "letterbox"
    CORNER = "corner"
    STRETCH = "stretch"
    CROP = "crop"


@with_flags(SessionOptions)
def command(
    given: dict[str, Any],
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="A compiled model, or an ONNX model in float32.",
            exists=True,
            dir_okay=False,
            readable=True,
        ),
    ],
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="PICTURE|FOLDER|VIDEO|CAMERA|-", help="What to show the model: a path, a camera's number, or - for stdin."
        ),
    ] = None,
    task: Annotated[
        _Task | None, typer.Option("--task", help="What the outputs are. Guessed by default; raw prints the values.")
    ] = None,
    draw: Annotated[
        Path | None, typer.Option("--draw", metavar="OUT", help="Draw the results: an image, a folder, or a video (.mp4, .avi).")
    ] = None,
    in_float: Annotated[
        Path | None,
        typer.Option(
            "--float",
            metavar="MODEL.onnx",
            help="The ONNX model that MODEL was compiled from: show the results of both, and draw them side by side.",
            exists=True,
            dir_okay=False,
            readable=True,
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels",
            metavar="FILE|coco",
            help="Names of the classes, one per line. Default: the model's own, or those of COCO for 80 classes.",
        ),
    ] = None,
    score: Annotated[float | None, typer.Option("--score", min=0.0, max=1.0, help="Smallest score that is shown.")] = None,
    overlap: Annotated[
        float | None, typer.Option("--overlap", min=0.0, max=1.0, help="Boxes of a class that overlap by more are one.")
    ] = None,
    head: Annotated[
        str | None, typer.Option("--head", metavar="NAME", help="Form of the outputs, such as yolov7. Guessed by default.")
    ] = None,
    fit: Annotated[_Fit | None, typer.Option("--fit", help="How an image gets into the input. By the task by default.")] = None,
    recognize: Annotated[
        Path | None,
        typer.Option(
            "--recognize",
            metavar="MODEL",
            help="A compiled model that reads the text that MODEL finds.",
            exists=True,
            dir_okay=False,
            readable=True,
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Stop after this many images.")] = None,
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
    as_json: JsonOption = False,
) -> None:
    """Run a compiled model on the software NPU, or an ONNX model in float32, and show what it sees.

    Given an image, a folder, a video, a camera or a stream, the outputs are decoded: boxes, keypoints, masks, classes or text. Without
    one, or with --task raw, the values themselves are shown; an input without --input is random.

    \b
    Example:
      anynpu run yolo.rknn street.jpg --draw out.jpg
      anynpu run yolo.rknn street.jpg --float yolo.onnx --draw both.jpg
      anynpu run yolo.onnx street.jpg --draw float.jpg
      anynpu run yolo.rknn street.mp4 --draw out.mp4 --labels coco
      anynpu run det.rknn page.png --recognize rec.rknn --draw out.png
      anynpu run yolo.rknn --input images=frame.npy --output results/
    """
    chosen = None if task is None else task.value
    if draw is not None and source is None and inputs and len(inputs) == 1 and output is None and chosen != "raw":
        source, inputs = named_files(inputs)[-1], None  # one image, which is drawn on
    if source is not None and chosen != "raw":
        if inputs or output:
            raise typer.BadParameter("images are decoded; use --input and --output without one, or with --task raw")
        limits = Thresholds(score=0.25 if score is None else score, overlap=0.45 if overlap is None else overlap)
        wanted = None if score is None and overlap is None else limits
        names = () if labels is None else labels_from_file(labels)
        options = {"target": target, "shape_set": shape_set, "given": given}
        _run_pictures(
            model, in_float, source, draw, recognize, wanted, limit, as_json,
            {**options, "task": chosen, "head": head, "labels": names, "fit": None if fit is None else fit.value},
        )  # fmt: skip
        return
    if in_float is not None:
        raise typer.BadParameter("needs an image, folder, video or camera to compare on", param_hint="'--float'")
    if draw is not None:
        raise typer.BadParameter("needs an image, folder, video or camera to draw on", param_hint="'--draw'")
    if source is not None:
        inputs = [source, *(inputs or ())]
    _run_raw(given, model, inputs, output, target, shape_set, seed, as_json)


def _words_of_names(model: PictureModel | FloatPictureModel) -> str:
    """What is worth knowing about the names of the classes; empty where all is well."""
    classes = model.reader.classes
    if model.assumes_coco:
        return "; names of COCO, as the model has none (--labels)"
    count = len(model.labels)
    if count and classes and count != classes and model.reader.task != "ocr":
        return f"; {count} name{'' if count == 1 else 's'} for {classes} class{'' if classes == 1 else 'es'}: check --labels"
    return ""


def _is_onnx(path: Path) -> bool:
    return identify(path) is FileKind.ONNX or path.suffix.lower() == ".onnx"


def _run_float(
    path: Path,
    text: str,
    draw: Path | None,
    thresholds: Thresholds | None,
    limit: int | None,
    as_json: bool,
    options: dict[str, Any],
) -> None:
    """Run an ONNX model on images."""
    source = open_source(text)
    with open_canvas(draw, source) as canvas:
        frames = iter(source.frames)
        first = next(frames, None)
        if first is None:
            raise ImageError(f"there is no image in '{text}'", hint="name an image, a folder or a video")
        model = FloatPictureModel(path, first=first.picture, **{key: options[key] for key in ("task", "head", "labels", "fit")})
        console = results()
        if not as_json:
            console.print(f"{path.name} in float32 on this machine")
            console.print(f"  {model.reader.words}; {_FIT_WORDS[model.fit]}{_words_of_names(model)}")
            console.print(f"  {model.preprocessing}")
        shown: list[dict[str, Any]] = []
        for entry in show(model, None, itertools.islice(itertools.chain([first], frames), limit), canvas, thresholds):
            if as_json:
                shown.append(entry.to_json())
            else:
                print_shown(console, entry, alone=source.kind == "picture")
        if as_json:
            facts = {"model": path.name, "chip": None, "task": model.reader.task, "head": model.reader.head}
            print_json({**facts, "preprocessing": model.preprocessing, "pictures": shown, "fps_here": round(model.spent.fps, 2)})
            return
        if source.kind != "picture":
            console.print(speed_line(model, 0))
        if draw is not None:
            console.print(f"wrote {draw}")


def _run_pictures(
    path: Path,
    in_float: Path | None,
    text: str,
    draw: Path | None,
    recognize: Path | None,
    thresholds: Thresholds | None,
    limit: int | None,
    as_json: bool,
    options: dict[str, Any],
) -> None:
    if _is_onnx(path):
        if in_float is not None or recognize is not None:
            raise typer.BadParameter(f"{path.name} is an ONNX model: --float and --recognize go with a compiled one")
        _run_float(path, text, draw, thresholds, limit, as_json, options)
        return
    _check_shape_set(anynpu.load(path), options["shape_set"])
    source = open_source(text)
    with contextlib.ExitStack() as stack:
        canvas = stack.enter_context(open_canvas(draw, source))
        model = stack.enter_context(PictureModel(path, **options))
        recognizer = None
        if recognize is not None:
            if model.reader.head != "text regions":
                raise ParameterError(
                    f"{path.name} finds no text: {model.reader.words}", hint="--recognize goes with a text detector"
                )
            shared = {key: options[key] for key in ("labels", "given")}
            recognizer = stack.enter_context(PictureModel(recognize, task="ocr", **shared))
        other = None
        if in_float is not None:
            other = FloatPictureModel(in_float, like=model, **{key: options[key] for key in ("task", "head", "labels", "fit")})
        console = results()
        if not as_json:
            console.print(f"{path.name} on the software NPU: {model.chip}")
            console.print(f"  {model.reader.words}; {_FIT_WORDS[model.fit]}{_words_of_names(model)}")
        shown: list[dict[str, Any]] = []
        for entry in show(model, recognizer, itertools.islice(source.frames, limit), canvas, thresholds, other):
            if as_json:
                shown.append(entry.to_json())
            else:
                print_shown(console, entry, alone=source.kind == "picture")
        if as_json:
            fps, confidence = predicted_fps(model.model, options["shape_set"], model.chip)
            print_json(
                {
                    "model": path.name,
                    "chip": model.chip,
                    "task": model.reader.task,
                    "head": model.reader.head,
                    "pictures": shown,
                    "fps_here": round(model.spent.fps, 2),
                    "fps_predicted": round(fps, 2),
                    "confidence": confidence,
                }
            )
            return
        if source.kind != "picture":
            console.print(speed_line(model, options["shape_set"]))
        if draw is not None:
            console.print(f"wrote {draw}")


_FIT_WORDS = {
    "letterbox": "images keep their proportions, in the middle of the input",
    "corner": "images keep their proportions, at the top left of the input",
    "stretch": "images are stretched to the input",
    "crop": "the middle of images fills the input",
}


def _check_shape_set(compiled: Model, shape_set: int) -> None:
    if shape_set >= len(compiled.programs):
        raise typer.BadParameter(f"the model has {len(compiled.programs)} shape sets, counted from 0", param_hint="'--shape-set'")


def _run_raw(
    given: dict[str, Any],
    model: Path,
    inputs: list[str] | None,
    output: Path | None,
    target: str | None,
    shape_set: int,
    seed: int,
    as_json: bool,
) -> None:
    compiled = anynpu.load(model)
    _check_shape_set(compiled, shape_set)
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
    saved = (
        [] if output is None else _save(output, (spec.name for spec in program.output_specs), values, [model, *files.values()])
    )
    if as_json:
        print_json(_raw_json(model.name, target or compiled.chip, program.output_specs, values, saved))
        return
    console = results()
    console.print(f"{model.name} on the software NPU: {target or compiled.chip}")
    for spec in program.input_specs:
        console.print(f"  input   {spec.name} {shape_text(spec.shape)}: {files.get(spec.name, f'random, seed {seed}')}")
    table = plain_table("output", "shape", "min", "max", "mean", "largest values", right=("min", "max", "mean"))
    for spec, value in zip(program.output_specs, values, strict=True):
        statistics = (f"{number:.5g}" for number in (value.min(), value.max(), value.mean(dtype=np.float64)))
        table.add_row(spec.name, shape_text(value.shape), *statistics, _largest(value))
    console.print(table)
    for path in saved:
        console.print(f"wrote {path}")


def _raw_json(name: str, chip: str, specs: Iterable[TensorSpec], values: Iterable[Array], saved: list[Path]) -> dict[str, Any]:
    rows = [
        {
            "name": spec.name,
            "shape": list(value.shape),
            "min": float(value.min()),
            "max": float(value.max()),
            "mean": float(value.mean(dtype=np.float64)),
        }
        for spec, value in zip(specs, values, strict=True)
    ]
    return {"model": name, "chip": chip, "task": "raw", "outputs": rows, "saved": [str(path) for path in saved]}


def _arrays(model: Model, specs: Iterable[TensorSpec], files: Mapping[str, Path], seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        spec.name: _from_file(files[spec.name], spec) if spec.name in files else _random(rng, spec, spec.name in model.preprocess)
        for spec in specs
    }


def _from_file(path: Path, spec: TensorSpec) -> Array:
    """The array of a .npy file, or an image as N, C, H, W in the input's size."""
    if path.suffix.lower() == ".npy":
        try:
            return np.asarray(open_array(path))
        except ValueError as error:
            raise ShapeError(f"{path} is not a .npy file: {error}", hint="write it with numpy.save(path, array)") from error
    if len(spec.shape) != 4:
        raise ImageError(
            f"{path} is taken for an image, but input '{spec.name}' has the shape {list(spec.shape)}",
            hint="save the values with numpy.save and pass the .npy file",
        )
    from ...compiler.images import load_image

    batch, channels, height, width = spec.shape
    image = load_image(path, height, width, channels)
    planes = np.ascontiguousarray(image.reshape(height, width, channels).transpose(2, 0, 1))
    return np.repeat(planes[None], batch, axis=0)


def _random(rng: np.random.Generator, spec: TensorSpec, is_raw: bool) -> Array:
    """Random bytes for an image, small integers for an integer input, normal values for others."""
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


def _save(folder: Path, names: Iterable[str], values: Iterable[Array], inputs: Iterable[Path]) -> list[Path]:
    """One .npy file for each output; characters that do not belong in a file name become underscores."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for index, (name, value) in enumerate(zip(names, values, strict=True)):
        stem = re.sub(r"[^\w.-]", "_", name).lstrip(".") or f"output{index}"
        path = folder / f"{stem}.npy"
        if path in paths:
            path = folder / f"{stem}.{index}.npy"
        buffer = io.BytesIO()
        np.save(buffer, value, allow_pickle=False)
        write_output(path, buffer.getbuffer(), inputs=inputs)
        paths.append(path)
    return paths
