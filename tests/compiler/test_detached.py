"""Large weights beside the model: the same answers, and the same rejections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import anynpu
from anynpu.compiler.importers.onnx_model import LARGE_BYTES, check_onnx, checked_form, detach, load_onnx
from anynpu.errors import CompileError

from .running import run_fp32, run_model

RNG = np.random.default_rng(3)
LARGE = RNG.standard_normal((128, 320)).astype(np.float32) / 16
assert LARGE.astype(np.float16).nbytes >= LARGE_BYTES


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Each test draws the same numbers, whatever ran before it in this process."""
    RNG.bit_generator.state = np.random.default_rng(3).bit_generator.state


def model(weights: Any = LARGE, nodes: Any = None, ir_version: int = 8) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes or [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "b"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 128])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 320])],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(np.ones(320, np.float32), "b")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=ir_version)
    proto.metadata_props.add(key="author", value="nobody")
    return proto


def test_values_of_large_weights_are_taken_out_and_nothing_else() -> None:
    whole = model()
    before = whole.SerializeToString()
    light, values = detach(whole)
    assert whole.SerializeToString() == before
    assert list(values) == ["w"]
    np.testing.assert_array_equal(values["w"], LARGE)
    assert light.ByteSize() < 2000
    light.graph.initializer[0].CopyFrom(whole.graph.initializer[0])
    assert light == whole


def test_models_without_large_weights_and_with_control_flow_stay_whole() -> None:
    small = model(LARGE[:, :1])
    assert detach(small) == (small, {})
    branch = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["t"])], "branch", [], [helper.make_tensor_value_info("t", 1, None)]
    )
    control = [helper.make_node("If", ["c"], ["v"], then_branch=branch, else_branch=branch)]
    nodes = [*control, helper.make_node("MatMul", ["x", "v"], ["y"])]
    looping = model(nodes=nodes)
    assert detach(looping) == (looping, {})


@pytest.mark.parametrize("ir_version", [3, 8])
def test_the_checker_sees_large_weights_one_by_one(ir_version: int) -> None:
    proto = model(ir_version=ir_version)
    if ir_version < 4:
        for tensor in proto.graph.initializer:
            proto.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    form, large = checked_form(proto)
    assert [tensor.name for tensor in large] == ["w"]
    assert form.ByteSize() < 2000
    onnx.checker.check_model(form)
    check_onnx(proto)


def test_what_is_wrong_with_a_model_is_still_found() -> None:
    wrong = model()
    wrong.graph.node[0].input[0] = "nothing"
    with pytest.raises(CompileError, match="not valid"):
        check_onnx(wrong)
    twice = model()
    twice.graph.initializer.append(twice.graph.initializer[0])
    with pytest.raises(CompileError, match="not valid"):
        check_onnx(twice)
    short = model()
    short.graph.initializer[0].raw_data = short.graph.initializer[0].raw_data[:-4]
    with pytest.raises(CompileError):
        anynpu.compile(short, "rk3588", dtype="fp16")


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.float64])
def test_detached_weights_compile_to_what_they_are(kind: Any) -> None:
    proto = model()
    sample = {"x": RNG.standard_normal((2, 128)).astype(np.float32)}
    (expected,) = run_fp32(proto, [sample])
    if kind is not np.float32:
        cast = helper.make_node("Cast", ["w"], ["v"], to=TensorProto.FLOAT)
        nodes = [cast, helper.make_node("MatMul", ["x", "v"], ["a"]), helper.make_node("Add", ["a", "b"], ["y"])]
        proto = model(LARGE.astype(kind), nodes)
    compiled = anynpu.compile(proto, "rk3588", dtype="fp16")
    (given,) = run_model(compiled, [sample])
    np.testing.assert_allclose(given[0], expected[0], atol=0.02)
    assert compiled.metadata is not None
    assert dict(compiled.metadata.properties) == {"author": "nobody"}


def test_weights_in_another_file_are_read(tmp_path: Path) -> None:
    sample = {"x": RNG.standard_normal((2, 128)).astype(np.float32)}
    (expected,) = run_fp32(model(), [sample])
    onnx.save(model(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    assert load_onnx(tmp_path / "m.onnx").graph.initializer[0].HasField("raw_data")
    (given,) = run_model(anynpu.compile(tmp_path / "m.onnx", "rk3588", dtype="fp16"), [sample])
    np.testing.assert_allclose(given[0], expected[0], atol=0.02)
