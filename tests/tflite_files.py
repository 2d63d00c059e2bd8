"""TFLite files written by hand, so that tests need neither TensorFlow nor its interpreter.

A flat buffer is written from the gateway: a table first, then what it points to.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anynpu.compiler.importers.tflite.model import OPERATORS

__all__ = ["Byte", "Float", "Shared", "Tflite", "Truth"]

_NUMBERS = {name: number for number, name in OPERATORS.items()}
_KINDS = {"float32": 0, "float16": 1, "int32": 2, "uint8": 3, "int64": 4, "bool": 6, "int16": 7, "int8": 9, "int4": 17}


class Byte(int):
    """A field of one byte."""


class Float(float):
    """A field of float32."""


class Truth(int):
    """A boolean field."""


@dataclass(frozen=True)
class Shared:
    """A vector whose entries all point to the same table."""

    entry: Any
    count: int


class _Unsigned(int):
    """A field of four bytes without a sign."""


Fields = Mapping[int, Any]


class _Writer:
    def __init__(self) -> None:
        self.data = bytearray(8)

    def table(self, fields: Fields) -> int:
        """Write a table and all that it points to; its position."""
        codes = {Byte: ("<b", 1), Truth: ("<B", 1), Float: ("<f", 4), _Unsigned: ("<I", 4), int: ("<i", 4)}
        self._align(4)
        vtable = len(self.data)
        slots = max(fields, default=-1) + 1
        self.data += bytes(4 + 2 * slots)
        self._align(4)
        start = len(self.data)
        self.data += struct.pack("<i", start - vtable)
        children: list[tuple[int, Any]] = []
        for number, value in fields.items():
            code, size = codes.get(type(value), ("<I", 4))
            self._align(size)
            struct.pack_into("<H", self.data, vtable + 4 + 2 * number, len(self.data) - start)
            if type(value) in codes:
                self.data += struct.pack(code, value)
            else:
                children.append((len(self.data), value))
                self.data += bytes(4)
        struct.pack_into("<HH", self.data, vtable, 4 + 2 * slots, len(self.data) - start)
        for place, value in children:
            struct.pack_into("<I", self.data, place, self._child(value) - place)
        return start

    def _child(self, value: Any) -> int:
        if isinstance(value, Mapping):
            return self.table(value)
        if isinstance(value, str):
            self._align(4)
            start = len(self.data)
            self.data += struct.pack("<I", len(value.encode())) + value.encode() + b"\0"
            return start
        if isinstance(value, np.ndarray):
            while (len(self.data) + 4) % 16:
                self.data.append(0)
            start = len(self.data)
            self.data += struct.pack("<I", value.size) + value.tobytes()
            return start
        self._align(4)
        start = len(self.data)
        if isinstance(value, Shared):
            self.data += struct.pack("<I", value.count) + bytes(4 * value.count)
            target = self._child(value.entry)
            first = start + 4
            self.data[first : first + 4 * value.count] = (target - first - 4 * np.arange(value.count)).astype("<u4").tobytes()
            return start
        self.data += struct.pack("<I", len(value)) + bytes(4 * len(value))
        for index, entry in enumerate(value):
            place = start + 4 + 4 * index
            struct.pack_into("<I", self.data, place, self._child(entry) - place)
        return start

    def _align(self, size: int) -> None:
        while len(self.data) % size:
            self.data.append(0)


@dataclass
class Tflite:
    """A network in the making: tensors are known by their number."""

    tensors: Any = field(default_factory=list)
    buffers: list[Fields] = field(default_factory=lambda: [{}])
    operators: list[Fields] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        kind: str = "float32",
        value: Any = None,
        scale: float | Sequence[float] | None = None,
        zero: int | Sequence[int] = 0,
        axis: int = 0,
    ) -> int:
        """Add a tensor; with *value* it is a constant, with *scale* it holds codes."""
        number = 0
        if value is not None:
            self.buffers.append({0: np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)})
            number = len(self.buffers) - 1
        fields: dict[int, Any] = {0: np.asarray(shape, "<i4"), 1: Byte(_KINDS[kind]), 2: _Unsigned(number), 3: name}
        if scale is not None:
            scales = np.atleast_1d(np.asarray(scale, "<f4"))
            fields[4] = {2: scales, 3: np.broadcast_to(np.asarray(zero, "<i8"), scales.shape).copy(), 6: axis}
        self.tensors.append(fields)
        return len(self.tensors) - 1

    def constant(self, name: str, value: Any, **quantization: Any) -> int:
        """Add a constant of the type that the array has."""
        array = np.asarray(value)
        return self.tensor(name, array.shape, str(array.dtype), array, **quantization)

    def operator(self, kind: str, inputs: Sequence[int], outputs: Sequence[int], options: Fields | None = None) -> None:
        """Add an operator; *options* are the fields of its table by number."""
        if kind not in self.codes:
            self.codes.append(kind)
        fields: dict[int, Any] = {
            0: _Unsigned(self.codes.index(kind)),
            1: np.asarray(inputs, "<i4"),
            2: np.asarray(outputs, "<i4"),
        }
        if options is not None:
            fields |= {3: Byte(1), 4: options}
        self.operators.append(fields)

    def file(self, inputs: Sequence[int], outputs: Sequence[int]) -> bytes:
        """The bytes of the file."""
        codes = [_code(kind) for kind in self.codes]
        graph = {0: self.tensors, 1: np.asarray(inputs, "<i4"), 2: np.asarray(outputs, "<i4"), 3: self.operators, 4: "main"}
        writer = _Writer()
        root = writer.table({0: _Unsigned(3), 1: codes, 2: [graph], 3: "written by a test", 4: self.buffers})
        struct.pack_into("<I4s", writer.data, 0, root, b"TFL3")
        return bytes(writer.data)


def _code(kind: str) -> Fields:
    number = _NUMBERS.get(kind, _NUMBERS["CUSTOM"])
    fields: dict[int, Any] = {0: Byte(min(number, 127)), 3: number}
    return fields if kind in _NUMBERS else {**fields, 1: kind}
