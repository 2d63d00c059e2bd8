"""What is Ray's: real virtual boards on this machine, one behavior per test. What is ours is tested without Ray, in the other files.

All tests share one cluster, because starting Ray takes longer than they do: two boards in the pool ``large``, one in the pool ``small``.
Each test finds it whole and leaves it whole, in any order.
"""

from __future__ import annotations

import json
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from onnx import TensorProto, helper, numpy_helper
from tools import need_module
from tritonclient.utils import InferenceServerException
from waiting import wait_until as wait_for

import anynpu
from anynpu.errors import OptionError
from anynpu.npu.board import runtime_folder
from anynpu.serve import ServeOptions
from anynpu.serve.cluster import PoolPlan

if TYPE_CHECKING:
    from anynpu.serve.cluster import ClusterServer, VirtualBoards

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("ray")]

RUN_MS = 100.0
"""What an inference of the small models takes on a board; those of the wide one take seconds."""

GUARD = 600.0
"""Seconds after which a test is taken for hung: on a machine with other work Ray takes a minute to start."""

WIDTH = 32
WIDE = (1, 3, 640, 640)


@pytest.fixture(scope="module", autouse=True)
def need_ray() -> None:
    """Ray has no package for the newest Pythons: skip there, unless everything has to run."""
    need_module("ray")


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


@dataclass(frozen=True)
class Cluster:
    """Boards, their gateway, and a model file that tests may change."""

    boards: VirtualBoards
    server: ClusterServer
    changing: Path

    def url(self, path: str) -> str:
        return f"http://{self.server.http_address}{path}"

    @contextmanager
    def client(self) -> Iterator[Any]:
        with triton_http.InferenceServerClient(
            self.server.http_address, network_timeout=GUARD, connection_timeout=GUARD
        ) as client:
            yield client

    def ask(self, model: str = "net", value: float = 0.5) -> float:
        """What the model answers, to one digit."""
        with self.client() as client:
            return round(float(client.infer(model, tensors(triton_http, value)).as_numpy("y")[0, 0]), 1)

    def status(self, model: str = "net") -> dict[str, Any]:
        with urllib.request.urlopen(self.url("/status/data"), timeout=GUARD) as answer:
            found: dict[str, Any] = next(one for one in json.load(answer)["models"] if one["name"] == model)
        return found

    def runs(self, model: str = "net") -> dict[str, int]:
        """Runs of a model by the names of the boards that are there."""
        return {core["label"].partition("/")[0]: core["jobs"] for core in self.status(model)["cores"]}

    def board_count(self, model: str = "net") -> int:
        """Boards that have a model, as the gateway reports it."""
        return int(self.status(model)["device"].partition(" ")[0])

    def ask_until_every_board_has_run(self, model: str, boards: int) -> set[float]:
        """All answers until each of *boards* boards has given one at least."""
        before = self.runs(model)
        answers: set[float] = set()

        def done() -> bool:
            with ThreadPoolExecutor(4) as pool:
                answers.update(pool.map(lambda _: self.ask(model), range(4)))
            now = self.runs(model)
            return sum(count > before.get(board, 0) for board, count in now.items()) == boards

        wait_until(done, "every board runs a request")
        return answers


