"""Nodes that are int8 because they are written in another way: products, lines, slopes and bounds with constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from anynpu.program import Epilogue
from anynpu.tensor import DType

from .running import assert_close_in_steps, execute

RNG = np.random.default_rng(17)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Each test draws the same numbers, whatever ran before it in this process."""
    RNG.bit_generator.state = np.random.default_rng(17).bit_generator.state


def numbers(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return RNG.normal(size=shape).astype(np.float32)


def one(op: str, shape: tuple[int, ...], inputs: list[Any], **attributes: Any) -> onnx.ModelProto:
    """A network of one node; *inputs* are constants, or None for its data."""
    names = ["x" if value is None else f"c{index}" for index, value in enumerate(inputs)]
    constants = [numpy_helper.from_array(value, name) for value, name in zip(inputs, names, strict=True) if value is not None]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], "node", **attributes)],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        constants,
    )
    return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


NETWORKS = {
    "a vector": one("MatMul", (3, 24), [None, numbers(24)]),
    "axes before the matrix": one("MatMul", (1, 7, 24), [None, numbers(1, 24, 5)]),
    "more axes than the data": one("MatMul", (7, 24), [None, numbers(1, 1, 24, 5)]),
    "on the left": one("MatMul", (1, 24, 7), [numbers(5, 24), None]),
    "on the left of a matrix": one("MatMul", (24, 7), [numbers(5, 24), None]),
    "on the left with axes": one("MatMul", (2, 3, 24, 7), [numbers(1, 5, 24), None]),
    "transposed data": one("Gemm", (24, 3), [None, numbers(24, 5), numbers(5)], transA=1),
    "both transposed": one("Gemm", (24, 3), [None, numbers(5, 24), numbers(1)], transA=1, transB=1, alpha=0.5, beta=2.0),
    "a bias by row": one("Gemm", (3, 24), [None, numbers(24, 5), numbers(3, 1)], beta=0.25),
    "a bias by element": one("Gemm", (3, 24), [None, numbers(24, 5), numbers(3, 5)], alpha=1.5),
    "a transposed line": one("ConvTranspose", (1, 8, 13), [None, numbers(8, 6, 3), numbers(6)], strides=[2], pads=[1, 0]),
    "a longer line": one("ConvTranspose", (2, 8, 9), [None, numbers(8, 3, 4)], strides=[3], output_padding=[2], group=2),
    "slopes of rows": one("PRelu", (3, 24), [None, numbers(24)]),
    "slopes of lines": one("PRelu", (1, 8, 13), [None, numbers(8, 1)]),
    "one slope": one("PRelu", (3, 24), [None, numbers(1)]),
    "lower bounds per channel": one("Max", (1, 8, 5, 6), [None, numbers(8, 1, 1)]),
    "lower bounds by place": one("Max", (1, 8, 5, 6), [numbers(1, 8, 5, 6), None]),
    "upper bounds by column": one("Min", (1, 8, 5, 6), [None, numbers(6)]),
    "upper bounds of rows": one("Min", (3, 24), [numbers(24), None]),
}


@pytest.mark.parametrize("quantizer", ["anynpu", "vendor"])
@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_int8_and_computes_the_same(name: str, quantizer: str) -> None:
    run = execute(NETWORKS[name], "rv1106", accuracy="fast", quantizer=quantizer)
    assert {spec.dtype for spec in (*run.program.input_specs, *run.program.output_specs)} == {DType.INT8}
    assert not run.float_layers, run.kinds
    assert not any(isinstance(getattr(layer.op, "epilogue", None), Epilogue) for layer in run.program.layers)
    assert_close_in_steps(run, 3)


@pytest.mark.parametrize(
    "network",
    [
        one("MatMul", (1, 2, 7, 24), [None, numbers(2, 24, 5)]),  # another matrix for each part
        one("Max", (1, 8, 1, 6), [None, numbers(1, 8, 5, 6)]),  # the constant is the larger one
        one("PRelu", (1, 8, 5, 6), [None, numbers(6)]),  # slopes by column
    ],
)
def test_what_has_no_other_form_stays_float(network: onnx.ModelProto) -> None:
    run = execute(network, "rk3588", accuracy="fast")
    assert run.float_layers
