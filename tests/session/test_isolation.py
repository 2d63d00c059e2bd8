"""Models in processes of their own: the same results, and whatever goes wrong there can be stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import ProgramBuilder, every_operator_model, nearest
from dropin.conftest import network

import anynpu
from anynpu import InferenceSession, modelfile
from anynpu.errors import AnynpuError, DeviceError, DeviceMemoryError, DeviceTimeout, JobCancelled, OptionError, SessionModelError
from anynpu.program import Conv, Model, Pool, Resize
from anynpu.session import isolation, make_provider_options
from anynpu.session.isolated_messages import receive

GUARD = 300.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(3)
    data = [{"images": rng.integers(0, 256, (1, 3, 32, 32)).astype(np.float32)} for _ in range(2)]
    return anynpu.compile(network(20), "rk3588", dataset=data).save(tmp_path_factory.mktemp("isolation") / "small.rknn")


def isolated(source: Path | bytes, **options: Any) -> InferenceSession:
    given = make_provider_options(isolate=True, tp_mode="0", **options)
    return InferenceSession(source, provider_options=given, device="sim:rk3588")


def picture(seed: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (1, 3, 32, 32)).astype(np.float32)


def test_values_of_any_type_that_an_option_takes_reach_the_process(model: Path) -> None:
    """What is sent is what the options mean, not what the caller wrote."""
    with isolated(model, watchdog_ms=np.int64(60000), output_type={"features": np.float16}) as session:  # type: ignore[arg-type, dict-item]
        assert session.get_provider_options()[session.get_providers()[0]]["watchdog_ms"] == 60000


def workers() -> list[int]:
    """The processes that this one has started for isolated models."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if parent == os.getpid() and b"isolated_worker" in words:
                found.append(int(entry.name))
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + GUARD
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    assert workers() == []


