"""Outlines: the program that a model would become, without its weights' values.

What a prediction of time and memory needs is there: layers, shapes, types, sizes and places. Graphs whose weights were stripped will do.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy.typing as npt

from ... import chips
from ..._util.optional import onnx
from ...chips import Chip
from ...errors import CompileError
from ...program import Program
from ...tensor import Quantization
from ...vendors import Format, registry
from ..compile_options import CompileOptions, shape_sets
from ..graph import Graph
from ..importers.onnx_graph import Shapes, constant_array, import_onnx
from ..importers.onnx_model import check_onnx, is_stripped, read_onnx, stand_in
from ..importers.split_post_processing import split_tail
from ..passes.simplify import simplify
from ..pipeline import graph_for, plan_steps
from ..quantize.calibrate import UnknownRanges
from ..quantize.tensor_scales import assign_quantization
from .formats import format_of
from .lower import lower
from .steps import Step

_LARGE_WEIGHT = 1024
"""Elements from which on a float constant is taken out of the model."""


class ModelOutline:
    """The outline of an ONNX model for any chip; what does not depend on the chip is done once. For one thread at a time.

    :ivar name: what to call the model

    >>> ModelOutline("det.onnx").program("rk3588").layers    # doctest: +SKIP
    """

    def __init__(self, model: Any, *, shapes: Shapes | None = None, batch: int | None = None) -> None:
        proto, weights = _load(model)
        proto, _, _ = split_tail(proto)
        self.name = Path(model).stem if isinstance(model, (str, Path)) else str(proto.graph.name)
        self._graph = import_onnx(proto, shape_sets(shapes)[0], batch, weights=weights)
        simplify(self._graph)
        self._steps: dict[tuple[Format, bool], tuple[Graph, list[Step], dict[str, Quantization]]] = {}
        self._programs: dict[tuple[object, ...], Program] = {}

    def program(self, target: str | Chip, *, dtype: str = "w8a8") -> Program:
        """The outline for one chip. It can be looked at, not run."""
        chip = chips.get(target) if isinstance(target, str) else target
        kind = format_of(dtype, chip)
        key = (chip.limits, chip.float16, kind)  # all that placement looks at
        if key not in self._programs:
            group = kind, registry.of_chip(chip).integer_ends
            if group not in self._steps:
                graph = graph_for(self._graph, chip, kind, CompileOptions())
                planned = plan_steps(graph, kind, ())
                self._steps[group] = graph, planned, assign_quantization(graph, planned, UnknownRanges(), kind)
            graph, steps, quantization = self._steps[group]
            self._programs[key] = lower(graph, steps, chip, quantization, kind, outline=True)
        return self._programs[key]


def _load(model: Any) -> tuple[Any, dict[str, npt.NDArray[Any]]]:
    """A checked ModelProto without its large weights, and those weights by name; stripped ones get values that stand in for them.

    The weights are declared as inputs of the graph, so that neither the checker nor the inference of shapes copies them about.
    """
    proto = read_onnx(model, external=False)
    weights: dict[str, npt.NDArray[Any]] = {}
    kept = []
    for tensor in proto.graph.initializer:
        if tensor.data_location == onnx().TensorProto.EXTERNAL:
            _settle_external(tensor, model)
        if is_stripped(tensor):
            weights[tensor.name] = stand_in(tensor)
        elif tensor.data_type == onnx().TensorProto.FLOAT and math.prod(tensor.dims) >= _LARGE_WEIGHT:
            weights[tensor.name] = constant_array(tensor)
        else:
            kept.append(tensor)
    declared = {value.name for value in proto.graph.input}
    infos = [
        onnx().helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        for tensor in proto.graph.initializer
        if tensor.name in weights and tensor.name not in declared
    ]
    copies = [_copy(tensor) for tensor in kept]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(copies)
    proto.graph.input.extend(infos)
    check_onnx(proto)
    return proto, weights


def _settle_external(tensor: Any, model: Any) -> None:
    """Large weights in another file are not needed, and that file need not be there; other constants are read."""
    if tensor.data_type != onnx().TensorProto.FLOAT or math.prod(tensor.dims) < _LARGE_WEIGHT:
        folder = str(Path(model).parent) if isinstance(model, (str, Path)) else ""
        try:
            onnx().external_data_helper.load_external_data_for_tensor(tensor, folder)
        except (OSError, ValueError, onnx().checker.ValidationError) as error:
            raise CompileError(
                "a constant that lies in another file cannot be read, and shapes may depend on it",
                tensor=tensor.name,
                hint="keep the .onnx file and its data files in one folder",
            ) from error
    tensor.data_location = onnx().TensorProto.DEFAULT
    del tensor.external_data[:]


def _copy(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
