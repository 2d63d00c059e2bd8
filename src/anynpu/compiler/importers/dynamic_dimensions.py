"""What an open axis of an input probably is: a number to suggest for it."""

from __future__ import annotations

import re

from ..._util.optional import onnx

__all__ = ["suggested_extent"]

_BY_NAME = (
    (r"batch|^n$|^bs$", 1),
    (r"chan", 3),
    (r"past|cache", 128),
    (r"seq|token|len|text", 128),
    (r"mel|bins", 80),
    (r"frame|time|^t$", 100),
    (r"sample|audio|wave", 16000),
    (r"box|roi|query|point", 100),
    (r"height|width|^h$|^w$|size|pixel", 640),
)
"""Words in the name of an axis, and an extent that is usual for it; the first that fits counts."""


def suggested_extent(name: str, axis: int, rank: int, element: int) -> int:
    """An extent to suggest for an open axis, by its name, its place and the type of its tensor.

    >>> suggested_extent("sequence_length", 1, 2, 7), suggested_extent("", 2, 4, 1), suggested_extent("", 1, 4, 1)
    (128, 640, 3)
    >>> [suggested_extent(name, axis, 4, 1) for axis, name in enumerate("abcd")]
    [1, 3, 640, 640]

    :param name: what the model calls the axis; may be empty
    :param element: ONNX's number of the element type
    """
    found = next((extent for words, extent in _BY_NAME if name and re.search(words, name.lower())), None)
    if found is not None:
        return found
    if name.lower() == "c" and axis in (1, rank - 1):  # elsewhere it is the third of a, b, c, d
        return 3
    if axis == 0:
        return 1
    whole = (onnx().TensorProto.INT64, onnx().TensorProto.INT32, onnx().TensorProto.BOOL)
    if rank == 4 and element not in whole:
        return 3 if axis == 1 else 640
    if rank == 5 and element not in whole:
        return {1: 3, 2: 16}.get(axis, 224)
    return 128 if rank in (2, 3) else 1
