"""Objects that are closed once they are no longer used."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

__all__ = ["Closeable", "at_end"]

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
