"""Float layers in C: every operator as onnxruntime computes it, programs that break the rules, whole networks without onnxruntime."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from anynpu import modelfile
from anynpu.compiler.graph import Graph as CompilerGraph
from anynpu.compiler.graph import Node
from anynpu.compiler.lower.float_layers import FloatEmitter
from anynpu.compiler.lower.steps import Step
from anynpu.errors import DeviceTimeout, JobCancelled, ModelFormatError, ShapeError, UnsupportedOperatorError
from anynpu.npu import Device, RunControl
from anynpu.npu.engines import native_workers
from anynpu.npu.engines.float_kernels import KERNELS
from anynpu.npu.engines.float_native import NativeStretch, native_stretch
from anynpu.npu.engines.float_onnxruntime import OnnxStretch
from anynpu.npu.engines.native import NativeEngine
from anynpu.npu.engines.native_levels import available, level_names
from anynpu.npu.engines.native_workers import WorkerThreads
from anynpu.npu.engines.onnx_writer import onnx_model
from anynpu.program import Float, FloatOp, FloatStretch, Layer, MemoryPlan, Model, Program, immediate
from anynpu.tensor import DType, Layout, TensorSpec

from ..builders import float_model, float_program
from .ingredients import Array

LEVELS = list(available())


class Graph:
    """Float layers in the making: inputs and constants by name, one layer per node, shapes as onnx infers them."""

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
        self.nodes.append(onnx.helper.make_node(op, list(inputs), list(outputs), **attributes))
        return self

    def program(self, *outputs: str, held: DType = DType.FLOAT32) -> Program:
        """The program; its weights are held as *held*."""
        outputs = outputs or ("y",)
        graph = self._inferred(outputs)
        emitter = FloatEmitter(graph, DType.FLOAT16)
        tensors = {name: _spec(name, value.dtype, value.shape) for name, value in self.inputs.items()}
        layers = []
        for node in graph.nodes:
            data = [name for name in dict.fromkeys(node.inputs) if name and name not in graph.constants]
            names = {name: name for name in (*data, *node.outputs)}
            rounded = set(graph.constants) if held is DType.FLOAT16 else set()
            op, inner = emitter.operator(Step(None, node, [node], data, node.outputs), names, rounded, held)
            tensors |= {name: _spec(name, np.dtype(np.float32), shape) for name, (shape, _) in inner.items()}
            tensors |= {name: _spec(name, graph.dtypes[name], graph.shapes[name]) for name in node.outputs}
            layers.append(Layer(node.label, node.op, op, tuple(data), tuple(node.outputs)))
        return Program(tuple(self.inputs), tuple(outputs), tensors, tuple(layers), MemoryPlan({}, 0))

    def _inferred(self, outputs: Sequence[str]) -> CompilerGraph:
        infos = [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in self.inputs.items()
        ]
        stored = [onnx.numpy_helper.from_array(value, name) for name, value in self.constants.items()]
        empty = [onnx.ValueInfoProto(name=name) for name in outputs]
        made = onnx.helper.make_graph(self.nodes, "graph", infos, empty, stored)
        model = onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", self.opset)], ir_version=8)
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        types = {value.name: value.type.tensor_type for value in (*model.graph.value_info, *model.graph.output)}
        arrays = {**self.inputs, **self.constants}
        shapes = {name: tuple(extent.dim_value for extent in kind.shape.dim) for name, kind in types.items()}
        dtypes = {name: onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type) for name, kind in types.items()}
        nodes = [
            Node(
                proto.op_type,
                list(proto.input),
                list(proto.output),
                {entry.name: onnx.helper.get_attribute_value(entry) for entry in proto.attribute},
                domain=proto.domain,
            )
            for proto in self.nodes
        ]
        return CompilerGraph(
            nodes,
            list(self.inputs),
            list(outputs),
            self.constants,
            {**{name: value.shape for name, value in arrays.items()}, **shapes},
            {**{name: value.dtype for name, value in arrays.items()}, **dtypes},
            {"": self.opset},
        )


def _spec(name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> TensorSpec:
    return TensorSpec(name, tuple(shape), DType(dtype.name), Layout.row_major(len(shape)))


def native_of(program: Program, level: str | None = None) -> NativeStretch | None:
    """The one segment of a program in C; None where there is no kernel."""
    (stretch,) = program.float_stretches()
    return native_stretch(program, stretch, level=None if level is None else level_names().index(level))


def arrays_for(program: Program, stretch: FloatStretch, inputs: Mapping[str, Array]) -> dict[str, Array]:
    arrays = {name: inputs[name].copy() for name in stretch.inputs}
    specs = [program.tensors[name] for name in stretch.outputs]
    return arrays | {spec.name: np.full(spec.memory_shape, 77, spec.dtype.storage) for spec in specs}


def run_both(program: Program, stretch: FloatStretch, inputs: Mapping[str, Array], level: str) -> Iterator[tuple[Array, Array]]:
    """Outputs of the kernels and of onnxruntime."""
    native = native_stretch(program, stretch, level=level_names().index(level))
    assert native is not None, "there is no kernel"
    given, wanted = arrays_for(program, stretch, inputs), arrays_for(program, stretch, inputs)
    native.bind(given)(RunControl())
    OnnxStretch(program, stretch).bind(wanted)(RunControl())
    for name in stretch.inputs:
        assert given[name].tobytes() == inputs[name].tobytes(), "an input was changed"
    for name in stretch.outputs:
        yield given[name], wanted[name]


def on_threads(program: Program, stretch: FloatStretch, inputs: Mapping[str, Array], level: str, threads: int) -> Iterator[Array]:
    """Outputs of the kernels on several threads, which share even the smallest layers."""
    native = native_stretch(program, stretch, level=level_names().index(level))
    assert native is not None, "there is no kernel"
    given, workers = arrays_for(program, stretch, inputs), WorkerThreads(0)
    workers.threads = threads
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_workers, "LEAST_WORK", 0)
        native.bind(given, workers)(RunControl())
    workers.close()
    return (given[name] for name in stretch.outputs)


def check(graph: Graph, *outputs: str, held: DType = DType.FLOAT32, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    program = graph.program(*outputs, held=held)
    modelfile.read(modelfile.to_bytes(Model("rk3588", "fp16", (program,))))
    (stretch,) = program.float_stretches()
    results = []
    for level in LEVELS:
        outputs = list(run_both(program, stretch, graph.inputs, level))
        results.append([given.tobytes() for given in on_threads(program, stretch, graph.inputs, level, 3)])
        for given, wanted in outputs:
            np.testing.assert_allclose(given, wanted, rtol=rtol, atol=atol, err_msg=level)
        results.append([given.tobytes() for given, _ in outputs])
    assert all(result == results[0] for result in results), "instruction sets or threads give different bytes"


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
    assert {name.partition(" ")[0] for name in CASES} == set(KERNELS)


def onnxruntime_version() -> tuple[int, ...]:
    return tuple(int(part) for part in importlib.metadata.version("onnxruntime").split(".")[:2])


@pytest.mark.parametrize("name", sorted(CASES))
def test_an_operator_gives_what_onnxruntime_gives(name: str) -> None:
    if name == "ReduceMean none" and onnxruntime_version() < (1, 24):
        pytest.skip("onnxruntime before 1.24 fails where a reduction has no axes")
    graph = CASES[name]()
    check(graph, *graph.nodes[0].output)


def test_the_ends_of_the_exponential() -> None:
    graph = Graph()
    graph.inputs["x"] = np.array([0, -0.0, 88.7, 88.8, 200, np.inf, -87.4, -103, -104, -200, -np.inf, np.nan, 1e-8], np.float32)
    check(graph.add("Exp", "x"), atol=2e-45)
    graph = Graph()
    graph.inputs["x"] = np.array([[0, -np.inf, 5, -300], [1e4, 1e4, -1e4, 0]], np.float32)
    check(graph.add("Softmax", "x"))


@pytest.mark.parametrize("op", ["Erf", "Tanh"])
def test_functions_are_exact_to_a_few_units(op: str) -> None:
    x = np.concatenate([np.linspace(-10, 10, 40_001), [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e-30]]).astype(np.float32)
    graph = Graph()
    graph.inputs["x"] = x
    check(graph.add(op, "x"), rtol=1e-6, atol=0.0)


def test_the_ends_of_gelu() -> None:
    graph = Graph(20)
    graph.inputs["x"] = np.array([0, 1e-30, 5, 200, np.inf, -5, -200, np.nan, -0.75], np.float32)
    check(graph.add("Gelu", "x", approximate="none"), atol=2e-6)


@pytest.mark.parametrize("seed", range(12))
def test_products_of_any_shape(seed: int) -> None:
    """Rows, depths and columns around the sizes of tiles, and far from them."""
    rng = np.random.default_rng(seed)
    m, k, n = (int(rng.choice([1, 2, 3, 5, 6, 7, 13, 16, 31, 64, 65, 79, 127, 128, 129, 150, 257])) for _ in range(3))
    graph = Graph(seed=seed)
    a, b = graph.input("a", 2, m, k, low=-1, high=1), graph.input("b", 2, k, n, low=-1, high=1)
    check(graph.add("MatMul", a, b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin", "ReduceSum"])
@pytest.mark.parametrize("extent", [1, 15, 16, 17, 33, 400])
def test_reductions_of_rows_of_any_length(op: str, extent: int) -> None:
    graph = Graph(20, seed=extent)
    x = graph.input("x", 3, extent)
    check(graph.add(op, x, graph.constant("axes", [-1]), keepdims=0), atol=1e-5)


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


@pytest.mark.parametrize("held", [DType.FLOAT32, DType.FLOAT16])
def test_a_head_of_a_detector(held: DType) -> None:
    check(head(), held=held, rtol=1e-3)


def test_tensors_between_layers_share_memory() -> None:
    graph = Graph()
    name = graph.input("x", 1000)
    for turn in range(20):
        graph.add("Tanh" if turn % 2 else "Neg", name, outputs=[f"t{turn}"])
        name = f"t{turn}"
    native = native_of(graph.program("t19"))
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
    check(graph)
    native = native_of(graph.program())
    assert native is not None
    assert native.private_bytes == 0


@pytest.mark.parametrize("held", [DType.FLOAT32, DType.FLOAT16])
def test_the_input_is_read_at_every_run(held: DType) -> None:
    random = np.random.default_rng(1)
    weights = random.standard_normal((32, 48)).astype(held.storage)
    native = native_of(float_model(weights, held=held).programs[0])
    assert native is not None
    x, y = random.standard_normal((1, 32)).astype(np.float32), np.zeros((1, 48), np.float32)
    run = native.bind({"x": x, "y": y})
    run(RunControl())
    np.testing.assert_allclose(y, x @ weights.astype(np.float32), rtol=1e-5, atol=1e-5)
    x[:] = 0
    run(RunControl())
    assert not y.any()


# ---- what is not for here ----


@pytest.mark.parametrize("op", ["Sin", "Conv"])
def test_what_has_no_kernel_is_left_to_onnxruntime(op: str) -> None:
    graph = Graph()
    inputs = [graph.input("x", 1, 2, 5, 5)]
    if op == "Conv":
        inputs.append(graph.constant("w", np.ones((3, 2, 3, 3)), np.float32))
    assert native_of(graph.add(op, *inputs).program()) is None


def test_operators_that_the_table_does_not_have_are_refused() -> None:
    graph = Graph()
    graph.add("NonZero", graph.input("x", 4), outputs=["y"])
    with pytest.raises(UnsupportedOperatorError, match="NonZero"):
        graph.program()


def test_whole_numbers_are_left_to_onnxruntime() -> None:
    graph = Graph()
    graph.add("Add", graph.input("x", 4, dtype=np.int64), "x")
    assert native_of(graph.program()) is None


def test_an_engine_runs_what_it_has_no_kernel_for_in_onnxruntime() -> None:
    graph = Graph()
    program = graph.add("Sin", graph.input("x", 1, 4)).program()
    arrays = {"x": np.array([[0, 1, 2, 3]], np.float32), "y": np.zeros((1, 4), np.float32)}
    NativeEngine().prepare(program).bind(arrays).run(RunControl())
    np.testing.assert_allclose(arrays["y"], np.sin(arrays["x"]), rtol=1e-5)


# ---- stopping ----


def slow() -> tuple[NativeStretch, dict[str, Array]]:
    """Some seconds of layers, none of which takes long."""
    graph = Graph()
    name = graph.input("x", 1 << 20)
    for turn in range(1500):
        graph.add("Tanh", name, outputs=[f"t{turn}"])
        name = f"t{turn}"
    program = graph.program(name)
    native = native_of(program)
    assert native is not None
    return native, arrays_for(program, program.float_stretches()[0], graph.inputs)


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
    program = CASES["Add"]().program()
    native = native_of(program)
    assert native is not None
    arrays = {name: np.zeros(spec.shape, np.float32) for name, spec in program.tensors.items()}
    with pytest.raises(ShapeError):
        native.bind({**arrays, "a": np.zeros((2, 3, 41), np.float32)})
    with pytest.raises(ShapeError):
        native.bind({**arrays, "y": np.zeros((2, 3, 40), np.float64)})


def one(name: str, *inputs: str, output: str = "y", **attributes: Any) -> list[FloatOp]:
    return [FloatOp(name, inputs, (output,), attributes)]


@pytest.mark.parametrize(
    ("operators", "message"),
    [
        (one("Add", "x", "nobody"), "nothing makes"),
        (one("Neg", "x", output="z"), "none of its operators makes 'y'"),
        (one("Neg", "x", output="x"), "there already"),
        (one("Transpose", "x", perm=(0, 0)), "order"),
        (one("Softmax", "x", axis=7), "axis 7"),
        (one("Softmax", "x", axis=1.5), "not int"),
        (one("Flatten", "x", axis=0), r"gives \[1, 20\]"),
        (one("MatMul", "x", "x"), "multiplies"),
        (one("Concat", "x", "w", axis=0), "joins"),
        (one("Add", "x", "w"), "joins"),
        (one("Split", "x", "three"), "parts"),
        (one("Neg"), "has 0 inputs"),
        (one("Neg", ""), "lacks an input"),
        (one("Squeeze", "x", "three"), "no axis 3"),
        (one("Reshape", "x", "shape"), "cannot see"),
        (one("Reshape", "x", "w"), "not integers"),
        (one("Expand", "x", "huge"), "gives"),
        (one("Expand", "x", "x"), "not constant"),
        (one("Tile", "x", "huge"), "repeats"),
        (one("Pad", "x", "huge"), "pads"),
        (one("OneHot", "x", "x", "w"), "not constant"),
        (one("MaxPool", "x", kernel_shape=(1 << 40,)), "kernel_shape 1099511627776"),
        (one("RandomNormal", shape=(1 << 40, 1 << 40)), "shape 1099511627776"),
        (one("LRN", "x", size=0), "size 0"),
        (one("Gelu", "x", approximate="rough"), "none or tanh"),
        (one("Cast", "x", to=8), "element type 8"),
        (one("Cast", "x", to=7), "gives int64 numbers, 'y' is float32"),
        (one("Equal", "x", "x"), "gives bool numbers"),
        (one("Loop", "x"), "not a float operator"),
        (one("If", "x"), "not a float operator"),
        (one("com.example.Evil", "x"), "not a float operator"),
    ],
)
def test_programs_that_break_the_rules_are_refused_by_every_engine(operators: list[FloatOp], message: str) -> None:
    constants = {
        "w": immediate(np.ones((3, 3)), "float32"),
        "shape": immediate([-1, 7]),
        "three": immediate([3]),
        "huge": immediate([1 << 62, 1 << 62]),
    }
    tensors = {name: TensorSpec(name, (4, 5), DType.FLOAT32) for name in "xyz"}
    program = float_program(Float(tuple(operators), constants), tensors)
    for engine in ("native", "reference"):
        with Device("rk3588", engine=engine) as device, pytest.raises(ModelFormatError, match=message) as caught:
            device.load(Model("rk3588", "fp16", (program,))).context().execute()
        assert caught.value.hint
    with pytest.raises(ModelFormatError, match=message):
        modelfile.to_bytes(Model("rk3588", "fp16", (program,)))


def test_damaged_headers_raise_typed_errors_and_never_break_out() -> None:
    """What is still read runs, on memory of its own: a wrong size would end the process."""
    model = Model("rk3588", "fp16", (head().program(),))
    encoded = modelfile.encode(model)
    weights = modelfile.aligned_memory(encoded.weight_size)
    encoded.write_weights(weights)
    random = np.random.default_rng(5)
    digits = [place for place, byte in enumerate(encoded.header) if chr(byte).isdigit()]
    refused = ran = 0
    for turn in range(1500):
        data = bytearray(encoded.header)
        for _ in range(random.integers(1, 4)):
            place = random.choice(digits) if turn % 2 else random.integers(len(data))
            data[place] = random.integers(48, 58) if turn % 2 else random.integers(256)
        try:
            program = modelfile.decode(bytes(data), weights, verify=False).programs[0]
        except ModelFormatError:
            refused += 1
            continue
        for stretch in program.float_stretches():
            native = native_stretch(program, stretch)
            specs = [program.tensors[name] for name in (*stretch.inputs, *stretch.outputs)]
            if native is not None and sum(spec.nbytes for spec in specs) < 1 << 24:
                native.bind({spec.name: np.zeros(spec.memory_shape, spec.dtype.storage) for spec in specs})(RunControl())
                ran += 1
    assert refused > 300
    assert ran > 100


def test_onnx_sees_what_was_written() -> None:
    graph = head()
    program = graph.program(held=DType.FLOAT16)
    (stretch,) = program.float_stretches()
    data, handed_over, _ = onnx_model(program, stretch)
    model = onnx.ModelProto.FromString(data)
    onnx.checker.check_model(model)
    kinds = [op.name for layer in program.layers for op in layer.op.operators]  # type: ignore[union-attr]
    assert [node.op_type for node in model.graph.node] == ["Cast", *kinds, "Cast"]
    written = [entry for node in model.graph.node[1:-1] for entry in node.attribute]
    attributes = [value for layer in program.layers for op in layer.op.operators for value in op.attributes.values()]  # type: ignore[union-attr]
    found = [onnx.helper.get_attribute_value(entry) for entry in written]
    assert [tuple(value) if isinstance(value, list) else value for value in found] == attributes
    assert {value.name for value in (*model.graph.input, *model.graph.output)} == {"x", "y"}
    assert not model.functions
    for tensor in model.graph.initializer:
        assert (tensor.name in handed_over) is (tensor.data_location == onnx.TensorProto.EXTERNAL)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "int32", "int8", "uint8", "bool"])
def test_small_constants_are_part_of_the_program(dtype: str) -> None:
    values = np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype)
    constant = immediate(values, dtype)
    assert constant.value.dtype == values.dtype
    np.testing.assert_array_equal(constant.value, values)
    for wrong in ({"shape": (2, 2)}, {"shape": (-2, -3)}, {"dtype": "object"}, {"data": "x" * len(constant.data)}):
        with pytest.raises(ValueError):
            replace(constant, **wrong)
    with pytest.raises(ValueError, match="256 bytes"):
        immediate(np.zeros(256, np.uint8), "uint8")


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


def stretch_inputs(program: Program, stretch: FloatStretch, seed: int) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    specs = {name: program.tensors[name] for name in stretch.inputs}
    return {name: random.normal(0, 2, spec.memory_shape).astype(spec.dtype.storage) for name, spec in specs.items()}


@pytest.mark.parametrize(
    ("name", "stretches"),
    [
        ("classification", 1),
        pytest.param("orientation", 1, marks=pytest.mark.full),
        pytest.param("recognition", 8, marks=pytest.mark.full),
    ],
)
def test_float_layers_of_networks_give_what_onnxruntime_gives(
    networks: Callable[[str], Model], name: str, stretches: int
) -> None:
    program = networks(name).programs[0]
    assert len(program.float_stretches()) == stretches
    for level in LEVELS:
        for seed, stretch in enumerate(program.float_stretches()):
            inputs = stretch_inputs(program, stretch, seed)
            for given, wanted in run_both(program, stretch, inputs, level):
                # float16: neighboring numbers differ by up to a thousandth, and 1e-4 in float32 may take one to its neighbor
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
    model = anynpu.compile(proto, "rk3588", dataset=samples[:2], without=["mixed"])
    assert model.programs[0].float_stretches()
    with Device("rk3588", engine="reference") as device, device.load(model).context() as context:
        wanted = context.run(samples[2])[0]
    monkeypatch.setattr("anynpu.npu.engines.native.OnnxStretch", None)  # whoever wants a session fails
    with Device("rk3588", engine="native") as device, device.load(model).context() as context:
        given = context.run(samples[2])[0]
    # a float16 that is rounded to its neighbor may move a quantized value of the int8 layers after it by one step
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


@pytest.mark.full
def test_text_recognition_needs_no_onnxruntime(networks: Callable[[str], Model], tmp_path: Path) -> None:
    arguments: list[str] = []
    for name in SHAPES:
        path = networks(name).save(tmp_path / f"{name}.rknn")
        np.save(tmp_path / f"{name}_x.npy", picture(name, 9))
        arguments += [str(path), str(tmp_path / f"{name}_x.npy"), str(tmp_path / f"{name}_y.npy")]
    command = [sys.executable, "-c", WITHOUT_ONNXRUNTIME, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    for name in SHAPES:
        with (
            Device("rk3588", engine=NativeEngine(native_floats=False)) as device,
            device.load(networks(name)).context() as context,
        ):
            wanted = context.run({"x": picture(name, 9)})[0]
        np.testing.assert_allclose(np.load(tmp_path / f"{name}_y.npy"), wanted, atol=0.02, err_msg=name)
