"""EZ RKNN Async as a client that knows nothing of us: it loads librknnrt.so, and its results must be those of the engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tools import need

from anynpu.npu import Device

from .conftest import SIDE, Models
from .running import board_environment, python_environment, run

pytestmark = pytest.mark.full  # another project's client

CLIENT = Path(__file__).parent / "peer_client.py"
PACKAGE = "ztu_somemodelruntime_ez_rknn_async"
ATTEMPTS, PATIENCE = 5, 120
Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(scope="module")
def peer() -> Path:
    """The Python of an environment of its own, which ``make test-all`` makes inside ours."""
    return Path(need("EZ RKNN Async"))


@pytest.fixture(scope="module")
def pictures() -> list[Array]:
    rng = np.random.default_rng(21)
    return [rng.integers(0, 256, (1, SIDE, SIDE, 3)).astype(np.uint8) for _ in range(4)]


@pytest.fixture(scope="module")
def expected(models: Models, pictures: list[Array]) -> Array:
    """The outputs as real numbers, from the engine itself."""
    with Device("rk3588") as device, device.load(models.small).context() as context:
        return np.stack([context.run([picture], layout="nhwc")[0] for picture in pictures])


class Client:
    """Runs cases in a folder with the inputs."""

    def __init__(self, python: Path, folder: Path) -> None:
        self._command = [python, CLIENT]
        self.folder = folder

    def run(self, case: str, model: Path) -> None:
        """The peer now and then never returns from the end of a session, on any library: it gets another chance then."""
        environment = board_environment("rk3588")
        environment["ZTU_RKNPU2_RUNTIME_LIBRARY"] = "librknnrt.so"
        for attempt in range(ATTEMPTS):
            try:
                done = run([*self._command, case, model, self.folder], environment, code=None, timeout=PATIENCE)
                break
            except subprocess.TimeoutExpired:
                if attempt == ATTEMPTS - 1:
                    raise
        assert done.stdout == "done\n", f"{done.returncode}\n{done.stdout}{done.stderr}"

    def result(self, name: str) -> Array:
        loaded: Array = np.load(self.folder / f"{name}.npy")
        return loaded


@pytest.fixture
def client(peer: Path, pictures: list[Array], tmp_path: Path) -> Client:
    for index, picture in enumerate(pictures):
        np.save(tmp_path / f"input{index}.npy", picture)
    return Client(peer, tmp_path)


def test_run_in_every_layout(client: Client, models: Models, expected: Array) -> None:
    client.run("layouts", models.small)
    for layout in ("nchw", "nchw_software", "nhwc", "any"):
        for kind in ("uint8", "float32", "int32"):
            np.testing.assert_array_equal(client.result(f"{layout}-{kind}"), expected, err_msg=f"{layout} {kind}")


def test_run_async_keeps_the_order_on_three_cores(client: Client, models: Models, expected: Array) -> None:
    client.run("ordered", models.small)
    np.testing.assert_array_equal(client.result("ordered"), np.concatenate([expected] * 10))


def test_run_pipeline(client: Client, models: Models, expected: Array) -> None:
    client.run("pipeline", models.small)
    np.testing.assert_array_equal(client.result("pipeline"), expected)


def test_io_binding(client: Client, models: Models, pictures: list[Array]) -> None:
    """Bound outputs are the NPU's own codes; the peer can read them where no channel is padded."""
    client.run("binding", models.dense)
    with Device("rk3588") as device, device.load(models.dense).context() as context:
        codes = np.stack([context.run([picture], layout="nhwc", dequantize=False)[0] for picture in pictures])
    np.testing.assert_array_equal(client.result("binding-nhwc"), codes)
    blocks = client.result("binding-native").reshape(
        len(pictures), 2, SIDE, SIDE, 16
    )  # the peer leaves the native layout as it is
    np.testing.assert_array_equal(blocks.transpose(0, 1, 4, 2, 3).reshape(codes.shape), codes)


def test_memory_of_the_boards_heap(client: Client, models: Models) -> None:
    client.run("generic_memory", models.small)


def test_weights_are_shared(client: Client, models: Models, expected: Array) -> None:
    client.run("shared_weights", models.small)
    for name in ("shared-master", "shared-slave"):
        np.testing.assert_array_equal(client.result(name), expected)


def test_sessions_end_with_work_in_flight(client: Client, models: Models, expected: Array) -> None:
    client.run("made_and_deleted", models.small)
    np.testing.assert_array_equal(client.result("deleted"), expected)


def test_mistakes_raise_the_same_types_on_our_session(client: Client, models: Models) -> None:
    client.run("errors", models.small)
    theirs = json.loads((client.folder / "errors.json").read_text())
    run([sys.executable, CLIENT, "errors", models.small, client.folder], python_environment())
    ours = json.loads((client.folder / "errors.json").read_text())
    assert len(theirs) > 20
    assert {what: kinds[:1] for what, kinds in theirs.items()} == {
        what: [kind for kind in theirs[what][:1] if kind in kinds] if kinds else [] for what, kinds in ours.items()
    }
