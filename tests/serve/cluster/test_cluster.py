"""Three virtual boards under Ray on this machine, from their start to their end.

One test, because starting Ray takes most of its time; its parts are functions that say what they show.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

import anynpu
from anynpu.errors import OptionError, ServeError
from anynpu.npu.board import runtime_folder
from anynpu.serve import ServeOptions
from anynpu.serve.cluster import PoolPlan

RUN_MS = 40.0
"""What an inference takes on a board: long enough that the host is never the one who is slow."""

WIDTH = 32
WIDE = (1, 3, 640, 640)


def need_ray() -> None:
    """Ray has no package for the newest Pythons: skip there, unless everything has to run."""
    try:
        import ray  # noqa: F401
    except ImportError:
        if os.environ.get("ANYNPU_REQUIRE_ALL"):
            pytest.fail("Ray is not installed, and ANYNPU_REQUIRE_ALL is set")
        pytest.skip("Ray is not installed")


def compile_model(path: Path, factor: float) -> Path:
    """A model that multiplies its input by *factor*."""
    weights = numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32) * factor, "weights")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weights"], ["y"], "multiply")],
        "multiply",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, WIDTH])],
        [weights],
    )
    source = path.with_suffix(".onnx")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), source)
    samples = [np.random.default_rng(seed).uniform(-1, 1, (1, WIDTH)).astype(np.float32) for seed in range(3)]
    anynpu.compile(source, target="rk3566", dataset=samples).save(path)
    return path


def compile_wide_model(path: Path) -> Path:
    """A model with 4.9 MB of float32 on either side."""
    graph = helper.make_graph(
        [helper.make_node("MaxPool", ["x"], ["y"], "pool", kernel_shape=[3, 3], pads=[1, 1, 1, 1])],
        "wide",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(WIDE))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, list(WIDE))],
    )
    source = path.with_suffix(".onnx")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), source)
    anynpu.compile(source, target="rk3566", dataset=[np.random.default_rng(1).random(WIDE, np.float32)]).save(path)
    return path


def speed_for(path: Path) -> str:
    """The speed of real time at which the model takes RUN_MS."""
    with anynpu.InferenceSession(path, device="sim:rk3566") as session:
        session.run(None, {"x": np.zeros((1, WIDTH), np.float32)})
        predicted = session.statistics.device_ms
    assert predicted is not None
    return f"{predicted / RUN_MS:.9f}"


def tensors(module: Any, value: float = 0.5) -> list[Any]:
    tensor = module.InferInput("x", [1, WIDTH], "FP32")
    tensor.set_data_from_numpy(np.full((1, WIDTH), value, np.float32))
    return [tensor]


def ask(server: Any, model: str = "net", value: float = 0.5) -> float:
    with triton_http.InferenceServerClient(server.http_address, network_timeout=60) as client:
        return float(client.infer(model, tensors(triton_http, value)).as_numpy("y")[0, 0])


def status(server: Any, model: str = "net") -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{server.http_address}/status/data", timeout=20) as answer:
        found: dict[str, Any] = next(one for one in json.load(answer)["models"] if one["name"] == model)
    return found


def boards_of(figures: dict[str, Any]) -> dict[str, int]:
    """Runs by the names of the boards."""
    return {core["label"].partition("/")[0]: core["jobs"] for core in figures["cores"]}


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


class Load:
    """Clients that ask without a pause, each one request at a time; every request leaves exactly one outcome."""

    def __init__(self, server: Any, clients: int, model: str = "net") -> None:
        self.asked = 0
        self.outcomes: Counter[str] = Counter()
        self.values: set[float] = set()
        self._server = server
        self._model = model
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._work) for _ in range(clients)]

    def _work(self) -> None:
        client = triton_http.InferenceServerClient(self._server.http_address, network_timeout=60)
        while not self._stop.is_set():
            with self._lock:
                self.asked += 1
            try:
                value = round(float(client.infer(self._model, tensors(triton_http)).as_numpy("y")[0, 0]), 1)
                outcome = "ok"
            except InferenceServerException as error:
                value, outcome = 0.0, str(error.status())
            with self._lock:
                self.outcomes[outcome] += 1
                self.values |= {value} if outcome == "ok" else set()
            if outcome != "ok":
                time.sleep(0.05)
        client.close()

    def answered(self) -> int:
        with self._lock:
            return self.outcomes["ok"]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(90)
            assert not thread.is_alive(), "a request has no answer"
        assert sum(self.outcomes.values()) == self.asked


@contextmanager
def serving(boards: Any, *plans: PoolPlan, **options: Any) -> Iterator[Any]:
    from anynpu.serve.cluster import ClusterServer

    given = {"port": 0, "grpc_port": 0, "device": "sim:rk3566", "drain_timeout": 20.0, **options}
    with ClusterServer(plans, ServeOptions(**given), address=boards.address) as server:
        yield server


def test_three_boards(tmp_path: Path) -> None:
    need_ray()
    from anynpu.serve.cluster import VirtualBoards

    net, other = compile_model(tmp_path / "net.rknn", 2.0), compile_model(tmp_path / "other.rknn", 3.0)
    wide = compile_wide_model(tmp_path / "wide.rknn")
    environment = {"ANYNPU_REALTIME": speed_for(net)}
    boards = VirtualBoards(3, resources=("large", "large", "small"), present=2, environment=environment)
    with boards:
        a_pool_without_boards_is_told(boards, net)
        the_application_can_be_built_from_a_configuration(net)
        with serving(boards, PoolPlan((str(net), str(wide))), max_wait_ms=1000.0) as server:
            a_board_that_joins_is_taken_in(server, boards)
            the_whole_protocol_goes_through_the_front(server)
            large_tensors_go_both_ways(server)
            who_goes_away_takes_the_request_back_from_its_board(server)
            a_second_front_attaches_and_leaves_everything_as_it_is(server, boards)
            all_boards_take_part(server)
            a_model_is_loaded_anew_on_all_boards(server, net)
            replacing_the_boards_one_by_one_loses_nothing(server)
            a_killed_board_costs_at_most_what_it_had_and_comes_back(server, boards)
        with serving(boards, PoolPlan((str(net),), "large"), PoolPlan((str(other),), "small"), max_queue=1) as server:
            wait_until(lambda: board_count(server) == 2)
            each_pool_serves_its_own_models(server)
            more_than_a_pool_can_do_is_shed(server)
    assert not Path(boards.folder).exists()
    assert not list(runtime_folder().glob(f"board-{boards.board_name(0)}"))


def a_pool_without_boards_is_told(boards: Any, net: Path) -> None:
    with (
        pytest.raises(ServeError, match="no board for pool 'absent'") as caught,
        serving(boards, PoolPlan((str(net),), "absent")),
    ):
        pass
    assert f"ray start --address={boards.address}" in caught.value.hint
    assert '"absent": 1' in caught.value.hint


def the_application_can_be_built_from_a_configuration(net: Path) -> None:
    from anynpu.serve.cluster.application import build

    assert build({"models": [str(net)], "boards": 2, "device": "sim", "pool": "large"}) is not None
    for wrong in ({"models": [str(net)]}, {"boards": 2}, {"models": [str(net)], "boards": 2, "devices": "sim"}):
        with pytest.raises(OptionError):
            build(wrong)


def board_count(server: Any, model: str = "net") -> int:
    """Boards that have a model, as the front tells it."""
    return int(status(server, model)["device"].partition(" ")[0])


def a_board_that_joins_is_taken_in(server: Any, boards: Any) -> None:
    wait_until(lambda: board_count(server) == 2)
    boards.join(2)
    wait_until(lambda: board_count(server) == 3)


def the_whole_protocol_goes_through_the_front(server: Any) -> None:
    with triton_http.InferenceServerClient(server.http_address) as client:
        assert client.is_server_ready()
        assert client.get_model_metadata("net")["platform"] == "anynpu_rk3566"
        assert [(entry["name"], entry["state"]) for entry in client.get_model_repository_index()] == [
            ("net", "READY"),
            ("wide", "READY"),
        ]
        before = client.get_inference_statistics("net")["model_stats"][0]["inference_count"]
        assert client.infer("net", tensors(triton_http)).as_numpy("y") == pytest.approx(1.0, abs=0.05)
        assert client.get_inference_statistics("net")["model_stats"][0]["inference_count"] == before + 1
        wrong = triton_http.InferInput("x", [1, 3], "FP32")
        wrong.set_data_from_numpy(np.zeros((1, 3), np.float32))
        with pytest.raises(InferenceServerException, match="takes") as caught:
            client.infer("net", [wrong])
        assert caught.value.status() == "400"
        with pytest.raises(InferenceServerException, match="there is no model 'none'"):
            client.infer("none", tensors(triton_http))
    with triton_grpc.InferenceServerClient(server.grpc_address) as client:
        assert client.infer("net", tensors(triton_grpc)).as_numpy("y") == pytest.approx(1.0, abs=0.05)
        answers: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: answers.put(error or result))
        for number in range(6):
            client.async_stream_infer("net", tensors(triton_grpc, number / 8), request_id=str(number))
        results = [answers.get(timeout=30) for _ in range(6)]
        client.stop_stream()
        assert [result.get_response().id for result in results] == list("012345")
        assert [float(result.as_numpy("y")[0, 0]) for result in results] == pytest.approx([n / 4 for n in range(6)], abs=0.05)
    with anynpu.InferenceSession(f"grpc://{server.grpc_address}/net") as session:
        assert session.device.startswith("3 boards: software NPU, rk3566")
        assert session.run(None, {"x": np.full((1, WIDTH), 0.5, np.float32)})[0] == pytest.approx(1.0, abs=0.05)
    with urllib.request.urlopen(f"http://{server.http_address}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    assert 'anynpu_requests_total{model="net",outcome="ok",protocol="grpc",version="1"}' in text
    assert 'anynpu_core_busy_seconds_total{core="virtual-' in text


def large_tensors_go_both_ways(server: Any) -> None:
    values = np.random.default_rng(2).random(WIDE, np.float32)
    tensor = triton_grpc.InferInput("x", list(WIDE), "FP32")
    tensor.set_data_from_numpy(values)
    with triton_grpc.InferenceServerClient(server.grpc_address) as client:
        result = client.infer("wide", [tensor]).as_numpy("y")
    assert result.shape == WIDE
    assert result[0, 0, 1, 1] == pytest.approx(values[0, 0, :3, :3].max(), abs=0.02)


def who_goes_away_takes_the_request_back_from_its_board(server: Any) -> None:
    size = int(np.prod(WIDE))
    tensor = {"name": "x", "datatype": "UINT8", "shape": list(WIDE), "parameters": {"binary_data_size": size}}
    text = json.dumps({"inputs": [tensor]}).encode()
    lengths = f"Content-Length: {len(text) + size}\r\nInference-Header-Content-Length: {len(text)}"
    head = f"POST /v2/models/wide/infer HTTP/1.1\r\nHost: 127.0.0.1\r\n{lengths}\r\n\r\n".encode()
    before = status(server, "wide")
    host, _, port = server.http_address.partition(":")
    connections = [socket.create_connection((host, int(port)), timeout=20) for _ in range(6)]
    for connection in connections:
        connection.sendall(head + text + bytes(size))
    wait_until(lambda: status(server, "wide")["running"] > 0)
    for connection in connections:
        connection.close()
    wait_until(lambda: (now := status(server, "wide"))["cancelled"] + now["answered"] - before["answered"] == 6)
    wait_until(lambda: (now := status(server, "wide"))["running"] + now["waiting"] == 0)
    assert status(server, "wide")["cancelled"] >= 3, "the boards have run what nobody waited for"


def a_second_front_attaches_and_leaves_everything_as_it_is(server: Any, boards: Any) -> None:
    options = ("--attach", "--address", boards.address, "--port", "0", "--grpc-port", "-1")
    command = [sys.executable, "-m", "anynpu.cli", "cluster", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    killer = threading.Timer(60, process.kill)
    killer.start()
    try:
        assert process.stderr is not None
        found = next(match for line in process.stderr if (match := re.search(r"serving on http://(\S+) ", line)))
        with triton_http.InferenceServerClient(found[1], network_timeout=60) as client:
            assert client.infer("net", tensors(triton_http)).as_numpy("y") == pytest.approx(1.0, abs=0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        killer.cancel()
        process.kill()
        process.wait(30)
        assert process.stderr is not None
        process.stderr.close()
    assert board_count(server) == 3
    assert ask(server) == pytest.approx(1.0, abs=0.05)


def all_boards_take_part(server: Any) -> None:
    before = boards_of(status(server))
    with Load(server, 6) as load:
        wait_until(lambda: load.answered() >= 45)
    after = boards_of(status(server))
    runs = [after[board] - before.get(board, 0) for board in after]
    assert len(runs) == 3
    assert min(runs) >= 0.2 * sum(runs), runs
    assert set(load.outcomes) == {"ok"}


def a_model_is_loaded_anew_on_all_boards(server: Any, net: Path) -> None:
    compile_model(net, 4.0)
    with Load(server, 4) as load, triton_http.InferenceServerClient(server.http_address, network_timeout=60) as client:
        client.load_model("net")
        seen = load.answered()
        wait_until(lambda: load.answered() >= seen + 12)
    assert set(load.outcomes) == {"ok"}
    assert load.values <= {1.0, 2.0}
    assert {round(ask(server), 1) for _ in range(9)} == {2.0}


def replacing_the_boards_one_by_one_loses_nothing(server: Any) -> None:
    with Load(server, 4) as load:
        server.update()
        seen = load.answered()
        wait_until(lambda: load.answered() >= seen + 12)
    assert set(load.outcomes) == {"ok"}, load.outcomes
    wait_until(lambda: board_count(server) == 3)


def a_killed_board_costs_at_most_what_it_had_and_comes_back(server: Any, boards: Any) -> None:
    victim = boards.board_name(1)
    assert victim in boards_of(status(server))
    clients = 6
    with Load(server, clients) as load:
        wait_until(lambda: load.answered() >= 12)
        boards.kill(1)
        wait_until(lambda: victim not in boards_of(status(server)))
        seen = load.answered()
        wait_until(lambda: load.answered() >= seen + 20)
        assert board_count(server) == 2
        boards.join(1)
        wait_until(lambda: boards_of(status(server)).get(victim, 0) >= 10)
    failed = load.asked - load.outcomes["ok"]
    assert failed <= clients, load.outcomes
    assert set(load.outcomes) <= {"ok", "503"}, load.outcomes
    assert board_count(server) == 3


def each_pool_serves_its_own_models(server: Any) -> None:
    for model, expected, count in (("net", 2.0, 2), ("other", 1.5, 1)):
        assert ask(server, model) == pytest.approx(expected, abs=0.05)
        assert board_count(server, model) == count
    with triton_http.InferenceServerClient(server.http_address) as client:
        assert [entry["name"] for entry in client.get_model_repository_index()] == ["net", "other"]


def more_than_a_pool_can_do_is_shed(server: Any) -> None:
    with Load(server, 8, "other") as load:
        wait_until(lambda: load.answered() >= 10 and sum(load.outcomes.values()) > load.answered())
        assert ask(server, "net") == pytest.approx(2.0, abs=0.05)
    assert set(load.outcomes) == {"ok", "429"}, load.outcomes
