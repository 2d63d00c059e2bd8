"""How a command ends that has started other programs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import typer


@contextmanager
def orderly_end(interrupted: str) -> Iterator[None]:
    """SIGTERM leaves the block as Ctrl-C does, so that what the block started is ended too; by default it would only end this process.

    :param interrupted: what is printed in either case

    >>> with orderly_end("interrupted: nothing was installed"):    # doctest: +SKIP
    ...     install(place, python)
    """
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(interrupted, err=True)
        raise SystemExit(128 + signal.SIGINT) from None
    except SystemExit as ended:
        if ended.code == 128 + signal.SIGTERM:
            typer.echo(interrupted, err=True)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
