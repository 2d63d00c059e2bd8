"""The server beside a bare echo server on the same libraries, asked by tritonclient: an image of 1.2 MB, small requests, idle memory.

The two are processes of their own and take turns. What the inference itself takes is known from the server's statistics and is taken off.

``soak()`` offers a server ten times what it can do, for a minute: small requests to cores that only sleep, images to a slow chip in real
time.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from anynpu._util.optional import onnx
from anynpu.compiler import compile

from . import print_table
from .engine_timing import verdict
from .serve_load import offer
from .serve_sleeper import CORES

RATIO_GOAL = 1.5
MEMORY_GOAL = 90.0
ROUNDS = 120
SMALL_SECONDS = 2.0
SMALL_ROUNDS = 3
CLIENTS = 4
SOAK_SECONDS = 60.0
WARM_SECONDS = 5.0
P99_GOAL = 2.0
GROWTH_MB = 32.0
LARGE, SMALL = 640, 16
SLOW_CHIP = "rk3566"
SLOW_LAYERS, SLOW_WIDTH = 6, 4096
ECHO = [sys.executable, "-m", "benchmarks.serve_echo"]


def main() -> None:
    """Print the tables."""
    with tempfile.TemporaryDirectory() as folder, _process(_ours(_model(Path(folder), LARGE))) as ours, _process(ECHO) as echo:
        idle = [_memory(process) for process in (ours[0], echo[0])]
        rows = [_latency(kind, ours, echo) for kind in ("http", "grpc")]
        header = ("p50 of 1x640x640x3 uint8", "echo ms", "anynpu ms", "of it inference ms", "ratio without", "goal")
        print_table("Serving an image, tritonclient", header, rows)
    rows = [(kind, f"{bare:.0f}", f"{own:.0f}", f"{own / bare:.2f}") for kind, bare, own in small_requests()]
    header = (f"small requests, {CLIENTS} clients", "echo a second", "anynpu a second", "ratio")
    print_table("Serving small requests", header, rows)
    row = ("idle server", f"{idle[1]:.0f}", f"{idle[0]:.0f}", verdict(idle[0], MEMORY_GOAL))
    print_table("Memory (PSS, MB)", ("", "echo", "anynpu", "goal"), [row])


def soak() -> None:
    """Ten times the capacity for a minute: accepted requests stay quick, the rest is shed, memory does not grow."""
    body = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}'
    with tempfile.NamedTemporaryFile(suffix=".rknn") as model:
        model.write(b"sleeps")
        model.flush()
        with _process([sys.executable, "-m", "benchmarks.serve_sleeper", model.name]) as (process, address, _):
            _overload("small requests", process, address, _post(body), CORES)
    with tempfile.TemporaryDirectory() as folder:
        command = _ours(_slow_model(Path(folder)), SLOW_CHIP)
        # in real time, so that the chip and not this machine is what is short
        with _process(command, ANYNPU_REALTIME="1") as (process, address, _):
            _overload("images of 1.2 MB", process, address, _post(*_picture()))


def _overload(what: str, process: subprocess.Popen[str], address: str, request: bytes, cores: int = 1) -> None:
    offer(address, request, 1.0)
    alone = offer(address, request, 5.0)
    rate = 10 * cores * 1000 / alone.percentile(0.5)
    offer(address, request, WARM_SECONDS, rate)  # what the allocator keeps for itself comes with the first overload
    before = _memory(process)
    crowd = offer(address, request, SOAK_SECONDS, rate)
    growth = _memory(process) - before
    after = offer(address, request, 2.0)
    rows = [
        (name, str(load.statuses[200]), str(load.statuses[429]), f"{load.percentile(0.5):.1f}", f"{load.percentile(0.99):.1f}")
        for name, load in (("alone", alone), (f"{rate:.0f} a second", crowd), ("afterwards", after))
    ]
    print_table(f"Overload for {SOAK_SECONDS:g} s, {what}", ("", "accepted", "shed", "p50 ms", "p99 ms"), rows)
    ratio = crowd.percentile(0.99) / alone.percentile(0.99)
    print(
        f"  p99 of what was accepted: {ratio:.2f} of that alone (goal {verdict(ratio, P99_GOAL)}); "
        f"rejections took {crowd.refused_percentile(0.5):.1f} ms; memory grew by {growth:.1f} MB"
    )
    others = set(crowd.statuses) - {200, 429}
    if others or growth > GROWTH_MB or not crowd.statuses[429] or sum(crowd.statuses.values()) != crowd.offered:
        raise AssertionError(f"{crowd.offered} offered, {dict(crowd.statuses)} answered, memory grew by {growth:.1f} MB")
    if set(after.statuses) != {200}:
        raise AssertionError(f"no normal service afterwards: {dict(after.statuses)}")


def _model(folder: Path, size: int) -> Path:
    """Square images in, two values out, and hardly any work in between."""
    helper, kinds = onnx().helper, onnx().TensorProto
    weights = np.random.default_rng(1).standard_normal((2, 3, 1, 1)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "weights"], ["features"], "conv", strides=[16, 16]),
        helper.make_node("GlobalAveragePool", ["features"], ["pooled"], "pool"),
        helper.make_node("Flatten", ["pooled"], ["y"], "flatten"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", kinds.FLOAT, [1, 3, size, size])],
        [helper.make_tensor_value_info("y", kinds.FLOAT, [1, 2])],
        [onnx().numpy_helper.from_array(weights, "weights")],
    )
    return _compiled(graph, folder, size, "rk3588")


def _slow_model(folder: Path) -> Path:
    """Reads so many weights that the memory of a small chip takes long, while this machine does not."""
    helper, kinds = onnx().helper, onnx().TensorProto
    rng = np.random.default_rng(1)

    def weights(*shape: int) -> Any:
        return (rng.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32)

    constants = {"kernel": weights(64, 3, 1, 1), "first": weights(64, SLOW_WIDTH), "last": weights(SLOW_WIDTH, 2)}
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["features"], "conv", strides=[16, 16]),
        helper.make_node("GlobalAveragePool", ["features"], ["pooled"], "pool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], "flatten"),
        helper.make_node("MatMul", ["flat", "first"], ["values0"], "first"),
    ]
    for layer in range(SLOW_LAYERS):
        constants[f"weights{layer}"] = weights(SLOW_WIDTH, SLOW_WIDTH)
        names = [f"values{layer}", f"weights{layer}"]
        nodes.append(helper.make_node("MatMul", names, [f"values{layer + 1}"], f"layer{layer}"))
    nodes.append(helper.make_node("MatMul", [f"values{SLOW_LAYERS}", "last"], ["y"], "last"))
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", kinds.FLOAT, [1, 3, LARGE, LARGE])],
        [helper.make_tensor_value_info("y", kinds.FLOAT, [1, 2])],
        [onnx().numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return _compiled(graph, folder, LARGE, SLOW_CHIP)


def _compiled(graph: Any, folder: Path, size: int, chip: str) -> Path:
    path = folder / "net.onnx"
    helper = onnx().helper
    onnx().save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    data = [{"x": np.random.default_rng(2).integers(0, 256, (1, 3, size, size)).astype(np.float32)}]
    return Path(compile(path, chip, dataset=data).save(folder / "net.rknn"))


def _picture() -> tuple[bytes, int]:
    """A request with an image of 1.2 MB, and the length of its JSON."""
    size = 3 * LARGE * LARGE
    tensor = {"name": "x", "datatype": "UINT8", "shape": [1, LARGE, LARGE, 3], "parameters": {"binary_data_size": size}}
    text = json.dumps({"inputs": [tensor]}).encode()
    return text + bytes(size), len(text)


def _post(body: bytes, json_length: int | None = None) -> bytes:
    """A request over HTTP."""
    extra = "" if json_length is None else f"Inference-Header-Content-Length: {json_length}\r\n"
    head = f"POST /v2/models/net/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    return head.encode() + body


def _ours(model: Path, chip: str = "rk3588") -> list[str]:
    command = [sys.executable, "-m", "anynpu.cli", "serve", f"net={model}", "--device", f"sim:{chip}", "--layout", "nhwc"]
    return [*command, "--port", "0", "--grpc-port", "0"]


Served = tuple["subprocess.Popen[str]", str, str]


@contextmanager
def _process(command: list[str], **environment: str) -> Iterator[Served]:
    """A server and its two addresses, ended at the end."""
    variables = {**os.environ, **environment}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=variables)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            found = re.search(r"serving on http://(\S+) and grpc://(\S+)", line)
            if found:
                threading.Thread(target=process.stdout.read, daemon=True).start()
                yield process, found[1], found[2]
                return
        raise RuntimeError(f"{command[2]} did not start")
    finally:
        process.terminate()
        process.wait(30)


def _memory(process: subprocess.Popen[str]) -> float:
    text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def _client(kind: str, served: Served, shape: tuple[int, ...]) -> tuple[Any, Callable[[], Any]]:
    """A client and what asks once."""
    module: Any
    if kind == "http":
        import tritonclient.http as module
    else:
        import tritonclient.grpc as module
    client = module.InferenceServerClient(served[1] if kind == "http" else served[2])
    tensor = module.InferInput("x", list(shape), "UINT8")
    tensor.set_data_from_numpy(np.random.default_rng(3).integers(0, 256, shape, np.uint8))
    return client, lambda: client.infer("net", [tensor]).as_numpy("y")


def _latency(kind: str, ours: Served, echo: Served) -> tuple[str, ...]:
    shape = (1, LARGE, LARGE, 3)
    (own_client, own), (echo_client, bare) = _client(kind, ours, shape), _client(kind, echo, shape)
    times: dict[str, list[float]] = {"own": [], "echo": []}
    for _ in range(20):
        own()
        bare()
    before = _inference(ours)
    for _ in range(ROUNDS):
        for name, ask in (("own", own), ("echo", bare)):
            started = time.perf_counter()
            ask()
            times[name].append(time.perf_counter() - started)
    after = _inference(ours)
    inference = (after[1] - before[1]) / max(1, after[0] - before[0]) / 1e6
    own_ms, echo_ms = (1e3 * statistics.median(times[name]) for name in ("own", "echo"))
    ratio = (own_ms - inference) / echo_ms
    own_client.close()
    echo_client.close()
    return kind, f"{echo_ms:.2f}", f"{own_ms:.2f}", f"{inference:.2f}", f"{ratio:.2f}", verdict(ratio, RATIO_GOAL)


def _inference(served: Served) -> tuple[int, int]:
    """Runs so far, and their nanoseconds."""
    import tritonclient.http as triton_http

    client = triton_http.InferenceServerClient(served[1])
    figures = client.get_inference_statistics("net")["model_stats"][0]["inference_stats"]
    client.close()
    parts = ("compute_input", "compute_infer", "compute_output")
    return figures["compute_infer"]["count"], sum(figures[part]["ns"] for part in parts)


def small_requests() -> list[tuple[str, float, float]]:
    """Requests of 768 bytes a second, of the echo server and of ours, by protocol; the inference is in the numbers."""
    found = []
    with (
        tempfile.TemporaryDirectory() as folder,
        _process(_ours(_model(Path(folder), SMALL))) as ours,
        _process(ECHO) as echo,
    ):
        for kind in ("http", "grpc"):
            best = {"own": 0.0, "echo": 0.0}
            for _ in range(SMALL_ROUNDS):
                for name, served in (("own", ours), ("echo", echo)):
                    best[name] = max(best[name], _rate(kind, served))
            found.append((kind, best["echo"], best["own"]))
    return found


def _rate(kind: str, served: Served) -> float:
    counts = [0] * CLIENTS
    end = time.perf_counter() + SMALL_SECONDS

    def work(number: int) -> None:
        client, ask = _client(kind, served, (1, SMALL, SMALL, 3))
        while time.perf_counter() < end:
            ask()
            counts[number] += 1
        client.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / SMALL_SECONDS
