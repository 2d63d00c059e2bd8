"""Large weights beside the model instead of in it: every copy of a protobuf message, and every session made of its bytes, copies them."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ..._util.optional import onnx
from ..._util.types import Array
from ..graph import external_tensor

__all__ = ["LARGE_BYTES", "HandedConstants", "checked_form", "detach"]

LARGE_BYTES = 1 << 16
"""Weights from this size on lie beside the model."""

_KINDS = frozenset(("float32", "float64", "float16", "int8", "uint8", "int32", "int64"))
_CONTROL = frozenset(("If", "Loop", "Scan"))


def detach(proto: Any) -> tuple[Any, dict[str, Array]]:
    """A copy of a model without the values of its large real constants, and these values by name.

    A model with control flow or sequences stays whole: conditions, lengths and positions may be computed from any constant.
    """
    if any(node.op_type in _CONTROL or "Sequence" in node.op_type for node in proto.graph.node):
        return proto, {}
    large = {tensor.name: tensor for tensor in proto.graph.initializer if _is_large(tensor)}
    if not large:
        return proto, {}
    values = {name: np.asarray(onnx().numpy_helper.to_array(tensor)) for name, tensor in large.items()}
    light = _without_constants(proto)
    for tensor in proto.graph.initializer:
        known = values.get(tensor.name)
        light.graph.initializer.append(tensor if known is None else external_tensor(tensor.name, known))
    return light, values


def checked_form(proto: Any) -> tuple[Any, list[Any]]:
    """What a checker needs to see: a model whose large constants are inputs, and those constants, each to be checked by itself."""
    large = [tensor for tensor in proto.graph.initializer if _is_large(tensor)]
    names = {tensor.name for tensor in large}
    if len(names) < len(large):
        return proto, []  # two of one name: the checker shall say so
    light = _without_constants(proto)
    light.graph.initializer.extend(tensor for tensor in proto.graph.initializer if tensor.name not in names)
    known = {value.name for value in proto.graph.input}
    make = onnx().helper.make_tensor_value_info
    light.graph.input.extend(
        make(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in large if tensor.name not in known
    )
    return light, large


def _is_large(tensor: Any) -> bool:
    """Whether a constant is made of many real numbers, which lie in the message as bytes; as many as its shape says."""
    types = onnx().TensorProto
    sizes = {types.FLOAT: 4, types.DOUBLE: 8, types.FLOAT16: 2}
    size = sizes.get(tensor.data_type, 0)
    if not size or not tensor.HasField("raw_data"):
        return False
    expected = size
    for extent in tensor.dims:
        expected *= extent
    return bool(expected >= LARGE_BYTES and len(tensor.raw_data) == expected)


def _without_constants(proto: Any) -> Any:
    """A copy of a model without its initialisers."""
    light = type(proto)()
    _copy_fields(proto, light, "graph")
    _copy_fields(proto.graph, light.graph, "initializer")
    light.graph.SetInParent()
    return light


def _copy_fields(source: Any, target: Any, left_out: str) -> None:
    for field, value in source.ListFields():
        if field.name == left_out:
            continue
        if isinstance(value, bytes) and field.type == field.TYPE_STRING:
            target.MergeFromString(_as_written(field.number, value))  # text that is not UTF-8 cannot be set, only read
        elif isinstance(value, (str, bytes, int, float)):
            setattr(target, field.name, value)
        elif hasattr(value, "ListFields"):
            getattr(target, field.name).CopyFrom(value)
        else:
            getattr(target, field.name).extend(value)


def _as_written(number: int, text: bytes) -> bytes:
    """A field of text as it lies in a message."""
    size, length = [], len(text)
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    key = number << 3 | 2
    assert key < 0x80, "fields of models and graphs have small numbers"
    return bytes([key, *size, length]) + text


class HandedConstants:
    """Constants that a session of onnxruntime reads where they lie in memory, instead of from the bytes of its model."""

    def __init__(self) -> None:
        self._large: dict[str, Array] = {}

    @property
    def nbytes(self) -> int:
        """What is handed over."""
        return sum(value.nbytes for value in self._large.values())

    def initializer(self, name: str, value: Array) -> Any:
        """The constant for the model: with its values where it is small."""
        if value.nbytes < LARGE_BYTES or value.dtype.name not in _KINDS:
            return onnx().numpy_helper.from_array(value, name)
        self._large[name] = np.ascontiguousarray(value)
        return external_tensor(name, value)

    def give(self, options: Any, runtime: Any) -> None:
        """Hand the large ones over with the options of a session."""
        if self._large:
            values = [runtime.OrtValue.ortvalue_from_numpy(value) for value in self._large.values()]
            options.add_external_initializers(list(self._large), values)
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
