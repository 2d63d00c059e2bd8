"""Objects that are closed once they are no longer used, locks that outlive a fork, and imports that end before one."""

from __future__ import annotations

import _imp

# Both take a lock of theirs before a fork, which an import may need. Hooks run in reverse order: ours, registered after them, waits first.
import concurrent.futures.thread  # noqa: F401
import logging  # noqa: F401
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

_Self = TypeVar("_Self", bound="Closeable")


class Closeable:
    """An object with :meth:`close`, which the end of a ``with`` block calls."""

    __slots__ = ()

    def close(self) -> None:
        """Give back what the object holds."""
        raise NotImplementedError

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def at_end(owner: object, function: Callable[..., None], *arguments: Any) -> weakref.finalize[..., Any]:
    """Call *function* when *owner* is forgotten, or by hand, as ``weakref.finalize`` does; in a forked child never, since the threads that
    work on what it inherited, and may hold its locks, are the parent's."""
    return weakref.finalize(owner, _in_process, os.getpid(), function, *arguments)


def _in_process(process: int, function: Callable[..., None], *arguments: Any) -> None:
    if process == os.getpid():
        function(*arguments)


class ModuleLock:
    """A lock of a module, free in a forked child: the thread that held it is the parent's, and no thread of the child would release it.

    It asks for the hook when it is first taken, so that importing a module has no effect on the process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hooked = False

    def __enter__(self) -> None:
        if not self._hooked:
            self._hooked = True
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=self._renew)
        self._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._lock.locked():  # not in a child that was forked inside the block
            self._lock.release()

    def locked(self) -> bool:
        """Whether a thread holds it."""
        return self._lock.locked()

    def _renew(self) -> None:
        self._lock = threading.Lock()


IMPORT_SECONDS = 30.0
"""How long a fork waits for imports of other threads."""

_unforked: set[int] = set()
"""Threads inside :func:`unforked`; protected by the interpreter's import lock."""

_installed = False


@contextmanager
def unforked() -> Iterator[None]:
    """A block, not nested, whose end a fork by another thread waits for as for that of an import: a child would inherit half of it."""
    thread = threading.get_ident()
    _imp.acquire_lock()
    _unforked.add(thread)
    _imp.release_lock()
    try:
        yield
    finally:
        _unforked.discard(thread)


def finish_imports_before_forks() -> None:
    """Make ``os.fork`` wait until no other thread is inside an import or inside :func:`unforked`.

    A child inherits the locks of modules that are being imported, and half of what those modules define, but not the thread that would
    finish them: it hangs or fails at its own import. The wait ends after :data:`IMPORT_SECONDS` with a warning. A thread that forks
    inside an import does not wait, since the others may wait for it. ``subprocess`` without ``preexec_fn`` is not affected.
    """
    global _installed
    if not _installed and hasattr(os, "register_at_fork"):
        _installed = True
        os.register_at_fork(before=_before_fork, after_in_parent=_imp.release_lock, after_in_child=_after_fork_in_child)


def _before_fork() -> None:
    """Take the import lock, which every import needs in order to begin, at a moment when no import has begun."""
    end = time.monotonic() + IMPORT_SECONDS
    _imp.acquire_lock()
    while busy := _imports_of_others():
        if time.monotonic() >= end:
            warnings.warn(
                f"forked while another thread imports {', '.join(busy)}: the child may hang when it does the same",
                RuntimeWarning,
                stacklevel=2,
            )
            break
        _imp.release_lock()
        time.sleep(0.001)
        _imp.acquire_lock()


def _imports_of_others() -> list[str]:
    """Names of modules that other threads are importing; none where this thread is inside an import itself."""
    me = threading.get_ident()
    # The interpreter keeps a lock for each module while its import lasts, and has no public list of them.
    references = list(getattr(sys.modules["importlib._bootstrap"], "_module_locks", {}).items())
    locks = {name: lock for name, reference in references if (lock := reference()) is not None}
    if me in _unforked or any(lock.owner == me for lock in locks.values()):
        return []
    return [*locks, *(["onnxruntime"] if _unforked else [])]


def _after_fork_in_child() -> None:
    _unforked.intersection_update({threading.get_ident()})
    _imp.release_lock()
