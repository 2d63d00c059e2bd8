"""The quantization that Rockchip's own toolkit would choose: ``quantizer="vendor"``.

One range per tensor, from the smallest to the largest value over the calibration data; weights per output channel with a zero point, in
float32 steps; no channel groups, no clipping, no weight reconstruction. With it a model has the scales, multipliers and tables
of a model that the toolkit compiled from the same data. Found by comparing with what the toolkit recorded for networks that a
board ran (tests/arithmetic/board).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..._util.types import Array
from ...errors import CompileError, TensorNameError
from ...program import Preprocess
from ...tensor import Affine, DType, Quantization
from ..graph import Graph, Node
from ..importers.onnx_model import load_onnx
from ..importers.quantized_models import split_qdq
from ..lower.forms import Form
from ..lower.fuse import shape_of
from ..lower.steps import Activation, Step
from ..quantize.tensor_scales import Ranges, keeps_scale, pixel_range
from .quantization_cfg import read_cfg

VENDOR = "vendor"
QUANTIZERS = ("anynpu", VENDOR)

GivenRanges = Mapping[str, tuple[float, int]]
"""Scale and int8 zero point of tensors by name."""


class WholeRanges(dict[str, tuple[float, int]]):
    """Ranges of a whole model, from a file that knows more tensors than ours: those that were folded away are passed over."""


_KNOWN = {"Sigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0)}
"""The results of these have this range whatever the data state; a board's programs show it for Sigmoid, Tanh is assumed."""

_BEFORE = {"Sigmoid": (-7.0, 7.0), "Tanh": (-3.2, 3.2), "HardSwish": (-3.0, math.inf)}
"""The range of what these read, where quantized values stand before them, goes no further than this."""

_VIEWS = (Form.RESHAPE, Form.TRANSPOSE)

_TINY = 1e-9


def toolkit_quantization(
    graph: Graph,
    steps: list[Step],
    ranges: Ranges,
    preprocess: Mapping[str, Preprocess],
    given: Mapping[str, Quantization],
) -> dict[str, Quantization]:
    """The quantization of every tensor that has quantized values. *given* ones stay as they are."""
    made_by = {name: step for step in steps for name in step.outputs}
    joined = _joined(graph, steps)
    pooled = {step.inputs[0]: step.outputs[0] for step in steps if not step.is_float and "MaxPool" in step.node.op}
    limits = _limits_before(graph, steps)
    result: dict[str, Quantization] = dict(given)

    def of(name: str) -> Quantization:
        if name not in result:
            step = made_by.get(name)
            same = step is not None and not step.is_float and (keeps_scale(step) or step.node.op == "AveragePool")
            result[name] = of(step.inputs[0]) if step is not None and same else _affine(*range_of(name))
        return result[name]

    def range_of(name: str) -> tuple[float, float]:
        step = made_by.get(name)
        if step is not None and step.activation is not None and step.activation.label in _KNOWN:
            return _KNOWN[step.activation.label]
        pixels = pixel_range(graph, name, preprocess.get(name)) if name in graph.inputs else None
        if pixels:
            return pixels
        low, high = ranges(pooled.get(name, name), exact=True)
        least, most = limits.get(name, (-math.inf, math.inf))
        if name in joined:
            least, most = _ends(of(joined[name]))
        return max(low, least), min(high, most)

    for step in steps:
        if step.is_float:
            continue
        for name in (*step.reads, *step.outputs):
            of(name)
        if step.rounds_before_activation:
            of(step.before_activation)
    for name in sorted(graph.coded):
        of(name)
    return result


def toolkit_ends(graph: Graph, steps: list[Step], quantization: Mapping[str, Quantization]) -> dict[str, tuple[float, float]]:
    """Smallest and largest value of every tensor, from which the toolkit makes these scales and zero points again.

    It cuts a range to what the only reader of a tensor can distinguish, so none goes beyond. What a convolution hands to a clamp has the
    range of the clamp's result.
    """
    limits = _limits_before(graph, steps)
    joined = _joined(graph, steps)
    ends: dict[str, tuple[float, float]] = {}

    def add(name: str) -> tuple[float, float]:
        if name not in ends:
            low, high = _ends(quantization[name])
            # what is joined again has the limits of the last result
            least, most = add(joined[name]) if name in joined else limits.get(name, (-math.inf, math.inf))
            shift = max(least - low, 0.0) - max(high - most, 0.0)  # less than a step: the zero point was rounded
            ends[name] = max(low + shift, least), min(high + shift, most)
        return ends[name]

    for name, value in quantization.items():
        if isinstance(value, Affine) and value.is_per_tensor:
            add(name)
    for step in steps:
        clamp = step.activation is not None and step.activation.bounds is not None
        if clamp and not step.is_float and step.before_activation and step.outputs[0] in ends:
            ends.setdefault(step.before_activation, ends[step.outputs[0]])
    return ends


