"""A session's lane on the RKNN calls: one context, and a second one for bound memory.

Runs use the general calls (``rknn_inputs_set``, ``rknn_run``, ``rknn_outputs_get``): the runtime converts each input once into its own
memory and each output once into the array that the user gets. Runs on bound memory use a second context of the lane, because the general
calls and ``rknn_set_io_mem`` exclude each other; it is made at the first such run.

One thread at a time uses a lane; ``cancel`` and ``abandon`` come from others and touch single flags only.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from .._native import ffi as native_ffi
from .._native import lib
from .._rknn import ffi
from .._util.types import Array
from ..errors import AnynpuError, CallFailed, DeviceTimeout, JobCancelled, SessionError, UnsupportedCall
from ..program.convert import nchw_to_nhwc
from ..session import Bound, Feed, Marks, Memory
from ..tensor import Affine, DType, DynamicFixedPoint, Layout, Quantization, TensorSpec
from .attributes import DTYPE_OF
from .constants import Code, rknn_tensor_format, rknn_tensor_qnt_type, rknn_tensor_type
from .context import Context
from .info import TensorInfo, write_attr
from .library import RknnLibrary, check
from .tensormemory import TensorMemory

if TYPE_CHECKING:
    from .backend import RknnBackend

__all__ = ["BoundContext", "RknnLane", "RknnMemory", "LAYOUTS", "optional", "quantization", "set_mask"]

_Answer = TypeVar("_Answer")

_KIND_OF = {dtype: kind for kind, dtype in DTYPE_OF.items()}
_NUMBERS = {
    DTYPE_OF[kind].storage.num: int(kind)
    for kind in DTYPE_OF
    if DTYPE_OF[kind].bits >= 8 and DTYPE_OF[kind] is not DType.BFLOAT16
}
LAYOUTS = {
    rknn_tensor_format.RKNN_TENSOR_NCHW: Layout.NCHW,
    rknn_tensor_format.RKNN_TENSOR_NHWC: Layout.NHWC,
    rknn_tensor_format.RKNN_TENSOR_NC1HWC2: Layout.NC1HWC2,
    rknn_tensor_format.RKNN_TENSOR_UNDEFINED: Layout.PLAIN,
}
_FORMATS = {layout: fmt for fmt, layout in LAYOUTS.items()}
_NCHW, _NHWC = int(rknn_tensor_format.RKNN_TENSOR_NCHW), int(rknn_tensor_format.RKNN_TENSOR_NHWC)
_UNDEFINED = int(rknn_tensor_format.RKNN_TENSOR_UNDEFINED)
_CALLS = ("rknn_inputs_set", "rknn_run", "rknn_outputs_get")
_ANY_CORE_MASKS = (0, 1)
"""Masks that a chip without a choice of cores need not know."""


class RknnMemory:
    """Memory of the device, for OrtValues."""

    def __init__(self, memory: TensorMemory, keep: object = None) -> None:
        self.memory = memory
        self._keep = keep

    @property
    def nbytes(self) -> int:
        return self.memory.size

    @property
    def address(self) -> int:
        return self.memory.address

    @property
    def fd(self) -> int:
        return self.memory.fd

    @property
    def offset(self) -> int:
        return int(self.memory.pointer.offset)

    def array(self) -> npt.NDArray[np.uint8]:
        """The bytes, shared."""
        return self.memory.array(np.uint8)

    def sync_to_device(self) -> None:
        """Make what the host wrote visible to the device."""
        self.memory.sync("to_device")

    def sync_from_device(self) -> None:
        """Make what the device wrote visible to the host."""
        self.memory.sync("from_device")

    def close(self) -> None:
        """Give it back."""
        self.memory.close()


class RknnLane:
    """One context of a session."""

    def __init__(self, backend: RknnBackend, context: Context, mask: int) -> None:
        self.backend = backend
        self.context = context
        self.mask = mask
        self.abandoned = False
        library = backend.library
        self._library = library
        self._handle = context.handle
        self._input_count = count = len(backend.inputs)
        self._inputs = ffi.new("rknn_input[]", count)
        for index in range(count):
            self._inputs[index].index = index
        self._calls = self._call_each
        if library.has("rknn_inputs_set", "rknn_outputs_get", "rknn_outputs_release"):
            self._calls = self._call_in_a_row
            self._times = native_ffi.new("struct anynpu_inference_times *")
            self._inference = native_ffi.new("struct anynpu_inference *")
            for name in ("inputs_set", "run", "outputs_get", "outputs_release"):
                setattr(self._inference, name, _address(getattr(library, f"rknn_{name}")))
            self._inference.context = self._handle
            self._inference.inputs, self._inference.input_count = _address(self._inputs), count
        self._turned = backend._options.layout == "nchw_software"
        self._shape_set = -1 if backend.shape_sets else 0
        self._readers: dict[tuple[tuple[int, ...], tuple[str, ...], int], _Reader] = {}
        self._reader: _Reader | None = None
        self._extend = ffi.new("rknn_run_extend *")
        self._extend.fence_fd = -1
        self._running = False
        self._stopped = False
        self._bound: BoundContext | None = None

    def infer(
        self, feed: Feed, wanted: Sequence[int], types: Sequence[np.dtype[Any]], timeout: float | None, marks: Marks
    ) -> list[Array]:
        """Inputs, run, outputs."""
        kept = self._put(feed)
        reader = self._reader
        if reader is None or reader.wanted is not wanted or reader.types is not types or reader.shape_set != self._shape_set:
            reader = self._choose_reader(wanted, types)
        arrays = reader.prepare()
        extend = ffi.NULL
        if timeout is not None:
            extend = self._extend
            extend.timeout_ms = max(1, int(timeout * 1000))
        self._stopped, self._running = False, True
        try:
            self._calls(extend, reader, marks)
        finally:
            self._running = False
        del kept
        return reader.finish(arrays) if reader.casts else arrays

    def _choose_reader(self, wanted: Sequence[int], types: Sequence[np.dtype[Any]]) -> _Reader:
        """The reader for a choice of outputs, which is most likely that of the next run too."""
        key = (tuple(wanted), tuple([kind.char for kind in types]), self._shape_set)
        reader = self._readers.get(key)
        if reader is None:
            reader = self._readers[key] = _Reader(self._output_infos(), wanted, types, self._shape_set)
        reader.wanted, reader.types = wanted, types
        self._reader = reader
        return reader

    def _put(self, feed: Feed) -> list[Any]:
        """Tell the structs where the arrays are; gives what must live until the call is over."""
        if feed.shape_set != self._shape_set:
            self._select(feed.shape_set)
        inputs, nhwc = self._inputs, feed.nhwc
        kept = []
        for index, array in enumerate(feed.arrays):
            struct = inputs[index]
            if array.ndim != 4:
                struct.fmt = _UNDEFINED
            elif nhwc[index]:
                struct.fmt = _NHWC
            elif self._turned:
                array, struct.fmt = nchw_to_nhwc(array), _NHWC
            else:
                struct.fmt = _NCHW
            pointer = ffi.from_buffer(array)
            kept.append(pointer)
            struct.buf = pointer
            struct.size = array.nbytes
            struct.type = _NUMBERS[array.dtype.num]
        return kept

    def _call_each(self, extend: Any, reader: _Reader, marks: Marks) -> None:
        """The calls one by one, as methods of a library object."""
        library, handle = self._library, self._handle
        code = library.rknn_inputs_set(handle, self._input_count, self._inputs)
        if code:
            self._fail("rknn_inputs_set", code)
        marks.written = time.perf_counter_ns()
        code = library.rknn_run(handle, extend)
        if code:
            self._fail("rknn_run", code)
        marks.ran = time.perf_counter_ns()
        code = library.rknn_outputs_get(handle, reader.count, reader.structs, ffi.NULL)
        if code:
            self._fail("rknn_outputs_get", code)
        library.rknn_outputs_release(handle, reader.count, reader.structs)

    def _call_in_a_row(self, extend: Any, reader: _Reader, marks: Marks) -> None:
        """The calls in one go, outside the GIL, where they are functions of a library that was loaded."""
        one, times = self._inference, self._times
        one.extend = _address(extend)
        one.output_count = reader.count
        one.outputs = reader.address
        code = lib.anynpu_infer(one, times)
        if code:
            failed = times.failed
            if failed:
                marks.written = times.written
            self._fail(_CALLS[failed], code)
        marks.written = times.written
        marks.ran = times.ran

    def run_bound(self, inputs: Sequence[Bound], outputs: Sequence[Bound], timeout: float | None) -> None:
        """Execute on memory of the caller."""
        if self.backend.shape_sets:
            raise SessionError("a model with dynamic shapes does not run on bound memory", hint="use run, submit or run_async")
        bound = self._bound
        if bound is None:
            bound = self._bound = BoundContext(self.backend, self.backend.another_context(self.mask))
        self._stopped, self._running = False, True
        try:
            bound.bind(inputs, outputs)
            bound.context.execute(timeout=timeout)
        except AnynpuError as error:
            raise self._understood(error) from None
        finally:
            self._running = False

    def cancel(self) -> bool:
        """Stop the run, where the library can."""
        library = self._library
        if not self._running or library.genuine:
            return False
        handles = [self._handle] if self._bound is None else [self._handle, self._bound.context.handle]
        self._stopped = True
        stopped = [library.cancel(handle) for handle in handles]
        return any(stopped)

    def abandon(self) -> None:
        """The session has given the lane up; no context may be duplicated from it."""
        self.abandoned = True

    def close(self) -> None:
        """Destroy the lane's contexts."""
        bound, self._bound = self._bound, None
        if bound is not None:
            bound.close()
        if not self.backend.is_root(self.context):
            self.context.close()

    def _select(self, shape_set: int) -> None:
        shapes = self.backend.shape_sets[shape_set]
        turned = [_attr_order(shape, info.fmt) for shape, info in zip(shapes, self.backend.input_infos, strict=True)]
        self.context.set_shapes(turned)
        self._shape_set = shape_set

    def _output_infos(self) -> tuple[TensorInfo, ...]:
        if not self.backend.shape_sets:
            return self.backend.output_infos
        current = optional(lambda: self.context.current_outputs)
        return current if current is not None else self.context.outputs

    def _fail(self, call: str, code: int) -> None:
        try:
            check(self._library, call, code)
        except AnynpuError as error:
            raise self._understood(error) from None

    def _understood(self, error: AnynpuError) -> AnynpuError:
        """An error as a session raises it: always a RuntimeError, unless it is about time."""
        stopped, self._stopped = self._stopped, False
        if stopped and error.code == Code.RKNN_ERR_FAIL:
            return JobCancelled("the job was cancelled")
        if isinstance(error, RuntimeError | DeviceTimeout):
            return error
        return CallFailed(error.message, hint=error.hint, code=error.code, call=error.call, code_name=error.code_name)


