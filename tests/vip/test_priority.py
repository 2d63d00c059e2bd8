"""Who runs first: by the order in which jobs end, not by the clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from anynpu import chips
from anynpu._vip import ffi

from .support import Calls

SPEED = 2e-4
"""A run of ten microseconds takes 50 ms."""


def with_priority(calls: Calls, priority: int) -> Any:
    network, *_ = calls.ready()
    calls.ok(calls.library.vip_set_network(network, 67, ffi.new("uint8_t *", priority)))
    return network


def test_of_the_submitted_the_highest_runs_first(open_calls: Callable[..., Calls]) -> None:
    calls = open_calls(realtime=SPEED)
    library = calls.library
    priorities = {"running": 0, "low": 0, "second": 10, "first": 10, "high": 255}
    networks = {name: with_priority(calls, priority) for name, priority in priorities.items()}
    order: list[str] = []
    lock = threading.Lock()

    def wait(name: str) -> None:
        calls.ok(library.vip_wait_network(networks[name]))
        with lock:
            order.append(name)

    for name in ("running", "low", "first", "second", "high"):
        calls.ok(library.vip_trigger_network(networks[name]))
    threads = [threading.Thread(target=wait, args=(name,)) for name in networks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert order == ["running", "high", "first", "second", "low"]


def test_a_high_priority_waits_for_one_job_in_progress_at_most(open_calls: Callable[..., Calls]) -> None:
    """Two low ones keep the core busy without a pause. The jobs that the core has finished are counted while a high one runs."""
    calls = open_calls(realtime=SPEED * 4)
    library = calls.library
    low = [with_priority(calls, 1) for _ in range(2)]
    high = with_priority(calls, 200)
    device = library.device_for(chips.get("t527"))
    stop = threading.Event()

    def saturate(network: Any) -> None:
        while not stop.is_set():
            calls.ok(library.vip_run_network(network))

    threads = [threading.Thread(target=saturate, args=(network,)) for network in low]
    for thread in threads:
        thread.start()
    while device.statistics[0].jobs < 3:
        pass
    finished = []
    for _ in range(6):
        before = device.statistics[0].jobs
        calls.ok(library.vip_run_network(high))
        finished.append(device.statistics[0].jobs - before)
    stop.set()
    for thread in threads:
        thread.join(60)
    # its own, the one in progress, and one that may end between the count and the call
    assert max(finished) <= 3
    assert min(finished) <= 2
    assert device.scheduler.waiting == 0
