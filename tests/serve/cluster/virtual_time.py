"""An event loop whose time passes only when everybody waits: what takes an hour is tested at once, and always in the same order.

No threads and no sockets: nothing may happen but what a task does or a timer brings. So a test that waits for what never happens fails
at once, and needs no time limit.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

P = ParamSpec("P")

MAX_TIME = 100_000.0
"""Seconds after which a test that something keeps awake has waited for too long."""


class _Selector(selectors.SelectSelector):
    """Lets time pass instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everybody waits, and no timer is set: this never ends"
        self.now += max(0.0, timeout)
        assert self.now < MAX_TIME, "it has not happened in more than a day"
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """See above."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that is a coroutine, on a loop of its own that begins at 0 s."""

    @functools.wraps(test)
    def run(*arguments: P.args, **given: P.kwargs) -> None:
        loop = VirtualLoop()
        try:
            loop.run_until_complete(test(*arguments, **given))
        finally:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left))
            loop.close()

    return run


def now() -> float:
    """Seconds since the test began."""
    return asyncio.get_running_loop().time()
