"""Float islands: consecutive float steps as one ONNX model, bound to the program's tensors by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._optional import onnx
from ..convert import float32_to_bfloat16
from ..program import Island
from ..tensor import DType, TensorSpec
from .graph import Graph, Node, element_type, external_tensor, to_onnx
from .steps import Step

__all__ = ["build_island", "stored_weights"]

Array = npt.NDArray[Any]

_EXTERNAL_BYTES = 256
"""Float constants from this size on are weights: they lie in weight memory, the others inside the graph."""


def is_weight(value: Array) -> bool:
    """Whether a constant counts as weights."""
    return value.dtype == np.float32 and value.nbytes >= _EXTERNAL_BYTES


def stored_weights(graph: Graph, step: Step, *, half: bool) -> int:
    """Bytes of weight memory that a float step needs."""
    names = {name for node in step.nodes for name in node.inputs if name in graph.constants}
    values = [graph.constants[name] for name in names]
    return sum(value.nbytes // (2 if half else 1) for value in values if is_weight(value))


def build_island(
    graph: Graph,
    steps: Sequence[Step],
    boundary: Mapping[str, TensorSpec],
    outputs: Sequence[str],
    is_half: Callable[[Step], bool],
    half_type: DType = DType.FLOAT16,
) -> Island:
    """The island of some float steps.

    :param boundary: the program's tensor for each graph tensor that enters or leaves
    :param outputs: graph tensors that leave
    :param is_half: whether a step holds its weights in *half_type*
    :param half_type: FLOAT16 or BFLOAT16
    """
    position = {id(node): index for index, node in enumerate(graph.nodes)}
    nodes = sorted({id(node): node for step in steps for node in step.nodes}.values(), key=lambda node: position[id(node)])
    made = {name for node in nodes for name in node.outputs}
    entering = list(
        dict.fromkeys(name for node in nodes for name in node.inputs if name and name not in made and name not in graph.constants)
    )
    half = {name for step in steps if is_half(step) for node in step.nodes for name in node.inputs}
    builder = _Builder(graph, nodes, half, half_type)
    for name in entering:
        builder.enter(name, boundary[name])
    for name in outputs:
        builder.leave(name, boundary[name])
    return Island(
        builder.serialize(),
        tuple(boundary[name].name for name in entering),
        tuple(boundary[name].name for name in outputs),
        builder.weights,
    )


class _Builder:
    """Collects what one island's ONNX model is made of."""

    def __init__(self, graph: Graph, nodes: Sequence[Node], half: set[str], half_type: DType) -> None:
        self._graph = graph
        self._half = half
        self._half_type = half_type
        self._renamed: dict[str, str] = {}
        self._casts: list[Any] = []
        self._final: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._nodes = nodes
        self.weights: dict[str, Array] = {}

    def enter(self, name: str, spec: TensorSpec) -> None:
        """Let a tensor of the program come in, cast to the graph's type."""
        inside = self._inner(name, spec)
        self._inputs.append(self._info(spec))
        self._casts.append(self._cast(spec.name, inside, element_type(self._graph.dtypes[name])))

    def leave(self, name: str, spec: TensorSpec) -> None:
        """Let a result go out, cast to the program's type."""
        inside = self._inner(name, spec)
        self._outputs.append(self._info(spec))
        self._final.append(self._cast(inside, spec.name, self._onnx_type(spec.dtype)))

    def _inner(self, name: str, spec: TensorSpec) -> str:
        if spec.name == name and name not in self._renamed:
            self._renamed[name] = f"{name}@inside"
        return self._renamed.get(name, name)

    @staticmethod
    def _onnx_type(dtype: DType) -> int:
        return element_type(np.dtype(dtype.value))

    def _info(self, spec: TensorSpec) -> Any:
        return onnx().helper.make_tensor_value_info(spec.name, self._onnx_type(spec.dtype), spec.shape)

    @staticmethod
    def _cast(source: str, target: str, kind: int) -> Any:
        return onnx().helper.make_node("Cast", [source], [target], to=kind)

    def _initializer(self, name: str, value: Array) -> Any:
        package = onnx()
        if not is_weight(value):
            return package.numpy_helper.from_array(value, name)
        half = name in self._half
        if half and self._half_type is DType.BFLOAT16:
            self.weights[name] = float32_to_bfloat16(np.ascontiguousarray(value))
            return external_tensor(name, value)
        with np.errstate(over="ignore"):  # what float16 cannot hold is infinite on the chip as well
            stored = np.ascontiguousarray(value, np.float16 if half else value.dtype)
        held = f"{name}@half" if half else name
        self.weights[held] = stored
        if half:
            self._casts.insert(0, self._cast(held, name, package.TensorProto.FLOAT))
        return external_tensor(held, stored)

    def serialize(self) -> bytes:
        """The finished model."""
        renamed = [
            Node(
                node.op,
                [self._renamed.get(name, name) for name in node.inputs],
                [self._renamed.get(name, name) for name in node.outputs],
                node.attributes,
                node.name,
                node.domain,
            )
            for node in self._nodes
        ]
        model = to_onnx(
            self._graph,
            renamed,
            (),
            (),
            initializer=self._initializer,
            name="island",
        )
        model.graph.input.extend(self._inputs)
        model.graph.output.extend(self._outputs)
        body = list(model.graph.node)
        del model.graph.node[:]
        model.graph.node.extend([*self._casts, *body, *self._final])
        return bytes(model.SerializeToString())
