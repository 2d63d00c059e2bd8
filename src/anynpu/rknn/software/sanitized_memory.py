"""The memory of RKNN programs under the sanitizer: caches, red zones, padding of rows, and who destroyed what.

Memory that the library allocates has a cache, unless the program asks for none. ``rknn_run`` flushes what is bound to inputs and
invalidates what is bound to outputs, unless flags of the context say that the program does that itself. Memory that a program brings is
left as it is: whether it has a cache is not known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..._rknn import ffi
from ...devtools.sanitizer.memory import Memory, bytes_at
from ...devtools.sanitizer.stacks import Stack
from ...devtools.sanitizer.watch import Graveyard
from ...npu import Buffer
from ...tensor import Layout, TensorSpec
from ..constants import rknn_mem_sync_mode
from .memory import MemoryTable

__all__ = ["Memories", "address_of"]

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
        """What is left now is left for good; memory of a context that is left as well is told with it."""
        for held in list(self._held.values()):
            self.check("exit", held)
            if not held.origin.owned and held.owner not in contexts:
                self._add("memory-leak", "exit", f"{held.name} was made and rknn_destroy_mem never called", origin=held.origin)


def _padding_written(held: _Held, spec: TensorSpec) -> bool:
    """Whether data lies between the rows of a picture; one value everywhere is memory that was filled."""
    if len(spec.shape) != 4 or spec.layout is not Layout.NHWC or spec.w_stride <= spec.shape[3]:
        return False
    count, height, stride = spec.memory_shape[:3]
    rows = held.host[: spec.nbytes].reshape(count, height, stride, -1)
    padding = rows[:, :, spec.shape[3] :]
    return bool((padding != padding[0, 0, 0, 0]).any())
