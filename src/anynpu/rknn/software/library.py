"""All ``rknn_*`` calls, answered by the software NPU.

:class:`SoftwareLibrary` has one method for each function of the interface, with its name and its parameters: pointers of
``anynpu._rknn.ffi`` and numbers. A method never raises: it returns a code (or a null pointer) as the C function does, and
:meth:`SoftwareLibrary.last_error` reports the calling thread why.

Who owns what: the library owns one device for each chip it has met, the table of handles and the table of memory. Locks: the device table
has one; everything else protects itself (see there).
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from ... import chips, modelfile
from ..._rknn import ffi
from ...chips import Chip
from ...devtools import sanitizer
from ...errors import DeviceMemoryError, UnsupportedCall
from ...npu import Buffer, Device, RunControl
from ...npu.value_check import ValueCheck
from ...program import Model
from ...vendors import at_first_use
from ...vendors.libraries import Failures, Refusal, SoftwareCalls
from ..constants import Code, Flag, rknn_mem_alloc_flags, rknn_tensor_mem_flags
from ..interface import CallFailure, RknnLibrary
from .context import Frames, ModelContext
from .custom_operators import CustomOperatorCalls
from .handles import Handles, code_of
from .matmul import MatmulCalls, MatmulState
from .memory import MemoryTable, Sram
from .ports import OutputPort, Transfer, indices
from .queries import answer, find_shape_set

log = logging.getLogger("anynpu.rknn")

_KNOWN_FLAGS = functools.reduce(lambda left, right: left | right, Flag)
_POINTER_CALLS = frozenset(
    {"rknn_create_mem", "rknn_create_mem2", "rknn_create_mem_from_fd", "rknn_create_mem_from_phys", "rknn_create_mem_from_mb_blk"}
)
_CALLS_WITHOUT_RESULT = frozenset({"rknn_custom_op_get_op_attr"})
_WORKS_HERE = frozenset({"rknn_wait"})
"""Listed as unavailable on every chip by the vendor, and available here."""


class SoftwareLibrary(MatmulCalls, CustomOperatorCalls, SoftwareCalls, RknnLibrary):
    """The RKNN runtime without a board.

    :param chip: the chip that it stands for; if not given, each model runs on the chip it was compiled for
    :param engine: as for :class:`anynpu.npu.Device`

    >>> library = SoftwareLibrary("rk3566")
    >>> library.rknn_set_core_mask(1, 1)
    -13
    >>> library.last_error().text
    'rknn_set_core_mask is not available on rk3566'
    """

    def __init__(self, chip: str | None = None, *, engine: Any = None) -> None:
        self.chip: Chip | None = None if chip is None else _rknn_chip(chip)
        self.handles = Handles()
        self.memories = MemoryTable()
        self._engine = engine
        self._devices: dict[str, tuple[Device, Sram]] = {}
        self._lock = threading.Lock()
        self._failures = Failures(
            log,
            code_of,
            no_memory=(Code.RKNN_ERR_MALLOC_FAIL, "close contexts that are not used"),
            fault=Code.RKNN_ERR_FAIL,
        )
        self._closed = False
        if self.chip is not None:
            self._refuse_missing(self.chip)
        sanitizer.enlist(self, f"{__package__}.sanitizer")

    # what the calls share

    opening = "rknn_init"
    codes: ClassVar = Code
    tracing = staticmethod(at_first_use("anynpu.rknn.tracing:table"))
    fault_codes: ClassVar = {"lost": Code.RKNN_ERR_DEVICE_UNAVAILABLE, "version": Code.RKNN_ERR_DEVICE_UNMATCH}

    def refused(self, call: str, arguments: tuple[Any, ...], error: BaseException) -> Any:
        """Note why *call* fails, and give what it returns."""
        del arguments
        code = self.failed(call, error)
        if call in _CALLS_WITHOUT_RESULT:
            return None
        return ffi.NULL if call in _POINTER_CALLS else code

    unwatched = sanitizer.set_aside

    def cut_model(self, arguments: tuple[Any, ...], keep: float) -> tuple[Any, ...]:
        """The arguments of ``rknn_init`` with the first bytes of the model."""
        context, model, size, *rest = arguments
        if model == ffi.NULL:
            return arguments
        if size:
            return (context, model, max(int(size * keep), 1), *rest)
        data = Path(os.fsdecode(ffi.string(ffi.cast("char *", model)))).read_bytes()
        return (context, ffi.from_buffer(data), max(int(len(data) * keep), 1), *rest)

    @property
    def description(self) -> str:
        """Description of the device for users."""
        if self.chip is None:
            return "software NPU, the chip of each model"
        if self._on_rocket:
            return f"{self.chip.name.upper()}, kernel driver rocket (experimental), {self.chip.cores} cores"
        return f"software NPU, {self.chip.name}, {self.chip.cores} core{'' if self.chip.cores == 1 else 's'}"

    @property
    def _on_rocket(self) -> bool:
        return getattr(self._engine, "name", "") == "rocket"

    def words(self, chip: Chip, *details: str) -> str:
        """Description of the device for users of a session."""
        return self.description if self._on_rocket else super().words(chip, *details)

    def last_error(self) -> CallFailure | None:
        """Why the last call that failed in this thread did so."""
        return self._failures.last

    lanes_on_demand = True

    def chip_of(self, handle: int) -> Chip:
        """The chip that a context runs on."""
        return self._context(handle).device.chip

    def metadata_of(self, handle: int) -> dict[str, str]:
        """What the ONNX model said about itself."""
        metadata = self._context(handle).model.metadata
        return {} if metadata is None else metadata.entries()

    def predicted_us(self, handle: int) -> float | None:
        """What the chip is predicted to take for a run of a context; None where there is no such context."""
        try:
            return self._context(handle).latency_us()
        except Refusal:
            return None

    def cancel(self, handle: int) -> bool:
        """Ask the run of a context to stop."""
        control = self._context(handle).last_control
        return control is not None and control.cancel()

    def device_for(self, chip: Chip) -> Device:
        """The device that stands for *chip*."""
        return self._board(chip)[0]

    def chip_for_matmul(self) -> Chip:
        """The chip of calls that have no model: the library's, or the largest."""
        return self.chip or chips.get("rk3588")

    def close(self) -> None:
        """End everything that was made through this library; handles become invalid."""
        self._closed = True
        sanitizer.delist(self)
        for entry in self.handles.clear():
            if isinstance(entry, (ModelContext, MatmulState)):
                entry.close()
        self.memories.clear()
        with self._lock:
            devices, self._devices = list(self._devices.values()), {}
        for device, _ in devices:
            device.close()

    def _value_check(self) -> ValueCheck | None:
        return None if self.warn is None else ValueCheck(self.warn)

    def failed(self, call: str, error: BaseException) -> int:
        """Note why *call* fails, and give its code."""
        return int(self._failures.note(call, error)[0])

    def _board(self, chip: Chip) -> tuple[Device, Sram]:
        with self._lock:
            if self._closed:
                raise Refusal(Code.RKNN_ERR_DEVICE_UNAVAILABLE, "the library was closed")
            if chip.name not in self._devices:
                self._devices[chip.name] = (Device(chip.name, engine=self._engine), Sram(chip.sram_bytes))
            return self._devices[chip.name]

    def _refuse_missing(self, chip: Chip) -> None:
        """Give the calls that the chip lacks an answer of their own, so that the others need no check."""
        calls = {**chip.calls, "rknn_set_input_shape": chip.calls["rknn_set_input_shapes"]}
        for name, available in calls.items():
            if not available and name not in _WORKS_HERE | _CALLS_WITHOUT_RESULT:
                setattr(self, name, functools.partial(type(self)._missing, weakref.proxy(self), name, chip.name))  # no cycle

    def _missing(self, name: str, chip: str, *_: Any) -> Any:
        code = self.failed(name, Refusal(Code.RKNN_ERR_TARGET_PLATFORM_UNMATCH, f"{name} is not available on {chip}"))
        return ffi.NULL if name in _POINTER_CALLS else code

    def _context(self, handle: int) -> ModelContext:
        return self.handles.get(handle, ModelContext)

    def _supported(self, name: str, context: ModelContext) -> None:
        """For a library that follows its models: reject what the chip of this one lacks."""
        chip = context.device.chip
        if not chip.calls.get(name, True):
            raise Refusal(Code.RKNN_ERR_TARGET_PLATFORM_UNMATCH, f"{name} is not available on {chip.name}")

    # contexts

    def rknn_init(self, context: Any, model: Any, size: int, flag: int, extend: Any) -> int:
        """Make a context from a file (*size* 0) or from its bytes."""
        if context == ffi.NULL or model == ffi.NULL:
            raise Refusal(Code.RKNN_ERR_PARAM_INVALID, "the context or the model is a null pointer")
        flags = Flag(flag & int(_KNOWN_FLAGS))
        if flag & ~int(_KNOWN_FLAGS):
            raise Refusal(Code.RKNN_ERR_PARAM_INVALID, f"flags {flag:#x} have bits without a meaning")
        if flags & Flag.RKNN_FLAG_SHARE_SRAM and not flags & Flag.RKNN_FLAG_ENABLE_SRAM:
            raise Refusal(Code.RKNN_ERR_PARAM_INVALID, "RKNN_FLAG_SHARE_SRAM needs RKNN_FLAG_ENABLE_SRAM")
        loaded = _read_model(model, size, extend)
        chip = _rknn_chip(loaded.chip)
        if self.chip is not None and self.chip.name != chip.name:
            raise Refusal(
                Code.RKNN_ERR_TARGET_PLATFORM_UNMATCH,
                f"the model was compiled for {chip.name}, this is {self.chip.name}",
                f"compile it with target='{self.chip.name}'",
            )
        weights_from = self._other(extend, flags & Flag.RKNN_FLAG_SHARE_WEIGHT_MEM, "RKNN_FLAG_SHARE_WEIGHT_MEM")
        sram_from = self._other(extend, flags & Flag.RKNN_FLAG_SHARE_SRAM, "RKNN_FLAG_SHARE_SRAM")
        if weights_from is not None and len(loaded.programs) > 1:
            raise Refusal(Code.RKNN_ERR_MODEL_INVALID, "a model with dynamic shapes cannot share weights")
        device, sram = self._board(chip)
        entry = ModelContext(
            device, sram, loaded, flags, weights_from=weights_from, sram_from=sram_from, values=self._value_check()
        )
        context[0] = self.handles.add(entry)
        return 0

    def rknn_dup_context(self, context_in: Any, context_out: Any) -> int:
        """A second context of the same model."""
        if context_in == ffi.NULL or context_out == ffi.NULL:
            raise Refusal(Code.RKNN_ERR_PARAM_INVALID, "a context is a null pointer")
        source = self._context(context_in[0])
        self._supported("rknn_dup_context", source)
        context_out[0] = self.handles.add(source.duplicate())
        return 0

    def rknn_destroy(self, context: int) -> int:
        """End a context; a run in another thread stops."""
        self.handles.remove(context, ModelContext).close()
        return 0

    def rknn_query(self, context: int, cmd: int, info: Any, size: int) -> int:
        """Fill *info* with the answer to *cmd*."""
        if self.answers_product(context, cmd, info, size):
            return 0
        return answer(self._context(context), cmd, info, size)

    def rknn_set_core_mask(self, context: int, core_mask: int) -> int:
        """State which cores to run on."""
        entry = self._context(context)
        self._supported("rknn_set_core_mask", entry)
        entry.require_runnable_kind()
        if core_mask not in entry.device.chip.core_masks:
            legal = ", ".join(str(mask) for mask in entry.device.chip.core_masks)
            raise Refusal(Code.RKNN_ERR_PARAM_INVALID, f"core mask {core_mask} is not possible", f"possible are {legal}")
        entry.set_cores(mask=core_mask)
        return 0

    def rknn_set_batch_core_num(self, context: int, core_num: int) -> int:
        """State how many cores share the batches of one run."""
        entry = self._context(context)
        self._supported("rknn_set_batch_core_num", entry)
        entry.require_runnable_kind()
        if not 1 <= core_num <= entry.device.cores:
            raise Refusal(
                Code.RKNN_ERR_PARAM_INVALID,
                f"{core_num} cores are not possible",
                f"{entry.device.chip.name} has {entry.device.cores}",
            )
        entry.set_cores(batch_cores=core_num)
        return 0

    def rknn_set_input_shapes(self, context: int, n_inputs: int, attr: Any) -> int:
        """Choose one of the shapes that a model with dynamic shapes was compiled for."""
        return self._choose_shapes("rknn_set_input_shapes", context, n_inputs, attr)

    def rknn_set_input_shape(self, context: int, attr: Any) -> int:
        """The older form of :meth:`rknn_set_input_shapes`, for a model with one input."""
        return self._choose_shapes("rknn_set_input_shape", context, 1, attr)

    def _choose_shapes(self, call: str, context: int, n_inputs: int, attr: Any) -> int:
        entry = self._context(context)
        if not entry.device.chip.calls["rknn_set_input_shapes"]:
            raise Refusal(Code.RKNN_ERR_TARGET_PLATFORM_UNMATCH, f"{call} is not available on {entry.device.chip.name}")
        entry.require_runnable_kind()
        entry.settle()
        entry.set_shapes(find_shape_set(entry.model, n_inputs, attr))
        return 0

    # running

    def rknn_inputs_set(self, context: int, n_inputs: int, inputs: Any) -> int:
        """Take the inputs of the next run."""
        entry = self.handles.get(context, ModelContext)
        if "rknn_inputs_set" in entry.missing_calls:
            self._supported("rknn_inputs_set", entry)
        if entry.restricted:
            entry.require_runnable_kind()
        if entry.frames is not None:
            entry.settle()
        entry.set_inputs(n_inputs, inputs)
        return 0

    def rknn_run(self, context: int, extend: Any) -> int:
        """Execute; with ``non_block`` of *extend*, return at once."""
        entry = self.handles.get(context, ModelContext)
        if extend == ffi.NULL:
            entry.run_now(RunControl())
            return 0
        control = RunControl(extend.timeout_ms / 1000 if extend.timeout_ms > 0 else None)
        if not extend.non_block:
            entry.run_now(control)
            return 0
        extend.frame_id = entry.started_frames().submit(extend.frame_id, lambda: entry.run(control))
        return 0

    def rknn_wait(self, context: int, extend: Any) -> int:
        """Wait for a run that did not block."""
        entry = self._context(context)
        entry.require_runnable_kind()
        frames = entry.frames
        if frames is None:
            raise Refusal(Code.RKNN_ERR_PARAM_INVALID, "no run is on its way", "call rknn_run with non_block before")
        if extend == ffi.NULL:
            frames.wait(0, None)
        else:
            extend.frame_id = frames.wait(extend.frame_id, extend.timeout_ms / 1000 if extend.timeout_ms > 0 else None)
        return 0

    def rknn_outputs_get(self, context: int, n_outputs: int, outputs: Any, extend: Any) -> int:
        """Give the outputs of the last run, as numbers or as the NPU's own codes."""
        entry = self.handles.get(context, ModelContext)
        if "rknn_outputs_get" in entry.missing_calls:
            self._supported("rknn_outputs_get", entry)
        if entry.restricted:
            entry.require_runnable_kind()
        ports = entry.ports.outputs
        if outputs == ffi.NULL or n_outputs != len(ports):
            raise Refusal(Code.RKNN_ERR_PARAM_INVALID, f"{n_outputs} outputs asked for, the model has {len(ports)}")
        if entry.frames is not None and (entry.outputs_of_frame or (extend != ffi.NULL and extend.frame_id)):
            _wait_for_frame(entry.frames, extend)
        with entry.lock:
            if not entry.runs:
                raise Refusal(Code.RKNN_ERR_OUTPUT_INVALID, "the model has not run yet", "call rknn_run before")
            ports = entry.ports.outputs  # another thread may have changed the shapes
            positions = indices(outputs, n_outputs)
            wanted = [_wanted(ports, outputs[position], index) for position, index in enumerate(positions)]
            held = []  # what is given out now may be released by another thread before it is filled
            for position, (port, transfer) in enumerate(wanted):
                one = outputs[position]
                if not one.is_prealloc:
                    one.buf = memory = entry.give_output(transfer.nbytes)
                    held.append(memory)
                entry.read(port, transfer.conversion, int(ffi.cast("uintptr_t", one.buf)))
                one.size = transfer.nbytes
                one.index = positions[position]
        return 0

    def rknn_outputs_release(self, context: int, n_outputs: int, outputs: Any) -> int:
        """Free what :meth:`rknn_outputs_get` allocated."""
        entry = self.handles.get(context, ModelContext)
        if outputs == ffi.NULL:
            raise Refusal(Code.RKNN_ERR_PARAM_INVALID, "the outputs are a null pointer")
        if n_outputs > len(entry.ports.outputs):
            raise Refusal(Code.RKNN_ERR_PARAM_INVALID, f"{n_outputs} outputs given, the model has {len(entry.ports.outputs)}")
        for position in range(n_outputs):
            one = outputs[position]
            if not one.is_prealloc and one.buf != ffi.NULL and entry.take_output(one.buf):
                one.buf = ffi.NULL
        return 0

    # memory

    def rknn_create_mem(self, context: int, size: int) -> Any:
        """Memory of the device."""
        return self._create_mem(context, size, rknn_mem_alloc_flags.RKNN_FLAG_MEMORY_FLAGS_DEFAULT)

    def rknn_create_mem2(self, context: int, size: int, alloc_flags: int) -> Any:
        """The same with a 64-bit size and a choice of memory."""
        no_context = bool(alloc_flags & int(Flag.RKNN_MEM_FLAG_ALLOC_NO_CONTEXT))
        rest = alloc_flags & ~int(Flag.RKNN_MEM_FLAG_ALLOC_NO_CONTEXT)
        if rest > 7 or rest & 3 == 3:
            raise Refusal(Code.RKNN_ERR_PARAM_INVALID, f"allocation flags {alloc_flags:#x} are not possible")
        if size > 0xFFFF_FFFF:
            raise DeviceMemoryError(f"{size} bytes do not fit the 32-bit size of rknn_tensor_mem", hint="ask for less than 4 GiB")
        return self._create_mem(context, size, rknn_mem_alloc_flags(rest), no_context=no_context)

    def _create_mem(self, context: int, size: int, kind: rknn_mem_alloc_flags, *, no_context: bool = False) -> Any:
        if no_context and not self.handles.known(context):
            device, sram = self._board(self.chip_for_matmul())
        else:
            entry = self._owner(context)
            device, sram = self._board(entry.device.chip)
        if size <= 0:
            raise Refusal(Code.RKNN_ERR_PARAM_INVALID, f"memory of {size} bytes cannot be made")
        buffer = device.allocate(size)
        share = sram.take(size) if kind & rknn_mem_alloc_flags.RKNN_FLAG_MEMORY_TRY_ALLOC_SRAM else None
        return self.memories.add(
            buffer,
            rknn_tensor_mem_flags.RKNN_TENSOR_MEMORY_FLAGS_ALLOC_INSIDE,
            virtual=buffer.address,
            physical=buffer.physical_address,
            fd=buffer.fd,
            owner=context,
            sram=share,
        )

    def rknn_create_mem_from_fd(self, context: int, fd: int, virt_addr: Any, size: int, offset: int) -> Any:
        """Memory of the caller, by descriptor and address; without an address it is mapped here."""
        self._owner(context)
        if size <= 0 or offset < 0:
            raise Refusal(Code.RKNN_ERR_PARAM_INVALID, f"{size} bytes at offset {offset} cannot be used")
        address = int(ffi.cast("uintptr_t", virt_addr))
        buffer = Buffer.from_address(address + offset, size) if address else Buffer.from_fd(fd, size, offset)
        return self.memories.add(
            buffer,
            rknn_tensor_mem_flags.RKNN_TENSOR_MEMORY_FLAGS_FROM_FD,
            virtual=address or buffer.address - offset,
            physical=buffer.physical_address,
            fd=fd,
            offset=offset,
            owner=context,
        )

    def rknn_create_mem_from_phys(self, context: int, phys_addr: int, virt_addr: Any, size: int) -> Any:
        """Memory of the caller, by physical address; without a virtual one it must be memory of this library."""
        self._owner(context)
        if size <= 0:
            raise Refusal(Code.RKNN_ERR_PARAM_INVALID, f"memory of {size} bytes cannot be used")
        address = int(ffi.cast("uintptr_t", virt_addr))
        if address:
            buffer = Buffer.from_address(address, size)
        else:
            known = self.memories.at_physical(phys_addr, size)
            if known is None:
                raise Refusal(
                    Code.RKNN_ERR_PARAM_INVALID,
                    f"no memory of this library lies at the physical address {phys_addr:#x}",
                    "pass the virtual address as well",
                )
            buffer = known.buffer.slice(phys_addr - known.buffer.physical_address, size)
        return self.memories.add(
            buffer,
            rknn_tensor_mem_flags.RKNN_TENSOR_MEMORY_FLAGS_FROM_PHYS,
            virtual=buffer.address,
            physical=phys_addr,
            fd=-1,
            owner=context,
        )

    def rknn_create_mem_from_mb_blk(self, context: int, mb_blk: Any, offset: int) -> Any:
        """Declared by the vendor and offered on no chip."""
        del mb_blk, offset
        self._owner(context)
        raise Refusal(Code.RKNN_ERR_TARGET_PLATFORM_UNMATCH, "rknn_create_mem_from_mb_blk is not available on any chip")

    def rknn_destroy_mem(self, context: int, mem: Any) -> int:
        """Give memory back; what the caller brought himself stays his."""
        if self.memories.owner(mem) != context and not self.handles.known(context):
            raise Refusal(Code.RKNN_ERR_CTX_INVALID, f"there is no context {context:#x}")
        entry = self.memories.remove(mem)
        if entry.sram is not None:
            entry.sram.release()
        entry.buffer.close()
        return 0

    def rknn_mem_sync(self, context: int, mem: Any, mode: int) -> int:
        """Nothing to do: host and device see the same memory. A callback of a custom operator may pass that of its tensors.

        Programs call it around every run, so it is quick about memory that is known.
        """
        if not self.handles.known(context) or not self.memories.known(mem):
            entry = self._owner(context)
            in_callback = isinstance(entry, ModelContext) and entry.custom is not None and entry.custom.calling()
            if not in_callback or mem == ffi.NULL:
                self.memories.find(mem)
        if not 0 <= mode <= 3:
            raise Refusal(Code.RKNN_ERR_PARAM_INVALID, f"there is no way {mode} to synchronize")
        return 0

    def rknn_set_weight_mem(self, context: int, mem: Any) -> int:
        """Use memory of the caller for the weights."""
        entry = self._context(context)
        entry.settle()
        entry.set_weights(self.memories.find(mem))
        return 0

    def rknn_set_internal_mem(self, context: int, mem: Any) -> int:
        """Use memory of the caller for intermediate tensors."""
        entry = self._context(context)
        entry.settle()
        entry.set_internal(self.memories.find(mem))
        return 0

    def rknn_set_io_mem(self, context: int, mem: Any, attr: Any) -> int:
        """Use memory of the caller for an input or output."""
        entry = self._context(context)
        if attr == ffi.NULL:
            raise Refusal(Code.RKNN_ERR_PARAM_INVALID, "the attributes are a null pointer")
        entry.settle()
        entry.bind(self.memories.find(mem), attr)
        return 0

    def _owner(self, handle: int) -> ModelContext | MatmulState:
        entry = self.handles.get(handle, object)
        if isinstance(entry, (ModelContext, MatmulState)):
            return entry
        raise Refusal(Code.RKNN_ERR_CTX_INVALID, f"there is no context {handle:#x}")

    def _other(self, extend: Any, wanted: Flag, flag: str) -> ModelContext | None:
        if not wanted:
            return None
        if extend == ffi.NULL:
            raise Refusal(Code.RKNN_ERR_PARAM_INVALID, f"{flag} needs the other context in rknn_init_extend")
        other = self._context(extend.ctx)
        other.require_runnable_kind()
        return other


