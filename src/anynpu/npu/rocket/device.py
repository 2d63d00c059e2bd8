"""An emulated ``/dev/accel/accel0`` with the driver ``rocket``: buffers, jobs and their fences, with the error codes of the kernel.

Each open file has an address space of its own, which is one memory file: a buffer is a range of it, so that ``mmap``, ``dup`` and ``close``
of the program work unchanged. Jobs of a file run one after the other on a thread that lives while there are jobs; a device has three cores,
which bound how many files run at a time. A failed job reports nothing to the program, as on a board; it goes to the log, and to the
sanitizer while one watches.

Time is the chip's: a job whose multiplications take longer than the driver's limit of 500 ms is given up without output, whatever the host
needs. The host waits for no other reason.

Locks: the condition of a file protects its buffers and its queue; it is never held while a task is computed.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...devtools import faults
from ...devtools.sanitizer import enlist
from ...errors import CommandStreamError
from ...tensor import round_up
from .checker import Span, check_job
from .executor import Executor
from .layouts import LANES
from .stream import decode, task_size

__all__ = ["CORES", "DRIVER", "AccelDevice", "AccelFile", "JobRequest", "VERSION"]

log = logging.getLogger("anynpu.npu.rocket")

DRIVER = "rocket"
VERSION = (1, 0, 0)
CORES = 3

BASE = 0x1000_0000
_END = 1 << 32
_PAGE = 4096
_MAX_BUFFER = 1 << 30

_MACS_PER_SECOND = 1024 * 200_000_000
"""Of one core: 1,024 products of int8 a cycle, at the 200 MHz to which mainline kernels set the clock."""
_LIMIT_SECONDS = 0.5
Report = Callable[[str, str, str], None]


@dataclass(frozen=True)
class JobRequest:
    """A job as a program submits it: tasks as pairs of address and number of words, and the handles of its buffers."""

    tasks: tuple[tuple[int, int], ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass
class _Buffer:
    offset: int
    size: int
    writers: int = 0
    freed: bool = False


@dataclass
class _Queued:
    request: JobRequest
    memory: mmap.mmap
    writes: tuple[_Buffer, ...]


class AccelDevice:
    """The device node.

    :ivar reports: called with the kind of a finding, the ioctl and a text for each fault that the kernel would not report
    """

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.cores = threading.Semaphore(CORES)
        self.submits = 0
        enlist(self, "anynpu.npu.rocket.observer")

    def open(self, fd: int | None = None) -> AccelFile:
        """A file of the device.

        :param fd: a memory file of the caller's; a new one by default
        """
        return AccelFile(self, fd)

    def report(self, kind: str, call: str, text: str) -> None:
        """One fault of a program."""
        for each in tuple(self.reports):
            each(kind, call, text)


class AccelFile:
    """One open file of the device, with its own address space.

    Methods raise :class:`OSError` with the error number that the ioctl of the kernel gives.

    :ivar fd: the memory file; a buffer lies in it at its offset
    """

    def __init__(self, device: AccelDevice, fd: int | None = None) -> None:
        self.device = device
        self._owned = fd is None
        self.fd = os.memfd_create("anynpu accel", os.MFD_CLOEXEC) if fd is None else fd
        self._buffers: dict[int, _Buffer] = {}
        self._free: list[tuple[int, int]] = []
        self._end = 0
        self._next_handle = 1
        self._changed = threading.Condition()
        self._queue: deque[_Queued] = deque()
        self._running = False
        self._executor = Executor()
        self.failures = 0
        """Jobs that have failed; the kernel does not report programs."""

    def create_bo(self, size: int, fd: int | None = None) -> tuple[int, int, int]:
        """CREATE_BO: handle, device address, and offset for ``mmap``.

        :param fd: the program's descriptor of the memory file, where it has another than at its opening
        """
        if size <= 0:
            raise OSError(errno.EINVAL, "a buffer of 0 bytes")
        length = round_up(size, _PAGE)
        if length > _MAX_BUFFER:
            raise OSError(errno.ENOMEM, f"a buffer of {size} bytes")
        with self._changed:
            offset = self._place(length, self.fd if fd is None else fd)
            handle = self._next_handle
            self._next_handle += 1
            self._buffers[handle] = _Buffer(offset, length)
        return handle, BASE + offset, offset

    def _place(self, length: int, fd: int) -> int:
        """Space for a buffer: what was freed, or behind the last one."""
        for index, (offset, size) in enumerate(self._free):
            if size >= length:
                self._free[index : index + 1] = [(offset + length, size - length)] if size > length else []
                return offset
        if BASE + self._end + length > _END:
            raise OSError(errno.ENOMEM, "the address space of 32 bits is full")
        os.ftruncate(fd, self._end + length)
        offset, self._end = self._end, self._end + length
        return offset

    def gem_close(self, handle: int, fd: int | None = None) -> None:
        """GEM_CLOSE: the buffer goes when no job and no mapping needs it."""
        with self._changed:
            buffer = self._find(handle, errno.EINVAL)
            del self._buffers[handle]
            buffer.freed = True
            if not buffer.writers and not _is_mapped(self.fd if fd is None else fd, buffer):
                self._release(self.fd if fd is None else fd, buffer)

    def _release(self, fd: int, buffer: _Buffer) -> None:
        with contextlib.suppress(OSError), mmap.mmap(fd, buffer.size, offset=buffer.offset) as memory:
            memory[:] = bytes(buffer.size)
            self._free.append((buffer.offset, buffer.size))

    def submit(self, jobs: Sequence[JobRequest], fd: int | None = None) -> None:
        """SUBMIT: queue jobs. A job that cannot run is dropped, and the call succeeds all the same."""
        for job in jobs:
            if not job.tasks or any(words == 0 for _, words in job.tasks):
                raise OSError(errno.EINVAL, "a job without tasks, or a task without words")
        with self._changed:
            self.device.submits += 1
            for number, job in enumerate(jobs):
                self._enqueue(number, job, self.fd if fd is None else fd)

    def _enqueue(self, number: int, job: JobRequest, fd: int) -> None:
        unknown = [handle for handle in (*job.reads, *job.writes) if handle not in self._buffers]
        both = sorted(set(job.reads) & set(job.writes))
        if unknown or both:
            kind = "job-unknown-buffer" if unknown else "job-same-buffer"
            what = f"handle {unknown[0]} does not exist" if unknown else f"handle {both[0]} is in both lists"
            self._fail(f"job {number}: {what}; the job does nothing")
            self.device.report(kind, "SUBMIT", f"job {number}: {what}")
            return
        if self._end == 0:
            self._fail(f"job {number}: there is no buffer")
            return
        memory = mmap.mmap(fd, self._end)
        if self.device.reports:
            self._check(number, job, memory)
        writes = tuple(self._buffers[handle] for handle in dict.fromkeys(job.writes))
        for buffer in writes:
            buffer.writers += 1
        self._queue.append(_Queued(job, memory, writes))
        if not self._running:
            self._running = True
            threading.Thread(target=self._work, name="anynpu accel", daemon=True).start()

    def _check(self, number: int, job: JobRequest, memory: mmap.mmap) -> None:
        """Report what is wrong with the streams of a job, on the thread of the program."""
        held = np.frombuffer(memory, np.uint8)
        spans = tuple(Span(BASE + each.offset, BASE + each.offset + each.size, key) for key, each in self._buffers.items())
        for found in check_job(held, BASE, job.tasks, spans):
            self.device.report(found.kind, "SUBMIT", f"job {number}, task {found.task}: {found.text}")
        for index, (address, words) in enumerate(job.tasks):
            first = address - BASE
            if words > 2 * task_size()[0] and 0 <= first <= held.size - 8 * words:
                tasks = decode(held[first : first + 8 * words])
                if len(tasks) > 1:
                    text = f"job {number}, task {index}: {words} words in one start are {len(tasks)} tasks"
                    self.device.report("stream-chained", "SUBMIT", text)

    def prep_bo(self, handle: int, timeout_ns: int) -> None:
        """PREP_BO: wait until no job writes a buffer.

        :param timeout_ns: an absolute time of the monotonic clock; 0 does not wait
        """
        with self._changed:
            buffer = self._find(handle, errno.ENOENT)
            while buffer.writers:
                if timeout_ns == 0:
                    raise OSError(errno.EBUSY, "a job writes the buffer")
                left = timeout_ns - time.monotonic_ns()
                if left <= 0:
                    raise OSError(errno.ETIMEDOUT, "a job still writes the buffer")
                self._changed.wait(min(left / 1e9, threading.TIMEOUT_MAX))

    def fini_bo(self, handle: int) -> None:
        """FINI_BO: give a buffer to the device. Memory is shared here: nothing has to be done."""
        with self._changed:
            self._find(handle, errno.ENOENT)

    def _find(self, handle: int, number: int) -> _Buffer:
        buffer = self._buffers.get(handle)
        if buffer is None:
            raise OSError(number, f"there is no buffer with the handle {handle}")
        return buffer

    def close(self) -> None:
        """Close the file; jobs that are queued come to their end."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running)
            self._buffers.clear()
        if self._owned and self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _work(self) -> None:
        """Run the jobs of the file until there are none."""
        while True:
            with self._changed:
                if not self._queue:
                    self._running = False
                    self._changed.notify_all()
                    return
                queued = self._queue.popleft()
            with self.device.cores:
                try:
                    self._run(queued)
                except CommandStreamError as error:
                    self._fail(f"a job was given up: {error.message}")
                except (OSError, ValueError, MemoryError) as error:
                    self._fail(f"a job was given up: {error}")
            with self._changed:
                for buffer in queued.writes:
                    buffer.writers -= 1
                self._changed.notify_all()

    def _run(self, queued: _Queued) -> None:
        memory = np.frombuffer(queued.memory, np.uint8)
        left = _LIMIT_SECONDS
        for address, words in queued.request.tasks:
            operation = self._executor.read_task(memory, BASE, address, words)
            left -= operation.macs / _MACS_PER_SECOND
            if left < 0:
                raise CommandStreamError(
                    "it takes more than 500 ms at 200 MHz", hint="the driver resets the core then; submit smaller jobs"
                )
            output = self._executor.compute(memory, BASE, operation)
            _corrupt(output, operation.out_channels)

    def _fail(self, text: str) -> None:
        self.failures += 1
        log.warning("%s (the kernel would report nothing)", text)


def _corrupt(output: npt.NDArray[np.int8], channels: int) -> None:
    """Change a byte of a task's output, where a fault plan reports it."""
    injector = faults.active()
    if injector is None:
        return
    for each in injector.offer("stream"):
        rows, width = output.shape[:2]
        row, column, channel = np.unravel_index(injector.byte_of(each.fault, rows * width * channels), (rows, width, channels))
        output.view(np.uint8)[row, column, channel // LANES, channel % LANES] ^= 1 << each.fault.bit


def _is_mapped(fd: int, buffer: _Buffer) -> bool:
    """Whether this process maps a part of a buffer."""
    return any(first < buffer.offset + buffer.size and buffer.offset < last for first, last in _mappings(fd))


def _mappings(fd: int) -> Iterator[tuple[int, int]]:
    """The ranges of a file that this process maps."""
    inode = str(os.fstat(fd).st_ino)
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        addresses, _, offset, _, node = line.split(maxsplit=5)[:5]
        if node == inode:
            first, last = (int(part, 16) for part in addresses.split("-"))
            begin = int(offset, 16)
            yield begin, begin + last - first
