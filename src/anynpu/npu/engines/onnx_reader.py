"""Reads the ONNX model of a float island, without the packages onnx and protobuf.

Only what an island needs: nodes with their attributes, constants, inputs and outputs. Graphs inside attributes are not followed (an
operator with one is left to onnxruntime), so nothing here nests deeper than the format's own messages, and time and memory are bounded by
the number of bytes. Damaged bytes raise :class:`ModelFormatError`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import ModelFormatError

__all__ = ["Attribute", "OnnxConstant", "OnnxGraph", "OnnxNode", "OnnxValue", "read_model"]

Array = npt.NDArray[Any]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_EXTERNAL = 1
_MAX_AXES = 32
_TYPES: Mapping[int, np.dtype[Any]] = {
    1: np.dtype("<f4"),
    2: np.dtype("u1"),
    3: np.dtype("i1"),
    5: np.dtype("<i2"),
    6: np.dtype("<i4"),
    7: np.dtype("<i8"),
    9: np.dtype("?"),
    10: np.dtype("<f2"),
    11: np.dtype("<f8"),
}
"""By TensorProto.DataType; the others have no use in an island that runs here."""


@dataclass(frozen=True, eq=False)
class OnnxConstant:
    """An initialiser.

    :ivar dtype: None for a type that is not read
    :ivar value: None for one whose data lies outside of the model, or is not read
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    value: Array | None
    external: bool


Attribute = int | float | str | tuple[int, ...] | tuple[float, ...] | None
"""None stands for a kind that is not read: tensors, graphs, lists of texts."""


@dataclass(frozen=True)
class OnnxNode:
    """One operator; an empty text among its inputs and outputs is one that is left out."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    name: str = ""
    domain: str = ""


@dataclass(frozen=True)
class OnnxValue:
    """An input or output of the graph; the shape is None where the model does not say it in numbers."""

    name: str
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...] | None


@dataclass(frozen=True, eq=False)
class OnnxGraph:
    """A model's graph.

    :ivar opset: version of the standard operators
    """

    nodes: tuple[OnnxNode, ...]
    constants: tuple[OnnxConstant, ...]
    inputs: tuple[OnnxValue, ...]
    outputs: tuple[OnnxValue, ...]
    opset: int


def read_model(data: bytes) -> OnnxGraph:
    """The graph of a serialised ONNX model.

    >>> read_model(bytes([0x3A, 0x00, 0x42, 0x02, 0x10, 0x0D])).opset
    13
    >>> read_model(bytes([0x3A, 0x05]))
    Traceback (most recent call last):
    ...
    anynpu.errors.ModelFormatError: the ONNX model of a float island is damaged: a field ends after the data
      hint: compile the model again
    """
    graph: memoryview | None = None
    opset = 0
    for number, value in _fields(memoryview(data)):
        if number == 7:
            if graph is not None:
                raise _damaged("it has two graphs")
            graph = _message(value)
        elif number == 8:
            domain, version = _opset(_message(value))
            if domain in ("", "ai.onnx"):
                opset = version
    if graph is None or opset < 1:
        raise _damaged("it has no graph" if graph is None else "it does not say which operator set it uses")
    return _graph(graph, opset)


def _damaged(what: str) -> ModelFormatError:
    return ModelFormatError(f"the ONNX model of a float island is damaged: {what}", hint="compile the model again")


# ---- the wire format ----

_Raw = int | memoryview | tuple[int, memoryview]
"""A number, bytes, or the size and bytes of a number of fixed size."""


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """A number and the position after it."""
    result = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise _damaged("a number ends after the data")
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result & 0xFFFF_FFFF_FFFF_FFFF, position
    raise _damaged("a number is too long")


def _fields(data: memoryview) -> Iterator[tuple[int, _Raw]]:
    """All fields of a message as number and content."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, wire = tag >> 3, tag & 7
        if number == 0 or number >= 1 << 29:
            raise _damaged("a field has an impossible number")
        if wire == _VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if wire == _BYTES:
            size, position = _varint(data, position)
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
        else:
            raise _damaged("a field has an unknown kind")
        if size > len(data) - position:
            raise _damaged("a field ends after the data")
        content = data[position : position + size]
        position += size
        yield number, content if wire == _BYTES else (size, content)


def _message(value: _Raw) -> memoryview:
    if not isinstance(value, memoryview):
        raise _damaged("a field that holds bytes holds a number")
    return value


def _text(value: _Raw) -> str:
    try:
        return str(_message(value), "utf-8")
    except UnicodeDecodeError as error:
        raise _damaged("a text is not UTF-8") from error


def _signed(value: _Raw) -> int:
    if not isinstance(value, int):
        raise _damaged("a field that holds a number holds bytes")
    return value - (1 << 64) if value >> 63 else value


def _signed_list(value: _Raw) -> Iterator[int]:
    """One number, or several in one field."""
    if not isinstance(value, memoryview):
        yield _signed(value)
        return
    position = 0
    while position < len(value):
        number, position = _varint(value, position)
        yield _signed(number)


def _float(value: _Raw) -> float:
    if not isinstance(value, tuple) or value[0] != 4:
        raise _damaged("a field that holds a float holds something else")
    return float(struct.unpack("<f", value[1])[0])


def _packed(value: _Raw, dtype: str) -> Array:
    """One number of fixed size, or several in one field."""
    content = value if isinstance(value, memoryview) else value[1] if isinstance(value, tuple) else None
    kind = np.dtype(dtype)
    if content is None or len(content) % kind.itemsize:
        raise _damaged("a list of numbers has a part of a number")
    return np.frombuffer(content, kind)


