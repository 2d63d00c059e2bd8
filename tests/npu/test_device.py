"""The device: jobs, priorities, cancellation, and an end as orderly as the start."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from anynpu import chips
from anynpu.errors import (
    DeviceClosed,
    DeviceError,
    DeviceTimeout,
    JobCancelled,
    ModelError,
    ShapeError,
    UnknownChipError,
    UnsupportedCall,
)
from anynpu.npu import Context, CoreMask, Device

from .builders import GatedEngine, Thread, dense_chain, dense_values


class Gated:
    """A device whose jobs wait at every layer until the gate opens."""

    def __init__(self) -> None:
        self.engine = GatedEngine()
        self.device = Device("rk3588", engine=self.engine)
        self.loaded = self.device.load(dense_chain(2))

    def context(self) -> Context:
        return self.loaded.context()

    def begun(self, contexts: list[Context]) -> list[int]:
        """Which of *contexts* began, in order."""
        keys = [context.input_buffer("x").address for context in contexts]
        return [keys.index(key) for key, layer in self.engine.begun if layer == 0]


@pytest.fixture
def gated() -> Iterator[Gated]:
    gated = Gated()
    yield gated
    gated.engine.gate.set()
    gated.device.close()


def codes(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-128, 128, (1, 8), np.int8)


def test_what_it_is() -> None:
    with Device("rk3588") as device:
        assert repr(device) == str(device) == "software NPU, rk3588, 3 cores"
    with Device("RK3566") as device:
        assert repr(device) == "software NPU, rk3566, 1 core"
    with pytest.raises(UnknownChipError):
        Device("rk9999")


@pytest.mark.parametrize("chip", chips.names())
def test_every_chip_of_the_catalogue(chip: str) -> None:
    model = replace(dense_chain(), chip=chip)
    with Device(chip) as device:
        (result,) = device.load(model).context().run([codes()], dequantize=False)
        np.testing.assert_array_equal(result, dense_values(model, codes())["y"])


def test_a_model_for_another_chip_is_refused() -> None:
    with Device("rk3566") as device:
        with pytest.raises(ModelError, match="compiled for rk3588, this device is rk3566") as caught:
            device.load(dense_chain())
        assert "target='rk3566'" in caught.value.hint
        with pytest.raises(UnsupportedCall):
            device.load(replace(dense_chain(), chip="rk3566")).context().execute(mask=CoreMask.CORE_1)


def test_submitted_jobs_give_results() -> None:
    model = dense_chain()
    with Device("rk3588") as device:
        loaded = device.load(model)
        contexts = [loaded.context() for _ in range(4)]
        jobs = [device.submit(contexts[index % 4], [codes(index)], dequantize=False) for index in range(40)]
        for index, job in enumerate(jobs):
            np.testing.assert_array_equal(job.result(120)[0], dense_values(model, codes(index))["y"])
            assert len(job.cores) == 1
            assert job.host_ns is not None
            assert job.host_ns > 0
        assert sum(core.jobs for core in device.statistics) == 40


def test_jobs_are_futures() -> None:
    with Device("rk3588") as device:
        loaded = device.load(dense_chain())
        job = device.submit(loaded.context(), [codes()])
        done, _ = concurrent.futures.wait([job], 120)
        assert done == {job}
        told: list[object] = []
        job.add_done_callback(told.append)
        assert told == [job]

        async def wait() -> list[np.ndarray]:
            return await asyncio.wrap_future(device.submit(loaded.context(), [codes()]))

        np.testing.assert_array_equal(asyncio.run(wait())[0], job.result()[0])


def test_an_error_arrives_with_the_result() -> None:
    with Device("rk3588") as device:
        context = device.load(dense_chain()).context()
        job = device.submit(context, [np.zeros((2, 8), np.float32)])
        with pytest.raises(ShapeError):
            job.result(120)
        assert not job.cancelled()
        assert device.submit(context, [codes()]).result(120)


def test_jobs_of_different_contexts_run_at_the_same_time(gated: Gated) -> None:
    contexts = [gated.context() for _ in range(4)]
    jobs = [gated.device.submit(context) for context in contexts]
    gated.engine.wait_entered(3)
    assert gated.device._workers.threads == 3
    assert gated.device.scheduler.waiting == 1
    assert sorted(job.cores for job in jobs if job.running()) == [(0,), (1,), (2,)]
    gated.engine.gate.set()
    for job in jobs:
        job.result(120)


def test_jobs_of_one_context_run_in_turn_and_hold_up_nobody(gated: Gated) -> None:
    contexts = [gated.context(), gated.context()]
    jobs = [gated.device.submit(contexts[0]) for _ in range(4)]
    gated.engine.wait_entered()
    jobs.append(gated.device.submit(contexts[1]))
    gated.engine.wait_entered()
    assert [job.running() for job in jobs] == [True, False, False, False, True]
    gated.engine.gate.set()
    for job in jobs:
        job.result(120)


def test_a_job_for_a_busy_core_does_not_hold_up_others(gated: Gated) -> None:
    zero = [gated.device.submit(gated.context(), mask=CoreMask.CORE_0) for _ in range(4)]
    anywhere = gated.device.submit(gated.context())
    gated.engine.wait_entered(2)
    assert zero[0].running()
    assert anywhere.running()
    gated.engine.gate.set()
    assert [job.result(120) and job.cores for job in zero] == [(0,)] * 4


def test_priorities(gated: Gated) -> None:
    contexts = [gated.context() for _ in range(6)]
    jobs = [gated.device.submit(contexts[0], mask=CoreMask.ALL)]
    gated.engine.wait_entered()
    for context, priority in zip(contexts[1:], (2, 0, 1, 0, -1), strict=True):
        jobs.append(gated.device.submit(context, mask=CoreMask.ALL, priority=priority))
    gated.engine.gate.set()
    for job in jobs:
        job.result(120)
    assert gated.begun(contexts) == [0, 5, 2, 4, 3, 1]


def test_a_job_on_all_cores_is_served_under_load(gated: Gated) -> None:
    contexts = [gated.context() for _ in range(9)]
    jobs = [gated.device.submit(context) for context in contexts[:3]]
    gated.engine.wait_entered(3)
    jobs.append(gated.device.submit(contexts[3], mask=CoreMask.ALL))
    jobs += [gated.device.submit(context) for context in contexts[4:]]
    gated.engine.gate.set()
    for job in jobs:
        job.result(120)
    assert jobs[3].cores == (0, 1, 2)
    assert gated.begun(contexts)[3] == 3


def test_cancelling_a_job_that_waits(gated: Gated) -> None:
    context = gated.context()
    running, waiting = gated.device.submit(context), gated.device.submit(context)
    gated.engine.wait_entered()
    assert waiting.cancel()
    with pytest.raises(JobCancelled):
        waiting.result(120)
    assert waiting.cancelled()
    assert not waiting.cancel()
    assert not running.done(), "the job before it goes on"
    gated.engine.gate.set()
    running.result(120)
    assert not running.cancel()
    assert gated.begun([context]) == [0]


def test_cancelling_a_job_that_runs_stops_it_between_two_layers(gated: Gated) -> None:
    context = gated.context()
    job = gated.device.submit(context)
    gated.engine.wait_entered()
    assert job.cancel()
    assert not job.done()
    gated.engine.gate.set()
    with pytest.raises(JobCancelled):
        job.result(120)
    assert [layer for _, layer in gated.engine.begun] == [0]
    gated.device.submit(context).result(120)


def test_a_job_that_gets_no_core_in_time(gated: Gated) -> None:
    running = gated.device.submit(gated.context(), mask=CoreMask.ALL, timeout=300)
    gated.engine.wait_entered()
    late = gated.device.submit(gated.context(), timeout=0.05)
    with pytest.raises(DeviceTimeout, match="got no core"):
        late.result(120)
    gated.engine.gate.set()
    running.result(120)


def test_a_context_runs_only_on_its_own_device() -> None:
    with Device("rk3588") as one, Device("rk3588") as other:
        context = one.load(dense_chain()).context()
        with pytest.raises(DeviceError, match="another device"):
            other.submit(context)


def test_the_calling_thread_runs_what_it_waits_for() -> None:
    with Device("rk3588") as device:
        before = set(threading.enumerate())  # threads of earlier tests may still be ending
        context = device.load(dense_chain()).context()
        seen: set[int] = set()
        context.execute(between=lambda layer: seen.add(threading.get_ident()))
        assert seen == {threading.get_ident()}
        assert set(threading.enumerate()) <= before


def test_closing_with_jobs_that_run_and_jobs_that_wait(gated: Gated) -> None:
    contexts = [gated.context() for _ in range(5)]
    jobs = [gated.device.submit(context) for context in contexts for _ in range(2)]
    gated.engine.wait_entered(3)
    blocked = Thread(lambda: contexts[4].run())
    closing = Thread(gated.device.close)
    with pytest.raises(DeviceClosed):
        jobs[-1].result(120)
    assert closing.is_alive(), "it waits for the layers that run"
    with pytest.raises(DeviceClosed):
        gated.device.submit(contexts[0])
    with pytest.raises(DeviceClosed):
        gated.loaded.context()
    gated.engine.gate.set()
    closing.finish()
    for job in jobs:
        assert isinstance(job.exception(120), DeviceClosed)
    with pytest.raises(DeviceClosed):
        blocked.finish()
    assert all(layer == 0 for _, layer in gated.engine.begun)
    assert gated.device._workers.threads == 0
    assert all(context.closed for context in contexts)
    assert gated.loaded.closed
    assert gated.device.memory_usage().total == 0


def test_closing_after_the_jobs_are_finished(gated: Gated) -> None:
    contexts = [gated.context() for _ in range(2)]
    jobs = [gated.device.submit(context) for context in contexts for _ in range(4)]
    gated.engine.wait_entered(2)
    closing = Thread(lambda: gated.device.close(finish=True))
    while not gated.device.closed:
        pass
    with pytest.raises(DeviceClosed):
        gated.device.submit(contexts[0])
    gated.engine.gate.set()
    closing.finish()
    assert [job.exception(0) for job in jobs] == [None] * 8
    assert gated.device._workers.threads == 0


def test_a_block_that_ends_normally_finishes_and_one_that_fails_does_not() -> None:
    with Device("rk3588") as device:
        context = device.load(dense_chain()).context()
        jobs = [device.submit(context, [codes(index)]) for index in range(10)]
    assert [job.exception(0) for job in jobs] == [None] * 10
    engine = GatedEngine()
    jobs = []

    def fail() -> None:
        with Device("rk3588", engine=engine) as device:
            context = device.load(dense_chain()).context()
            jobs.extend(device.submit(context) for _ in range(2))
            engine.wait_entered()
            threading.Timer(0.02, engine.gate.set).start()
            raise RuntimeError("oh no")

    with pytest.raises(RuntimeError, match="oh no"):
        fail()
    assert [type(job.exception(0)) for job in jobs] == [DeviceClosed, DeviceClosed]


def test_nothing_works_after_close_and_closing_twice_does() -> None:
    device = Device("rk3588")
    loaded = device.load(dense_chain())
    context = loaded.context()
    buffer = device.allocate(100)
    device.close()
    device.close()
    for use in (
        lambda: device.load(dense_chain()),
        lambda: device.allocate(1),
        lambda: device.submit(context),
        context.run,
        loaded.context,
        buffer.view,
    ):
        with pytest.raises(DeviceClosed):
            use()
    context.close()
    loaded.close()
    buffer.close()


def test_closing_the_device_in_a_callback_of_a_job() -> None:
    device = Device("rk3588")
    context = device.load(dense_chain()).context()
    closed = threading.Event()

    def close(_: object) -> None:
        device.close()
        closed.set()

    device.submit(context, [codes()]).add_done_callback(close)
    assert closed.wait(120)


def test_closing_a_context_denies_its_jobs_only(gated: Gated) -> None:
    one, other = gated.context(), gated.context()
    jobs = [gated.device.submit(one), gated.device.submit(one), gated.device.submit(other)]
    gated.engine.wait_entered(2)
    closing = Thread(one.close)
    with pytest.raises(DeviceClosed, match="context"):
        jobs[1].result(120)
    gated.engine.gate.set()
    closing.finish()
    with pytest.raises(DeviceClosed, match="context"):
        jobs[0].result(120)
    jobs[2].result(120)


def test_a_finished_job_keeps_nothing_but_its_result() -> None:
    with Device("rk3588") as device:
        context = device.load(dense_chain()).context()
        good, bad = codes().astype(np.float32), np.zeros((3, 3), np.float32)
        alive = [weakref.ref(good), weakref.ref(bad)]
        gc.collect()
        gc.disable()
        try:
            jobs = [device.submit(context, [good]), device.submit(context, [bad])]
            concurrent.futures.wait(jobs, 120)
            device.close(finish=True)
            del good, bad
            assert alive[0]() is None
            del jobs
            assert alive[1]() is None, "an error must not make a cycle that waits for the collector"
        finally:
            gc.enable()


def test_no_descriptor_and_no_thread_is_left_behind() -> None:
    model = dense_chain()
    gc.collect()
    threads = set(threading.enumerate())
    descriptors = len(os.listdir("/proc/self/fd"))
    for index in range(200):
        device = Device("rk3588")
        context = device.load(model).context()
        context.run([codes()])
        if index % 10 == 0:
            device.submit(context, [codes()])
        device.close()
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert set(threading.enumerate()) <= threads


def test_a_program_that_forgets_to_close_ends() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from anynpu.npu import Device\n"
        "from npu.builders import dense_chain\n"
        "device = Device('rk3588')\n"
        "context = device.load(dense_chain()).context()\n"
        "device.submit(context).result(120)\n"
        "print('done')\n"
    )
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    done = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_prediction_is_made_once_and_goes_with_its_program() -> None:
    with Device("rk3588") as device:
        model = dense_chain()
        first = device.prediction(model.programs[0])
        assert device.prediction(model.programs[0]) is first
        assert device.prediction(model.programs[0], sram_bytes=4096) is not first
        program = weakref.ref(model.programs[0])
        del model
        gc.collect()
        assert program() is None
