"""Admission: a request is accepted only if it will be done in time, and refused at once otherwise.

The wait of a new request is predicted from what is in the house and from how long one inference has taken of late. Refusing early keeps the
latency of what is accepted close to that of an idle server however much is offered.

Belongs to the event loop of the server: no lock.
"""

from __future__ import annotations

from ..errors import OverloadedError

__all__ = ["Admission"]

_FLOOR = 0.020
"""Seconds of predicted wait that are always accepted: bursts of a quick model."""

_SHARE = 0.75
"""Of one inference that a request may wait for its core: so that the slowest answer takes less than twice that of an idle server."""

_WEIGHT = 0.1
"""Of the newest inference in the average."""


class Admission:
    """Decides for one model.

    :param lanes: inferences that run at a time
    :param max_queue: runs that may wait; a request for a part of a batch is a part of a run
    :param max_wait: the longest predicted wait in seconds; None: three quarters of an inference, and at least 20 ms

    >>> admission = Admission(lanes=2, max_queue=1, max_wait=None)
    >>> admission.enter("net", 3)
    >>> admission.enter("net", 1)
    Traceback (most recent call last):
    ...
    anynpu.errors.OverloadedError: model 'net' has a full queue: 1 waiting
      hint: come again in 0.05 s, or send less at a time
    """

    def __init__(self, lanes: int, max_queue: int, max_wait: float | None) -> None:
        self.lanes = lanes
        self.inside = 0.0
        self.shed = 0
        self.service = 0.0
        self._max_queue = max_queue
        self._max_wait = max_wait

    @property
    def waiting(self) -> float:
        """Runs that no core works on yet."""
        return max(0, self.inside - self.lanes)

    def predicted_wait(self, runs: float = 1) -> float:
        """Seconds until the first core takes up a request that comes now."""
        return max(0, self.inside + runs - self.lanes) * self.service / self.lanes

    def check(self, name: str, runs: float = 1, limit: float | None = None) -> None:
        """Raise if a request could not be accepted now.

        :param limit: seconds that the client gives it
        """
        wait = self.predicted_wait(runs)
        if self.inside and self.inside + runs - self.lanes > self._max_queue:
            raise self._refusal(f"model '{name}' has a full queue: {self.waiting:.0f} waiting")
        if wait > self._longest():
            raise self._refusal(f"model '{name}' would begin in about {wait:.3f} s")
        if limit is not None and self.inside and wait + self.service > limit:
            raise self._refusal(f"model '{name}' would need about {wait + self.service:.3f} s, and the request has {limit:.3f} s")

    def enter(self, name: str, runs: float, limit: float | None = None) -> None:
        """Accept a request, or raise. Whoever enters leaves."""
        self.check(name, runs, limit)
        self.inside += runs

    def leave(self, runs: float) -> None:
        """The runs of a request are done with."""
        self.inside -= runs

    def learn(self, seconds: float) -> None:
        """One inference took so long on its core."""
        self.service = seconds if not self.service else self.service + _WEIGHT * (seconds - self.service)

    def _longest(self) -> float:
        if self._max_wait is not None:
            return self._max_wait
        return max(_FLOOR, self.service * max(_SHARE, 1 / self.lanes))  # with one core, one may wait

    def _refusal(self, message: str) -> OverloadedError:
        self.shed += 1
        retry = max(0.05, self.predicted_wait())
        return OverloadedError(message, hint=f"come again in {retry:.2g} s, or send less at a time", retry_after=retry)
