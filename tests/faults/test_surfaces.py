"""Sessions, the server and clusters under faults: every request has one answer, nothing is left behind, and full service afterwards."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiler.onnx_builders import Net
from serve.cluster.fake_boards import FakePool, answer, front_of, pool_of
from serve.cluster.virtual_time import in_virtual_time, now
from waiting import PATIENCE, wait_until

import anynpu
from anynpu import chips
from anynpu.devtools import faults
from anynpu.devtools.faults import Fault, Injector, Plan, SimulatedTime
from anynpu.errors import AnynpuError, DeviceMemoryError, DeviceUnavailable
from anynpu.rknn.library import open_library
from anynpu.serve import ServeOptions, Server
from anynpu.session import InferenceSession

SECONDS = float(os.environ.get("ANYNPU_FAULT_SECONDS", "3"))
"""Of the long test; `make soak` asks for more."""

BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3, 4, 4], "data": [0.5] * 48}]}).encode()
ALLOWED = {200, 429, 503, 504}
"""Answers under faults: done, full, not there or no memory, late. Never 500: these are faults of the device, not of the server."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    net = Net()
    net.output(net.conv(net.input("x", (1, 3, 4, 4)), 4, 3))
    return Path(anynpu.compile(net.proto(), "rk3588", dtype="fp16").save(tmp_path_factory.mktemp("faults") / "net.rknn"))


def started(model: Path, **options: Any) -> Server:
    given = {"host": "127.0.0.1", "port": 0, "grpc_port": 0, "drain_timeout": PATIENCE, "device": "sim:rk3588", **options}
    server = Server([model], ServeOptions(**given))
    server.start()
    return server


def reply_to(server: Server, path: str, body: bytes | None = None) -> tuple[http.client.HTTPResponse, str]:
    """An answer, and its text."""
    connection = http.client.HTTPConnection(server.http_address, timeout=PATIENCE)
    try:
        connection.request("GET" if body is None else "POST", path, body)
        reply = connection.getresponse()
        return reply, reply.read().decode()
    finally:
        connection.close()


def ask(server: Server) -> int:
    return reply_to(server, "/v2/models/net/infer", BODY)[0].status


def memory_of() -> int:
    """Bytes of device memory in the library under faults."""
    library: Any = open_library("sim:rk3588")
    return int(library.device_for(chips.get("rk3588")).memory_usage().total)


def test_a_server_answers_each_request_once_and_serves_again(model: Path) -> None:
    plan = {
        "seed": 2,
        "fault": [
            {"kind": "hang", "at": 3, "times": 4},
            {"kind": "lost", "at": 12, "times": 6},
            {"kind": "code", "call": "rknn_inputs_set", "code": "RKNN_ERR_MALLOC_FAIL", "at": 10, "times": 3},
            {"kind": "slow", "probability": 0.2, "factor": 50},
        ],
    }
    with faults.inject(plan, clock=SimulatedTime()) as injector:
        server = started(model)
        try:
            answers = [ask(server) for _ in range(30)]
            assert set(answers) <= ALLOWED
            assert answers.count(200) >= 30 - 4 - 6 - 3
            assert {503, 504} <= set(answers), "lost and out of memory, and late"
            assert {"hang", "lost", "code"} <= set(injector.counts)
            assert answers[9:12] == [503] * 3, "out of memory"
            before = memory_of()
            assert [ask(server) for _ in range(20)] == [200] * 20
            assert memory_of() == before
        finally:
            server.stop(PATIENCE)


LITTLE = 0.0005
"""Megabytes of a device that holds the network and the tensors of one core: 256 and 192 bytes."""

LESS = 0.0003
"""Megabytes for the network alone."""


def test_a_request_without_memory_is_told_to_come_again_and_is_counted(model: Path) -> None:
    """No core has memory for its tensors, until the fault is over."""
    with faults.inject({"fault": [{"kind": "memory", "megabytes": LESS}]}) as injector:
        server = started(model)
        try:
            before = memory_of()
            for _ in range(4):
                reply, text = reply_to(server, "/v2/models/net/infer", BODY)
                assert (reply.status, reply.getheader("Retry-After"), reply.getheader("Retry-After-Ms")) == (503, "1", "1000")
                assert "RKNN_ERR_MALLOC_FAIL" in text
            assert memory_of() == before, "nothing of them is left"
            counted = [line for line in reply_to(server, "/metrics")[1].splitlines() if line.startswith("anynpu_requests_total")]
            assert [line.rpartition(" ")[2] for line in counted if 'outcome="failed"' in line] == ["4.0"]
            injector.stop()
            assert [ask(server) for _ in range(4)] == [200] * 4
        finally:
            server.stop(PATIENCE)


