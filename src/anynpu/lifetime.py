"""Objects that are closed once they are no longer used."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

__all__ = ["Closeable"]

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