class _Reader:
    """Where one choice of outputs and types goes."""

    def __init__(
        self, infos: Sequence[TensorInfo], wanted: Sequence[int], types: Sequence[np.dtype[Any]], shape_set: int
    ) -> None:
        self.wanted = wanted
        self.types = types
        self.shape_set = shape_set
        self.count = len(infos)
        self.structs = ffi.new("rknn_output[]", self.count)
        self.address = _address(self.structs)
        self._kept: list[Any] = []
        asked = dict(zip(wanted, types, strict=True))
        kinds: list[np.dtype[Any]] = []
        for index, info in enumerate(infos):
            own = DTYPE_OF[info.type].storage
            kind = asked.get(index)
            values = info.type == rknn_tensor_type.RKNN_TENSOR_FLOAT16 or quantization(info) is not None
            as_float = kind is not None and values and kind != own
            struct = self.structs[index]
            struct.index, struct.is_prealloc, struct.want_float = index, 1, as_float
            kinds.append(np.dtype(np.float32) if as_float else own)
            if kind is None:  # the call wants all outputs: one that nobody asked for always goes to the same place
                array = np.empty(info.shape, kinds[index])
                self._kept.append(array)
                struct.buf = ffi.from_buffer(array)
                struct.size = array.nbytes
        self._fresh = [(self.structs[index], infos[index].shape, kinds[index]) for index in asked]
        places = {index: place for place, index in enumerate(asked)}
        self._final = [(places[index], None if kind == kinds[index] else kind) for index, kind in zip(wanted, types, strict=True)]
        self.casts = any(kind is not None for _, kind in self._final) or len(places) != len(wanted)

    def prepare(self) -> list[Array]:
        """New arrays, known to the structs."""
        arrays = []
        for struct, shape, kind in self._fresh:
            array = np.empty(shape, kind)
            struct.buf = ffi.from_buffer(array)
            struct.size = array.nbytes
            arrays.append(array)
        return arrays

    def finish(self, arrays: list[Array]) -> list[Array]:
        """The arrays in the order and the types asked for."""
        return [arrays[place] if kind is None else arrays[place].astype(kind) for place, kind in self._final]


