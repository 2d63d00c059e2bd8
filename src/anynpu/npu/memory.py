"""Device memory: buffers that a program can map, and the account of who uses how much.

A buffer is what a board hands out: a file descriptor that another process or library can map, a virtual address, a physical address
(here a token that is never zero and never given twice) and a size. The memory itself is a memfd, mapped shared. Where the system has no
memfd it is a deleted file in shared memory with a descriptor as well, and where there is neither (not on Linux) anonymous memory whose
``fd`` is -1.

Ownership: a :class:`Buffer` owns its descriptor and its share of the mapping; closing it (or losing the last reference) closes the
descriptor and takes it off the account. The mapping itself disappears with the last array that views it, so that a stale array never
reads unmapped memory. A slice borrows from its parent. Foreign memory is never freed.

Locks: a buffer has none (its state changes once, when it is closed). A :class:`MemoryPool` protects its numbers with one lock; buffers
that go away, possibly in the middle of a garbage collection, only append to a queue that the pool empties under that lock.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import mmap
import os
import sys
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .._util.lifetime import Closeable, ModuleLock
from .._util.types import Array
from ..errors import DeviceClosed, DeviceMemoryError, ShapeError
from ..program import Model
from ..tensor import TensorSpec, round_up
from .engines.base import Engine, Executable, check_sizes
from .engines.preparation import Preparation

ROOM_AFTER = 64
"""Bytes that are mapped after a buffer of ours without being part of it: kernels read whole vectors, and need no copy of a tensor that
ends with its page (an image of 640x640 does)."""


_PAGE = 4096
_physical_lock = ModuleLock()
_next_physical = 0x1000_0000  # below it lie the registers of a chip; a token is never zero


class Purpose(str, enum.Enum):
    """What device memory is used for."""

    WEIGHTS = "weights"
    INTERNAL = "internal"
    IO = "io"
    USER = "user"  # what the caller asked for himself


@dataclass(frozen=True)
class MemoryUsage:
    """Bytes in use, by purpose. ``peak`` is the largest ``total`` so far; ``limit`` is None where there is none."""

    weights: int
    internal: int
    io: int
    user: int
    peak: int
    limit: int | None

    @property
    def total(self) -> int:
        return self.weights + self.internal + self.io + self.user


def _physical_address(size: int) -> int:
    """A token that no other buffer has, with space for *size* bytes behind it."""
    global _next_physical
    with _physical_lock:
        address = _next_physical
        _next_physical += max(_PAGE, round_up(size, _PAGE))
    return address


def _shared_file(size: int, name: str) -> int:
    """A descriptor of *size* bytes of shared memory, or -1 where the system has none to give."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(f"anynpu-{name}", os.MFD_CLOEXEC)
    elif os.path.isdir("/dev/shm"):
        fd, path = tempfile.mkstemp(prefix=f"anynpu-{name}-", dir="/dev/shm")
        os.unlink(path)
    else:
        return -1
    try:
        os.ftruncate(fd, size)
    except OSError:
        os.close(fd)
        raise
    return fd


def _map(fd: int, size: int, offset: int = 0) -> mmap.mmap:
    if fd < 0:
        return mmap.mmap(-1, size)
    if sys.version_info >= (3, 13):  # before, every mapping keeps a second descriptor of its own
        return mmap.mmap(fd, size, offset=offset, trackfd=False)
    return mmap.mmap(fd, size, offset=offset)


def _guard(mapping: mmap.mmap, size: int) -> None:
    """Take the last page away: what is written behind a buffer must not meet an object of Python, whose memory may come next."""
    protect = _protect()
    if protect is not None:
        last = (ctypes.c_ubyte * _PAGE).from_buffer(mapping, size - _PAGE)
        protect(ctypes.addressof(last), _PAGE, 0)  # where the system rejects, there is no guard


@functools.cache
def _protect() -> Callable[[int, int, int], int] | None:
    if not sys.platform.startswith("linux") or mmap.PAGESIZE != _PAGE:
        return None
    function = ctypes.CDLL(None).mprotect
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


