"""Writes a segment of float layers as an ONNX model for onnxruntime, without the packages onnx and protobuf.

This is the one file of the software NPU that knows ONNX. A model is made when a program is loaded and never stored. It has nodes of the
table of float operators and nothing else: no functions, no graphs inside nodes, no files. Constants are named in it and handed over in
memory.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ..._util.types import Array
from ...program import FLOAT_OPERATORS, Float, FloatAttribute, FloatOp, FloatStretch, Program
from ...program.float_operators import OPSET
from ...tensor import DType, TensorSpec
from .float_native import constant_values
from .preparation import Preparation

__all__ = ["BFLOAT16", "onnx_model"]


BFLOAT16 = 16
_FLOAT = 1
_TYPES = {"float32": _FLOAT, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10}
_TYPES |= {"float64": 11, "uint32": 12, "uint64": 13, "bfloat16": BFLOAT16}
_IR_VERSION = 10


def onnx_model(
    program: Program, stretch: FloatStretch, preparation: Preparation | None = None
) -> tuple[bytes, dict[str, Array], Counter[str]]:
    """The model of a segment, its large constants by name, and how many nodes read each tensor."""
    preparation = preparation or Preparation()
    graph = _Graph(program)
    nodes: list[bytes] = []
    uses: Counter[str] = Counter()
    names: dict[str, str] = {}
    # onnxruntime 1.31 makes one LayerNormalization of ReduceMean and its neighbors, draws a Cast before them into it, and then rejects
    # it for its two types. A sum of one tensor keeps them apart.
    layers = [layer.op for layer in program.layers[stretch.first : stretch.last] if isinstance(layer.op, Float)]
    normalises = any("ReduceMean" in op.names for op in layers)
    for name in stretch.inputs:
        names[name] = name
        if program.tensors[name].dtype in (DType.FLOAT16, DType.BFLOAT16):
            names[name] = f"{name}@float32"
            nodes.append(_node("Cast", [name], [f"{name}@cast" if normalises else names[name]], {"to": _FLOAT}))
            if normalises:
                nodes.append(_node("Sum", [f"{name}@cast"], [names[name]], {}))
    leaving = set(stretch.outputs)
    domains: dict[str, int] = {"": OPSET}
    for number, layer in enumerate(program.layers[stretch.first : stretch.last]):
        assert isinstance(layer.op, Float)
        made = {name: f"{name}@{number}" for op in layer.op.operators for name in op.outputs if name not in layer.outputs}
        made |= {name: f"{name}@inside" if name in leaving else name for name in layer.outputs}
        values = {name: constant_values(value, preparation) for name, value in layer.op.constants.items()}
        # weights that are stored as quantized values are numbers from here on: onnxruntime would make them again in every run
        widened = [op for op in layer.op.operators if op.outputs[0] not in layer.outputs and _is_of_constants(op, values)]
        operators = [op for op in layer.op.operators if op not in widened]
        values |= {op.outputs[0]: _numbers(op, values, preparation) for op in widened}
        read = {name for op in operators for name in op.inputs}
        constants = {name: graph.constant(value) for name, value in values.items() if name in read}
        inner = {"": "", **names, **constants}
        for op in operators:
            signature = FLOAT_OPERATORS[op.name]
            domains[signature.domain] = max(domains.get(signature.domain, 1), signature.opset)
            inputs = [inner[name] for name in op.inputs]
            uses.update(inputs)
            inner |= {name: made[name] for name in op.outputs if name}
            kind = op.name.removeprefix(f"{signature.domain}.")
            nodes.append(_node(kind, inputs, [inner[name] for name in op.outputs], op.attributes, signature.domain))
        names |= {name: made[name] for name in layer.outputs}
    for name in stretch.outputs:
        nodes.append(_node("Cast", [names[name]], [name], {"to": _TYPES[program.tensors[name].dtype.value]}))
    body = b"".join(_bytes(1, node) for node in nodes) + _bytes(2, b"stretch") + b"".join(graph.initializers)
    body += b"".join(_bytes(11, graph.value(name)) for name in stretch.inputs)
    body += b"".join(_bytes(12, graph.value(name)) for name in stretch.outputs)
    imports = b"".join(_bytes(8, _bytes(1, domain.encode()) + _number(2, version)) for domain, version in domains.items())
    return _number(1, _IR_VERSION) + _bytes(7, body) + imports, graph.external, uses


def _is_of_constants(op: FloatOp, values: Mapping[str, Array]) -> bool:
    """Whether an operator makes numbers of constant int8 values with a scale and a zero point for each channel."""
    if op.name != "DequantizeLinear" or len(op.inputs) != 3 or not values.keys() >= set(op.inputs) or op.attribute("block_size"):
        return False
    codes, scale, zero = (values[name] for name in op.inputs)
    axis = op.attribute("axis")
    known = codes.dtype == np.int8 and zero.dtype == np.int8 and scale.dtype == np.float32 and 0 <= axis < codes.ndim
    return known and scale.shape == zero.shape == (codes.shape[axis],)


def _numbers(op: FloatOp, values: Mapping[str, Array], preparation: Preparation) -> Array:
    """What such quantized values stand for."""
    codes, scale, zero = (values[name] for name in op.inputs)
    shape = tuple(-1 if place == op.attribute("axis") else 1 for place in range(codes.ndim))

    def make() -> Array:
        result: Array = (codes.astype(np.int32) - zero.reshape(shape)).astype(np.float32) * scale.reshape(shape)
        return result

    key = ("numbers", op.attribute("axis"), scale.tobytes(), zero.tobytes())
    return preparation.shared(key, codes, 4 * codes.nbytes, make)


class _Graph:
    """Collects the constants of a model; equal arrays are one."""

    def __init__(self, program: Program) -> None:
        self._tensors: Mapping[str, TensorSpec] = program.tensors
        self._names: dict[tuple[Any, ...], str] = {}
        self._held: list[Array] = []
        self.initializers: list[bytes] = []
        self.external: dict[str, Array] = {}

    def constant(self, array: Array) -> str:
        """The name of a constant."""
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)
        small = array.nbytes < 1024
        key = (array.dtype.str, array.shape, array.tobytes() if small else array.ctypes.data)
        if key not in self._names:
            name = self._names[key] = f"constant@{len(self._names)}"
            self._held.append(array)
            shape: tuple[int, ...] = array.shape
            head = b"".join(_number(1, extent) for extent in shape) + _number(2, _TYPES[array.dtype.name])
            if small:
                data = _bytes(9, array.tobytes())
            else:
                self.external[name] = array
                entries = {"location": "memory", "offset": "0", "length": str(array.nbytes)}
                pairs = (_bytes(1, key.encode()) + _bytes(2, text.encode()) for key, text in entries.items())
                data = b"".join(_bytes(13, pair) for pair in pairs) + _number(14, 1)
            self.initializers.append(_bytes(5, head + _bytes(8, name.encode()) + data))
        return self._names[key]

    def value(self, name: str) -> bytes:
        """An input or output."""
        spec = self._tensors[name]
        shape = b"".join(_bytes(1, _number(1, extent)) for extent in spec.shape)
        kind = _number(1, _TYPES[spec.dtype.value]) + _bytes(2, shape)
        return _bytes(1, name.encode()) + _bytes(2, _bytes(1, kind))


def _node(
    op: str, inputs: Iterable[str], outputs: Iterable[str], attributes: Mapping[str, FloatAttribute], domain: str = ""
) -> bytes:
    parts = [_bytes(1, name.encode()) for name in inputs] + [_bytes(2, name.encode()) for name in outputs]
    parts += [_bytes(4, op.encode()), _bytes(7, domain.encode())]
    kinds = FLOAT_OPERATORS[f"{domain}.{op}" if domain else op].attributes
    parts += [_bytes(5, b"".join(_attribute(key, value, kinds[key].kind))) for key, value in attributes.items()]
    return b"".join(parts)


def _attribute(key: str, value: Any, kind: str) -> Iterator[bytes]:
    yield _bytes(1, key.encode())
    if kind == "int":
        yield _number(3, value) + _number(20, 2)
    elif kind == "float":
        yield _real(2, value) + _number(20, 1)
    elif kind == "str":
        yield _bytes(4, value.encode()) + _number(20, 3)
    elif kind == "ints":
        yield b"".join(_number(8, item) for item in value) + _number(20, 7)
    elif kind == "floats":
        yield b"".join(_real(7, item) for item in value) + _number(20, 6)
    else:
        yield b"".join(_bytes(9, item.encode()) for item in value) + _number(20, 8)


# ---- the wire format of protobuf ----


def _varint(value: int) -> bytes:
    value &= 0xFFFF_FFFF_FFFF_FFFF
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _real(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", value)


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content
