"""Classes of pictures and of pixels."""

from __future__ import annotations

import numpy as np

from .._util.types import Array
from ..errors import ShapeError
from .results import Classification, SemanticMap
from .suppress import softmax
from .yolo import is_activated

__all__ = ["classify", "segment"]


def classify(output: Array, count: int = 5) -> Classification:
    """The most probable classes of [classes], with any number of axes of extent 1. Logits become probabilities.

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
            raise ShapeError(f"a map of one picture is [classes, H, W], not {list(output.shape)}", hint="run one picture")
        values = values[0]
    if values.ndim == 2:
        return SemanticMap(np.rint(values).astype(np.int64))
    if values.shape[0] == 1:
        limit = 0.5 if is_activated(values) else 0.0
        return SemanticMap((values[0] > limit).astype(np.int64))
    return SemanticMap(values.argmax(axis=0).astype(np.int64))
