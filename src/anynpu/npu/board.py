"""A board that several processes share: each core belongs to one job at a time, whichever process it is in.

Every core is a file in a folder that the name of the board stands for, and who has the core holds a lock on the file. These are record
locks of the operating system: it gives them back when a process ends, however it ends, and a forked child has none of its parent's. There
is no server to start or to look after, and nothing to repair after a crash. The price is that who waits looks again every so often (at most
a millisecond later), and that processes are served by turns rather than by the priorities of their jobs: those order the jobs of one
process.

Turns: who finds a core taken takes the lock of being its next user and keeps it until the core is his; all others stand in line for that.
A process that has just given a core back therefore cannot take it again before one that waited.

Concurrency: one open file per lock and process, in a module table under one lock, because closing any other would give the lock back. Locks
do not exclude threads of the same process, so each has a thread lock beside it. A forked child starts with an empty table.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import json
import mmap
import os
import re
import stat
import struct
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import DeviceUnavailable, ParameterError
from .control import RunControl

HOLDERS = "holders"
"""The file of a board that states for each core which process has it, for those who want to know the load."""

_FIRST_WAIT = 0.00005
_MAX_WAIT = 0.001


class SharedCores:
    """The cores of the board *name*, for one device of this process.

    >>> cores = SharedCores("example", "rk3588", 3)
    >>> with cores.held((0, 1), RunControl()):
    ...     cores.is_free(2)
    True
    """

    def __init__(self, name: str, chip: str, cores: int) -> None:
        self.name = require_board_name(name)
        self._folder = board_folder(name, chip)
        self._holders = _open_holders(self._folder / HOLDERS, cores)

    def is_free(self, core: int) -> bool:
        """Whether the core is free at this moment."""
        lock = _lock_file(self._folder / f"core{core}")
        if not lock.try_acquire():
            return False
        lock.release()
        return True

    @contextlib.contextmanager
    def held(self, cores: Iterable[int], control: RunControl) -> Iterator[None]:
        """Have *cores* for the block; waits for them, as long as *control* allows it.

        They are taken in ascending order, so that no two threads wait for each other.
        """
        with contextlib.ExitStack() as stack:
            for core in sorted(cores):
                self._acquire(core, control)
                stack.callback(self._release, core)
            yield

    def _acquire(self, core: int, control: RunControl) -> None:
        lock, turn = (_lock_file(self._folder / f"core{core}{suffix}") for suffix in ("", ".next"))
        _wait_for(turn, control)
        try:
            _wait_for(lock, control)
        finally:
            turn.release()
        self._note(core, os.getpid())

    def _release(self, core: int) -> None:
        self._note(core, 0)
        _lock_file(self._folder / f"core{core}").release()

    def _note(self, core: int, process: int) -> None:
        struct.pack_into("i", self._holders, 4 * core, process)


class _LockFile:
    """One lock, among processes and among the threads of this one."""

    def __init__(self, path: Path) -> None:
        self._thread = threading.Lock()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def try_acquire(self) -> bool:
        if not self._thread.acquire(blocking=False):
            return False
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._thread.release()
            return False
        return True

    def release(self) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN)
        self._thread.release()

    def forget(self) -> None:
        os.close(self._fd)


_files: dict[Path, _LockFile] = {}
_files_lock = threading.Lock()


def _lock_file(path: Path) -> _LockFile:
    with _files_lock:
        if path not in _files:
            _forget_in_children()
            _files[path] = _LockFile(path)
        return _files[path]


@functools.cache
def _forget_in_children() -> None:
    os.register_at_fork(after_in_child=_forget_files)


def _forget_files() -> None:
    global _files_lock
    _files_lock = threading.Lock()
    for file in _files.values():
        file.forget()
    _files.clear()


def _wait_for(lock: _LockFile, control: RunControl) -> None:
    wait = _FIRST_WAIT
    while not lock.try_acquire():
        control.check()
        time.sleep(wait)
        wait = min(2 * wait, _MAX_WAIT)


def require_board_name(name: str) -> str:
    """*name*, if it can be that of a board: it becomes part of a path."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", name):
        raise ParameterError(f"'{name}' cannot be the name of a board", hint="use letters, digits, '-', '_' and '.'")
    return name


def board_folder(name: str, chip: str) -> Path:
    """The folder that the name of a board stands for."""
    folder = runtime_folder() / f"board-{require_board_name(name)}" / chip
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _open_holders(path: Path, cores: int) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, 4 * cores)
        return mmap.mmap(fd, 4 * cores)
    finally:
        os.close(fd)


def _temporary_folder() -> str:
    """As ``tempfile.gettempdir``, without its lock: a child that is forked while another thread holds that lock would wait forever."""
    wanted = (tempfile.tempdir, *(os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")), "/tmp", "/var/tmp")
    found = (
        os.fsdecode(folder) for folder in wanted if folder and os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)
    )
    return next(found, os.curdir)


def runtime_folder() -> Path:
    """The folder of this user for what programs share while they run: private, and no link to somewhere else.

    Below the temporary folder, where everybody may put something of that name first, that has to be looked at.
    """
    base = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(base, "anynpu") if base and os.access(base, os.W_OK) else Path(_temporary_folder(), f"anynpu-{os.getuid()}")
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise DeviceUnavailable(f"{folder} is not a folder", hint="remove it, or set XDG_RUNTIME_DIR to a folder of your own")
    if status.st_uid != os.getuid():
        raise DeviceUnavailable(f"{folder} belongs to another user", hint="set XDG_RUNTIME_DIR to a folder of your own")
    if status.st_mode & 0o022:
        raise DeviceUnavailable(f"others can write to {folder}", hint=f"chmod 700 {folder}")
    return folder


# What the devices of this machine are doing, for ``anynpu top``.
#
# Every device that runs a job has a small file in the runtime folder, mapped into memory, into which its scheduler writes a few
# numbers when a job starts or ends. Reading it does not disturb the device. The file goes away with the device; that of a process which was
# killed is removed by the next reader.
#
# Concurrency: one writer, the scheduler, under its lock. A reader may see a job that has just ended as running; the numbers only
# ever grow.


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
