"""Float islands in onnxruntime."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from anynpu.errors import DeviceError, DeviceTimeout, JobCancelled, ModelFormatError
from anynpu.npu import RunControl
from anynpu.npu.engines.islands import IslandSession
from anynpu.program import Island
from anynpu.tensor import DType, TensorSpec

from .builders import Thread, island_model, onnx_model

Array = npt.NDArray[Any]
node = onnx.helper.make_node


def matmul(weights: Array, held: DType = DType.FLOAT32) -> tuple[IslandSession, Island]:
    program = island_model(weights, held=held).programs[0]
    return IslandSession(program.islands[0], program.tensors), program.islands[0]


def endless() -> IslandSession:
    """Counts to 2**40: does not end by itself."""
    body = onnx.helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Add", ["before", "before"], ["after"])],
        "body",
        [
            onnx.helper.make_tensor_value_info("turn", onnx.TensorProto.INT64, []),
            onnx.helper.make_tensor_value_info("go", onnx.TensorProto.BOOL, []),
            onnx.helper.make_tensor_value_info("before", onnx.TensorProto.FLOAT, [1]),
        ],
        [
            onnx.helper.make_tensor_value_info("on", onnx.TensorProto.BOOL, []),
            onnx.helper.make_tensor_value_info("after", onnx.TensorProto.FLOAT, [1]),
        ],
    )
    nodes = [
        node("Constant", [], ["turns"], value=onnx.numpy_helper.from_array(np.int64(1 << 40))),
        node("Loop", ["turns", "", "x"], ["y"], body=body),
    ]
    tensors = {name: TensorSpec(name, (1,), DType.FLOAT32) for name in ("x", "y")}
    kinds = dict.fromkeys(("x", "y"), np.dtype(np.float32))
    model = onnx_model(nodes, {"x": (1,), "y": (1,)}, kinds, {}, ["x"], ["y"])
    return IslandSession(Island(model, ("x",), ("y",)), tensors, name="island 7")


@pytest.mark.parametrize("held", [DType.FLOAT32, DType.FLOAT16])
def test_external_weights_and_bound_memory(held: DType) -> None:
    random = np.random.default_rng(1)
    weights = random.standard_normal((32, 48)).astype(held.storage)
    session, _ = matmul(weights, held)
    x, y = random.standard_normal((1, 32)).astype(np.float32), np.zeros((1, 48), np.float32)
    run = session.bind({"x": x, "y": y})
    run(RunControl())
    np.testing.assert_allclose(y, x @ weights.astype(np.float32), rtol=1e-5, atol=1e-5)
    x[:] = 0
    run(RunControl())
    assert not y.any(), "the input is read where it lies, at every run"


@pytest.mark.parametrize(
    "dtype",
    [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.INT64, DType.INT32, DType.UINT8, DType.INT8, DType.BOOL],
)
def test_element_types(dtype: DType) -> None:
    nodes = [node("Transpose", ["x"], ["y"], perm=[1, 0])]
    shapes = {"x": (2, 3), "y": (3, 2)}
    kind = onnx.TensorProto.BFLOAT16 if dtype is DType.BFLOAT16 else onnx.helper.np_dtype_to_tensor_dtype(dtype.storage)
    values = [onnx.helper.make_tensor_value_info(name, kind, shape) for name, shape in shapes.items()]
    graph = onnx.helper.make_graph(nodes, "island", values[:1], values[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    tensors = {name: TensorSpec(name, shape, dtype) for name, shape in shapes.items()}
    session = IslandSession(Island(model.SerializeToString(), ("x",), ("y",)), tensors)
    x = np.array([[1, 0, 3], [4, 5, 0]]).astype(dtype.storage)
    y = np.zeros((3, 2), dtype.storage)
    session.bind({"x": x, "y": y})(RunControl())
    assert y.tolist() == x.T.tolist()


def test_one_session_serves_several_threads() -> None:
    random = np.random.default_rng(2)
    weights = random.standard_normal((64, 64)).astype(np.float32)
    session, _ = matmul(weights)

    def work(seed: int) -> None:
        x, y = np.zeros((1, 64), np.float32), np.zeros((1, 64), np.float32)
        run = session.bind({"x": x, "y": y})
        mine = np.random.default_rng(seed)
        for _ in range(50):
            x[:] = mine.standard_normal((1, 64))
            run(RunControl())
            np.testing.assert_allclose(y, x @ weights, rtol=1e-4, atol=1e-4)

    for thread in [Thread(partial(work, seed)) for seed in range(4)]:
        thread.finish()


def test_a_run_is_cancelled_from_another_thread(capfd: pytest.CaptureFixture[str]) -> None:
    run = endless().bind({"x": np.ones(1, np.float32), "y": np.ones(1, np.float32)})
    control = RunControl()
    timer = threading.Timer(0.05, control.cancel)
    timer.start()
    with pytest.raises(JobCancelled):
        run(control)
    timer.join()
    assert capfd.readouterr().err == ""


def test_a_run_ends_with_its_deadline() -> None:
    run = endless().bind({"x": np.ones(1, np.float32), "y": np.ones(1, np.float32)})
    with pytest.raises(DeviceTimeout):
        run(RunControl(0.05))


def test_a_job_that_is_cancelled_already_does_not_begin() -> None:
    run = endless().bind({"x": np.ones(1, np.float32), "y": np.ones(1, np.float32)})
    control = RunControl()
    control.cancel()
    with pytest.raises(JobCancelled):
        run(control)


def test_what_goes_wrong_inside_is_a_device_error(capfd: pytest.CaptureFixture[str]) -> None:
    nodes = [node("Gather", ["table", "x"], ["y"])]
    table = np.arange(4, dtype=np.float32)
    kinds: dict[str, np.dtype[Any]] = {"x": np.dtype(np.int64), "y": np.dtype(np.float32)}
    model = onnx_model(nodes, {"x": (2,), "y": (2,)}, kinds, {"table": table}, ["x"], ["y"])
    tensors = {"x": TensorSpec("x", (2,), DType.INT64), "y": TensorSpec("y", (2,), DType.FLOAT32)}
    session = IslandSession(Island(model, ("x",), ("y",), {"table": table}), tensors, name="island 3")
    with pytest.raises(DeviceError, match="island 3"):
        session.bind({"x": np.array([0, 9]), "y": np.zeros(2, np.float32)})(RunControl())
    assert capfd.readouterr().err == ""


def test_damaged_islands_are_refused() -> None:
    _, island = matmul(np.ones((4, 4), np.float32))
    tensors = {name: TensorSpec(name, (1, 4), DType.FLOAT32) for name in ("x", "y")}
    for damaged in (
        Island(island.model[:-20], island.inputs, island.outputs, island.weights),
        Island(island.model, island.inputs, island.outputs),
        Island(island.model, island.inputs, island.outputs, {"w": np.ones((4, 5), np.float32)}),
        Island(island.model, ("x", "z"), island.outputs, island.weights),
        Island(island.model, ("z",), island.outputs, island.weights),
    ):
        with pytest.raises(ModelFormatError) as caught:
            IslandSession(damaged, tensors)
        assert caught.value.hint


def test_a_model_cannot_make_onnxruntime_read_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.bin").write_bytes(b"S" * 64)
    weights = onnx.TensorProto(name="w", data_type=onnx.TensorProto.UINT8, dims=[16], data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", "secret.bin"), ("offset", "0"), ("length", "16")):
        weights.external_data.add(key=key, value=value)
    info = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.UINT8, [16])
    graph = onnx.helper.make_graph([node("Identity", ["w"], ["y"])], "hostile", [], [info], [weights])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
    with pytest.raises(ModelFormatError):
        IslandSession(Island(model.SerializeToString(), (), ("y",)), {"y": TensorSpec("y", (16,), DType.UINT8)})
