"""The device ``/dev/accel/accel0`` of programs under ``anynpu exec --device rocket``, by the memory files that stand for its open files.

``libanynpu_board.so`` passes the ioctls of a program on. A file is known by the inode of its memory file, so that descriptors that were
duplicated, or sent to a thread, mean the same file.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..npu.rocket.device import DRIVER, VERSION, AccelDevice, AccelFile, JobRequest
from ..vendors import DropIn

__all__ = ["ACCEL", "ACCEL_LIBRARY", "AccelLibrary"]

ACCEL_LIBRARY = "libanynpu_accel"

_JOB_BYTES = 40
_TASK_BYTES = 8
_MAX_COUNT = 1 << 16
_TEXTS = {"name": DRIVER, "date": "0", "desc": "Rockchip NPU (emulated)"}


@dataclass(frozen=True)
class _Failure:
    text: str
    hint: str = ""


class AccelLibrary:
    """The device of this process, with the functions of ``accel.h`` as methods. Results are 0, or negative error numbers."""

    def __init__(self) -> None:
        self._device = AccelDevice()
        self._files: dict[int, AccelFile] = {}
        self._lock = threading.Lock()
        self._last = threading.local()

    def accel_open(self, fd: int) -> int:
        """A new memory file becomes an open file."""
        with self._lock:
            self._files[os.fstat(fd).st_ino] = self._device.open(fd)
        return 0

    def accel_ioctl(self, fd: int, request: int, argument: Any) -> int:
        """One ioctl of the program."""
        self._last.failure = None
        try:
            with self._lock:
                file = self._files.get(os.fstat(fd).st_ino)
            if file is None:
                raise OSError(errno.EBADF, "not an open file of this process")
            call = _CALLS.get(request)
            if call is None:
                raise OSError(errno.EINVAL, f"the driver has no ioctl {request:#x}")
            if not argument:
                raise OSError(errno.EFAULT, "no argument")
            call(file, fd, argument)
        except OSError as error:
            number = error.errno or errno.EIO
            self._last.failure = _Failure(f"{errno.errorcode.get(number, number)}: {error.strerror}")
            return -number
        return 0

    def last_error(self) -> _Failure | None:
        """Why the last ioctl of this thread failed."""
        failure: _Failure | None = getattr(self._last, "failure", None)
        return failure

    def close(self) -> None:
        """The process ends."""


def _bindings() -> tuple[Any, Any]:
    from .._accel import ffi, lib  # here: it is there where the drop-in libraries are

    return ffi, lib


def _read(address: int, size: int) -> bytes:
    """Memory of the program at an address that it gave, which may be wrong."""
    if size == 0:
        return b""
    target = ctypes.create_string_buffer(size)
    local, remote = _Range(ctypes.addressof(target), size), _Range(address, size)
    if ctypes.CDLL(None).process_vm_readv(os.getpid(), ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) != size:
        raise OSError(errno.EFAULT, f"{size} bytes at {address:#x} cannot be read")
    return target.raw


class _Range(ctypes.Structure):
    _fields_ = (("base", ctypes.c_size_t), ("size", ctypes.c_size_t))


def _as(kind: str, argument: Any) -> Any:
    return _bindings()[0].cast(f"struct {kind} *", argument)


def _version(file: AccelFile, fd: int, argument: Any) -> None:
    ffi = _bindings()[0]
    version = _as("accel_version", argument)
    version.major, version.minor, version.patch = VERSION
    for name, text in _TEXTS.items():
        room, pointer = getattr(version, f"{name}_len"), getattr(version, name)
        if pointer and room:
            data = text.encode()[:room]
            ffi.memmove(pointer, data, len(data))
        setattr(version, f"{name}_len", len(text))


def _gem_close(file: AccelFile, fd: int, argument: Any) -> None:
    file.gem_close(_as("accel_gem_close", argument).handle, fd)


def _create_bo(file: AccelFile, fd: int, argument: Any) -> None:
    wanted = _as("accel_create_bo", argument)
    wanted.handle, wanted.dma_address, wanted.offset = file.create_bo(wanted.size, fd)


def _prep_bo(file: AccelFile, fd: int, argument: Any) -> None:
    wanted = _as("accel_prep_bo", argument)
    _zero(wanted.reserved)
    file.prep_bo(wanted.handle, wanted.timeout_ns)


def _fini_bo(file: AccelFile, fd: int, argument: Any) -> None:
    wanted = _as("accel_fini_bo", argument)
    _zero(wanted.reserved)
    file.fini_bo(wanted.handle)


def _submit(file: AccelFile, fd: int, argument: Any) -> None:
    wanted = _as("accel_submit", argument)
    _zero(wanted.reserved)
    size = wanted.job_struct_size
    if wanted.job_count and size < _JOB_BYTES:
        raise OSError(errno.EINVAL, f"jobs of {size} bytes")
    data = _read(wanted.jobs, _bounded(wanted.job_count, size))
    file.submit([_job(data[first : first + _JOB_BYTES]) for first in range(0, len(data), size or 1)], fd)


def _job(data: bytes) -> JobRequest:
    ffi = _bindings()[0]
    job = ffi.new("struct accel_job *")
    ffi.memmove(job, data, _JOB_BYTES)
    size = job.task_struct_size
    if size < _TASK_BYTES:
        raise OSError(errno.EINVAL, f"tasks of {size} bytes")
    if job.task_count == 0:
        raise OSError(errno.EINVAL, "a job without tasks")
    tasks = _read(job.tasks, _bounded(job.task_count, size))
    return JobRequest(
        tuple((_number(tasks, first), _number(tasks, first + 4)) for first in range(0, len(tasks), size)),
        _handles(job.in_bo_handles, job.in_bo_count),
        _handles(job.out_bo_handles, job.out_bo_count),
    )


def _handles(address: int, count: int) -> tuple[int, ...]:
    data = _read(address, _bounded(count, 4))
    return tuple(_number(data, first) for first in range(0, len(data), 4))


def _number(data: bytes, first: int) -> int:
    return int.from_bytes(data[first : first + 4], "little")


def _bounded(count: int, size: int) -> int:
    if count > _MAX_COUNT or size > _MAX_COUNT:
        raise OSError(errno.ENOMEM, f"{count} structures of {size} bytes")
    return count * size


def _zero(reserved: int) -> None:
    if reserved:
        raise OSError(errno.EINVAL, "reserved is not 0")


_CALLS: dict[int, Callable[[AccelFile, int, Any], None]] = {
    0xC0406400: _version,
    0x40086409: _gem_close,
    0xC0186440: _create_bo,
    0x40186441: _submit,
    0x40106442: _prep_bo,
    0x40086443: _fini_bo,
}

ACCEL = DropIn(
    bindings=_bindings,
    open=lambda chip: AccelLibrary(),
    failure=-errno.EIO,
    code_name=lambda code: errno.errorcode.get(-code, str(code)),
    libraries={ACCEL_LIBRARY: None},
)
"""How programs that open the device are served."""
