"""Three virtual boards beside one, and the front of the cluster beside a plain server, in real time.

The boards, the gateway and the plain server are processes of their own on this machine, which has to compute for all of them: the model
whose throughput is measured is slow on its chip, because it reads many weights, and quick here. Then a board is killed under load, and
comes back.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from anynpu._util.optional import onnx
from anynpu.compiler import compile
from anynpu.errors import MissingDependencyError

from . import print_table
from .bench_serve import LARGE, SMALL, Served, _model, _process
from .engine_timing import verdict

BOARDS = 3
RATIO_GOAL = 2.5
SECONDS = 12.0
ROUNDS = 80
SOAK_SECONDS = 60.0
SEED = 25
WIDTH, LAYERS = 2048, 32
CHIP = "rk3566"
REAL_TIME = {"ANYNPU_REALTIME": "1"}
SOAK_TIME = {"ANYNPU_REALTIME": "0.02"}
"""A fiftieth of the speed: boards are busy, and this machine is not."""

if TYPE_CHECKING:
    from anynpu.serve.cluster import VirtualBoards

Ask = Callable[[], Any]


def main() -> None:
    """Print the tables."""
    try:
        from anynpu.serve.cluster import VirtualBoards
    except MissingDependencyError as error:
        print(f"\nNo benchmark of the cluster: {error}")
        return
    with tempfile.TemporaryDirectory() as folder:
        models = _models(Path(folder))
        with VirtualBoards(BOARDS, environment=REAL_TIME) as boards:
            with _process([*_cluster(models, boards), "--boards", "1"]) as one:
                single = _rate(one, 1)
            with _process(_cluster(models, boards)) as front:
                _wait_for(front, BOARDS)
                several = _rate(front, BOARDS)
                _print_throughput(single, several)
                with _process(_plain(models), **REAL_TIME) as plain:
                    rows = [_latency(kind, plain, front, name) for kind in ("http", "grpc") for name in ("small", "large")]
                    memory = _memory({front[0].pid: "front", plain[0].pid: "plain server with the same models"})
                header = ("p50, one client", "plain server ms", "cluster ms", "gateway and Ray add ms")
                print_table("The front of a cluster", header, rows)
                print_table("Memory (PSS, MB)", ("", "processes", "MB"), memory)
                _lose_a_board(front, boards)


def soak() -> None:
    """Boards are lost and come back at random under load: every request has one answer, and all boards serve afterwards."""
    from anynpu.serve.cluster import VirtualBoards

    chance = random.Random(SEED)
    with tempfile.TemporaryDirectory() as folder:
        models = [f"slow={_slow_model(Path(folder), layers=1)}"]  # which takes long by the speed of the boards
        with VirtualBoards(BOARDS, environment=SOAK_TIME) as boards, _process(_cluster(models, boards)) as front:
            _wait_for(front, BOARDS)
            there, losses = set(range(BOARDS)), 0
            with _Clients(front, BOARDS - 1) as clients:
                end = time.monotonic() + SOAK_SECONDS
                while time.monotonic() < end:
                    time.sleep(chance.uniform(0.5, 4.0))
                    number = chance.randrange(BOARDS)
                    if number not in there:
                        boards.join(number)
                        there.add(number)
                    elif _boards(front) > 1:  # one is left that serves
                        boards.kill(number)
                        there.remove(number)
                        losses += 1
                for number in set(range(BOARDS)) - there:
                    boards.join(number)
                _wait_for(front, BOARDS)
                restored = len(clients.outcomes)
                for _ in range(600):
                    if len(clients.outcomes) >= restored + ROUNDS:
                        break
                    time.sleep(0.1)
            after = Counter(outcome for _, outcome in clients.outcomes[restored:])
    rows = [
        ("boards lost", str(losses)),
        ("requests, and those with one answer or error", f"{clients.asked}, {len(clients.outcomes)}"),
        ("answered", str(sum(outcome == "answered" for _, outcome in clients.outcomes))),
        ("rejected, and why", _others(clients)),
        ("after the last loss", ", ".join(f"{count} {name}" for name, count in after.items())),
    ]
    print_table(f"Boards lost at random for {SOAK_SECONDS:g} s", ("", "measured"), rows)
    refusals = {outcome for _, outcome in clients.outcomes} - {"answered"}
    if clients.waiting() or clients.asked != len(clients.outcomes):
        raise RuntimeError("a request has no answer")
    if not losses or refusals - {"StatusCode.UNAVAILABLE", "StatusCode.RESOURCE_EXHAUSTED"}:
        raise RuntimeError(f"{losses} losses, rejected with {', '.join(sorted(refusals))}")
    if after["answered"] < ROUNDS or set(after) != {"answered"}:
        raise RuntimeError(f"no full service after the losses: {dict(after)}")


def _models(folder: Path) -> list[str]:
    made = []
    for name, size in (("large", LARGE), ("small", SMALL)):
        (folder / name).mkdir()
        made.append(f"{name}={_model(folder / name, size)}")
    return [*made, f"slow={_slow_model(folder)}"]


def _slow_model(folder: Path, layers: int = LAYERS) -> Path:
    """Layers that read their weights once: the memory of the chip takes long, that of this machine does not."""
    helper, kinds = onnx().helper, onnx().TensorProto
    weights = (np.random.default_rng(1).standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32)
    names = ["x", *(f"values{layer}" for layer in range(layers - 1)), "y"]
    graph = helper.make_graph(
        [helper.make_node("MatMul", [names[layer], "weights"], [names[layer + 1]], f"layer{layer}") for layer in range(layers)],
        "slow",
        [helper.make_tensor_value_info("x", kinds.FLOAT, [1, WIDTH])],
        [helper.make_tensor_value_info("y", kinds.FLOAT, [1, WIDTH])],
        [onnx().numpy_helper.from_array(weights, "weights")],
    )
    path = folder / "slow.onnx"
    onnx().save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    data = [{"x": np.random.default_rng(2).standard_normal((1, WIDTH)).astype(np.float32)}]
    return Path(compile(path, CHIP, dataset=data).save(folder / "slow.rknn"))


def _plain(models: Sequence[str]) -> list[str]:
    command = [sys.executable, "-m", "anynpu.cli", "serve", *models, "--device", "sim", "--layout", "nhwc"]
    return [*command, "--port", "0", "--grpc-port", "0"]


def _cluster(models: Sequence[str], boards: VirtualBoards) -> list[str]:
    command = [sys.executable, "-m", "anynpu.cli", "cluster", *models, "--device", "sim", "--layout", "nhwc"]
    return [*command, "--port", "0", "--grpc-port", "0", "--address", boards.address]


def _client(kind: str, served: Served, name: str) -> tuple[Any, Ask]:
    """A client and what asks once."""
    module: Any
    if kind == "http":
        import tritonclient.http as module
    else:
        import tritonclient.grpc as module
    client = module.InferenceServerClient(served[1] if kind == "http" else served[2])
    rng = np.random.default_rng(3)
    if name == "slow":
        values: Any = rng.standard_normal((1, WIDTH)).astype(np.float32)
    else:
        size = LARGE if name == "large" else SMALL
        values = rng.integers(0, 256, (1, size, size, 3), np.uint8)
    tensor = module.InferInput("x", list(values.shape), "FP32" if name == "slow" else "UINT8")
    tensor.set_data_from_numpy(values)
    return client, lambda: client.infer(name, [tensor]).as_numpy("y")


class _Clients:
    """Two clients for each of so many boards, each with one request at a time."""

    def __init__(self, served: Served, boards: int) -> None:
        self.asked = 0
        self.outcomes: list[tuple[float, str]] = []
        self._lock = threading.Lock()
        self._served = served
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work) for _ in range(2 * boards)]

    def _work(self) -> None:
        from tritonclient.utils import InferenceServerException

        client, ask = _client("grpc", self._served, "slow")
        while not self._stop.is_set():
            with self._lock:
                self.asked += 1
            try:
                ask()
                outcome = "answered"
            except InferenceServerException as error:
                outcome = str(error.status())
                time.sleep(0.02)
            self.outcomes.append((time.monotonic(), outcome))
        client.close()

    def __enter__(self) -> _Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120)

    def waiting(self) -> int:
        """Clients that still wait for an answer, after the end."""
        return sum(thread.is_alive() for thread in self._threads)

    def rate(self, begin: float, end: float) -> float:
        """Answers a second."""
        return sum(begin <= at < end and outcome == "answered" for at, outcome in self.outcomes) / (end - begin)


def _rate(served: Served, boards: int) -> float:
    with _Clients(served, boards) as clients:
        time.sleep(2.0)
        begin = time.monotonic()
        time.sleep(SECONDS)
        end = time.monotonic()
    return clients.rate(begin, end)


def _print_throughput(single: float, several: float) -> None:
    ratio = several / single
    header = ("inferences a second, real time", "1 board", f"{BOARDS} boards", "ratio", "goal")
    row = (f"{LAYERS} layers of {WIDTH} x {WIDTH}, {CHIP}", f"{single:.1f}", f"{several:.1f}", f"{ratio:.2f}")
    print_table("Throughput of a cluster", header, [(*row, verdict(ratio, RATIO_GOAL, at_least=True))])


def _latency(kind: str, plain: Served, front: Served, name: str) -> tuple[str, ...]:
    asks = {"plain": _client(kind, plain, name), "front": _client(kind, front, name)}
    times: dict[str, list[float]] = {"plain": [], "front": []}
    for turn in range(ROUNDS + 10):
        for side, (_, ask) in asks.items():
            started = time.perf_counter()
            ask()
            if turn >= 10:
                times[side].append(time.perf_counter() - started)
    for client, _ in asks.values():
        client.close()
    what = f"{kind}, {'1.2 MB' if name == 'large' else '768 bytes'}"
    ours, theirs = (1e3 * statistics.median(times[side]) for side in ("plain", "front"))
    return what, f"{ours:.2f}", f"{theirs:.2f}", f"{theirs - ours:.2f}"


def _memory(named: dict[int, str]) -> list[tuple[str, str, str]]:
    """By what they belong to: a process of *named*, a board, or else the head of the Ray cluster; children belong to their parents."""
    groups: dict[str, list[float]] = {}

    def add(process: psutil.Process, group: str) -> None:
        try:
            board = process.environ().get("ANYNPU_BOARD", "") if group == "head" else ""
            group = named.get(process.pid) or (f"board {board.rpartition('-')[2]}" if board else group)
            groups.setdefault(group, []).append(process.memory_full_info().pss / 2**20)
            for child in process.children():
                add(child, group)
        except psutil.Error:
            return  # it has just ended

    for process in psutil.Process().children():
        add(process, "head")
    return [(name, str(len(sizes)), f"{sum(sizes):.0f}") for name, sizes in sorted(groups.items())]


def _lose_a_board(front: Served, boards: VirtualBoards) -> None:
    with _Clients(front, BOARDS - 1) as clients:  # as many as two boards can serve
        time.sleep(3.0)
        killed = time.monotonic()
        boards.kill(1)
        time.sleep(15.0)
        joined = time.monotonic()
        boards.join(1)
        _wait_for(front, BOARDS)
        back = time.monotonic()
        time.sleep(6.0)
        end = time.monotonic()
    rates = [clients.rate(killed - 2, killed), clients.rate(joined - 6, joined), clients.rate(end - 5, end)]
    rows = [
        ("answers a second: three boards, two, three again", ", ".join(f"{rate:.1f}" for rate in rates)),
        ("seconds from the loss to full service on two", f"{_recovered(clients, killed, rates[1]):.1f}"),
        ("seconds from its return to its first report", f"{back - joined:.1f}"),
        ("requests that failed, and why", _others(clients)),
        ("requests", str(len(clients.outcomes))),
    ]
    print_table("A board is killed under load, and comes back", ("", "measured"), rows)


def _recovered(clients: _Clients, since: float, rate: float) -> float:
    """Seconds until the answers of a whole second come at nine tenths of *rate*."""
    step = 0.25
    at = since + 0.5
    while at < since + 15 and clients.rate(at, at + 1.0) < 0.9 * rate:
        at += step
    return at - since


def _others(clients: _Clients) -> str:
    counts = Counter(outcome for _, outcome in clients.outcomes if outcome != "answered")
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "0"


def _boards(served: Served) -> int:
    """Boards that the gateway knows."""
    with urllib.request.urlopen(f"http://{served[1]}/status/data", timeout=30) as answer:
        models = json.load(answer)["models"]
    found = [str(model["device"]).partition(" ")[0] for model in models if model["name"] == "slow"]
    return int(found[0]) if found and found[0].isdigit() else 0


def _wait_for(served: Served, boards: int) -> None:
    """Until the gateway knows so many boards."""
    for _ in range(600):
        if _boards(served) == boards:
            return
        time.sleep(0.1)
    raise RuntimeError(f"there are no {boards} boards")
