"""The RKNN API for Python programs: one context, numpy in and out, errors as exceptions.

>>> with Context("det.rknn") as context:                                        # doctest: +SKIP
...     print(context.inputs[0].shape, context.version.api)
...     (heat,) = context.run([page])
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from .. import modelfile
from .._rknn import ffi
from .._util.lifetime import Closeable, at_end
from .._util.types import Array
from ..errors import DeviceClosed, ParameterError, ShapeError, TensorNameError, TensorTypeError
from ..npu.value_check import ValueCheck
from ..program import Model
from ..vendors.devices import DeviceChoice
from .constants import Flag, rknn_core_mask, rknn_query_cmd, rknn_tensor_format, rknn_tensor_type
from .custom_operators import CustomOperator, PluginOperator, Registration, register
from .info import DTYPE_OF, MemorySizes, ShapeRange, TensorInfo, Version, read_attr, write_attr
from .interface import RknnLibrary
from .library import check, open_library
from .tensormemory import TensorMemory

log = logging.getLogger("anynpu.rknn")

Layout = Literal["nchw", "nhwc"]

_TYPES = {DTYPE_OF[kind].value: kind for kind in DTYPE_OF if DTYPE_OF[kind].bits >= 8}
_FORMATS = {
    "nchw": rknn_tensor_format.RKNN_TENSOR_NCHW,
    "nhwc": rknn_tensor_format.RKNN_TENSOR_NHWC,
    "nc1hwc2": rknn_tensor_format.RKNN_TENSOR_NC1HWC2,
    "undefined": rknn_tensor_format.RKNN_TENSOR_UNDEFINED,
}
_CURRENT = {
    rknn_query_cmd.RKNN_QUERY_INPUT_ATTR: rknn_query_cmd.RKNN_QUERY_CURRENT_INPUT_ATTR,
    rknn_query_cmd.RKNN_QUERY_OUTPUT_ATTR: rknn_query_cmd.RKNN_QUERY_CURRENT_OUTPUT_ATTR,
    rknn_query_cmd.RKNN_QUERY_NATIVE_INPUT_ATTR: rknn_query_cmd.RKNN_QUERY_CURRENT_NATIVE_INPUT_ATTR,
    rknn_query_cmd.RKNN_QUERY_NATIVE_OUTPUT_ATTR: rknn_query_cmd.RKNN_QUERY_CURRENT_NATIVE_OUTPUT_ATTR,
}
"""What to ask once dynamic shapes are set."""


def _destroy(
    library: RknnLibrary, handle: int, bound: dict[str, TensorMemory], kept: list[object], operators: list[Registration]
) -> None:
    bound.clear()  # memory goes before the context that it was made with
    kept.clear()
    library.rknn_destroy(handle)
    operators.clear()  # not before: destroying the context calls their functions


class _Attributes:
    """A property of a context: the attributes of all inputs or outputs, as one query gives them."""

    def __init__(self, query: str, doc: str) -> None:
        self._command = rknn_query_cmd[f"RKNN_QUERY_{query}_ATTR"]
        self._side = 0 if "INPUT" in query else 1
        self.__doc__ = doc

    @overload
    def __get__(self, context: None, kind: type[Context]) -> _Attributes: ...

    @overload
    def __get__(self, context: Context, kind: type[Context]) -> tuple[TensorInfo, ...]: ...

    def __get__(self, context: Context | None, kind: type[Context]) -> _Attributes | tuple[TensorInfo, ...]:
        return self if context is None else context._all(self._command, self._side)

    def __set__(self, context: Context, value: object) -> None:
        raise AttributeError("what the model has cannot be set")


class Context(Closeable):
    """A model on an NPU, through the RKNN calls.

    :param model: a file, its bytes, or a compiled model
    :param device: see :mod:`anynpu.vendors.devices`; or a library object
    :param flags: of ``rknn_init``
    :param weights_from: a context whose weights this one shares
    :param sram_from: a context whose SRAM this one shares
    :param offset: where the model begins inside its file; *size* is how many bytes it has

    Threads: a context does one thing at a time; give each thread its own with :meth:`duplicate`.
    """

    library: RknnLibrary

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes | Model,
        *,
        device: str | DeviceChoice | RknnLibrary | None = None,
        flags: Flag | int = Flag.RKNN_FLAG_PRIOR_HIGH,
        weights_from: Context | None = None,
        sram_from: Context | None = None,
        offset: int = 0,
        size: int = 0,
    ) -> None:
        other = weights_from or sram_from
        if weights_from is not None and sram_from is not None and weights_from is not sram_from:
            raise ParameterError(
                "weights and SRAM cannot come from two contexts", hint="rknn_init takes one: pass the same for both"
            )
        if device is None and other is not None:
            device = other.library
        self.library = open_library(device)
        flags = Flag(flags)
        extend = ffi.NULL
        if other is not None or offset or size:
            extend = ffi.new("rknn_init_extend *")
            extend.real_model_offset, extend.real_model_size, extend.model_buffer_fd = offset, size, -1
            if other is not None:
                extend.ctx = other.handle
            if weights_from is not None:
                flags |= Flag.RKNN_FLAG_SHARE_WEIGHT_MEM
            if sram_from is not None:
                flags |= Flag.RKNN_FLAG_SHARE_SRAM | Flag.RKNN_FLAG_ENABLE_SRAM
        handle = ffi.new("rknn_context *")
        if isinstance(model, Model):
            model = modelfile.to_bytes(model)
        if isinstance(model, bytes):
            if not model:
                raise ParameterError("the model is empty", hint="pass the bytes of a .rknn file")
            data, length = ffi.from_buffer(model), len(model)
        else:
            data, length = ffi.new("char[]", os.fsencode(model)), 0
        check(self.library, "rknn_init", self.library.rknn_init(handle, data, length, int(flags), extend))
        self._adopt(handle[0])
        self._depends_on = other

    @classmethod
    def _of(cls, library: RknnLibrary, handle: int, depends_on: Context) -> Context:
        context = cls.__new__(cls)
        context.library = library
        context._adopt(handle)
        context._depends_on = depends_on
        return context

    def _adopt(self, handle: int) -> None:
        self._handle = handle
        self._operators: list[Registration] = []
        self._infos: dict[tuple[int, int], TensorInfo] = {}
        self._numbers: tuple[int, int] | None = None
        self._has_shapes = False
        self._bound: dict[str, TensorMemory] = {}
        self._kept: list[object] = []
        self._values = ValueCheck(log.warning)
        self._finalizer = at_end(self, _destroy, self.library, handle, self._bound, self._kept, self._operators)

    # what it is

    @property
    def handle(self) -> int:
        """The ``rknn_context``."""
        if not self._finalizer.alive:
            raise DeviceClosed("the context was closed", hint="make a new one")
        return self._handle

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    inputs = _Attributes("INPUT", "The inputs; of a model with dynamic shapes, in the shapes that are set.")
    outputs = _Attributes("OUTPUT", "The outputs; of a model with dynamic shapes, in the shapes that are set.")
    native_inputs = _Attributes("NATIVE_INPUT", "The inputs as the NPU reads them.")
    native_outputs = _Attributes("NATIVE_OUTPUT", "The outputs as the NPU writes them.")
    nhwc_inputs = _Attributes("NATIVE_NHWC_INPUT", "The inputs as the NPU reads them, channels last.")
    nhwc_outputs = _Attributes("NATIVE_NHWC_OUTPUT", "The outputs as the NPU writes them, channels last.")
    current_inputs = _Attributes("CURRENT_INPUT", "The inputs in the shapes that are set.")
    current_outputs = _Attributes("CURRENT_OUTPUT", "The outputs in the shapes that are set.")
    current_native_inputs = _Attributes("CURRENT_NATIVE_INPUT", "The inputs as the NPU reads them, in the shapes that are set.")
    current_native_outputs = _Attributes(
        "CURRENT_NATIVE_OUTPUT", "The outputs as the NPU writes them, in the shapes that are set."
    )

    @property
    def shape_ranges(self) -> tuple[ShapeRange, ...]:
        """The shapes that each input may have; only for a model with dynamic shapes."""
        ranges = []
        for index in range(self._counts()[0]):
            answer = ffi.new("rknn_input_range *")
            answer.index = index
            self._query(rknn_query_cmd.RKNN_QUERY_INPUT_DYNAMIC_RANGE, answer)
            shapes = tuple(tuple(answer.dyn_range[i][0 : answer.n_dims]) for i in range(answer.shape_number))
            ranges.append(ShapeRange(index, _text(answer.name), rknn_tensor_format(answer.fmt), shapes))
        return tuple(ranges)

    @property
    def version(self) -> Version:
        """Of library and driver."""
        answer = self._answer("rknn_sdk_version", rknn_query_cmd.RKNN_QUERY_SDK_VERSION)
        return Version(_text(answer.api_version), _text(answer.drv_version))

    @property
    def memory_sizes(self) -> MemorySizes:
        """What the model needs."""
        answer = self._answer("rknn_mem_size", rknn_query_cmd.RKNN_QUERY_MEM_SIZE)
        return MemorySizes(
            answer.total_weight_size,
            answer.total_internal_size,
            answer.total_dma_allocated_size,
            answer.total_sram_size,
            answer.free_sram_size,
        )

    @property
    def custom_string(self) -> str:
        """The text that was stored with the model."""
        answer = self._answer("rknn_custom_string", rknn_query_cmd.RKNN_QUERY_CUSTOM_STRING)
        return _text(answer.string)

    @property
    def device_memory(self) -> tuple[int, int]:
        """Physical address and size of the device's memory for this context (small chips only)."""
        answer = self._answer("rknn_tensor_mem", rknn_query_cmd.RKNN_QUERY_DEVICE_MEM_INFO)
        return answer.phys_addr, answer.size

    @property
    def run_microseconds(self) -> int:
        """The time of the last run on the device."""
        answer = self._answer("rknn_perf_run", rknn_query_cmd.RKNN_QUERY_PERF_RUN)
        return int(answer.run_duration)

    @property
    def perf_detail(self) -> str:
        """The table of layers of the last run; needs ``RKNN_FLAG_COLLECT_PERF_MASK``."""
        answer = self._answer("rknn_perf_detail", rknn_query_cmd.RKNN_QUERY_PERF_DETAIL)
        data: bytes = ffi.buffer(answer.perf_data, answer.data_len)[:]
        return data.decode("utf-8", "replace")

    # what it does

    def run(
        self,
        inputs: Mapping[str, npt.ArrayLike] | Sequence[npt.ArrayLike] | Array,
        *,
        layout: Layout = "nhwc",
        pass_through: bool = False,
        want_float: bool = True,
        timeout: float | None = None,
    ) -> list[Array]:
        """``rknn_inputs_set``, ``rknn_run`` and ``rknn_outputs_get`` in one.

        :param inputs: by name or in order; of any type that the runtime converts (float64, which it does not know, becomes float32)
        :param layout: order of the axes of images
        :param want_float: False gives the outputs in the model's own type
        :return: the outputs, images in the order N, C, H, W
        """
        self.set_inputs(inputs, layout=layout, pass_through=pass_through)
        self.execute(timeout=timeout)
        return self.get_outputs(want_float=want_float)

    def set_inputs(
        self,
        inputs: Mapping[str, npt.ArrayLike] | Sequence[npt.ArrayLike] | Array,
        *,
        layout: Layout | Sequence[Layout] = "nhwc",
        pass_through: bool | Sequence[bool] = False,
    ) -> None:
        """Give the inputs of the next run. They are converted before this returns, so the arrays may change after it.

        :param layout: for all inputs, or for each in order; so is *pass_through*
        """
        infos = self.inputs
        arrays = [_array(given) for given in _in_order(inputs, infos)]
        layouts: Sequence[Layout] = [layout] * len(infos) if isinstance(layout, str) else layout
        passed: Sequence[bool] = [pass_through] * len(infos) if isinstance(pass_through, (bool, int)) else pass_through
        if len(layouts) != len(infos) or len(passed) != len(infos):
            raise ParameterError(
                f"{len(layouts)} layouts and {len(passed)} values of pass_through for {len(infos)} inputs",
                hint="give one for all, or one for each input",
            )
        structs = ffi.new("rknn_input[]", len(arrays))
        for struct, array, info, layout, pass_through in zip(structs, arrays, infos, layouts, passed, strict=True):
            kind = _TYPES.get(array.dtype.name)
            if kind is None or not array.dtype.isnative:
                raise TensorTypeError(
                    f"input '{info.name}' does not take {array.dtype.str}", hint="pass float32, float16, uint8 or int8"
                )
            _check_shape(array, info, layout, pass_through)
            struct.index, struct.buf, struct.size = info.index, ffi.from_buffer(array), array.nbytes
            struct.pass_through, struct.type = pass_through, int(kind)
            struct.fmt = int(_FORMATS[layout] if len(info.shape) == 4 else rknn_tensor_format.RKNN_TENSOR_UNDEFINED)
        self._values.inputs([info.name for info in infos], arrays)
        self._call("rknn_inputs_set", len(arrays), structs)

    def execute(self, *, timeout: float | None = None, block: bool = True, frame: int = 0) -> int:
        """``rknn_run``: execute on what the inputs hold.

        :param timeout: seconds; only the software NPU keeps to it
        :param block: False returns at once; :meth:`wait` waits. Only the software NPU offers it
        :return: the number of the frame, where it did not block
        """
        if timeout is None and block:
            self._call("rknn_run", ffi.NULL)
            return 0
        extend = ffi.new("rknn_run_extend *")
        extend.frame_id, extend.non_block, extend.fence_fd = frame, not block, -1
        extend.timeout_ms = 0 if timeout is None else max(1, round(timeout * 1000))
        self._call("rknn_run", extend)
        return int(extend.frame_id)

    def wait(self, frame: int = 0, *, timeout: float | None = None) -> int:
        """``rknn_wait``: wait for a frame (the latest, if not given) and return its number."""
        extend = ffi.new("rknn_run_extend *")
        extend.frame_id = frame
        extend.timeout_ms = 0 if timeout is None else max(1, round(timeout * 1000))
        self._call("rknn_wait", extend)
        return int(extend.frame_id)

    def get_outputs(self, *, want_float: bool = True, out: Sequence[Array] | None = None) -> list[Array]:
        """The outputs of the last run, in arrays of your own.

        :param out: arrays of an earlier call, to be filled again where they fit
        """
        infos = self.outputs
        kinds = [np.dtype(np.float32) if want_float else info.dtype for info in infos]
        wanted = [(info.shape, kind) for info, kind in zip(infos, kinds, strict=True)]
        if out is not None and [(array.shape, array.dtype) for array in out] == wanted:
            arrays = list(out)
        else:
            arrays = [np.empty(shape, kind) for shape, kind in wanted]
        structs = ffi.new("rknn_output[]", len(arrays))
        for struct, array, info in zip(structs, arrays, infos, strict=True):
            struct.want_float, struct.is_prealloc, struct.index = want_float, 1, info.index
            struct.buf, struct.size = ffi.from_buffer(array), array.nbytes
        self._call("rknn_outputs_get", len(arrays), structs, ffi.NULL)
        self._call("rknn_outputs_release", len(arrays), structs)
        for info, array in zip(infos, arrays, strict=True):
            self._values.output(info.name, DTYPE_OF[info.type], array)
        return arrays

    def set_core_mask(self, mask: rknn_core_mask | int) -> None:
        """State which cores to run on; only on chips with several."""
        self._call("rknn_set_core_mask", int(mask))

    def set_batch_cores(self, count: int) -> None:
        """State how many cores share the batches of a run; only on chips with several."""
        self._call("rknn_set_batch_core_num", count)

    def set_shapes(self, shapes: Mapping[str, Sequence[int]] | Sequence[Sequence[int]]) -> None:
        """Choose the input shapes of a model with dynamic shapes, as :attr:`shape_ranges` lists them (images as N, H, W, C)."""
        infos = self.inputs
        given = _in_order(shapes, infos)
        structs = ffi.new("rknn_tensor_attr[]", len(given))
        for struct, shape, info in zip(structs, given, infos, strict=True):
            one = write_attr(replace(info, shape=tuple(int(extent) for extent in shape)))
            ffi.memmove(ffi.addressof(struct), one, ffi.sizeof("rknn_tensor_attr"))
        self._call("rknn_set_input_shapes", len(given), structs)
        self._has_shapes = True
        self._infos.clear()
        self._bound.clear()

    def duplicate(self) -> Context:
        """A context of the same model that shares its weights, for another thread."""
        source, result = ffi.new("rknn_context *", self.handle), ffi.new("rknn_context *")
        check(self.library, "rknn_dup_context", self.library.rknn_dup_context(source, result))
        return Context._of(self.library, result[0], self)

    def register_operators(self, *operators: CustomOperator | PluginOperator) -> None:
        """``rknn_register_custom_ops``: let functions of yours compute the custom operators of the model.

        They may be registered at any time before the first run. A duplicated context needs its own.
        """
        self._operators.append(register(self.library, self.handle, operators))

    # memory

    def memory(self, size: int, *, flags: int = 0) -> TensorMemory:
        """Memory of the device."""
        library, handle = self.library, self.handle
        if flags:
            return TensorMemory(library, handle, library.rknn_create_mem2(handle, size, flags), "rknn_create_mem2")
        return TensorMemory(library, handle, library.rknn_create_mem(handle, size), "rknn_create_mem")

    def memory_from_fd(self, fd: int, size: int, *, address: int = 0, offset: int = 0) -> TensorMemory:
        """Memory that another owner allocated and shares by descriptor. Without its address it is mapped (software NPU only)."""
        library, handle = self.library, self.handle
        pointer = library.rknn_create_mem_from_fd(handle, fd, ffi.cast("void *", address), size, offset)
        return TensorMemory(library, handle, pointer, "rknn_create_mem_from_fd")

    def memory_from_physical(self, physical_address: int, size: int, *, address: int = 0) -> TensorMemory:
        """Memory that another owner allocated, by its physical address."""
        library, handle = self.library, self.handle
        pointer = library.rknn_create_mem_from_phys(handle, physical_address, ffi.cast("void *", address), size)
        return TensorMemory(library, handle, pointer, "rknn_create_mem_from_phys")

    def bind_input(
        self,
        name: str | int,
        memory: TensorMemory | None = None,
        *,
        view: Literal["native", "nhwc", "logical"] = "native",
        dtype: str | None = None,
        layout: Literal["nchw", "nhwc", "nc1hwc2", "undefined"] | None = None,
        pass_through: bool = False,
    ) -> TensorMemory:
        """``rknn_set_io_mem`` for an input: the NPU reads it from *memory* (new memory, if not given), which is returned."""
        return self._bind(self._viewed(view, "INPUT", name), memory, dtype, layout, pass_through)

    def bind_output(
        self,
        name: str | int,
        memory: TensorMemory | None = None,
        *,
        view: Literal["native", "nhwc", "logical"] = "native",
        dtype: str | None = None,
        layout: Literal["nchw", "nhwc", "nc1hwc2", "undefined"] | None = None,
    ) -> TensorMemory:
        """``rknn_set_io_mem`` for an output: the NPU writes it to *memory* (new memory, if not given), which is returned."""
        return self._bind(self._viewed(view, "OUTPUT", name), memory, dtype, layout, False)

    def _viewed(self, view: str, side: Literal["INPUT", "OUTPUT"], name: str | int) -> TensorInfo:
        """One input or output in one view; the others may not have that view."""
        middles = {"native": "NATIVE_", "nhwc": "NATIVE_NHWC_", "logical": ""}
        if view not in middles:
            raise ParameterError(f"there is no view '{view}'", hint=f"use one of: {', '.join(middles)}")
        index = _named(self.inputs if side == "INPUT" else self.outputs, name).index
        return self.info(self._now(rknn_query_cmd[f"RKNN_QUERY_{middles[view]}{side}_ATTR"]), index)

    def _bind(
        self, info: TensorInfo, memory: TensorMemory | None, dtype: str | None, layout: str | None, pass_through: bool
    ) -> TensorMemory:
        if dtype is not None:
            if dtype not in _TYPES:
                raise TensorTypeError(f"there is no type '{dtype}'", hint=f"use one of: {', '.join(_TYPES)}")
            kind = rknn_tensor_type(_TYPES[dtype])
            scale = DTYPE_OF[kind].storage.itemsize
            grown = info.size_with_stride // info.dtype.itemsize * scale
            info = replace(info, type=kind, size=info.elements * scale, size_with_stride=grown)
        if layout is not None:
            if layout not in _FORMATS:
                raise ShapeError(f"there is no layout '{layout}'", hint=f"use one of: {', '.join(_FORMATS)}")
            info = replace(info, fmt=_FORMATS[layout])
        memory = memory or self.memory(max(info.size, info.size_with_stride))
        self._call("rknn_set_io_mem", memory.pointer, write_attr(info, pass_through=pass_through))
        self._bound[info.name] = memory
        return memory

    def set_weight_memory(self, memory: TensorMemory) -> None:
        """Hold the weights there; for contexts with ``RKNN_FLAG_MEM_ALLOC_OUTSIDE``."""
        self._call("rknn_set_weight_mem", memory.pointer)
        self._kept.append(memory)

    def set_internal_memory(self, memory: TensorMemory) -> None:
        """Hold intermediate tensors there; two models that run in turn may have the same memory."""
        self._call("rknn_set_internal_mem", memory.pointer)
        self._kept.append(memory)

    def close(self) -> None:
        """``rknn_destroy``; again is harmless. Runs in other threads stop."""
        self._finalizer()

    def __repr__(self) -> str:
        return "<rknn.Context, closed>" if self.closed else f"<rknn.Context {self._handle:#x} on {self.library.description}>"

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(self.handle, *arguments)
        if code < 0:
            causes = [registration.take_failure() for registration in self._operators]
            check(self.library, name, code, cause=next(filter(None, causes), None))

    def _answer(self, struct: str, command: rknn_query_cmd) -> Any:
        answer = ffi.new(f"{struct} *")
        self._query(command, answer)
        return answer

    def _query(self, command: rknn_query_cmd, answer: Any) -> None:
        code = self.library.rknn_query(self.handle, int(command), answer, ffi.sizeof(answer[0]))
        check(self.library, "rknn_query", code)

    def _counts(self) -> tuple[int, int]:
        """How many inputs and outputs there are, which is asked once."""
        if self._numbers is None or self.closed:
            answer = ffi.new("rknn_input_output_num *")
            self._query(rknn_query_cmd.RKNN_QUERY_IN_OUT_NUM, answer)
            self._numbers = answer.n_input, answer.n_output
        return self._numbers

    def _all(self, command: rknn_query_cmd, side: int) -> tuple[TensorInfo, ...]:
        command = self._now(command)
        return tuple(self.info(command, index) for index in range(self._counts()[side]))

    def _now(self, command: rknn_query_cmd) -> rknn_query_cmd:
        return _CURRENT.get(command, command) if self._has_shapes else command

    def info(self, command: rknn_query_cmd, index: int) -> TensorInfo:
        """The answer to one of the queries for attributes."""
        key = (int(command), index)
        if key not in self._infos:
            struct = ffi.new("rknn_tensor_attr *")
            struct.index = index
            self._query(command, struct)
            self._infos[key] = read_attr(struct)
        return self._infos[key]


