"""How much an ONNX model may ask for, before any library looks at it.

A file of two kilobytes can stand for more work than a machine will ever do: functions that call functions, subgraphs in subgraphs, tensors
of which only the shape is written down. Libraries expand all that without asking, so it is counted here first, without expanding it. The
bounds are far above what networks for these chips have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ...errors import CompileError

__all__ = ["check_bounds"]

MAX_NODES = 100_000
"""Nodes, those in functions counted at every place that calls them."""
MAX_TENSORS = 500_000
"""Inputs and outputs of nodes, counted in the same way."""
MAX_DEPTH = 64
"""Subgraphs inside subgraphs, and functions that call functions."""
MAX_FUNCTIONS = 20_000
MAX_NAME = 65_536
"""Characters of a name or another text."""
MAX_CONSTANT = 1 << 30
"""Elements of one constant, and of all that are written down by less than their values (sparse ones)."""

_HINT = "export the model again; no chip of the catalogue can run one of that size"

Key = tuple[str, str]
Size = tuple[int, int, int]
"""Nodes, tensors, and how deep functions call functions."""


def check_bounds(proto: Any, *, complete: bool = True) -> None:
    """Refuse a model that stands for too much; reads each part of the file once.

    :param complete: the model must hold its weights: what still lies elsewhere is refused, because a library that is handed the model
        would read whatever file or memory it names
    """
    _Count(proto, complete).check()


class _Count:
    """Adds up what a model stands for.

    Sizes of functions are found once each, callees first, so that the work is that of reading the file.
    """

    def __init__(self, proto: Any, complete: bool = True) -> None:
        self._proto = proto
        self._complete = complete
        self._sparse = 0
        self._functions: dict[Key, Any] = {}
        self._sizes: dict[Key, Size] = {}

    def check(self) -> None:
        functions = self._proto.functions
        _require(len(functions) <= MAX_FUNCTIONS, f"{len(functions)} functions", MAX_FUNCTIONS)
        for function in functions:
            self._functions[_domain(function.domain), function.name] = function
        for key in self._functions:
            self._size_of(key, ())
        self._graph(self._proto.graph, 0, ())

    def _size_of(self, key: Key, callers: tuple[Key, ...]) -> Size:
        """What a call of a function stands for."""
        if key in self._sizes:
            return self._sizes[key]
        if key in callers:
            raise CompileError(f"the function '{key[1][:80]}' of the model calls itself", hint="export the model again")
        _require(len(callers) <= MAX_DEPTH, "functions that call functions", MAX_DEPTH)
        nodes, tensors, depth = self._nodes(self._functions[key].node, 0, (*callers, key))
        _require(depth < MAX_DEPTH, "functions that call functions", MAX_DEPTH)
        size = self._sizes[key] = (nodes, tensors, depth + 1)
        return size

    def _graph(self, graph: Any, depth: int, callers: tuple[Key, ...]) -> Size:
        _require(depth <= MAX_DEPTH, "graphs inside graphs", MAX_DEPTH)
        for tensor in graph.initializer:
            self._constant(tensor)
        for sparse in graph.sparse_initializer:
            self._sparse_constant(sparse)
        for value in (*graph.input, *graph.output, *graph.value_info):
            _text(value.name)
        return self._nodes(graph.node, depth, callers)

    def _nodes(self, nodes: Iterable[Any], depth: int, callers: tuple[Key, ...]) -> Size:
        count, tensors, calls = 0, 0, 0
        for node in nodes:
            key = (_domain(node.domain), node.op_type)
            for text in (node.name, *node.input, *node.output):
                _text(text)
            parts = [self._attribute(attribute, depth, callers) for attribute in node.attribute]
            if key in self._functions:
                parts.append(self._size_of(key, callers))
            count += 1 + sum(part[0] for part in parts)
            tensors += len(node.input) + len(node.output) + sum(part[1] for part in parts)
            calls = max(calls, *(part[2] for part in parts), 0)
            _require(count <= MAX_NODES, "nodes, with those of its functions", MAX_NODES)
            _require(tensors <= MAX_TENSORS, "tensors, with those of its functions", MAX_TENSORS)
        return count, tensors, calls

    def _attribute(self, attribute: Any, depth: int, callers: tuple[Key, ...]) -> Size:
        graphs = [*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs]
        sizes = [self._graph(graph, depth + 1, callers) for graph in graphs]
        for tensor in (*([attribute.t] if attribute.HasField("t") else ()), *attribute.tensors):
            self._constant(tensor)
        for sparse in (*([attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else ()), *attribute.sparse_tensors):
            self._sparse_constant(sparse)
        return sum(size[0] for size in sizes), sum(size[1] for size in sizes), max((size[2] for size in sizes), default=0)

    def _constant(self, tensor: Any) -> None:
        _text(tensor.name)
        if self._complete and tensor.data_location == tensor.EXTERNAL:
            raise CompileError(
                f"the weights '{tensor.name}' lie in another file, which only a model that is a file itself can name",
                hint="pass the path of the .onnx file, with its data files in the same folder",
            )
        elements = _elements(tensor.dims)
        _require(elements <= MAX_CONSTANT, "elements in one constant", MAX_CONSTANT)

    def _sparse_constant(self, sparse: Any) -> None:
        self._constant(sparse.values)
        self._constant(sparse.indices)
        self._sparse += _elements(sparse.dims)
        _require(self._sparse <= MAX_CONSTANT, "elements in its sparse constants", MAX_CONSTANT)


def _elements(dims: Iterable[int]) -> int:
    extents = list(dims)
    if len(extents) > 64 or any(extent < 0 for extent in extents):
        raise CompileError(f"a constant has the shape {extents[:8]}", hint="export the model again")
    return math.prod(extents)


def _domain(name: str) -> str:
    """ONNX's own domain has two names."""
    return "" if name == "ai.onnx" else name


def _text(text: Any) -> None:
    if len(text) > MAX_NAME:
        raise CompileError(f"a name of the model has {len(text)} characters; at most {MAX_NAME} are possible", hint=_HINT)


def _require(condition: bool, what: str, most: int) -> None:
    if not condition:
        raise CompileError(f"the model has too much: more than {most} {what}", hint=_HINT)
