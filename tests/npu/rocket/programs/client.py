"""A client of /dev/accel/accel0 in Python without any library: error codes, and a recorded job through ioctls.

``client.py JOB OUTPUT``
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
import sys
import time
from typing import Any

CREATE_BO, SUBMIT, PREP_BO, FINI_BO = 0xC0186440, 0x40186441, 0x40106442, 0x40086443
GEM_CLOSE = 0x40086409

fd = os.open("/dev/accel/accel0", os.O_RDWR | os.O_CLOEXEC)


def call(request: int, form: str, *values: int) -> tuple[Any, ...]:
    """One ioctl; gives the structure as the driver leaves it."""
    data = bytearray(struct.pack(form, *values))
    fcntl.ioctl(fd, request, data)
    return struct.unpack(form, data)


def fails(number: int, request: int, form: str, *values: int) -> None:
    """The ioctl fails with this error number."""
    found = 0
    try:
        call(request, form, *values)
    except OSError as error:
        found = error.errno or 0
    assert found == number, (hex(request), values, found)


def submit(tasks: Any, count: int, size: int, reads: list[int], writes: list[int]) -> bytes:
    """A job; what it points to is kept."""
    lists = [(ctypes.c_uint32 * max(1, len(handles)))(*handles) for handles in (reads, writes)]
    kept.extend([tasks, *lists])
    places = [ctypes.addressof(entry) for entry in lists]
    return struct.pack("<QQQIIII", ctypes.addressof(tasks), *places, count, size, len(reads), len(writes))


kept: list[Any] = []


def at(data: bytes) -> int:
    """The address of a copy that stays."""
    kept.append(ctypes.create_string_buffer(data))
    return ctypes.addressof(kept[-1])


with open(sys.argv[1], "rb") as file:
    size, count = struct.unpack("<II", file.read(8))
    tasks = (ctypes.c_uint32 * (2 * count)).from_buffer_copy(file.read(8 * count))
    contents = file.read(size)

# wrong calls
fails(errno.EINVAL, CREATE_BO, "<IIQQ", 0, 0, 0, 0)
fails(errno.EINVAL, 0xC018644F, "<IIQQ", 0, 0, 0, 0)
fails(errno.ENOENT, PREP_BO, "<IIq", 7, 0, 0)
fails(errno.ENOENT, FINI_BO, "<II", 7, 0)
fails(errno.EINVAL, GEM_CLOSE, "<II", 7, 0)
_, handle, address, offset = call(CREATE_BO, "<IIQQ", size, 0, 0, 0)
assert (handle, address) == (1, 0x1000_0000)
fails(errno.EINVAL, PREP_BO, "<IIq", handle, 1, 0)
fails(errno.EINVAL, FINI_BO, "<II", handle, 1)

place = at(submit(tasks, count, 8, [], [handle]))
fails(errno.EINVAL, SUBMIT, "<QIIQ", place, 1, 39, 0)
fails(errno.EINVAL, SUBMIT, "<QIIQ", place, 1, 40, 1)
fails(errno.EFAULT, SUBMIT, "<QIIQ", 8, 1, 40, 0)
for wrong in (submit(tasks, 0, 8, [], [handle]), submit(tasks, count, 7, [], [handle])):
    fails(errno.EINVAL, SUBMIT, "<QIIQ", at(wrong), 1, 40, 0)
empty = (ctypes.c_uint32 * 2)(address, 0)
fails(errno.EINVAL, SUBMIT, "<QIIQ", at(submit(empty, 1, 8, [], [handle])), 1, 40, 0)

# what the kernel accepts without a word
for lists in (([handle], [handle]), ([], [handle, 99])):
    call(SUBMIT, "<QIIQ", at(submit(tasks, count, 8, *lists)), 1, 40, 0)
call(PREP_BO, "<IIq", handle, 0, 0)

memory = mmap.mmap(fd, size, offset=offset)
memory[:] = contents
call(FINI_BO, "<II", handle, 0)
call(SUBMIT, "<QIIQ", place, 1, 40, 0)
call(PREP_BO, "<IIq", handle, 0, time.monotonic_ns() + 600_000_000_000)
with open(sys.argv[2], "wb") as file:
    file.write(memory)
os.close(fd)
