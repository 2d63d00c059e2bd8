"""An ONNX model as a :class:`Graph`: fixed shapes, folded constants, one clear error for everything that is unsupported."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._util.optional import MAX_TENSOR_VARIABLE, max_tensor_bytes, onnx, onnxruntime, ort_session
from ...errors import CompileError, ShapeError, TensorNameError, UnsupportedOperatorError
from ...modelfile.post_processing import infer_shapes
from ..custom_operators import DOMAIN as CUSTOM_DOMAIN
from ..custom_operators import CustomTable, Declarations, custom_node, infer_custom
from ..graph import Graph, Node, element_type, to_onnx
from .control_flow import give_sequence, open_sequences, write_out_control_flow
from .onnx_model import HandedConstants, first_line, input_names
from .quantized_models import between_pairs, dequantize
from .split_post_processing import SHAPE_FROM_DATA

# FusedMatMul of onnxruntime, a product with turned operands and a factor, as Transpose, MatMul and Mul: those have integer
# forms.


_OP, _DOMAIN = "FusedMatMul", "com.microsoft"


def plain_products(graph: Graph) -> None:
    """Write every such product plainly, in place; the shapes of its operands are known. One that turns batches stays."""
    nodes: list[Node] = []
    for node in graph.nodes:
        turned = any(node.attribute(name, 0) for name in ("transBatchA", "transBatchB"))
        if node.op == _OP and node.domain == _DOMAIN and not turned and all(graph.rank(name) > 1 for name in node.inputs[:2]):
            nodes += _plain(graph, node)
        else:
            nodes.append(node)
    graph.nodes = nodes


def _plain(graph: Graph, node: Node) -> list[Node]:
    made: list[Node] = []
    operands = []
    for name, key in zip(node.inputs, ("transA", "transB"), strict=False):
        if node.attribute(key, 0):
            name = _turned(graph, name, made)
        operands.append(name)
    result, factor = node.outputs[0], float(node.attribute("alpha", 1.0))
    if factor == 1.0:
        return [*made, Node("MatMul", operands, [result], {}, node.name)]
    product = graph.free_name(f"{result}.product")
    graph.shapes[product], graph.dtypes[product] = graph.shapes[result], graph.dtypes[result]
    number = graph.add_constant(f"{result}.factor", np.array(factor, graph.dtypes[result]))
    return [
        *made,
        Node("MatMul", operands, [product], {}, node.name),
        Node("Mul", [product, number], [result], {}, f"{node.label}.alpha"),
    ]


def _turned(graph: Graph, name: str, made: list[Node]) -> str:
    stored = graph.constant(name)
    if stored is not None:
        return graph.add_constant(f"{name}.turned", np.ascontiguousarray(np.swapaxes(stored, -1, -2)))
    rank = graph.rank(name)
    result = graph.free_name(f"{name}.turned")
    perm = [*range(rank - 2), rank - 1, rank - 2]
    graph.shapes[result], graph.dtypes[result] = tuple(graph.shapes[name][axis] for axis in perm), graph.dtypes[name]
    made.append(Node("Transpose", [name], [result], {"perm": perm}, f"{result}.Transpose"))
    return result


# Inputs of a model that are no data: shapes, axes and amounts that an operator has to know before a chip can run it.
#
# ``constants`` of the compiler gives such an input a value; without it the model is rejected with a message that names the input.


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
                    f"{_what(node, place)} is an input of the model, and the chip needs it at compile time",
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
            f"{_what(node, place)} is an input of the model, and the chip needs it at compile time",
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


# What an dynamic dimension of an input probably is: a number to suggest for it.


_BY_NAME = (
    (r"batch|^n$|^bs$", 1),
    (r"chan", 3),
    (r"past|cache", 128),
    (r"seq|token|len|text", 128),
    (r"mel|bins", 80),
    (r"frame|time|^t$", 100),
    (r"sample|audio|wave", 16000),
    (r"box|roi|query|point", 100),
    (r"height|width|^h$|^w$|size|pixel", 640),
)
"""Words in the name of an axis, and a size that is usual for it; the first that fits counts."""


def suggested_extent(name: str, axis: int, rank: int, element: int) -> int:
    """A size to suggest for an dynamic dimension, by its name, its place and the type of its tensor.

    >>> suggested_extent("sequence_length", 1, 2, 7), suggested_extent("", 2, 4, 1), suggested_extent("", 1, 4, 1)
    (128, 640, 3)
    >>> [suggested_extent(name, axis, 4, 1) for axis, name in enumerate("abcd")]
    [1, 3, 640, 640]

    :param name: what the model calls the axis; may be empty
    :param element: ONNX's number of the element type
    """
    found = next((extent for words, extent in _BY_NAME if name and re.search(words, name.lower())), None)
    if found is not None:
        return found
    if name.lower() == "c" and axis in (1, rank - 1):  # elsewhere it is the third of a, b, c, d
        return 3
    if axis == 0:
        return 1
    whole = (onnx().TensorProto.INT64, onnx().TensorProto.INT32, onnx().TensorProto.BOOL)
    if rank == 4 and element not in whole:
        return 3 if axis == 1 else 640
    if rank == 5 and element not in whole:
        return {1: 3, 2: 16}.get(axis, 224)
    return 128 if rank in (2, 3) else 1


# Real numbers of a model in one type: float16, bfloat16 and float64 become float32 at import.
#
# Everything behind the import (fusion, calibration, integer forms) knows float32 alone; a chip holds float16 or quantized values, whatever
# the exporter chose. What depends on no input is computed in the model's own types first.


OTHER_REALS = frozenset(("float16", "bfloat16", "float64"))
"""The types that become float32."""

_TYPE_ATTRIBUTES = {"Cast": "to", "EyeLike": "dtype", "RandomNormal": "dtype", "RandomUniform": "dtype", "Bernoulli": "dtype"}
_TYPE_ATTRIBUTES |= {"RandomNormalLike": "dtype", "RandomUniformLike": "dtype", "QuantizeLinear": "output_dtype"}
_TYPE_ATTRIBUTES |= {f"{name}Window": "output_datatype" for name in ("Blackman", "Hamming", "Hann")}
_FLOAT = np.dtype(np.float32)


def has_other_reals(graph: Graph) -> bool:
    """Whether a constant or a tensor of a known type is a real number, but not float32."""
    kinds = {value.dtype.name for value in graph.constants.values()} | {dtype.name for dtype in graph.dtypes.values()}
    return not kinds.isdisjoint(OTHER_REALS)


def widen(graph: Graph, kinds: Set[str] = OTHER_REALS) -> None:
    """Let the graph compute in float32 what it computes in one of *kinds*, in place."""
    if "bfloat16" in kinds:
        _refuse_bits(graph)
    for name, value in graph.constants.items():
        if value.dtype.name in kinds:
            with np.errstate(over="ignore"):
                graph.constants[name] = value.astype(np.float32)
    for name, dtype in graph.dtypes.items():
        if dtype.name in kinds:
            graph.dtypes[name] = _FLOAT
    numbers = _numbers(kinds)
    for node in graph.nodes:
        _widen_attributes(node, numbers)


def _refuse_bits(graph: Graph) -> None:
    """What is bfloat16 becomes float32 before the types of all tensors are known, and with it the bits are lost."""
    kinds = {dtype.name for dtype in graph.dtypes.values()}
    node = next((node for node in graph.nodes if node.op == "BitCast" and not node.domain), None)
    if node is not None and "bfloat16" in kinds:
        raise UnsupportedOperatorError(
            "a model with bfloat16 numbers asks for the bits of numbers",
            node=node.label,
            operator=node.op,
            hint="export the model in float32 or float16",
        )


def keep_bits(graph: Graph) -> None:
    """BitCast reads the bits of its input's own type: let a widened input have that type again, in place.

    Which type that was, the number of bits of the result states.
    """
    nodes = []
    for node in graph.nodes:
        if node.op == "BitCast" and not node.domain and graph.dtypes[node.inputs[0]] == _FLOAT:
            size = graph.dtypes[node.outputs[0]].itemsize
            kind = np.dtype({2: np.float16, 8: np.float64}.get(size, np.float32))
            if kind != _FLOAT and graph.dtypes[node.outputs[0]].kind in "iu":
                name = graph.free_name(f"{node.inputs[0]}.{kind.name}")
                nodes.append(Node("Cast", [node.inputs[0]], [name], {"to": element_type(kind)}))
                graph.shapes[name], graph.dtypes[name] = graph.shapes[node.inputs[0]], kind
                node.inputs = [name]
        nodes.append(node)
    graph.nodes = nodes


def _numbers(kinds: Set[str]) -> set[int]:
    """ONNX's numbers of types."""
    types = onnx().TensorProto
    known = {"float16": types.FLOAT16, "bfloat16": types.BFLOAT16, "float64": types.DOUBLE}
    return {int(known[kind]) for kind in kinds}


