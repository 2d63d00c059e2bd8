"""Objects that are closed once they are no longer used, and locks that outlive a fork."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

__all__ = ["Closeable", "ModuleLock", "at_end"]

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
    """A lock of a module, free in a forked child: the thread that held it is the parent's, and nobody in the child would release it.

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
        """Whether somebody holds it."""
        return self._lock.locked()

    def _renew(self) -> None:
        self._lock = threading.Lock()
