"""A TFLite file as data: tensors with their quantization, operators with their options; its flat buffer may be damaged."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from ...._util.types import Array
from ....errors import ModelFormatError, UnsupportedOperatorError

# Flat buffers, read by hand: tables, vectors and texts of a file that may be damaged.
#
# A table begins with the distance back to its *vtable*, which holds the place of each field, or 0 for one that is left out.
# Every read is checked against the end of the data, so a damaged file ends in one error and never in a wild read.
#
# Many places of a file can point to the same text or vector, so a small file can stand for much more than it holds. What is
# made of a file is counted, and bounded by a multiple of its size.


ItemT = TypeVar("ItemT")

MAX_ITEMS = 1 << 24
"""Entries of a vector of tables or texts; a network has some thousands."""

MAX_SHARE = 8
SPARE = 1 << 24
"""Texts, entries of vectors and numbers may have so many times the bytes of the file, and so many besides."""


def _damaged(what: str) -> ModelFormatError:
    return ModelFormatError(f"the TFLite file is damaged: {what}", hint="convert the model again")


class _Account:
    """What may still be made of a file."""

    def __init__(self, size: int) -> None:
        self._left = MAX_SHARE * size + SPARE

    def take(self, count: int) -> None:
        """Before *count* bytes are made into objects."""
        self._left -= count
        if self._left < 0:
            raise _damaged("it stands for far more than it holds")


@dataclass(frozen=True)
class Table:
    """One table of a flat buffer; fields are asked for by their number in the schema."""

    data: memoryview
    position: int
    account: _Account

    def integer(self, field: int, kind: str = "i", default: int = 0) -> int:
        """An integer; *kind* as in :mod:`struct`."""
        place = self._place(field)
        return default if place is None else int(_unpack(kind, self.data, place))

    def real(self, field: int, default: float = 0.0) -> float:
        """A float32."""
        place = self._place(field)
        return default if place is None else float(_unpack("f", self.data, place))

    def truth(self, field: int) -> bool:
        """A boolean, false where it is left out."""
        return bool(self.integer(field, "B"))

    def text(self, field: int) -> str:
        """A text; empty where it is left out."""
        place = self._place(field)
        return "" if place is None else self._text(self._target(place))

    def table(self, field: int) -> Table | None:
        """A table inside this one."""
        place = self._place(field)
        return None if place is None else self._table(self._target(place))

    def tables(self, field: int) -> list[Table]:
        """A vector of tables."""
        return self._items(field, self._table)

    def length(self, field: int) -> int:
        """How many entries a vector has."""
        place = self._place(field)
        return 0 if place is None else int(_unpack("I", self.data, self._target(place)))

    def numbers(self, field: int, dtype: str) -> Array:
        """A vector of numbers of a little-endian type such as ``<i4``; a view of the data, empty where it is left out."""
        place = self._place(field)
        kind = np.dtype(dtype)
        if place is None:
            return np.zeros(0, kind)
        start = self._target(place)
        count = int(_unpack("I", self.data, start))
        end = start + 4 + count * kind.itemsize
        if end > len(self.data):
            raise _damaged(f"a vector of {count} numbers reaches beyond its end")
        self.account.take(end - start)
        return np.frombuffer(self.data[start + 4 : end], kind)

    def has(self, field: int) -> bool:
        """Whether the field was written."""
        return self._place(field) is not None

    def _place(self, field: int) -> int | None:
        vtable = self.position - int(_unpack("i", self.data, self.position))
        size = int(_unpack("H", self.data, vtable))
        slot = 4 + 2 * field
        if slot + 2 > size:
            return None
        offset = int(_unpack("H", self.data, vtable + slot))
        return self.position + offset if offset else None

    def _target(self, place: int) -> int:
        return place + int(_unpack("I", self.data, place))

    def _table(self, position: int) -> Table:
        _unpack("i", self.data, position)
        return Table(self.data, position, self.account)

    def _text(self, position: int) -> str:
        count = int(_unpack("I", self.data, position))
        end = position + 4 + count
        if end > len(self.data):
            raise _damaged("a text reaches beyond its end")
        self.account.take(4 + count)
        return bytes(self.data[position + 4 : end]).decode("utf-8", "replace")

    def _items(self, field: int, read: Callable[[int], ItemT]) -> list[ItemT]:
        place = self._place(field)
        if place is None:
            return []
        start = self._target(place)
        count = int(_unpack("I", self.data, start))
        if count > MAX_ITEMS or start + 4 + 4 * count > len(self.data):
            raise _damaged(f"a vector of {count} entries reaches beyond its end")
        self.account.take(4 + 4 * count)
        return [read(self._target(start + 4 + 4 * index)) for index in range(count)]


def root_table(data: bytes | memoryview) -> Table:
    """The outermost table."""
    view = memoryview(data)
    return Table(view, int(_unpack("I", view, 0)), _Account(len(view)))


def _unpack(kind: str, data: memoryview, position: int) -> float | int:
    if position < 0 or position + struct.calcsize(f"<{kind}") > len(data):
        raise _damaged("an offset points outside of it")
    (value,) = struct.unpack_from(f"<{kind}", data, position)
    return value  # type: ignore[no-any-return]


# The numbers of TFLite's operators, as its public schema gives them: a name's place in the list.


_OPERATOR_NAMES = """
ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE EMBEDDING_LOOKUP FLOOR
FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGISTIC
LSH_PROJECTION LSTM MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH
SVDF TANH CONCAT_EMBEDDINGS SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN
GATHER BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM
STRIDED_SLICE BIDIRECTIONAL_SEQUENCE_RNN EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM
CAST PRELU MAXIMUM ARG_MAX MINIMUM LESS NEG PADV2 GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN
TRANSPOSE_CONV SPARSE_TO_DENSE TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW ARG_MIN
FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK REDUCE_MIN FLOOR_DIV
REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU SQUARED_DIFFERENCE
MIRROR_PAD ABS SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N GATHER_ND COS WHERE RANK ELU REVERSE_SEQUENCE MATRIX_DIAG
QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND
SELECT_V2 DENSIFY SEGMENT_SUM BATCH_MATMUL PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO
RFFT2D CONV_3D IMAG REAL COMPLEX_ABS HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL
CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE
RANDOM_UNIFORM MULTINOMIAL GELU DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX
UNSORTED_SEGMENT_SUM ATAN2 UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT
"""

OPERATORS = dict(enumerate(_OPERATOR_NAMES.split()))


# Constants that a TFLite file holds sparsely: their zeros are left out, and lists state where the other numbers belong.
#
# The numbers are the leaves of a tree. Each level of it is one axis, or one axis of a block, and has all of its places or those
# that a list names for each node above it.


_LISTED = 1
_INDEX_TYPES = {1: "<i4", 2: "<u2", 3: "u1"}


def dense_bytes(sparsity: Table, stored: Array, shape: Sequence[int], size: int) -> Array:
    """The bytes of all numbers of a constant.

    :param stored: the bytes of those that are not left out
    :param size: bytes of a number
    """
    rank = len(shape)
    order = [int(axis) for axis in sparsity.numbers(0, "<i4")]
    blocked = [int(axis) for axis in sparsity.numbers(1, "<i4")]
    levels = sparsity.tables(2)
    if (
        sorted(order) != list(range(rank + len(blocked)))
        or len(levels) != len(order)
        or any(not 0 <= axis < rank for axis in blocked)
    ):
        raise _damaged_constant("its axes do not fit its shape")
    count = math.prod(shape)
    sparsity.account.take(size * count)
    places = _leaves(levels, stored.size // size, count, sparsity)
    extents = {axis: levels[order.index(rank + index)].integer(1) for index, axis in enumerate(blocked)}
    target = np.zeros(places.shape[1], np.int64)
    for axis, extent in enumerate(shape):
        along = places[order.index(axis)] * extents.get(axis, 1)
        if axis in extents:
            along = along + places[order.index(rank + blocked.index(axis))]
        if along.size and (along.min() < 0 or along.max() >= extent):
            raise _damaged_constant("a number lies outside of its shape")
        target = target * extent + along
    made = np.zeros((count, size), np.uint8)
    made[target] = stored[: places.shape[1] * size].reshape(-1, size)
    return made.reshape(-1)


def _leaves(levels: Sequence[Table], count: int, most: int, sparsity: Table) -> Array:
    """The place of each leaf on every level, as [levels, leaves].

    :param count: of leaves there are at most so many
    :param most: and of nodes on any level
    """
    places = np.zeros((0, 1), np.int64)
    for level in levels:
        nodes = places.shape[1]
        if level.integer(0, "b") == _LISTED:
            starts, listed = (_numbers(level, field) for field in (2, 4))
            if starts.size != nodes + 1 or starts[0] != 0 or np.any(np.diff(starts) < 0) or starts[-1] != listed.size:
                raise _damaged_constant("its lists do not fit each other")
            parents = np.repeat(np.arange(nodes), np.diff(starts))
        else:
            extent = level.integer(1)
            if extent < 1 or nodes * extent > most:
                raise _damaged_constant("it has more places than its shape")
            parents, listed = np.repeat(np.arange(nodes), extent), np.tile(np.arange(extent), nodes)
        sparsity.account.take(parents.size)
        places = np.concatenate([places[:, parents], listed[None].astype(np.int64)])
    if places.shape[1] > count:
        raise _damaged_constant("it has fewer numbers than its lists state")
    return places


def _numbers(level: Table, field: int) -> Array:
    """A list of a level: its type stands before it."""
    held = level.table(field + 1)
    kind = _INDEX_TYPES.get(level.integer(field, "B"))
    if held is None or kind is None:
        raise _damaged_constant("a list is missing")
    return held.numbers(0, kind).astype(np.int64)


def _damaged_constant(what: str) -> ModelFormatError:
    return ModelFormatError(f"a sparse constant of the TFLite file is damaged: {what}", hint="convert the model again")


MARK = b"TFL3"
"""What stands at byte 4 of every TFLite file."""

_TYPES = {0: "<f4", 1: "<f2", 2: "<i4", 3: "u1", 4: "<i8", 6: "?", 7: "<i2", 9: "i1", 10: "<f8", 12: "<u8", 15: "<u4", 16: "<u2"}
_TYPE_NAMES = {5: "string", 8: "complex64", 11: "complex128", 13: "resource", 14: "variant", 18: "bfloat16"}
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
    :ivar scales: of its quantized values: none, one, or one per slice of *axis*
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
        """Whether its integers are quantized values of real numbers."""
        return self.scales.size > 0 and (self.kind == _INT4 or _TYPES.get(self.kind) in _CODES)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The type of its meaning: quantized values stand for float32, and so do float16 and float64."""
        if self.is_quantized:
            return np.dtype(np.float32)
        if self.kind not in _TYPES:
            name = "int4" if self.kind == _INT4 else _TYPE_NAMES.get(self.kind, f"number {self.kind}")
            raise UnsupportedOperatorError(
                f"tensor '{self.name}' has the type {name}", hint="convert the model with float32, float16 or int8 tensors"
            )
        kind = np.dtype(_TYPES[self.kind])
        return np.dtype(np.float32) if kind.kind == "f" else kind.newbyteorder("=")

    @cached_property
    def value(self) -> Array:
        """The value of a constant: real numbers where it holds quantized values."""
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
        """Scale and zero point as int8 values have them; None where it has no single scale."""
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
        """The smallest and largest number that its quantized values stand for; None where it has no single scale."""
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
        """An integer of its options."""
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
