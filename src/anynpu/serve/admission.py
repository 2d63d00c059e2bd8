"""Admission: a request is accepted only if it will be done in time, and rejected at once otherwise.

The wait of a new request is predicted from the requests in flight, from when the cores took up what they work on, and from how long one
inference has taken of late. A burst, or a few clients who wait for their answers, may wait for a few inferences. When something had to be
rejected and clearly more is offered than can be done, what comes must begin within 0.6 inferences: so under a lasting overload the latency
of what is accepted stays close to that of an idle server, however much is offered.

Belongs to the event loop of the server: no lock.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import OverloadedError

_FLOOR = 0.020
"""Seconds of predicted wait that are always accepted: bursts of a quick model."""

_SHARE = 0.6
"""Of one inference that a request may wait for its core in an overload: so that the slowest answer takes less than twice that of an idle
server."""

_BURST = 3.5
"""Inferences that a request may wait for its core otherwise: cameras that send at the same moment, four clients of one core."""

_EXCESS = 1.2
"""Of what the cores can do: more is an overload, if something had to be rejected as well."""

_CALM = 1.0
"""Seconds after a rejection in which there may be an overload; ten inferences, if these take longer."""

_OFFERS = 64
"""Requests from whose times the load is measured: enough that chance does not make one, few enough to notice soon."""

_FEWEST_OFFERS = 8

_WEIGHT = 0.1
"""Of the newest inference in the average."""


@dataclass(eq=False)
class Ticket:
    """A request that was accepted.

    :ivar runs: what it counts for; a request for a part of a batch is a part of a run
    :ivar begun: when a core took it up; None while it waits
    """

    runs: float
    begun: float | None = None


@dataclass(eq=False)
class Announcement:
    """A request whose body is on its way.

    :ivar came: when its head was there
    """

    came: float
    _list: dict[Announcement, None]

    def withdraw(self) -> None:
        """Its body is there, or will never be. May be called twice."""
        self._list.pop(self, None)


class Admission:
    """Decides for one model.

    :param lanes: inferences that run at a time
    :param max_queue: runs that may wait
    :param max_wait: the longest predicted wait in seconds; None: 3.5 inferences, in an overload 0.6, at least 20 ms
    :param clock: reports the time

    >>> admission = Admission(lanes=2, max_queue=1, max_wait=None)
    >>> tickets = [admission.enter("net", 1) for _ in range(3)]
    >>> admission.enter("net", 1)
    Traceback (most recent call last):
    ...
    anynpu.errors.OverloadedError: model 'net' has a full queue: 1 waiting
      hint: come again in 0.05 s, or send less at a time
    """

    def __init__(
        self, lanes: int, max_queue: int, max_wait: float | None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.lanes = lanes
        self.inside = 0.0
        self.shed = 0
        self.service = 0.0
        self.max_queue = max_queue
        self._max_wait = max_wait
        self._clock = clock
        self._running: dict[Ticket, None] = {}  # dictionaries, for the order in which they came and a quick end
        self._waiting: dict[Ticket, None] = {}
        self._busy = 0.0
        self._announced: dict[Announcement, None] = {}  # the oldest first
        self._offers: deque[float] = deque(maxlen=_OFFERS)
        self._refused = -math.inf

    @property
    def waiting(self) -> float:
        """Runs that no core works on yet."""
        return max(0, self.inside - self.lanes)

    def predicted_wait(self, runs: float = 1, before: int = 0) -> float:
        """Seconds until a core takes up the last of the runs of a request that comes now.

        :param before: requests that will be there before it
        """
        turn = math.ceil(self.waiting + before + runs) - 1  # cores that become free before the one which takes that run
        lanes = self._lanes_left()
        return lanes[turn % self.lanes] + turn // self.lanes * self.service

    def announce(self, name: str) -> Announcement:
        """Take note of a request whose body is on its way, or raise if it could not be accepted anyhow.

        Each announcement must be withdrawn. Those whose body takes longer than an inference do not count: they are slow, and
        others may overtake.
        """
        now = self._clock()
        self._offers.append(now)
        patience = max(_FLOOR, self.service)
        coming = sum(1 for one in self._announced if now - one.came < patience)
        self._check(name, 1, None, coming)
        announcement = Announcement(now, self._announced)
        self._announced[announcement] = None
        return announcement

    def _check(self, name: str, runs: float, limit: float | None, coming: int = 0) -> None:
        if (self.inside or coming) and self.inside + coming + runs - self.lanes > self.max_queue:
            raise self._refusal(f"model '{name}' has a full queue: {self.waiting:.0f} waiting")
        begin = self.predicted_wait(min(runs, 1), coming)
        if begin > self._longest():
            raise self._refusal(f"model '{name}' would begin in about {begin:.3f} s")
        end = self.predicted_wait(runs, coming) + self.service
        if limit is not None and self.inside and end > limit:
            raise self._refusal(f"model '{name}' would need about {end:.3f} s, and the request has {limit:.3f} s")

    def enter(self, name: str, runs: float, limit: float | None = None) -> Ticket:
        """Accept a request, or raise. Each accepted request must be released.

        :param limit: seconds that the client gives it
        """
        self._check(name, runs, limit)
        ticket = Ticket(runs)
        self.inside += runs
        self._waiting[ticket] = None
        self._begin()
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """The runs of a request are done with."""
        self.inside -= ticket.runs
        if ticket in self._running:
            del self._running[ticket]
            self._busy -= ticket.runs
            self._begin()
        else:
            del self._waiting[ticket]
        if not self._running:
            self.inside = self._busy = 0.0  # parts of a run do not add up to exactly one

    def learn(self, seconds: float) -> None:
        """One inference took so long on its core."""
        self.service = seconds if not self.service else self.service + _WEIGHT * (seconds - self.service)

    def _begin(self) -> None:
        """Cores that are free take up what has waited longest."""
        now = self._clock()
        while self._waiting and self._busy < self.lanes:
            ticket = next(iter(self._waiting))
            del self._waiting[ticket]
            ticket.begun = now
            self._running[ticket] = None
            self._busy += ticket.runs

    def _lanes_left(self) -> list[float]:
        """Seconds until each core is free, the first to become free first."""
        now = self._clock()
        left: list[float] = []
        part = 0.0  # of a core that requests for parts of a batch share
        for ticket in self._running:
            assert ticket.begun is not None
            remaining = max(0.0, ticket.begun + self.service - now)
            part += ticket.runs
            whole = min(int(part + 1e-9), self.lanes - len(left))
            left += [remaining] * whole
            part = max(0.0, part - whole)
            if len(left) == self.lanes:
                break
        left += [0.0] * (self.lanes - len(left))
        return sorted(left)

    def _longest(self) -> float:
        if self._max_wait is not None:
            return self._max_wait
        return max(_FLOOR, self.service * (_SHARE if self._overloaded() else _BURST))

    def _overloaded(self) -> bool:
        """Whether clearly more has been offered of late than can be done, and had to be rejected."""
        now, offers = self._clock(), self._offers
        if now - self._refused >= max(_CALM, 10 * self.service) or len(offers) < _FEWEST_OFFERS:
            return False
        return len(offers) * self.service > _EXCESS * self.lanes * (now - offers[0])

    def _refusal(self, message: str) -> OverloadedError:
        self.shed += 1
        self._refused = self._clock()
        retry = max(0.05, self.predicted_wait())
        return OverloadedError(message, hint=f"come again in {retry:.2g} s, or send less at a time", retry_after=retry)
