"""Three boards behind each proxy: clients, balance, the loss of a board, and shedding."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import select
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from documentation import blocks, section
from tritonclient.utils import InferenceServerException
from waiting import PATIENCE, wait_until

from anynpu import InferenceSession
from anynpu.errors import AnynpuError

from .board import MAX_QUEUE
from .proxies import PROXIES, Proxy
from .running import INFER, LONG, Board, Hold, ask, infer_body

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("proxies")]

MAX_PICKS = 200
"""Envoy picks one of three idle boards by chance: that it passes over the same one so often does not happen in the life of a project."""


def documented_arguments() -> list[tuple[str, Any]]:
    """What docs/serving.md reports a gRPC client to do."""
    (block,) = blocks(section("serving", "nginx"))
    names: dict[str, Any] = {}
    exec(compile(block, "serving.md", "exec"), names)
    found: list[tuple[str, Any]] = names["arguments"]
    return found


@pytest.fixture(scope="module")
def boards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Board]]:
    found = [Board(tmp_path_factory.mktemp(f"board-{number}"), number) for number in (1, 2, 3)]
    try:
        for board in found:
            board.start()
        for board in found:
            board.wait_ready()
        yield found
    finally:
        for board in found:
            if board.process is not None:
                board.process.end()


@pytest.fixture(scope="module", params=list(PROXIES))
def proxy(request: pytest.FixtureRequest, boards: list[Board], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    running = PROXIES[request.param](boards, tmp_path_factory.mktemp(request.param))
    yield running
    running.process.end()


@contextlib.contextmanager
def held(*boards: Board) -> Iterator[None]:
    """Boards that are full, so that they shed whatever else comes."""
    holds = [Hold(board) for board in boards]
    try:
        for hold in holds:
            hold.fill(1 + MAX_QUEUE)
        yield
    finally:
        for hold in holds:
            hold.release()


def triton_input(module: Any, *values: float) -> Any:
    array = np.array([[*values, 0, 0, 0, 0][:4]], np.float32)
    tensor = module.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(array)
    return tensor


def grpc_client(proxy: Proxy, *arguments: tuple[str, Any]) -> Any:
    return triton_grpc.InferenceServerClient(f"127.0.0.1:{proxy.grpc_port}", channel_args=list(arguments) or None)


def inside(boards: list[Board]) -> int:
    """Requests that wait or run."""
    return sum(status["waiting"] + status["running"] for status in (board.status() for board in boards))


def counts(boards: list[Board]) -> list[int]:
    return [board.inferences() for board in boards]


def test_clients_work_and_the_load_is_spread(proxy: Proxy, boards: list[Board]) -> None:
    before = counts(boards)
    with triton_http.InferenceServerClient(f"127.0.0.1:{proxy.port}") as client:
        assert client.is_server_ready()
        assert client.is_model_ready("net")
        assert client.get_model_metadata("net")["inputs"][0]["name"] == "x"
        for number in range(30):
            result = client.infer("net", [triton_input(triton_http, 0, number)])
            assert result.as_numpy("y")[0, 1] == 2 * number
    with grpc_client(proxy) as client:
        assert client.is_server_ready()
        assert client.get_model_metadata("net").inputs[0].name == "x"
        for number in range(30):
            result = client.infer("net", [triton_input(triton_grpc, 0, number)])
            assert result.as_numpy("y")[0, 1] == 2 * number
    spread = [after - first for after, first in zip(counts(boards), before, strict=True)]
    assert sum(spread) == 60
    assert min(spread) >= 3, spread


def test_a_stream_keeps_its_order(proxy: Proxy) -> None:
    results: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with grpc_client(proxy) as client:
        client.start_stream(lambda result, error: results.put((result, error)))
        for number in range(20 + MAX_QUEUE):  # no more at a time than its board lets wait
            if number < 20:
                client.async_stream_infer("net", [triton_input(triton_grpc, 0, number)])
            if number >= MAX_QUEUE:
                result, error = results.get(timeout=PATIENCE)
                assert error is None
                assert result.as_numpy("y")[0, 1] == 2 * (number - MAX_QUEUE)
        client.stop_stream()


def test_a_session_works_through_the_proxy(proxy: Proxy) -> None:
    with InferenceSession(f"grpc://127.0.0.1:{proxy.grpc_port}/net") as session:
        frames = [np.array([[0, number, 0, 0]], np.float32) for number in range(12)]
        for number, (doubled,) in enumerate(session.stream(frames)):
            assert doubled[0, 1] == 2 * number


def test_large_bodies_pass_and_larger_ones_are_refused(proxy: Proxy) -> None:
    """16 MB reach a board, which states that they are no input of this model; 80 MB are rejected as too large."""
    large = np.zeros((1, 4 * 2**20), np.float32)
    tensor = triton_http.InferInput("x", list(large.shape), "FP32")
    tensor.set_data_from_numpy(large)
    with (
        triton_http.InferenceServerClient(f"127.0.0.1:{proxy.port}") as client,
        pytest.raises(InferenceServerException, match=r"the request has 167\d+ bytes, and the model takes"),
    ):
        client.infer("net", [tensor])
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=PATIENCE)
    connection.putrequest("POST", INFER)
    connection.putheader("Content-Length", str(80 * 2**20))
    connection.endheaders()
    with contextlib.suppress(ConnectionError):  # it need not read what it rejects
        for _ in range(80):
            if select.select([connection.sock], [], [], 0)[0]:
                break
            connection.send(b" " * 2**20)
    assert connection.getresponse().status == 413
    connection.close()


def test_what_belongs_to_one_board_is_not_there(proxy: Proxy) -> None:
    assert ask(proxy.port, "POST", "/v2/repository/models/net/unload", b"{}").status == 403
    for path in (
        "/v2/%72epository/models/net/unload",
        "/v2/repository%2Fmodels/net/unload",
        "/v2%2frepository/models/net/unload",
        "/v2/models/../repository/models/net/unload",
        "/v2/models/%2e%2e/repository/models/net/unload",
        "/v2//repository/models/net/unload",
        "/v2/repository/models/net/%75nload",
    ):
        assert ask(proxy.port, "POST", path, b"{}").status in (400, 403, 404), path
    for path in ("/v2/systemsharedmemory/region/a/register", "/v2/systemsharedmemory/unregister"):
        assert ask(proxy.port, "POST", path, b"{}").status == 403, path
    for path in ("/v2/systemsharedmemory/status", "/v2/cudasharedmemory/status"):
        assert ask(proxy.port, "GET", path).status == 403, path
    assert ask(proxy.port, "GET", "/metrics").status == 404
    assert ask(proxy.port, "GET", "/status").status == 404
    assert ask(proxy.port, "POST", INFER, infer_body(), {"Origin": "http://pages.example", "Host": "pages.example"}).status == 403
    with grpc_client(proxy) as client:
        with pytest.raises(InferenceServerException, match="each board") as caught:
            client.unload_model("net")
        assert caught.value.status() == "StatusCode.PERMISSION_DENIED"
        with pytest.raises(InferenceServerException, match="shared memory is for") as caught:
            client.get_system_shared_memory_status()
        assert caught.value.status() == "StatusCode.PERMISSION_DENIED"
        with pytest.raises(InferenceServerException, match="shared memory is for"):
            client.get_cuda_shared_memory_status()
        assert client.is_model_ready("net")


def test_deadlines_and_cancellation_reach_the_board(proxy: Proxy, boards: list[Board]) -> None:
    failed, cancelled = (sum(board.status()[key] for board in boards) for key in ("failed", "cancelled"))
    answer = ask(proxy.port, "POST", INFER, infer_body(LONG, timeout=100_000))
    assert answer.status == 504
    assert "error" in answer.json()
    with grpc_client(proxy) as client, pytest.raises(InferenceServerException) as caught:
        client.infer("net", [triton_input(triton_grpc, LONG)], client_timeout=0.3)
    assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    wait_until(lambda: inside(boards) == 0, "late requests leave their boards")

    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=PATIENCE)
    connection.request("POST", INFER, infer_body(LONG))
    with grpc_client(proxy) as client:
        call = client.async_infer("net", [triton_input(triton_grpc, LONG)], lambda result, error: None)
        wait_until(lambda: inside(boards) == 2, "both are there")
        call.cancel()
        connection.close()
        wait_until(lambda: inside(boards) == 0, "cancelled requests leave their boards")
    assert sum(board.status()["failed"] for board in boards) >= failed + 1
    assert sum(board.status()["cancelled"] for board in boards) >= cancelled + 2


def test_shedding_goes_to_another_board_first(proxy: Proxy, boards: list[Board]) -> None:
    full = boards[0]
    shed = full.status()["shed"]
    body = infer_body(0.0, 3.0) + b" " * 300_000  # as an image: more than a socket holds, and rejected before it is read
    with held(full):
        for _ in range(MAX_PICKS):
            assert ask(proxy.port, "POST", INFER, body).status == 200
            if full.status()["shed"] > shed:
                break
        else:
            pytest.fail("no request came to the full board: nothing was shown")
        for _ in range(3):
            assert ask(proxy.port, "POST", INFER, body).status == 200
        with held(*boards[1:]):
            for _ in range(6):  # every time: boards that are busy do not count as broken
                answer = ask(proxy.port, "POST", INFER, body)
                assert answer.status == 429
                assert int(answer.headers["retry-after"]) >= 1
                assert int(answer.headers["retry-after-ms"]) >= 50
                assert "full queue" in answer.json()["error"]
            with grpc_client(proxy) as client, pytest.raises(InferenceServerException) as caught:
                client.infer("net", [triton_input(triton_grpc, 0)])
            assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    for _ in range(6):
        assert ask(proxy.port, "POST", INFER, body).status == 200


def test_a_board_that_is_lost_or_updated_costs_no_answer_and_comes_back(proxy: Proxy, boards: list[Board]) -> None:
    outcomes: Counter[Any] = Counter()
    lock = threading.Lock()
    stop = threading.Event()

    def note(outcome: Any) -> None:
        with lock:
            outcomes[outcome] += 1

    def http_client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=PATIENCE)
        while not stop.is_set():
            connection.request("POST", INFER, infer_body(0.03, number))
            answer = connection.getresponse()
            body = json.loads(answer.read())
            note(("http", answer.status) if answer.status != 200 else ("http", body["outputs"][0]["data"][1] == 2 * number))
        connection.close()

    def rpc_client(number: int) -> None:
        with grpc_client(proxy, *documented_arguments(), ("grpc.client", number)) as client:
            while not stop.is_set():
                try:
                    result = client.infer("net", [triton_input(triton_grpc, 0.03, number)])
                    note(("grpc", bool(result.as_numpy("y")[0, 1] == 2 * number)))
                except InferenceServerException as error:
                    note(("grpc", error.status(), error.message()))

    def session_client() -> None:
        with InferenceSession(f"grpc://127.0.0.1:{proxy.grpc_port}/net") as session:
            while not stop.is_set():
                try:
                    (doubled,) = session.run(None, {"x": np.array([[0.03, 5, 0, 0]], np.float32)})
                    note(("session", bool(doubled[0, 1] == 10)))
                except AnynpuError as error:
                    note(("session", str(error)))

    threads = [threading.Thread(target=session_client)]
    threads += [threading.Thread(target=http_client, args=(number,)) for number in range(4)]
    threads += [threading.Thread(target=rpc_client, args=(number,)) for number in range(2)]
    lost = boards[1]
    assert lost.process is not None
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: sum(outcomes.values()) > 2 * len(threads), "answers come")
        lost.process.kill()
        answered = sum(outcomes.values())
        wait_until(lambda: sum(outcomes.values()) > answered + 4 * len(threads), "answers come without the board")
        lost.start()
        lost.wait_ready()
        wait_until(lambda: lost.inferences() > 0, "the board takes part again")
        lost.process.popen.terminate()  # for an update
        assert lost.process.popen.wait(PATIENCE) == 0
        lost.start()
        lost.wait_ready()
        wait_until(lambda: lost.inferences() > 0, "the board takes part once more")
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
        if lost.process.popen.poll() is not None:
            lost.start()
            lost.wait_ready()
    assert set(outcomes) == {("http", True), ("grpc", True), ("session", True)}, outcomes
