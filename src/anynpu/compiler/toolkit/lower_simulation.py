"""A program that computes in float32 what the simulator of Rockchip's toolkit computes: ``quantizer="vendor", arithmetic="simulator"``.

Its layers have the codes, names and places of the program for the chip. All of them form one stretch, which onnxruntime runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np

from ...chips import Chip
from ...errors import CompileError
from ...program import Layer, Placement, Program
from ...tensor import DType, Layout, Quantization, TensorSpec
from ..graph import Graph
from ..lower.float_layers import FloatEmitter, weight_bytes
from ..lower.layout import Tensors
from ..lower.memory_plan import plan_memory
from ..lower.placement import place
from ..lower.schedule import schedule
from ..lower.steps import Step
from ..lower.weight_costs import float_macs
from .simulation import simulated_steps

__all__ = ["lower_simulation"]


def lower_simulation(
    graph: Graph, steps: Sequence[Step], chip: Chip, quantization: Mapping[str, Quantization], on_cpu: Set[str] = frozenset()
) -> Program:
    """The program of *steps*. *on_cpu* are results that the CPU of a board computes, whatever its NPU could."""
    passed = [name for name in graph.outputs if name in graph.inputs]
    if passed:
        raise CompileError("an output of the model is also an input", tensor=passed[0], hint="remove it from the model's outputs")
    ordered = schedule(graph, list(steps))
    places = [_place(graph, step, chip, on_cpu) for step in ordered]
    made, simulated = simulated_steps(graph, ordered, quantization)
    layers: list[Layer] = []
    tensors = Tensors(DType.INT8, quantization, layers)
    names = {name: _input(tensors, made, name) for name in made.inputs}
    floats = FloatEmitter(made, DType.FLOAT16)
    for original, step, (placement, reason) in zip(ordered, simulated, places, strict=True):
        for name in step.outputs:
            _output(tensors, made, name)
        ends = {name: names.get(name, name) for name in (*step.inputs, *step.outputs)}
        op, inner = floats.operator(step, ends, frozenset(), DType.FLOAT32)
        for name, (shape, dtype) in inner.items():
            tensors.add(TensorSpec(name, shape, _type(name, dtype), Layout.row_major(len(shape))))
        layers.append(
            Layer(
                name=original.node.label,
                kind=original.kind,
                op=op,
                inputs=tuple(ends[name] for name in step.inputs),
                outputs=tuple(step.outputs),
                placement=placement,
                reason=reason,
                macs=float_macs(made, step),
                weight_bytes=weight_bytes(op),
                nodes=tuple(node.label for node in original.nodes),
                operator=original.operator,
                activation=original.function,
            )
        )
    inputs, outputs = tuple(graph.inputs), tuple(graph.outputs)
    return Program(
        inputs=inputs,
        outputs=outputs,
        tensors=tensors.specs,
        layers=tuple(layers),
        memory=plan_memory(layers, tensors.specs, tensors.views, (*inputs, *outputs)),
        views=tensors.views,
    )


def _place(graph: Graph, step: Step, chip: Chip, on_cpu: Set[str]) -> tuple[Placement, str]:
    if not on_cpu.isdisjoint(step.outputs):
        return Placement.CPU, f"the vendor's runtime computes {step.node.op} on the CPU"
    return place(graph, step, chip)


def _input(tensors: Tensors, graph: Graph, name: str) -> str:
    """Enter an input as models for the chip have it; gives the name of its row-major form."""
    shape, rows = graph.shapes[name], Layout.row_major(len(graph.shapes[name]))
    if graph.dtypes[name] == np.int8 and name in tensors.quantization:
        tensors.add_codes(name, shape, Layout.NHWC if len(shape) == 4 else rows)
        return tensors.codes(name, rows)
    return tensors.add(TensorSpec(name, shape, _stored(graph, name), rows))


def _output(tensors: Tensors, graph: Graph, name: str) -> None:
    shape, rows = graph.shapes[name], Layout.row_major(len(graph.shapes[name]))
    if graph.dtypes[name] == np.int8 and name in tensors.quantization:
        tensors.add_codes(name, shape, rows)
    else:
        tensors.add(TensorSpec(name, shape, _stored(graph, name), rows))


def _stored(graph: Graph, name: str) -> DType:
    """Real numbers without codes are float16 in the toolkit's files."""
    dtype = graph.dtypes[name]
    return DType.FLOAT16 if dtype in (np.float32, np.float64) else _type(name, dtype)


def _type(name: str, dtype: np.dtype[Any]) -> DType:
    try:
        return DType.FLOAT32 if dtype == np.float64 else DType(dtype.name)
    except ValueError:
        raise CompileError(
            f"a tensor has the type {dtype.name}", tensor=name, hint="only numeric and boolean tensors can run on an NPU"
        ) from None
