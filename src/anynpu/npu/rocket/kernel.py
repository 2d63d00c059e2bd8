"""The kernel's driver ``rocket``: open files of ``/dev/accel/accelN`` with its ioctls as methods, and which device to use."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from ...errors import DeviceUnavailable
from .device import DRIVER, VERSION, AccelDevice, JobRequest

__all__ = ["EMULATED", "DeviceFile", "KernelFile", "driver_of", "find_node", "opener"]

EMULATED = "emulated"
"""The name of the emulated device, in the place of a path."""

FOLDER = Path("/dev/accel")

_VERSION, _GEM_CLOSE, _CREATE_BO, _SUBMIT, _PREP_BO, _FINI_BO = (
    0xC0406400,
    0x40086409,
    0xC0186440,
    0x40186441,
    0x40106442,
    0x40086443,
)


class DeviceFile(Protocol):
    """An open file of a device: the kernel's, or that of the emulated one. ``fd`` is what buffers are mapped from."""

    fd: int

    def create_bo(self, size: int) -> tuple[int, int, int]:
        """A buffer: handle, device address, and offset for ``mmap``."""

    def submit(self, jobs: Sequence[JobRequest]) -> None:
        """Queue jobs."""

    def prep_bo(self, handle: int, timeout_ns: int) -> None:
        """Wait until no job writes a buffer, until an absolute time of the monotonic clock."""

    def fini_bo(self, handle: int) -> None:
        """Give a buffer to the device."""

    def close(self) -> None:
        """Close the file."""


class KernelFile:
    """An open file of the kernel's device."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def _call(self, request: int, data: bytearray) -> None:
        import fcntl  # here: not on every system that imports this package

        fcntl.ioctl(self.fd, request, data)

    def version(self) -> tuple[str, tuple[int, int, int]]:
        """Name and version of the driver."""
        name = ctypes.create_string_buffer(64)
        data = bytearray(struct.pack("<3i4xQQQQQQ", 0, 0, 0, len(name), ctypes.addressof(name), 0, 0, 0, 0))
        self._call(_VERSION, data)
        major, minor, patch, length = struct.unpack_from("<3i4xQ", data)
        return name.raw[: min(length, len(name))].decode(errors="replace"), (major, minor, patch)

    def create_bo(self, size: int) -> tuple[int, int, int]:
        """CREATE_BO."""
        data = bytearray(struct.pack("<IIQQ", size, 0, 0, 0))
        self._call(_CREATE_BO, data)
        _, handle, address, offset = struct.unpack("<IIQQ", data)
        return handle, address, offset

    def submit(self, jobs: Sequence[JobRequest]) -> None:
        """SUBMIT."""
        held = []
        packed = b""
        for job in jobs:
            tasks = (ctypes.c_uint32 * (2 * len(job.tasks)))(*(number for task in job.tasks for number in task))
            reads, writes = ((ctypes.c_uint32 * max(1, len(handles)))(*handles) for handles in (job.reads, job.writes))
            held.append((tasks, reads, writes))
            places = (ctypes.addressof(tasks), ctypes.addressof(reads), ctypes.addressof(writes))
            packed += struct.pack("<QQQIIII", *places, len(job.tasks), 8, len(job.reads), len(job.writes))
        memory = ctypes.create_string_buffer(packed, len(packed))
        self._call(_SUBMIT, bytearray(struct.pack("<QIIQ", ctypes.addressof(memory), len(jobs), 40, 0)))
        del held

    def prep_bo(self, handle: int, timeout_ns: int) -> None:
        """PREP_BO."""
        self._call(_PREP_BO, bytearray(struct.pack("<IIq", handle, 0, timeout_ns)))

    def fini_bo(self, handle: int) -> None:
        """FINI_BO."""
        self._call(_FINI_BO, bytearray(struct.pack("<II", handle, 0)))

    def close(self) -> None:
        """Close the file; the kernel gives its buffers back."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def driver_of(path: str | os.PathLike[str]) -> tuple[str, tuple[int, int, int]]:
    """Name and version of the driver behind a device node.

    :raises OSError: it cannot be opened, or answers no VERSION
    """
    file = KernelFile(path)
    try:
        return file.version()
    finally:
        file.close()


def find_node(folder: Path = FOLDER) -> Path | None:
    """The first node of the driver ``rocket``; a node that may not be opened counts, so that the error names it."""
    for path in sorted(folder.glob("accel*")) if folder.is_dir() else ():
        try:
            if driver_of(path)[0] == DRIVER:
                return path
        except PermissionError:
            return path
        except OSError:
            continue
    return None


def opener(device: str = "") -> Callable[[], DeviceFile]:
    """What opens files of a device.

    :param device: path of a node, ``emulated``, or empty for the node that this machine has
    :raises DeviceUnavailable: there is none, it may not be opened, or its driver is another
    """
    if device == EMULATED:
        return AccelDevice().open
    path = Path(device) if device else find_node()
    if path is None:
        raise DeviceUnavailable(
            f"there is no {FOLDER}/accelN with the driver {DRIVER}",
            hint="it takes a mainline kernel 6.18 or later on RK3588 (modprobe rocket); device='rocket:emulated' needs no board",
        )
    try:
        name, version = driver_of(path)
    except OSError as error:
        raise DeviceUnavailable(f"{path} cannot be opened: {error.strerror}", hint=_hint(error)) from None
    if name != DRIVER or version[0] != VERSION[0]:
        text = ".".join(map(str, version))
        raise DeviceUnavailable(
            f"{path} has the driver {name} {text}, not {DRIVER} {VERSION[0]}",
            hint="name the node: device='rocket:/dev/accel/accel1'",
        )
    return lambda: KernelFile(path)


def _hint(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return "your user must be in the group render: sudo usermod -aG render $USER, then log in again"
    return "run `anynpu doctor`"