class BoundContext:
    """A context that runs on bound memory, and what is bound to it."""

    def __init__(self, backend: RknnBackend, context: Context) -> None:
        self._backend = backend
        self.context = context
        self._held: dict[str, tuple[Memory, TensorSpec]] = {}
        self._imported: weakref.WeakKeyDictionary[Memory, TensorMemory] = weakref.WeakKeyDictionary()

    def bind(self, inputs: Sequence[Bound], outputs: Sequence[Bound]) -> None:
        """Tell the context about memory that it does not have yet."""
        backend = self._backend
        for sides, infos in ((inputs, backend.bound_inputs), (outputs, backend.bound_outputs)):
            for bound, info in zip(sides, infos, strict=True):
                key = f"{'in' if sides is inputs else 'out'} {info.index}"
                if self._held.get(key) == (bound.memory, bound.spec):
                    continue
                attr, pass_through = _bound_attr(info, bound.spec, sides is inputs)
                memory = self._import(bound.memory)
                library = backend.library
                code = library.rknn_set_io_mem(self.context.handle, memory.pointer, write_attr(attr, pass_through=pass_through))
                check(library, "rknn_set_io_mem", code)
                self._held[key] = (bound.memory, bound.spec)

    def _import(self, memory: Memory) -> TensorMemory:
        if isinstance(memory, RknnMemory) and memory.memory.handle == self.context.handle:
            return memory.memory
        known = self._imported.get(memory)
        if known is None:
            address = memory.address - memory.offset
            if memory.fd >= 0:
                known = self.context.memory_from_fd(memory.fd, memory.nbytes, address=address, offset=memory.offset)
            else:
                known = self.context.memory_from_physical(0, memory.nbytes, address=memory.address)
            self._imported[memory] = known
        return known

    def forget(self) -> None:
        """Let go of all memory."""
        self._held.clear()
        for memory in list(self._imported.values()):
            memory.close()

    def close(self) -> None:
        """Let go of all memory and destroy the context."""
        self.forget()
        self.context.close()


