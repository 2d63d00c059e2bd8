"""Float islands in C, without onnxruntime.

An island of operators that all have a native form (:mod:`.island_operators`) is planned once per loaded model: its ONNX model is read,
what depends on constants alone is computed, and every other operator becomes one layer or a few for C. All contexts share that; each adds
private memory for what lies between the layers. A run is one call, which looks between two layers whether the job has to stop.

For an island with any other operator ``native_island`` gives None, and onnxruntime runs it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._native import ffi, lib
from ...program import Island
from ...tensor import DType, TensorSpec
from ..control import RunControl
from .island_operators import add_node
from .island_plan import IslandPlan, UnsupportedIsland, Value
from .islands import weight_values
from .native_arrays import aligned_bytes
from .native_levels import choose_level, level_names
from .native_memory import check_array
from .onnx_reader import OnnxConstant, OnnxGraph, OnnxValue, read_model

__all__ = ["NativeIsland", "native_island", "supports"]

Array = npt.NDArray[Any]

_MAX_NODES = 2000
_TYPES = (DType.FLOAT32, DType.FLOAT16)


def supports(island: Island, tensors: Mapping[str, TensorSpec]) -> bool:
    """Whether an island runs without onnxruntime. Raises ModelFormatError for a damaged one.

    :param tensors: the tensors of its program
    """
    return native_island(island, tensors) is not None


def native_island(
    island: Island, tensors: Mapping[str, TensorSpec], *, name: str = "island", level: int | None = None
) -> NativeIsland | None:
    """An island in C; None where onnxruntime has to run it.

    :param name: how errors call it
    :param level: index of the instruction set; None for the best
    """
    try:
        return NativeIsland(island, tensors, name, level_names().index(choose_level(None)) if level is None else level)
    except UnsupportedIsland:
        return None


class NativeIsland:
    """An island, ready to be bound to memory. Raises UnsupportedIsland where there is no native form; see :func:`native_island`."""

    def __init__(self, island: Island, tensors: Mapping[str, TensorSpec], name: str, level: int) -> None:
        graph = read_model(island.model)
        plan = IslandPlan(name, graph.opset, level)
        self._specs = {outside: _spec(plan, tensors, outside) for outside in (*island.inputs, *island.outputs)}
        _check_names(plan, island, graph)
        values = _constants(plan, graph.constants, island.weights)
        for declared in graph.inputs:
            values[declared.name] = self._enter(plan, declared)
        if len(graph.nodes) > _MAX_NODES:
            raise UnsupportedIsland(f"it has {len(graph.nodes)} nodes")
        for node in graph.nodes:
            add_node(plan, node, values)
        for declared in graph.outputs:
            self._leave(plan, declared, values)
        self._plan = plan
        self._layers, self._count, self._private_bytes = plan.finish()

    @property
    def private_bytes(self) -> int:
        """Memory of one context for what lies between the layers."""
        return self._private_bytes

    def bind(self, arrays: Mapping[str, Array]) -> Callable[[RunControl], None]:
        """Tie the island to the memory of one context; gives what runs it there."""
        for name, spec in self._specs.items():
            check_array(arrays[name], spec)
        private = aligned_bytes(self._private_bytes)
        held: list[Array] = [private]

        def address(place: Any) -> int:
            if not place.outside and place.constant is None:
                return int(private.ctypes.data + place.offset)
            held.append(arrays[place.outside] if place.outside else place.constant)
            return int(held[-1].ctypes.data)

        table = ffi.new("void *[]", [ffi.cast("void *", address(place)) for place in self._plan.places] or 1)
        stop, reached = ffi.new("int32_t *"), ffi.new("size_t *")

        def request_stop() -> None:
            stop[0] = 1

        def run(control: RunControl) -> None:
            assert held  # the table has bare pointers: this function keeps the arrays alive
            stop[0] = 0
            deadline = -1 if control.deadline is None else math.ceil(control.deadline * 1e9)
            with control.watching(request_stop):
                end = lib.anynpu_execute(self._layers, self._count, table, ffi.NULL, stop, deadline, ffi.NULL, reached)
            if end != lib.ANYNPU_FINISHED:
                raise control.reason("did not finish")

        return run

    def _enter(self, plan: IslandPlan, declared: OnnxValue) -> Value:
        spec = self._specs[declared.name]
        _check_declared(plan, declared, spec.memory_shape, spec.dtype.storage)
        return plan.enter(declared.name, spec.memory_shape, spec.dtype.storage)

    def _leave(self, plan: IslandPlan, declared: OnnxValue, values: Mapping[str, Value]) -> None:
        spec = self._specs[declared.name]
        value = values.get(declared.name)
        if value is None:
            raise plan.misfit(f"nothing makes its output '{declared.name}'")
        if value.shape != spec.memory_shape or value.dtype != spec.dtype.storage:
            raise plan.misfit(
                f"its output '{declared.name}' is {list(value.shape)} of {value.dtype}, "
                f"but the program's tensor is {list(spec.memory_shape)} of {spec.dtype.storage}"
            )
        plan.leave(declared.name, value)


def _spec(plan: IslandPlan, tensors: Mapping[str, TensorSpec], name: str) -> TensorSpec:
    if name not in tensors:
        raise plan.misfit(f"the program has no tensor '{name}'")
    if tensors[name].dtype not in _TYPES:
        raise UnsupportedIsland(f"'{name}' is of the type {tensors[name].dtype.value}")
    return tensors[name]


def _check_names(plan: IslandPlan, island: Island, graph: OnnxGraph) -> None:
    declared = [value.name for value in (*graph.inputs, *graph.outputs)]
    connected = [*island.inputs, *island.outputs]
    if sorted(declared) != sorted(connected) or len(set(declared)) != len(declared):
        raise plan.misfit(f"it has the tensors {declared}, but the program connects {connected}")


def _check_declared(plan: IslandPlan, declared: OnnxValue, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if declared.dtype != dtype or declared.shape != shape:
        raise plan.misfit(f"its input '{declared.name}' is not the program's tensor {list(shape)} of {dtype}")


def _constants(plan: IslandPlan, constants: tuple[OnnxConstant, ...], weights: Mapping[str, Array]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for constant in constants:
        array = constant.value
        if constant.external and constant.name in weights:
            array = weight_values(weights[constant.name])
        if constant.external and (array is None or array.shape != constant.shape or array.dtype != constant.dtype):
            raise plan.misfit(f"the weights '{constant.name}' are missing or of another shape or type")
        if constant.name in values:
            raise plan.misfit(f"it has the constant '{constant.name}' twice")
        if array is None:
            raise UnsupportedIsland(f"the constant '{constant.name}' is of a type that is not read")
        values[constant.name] = plan.constant(array)
    return values
