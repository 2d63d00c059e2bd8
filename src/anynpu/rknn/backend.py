"""A session's backend on the RKNN calls: the vendor's library or the software NPU.

A lane is one ``rknn_context`` that runs by the general calls (``rknn_inputs_set``, ``rknn_run``, ``rknn_outputs_get``): the runtime
converts each input once into its own memory and each output once into the array that the user gets. Runs on bound memory use a second
context of the lane, because the general calls and ``rknn_set_io_mem`` exclude each other; it is made at the first such run.

Who owns what: the backend owns its first context, which its first lane uses, which the others are duplicated from, and which is destroyed
last; it stays while a backend that shares its weights is open. A lane owns its other contexts. ``_lock`` protects the list of lanes and
the number of borrowers; it is never held during a call.

Threads: see :mod:`anynpu.session.backend`. A context that runs may be duplicated on the software NPU; the vendor does not say whether that
holds for his library, so there all lanes are opened before the first run.
"""

from __future__ import annotations

import ctypes
import os
import threading
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import chips, modelfile
from .._rknn import ffi
from ..convert import nchw_to_nhwc
from ..devices import board_chip
from ..errors import (
    AnynpuError,
    CallFailed,
    DeviceClosed,
    DeviceTimeout,
    JobCancelled,
    ModelError,
    OptionError,
    SessionError,
    SessionModelError,
    UnsupportedCall,
)
from ..recognise import FileKind, identify
from ..session import Bound, Memory, SessionOptions
from ..tensor import Affine, DType, DynamicFixedPoint, Layout, Quantization, TensorSpec
from .attributes import DTYPE_OF
from .constants import Code, Flag, rknn_query_cmd, rknn_tensor_format, rknn_tensor_qnt_type, rknn_tensor_type
from .context import Context
from .info import TensorInfo, write_attr
from .library import Library, check, open_library
from .software.context import ModelContext
from .software.library import SoftwareLibrary
from .tensormemory import TensorMemory

__all__ = ["RknnBackend", "open_backend"]

Array = npt.NDArray[Any]

_KIND_OF = {dtype: kind for kind, dtype in DTYPE_OF.items()}
_NUMBERS = {
    DTYPE_OF[kind].storage.num: int(kind) for kind in DTYPE_OF if DTYPE_OF[kind].bits >= 8 and kind.name != "RKNN_TENSOR_BFLOAT16"
}
_LAYOUTS = {
    rknn_tensor_format.RKNN_TENSOR_NCHW: Layout.NCHW,
    rknn_tensor_format.RKNN_TENSOR_NHWC: Layout.NHWC,
    rknn_tensor_format.RKNN_TENSOR_NC1HWC2: Layout.NC1HWC2,
    rknn_tensor_format.RKNN_TENSOR_UNDEFINED: Layout.PLAIN,
}
_FORMATS = {layout: fmt for fmt, layout in _LAYOUTS.items()}
_NCHW, _NHWC = int(rknn_tensor_format.RKNN_TENSOR_NCHW), int(rknn_tensor_format.RKNN_TENSOR_NHWC)
_UNDEFINED = int(rknn_tensor_format.RKNN_TENSOR_UNDEFINED)
_ANY_CORE_MASKS = (0, 1)
"""Masks that a chip without a choice of cores need not know."""
_PLUGIN_PREFIX = "librkcst_"


def open_backend(
    model: str | PathLike[str] | bytes,
    options: SessionOptions,
    device: str | Library | None = None,
    weights_from: object = None,
) -> RknnBackend:
    """The backend of a session for *model*."""
    if options.family not in ("", "rknn"):
        raise OptionError(
            f"the provider {options.provider} is for models of another family than RKNN",
            hint="leave providers out, or name RKNPU2ExecutionProvider",
        )
    if weights_from is not None and not isinstance(weights_from, RknnBackend):
        raise OptionError("weights can be shared between RKNN sessions only", hint="leave use_weight_from out")
    try:
        return RknnBackend(model, options, device, weights_from)
    except ModelError as error:
        if isinstance(error, RuntimeError):
            raise
        raise SessionModelError(
            error.message, hint=error.hint, code=error.code, call=error.call, code_name=error.code_name
        ) from error


