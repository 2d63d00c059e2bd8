"""Both protocols through a gateway whose boards are in this process: a client sees one server. Without Ray."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from session.fake import FakeDevice
from tritonclient.utils import InferenceServerException
from waiting import PATIENCE, wait_until

import anynpu
from anynpu.errors import BoardLostError
from anynpu.serve import ServeOptions, Server
from anynpu.serve.cluster.board import Board
from anynpu.serve.cluster.front import ClusterModels
from anynpu.serve.cluster.messages import BoardRefusal
from anynpu.serve.cluster.routing import BoardPool
from anynpu.serve.model import InferAnswer, InferRequest
from anynpu.serve.service import Service

from ..conftest import exchange, infer_body


class LocalBoards:
    """Boards with real sessions on fake devices, in the event loop of the gateway."""

    name = "boards"

    def __init__(self, folder: Path, options: ServeOptions, names: str) -> None:
        self._made = (str(folder),), options, names
        self.boards: list[Board] = []

    async def start(self) -> None:
        models, options, names = self._made
        for name in names:
            board = Board(models, options, name)
            board.name = f"board-{name}"
            await board.start()
            self.boards.append(board)

    async def infer(self, request: InferRequest, avoid: str) -> InferAnswer | BoardRefusal:
        for board in self.boards:
            if board.identity != avoid:
                return await board.infer(request)
        raise BoardLostError("there is none")

    async def tell(self, method: str, *arguments: Any, timeout: float) -> list[Any]:
        return [await getattr(board, method)(*arguments) for board in self.boards]


class LocalModels(ClusterModels):
    """Starts and ends the boards with the gateway."""

    def __init__(self, boards: LocalBoards, options: ServeOptions) -> None:
        super().__init__([BoardPool(boards)], options)
        self._local = boards

    async def load_all(self) -> None:
        await self._local.start()
        await super().load_all()

    async def close(self) -> None:
        await super().close()
        for board in self._local.boards:
            await board.close()


class FrontServer(Server):
    """The plain server with the models of boards."""

    def __init__(self, folder: Path, options: ServeOptions) -> None:
        super().__init__([], options)
        self._boards = LocalBoards(folder, options, "abc")

    def _make_service(self) -> Service:
        return Service((), self.options, LocalModels(self._boards, self.options))


def front(folder: Path) -> Server:
    (folder / "net.rknn").write_bytes(b"model")
    options = ServeOptions(port=0, grpc_port=0, device=FakeDevice(1), drain_timeout=300.0, max_wait_ms=1e6)
    return FrontServer(folder, options)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with front(tmp_path_factory.mktemp("models")) as server:
        yield server


def tensors(module: Any, value: float = 0.5, shape: tuple[int, ...] = (1, 4)) -> list[Any]:
    tensor = module.InferInput("x", list(shape), "FP32")
    tensor.set_data_from_numpy(np.full(shape, value, np.float32))
    return [tensor]


def test_the_front_describes_its_models(server: Server) -> None:
    with triton_http.InferenceServerClient(server.http_address) as client:
        assert client.is_server_ready()
        assert client.is_model_ready("net")
        assert client.get_model_metadata("net")["platform"] == "anynpu_fake1"
        assert [(entry["name"], entry["state"]) for entry in client.get_model_repository_index()] == [("net", "READY")]


def test_an_inference_over_http_is_counted(tmp_path: Path) -> None:
    """On a server of its own: what other tests asked for would be counted a moment later."""
    with front(tmp_path) as server, triton_http.InferenceServerClient(server.http_address) as client:

        def count() -> int:
            return int(client.get_inference_statistics("net")["model_stats"][0]["inference_count"])

        assert count() == 0
        assert client.infer("net", tensors(triton_http)).as_numpy("y") == pytest.approx(1.0)
        wait_until(lambda: count() > 0, "the boards are asked again")  # after 50 ms
        assert count() == 1


@pytest.mark.parametrize(
    ("model", "shape", "status", "text"), [("net", (1, 3), "400", "takes"), ("none", (1, 4), "404", "there is no model 'none'")]
)
def test_what_is_wrong_with_a_request_is_told_as_a_board_says_it(
    server: Server, model: str, shape: tuple[int, ...], status: str, text: str
) -> None:
    with triton_http.InferenceServerClient(server.http_address) as client:
        with pytest.raises(InferenceServerException, match=text) as caught:
            client.infer(model, tensors(triton_http, shape=shape))
        assert caught.value.status() == status


def test_an_inference_over_grpc(server: Server) -> None:
    with triton_grpc.InferenceServerClient(server.grpc_address) as client:
        assert client.infer("net", tensors(triton_grpc)).as_numpy("y") == pytest.approx(1.0)


def test_a_stream_is_answered_in_order(server: Server) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with triton_grpc.InferenceServerClient(server.grpc_address) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        for number in range(6):
            client.async_stream_infer("net", tensors(triton_grpc, number / 8), request_id=str(number))
        results = [answers.get(timeout=PATIENCE) for _ in range(6)]
        client.stop_stream()
    assert [result.get_response().id for result in results] == list("012345")
    assert [float(result.as_numpy("y")[0, 0]) for result in results] == [number / 4 for number in range(6)]


def test_a_session_on_another_machine_sees_one_device_with_all_cores(server: Server) -> None:
    with anynpu.InferenceSession(f"grpc://{server.grpc_address}/net") as session:
        assert session.device.startswith("3 boards: fake NPU")
        assert session.run(None, {"x": np.full((1, 4), 0.5, np.float32)})[0] == pytest.approx(1.0)


def test_status_and_metrics_name_the_boards(server: Server) -> None:
    assert exchange(server, "POST", "/v2/models/net/infer", infer_body())[0] == 200
    (model,) = json.loads(exchange(server, "GET", "/status/data")[2])["models"]
    assert {core["label"].partition("/")[0] for core in model["cores"]} <= {"board-a", "board-b", "board-c"}
    assert model["device"].startswith("3 boards")
    text = exchange(server, "GET", "/metrics")[2].decode()
    assert 'anynpu_requests_total{model="net",outcome="ok",protocol="http",version="1"}' in text
    assert 'anynpu_core_busy_seconds_total{core="board-' in text


def test_a_model_is_unloaded_and_loaded_by_a_client(server: Server) -> None:
    with triton_http.InferenceServerClient(server.http_address) as client:
        client.unload_model("net")
        try:
            with pytest.raises(InferenceServerException, match="is not loaded"):
                client.infer("net", tensors(triton_http))
        finally:
            client.load_model("net")
        assert client.infer("net", tensors(triton_http)).as_numpy("y") == pytest.approx(1.0)
