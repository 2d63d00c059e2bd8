"""A model on a device as the vendor's classes have it: inputs in any form that they take, and the attributes that programs reach into.

Concurrency: one lock for each object, held from the inputs of an inference to its outputs and by the end. Objects share nothing but the
device, whose cores the runtime gives out.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ..._util.types import Array
from ...errors import AnynpuError, ParameterError, ShapeError, TensorTypeError
from ...vendors.devices import DeviceChoice
from ...vendors.libraries import LoadedLibrary
from .. import Context, Flag, ShapeRange, TensorInfo, rknn_tensor_type

__all__ = ["RKNNOutput", "RKNNRuntime", "RunPerformance", "Runtime", "TensorAttr"]

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


class RKNNOutput(ctypes.Structure):
    """``rknn_output``, for programs that call :attr:`Runtime.lib` themselves."""

    _fields_ = (
        ("want_float", ctypes.c_uint8),
        ("is_prealloc", ctypes.c_uint8),
        ("index", ctypes.c_uint32),
        ("buf", ctypes.c_void_p),
        ("size", ctypes.c_uint32),
    )


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
    :ivar npu: the context that the model runs in
    """

    def __init__(
        self, model: Any, *, device: str | DeviceChoice | None = None, core_mask: int = 0, flags: Flag = Flag.RKNN_FLAG_PRIOR_HIGH
    ) -> None:
        self._model, self._flags, self._core_mask = model, flags, core_mask
        self._lock = threading.Lock()
        self._frames = 0
        self._kept: list[Array] | None = None
        self._set: int | None = None
        self._inputs: list[_Given] | None = None
        self._has_run = False
        self._lib: ctypes.CDLL | None = None
        self.npu = self._open(device)
        self._ranges = _ranges(self.npu)

    def _open(self, device: str | DeviceChoice | None) -> Context:
        context = Context(self._model, device=device, flags=self._flags)
        try:
            if self._core_mask:
                context.set_core_mask(self._core_mask)
        except AnynpuError:
            context.close()
            raise
        return context

    # what programs reach into

    def get_in_out_num(self) -> tuple[int, int]:
        """The numbers of inputs and outputs."""
        return len(self.npu.inputs), len(self.npu.outputs)

    def get_tensor_attr(self, index: int, is_output: bool = False) -> TensorAttr:
        """The attributes of an input or output."""
        infos = self.npu.outputs if is_output else self.npu.inputs
        if not 0 <= index < len(infos):
            raise ParameterError(f"there is no tensor {index}: the model has {len(infos)}", hint="they are counted from 0")
        return _attr(infos[index])

    def get_inputs(self) -> list[TensorAttr]:
        """The attributes of all inputs."""
        return [_attr(info) for info in self.npu.inputs]

    def get_output_shape(self, index: int) -> tuple[int, ...]:
        """The shape of an output."""
        attr = self.get_tensor_attr(index, is_output=True)
        return attr.dims[: attr.n_dims]

    def set_core_mask(self, core_mask: int) -> int:
        """Choose the cores of the next inferences."""
        self.npu.set_core_mask(core_mask)
        self._core_mask = core_mask
        return 0

    def get_run_perf(self) -> RunPerformance:
        """How long the last inference took."""
        return RunPerformance(self.npu.run_microseconds)

    def get_sdk_version(self) -> str:
        """The versions of library and driver, in the vendor's form."""
        version = self.npu.version
        rule = "=" * 46
        return f"{rule}\nRKNN VERSION:\n  API: {version.api}\n  DRV: {version.driver}\n{rule}\n"

    @property
    def is_dynamic_shape(self) -> bool:
        """Whether the model has several sets of shapes."""
        return bool(self._ranges)

    @property
    def lib(self) -> ctypes.CDLL:
        """The library, for programs that call its C functions with :attr:`context`.

        On the software NPU the model moves into the drop-in library first, which ``anynpu exec`` provides; inputs that were set stay set.

        :raises DeviceUnavailable: there is no such library
        """
        with self._lock:
            assert self.npu.handle  # raises where it is closed
            if self._lib is None:
                if not isinstance(self.npu.library, LoadedLibrary):
                    self._move()
                assert isinstance(self.npu.library, LoadedLibrary)
                self._lib = ctypes.CDLL(self.npu.library.path)
            return self._lib

    @property
    def context(self) -> ctypes.c_uint64:
        """The ``rknn_context``, an argument for the functions of :attr:`lib`."""
        self.lib  # noqa: B018  moves the model, if it has to
        return ctypes.c_uint64(self.npu.handle)

    def _move(self) -> None:
        """Open the model in the drop-in library instead of the software NPU itself."""
        moved, self.npu = self.npu, self._open("rknn")
        moved.close()
        self._set = None
        if self._inputs is not None:
            self._put(self._inputs)
        if self._has_run:
            self.npu.execute()

    def _get_rknn_api_lib_path(self) -> str:
        """The path of the library. Programs replace this method; the library of the device is used all the same."""
        library = self.npu.library
        return library.path if isinstance(library, LoadedLibrary) else "/usr/lib/librknnrt.so"

    # an inference in three steps

    def set_inputs(self, inputs: Any, data_type: Any = None, data_format: Any = None, inputs_pass_through: Any = None) -> None:
        """Give the inputs of the next run; the arguments are those of :meth:`infer`."""
        with self._lock:
            given = self._given(inputs, data_type, data_format, inputs_pass_through)
            self._put(given)
            self._inputs, self._has_run = given, False

    def run(self, get_frame_id: bool = False) -> int | tuple[int, int]:
        """Execute: 0, or with *get_frame_id* 0 and the number of the frame."""
        with self._lock:
            self.npu.execute()
            self._frames += 1
            self._has_run = True
            return (0, self._frames) if get_frame_id else 0

    def get_outputs(self, get_frame_id: bool = False) -> list[Array]:
        """The outputs of the last run as float32 arrays; zeros before the first."""
        with self._lock:
            if not self._frames:
                return [np.zeros(info.shape, np.float32) for info in self.npu.outputs]
            return self.npu.get_outputs()

    # an inference

    def infer(
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
        :param data_format: ``nhwc`` or ``nchw`` for images; one name or one for each
        :param inputs_pass_through: whether an input is in the NPU's own form already; one value or one for each
        :param reuse_outputs: fill the arrays of the last such call again
        :param expand: called with a warning when an array lacks its batch axis, which is then added; None rejects such an array
        """
        with self._lock:
            given = self._given(inputs, data_type, data_format, inputs_pass_through)
            if expand is not None:
                given = [_expanded(index, one, info, expand) for index, (one, info) in self._with_infos(given)]
            self._put(given)
            self.npu.execute()
            outputs = self.npu.get_outputs(out=self._kept if reuse_outputs else None)
            self._kept = outputs if reuse_outputs else None
            self._frames += 1
            return list(outputs), self._frames

    def close(self) -> None:
        """Give the device back; again is harmless."""
        self.npu.close()

    def _with_infos(self, given: Sequence[_Given]) -> Iterable[tuple[int, tuple[_Given, TensorInfo]]]:
        return enumerate(zip(given, self.npu.inputs, strict=True))

    def _given(self, inputs: Any, data_type: Any, data_format: Any, pass_through: Any) -> list[_Given]:
        entries = [inputs] if isinstance(inputs, np.ndarray) else inputs
        if not isinstance(entries, (list, tuple)) or not all(isinstance(entry, np.ndarray) for entry in entries):
            raise TensorTypeError("inputs is not a list of numpy arrays", hint="inference(inputs=[array])")
        count = len(self.npu.inputs)
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

    def _put(self, given: Sequence[_Given]) -> None:
        """Set the inputs, and the shapes that they have."""
        if self._ranges:
            self._choose_shapes(given)
        fitted = [_fitted(index, one, info) for index, (one, info) in self._with_infos(given)]
        self.npu.set_inputs(fitted, layout=[one.layout for one in given], pass_through=[one.pass_through for one in given])

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
            self.npu.set_shapes(sets[chosen])
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
    """A shape as the runtime has it: images as N, H, W, C."""
    return (shape[0], shape[2], shape[3], shape[1]) if len(shape) == 4 and layout == "nchw" else shape


def _expanded(index: int, given: _Given, info: TensorInfo, say: Callable[[str], None]) -> _Given:
    """The input with a leading batch axis of 1, where that is the only axis it lacks."""
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
