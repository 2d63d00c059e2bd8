"""Several host threads for one run: the same bytes, threads that end with their owner, and when they are used."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from compiler.onnx_builders import feeds
from real_models import RealModels
from waiting import wait_until

import anynpu
from anynpu._native import ffi
from anynpu.errors import DeviceTimeout
from anynpu.npu import CoreMask, Device, NativeEngine, RunControl
from anynpu.npu.engines import native, native_workers
from anynpu.npu.engines.base import BoundProgram, CustomSteps, no_custom_steps
from anynpu.npu.engines.native_levels import available
from anynpu.npu.engines.native_workers import WorkerThreads
from anynpu.npu.engines.preparation import Preparation
from anynpu.program import Model, Program
from anynpu.tensor import DType

from ..builders import dense_chain
from .cases import BUILDERS, case, expected
from .cases_large import LARGE_BUILDERS, large_case
from .ingredients import Array
from .native_support import guarded_scratch, run_native
from .nets import NETS
from .support import same
from .test_native_programs import arrays_of, codes_of, compiled, picture
from .test_native_running import cancel_inside, chain, memory, untouched

LEVELS = list(available())
THREADS = (2, 3)
SMALL = sorted(BUILDERS)
LARGE = sorted(LARGE_BUILDERS)


class Threads:
    """The threads without Python that began in this test; those of earlier tests may end meanwhile."""

    def __init__(self) -> None:
        if not Path("/proc/self/task").is_dir():
            pytest.skip("only Linux reports which threads a process has")
        self._before = self._all()

    def _all(self) -> set[int]:
        return {int(name) for name in os.listdir("/proc/self/task")}

    def _new(self) -> set[int]:
        return self._all() - self._before - {thread.native_id for thread in threading.enumerate()}

    def are(self, more: int) -> bool:
        """Whether there are so many more; waits for those that have ended to vanish from the list."""
        wait_until(lambda: len(self._new()) <= more, f"no more than {more} threads are left")
        return len(self._new()) == more


@pytest.fixture
def more_threads() -> Threads:
    return Threads()


@pytest.fixture
def share_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are shared however small they are."""
    monkeypatch.setattr(native_workers, "LEAST_WORK", 0)


@pytest.fixture
def many_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)


def workers_of(bound: BoundProgram) -> WorkerThreads:
    found = bound._workers  # type: ignore[attr-defined]
    assert isinstance(found, WorkerThreads)
    return found


# ---- the same bytes ----


