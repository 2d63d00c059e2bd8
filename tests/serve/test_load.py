"""Good manners: what the server does when there is too much to do, or when clients or cores misbehave."""

from __future__ import annotations

import asyncio
import functools
import http.client
import importlib
import json
import socket
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from session.fake import FakeDevice, FakeLane
from tritonclient.utils import InferenceServerException
from waiting import PATIENCE, wait_until

from anynpu._util import optional as _optional
from anynpu.errors import MissingDependencyError, OverloadedError, ServeError
from anynpu.serve import Server
from anynpu.serve.admission import Admission, Ticket
from anynpu.session.protocol.messages import messages
from anynpu.session.runner import Runner
from anynpu.tensor import DType, TensorSpec

from .conftest import Serve, exchange, infer_body

INFER = "/v2/models/net/infer"


def status_of(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(exchange(server, "GET", "/status/data")[2])
    return found


def one_model(server: Server) -> dict[str, Any]:
    (model,) = status_of(server)["models"]
    assert isinstance(model, dict)
    return model


class Clock:
    """Time that passes when the test advances it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def offer(admission: Admission, clock: Clock, every: float, seconds: float) -> tuple[int, int, float]:
    """Requests at even intervals to cores that take as long as the admission thinks: accepted, rejected, and the longest wait."""
    accepted, refused, longest = 0, 0, 0.0
    free = [clock.now] * admission.lanes
    ends: list[tuple[float, Ticket]] = []
    end = clock.now + seconds
    while clock.now < end:
        clock.now += every
        for when, ticket in [one for one in ends if one[0] <= clock.now]:
            ends.remove((when, ticket))
            admission.leave(ticket)
        try:
            admission.announce("net").withdraw()
            ticket = admission.enter("net", 1)
        except OverloadedError:
            refused += 1
            continue
        begin = max(clock.now, min(free))
        free[free.index(min(free))] = begin + admission.service
        ends.append((begin + admission.service, ticket))
        longest = max(longest, begin - clock.now)
        accepted += 1
    for _, ticket in ends:
        admission.leave(ticket)
    return accepted, refused, longest


def test_a_burst_may_wait_and_a_lasting_overload_may_not() -> None:
    clock = Clock()
    admission = Admission(lanes=2, max_queue=100, max_wait=None, clock=clock)
    admission.learn(0.1)
    tickets = [admission.enter("net", 1) for _ in range(8)]  # the last two begin after 0.3 s
    clock.now += 0.02
    with pytest.raises(OverloadedError, match=r"would begin in about 0\.380 s") as caught:
        admission.enter("net", 1)
    assert caught.value.retry_after == pytest.approx(0.38)
    for ticket in tickets:
        admission.leave(ticket)
    assert offer(admission, clock, 0.006, 0.5)[1] > 10  # the overload is noticed
    accepted, refused, longest = offer(admission, clock, 0.006, 20.0)
    assert longest < 0.065
    assert (accepted, accepted + refused) == (pytest.approx(400, abs=10), pytest.approx(3333, abs=2))  # the cores are never idle
    clock.now += 1.1
    for _ in range(8):
        admission.enter("net", 1)  # a burst may wait again


def test_a_refusal_at_a_load_that_can_be_done_does_not_lead_to_others() -> None:
    clock = Clock()
    admission = Admission(lanes=2, max_queue=100, max_wait=None, clock=clock)
    admission.learn(0.1)
    assert offer(admission, clock, 0.066, 5.0)[1:] == (0, 0.0)  # three quarters of what can be done
    tickets = [admission.enter("net", 1) for _ in range(8)]
    with pytest.raises(OverloadedError):
        admission.announce("net")
    for ticket in tickets:
        admission.leave(ticket)
    assert offer(admission, clock, 0.066, 5.0)[1:] == (0, 0.0)


def test_a_few_clients_who_wait_for_their_answers_are_never_refused() -> None:
    clock = Clock()
    admission = Admission(lanes=1, max_queue=100, max_wait=None, clock=clock)
    admission.learn(0.1)
    tickets = [admission.enter("net", 1) for _ in range(4)]
    for _ in range(100):
        clock.now += 0.1
        admission.leave(tickets.pop(0))
        tickets.append(admission.enter("net", 1))
    assert admission.shed == 0


def test_a_request_that_would_be_late_is_refused_at_once() -> None:
    clock = Clock()
    admission = Admission(lanes=2, max_queue=100, max_wait=None, clock=clock)
    admission.learn(0.1)
    for _ in range(2):
        admission.enter("net", 1)
    with pytest.raises(OverloadedError, match=r"would need about 0\.200 s, and the request has 0\.120 s"):
        admission.enter("net", 1, limit=0.12)
    clock.now += 0.09
    admission.enter("net", 1, limit=0.12)


def test_a_large_request_is_accepted_when_it_can_begin_at_once() -> None:
    clock = Clock()
    admission = Admission(lanes=3, max_queue=8, max_wait=None, clock=clock)
    admission.learn(0.1)
    large = admission.enter("net", 60)
    assert admission.waiting == 57
    with pytest.raises(OverloadedError, match="full queue: 57 waiting"):
        admission.enter("net", 1)
    admission.leave(large)
    assert admission.waiting == 0


def test_what_is_on_its_way_counts_unless_it_is_slow() -> None:
    clock = Clock()
    admission = Admission(lanes=2, max_queue=100, max_wait=None, clock=clock)
    admission.learn(0.1)
    first = [admission.announce("net") for _ in range(8)]  # all within one turn of the event loop
    with pytest.raises(OverloadedError, match=r"would begin in about 0\.400 s"):
        admission.announce("net")
    clock.now += 2.0
    second = [admission.announce("net") for _ in range(2)]  # the first ones are slow: others may overtake
    for announcement in (*first, *second):
        announcement.withdraw()
        admission.enter("net", 0.5)  # the sum is less than what was promised
        announcement.withdraw()
    assert admission.waiting == 3


def test_parts_of_a_batch_share_a_core() -> None:
    clock = Clock()
    admission = Admission(lanes=2, max_queue=100, max_wait=None, clock=clock)
    admission.learn(0.1)
    parts = [admission.enter("net", 0.25) for _ in range(7)]
    assert admission.predicted_wait(0.25) == 0
    parts.append(admission.enter("net", 0.25))
    assert admission.predicted_wait(0.25) == pytest.approx(0.1)
    for part in parts:
        admission.leave(part)
    assert (admission.inside, admission.predicted_wait()) == (0, 0)


def test_a_quick_model_takes_large_bursts() -> None:
    quick = Admission(lanes=2, max_queue=100, max_wait=None)
    quick.learn(0.0002)
    for _ in range(100):
        quick.enter("net", 1)


def test_overload_is_shed_and_everybody_gets_one_answer(serve: Serve) -> None:
    """Two cores and a queue of four take six of 24 requests that come at once; the others are rejected while these run."""
    device = FakeDevice(2, gated=True)
    server = serve(device, max_queue=4, max_wait_ms=1e6)
    assert device.gate is not None
    with ThreadPoolExecutor(24) as pool:
        jobs = [pool.submit(exchange, server, "POST", INFER, infer_body(number)) for number in range(24)]
        wait_until(lambda: one_model(server)["shed"] == 18, "the others are rejected")
        device.gate.set()
        answers = [job.result(PATIENCE) for job in jobs]
    assert Counter(status for status, _, _ in answers) == {200: 6, 429: 18}
    for number, (status, headers, body) in enumerate(answers):
        if status == 200:
            assert json.loads(body)["outputs"][0]["data"][0] == 2 * number
        else:
            assert headers["retry-after"] == "1"
    assert sum(device.core_runs.values()) == 6
    model = one_model(server)
    assert (model["shed"], model["waiting"], model["running"]) == (18, 0, 0)
    assert exchange(server, "POST", INFER, infer_body())[0] == 200


def test_the_queue_is_bounded_over_grpc(serve: Serve) -> None:
    device = FakeDevice(1, gated=True)
    server = serve(device, max_queue=1, max_wait_ms=1e6)
    assert device.gate is not None
    tensor = triton_grpc.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 4), np.float32))
    with triton_grpc.InferenceServerClient(server.grpc_address) as client, ThreadPoolExecutor(2) as pool:
        first = pool.submit(client.infer, "net", [tensor])
        device.wait_entered()
        second = pool.submit(client.infer, "net", [tensor])
        wait_until(lambda: one_model(server)["waiting"] == 1, "a request waits")
        with pytest.raises(InferenceServerException, match="full queue") as caught:
            client.infer("net", [tensor])
        assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
        device.gate.set()
        first.result(PATIENCE)
        second.result(PATIENCE)


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_a_deadline_is_kept(serve: Serve, kind: str) -> None:
    server = serve(FakeDevice(1, run_time=30.0))  # without a deadline it would answer
    module: Any = triton_http if kind == "http" else triton_grpc
    tensor = module.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 4), np.float32))
    address = server.http_address if kind == "http" else server.grpc_address
    with module.InferenceServerClient(address) as client:
        with pytest.raises(InferenceServerException, match=r"within 0\.15 s|not finish in time"):
            client.infer("net", [tensor], timeout=150_000)
        if kind == "grpc":
            with pytest.raises(InferenceServerException, match=r"(?i)deadline exceeded|not finish"):
                client.infer("net", [tensor], client_timeout=0.15)
    wait_until(lambda: one_model(server)["running"] == 0, "the late run ends")


def test_urgent_requests_overtake(serve: Serve) -> None:
    device = FakeDevice(1, gated=True)
    server = serve(device, max_wait_ms=1e6)
    assert device.gate is not None
    with ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(exchange, server, "POST", INFER, infer_body(0))]
        device.wait_entered()
        for number, priority in enumerate((0, 5, 2), 1):
            jobs.append(pool.submit(exchange, server, "POST", INFER, infer_body(number, priority=priority)))
            wait_until(lambda count=number: one_model(server)["waiting"] == count, "the next request waits")
        device.gate.set()
        assert [job.result(PATIENCE)[0] for job in jobs] == [200] * 4
    assert [int(arrays[0][0, 0]) for arrays, _, _ in device.writes] == [0, 3, 2, 1]


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_a_client_that_goes_away_is_dropped_from_the_queue(serve: Serve, kind: str) -> None:
    device = FakeDevice(1, gated=True)
    server = serve(device, max_wait_ms=1e6)
    assert device.gate is not None
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(exchange, server, "POST", INFER, infer_body(1))
        device.wait_entered()
        if kind == "http":
            connection = http.client.HTTPConnection(server.http_address, timeout=PATIENCE)
            connection.request("POST", INFER, infer_body(2))
            wait_until(lambda: one_model(server)["waiting"] == 1, "a request waits")
            connection.close()
        else:
            client = triton_grpc.InferenceServerClient(server.grpc_address)
            tensor = triton_grpc.InferInput("x", [1, 4], "FP32")
            tensor.set_data_from_numpy(np.full((1, 4), 2, np.float32))
            call = client.async_infer("net", [tensor], lambda result, error: None)
            wait_until(lambda: one_model(server)["waiting"] == 1, "a request waits")
            call.cancel()
        wait_until(lambda: one_model(server)["cancelled"] == 1, "the request is dropped")
        assert one_model(server)["waiting"] == 0
        device.gate.set()
        assert first.result(PATIENCE)[0] == 200
        if kind == "grpc":
            client.close()
    assert len(device.writes) == 1


def test_a_crowd_with_large_bodies_is_refused_before_these_are_read(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    # time stands still: a request whose body is slow stops counting after an inference
    monkeypatch.setattr("anynpu.serve.model.Admission", functools.partial(Admission, clock=Clock()))
    size = 500_000
    device = FakeDevice(1, inputs=(TensorSpec("x", (1, size), DType.UINT8),))
    server = serve(device, max_queue=2, max_wait_ms=1e6)
    tensor = {"name": "x", "datatype": "UINT8", "shape": [1, size], "parameters": {"binary_data_size": size}}
    text = json.dumps({"inputs": [tensor]}).encode()
    lines = (
        f"POST {INFER} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Content-Length: {len(text) + size}",
        f"Inference-Header-Content-Length: {len(text)}",
    )
    head = "\r\n".join((*lines, "", "")).encode()
    crowd = [socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) for _ in range(30)]
    for one in crowd:  # heads alone: nobody has been accepted yet
        one.sendall(head + text)
    wait_until(lambda: one_model(server)["shed"] == 27, "all but three are rejected")
    wait_until(lambda: status_of(server)["inflight_bytes"] == 3 * len(text), "what has arrived counts")
    statuses: Counter[bytes] = Counter()
    for one in crowd:
        one.sendall(bytes(size))
        statuses[one.recv(65536).split()[1]] += 1
        one.close()
    assert statuses == {b"200": 3, b"429": 27}


def test_reloading_under_load_loses_nothing(serve: Serve) -> None:
    device = FakeDevice(2)
    server = serve(device, max_wait_ms=1e6)
    stop = threading.Event()
    statuses: Counter[int] = Counter()
    lock = threading.Lock()

    def client() -> None:
        connection = http.client.HTTPConnection(server.http_address, timeout=PATIENCE)
        while not stop.is_set():
            connection.request("POST", INFER, infer_body())
            answer = connection.getresponse()
            answer.read()
            with lock:
                statuses[answer.status] += 1
        connection.close()

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(client) for _ in range(4)]
        for _ in range(8):
            assert exchange(server, "POST", "/v2/repository/models/net/load")[0] == 200
            seen = statuses.total()
            wait_until(lambda seen=seen: statuses.total() >= seen + 5, "answers come from the new model")
        stop.set()
        for job in jobs:
            job.result(PATIENCE)
    assert set(statuses) == {200}
    assert len(device.backends) == 9
    wait_until(lambda: device.open_backends == 1, "the old ones are closed")


def test_a_model_that_cannot_be_loaded_anew_leaves_the_old_one(serve: Serve) -> None:
    device = FakeDevice(1)
    server = serve(device)
    device.refuses = lambda mask, count: True
    status, _, answer = exchange(server, "POST", "/v2/repository/models/net/load")
    assert status == 500
    assert "no more contexts" in json.loads(answer)["error"]
    assert exchange(server, "POST", INFER, infer_body())[0] == 200


def test_several_models_and_versions(serve: Serve, tmp_path: Path) -> None:
    for name in ("one.rknn", "repository/det/1/a.rknn", "repository/det/12/b.rknn", "repository/other.rknn"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"model")
    server = serve(FakeDevice(), f"first:3={tmp_path / 'one.rknn'}", tmp_path / "repository")
    index = json.loads(exchange(server, "POST", "/v2/repository/index")[2])
    assert [(entry["name"], entry["version"]) for entry in index] == [("det", "1"), ("det", "12"), ("first", "3"), ("other", "1")]
    answer = json.loads(exchange(server, "POST", "/v2/models/det/infer", infer_body())[2])
    assert answer["model_version"] == "12"
    answer = json.loads(exchange(server, "POST", "/v2/models/det/versions/1/infer", infer_body())[2])
    assert answer["model_version"] == "1"
    (tmp_path / "repository/det/13").mkdir()
    (tmp_path / "repository/det/13/c.rknn").write_bytes(b"model")
    assert exchange(server, "POST", "/v2/repository/models/det/load")[0] == 200
    assert json.loads(exchange(server, "GET", "/v2/models/det")[2])["versions"] == ["1", "12", "13"]
    assert exchange(server, "POST", "/v2/repository/models/det/unload")[0] == 200
    status, _, text = exchange(server, "POST", "/v2/models/det/infer", infer_body())
    assert (status, "is not loaded" in text.decode()) == (503, True)


def test_a_hung_core_is_given_up_and_the_server_goes_on(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    hung: list[FakeLane] = []
    runners: list[Runner] = []
    begin = Runner.__init__

    def noted(runner: Runner, *arguments: Any, **options: Any) -> None:
        runners.append(runner)
        begin(runner, *arguments, **options)

    monkeypatch.setattr(Runner, "__init__", noted)

    def run_time(lane: FakeLane) -> float:
        if not hung:
            hung.append(lane)
            release.wait(PATIENCE)
        return 0.0

    device = FakeDevice(2, run_time=run_time)
    server = serve(device, watchdog_ms=3_600_000, max_wait_ms=1e6)
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(exchange, server, "POST", INFER, infer_body())
        wait_until(lambda: hung, "a core hangs")
        for number in range(5):  # meanwhile the other core goes on
            assert exchange(server, "POST", INFER, infer_body(number))[0] == 200
        wait_until(lambda: one_model(server)["running"] == 1, "nothing runs but what hangs")
        runners[0]._find_hung(time.perf_counter_ns() + 7_200_000_000_000)  # two hours later
        status, _, answer = lost.result(PATIENCE)
    assert (status, b"did not answer" in answer) == (503, True)
    before = device.core_runs[hung[0].mask]

    def runs_again() -> bool:
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda _: exchange(server, "POST", INFER, infer_body())[0], range(2)))
        assert answers == [200, 200]
        return device.core_runs[hung[0].mask] > before

    wait_until(runs_again, "the core has a new context")
    release.set()
    assert one_model(server)["failed"] == 1


def test_slow_clients_are_cut_off_and_others_are_not_starved(serve: Serve) -> None:
    server = serve(FakeDevice(), header_timeout=0.3, body_timeout=0.3, max_connections=40)
    sockets = []

    def unless_cut_off(ask: Callable[[], bool]) -> bool:
        try:
            return ask()
        except (ConnectionError, http.client.HTTPException):  # on a busy machine anybody may be slow once
            return False

    for text in (
        b"",
        b"POST /v2/mod",
        b"POST /v2/models/net/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{",
    ) * 6:
        slow = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
        slow.sendall(text)
        sockets.append(slow)
    wait_until(
        lambda: unless_cut_off(lambda: exchange(server, "POST", INFER, infer_body())[0] == 200), "another client is served"
    )
    for slow in sockets:
        with slow:
            try:
                assert slow.recv(100) == b""
            except ConnectionResetError:
                pass
    wait_until(lambda: unless_cut_off(lambda: status_of(server)["connections"] == 1), "the slow ones are cut off")


def test_sizes_are_limited(serve: Serve) -> None:
    server = serve(FakeDevice(), max_request_bytes=10_000, max_json_bytes=5_000)
    status, _, answer = exchange(server, "POST", INFER, infer_body() + bytes(5_000))
    assert (status, "bytes of JSON" in answer.decode()) == (413, True)
    zipped = zlib.compress(b" " * 9_000)
    status, _, answer = exchange(server, "POST", INFER, zipped, {"Content-Encoding": "deflate"})
    assert (status, "larger than 5000 bytes when unpacked" in answer.decode()) == (413, True)
    status, _, answer = exchange(server, "POST", INFER, bytes(10_001))
    assert (status, "10001 bytes" in answer.decode()) == (413, True)
    chunked = {"Transfer-Encoding": "chunked"}
    connection = http.client.HTTPConnection(server.http_address, timeout=PATIENCE)
    connection.request("POST", INFER, iter([bytes(6000), bytes(6000)]), chunked, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()
    tensor = triton_grpc.InferInput("x", [1, 4000], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 4000), np.float32))
    with triton_grpc.InferenceServerClient(server.grpc_address) as client:
        with pytest.raises(InferenceServerException) as caught:
            client.infer("net", [tensor])
        assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    wait_until(lambda: status_of(server)["inflight_bytes"] == 0, "everything is given back")


def accepts(server: Server) -> bool:
    """Whether the server takes connections."""
    try:
        socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE).close()
    except OSError:
        return False
    return True


def test_ending_finishes_what_was_accepted(serve: Serve) -> None:
    device = FakeDevice(1, gated=True)
    server = serve(device, max_wait_ms=1e6)
    assert device.gate is not None
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(exchange, server, "POST", INFER, infer_body(number)) for number in range(3)]
        device.wait_entered()
        wait_until(lambda: one_model(server)["waiting"] == 2, "two wait")
        ending = pool.submit(server.stop, PATIENCE)
        wait_until(lambda: not accepts(server), "no new connections are taken")
        assert not ending.done()
        device.gate.set()
        assert [job.result(PATIENCE)[0] for job in jobs] == [200, 200, 200]
        ending.result(PATIENCE)
    assert device.open_backends == 0


def test_everything_is_given_back(serve: Serve) -> None:
    device = FakeDevice(2)
    server = serve(device)

    async def burst() -> None:
        import tritonclient.http.aio as triton_aio

        async with triton_aio.InferenceServerClient(server.http_address) as client:
            tensor = triton_http.InferInput("x", [1, 4], "FP32")
            tensor.set_data_from_numpy(np.zeros((1, 4), np.float32))
            await asyncio.gather(*(client.infer("net", [tensor]) for _ in range(50)))

    asyncio.run(burst())
    server.stop(PATIENCE)
    assert (device.open_backends, device.open_lanes, device.violations) == (0, 0, [])


def test_a_client_that_does_not_take_its_answer_is_cut_off(serve: Serve) -> None:
    large = TensorSpec("y", (1, 4_000_000), DType.FLOAT32)
    device = FakeDevice(outputs=(large,))
    server = serve(device, write_timeout=0.5)
    document = {**json.loads(infer_body()), "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    body = json.dumps(document).encode()
    with socket.socket() as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.settimeout(PATIENCE)
        lazy.connect(("127.0.0.1", server.port))
        lazy.sendall(b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%s" % (INFER.encode(), len(body), body))
        wait_until(lambda: one_model(server)["answered"] == 1, "the answer is sent")
        wait_until(lambda: status_of(server)["connections"] == 1, "the lazy one is cut off")  # the other asks
    status, _, answer = exchange(serve(device), "POST", INFER, body)  # where half a second is no limit for a busy machine
    assert (status, len(answer) > 16_000_000) == (200, True)


def test_a_stop_that_comes_late_does_not_hit_the_next_request(serve: Serve) -> None:
    device = FakeDevice(1, run_time=0.002, stoppable=True)
    server = serve(device)
    for _ in range(3):
        assert exchange(server, "POST", INFER, infer_body())[0] == 200
        device.lanes[0].cancel()


def test_a_model_that_cannot_be_loaded_keeps_the_server_from_being_ready(serve: Serve) -> None:
    device = FakeDevice(1, refuses=lambda mask, count: True)
    server = serve(device)
    assert exchange(server, "GET", "/v2/health/live")[0] == 200
    assert exchange(server, "GET", "/v2/health/ready")[0] == 503
    status, _, answer = exchange(server, "POST", INFER, infer_body())
    assert (status, "no more contexts" in answer.decode()) == (503, True)
    device.refuses = None
    assert exchange(server, "POST", "/v2/repository/models/net/load")[0] == 200
    assert exchange(server, "GET", "/v2/health/ready")[0] == 200
    assert exchange(server, "POST", INFER, infer_body())[0] == 200


def test_a_port_that_is_taken(serve: Serve) -> None:
    server = serve(FakeDevice())
    with pytest.raises(ServeError, match=r"cannot listen on 127\.0\.0\.1"):
        serve(FakeDevice(), port=server.port)
    with pytest.raises(ServeError, match=r"gRPC cannot listen"):
        serve(FakeDevice(), grpc_port=server.grpc_port)


@pytest.mark.parametrize("package", ["httptools", "grpc", "prometheus_client", "google.protobuf.descriptor_pb2"])
def test_a_missing_package_is_named(serve: Serve, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = package.partition(".")[0]

    def absent(name: str, extra: str) -> Any:
        if name.partition(".")[0] == root:
            raise MissingDependencyError.for_extra(name, extra)
        return importlib.import_module(name)

    monkeypatch.setattr(_optional, "_load", absent)
    messages.cache_clear()
    with pytest.raises(MissingDependencyError, match=r"\.\[serve\]"):
        serve(FakeDevice())