def _guarded(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """*method* with failures as codes."""

    @functools.wraps(method)
    def call(self: SoftwareLibrary, *arguments: Any) -> Any:
        try:
            return method(self, *arguments)
        except Exception as error:  # nothing may leave through C; what is not an error of ours is logged with its traceback
            return self.refused(name, arguments, error)
        except BaseException:  # an interrupt, which may have come anywhere
            for device, _ in tuple(self._devices.values()):
                device.scheduler.recover(threading.get_ident())
            raise

    return call


for _name in [name for kind in SoftwareLibrary.__mro__ for name in vars(kind) if name.startswith("rknn_")]:
    setattr(SoftwareLibrary, _name, _guarded(_name, getattr(SoftwareLibrary, _name)))
del _name


def _rknn_chip(name: str) -> Chip:
    chip = chips.get(name)
    if chip.family != "rknn":
        raise UnsupportedCall(f"{chip.name} has no RKNN NPU", hint="use the VIPLite calls for Allwinner's chips")
    return chip


def _read_model(model: Any, size: int, extend: Any) -> Model:
    if size:
        return modelfile.read_or_twin(bytes(ffi.buffer(ffi.cast("char *", model), size)))
    path = Path(os.fsdecode(ffi.string(ffi.cast("char *", model))))
    offset, length = (0, 0) if extend == ffi.NULL else (extend.real_model_offset, extend.real_model_size)
    if not offset and not length:
        return modelfile.read_or_twin(path)
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            length = length or end - offset
            if offset < 0 or length <= 0 or offset + length > end:
                raise Refusal(
                    Code.RKNN_ERR_PARAM_INVALID, f"{path} has {end} bytes: a model of {length} at {offset} is not inside"
                )
            file.seek(offset)
            return modelfile.read_or_twin(file.read(length))
    except OSError as error:
        raise Refusal(Code.RKNN_ERR_MODEL_INVALID, f"{path} cannot be read: {error.strerror or error}") from error


def _wait_for_frame(frames: Frames, extend: Any) -> None:
    latest = frames.latest
    if extend == ffi.NULL:
        frames.wait(0, None)
        return
    if extend.frame_id not in (0, latest):
        raise Refusal(
            Code.RKNN_ERR_OUTPUT_INVALID,
            f"the outputs of frame {extend.frame_id} are gone: frame {latest} was run after it",
            "get the outputs of a frame before the next one is run",
        )
    extend.frame_id = frames.wait(extend.frame_id, None)


def _wanted(ports: list[OutputPort], one: Any, index: int) -> tuple[OutputPort, Transfer]:
    if index >= len(ports):
        raise Refusal(Code.RKNN_ERR_OUTPUT_INVALID, f"there is no output {index}: the model has {len(ports)}")
    port = ports[index]
    if port.binding is not None and port.binding.memory.buffer.closed:
        raise Refusal(Code.RKNN_ERR_OUTPUT_INVALID, f"the memory bound to '{port.name}' was destroyed", "bind other memory")
    transfer = port.transfer(bool(one.want_float))
    if one.is_prealloc:
        if one.buf == ffi.NULL:
            raise Refusal(Code.RKNN_ERR_OUTPUT_INVALID, f"the buffer for output '{port.name}' is a null pointer")
        if one.size < transfer.nbytes:
            raise Refusal(
                Code.RKNN_ERR_PARAM_INVALID, f"output '{port.name}' takes {transfer.nbytes} bytes, the buffer has {one.size}"
            )
    return port, transfer
