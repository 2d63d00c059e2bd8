"""The last two minutes of every model, a point a second, for the charts of the status page.

Belongs to the event loop of the server: no lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..session import Percentiles

__all__ = ["KEPT", "History", "Point"]

KEPT = 120
"""Points of a model."""


@dataclass(frozen=True)
class Point:
    """One second of a model.

    :ivar at: seconds since the server began
    :ivar rate: answers a second
    :ivar shed: refusals a second
    :ivar failed: failures a second
    :ivar p50_ms: of the answers of that second, as the other percentiles
    :ivar waiting: runs that wait for a core
    :ivar busy: share of the time that each core was busy
    """

    at: float
    rate: float
    shed: float
    failed: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    waiting: float
    busy: list[float]


class History:
    """Points by model.

    >>> history = History()
    >>> model = {"answered": 0, "shed": 0, "failed": 0, "waiting": 0, "cores": []}
    >>> history.add("net:1", 1.0, model, [])
    >>> history.add("net:1", 2.0, {**model, "answered": 3}, [1_000_000, 2_000_000, 9_000_000])
    >>> point = history.points("net:1")[-1]
    >>> point["rate"], point["p50_ms"]
    (3.0, 2.0)
    """

    def __init__(self) -> None:
        self._points: dict[str, deque[Point]] = {}
        self._before: dict[str, tuple[float, Mapping[str, Any]]] = {}

    def add(self, name: str, at: float, model: Mapping[str, Any], latencies: Sequence[int]) -> None:
        """A model as it is at this moment.

        :param model: its counts since it was loaded, as the status page shows them
        :param latencies: nanoseconds of its last answers
        """
        before = self._before.get(name)
        self._before[name] = at, model
        points = self._points.setdefault(name, deque(maxlen=KEPT))
        if before is None or at <= before[0] or model["answered"] < before[1]["answered"]:
            return  # new, or reloaded
        seconds, old = at - before[0], before[1]
        answers = model["answered"] - old["answered"]
        times = Percentiles.of(list(latencies)[-answers:] if answers else [])
        known = {core.get("label", number): core["busy_ms"] for number, core in enumerate(old["cores"])}
        busy = [
            min(1.0, max(0.0, core["busy_ms"] - known.get(core.get("label", number), core["busy_ms"])) / 1000 / seconds)
            for number, core in enumerate(model["cores"])
        ]
        points.append(
            Point(
                at,
                answers / seconds,
                max(0, model["shed"] - old["shed"]) / seconds,
                max(0, model["failed"] - old["failed"]) / seconds,
                times.p50,
                times.p95,
                times.p99,
                model["waiting"],
                busy,
            )
        )

    def keep(self, names: Sequence[str]) -> None:
        """Forget all models but these."""
        for name in [name for name in self._before if name not in names]:
            del self._before[name]
            self._points.pop(name, None)

    def points(self, name: str) -> list[dict[str, Any]]:
        """The points of a model, the oldest first."""
        return [asdict(point) for point in self._points.get(name, ())]
