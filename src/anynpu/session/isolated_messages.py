"""Messages and arrays between a session and the process that runs its model: JSON on a socket, tensors in shared memory.

Neither side believes the other: lengths, types and places are checked before they are used, and shared memory cannot be made smaller, since
reading behind its end would end the reader.
"""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._util.types import Array
from ..errors import DeviceError

Place = tuple[int, str, list[int]]
"""Offset, type and shape of an array."""

MAX_MESSAGE = 64 << 20
_ALIGNMENT = 64
_LENGTH = struct.Struct("<I")
_KINDS = "biuf"


def send(connection: socket.socket, message: Any) -> None:
    """Write one message."""
    data = json.dumps(message).encode()
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket) -> dict[str, Any] | None:
    """Read one message; None where the other side has closed."""
    head = _read(connection, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    data = _read(connection, length) if length <= MAX_MESSAGE else None
    if data is None:
        return None
    message = json.loads(data)
    return message if isinstance(message, dict) else None


def _read(connection: socket.socket, length: int) -> bytes | None:
    data = bytearray()
    while len(data) < length:
        try:
            piece = connection.recv(min(length - len(data), 1 << 20))
        except ConnectionResetError:
            piece = b""
        if not piece:
            return None
        data += piece
    return bytes(data)


class SharedArrays:
    """Arrays, one behind the other, in memory that two processes map. One of them writes; the memory grows, and never shrinks."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map: mmap.mmap | None = None

    @classmethod
    def create(cls, name: str) -> SharedArrays:
        """New memory, empty."""
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        return cls(fd)

    def put(self, arrays: Sequence[Array]) -> list[Place]:
        """Write arrays; gives where they are."""
        places: list[Place] = []
        position = 0
        for array in arrays:
            places.append((position, array.dtype.str, list(array.shape)))
            position += array.nbytes + -array.nbytes % _ALIGNMENT
        memory = self._mapped(position, grow=True)
        for (offset, kind, shape), array in zip(places, arrays, strict=True):
            if array.nbytes:
                np.ndarray(tuple(shape), kind, memory, offset)[...] = array
        return places

    def arrays(self, places: Any) -> list[Array]:
        """The arrays at *places*, as views; who keeps them copies them."""
        found: list[Array] = []
        for offset, kind, shape in places:
            dtype = np.dtype(str(kind))
            extents = tuple(int(extent) for extent in shape)
            size = math.prod(extents) * dtype.itemsize
            if dtype.kind not in _KINDS or offset < 0 or min(extents, default=0) < 0 or len(extents) > 32:
                raise DeviceError("an isolated process has sent what is no array", hint="do not trust the model")
            memory = self._mapped(offset + size, grow=False)
            found.append(np.ndarray(extents, dtype, memory, offset) if size else np.empty(extents, dtype))
        return found

    def put_bytes(self, data: bytes) -> None:
        """Write bytes, all that there is."""
        os.pwrite(self.fd, data, 0)

    def take_bytes(self) -> bytes:
        """What :meth:`put_bytes` wrote."""
        return os.pread(self.fd, os.fstat(self.fd).st_size, 0)

    def _mapped(self, size: int, *, grow: bool) -> mmap.mmap:
        """The memory, of *size* bytes at least."""
        if self._map is None or len(self._map) < size:
            have = os.fstat(self.fd).st_size
            if have < size or not have:
                if not grow:
                    raise DeviceError("an isolated process has sent an array that is not there", hint="do not trust the model")
                have = max(size, mmap.PAGESIZE)
                os.ftruncate(self.fd, have)
            self._map = mmap.mmap(self.fd, have)  # views of an earlier one keep it
        return self._map

    def close(self) -> None:
        """Give the descriptor back; views of arrays stay."""
        self._map = None
        os.close(self.fd)
