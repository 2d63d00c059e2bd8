"""Numbers for Prometheus and for the status page.

Counters and the histogram are written by the event loop of the server; queues, cores and models are read on request.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .._util import optional as _optional
from ..session import Percentiles
from .interfaces import Models
from .limits import Limits

# The last two minutes of every model, a point a second, for the charts of the status page.
#
# Belongs to the event loop of the server: no lock.


KEPT = 120
"""Points of a model."""


@dataclass(frozen=True)
class Point:
    """One second of a model.

    :ivar at: seconds since the server began
    :ivar rate: answers a second
    :ivar shed: rejections a second
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


_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The numbers of one server."""

    def __init__(self, repository: Models, limits: Limits) -> None:
        client = _optional.prometheus_client()
        self._client = client
        self._repository = repository
        self._limits = limits
        self._began = time.monotonic()
        self._history = History()
        self._registry = client.CollectorRegistry()
        labels = ("model", "version", "protocol")
        self._requests = client.Counter("anynpu_requests", "Requests by outcome.", (*labels, "outcome"), registry=self._registry)
        self._seconds = client.Histogram(
            "anynpu_request_seconds", "From the request to its answer.", labels, buckets=_BUCKETS, registry=self._registry
        )
        self._registry.register(_Collector(self))

    def record(self, model: str, version: str, protocol: str, outcome: str, seconds: float) -> None:
        """One request was answered."""
        self._requests.labels(model, version, protocol, outcome).inc()
        if outcome == "ok":
            self._seconds.labels(model, version, protocol).observe(seconds)

    def text(self) -> bytes:
        """All numbers in the text format of Prometheus."""
        data: bytes = self._client.generate_latest(self._registry)
        return data

    def collect(self) -> Iterator[Any]:
        """What is read on request."""
        core = _optional.prometheus_client("core")
        labels = ("model", "version")
        waiting = core.GaugeMetricFamily("anynpu_waiting", "Runs that wait for a core.", labels=labels)
        running = core.GaugeMetricFamily("anynpu_running", "Runs on the cores.", labels=labels)
        shed = core.CounterMetricFamily("anynpu_shed", "Requests rejected because they would be late.", labels=labels)
        runs = core.CounterMetricFamily("anynpu_runs", "Runs of the device.", labels=labels)
        busy = core.CounterMetricFamily(
            "anynpu_core_busy_seconds", "Time that the contexts of a model were busy.", labels=(*labels, "core")
        )
        for model in self._repository.models():
            own = (model.name, model.version)
            figures = model.figures()
            waiting.add_metric(own, figures.waiting)
            running.add_metric(own, figures.running)
            shed.add_metric(own, figures.shed)
            runs.add_metric(own, model.counts.executions)
            for each in figures.cores:
                busy.add_metric((*own, each.label), each.busy_ms / 1000)
        yield from (waiting, running, shed, runs, busy)
        yield core.GaugeMetricFamily("anynpu_inflight_bytes", "Bytes of requests and answers in flight.", self._limits.bytes)
        yield core.GaugeMetricFamily("anynpu_connections", "HTTP connections.", self._limits.connections)

    def sample(self) -> None:
        """A point more in the history of every model; to be called once a second."""
        now = time.monotonic() - self._began
        models = self._repository.models()
        shown = self._models()
        for model, figures in zip(models, shown, strict=True):
            self._history.add(f"{model.name}:{model.version}", now, figures, list(model.counts.latencies))
        self._history.keep([f"{model.name}:{model.version}" for model in models])

    def _models(self) -> list[dict[str, Any]]:
        models = []
        for model in self._repository.models():
            figures, counts = model.figures(), model.counts
            latency = Percentiles.of(list(counts.latencies))
            models.append(
                {
                    "name": model.name,
                    "version": model.version,
                    "device": figures.device,
                    "answered": counts.success,
                    "failed": counts.fail,
                    "cancelled": counts.cancelled,
                    "shed": figures.shed,
                    "waiting": round(figures.waiting, 2),
                    "running": figures.running,
                    "p50_ms": latency.p50,
                    "p95_ms": latency.p95,
                    "p99_ms": latency.p99,
                    "run_ms": figures.run_ms,
                    "cores": [{"label": each.label, "jobs": each.jobs, "busy_ms": each.busy_ms} for each in figures.cores],
                }
            )
        return models

    def status(self) -> dict[str, Any]:
        """What the status page shows."""
        models = self._models()
        for model in models:
            model["history"] = self._history.points(f"{model['name']}:{model['version']}")
        absent = [entry for entry in self._repository.index() if entry.state != "READY"]
        return {
            "uptime_s": time.monotonic() - self._began,
            "process": os.getpid(),
            "connections": self._limits.connections,
            "inflight_bytes": self._limits.bytes,
            "models": models,
            "unavailable": [{"name": entry.name, "version": entry.version, "reason": entry.reason} for entry in absent],
        }


class _Collector:
    """What Prometheus's registry asks."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Any]:
        return self._metrics.collect()

    def describe(self) -> list[Any]:
        return []
