"""Which boards a request goes to, and when it goes to another.

A pool is a group of boards with the same models. A request goes to the pool with the least work for each board, and inside it to the board
with the least. An inference changes nothing, so a request may be run twice: if its board rejects it (too much to do, a hung core, a model
that is being replaced) or is gone, it is tried once more, on another board, within its deadline.

Belongs to the event loop of the gateway: no lock.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from ...errors import (
    BoardLostError,
    DeviceClosed,
    DeviceHungError,
    DeviceMemoryError,
    DeviceTimeout,
    DeviceUnavailable,
    ModelUnavailableError,
    OverloadedError,
    SubmitTimeout,
    UnknownModelError,
)
from ..model import InferAnswer, InferRequest
from .messages import BoardRefusal, BoardReport

# Which board of a pool gets a request: the one with the least work, and not the one that has just rejected it.
#
# Belongs to the event loop that sends the requests: no lock.


Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


class LeastWork(Generic[Key]):
    """Counts the requests of one gateway that are with each board.

    :param chance: decides between boards with equal work

    >>> boards = LeastWork[str]()
    >>> boards.sent("a")
    >>> boards.ranked(["a", "b"], lambda name: name), boards.ranked(["a", "b"], lambda name: name, avoid="b")
    (['b', 'a'], ['a', 'b'])
    """

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._in_flight: Counter[Key] = Counter()
        self._chance = chance

    def in_flight(self, board: Key) -> int:
        """Requests that are with a board."""
        return self._in_flight[board]

    def sent(self, board: Key) -> None:
        """A request goes to a board."""
        self._in_flight[board] += 1

    def ended(self, board: Key) -> None:
        """A request has ended, however it did. One of a board that has left meanwhile counts for nothing."""
        if self._in_flight[board] > 1:
            self._in_flight[board] -= 1
        else:
            del self._in_flight[board]

    def keep(self, boards: Iterable[Key]) -> None:
        """These boards are there now, and no others."""
        there = set(boards)
        for board in [board for board in self._in_flight if board not in there]:
            del self._in_flight[board]

    def ranked(self, boards: Sequence[Item], key_of: Callable[[Item], Key], avoid: Key | None = None) -> list[Item]:
        """All boards, best first: little work before much, equals by chance, and the one to avoid after all others."""

        def rank(board: Item) -> tuple[bool, int, float]:
            key = key_of(board)
            return key == avoid, self._in_flight[key], self._chance()

        return sorted(boards, key=rank)


_ELSEWHERE = (
    *(OverloadedError, SubmitTimeout, ModelUnavailableError, UnknownModelError),
    *(DeviceHungError, DeviceClosed, DeviceUnavailable, DeviceMemoryError),
)
"""Rejections that another board may not share."""

_LOOK_AGAIN = 0.5
"""Seconds after which a waiting request checks whether there is any board left."""

_GRACE = 1.0
"""Seconds that a board has to state itself that a request is late."""


class Boards(Protocol):
    """The boards of a pool, however they are reached."""

    @property
    def name(self) -> str:
        """Of the pool."""

    async def infer(self, request: InferRequest, avoid: str) -> InferAnswer | BoardRefusal:
        """Run a request on the board with the least work, not on *avoid* if there is another; BoardLostError if the board is lost."""

    async def tell(self, method: str, *arguments: Any, timeout: float) -> list[Any]:
        """Call a method of every board; gives the answers of those that gave one."""


class BoardPool:
    """Boards with the same models, and what is known of them.

    :ivar reports: the last ones of all boards that are there, by identity
    :ivar inside: requests that are with its boards
    """

    def __init__(self, boards: Boards) -> None:
        self.boards = boards
        self.reports: dict[str, BoardReport] = {}
        self.inside = 0

    @property
    def name(self) -> str:
        """Its name."""
        return self.boards.name

    @property
    def load(self) -> float:
        """Requests for each board."""
        return self.inside / len(self.reports) if self.reports else float("inf")


async def route(pools: Sequence[BoardPool], request: InferRequest, timeout: float) -> InferAnswer:
    """Run *request* on one of *pools*, which all have its model, within *timeout* seconds."""
    clock = asyncio.get_running_loop().time
    until = clock() + timeout
    avoid = ""
    failure: Exception | None = None
    for last in (False, True):
        left = until - clock()
        there = [pool for pool in pools if pool.reports]
        if not there:
            raise failure or no_board(request.model)
        if left <= 0:
            raise failure or _late(timeout)
        # where a board has just rejected, the other boards of its pool come after those of other pools
        pool = min(there, key=lambda each: (avoid in each.reports and len(there) > 1, each.load))
        asked = request if request.timeout is None else replace(request, timeout=left)
        pool.inside += 1
        try:
            reply = await _ask(pool, asked, avoid, left, timeout)
        except BoardLostError as error:
            if last:
                raise
            failure = error
            continue
        finally:
            pool.inside -= 1
        if isinstance(reply, InferAnswer):
            return reply
        alone = sum(len(each.reports) for each in there) == 1
        if last or alone or not isinstance(reply.error, _ELSEWHERE):
            raise reply.error
        failure, avoid = reply.error, reply.board
    raise AssertionError("the second try answers or raises")


async def _ask(pool: BoardPool, request: InferRequest, avoid: str, left: float, timeout: float) -> InferAnswer | BoardRefusal:
    task = asyncio.ensure_future(pool.boards.infer(request, avoid))
    clock = asyncio.get_running_loop().time
    until = clock() + left + _GRACE
    try:
        while not (await asyncio.wait({task}, timeout=min(_LOOK_AGAIN, max(0.0, until - clock()))))[0]:
            if not pool.reports:
                raise no_board(request.model)
            if clock() >= until:
                raise _late(timeout)
        return task.result()
    finally:
        task.cancel()


def no_board(model: str) -> BoardLostError:
    """There is no board for a model now."""
    return BoardLostError(
        f"no board that has the model '{model}' is there at the moment",
        hint="come again: boards join by themselves when they are back",
    )


def _late(timeout: float) -> DeviceTimeout:
    return DeviceTimeout(f"the request did not finish within {timeout:g} s", hint="give it more time, or send less at a time")
