"""A vendor in a distribution of its own gets session, bench, serve, inspect and doctor without a change to anynpu."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import anynpu
from anynpu import InferenceSession, chips, modelfile
from anynpu.chips import catalog
from anynpu.errors import CompileError, DeviceUnavailable, ModelFormatError, OptionError, VendorModelError
from anynpu.modelfile import FileKind, identify, vendorfile
from anynpu.session import OrtValue
from anynpu.vendors import registry
from anynpu.vendors.devices import board_chip, choose_device, find_npu

from .conftest import THIRD

Array = npt.NDArray[Any]

GENUINE = b"ACMENET1" + (3).to_bytes(4, "little") + (4).to_bytes(4, "little") + b"lamp"


def network() -> bytes:
    """An ONNX model: y = relu(conv(x))."""
    from onnx import TensorProto, helper, numpy_helper

    weights = np.random.default_rng(1).normal(0, 0.5, (4, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    shape = [1, 3, 8, 8]
    graph = helper.make_graph(
        nodes,
        "lamp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 8, 8])],
        [numpy_helper.from_array(weights, "w")],
    )
    data: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString()
    return data


def inputs(count: int = 3) -> list[Array]:
    random = np.random.default_rng(2)
    return [random.normal(0, 1, (1, 3, 8, 8)).astype(np.float32) for _ in range(count)]


@pytest.fixture
def model(third: None, tmp_path: Path) -> Path:
    """The network for ACME's chip, as a file."""
    compiled = anynpu.compile(network(), "acme100", dataset=[{"x": array} for array in inputs()], dtype="eight")
    return compiled.save(tmp_path / "lamp.acme")


def expected(x: Array) -> Array:
    import onnxruntime

    session = onnxruntime.InferenceSession(network(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def anynpu_command(*arguments: object, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "anynpu.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)


def test_its_project_declares_the_entry_point_that_the_tests_install() -> None:
    declared = (THIRD / "pyproject.toml").read_text()
    assert f'[project.entry-points."{catalog.GROUP}"]\nacme = "anynpu_acme:VENDOR"' in declared


def test_it_is_small() -> None:
    assert sum(len(path.read_text().splitlines()) for path in THIRD.rglob("*.py")) < 400


def test_its_chips_are_in_the_catalogue(third: None) -> None:
    assert chips.get("ACME100Pro").name == "acme100"
    assert "acme100" in chips.names()
    assert chips.names()[0] == "rk3588"


def test_a_model_is_compiled_in_its_formats_and_carries_its_mark(model: Path) -> None:
    assert model.read_bytes()[:4] == b"ACME"
    assert identify(model) is FileKind.ANYNPU
    assert modelfile.read(model).dtype == "w8a8"
    with pytest.raises(CompileError, match="not a type of acme100's family"):
        anynpu.compile(network(), "acme100", dataset=inputs(), dtype="pcq")
    with pytest.raises(CompileError, match="no channel groups"):
        anynpu.compile(network(), "acme100", dataset=inputs(), channel_groups=2)


def test_a_session_runs_it(model: Path) -> None:
    (x,) = inputs(1)
    with InferenceSession(model) as session:
        assert session.get_providers() == ["AcmeExecutionProvider"]
        assert "acme100" in session.device
        (result,) = session.run(None, {"x": x})
        assert np.corrcoef(result.ravel(), expected(x).ravel())[0, 1] > 0.99
        again = [future.result(300)[0] for future in [session.submit(None, {"x": x}) for _ in range(8)]]
        assert all(np.array_equal(result, other) for other in again)
        with InferenceSession(model, use_weight_from=session) as second:
            assert np.array_equal(second.run(None, {"x": x})[0], result)
    with InferenceSession(model, providers=["AcmeExecutionProvider"], device="sim:acme100") as session:
        assert np.array_equal(session.run(None, {"x": x})[0], result)
    with pytest.raises(OptionError, match="not for ACME's models"):
        InferenceSession(model, providers=["RKNPU2ExecutionProvider"])


def test_memory_of_its_device_can_be_bound(model: Path) -> None:
    (x,) = inputs(1)
    with InferenceSession(model) as session:
        (plain,) = session.run(None, {"x": x})
        binding = session.io_binding()
        value = OrtValue.ortvalue_from_numpy(x, "acme", session=session, name="x")
        binding.bind_ortvalue_input("x", value)
        binding.bind_output("y", "acme")
        session.run_with_iobinding(binding)
        (bound,) = binding.get_outputs()
        assert np.array_equal(bound.numpy("float32"), plain)


def test_its_own_files_are_recognised_and_refused_with_what_they_say(third: None, tmp_path: Path) -> None:
    file = tmp_path / "lamp.net"
    file.write_bytes(GENUINE)
    assert identify(file) is FileKind("acmenet")
    assert vendorfile.read(file).name == "lamp"
    with pytest.raises(VendorModelError, match="compiled by acmec for acme100"):
        InferenceSession(file)
    with pytest.raises(ModelFormatError, match="cut off"):
        vendorfile.read(GENUINE[:12])


def test_its_board_is_found_and_its_library_is_a_device(third: None, tmp_path: Path) -> None:
    assert find_npu(tmp_path) is None
    for path, text in {"dev/acme0": b"", "proc/device-tree/compatible": b"x,board\0acme,acme100\0"}.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_bytes(text)
    assert find_npu(tmp_path) == ("acme", "/dev/acme0 exists")
    assert board_chip(tmp_path) == "acme100"
    assert choose_device(environment={"ANYNPU_ACME_LIBRARY": "/x.so"}).kind == "acme"
    with pytest.raises(DeviceUnavailable, match="libacme"):
        InferenceSession(b"ACME", device="acme")
    from anynpu.rknn import open_library

    with pytest.raises(DeviceUnavailable, match="has no RKNN NPU") as caught:
        open_library("acme")
    assert "ACME's chips have the ACME calls" in caught.value.hint


def test_the_server_serves_it(model: Path) -> None:
    import urllib.request

    from anynpu.serve import ServeOptions, Server

    (x,) = inputs(1)
    (model.parent / "models").mkdir()
    model.rename(model.parent / "models" / "lamp.acme")
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}]}
    with Server([model.parent / "models"], ServeOptions(port=0, grpc_port=0)) as server:
        address = f"http://{server.http_address}/v2/models/lamp/infer"
        request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            (output,) = json.load(answer)["outputs"]
    assert np.corrcoef(output["data"], expected(x).ravel())[0, 1] > 0.99


@pytest.mark.full
def test_the_command_line_knows_it(model: Path, environment: dict[str, str]) -> None:
    done = anynpu_command("inspect", model, "--json", environment=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["chip"] == "acme100"
    done = anynpu_command("bench", model, "--json", "--sync", "--seconds", "0.05", environment=environment)
    assert done.returncode == 0, done.stderr
    done = anynpu_command("doctor", model, environment=environment)
    assert done.returncode == 0, done.stdout
    assert "/dev/acme0" in done.stdout
    assert "compiled by anynpu for acme100" in done.stdout
    file = model.with_suffix(".net")
    file.write_bytes(GENUINE)
    done = anynpu_command("inspect", file, environment=environment)
    assert "acmenet file, version 3" in done.stdout, done.stderr


def test_many_threads_may_look_for_it_at_once(third: None) -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(registry.get("acme").title)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert found == ["ACME"] * 8