def _ends(quantization: Quantization) -> tuple[float, float]:
    first, last = DType.INT8.limits
    return (first - quantization.zero_point) * quantization.scale, (last - quantization.zero_point) * quantization.scale


def _joined(graph: Graph, steps: list[Step]) -> dict[str, str]:
    """Tensors that only a Concat reads, and its result: the toolkit gives none of them a wider range than the result has."""
    readers = _readers_of(steps)
    found: dict[str, str] = {}
    for name in readers:
        end = name
        while end not in graph.outputs and len(using := readers.get(end, [])) == 1 and using[0].form in _VIEWS:
            end = using[0].outputs[0]
        using = readers.get(end, [])
        alone = len(using) == 1 and end not in graph.outputs and name not in graph.inputs
        if alone and using[0].form is Form.CONCAT and not using[0].is_float:
            found[name] = using[0].outputs[0]
    return found


def _limits_before(graph: Graph, steps: list[Step]) -> dict[str, tuple[float, float]]:
    """How far the range of a tensor may go because of the activation that alone reads it."""
    readers: dict[str, int] = {}
    for step in steps:
        for name in step.reads:
            readers[name] = readers.get(name, 0) + 1
    found = {}
    for step in steps:
        if step.is_float or step.activation is None:
            continue
        alone = step.form is Form.FUNCTION and readers[step.inputs[0]] == 1
        name = step.inputs[0] if alone else step.before_activation if step.rounds_before_activation else ""
        if name and name not in graph.inputs and name not in graph.outputs:
            found[name] = _reach(step.activation)
    return found


def _reach(activation: Activation) -> tuple[float, float]:
    if activation.bounds is not None:
        return activation.bounds
    if activation.label == "HardSigmoid":
        shape = shape_of(activation)
        return (-math.inf, math.inf) if shape is None else (-shape.half, shape.half)
    return _BEFORE.get(activation.label, (-math.inf, math.inf))


def _affine(low: float, high: float) -> Affine:
    """Scale and zero point in float64; the zero point follows from the scale before it is stored as float32."""
    first, last = DType.INT8.limits
    low, high = min(low, 0.0), max(high, 0.0)
    scale = max((high - low) / (last - first), _TINY)
    return Affine.per_tensor(float(np.float32(scale)), int(np.clip(np.rint(first - low / scale), first, last)))


def affine_of(low: float, high: float) -> tuple[float, int]:
    """The scale and zero point that the toolkit makes of the ends of a range."""
    quantization = _affine(low, high)
    return quantization.scale, int(quantization.zero_point)


def _single(scale: float) -> float:
    """A scale as float32 holds it; 0 for one that it cannot hold."""
    try:
        with np.errstate(over="ignore"):
            rounded = float(np.float32(float(scale)))
    except OverflowError:  # an integer of hundreds of digits
        return 0.0
    return rounded if math.isfinite(rounded) else 0.0


def given_quantization(ranges: GivenRanges | None, graph: Graph) -> dict[str, Quantization]:
    """The quantization of tensors whose scale and zero point the caller gives."""
    known = {*graph.inputs, *(name for node in graph.nodes for name in node.outputs)}
    result: dict[str, Quantization] = {}
    for name, value in (ranges or {}).items():
        if name not in known:
            if isinstance(ranges, WholeRanges):
                continue
            raise TensorNameError(
                f"ranges has '{name}', which is no tensor of the model (it may have been folded away)",
                hint="take names from the ONNX model; 'anynpu check MODEL --layers' lists those that layers have",
            )
        scale, zero = _single(value[0]), value[1]
        if not (scale > 0 and -128 <= zero <= 127 and int(zero) == zero):
            raise CompileError(
                f"ranges of '{name}': {repr(value)[:80]}",
                tensor=name,
                hint="give (scale, zero point): a positive number that float32 can hold, and an int8 code",
            )
        result[name] = Affine.per_tensor(scale, int(zero))
    return result


