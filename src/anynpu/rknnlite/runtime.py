"""A model on a device as the vendor's classes have it: inputs in any form that they take, and the attributes that programs reach into.

Concurrency: one lock for each object, held from the inputs of an inference to its outputs and by the end. Objects share nothing but the
device, whose cores the runtime gives out.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ..errors import AnynpuError, ParameterError, ShapeError, TensorTypeError
from ..rknn import Context, Flag, ShapeRange, TensorInfo, rknn_tensor_type
from ..types import Array
from ..vendors.devices import DeviceChoice

__all__ = ["RKNNRuntime", "RunPerformance", "Runtime", "TensorAttr"]

MAX_DIMS = 16

_TAKEN: dict[rknn_tensor_type, tuple[str, ...]] = {
    rknn_tensor_type.RKNN_TENSOR_INT8: ("float32", "int8", "uint8"),
    rknn_tensor_type.RKNN_TENSOR_FLOAT16: ("float32", "float16", "uint8"),
    rknn_tensor_type.RKNN_TENSOR_FLOAT32: ("float32", "float16", "uint8"),
    rknn_tensor_type.RKNN_TENSOR_INT16: ("float32", "int16", "uint8"),
    rknn_tensor_type.RKNN_TENSOR_INT32: ("int32",),
    rknn_tensor_type.RKNN_TENSOR_INT64: ("int64",),
    rknn_tensor_type.RKNN_TENSOR_BOOL: ("bool",),
}
"""By type of the model's input, the types that an array may have; others become the first of them."""

_TYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "bool")
_LAYOUTS: tuple[Literal["nhwc", "nchw"], ...] = ("nhwc", "nchw")


@dataclass(frozen=True)
class TensorAttr:
    """An input or output, under the vendor's names of its fields."""

    index: int
    n_dims: int
    dims: tuple[int, ...]
    name: bytes
    n_elems: int
    size: int
    fmt: int
    type: int
    qnt_type: int
    fl: int
    zp: int
    scale: float


@dataclass(frozen=True)
class RunPerformance:
    """The time of the last inference on the device, in microseconds."""

    run_duration: int


@dataclass(frozen=True)
class _Given:
    """One input of a call, after its form was checked."""

    array: Array
    layout: Literal["nhwc", "nchw"]
    pass_through: bool