def _widen_attributes(node: Node, numbers: Set[int]) -> None:
    key = _TYPE_ATTRIBUTES.get(node.op) if not node.domain else None
    if key is not None and node.attributes.get(key) in numbers:
        node.attributes[key] = element_type(_FLOAT)
    value: Any = node.attributes.get("value")
    if node.op == "ConstantOfShape" and value is not None and value.data_type in numbers:
        numpy_helper = onnx().numpy_helper
        node.attributes["value"] = numpy_helper.from_array(np.asarray(numpy_helper.to_array(value), np.float32), value.name)


def without_castlike(graph: Graph) -> None:
    """CastLike reads its second input for the type alone: it becomes a Cast, in place. The type of every tensor is known."""
    for node in graph.nodes:
        if node.op == "CastLike" and not node.domain:
            kept = {key: value for key, value in node.attributes.items() if key in ("saturate", "round_mode")}
            node.op, node.attributes = "Cast", {"to": element_type(graph.dtypes[node.inputs[1]]), **kept}
            node.inputs = node.inputs[:1]


# A graph in stages: between two of them stand custom operators, which no runtime but the caller's own code can execute.


@dataclass(eq=False)
class Stage:
    """Nodes that run together, and the custom ones that can run after them."""

    nodes: list[Node] = field(default_factory=list)
    customs: list[Node] = field(default_factory=list)

    def entering(self, graph: Graph) -> list[str]:
        """Tensors that its nodes read and do not make; constants do not count."""
        made = {name for node in self.nodes for name in node.outputs}
        read = dict.fromkeys(name for node in self.nodes for name in node.inputs)
        return [name for name in read if name and name not in made and name not in graph.constants]

    def leaving(self, nodes: Sequence[Node], wanted: Set[str]) -> list[str]:
        """Results of its nodes that are *wanted*, or that others of *nodes* read."""
        mine = {id(node) for node in self.nodes}
        read = {name for node in nodes if id(node) not in mine for name in node.inputs} | wanted
        return [name for node in self.nodes for name in node.outputs if name in read]


