"""A program whose float islands are taken apart, so that every layer can be executed, and looked at, by itself.

The pieces compute in float32 as the whole island does; what passes between them is kept in float32, so nothing is rounded that was not
rounded before. An island that passes on types which programs do not have (float64) stays whole, as one layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from .._optional import onnx
from ..errors import ModelFormatError
from ..program import Float, Island, Layer, Program
from ..tensor import DType, Layout, TensorSpec

__all__ = ["unrolled"]


def unrolled(program: Program) -> Program:
    """The same program with one island for each float layer, as far as islands can be taken apart."""
    if not program.islands:
        return program
    tensors = dict(program.tensors)
    islands: list[Island] = []
    layers: list[Layer] = []
    parts = [_Pieces(program, number) for number in range(len(program.islands))]
    for layer in program.layers:
        if not isinstance(layer.op, Float):
            layers.append(layer)
            continue
        pieces = parts[layer.op.island]
        if pieces.separable:
            island = pieces.island(layer)
            tensors.update({spec.name: spec for spec in pieces.specs(island)})
        elif layer is pieces.layers[0]:
            island = program.islands[layer.op.island]
            layer = replace(layer, nodes=tuple(node for part in pieces.layers for node in part.nodes))
        else:
            continue
        layers.append(replace(layer, op=Float(len(islands)), inputs=island.inputs, outputs=island.outputs))
        islands.append(island)
    return replace(program, tensors=tensors, layers=tuple(layers), islands=tuple(islands))


class _Pieces:
    """One island, by layer.

    :ivar layers: its layers, in order
    """

    def __init__(self, program: Program, number: int) -> None:
        self._program = program
        self._island = program.islands[number]
        self._model = onnx().ModelProto.FromString(self._island.model)
        graph = self._model.graph
        self._nodes = list(graph.node)
        self._makers = {name: index for index, node in enumerate(self._nodes) for name in node.output if name}
        self._initializers = {tensor.name: tensor for tensor in graph.initializer}
        self.layers = [layer for layer in program.layers if isinstance(layer.op, Float) and layer.op.island == number]
        self._inside = {name: self._inner(name) for layer in self.layers for name in layer.outputs}
        inferred = onnx().shape_inference.infer_shapes(self._model).graph
        self._types = {value.name: value.type.tensor_type.elem_type for value in inferred.value_info}

    @property
    def separable(self) -> bool:
        """Whether all that its layers pass on has a type that a program can hold."""
        known = {*self._island.inputs, *self._island.outputs}
        return all(self._dtype(name) is not None for name in self._inside.values() if name not in known)

    def island(self, layer: Layer) -> Island:
        """What one layer computes: from the tensors that other layers make, or that enter, to its own."""
        inner = [self._inside[name] for name in layer.outputs]
        leaving = [name for name in layer.outputs if name in self._island.outputs]
        outputs = tuple(dict.fromkeys((*inner, *leaving)))
        borders = {*self._inside.values(), *self._island.inputs} - set(inner)
        nodes, inputs, constants = self._walk(outputs, borders, layer)
        package = onnx()
        model = package.ModelProto()
        model.CopyFrom(self._model)
        model.graph.Clear()
        model.graph.name = "layer"
        model.graph.node.extend(nodes)
        model.graph.initializer.extend(self._initializers[name] for name in constants)
        model.graph.input.extend(self._info(name) for name in inputs)
        model.graph.output.extend(self._info(name) for name in outputs)
        weights = {name: self._island.weights[name] for name in constants if name in self._island.weights}
        return Island(bytes(model.SerializeToString()), tuple(inputs), outputs, weights)

    def specs(self, island: Island) -> Iterable[TensorSpec]:
        """The tensors at the border of a piece."""
        return [self._spec(name) for name in (*island.inputs, *island.outputs)]

    def _inner(self, name: str) -> str:
        """What the island's own nodes call a tensor."""
        inside = f"{name}@inside"
        return inside if inside in self._makers else name

    def _walk(self, outputs: tuple[str, ...], borders: set[str], layer: Layer) -> tuple[list[Any], list[str], list[str]]:
        """Nodes that lead from *borders* to *outputs*, the borders that are reached, and the constants that are used."""
        found: set[int] = set()
        inputs: dict[str, None] = {}
        constants: dict[str, None] = {}
        waiting = list(outputs)
        while waiting:
            name = waiting.pop()
            if name in borders:
                inputs[name] = None
            elif name in self._initializers:
                constants[name] = None
            elif name in self._makers:
                maker = self._makers[name]
                if maker not in found:
                    found.add(maker)
                    waiting.extend(source for source in self._nodes[maker].input if source)
            else:
                raise ModelFormatError(
                    f"nothing makes the tensor '{name}' that layer '{layer.name}' needs", hint="compile the model again"
                )
        return [self._nodes[index] for index in sorted(found)], list(inputs), list(constants)

    def _spec(self, name: str) -> TensorSpec:
        known = self._program.tensors
        if name in self._island.inputs or name in self._island.outputs:
            return known[name]
        home = known[name.removesuffix("@inside")]
        dtype = self._dtype(name) or home.dtype
        return TensorSpec(name, home.shape, dtype, Layout.row_major(len(home.shape)))

    def _dtype(self, name: str) -> DType | None:
        """The type that a tensor has inside the island; None where it is not known, or programs do not have it."""
        kind = self._types.get(name, 0)
        if not kind:
            return None
        package = onnx()
        if kind == package.TensorProto.BFLOAT16:
            return None  # numpy has no such type
        text = package.helper.tensor_dtype_to_np_dtype(kind).name
        return DType(text) if text in {dtype.value for dtype in DType} else None

    def _info(self, name: str) -> Any:
        package = onnx()
        spec = self._spec(name)
        kind = package.TensorProto.BFLOAT16 if spec.dtype is DType.BFLOAT16 else None
        kind = package.helper.np_dtype_to_tensor_dtype(spec.dtype.storage) if kind is None else kind
        return package.helper.make_tensor_value_info(name, kind, spec.memory_shape)