MAX_JSON = 1 << 24
"""Bytes of a file of ranges: some hundred thousand tensors."""


def read_ranges(path: Path | None) -> GivenRanges | None:
    """Ranges from a file: JSON, the ``.quantization.cfg`` of Rockchip's toolkit, or an ONNX model with QuantizeLinear nodes.

    JSON is ``{"tensor": [scale, zero point], ...}``, or has the keys ``scale`` and ``zero_point``.
    """
    if path is None:
        return None
    if path.suffix == ".cfg":
        return WholeRanges(read_cfg(path).ranges())
    if path.suffix == ".onnx":
        return WholeRanges(split_qdq(load_onnx(path)).ranges)
    form = 'a file of ranges is {"tensor": [scale, zero point], ...}, a .quantization.cfg or a quantized .onnx'
    if path.is_file() and path.stat().st_size > MAX_JSON:
        raise CompileError(f"{path} has {path.stat().st_size} bytes; at most {MAX_JSON} are possible", hint=form)
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CompileError(f"{path} cannot be read as JSON: {str(error)[:200]}", hint=form) from error
    if not isinstance(entries, dict):
        raise CompileError(f"{path} has no ranges by name", hint=form)
    ranges: dict[str, tuple[float, int]] = {}
    for name, entry in entries.items():
        pair = [entry.get("scale"), entry.get("zero_point")] if isinstance(entry, dict) else entry
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(part) in (int, float) for part in pair):
            raise CompileError(f"{path}: the range of '{name[:80]}' is {repr(entry)[:80]}", tensor=name[:80], hint=form)
        ranges[name] = (pair[0], pair[1])
    return ranges


def toolkit_weights(weights: Array, smallest: Array | float = _TINY) -> tuple[Array, Array, Array]:
    """Quantized values, scales and zero points of weights by their first axis. No scale is below *smallest*, one number or one per channel.

    The scale is computed in double and stored as float32, the division is one of float32: weights that lie on a coarser grid have ties.
    """
    rows = weights.reshape(len(weights), -1).astype(np.float32)
    low, exact = _extents(weights, smallest)
    scale = exact.astype(np.float32)
    zero = np.clip(np.rint(-128 - low / exact), -128, 127).astype(np.int32)
    codes = np.clip(np.rint(rows / scale[:, None]) + zero[:, None], -128, 127).astype(np.int8)
    return codes.reshape(weights.shape), scale, zero


def _extents(weights: Array, smallest: Array | float = _TINY) -> tuple[Array, Array]:
    """The smallest weight of each output channel, at most 0, and the scale, in double."""
    rows = weights.reshape(len(weights), -1).astype(np.float32)
    low, high = (ends.astype(np.float64) for ends in (np.minimum(rows.min(axis=1), 0), np.maximum(rows.max(axis=1), 0)))
    return low, np.maximum((high - low) / 255, smallest)


def toolkit_units(weights: Array, source: Array | np.float32, smallest: Array | float = _TINY) -> Array:
    """What one step of the accumulator stands for, per output channel; *source* is the scale of the input."""
    exact = _extents(weights, smallest)[1] * np.asarray(source, np.float32).astype(np.float64)
    result: Array = exact.astype(np.float32)
    return result


def toolkit_bias(bias: Array, source: Array, weights: Array, smallest: Array | float = _TINY) -> Array:
    """Bias in units of the accumulator: the scales are multiplied in double, and the division is one of float32.

    A large bias has ties by that. Of twelve in two networks, which other orders of rounding distinguish, the toolkit's simulator has these.
    """
    limits = np.iinfo(np.int32)
    units = toolkit_units(weights, source, smallest)
    codes = np.rint(bias.astype(np.float32) / units).astype(np.float64)
    result: Array = np.clip(codes, limits.min, limits.max).astype(np.int32)
    return result


# Steps that Rockchip's toolkit has besides those of the graph: ``quantizer="vendor"``.
#
# * The second operand of a matmul of two activations is quantized again, without a zero point.
# * An operator that only moves values changes their scale first if its input and its result have different scales: as the NPU does a
#   nearest resize, by a depthwise convolution with the weight 1.
# * Div is computed in float32 on the CPU of the board, from int8 to int8 values.


CHANGE_OF_SCALE = "Requantize"
"""The label of a function that is nothing but another scale."""