# ---- messages ----


def _opset(data: memoryview) -> tuple[str, int]:
    domain, version = "", 0
    for number, value in _fields(data):
        if number == 1:
            domain = _text(value)
        elif number == 2:
            version = _signed(value)
    return domain, version


def _graph(data: memoryview, opset: int) -> OnnxGraph:
    nodes: list[OnnxNode] = []
    constants: list[OnnxConstant] = []
    inputs: list[OnnxValue] = []
    outputs: list[OnnxValue] = []
    for number, value in _fields(data):
        if number == 1:
            nodes.append(_node(_message(value)))
        elif number == 5:
            constants.append(_constant(_message(value)))
        elif number == 11:
            inputs.append(_value(_message(value)))
        elif number == 12:
            outputs.append(_value(_message(value)))
    return OnnxGraph(tuple(nodes), tuple(constants), tuple(inputs), tuple(outputs), opset)


def _node(data: memoryview) -> OnnxNode:
    inputs: list[str] = []
    outputs: list[str] = []
    attributes: dict[str, Attribute] = {}
    texts = {3: "", 4: "", 7: ""}
    for number, value in _fields(data):
        if number == 1:
            inputs.append(_text(value))
        elif number == 2:
            outputs.append(_text(value))
        elif number == 5:
            name, content = _attribute(_message(value))
            if name in attributes:
                raise _damaged(f"a node has the attribute '{name}' twice")
            attributes[name] = content
        elif number in texts:
            texts[number] = _text(value)
    return OnnxNode(texts[4], tuple(inputs), tuple(outputs), attributes, texts[3], texts[7])


def _attribute(data: memoryview) -> tuple[str, Attribute]:
    name, kind = "", 0
    whole, real, text = 0, 0.0, ""
    wholes: list[int] = []
    reals: list[float] = []
    for number, value in _fields(data):
        if number == 1:
            name = _text(value)
        elif number == 2:
            real = _float(value)
        elif number == 3:
            whole = _signed(value)
        elif number == 4:
            text = str(_message(value), "utf-8", "replace")
        elif number == 7:
            reals += _packed(value, "<f4").tolist()
        elif number == 8:
            wholes += _signed_list(value)
        elif number == 20:
            kind = _signed(value)
    read: Mapping[int, Attribute] = {1: real, 2: whole, 3: text, 6: tuple(reals), 7: tuple(wholes)}
    return name, read.get(kind)


def _value(data: memoryview) -> OnnxValue:
    name = ""
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] | None = None
    for number, value in _fields(data):
        if number == 1:
            name = _text(value)
        elif number == 2:
            for kind, tensor in _fields(_message(value)):
                if kind == 1:
                    dtype, shape = _tensor_type(_message(tensor))
    return OnnxValue(name, dtype, shape)


def _tensor_type(data: memoryview) -> tuple[np.dtype[Any] | None, tuple[int, ...] | None]:
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] | None = None
    for number, value in _fields(data):
        if number == 1:
            dtype = _TYPES.get(_signed(value))
        elif number == 2:
            extents = [_extent(_message(extent)) for kind, extent in _fields(_message(value)) if kind == 1]
            known = [extent for extent in extents if extent is not None]
            shape = tuple(known) if len(known) == len(extents) else None
    return dtype, shape


def _extent(data: memoryview) -> int | None:
    found: int | None = None
    for number, value in _fields(data):
        if number == 1:
            found = _signed(value)
    return found


def _constant(data: memoryview) -> OnnxConstant:
    name, kind, external = "", 0, False
    shape: list[int] = []
    raw: memoryview | None = None
    listed: dict[int, list[Any]] = {4: [], 5: [], 7: []}
    for number, value in _fields(data):
        if number == 1:
            shape += _signed_list(value)
        elif number == 2:
            kind = _signed(value)
        elif number == 4:
            listed[4].append(_packed(value, "<f4"))
        elif number in (5, 7):
            listed[number] += _signed_list(value)
        elif number == 8:
            name = _text(value)
        elif number == 9:
            raw = _message(value)
        elif number == 14:
            external = _signed(value) == _EXTERNAL
    if len(shape) > _MAX_AXES or any(extent < 0 for extent in shape):
        raise _damaged(f"the constant '{name}' has the shape {shape}")
    dtype = _TYPES.get(kind)
    value_read = None if external or dtype is None else _elements(name, dtype, raw, listed)
    if value_read is not None:
        if value_read.size != math.prod(shape):
            raise _damaged(f"the constant '{name}' has the shape {shape}, but {value_read.size} elements")
        value_read = value_read.reshape(shape)
    return OnnxConstant(name, tuple(shape), dtype, value_read, external)


def _elements(name: str, dtype: np.dtype[Any], raw: memoryview | None, listed: Mapping[int, list[Any]]) -> Array | None:
    if raw is not None:
        if len(raw) % dtype.itemsize:
            raise _damaged(f"the constant '{name}' has a part of an element")
        return np.frombuffer(raw, dtype)
    if dtype == np.float32:
        return np.concatenate([np.zeros(0, dtype), *listed[4]])
    if dtype == np.int64:
        return np.array(listed[7], np.int64)
    if dtype.kind in "iub" or dtype == np.float16:
        codes = np.array(listed[5], np.int64)
        return codes.astype(np.uint16).view(np.float16) if dtype == np.float16 else codes.astype(dtype)
    return None
