"""Inputs of a model that are no data: shapes, axes and amounts that an operator has to know before a chip can run it.

``constants`` of the compiler gives such an input a value; without it the model is refused with a message that names the input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..._util.optional import onnx
from ...errors import CompileError, ShapeError, TensorNameError, UnsupportedOperatorError
from ..graph import Graph, Node
from .sequences import give_sequence

__all__ = ["give_constants", "refuse_open_parameters", "refuse_training"]

_AXES = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_PARAMETERS: Mapping[str, tuple[int, ...]] = {
    **{f"Reduce{name}": (1,) for name in _AXES},
    **{f"{name}Window": (0,) for name in ("Blackman", "Hamming", "Hann")},
    "AffineGrid": (1,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "DFT": (1, 2),
    "Dropout": (2,),
    "Expand": (1,),
    "If": (0,),
    "Loop": (0,),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
_MAX_ELEMENTS = 64
"""A parameter has few elements; what has more is data."""


def give_constants(proto: Any, constants: Mapping[str, Any]) -> None:
    """Turn inputs of a model into constants of the values that the caller gives, in place."""
    if not constants:
        return
    inputs = {value.name: value for value in proto.graph.input}
    for name, given in constants.items():
        if name not in inputs:
            raise TensorNameError(f"the model has no input '{name}'", hint=f"its inputs are: {', '.join(inputs)}")
        if not inputs[name].type.HasField("tensor_type"):
            give_sequence(proto, inputs[name], given)
            continue
        kind = inputs[name].type.tensor_type
        try:
            value = np.asarray(given).astype(onnx().helper.tensor_dtype_to_np_dtype(kind.elem_type))
        except (KeyError, TypeError, ValueError) as error:
            raise CompileError(
                f"the constant for input '{name}' is not made of numbers: {error}", tensor=name, hint="give a list of numbers"
            ) from error
        extents = [entry.dim_value if entry.HasField("dim_value") else None for entry in kind.shape.dim]
        if value.size == 1 and kind.HasField("shape"):
            value = value.reshape((1,) * len(extents))
        fits = len(extents) == value.ndim and all(want in (None, have) for want, have in zip(extents, value.shape, strict=True))
        if kind.HasField("shape") and not fits:
            text = "[" + ", ".join("?" if extent is None else str(extent) for extent in extents) + "]"
            raise ShapeError(f"input '{name}' takes {text}, the constant has {list(value.shape)}", hint="give as many numbers")
        proto.graph.input.remove(inputs[name])
        proto.graph.initializer.append(onnx().numpy_helper.from_array(value, name))


def refuse_open_parameters(graph: Graph, static: set[int]) -> None:
    """Raise an error where an operator's shape, axes or amounts are an input of the model.

    :param static: nodes whose result is the same for every input, by ``id``
    """
    producers = graph.producers()
    for node in graph.nodes:
        if node.custom or node.domain or id(node) in static:
            continue
        for place in _PARAMETERS.get(node.op, ()):
            name = node.inputs[place] if place < len(node.inputs) else ""
            if not name or name in graph.constants:
                continue
            source = _parameter_input(graph, name, producers, static)
            if source is not None:
                shape = graph.shapes[source]
                values = ",".join(["1"] * int(np.prod(shape)))
                raise CompileError(
                    f"{_what(node, place)} is an input of the model, and a chip has to know it beforehand",
                    node=node.label,
                    operator=node.op,
                    tensor=source,
                    hint=f"give its value: constants={{'{source}': [{values}]}}, or --constant {source}={values}; "
                    "or export the model with fixed shapes",
                )


def _what(node: Node, place: int) -> str:
    if node.op in ("If", "Loop"):
        return "the condition" if node.op == "If" else "the number of rounds"
    if node.op == "Dropout":
        return "the training mode" if place == 2 else "the share that is dropped"
    return "the shape of the result" if place or node.op in ("ConstantOfShape", "Range") else "the size of the result"


def _parameter_input(graph: Graph, name: str, producers: Mapping[str, Node], static: set[int]) -> str | None:
    """The small input that a tensor is computed from, if it is computed from nothing else but such inputs and constants."""
    waiting, seen, found = [name], set(), []
    while waiting:
        tensor = waiting.pop()
        if tensor in seen or tensor in graph.constants or not tensor:
            continue
        seen.add(tensor)
        if tensor in graph.inputs:
            if int(np.prod(graph.shapes[tensor])) > _MAX_ELEMENTS:
                return None
            found.append(tensor)
            continue
        maker = producers.get(tensor)
        if maker is None or maker.custom:
            return None
        if id(maker) not in static:
            waiting += maker.inputs
    return min(found) if found else None


def _is_true(graph: Graph, node: Node, place: int) -> bool:
    """Whether an input of Dropout is not zero; one of the model has to be given as a constant."""
    name = node.inputs[place]
    if name in graph.inputs:
        raise CompileError(
            f"{_what(node, place)} is an input of the model, and a chip has to know it beforehand",
            node=node.label,
            operator=node.op,
            tensor=name,
            hint=f"give its value: constants={{'{name}': [0]}}, or --constant {name}=0",
        )
    value = graph.constants.get(name)
    return value is None or bool(np.any(value))


def refuse_training(graph: Graph) -> None:
    """Raise an error for nodes that behave as in training: their results are random, or statistics of the batch."""
    for node in graph.nodes:
        if node.domain or node.custom:
            continue
        mode = node.attribute("training_mode", 0) if node.op == "BatchNormalization" else 0
        if node.op == "BatchNormalization" and graph.opset < 14:
            mode = any(node.outputs[1:])  # what marked training before there was an attribute
        if node.op == "Dropout" and len(node.inputs) > 2 and node.inputs[2]:
            mode = _is_true(graph, node, 2) and _is_true(graph, node, 1)
            if not mode:  # or it drops nothing of what it could
                node.inputs = node.inputs[:1]
        if mode:
            raise UnsupportedOperatorError(
                f"{node.op} is in training mode: it works with the statistics of a batch, or at random, and not as it was trained"
                if node.op == "BatchNormalization"
                else "Dropout is in training mode: its result is random",
                node=node.label,
                operator=node.op,
                hint="export the model for inference: call model.eval() before torch.onnx.export",
            )
