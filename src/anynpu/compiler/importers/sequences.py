"""Sequences and optional values whose course is known beforehand, written out: a layer program knows tensors alone.

torch.split of a scripted module becomes SplitToSequence with SequenceAt, a list that a loop fills SequenceInsert with ConcatFromSequence.
How many elements there are, and which of them is meant, nearly always depends on constants and shapes alone. Then each element is a tensor
with a name of its own, and no sequence is left. A sequence at an end of the model becomes one input or output for each element:
``x.0``, ``x.1``; how many an input has, the shapes of the caller say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..._util.optional import onnx
from ..._util.types import Array
from ...errors import CompileError, UnsupportedOperatorError

__all__ = ["SEQUENCE_OPERATORS", "Sequences", "element_type_of", "give_sequence", "open_sequences", "replace_node"]

SEQUENCE_OPERATORS = frozenset(
    (
        "ConcatFromSequence",
        "Optional",
        "OptionalGetElement",
        "OptionalHasElement",
        "SequenceAt",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SequenceLength",
        "SplitToSequence",
    )
)
"""Operators of ONNX that make or read sequences and optional values, without those that hold a graph."""


MAX_ELEMENTS = 1024
"""Tensors that one sequence may become."""


def replace_node(nodes: Any, place: int, made: Sequence[Any]) -> None:
    """Put *made* in the place of a node. The others stay where they are in memory: a protobuf message never gives back what it copied."""
    del nodes[place]
    for offset, node in enumerate(made):
        nodes.insert(place + offset, node)


def element_type_of(kind: Any) -> tuple[Any, bool]:
    """The type of the tensors in a sequence or optional value, and whether it is a sequence; a tensor is its own."""
    sequence = False
    while not kind.HasField("tensor_type"):
        inner = "optional_type" if kind.HasField("optional_type") else "sequence_type"
        if not kind.HasField(inner):
            raise UnsupportedOperatorError(
                "an input or output of the model is neither a tensor nor a sequence of tensors",
                hint="export the model with plain tensors at its ends",
            )
        sequence = sequence or inner == "sequence_type"
        kind = getattr(kind, inner).elem_type
    return kind, sequence


def give_sequence(proto: Any, value: Any, given: Any) -> None:
    """Turn an input that is a sequence or optional into constants, in place: the elements that the caller gives, or none.

    :param value: the input
    :param given: a list of arrays; None for an optional value that is not there
    """
    helper, name = onnx().helper, value.name
    kind, sequence = element_type_of(value.type)
    dtype = helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type)
    proto.graph.input.remove(value)
    if given is None:
        proto.graph.node.insert(0, _absent(name, value.type))
        return
    try:
        elements = list(given) if sequence else [given]
        names = [f"{name}.{index}" for index in range(len(elements))] if sequence else [name]
        tensors = [
            onnx().numpy_helper.from_array(np.asarray(element).astype(dtype), entry)
            for entry, element in zip(names, elements, strict=True)
        ]
    except (TypeError, ValueError) as error:
        raise CompileError(
            f"the constant for input '{name}' is not made of numbers: {error}", tensor=name, hint="give a list of arrays"
        ) from error
    proto.graph.initializer.extend(tensors)
    if names != [name]:
        proto.graph.node.insert(0, helper.make_node("SequenceConstruct", names, [name]))


def _absent(name: str, kind: Any) -> Any:
    inner = kind.optional_type.elem_type if kind.HasField("optional_type") else kind
    return onnx().helper.make_node("Optional", [], [name], type=inner)


def open_sequences(proto: Any, shapes: Mapping[str, Sequence[int]]) -> None:
    """Give each input that is a sequence one input for each element that *shapes* names, in place; an optional tensor is a tensor."""
    package = onnx()
    for value in list(proto.graph.input):
        if value.type.HasField("tensor_type"):
            continue
        kind, sequence = element_type_of(value.type)
        name = value.name
        if not sequence:
            value.type.CopyFrom(kind)
            continue
        count = 0
        while f"{name}.{count}" in shapes:
            count += 1
        if not count:
            raise CompileError(
                "an input is a sequence, and a chip has to know how many tensors it has",
                tensor=name,
                hint=f"give the shape of each: shapes={{'{name}.0': (1, 3), '{name}.1': (1, 3)}}; "
                f"for none of them constants={{'{name}': []}}",
            )
        parts = []
        for index in range(count):
            part = package.ValueInfoProto()
            part.name = f"{name}.{index}"
            part.type.CopyFrom(kind)
            if not kind.tensor_type.HasField("shape"):
                rank = len(shapes[part.name])
                part.type.CopyFrom(package.helper.make_tensor_type_proto(kind.tensor_type.elem_type, [None] * rank))
            parts.append(part)
        inputs = [entry for old in proto.graph.input for entry in (parts if old is value or old.name == name else [old])]
        inputs = [_copy(entry) for entry in inputs]
        del proto.graph.input[:]
        proto.graph.input.extend(inputs)
        proto.graph.node.insert(0, package.helper.make_node("SequenceConstruct", [part.name for part in parts], [name]))


class Sequences:
    """The sequences of one model, as far as they are known.

    :param value: the value of a tensor that depends on no input, or None
    :param shape: the shape of a tensor
    :param blocked: whether a node is one whose results are not known yet: control flow
    """

    def __init__(
        self,
        proto: Any,
        value: Callable[[str], Array | None],
        shape: Callable[[str], tuple[int, ...] | None],
        blocked: Callable[[Any], bool],
    ) -> None:
        self._proto = proto
        self._graph = proto.graph
        self._value, self._shape, self._blocked = value, shape, blocked
        self._elements: dict[str, tuple[str, ...]] = {}
        self._optional: dict[str, str | None] = {}
        self._waiting: Any = None

    def get(self, name: str) -> tuple[str, ...] | None:
        """The tensors of a sequence; None for what is none, or not known."""
        return self._elements.get(name)

    def set(self, name: str, elements: Sequence[str]) -> None:
        """Enter a sequence."""
        if len(elements) > MAX_ELEMENTS:
            raise UnsupportedOperatorError(
                f"a sequence has more than {MAX_ELEMENTS} tensors, which is as many as are written out",
                tensor=name,
                hint="export the model with one tensor in place of the sequence",
            )
        self._elements[name] = tuple(elements)

    def resolve(self) -> bool:
        """Replace the operators of sequences whose inputs are known, in place; whether there were any."""
        self._waiting = None
        nodes = self._graph.node
        if not self._elements and not self._optional and not any(map(_is_one, nodes)):
            return False
        changed, place = False, 0
        unknown: set[str] = set()
        while place < len(nodes):
            node = nodes[place]
            if self._blocked(node) or not unknown.isdisjoint(node.input):
                unknown.update(node.output)
            elif (made := self._written(node)) is not None:
                replace_node(nodes, place, made)  # what was made is looked at next
                changed = True
                continue
            elif _is_one(node):
                self._waiting = self._waiting or node
                unknown.update(node.output)
            place += 1
        return changed

    def _written(self, node: Any) -> list[Any] | None:
        """What stands in the place of a node; None where it stays."""
        if node.domain not in ("", "ai.onnx"):
            return None
        name = node.output[0] if node.output else ""
        if node.op_type == "Identity":
            return self._alias(node.input[0], name)
        if node.op_type not in SEQUENCE_OPERATORS:
            return None
        if node.op_type == "SequenceEmpty":
            self.set(name, ())
            return []
        if node.op_type == "SequenceConstruct":
            self.set(name, node.input)
            return []
        if node.op_type == "SplitToSequence":
            return self._split(node, name)
        if node.op_type.startswith("Optional"):
            return self._of_optional(node, name)
        elements = self.get(node.input[0])
        return None if elements is None else self._of_sequence(node, name, list(elements))

    def _alias(self, source: str, target: str) -> list[Any] | None:
        if source in self._elements:
            self.set(target, self._elements[source])
        elif source in self._optional:
            self._optional[target] = self._optional[source]
        else:
            return None
        return []

    def _of_optional(self, node: Any, name: str) -> list[Any] | None:
        source = node.input[0] if node.input else ""
        there = bool(source) and self._optional.get(source, source) is not None
        if node.op_type == "OptionalHasElement":
            return [self._constant(name, np.bool_(there))]
        if not there:
            if node.op_type == "OptionalGetElement":
                raise CompileError(
                    "the value of an optional tensor is read that is not there",
                    node=node.name or name,
                    operator=node.op_type,
                    hint="give the input a shape, not None",
                )
            self._optional[name] = None
            return []
        inner = self._optional.get(source) or source
        aliased = self._alias(inner, name) if inner in self._elements else None
        return [onnx().helper.make_node("Identity", [inner], [name])] if aliased is None else aliased

    def _of_sequence(self, node: Any, name: str, elements: list[str]) -> list[Any] | None:
        kind, helper = node.op_type, onnx().helper
        if kind == "SequenceLength":
            return [self._constant(name, np.int64(len(elements)))]
        if kind == "ConcatFromSequence":
            return self._joined(node, name, elements)
        number = {"SequenceInsert": 2}.get(kind, 1)
        given = node.input[number] if len(node.input) > number else ""
        least = len(elements) - (kind != "SequenceInsert")
        place: int | None = least
        if given:
            value = self._value(given)
            place = None if value is None else int(value.reshape(-1)[0])
        if place is None:
            return None
        place += len(elements) if place < 0 else 0
        if not 0 <= place <= least:
            raise CompileError(
                f"element {place} of a sequence of {len(elements)} is asked for",
                node=node.name or name,
                operator=kind,
                hint="run the model in onnxruntime with the same input shapes: it fails there too",
            )
        if kind == "SequenceAt":
            return [helper.make_node("Identity", [elements[place]], [name])]
        if kind == "SequenceInsert":
            elements.insert(place, node.input[1])
        else:
            del elements[place]
        self.set(name, elements)
        return []

    def _joined(self, node: Any, name: str, elements: list[str]) -> list[Any]:
        helper = onnx().helper
        axis = _attribute(node, "axis", 0)
        if not _attribute(node, "new_axis", 0):
            return [helper.make_node("Concat", elements, [name], axis=axis)]
        parts = [f"{name}.part{index}" for index in range(len(elements))]
        nodes = [entry for pair in zip(elements, parts, strict=True) for entry in self._axis("Unsqueeze", *pair, axis)]
        return [*nodes, helper.make_node("Concat", parts, [name], axis=axis)]

    def _split(self, node: Any, name: str) -> list[Any] | None:
        helper = onnx().helper
        shape = self._shape(node.input[0])
        if shape is None:
            return None
        axis = _attribute(node, "axis", 0) % max(len(shape), 1)
        extent, keep = shape[axis], True
        if len(node.input) > 1 and node.input[1]:
            value = self._value(node.input[1])
            if value is None:
                return None
            size = 1 if value.ndim else int(value)
            count = value.size if value.ndim else -(-extent // max(size, 1))
        else:
            value, size, count, keep = None, 1, extent, bool(_attribute(node, "keepdims", 1))
        if size < 1 or count > MAX_ELEMENTS:
            raise UnsupportedOperatorError(
                f"an axis of {extent} becomes a sequence of parts of {size}: at most {MAX_ELEMENTS} parts are written out",
                node=node.name or name,
                operator=node.op_type,
                hint="choose smaller input shapes, or use Split",
            )
        if value is not None and value.ndim:
            sizes = [int(entry) for entry in value]
        else:
            sizes = [min(size, extent - at) for at in range(0, extent, size)]
        parts = [f"{name}.part{index}" for index in range(len(sizes))]
        nodes = []
        if self._opset < 13:
            nodes.append(helper.make_node("Split", [node.input[0]], parts, axis=axis, split=sizes))
        else:
            nodes += [self._constant(f"{name}.sizes", np.array(sizes, np.int64))]
            nodes.append(helper.make_node("Split", [node.input[0], f"{name}.sizes"], parts, axis=axis))
        if not keep:
            flat = [f"{part}.flat" for part in parts]
            nodes += [entry for pair in zip(parts, flat, strict=True) for entry in self._axis("Squeeze", *pair, axis)]
            parts = flat
        self.set(name, parts)
        return nodes

    def _axis(self, kind: str, source: str, target: str, axis: int) -> list[Any]:
        """Nodes that take an axis away, or put one in."""
        helper = onnx().helper
        if self._opset < 13:
            return [helper.make_node(kind, [source], [target], axes=[axis])]
        name = f"{target}.axes"
        return [self._constant(name, np.array([axis], np.int64)), helper.make_node(kind, [source, name], [target])]

    def _constant(self, name: str, value: Any) -> Any:
        return onnx().helper.make_node("Constant", [], [name], value=onnx().numpy_helper.from_array(np.asarray(value), name))

    @property
    def _opset(self) -> int:
        versions = {entry.domain: entry.version for entry in self._proto.opset_import}
        return int(versions.get("", versions.get("ai.onnx", 0)))

    def open_outputs(self) -> None:
        """Give each output that is a sequence one output for each element, in place; an optional tensor is a tensor."""
        if all(value.type.HasField("tensor_type") or not value.type.WhichOneof("value") for value in self._graph.output):
            return
        helper = onnx().helper
        outputs = []
        for value in self._graph.output:
            if value.type.HasField("tensor_type") or not value.type.WhichOneof("value"):
                outputs.append(_copy(value))
                continue
            kind, sequence = element_type_of(value.type)
            if not sequence:
                if self._optional.get(value.name, value.name) is not None:
                    value.type.CopyFrom(kind)
                    outputs.append(_copy(value))
                continue
            for index, element in enumerate(self.get(value.name) or ()):
                name = f"{value.name}.{index}"
                if name != element:
                    self._graph.node.append(helper.make_node("Identity", [element], [name]))
                outputs.append(helper.make_tensor_value_info(name, kind.tensor_type.elem_type, None))
        del self._graph.output[:]
        self._graph.output.extend(outputs)

    @property
    def waiting(self) -> Any:
        """The first node that could not be replaced, though all before it is known; None where there is none."""
        return self._waiting


def _is_one(node: Any) -> bool:
    return node.op_type in SEQUENCE_OPERATORS and node.domain in ("", "ai.onnx")


def _attribute(node: Any, name: str, default: int) -> int:
    return next((int(entry.i) for entry in node.attribute if entry.name == name), default)


def _copy(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
