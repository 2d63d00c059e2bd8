"""A session's backend on the RKNN calls: the vendor's library or the software NPU.

Who owns what: the backend owns its first context, which its first device worker uses, which the others are duplicated from, and
which is destroyed last; it stays while a backend that shares its weights is open (see :mod:`anynpu.vendors.libraries`). A device
worker owns its other contexts. ``_lock`` protects the list of device workers too; it is never held during a call.

Threads: see :mod:`anynpu.session.backend`. A context that runs may be duplicated on the software NPU; the vendor does not state whether
that holds for his library, so there all device workers are opened before the first run.
"""

from __future__ import annotations

import ctypes
import functools
import os
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from .. import chips, modelfile
from .._native import ffi as native_ffi
from .._native import lib
from .._rknn import ffi
from .._util.types import Array
from ..errors import (
    AnynpuError,
    CallFailed,
    DeviceTimeout,
    FeedTypeError,
    JobCancelled,
    OptionError,
    SessionError,
    UnsupportedCall,
)
from ..modelfile.recognize import FileKind, identify
from ..npu.memory import Buffer
from ..program.convert import convert, nchw_to_nhwc
from ..session import Bound, Feed, Marks, Memory, SessionOptions
from ..tensor import Affine, DType, DynamicFixedPoint, Layout, Quantization, TensorSpec
from ..vendors.devices import board_chip
from ..vendors.libraries import Lender, session_errors
from .constants import Code, Flag, rknn_query_cmd, rknn_tensor_format, rknn_tensor_qnt_type, rknn_tensor_type
from .context import Context
from .info import DTYPE_OF, TensorInfo, write_attr
from .interface import RknnLibrary
from .library import check, open_library
from .table import VENDOR
from .tensormemory import TensorMemory

# Plugins with custom operators: shared libraries that export ``get_rknn_custom_op``.


_PREFIX = "librkcst_"


class Plugins:
    """Libraries with custom operators, loaded once for a backend and never unloaded: contexts call into them until they end."""

    def __init__(self, options: SessionOptions) -> None:
        warnings.warn(
            "custom operators: each context is made by rknn_init, because operators registered on duplicated contexts are not stable",
            UserWarning,
            stacklevel=5,
        )
        self._libraries: list[ctypes.CDLL] = []
        operators: dict[tuple[str, int], Any] = {}
        for path in options.custom_op_paths:
            self._load(path, operators)
        for path in _plugin_files(options.custom_op_folder):
            try:
                self._load(path, operators)
            except SessionError as error:
                warnings.warn(f"{path} is left out: {error.message}", UserWarning, stacklevel=5)
        self._operators = ffi.new("rknn_custom_op[]", list(operators.values())) if operators else None
        self._count = len(operators)

    def _load(self, path: str, operators: dict[tuple[str, int], Any]) -> None:
        if not os.path.exists(path):
            raise SessionError(f"there is no plugin {path}", hint="look at custom_op_paths")
        try:
            library = ctypes.CDLL(path, mode=os.RTLD_NOW)
        except OSError as error:
            raise SessionError(f"plugin {path} cannot be loaded: {error}", hint="it must be built for this machine") from error
        try:
            entry = library.get_rknn_custom_op
        except AttributeError:
            raise SessionError(
                f"plugin {path} does not export get_rknn_custom_op", hint="build it with the plugin template of the SDK"
            ) from None
        entry.restype = ctypes.c_void_p
        address = entry()
        if not address:
            raise SessionError(f"get_rknn_custom_op of {path} gave nothing", hint="it must return its operator")
        operator = ffi.cast("rknn_custom_op *", address)[0]
        name = ffi.string(operator.op_type).decode("utf-8", "replace")
        key = (name, int(operator.target))
        if key in operators:
            raise SessionError(f"operator '{name}' comes twice, the second time from {path}", hint="name each plugin once")
        operators[key] = operator
        self._libraries.append(library)

    def register(self, context: Context) -> None:
        """Make a context know the operators."""
        if self._operators is not None:
            library = context.library
            code = library.rknn_register_custom_ops(context.handle, self._operators, self._count)
            check(library, "rknn_register_custom_ops", code)


