"""Float islands in C: every operator as onnxruntime computes it, damaged models, whole networks without onnxruntime."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from compiler.onnx_builders import Net, feeds
from real_models import RealModels

import anynpu
from anynpu.errors import DeviceTimeout, JobCancelled, ModelFormatError, ShapeError
from anynpu.npu import Device, RunControl
from anynpu.npu.engines.island_operators import OPERATORS
from anynpu.npu.engines.islands import IslandSession
from anynpu.npu.engines.native import NativeEngine
from anynpu.npu.engines.native_islands import NativeIsland, native_island, supports
from anynpu.npu.engines.native_levels import available, level_names
from anynpu.npu.engines.onnx_reader import read_model
from anynpu.program import Island, Model, Program
from anynpu.tensor import DType, TensorSpec

from ..builders import island_model
from .ingredients import Array

node = onnx.helper.make_node
LEVELS = list(available())


class Graph:
    """An island in the making: inputs and constants by name, nodes, outputs whose shapes onnx infers."""

    def __init__(self, opset: int = 17, seed: int = 0) -> None:
        self.opset = opset
        self.random = np.random.default_rng(seed)
        self.inputs: dict[str, Array] = {}
        self.constants: dict[str, Array] = {}
        self.nodes: list[onnx.NodeProto] = []

    def input(self, name: str, *shape: int, low: float = -3.0, high: float = 3.0, dtype: Any = np.float32) -> str:
        self.inputs[name] = self.random.uniform(low, high, shape).astype(dtype)
        return name

    def constant(self, name: str, value: Any, dtype: Any = np.int64) -> str:
        self.constants[name] = np.array(value, dtype)
        return name

    def add(self, op: str, *inputs: str, outputs: Sequence[str] = ("y",), **attributes: Any) -> Graph:
        self.nodes.append(node(op, list(inputs), list(outputs), **attributes))
        return self

    def island(self, *outputs: str, external: bool = False) -> tuple[Island, dict[str, TensorSpec]]:
        infos = [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in self.inputs.items()
        ]
        stored = [onnx.numpy_helper.from_array(value, name) for name, value in self.constants.items()]
        empty = [onnx.ValueInfoProto(name=name) for name in outputs or ("y",)]
        graph = onnx.helper.make_graph(self.nodes, "island", infos, empty, stored)
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", self.opset)], ir_version=8)
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        weights = {}
        if external:
            for tensor in (
                tensor for tensor in model.graph.initializer if tensor.dims and tensor.data_type != onnx.TensorProto.INT64
            ):
                weights[tensor.name] = onnx.numpy_helper.to_array(tensor).copy()
                tensor.ClearField("raw_data")
                tensor.data_location = onnx.TensorProto.EXTERNAL
                tensor.external_data.add(key="location", value="weights")
        specs = {name: _spec(name, value.dtype, value.shape) for name, value in self.inputs.items()}
        for value in model.graph.output:
            tensor_type = value.type.tensor_type
            shape = tuple(extent.dim_value for extent in tensor_type.shape.dim)
            specs[value.name] = _spec(value.name, onnx.helper.tensor_dtype_to_np_dtype(tensor_type.elem_type), shape)
        return Island(model.SerializeToString(), tuple(self.inputs), tuple(outputs or ("y",)), weights), specs


def _spec(name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> TensorSpec:
    return TensorSpec(name, tuple(shape), DType(dtype.name))


def arrays_for(island: Island, specs: dict[str, TensorSpec], inputs: dict[str, Array]) -> dict[str, Array]:
    arrays = {name: inputs[name].copy() for name in island.inputs}
    return arrays | {name: np.full(specs[name].memory_shape, 77, specs[name].dtype.storage) for name in island.outputs}


def run_both(island: Island, specs: dict[str, TensorSpec], inputs: dict[str, Array], level: str) -> Iterator[tuple[Array, Array]]:
    """Outputs of the native island and of onnxruntime."""
    native = native_island(island, specs, level=level_names().index(level))
    assert native is not None, "there is no native form"
    given, wanted = arrays_for(island, specs, inputs), arrays_for(island, specs, inputs)
    native.bind(given)(RunControl())
    IslandSession(island, specs).bind(wanted)(RunControl())
    for name in island.inputs:
        assert given[name].tobytes() == inputs[name].tobytes(), "an input was changed"
    for name in island.outputs:
        yield given[name], wanted[name]


def check(graph: Graph, *outputs: str, external: bool = False, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    island, specs = graph.island(*outputs, external=external)
    for level in LEVELS:
        for given, wanted in run_both(island, specs, graph.inputs, level):
            np.testing.assert_allclose(given, wanted, rtol=rtol, atol=atol, err_msg=level)


# ---- operators ----


def unary(op: str, low: float = -3.0, high: float = 3.0, opset: int = 20, **attributes: Any) -> Graph:
    graph = Graph(opset)
    return graph.add(op, graph.input("x", 3, 7, 11, low=low, high=high), **attributes)


def two(op: str, left: Sequence[int], right: Sequence[int], low: float = -3.0) -> Graph:
    graph = Graph()
    return graph.add(op, graph.input("a", *left, low=low), graph.input("b", *right, low=0.1))


def reduced(op: str, axes: Sequence[int] | None, opset: int, **attributes: Any) -> Graph:
    graph = Graph(opset)
    inputs = [graph.input("x", 2, 3, 37, 5)]
    if axes is not None and (opset >= 18 or (op == "ReduceSum" and opset >= 13)):
        inputs.append(graph.constant("axes", axes))
    elif axes is not None:
        attributes["axes"] = axes
    return graph.add(op, *inputs, **attributes)


def moved(
    op: str, shape: Sequence[int], *numbers: Any, outputs: Sequence[str] = ("y",), opset: int = 17, **attributes: Any
) -> Graph:
    graph = Graph(opset)
    constants = [graph.constant(f"c{place}", value) for place, value in enumerate(numbers)]
    return graph.add(op, graph.input("x", *shape), *constants, outputs=outputs, **attributes)


def softmax(shape: Sequence[int], axis: int | None, opset: int) -> Graph:
    graph = Graph(opset)
    return graph.add("Softmax", graph.input("x", *shape, low=-30, high=30), **({} if axis is None else {"axis": axis}))


def matmul(left: Sequence[int], right: Sequence[int]) -> Graph:
    graph = Graph()
    return graph.add("MatMul", graph.input("a", *left, low=0, high=1), graph.input("b", *right, low=0, high=1))


def gemm(bias: Sequence[int], **attributes: Any) -> Graph:
    graph = Graph()
    left = (9, 5) if attributes.get("transA") else (5, 9)
    right = (18, 9) if attributes.get("transB") else (9, 18)
    c = graph.constant("c", graph.random.uniform(0, 1, bias), np.float32)
    return graph.add("Gemm", graph.input("a", *left, low=0), graph.input("b", *right, low=0), c, **attributes)


def normalized(bias: bool, axis: int, *extents: int) -> Graph:
    graph = Graph()
    inputs = [graph.input("x", 2, 5, 24), graph.constant("scale", graph.random.uniform(0.5, 2, extents), np.float32)]
    if bias:
        inputs.append(graph.constant("bias", graph.random.uniform(-1, 1, extents), np.float32))
    return graph.add("LayerNormalization", *inputs, axis=axis, epsilon=1e-4)


def power(exponent: float, dtype: Any) -> Graph:
    graph = Graph()
    return graph.add("Pow", graph.input("x", 4, 9, low=0.1), graph.constant("e", exponent, dtype))


def clipped(low: float | None, high: float | None) -> Graph:
    graph = Graph()
    inputs = ["" if limit is None else graph.constant(name, limit, np.float32) for name, limit in (("l", low), ("h", high))]
    return graph.add("Clip", graph.input("x", 5, 20), *inputs)


def convolution(bias: bool) -> Graph:
    graph = Graph()
    inputs = [graph.input("x", 2, 16, 4, 21), graph.constant("w", graph.random.uniform(0, 1, (3, 16, 1, 1)), np.float32)]
    if bias:
        inputs.append(graph.constant("b", [1.0, 2.0, 3.0], np.float32))
    return graph.add("Conv", *inputs)


def several(op: str) -> Graph:
    graph = Graph()
    return graph.add(op, graph.input("a", 3, 5), graph.input("b", 5), graph.input("c", 3, 1))


def concat(axis: int, dtype: Any) -> Graph:
    graph = Graph()
    shapes = [[2, 3, 5], [2, 3, 5], [2, 3, 5]]
    shapes[1][axis] = 4
    names = [graph.input(f"x{place}", *shape, dtype=dtype) for place, shape in enumerate(shapes)]
    return graph.add("Concat", *names, axis=axis)


def cast(dtype: Any, to: int) -> Graph:
    graph = Graph()
    graph.input("x", 5, 7, low=-70000, high=70000, dtype=np.float32)
    with np.errstate(over="ignore"):
        graph.inputs["x"] = graph.inputs["x"].astype(dtype)
    return graph.add("Cast", "x", to=to)


CASES: dict[str, Callable[[], Graph]] = {
    "Abs": lambda: unary("Abs"),
    "Erf": lambda: unary("Erf"),
    "Exp": lambda: unary("Exp", -80, 80),
    "Gelu": lambda: unary("Gelu"),
    "HardSigmoid": lambda: unary("HardSigmoid", alpha=0.3, beta=0.4),
    "HardSwish": lambda: unary("HardSwish", -5, 5),
    "Identity": lambda: unary("Identity"),
    "LeakyRelu": lambda: unary("LeakyRelu", alpha=0.2),
    "Log": lambda: unary("Log", 0.01, 90),
    "Neg": lambda: unary("Neg"),
    "Reciprocal": lambda: unary("Reciprocal", 0.1, 3),
    "Relu": lambda: unary("Relu"),
    "Sigmoid": lambda: unary("Sigmoid", -20, 20),
    "Sqrt": lambda: unary("Sqrt", 0, 9),
    "Tanh": lambda: unary("Tanh"),
    "GlobalAveragePool": lambda: unary("GlobalAveragePool"),
    "Clip both": lambda: clipped(-0.5, 1.5),
    "Clip above": lambda: clipped(None, 0.25),
    "Clip attributes": lambda: unary("Clip", opset=10, min=-1.0, max=0.5),
    "Add": lambda: two("Add", (2, 3, 40), (2, 3, 40)),
    "Sub row": lambda: two("Sub", (2, 3, 40), (40,)),
    "Sub number": lambda: two("Sub", (), (2, 3, 40)),
    "Mul column": lambda: two("Mul", (2, 3, 1), (2, 1, 40)),
    "Div by mean": lambda: two("Div", (2, 3, 40), (2, 3, 1)),
    "Add outer": lambda: two("Add", (5, 1, 4, 1), (1, 6, 1, 3)),
    "Add six axes": lambda: two("Add", (2, 1, 2, 1, 2, 1), (1, 3, 1, 3, 1, 3)),
    "Pow": lambda: two("Pow", (3, 40), (3, 40), low=0.1),
    "Pow 2": lambda: power(2, np.float32),
    "Pow whole": lambda: power(3, np.int64),
    "Max": lambda: several("Max"),
    "Min": lambda: several("Min"),
    "Sum": lambda: several("Sum"),
    "ReduceMean last": lambda: reduced("ReduceMean", [-1], 13),
    "ReduceMean first": lambda: reduced("ReduceMean", [0], 13, keepdims=0),
    "ReduceMean spatial": lambda: reduced("ReduceMean", [2, 3], 18),
    "ReduceMean apart": lambda: reduced("ReduceMean", [1, 3], 18, keepdims=0),
    "ReduceMean all": lambda: reduced("ReduceMean", None, 18, keepdims=0),
    "ReduceMean none": lambda: reduced("ReduceMean", None, 18, noop_with_empty_axes=1),
    "ReduceSum": lambda: reduced("ReduceSum", [2], 13),
    "ReduceSum older": lambda: reduced("ReduceSum", [1, 2], 11),
    "ReduceMax": lambda: reduced("ReduceMax", [2], 13),
    "ReduceMin": lambda: reduced("ReduceMin", [2, 3], 13),
    "Softmax last": lambda: softmax((2, 3, 83), -1, 13),
    "Softmax default": lambda: softmax((2, 3, 83), None, 13),
    "Softmax bins": lambda: softmax((1, 16, 4, 210), 1, 13),
    "Softmax older": lambda: softmax((4, 3, 5, 6), 2, 11),
    "Softmax oldest": lambda: softmax((4, 30), None, 9),
    "LayerNormalization": lambda: normalized(True, -1, 24),
    "LayerNormalization without bias": lambda: normalized(False, -1, 24),
    "LayerNormalization two axes": lambda: normalized(True, 1, 5, 24),
    "MatMul": lambda: matmul((8, 31), (31, 48)),
    "MatMul odd": lambda: matmul((7, 5), (5, 19)),
    "MatMul batches": lambda: matmul((2, 3, 9, 10), (2, 3, 10, 17)),
    "MatMul one matrix": lambda: matmul((2, 3, 9, 10), (10, 17)),
    "MatMul repeated": lambda: matmul((2, 1, 6, 10), (3, 10, 17)),
    "MatMul vectors": lambda: matmul((1, 1), (1, 1)),
    "Gemm": lambda: gemm((18,)),
    "Gemm turned": lambda: gemm((5, 1), transA=1, transB=1, alpha=0.5, beta=2.0),
    "Conv": lambda: convolution(True),
    "Conv without bias": lambda: convolution(False),
    "Transpose": lambda: moved("Transpose", (2, 5, 8, 3), perm=[0, 2, 1, 3]),
    "Transpose last": lambda: moved("Transpose", (2, 40, 33), perm=[0, 2, 1]),
    "Transpose default": lambda: moved("Transpose", (2, 4, 3)),
    "Reshape": lambda: moved("Reshape", (2, 12, 5), [0, 3, -1, 5]),
    "Flatten": lambda: moved("Flatten", (2, 3, 4, 5), axis=2),
    "Flatten end": lambda: moved("Flatten", (2, 3), axis=2),
    "Squeeze": lambda: moved("Squeeze", (2, 1, 4, 1), [1, -1]),
    "Squeeze all": lambda: moved("Squeeze", (2, 1, 4, 1)),
    "Squeeze older": lambda: moved("Squeeze", (2, 1, 4), opset=11, axes=[1]),
    "Unsqueeze": lambda: moved("Unsqueeze", (2, 4), [0, -1]),
    "Unsqueeze older": lambda: moved("Unsqueeze", (2, 4), opset=11, axes=[1]),
    "Expand": lambda: moved("Expand", (3, 1, 4), [2, 1, 5, 1]),
    "Slice": lambda: moved("Slice", (4, 9, 6), [1, 0], [8, -2], [1, 2], [3, 1]),
    "Slice back": lambda: moved("Slice", (4, 9), [-1], [-(2**63)], [1], [-2]),
    "Slice default": lambda: moved("Slice", (4, 9), [1, 2], [3, 2**40]),
    "Slice older": lambda: moved("Slice", (4, 9), opset=9, starts=[1], ends=[7], axes=[1]),
    "Split": lambda: moved("Split", (2, 9, 4), [2, 3, 4], outputs=["y", "u", "v"], axis=1),
    "Split evenly": lambda: moved("Split", (2, 6, 4), outputs=["y", "u", "v"], axis=1),
    "Split older": lambda: moved("Split", (2, 6), outputs=["y", "u"], opset=11, axis=1, split=[1, 5]),
    "Gather": lambda: moved("Gather", (3, 4, 5), -2, axis=1),
    "Concat": lambda: concat(1, np.float32),
    "Concat last": lambda: concat(2, np.float16),
    "Cast down": lambda: cast(np.float32, onnx.TensorProto.FLOAT16),
    "Cast up": lambda: cast(np.float16, onnx.TensorProto.FLOAT),
    "Cast same": lambda: cast(np.float32, onnx.TensorProto.FLOAT),
}


def test_every_operator_has_a_case() -> None:
    assert {name.partition(" ")[0] for name in CASES} == set(OPERATORS)


@pytest.mark.parametrize("name", sorted(CASES))
def test_an_operator_gives_what_onnxruntime_gives(name: str) -> None:
    graph = CASES[name]()
    check(graph, *graph.nodes[0].output)


def test_the_ends_of_the_exponential() -> None:
    graph = Graph()
    graph.inputs["x"] = np.array([0, -0.0, 88.7, 88.8, 200, np.inf, -87.4, -103, -104, -200, -np.inf, np.nan, 1e-8], np.float32)
    check(graph.add("Exp", "x"), atol=2e-45)
    graph = Graph()
    graph.inputs["x"] = np.array([[0, -np.inf, 5, -300], [1e4, 1e4, -1e4, 0]], np.float32)
    check(graph.add("Softmax", "x"))


# ---- graphs ----


def head() -> Graph:
    """Boxes as sums over bins, scores, both side by side: the end of a detector."""
    graph = Graph(13, seed=4)
    x = graph.input("x", 1, 69, 8, 10, dtype=np.float16)
    graph.add("Cast", x, outputs=["f"], to=onnx.TensorProto.FLOAT)
    graph.add("Reshape", "f", graph.constant("flat", [1, 69, -1]), outputs=["rows"])
    graph.add("Split", "rows", graph.constant("parts", [64, 5]), outputs=["bins", "classes"], axis=1)
    graph.add("Reshape", "bins", graph.constant("four", [1, 4, 16, 80]), outputs=["sides"])
    graph.add("Transpose", "sides", outputs=["turned"], perm=[0, 2, 1, 3])
    graph.add("Softmax", "turned", outputs=["shares"], axis=1)
    graph.add("Conv", "shares", graph.constant("w", np.arange(16).reshape(1, 16, 1, 1), np.float32), outputs=["mean"])
    graph.add("Reshape", "mean", graph.constant("lines", [1, 4, 80]), outputs=["ltrb"])
    for name, first, last in (("lt", 0, 2), ("rb", 2, 4)):
        places = [graph.constant(f"{name}{number}", [number]) for number in (first, last)]
        graph.add("Slice", "ltrb", *places, graph.constant(f"{name}axis", [1]), outputs=[name])
    anchors = graph.constant("anchors", graph.random.uniform(0, 10, (1, 2, 80)), np.float32)
    graph.add("Sub", anchors, "lt", outputs=["from"]).add("Add", anchors, "rb", outputs=["to"])
    graph.add("Add", "from", "to", outputs=["both"])
    graph.add("Div", "both", graph.constant("half", 2, np.float32), outputs=["centre"]).add("Sub", "to", "from", outputs=["size"])
    graph.add("Concat", "centre", "size", outputs=["boxes"], axis=1)
    graph.add("Mul", "boxes", graph.constant("stride", [8], np.float32), outputs=["scaled"])
    graph.add("Sigmoid", "classes", outputs=["scores"])
    graph.add("Concat", "scaled", "scores", outputs=["all"], axis=1)
    return graph.add("Cast", "all", outputs=["y"], to=onnx.TensorProto.FLOAT16)


@pytest.mark.parametrize("external", [False, True])
def test_a_head_of_a_detector(external: bool) -> None:
    check(head(), external=external, rtol=1e-3)


def test_tensors_between_layers_share_memory() -> None:
    graph = Graph()
    name = graph.input("x", 1000)
    for turn in range(20):
        graph.add("Tanh" if turn % 2 else "Neg", name, outputs=[f"t{turn}"])
        name = f"t{turn}"
    island, specs = graph.island("t19")
    native = native_island(island, specs)
    assert native is not None
    assert 2 * 4000 <= native.private_bytes <= 2 * 4096
    check(graph, "t19")


def test_outputs_that_are_views_inputs_or_made_once_for_two() -> None:
    graph = Graph()
    graph.add("Neg", graph.input("x", 4, 6), outputs=["n"])
    graph.add("Reshape", "n", graph.constant("shape", [24]), outputs=["flat"])
    graph.add("Identity", "x", outputs=["same"]).add("Exp", "flat", outputs=["e"]).add("Identity", "e", outputs=["twice"])
    check(graph, "n", "flat", "same", "e", "twice")


def test_what_is_constant_is_computed_once() -> None:
    graph = Graph()
    graph.constant("w", np.arange(6).reshape(2, 3), np.float16)
    graph.add("Cast", "w", outputs=["f"], to=onnx.TensorProto.FLOAT).add("Transpose", "f", outputs=["t"])
    graph.add("MatMul", graph.input("x", 5, 3), "t")
    check(graph, external=True)
    island, specs = graph.island(external=True)
    native = native_island(island, specs)
    assert native is not None
    assert native.private_bytes == 0


@pytest.mark.parametrize("held", [DType.FLOAT32, DType.FLOAT16])
def test_an_island_reads_its_input_at_every_run(held: DType) -> None:
    random = np.random.default_rng(1)
    weights = random.standard_normal((32, 48)).astype(held.storage)
    program = island_model(weights, held=held).programs[0]
    native = native_island(program.islands[0], program.tensors)
    assert native is not None
    x, y = random.standard_normal((1, 32)).astype(np.float32), np.zeros((1, 48), np.float32)
    run = native.bind({"x": x, "y": y})
    run(RunControl())
    np.testing.assert_allclose(y, x @ weights.astype(np.float32), rtol=1e-5, atol=1e-5)
    x[:] = 0
    run(RunControl())
    assert not y.any()


# ---- what is not for here ----


@pytest.mark.parametrize(
    "graph",
    [
        Graph().add("Sin", "x"),
        Graph().add("Exp", "x", domain="com.example"),
        Graph().add("Conv", "x", "w"),
    ],
    ids=["operator", "domain", "window"],
)
def test_other_islands_are_left_to_onnxruntime(graph: Graph) -> None:
    graph.input("x", 1, 2, 5, 5)
    if graph.nodes[0].op_type == "Conv":
        graph.constant("w", np.ones((3, 2, 3, 3)), np.float32)
    if graph.nodes[0].domain:
        info = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2, 5, 5])
        target = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 2, 5, 5])
        made = onnx.helper.make_graph(graph.nodes, "island", [info], [target])
        model = onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 17)])
        island = Island(model.SerializeToString(), ("x",), ("y",))
        specs = {name: TensorSpec(name, (1, 2, 5, 5), DType.FLOAT32) for name in "xy"}
    else:
        island, specs = graph.island()
    assert not supports(island, specs)


def test_whole_numbers_are_left_to_onnxruntime() -> None:
    graph = Graph()
    graph.add("Add", graph.input("x", 4, dtype=np.int64), "x")
    island, specs = graph.island()
    assert not supports(island, specs)


def test_an_engine_runs_what_it_has_no_native_form_for_in_onnxruntime() -> None:
    model = island_model(np.eye(4, dtype=np.float32))
    program = model.programs[0]
    graph = Graph()
    graph.add("Sin", graph.input("x", 1, 4))
    island, _ = graph.island()
    program = replace(program, islands=(island,))
    arrays = {"x": np.array([[0, 1, 2, 3]], np.float32), "y": np.zeros((1, 4), np.float32)}
    NativeEngine().prepare(program).bind(arrays).run(RunControl())
    np.testing.assert_allclose(arrays["y"], np.sin(arrays["x"]), rtol=1e-5)


# ---- stopping ----


def slow() -> tuple[NativeIsland, dict[str, Array]]:
    """Some seconds of layers, none of which takes long."""
    graph = Graph()
    name = graph.input("x", 1 << 20)
    for turn in range(1500):
        graph.add("Tanh", name, outputs=[f"t{turn}"])
        name = f"t{turn}"
    island, specs = graph.island(name)
    native = native_island(island, specs)
    assert native is not None
    return native, arrays_for(island, specs, graph.inputs)


def test_a_run_ends_with_its_deadline_and_does_not_begin_when_cancelled() -> None:
    native, arrays = slow()
    run = native.bind(arrays)
    with pytest.raises(DeviceTimeout):
        run(RunControl(0.02))
    control = RunControl()
    control.cancel()
    with pytest.raises(JobCancelled):
        run(control)
    (output,) = arrays.keys() - {"x"}
    assert (arrays[output] == 77).all(), "the last layer was not reached"


# ---- damaged ----


def test_arrays_of_another_shape_are_refused() -> None:
    island, specs = CASES["Add"]().island()
    native = native_island(island, specs)
    assert native is not None
    arrays = {name: np.zeros(specs[name].shape, np.float32) for name in specs}
    with pytest.raises(ShapeError):
        native.bind({**arrays, "a": np.zeros((2, 3, 41), np.float32)})
    with pytest.raises(ShapeError):
        native.bind({**arrays, "y": np.zeros((2, 3, 40), np.float64)})


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("Add", ["x", "nobody"], ["y"])], "nothing makes"),
        ([node("Neg", ["x"], ["z"])], "nothing makes its output"),
        ([node("Neg", ["x"], ["x"])], "there already"),
        ([node("Transpose", ["x"], ["y"], perm=[0, 0])], "order"),
        ([node("Softmax", ["x"], ["y"], axis=7)], "axis 7"),
        ([node("Softmax", ["x"], ["y"], axis=1.5)], "whole number"),
        ([node("Flatten", ["x"], ["y"], axis=0)], "but the program's tensor"),
        ([node("MatMul", ["x", "x"], ["y"])], "multiplies"),
        ([node("Concat", ["x", "w"], ["y"], axis=0)], "joins"),
        ([node("Add", ["x", "w"], ["y"])], "joins"),
        ([node("Split", ["x"], ["y"], split=[3])], "parts"),
        ([node("Neg", [], ["y"])], "lacks input"),
        ([node("Squeeze", ["x"], ["y"], axes=[0])], "drops"),
        ([node("Reshape", ["x", "shape"], ["y"])], "cannot be seen"),
    ],
)
def test_graphs_that_contradict_themselves_are_refused(nodes: list[onnx.NodeProto], message: str) -> None:
    infos = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4, 5]) for name in "xy"]
    constants = [
        onnx.numpy_helper.from_array(np.ones((3, 3), np.float32), "w"),
        onnx.numpy_helper.from_array(np.array([-1, 7]), "shape"),
    ]
    graph = onnx.helper.make_graph(nodes, "island", infos[:1], infos[1:], constants)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 11)])
    specs = {name: TensorSpec(name, (4, 5), DType.FLOAT32) for name in "xy"}
    with pytest.raises(ModelFormatError, match=message) as caught:
        supports(Island(model.SerializeToString(), ("x",), ("y",)), specs)
    assert caught.value.hint


def test_damaged_islands_are_refused() -> None:
    island = island_model(np.ones((4, 4), np.float32)).programs[0].islands[0]
    specs = {name: TensorSpec(name, (1, 4), DType.FLOAT32) for name in ("x", "y")}
    assert supports(island, specs)
    for damaged in (
        replace(island, model=island.model[:-20]),
        replace(island, model=b""),
        replace(island, weights={}),
        replace(island, weights={"w": np.ones((4, 5), np.float32)}),
        replace(island, inputs=("x", "z")),
        replace(island, inputs=("z",)),
    ):
        with pytest.raises(ModelFormatError) as caught:
            supports(damaged, specs)
        assert caught.value.hint
    with pytest.raises(ModelFormatError):
        supports(island, {**specs, "x": TensorSpec("x", (1, 5), DType.FLOAT32)})


def test_damaged_bytes_raise_typed_errors_and_never_break_out() -> None:
    """What is still read runs, on memory of its own: a wrong extent would end the process."""
    island, specs = head().island(external=True)
    inputs = {"x": np.zeros((1, 69, 8, 10), np.float16)}
    random = np.random.default_rng(5)
    refused = ran = 0
    for _ in range(1500):
        data = bytearray(island.model)
        for _ in range(random.integers(1, 4)):
            data[random.integers(len(data))] = random.integers(256)
        cut = random.integers(len(data)) if random.random() < 0.1 else len(data)
        damaged = replace(island, model=bytes(data[:cut]))
        try:
            native = native_island(damaged, specs)
        except ModelFormatError:
            refused += 1
            continue
        if native is not None:
            native.bind(arrays_for(island, specs, inputs))(RunControl())
            ran += 1
    assert refused > 300
    assert ran > 100


def test_a_reader_sees_what_onnx_sees() -> None:
    proto = onnx.ModelProto.FromString(head().island()[0].model)
    graph = read_model(proto.SerializeToString())
    assert [n.op for n in graph.nodes] == [n.op_type for n in proto.graph.node]
    assert [list(n.inputs) for n in graph.nodes] == [list(n.input) for n in proto.graph.node]
    assert [v.name for v in (*graph.inputs, *graph.outputs)] == ["x", "y"]
    for found, wanted in zip(graph.constants, proto.graph.initializer, strict=True):
        assert found.value is not None
        np.testing.assert_array_equal(found.value, onnx.numpy_helper.to_array(wanted))
    for ours, theirs in zip(graph.nodes, proto.graph.node, strict=True):
        assert {a.name for a in theirs.attribute} == set(ours.attributes)
        for attribute in theirs.attribute:
            value = onnx.helper.get_attribute_value(attribute)
            assert ours.attributes[attribute.name] == (tuple(value) if isinstance(value, list) else value)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "int32", "int8", "uint8", "bool"])
def test_constants_as_lists_and_as_bytes(dtype: str) -> None:
    values = np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype)
    kind = onnx.helper.np_dtype_to_tensor_dtype(values.dtype)
    listed = onnx.helper.make_tensor("c", kind, values.shape, values.reshape(-1).tolist())
    for tensor in (listed, onnx.numpy_helper.from_array(values, "c")):
        model = onnx.helper.make_model(onnx.helper.make_graph([], "island", [], [], [tensor]))
        (constant,) = read_model(model.SerializeToString()).constants
        assert constant.value is not None
        assert constant.value.dtype == values.dtype
        np.testing.assert_array_equal(constant.value, values)


# ---- whole networks ----

SHAPES = {
    "classification": (3, 48, 192),
    "orientation": (3, 224, 224),
    "detection": (3, 160, 192),
    "recognition": (3, 48, 320),
}


def picture(name: str, seed: int) -> Array:
    return np.random.default_rng(seed).normal(0, 0.7, (1, *SHAPES[name])).astype(np.float32)


@pytest.fixture(scope="module")
def networks(real_models: RealModels) -> Callable[[str], Model]:
    @cache
    def compiled(name: str) -> Model:
        samples = [{"x": picture(name, seed)} for seed in range(2)]
        return anynpu.compile(getattr(real_models, name), "rk3588", dataset=samples, shapes={"x": (1, *SHAPES[name])})

    return compiled


def island_inputs(program: Program, island: Island, seed: int) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    specs = {name: program.tensors[name] for name in island.inputs}
    return {name: random.normal(0, 2, spec.memory_shape).astype(spec.dtype.storage) for name, spec in specs.items()}


@pytest.mark.parametrize(("name", "islands"), [("classification", 1), ("orientation", 1), ("recognition", 8)])
def test_islands_of_networks_give_what_onnxruntime_gives(networks: Callable[[str], Model], name: str, islands: int) -> None:
    program = networks(name).programs[0]
    assert len(program.islands) == islands
    for level in LEVELS:
        for seed, island in enumerate(program.islands):
            inputs = island_inputs(program, island, seed)
            for given, wanted in run_both(island, dict(program.tensors), inputs, level):
                # float16: neighbouring numbers differ by up to a thousandth, and 1e-4 in float32 may take one to its neighbour
                unit = np.spacing(np.abs(wanted)).astype(np.float32)
                off = np.abs(given.astype(np.float32) - wanted.astype(np.float32))
                assert (off <= np.maximum(unit, 1e-4)).all()
                assert (off == 0).mean() > 0.99


def detector() -> onnx.ModelProto:
    """Two convolutions with the head of a detector that takes a softmax over bins."""
    net = Net(13, seed=3)
    image = net.input("images", (1, 3, 32, 32))
    scales = [net.conv(image, 69, 3, strides=[step, step], pads=[1, 1, 1, 1]) for step in (4, 8)]
    joined = net.op("Concat", *(net.op("Reshape", scale, net.constant([1, 69, -1])) for scale in scales), axis=2)
    bins, classes = net.ops("Split", joined, net.constant([64, 5]), count=2, axis=1)
    sides = net.op("Transpose", net.op("Reshape", bins, net.constant([1, 4, 16, 80])), perm=[0, 2, 1, 3])
    weights = net.constant(np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1))
    mean = net.op("Reshape", net.op("Conv", net.op("Softmax", sides, axis=1), weights), net.constant([1, 4, 80]))
    ends = [net.op("Slice", mean, *(net.constant([place]) for place in (first, first + 2, 1))) for first in (0, 2)]
    anchors = net.constant(np.random.default_rng(0).uniform(0, 8, (1, 2, 80)).astype(np.float32))
    before, after = net.op("Sub", anchors, ends[0]), net.op("Add", anchors, ends[1])
    centre = net.op("Div", net.op("Add", before, after), net.constant(np.array(2, np.float32)))
    boxes = net.op("Concat", centre, net.op("Sub", after, before), axis=1)
    scaled = net.op("Mul", boxes, net.constant(np.full((1, 80), 8, np.float32)))
    net.output(net.op("Concat", scaled, net.op("Sigmoid", classes), axis=1))
    return net.proto()


def test_a_detector_runs_without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = detector()
    samples = feeds(proto, 3)
    model = anynpu.compile(proto, "rk3588", dataset=samples[:2])
    assert model.programs[0].islands
    with Device("rk3588", engine="reference") as device, device.load(model).context() as context:
        wanted = context.run(samples[2])[0]
    monkeypatch.setattr("anynpu.npu.engines.islands.IslandSession", None)  # whoever wants a session fails
    with Device("rk3588", engine="native") as device, device.load(model).context() as context:
        given = context.run(samples[2])[0]
    # a float16 that is rounded to its neighbour may move a code of the int8 layers after it by one step
    np.testing.assert_allclose(given, wanted, atol=0.01 * np.abs(wanted).max())
    assert (given == wanted).mean() > 0.95


WITHOUT_ONNXRUNTIME = """
import sys

