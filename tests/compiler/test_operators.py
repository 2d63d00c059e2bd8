"""Every operator in every form: the compiled model gives what the original gives."""

from __future__ import annotations

import numpy as np
import pytest

from anynpu.compiler.graph import to_onnx
from anynpu.compiler.importers.onnx_graph import import_onnx
from anynpu.compiler.importers.onnx_model import load_onnx
from anynpu.compiler.passes.simplify import simplify
from anynpu.program import Float

from .cases import Cases
from .cases_elementwise import ELEMENTWISE
from .cases_graphs import GRAPHS
from .cases_movement import MOVEMENT
from .cases_products import PRODUCTS
from .onnx_builders import feeds
from .running import assert_close_in_steps, assert_close_relative, execute, run_fp32

CASES = Cases({**PRODUCTS, **ELEMENTWISE, **MOVEMENT, **GRAPHS})


@pytest.mark.parametrize("name", CASES)
def test_int8_follows_float32(name: str) -> None:
    case = CASES[name]
    run = execute(case.proto(), low=case.low, high=case.high, without=["mixed"])
    assert_close_in_steps(run, case.steps)
    # float outputs become quantized values
    last = next(layer for layer in reversed(run.program.layers) if layer.kind != "Quantize")
    assert isinstance(last.op, Float) is not case.integer, run.kinds
    if case.kinds is not None:
        assert tuple(run.kinds) == case.kinds


@pytest.mark.parametrize("name", CASES)
def test_float16_follows_float32(name: str) -> None:
    case = CASES[name]
    run = execute(case.proto(), dtype="fp16", low=case.low, high=case.high)
    assert_close_relative(run)


@pytest.mark.parametrize("name", CASES)
def test_simplified_graph_computes_the_same(name: str) -> None:
    case = CASES[name]
    proto = case.proto()
    samples = feeds(proto, 2, low=case.low, high=case.high)
    graph = import_onnx(load_onnx(proto))
    simplify(graph)
    simplified = to_onnx(graph, graph.nodes, graph.inputs, graph.outputs)
    # all real numbers are float32 after the import, where the model may have rounded to half precision
    wide = [{key: value.astype(graph.dtypes[key]) for key, value in sample.items()} for sample in samples]
    near = 2e-3 if "half" in name else 1e-4
    for wanted, given in zip(run_fp32(proto, samples), run_fp32(simplified, wide), strict=True):
        for one, other in zip(wanted, given, strict=True):
            np.testing.assert_allclose(other, one, rtol=near, atol=near * max(float(np.abs(one).max()), 1e-6))
