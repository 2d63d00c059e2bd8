"""An ONNX model as one side of a comparison, in onnxruntime and float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from ..._util.types import Array
from ...compiler.compile_options import CompileOptions, preprocessing
from ...compiler.graph import Graph, Node
from ...compiler.importers.onnx_graph import Shapes, import_onnx
from ...compiler.importers.onnx_model import load_onnx
from ...compiler.passes.channel_order import channel_orders
from ...compiler.quantize.calibrate import float_session
from ...errors import InputError, ParameterError
from ...program import Preprocess
from .side import InputSpec, Outcome, Sample, Subject, Unit

__all__ = ["OnnxSubject"]


class OnnxSubject:
    """An ONNX model.

    :param model: path, bytes, onnx.ModelProto or the compiler's graph
    :param shapes: of inputs that are not fixed
    :param preprocess: what a compiled model does to raw inputs itself, and what has to be done for this one
    :param channel_order: ``bgr`` where the model was trained on BGR and samples are RGB
    """

    def __init__(
        self,
        model: Any,
        title: str,
        *,
        shapes: Shapes | None = None,
        preprocess: Mapping[str, Preprocess] | None = None,
        channel_order: str | Mapping[str, str] | None = None,
    ) -> None:
        self.title = title
        self._graph: Graph = model if isinstance(model, Graph) else import_onnx(load_onnx(model), shapes)
        customs = sorted({node.custom for node in self._graph.nodes if node.custom})
        if customs:
            raise ParameterError(
                f"{title} has custom operators ({', '.join(customs)}), which only its program can compute",
                hint="compare a model that ends before them",
            )
        self._preprocess = preprocess or {}
        order = preprocessing(self._graph.inputs, self._graph.shapes, CompileOptions(channel_order=channel_order))
        self._orders = channel_orders(self._graph, order.reversed_inputs)
        self._makers = self._graph.producers()
        self._watched: list[str] = []
        self._session: Any = None
        self._pieces: dict[str, tuple[list[str], Any]] = {}
        self._last: Mapping[str, Array] = {}

    @property
    def inputs(self) -> Sequence[InputSpec]:
        return [self._input(name) for name in self._graph.inputs]

    @property
    def outputs(self) -> Mapping[str, tuple[int, ...]]:
        return {name: self._graph.shapes[name] for name in self._graph.outputs}

    @property
    def tensors(self) -> AbstractSet[str]:
        return {*self._graph.inputs, *self._makers}

    def watch(self, names: AbstractSet[str]) -> None:
        """See :meth:`Subject.watch`."""
        self._watched = [name for name in self._makers if name in names]
        self._session = float_session(self._graph, self._graph.nodes, self._graph.inputs, self._watched)
        self._pieces = {}

    def units(self) -> Sequence[Unit]:
        """The nodes whose results are watched; each stands for all nodes since the watched ones before it."""
        watched = set(self._watched)
        made = []
        for index, node in enumerate(self._graph.nodes):
            tensors = tuple(name for name in node.outputs if name in watched)
            if tensors:
                nodes = tuple(part.label for part in self._between(tensors)[0])
                made.append(Unit(index, node.label, node.op, tensors, nodes=nodes))
        return made

    def run(self, sample: Sample) -> Mapping[str, Array]:
        """See :meth:`Subject.run`."""
        taken = {name: self._normalised(name, sample[name]) for name in self._graph.inputs}
        feeds = {name: self._as_trained(name, value) for name, value in taken.items()}
        try:
            results = self._session.run(self._watched, feeds)
        except Exception as error:  # onnxruntime's exception classes are private
            raise InputError(f"{self.title} failed in onnxruntime: {error}", hint="check the inputs") from error
        made = {name: self._as_compiled(name, value) for name, value in zip(self._watched, results, strict=True)}
        self._last = {**taken, **made}
        return self._last

    def outcome(self, unit: Unit) -> Outcome:
        """See :meth:`Subject.outcome`."""
        return Outcome({name: self._last[name] for name in unit.tensors})

    def alone(self, unit: Unit, values: Mapping[str, Array]) -> Outcome | None:
        """See :meth:`Subject.alone`."""
        first = unit.tensors[0]
        if first not in self._pieces:
            nodes, inputs = self._between(unit.tensors)
            self._pieces[first] = inputs, float_session(self._graph, nodes, inputs, unit.tensors)
        inputs, session = self._pieces[first]
        feeds = {}
        for name in inputs:
            value = values.get(name)
            if value is None or value.shape != self._graph.shapes[name]:
                return None
            feeds[name] = np.ascontiguousarray(self._as_trained(name, value), self._graph.dtypes[name])
        results = session.run(list(unit.tensors), feeds)
        return Outcome({name: self._as_compiled(name, value) for name, value in zip(unit.tensors, results, strict=True)})

    def same_arithmetic(self, unit: Unit, other: Subject) -> bool:
        """Two ONNX models are compared as real numbers."""
        return False

    def _as_compiled(self, name: str, value: Array) -> Array:
        """The channels of a tensor in the order of a compiled model: before its first convolutions, that of the samples."""
        return np.ascontiguousarray(value[:, self._orders[name]]) if name in self._orders else value

    def _as_trained(self, name: str, value: Array) -> Array:
        """The opposite of :meth:`_as_compiled`."""
        return np.ascontiguousarray(value[:, np.argsort(self._orders[name])]) if name in self._orders else value

    def _between(self, tensors: Sequence[str]) -> tuple[list[Node], list[str]]:
        """The nodes that lead to *tensors* from inputs and other watched tensors, and these."""
        watched = set(self._watched) - set(tensors)
        found: set[int] = set()
        inputs: dict[str, None] = {}
        waiting = list(tensors)
        while waiting:
            name = waiting.pop()
            if name in watched or name not in self._makers:
                if name and name not in self._graph.constants:
                    inputs[name] = None
            elif id(self._makers[name]) not in found:
                found.add(id(self._makers[name]))
                waiting.extend(self._makers[name].inputs)
        return [node for node in self._graph.nodes if id(node) in found], list(inputs)

    def _input(self, name: str) -> InputSpec:
        dtype = self._graph.dtypes[name]
        real = dtype.kind == "f"
        pixels = name in self._preprocess
        return InputSpec(
            name,
            self._graph.shapes[name],
            np.dtype(np.float32) if real else dtype,
            0.0 if pixels else None,
            255.0 if pixels else None,
        )

    def _normalised(self, name: str, value: Array) -> Array:
        preprocess = self._preprocess.get(name)
        if preprocess is not None:
            along = [1] * value.ndim
            if value.ndim > 1:
                along[1] = -1
            mean, std = (np.asarray(numbers, np.float32).reshape(along) for numbers in (preprocess.mean, preprocess.std))
            value = (value.astype(np.float32) - mean) / std
        return np.ascontiguousarray(value, self._graph.dtypes[name])