def stages(nodes: Sequence[Node]) -> list[Stage]:
    """The stages of *nodes*, which are in topological order; one where there is no custom node."""
    result = [Stage()]
    level: dict[str, int] = {}
    for node in nodes:
        own = max((level.get(name, 0) for name in node.inputs), default=0)
        while len(result) <= own:
            result.append(Stage())
        (result[own].customs if node.custom else result[own].nodes).append(node)
        level.update(dict.fromkeys(node.outputs, own + 1 if node.custom else own))
    return result


def needed_nodes(graph: Graph, wanted: Set[str]) -> list[Node]:
    """The nodes that *wanted* tensors depend on, in topological order."""
    needed = set(wanted)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if any(name in needed for name in node.outputs):
            kept.append(node)
            needed.update(node.inputs)
    return kept[::-1]


_log = logging.getLogger("anynpu.compiler")


Shapes = Mapping[str, Sequence[int]]

MAX_GRAPH = 1 << 32
"""Elements of all tensors together: the model is run once, and onnxruntime keeps them until it is done."""

MAX_AXES = 8

MAX_MODEL = (1 << 31) - (1 << 20)
"""Bytes of a serialized model: protobuf ends at 2 GiB."""

_RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"}


def import_onnx(
    proto: Any,
    shapes: Shapes | None = None,
    batch: int | None = None,
    custom: CustomTable | None = None,
    *,
    weights: Mapping[str, npt.NDArray[Any]] | None = None,
    detached: Mapping[str, npt.NDArray[Any]] | None = None,
) -> Graph:
    """The graph of a checked model with the input shapes of *shapes*.

    With *weights*, which the model declares as inputs, the model is not executed where its shapes can be inferred.

    :param detached: values of constants that the model has without values (:func:`anynpu.compiler.importers.onnx_model.detach`)
    """
    source_nodes = sum(node.op_type != "Constant" for node in proto.graph.node)
    known = {*(tensor.name for tensor in proto.graph.initializer), *(weights or {})}
    open_sequences(proto, shapes or {})
    declared = Declarations(proto)
    fixed = _fix_inputs(proto, known, dict(shapes or {}), batch)
    declared.fix(fixed)
    write_out_control_flow(proto)
    between_pairs(proto)
    values = detached or {}
    constants = {
        tensor.name: values[tensor.name] if tensor.name in values else constant_array(tensor)
        for tensor in proto.graph.initializer
    }
    constants.update(weights or {})
    inferred = _refuse_huge(proto, fixed)
    nodes = [_node(node) for node in proto.graph.node]
    for node in nodes:
        if node.op == "Constant":
            constants[node.outputs[0]] = _constant_value(node)
    nodes = _sorted([node for node in nodes if node.op != "Constant"], {*constants, *fixed})
    opsets = {_domain(entry.domain): entry.version for entry in proto.opset_import if entry.domain != CUSTOM_DOMAIN}
    input_types = {value.name: _input_type(value) for value in proto.graph.input if value.name not in constants}
    graph = Graph(
        nodes=nodes,
        inputs=[name for name in input_names(proto) if name not in constants],
        outputs=[value.name for value in proto.graph.output],
        constants=constants,
        shapes={**{name: tuple(value.shape) for name, value in constants.items()}, **fixed},
        dtypes={**{name: value.dtype for name, value in constants.items()}, **input_types},
        opsets=opsets,
        ir_version=min(int(proto.ir_version), 10),
        source_nodes=source_nodes,
    )
    _check_outputs(graph)
    if not graph.outputs:
        raise CompileError("the model has no outputs", hint="there is nothing to run: export the model again")
    graph.remove_unused()
    # also inputs that only give shapes, which programs feed; one that only gives a type is of no use
    read = {name for node in graph.nodes for name in (node.inputs[:1] if node.op == "CastLike" else node.inputs)}
    dequantize(graph)
    widen(graph, {"bfloat16"})  # onnxruntime computes next to nothing in it
    refuse_training(graph)
    static = _static_nodes(graph)
    _refuse_shapes_from_data(graph, static)
    refuse_open_parameters(graph, static)
    if weights is None or not _infer(graph, inferred):
        try:
            _trace(graph, custom or {}, declared)
        except CompileError:
            if not has_other_reals(graph):
                raise
            widen(graph)  # onnxruntime has many operators for float32 alone, and weights that were quantized values are float32
            _trace(graph, custom or {}, declared)
    without_castlike(graph)
    widen(graph)
    keep_bits(graph)
    plain_products(graph)
    _without_empty_parts(graph)
    graph.remove_unused()
    while _fold_empty(graph):
        _trace(graph, custom or {}, declared)
    _copy_constant_outputs(graph)
    used = {*read, *graph.outputs, *graph.consumers()}
    graph.inputs = [name for name in graph.inputs if name in used]
    _warn_of_nothing(graph)
    return graph


