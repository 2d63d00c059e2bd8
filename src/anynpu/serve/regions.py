"""Tensors in memory that a client on the same machine shares with the server: the extension for system shared memory.

A client registers a POSIX shared memory object by its name; a request then states where in it an input lies, or an output goes.

The server reads and writes a region as a file and never maps it. That costs one copy, and in return nothing that a client does to the
object afterwards can hurt: memory that is mapped and then truncated by another owner ends the process that touches it, and an input that
changes while it is used would be two inputs.

Belongs to the event loop of the server: no lock. A region is read and written within one step of the loop, so it is not closed meanwhile.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .._util.types import Array
from ..errors import AccessDeniedError, RequestError
from ..session.protocol.messages import array_from_bytes, bytes_of

FOLDER = Path("/dev/shm")
"""Where Linux shows its shared memory objects as files."""

MAX_REGIONS = 256
_KEY = re.compile(r"/?([A-Za-z0-9_-][A-Za-z0-9._-]{0,200})")
_MAX_VALUE = 2**63 - 1


@dataclass(frozen=True)
class SharedPlace:
    """A part of a region: *offset* counts from where the region begins."""

    region: str
    offset: int
    nbytes: int

    def parameters(self, nbytes: int) -> dict[str, Any]:
        """What an answer states about an output of *nbytes* that was put here."""
        found = {"shared_memory_region": self.region, "shared_memory_byte_size": nbytes}
        return {**found, "shared_memory_offset": self.offset} if self.offset else found


@dataclass(frozen=True)
class SharedTensor:
    """An input that lies in a region."""

    place: SharedPlace
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Region:
    """Bytes of a shared memory object."""

    name: str
    key: str
    offset: int
    nbytes: int
    fd: int


def read_place(parameters: Mapping[str, Any], name: str) -> SharedPlace | None:
    """Where the parameters of tensor *name* state that it lies; None if it does not lie in shared memory.

    >>> read_place({"shared_memory_region": "frames", "shared_memory_byte_size": 12}, "x")
    SharedPlace(region='frames', offset=0, nbytes=12)
    """
    if "shared_memory_region" not in parameters:
        return None
    region = parameters["shared_memory_region"]
    offset, nbytes = parameters.get("shared_memory_offset", 0), parameters.get("shared_memory_byte_size")
    if not isinstance(region, str) or not _is_natural(offset) or not _is_natural(nbytes):
        raise RequestError(
            f"tensor '{name}' does not state where in which region it lies",
            hint="give shared_memory_region, shared_memory_byte_size and perhaps shared_memory_offset, integers from 0",
        )
    return SharedPlace(region, offset, int(nbytes))  # type: ignore[arg-type]


def _is_natural(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_VALUE


class Regions:
    """The regions of one server.

    :param prefix: how the names of objects begin that clients may register; None: they may register none
    """

    def __init__(self, prefix: str | None) -> None:
        self._prefix = prefix
        self._regions: dict[str, Region] = {}

    @property
    def allowed(self) -> bool:
        """Whether clients may register any."""
        return self._prefix is not None

    def register(self, name: str, key: object, offset: object, nbytes: object) -> None:
        """Make a part of a shared memory object known under a name."""
        self._check_allowed()
        if name in self._regions:
            raise RequestError(f"the region '{name}' is registered already", hint="unregister it first, or take another name")
        if len(self._regions) >= MAX_REGIONS:
            raise RequestError(f"{MAX_REGIONS} regions are registered already", hint="unregister some, or use parts of one")
        if (
            not name
            or len(name) > 200
            or not isinstance(key, str)
            or not _is_natural(offset)
            or not _is_natural(nbytes)
            or not nbytes
        ):
            raise RequestError(
                "a region needs a name, the key of its object, an offset and a size", hint="send key, offset and byte_size"
            )
        begin, size = int(offset), int(nbytes)  # type: ignore[call-overload]
        fd = self._open(key)
        try:
            there = os.fstat(fd)
            if not stat.S_ISREG(there.st_mode) or begin + size > there.st_size:
                raise RequestError(
                    f"the shared memory object has no {size} bytes from {begin} on",
                    hint="look at offset, byte_size and the object",
                )
        except BaseException:
            os.close(fd)
            raise
        self._regions[name] = Region(name, key, begin, size, fd)

    def _open(self, key: str) -> int:
        found = _KEY.fullmatch(key)
        if found is None or self._prefix is None or not found[1].startswith(self._prefix):
            raise AccessDeniedError(
                "clients may not share this memory object with the server",
                hint="use a name that begins with the prefix given by the server's option --shared-memory",
            )
        try:
            # a name that is no object of memory must not make the server wait, nor lead it elsewhere
            return os.open(FOLDER / found[1], os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise RequestError(
                f"the shared memory object cannot be opened: {error.strerror}", hint="create it first, on the server's machine"
            ) from None

    def unregister(self, name: str = "") -> None:
        """Forget a region, or all of them; one that is not there is no error."""
        self._check_allowed()
        for each in [name] if name else list(self._regions):
            region = self._regions.pop(each, None)
            if region is not None:
                os.close(region.fd)

    def status(self, name: str = "") -> list[Region]:
        """A region, or all of them."""
        self._check_allowed()
        return [self._get(name)] if name else list(self._regions.values())

    def read(self, tensors: Mapping[str, SharedTensor]) -> dict[str, Array]:
        """Inputs, copied out of their regions."""
        found = {}
        for name, tensor in tensors.items():
            region = self._part(tensor.place, name)
            memory = np.empty(tensor.place.nbytes, np.uint8)
            self._transfer(os.preadv, region, tensor.place.offset, memory)
            found[name] = array_from_bytes(memory.data, 0, memory.nbytes, tensor.datatype, tensor.shape, name)
        return found

    def check(self, places: Mapping[str, SharedPlace]) -> None:
        """Raise if outputs cannot go where they are asked to."""
        for name, place in places.items():
            self._part(place, name)

    def write(self, places: Mapping[str, SharedPlace], outputs: Mapping[str, Array]) -> None:
        """Outputs, copied into their regions."""
        for name, place in places.items():
            region, array = self._part(place, name), outputs[name]
            if array.nbytes > place.nbytes:
                raise RequestError(
                    f"output '{name}' has {array.nbytes} bytes, and there is space for {place.nbytes}",
                    hint="make space for all of it",
                )
            if os.fstat(region.fd).st_size < region.offset + region.nbytes:  # writing would make the object longer
                raise self._shrunk(region)
            self._transfer(os.pwritev, region, place.offset, np.frombuffer(bytes_of(array), np.uint8))

    def close(self) -> None:
        """Forget all regions."""
        if self.allowed:
            self.unregister()

    def _transfer(self, call: Any, region: Region, offset: int, memory: npt.NDArray[np.uint8]) -> None:
        done = 0
        while done < memory.nbytes:
            moved = call(region.fd, [memory[done:].data], region.offset + offset + done)
            if not moved:
                raise self._shrunk(region)
            done += moved

    @staticmethod
    def _shrunk(region: Region) -> RequestError:
        return RequestError(
            f"the object of region '{region.name}' has become shorter", hint="keep its size while it is registered"
        )

    def _get(self, name: str) -> Region:
        region = self._regions.get(name)
        if region is None:
            raise RequestError(f"there is no region '{name[:100]}'", hint=f"there are: {', '.join(self._regions) or 'none'}")
        return region

    def _part(self, place: SharedPlace, name: str) -> Region:
        self._check_allowed()
        region = self._get(place.region)
        if place.offset + place.nbytes > region.nbytes:
            raise RequestError(
                f"tensor '{name}' would end after region '{region.name}', which has {region.nbytes} bytes",
                hint="look at shared_memory_offset and shared_memory_byte_size",
            )
        return region

    def _check_allowed(self) -> None:
        if not self.allowed:
            raise AccessDeniedError(
                "this server shares no memory with clients", hint="start it with --shared-memory PREFIX to allow it"
            )
