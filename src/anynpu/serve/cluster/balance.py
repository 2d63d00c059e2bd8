"""Which board of a pool gets a request: the one with the least work, and not the one that has just refused it.

Belongs to the event loop of whoever sends the requests: no lock.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

__all__ = ["LeastWork"]

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


class LeastWork(Generic[Key]):
    """Counts the requests of one front that are with each board.

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
