"""Jobs of several programs: in one piece, on what their contexts hold."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from anynpu.errors import DeviceClosed, DeviceTimeout, JobCancelled
from anynpu.npu import Device, RunControl, Stage, run_stages, start_stages

from .builders import dense_chain

ROW = np.arange(8, dtype=np.int8)[None]


@pytest.fixture
def device() -> Any:
    with Device("rk3566", realtime=1e-3) as device:  # a run of some microseconds takes some milliseconds
        yield device


def contexts(device: Device, count: int) -> list[Any]:
    loaded = device.load(_model())
    made = [loaded.context() for _ in range(count)]
    for context in made:
        context.write("x", ROW)
    return made


def _model() -> Any:
    from dataclasses import replace

    return replace(dense_chain(), chip="rk3566")


def test_stages_run_one_after_the_other_with_nothing_in_between(device: Device) -> None:
    first, second, other = contexts(device, 3)
    order: list[str] = []

    def stage(context: Any, name: str) -> Stage:
        return Stage(context, lambda: order.append(f"{name} begins"), lambda: order.append(f"{name} ends"))

    held = device.scheduler.acquire()
    control = RunControl()
    job = start_stages(device, [stage(first, "first"), stage(second, "second")], control=control)
    later = start_stages(device, [stage(other, "other")], control=RunControl())
    assert not control.began
    held.release()
    job.result(120)
    later.result(120)
    assert control.began
    assert order == [f"{name} {what}" for name in ("first", "second", "other") for what in ("begins", "ends")]
    expected = first.run({"x": ROW})[0]
    np.testing.assert_array_equal(second.read("y"), expected)


def test_a_smaller_number_goes_first(device: Device) -> None:
    order: list[int] = []
    held = device.scheduler.acquire()
    jobs = [
        start_stages(
            device, [Stage(context, after=lambda number=number: order.append(number))], priority=number, control=RunControl()
        )
        for number, context in zip((5, -255, 0), contexts(device, 3), strict=True)
    ]
    held.release()
    for job in jobs:
        job.result(120)
    assert order == [-255, 0, 5]


def test_what_goes_wrong_belongs_to_who_waits(device: Device) -> None:
    (context,) = contexts(device, 1)

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        start_stages(device, [Stage(context, fail)], control=RunControl()).result(120)
    with pytest.raises(ZeroDivisionError):
        run_stages(device, [Stage(context, after=fail)], control=RunControl())
    run_stages(device, [Stage(context)], control=RunControl())


def test_stopping_a_job_that_waits_or_runs() -> None:
    with Device("rk3566", realtime=1e-6) as device:
        first, second = contexts(device, 2)
        running = start_stages(device, [Stage(first)], control=RunControl())
        waiting = start_stages(device, [Stage(second)], control=RunControl())
        assert waiting.cancel()
        assert not waiting.cancel()
        with pytest.raises(JobCancelled):
            waiting.result(120)
        assert running.cancel()
        with pytest.raises(JobCancelled):
            running.result(120)


def test_time_that_ends_while_a_job_runs_is_told_before_the_core_is_free() -> None:
    with Device("rk3566", realtime=1e-6) as device:
        first, second = contexts(device, 2)
        seen: list[int] = []
        told, begun, go_on = threading.Event(), threading.Event(), threading.Event()
        control = RunControl(3600)

        def begin() -> None:
            begun.set()
            assert go_on.wait(120)
            control.deadline = 0.0  # its time is over now

        def hung() -> None:
            seen.append(device.scheduler.busy)
            told.set()

        running = start_stages(device, [Stage(first, before=begin)], control=control, on_timeout=hung)
        assert begun.wait(120)
        late = start_stages(device, [Stage(second)], control=RunControl(0.02), on_timeout=lambda: seen.append(-1))
        with pytest.raises(DeviceTimeout):
            late.result(120)
        go_on.set()
        with pytest.raises(DeviceTimeout):
            running.result(120)
        assert told.wait(120)
        assert seen == [1]  # the one that only waited resets nothing


def test_a_closed_device_takes_no_jobs() -> None:
    device = Device("rk3566")
    (context,) = contexts(device, 1)
    device.close()
    with pytest.raises(DeviceClosed):
        start_stages(device, [Stage(context)], control=RunControl())
    with pytest.raises(DeviceClosed):
        run_stages(device, [Stage(context)], control=RunControl())


def test_cancelling_the_control_takes_a_waiting_job_out_of_the_queue(device: Device) -> None:
    (context,) = contexts(device, 1)
    held = device.scheduler.acquire()
    waiting, before = RunControl(), RunControl()
    job = start_stages(device, [Stage(context)], control=waiting)
    before.cancel()
    cancelled = start_stages(device, [Stage(context)], control=before)
    assert device.scheduler.waiting == 1
    waiting.cancel()
    assert device.scheduler.waiting == 0
    held.release()
    for one in (job, cancelled):
        with pytest.raises(JobCancelled):
            one.result(300)
        assert one.cancelled()
        assert not one.cancel()
    assert not waiting.began