class Runtime:
    """A model on a device.

    :param model: a file, its bytes, or a compiled model
    :param device: see :class:`anynpu.rknn.Context`
    :param core_mask: 0 leaves the choice to the runtime
    :param flags: of ``rknn_init``
    """

    def __init__(
        self, model: Any, *, device: str | DeviceChoice | None = None, core_mask: int = 0, flags: Flag = Flag.RKNN_FLAG_PRIOR_HIGH
    ) -> None:
        self.context = Context(model, device=device, flags=flags)
        self._lock = threading.Lock()
        self._frames = 0
        self._kept: list[Array] | None = None
        self._set: int | None = None
        try:
            self._ranges = _ranges(self.context)
            if core_mask:
                self.context.set_core_mask(core_mask)
        except AnynpuError:
            self.context.close()
            raise

    # what programs reach into

    def get_in_out_num(self) -> tuple[int, int]:
        """The numbers of inputs and outputs."""
        return len(self.context.inputs), len(self.context.outputs)

    def get_tensor_attr(self, index: int, is_output: bool = False) -> TensorAttr:
        """The attributes of an input or output."""
        infos = self.context.outputs if is_output else self.context.inputs
        if not 0 <= index < len(infos):
            raise ParameterError(f"there is no tensor {index}: the model has {len(infos)}", hint="they are counted from 0")
        return _attr(infos[index])

    def get_output_shape(self, index: int) -> tuple[int, ...]:
        """The shape of an output."""
        attr = self.get_tensor_attr(index, is_output=True)
        return attr.dims[: attr.n_dims]

    def set_core_mask(self, core_mask: int) -> int:
        """Choose the cores of the next inferences."""
        self.context.set_core_mask(core_mask)
        return 0

    def get_run_perf(self) -> RunPerformance:
        """How long the last inference took."""
        return RunPerformance(self.context.run_microseconds)

    def get_sdk_version(self) -> str:
        """The versions of library and driver, in the vendor's form."""
        version = self.context.version
        rule = "=" * 46
        return f"{rule}\nRKNN VERSION:\n  API: {version.api}\n  DRV: {version.driver}\n{rule}\n"

    # inference

    def run(
        self,
        inputs: Any,
        data_type: Any = None,
        data_format: Any = None,
        inputs_pass_through: Any = None,
        *,
        reuse_outputs: bool = False,
        expand: Callable[[str], None] | None = None,
    ) -> tuple[list[Array], int]:
        """The outputs as float32 arrays of the caller's own, and the number of the frame.

        :param inputs: a list of arrays
        :param data_type: what the inputs become first; one name or one for each
        :param data_format: ``nhwc`` or ``nchw`` for pictures; one name or one for each
        :param inputs_pass_through: whether an input is in the NPU's own form already; one value or one for each
        :param reuse_outputs: fill the arrays of the last such call again
        :param expand: called with a warning when an array lacks its batch axis, which is then added; None rejects such an array
        """
        with self._lock:
            given = self._given(inputs, data_type, data_format, inputs_pass_through)
            if expand is not None:
                given = [_expanded(index, one, info, expand) for index, (one, info) in self._with_infos(given)]
            if self._ranges:
                self._choose_shapes(given)
            fitted = [_fitted(index, one, info) for index, (one, info) in self._with_infos(given)]
            self.context.set_inputs(
                fitted, layout=[one.layout for one in given], pass_through=[one.pass_through for one in given]
            )
            self.context.execute()
            outputs = self.context.get_outputs(out=self._kept if reuse_outputs else None)
            self._kept = outputs if reuse_outputs else None
            self._frames += 1
            return list(outputs), self._frames

    def close(self) -> None:
        """Give the device back; again is harmless."""
        self.context.close()

    def _with_infos(self, given: Sequence[_Given]) -> Iterable[tuple[int, tuple[_Given, TensorInfo]]]:
        return enumerate(zip(given, self.context.inputs, strict=True))

    def _given(self, inputs: Any, data_type: Any, data_format: Any, pass_through: Any) -> list[_Given]:
        entries = [inputs] if isinstance(inputs, np.ndarray) else inputs
        if not isinstance(entries, (list, tuple)) or not all(isinstance(entry, np.ndarray) for entry in entries):
            raise TensorTypeError("inputs is not a list of numpy arrays", hint="inference(inputs=[array])")
        count = len(self.context.inputs)
        if len(entries) != count:
            raise ParameterError(f"{len(entries)} inputs given, the model has {count}", hint="give one array for each input")
        kinds = [_name("data_type", value, _TYPES) for value in _each("data_type", data_type, count)]
        formats = [_name("data_format", value, _LAYOUTS) for value in _each("data_format", data_format, count)]
        passed = [bool(value) for value in _each("inputs_pass_through", pass_through, count)]
        arrays = [entry if kind is None else entry.astype(kind, copy=False) for entry, kind in zip(entries, kinds, strict=True)]
        return [
            _Given(array, "nchw" if layout == "nchw" else "nhwc", through)
            for array, layout, through in zip(arrays, formats, passed, strict=True)
        ]

    def _choose_shapes(self, given: Sequence[_Given]) -> None:
        """Use the set of shapes that the inputs have."""
        wanted = [_turned(entry.array.shape, entry.layout) for entry in given]
        sets = list(zip(*(entry.shapes for entry in self._ranges), strict=True))
        chosen = next((index for index, shapes in enumerate(sets) if list(shapes) == wanted), None)
        if chosen is None:
            known = "; ".join(", ".join(str(list(shape)) for shape in shapes) for shapes in sets)
            raise ShapeError(
                f"the model has no set of shapes {', '.join(str(list(shape)) for shape in wanted)}", hint=f"it has: {known}"
            )
        if chosen != self._set:
            self.context.set_shapes(sets[chosen])
            self._set = chosen