@pytest.fixture(scope="module")
def cluster(need_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    from anynpu.serve.cluster import ClusterServer, VirtualBoards

    folder = tmp_path_factory.mktemp("models")
    net, other = compile_model(folder / "net.rknn", 2.0), compile_model(folder / "other.rknn", 3.0)
    changing, wide = compile_model(folder / "changing.rknn", 2.0), compile_wide_model(folder / "wide.rknn")
    plans = PoolPlan((str(net), str(changing), str(wide)), "large"), PoolPlan((str(other),), "small")
    options = ServeOptions(port=0, grpc_port=0, device="sim:rk3566", timeout=GUARD, max_wait_ms=1e6, drain_timeout=300.0)
    environment = {"ANYNPU_REALTIME": speed_for(net)}
    boards = VirtualBoards(3, resources=("large", "small", "large"), present=2, environment=environment)
    with boards, ClusterServer(plans, options, address=boards.address) as server:
        made = Cluster(boards, server, changing)
        wait_until(lambda: made.board_count() == 1, "the first board is there")
        boards.join(2)
        wait_until(lambda: made.board_count() == 2, "a board that joins is taken in")
        yield made
    assert not Path(boards.folder).exists()
    assert not list(runtime_folder().glob(f"board-{boards.board_name(0)}"))


def wait_until(condition: Callable[[], object], what: str) -> None:
    def holds() -> object:
        time.sleep(0.1)  # every look at the status asks all boards
        return condition()

    wait_for(holds, what, GUARD)


def tensors(module: Any, value: float = 0.5) -> list[Any]:
    tensor = module.InferInput("x", [1, WIDTH], "FP32")
    tensor.set_data_from_numpy(np.full((1, WIDTH), value, np.float32))
    return [tensor]


class Load:
    """Clients that ask without a pause, each one request at a time; every request leaves exactly one outcome."""

    def __init__(self, cluster: Cluster, clients: int, model: str = "net") -> None:
        self.asked = 0
        self.outcomes: Counter[str] = Counter()
        self.values: set[float] = set()
        self._cluster = cluster
        self._model = model
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._work) for _ in range(clients)]

    def _work(self) -> None:
        with self._cluster.client() as client:
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
                    self._stop.wait(0.05)

    def answered(self) -> int:
        with self._lock:
            return self.outcomes["ok"]

    def wait_for_answers(self) -> None:
        """Until each client may have had one from now on."""
        seen = self.answered()
        wait_until(lambda: self.answered() > seen + len(self._threads), "clients are answered")

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(GUARD)
            assert not thread.is_alive(), "a request has no answer"
        assert sum(self.outcomes.values()) == self.asked


def test_an_application_can_be_built_from_a_configuration() -> None:
    from anynpu.serve.cluster.application import build

    assert build({"models": ["net.rknn"], "boards": 2, "device": "sim", "pool": "large"}) is not None


@pytest.mark.parametrize(
    "wrong", [{"models": ["net.rknn"]}, {"boards": 2}, {"models": ["net.rknn"], "boards": 2, "devices": "sim"}]
)
def test_a_configuration_that_does_not_fit_is_refused(wrong: dict[str, Any]) -> None:
    from anynpu.serve.cluster.application import build

    with pytest.raises(OptionError):
        build(wrong)


HELPER = """
import os, sys
log = open(os.path.join(sys.argv[1], "log"), "w")
print("ready", flush=True)
sys.stdin.readline()
os.makedirs(os.path.join(sys.argv[1], "late"), exist_ok=True)
"""


def test_the_folder_of_virtual_boards_goes_when_the_last_helper_has_ended(tmp_path: Path) -> None:
    """Ray's helpers end after their node, and write until then: the folder would be there again."""
    from anynpu.serve.cluster import VirtualBoards

    boards = VirtualBoards(1)
    folder = tmp_path / "boards"
    folder.mkdir()
    boards.folder = str(folder)
    command = [sys.executable, "-c", HELPER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as helper:
        assert helper.stdin is not None
        assert helper.stdout is not None
        assert helper.stdout.readline() == "ready\n"
        stopping = threading.Thread(target=boards.stop)
        stopping.start()
        stopping.join(0.2)
        assert stopping.is_alive()
        assert (folder / "log").exists()
        helper.stdin.write("\n")
    stopping.join(GUARD)
    assert not folder.exists()


def test_a_node_that_does_not_come_up_is_started_again_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    from anynpu.serve.cluster import VirtualBoards

    class Nodes:
        """A cluster whose nodes end while they come up, so many of them."""

        def __init__(self, ends: int) -> None:
            self.ends = ends
            self.addresses: list[str] = []

        def add_node(self, node_ip_address: str, **_: object) -> object:
            self.addresses.append(node_ip_address)
            if len(self.addresses) <= self.ends:
                raise Exception("timed out during startup")  # as Ray states it
            return object()

    boards = VirtualBoards(8)
    boards._cluster = Nodes(2)
    boards.join(7)
    used = boards._cluster.addresses
    assert len({boards.host, *used}) == 4
    assert {address.rpartition(".")[0] for address in used} == {boards.host.rpartition(".")[0]}
    assert all(socket.inet_aton(address)[0] == 127 for address in used)
    assert len(caplog.records) == 2
    boards._cluster = Nodes(3)
    with pytest.raises(Exception, match="timed out during startup"):
        boards.join(0)


def test_a_head_that_does_not_come_up_is_started_again_and_leaves_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray.cluster_utils

    from anynpu.serve.cluster import VirtualBoards

    left: list[subprocess.Popen[bytes]] = []

    class Cluster:
        def __init__(self, **_: object) -> None:
            if not left:
                with Path(boards.folder, "log").open("w") as log:
                    left.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], stdout=log))
                raise Exception("timed out during startup")  # as Ray states it

        def shutdown(self) -> None:
            pass

    monkeypatch.setattr(ray.cluster_utils, "Cluster", Cluster)
    boards = VirtualBoards(2, present=0)
    with boards:
        with left[0] as process:
            assert process.wait(GUARD) == -signal.SIGKILL
        folder = Path(boards.folder)
        assert folder.exists()
    assert not folder.exists()