def _address(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


def set_mask(library: RknnLibrary, context: Context, mask: int) -> None:
    """Tie a context to cores; a chip without a choice has only one way."""
    try:
        code = library.rknn_set_core_mask(context.handle, mask)
        check(library, "rknn_set_core_mask", code)
    except UnsupportedCall:
        if mask not in _ANY_CORE_MASKS:
            raise


def optional(question: Callable[[], _Answer]) -> _Answer | None:
    """The answer to a query that not every library or chip knows; None where it does not."""
    try:
        return question()
    except AnynpuError:
        return None


def _attr_order(shape: Sequence[int], fmt: rknn_tensor_format) -> tuple[int, ...]:
    if fmt is rknn_tensor_format.RKNN_TENSOR_NHWC and len(shape) == 4:
        return (shape[0], shape[2], shape[3], shape[1])
    return tuple(shape)


def quantization(info: TensorInfo) -> Quantization | None:
    """The quantisation that attributes state; runtimes state a scale of 1 for tensors that have none, too."""
    kind = DTYPE_OF[info.type]
    if kind.is_float or kind is DType.BOOL or kind.bits > 16:
        return None
    if info.qnt_type is rknn_tensor_qnt_type.RKNN_TENSOR_QNT_AFFINE_ASYMMETRIC and info.scale > 0:
        return Affine.per_tensor(info.scale, info.zp)
    if info.qnt_type is rknn_tensor_qnt_type.RKNN_TENSOR_QNT_DFP:
        return DynamicFixedPoint(info.fl)
    return None


def _bound_attr(info: TensorInfo, spec: TensorSpec, is_input: bool) -> tuple[TensorInfo, bool]:
    """Attributes for memory that holds *spec*, and whether it is passed through."""
    kind = _KIND_OF[spec.dtype]
    size = spec.dtype.storage.itemsize
    elements = info.elements
    changed = replace(
        info,
        type=kind,
        fmt=_FORMATS[spec.layout] if len(spec.shape) == 4 else info.fmt,
        size=elements * size,
        size_with_stride=max(spec.nbytes, elements * size),
        w_stride=spec.w_stride if is_input else info.w_stride,
    )
    return changed, is_input and spec.dtype is DTYPE_OF[
        info.type
    ] and spec.dtype is not DType.UINT8 and spec.quantization is not None