def _release(fd: int, on_release: Callable[[], None] | None) -> None:
    if fd >= 0:
        os.close(fd)
    if on_release is not None:
        on_release()


class Buffer(Closeable):
    """Device memory. Made by :meth:`allocate`, :meth:`from_fd`, :meth:`from_address`, :meth:`slice`, or by a device.

    Not to be used after :meth:`close`, which may be called twice and which the end of a ``with`` block calls.

    >>> with Buffer.allocate(64) as buffer:
    ...     buffer.array(np.uint8)[:] = 7
    ...     bytes(buffer.view()[:2]), buffer.fd >= 0, buffer.physical_address != 0
    (b'\\x07\\x07', True, True)
    """

    closings: object = object()
    """Token replaced whenever a buffer is closed, so callers can cache validity checks."""

    def __init__(
        self,
        memory: memoryview,
        *,
        fd: int = -1,
        offset: int = 0,
        physical_address: int = 0,
        parent: Buffer | None = None,
        owns_fd: bool = False,
        on_release: Callable[[], None] | None = None,
    ) -> None:
        self._memory: memoryview | None = memory
        self._parent = parent
        self._size = memory.nbytes
        self._offset = offset
        self._fd = fd
        self._address = np.frombuffer(memory, np.uint8).ctypes.data if memory.nbytes else 0
        self._physical_address = physical_address or _physical_address(memory.nbytes)
        self._finalizer = weakref.finalize(self, _release, fd if owns_fd else -1, on_release)

    @classmethod
    def allocate(
        cls, size: int, *, name: str = "buffer", on_release: Callable[[], None] | None = None, physical_address: int = 0
    ) -> Buffer:
        """New memory, filled with zeros."""
        if size < 0:
            raise DeviceMemoryError(f"a buffer cannot have {size} bytes", hint="give a size of zero or more")
        room = -(-(size + ROOM_AFTER) // _PAGE) * _PAGE + _PAGE
        fd = -1
        try:
            fd = _shared_file(room, name)
            mapping = _map(fd, room)
            _guard(mapping, room)
        except (OSError, ValueError, OverflowError) as error:
            if fd >= 0:
                os.close(fd)
            raise DeviceMemoryError(
                f"{size} bytes of device memory are not available: {error}",
                hint="close contexts or buffers that are no longer used; look at the limits for open files and for shared memory",
            ) from error
        return cls(memoryview(mapping)[:size], fd=fd, physical_address=physical_address, owns_fd=True, on_release=on_release)

    @classmethod
    def from_fd(cls, fd: int, size: int, offset: int = 0) -> Buffer:
        """Map *size* bytes at *offset* of another owner's descriptor (memfd, dma-buf, file), for reading and writing.

        The descriptor is duplicated: the caller may close his own. Any offset will do.
        """
        if size <= 0 or offset < 0:
            raise DeviceMemoryError(
                f"cannot map {size} bytes at offset {offset}", hint="give a positive size and an offset from 0"
            )
        skip = offset % mmap.ALLOCATIONGRANULARITY
        own = -1
        try:
            own = os.dup(fd)
            mapping = _map(own, size + skip, offset - skip)
        except (OSError, ValueError, OverflowError) as error:
            if own >= 0:
                os.close(own)
            raise DeviceMemoryError(
                f"file descriptor {fd} cannot be mapped for {size} bytes at offset {offset}: {error}",
                hint="the descriptor must be open for reading and writing and hold at least offset + size bytes",
            ) from error
        return cls(memoryview(mapping)[skip:], fd=own, offset=offset, owns_fd=True)

    @classmethod
    def from_address(cls, address: int, size: int, keep_alive: object = None) -> Buffer:
        """Use *size* bytes at a virtual address of this process; they are never freed, and ``fd`` is -1.

        :param keep_alive: an object that owns the memory; it lives as long as the buffer and every array that views it
        """
        if address <= 0 or size <= 0:
            raise DeviceMemoryError(f"cannot use {size} bytes at address {address:#x}", hint="give a non-zero address and size")
        memory = (ctypes.c_ubyte * size).from_address(address)
        memory._keep_alive = keep_alive  # type: ignore[attr-defined]
        return cls(memoryview(memory).cast("B"))

    def slice(self, offset: int, size: int) -> Buffer:
        """A part of this buffer, as a buffer: the same memory, usable until this buffer is closed."""
        memory = self.view()
        if offset < 0 or size < 0 or offset + size > self._size:
            raise DeviceMemoryError(
                f"bytes {offset} to {offset + size} are not inside a buffer of {self._size}",
                hint="offset and size must lie inside the buffer",
            )
        return Buffer(
            memory[offset : offset + size],
            fd=self._fd,
            offset=self._offset + offset,
            physical_address=self._physical_address + offset,
            parent=self,
        )

    @property
    def closed(self) -> bool:
        return self._memory is None or (self._parent is not None and self._parent.closed)

    @property
    def size(self) -> int:
        return self._size

    @staticmethod
    def room_behind(size: int) -> int:
        """Bytes that :meth:`allocate` maps behind a buffer of *size*, before memory that may not be touched."""
        return -(-(size + ROOM_AFTER) // _PAGE) * _PAGE - size

    @property
    def offset(self) -> int:
        """Where the buffer begins inside the memory of its ``fd``."""
        return self._offset

    @property
    def fd(self) -> int:
        """The file descriptor, which stays the buffer's own; -1 for foreign addresses and where the system has no shared memory."""
        self.view()
        return self._fd

    @property
    def address(self) -> int:
        """The virtual address of the first byte."""
        self.view()
        return self._address

    @property
    def physical_address(self) -> int:
        """A token in the place of a physical address: not zero, unique to this buffer; that of a slice lies inside its parent's."""
        return self._physical_address

    def view(self) -> memoryview:
        """The memory as bytes, writable."""
        if self._memory is None or self.closed:
            raise DeviceClosed("the buffer was closed", hint="keep it open for as long as anything uses it")
        return self._memory

    def array(self, dtype: npt.DTypeLike = np.uint8, shape: tuple[int, ...] | None = None, offset: int = 0) -> Array:
        """The memory as a numpy array that shares it: *shape* elements of *dtype* from byte *offset* (all that fit, by default)."""
        memory = self.view()
        kind = np.dtype(dtype)
        count = max(0, self._size - offset) // kind.itemsize if shape is None else int(np.prod(shape, dtype=np.int64))
        if offset < 0 or offset + count * kind.itemsize > self._size:
            raise DeviceMemoryError(
                f"{count} elements of {kind} at byte {offset} are not inside a buffer of {self._size} bytes",
                hint=f"the buffer must have at least {offset + count * kind.itemsize} bytes",
            )
        if count == 0:
            return np.empty(shape or (0,), kind)
        array = np.frombuffer(memory, kind, count, offset)
        return array if shape is None else array.reshape(shape)

    def tensor(self, spec: TensorSpec, offset: int = 0) -> Array:
        """The memory of a tensor at byte *offset*: its ``memory_shape`` in its storage type (packed types: plain bytes)."""
        if spec.dtype.bits < 8:
            return self.array(np.uint8, (spec.nbytes,), offset)
        return self.array(spec.dtype.storage, spec.memory_shape, offset)

    def close(self) -> None:
        """Give the memory back. Slices can no longer be used; arrays that view it stay readable but have no owner."""
        self._memory = None
        Buffer.closings = object()
        self._finalizer()

    def __repr__(self) -> str:
        return f"<Buffer of {self._size} bytes, {'closed' if self.closed else f'fd {self._fd}'}>"


class MemoryPool:
    """Allocates buffers and keeps account of them.

    :param limit: the most bytes that may be in use at a time, as the memory of a board; None for no limit; a function where it changes

    >>> pool = MemoryPool(limit=4096)
    >>> buffer = pool.allocate(4000, Purpose.IO)
    >>> pool.usage().io
    4000
    """

    def __init__(self, limit: Callable[[], int | None] | int | None = None) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._used = dict.fromkeys(Purpose, 0)
        self._peak = 0
        self._released: deque[tuple[Purpose, int]] = deque()
        self._buffers: weakref.WeakSet[Buffer] = weakref.WeakSet()

    @property
    def limit(self) -> int | None:
        """The most bytes that may be in use now; None for no limit."""
        return self._limit() if callable(self._limit) else self._limit

    def allocate(self, size: int, purpose: Purpose = Purpose.USER) -> Buffer:
        """New memory for *purpose*; it leaves the account when the buffer is closed or forgotten."""
        limit = self.limit
        with self._lock:
            self._settle()
            total = sum(self._used.values())
            if limit is not None and total + size > limit:
                raise DeviceMemoryError(
                    f"{size} bytes of {purpose.value} memory do not fit: {total} of {limit} bytes are in use",
                    hint="close contexts or models that are no longer used, supply the memory yourself, or raise memory_limit",
                )
            self._used[purpose] += size
            self._peak = max(self._peak, total + size)

        def forget() -> None:
            self._released.append((purpose, size))

        try:
            buffer = Buffer.allocate(size, name=purpose.value, on_release=forget)
        except DeviceMemoryError:
            forget()
            raise
        with self._lock:
            self._buffers.add(buffer)
        return buffer

    def usage(self) -> MemoryUsage:
        """Bytes in use now."""
        limit = self.limit
        with self._lock:
            self._settle()
            used = {purpose.value: count for purpose, count in self._used.items()}
            return MemoryUsage(**used, peak=self._peak, limit=limit)

    def close(self) -> None:
        """Close every buffer that is still open."""
        with self._lock:
            buffers = list(self._buffers)
        for buffer in buffers:
            buffer.close()

    def _settle(self) -> None:
        """Take released buffers off the account; the caller holds the lock."""
        while self._released:
            purpose, size = self._released.popleft()
            self._used[purpose] -= size


# A model in device memory: what a loaded model and its contexts have in common.
#
# Locks: the prepared programs are made at first use under the resident model's lock, so that two contexts never prepare the same
# one twice. Everything else is set once.


class Resident:
    """A model whose weights lie in device memory, and its prepared programs."""

    def __init__(self, model: Model, weights: Buffer, engine: Engine) -> None:
        for program in model.programs:
            check_sizes(program)  # now, not when the first run prepares it
        self.model = model
        self.weights = weights
        self._engine = engine
        self._preparation = Preparation(stored=weights.size)
        self._lock = threading.Lock()
        self._executables: dict[int, Executable] = {}
        if getattr(engine, "eager", False):  # it looks now whether it computes the right bytes
            for index in range(len(model.programs)):
                self.executable(index)

    def executable(self, index: int) -> Executable:
        """The prepared program of one shape set."""
        with self._lock:
            if index not in self._executables:
                self._executables[index] = self._engine.prepare(self.model.programs[index], self._preparation)
            return self._executables[index]


def internal_size(model: Model) -> int:
    """Bytes of internal memory that serve every program of a model."""
    return max(program.memory.size for program in model.programs)


def shape_set(model: Model, shapes: int | Mapping[str, Sequence[int]]) -> int:
    """The index of the program for *shapes*: an index, or the shape of each input by name."""
    sets = [{spec.name: spec.shape for spec in program.input_specs} for program in model.programs]
    if isinstance(shapes, int):
        if 0 <= shapes < len(sets):
            return shapes
        raise ShapeError(f"there is no shape set {shapes}: the model has {len(sets)}", hint=f"use 0 to {len(sets) - 1}")
    wanted = {name: tuple(int(extent) for extent in shape) for name, shape in shapes.items()}
    for index, known in enumerate(sets):
        if all(known.get(name) == shape for name, shape in wanted.items()):
            return index
    listed = "; ".join(", ".join(f"{name} {list(shape)}" for name, shape in known.items()) for known in sets)
    asked = ", ".join(f"{name} {list(shape)}" for name, shape in wanted.items())
    raise ShapeError(f"the model was not compiled for {asked}", hint=f"it has: {listed}")