for name in ("onnx", "onnxruntime", "google.protobuf"):
    sys.modules[name] = None

import numpy
from anynpu.npu import Device

with Device("rk3588") as device:
    for model, x, y in zip(sys.argv[1::3], sys.argv[2::3], sys.argv[3::3]):
        with device.load(model) as loaded, loaded.context() as context:
            numpy.save(y, context.run({"x": numpy.load(x)})[0])
"""


def test_text_recognition_needs_no_onnxruntime(networks: Callable[[str], Model], tmp_path: Path) -> None:
    arguments: list[str] = []
    for name in SHAPES:
        path = networks(name).save(tmp_path / f"{name}.rknn")
        np.save(tmp_path / f"{name}_x.npy", picture(name, 9))
        arguments += [str(path), str(tmp_path / f"{name}_x.npy"), str(tmp_path / f"{name}_y.npy")]
    command = [sys.executable, "-c", WITHOUT_ONNXRUNTIME, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    for name in SHAPES:
        with (
            Device("rk3588", engine=NativeEngine(native_islands=False)) as device,
            device.load(networks(name)).context() as context,
        ):
            wanted = context.run({"x": picture(name, 9)})[0]
        np.testing.assert_allclose(np.load(tmp_path / f"{name}_y.npy"), wanted, atol=0.02, err_msg=name)
