"""The execution provider of onnxruntime: its overhead beside an Identity on the CPU, and threads on three cores in real time."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

import anynpu
from anynpu._util import optional as _optional
from anynpu.dropin.environment import execution_provider
from anynpu.session.onnxruntime.context_model import PROVIDER, wrap_model

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

RUNS, ROUNDS = 20_000, 5
SPEED = "0.0005"
"""The chip's speed for the threads: a network that is small on the host takes some 50 ms then."""


def main() -> None:
    """Print the ratios."""
    from ort_ep.building import build_host, build_nothing

    ort = _optional.onnxruntime()
    ort.register_execution_provider_library("anynpu", str(execution_provider()))
    devices = [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        nothing, host = build_nothing(folder), build_host(folder)
        context, identity = _models(folder)
        (folder / "in").write_bytes(bytes(64))
        settings = ort.SessionOptions()
        settings.add_provider_for_devices(devices, {"library": str(nothing)})
        ours, cpu = ort.InferenceSession(str(context), settings), ort.InferenceSession(str(identity))
        feed = {"x": np.zeros((1, 16), np.float32)}
        _compare("Python", lambda: _per_run(ours, feed), lambda: _per_run(cpu, feed))
        shared = ["x", "y", str(folder / "in"), str(folder / "out"), "1,16", str(10 * RUNS)]
        _compare(
            "C++",
            lambda: _of_host([str(host), str(execution_provider()), str(context), *shared, f"library={nothing}"]),
            lambda: _of_host([str(host), "cpu", str(identity), *shared]),
        )
        _threads(ort, devices, folder)


def _models(folder: Path) -> tuple[Path, Path]:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16]) for name in ("x", "y")]
    facts = {"domain": "com.microsoft", "source": PROVIDER, "embed_mode": 1, "ep_cache_context": b"content"}
    paths = []
    for node in (helper.make_node("EPContext", ["x"], ["y"], **facts), helper.make_node("Identity", ["x"], ["y"])):
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        proto = helper.make_model(helper.make_graph([node], "g", ports[:1], ports[1:]), opset_imports=opsets, ir_version=8)
        paths.append(folder / f"{node.op_type}.onnx")
        onnx.save(proto, paths[-1])
    return paths[0], paths[1]


def _per_run(session: object, feed: dict[str, np.ndarray]) -> float:
    run = session.run  # type: ignore[attr-defined]
    began = time.perf_counter()
    for _ in range(RUNS):
        run(None, feed)
    return (time.perf_counter() - began) / RUNS * 1e6


def _of_host(command: list[str]) -> float:
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0])


def _compare(name: str, ours: Callable[[], float], cpu: Callable[[], float]) -> None:
    pairs = [(ours(), cpu()) for _ in range(ROUNDS)]
    best = min(one for one, _ in pairs), min(other for _, other in pairs)
    print(f"{name}: provider {best[0]:.1f} us, Identity on the CPU {best[1]:.1f} us, ratio {best[0] / best[1]:.2f}")


def _threads(ort: object, devices: list[object], folder: Path) -> None:
    """Runs per second of four threads and of one."""
    from dropin.conftest import network

    os.environ["ANYNPU_REALTIME"] = SPEED
    onnx.save(network(20), folder / "n.onnx")
    anynpu.compile(folder / "n.onnx", dtype="fp16").save(folder / "n.rknn")
    settings = ort.SessionOptions()  # type: ignore[attr-defined]
    settings.add_provider_for_devices(devices, {})
    session = ort.InferenceSession(str(wrap_model(folder / "n.rknn", folder / "n_ctx.onnx")), settings)  # type: ignore[attr-defined]
    feed = {"images": np.zeros((1, 3, 32, 32), np.float32)}

    def rate(count: int) -> float:
        threads = [threading.Thread(target=lambda: [session.run(None, feed) for _ in range(20)]) for _ in range(count)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return 20 * count / (time.perf_counter() - began)

    pairs = [(rate(1), rate(4)) for _ in range(3)]
    print("four threads on three cores against one:", ", ".join(f"{many / one:.2f}" for one, many in pairs))


if __name__ == "__main__":
    main()