def _plugin_files(folder: str) -> list[str]:
    if not folder:
        return []
    if not os.path.isdir(folder):
        warnings.warn(f"there is no folder {folder} with plugins", UserWarning, stacklevel=6)
        return []
    return sorted(str(path) for path in Path(folder).glob(f"{_PREFIX}*.so"))


# A session's device worker on the RKNN calls: one context, and a second one for bound memory.
#
# Runs use the general calls (``rknn_inputs_set``, ``rknn_run``, ``rknn_outputs_get``): the runtime converts each input once into its own
# memory and each output once into the array that the user gets. Runs on bound memory use a second context of the device worker,
# because the general calls and ``rknn_set_io_mem`` exclude each other; it is made at the first such run.
#
# One thread at a time uses a device worker; ``cancel`` and ``abandon`` come from others and touch single flags only.


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
        """Set the arrays' addresses in the structs; gives what must live until the call is over."""
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
        """The session has given the device worker up; no context may be duplicated from it."""
        self.abandoned = True

    def close(self) -> None:
        """Destroy the device worker's contexts."""
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
            if kind is None:  # the call wants all outputs: one that was not asked for always goes to the same place
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
        """Register memory with the context that it does not have yet."""
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
    """The quantization that attributes state; runtimes state a scale of 1 for tensors that have none, too."""
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


# A device worker for chips without the general calls (the RV1103 and RV1106 family): all inputs and outputs are in memory bound
# to the context.
#
# Each input is converted once, into the bound memory, and each output once, out of it. The runtime of these chips takes images as bytes
# (and applies mean and std itself), or codes; it does not state what mean and std are, so images of floats are rejected.


class BoundLane(RknnLane):
    """One context with memory of its own for every input and output."""

    def __init__(self, backend: RknnBackend, context: Context, mask: int) -> None:
        super().__init__(backend, context, mask)
        self._own = BoundContext(backend, context)
        self._memories: dict[tuple[str, TensorSpec], RknnMemory] = {}
        self._results = [self._memory("output", spec) for spec in backend.native_outputs]

    def infer(
        self, feed: Feed, wanted: Sequence[int], types: Sequence[np.dtype[Any]], timeout: float | None, marks: Marks
    ) -> list[Array]:
        """Inputs, run, outputs."""
        inputs = [self._write(*entry) for entry in zip(self.backend.native_inputs, feed.arrays, feed.nhwc, strict=True)]
        self._running = True
        try:
            self._own.bind(inputs, self._results)
            marks.written = time.perf_counter_ns()
            self.context.execute(timeout=timeout)
            marks.ran = time.perf_counter_ns()
        except AnynpuError as error:
            raise self._understood(error) from None
        finally:
            self._running = False
        return [self._read(number, kind) for number, kind in zip(wanted, types, strict=True)]

    def close(self) -> None:
        """Give the memory back and destroy the context."""
        self._own.forget()
        for memory in self._memories.values():
            memory.close()
        self._memories.clear()
        super().close()

    def _memory(self, kind: str, spec: TensorSpec) -> Bound:
        memory = self._memories.get((kind, spec))
        if memory is None:
            memory = self._memories[kind, spec] = RknnMemory(self.context.memory(spec.nbytes))
        return Bound(memory, spec)

    def _write(self, native: TensorSpec, array: Array, last: bool) -> Bound:
        image = len(native.shape) == 4
        kind = DType(array.dtype.name)
        order = Layout.PLAIN if not image else Layout.NHWC if last else Layout.NCHW
        target = native
        if kind is not native.dtype and image:
            if kind is not DType.UINT8:
                raise FeedTypeError(
                    f"input '{native.name}' does not take {kind.value} on {self.backend.chip}: its runtime normalizes bytes only",
                    hint=f"pass uint8 pixels, or {native.dtype.value} codes",
                )
            target = TensorSpec(native.name, native.shape, kind, Layout.NHWC, w_stride=native.w_stride)
        source = TensorSpec(native.name, native.shape, kind, order, native.quantization if kind is native.dtype else None)
        bound = self._memory("input", target)
        convert(array, source, target, out=bound.memory.array()[: target.nbytes])
        bound.memory.sync_to_device()
        return bound

    def _read(self, number: int, kind: np.dtype[Any]) -> Array:
        memory, spec = self._results[number]
        memory.sync_from_device()
        order = Layout.PLAIN if spec.layout is Layout.PLAIN else Layout.NCHW
        dtype = DType(kind.name)
        codes = spec.quantization if dtype is spec.dtype else None
        target = TensorSpec(spec.name, spec.shape, dtype, order, codes)
        return convert(memory.array()[: spec.nbytes], spec, target)


