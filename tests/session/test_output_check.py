"""Results that are infinite or not a number are mentioned once."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import anynpu
from anynpu._util.types import Array
from anynpu.session.output_check import OutputCheck
from anynpu.tensor import Affine, DType, TensorSpec

HALF = TensorSpec("y", (1, 4), DType.FLOAT16)
WIDE = TensorSpec("z", (1, 4), DType.FLOAT32)
CODES = TensorSpec("c", (1, 4), DType.INT8, quantization=Affine.per_tensor(1.0, 0))

GOOD = np.array([[1, 2, 3, 65504]], np.float32)
BAD = np.array([[1, np.inf, np.nan, -np.inf]], np.float32)


def said(caplog: pytest.LogCaptureFixture, spec: TensorSpec, *arrays: Array) -> list[str]:
    """What is logged while a session gives these arrays."""
    check = OutputCheck([CODES, spec])
    with caplog.at_level(logging.WARNING, "anynpu.session"):
        for number, array in enumerate(arrays, 1):
            if number >= check.next:
                check.look(number, (1,), [array])
    return [record.getMessage() for record in caplog.records]


def test_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    (message,) = said(caplog, HALF, BAD, BAD, BAD)
    assert message.startswith("output 'y': 3 of 4 values are infinite or not a number (NaN)")
    assert "float16, which ends at 65504" in message


def test_float16_is_named_only_where_it_is_meant(caplog: pytest.LogCaptureFixture) -> None:
    (message,) = said(caplog, WIDE, BAD)
    assert "float16" not in message


@pytest.mark.parametrize("array", [GOOD, GOOD.astype(np.int8)])
def test_what_is_finite_is_not_mentioned(caplog: pytest.LogCaptureFixture, array: Array) -> None:
    assert said(caplog, HALF, *[array] * 5) == []


def test_what_comes_later_is_found_before_twice_as_many_results(caplog: pytest.LogCaptureFixture) -> None:
    assert said(caplog, HALF, *[GOOD] * 100, *[BAD] * 27) == []
    assert len(said(caplog, HALF, *[GOOD] * 100, *[BAD] * 28)) == 1


def test_codes_are_never_looked_at() -> None:
    assert OutputCheck([CODES]).next == float("inf")


def test_a_sum_beyond_float16_is_infinite_and_said_by_the_session(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "sum",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
        [onnx.numpy_helper.from_array(np.tile(np.array([[1000.0, 1.0]], np.float32), (8, 1)), "w")],
    )
    network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    path = tmp_path / "sum.rknn"
    anynpu.compile(network, "rk3588", dtype="fp16").save(path)
    with anynpu.InferenceSession(path) as session, caplog.at_level(logging.WARNING, "anynpu.session"):
        (small,) = session.run(None, {"x": np.ones((1, 8), np.float32)})
        assert not caplog.records
        for _ in range(3):
            (large,) = session.run(None, {"x": np.full((1, 8), 100.0, np.float32)})
    assert small.tolist() == [[8000.0, 8.0]]
    assert large.tolist() == [[np.inf, 800.0]]
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("output 'y': 1 of 2 values are infinite")