def test_all_boards_take_part_and_one_that_joined_later_too(cluster: Cluster) -> None:
    assert sorted(cluster.runs()) == [cluster.boards.board_name(0), cluster.boards.board_name(2)]
    assert cluster.ask_until_every_board_has_run("net", 2) == {1.0}


def test_each_pool_serves_its_own_models(cluster: Cluster) -> None:
    assert (cluster.ask("net"), cluster.ask("other")) == (1.0, 1.5)
    assert (cluster.board_count("net"), cluster.board_count("other")) == (2, 1)
    with cluster.client() as client:
        names = [entry["name"] for entry in client.get_model_repository_index()]
    assert names == ["changing", "net", "other", "wide"]


def test_what_is_wrong_with_a_request_is_told_as_the_board_says_it(cluster: Cluster) -> None:
    wrong = triton_http.InferInput("x", [1, 3], "FP32")
    wrong.set_data_from_numpy(np.zeros((1, 3), np.float32))
    with cluster.client() as client, pytest.raises(InferenceServerException, match="takes") as caught:
        client.infer("net", [wrong])
    assert caught.value.status() == "400"


def test_a_stream_over_grpc_is_answered_in_order(cluster: Cluster) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with triton_grpc.InferenceServerClient(cluster.server.grpc_address) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        for number in range(6):
            client.async_stream_infer("net", tensors(triton_grpc, number / 8), request_id=str(number))
        results = [answers.get(timeout=GUARD) for _ in range(6)]
        client.stop_stream()
    assert [result.get_response().id for result in results] == list("012345")
    assert [float(result.as_numpy("y")[0, 0]) for result in results] == pytest.approx([n / 4 for n in range(6)], abs=0.05)


def test_a_session_sees_all_boards_as_one_device(cluster: Cluster) -> None:
    with anynpu.InferenceSession(f"grpc://{cluster.server.grpc_address}/net") as session:
        assert session.device.startswith("2 boards: software NPU, rk3566")
        assert session.run(None, {"x": np.full((1, WIDTH), 0.5, np.float32)})[0] == pytest.approx(1.0, abs=0.05)


def test_metrics_name_the_boards(cluster: Cluster) -> None:
    assert cluster.ask() == 1.0
    with urllib.request.urlopen(cluster.url("/metrics"), timeout=GUARD) as answer:
        text = answer.read().decode()
    assert 'anynpu_requests_total{model="net",outcome="ok",protocol="http",version="1"}' in text
    assert 'anynpu_core_busy_seconds_total{core="virtual-' in text


def test_large_tensors_go_both_ways(cluster: Cluster) -> None:
    values = np.random.default_rng(2).random(WIDE, np.float32)
    tensor = triton_grpc.InferInput("x", list(WIDE), "FP32")
    tensor.set_data_from_numpy(values)
    with triton_grpc.InferenceServerClient(cluster.server.grpc_address) as client:
        result = client.infer("wide", [tensor]).as_numpy("y")
    assert result.shape == WIDE
    assert result[0, 0, 1, 1] == pytest.approx(values[0, 0, :3, :3].max(), abs=0.02)