def test_memory_that_runs_out_in_a_run_is_a_memory_error_of_the_session(model: Path) -> None:
    array = np.full((1, 3, 4, 4), 0.5, np.float32)
    plan = {"fault": [{"kind": "memory", "megabytes": LESS}]}
    with faults.inject(plan) as injector, InferenceSession(model, device="sim:rk3588") as session:
        with pytest.raises(DeviceMemoryError, match="do not fit") as failed:
            session.run(None, {"x": array})
        assert isinstance(failed.value, RuntimeError), "as all errors of a run are"
        assert failed.value.code_name == "RKNN_ERR_MALLOC_FAIL"
        injector.stop()
        assert session.run(None, {"x": array})[0].shape == (1, 4, 2, 2)


@pytest.mark.full
def test_a_server_under_load_and_faults(model: Path) -> None:
    """Twice as many clients as there are cores with their queues, for some seconds; then all faults are over.

    There is memory for one core. Requests that come to another one fail until the faults are over.
    """
    faulty = Plan(
        (
            Fault("memory", megabytes=LITTLE),
            Fault("hang", core=0, probability=0.02, seconds=0.05),
            Fault("lost", probability=0.01),
            Fault("slow", probability=0.1, factor=20),
            Fault("code", call="rknn_outputs_get", code="RKNN_ERR_MALLOC_FAIL", probability=0.01),
            Fault("code", call="rknn_run", code="RKNN_ERR_TIMEOUT", probability=0.01),
        ),
        7,
    )
    with faults.inject(faulty) as injector:
        server = started(model, watchdog_ms=20_000)
        answers: Counter[int] = Counter()
        asked = Counter[int]()
        lock = threading.Lock()
        until = time.monotonic() + SECONDS

        def client(number: int) -> None:
            while time.monotonic() < until:
                asked[number] += 1
                status = ask(server)
                with lock:
                    answers[status] += 1

        try:
            clients = [threading.Thread(target=client, args=(number,)) for number in range(12)]
            for each in clients:
                each.start()
            for each in clients:
                each.join(SECONDS + PATIENCE)
            assert not any(each.is_alive() for each in clients)
            assert sum(answers.values()) == sum(asked.values())
            assert set(answers) <= ALLOWED
            assert answers[200] > 0
            assert sum(injector.counts.values()) > 0
            assert memory_of() <= LITTLE * 1e6
            injector.stop()
            assert [ask(server) for _ in range(30)] == [200] * 30
            assert memory_of() <= 256 + 3 * 192, "what the network and three cores take, however many requests there were"
            wait_until(lambda: json.loads(reply_to(server, "/status/data")[1])["inflight_bytes"] == 0, "no bytes in flight")
        finally:
            server.stop(PATIENCE)


def test_a_model_that_cannot_be_loaded_for_lack_of_memory_is_served_when_there_is_some(model: Path) -> None:
    with faults.inject({"fault": [{"kind": "memory", "megabytes": 0.00001}]}), pytest.raises(DeviceMemoryError):
        InferenceSession(model, device="sim:rk3588")
    with faults.inject({"fault": []}), InferenceSession(model, device="sim:rk3588") as session:
        assert session.get_inputs()[0].name == "x"


def test_sessions_under_faults_leave_no_memory_behind(model: Path) -> None:
    array = np.full((1, 3, 4, 4), 0.5, np.float32)
    plan = {"fault": [{"kind": "lost", "every": 3}, {"kind": "timeout", "every": 5}]}
    with faults.inject(plan, clock=SimulatedTime()):
        totals = []
        for _ in range(3):
            while True:
                try:
                    session = InferenceSession(model, device="sim:rk3588")
                    break
                except DeviceUnavailable:
                    continue
            with session:
                failed = 0
                for _ in range(12):
                    try:
                        session.run(None, {"x": array})
                    except AnynpuError:
                        failed += 1
                assert 0 < failed < 12
            totals.append(memory_of())
        assert totals[0] == totals[-1] == 0


def lost_boards(pool: FakePool, injector: Injector, names: tuple[str, ...]) -> Iterator[tuple[str, bool]]:
    """Each second some boards are lost by the plan, and lost ones come back."""
    while True:
        for number, name in enumerate(names):
            lost = bool(injector.offer("job", (number,)))
            if lost and name in pool.places and len(pool.places) > 1:
                yield name, True
            elif not lost and name not in pool.places:
                yield name, False
        yield "", False


@in_virtual_time
async def test_a_cluster_with_boards_lost_at_random_for_a_minute() -> None:
    """Five boards, of which each is lost every few seconds: of the requests that were accepted none is lost."""
    names = ("a", "b", "c", "d", "e")
    pool = await pool_of(*names, seconds=0.2)
    models = await front_of(pool)
    injector = Injector(Plan((Fault("lost", probability=0.1),), 11))
    happenings = lost_boards(pool, injector, names)
    tasks: list[asyncio.Task[float]] = []
    losses = 0
    while now() < 60:
        for _ in range(4):
            tasks.append(asyncio.ensure_future(answer(models)))
            await asyncio.sleep(0.25)
        for name, lost in happenings:
            if not name:
                break
            if lost:
                losses += 1
                pool.lose(name)
            else:
                await pool.join(name)
        await models.refresh()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert losses > 10
    assert len(results) == len(tasks) >= 200
    assert [result for result in results if result != 2.0] == []
