"""Ctrl-C at every step of a call: nothing hangs, nothing is lost, the session goes on and closes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from npu.builders import dense_chain

from anynpu import modelfile
from anynpu.session import InferenceSession

from .fake import FakeDevice, feed
from .interrupts import PACKAGE, Interrupter
from .test_callbacks import Collector, wait_until

SESSION = os.path.join(PACKAGE, "session")


def each_step(scenario: Callable[[Interrupter], None], folder: str = SESSION) -> int:
    """Play *scenario* with an interrupt at each of its steps; gives how many there were."""
    counter = Interrupter(None, folder)
    scenario(counter)
    for step in range(counter.steps):
        interrupter = Interrupter(step, folder)
        before = threading.enumerate()
        try:
            scenario(interrupter)
            left = [thread for thread in threading.enumerate() if thread not in before and thread.name.startswith("anynpu fake")]
            assert left == [], "threads of a closed session"
        except BaseException as error:
            raise AssertionError(f"interrupted at step {step}, {interrupter.raised_at}") from error
    return counter.steps


def interrupted(interrupter: Interrupter, call: Callable[[], Any]) -> bool:
    try:
        interrupter.call(call)
    except KeyboardInterrupt:
        return True
    return False


def check_whole(session: InferenceSession, device: FakeDevice) -> None:
    """The session serves requests of every kind as before, and closes."""
    assert session.run(None, feed(3))[0][0, 0] == 6
    collector = Collector(4)
    for value in range(4):
        session.run_async(None, feed(value), collector, value)
    assert session.submit(None, feed(5)).result(600)[0][0, 0] == 10
    assert [user_data for _, user_data, _ in collector.wait()] == [0, 1, 2, 3]
    closer = threading.Thread(target=session.close)
    closer.start()
    closer.join(600)
    assert not closer.is_alive(), "closing hangs"
    assert device.open_lanes == device.open_backends == 0
    assert device.violations == []


def test_a_run_on_an_idle_lane() -> None:
    def scenario(interrupter: Interrupter) -> None:
        device = FakeDevice(1)
        session = device.open()
        session.run(None, feed())
        interrupted(interrupter, lambda: session.run(None, feed(2)))
        for lane in device.lanes:
            lane.user = None  # the fake lane's own check of its threads was interrupted too
        check_whole(session, device)

    assert each_step(scenario) > 10


@pytest.mark.parametrize("chip", ["rk3566", "a733"])
def test_a_run_on_the_software_npu(chip: str) -> None:
    """The interrupt may come inside the device too: its one core must not be lost."""
    model = modelfile.to_bytes(replace(dense_chain(), chip=chip))
    x = np.zeros((1, 8), np.int8)

    with InferenceSession(model, device="sim") as session:
        expected = session.run(None, x)[0].tolist()

        def scenario(interrupter: Interrupter) -> None:
            interrupted(interrupter, lambda: session.run(None, x))
            assert session.submit(None, x).result(600)[0].tolist() == expected

        assert each_step(scenario, PACKAGE) > 50


def test_a_run_that_opens_its_lane() -> None:
    def scenario(interrupter: Interrupter) -> None:
        device = FakeDevice(2, gated=True)
        assert device.gate is not None
        session = device.open()
        job = session.submit(None, feed(1))
        device.wait_entered()
        device.gate.set()
        interrupted(interrupter, lambda: session.run(None, feed(2)))
        assert job.result(600)[0][0, 0] == 2
        for lane in device.lanes:
            lane.user = None
        check_whole(session, device)

    assert each_step(scenario) > 10


@pytest.mark.parametrize("options", [{}, {"watchdog_ms": 600_000}])
def test_a_run_that_waits_and_has_others_behind_it(options: dict[str, Any]) -> None:
    """The lane comes to the interrupted thread, which has to hand it on."""

    def scenario(interrupter: Interrupter) -> None:
        device = FakeDevice(1, gated=True)
        gate = device.gate
        assert gate is not None
        session = device.open(max_queue_size=8, **options)
        first = session.submit(None, feed(1))
        device.wait_entered()
        others: list[float] = []
        over = threading.Event()

        def open_gate() -> None:
            wait_until(lambda: over.is_set() or session.statistics.queued == 1)
            before = session.statistics.queued
            thread.start()
            wait_until(lambda: over.is_set() or session.statistics.queued > before)
            gate.set()

        thread = threading.Thread(target=lambda: others.append(float(session.run(None, feed(4))[0][0, 0])))
        opener = threading.Thread(target=open_gate)
        opener.start()
        interrupted(interrupter, lambda: session.run(None, feed(2)))
        over.set()
        opener.join(600)
        thread.join(600)
        assert not thread.is_alive(), "the request behind it is forgotten"
        assert others == [8.0]
        assert first.result(600)[0][0, 0] == 2
        for lane in device.lanes:
            lane.user = None
        check_whole(session, device)

    assert each_step(scenario) > 15


@pytest.mark.parametrize("overflow", ["wait", "drop_oldest"])
def test_submitting(overflow: str) -> None:
    def scenario(interrupter: Interrupter) -> None:
        device = FakeDevice(1, gated=True)
        assert device.gate is not None
        session = device.open(max_queue_size=1)
        jobs = [session.submit(None, feed(value)) for value in range(2 if overflow == "drop_oldest" else 1)]
        device.wait_entered()
        interrupted(interrupter, lambda: session.submit(None, feed(7), overflow=overflow))
        device.gate.set()
        for job in jobs:
            assert wait_until(job.done), "a request is forgotten"
        check_whole(session, device)

    assert each_step(scenario) > 10


def test_cancelling() -> None:
    def scenario(interrupter: Interrupter) -> None:
        device = FakeDevice(1, gated=True)
        assert device.gate is not None
        session = device.open(max_queue_size=3)
        jobs = [session.submit(None, feed(value)) for value in range(3)]
        device.wait_entered()
        interrupted(interrupter, jobs[1].cancel)
        device.gate.set()
        for job in jobs:
            assert wait_until(job.done), "a request is forgotten"
        check_whole(session, device)

    assert each_step(scenario) > 5


def test_closing() -> None:
    """Who is interrupted in ``close`` may close again; every request is completed, then or at once."""

    def scenario(interrupter: Interrupter) -> None:
        device = FakeDevice(1, gated=True)
        assert device.gate is not None
        session = device.open(max_queue_size=3)
        jobs = [session.submit(None, feed(value)) for value in range(3)]
        device.wait_entered()
        device.gate.set()
        interrupted(interrupter, session.close)
        closer = threading.Thread(target=session.close)
        closer.start()
        closer.join(600)
        assert not closer.is_alive(), "closing hangs"
        for job in jobs:
            assert wait_until(job.done), "a request is forgotten"
        assert wait_until(lambda: device.open_lanes == device.open_backends == 0)

    assert each_step(scenario) > 10


INTERRUPTED = r"""
import faulthandler, os, random, signal, sys, threading, time
import numpy as np
from anynpu import InferenceSession