RKNNRuntime = Runtime
"""The name in ``rknnlite.api.rknn_runtime``."""


def _ranges(context: Context) -> tuple[ShapeRange, ...]:
    """The shapes of a model with dynamic ones; nothing for others, whose runtime answers with an error."""
    try:
        return context.shape_ranges
    except AnynpuError:
        return ()


def _each(what: str, given: Any, count: int) -> list[Any]:
    """One value for each input, from one for all or a list."""
    if not isinstance(given, (list, tuple)):
        return [given] * count
    if len(given) != count:
        raise ParameterError(f"{len(given)} values of {what} for {count} inputs", hint="give one, or one for each input")
    return list(given)


def _name(what: str, given: Any, known: Sequence[str]) -> str | None:
    if given is None:
        return None
    if not isinstance(given, str):
        try:
            given = np.dtype(given).name
        except TypeError:
            given = str(given)
    text = given.lower()
    if text not in known:
        raise ParameterError(f"{what} '{given}' is not known", hint=f"use one of: {', '.join(known)}")
    return str(text)


def _turned(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """A shape as the runtime has it: pictures as N, H, W, C."""
    return (shape[0], shape[2], shape[3], shape[1]) if len(shape) == 4 and layout == "nchw" else shape


def _expanded(index: int, given: _Given, info: TensorInfo, say: Callable[[str], None]) -> _Given:
    """The input with a batch axis of 1 in front, where that is the only axis it lacks."""
    shape = given.array.shape
    if given.pass_through or len(shape) != len(info.shape) - 1:
        return given
    say(
        f"inference: input {index} '{info.name}' has {len(shape)} dimensions {list(shape)}, the model takes {len(info.shape)}; "
        f"a batch axis is added: {[1, *shape]} (pass image[None] to avoid this warning)"
    )
    return replace(given, array=given.array[np.newaxis])


def _fitted(index: int, given: _Given, info: TensorInfo) -> Array:
    """The array in the shape and in a type that the runtime takes."""
    array = given.array
    if given.pass_through:
        return array
    if array.ndim != len(info.shape):
        raise ShapeError(
            f"The input[{index}] need {len(info.shape)}dims input, but {array.ndim}dims input buffer feed.",
            hint="add the batch axis: inputs=[image[None]]"
            if array.ndim == len(info.shape) - 1
            else f"it takes {list(info.shape)}",
        )
    expected = info.shape
    if len(expected) == 4 and given.layout == "nchw":
        expected = (expected[0], expected[3], expected[1], expected[2])
    if array.shape != expected:
        # axes of one do not change where the bytes lie: a runtime that counts bytes takes it
        same = [extent for extent in array.shape if extent > 1] == [extent for extent in expected if extent > 1]
        if not same or array.size != math.prod(expected):
            other = "nhwc" if given.layout == "nchw" else "nchw"
            raise ShapeError(
                f"The input[{index}] '{info.name}' needs {list(expected)} in {given.layout}, but {list(array.shape)} is fed",
                hint=f"resize it, or pass data_format='{other}' if that is its order of axes",
            )
        array = np.ascontiguousarray(array).reshape(expected)
    taken = _TAKEN.get(info.type, ("float32",))
    return array if array.dtype.name in taken else array.astype(taken[0])


def _attr(info: TensorInfo) -> TensorAttr:
    dims = (*info.shape, *(0,) * (MAX_DIMS - len(info.shape)))
    return TensorAttr(
        info.index,
        len(info.shape),
        dims,
        info.name.encode(),
        info.elements,
        info.size,
        int(info.fmt),
        int(info.type),
        int(info.qnt_type),
        info.fl,
        info.zp,
        info.scale,
    )
