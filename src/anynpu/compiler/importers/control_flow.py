"""If, Loop, Scan, sequences and optional values that are known at compile time, unrolled: a layer program has tensors only."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..._util.optional import onnx, onnxruntime, ort_session
from ..._util.types import Array
from ...errors import CompileError, UnsupportedOperatorError
from .onnx_model import first_line

# Sequences and optional values.
#
# torch.split of a scripted module becomes SplitToSequence with SequenceAt, a list that a loop fills SequenceInsert with
# ConcatFromSequence. The number of elements, and the index of each access, nearly always depend on constants and shapes only. Then each
# element is a tensor with its own name, and no sequence is left. A sequence that is an input or output of the model becomes one input or
# output per element: ``x.0``, ``x.1``. The caller's shapes give the number of elements of an input.


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
                "an input is a sequence, and the chip needs the number of its tensors at compile time",
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
    """The sequences of one model, where they are known.

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
                f"a sequence has more than {MAX_ELEMENTS} tensors, the limit for unrolling",
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
        axis = _integer_attribute(node, "axis", 0)
        if not _integer_attribute(node, "new_axis", 0):
            return [helper.make_node("Concat", elements, [name], axis=axis)]
        parts = [f"{name}.part{index}" for index in range(len(elements))]
        nodes = [entry for pair in zip(elements, parts, strict=True) for entry in self._axis("Unsqueeze", *pair, axis)]
        return [*nodes, helper.make_node("Concat", parts, [name], axis=axis)]

    def _split(self, node: Any, name: str) -> list[Any] | None:
        helper = onnx().helper
        shape = self._shape(node.input[0])
        if shape is None:
            return None
        axis = _integer_attribute(node, "axis", 0) % max(len(shape), 1)
        extent, keep = shape[axis], True
        if len(node.input) > 1 and node.input[1]:
            value = self._value(node.input[1])
            if value is None:
                return None
            size = 1 if value.ndim else int(value)
            count = value.size if value.ndim else -(-extent // max(size, 1))
        else:
            value, size, count, keep = None, 1, extent, bool(_integer_attribute(node, "keepdims", 1))
        if size < 1 or count > MAX_ELEMENTS:
            raise UnsupportedOperatorError(
                f"an axis of {extent} becomes a sequence of parts of {size}: at most {MAX_ELEMENTS} parts are unrolled",
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


def _integer_attribute(node: Any, name: str, default: int) -> int:
    return next((int(entry.i) for entry in node.attribute if entry.name == name), default)


MAX_ROUNDS = 1024
"""Rounds of a loop that are unrolled."""

MAX_NODES = 50_000
"""Nodes of the model that the rounds of its loops may make."""

_CONTROL = ("If", "Loop", "Scan", "SequenceMap")
_RANDOM = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial")
_MAX_PARAMETER = 64


def write_out_control_flow(proto: Any) -> None:
    """Replace all If, Loop and Scan nodes, in place; raise a typed error for one whose course depends on the data."""
    writer = _Writer(proto)
    while writer.resolve_sequences() and (nodes := [node for node in proto.graph.node if _is_control(node)]):
        written = [writer.write_out(node) for node in nodes]
        if not any(written):
            raise writer.refusal(nodes[0])
    writer.sequences.open_outputs()
    if writer.count:
        del proto.graph.value_info[:]  # they may be about what is gone


def _is_control(node: Any) -> bool:
    return node.op_type in _CONTROL and node.domain in ("", "ai.onnx")


class _Writer:
    """Writes the control flow of one model out.

    :ivar count: nodes that were replaced
    """

    def __init__(self, proto: Any) -> None:
        self._proto = proto
        self._graph = proto.graph
        self.count = 0
        self._reason = ""
        self._place = 0
        self.sequences = Sequences(proto, self._value, self._shape, _is_control)

    def resolve_sequences(self) -> bool:
        """Replace the operators of sequences, where they do not wait for control flow."""
        self.count += self.sequences.resolve()
        if (node := self.sequences.waiting) is not None:
            raise self.refusal(node)
        return True

    # what is known

    def _static(self, name: str) -> bool:
        """Whether a tensor is the same for every input: it depends on constants and shapes alone."""
        constants = {tensor.name for tensor in self._graph.initializer}
        makers = {output: node for node in self._graph.node for output in node.output}
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            tensor = waiting.pop()
            if not tensor or tensor in constants or tensor in seen:
                continue
            seen.add(tensor)
            node = makers.get(tensor)
            if node is None or _is_control(node) or node.op_type in _RANDOM:
                return False
            if node.op_type not in ("Shape", "Size"):
                waiting += node.input
            elif self._needed(node.input[0]) is None:
                return False
        return True

    def _needed(self, name: str) -> list[Any] | None:
        """The nodes that a tensor depends on, in order; None where control flow is among them."""
        needed, kept = {name}, []
        for node in reversed(self._graph.node):
            if needed.isdisjoint(node.output):
                continue
            if _is_control(node):
                return None
            kept.append(node)
            needed.update(node.input)
        return kept[::-1]

    def _value(self, name: str) -> Array | None:
        """The value of a tensor that depends on no input, or None."""
        for tensor in self._graph.initializer:
            if tensor.name == name:
                return np.asarray(onnx().numpy_helper.to_array(tensor))
        return self._run(name) if self._static(name) else None

    def _shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of any tensor that no control flow comes before."""
        if self._needed(name) is None:
            return None
        probe = f"{name}.anynpu.shape"
        node = onnx().helper.make_node("Shape", [name], [probe])
        self._graph.node.append(node)
        try:
            return tuple(int(extent) for extent in self._run(probe))
        finally:
            self._graph.node.remove(node)

    def _run(self, name: str) -> Array:
        """Compute a tensor on inputs of zeros."""
        helper, runtime = onnx().helper, onnxruntime()
        nodes = self._needed(name)
        assert nodes is not None
        read = {entry for node in nodes for entry in node.input} | {name}
        graph = helper.make_graph(
            nodes,
            "anynpu",
            [value for value in self._graph.input if value.name in read],
            [helper.make_empty_tensor_value_info(name)],
            [tensor for tensor in self._graph.initializer if tensor.name in read],
        )
        model = helper.make_model(
            graph, opset_imports=self._proto.opset_import, ir_version=max(4, min(self._proto.ir_version, 10))
        )
        options = runtime.SessionOptions()
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        constants = {tensor.name for tensor in graph.initializer}
        try:
            session = ort_session(model.SerializeToString(), options)
            feeds = {value.name: _zeros(value) for value in graph.input if value.name not in constants}
            return np.asarray(session.run([name], feeds)[0])
        except Exception as error:  # onnxruntime's exception classes are private
            raise CompileError(
                f"what a condition depends on cannot be computed: {first_line(error)}",
                tensor=name,
                hint="run the model in onnxruntime with the same input shapes: it fails there too",
            ) from error

    # what is done

    def write_out(self, node: Any) -> bool:
        """Replace one node if its course is known."""
        try:
            made = {"If": self._if, "Loop": self._loop, "Scan": self._scan, "SequenceMap": self._map}[node.op_type](node)
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            if isinstance(error, CompileError):
                raise
            raise CompileError(
                f"the subgraph does not fit the node: {first_line(error)}",
                node=_label(node),
                operator=node.op_type,
                hint="export the model again",
            ) from error
        if made is None:
            return False
        nodes = self._graph.node
        around = itertools.chain(range(min(self._place, len(nodes)), len(nodes)), range(min(self._place, len(nodes))))
        self._place = place = next(index for index in around if nodes[index] is node)  # the next one is mostly near the last one
        if len(self._graph.node) + len(made) > MAX_NODES:
            raise self._too_long(node)
        replace_node(self._graph.node, place, made)
        self.count += 1
        return True

    def _if(self, node: Any) -> list[Any] | None:
        condition = self._value(node.input[0])
        if condition is None:
            return None
        branch = _attribute(node, "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch")
        nodes, results = self._inline(branch, {}, f"{_label(node)}.branch")
        return [*nodes, *(_identity(source, target) for source, target in zip(results, node.output, strict=False) if target)]

    def _loop(self, node: Any) -> list[Any] | None:
        rounds: Array | None = None
        if node.input[0]:
            rounds = self._value(node.input[0])
            if rounds is None:
                return None
        going = True
        if len(node.input) > 1 and node.input[1]:
            start = self._value(node.input[1])
            if start is None:
                return None
            going = bool(start.reshape(-1)[0])
        limit = MAX_ROUNDS + 1 if rounds is None else int(rounds.reshape(-1)[0])
        body = _attribute(node, "body")
        states = list(node.input[2:])
        made: list[Any] = []
        scanned: list[list[str]] = [[] for _ in body.output[1 + len(states) :]]
        keeps = _keeps_going(body)
        count, start_nodes = 0, len(self._graph.node)
        while going and count < limit:
            if count >= MAX_ROUNDS or start_nodes + len(made) > MAX_NODES:
                raise self._too_long(node)
            prefix = f"{_label(node)}.{count}"
            number, condition = (
                self._constant(f"{prefix}.number", np.int64(count)),
                self._constant(f"{prefix}.go", np.bool_(True)),
            )
            inputs = dict(zip((value.name for value in body.input), (number, condition, *states), strict=True))
            nodes, results = self._inline(body, inputs, prefix)
            made += nodes
            states = results[1 : 1 + len(states)]
            for entry, name in zip(scanned, results[1 + len(states) :], strict=True):
                entry.append(name)
            count += 1
            if not keeps:
                known = self._value_with(made, results[0])
                if known is None:
                    self._reason = "whether there is another round depends on the data"
                    return None
                going = bool(known.reshape(-1)[0])
        targets = list(node.output)
        made += [_identity(source, target) for source, target in zip(states, targets, strict=False) if target]
        for names, target in zip(scanned, targets[len(states) :], strict=False):
            if target:
                if not names:
                    self._reason = "it has no rounds, and so a result without elements"
                    return None
                made += self._joined(names, target, 0)
        return made

    def _scan(self, node: Any) -> list[Any] | None:
        body = _attribute(node, "body")
        scans = int(_attribute(node, "num_scan_inputs"))
        if self._opset < 9:
            return self._scan_of_batch(node, body, scans)
        states, sources = list(node.input[: len(node.input) - scans]), list(node.input[len(node.input) - scans :])
        axes = list(_attribute(node, "scan_input_axes") or [0] * scans)
        backwards = list(_attribute(node, "scan_input_directions") or [0] * scans)
        count = self._rounds(node, body, sources, axes)
        if count is None:
            return None
        made, states, scanned = self._unrolled(body, _label(node), count, states, sources, axes, backwards)
        targets = list(node.output)
        made += [_identity(source, target) for source, target in zip(states, targets, strict=False) if target]
        joins = list(_attribute(node, "scan_output_axes") or [0] * len(scanned))
        turned = list(_attribute(node, "scan_output_directions") or [0] * len(scanned))
        for names, target, axis, turn in zip(scanned, targets[len(states) :], joins, turned, strict=False):
            if target:
                made += self._joined(names[::-1] if turn else names, target, axis)
        return made

    def _scan_of_batch(self, node: Any, body: Any, scans: int) -> list[Any] | None:
        """The Scan of operator set 8: it has a batch before the axis that is scanned, and optional lengths before its states."""
        if node.input[0]:
            self._reason = "the Scan of operator set 8 has sequences of several lengths"
            return None
        states, sources = list(node.input[1 : len(node.input) - scans]), list(node.input[len(node.input) - scans :])
        count = self._rounds(node, body, sources, [1] * scans)
        shape = self._shape(sources[0])
        if count is None or shape is None:
            return None
        if shape[0] * count * len(body.node) > MAX_NODES:
            raise self._too_long(node)
        backwards = list(_attribute(node, "directions") or [0] * scans)
        made: list[Any] = []
        ends: list[list[str]] = [[] for _ in node.output]
        for sample in range(shape[0]):
            prefix = f"{_label(node)}.sample{sample}"
            own = []
            for name in (*states, *sources):
                which = self._constant(f"{prefix}.{name}.place", np.int64(sample))
                own.append(f"{prefix}.{name}")
                made.append(onnx().helper.make_node("Gather", [name, which], [own[-1]], axis=0))
            first, last = own[: len(states)], own[len(states) :]
            nodes, results, scanned = self._unrolled(body, prefix, count, first, last, [0] * scans, backwards)
            made += nodes
            for place, names in enumerate(scanned):
                results.append(f"{prefix}.scanned{place}")
                made += self._joined(names, results[-1], 0)
            for end, name in zip(ends, results, strict=False):
                end.append(name)
        for end, target in zip(ends, node.output, strict=True):
            if target:
                made += self._joined(end, target, 0)
        return made

    def _rounds(self, node: Any, body: Any, sources: Sequence[str], axes: Sequence[int]) -> int | None:
        """How often the body of a Scan runs, if that is known."""
        shapes = [self._shape(name) for name in sources]
        if any(shape is None for shape in shapes):
            return None
        count = min(len(shape) and shape[axis] for shape, axis in zip(shapes, axes, strict=True) if shape is not None)
        if count > MAX_ROUNDS or count * len(body.node) > MAX_NODES:
            raise self._too_long(node)
        return count

    def _unrolled(
        self,
        body: Any,
        label: str,
        count: int,
        states: list[str],
        sources: Sequence[str],
        axes: Sequence[int],
        backwards: Sequence[int],
    ) -> tuple[list[Any], list[str], list[list[str]]]:
        """The rounds of a Scan: their nodes, the states at the end, and what each round gives."""
        scanned: list[list[str]] = [[] for _ in body.output[len(states) :]]
        made: list[Any] = []
        for number in range(count):
            prefix = f"{label}.{number}"
            parts = []
            for index, (source, axis) in enumerate(zip(sources, axes, strict=True)):
                place = count - 1 - number if backwards[index] else number
                parts.append(f"{prefix}.part{index}")
                which = self._constant(f"{prefix}.place{index}", np.int64(place))
                made.append(onnx().helper.make_node("Gather", [source, which], [parts[-1]], axis=axis))
            inputs = dict(zip((value.name for value in body.input), (*states, *parts), strict=True))
            nodes, results = self._inline(body, inputs, prefix)
            made += nodes
            states = results[: len(states)]
            for entry, name in zip(scanned, results[len(states) :], strict=True):
                entry.append(name)
        return made, states, scanned

    def _map(self, node: Any) -> list[Any] | None:
        """The body of a SequenceMap for each element."""
        elements = self.sequences.get(node.input[0])
        if elements is None:
            return None
        body = _attribute(node, "body")
        made: list[Any] = []
        results: list[list[str]] = [[] for _ in body.output]
        for number in range(len(elements)):
            sources = [(self.sequences.get(name) or (name,) * len(elements))[number] for name in node.input]
            inputs = dict(zip((value.name for value in body.input), sources, strict=True))
            nodes, names = self._inline(body, inputs, f"{_label(node)}.{number}")
            made += nodes
            for result, name in zip(results, names, strict=True):
                result.append(name)
        for target, result in zip(node.output, results, strict=True):
            self.sequences.set(target, result)
        return made

    def _value_with(self, made: Sequence[Any], name: str) -> Array | None:
        """The value of a tensor among nodes that are not in the model yet."""
        before = len(self._graph.node)
        self._graph.node.extend(made)
        try:
            return self._value(name)
        finally:
            del self._graph.node[before:]

    @property
    def _opset(self) -> int:
        versions = {entry.domain: entry.version for entry in self._proto.opset_import}
        return int(versions.get("", versions.get("ai.onnx", 0)))

    def _constant(self, name: str, value: Any) -> str:
        self._graph.initializer.append(onnx().numpy_helper.from_array(np.asarray(value), name))
        return name

    def _joined(self, names: Sequence[str], target: str, axis: int) -> list[Any]:
        """Nodes that put the results of all rounds beside each other, on an axis of their own."""
        helper = onnx().helper
        nodes, parts = [], []
        for index, name in enumerate(names):
            parts.append(f"{target}.round{index}")
            if self._opset < 13:
                nodes.append(helper.make_node("Unsqueeze", [name], [parts[-1]], axes=[axis]))
            else:
                if not index:
                    axes = self._constant(f"{target}.axes", np.array([axis], np.int64))
                nodes.append(helper.make_node("Unsqueeze", [name, axes], [parts[-1]]))
        return [*nodes, helper.make_node("Concat", parts, [target], axis=axis)]

    def _inline(self, body: Any, inputs: Mapping[str, str], prefix: str) -> tuple[list[Any], list[str]]:
        """The nodes of a subgraph under names of their own, and the names of its results; its constants go into the model."""
        names = dict(inputs)
        for tensor in body.initializer:
            names[tensor.name] = f"{prefix}.{tensor.name}"
            copy = _copy(tensor)
            copy.name = names[tensor.name]
            self._graph.initializer.append(copy)
        for node in body.node:
            names.update({output: f"{prefix}.{output}" for output in node.output if output})
        nodes = []
        for node in body.node:
            copy = _copy(node)
            copy.name = f"{prefix}.{node.name}" if node.name else ""
            _rename(copy, names)
            nodes.append(copy)
        return nodes, [names.get(value.name, value.name) for value in body.output]

    # what is rejected

    def _too_long(self, node: Any) -> UnsupportedOperatorError:
        return UnsupportedOperatorError(
            f"unrolled, the loop is longer than {MAX_ROUNDS} rounds or {MAX_NODES} nodes",
            node=_label(node),
            operator=node.op_type,
            hint="choose smaller input shapes, or cut the model before this node and do the rest in your program",
        )

    def refusal(self, node: Any) -> CompileError:
        """Why a node stays: its course depends on the data, or on an input that could be a constant."""
        conditions = {"If": node.input[:1], "Loop": node.input[:2]}.get(node.op_type, ())
        if node.op_type in SEQUENCE_OPERATORS:
            conditions = node.input[1:]
        sources = (self._parameter(name) for name in conditions if name and not self._reason)
        source = next((name for name in sources if name), None)
        if source is not None:
            return CompileError(
                f"the course of {node.op_type} depends on an input of the model, and the chip needs it at compile time",
                node=_label(node),
                operator=node.op_type,
                tensor=source,
                hint=f"give its value: constants={{'{source}': [1]}}, or --constant {source}=1",
            )
        if node.op_type in SEQUENCE_OPERATORS:
            return UnsupportedOperatorError(
                "a sequence cannot become tensors: how many elements it has, or which one is meant, depends on the data",
                node=_label(node),
                operator=node.op_type,
                hint="export the model without sequences of unknown length",
            )
        return UnsupportedOperatorError(
            f"control flow cannot become a layer program: {self._reason or 'its course depends on the data'}",
            node=_label(node),
            operator=node.op_type,
            hint="export the model with fixed control flow (unrolled, scripted without If and Loop)",
        )

    def _parameter(self, name: str) -> str | None:
        """The small input that a condition depends on, if it depends on no others."""
        nodes = self._needed(name)
        if nodes is None:
            return None
        read = {entry for node in nodes for entry in node.input} | {name}
        constants = {tensor.name for tensor in self._graph.initializer}
        found = [value for value in self._graph.input if value.name in read and value.name not in constants]
        if not found or any(_zeros(value).size > _MAX_PARAMETER or _is_data(value) for value in found):
            return None
        return str(found[0].name)


def _is_data(value: Any) -> bool:
    """Whether an input is what the model looks at rather than a switch of it."""
    zeros = _zeros(value)
    return bool(zeros.dtype.kind == "f" and zeros.size > 1)


def _label(node: Any) -> str:
    return str(node.name or next(filter(None, node.output), node.op_type))


def _attribute(node: Any, name: str) -> Any:
    for entry in node.attribute:
        if entry.name == name:
            return onnx().helper.get_attribute_value(entry)
    return None


def _zeros(value: Any) -> Array:
    kind = value.type.tensor_type
    shape = [max(int(entry.dim_value), 1) for entry in kind.shape.dim]
    return np.zeros(shape, onnx().helper.tensor_dtype_to_np_dtype(kind.elem_type))


def _copy(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _identity(source: str, target: str) -> Any:
    return onnx().helper.make_node("Identity", [source], [target])


def _rename(node: Any, names: Mapping[str, str]) -> None:
    """Give the tensors of a node their new names, also inside of its subgraphs."""
    for field in (node.input, node.output):
        new = [names.get(name, name) for name in field]
        del field[:]
        field.extend(new)
    for entry in node.attribute:
        for graph in (entry.g, *entry.graphs) if entry.HasField("g") or entry.graphs else ():
            own = {value.name for value in (*graph.input, *graph.initializer)}
            own |= {output for inner in graph.node for output in inner.output}
            outer = {old: new for old, new in names.items() if old not in own}
            for inner in graph.node:
                _rename(inner, outer)
            for value in graph.output:
                value.name = outer.get(value.name, value.name)


def _keeps_going(body: Any) -> bool:
    """Whether a loop's body hands its condition on as it is, or states yes each time."""
    makers = {output: node for node in body.node for output in node.output}
    name = body.output[0].name
    while (maker := makers.get(name)) is not None and maker.op_type in ("Identity", "Cast"):
        name = maker.input[0]
    if len(body.input) > 1 and name == body.input[1].name:
        return True
    maker = makers.get(name)
    value = None
    if maker is not None and maker.op_type == "Constant":
        value = _attribute(maker, "value")
    for tensor in body.initializer:
        value = tensor if tensor.name == name else value
    return value is not None and bool(np.all(onnx().numpy_helper.to_array(value)))