def _array(given: npt.ArrayLike) -> Array:
    array = np.ascontiguousarray(given)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _in_order(given: Any, infos: Sequence[TensorInfo]) -> list[Any]:
    names = [info.name for info in infos]
    if isinstance(given, Mapping):
        unknown = [name for name in given if name not in names]
        missing = [name for name in names if name not in given]
        if unknown or missing:
            what = f"there is no input '{unknown[0]}'" if unknown else f"input '{missing[0]}' is missing"
            raise TensorNameError(what, hint=f"the model has: {', '.join(names)}")
        return [given[name] for name in names]
    entries = [given] if isinstance(given, np.ndarray) else list(given)
    if len(entries) != len(names):
        raise TensorNameError(f"{len(entries)} inputs for a model with {len(names)}", hint=f"it has: {', '.join(names)}")
    return entries


def _check_shape(array: Array, info: TensorInfo, layout: str, pass_through: bool) -> None:
    if pass_through:
        return
    expected = info.shape
    if len(expected) == 4 and layout == "nchw":
        expected = (expected[0], expected[3], expected[1], expected[2])
    if array.shape != expected and array.shape != expected[1:]:
        other = "nhwc" if layout == "nchw" else "nchw"
        turned = len(expected) == 4 and sorted(array.shape[-3:]) == sorted(expected[1:])
        raise ShapeError(
            f"input '{info.name}' takes {list(expected)}, got {list(array.shape)}",
            hint=f"this looks like {other.upper()}; pass layout='{other}'" if turned else "resize it to the model's input",
        )


def _named(infos: Iterable[TensorInfo], name: str | int) -> TensorInfo:
    entries = list(infos)
    for info in entries:
        if name in (info.name, info.index) and not isinstance(name, bool):
            return info
    raise TensorNameError(f"there is no tensor {name!r}", hint=f"there are: {', '.join(info.name for info in entries)}")


def _text(field: Any) -> str:
    text: bytes = ffi.string(field)
    return text.decode("utf-8", "replace")


def layer_table(model: os.PathLike[str], device: str, runs: int) -> str:
    """The runtime's own table of layers, of the last of several runs: measured on a board, predicted by the software NPU."""
    with Context(model, device=device, flags=Flag.RKNN_FLAG_COLLECT_PERF_MASK) as context:
        for info in context.native_inputs:
            context.bind_input(info.index)
        for info in context.native_outputs:
            context.bind_output(info.index)
        for _ in range(runs):
            context.execute()
        last = f"{context.library.description}: {context.run_microseconds} us, the last of {runs} runs"
        return f"{context.perf_detail}\n{last}"