class RknnBackend:
    """One model on one RKNN device."""

    provider = "RKNPU2ExecutionProvider"

    def __init__(
        self,
        model: str | PathLike[str] | bytes,
        options: SessionOptions,
        device: str | Library | None,
        weights_from: RknnBackend | None,
    ) -> None:
        if device is None and weights_from is not None:
            device = weights_from.library
        self.library = open_library(device)
        self._model = model
        self._options = options
        self._lock = threading.Lock()
        self._lanes: weakref.WeakSet[RknnLane] = weakref.WeakSet()
        self._plugins = _Plugins(options) if options.custom_ops else None
        self._lender = weights_from
        self._borrowers = 0
        self._closing = False
        if weights_from is not None:
            weights_from.lend(1)
        try:
            self._root = self._new_context()
            try:
                self._describe()
            except BaseException:
                self._root.close()
                raise
        except BaseException:
            if weights_from is not None:
                weights_from.lend(-1)
            raise
        self._root_taken = False

    def _describe(self) -> None:
        context = self._root
        chip = self._chip()
        self.chip = chip.name
        self.cores = chip.cores
        self.core_masks = chip.core_masks
        self.lanes_on_demand = isinstance(self.library, SoftwareLibrary)
        cores = f"{chip.cores} core{'' if chip.cores == 1 else 's'}"
        self.description = (
            f"software NPU, {chip.name}, {cores}"
            if isinstance(self.library, SoftwareLibrary)
            else f"{chip.name.upper()}, {self.library.description}, driver {context.version.driver}, {cores}"
        )
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
        text = _optional(lambda: context.custom_string) or ""
        self.metadata: Mapping[str, str] = {"rknn_custom_string": text} if text else {}

    def _chip(self) -> chips.Chip:
        if isinstance(self.library, SoftwareLibrary):
            return self.library.handles.get(self._root.handle, ModelContext).device.chip
        name = board_chip()
        if name is None and identify(self._model) is FileKind.ANYNPU:
            name = modelfile.read(self._model).chip
        return chips.get(name or "rk3588")  # an unknown board: the largest, whose masks the library checks itself

    def _bound_info(self, info: TensorInfo, is_input: bool, nhwc: bool) -> TensorInfo:
        """How an input or output lies in memory that is bound; the logical attributes where a chip has no others."""
        query = rknn_query_cmd
        commands = [query.RKNN_QUERY_NATIVE_INPUT_ATTR if is_input else query.RKNN_QUERY_NATIVE_OUTPUT_ATTR]
        if nhwc and len(info.shape) == 4:
            commands.insert(0, query.RKNN_QUERY_NATIVE_NHWC_INPUT_ATTR if is_input else query.RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR)
        for command in commands:
            found = _optional(lambda command=command: self._root._info(command, info.index))  # type: ignore[misc]
            if found is not None:
                return replace(found, name=info.name)
        return info

    def _shape_sets(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        ranges = _optional(lambda: self._root.shape_ranges)
        if not ranges or any(not one.shapes for one in ranges):
            return ()
        count = min(len(one.shapes) for one in ranges)
        return tuple(tuple(_model_order(one.shapes[number], one.fmt) for one in ranges) for number in range(count))

    # -- for the session

    def open_lane(self, mask: int) -> RknnLane:
        """A new context on the cores of *mask*."""
        with self._lock:
            if self._closing:
                raise DeviceClosed("the session was closed", hint="open a new one")
            first, self._root_taken = not self._root_taken, True
        context = self._root if first else self._another_context()
        lane = RknnLane(self, context, mask)
        try:
            lane.set_mask(context)
            if self._plugins is not None:
                self._plugins.register(context)
        except BaseException:
            lane.close()
            raise
        with self._lock:
            self._lanes.add(lane)
        return lane

    def another_context(self, mask: int) -> Context:
        """A context besides that of a lane, with the same cores."""
        context = self._another_context()
        if self._plugins is not None:
            self._plugins.register(context)
        _set_mask(self.library, context, mask)
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

    def is_root(self, context: Context) -> bool:
        """Whether a context is the backend's own, which no lane closes."""
        return context is self._root

    def allocate(self, nbytes: int) -> RknnMemory:
        """Memory of the device."""
        return RknnMemory(self._root.memory(max(1, nbytes)))

    def import_fd(self, fd: int, nbytes: int, offset: int, address: int = 0) -> RknnMemory:
        """Somebody else's memory."""
        from ..npu.memory import Buffer

        own = Buffer.from_fd(fd, nbytes, offset)
        base = (address or own.address - offset) if address else own.address - offset
        return RknnMemory(self._root.memory_from_fd(own.fd, nbytes, address=base, offset=offset), keep=own)

    def lend(self, change: int) -> None:
        """Another backend begins or ceases to share the weights."""
        with self._lock:
            if change > 0 and self._closing:
                raise DeviceClosed("the session to share weights with was closed", hint="keep it open")
            self._borrowers += change
            last = self._closing and self._borrowers == 0
        if last:
            self._root.close()

    def close(self) -> None:
        """Destroy the first context, or let the last backend that shares its weights do so."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            last = self._borrowers == 0
        if last:
            self._root.close()
        if self._lender is not None:
            self._lender.lend(-1)


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
        self._inputs_set, self._run, self._outputs_get = library.rknn_inputs_set, library.rknn_run, library.rknn_outputs_get
        self._outputs_release = library.rknn_outputs_release
        count = len(backend.inputs)
        self._inputs = ffi.new("rknn_input[]", count)
        for index in range(count):
            self._inputs[index].index = index
        self._turned = backend._options.layout == "nchw_software"
        self._shape_set = -1 if backend.shape_sets else 0
        self._readers: dict[tuple[tuple[int, ...], tuple[str, ...], int], _Reader] = {}
        self._extend = ffi.new("rknn_run_extend *")
        self._extend.fence_fd = -1
        self._running = False
        self._stopped = False
        self._bound: _BoundContext | None = None

    def set_mask(self, context: Context) -> None:
        """Tie a context to the lane's cores."""
        _set_mask(self._library, context, self.mask)

    def write(self, arrays: Sequence[Array], nhwc: Sequence[bool], shape_set: int) -> None:
        """Put the inputs where the device reads them."""
        if shape_set != self._shape_set:
            self._select(shape_set)
        inputs = self._inputs
        kept = []
        for index, array in enumerate(arrays):
            struct = inputs[index]
            last = nhwc[index]
            if array.ndim != 4:
                struct.fmt = _UNDEFINED
            elif not last and self._turned:
                array, struct.fmt = nchw_to_nhwc(array), _NHWC
            else:
                struct.fmt = _NHWC if last else _NCHW
            pointer = ffi.from_buffer(array)
            kept.append(pointer)
            struct.buf = pointer
            struct.size = array.nbytes
            struct.type = _NUMBERS[array.dtype.num]
        code = self._inputs_set(self._handle, len(arrays), inputs)
        if code:
            self._fail("rknn_inputs_set", code)

    def run(self, timeout: float | None) -> None:
        """Execute."""
        extend = ffi.NULL
        if timeout is not None:
            extend = self._extend
            extend.timeout_ms = max(1, int(timeout * 1000))
        self._running = True
        code = self._run(self._handle, extend)
        self._running = False
        if code:
            self._fail("rknn_run", code)

    def read(self, wanted: Sequence[int], types: Sequence[np.dtype[Any]]) -> list[Array]:
        """New arrays with the outputs."""
        key = (tuple(wanted), tuple(kind.char for kind in types), self._shape_set)
        reader = self._readers.get(key)
        if reader is None:
            reader = self._readers[key] = _Reader(self._output_infos(), wanted, types)
        arrays = reader.prepare()
        structs, count = reader.structs, reader.count
        code = self._outputs_get(self._handle, count, structs, ffi.NULL)
        if code:
            self._fail("rknn_outputs_get", code)
        self._outputs_release(self._handle, count, structs)
        return reader.finish(arrays)

    def run_bound(self, inputs: Sequence[Bound], outputs: Sequence[Bound], timeout: float | None) -> None:
        """Execute on memory of the caller."""
        if self.backend.shape_sets:
            raise SessionError("a model with dynamic shapes does not run on bound memory", hint="use run, submit or run_async")
        bound = self._bound
        if bound is None:
            bound = self._bound = _BoundContext(self.backend, self.mask)
        bound.bind(inputs, outputs)
        self._running = True
        try:
            bound.context.execute(timeout=timeout)
        except AnynpuError as error:
            raise self._understood(error) from None
        finally:
            self._running = False

    def cancel(self) -> bool:
        """Stop the run, where the library can."""
        library = self._library
        if not self._running or not isinstance(library, SoftwareLibrary):
            return False
        handles = [self._handle] if self._bound is None else [self._handle, self._bound.context.handle]
        self._stopped = True
        stopped = [library.handles.get(handle, ModelContext).last_control for handle in handles]
        return any([control.cancel() for control in stopped if control is not None])

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
        current = _optional(lambda: self.context.current_outputs)
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

    def __init__(self, infos: Sequence[TensorInfo], wanted: Sequence[int], types: Sequence[np.dtype[Any]]) -> None:
        self.count = len(infos)
        self.structs = ffi.new("rknn_output[]", self.count)
        self._shapes: list[tuple[int, ...]] = []
        self._kinds: list[np.dtype[Any]] = []
        self._final: list[tuple[int, np.dtype[Any] | None]] = []
        self._kept: list[Any] = []
        asked = dict(zip(wanted, types, strict=True))
        self._fresh: list[int] = []
        for index, info in enumerate(infos):
            own = DTYPE_OF[info.type].storage
            kind = asked.get(index)
            values = info.type == rknn_tensor_type.RKNN_TENSOR_FLOAT16 or _quantization(info) is not None
            as_float = kind is not None and values and kind != own
            struct = self.structs[index]
            struct.index, struct.is_prealloc, struct.want_float = index, 1, as_float
            self._shapes.append(info.shape)
            self._kinds.append(np.dtype(np.float32) if as_float else own)
            if kind is None:  # the call wants all outputs: one that nobody asked for always goes to the same place
                self._place(index, np.empty(info.shape, self._kinds[index]))
            else:
                self._fresh.append(index)
        self._final = [(index, None if kind == self._kinds[index] else kind) for index, kind in zip(wanted, types, strict=True)]

    def _place(self, index: int, array: Array) -> None:
        pointer = ffi.from_buffer(array)
        self._kept.append(pointer)
        self.structs[index].buf = pointer
        self.structs[index].size = array.nbytes

    def prepare(self) -> dict[int, tuple[Array, Any]]:
        """New arrays, known to the structs."""
        arrays = {}
        for index in self._fresh:
            array = np.empty(self._shapes[index], self._kinds[index])
            pointer = ffi.from_buffer(array)
            struct = self.structs[index]
            struct.buf = pointer
            struct.size = array.nbytes
            arrays[index] = (array, pointer)
        return arrays

    def finish(self, arrays: dict[int, tuple[Array, Any]]) -> list[Array]:
        """The arrays in the order and the types asked for."""
        return [arrays[index][0] if kind is None else arrays[index][0].astype(kind) for index, kind in self._final]


class _BoundContext:
    """The second context of a lane, for bound memory, and what is bound to it."""

    def __init__(self, backend: RknnBackend, mask: int) -> None:
        self._backend = backend
        self.context = backend.another_context(mask)
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
        known = self._imported.get(memory)
        if known is None:
            address = memory.address - memory.offset
            if memory.fd >= 0:
                known = self.context.memory_from_fd(memory.fd, memory.nbytes, address=address, offset=memory.offset)
            else:
                known = self.context.memory_from_physical(0, memory.nbytes, address=memory.address)
            self._imported[memory] = known
        return known

    def close(self) -> None:
        self._held.clear()
        for memory in list(self._imported.values()):
            memory.close()
        self.context.close()


class _Plugins:
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
    return sorted(str(path) for path in Path(folder).glob(f"{_PLUGIN_PREFIX}*.so"))


def _set_mask(library: Library, context: Context, mask: int) -> None:
    try:
        code = library.rknn_set_core_mask(context.handle, mask)
        check(library, "rknn_set_core_mask", code)
    except UnsupportedCall:
        if mask not in _ANY_CORE_MASKS:
            raise


def _optional(question: Any) -> Any:
    """The answer to a query that not every library or chip knows; None where it does not."""
    try:
        return question()
    except AnynpuError:
        return None


def _named(info: TensorInfo, kind: str) -> TensorInfo:
    return info if info.name else replace(info, name=f"{kind}_{info.index}")


def _model_order(shape: Sequence[int], fmt: rknn_tensor_format) -> tuple[int, ...]:
    if fmt is rknn_tensor_format.RKNN_TENSOR_NHWC and len(shape) == 4:
        return (shape[0], shape[3], shape[1], shape[2])
    return tuple(shape)


def _attr_order(shape: Sequence[int], fmt: rknn_tensor_format) -> tuple[int, ...]:
    if fmt is rknn_tensor_format.RKNN_TENSOR_NHWC and len(shape) == 4:
        return (shape[0], shape[2], shape[3], shape[1])
    return tuple(shape)


def _quantization(info: TensorInfo) -> Quantization | None:
    if DTYPE_OF[info.type].is_float:
        return None
    if info.qnt_type is rknn_tensor_qnt_type.RKNN_TENSOR_QNT_AFFINE_ASYMMETRIC and info.scale > 0:
        return Affine.per_tensor(info.scale, info.zp)
    if info.qnt_type is rknn_tensor_qnt_type.RKNN_TENSOR_QNT_DFP:
        return DynamicFixedPoint(info.fl)
    return None


def _spec(info: TensorInfo) -> TensorSpec:
    shape = _model_order(info.shape, info.fmt)
    return TensorSpec(info.name, shape, DTYPE_OF[info.type], Layout.row_major(len(shape)), _quantization(info))


def _memory_spec(info: TensorInfo, logical: TensorSpec) -> TensorSpec:
    """What memory with native attributes holds."""
    layout = _LAYOUTS[info.fmt] if len(logical.shape) == 4 else Layout.PLAIN
    quantization = _quantization(info)
    kind = DTYPE_OF[info.type]
    if layout is Layout.NC1HWC2:
        return TensorSpec(info.name, logical.shape, kind, layout, quantization, c1=info.shape[1], c2=info.shape[4])
    stride = info.w_stride if layout is Layout.NHWC and info.w_stride > logical.shape[3] else 0
    return TensorSpec(info.name, logical.shape, kind, layout, quantization, w_stride=stride)


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
