"""What a second context of a loaded model costs, on the device's account and in memory that is really resident.

Each model runs in a fresh interpreter, which reads it from a file: nothing is resident that compiling left behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from . import print_table

if TYPE_CHECKING:
    from anynpu.program import Model

GOAL = 0.1
DENSE_WIDTH = 4096
DENSE_LAYERS = 3


def main() -> None:
    """Print the table. The goal is for the model whose memory is mostly weights; activations are each context's own."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, model, goal in (
            (f"{DENSE_LAYERS} dense layers of {DENSE_WIDTH}", _dense_layers(), GOAL),
            ("PP-OCRv4 detection", _detection(), None),
        ):
            path = model.save(Path(folder) / "model.rknn")
            command = [sys.executable, "-m", __name__, str(path)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            for kind, (first, second) in json.loads(done.stdout).items():
                share = second / first
                verdict = "" if goal is None else f"{goal} {'ok' if share < goal else 'MISSED'}"
                rows.append([f"{name}, {kind}", f"{first / 1e6:.1f}", f"{second / 1e6:.2f}", f"{share:.3f}", verdict])
    print_table("memory of contexts that share a model", ["MB", "first", "second adds", "ratio", "goal"], rows)


def _detection() -> Model:
    import anynpu
    from anynpu.cli.demo.detection import MEAN, STD, find_detector
    from anynpu.cli.demo.pages import page

    pages = [page(seed) for seed in range(2)]
    return anynpu.compile(find_detector(), "rk3588", dataset=pages, mean=MEAN, std=STD, shapes={"x": (1, 3, 480, 480)})


def _dense_layers() -> Model:
    import numpy as np

    import anynpu
    from anynpu._util.optional import onnx

    package = onnx()
    helper, numpy_helper, number = package.helper, package.numpy_helper, package.TensorProto.FLOAT
    rng = np.random.default_rng(1)
    weights = [rng.standard_normal((DENSE_WIDTH, DENSE_WIDTH), np.float32) / 64 for _ in range(DENSE_LAYERS)]
    nodes = [helper.make_node("MatMul", [f"x{index}", f"w{index}"], [f"x{index + 1}"]) for index in range(DENSE_LAYERS)]
    graph = helper.make_graph(
        nodes,
        "dense",
        [helper.make_tensor_value_info("x0", number, [1, DENSE_WIDTH])],
        [helper.make_tensor_value_info(f"x{DENSE_LAYERS}", number, [1, DENSE_WIDTH])],
        [numpy_helper.from_array(value, f"w{index}") for index, value in enumerate(weights)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return anynpu.compile(model, "rk3588", dataset=[rng.standard_normal((1, DENSE_WIDTH), np.float32)])


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _measure(path: Path) -> dict[str, tuple[int, int]]:
    """Bytes of a loaded model with one context that has run, and what a second one adds; on the account and resident."""
    import numpy as np

    import anynpu

    with anynpu.Device("rk3588") as device:
        begin = _resident_bytes()
        loaded = device.load(path)
        inputs = {spec.name: np.zeros(spec.shape, np.float32) for spec in loaded.inputs}
        contexts, resident, account = [], [], []
        for _ in range(2):
            contexts.append(loaded.context())
            contexts[-1].run(inputs)
            resident.append(_resident_bytes() - begin)
            account.append(device.memory_usage().total)
    return {
        "on the account": (account[0], account[1] - account[0]),
        "resident": (resident[0], max(resident[1] - resident[0], 0)),
    }


if __name__ == "__main__":
    print(json.dumps(_measure(Path(sys.argv[1]))))