def _warn_of_nothing(graph: Graph) -> None:
    """A model may be asked for that computes nothing; more often something went wrong on the way."""
    if not graph.inputs:
        _log.warning("the model's outputs do not depend on any input: they are constants")
    for name in graph.outputs:
        if 0 in graph.shapes[name]:
            _log.warning("the output '%s' has no elements: choose larger input shapes, if that is not meant", name)


def _input_type(value: Any) -> np.dtype[Any]:
    kind = value.type.tensor_type.elem_type
    try:
        known: np.dtype[Any] = np.dtype(onnx().helper.tensor_dtype_to_np_dtype(kind))
        return known
    except KeyError:
        raise CompileError(f"an input has the unknown type {kind}", tensor=value.name, hint="export the model again") from None


def constant_array(tensor: Any) -> npt.NDArray[Any]:
    """The values of a constant."""
    try:
        return np.asarray(onnx().numpy_helper.to_array(tensor))
    except Exception as error:  # a damaged tensor ends in whatever numpy or protobuf raises
        raise CompileError(
            f"the constant cannot be read: {first_line(error)}", tensor=tensor.name, hint="export the model again"
        ) from error


def _node(proto: Any) -> Node:
    if proto.domain == CUSTOM_DOMAIN:
        return custom_node(proto, constant_array)
    helper = onnx().helper
    try:
        attributes = {entry.name: helper.get_attribute_value(entry) for entry in proto.attribute}
    except ValueError as error:
        raise CompileError(
            f"an attribute cannot be read: {first_line(error)}",
            node=proto.name,
            operator=proto.op_type,
            hint="export the model again",
        ) from error
    outputs = list(proto.output)
    if (
        outputs and not outputs[0] and any(outputs)
    ):  # a recurrent layer of which only the last state is read; what follows wants a name
        outputs[0] = f"{next(filter(None, outputs))}.all"
    return Node(
        proto.op_type,
        list(proto.input),
        outputs,
        attributes,
        proto.name,
        _domain(proto.domain),
    )


