"""What Frigate's ``zmq`` detector states and wants to hear, as pure functions of the frames of a message.

Three kinds of requests: is this model there (one frame of JSON), here is a model (JSON and a file), and find objects (JSON with shape and
dtype, and the bytes of an image). The answer to the last is a table of 20 rows: class, score, top, left, bottom and right, in parts of
the image.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

ROWS = 20
COLUMNS = 6
DTYPES = ("uint8", "float32")
MAX_AXES = 4

Detections = npt.NDArray[np.float32]


class BadRequest(Exception):
    """The message is none that Frigate sends."""


@dataclass(frozen=True)
class ModelQuestion:
    """Frigate asks whether the detector has a model."""

    name: str


@dataclass(frozen=True)
class ModelFile:
    """Frigate sends a model that the detector did not have."""

    name: str


@dataclass(frozen=True)
class Picture:
    """Frigate wants the objects of an image."""

    tensor: npt.NDArray[Any]


def read_request(frames: Sequence[bytes]) -> ModelQuestion | ModelFile | Picture:
    """The request in a message; raises :class:`BadRequest`."""
    if not frames:
        raise BadRequest("the message is empty")
    try:
        header = json.loads(frames[0])
    except (ValueError, RecursionError):
        raise BadRequest("the first frame is no JSON") from None
    if not isinstance(header, dict):
        raise BadRequest("the first frame is no JSON object")
    if header.get("model_request"):
        return ModelQuestion(str(header.get("model_name", "")))
    if header.get("model_data"):
        return ModelFile(str(header.get("model_name", "")))
    return Picture(_tensor(header.get("shape"), header.get("dtype"), frames[1:]))


def _tensor(shape: object, dtype: object, frames: Sequence[bytes]) -> npt.NDArray[Any]:
    if not isinstance(shape, list) or not 1 <= len(shape) <= MAX_AXES or any(type(one) is not int or one < 1 for one in shape):
        raise BadRequest(f"the shape is {shape!r:.60}")
    if dtype not in DTYPES:
        raise BadRequest(f"the dtype is {dtype!r:.60}, not one of {', '.join(DTYPES)}")
    if len(frames) != 1:
        raise BadRequest(f"one frame must follow the header, not {len(frames)}")
    kind = np.dtype(str(dtype))
    size = prod(shape) * kind.itemsize
    if len(frames[0]) != size:
        raise BadRequest(f"a {dtype} tensor of shape {shape} has {size} bytes, and {len(frames[0])} came")
    return np.frombuffer(frames[0], kind).reshape(shape)


def model_answer(there: bool) -> list[bytes]:
    """To a :class:`ModelQuestion`: whether the model is there and loaded."""
    return [json.dumps({"model_available": there, "model_loaded": there}).encode()]


def file_answer(kept: bool) -> list[bytes]:
    """To a :class:`ModelFile`: whether it was kept and loaded."""
    return [json.dumps({"model_saved": kept, "model_loaded": kept}).encode()]


def detections_answer(rows: Detections, error: str = "") -> list[bytes]:
    """To a :class:`Picture`. Frigate reads shape and dtype; an error is for people who look at the messages."""
    header: dict[str, object] = {"shape": [ROWS, COLUMNS], "dtype": "float32"}
    if error:
        header["error"] = error
    table = np.zeros((ROWS, COLUMNS), np.float32)
    table[: len(rows)] = rows[:ROWS]
    return [json.dumps(header).encode(), table.tobytes()]


def no_detections(error: str) -> list[bytes]:
    """The answer to what cannot be answered: nothing was found."""
    return detections_answer(np.zeros((0, COLUMNS), np.float32), error)
