"""Small ONNX models, built node by node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

Array = npt.NDArray[Any]

_IR_VERSIONS = dict.fromkeys(range(7, 10), 4) | {10: 5, 11: 6, 12: 7, 13: 7, 14: 7}


class Net:
    """An ONNX graph under construction. Constants come from one seeded generator.

    >>> net = Net()
    >>> net.output(net.op("Relu", net.conv(net.input("x", (1, 3, 8, 8)), 4)))
    >>> net.proto().graph.output[0].name
    'Relu_1'
    """

    def __init__(self, opset: int = 13, seed: int = 0) -> None:
        self.opset = opset
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[str] = []
        self.constants: list[onnx.TensorProto] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.types: dict[str, np.dtype[Any]] = {}
        self.opsets: dict[str, int] = {}

    def input(self, name: str, shape: Sequence[int | str], dtype: Any = np.float32) -> str:
        """An input; a string in the shape is a dynamic axis."""
        self.types[name] = np.dtype(dtype)
        self.shapes[name] = tuple(extent if isinstance(extent, int) else 0 for extent in shape)
        self.inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), list(shape)))
        return name

    def constant(self, value: npt.ArrayLike, dtype: Any = None) -> str:
        """An initializer; Python floats become float32 and Python ints int64."""
        array = np.asarray(value)
        if dtype is None:
            dtype = (
                {"f": np.float32, "i": np.int64}.get(array.dtype.kind, array.dtype)
                if not isinstance(value, np.ndarray)
                else array.dtype
            )
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array.astype(dtype)).reshape(array.shape), name))
        return name

    def weights(self, *shape: int, scale: float = 1.0, shift: float = 0.0) -> str:
        """A float constant with normally distributed values."""
        return self.constant((self.random.normal(size=shape) * scale + shift).astype(np.float32))

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """A node with one output; returns the output's name."""
        return self.ops(kind, *inputs, count=1, domain=domain, **attributes)[0]

    def ops(self, kind: str, *inputs: str, count: int, domain: str = "", **attributes: Any) -> list[str]:
        """A node with several outputs."""
        label = f"{kind}_{len(self.nodes)}"
        outputs = [label] if count == 1 else [f"{label}_{index}" for index in range(count)]
        self.nodes.append(helper.make_node(kind, list(inputs), outputs, name=f"node_{label}", domain=domain, **attributes))
        return outputs

    def conv(
        self,
        x: str,
        channels: int,
        kernel: int | Sequence[int] = 3,
        *,
        cin: int | None = None,
        bias: bool = True,
        **attributes: Any,
    ) -> str:
        """A Conv with random weights; *cin* has to be given where *x* is not an input."""
        spatial = [kernel, kernel] if isinstance(kernel, int) else list(kernel)
        into = self.shapes[x][1] if cin is None else cin
        per_group = into // attributes.get("group", 1)
        scale = 1.0 / np.sqrt(per_group * np.prod(spatial))
        inputs = [x, self.weights(channels, per_group, *spatial, scale=scale)]
        if bias:
            inputs.append(self.weights(channels, scale=0.2))
        result = self.op("Conv", *inputs, **attributes)
        self.shapes[result] = (0, channels)
        return result

    def batch_norm(self, x: str, channels: int) -> str:
        """A BatchNormalization with random parameters."""
        variance = self.constant(self.random.uniform(0.5, 2.0, channels).astype(np.float32))
        parameters = [
            self.weights(channels, scale=0.3, shift=1.0),
            self.weights(channels),
            self.weights(channels, scale=0.3),
            variance,
        ]
        return self.op("BatchNormalization", x, *parameters)

    def output(self, *names: str) -> None:
        """Declare outputs."""
        self.outputs.extend(names)

    def proto(self) -> onnx.ModelProto:
        """The finished model."""
        outputs = [helper.make_empty_tensor_value_info(name) for name in self.outputs]
        graph = helper.make_graph(self.nodes, "net", self.inputs, outputs, self.constants)
        imports = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(*entry) for entry in self.opsets.items())]
        model = helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSIONS.get(self.opset, 8))
        inferred = onnx.shape_inference.infer_shapes(model)
        del model.graph.output[:]
        model.graph.output.extend(inferred.graph.output)
        return model


def feeds(model: onnx.ModelProto, count: int, *, seed: int = 0, low: float = -1.0, high: float = 1.0) -> list[dict[str, Array]]:
    """Random inputs for the fixed shapes of *model*, uniform between *low* and *high*; integers from 0 to 3 for integers."""
    random = np.random.default_rng(seed + 1000)
    samples = []
    for _ in range(count):
        sample: dict[str, Array] = {}
        for value in model.graph.input:
            shape = [axis.dim_value for axis in value.type.tensor_type.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            if dtype.kind == "f":
                sample[value.name] = random.uniform(low, high, shape).astype(dtype)
            else:
                sample[value.name] = random.integers(0, 4, shape).astype(dtype)
        samples.append(sample)
    return samples