def open_backend(
    model: str | PathLike[str] | bytes,
    options: SessionOptions,
    device: str | RknnLibrary | None = None,
    weights_from: object = None,
) -> RknnBackend:
    """The backend of a session for *model*."""
    if options.family not in ("", VENDOR.name):
        raise OptionError(
            f"Provider/model mismatch: requested {options.provider}, which is for models of another family than RKNN",
            hint="leave providers out, or name RKNPU2ExecutionProvider",
        )
    if weights_from is not None and not isinstance(weights_from, RknnBackend):
        raise OptionError("weights can be shared between RKNN sessions only", hint="leave use_weight_from out")
    with session_errors():
        return RknnBackend(model, options, device, weights_from)


class RknnBackend(Lender[Context]):
    """One model on one RKNN device."""

    provider = VENDOR.providers[0]
    library: RknnLibrary

    def __init__(
        self,
        model: str | PathLike[str] | bytes,
        options: SessionOptions,
        device: str | RknnLibrary | None,
        weights_from: RknnBackend | None,
    ) -> None:
        if device is None and weights_from is not None:
            device = weights_from.library
        super().__init__(weights_from)
        self.library = open_library(device)
        self._model = model
        self._options = options
        self._lanes: weakref.WeakSet[RknnLane] = weakref.WeakSet()
        self._plugins = Plugins(options) if options.custom_ops else None
        self._open_root(self._new_context, self._describe)

    @property
    def device_ms(self) -> float | None:
        """The predicted time of a run; None on a board, whose time is real."""
        if self._root.closed:
            return None
        microseconds = self.library.predicted_us(self._root.handle)
        return None if microseconds is None else microseconds / 1000

    def _describe(self) -> None:
        context = self._root
        chip = self._chip()
        self.chip = chip.name
        self.cores = chip.cores
        self.core_masks = chip.core_masks
        self._general = chip.calls.get("rknn_inputs_set", True)
        self.lanes_on_demand = self.library.lanes_on_demand
        self.description = self.library.words(chip, f"driver {context.version.driver}")
        self.input_infos = tuple(_named(info, "input") for info in context.inputs)
        self.output_infos = tuple(_named(info, "output") for info in context.outputs)
        self.inputs = tuple(_spec(info) for info in self.input_infos)
        self.outputs = tuple(_spec(info) for info in self.output_infos)
        nhwc = self._options.zero_copy_layout == "nhwc"
        self.bound_inputs = tuple(self._bound_info(info, True, nhwc) for info in self.input_infos)
        self.bound_outputs = tuple(self._bound_info(info, False, nhwc) for info in self.output_infos)
        self.native_inputs = tuple(_memory_spec(info, spec) for info, spec in zip(self.bound_inputs, self.inputs, strict=True))
        self.native_outputs = tuple(_memory_spec(info, spec) for info, spec in zip(self.bound_outputs, self.outputs, strict=True))
        self.shape_sets = self._shape_sets()
        text = optional(lambda: context.custom_string) or ""
        more = self.library.metadata_of(context.handle)
        self.metadata: Mapping[str, str] = {**more, **({"rknn_custom_string": text} if text else {})}

    def _chip(self) -> chips.Chip:
        known = self.library.chip_of(self._root.handle)
        if known is not None:
            return known
        name = board_chip()
        if name is None and identify(self._model) is FileKind.ANYNPU:
            name = modelfile.read(self._model).chip
        return chips.get(name or VENDOR.chips[0].name)  # an unknown board: the largest, whose masks the library checks itself

    def _bound_info(self, info: TensorInfo, is_input: bool, nhwc: bool) -> TensorInfo:
        """How an input or output lies in memory that is bound; the logical attributes where a chip has no others."""
        query = rknn_query_cmd
        commands = [query.RKNN_QUERY_NATIVE_INPUT_ATTR if is_input else query.RKNN_QUERY_NATIVE_OUTPUT_ATTR]
        if (
            nhwc and len(info.shape) == 4 and (not is_input or self._general)
        ):  # librknnmrt shows an image's bytes there, not codes
            commands.insert(0, query.RKNN_QUERY_NATIVE_NHWC_INPUT_ATTR if is_input else query.RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR)
        for command in commands:
            found = optional(functools.partial(self._root.info, command, info.index))
            if found is not None:
                return replace(found, name=info.name)
        return info

    def _shape_sets(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        ranges = optional(lambda: self._root.shape_ranges)
        if not ranges or any(not one.shapes for one in ranges):
            return ()
        count = min(len(one.shapes) for one in ranges)
        return tuple(tuple(_model_order(one.shapes[number], one.fmt) for one in ranges) for number in range(count))

    # -- for the session

    def open_lane(self, mask: int) -> RknnLane:
        """A new context on the cores of *mask*."""
        context = self._root if self._take_root() else self._another_context()
        lane = RknnLane(self, context, mask) if self._general else BoundLane(self, context, mask)
        try:
            set_mask(self.library, context, mask)
            if self._plugins is not None:
                self._plugins.register(context)
        except BaseException:
            lane.close()
            raise
        with self._lock:
            self._lanes.add(lane)
        return lane

    def another_context(self, mask: int) -> Context:
        """A context besides that of a device worker, with the same cores."""
        context = self._another_context()
        if self._plugins is not None:
            self._plugins.register(context)
        set_mask(self.library, context, mask)
        return context

    def _another_context(self) -> Context:
        if self._plugins is not None or self._options.disable_dup_context or self.shape_sets:
            return self._new_context()
        source = self._root
        with self._lock:
            lanes = list(self._lanes)
        if any(lane.context is source and lane.abandoned for lane in lanes):
            alive = [lane.context for lane in lanes if not lane.abandoned]
            if not alive:
                return self._new_context()
            source = alive[0]
        try:
            return source.duplicate()
        except UnsupportedCall:  # small chips cannot
            return self._new_context()

    def _new_context(self) -> Context:
        lender = self._lender
        return Context(
            self._model,
            device=self.library,
            flags=Flag.RKNN_FLAG_PRIOR_HIGH,
            weights_from=None if lender is None else lender._root,
        )

    def allocate(self, nbytes: int) -> RknnMemory:
        """Memory of the device."""
        return RknnMemory(self._root.memory(max(1, nbytes)))

    def import_fd(self, fd: int, nbytes: int, offset: int, address: int = 0) -> RknnMemory:
        """Memory that another owner allocated."""
        own = Buffer.from_fd(fd, nbytes, offset)
        base = address or own.address - offset
        return RknnMemory(self._root.memory_from_fd(own.fd, nbytes, address=base, offset=offset), keep=own)


def _named(info: TensorInfo, kind: str) -> TensorInfo:
    return info if info.name else replace(info, name=f"{kind}_{info.index}")


def _model_order(shape: Sequence[int], fmt: rknn_tensor_format) -> tuple[int, ...]:
    if fmt is rknn_tensor_format.RKNN_TENSOR_NHWC and len(shape) == 4:
        return (shape[0], shape[3], shape[1], shape[2])
    return tuple(shape)


def _spec(info: TensorInfo) -> TensorSpec:
    shape = _model_order(info.shape, info.fmt)
    return TensorSpec(info.name, shape, DTYPE_OF[info.type], Layout.row_major(len(shape)), quantization(info))


def _memory_spec(info: TensorInfo, logical: TensorSpec) -> TensorSpec:
    """What memory with native attributes holds."""
    layout = LAYOUTS[info.fmt] if len(logical.shape) == 4 else Layout.PLAIN
    scale = quantization(info)
    kind = DTYPE_OF[info.type]
    if layout is Layout.NC1HWC2:
        return TensorSpec(info.name, logical.shape, kind, layout, scale, c1=info.shape[1], c2=info.shape[4])
    stride = info.w_stride if layout is Layout.NHWC and info.w_stride > logical.shape[3] else 0
    return TensorSpec(info.name, logical.shape, kind, layout, scale, w_stride=stride)