def _domain(name: str) -> str:
    """ONNX's own domain has two names."""
    return "" if name == "ai.onnx" else name


def _constant_value(node: Node) -> npt.NDArray[Any]:
    if "value" in node.attributes:
        return constant_array(node.attributes["value"])
    for key, kind in (
        ("value_float", np.float32),
        ("value_int", np.int64),
        ("value_floats", np.float32),
        ("value_ints", np.int64),
    ):
        if key in node.attributes:
            return np.asarray(node.attributes[key], kind)
    raise UnsupportedOperatorError(
        "only dense numeric constants are understood",
        node=node.label,
        operator="Constant",
        hint="export the model without sparse or string constants",
    )


def _sorted(nodes: list[Node], known: set[str]) -> list[Node]:
    """Topological order; exporters are not always careful with it."""
    waiting = nodes
    ready: list[Node] = []
    known = set(known)
    while waiting:
        later = []
        for node in waiting:
            if all(not name or name in known for name in node.inputs):
                ready.append(node)
                known.update(node.outputs)
            else:
                later.append(node)
        if len(later) == len(waiting):
            node = later[0]
            missing = next(name for name in node.inputs if name and name not in known)
            raise CompileError(
                "a tensor is read that nothing produces",
                node=node.label,
                operator=node.op,
                tensor=missing,
                hint="export the model again",
            )
        waiting = later
    return ready


def _check_outputs(graph: Graph) -> None:
    known = {*graph.producers(), *graph.constants, *graph.inputs}
    for name in graph.outputs:
        if name not in known:
            raise CompileError("an output of the model is never produced", tensor=name, hint="export the model again")
        if graph.outputs.count(name) > 1:
            raise CompileError("a tensor is an output of the model twice", tensor=name, hint="remove one of them")
    for name in known:
        stem, mark, _ = name.rpartition("@")
        if mark and stem in known:
            raise CompileError(
                f"the compiler needs names such as '{stem}@int8' itself", tensor=name, hint="rename the tensor, without an @"
            )


def _fix_inputs(
    proto: Any, constants: Set[str], shapes: dict[str, Sequence[int]], batch: int | None
) -> dict[str, tuple[int, ...]]:
    fixed: dict[str, tuple[int, ...]] = {}
    names = input_names(proto)
    for name in shapes:
        if name not in names:
            raise TensorNameError(f"the model has no input '{name}'", hint=f"its inputs are: {', '.join(names)}")
    if batch is not None and batch < 1:
        raise CompileError(f"a batch size of {batch} makes no sense", hint="pass a number from 1 on")
    for value in proto.graph.input:
        if value.name in constants:
            continue
        kind = value.type.tensor_type
        if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
            raise CompileError(
                "an input has no tensor shape", tensor=value.name, hint="export the model with plain tensor inputs"
            )
        declared = [entry.dim_value if entry.HasField("dim_value") and entry.dim_value > 0 else None for entry in kind.shape.dim]
        given = [int(extent) for extent in shapes[value.name]] if value.name in shapes else None
        names = [entry.dim_param for entry in kind.shape.dim]
        guess = [suggested_extent(name, index, len(names), kind.elem_type) for index, name in enumerate(names)]
        shape = _fixed_shape(value.name, declared, given, batch, guess)
        fixed[value.name] = shape
        del kind.shape.dim[:]
        for extent in shape:
            kind.shape.dim.add().dim_value = extent
    give_constants(proto, {name: np.empty(shape, np.int8) for name, shape in fixed.items() if 0 in shape})
    return {name: shape for name, shape in fixed.items() if 0 not in shape}