@pytest.mark.parametrize("dtype", [DType.INT8, DType.INT16], ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("operator", SMALL)
@pytest.mark.usefixtures("share_all")
def test_small_cases(operator: str, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(8):
        for level in LEVELS:
            for threads in THREADS:
                with guarded_scratch(monkeypatch):
                    outputs = run_native(case(operator, dtype, seed), NativeEngine(isa=level, threads=threads))
                assert same(outputs, expected(operator, dtype, seed)), f"seed {seed}, {threads} threads at level {level}"


@pytest.mark.parametrize("operator", LARGE)
@pytest.mark.usefixtures("share_all")
def test_large_cases(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(12):
        made = large_case(operator, seed)
        for level in LEVELS:
            alone = tuple(run_native(made, NativeEngine(isa=level, threads=1)))
            for threads in THREADS:
                with guarded_scratch(monkeypatch):
                    outputs = run_native(made, NativeEngine(isa=level, threads=threads))
                assert same(outputs, alone), f"seed {seed}, {threads} threads at level {level}"


def compare_threads(model: Model, sample: dict[str, Array]) -> None:
    """Every tensor, with one thread and with several."""
    program = model.programs[0]
    codes = codes_of(program, model, sample)
    wanted = arrays_of(program, codes)
    NativeEngine().prepare(program).bind(wanted).run(RunControl())
    executable = NativeEngine().prepare(program)
    for threads in THREADS:
        for _ in range(3):  # the rows go to other threads each time
            given = arrays_of(program, codes)
            executable.bind(given).run(RunControl(), threads=threads)
            for name, array in wanted.items():
                assert given[name].tobytes() == array.tobytes(), f"'{name}' with {threads} threads"


@pytest.mark.parametrize("dtype", ["w8a8", "w16a16"])
@pytest.mark.parametrize("net", sorted(NETS))
@pytest.mark.usefixtures("share_all")
def test_small_networks(net: str, dtype: str) -> None:
    proto = NETS[net]()
    samples = feeds(proto, 3)
    model = anynpu.compile(proto, "rk3588" if dtype == "w8a8" else "t527", dataset=samples[:2], dtype=dtype)
    compare_threads(model, samples[2])


@pytest.mark.full
def test_text_detection(real_models: RealModels) -> None:
    """Large and small layers, and operators that are not shared, in turn."""
    compare_threads(compiled(real_models.detection, (3, 160, 192)), {"x": picture((3, 160, 192), 9)})


# ---- who computes ----


@pytest.fixture(scope="module")
def program() -> Program:
    return chain(40, 64)


def test_other_threads_compute_rows(program: Program) -> None:
    """Each thread has scratch of its own: what lies in that of the second shows that it has worked."""
    bound = NativeEngine(isa="generic").prepare(program).bind(memory(program))
    bound.run(RunControl(), threads=2)
    workers = workers_of(bound)
    second = workers._memory[workers._step :]
    assert second.size == workers._step
    second[:] = 0xA5
    end = time.monotonic() + 120
    while np.all(second == 0xA5) and time.monotonic() < end:
        bound.run(RunControl(), threads=2)
    assert not np.all(second == 0xA5)


def test_small_layers_stay_on_one_thread() -> None:
    small = chain(40, 4, channels=8)
    bound = NativeEngine().prepare(small).bind(memory(small))
    bound.run(RunControl(), threads=2)
    workers = workers_of(bound)
    workers._memory[workers._step :] = 0xA5
    for _ in range(20):
        bound.run(RunControl(), threads=2)
    assert np.all(workers._memory[workers._step :] == 0xA5)


def test_without_threads_of_the_system(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, given = memory(program), memory(program)
    NativeEngine().prepare(program).bind(wanted).run(RunControl())
    monkeypatch.setattr(native_workers, "lib", SimpleNamespace(anynpu_workers_open=lambda threads: ffi.NULL))
    NativeEngine().prepare(program).bind(given).run(RunControl(), threads=3)
    assert given["t40"].tobytes() == wanted["t40"].tobytes()


# ---- threads end with their owner ----


def test_one_thread_starts_none(program: Program, more_threads: Threads) -> None:
    bound = NativeEngine().prepare(program).bind(memory(program))
    bound.run(RunControl())
    assert more_threads.are(0)


def test_threads_come_with_the_first_run_and_end_with_close(program: Program, more_threads: Threads) -> None:
    bound = NativeEngine().prepare(program).bind(memory(program))
    assert more_threads.are(0)
    for threads in (3, 3, 2, 1, 2):
        bound.run(RunControl(), threads=threads)
        assert more_threads.are(max(1, threads - 1))  # a run on one thread leaves those that are there
    bound.close()
    assert more_threads.are(0)
    bound.run(RunControl(), threads=2)
    assert more_threads.are(1)
    bound.close()
    bound.close()
    assert more_threads.are(0)


def test_threads_end_when_the_program_is_forgotten(program: Program, more_threads: Threads) -> None:
    bound = NativeEngine(threads=3).prepare(program).bind(memory(program))
    bound.run(RunControl())
    assert more_threads.are(2)
    del bound
    gc.collect()
    assert more_threads.are(0)


def _virtual_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")


def test_nothing_stays_behind_after_many_cycles(more_threads: Threads) -> None:
    small = chain(2, 16)
    executable = NativeEngine().prepare(small)
    arrays = memory(small)

    def cycle() -> None:
        bound = executable.bind(arrays)
        bound.run(RunControl(), threads=3)
        bound.close()

    for _ in range(5):
        cycle()
    sizes = [_virtual_bytes()]
    for _ in range(4):
        for _ in range(50):
            cycle()
        sizes.append(_virtual_bytes())
    assert more_threads.are(0)
    # The stack of one thread alone takes 8 MB, in every cycle; the C library's next arena takes 64 MB, once.
    assert min(after - before for before, after in pairwise(sizes)) < 64 << 20, sizes


@pytest.mark.usefixtures("many_processors")
def test_a_context_ends_its_threads(more_threads: Threads) -> None:
    with Device("rk3588") as device, device.load(dense_chain(3, 64)) as loaded:
        for way in ("close", "bind", "device"):
            context = loaded.context()
            context.execute(mask=CoreMask.ALL)
            assert more_threads.are(2)
            if way == "close":
                context.close()
                assert more_threads.are(0)
            elif way == "bind":
                context.bind_input("x", device.allocate(64))
                assert more_threads.are(0)
    assert more_threads.are(0)


def test_a_cancelled_run_on_several_threads() -> None:
    slow = chain(200, 96)
    arrays = memory(slow)
    bound = NativeEngine(isa="generic").prepare(slow).bind(arrays)
    assert cancel_inside(arrays, "t200", lambda control: bound.run(control, threads=3))
    with pytest.raises(DeviceTimeout):
        bound.run(RunControl(timeout=0.02), threads=2)
    assert untouched(arrays["t200"])
    bound.run(RunControl(), threads=2)
    alone = memory(slow)
    NativeEngine().prepare(slow).bind(alone).run(RunControl())
    assert arrays["t200"].tobytes() == alone["t200"].tobytes()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_uses_one_thread(program: Program) -> None:
    arrays = memory(program)
    bound = NativeEngine().prepare(program).bind(arrays)
    bound.run(RunControl(), threads=2)
    wanted = arrays["t40"].tobytes()
    child = os.fork()
    if child == 0:
        signal.alarm(600)  # ends a child that waits for threads it does not have
        arrays["t40"][...] = 0
        bound.run(RunControl(), threads=2)
        bound.close()
        os._exit(0 if arrays["t40"].tobytes() == wanted else 1)
    assert os.waitpid(child, 0)[1] == 0
    bound.run(RunControl(), threads=2)
    bound.close()


# ---- how many ----


class RecordingEngine:
    """Does nothing but note how many threads a run may use."""

    name = "recording"

    def __init__(self) -> None:
        self.threads: list[int] = []

    def prepare(self, program: Program, preparation: Preparation | None = None) -> RecordingEngine:
        return self

    def bind(self, arrays: Mapping[str, Array], custom: CustomSteps = no_custom_steps) -> BoundProgram:
        seen = self.threads

        class Bound(BoundProgram):
            def run(self, control: RunControl, *, threads: int = 1, **others: Any) -> None:
                seen.append(threads)

        return Bound(())


@pytest.mark.parametrize("processors", [1, 2, 8])
def test_a_job_uses_as_many_threads_as_cores(processors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    engine = RecordingEngine()
    masks = (None, CoreMask.AUTO, CoreMask.CORE_2, CoreMask.of(0, 1), CoreMask.ALL)
    with Device("rk3588", engine=engine) as device, device.load(dense_chain(2)).context() as context:
        x = np.zeros((1, 8), np.int8)
        for mask in masks:
            context.run({"x": x}, mask=mask)
            context.execute(mask=mask)
            device.submit(context, {"x": x}, mask=mask).result(120)
    assert engine.threads == [min(cores, processors) for cores in (1, 1, 1, 2, 3) for _ in range(3)]


# ---- idle processors ----


@pytest.fixture
def idle_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three, for every program."""
    monkeypatch.setattr(native_workers, "available_processors", lambda: 3)
    monkeypatch.setattr(native, "IDLE_WORK", 0)


@pytest.mark.usefixtures("idle_processors", "share_all")
def test_a_run_uses_idle_processors_by_default(more_threads: Threads) -> None:
    x = np.random.default_rng(0).integers(-128, 128, (1, 64)).astype(np.int8)
    results = []
    settings: list[tuple[dict[str, Any], int]] = [
        ({}, 2),
        ({"host_threads": 1}, 0),
        ({"host_threads": 2}, 1),
        ({"realtime": 1e6}, 0),
        ({"engine": NativeEngine()}, 0),
    ]
    for arguments, more in settings:
        with Device("rk3588", **arguments) as device, device.load(dense_chain(3, 64)).context() as context:
            results += [context.run({"x": x})[0].tobytes() for _ in range(20)]
            assert more_threads.are(more), arguments
    assert more_threads.are(0)
    assert len(set(results)) == 1


@pytest.mark.usefixtures("idle_processors", "share_all")
def test_contexts_that_run_at_once_share_idle_processors(program: Program) -> None:
    executable = NativeEngine(idle=True).prepare(program)
    wanted = memory(program)
    NativeEngine().prepare(program).bind(wanted).run(RunControl())
    given = [memory(program) for _ in range(4)]

    def many(arrays: dict[str, Array]) -> None:
        bound = executable.bind(arrays)
        for _ in range(20):
            bound.run(RunControl())

    runs = [threading.Thread(target=many, args=(arrays,)) for arrays in given]
    for run in runs:
        run.start()
    for run in runs:
        run.join(600)
    assert all(arrays["t40"].tobytes() == wanted["t40"].tobytes() for arrays in given)


def test_small_programs_leave_idle_processors_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_workers, "available_processors", lambda: 3)
    engine = NativeEngine(idle=True)
    assert not engine.prepare(chain(40, 4, channels=8)).idle  # type: ignore[attr-defined]
    assert engine.prepare(chain(40, 64)).idle  # type: ignore[attr-defined]


@pytest.mark.usefixtures("many_processors")
def test_what_the_device_is_told_goes_first(more_threads: Threads) -> None:
    for told, mask, more in ((None, CoreMask.AUTO, 0), (None, CoreMask.ALL, 2), (1, CoreMask.ALL, 0), (4, CoreMask.AUTO, 3)):
        with Device("rk3588", host_threads=told) as device, device.load(dense_chain(3, 64)).context() as context:
            context.execute(mask=mask)
            assert more_threads.are(more)
    assert more_threads.are(0)