def test_who_goes_away_takes_the_request_back_from_its_board(cluster: Cluster) -> None:
    size, count = int(np.prod(WIDE)), 6
    tensor = {"name": "x", "datatype": "UINT8", "shape": list(WIDE), "parameters": {"binary_data_size": size}}
    text = json.dumps({"inputs": [tensor]}).encode()
    lengths = f"Content-Length: {len(text) + size}\r\nInference-Header-Content-Length: {len(text)}"
    head = f"POST /v2/models/wide/infer HTTP/1.1\r\nHost: 127.0.0.1\r\n{lengths}\r\n\r\n".encode()
    before, runs = cluster.status("wide"), sum(cluster.runs("wide").values())
    host, _, port = cluster.server.http_address.partition(":")
    connections = [socket.create_connection((host, int(port)), timeout=GUARD) for _ in range(count)]
    for connection in connections:
        connection.sendall(head + text + bytes(size))
    wait_until(lambda: cluster.status("wide")["running"] > 0, "a board runs a request")  # which takes it seconds
    for connection in connections:
        connection.close()

    def left() -> int:
        now = cluster.status("wide")
        ended = now["cancelled"] + now["answered"] - before["cancelled"] - before["answered"]
        return int(count - ended + now["running"] + now["waiting"])

    wait_until(lambda: left() == 0, "all requests have left the boards")
    assert sum(cluster.runs("wide").values()) - runs < count, "the boards have run what nobody waited for"


def test_a_second_front_attaches_and_leaves_everything_as_it_is(cluster: Cluster) -> None:
    options = ("--attach", "--pool", "large", "--address", cluster.boards.address, "--port", "0", "--grpc-port", "-1")
    command = [sys.executable, "-m", "anynpu.cli", "cluster", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    killer = threading.Timer(GUARD, process.kill)
    killer.start()
    try:
        found = next(match for line in process.stderr if (match := re.search(r"serving on http://(\S+)", line)))
        with triton_http.InferenceServerClient(found[1], network_timeout=GUARD) as client:
            assert client.infer("net", tensors(triton_http)).as_numpy("y") == pytest.approx(1.0, abs=0.05)
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(GUARD) == 0
    finally:
        killer.cancel()
        process.kill()
        process.wait(GUARD)
        process.stderr.close()
    assert cluster.board_count() == 2
    assert cluster.ask() == 1.0


def set_factor(cluster: Cluster, factor: float) -> None:
    compile_model(cluster.changing, factor)
    with cluster.client() as client:
        client.load_model("changing")


def test_a_model_is_loaded_anew_on_all_boards_and_nothing_is_lost(cluster: Cluster) -> None:
    set_factor(cluster, 2.0)
    with Load(cluster, 4, "changing") as load:
        load.wait_for_answers()
        set_factor(cluster, 4.0)
        load.wait_for_answers()
    assert set(load.outcomes) == {"ok"}, load.outcomes
    assert load.values == {1.0, 2.0}
    assert cluster.ask_until_every_board_has_run("changing", 2) == {2.0}


def test_replacing_board_by_board_loses_nothing_and_takes_the_files_as_they_are(cluster: Cluster) -> None:
    set_factor(cluster, 2.0)
    compile_model(cluster.changing, 6.0)
    with Load(cluster, 4, "changing") as load:
        load.wait_for_answers()
        cluster.server.update()
        load.wait_for_answers()
    assert set(load.outcomes) == {"ok"}, load.outcomes
    assert load.values == {1.0, 3.0}
    wait_until(lambda: cluster.board_count() == 2, "all boards are there again")
    assert cluster.ask_until_every_board_has_run("changing", 2) == {3.0}


def test_a_killed_board_costs_at_most_what_it_had_and_comes_back(cluster: Cluster) -> None:
    victim, clients = cluster.boards.board_name(2), 6
    assert victim in cluster.runs()
    with Load(cluster, clients) as load:
        load.wait_for_answers()
        cluster.boards.kill(2)
        try:
            wait_until(lambda: victim not in cluster.runs(), "the loss is noticed")
            assert cluster.board_count() == 1
            load.wait_for_answers()
        finally:
            cluster.boards.join(2)
        wait_until(lambda: cluster.runs().get(victim, 0) > 0, "the board is back and runs requests")
    assert load.asked - load.outcomes["ok"] <= clients, load.outcomes
    assert set(load.outcomes) <= {"ok", "503"}, load.outcomes
    assert cluster.board_count() == 2