def _fixed_shape(
    name: str, declared: list[int | None], given: list[int] | None, batch: int | None, guess: Sequence[int]
) -> tuple[int, ...]:
    text = "[" + ", ".join("?" if extent is None else str(extent) for extent in declared) + "]"
    if given is not None:
        if len(given) != len(declared) or any(extent < 0 for extent in given):
            raise ShapeError(f"input '{name}' takes {text}, got {given}", hint="give one positive number for each axis")
        # A declared batch may be changed, as exporters often leave a 1 there; other axes are part of the architecture.
        if any(want is not None and want != have for want, have in list(zip(declared, given, strict=True))[1:]):
            raise ShapeError(
                f"input '{name}' takes {text}, got {given}", hint="only the axes marked ? (and the batch) can be chosen"
            )
        shape: list[int | None] = list(given)
    else:
        shape = list(declared)
        if shape and shape[0] is None:
            shape[0] = batch or 1
    if batch is not None and shape:
        shape[0] = batch
    if any(extent is None for extent in shape):
        example = ",".join(str(extent or other) for extent, other in zip(shape, guess, strict=True))
        raise ShapeError(
            f"input '{name}' has the shape {text}, and a chip needs fixed numbers",
            hint=f"choose one: --shape {name}={example}, or shapes={{'{name}': ({example})}}",
        )
    return tuple(int(extent) for extent in shape if extent is not None)


def _refuse_large(name: str, shape: Sequence[int], most: int) -> None:
    if math.prod(shape) > most:
        raise CompileError(
            f"a tensor has the shape {list(shape)}, more than {most} elements",
            tensor=name,
            hint=f"choose smaller input shapes; if you trust the model and have the memory, set {MAX_TENSOR_VARIABLE}",
        )


def _refuse_huge(proto: Any, fixed: Mapping[str, tuple[int, ...]]) -> Any:
    """The model with inferred shapes. Tensors that no machine should try to allocate are rejected before anything is executed."""
    most = max_tensor_bytes() // 4
    for name, shape in fixed.items():
        _refuse_large(name, shape, most)

    def check(inferred: Any) -> None:
        total = sum(map(math.prod, fixed.values()))
        for value in inferred.graph.value_info:
            extents = [entry.dim_value for entry in value.type.tensor_type.shape.dim if entry.dim_value > 0]
            _refuse_large(value.name, extents, most)
            total += math.prod(extents)
        if total > MAX_GRAPH:
            raise CompileError(
                f"the tensors of the model have {total} elements, more than {MAX_GRAPH}", hint="choose smaller input shapes"
            )

    try:
        return infer_shapes(proto, check)
    except CompileError:
        raise
    except Exception as error:  # raised from C++ with several types
        raise CompileError(
            f"the shapes of the model contradict each other: {first_line(error)}", hint="export the model again"
        ) from error


def _infer(graph: Graph, inferred: Any) -> bool:
    """Learn shapes and types from the inferred model and compute what does not depend on the inputs; False where that is not enough."""
    helper = onnx().helper
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, np.dtype[Any]] = {}
    for value in (*inferred.graph.value_info, *inferred.graph.output):
        kind = value.type.tensor_type
        extents = tuple(entry.dim_value for entry in kind.shape.dim)
        if kind.HasField("shape") and kind.elem_type and min(extents, default=1) > 0:
            shapes[value.name] = extents
            dtypes[value.name] = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    produced = [output for node in graph.nodes for output in node.outputs if output]
    custom = any(node.custom for node in graph.nodes)
    if custom or any(name not in shapes or len(shapes[name]) > MAX_AXES for name in produced):
        return False
    static = _static_nodes(graph)
    frontier = _frontier(graph, Stage(graph.nodes), static)
    graph.shapes.update({name: shapes[name] for name in produced})
    graph.dtypes.update({name: dtypes[name] for name in produced})
    rest: list[Node] = []
    for node in graph.nodes:
        if id(node) not in static:
            continue
        if node.op in ("Shape", "Size"):
            extents = graph.shapes[node.inputs[0]]
            last = node.attribute("end", len(extents))
            part = extents[node.attribute("start", 0) : last]
            graph.constants[node.outputs[0]] = np.array(part if node.op == "Shape" else math.prod(extents), np.int64)
        else:
            rest.append(node)
    asked = [name for name in frontier if name not in graph.constants]
    if asked:
        session = _session(to_onnx(graph, rest, (), asked), onnxruntime(), graph)
        try:
            values = session.run(asked, {})
        except Exception as error:  # onnxruntime's exception classes are private
            raise _explain(error, graph) from error
        graph.constants.update({name: np.asarray(value) for name, value in zip(asked, values, strict=True)})
    graph.nodes = [node for node in graph.nodes if id(node) not in static]
    return True