@pytest.mark.parametrize("as_bytes", [False, True])
def test_results_are_the_same(model: Path, as_bytes: bool) -> None:
    feeds = [picture(seed) for seed in range(3)]
    with InferenceSession(model, device="sim:rk3588") as plain:
        expected = [plain.run(None, feed)[0] for feed in feeds]
    with isolated(model.read_bytes() if as_bytes else model) as session:
        assert session.options.isolate
        got = [session.run(None, feed)[0] for feed in feeds]
        assert [node.name for node in session.get_outputs()] == ["features"]
    for one, other in zip(expected, got, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.full
def test_several_lanes_are_several_processes(model: Path) -> None:
    given = make_provider_options(isolate=True, schedule=[0, 1])
    with InferenceSession(model, provider_options=given, device="sim:rk3588") as session:
        jobs = [session.submit(None, picture(seed)) for seed in range(6)]
        assert all(job.result(GUARD)[0].shape == (1, 20, 32, 32) for job in jobs)
        assert len(workers()) == 2


def test_outputs_of_other_types(model: Path) -> None:
    with InferenceSession(model, provider_options=make_provider_options(output_type="model"), device="sim:rk3588") as plain:
        expected = plain.run(None, picture())[0]
    with isolated(model, output_type="model") as session:
        got = session.run(None, picture())[0]
    assert got.dtype == expected.dtype == np.int8
    np.testing.assert_array_equal(expected, got)


def test_a_damaged_model_is_refused_as_always() -> None:
    with pytest.raises(SessionModelError, match="not a model file"):
        isolated(b"RKNN" + b"\0" * 100)


def test_a_run_that_does_not_end_is_ended(model: Path) -> None:
    """A stopped process stands for a library that is busy for hours."""
    with isolated(model) as session:
        expected = session.run(None, picture())[0]
        (worker,) = workers()
        os.kill(worker, signal.SIGSTOP)
        with pytest.raises(DeviceTimeout, match="isolated"):
            session.run(None, picture(), timeout=0.2)
        np.testing.assert_array_equal(session.run(None, picture())[0], expected)
        assert worker not in workers()


def test_a_run_is_cancelled(model: Path) -> None:
    with isolated(model) as session:
        session.run(None, picture())
        (worker,) = workers()
        os.kill(worker, signal.SIGSTOP)
        job = session.submit(None, picture())
        wait_until(job.running)
        assert session is not None
        threading.Timer(0.2, job.cancel).start()
        with pytest.raises((JobCancelled, AnynpuError)):
            job.result(GUARD)
        session.run(None, picture())


def test_a_crash_is_an_error_of_one_request(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = threading.Event()

    def noted(connection: socket.socket) -> dict[str, Any] | None:
        sent.set()
        return receive(connection)

    with isolated(model) as session:
        expected = session.run(None, picture())[0]
        (worker,) = workers()
        os.kill(worker, signal.SIGSTOP)
        monkeypatch.setattr(isolation, "receive", noted)
        job = session.submit(None, picture())
        assert sent.wait(GUARD)  # a process that ends before is replaced, and nobody notices
        os.kill(worker, signal.SIGSEGV)
        os.kill(worker, signal.SIGCONT)
        with pytest.raises(DeviceError, match="SIGSEGV"):
            job.result(GUARD)
        np.testing.assert_array_equal(session.run(None, picture())[0], expected)


def busy() -> Model:
    """One convolution of 260 billion products: more than any machine does within the limits here."""
    b = ProgramBuilder()
    x = b.tensor("x", (1, 16, 512, 512))
    y = b.tensor("y", (1, 512, 512, 512))
    b.layer(Conv(**b.conv(512, 11, 16, pads=(5, 5, 5, 5))), [x], [y])
    small = b.tensor("small", (1, 512, 1, 1))
    b.layer(Pool("max", (512, 512)), [y], [small])
    return Model("rk3588", "w8a8", (b.program([x], [small]),))


def test_processor_time_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYNPU_ISA", "generic")  # slow
    feed = np.zeros((1, 16, 512, 512), np.uint8)
    with (
        isolated(modelfile.to_bytes(busy()), isolate_cpu_s=1) as session,
        pytest.raises(DeviceTimeout, match="more than 1 s of CPU time"),
    ):
        session.run(None, feed)


def large(side: int) -> Model:
    """An image of 100 x 100 becomes one of *side* x *side*, and then one pixel."""
    b = ProgramBuilder()
    x = b.tensor("x", (1, 1, 100, 100))
    wide = b.tensor("wide", (1, 1, side, side))
    b.layer(Resize("nearest", nearest(side, 100), nearest(side, 100)), [x], [wide])
    y = b.tensor("y", (1, 1, 2, 2))
    b.layer(Pool("max", (side // 2, side // 2), (side // 2, side // 2)), [wide], [y])
    return Model("rk3588", "w8a8", (b.program([x], [y]),))


def test_memory_is_limited() -> None:
    data = modelfile.to_bytes(large(24_000))
    feed = np.zeros((1, 1, 100, 100), np.float32)
    with pytest.raises(DeviceMemoryError), isolated(data, isolate_memory_mb=256) as session:
        session.run(None, feed)
    with isolated(modelfile.to_bytes(large(2400)), isolate_memory_mb=256) as session:
        assert session.run(None, feed)[0].shape == (1, 1, 2, 2)


def test_processes_end_with_their_parent(model: Path) -> None:
    code = (
        "import os, sys\n"
        "from anynpu import InferenceSession\n"
        "from anynpu.session import make_provider_options\n"
        "session = InferenceSession(sys.argv[1], provider_options=make_provider_options(isolate=True), device='sim:rk3588')\n"
        "print(open(f'/proc/{os.getpid()}/task/{os.getpid()}/children').read(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(model)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        children = [int(word) for word in parent.stdout.readline().split()]
        parent.kill()
    assert children

    def has_ended(process: int) -> bool:
        try:
            return " Z " in Path(f"/proc/{process}/stat").read_text()
        except OSError:  # gone, maybe at this very moment
            return True

    for child in children:
        wait_until(lambda child=child: has_ended(child))


def test_what_isolation_does_not_go_with(model: Path) -> None:
    with InferenceSession(model, device="sim:rk3588") as plain, pytest.raises(OptionError, match="shares no weights"):
        InferenceSession(model, provider_options=make_provider_options(isolate=True), use_weight_from=plain)


def test_errors_are_those_of_a_plain_session() -> None:
    """A model with a custom operator that nobody registered."""
    data = modelfile.to_bytes(every_operator_model(sides=(4,)))

    def attempt(isolate: bool) -> tuple[type[AnynpuError], str]:
        given = make_provider_options(isolate=isolate)
        with pytest.raises(AnynpuError) as caught, InferenceSession(data, provider_options=given, device="sim:rk3588") as session:
            session.run(None, np.zeros((1, 3, 4, 4), np.float32))
        return type(caught.value), caught.value.message

    assert attempt(True) == attempt(False)
