"""The request of the page: what a job is to do. Read from a client's JSON, handed to the process that does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ... import chips
from ...errors import RequestError

AUTO = "auto"
"""The preprocessing that the network itself reacts to."""

SCALES = {
    "0 to 1": "pixels from 0 to 1",
    "0 to 255": "pixels as they are",
    "-1 to 1": "pixels from -1 to 1",
    "ImageNet's mean and std": "ImageNet's mean and std",
    "Caffe's mean": "Caffe's mean",
}
"""Names of the usual preprocessings, and how the page calls them."""

DTYPES = {"w8a8": "int8", "fp16": "float16"}
"""Types of a compiled model, and how the page calls them."""

ACCURACIES = {"fast": "fast", "default": "careful"}
"""How far the compiler goes, and how the page calls it: with weight reconstruction it takes minutes."""

MAX_PIXELS = 50_000_000
"""Of one image."""

_KEYS = {"model", "served", "pictures", "chip", "dtype", "accuracy", "scale", "order", "shape"}
_MAX_PICTURES = 16


@dataclass(frozen=True)
class JobRequest:
    """One job.

    :ivar accuracy: one of :data:`ACCURACIES`
    :ivar model: the dropped file; empty for a served model
    :ivar served: name of a served model; empty for a dropped file
    :ivar pictures: dropped files
    :ivar scale: one of :data:`SCALES`, or :data:`AUTO`
    :ivar shape: of the input, where the file leaves it open
    """

    model: str = ""
    served: str = ""
    pictures: tuple[str, ...] = ()
    chip: str = "rk3588"
    dtype: str = "w8a8"
    accuracy: str = "fast"
    scale: str = AUTO
    order: str = "rgb"
    shape: tuple[int, ...] = ()

    @staticmethod
    def read(given: Mapping[str, Any]) -> JobRequest:
        """A request from JSON.

        :raises RequestError: it is none
        """
        unknown = sorted(set(given) - _KEYS)
        if unknown:
            raise RequestError(f"a job has no '{unknown[0]}'", hint=f"it has: {', '.join(sorted(_KEYS))}")
        pictures, shape = given.get("pictures", []), given.get("shape", [])
        if not isinstance(pictures, list) or len(pictures) > _MAX_PICTURES:
            raise RequestError(f"a job takes a list of at most {_MAX_PICTURES} images", hint="drop fewer images")
        if (
            not isinstance(shape, list)
            or len(shape) > 8
            or not all(type(extent) is int and 0 < extent <= 8192 for extent in shape)
        ):
            raise RequestError("the shape is no list of integers from 1 to 8192", hint="write it as 1,3,640,640")
        texts = {
            key: given.get(key, default) for key, default in asdict(JobRequest()).items() if key not in ("pictures", "shape")
        }
        for key, value in (*texts.items(), *(("pictures", name) for name in pictures)):
            if not isinstance(value, str) or len(value) > 200:
                raise RequestError(f"'{key}' of a job is no short text", hint="look at what was sent")
        request = JobRequest(**texts, pictures=tuple(pictures), shape=tuple(shape))
        request._check()
        return request

    def _check(self) -> None:
        if bool(self.model) == bool(self.served):
            raise RequestError("a job has one model: a dropped file, or a served one", hint="drop an ONNX file or pick a model")
        for what, value, known in (
            ("chip", self.chip, chips.names()),
            ("type", self.dtype, tuple(DTYPES)),
            ("accuracy", self.accuracy, tuple(ACCURACIES)),
            ("preprocessing", self.scale, (AUTO, *SCALES)),
            ("channel order", self.order, ("rgb", "bgr")),
        ):
            if value not in known:
                raise RequestError(f"there is no {what} {value!r:.60}", hint=f"choose one of: {', '.join(known)}")
        if self.served and not self.pictures:
            raise RequestError("a served model needs an image", hint="drop an image")
