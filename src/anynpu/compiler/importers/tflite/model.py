"""What a TFLite file holds, as data: tensors with their quantisation, and operators with their options."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...._util.types import Array
from ....errors import ModelFormatError, UnsupportedOperatorError
from .flatbuffer import Table, root_table
from .operators import OPERATORS
from .sparse import dense_bytes

__all__ = ["MARK", "TfliteModel", "TfliteOperator", "TfliteTensor", "is_tflite", "read_tflite"]

MARK = b"TFL3"
"""What stands at byte 4 of every TFLite file."""

_TYPES = {0: "<f4", 1: "<f2", 2: "<i4", 3: "u1", 4: "<i8", 6: "?", 7: "<i2", 9: "i1", 10: "<f8", 12: "<u8", 15: "<u4", 16: "<u2"}
_NAMES = {5: "string", 8: "complex64", 11: "complex128", 13: "resource", 14: "variant", 18: "bfloat16"}
_INT4 = 17
_CODES = ("u1", "i1", "<i2", "<i4")

MAX_AXES = 8
MAX_ELEMENTS = 1 << 30
MAX_TENSORS = 100_000
MAX_OPERATORS = 100_000
"""Of a graph; networks have some thousands."""


@dataclass(frozen=True, eq=False)
class TfliteTensor:
    """One tensor of the graph.

    :ivar data: the bytes of a constant; empty for others
    :ivar scales: of its codes: none, one, or one per slice of *axis*
    """

    index: int
    name: str
    shape: tuple[int, ...]
    kind: int
    data: Array
    scales: Array
    zeros: Array
    axis: int

    @property
    def is_constant(self) -> bool:
        return self.data.size > 0

    @property
    def is_quantized(self) -> bool:
        """Whether its integers are codes of real numbers."""
        return self.scales.size > 0 and (self.kind == _INT4 or _TYPES.get(self.kind) in _CODES)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The type of its meaning: codes stand for float32, and so do float16 and float64."""
        if self.is_quantized:
            return np.dtype(np.float32)
        if self.kind not in _TYPES:
            name = "int4" if self.kind == _INT4 else _NAMES.get(self.kind, f"number {self.kind}")
            raise UnsupportedOperatorError(
                f"tensor '{self.name}' has the type {name}", hint="convert the model with float32, float16 or int8 tensors"
            )
        kind = np.dtype(_TYPES[self.kind])
        return np.dtype(np.float32) if kind.kind == "f" else kind.newbyteorder("=")

    @cached_property
    def value(self) -> Array:
        """The value of a constant: real numbers where it holds codes."""
        stored = self._stored()
        if not self.is_quantized:
            return np.ascontiguousarray(stored, self.dtype)
        if self.scales.size == 1:
            zero = float(self.zeros[0]) if self.zeros.size else 0.0
            return np.asarray((stored.astype(np.float64) - zero) * float(self.scales[0]), np.float32)
        if not 0 <= self.axis < len(self.shape) or self.shape[self.axis] != self.scales.size:
            raise self._damaged(f"it has {self.scales.size} scales for axis {self.axis}")
        along = [1] * len(self.shape)
        along[self.axis] = -1
        zeros = self.zeros if self.zeros.size == self.scales.size else np.zeros(self.scales.size)
        real = (stored.astype(np.float64) - zeros.reshape(along)) * self.scales.astype(np.float64).reshape(along)
        return np.asarray(real, np.float32)

    @property
    def int8_range(self) -> tuple[float, int] | None:
        """Scale and zero point as int8 codes have them; None where it has no single scale."""
        if not self.is_quantized or self.scales.size != 1:
            return None
        scale, zero = float(self.scales[0]), int(self.zeros[0]) if self.zeros.size else 0
        stored = _TYPES.get(self.kind)
        if stored == "u1":
            zero -= 128
        elif stored == "<i2":
            scale, zero = scale * 256.0, zero // 256
        elif stored != "i1":
            return None
        return (scale, zero) if scale > 0 and np.isfinite(scale) and -128 <= zero <= 127 else None

    @property
    def limits(self) -> tuple[float, float] | None:
        """The smallest and largest number that its codes stand for; None where it has no single scale."""
        if not self.is_quantized or self.scales.size != 1 or self.kind == _INT4:
            return None
        codes, zero = np.iinfo(_TYPES[self.kind]), int(self.zeros[0]) if self.zeros.size else 0
        return (codes.min - zero) * float(self.scales[0]), (codes.max - zero) * float(self.scales[0])

    def _stored(self) -> Array:
        count = int(np.prod(self.shape, dtype=np.int64))
        if self.kind == _INT4:
            halves = np.stack([self.data << 4, self.data], axis=-1).view(np.int8).reshape(-1) >> 4
            if halves.size < count:
                raise self._damaged("its data is too short")
            return halves[:count].reshape(self.shape)
        kind = np.dtype(_TYPES[self.kind]) if self.kind in _TYPES else self.dtype
        if self.data.nbytes != count * kind.itemsize:
            raise self._damaged(f"it has {self.data.nbytes} bytes for the shape {list(self.shape)}")
        return np.frombuffer(self.data.tobytes(), kind).reshape(self.shape)

    def _damaged(self, what: str) -> ModelFormatError:
        return ModelFormatError(f"tensor '{self.name}' of the TFLite file is damaged: {what}", hint="convert the model again")


