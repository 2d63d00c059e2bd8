"""What the devices of this machine are doing, for whoever looks: ``anynpu top``.

Every device that runs a job has a small file in the runtime folder, mapped into memory, into which its scheduler writes a few numbers
when a job starts or ends. Reading it disturbs nobody. The file goes away with the device; that of a process which was killed is removed
by the next reader.

Concurrency: one writer, the scheduler, under its lock. A reader may see a job that has just ended as running; the numbers only ever grow.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import struct
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import DeviceUnavailable
from .board import runtime_folder

__all__ = ["CoreStatus", "DeviceStatus", "StatusFile", "now_ns", "open_status", "read_statuses"]

_HEADER = 1024
_WAITING = 0
_FIRST_CORE = 1
_PER_CORE = 3
_numbers = itertools.count(1)


@dataclass(frozen=True)
class CoreStatus:
    """One core: how many jobs it has finished, how long it was busy, and since when it is (0: it is not). Nanoseconds, monotonic."""

    jobs: int
    busy_ns: int
    since_ns: int


@dataclass(frozen=True)
class DeviceStatus:
    """One device of some process."""

    pid: int
    program: str
    chip: str
    board: str
    realtime: float | None
    waiting: int
    cores: tuple[CoreStatus, ...]

    def busy_ns(self, now: int) -> list[int]:
        """Nanoseconds that each core was busy until *now*, a running job included."""
        return [core.busy_ns + (max(0, now - core.since_ns) if core.since_ns else 0) for core in self.cores]


class StatusFile:
    """The file of one device."""

    def __init__(self, chip: str, cores: int, *, board: str = "", realtime: float | None = None) -> None:
        self._pid = os.getpid()
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = folder / f"{self._pid}.{next(_numbers)}"
        size = _HEADER + 8 * (_FIRST_CORE + _PER_CORE * cores)
        about = {"pid": self._pid, "program": _program(), "chip": chip, "board": board, "realtime": realtime, "cores": cores}
        with self._path.open("xb") as file:
            file.write(json.dumps(about).encode()[: _HEADER - 1].ljust(_HEADER, b"\0"))
            file.truncate(size)
        with self._path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)
        self._numbers = memoryview(self._map)[_HEADER:].cast("Q")
        self._finalizer = weakref.finalize(self, _remove, self._path, self._pid)

    def started(self, cores: tuple[int, ...], now_ns: int, waiting: int) -> None:
        """A job has begun."""
        if os.getpid() == self._pid:  # a forked child has a device of its own, if any
            self._numbers[_WAITING] = waiting
            for core in cores:
                self._numbers[_FIRST_CORE + _PER_CORE * core + 2] = now_ns

    def ended(self, cores: tuple[int, ...], busy_ns: list[int], jobs: list[int], waiting: int) -> None:
        """A job has finished."""
        if os.getpid() == self._pid:
            numbers = self._numbers
            numbers[_WAITING] = waiting
            for core in cores:
                place = _FIRST_CORE + _PER_CORE * core
                numbers[place], numbers[place + 1], numbers[place + 2] = jobs[core], busy_ns[core], 0

    def close(self) -> None:
        """Remove the file; again is harmless."""
        self._finalizer()


def _remove(path: Path, pid: int) -> None:
    if os.getpid() == pid:
        path.unlink(missing_ok=True)


def open_status(chip: str, cores: int, *, board: str = "", realtime: float | None = None) -> StatusFile | None:
    """A new file; None where there is no place for one."""
    try:
        return StatusFile(chip, cores, board=board, realtime=realtime)
    except (OSError, DeviceUnavailable):
        return None


def read_statuses() -> list[DeviceStatus]:
    """All devices of this user's processes, oldest first; files of processes that are gone are removed."""
    return sorted(_statuses(), key=lambda entry: (entry.pid, entry.chip))


def _statuses() -> Iterator[DeviceStatus]:
    try:
        files = sorted(_folder().iterdir())
    except (OSError, DeviceUnavailable):
        return
    for path in files:
        try:
            pid = int(path.name.partition(".")[0])
            if not _alive(pid):
                path.unlink(missing_ok=True)
                continue
            status = _parse(path.read_bytes())
        except (OSError, ValueError, KeyError, TypeError, RecursionError, struct.error):  # it went away, or is being written
            continue
        yield status


def _parse(data: bytes) -> DeviceStatus:
    about = json.loads(data[:_HEADER].rstrip(b"\0"))
    count = int(about["cores"])
    numbers = struct.unpack_from(f"={_FIRST_CORE + _PER_CORE * count}Q", data, _HEADER)
    cores = tuple(
        CoreStatus(*numbers[_FIRST_CORE + _PER_CORE * core : _FIRST_CORE + _PER_CORE * (core + 1)]) for core in range(count)
    )
    return DeviceStatus(
        int(about["pid"]),
        str(about["program"]),
        str(about["chip"]),
        str(about["board"]),
        about["realtime"],
        numbers[_WAITING],
        cores,
    )


def _folder() -> Path:
    return runtime_folder() / "devices"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _program() -> str:
    try:
        words = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace").strip()[:400]


def now_ns() -> int:
    """The clock of the files."""
    return time.perf_counter_ns()