def quotients(graph: Graph, steps: list[Step]) -> set[str]:
    """Results of divisions of two tensors that the toolkit stores as quantized values: nothing but integer layers reads them."""
    readers = _readers_of(steps)
    integers = {name for step in steps if not step.is_float for name in step.outputs} | set(graph.inputs)
    return {
        step.outputs[0]
        for step in steps
        if step.is_float
        and step.node.op == "Div"
        and len(step.nodes) == 1
        and len(step.inputs) == 2
        and integers.issuperset(step.inputs)
        and not any(reader.is_float for reader in readers.get(step.outputs[0], ()))
    }


def with_copied_scales(given: Mapping[str, Quantization], graph: Graph, steps: list[Step]) -> dict[str, Quantization]:
    """The scales that are *given*, with one scale for what a nearest Resize or a MaxPool reads and for its result, as the toolkit has it.

    A tensor that nothing else reads takes the scale of the result, and otherwise the result that of the tensor. The latter is so for a
    Reshape or Transpose too.
    """
    readers = _readers_of(steps)
    result = dict(given)
    for step in reversed(steps):
        nearest = step.form is Form.RESIZE and step.node.attribute("mode", "nearest") == "nearest"
        copies = nearest or (step.form is Form.POOL and "Max" in step.node.op)
        if step.is_float or not (copies or step.form in _VIEWS):
            continue
        source, made = step.inputs[0], step.outputs[0]
        alone = len(readers[source]) == 1 and source not in graph.outputs and source not in graph.inputs
        if alone and not copies:
            continue
        scale = result.pop(made, None)
        if scale is not None and alone:
            result[source] = result[made] = scale
    return result


def _readers_of(steps: list[Step]) -> dict[str, list[Step]]:
    """Which steps read each tensor."""
    readers: dict[str, list[Step]] = {}
    for step in steps:
        for name in step.reads:
            readers.setdefault(name, []).append(step)
    return readers


def with_changes_of_scale(
    graph: Graph, steps: list[Step], quantization: dict[str, Quantization], *, products: bool = True, moves: bool = True
) -> list[Step]:
    """The steps with those between them that only change a scale. Their tensors enter *graph* and *quantization*.

    :param products: also before the second operand of a product of activations, which the toolkit quantizes again
    :param moves: also where values are only moved; the simulation of the toolkit rounds each result of such a step itself
    """
    result: list[Step] = []

    def change(source: str, made: str, target: Quantization) -> Step:
        quantization[made] = target
        node = Node("Identity", [source], [made], {}, made)
        return Step(Form.FUNCTION, node, [node], [source], [made], Activation(lambda x: x, CHANGE_OF_SCALE, (node,)), source)

    def like(source: str, name: str) -> str:
        name = graph.free_name(name)
        graph.shapes[name], graph.dtypes[name] = graph.shapes[source], graph.dtypes[source]
        return name

    for step in steps:
        if moves and not step.is_float and step.form is Form.SLICE and len(step.outputs) > 1:
            own = quantization[step.inputs[0]]
            parts = {name: like(name, f"{name}@part") for name in step.outputs if quantization[name] != own}
            quantization.update(dict.fromkeys(parts.values(), own))
            node = replace(step.node, outputs=[parts.get(name, name) for name in step.node.outputs])
            outputs = [parts.get(name, name) for name in step.outputs]
            result.append(replace(step, node=node, nodes=[node], outputs=outputs) if parts else step)
            result += [change(source, name, quantization[name]) for name, source in parts.items()]
            continue
        wanted = None if step.is_float else _wanted(step, quantization, products, moves)
        if wanted is None:
            result.append(step)
            continue
        position, target = wanted
        source = step.inputs[position]
        name = like(source, f"{step.outputs[0]}@scale")
        result.append(change(source, name, target))
        inputs = [name if index == position else old for index, old in enumerate(step.inputs)]
        result.append(replace(step, inputs=inputs))
    return result


def _wanted(step: Step, quantization: Mapping[str, Quantization], products: bool, moves: bool) -> tuple[int, Quantization] | None:
    """Which input of a step needs which other scale."""
    if step.form is Form.MATMUL and products:
        second = quantization[step.inputs[1]]
        largest = max(abs(-128 - second.zero_point), abs(127 - second.zero_point)) * second.scale
        return 1, Affine.per_tensor(float(np.float32(largest / 127)), 0)
    if moves and keeps_scale(step) and quantization[step.inputs[0]] != quantization[step.outputs[0]]:
        return 0, quantization[step.outputs[0]]
    return None
