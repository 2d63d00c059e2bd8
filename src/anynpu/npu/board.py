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
import mmap
import os
import re
import stat
import struct
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import DeviceUnavailable, ParameterError
from .control import RunControl

__all__ = ["HOLDERS", "SharedCores", "board_folder", "require_board_name", "runtime_folder"]

HOLDERS = "holders"
"""The file of a board that says for each core which process has it, for those who want to know the load."""

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
        """Whether nobody has the core at this moment."""
        lock = _lock_file(self._folder / f"core{core}")
        if not lock.try_acquire():
            return False
        lock.release()
        return True

    @contextlib.contextmanager
    def held(self, cores: Iterable[int], control: RunControl) -> Iterator[None]:
        """Have *cores* for the block; waits for them, as long as *control* allows it.

        They are taken in ascending order, so that nobody waits in a circle.
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
