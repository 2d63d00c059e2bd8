"""What an array that a caller hands over means for a tensor: its values or its codes, in which order of axes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .._util.types import Array
from ..errors import ShapeError, TensorTypeError
from ..program import Preprocess
from ..tensor import DType, Layout, TensorSpec

__all__ = ["interpret"]


_VALUE_TYPES = ("float32", "float16", "uint8")


def interpret(
    given: npt.ArrayLike,
    spec: TensorSpec,
    *,
    layout: Layout | str | None = None,
    preprocess: Preprocess | None = None,
    raw: bool = False,
) -> tuple[Array, TensorSpec, Preprocess | None]:
    """The array, what it is as a tensor, and the preprocessing that it still needs.

    * float32, float16, float64 and uint8 are values: they go through *preprocess* and are quantised where the tensor is.
    * int8 for an int8 tensor (and int16 for an int16 one) are codes, taken as they are.
    * With *raw* the array has the tensor's own type and its elements are codes, whatever the type is.
    * Integer and boolean tensors without quantisation take their own type, or any integers that fit.

    :param layout: the order of the array's axes: ``nchw`` (that of the model, by default) or ``nhwc``
    """
    array = np.asarray(given)
    order = _order(layout, spec)
    _check_shape(array, spec, order)
    if raw or _is_code(array, spec):
        if array.dtype != spec.dtype.storage:
            raise _type_error(array, spec, f"raw data must have the tensor's own type, {spec.dtype.storage}")
        return array, TensorSpec(spec.name, spec.shape, spec.dtype, order, spec.quantization), None
    if spec.quantization is None and not spec.dtype.is_float:
        return _integers(array, spec), TensorSpec(spec.name, spec.shape, spec.dtype, order), None
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    elif array.dtype == np.int8 and spec.dtype.is_float:
        array = array.astype(np.float16)  # exact
    if array.dtype.name not in _VALUE_TYPES:
        raise _type_error(array, spec, "pass float32 or uint8 values, for example array.astype(np.float32)")
    return array, TensorSpec(spec.name, spec.shape, DType(array.dtype.name), order), preprocess


def _order(layout: Layout | str | None, spec: TensorSpec) -> Layout:
    plain = Layout.PLAIN if spec.layout is Layout.PLAIN else Layout.NCHW
    if layout is None:
        return plain
    try:
        order = Layout(layout)
    except ValueError:
        order = Layout.NC1HWC2
    if order is Layout.NC1HWC2:
        raise ShapeError(
            f"{layout!r} is no layout that an array for '{spec.name}' can have",
            hint="use 'nchw' or 'nhwc'; for the device's own layout, bind a buffer",
        )
    if order is Layout.NHWC and len(spec.shape) >= 3:
        return Layout.NHWC
    return plain


def _check_shape(array: Array, spec: TensorSpec, order: Layout) -> None:
    model = spec.shape
    last = (model[0], *model[2:], model[1]) if len(model) >= 3 else model
    expected, other = (last, model) if order is Layout.NHWC else (model, last)
    if array.shape == expected:
        return
    if array.shape == other:
        hint = (
            "this looks like NCHW; leave the layout out, or transpose it"
            if order is Layout.NHWC
            else "this looks like NHWC; pass layout='nhwc' or transpose it"
        )
    elif array.shape in (model[1:], last[1:]) and model[:1] == (1,):
        hint = "the batch axis is missing; pass array[None]"
        if array.shape != expected[1:]:
            hint += ", and layout='nhwc'" if order is not Layout.NHWC else " without layout='nhwc'"
    elif len(array.shape) == len(expected):
        hint = "resize or pad it to the model's input, or compile the model for this shape"
    else:
        hint = f"the model wants {len(expected)} axes"
    raise ShapeError(f"input '{spec.name}' takes {list(expected)}, got {list(array.shape)}", hint=hint)


def _is_code(array: Array, spec: TensorSpec) -> bool:
    """Own type of a quantised tensor; not uint8, which is a picture's values on every chip."""
    return spec.quantization is not None and array.dtype == spec.dtype.storage and array.dtype != np.uint8


def _integers(array: Array, spec: TensorSpec) -> Array:
    storage = spec.dtype.storage
    if array.dtype == storage:
        return array
    if spec.dtype is DType.BOOL or spec.dtype.bits < 8 or array.dtype.kind not in "iu":
        raise _type_error(array, spec, f"pass {storage}")
    first, last = spec.dtype.limits
    if array.size and (int(array.min()) < first or int(array.max()) > last):
        raise _type_error(array, spec, f"its values must lie from {first} to {last}")
    return array.astype(storage)


def _type_error(array: Array, spec: TensorSpec, hint: str) -> TensorTypeError:
    return TensorTypeError(f"input '{spec.name}' is {spec.dtype.value} and does not take {array.dtype}", hint=hint)