@dataclass(frozen=True, eq=False)
class TfliteOperator:
    """One operator. An absent optional input is -1.

    :ivar custom: the options of one that is not TFLite's own, as bytes
    """

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Table | None
    custom: bytes = b""

    def integer(self, field: int, kind: str = "i", default: int = 0) -> int:
        """A whole number of its options."""
        return default if self.options is None else self.options.integer(field, kind, default)

    def real(self, field: int, default: float = 0.0) -> float:
        return default if self.options is None else self.options.real(field, default)

    def truth(self, field: int) -> bool:
        return self.options is not None and self.options.truth(field)


@dataclass(frozen=True, eq=False)
class TfliteModel:
    """The first subgraph of a file, which is the network."""

    description: str
    tensors: tuple[TfliteTensor, ...]
    operators: tuple[TfliteOperator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def is_tflite(head: bytes | bytearray | memoryview) -> bool:
    """Whether the first bytes of a file are those of a TFLite model."""
    return bytes(head[4:8]) == MARK


def read_tflite(data: bytes) -> TfliteModel:
    """The network of a file."""
    if not is_tflite(data):
        raise ModelFormatError("this is not a TFLite model", hint="check the file")
    root = root_table(data)
    graphs = root.tables(2)
    if not graphs:
        raise ModelFormatError("the TFLite file holds no graph", hint="convert the model again")
    graph = graphs[0]
    buffers = root.tables(4)
    for what, field, most in (("tensors", 0, MAX_TENSORS), ("operators", 3, MAX_OPERATORS)):
        if graph.length(field) > most:
            raise ModelFormatError(f"the TFLite file has more than {most} {what}", hint="convert the model again")
    codes = [_operator_name(code) for code in root.tables(1)]
    tensors = _unique([_tensor(index, entry, buffers, data) for index, entry in enumerate(graph.tables(0))])
    operators = [_operator(entry, codes, len(tensors)) for entry in graph.tables(3)]
    ends = [tuple(int(index) for index in graph.numbers(field, "<i4")) for field in (1, 2)]
    for index in (*ends[0], *ends[1]):
        if not 0 <= index < len(tensors):
            raise ModelFormatError("the TFLite file is damaged: an end of the graph is no tensor", hint="convert the model again")
    return TfliteModel(root.text(3), tuple(tensors), tuple(operators), ends[0], ends[1])


def _operator_name(code: Table) -> str:
    number = max(code.integer(0, "b"), code.integer(3))
    name = OPERATORS.get(number, f"operator {number}")
    return code.text(1) or name if name == "CUSTOM" else name


def _tensor(index: int, entry: Table, buffers: list[Table], data: bytes) -> TfliteTensor:
    number = entry.integer(2, "I")
    if number >= max(len(buffers), 1):
        raise ModelFormatError("the TFLite file is damaged: a tensor names a buffer that is not there", hint="convert it again")
    shape = tuple(int(extent) for extent in entry.numbers(0, "<i4"))
    name = entry.text(3) or f"tensor_{index}"
    if len(shape) > MAX_AXES or any(extent < 0 for extent in shape) or np.prod(shape, dtype=np.float64) > MAX_ELEMENTS:
        raise ModelFormatError(
            f"tensor '{name}' of the TFLite file has the shape {list(shape)}", hint="convert it with fixed shapes"
        )
    stored = buffers[number].numbers(0, "u1") if buffers else np.zeros(0, np.uint8)
    if not stored.size and buffers and buffers[number].integer(1, "Q") > 1:  # beyond the flat buffer, in files of more than 2 GB
        start, size = buffers[number].integer(1, "Q"), buffers[number].integer(2, "Q")
        if start + size > len(data):
            raise ModelFormatError("the TFLite file is damaged: a buffer reaches beyond its end", hint="copy the file again")
        entry.account.take(size)
        stored = np.frombuffer(data, np.uint8, size, start)
    sparsity = entry.table(6)
    if sparsity is not None and stored.size and entry.integer(1, "b") in _TYPES:
        stored = dense_bytes(sparsity, stored, shape, np.dtype(_TYPES[entry.integer(1, "b")]).itemsize)
    quantization = entry.table(4)
    scales, zeros, axis = np.zeros(0, np.float32), np.zeros(0, np.int64), 0
    if quantization is not None and np.all(quantization.numbers(2, "<f4") > 0):
        scales, zeros, axis = quantization.numbers(2, "<f4"), quantization.numbers(3, "<i8"), quantization.integer(6)
    return TfliteTensor(index, name, shape, entry.integer(1, "b"), stored, scales, zeros, axis)


def _unique(tensors: list[TfliteTensor]) -> list[TfliteTensor]:
    """Tensors with names of their own: converters do not promise that."""
    taken: set[str] = set()
    counts: dict[str, int] = {}
    result = []
    for tensor in tensors:
        name = tensor.name
        while name in taken:
            counts[tensor.name] = counts.get(tensor.name, 0) + 1
            name = f"{tensor.name}.{counts[tensor.name]}"
        taken.add(name)
        fields = (tensor.shape, tensor.kind, tensor.data, tensor.scales, tensor.zeros, tensor.axis)
        result.append(tensor if name == tensor.name else TfliteTensor(tensor.index, name, *fields))
    return result


def _operator(entry: Table, codes: list[str], tensors: int) -> TfliteOperator:
    number = entry.integer(0, "I")
    inputs = tuple(int(index) for index in entry.numbers(1, "<i4"))
    outputs = tuple(int(index) for index in entry.numbers(2, "<i4"))
    sound = number < len(codes) and all(-1 <= index < tensors for index in inputs)
    if not sound or not outputs or not all(0 <= index < tensors for index in outputs):
        raise ModelFormatError("the TFLite file is damaged: an operator names what is not there", hint="convert the model again")
    return TfliteOperator(codes[number], inputs, outputs, entry.table(4), entry.numbers(5, "u1").tobytes())