faulthandler.dump_traceback_later(600, exit=True)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent may have it ignored
model, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
x = np.zeros((1, 8), np.int8)
AGAIN = 60  # seconds


def others(session):
    try:
        while True:
            session.run(None, x)
    except BaseException:
        pass


def interrupt(seed, started, heard):
    started.wait()
    time.sleep(random.Random(seed).random() * 0.01)
    signal.raise_signal(signal.SIGINT) if seed % 3 == 0 else os.kill(os.getpid(), signal.SIGINT)
    while not heard.wait(AGAIN):  # Python ignores an interrupt that comes in a weak reference's callback
        os.kill(os.getpid(), signal.SIGINT)


def play(seed):
    started, heard = threading.Event(), threading.Event()
    threads = [threading.Thread(target=interrupt, args=(seed, started, heard), daemon=True)]
    jobs = []
    threads[0].start()
    try:
        with InferenceSession(model, device="sim") as session:
            session.run(None, x)
            for _ in range(seed % 2 * 3):
                threads.append(threading.Thread(target=others, args=(session,), daemon=True))
                threads[-1].start()
            started.set()
            while True:
                jobs = [session.submit(None, x)] if seed % 5 == 0 else []
                session.run(None, x)
    except KeyboardInterrupt:
        heard.set()
    assert session.closed, seed
    assert all(job.done() for job in jobs), seed
    for thread in threads:
        thread.join()  # with a request that hangs, the traceback comes


for seed in range(first, first + count):
    play(seed)
"""


def interrupt(tmp_path: Path, processes: int, each: int) -> None:
    path = tmp_path / "model"
    path.write_bytes(modelfile.to_bytes(dense_chain()))
    for number in range(processes):
        command = [sys.executable, "-c", INTERRUPTED, str(path), str(number * each), str(each)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        assert result.returncode == 0, f"process {number}: {result.stderr[-4000:]}"


def test_interrupts_by_signals(tmp_path: Path) -> None:
    interrupt(tmp_path, 1, 6)


@pytest.mark.full
def test_two_hundred_interrupts(tmp_path: Path) -> None:
    interrupt(tmp_path, 10, int(os.environ.get("ANYNPU_INTERRUPTS", "200")) // 10)
