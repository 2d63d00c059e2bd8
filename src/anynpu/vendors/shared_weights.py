"""Backends of sessions whose weights other backends use.

Who owns what: a backend owns its root, the first object of the device that holds its weights. The root stays while a backend that
borrowed the weights is open; whoever is the last to close destroys it. The lock of :class:`Lender` protects the number of borrowers
and what belongs to it; it is never held during a call.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from ..errors import DeviceClosed, ModelError, SessionModelError

__all__ = ["Lender", "session_errors"]


class Closable(Protocol):
    """What can be closed."""

    def close(self) -> None:
        """End it; again is harmless."""


RootT = TypeVar("RootT", bound=Closable)


class Lender(Generic[RootT]):
    """The base of backends.

    :param lender: the backend whose weights this one uses
    """

    _root: RootT

    def __init__(self, lender: Lender[RootT] | None) -> None:
        self._lock = threading.Lock()
        self._lender = lender
        self._borrowers = 0
        self._closing = False
        self._root_taken = False

    def _open_root(self, make: Callable[[], RootT], describe: Callable[[], None]) -> None:
        """Make the root, which may use the weights of the lender; undo all of it if it cannot be made or described."""
        if self._lender is not None:
            self._lender.lend(1)
        try:
            self._root = make()
            try:
                describe()
            except BaseException:
                self._root.close()
                raise
        except BaseException:
            if self._lender is not None:
                self._lender.lend(-1)
            raise

    def _take_root(self) -> bool:
        """Whether the root is free for a lane, which has it from now on."""
        with self._lock:
            if self._closing:
                raise DeviceClosed("the session was closed", hint="open a new one")
            first, self._root_taken = not self._root_taken, True
        return first

    def is_root(self, part: RootT) -> bool:
        """Whether *part* is the backend's own, which no lane closes."""
        return part is self._root

    def lend(self, change: int) -> None:
        """Another backend begins or ceases to share the weights."""
        with self._lock:
            if change > 0 and self._closing:
                raise DeviceClosed("the session to share weights with was closed", hint="keep it open")
            self._borrowers += change
            last = self._closing and self._borrowers == 0
        if last:
            self._root.close()

    def close(self) -> None:
        """Destroy the root, or let the last backend that shares its weights do so."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            last = self._borrowers == 0
        if last:
            self._root.close()
        if self._lender is not None:
            self._lender.lend(-1)


@contextlib.contextmanager
def session_errors() -> Iterator[None]:
    """Turn the errors of models into what a session raises, which are RuntimeErrors too.

    >>> with session_errors():
    ...     raise ModelError("this is no model")
    Traceback (most recent call last):
    anynpu.errors.SessionModelError: this is no model
    """
    try:
        yield
    except ModelError as error:
        if isinstance(error, RuntimeError):
            raise
        raise SessionModelError(
            error.message, hint=error.hint, code=error.code, call=error.call, code_name=error.code_name
        ) from error
