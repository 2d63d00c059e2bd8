"""What the sanitizer knows about the RKNN calls: their objects, their order, and what a board does with them.

An observer stands around the calls of one software library. What it keeps belongs to it and changes within calls of the program; single
operations on its dictionaries are atomic, and two threads in one context are what it reports.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ..._rknn import ffi
from ...devtools.sanitizer import Observer, Reporter
from ...devtools.sanitizer.memory import Memory, bytes_at, red_zone_intact, red_zone_of
from ...devtools.sanitizer.stacks import Stack, take
from ...devtools.sanitizer.watch import Graveyard, Made, described, judge
from ...npu import Buffer
from ...tensor import Layout, TensorSpec
from ..constants import Code, Flag, rknn_mem_sync_mode, rknn_query_cmd
from ..interface import functions
from .context import ModelContext
from .handles import Handles
from .matmul import MatmulState
from .memory import MemoryTable
from .ports import InputPort, indices, indices_repeat

# The memory of RKNN programs under the sanitizer: caches, red zones, padding of rows, and who destroyed what.
#
# Memory that the library allocates has a cache, unless the program asks for none. ``rknn_run`` flushes what is bound to inputs and
# invalidates what is bound to outputs, unless flags of the context state that the program does that itself. Memory that a program brings is
# left as it is: whether it has a cache is not known.


Add = Callable[..., None]

_TO_DEVICE = int(rknn_mem_sync_mode.RKNN_MEMORY_SYNC_TO_DEVICE)
_FROM_DEVICE = int(rknn_mem_sync_mode.RKNN_MEMORY_SYNC_FROM_DEVICE)


def address_of(pointer: Any) -> int:
    """The number of a pointer."""
    return int(ffi.cast("uintptr_t", pointer))


class _Held(Memory):
    """One ``rknn_tensor_mem``.

    :ivar owner: the handle that it was made with
    :ivar buffers: what keeps both sides mapped
    """

    owner = 0
    buffers: tuple[Buffer, ...] = ()
    own = False


class Memories:
    """All memory of one library that was made while it was watched."""

    def __init__(self, table: MemoryTable, add: Add) -> None:
        self._table = table
        self._add = add
        self._held: dict[Any, _Held] = {}  # by pointer, as in the table
        self.gone = Graveyard()

    def of(self, pointer: Any) -> _Held | None:
        """What is known about the memory behind a pointer."""
        return self._held.get(pointer)

    def any_cached(self) -> bool:
        """Whether the NPU has a view of its own of any memory."""
        return any(held.device is not None for held in list(self._held.values()))

    def made(self, pointer: Any, owner: int, origin: Stack, *, cached: bool) -> None:
        """The library has allocated."""
        host = self._table.find(pointer).buffer
        buffers: tuple[Buffer, ...] = (host,)
        device = None
        if cached:
            other = Buffer.allocate(host.size, name="device", physical_address=host.physical_address)
            self._table.exchange(pointer, other)
            device = other.array(np.uint8)
            buffers = (host, other)
        name = f"memory of {host.size} bytes"
        zone = Buffer.room_behind(host.size)
        held = _Held(host.array(np.uint8), origin, device=device, tracked=cached, zone=zone, name=name)
        held.own = True
        self._keep(pointer, held, owner, buffers)

    def brought(self, pointer: Any, owner: int, origin: Stack) -> None:
        """The program has brought memory; if it is a part of ours, the NPU sees its side of it."""
        buffer = self._table.find(pointer).buffer
        fd = int(pointer.fd)
        device = None
        buffers: tuple[Buffer, ...] = (buffer,)
        for known in list(self._held.values()):
            whole = known.buffers[-1]
            if len(known.buffers) < 2 or whole.closed:
                continue
            inside = known.covers(buffer.address, buffer.size)
            same = not inside and fd >= 0 and known.buffers[0].fd == fd
            start = buffer.address - known.address if inside else int(pointer.offset)
            if inside or (same and start + buffer.size <= whole.size):
                part = whole.slice(start, buffer.size)
                self._table.exchange(pointer, part)
                device, buffers = part.array(np.uint8), (buffer, part, whole)
                break
        host = bytes_at(buffer.address, buffer.size)
        self._keep(pointer, _Held(host, origin, device=device, name=f"memory of {buffer.size} bytes"), owner, buffers)

    def _keep(self, pointer: Any, held: _Held, owner: int, buffers: tuple[Buffer, ...]) -> None:
        held.owner, held.buffers = owner, buffers
        self.gone.raise_again(address_of(pointer))
        self._held[pointer] = held

    def destroyed(self, pointer: Any) -> None:
        """The library has given it back."""
        held = self._held.pop(pointer, None)
        if held is None:
            return
        self.gone.bury(address_of(pointer), held.name, held.origin)
        if held.own:
            held.host = held.host[:0]
            held.device = None
            held.buffers[0].close()

    def sync(self, pointer: Any, mode: int) -> None:
        """``rknn_mem_sync``."""
        held = self.of(pointer)
        if held is None:
            return
        self.check("rknn_mem_sync", held)
        if mode & _TO_DEVICE:
            held.flush()
        elif mode and not held.unread and (count := held.differs()):
            text = f"RKNN_MEMORY_SYNC_FROM_DEVICE discards {count} bytes of {held.name} that were written and not flushed"
            self._add("input-not-flushed", "rknn_mem_sync", text, subject=held.address, origin=held.origin)
        if mode & _FROM_DEVICE:
            held.invalidate()

    def check(self, call: str, held: _Held) -> None:
        """Whether it was written behind its end, or read before it was current."""
        for kind, text in held.faults("RKNN_MEMORY_SYNC_FROM_DEVICE"):
            self._add(kind, call, text, subject=held.address, origin=held.origin)

    def before_run(
        self, held: _Held, name: str, *, keep: bool, bound: tuple[TensorSpec, bool] | None, call: str = "rknn_run"
    ) -> bool:
        """An input is about to be read.

        :param name: of the input, or the matrix
        :param keep: the run does not flush it
        :return: whether its values are worth a look
        """
        self.check(call, held)
        held.note_access()
        if not held.written:
            held.written = True
            self._add("input-never-set", call, f"nothing was written to the memory bound to '{name}'", origin=held.origin)
            return False
        if not keep:
            held.flush()
        else:
            count = held.differs()
            if count:
                text = f"{count} of {held.size} bytes bound to '{name}' were written and not flushed"
                self._add("input-not-flushed", call, text, subject=held.address, origin=held.origin)
        if bound is not None and _padding_written(held, bound[0]):
            text = (
                f"the padding of rows of '{name}' was written: rows of {bound[0].shape[3]} pixels lie {bound[0].w_stride} apart"
            )
            self._add("stride-padding-written", call, text, subject=held.address, origin=held.origin)
            return False
        return True

    def after_read(self, call: str, held: _Held, name: str) -> None:
        """A run has read an input that was flushed before it."""
        count = held.differs()
        if count:
            text = f"{count} of {held.size} bytes bound to '{name}' changed while the run used them"
            self._add("written-during-run", call, text, subject=held.address, origin=held.origin)

    def after_written(self, held: _Held, *, keep: bool) -> None:
        """A run has written an output.

        :param keep: the run does not invalidate it
        """
        if keep:
            held.wrote()
        else:
            held.invalidate()

    def finish(self, contexts: set[int]) -> None:
        """What is left now is left for good; memory of a context that is left as well is reported with it."""
        for held in list(self._held.values()):
            self.check("exit", held)
            if not held.origin.owned and held.owner not in contexts:
                self._add("memory-leak", "exit", f"{held.name} was made and rknn_destroy_mem never called", origin=held.origin)


def _padding_written(held: _Held, spec: TensorSpec) -> bool:
    """Whether data lies between the rows of an image; one value everywhere is memory that was filled."""
    if len(spec.shape) != 4 or spec.layout is not Layout.NHWC or spec.w_stride <= spec.shape[3]:
        return False
    count, height, stride = spec.memory_shape[:3]
    rows = held.host[: spec.nbytes].reshape(count, height, stride, -1)
    padding = rows[:, :, spec.shape[3] :]
    return bool((padding != padding[0, 0, 0, 0]).any())


_LOW_BITS = 0xFFFF_FFFF
_MAKES = frozenset(
    {
        "rknn_init",
        "rknn_dup_context",
        "rknn_matmul_create",
        "rknn_matmul_create_dynamic_shape",
        "rknn_matmul_create_dyn_shape",
        "rknn_B_normal_layout_to_native_layout",
        "rknn_custom_op_get_op_attr",
    }
)
"""Calls whose first parameter is not a context."""

_MEMORY_AT = {
    "rknn_destroy_mem": 1,
    "rknn_mem_sync": 1,
    "rknn_set_io_mem": 1,
    "rknn_set_weight_mem": 1,
    "rknn_set_internal_mem": 1,
    "rknn_matmul_set_io_mem": 1,
}
_DESTROYS = frozenset({"rknn_destroy", "rknn_matmul_destroy", "rknn_destroy_mem"})
_HARMLESS = frozenset({"rknn_query", "rknn_create_mem", "rknn_create_mem2", "rknn_mem_sync", "rknn_destroy_mem"})
"""May be called while another thread is inside the same context."""

_CORES = frozenset({"rknn_set_core_mask", "rknn_set_batch_core_num", "rknn_matmul_set_core_mask"})
_ARGUMENTS = frozenset({Code.RKNN_ERR_PARAM_INVALID, Code.RKNN_ERR_INPUT_INVALID, Code.RKNN_ERR_OUTPUT_INVALID})
_TOO_SMALL = re.compile(r"takes \d+ bytes|too small")
_KEEPS_INPUTS = int(Flag.RKNN_FLAG_DISABLE_FLUSH_INPUT_MEM_CACHE)
_KEEPS_OUTPUTS = int(Flag.RKNN_FLAG_DISABLE_FLUSH_OUTPUT_MEM_CACHE)
_ZONE = 256
"""Bytes after an output of ``rknn_outputs_get`` that must not be written."""


class RknnObserver(Observer):
    """Watches one software library."""

    def __init__(self, library: Any, reporter: Reporter) -> None:
        super().__init__(library, reporter, functions())
        self._handles: Handles = library.handles
        self._made: dict[int, _Context] = {}
        self._gone = Graveyard()
        self._memories = Memories(library.memories, self.tell)

    quiet_calls = frozenset({"rknn_run", "rknn_wait", "rknn_matmul_run", "rknn_mem_sync", "rknn_destroy_mem"})

    def has_left(self) -> bool:
        """Whether there is memory with two sides."""
        return self._memories.any_cached()

    # every call

    def enter(self, name: str, arguments: tuple[Any, ...]) -> _Context | None:
        """Note who is inside, and complain about a second thread."""
        made = None if name in _MAKES else self._made.get(arguments[0] & _LOW_BITS)
        if made is None:
            return None
        other = made.enter(name)
        if other is not None and not (name in _HARMLESS or other in _HARMLESS):
            self.tell(
                "context-in-two-threads",
                name,
                f"{name} with {made}, while another thread is in {other} with it",
                subject=made.handle,
                origin=made.origin,
            )
        return made

    def failed(self, name: str, result: Any) -> bool:
        """A code below zero, or no memory."""
        return result < 0 if isinstance(result, int) else result is not None and result == ffi.NULL

    def refused(self, name: str, arguments: tuple[Any, ...], failure: Any) -> None:
        """Find out whose fault it is."""
        if self._stale(name, arguments):
            return
        context = None if name in _MAKES else self._made.get(arguments[0] & _LOW_BITS)
        add, text = self.tell, failure.text
        origin = None if context is None else context.origin
        if name in _CORES:
            add("core-mask", name, text, origin=origin)
        elif failure.code == Code.RKNN_ERR_TARGET_PLATFORM_UNMATCH and name != "rknn_init":
            add("not-on-board", name, text, origin=origin)
        elif context is not None and self._state_is_wrong(name, context, text):
            return
        elif failure.code in _ARGUMENTS:
            add("buffer-too-small" if _TOO_SMALL.search(text) else "bad-argument", name, text, origin=origin)

    def _stale(self, name: str, arguments: tuple[Any, ...]) -> bool:
        """Whether a handle or a pointer is of something that is gone, or never was."""
        if name not in _MAKES:
            handle = arguments[0] & _LOW_BITS
            if not self._handles.known(handle):
                return self._tell_stale(name, handle, "context", self._gone.find(handle), name == "rknn_destroy_mem")
        position = _MEMORY_AT.get(name)
        if position is None or arguments[position] == ffi.NULL or self.library.memories.known(arguments[position]):
            return False
        address = address_of(arguments[position])
        return self._tell_stale(name, address, "memory", self._memories.gone.find(address), False)

    def _tell_stale(self, name: str, handle: int, noun: str, gone: tuple[str, Stack] | None, of_another: bool) -> bool:
        if gone is None:
            self.tell("unknown-handle", name, f"{noun} {handle:#x} was never given", subject=handle)
        else:
            kind = "double-destroy" if name in _DESTROYS and not of_another else "use-after-destroy"
            self.tell(kind, name, f"{gone[0]} {handle:#x} was destroyed before", subject=handle, origin=gone[1])
        return True

    def _state_is_wrong(self, name: str, context: _Context, text: str) -> bool:
        """Whether the call came at the wrong time."""
        entry = context.entry
        if not isinstance(entry, ModelContext):
            return isinstance(entry, MatmulState) and self._product_is_wrong(name, context, entry)
        add, ports = self.tell, entry.ports
        if name in ("rknn_run", "rknn_outputs_get"):
            for port in (*ports.inputs, *ports.outputs):
                if port.binding is not None and port.binding.memory.buffer.closed:
                    add("use-after-destroy", name, f"the memory bound to '{port.name}' was destroyed", origin=context.origin)
                    return True
        if name == "rknn_run" and entry.shapes_chosen:
            missing = [port.name for port in ports.inputs if port.binding is None and not port.given]
            if missing:
                add("input-never-set", name, f"input '{missing[0]}' has no data", origin=context.origin)
                return True
            if "has no memory" in text:
                add("output-never-bound", name, text, origin=context.origin)
                return True
        if name == "rknn_inputs_set" and any(port.binding is not None for port in ports.inputs):
            add("api-mixed", name, "rknn_inputs_set on a context with memory bound to its inputs", origin=context.origin)
            return True
        early = name in ("rknn_run", "rknn_inputs_set") and not entry.shapes_chosen
        if early or (name == "rknn_outputs_get" and not entry.runs) or (name == "rknn_wait" and entry.frames is None):
            add("call-order", name, text, origin=context.origin)
            return True
        return False

    def _product_is_wrong(self, name: str, context: _Context, entry: MatmulState) -> bool:
        if name != "rknn_matmul_run":
            return False
        told, context.robbed = context.robbed, False
        closed = [matrix for matrix, memory in entry._bound.items() if memory.buffer.closed]
        missing = [matrix for matrix in "ABC" if matrix not in entry._bound]
        if closed and told:
            return True
        if closed:
            self.tell("use-after-destroy", name, f"the memory of matrix {closed[0]} was destroyed", origin=context.origin)
        elif missing:
            kind = "output-never-bound" if missing[0] == "C" else "input-never-set"
            self.tell(kind, name, f"matrix {missing[0]} has no memory", origin=context.origin)
        return bool(closed or missing)

    # contexts

    def _make(self, handle: int, noun: str = "context") -> None:
        handle &= _LOW_BITS
        self._gone.raise_again(handle)
        self._made[handle] = _Context(noun, handle, take(), entry=self._handles.get(handle, object))

    def after_rknn_init(self, result: int, context: Any, *rest: Any) -> None:
        """A context was made."""
        del result, rest
        self._make(context[0])

    def after_rknn_dup_context(self, result: int, source: Any, target: Any) -> None:
        """A second one was made."""
        del result, source
        self._make(target[0])

    def after_rknn_matmul_create(self, result: int, ctx: Any, *rest: Any) -> None:
        """A matmul was made."""
        del result, rest
        self._make(ctx[0], "matmul context")

    def after_rknn_matmul_create_dynamic_shape(self, result: int, ctx: Any, *rest: Any) -> None:
        """One with several shapes was made."""
        del result, rest
        self._make(ctx[0], "matmul context")

    def after_rknn_matmul_create_dyn_shape(self, result: int, ctx: Any, *rest: Any) -> None:
        """The same by its old name."""
        del result, rest
        self._make(ctx[0], "matmul context")
        text = "rknn_matmul_create_dyn_shape was renamed in version 2.1: use rknn_matmul_create_dynamic_shape"
        self.tell("deprecated-call", "rknn_matmul_create_dyn_shape", text)

    def before_rknn_destroy(self, context: int) -> None:
        """Look at what was given out, while it is there."""
        made = self._made.get(context & _LOW_BITS)
        if made is None:
            return
        for address, (size, origin) in list(made.given.items()):
            self._check_output("rknn_destroy", made, address, size)
            text = f"an output of {size} bytes was not released before its context was destroyed"
            self.tell("outputs-not-released", "rknn_destroy", text, origin=origin)
        made.given.clear()

    def after_rknn_destroy(self, result: int, context: int) -> None:
        """A context is gone."""
        del result
        made = self._made.pop(context & _LOW_BITS, None)
        if made is not None:
            self._gone.bury(made.handle, made.noun, made.origin)

    after_rknn_matmul_destroy = after_rknn_destroy

    def after_rknn_set_input_shape(self, result: int, *arguments: Any) -> None:
        """The old form of a call."""
        del result, arguments
        text = "rknn_set_input_shape is for one input and deprecated: use rknn_set_input_shapes"
        self.tell("deprecated-call", "rknn_set_input_shape", text)

    def after_rknn_query(self, result: int, context: int, cmd: int, info: Any, size: int) -> None:
        """Times are only there where they were asked for."""
        del result, info, size
        made = self._made.get(context & _LOW_BITS)
        entry = None if made is None else made.entry
        if cmd != rknn_query_cmd.RKNN_QUERY_PERF_DETAIL or not isinstance(entry, ModelContext) or made is None:
            return
        if not entry.flags & Flag.RKNN_FLAG_COLLECT_PERF_MASK:
            text = "RKNN_QUERY_PERF_DETAIL on a context that was made without RKNN_FLAG_COLLECT_PERF_MASK"
            self.tell("call-order", "rknn_query", text, origin=made.origin)

    # the general calls

    def before_rknn_inputs_set(self, context: int, n_inputs: int, inputs: Any) -> None:
        """Look at the data before it is converted."""
        made = self._made.get(context & _LOW_BITS)
        entry = None if made is None else made.entry
        if made is None or not isinstance(entry, ModelContext) or inputs == ffi.NULL or n_inputs != len(entry.ports.inputs):
            return
        self._check_indices("rknn_inputs_set", made, inputs, n_inputs)
        for position, index in enumerate(indices(inputs, n_inputs)):
            one = inputs[position]
            address = address_of(one.buf)
            if index < n_inputs and address:
                self._judge_given(made, entry.ports.inputs[index], one, address)

    def _check_indices(self, call: str, made: _Context, structs: Any, count: int) -> None:
        found = [structs[position].index for position in range(count)]
        if indices_repeat(found):
            twice = next(index for index in found if found.count(index) > 1)
            text = f"{count} structs, {found.count(twice)} of them with index {twice}: the position in the array is used"
            self.tell("repeated-index", call, text, subject=made.handle, origin=made.origin)

    def _judge_given(self, made: _Context, port: InputPort, one: Any, address: int) -> None:
        if one.pass_through or not made.may_judge(port.index):
            return
        source = port._source(one.type, one.fmt)
        if one.size < source.nbytes:
            return
        width = one.size / source.nbytes
        if source.dtype.bits == 8 and width in (2.0, 4.0):
            text = (
                f"'{port.name}' is given as {source.dtype.value} with {one.size} bytes, {width:.0f} for each element: "
                f"these are float{8 * width:.0f} numbers"
            )
            self.tell("wrong-element-size", "rknn_inputs_set", text, subject=port.index, origin=made.origin)
            return
        self._judge("rknn_inputs_set", made, port, source, address, False)

    def _judge(self, call: str, made: _Context, port: Any, source: Any, address: int, pass_through: bool) -> None:
        ready = port._is_normalized(source, pass_through)
        applied = None if ready else port.preprocess
        said = described(
            source,
            port.spec,
            codes=pass_through or source.quantization is not None,
            mean=() if applied is None else applied.mean,
            std=() if applied is None else applied.std,
        )
        found = judge(bytes_at(address, source.nbytes), said)
        if found is not None:
            self.tell(found[0], call, found[1], subject=(made.handle, port.index), origin=made.origin)

    def after_rknn_inputs_set(self, result: int, context: int, *rest: Any) -> None:
        """The general way was gone."""
        del result, rest
        self._general("rknn_inputs_set", context, _KEEPS_INPUTS)

    def _general(self, call: str, context: int, flag: int) -> None:
        made = self._made.get(context & _LOW_BITS)
        if made is None or not isinstance(made.entry, ModelContext):
            return
        made.general = made.general or call
        if made.zero_copy:
            text = f"{call} on a context for which {made.zero_copy} was called"
            self.tell("api-mixed", call, text, subject=made.handle, origin=made.origin)
        if made.flags & flag:
            text = f"{call} on a context that was made with {Flag(flag).name}"
            self.tell("flush-disabled-general", call, text, subject=made.handle, origin=made.origin)

    def before_rknn_outputs_get(self, context: int, n_outputs: int, outputs: Any, extend: Any) -> None:
        """Look at the indices before they are written back."""
        del extend
        made = self._made.get(context & _LOW_BITS)
        entry = None if made is None else made.entry
        if made is None or not isinstance(entry, ModelContext) or outputs == ffi.NULL or n_outputs != len(entry.ports.outputs):
            return
        self._check_indices("rknn_outputs_get", made, outputs, n_outputs)

    def after_rknn_outputs_get(self, result: int, context: int, n_outputs: int, outputs: Any, extend: Any) -> None:
        """Remember what was given out, and put a red zone behind it."""
        del result, extend
        self._general("rknn_outputs_get", context, _KEEPS_OUTPUTS)
        made = self._made.get(context & _LOW_BITS)
        if made is None:
            return
        origin = take()
        for position in range(n_outputs):
            one = outputs[position]
            if not one.is_prealloc:
                address = address_of(one.buf)
                made.given[address] = (one.size, origin)
                red_zone_of(address + one.size, _ZONE)
        made.released = False

    def before_rknn_outputs_release(self, context: int, n_outputs: int, outputs: Any) -> None:
        """Look at the red zones, and whether there is anything to release."""
        made = self._made.get(context & _LOW_BITS)
        if made is None or outputs == ffi.NULL or n_outputs > 1024:
            return
        own = [outputs[position] for position in range(n_outputs) if not outputs[position].is_prealloc]
        found = False
        for one in own:
            address = address_of(one.buf)
            size, _ = made.given.pop(address, (0, None))
            if size:
                found = True
                self._check_output("rknn_outputs_release", made, address, size)
        if own and not found and made.released:
            text = "these outputs were released before"
            self.tell("double-release", "rknn_outputs_release", text, subject=made.handle, origin=made.origin)
        made.released = made.released or found

    def _check_output(self, call: str, made: _Context, address: int, size: int) -> None:
        behind = red_zone_intact(address + size, _ZONE)
        if behind is not None:
            text = f"up to {behind} bytes after an output of {size} bytes were written"
            self.tell("write-outside-buffer", call, text, subject=made.handle, origin=made.origin)

    # runs

    def before_rknn_run(self, context: int, extend: Any) -> None:
        """Do what the board does with caches, and look at the inputs."""
        made = self._made.get(context & _LOW_BITS)
        entry = None if made is None else made.entry
        if made is None or not isinstance(entry, ModelContext):
            return
        if extend != ffi.NULL and extend.non_block:
            text = "non_block of rknn_run_extend: no chip's library offers runs that do not block"
            self.tell("not-on-board", "rknn_run", text, origin=made.origin)
        keep = bool(made.flags & _KEEPS_INPUTS)
        for port in entry.ports.inputs:
            memory = None if port.binding is None else self._memories.of(port.binding.memory.struct)
            if memory is None:
                continue
            said = made.bound.get(port.name) if made.may_judge(port.index) else None
            if self._memories.before_run(memory, port.name, keep=keep, bound=said) and said is not None:
                source, pass_through = said
                if source.memory_shape == _plain(source).memory_shape:
                    self._judge("rknn_run", made, port, source, memory.address, pass_through)
        for target in entry.ports.outputs:
            memory = None if target.binding is None else self._memories.of(target.binding.memory.struct)
            if memory is not None:
                self._memories.check("rknn_run", memory)

    def after_rknn_run(self, result: int, context: int, extend: Any) -> None:
        """The outputs are there; for a run that does not block they come with ``rknn_wait``."""
        del result
        if extend == ffi.NULL or not extend.non_block:
            self._ran("rknn_run", context)

    def after_rknn_wait(self, result: int, context: int, extend: Any) -> None:
        """A run that did not block has ended."""
        del result, extend
        self._ran("rknn_wait", context)
        self.tell("not-on-board", "rknn_wait", "no chip's library offers rknn_wait")

    def _ran(self, call: str, context: int) -> None:
        made = self._made.get(context & _LOW_BITS)
        entry = None if made is None else made.entry
        if made is None or not isinstance(entry, ModelContext):
            return
        if not made.flags & _KEEPS_INPUTS:
            for port in entry.ports.inputs:
                memory = None if port.binding is None else self._memories.of(port.binding.memory.struct)
                if memory is not None:
                    self._memories.after_read(call, memory, port.name)
        keep = bool(made.flags & _KEEPS_OUTPUTS)
        for target in entry.ports.outputs:
            memory = None if target.binding is None else self._memories.of(target.binding.memory.struct)
            if memory is not None:
                self._memories.after_written(memory, keep=keep)

    def before_rknn_matmul_run(self, ctx: int) -> None:
        """A product has no flags: its library flushes and invalidates on its own."""
        for matrix, memory in self._factors(ctx):
            if matrix == "C":
                self._memories.check("rknn_matmul_run", memory)
                memory.flush()
            else:
                self._memories.before_run(memory, f"matrix {matrix}", keep=False, bound=None, call="rknn_matmul_run")

    def after_rknn_matmul_run(self, result: int, ctx: int) -> None:
        """The product is there."""
        del result
        for matrix, memory in self._factors(ctx):
            if matrix == "C":
                self._memories.after_written(memory, keep=False)
            else:
                self._memories.after_read("rknn_matmul_run", memory, f"matrix {matrix}")

    def _factors(self, ctx: int) -> list[tuple[str, Any]]:
        made = self._made.get(ctx & _LOW_BITS)
        entry = None if made is None else made.entry
        if not isinstance(entry, MatmulState):
            return []
        found = ((matrix, self._memories.of(bound.struct)) for matrix, bound in entry._bound.items())
        return [(matrix, memory) for matrix, memory in found if memory is not None]

    # memory

    def after_rknn_create_mem(self, result: Any, context: int, size: int) -> None:
        """Memory with a cache."""
        del size
        self._memories.made(result, context & _LOW_BITS, take(), cached=True)

    def after_rknn_create_mem2(self, result: Any, context: int, size: int, flags: int) -> None:
        """Memory with a cache, unless it was asked for without or lies in the SRAM."""
        del size
        self._memories.made(result, context & _LOW_BITS, take(), cached=not flags & 6)

    def after_rknn_create_mem_from_fd(self, result: Any, context: int, *rest: Any) -> None:
        """Memory of the caller, or a second view of ours."""
        del rest
        self._memories.brought(result, context & _LOW_BITS, take())

    def after_rknn_create_mem_from_phys(self, result: Any, context: int, *rest: Any) -> None:
        """The same."""
        del rest
        self._memories.brought(result, context & _LOW_BITS, take())

    def before_rknn_destroy_mem(self, context: int, mem: Any) -> None:
        """Look at it while it is there."""
        handle = context & _LOW_BITS
        memory = self._memories.of(mem)
        if memory is None:
            return
        self._memories.check("rknn_destroy_mem", memory)
        gone = self._gone.find(handle)
        if gone is not None and not self._handles.known(handle):
            text = f"{gone[0]} {handle:#x} was destroyed before the memory that was made with it"
            self.tell("use-after-destroy", "rknn_destroy_mem", text, origin=gone[1])
        for made in list(self._made.values()):
            if self._in_use(made, mem):
                text = f"{memory.name}, which a run of {made} in another thread uses"
                made.robbed = True
                self.tell("destroyed-during-run", "rknn_destroy_mem", text, origin=memory.origin)

    @staticmethod
    def _in_use(made: _Context, mem: Any) -> bool:
        entry = made.entry
        if not any(call in ("rknn_run", "rknn_matmul_run") for call in list(made.inside.values())):
            return False
        if isinstance(entry, MatmulState):
            return any(bound.struct == mem for bound in list(entry._bound.values()))
        if not isinstance(entry, ModelContext):
            return False
        ports = (*entry.ports.inputs, *entry.ports.outputs)
        return any(port.binding is not None and port.binding.memory.struct == mem for port in ports)

    def after_rknn_destroy_mem(self, result: int, context: int, mem: Any) -> None:
        """Memory is gone."""
        del result, context
        self._memories.destroyed(mem)

    def after_rknn_mem_sync(self, result: int, context: int, mem: Any, mode: int) -> None:
        """Flush and invalidate."""
        del result, context
        self._memories.sync(mem, mode)

    def after_rknn_set_io_mem(self, result: int, context: int, mem: Any, attr: Any) -> None:
        """Remember what the memory is said to hold."""
        del result, mem
        made = self._made.get(context & _LOW_BITS)
        entry = None if made is None else made.entry
        if made is None or not isinstance(entry, ModelContext):
            return
        if made.general:
            text = f"rknn_set_io_mem on a context for which {made.general} was called"
            self.tell("api-mixed", "rknn_set_io_mem", text, subject=made.handle, origin=made.origin)
        made.zero_copy = "rknn_set_io_mem"
        port = entry._named(attr)
        if port in entry.ports.inputs and port.binding is not None:
            made.bound[port.name] = (port._memory(attr, port.binding.memory, is_input=True), bool(attr.pass_through))

    # the end

    def finish(self) -> None:
        """What is left now is left for good."""
        for handle, made in list(self._made.items()):
            if self._handles.known(handle) and not made.origin.owned:
                call = "rknn_matmul_destroy" if isinstance(made.entry, MatmulState) else "rknn_destroy"
                self.tell("context-leak", "exit", f"{made} was made and {call} never called", origin=made.origin)
        self._memories.finish({handle for handle in self._made if self._handles.known(handle)})


def observe(library: Any, reporter: Reporter) -> RknnObserver:
    """An observer for a library."""
    return RknnObserver(library, reporter)


class _Context(Made):
    """A context, and how it was used.

    :ivar given: outputs that were not released: their size, and who got them
    :ivar robbed: memory that its run uses was destroyed, and that was reported
    :ivar bound: by the name of an input, what its memory is said to hold, and whether it is passed through
    """

    def __init__(self, noun: str, handle: int, origin: Stack, *, entry: object) -> None:
        super().__init__(noun, handle, origin)
        self.entry = entry
        self.flags = int(entry.flags) if isinstance(entry, ModelContext) else 0
        self.general = ""
        self.zero_copy = ""
        self.given: dict[int, tuple[int, Stack]] = {}
        self.released = False
        self.robbed = False
        self.bound: dict[str, tuple[Any, bool]] = {}


def _plain(spec: TensorSpec) -> TensorSpec:
    return replace(spec, w_stride=0, h_stride=0)
