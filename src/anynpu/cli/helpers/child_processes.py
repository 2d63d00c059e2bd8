"""How a command ends that has started other programs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

__all__ = ["orderly_end"]


@contextmanager
def orderly_end() -> Iterator[None]:
    """SIGTERM leaves the block as Ctrl-C does, so that what the block started is ended too; by default it would only end this process.

    >>> with orderly_end():    # doctest: +SKIP
    ...     install(place, python)
    """
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