def _trace(graph: Graph, custom: CustomTable, declared: Declarations) -> None:
    """Run the model once on zeros to learn every shape and type, and the value of all that does not depend on the inputs."""
    static = _static_nodes(graph)
    for stage in stages(graph.nodes):
        if stage.nodes:
            _trace_stage(graph, stage, static)
        for node in stage.customs:
            infer_custom(graph, node, custom, declared)
    graph.nodes = [node for node in graph.nodes if id(node) not in static]
    for name, extents in graph.shapes.items():
        if len(extents) > MAX_AXES:
            raise CompileError(
                f"a tensor has {len(extents)} axes, more than {MAX_AXES}", tensor=name, hint="reshape it to fewer axes"
            )


def _refuse_shapes_from_data(graph: Graph, static: set[int]) -> None:
    for node in graph.nodes:
        if node.op in SHAPE_FROM_DATA and not node.domain and id(node) not in static:
            raise UnsupportedOperatorError(
                "the shape of its result depends on the data, which no NPU of the catalogue can run",
                node=node.label,
                operator=node.op,
                hint="cut the model before this node and do the rest in your program",
            )


def _without_empty_parts(graph: Graph) -> None:
    """A Concat does not notice inputs without elements, and so need not read them: torch.roll by 0 and rotary embeddings have such."""
    for node in graph.nodes:
        if node.op == "Concat" and not node.domain:
            filled = [name for name in node.inputs if 0 not in graph.shapes[name]]
            node.inputs = filled or node.inputs
    read = {*graph.outputs, *graph.consumers()}
    for node in graph.nodes:
        empty = [name for name in node.outputs if name and 0 in graph.shapes[name]]
        if node.op == "Split" and not node.domain and empty and read.isdisjoint(empty):
            node.outputs = [name for name in node.outputs if name not in empty]
            axis = int(node.attribute("axis", 0)) % len(graph.shapes[node.inputs[0]])
            sizes = [graph.shapes[name][axis] for name in node.outputs]
            node.attributes.pop("num_outputs", None)
            if graph.opset < 13:
                node.attributes["split"] = sizes
            elif sizes:
                node.inputs = [node.inputs[0], graph.add_constant(f"{node.outputs[0]}.sizes", np.array(sizes, np.int64))]


def _copy_constant_outputs(graph: Graph) -> None:
    """An output that depends on no input is a copy of its constant."""
    for name in graph.outputs:
        if name in graph.constants:
            value = graph.constants.pop(name)
            source = graph.free_name(f"{name}.constant")
            graph.constants[source], graph.shapes[source], graph.dtypes[source] = value, value.shape, value.dtype
            graph.rename_input(name, source)
            graph.nodes.append(Node("Identity", [source], [name]))
            graph.shapes[name], graph.dtypes[name] = value.shape, value.dtype


def _fold_empty(graph: Graph) -> bool:
    """A tensor without elements is the same for every input: let it be a constant. Whether there was one."""
    found = [node for node in graph.nodes if any(name and 0 in graph.shapes[name] for name in node.outputs)]
    for node in found:
        empty = [name for name in node.outputs if name and 0 in graph.shapes[name]]
        if len(empty) < len([name for name in node.outputs if name]):
            raise CompileError(
                "a tensor has no elements", node=node.label, operator=node.op, tensor=empty[0], hint="choose larger input shapes"
            )
        graph.constants.update({name: np.empty(graph.shapes[name], graph.dtypes[name]) for name in empty})
    graph.nodes = [node for node in graph.nodes if node not in found]
    graph.remove_unused()
    return bool(found)


def _trace_stage(graph: Graph, stage: Stage, static: set[int]) -> None:
    package, runtime = onnx(), onnxruntime()
    frontier = _frontier(graph, stage, static)
    produced = [output for node in stage.nodes for output in node.outputs if output]
    helper = package.helper
    inputs = stage.entering(graph)
    constants = HandedConstants()
    model = _whole(graph, stage.nodes, inputs, constants)
    model.graph.output.extend(map(helper.make_empty_tensor_value_info, produced))
    session = _session(model, runtime, graph, constants)
    graph.dtypes.update({entry.name: _numpy_type(entry.type) for entry in session.get_outputs()})
    # shapes come from a run, as those that it infers are not always right; tensors that were outputs would stay in memory until its end,
    # and getting that memory takes longer than the run
    del session, model.graph.output[:]
    model.graph.output.extend(map(helper.make_empty_tensor_value_info, frontier))
    probes = [f"anynpu.shape.{index}" for index in range(len(produced))]
    for name, probe in zip(produced, probes, strict=True):
        model.graph.node.append(helper.make_node("Shape", [name], [probe]))
        model.graph.output.append(helper.make_tensor_value_info(probe, package.TensorProto.INT64, None))
    session = _session(model, runtime, graph, constants)
    values = _run_on(session, [*probes, *frontier], {name: (graph.shapes[name], graph.dtypes[name]) for name in inputs}, graph)
    for name, shape in zip(produced, values[: len(produced)], strict=True):
        graph.shapes[name] = tuple(int(extent) for extent in shape)
    for name, value in zip(frontier, values[len(produced) :], strict=True):
        graph.constants[name] = np.asarray(value)


