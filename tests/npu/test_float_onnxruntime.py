"""Segments of float layers in onnxruntime."""

from __future__ import annotations

import threading
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from anynpu.errors import DeviceError, DeviceTimeout, JobCancelled, ModelFormatError
from anynpu.npu import RunControl
from anynpu.npu.engines.float_onnxruntime import OnnxStretch
from anynpu.program import Float, FloatOp, Program, Weights, immediate
from anynpu.tensor import DType, Layout, TensorSpec

from .builders import Thread, float_model, float_program

Array = npt.NDArray[Any]


def session_of(program: Program) -> OnnxStretch:
    (stretch,) = program.float_stretches()
    return OnnxStretch(program, stretch)


def matmul(weights: Array, held: DType = DType.FLOAT32) -> OnnxStretch:
    return session_of(float_model(weights, held=held).programs[0])


LONG = 1 << 22


def long() -> OnnxStretch:
    """Two thousand operators over four million numbers: many seconds, of which none takes long."""
    names = ["x", *(f"t{number}" for number in range(1999)), "y"]
    tensors = {name: TensorSpec(name, (LONG,), DType.FLOAT32) for name in names}
    operators = tuple(FloatOp("Sin", (source,), (target,)) for source, target in pairwise(names))
    return session_of(float_program(Float(operators), tensors))


def long_arrays() -> dict[str, Array]:
    return {name: np.ones(LONG, np.float32) for name in "xy"}


@pytest.mark.parametrize("held", [DType.FLOAT32, DType.FLOAT16])
def test_external_weights_and_bound_memory(held: DType) -> None:
    random = np.random.default_rng(1)
    weights = random.standard_normal((32, 48)).astype(held.storage)
    session = matmul(weights, held)
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
    op = Float((FloatOp("Transpose", ("x",), ("y",), {"perm": (1, 0)}),))
    session = session_of(
        float_program(op, {name: TensorSpec(name, shape, dtype) for name, shape in (("x", (2, 3)), ("y", (3, 2)))})
    )
    x = np.array([[1, 0, 3], [4, 5, 0]]).astype(dtype.storage)
    y = np.zeros((3, 2), dtype.storage)
    session.bind({"x": x, "y": y})(RunControl())
    assert y.tolist() == x.T.tolist()


def test_one_session_serves_several_threads() -> None:
    random = np.random.default_rng(2)
    weights = random.standard_normal((64, 64)).astype(np.float32)
    session = matmul(weights)

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
    run = long().bind(long_arrays())
    control = RunControl()
    timer = threading.Timer(0.05, control.cancel)
    timer.start()
    with pytest.raises(JobCancelled):
        run(control)
    timer.join()
    assert capfd.readouterr().err == ""


def test_a_run_ends_with_its_deadline() -> None:
    run = long().bind(long_arrays())
    with pytest.raises(DeviceTimeout):
        run(RunControl(0.05))


def test_a_job_that_is_cancelled_already_does_not_begin() -> None:
    run = long().bind(long_arrays())
    control = RunControl()
    control.cancel()
    with pytest.raises(JobCancelled):
        run(control)


def test_what_goes_wrong_inside_is_a_device_error(capfd: pytest.CaptureFixture[str]) -> None:
    table = np.arange(4, dtype=np.float32)
    op = Float((FloatOp("Gather", ("table", "x"), ("y",)),), {"table": Weights(table)})
    tensors = {"x": TensorSpec("x", (2,), DType.INT64), "y": TensorSpec("y", (2,), DType.FLOAT32)}
    session = session_of(float_program(op, tensors))
    with pytest.raises(DeviceError, match="float layers 0 to 0"):
        session.bind({"x": np.array([0, 9]), "y": np.zeros(2, np.float32)})(RunControl())
    assert capfd.readouterr().err == ""


def test_what_onnxruntime_does_not_load_is_a_model_error() -> None:
    """Rules of reading do not report everything, such as what a grid of numbers of another type means."""
    op = Float((FloatOp("BitShift", ("x", "x"), ("y",), {"direction": "LEFT"}),))
    tensors = {name: TensorSpec(name, (4,), DType.FLOAT32) for name in "xy"}
    with pytest.raises(ModelFormatError) as caught:
        session_of(float_program(op, tensors))
    assert caught.value.hint


def test_results_of_another_shape_than_declared_end_in_an_error() -> None:
    """What a rule cannot report from the file is distinguished by onnxruntime."""
    op = Float((FloatOp("Slice", ("x", "starts", "ends"), ("y",)),), {"ends": immediate([9])})
    tensors = {
        "x": TensorSpec("x", (9, 2), DType.FLOAT32),
        "starts": TensorSpec("starts", (1,), DType.INT64),
        "y": TensorSpec("y", (2, 2), DType.FLOAT32),
    }
    session = session_of(float_program(op, tensors, ("x", "starts"), ("y",)))
    x, y = np.arange(18, dtype=np.float32).reshape(9, 2), np.zeros((2, 2), np.float32)
    run = session.bind({"x": x, "starts": (starts := np.array([7])), "y": y})
    run(RunControl())
    np.testing.assert_array_equal(y, x[7:])
    starts[0] = 0
    with pytest.raises(DeviceError):
        run(RunControl())


def test_a_tensor_that_leaves_is_rounded_and_is_not_for_those_inside() -> None:
    names = ("x", "a", "y")
    tensors = {name: TensorSpec(name, (3,), DType.FLOAT16 if name == "a" else DType.FLOAT32, Layout.PLAIN) for name in names}
    operators = (FloatOp("Mul", ("x", "third"), ("a",)), FloatOp("Mul", ("a", "three"), ("y",)))
    constants = {"third": immediate(1 / 3, "float32"), "three": immediate(3, "float32")}
    program = float_program(Float(operators, constants), tensors, outputs=("a", "y"))
    x = np.array([1, 2, 1000], np.float32)
    arrays: dict[str, Array] = {"x": x, "a": np.zeros(3, np.float16), "y": np.zeros(3, np.float32)}
    session_of(program).bind(arrays)(RunControl())
    np.testing.assert_array_equal(arrays["a"], (x * np.float32(1 / 3)).astype(np.float16))
    np.testing.assert_array_equal(arrays["y"], x * np.float32(1 / 3) * np.float32(3))
