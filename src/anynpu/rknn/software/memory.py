"""``rknn_tensor_mem``: memory that the caller holds by a pointer to a struct.

The struct belongs to the library; the caller may read and write its fields. What a call needs is kept beside it and found by the
struct's address, so that a pointer which was never given, or whose memory was destroyed, is rejected and never read.

Concurrency: the table is a dictionary whose single operations are atomic; an entry never changes after it was made. A run that uses an
entry keeps a reference to its buffer, so destroying memory in use takes nothing away from the run.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._rknn import ffi
from ..._util.lifetime import at_end
from ...npu import Buffer
from ...vendors.libraries import Refusal
from ..constants import Code, rknn_tensor_mem_flags

# Memory that programs in C get from the library: never among Python's own objects.
#
# What a program writes behind the end of an output or of a struct would otherwise change an object of Python next to it, and end
# the process in a message about Python. Here it meets unused space, and then memory of the C library, as with the vendor's
# library.


ROOM_BEHIND = 1024
"""Unused bytes after each piece."""

_allocate = ctypes.pythonapi.PyMem_RawCalloc
_allocate.argtypes, _allocate.restype = (ctypes.c_size_t, ctypes.c_size_t), ctypes.c_void_p
_free = ctypes.pythonapi.PyMem_RawFree
_free.argtypes, _free.restype = (ctypes.c_void_p,), None


def _allocated(size: int) -> Any:
    return ffi.cast("void *", _allocate(1, size + ROOM_BEHIND) or 0)


def _freed(pointer: Any) -> None:
    _free(int(ffi.cast("uintptr_t", pointer)))


new_outside = ffi.new_allocator(_allocated, _freed, should_clear_after_alloc=False)
"""As ``ffi.new``."""


# The SRAM that an NPU may use besides DRAM: who has how much of it.
#
# Contexts with ``RKNN_FLAG_ENABLE_SRAM`` take as much as their internal memory needs and the chip has left; the bytes themselves are
# ordinary memory here. One lock protects the account; shares are given back once, by their owner.


class Sram:
    """The SRAM of one chip.

    >>> sram = Sram(1000)
    >>> first, second = sram.take(700), sram.take(700)
    >>> first.size, second.size, sram.free
    (700, 300, 0)
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = total
        self._lock = threading.Lock()

    @property
    def free(self) -> int:
        return self._free

    def take(self, wanted: int) -> SramShare:
        """As many of the *wanted* bytes as there are."""
        with self._lock:
            size = min(wanted, self._free)
            self._free -= size
        return SramShare(self, size)

    def _give_back(self, size: int) -> None:
        with self._lock:
            self._free += size


class SramShare:
    """A part of the SRAM; given back when it is released or forgotten. Contexts that share SRAM hold the same share."""

    def __init__(self, sram: Sram, size: int) -> None:
        self.size = size
        self._finalizer = at_end(self, sram._give_back, size)

    def release(self) -> None:
        """Give it back; again is harmless."""
        self._finalizer()


@dataclass(frozen=True, eq=False)
class TensorMemory:
    """One piece of memory.

    :ivar buffer: the bytes, from the address that counts (``virt_addr`` plus ``offset``) on
    :ivar struct: the ``rknn_tensor_mem`` that the caller points to
    :ivar owner: the handle of the context that it was made with; 0 for none
    :ivar sram: what it occupies of the SRAM
    """

    buffer: Buffer
    struct: Any
    owner: int = 0
    sram: SramShare | None = None

    @property
    def size(self) -> int:
        return self.buffer.size

    def bytes(self) -> npt.NDArray[np.uint8]:
        """The memory as it is."""
        return self.buffer.array(np.uint8)


class MemoryTable:
    """All memory that one library has given out."""

    def __init__(self) -> None:
        self._entries: dict[Any, TensorMemory] = {}  # by pointer: two are the same key if they are the same address

    def add(
        self,
        buffer: Buffer,
        flags: rknn_tensor_mem_flags,
        *,
        virtual: int,
        physical: int,
        fd: int,
        offset: int = 0,
        owner: int = 0,
        sram: SramShare | None = None,
    ) -> Any:
        """Make the struct for *buffer* and return the pointer that the caller gets.

        :param virtual: what ``virt_addr`` states, without the offset
        """
        struct = new_outside("rknn_tensor_mem *")
        struct.virt_addr = ffi.cast("void *", virtual)
        struct.phys_addr = physical
        struct.fd = fd
        struct.offset = offset
        struct.size = buffer.size
        struct.flags = int(flags)
        self._entries[struct] = TensorMemory(buffer, struct, owner, sram)
        return struct

    def find(self, pointer: Any) -> TensorMemory:
        """The memory behind a pointer of the caller; rejected if it is a part of memory that was destroyed."""
        entry = self._entries.get(pointer)
        if entry is None or entry.buffer.closed:
            raise _unknown(pointer)
        return entry

    def owner(self, pointer: Any) -> int:
        """The handle that the memory behind a pointer was made with."""
        entry = self._entries.get(pointer)
        if entry is None:
            raise _unknown(pointer)
        return entry.owner

    def known(self, pointer: Any) -> bool:
        """Whether :meth:`find` would find it."""
        entry = self._entries.get(pointer)
        return entry is not None and not entry.buffer.closed

    def remove(self, pointer: Any) -> TensorMemory:
        """Forget the memory behind a pointer; only one of several callers gets it."""
        entry = self._entries.pop(pointer, None)
        if entry is None:
            raise _unknown(pointer)
        return entry

    def exchange(self, pointer: Any, buffer: Buffer) -> Buffer:
        """Let the device use *buffer* for the memory behind a pointer, whose struct stays as it is; gives what it used before."""
        entry = self.find(pointer)
        self._entries[pointer] = replace(entry, buffer=buffer)
        return entry.buffer

    def at_physical(self, address: int, size: int) -> TensorMemory | None:
        """The memory that has all of *size* bytes from a physical address on, if there is one."""
        for entry in list(self._entries.values()):
            first = entry.buffer.physical_address
            if not entry.buffer.closed and first <= address and address + size <= first + entry.size:
                return entry
        return None

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)


def _address(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


def _unknown(pointer: Any) -> Refusal[Code]:
    if pointer == ffi.NULL:
        return Refusal(Code.RKNN_ERR_PARAM_INVALID, "the memory is a null pointer", "pass what rknn_create_mem returned")
    return Refusal(
        Code.RKNN_ERR_PARAM_INVALID,
        f"there is no tensor memory at {_address(pointer):#x}",
        "pass a pointer that a rknn_create_mem call returned and that was not destroyed",
    )