def _run_on(
    session: Any, wanted: Sequence[str], inputs: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]], graph: Graph
) -> list[Any]:
    """Results for inputs of zeros; of ones where a model cannot run on zeros, since integers are not divided by them."""
    first: Exception | None = None
    for fill in (np.zeros, np.ones):
        try:
            return list(session.run(wanted, {name: fill(shape, dtype) for name, (shape, dtype) in inputs.items()}))
        except MemoryError as error:
            raise CompileError("there is not enough memory to run the model", hint="choose smaller input shapes") from error
        except Exception as error:  # onnxruntime's exception classes are private
            first = first or error
    assert first is not None
    raise _explain(first, graph) from first


def _whole(graph: Graph, nodes: Sequence[Node], inputs: Sequence[str], constants: HandedConstants) -> Any:
    """Nodes as an ONNX model, before the types of their results are known."""
    model = to_onnx(graph, nodes, inputs, (), initializer=constants.initializer)
    if model.ByteSize() + constants.nbytes > MAX_MODEL:
        raise CompileError("the model is larger than 2 GiB, which no chip of the catalogue can hold", hint="use a smaller model")
    return model


def _session(model: Any, runtime: Any, graph: Graph, constants: HandedConstants | None = None) -> Any:
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.execution_order = runtime.ExecutionOrder.PRIORITY_BASED  # asks for shapes as soon as it can
    options.add_session_config_entry("session.disable_prepacking", "1")  # it runs once, and packed weights are a copy
    if constants is not None:
        constants.give(options, runtime)
    try:
        return ort_session(model.SerializeToString(), options)
    except Exception as error:  # onnxruntime's exception classes are private
        raise _explain(error, graph) from error


def _explain(error: Exception, graph: Graph) -> CompileError:
    text = first_line(error)
    by_name = {node.name: node for node in graph.nodes if node.name}
    node = next(
        (node for name, node in by_name.items() if f"'{name}'" in text or f"({name})" in text or f" {name} " in text), None
    )
    missing = "NOT_IMPLEMENTED" in text or "not a registered function" in text or "No Op registered" in text
    kind = UnsupportedOperatorError if missing else CompileError
    hint = (
        "compile it as a custom operator: custom_ops=['NAME'], or --custom-op NAME"
        if missing
        else "run the model in onnxruntime with the same input shapes: it fails there too"
    )
    return kind(
        f"the model cannot be executed: {text}", node=node.label if node else "", operator=node.op if node else "", hint=hint
    )


def _static_nodes(graph: Graph) -> set[int]:
    """Nodes whose result is the same for every input: those fed by constants, and Shape, since shapes are fixed."""
    static = set(graph.constants)
    found: set[int] = set()
    for node in graph.nodes:
        if node.op in _RANDOM or node.custom:
            continue
        if node.op in ("Shape", "Size") or all(not name or name in static for name in node.inputs):
            found.add(id(node))
            static.update(node.outputs)
    return found


def _frontier(graph: Graph, stage: Stage, static: set[int]) -> list[str]:
    """Results of static nodes of a stage that the rest of the graph reads."""
    readers = graph.consumers()
    inside = static & {id(node) for node in stage.nodes}
    names = []
    for node in stage.nodes:
        if id(node) in static:
            for name in node.outputs:
                if name in graph.outputs or any(id(reader) not in inside for reader in readers.get(name, ())):
                    names.append(name)
    return names


def _numpy_type(text: str) -> np.dtype[Any]:
    """The numpy type of onnxruntime's ``tensor(float)``."""
    inner = text.removeprefix("tensor(").removesuffix(")")
    known = {"float": "float32", "double": "float64", "bfloat16": "uint16"}
    try:
        return np.dtype(known.get(inner, inner))
    except TypeError:
        raise UnsupportedOperatorError(f"a tensor has the type {text}", hint="only numeric tensors can run on an NPU") from None
