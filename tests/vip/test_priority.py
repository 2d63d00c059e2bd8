"""Who runs first: by the order in which jobs begin, on an engine that goes on when the test reports it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from npu.builders import GatedEngine
from waiting import PATIENCE, wait_until

from anynpu import chips
from anynpu._vip import ffi

from .support import Calls, small_model

LAYERS = len(small_model().programs[0].layers)


class Turns:
    """A gate that lets one layer through for each release."""

    def __init__(self) -> None:
        self._turns = threading.Semaphore(0)

    def wait(self, timeout: float) -> bool:
        return self._turns.acquire(timeout=timeout)

    def end_job(self) -> None:
        """Let the job in progress run to its end."""
        self._turns.release(LAYERS)


class Core:
    """The one core of a t527: what has begun on it, and who waits for it."""

    def __init__(self, open_calls: Callable[..., Calls], monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine, self.turns = GatedEngine(), Turns()
        monkeypatch.setattr(self.engine, "gate", self.turns)
        self.calls = open_calls(engine=self.engine)
        self._names: dict[int, str] = {}

    def network(self, name: str, priority: int) -> Any:
        """A network with a priority; it has run once, so that its memory reports it from others."""
        library, (network, *_) = self.calls.library, self.calls.ready()
        self.calls.ok(library.vip_set_network(network, 67, ffi.new("uint8_t *", priority)))
        self.turns.end_job()
        self.calls.ok(library.vip_run_network(network))
        self._names[self.engine.begun[-1][0]] = name
        self.engine.begun.clear()
        return network

    def begun(self) -> list[str]:
        """The names of the jobs that have begun, in order."""
        return [self._names[key] for key, layer in self.engine.begun if layer == 0]

    def wait_begun(self, count: int) -> str:
        """The name of the job that began as the *count*th."""
        wait_until(lambda: len(self.begun()) >= count, f"{count} jobs have begun")
        return self.begun()[count - 1]

    def wait_waiting(self, count: int) -> None:
        scheduler = self.calls.library.device_for(chips.get("t527")).scheduler
        wait_until(lambda: scheduler.waiting == count, f"{count} jobs wait")


@pytest.fixture
def core(open_calls: Callable[..., Calls], monkeypatch: pytest.MonkeyPatch) -> Core:
    return Core(open_calls, monkeypatch)


def test_of_the_submitted_the_highest_runs_first(core: Core) -> None:
    library = core.calls.library
    priorities = {"running": 0, "low": 0, "second": 10, "first": 10, "high": 255}
    networks = {name: core.network(name, priority) for name, priority in priorities.items()}
    for number, name in enumerate(("running", "low", "first", "second", "high")):
        core.calls.ok(library.vip_trigger_network(networks[name]))
        if number == 0:
            core.wait_begun(1)
        core.wait_waiting(number)
    for _ in networks:
        core.turns.end_job()
    for network in networks.values():
        core.calls.ok(library.vip_wait_network(network))
    assert core.begun() == ["running", "high", "first", "second", "low"]


def test_a_high_priority_waits_for_the_job_in_progress_alone(core: Core) -> None:
    """Two low ones keep the core busy without a pause; a high one comes while one of them runs and the other waits."""
    library = core.calls.library
    low = [core.network("low", 1) for _ in range(2)]
    high = core.network("high", 200)
    stop = threading.Event()

    def saturate(network: Any) -> None:
        while not stop.is_set():
            core.calls.ok(library.vip_run_network(network))

    threads = [threading.Thread(target=saturate, args=(network,)) for network in low]
    for thread in threads:
        thread.start()
    begun = 1
    for _ in range(6):
        assert core.wait_begun(begun) == "low"
        core.wait_waiting(1)
        core.calls.ok(library.vip_trigger_network(high))
        core.wait_waiting(2)
        core.turns.end_job()
        assert core.wait_begun(begun + 1) == "high"
        core.turns.end_job()
        core.calls.ok(library.vip_wait_network(high))
        begun += 2
    stop.set()
    for _ in range(2 * len(threads)):  # what runs, what waits, and what each thread may have begun since
        core.turns.end_job()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    core.wait_waiting(0)
