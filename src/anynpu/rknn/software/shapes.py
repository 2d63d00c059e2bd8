"""Dynamic shapes: which set of shapes a caller means."""

from __future__ import annotations

from typing import Any

from ..._rknn import ffi
from ...program import Model
from ...tensor import TensorSpec
from ..constants import Code, rknn_tensor_format
from .refusal import Refusal

__all__ = ["channels_last", "find_shape_set"]

_FORMATS = (rknn_tensor_format.RKNN_TENSOR_NHWC, rknn_tensor_format.RKNN_TENSOR_UNDEFINED)


def channels_last(spec: TensorSpec) -> tuple[int, ...]:
    """The dimensions of an input as its attributes show them."""
    shape = spec.shape
    return (shape[0], *shape[2:], shape[1]) if len(shape) == 4 else shape


def find_shape_set(model: Model, n_inputs: int, attrs: Any) -> int:
    """The index of the program for the dimensions in *attrs*, one ``rknn_tensor_attr`` for each input.

    Images are given with channels last. Clients are known that write them in the order N, C, H, W and leave the format at NHWC: that is
    understood too, where it is the only way to read them.
    """
    inputs = model.inputs
    if len(model.programs) < 2:
        raise Refusal(Code.RKNN_ERR_MODEL_INVALID, f"'{model.name}' has one set of shapes", "compile it with several shapes")
    if attrs == ffi.NULL or n_inputs != len(inputs):
        raise Refusal(Code.RKNN_ERR_PARAM_INVALID, f"{n_inputs} shapes given, the model has {len(inputs)} inputs")
    given: dict[int, tuple[int, ...]] = {}
    for position in range(n_inputs):
        one = attrs[position]
        if one.index >= n_inputs or one.index in given or one.n_dims > len(one.dims):
            raise Refusal(Code.RKNN_ERR_PARAM_INVALID, f"input index {one.index} does not exist, came twice or has no dimensions")
        if one.fmt not in _FORMATS:
            raise Refusal(
                Code.RKNN_ERR_PARAM_INVALID, f"a shape cannot be given in format {one.fmt}", "use RKNN_TENSOR_NHWC, or UNDEFINED"
            )
        given[one.index] = tuple(one.dims[0 : one.n_dims])
    for as_given in (channels_last, lambda spec: spec.shape):
        for index, program in enumerate(model.programs):
            if all(given[position] == as_given(spec) for position, spec in enumerate(program.input_specs)):
                return index
    known = "; ".join(str([channels_last(spec) for spec in program.input_specs]) for program in model.programs)
    raise Refusal(Code.RKNN_ERR_PARAM_INVALID, f"the model was not compiled for {list(given.values())}", f"it has: {known}")
