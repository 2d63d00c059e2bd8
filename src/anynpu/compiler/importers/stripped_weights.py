"""Constants without values: what remains of a model whose weights were stripped."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._util.optional import onnx
from ...errors import CompileError

__all__ = ["is_stripped", "stand_in"]

_MAX_ELEMENTS = 1 << 30


def is_stripped(tensor: Any) -> bool:
    """Whether a constant has a shape but no values."""
    if math.prod(tensor.dims) == 0 or tensor.external_data or tensor.string_data:
        return False
    return not (
        tensor.raw_data or tensor.float_data or tensor.int32_data or tensor.int64_data or tensor.double_data or tensor.uint64_data
    )


def stand_in(tensor: Any) -> npt.NDArray[Any]:
    """Values for a stripped constant: positive, and small enough for a deep network to stay finite."""
    dtype = np.dtype(onnx().helper.tensor_dtype_to_np_dtype(tensor.data_type))
    if dtype.kind != "f":
        raise CompileError(
            f"a constant of type {dtype.name} has no values, and shapes may depend on it",
            tensor=tensor.name,
            hint="strip floating-point weights only",
        )
    shape = tuple(tensor.dims)
    count = math.prod(shape)
    if count > _MAX_ELEMENTS:
        raise CompileError(
            f"the shape {list(shape)} is more than {_MAX_ELEMENTS} elements", tensor=tensor.name, hint="export it again"
        )
    value = 0.5 / max(math.prod(shape[1:]), 1) if len(shape) > 1 else 0.5
    return np.broadcast_to(np.asarray(value, dtype), shape)  # takes no memory
