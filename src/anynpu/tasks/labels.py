"""Names of classes: from a model's metadata, from a file, or the 80 of COCO."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from .._util.types import Array
from ..errors import ParameterError, ShapeError
from .boxes import is_activated
from .results import Classification, SemanticMap
from .suppress import softmax

MAX_BYTES = 1 << 22
"""Size of a file of labels that is read."""

MAX_KEYPOINTS = 10_000
"""That a model may state it has."""

_COCO = (
    "person,bicycle,car,motorcycle,airplane,bus,train,truck,boat,traffic light,fire hydrant,stop sign,parking meter,bench,"
    "bird,cat,dog,horse,sheep,cow,elephant,bear,zebra,giraffe,backpack,umbrella,handbag,tie,suitcase,frisbee,skis,snowboard,"
    "sports ball,kite,baseball bat,baseball glove,skateboard,surfboard,tennis racket,bottle,wine glass,cup,fork,knife,spoon,"
    "bowl,banana,apple,sandwich,orange,broccoli,carrot,hot dog,pizza,donut,cake,chair,couch,potted plant,bed,dining table,"
    "toilet,tv,laptop,mouse,remote,keyboard,cell phone,microwave,oven,toaster,sink,refrigerator,book,clock,vase,scissors,"
    "teddy bear,hair drier,toothbrush"
)

COCO = tuple(_COCO.split(","))
"""The 80 classes of COCO, in the order in which detectors have them."""


def labels_from_metadata(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """Labels that an exporter left in a model: ``names`` of Ultralytics, ``character`` of PP-OCR, ``labels``; empty if there are none.

    >>> labels_from_metadata({"names": "{0: 'cat', 1: 'dog'}"})
    ('cat', 'dog')
    """
    for key in ("names", "labels", "classes"):
        parsed = _parsed(metadata.get(key, ""))
        if parsed:
            return parsed
    characters = metadata.get("character", "")
    return tuple(characters.splitlines()) if characters else ()


_PART = re.compile(r"""\s*(?:(["'])((?:(?!\1)[^\\\n]|\\.)*)\1|([^\s,:"'\[\](){}]+))\s*""")
"""A name or number: in quotes, or a bare word."""


def _parsed(text: str) -> tuple[str, ...]:
    """A list or a dict by number, written in Python or JSON; or names with commas or in lines."""
    text = text.strip()
    if not text or len(text) > MAX_BYTES:
        return ()
    if text[0] not in _ENDS:
        return tuple(part.strip() for part in (text.splitlines() if "\n" in text else text.split(",")))
    rows = _rows(text)
    if rows is None or len({len(row) for row in rows}) != 1:
        return ()
    if len(rows[0]) == 1:
        return () if text[0] == "{" else tuple(name for (name,) in rows)
    try:
        numbered = {int(number): name for number, name in rows if len(number) < _MAX_DIGITS}
    except ValueError:
        return ()
    count = max(numbered, default=-1) + 1
    return tuple(numbered.get(index, str(index)) for index in range(count)) if 0 < count <= 4 * len(numbered) + 1000 else ()


_SPACES = re.compile(r"\s*")
_ENDS = {"[": "]", "{": "}", "(": ")"}
_MAX_DIGITS = 10


def _rows(text: str) -> list[list[str]] | None:
    """The entries between brackets, each with its parts between colons; None for what is no flat list.

    Read by hand: Python's own reader takes a gigabyte for some megabytes of text, and seconds.
    """
    rows: list[list[str]] = []
    text, end = text.rstrip(), len(text.rstrip()) - 1
    if text[end] != _ENDS[text[0]]:
        return None
    place = _after_spaces(text, 1)
    while place < end:
        row: list[str] = []
        while True:
            match = _PART.match(text, place, end)
            if match is None or len(row) == 2:
                return None
            row.append(match[3] if match[1] is None else _unescaped(match[2], match[1]))
            place = match.end()
            if place == end or text[place] != ":":
                break
            place += 1
        rows.append(row)
        if place < end and text[place] != ",":
            return None
        place = _after_spaces(text, place + 1)
    return rows


def _after_spaces(text: str, place: int) -> int:
    match = _SPACES.match(text, place)
    return place if match is None else match.end()


def _unescaped(text: str, quote: str) -> str:
    """A text between quotes as JSON or Python reads it."""
    if "\\" not in text:
        return text
    for read in (json.loads, ast.literal_eval):
        try:
            return str(read(f"{quote}{text}{quote}"))
        except (ValueError, SyntaxError):
            continue
    return text


def keypoint_count(metadata: Mapping[str, str]) -> int:
    """The number of keypoints that Ultralytics' exporter states a model has; 0 if it states none.

    >>> keypoint_count({"kpt_shape": "[17, 3]"})
    17
    """
    try:
        count, _ = json.loads(metadata.get("kpt_shape", ""))
        return int(count) if 0 <= count <= MAX_KEYPOINTS else 0
    except (ValueError, TypeError, RecursionError):
        return 0


def labels_from_file(name: str | Path) -> tuple[str, ...]:
    """The labels in a file: one per line, or JSON; ``coco`` stands for the 80 of COCO.

    >>> labels_from_file("coco")[:2]
    ('person', 'bicycle')
    """
    if str(name) == "coco":
        return COCO
    path = Path(name)
    if not path.is_file():
        raise ParameterError(f"there is no file of labels '{name}'", hint="give a text file with one label per line, or: coco")
    if path.stat().st_size > MAX_BYTES:
        raise ParameterError(f"'{name}' is too large for a file of labels", hint="give a text file with one label per line")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ParameterError(f"'{name}' is not a text file", hint="write one label per line, in UTF-8") from None
    if text.lstrip()[:1] in ("[", "{"):
        parsed = _parsed(text)
        if parsed:
            return parsed
    lines = text.split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    return tuple(line.rstrip("\r") for line in lines)


# Classes of images and of pixels.


def classify(output: Array, count: int = 5) -> Classification:
    """The most probable classes of [classes], with any number of axes of size 1. Logits become probabilities.

    >>> classify(np.array([[0.1, 0.7, 0.2]]), 2).classes.tolist()
    [1, 2]
    """
    values = np.asarray(output, np.float32).reshape(-1)
    if not np.isfinite(values).all():
        raise ShapeError("the scores hold NaN or infinity", hint="look at the outputs with --task raw")
    # rounding to int8 leaves probabilities whose sum is not quite 1
    is_probability = is_activated(values) and 0.5 < float(values.sum()) < 1.5
    scores = values if is_probability else softmax(values)
    order = np.argsort(-scores, kind="stable")[:count]
    return Classification(order.astype(np.int64), scores[order])


def segment(output: Array) -> SemanticMap:
    """The class of each pixel of [classes, H, W], or of [H, W] that holds classes already; one channel is taken for a probability."""
    values = output
    while values.ndim > 3 or (values.ndim == 3 and values.shape[0] == 1 and values.dtype.kind != "f"):
        if values.shape[0] != 1:
            raise ShapeError(f"a map of one image is [classes, H, W], not {list(output.shape)}", hint="run one image")
        values = values[0]
    if values.ndim == 2:
        return SemanticMap(np.rint(values).astype(np.int64))
    if values.shape[0] == 1:
        limit = 0.5 if is_activated(values) else 0.0
        return SemanticMap((values[0] > limit).astype(np.int64))
    return SemanticMap(values.argmax(axis=0).astype(np.int64))
