"""Small files that ask for gigabytes between two operators: rejected before anything runs, wherever float graphs run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import anynpu
from anynpu._util.optional import MAX_TENSOR_VARIABLE, max_tensor_bytes, onnxruntime
from anynpu.errors import CompileError, DeviceMemoryError, OptionError
from anynpu.modelfile.post_processing import Tail
from anynpu.npu import Device
from anynpu.session import InferenceSession, make_provider_options

MEGABYTE = (1, 512, 512)
"""A shape of 1 MB in float32."""


def network(shape: tuple[int, ...], held: int = 1) -> onnx.ModelProto:
    """One number becomes *held* large tensors, all of which are needed at the end; the largest number of their sum is the result."""
    nodes = [helper.make_node("Expand", ["x", "shape"], ["large0"])]
    nodes += [helper.make_node("Exp", [f"large{index}"], [f"large{index + 1}"]) for index in range(held - 1)]
    nodes.append(helper.make_node("Max", [f"large{index}" for index in range(held)], ["most"]))
    nodes.append(helper.make_node("ReduceMax", ["most"], ["y"], axes=[1, 2], keepdims=1))
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, 1])] for name in ("x", "y")]
    graph = helper.make_graph(nodes, "net", *ends, [numpy_helper.from_array(np.array(shape, np.int64), "shape")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def compiled(tmp_path: Path, shape: tuple[int, ...], held: int = 1) -> Path:
    return anynpu.compile(network(shape, held), target="rk3588", dtype="fp16").save(tmp_path / "net.rknn")


def test_compiling_refuses_two_gigabytes() -> None:
    with pytest.raises(CompileError, match=r"more than 268435456 elements") as refusal:
        anynpu.compile(network((1, 1024, 524288)), target="rk3588", dtype="fp16")
    assert MAX_TENSOR_VARIABLE in refusal.value.hint


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_a_model_that_asks_for_too_much_runs_isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    path = compiled(tmp_path, (1, 512, 1024))
    monkeypatch.setenv(MAX_TENSOR_VARIABLE, "1")
    monkeypatch.setenv("ANYNPU_ENGINE", engine)
    with pytest.raises(DeviceMemoryError, match="would take 2 MB in a float layer; at most 1 are possible") as refusal:
        InferenceSession(path, device="sim")
    assert "--isolate" in refusal.value.hint
    feed = {"x": np.full((1, 1, 1), 3, np.float32)}
    with InferenceSession(path, device="sim", provider_options=make_provider_options(isolate=True)) as session:
        assert session.run(None, feed)[0] == 3
    monkeypatch.setenv(MAX_TENSOR_VARIABLE, "2")
    with InferenceSession(path, device="sim") as session:
        assert session.run(None, feed)[0] == 3


def test_what_finds_no_memory_in_onnxruntime_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("bfc_arena.cc:360 Failed to allocate memory for requested buffer of size 2147483648")

    path = compiled(tmp_path, (1, 8, 8))
    monkeypatch.setattr(onnxruntime().InferenceSession, "run_with_iobinding", full)
    with Device("rk3588", engine="reference") as device, pytest.raises(DeviceMemoryError, match="more memory") as refusal:
        device.load(path).context().run({"x": np.ones((1, 1, 1), np.float32)})
    assert "isolate_memory_mb" in refusal.value.hint


def test_many_tensors_at_a_time_are_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = compiled(tmp_path, MEGABYTE, held=6)
    monkeypatch.setenv(MAX_TENSOR_VARIABLE, "1")
    with Device("rk3588") as device, pytest.raises(DeviceMemoryError, match="and what it is made of would take"):
        device.load(path).context()


def test_tensors_that_follow_each_other_are_not_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network(MEGABYTE, held=8)
    model.graph.node[-2].input[:] = ["large7"]  # each is read by the next alone
    monkeypatch.setenv(MAX_TENSOR_VARIABLE, "1")
    path = anynpu.compile(model, target="rk3588", dtype="fp16").save(tmp_path / "net.rknn")
    with InferenceSession(path, device="sim") as session:
        session.run(None, {"x": np.full((1, 1, 1), -100, np.float32)})


def test_tails() -> None:
    with pytest.raises(CompileError, match="its tensor 'large0' takes more than 1024 MB"):
        Tail(network((1, 1024, 524288)).SerializeToString())
    assert Tail(network(MEGABYTE).SerializeToString()).run({"x": np.ones((1, 1, 1), np.float32)})[0] == 1


@pytest.mark.parametrize("text", ["0", "-1", "much", "1" * 30, "1.5", "²"])
def test_a_limit_that_is_none(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(MAX_TENSOR_VARIABLE, text)
    with pytest.raises(OptionError, match=MAX_TENSOR_VARIABLE):
        max_tensor_bytes()
