"""Very many requests at random: each is answered exactly once, callbacks in order, nothing is lost."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from concurrent.futures import CancelledError, Future, wait
from typing import Any

import pytest
from waiting import PATIENCE

from anynpu.errors import DeviceError, SubmitTimeout

from .fake import FakeDevice, feed

REQUESTS = int(os.environ.get("ANYNPU_SESSION_REQUESTS", "40000"))
"""`make soak` asks for more."""

OPTIONS: list[tuple[dict[str, Any], int]] = [
    ({"schedule": [0, 1, 2]}, 1),
    ({"threads_per_core": 2}, 2),
    ({"sequential_callbacks": False}, 3),
]


@pytest.mark.parametrize(("options", "seed"), OPTIONS)
def test_some_random_load(options: dict[str, Any], seed: int) -> None:
    load_at_random(options, seed, 2000)


@pytest.mark.full
@pytest.mark.parametrize(("options", "seed"), OPTIONS)
def test_random_load(options: dict[str, Any], seed: int) -> None:
    load_at_random(options, seed, REQUESTS if seed == 1 else REQUESTS // 5)


def load_at_random(options: dict[str, Any], seed: int, count: int) -> None:
    """Requests of every kind, some of which are cancelled, late or fail."""
    chance = random.Random(seed)
    times = [0.0, 0.0, 0.0, 0.00002, 0.0001, 0.0005]
    device = FakeDevice(3, stoppable=seed == 2)
    device.run_time = lambda lane: times[int(lane.arrays[0][0, 0]) % len(times)]
    device.fails = lambda lane: int(lane.arrays[0][0, 0]) % 17 == 3
    answers: Counter[int] = Counter()
    wrong: list[str] = []
    order: list[int] = []
    finished = threading.Event()

    def check(number: int, results: Any, failed: bool) -> None:
        answers[number] += 1
        if not failed and results[0].tolist() != [[2 * number] * 4]:
            wrong.append(f"{number}: {results}")
        if not failed and number % 17 == 3:
            wrong.append(f"{number} should have failed")

    def callback(results: Any, number: int, err: str) -> None:
        order.append(number)
        check(number, results, bool(err))

    def settled(future: Future[Any], number: int) -> None:
        try:
            check(number, future.result(0), False)
        except (DeviceError, CancelledError):
            check(number, None, True)

    def load() -> None:
        with device.open(max_queue_size=8, **options) as session:
            recent: list[Future[Any]] = []
            for number in range(count):
                kind = chance.random()
                if kind < 0.6:
                    session.run_async(None, feed(number), callback, number)
                elif kind < 0.9:
                    overflow = chance.choice(("wait", "drop_oldest", "fail"))
                    try:
                        job = session.submit(
                            None,
                            feed(number),
                            priority=chance.choice((0, 0, 1, -1)),
                            core=chance.choice((None, None, 0, 2)),
                            timeout=chance.choice((None, None, None, 0.002)),
                            overflow=overflow,
                        )
                    except SubmitTimeout:
                        answers[number] += 1
                        continue
                    if chance.random() < 0.5:
                        job.add_done_callback(lambda done, number=number: settled(done, number))  # type: ignore[misc]
                    else:
                        recent.append(job)
                        job.number_given = number  # type: ignore[attr-defined]
                    if chance.random() < 0.2:
                        job.cancel()
                else:
                    try:
                        check(number, session.run(None, feed(number)), False)
                    except DeviceError:
                        check(number, None, True)
                if len(recent) > 20:
                    wait(recent, PATIENCE)  # a request may be cancelled while it is waited for
                    for job in recent:
                        settled(job, job.number_given)  # type: ignore[attr-defined]
                    recent.clear()
                if number % 500 == 0:
                    device.writes.clear()
            wait(recent, PATIENCE)
            for job in recent:
                settled(job, job.number_given)  # type: ignore[attr-defined]
        finished.set()

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    assert finished.wait(max(300, count / 200)), f"stuck after {sum(answers.values())} of {count}"
    thread.join(120)
    assert wrong == []
    assert set(answers.values()) == {1}
    assert len(answers) == count
    assert device.violations == []
    if options.get("sequential_callbacks", True):
        assert order == sorted(order)
    assert device.open_lanes == device.open_backends == 0
