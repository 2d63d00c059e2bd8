"""Files as the vendors' toolkits write them, where their layout is publicly described."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any


def rknn_description(**changes: Any) -> dict[str, Any]:
    """The JSON at the end of a .rknn with one input and two outputs."""
    shapes = {"images": [1, 3, 640, 640], "boxes": [1, 64, 80, 80], "scores": [1, 80, 80, 80]}
    tensors = [
        {
            "dim_num": 4,
            "dtype": {"qnt_method": "layer", "qnt_type": "int8", "vx_type": "int8"},
            "size": size,
            "tensor_id": i,
            "url": name,
        }
        for i, (name, size) in enumerate(shapes.items())
    ]
    sides = ["input", "output", "output"]
    links = [{"left": side, "left_tensor_id": 0, "right": "norm_tensor", "right_tensor_id": i} for i, side in enumerate(sides)]
    description = {
        "connection": [],
        "const_tensor": [],
        "graph": links,
        "name": "rknn model",
        "network_platform": "ONNX",
        "nodes": [{"name": "nnbg", "op": "RKNN_OP_NNBG", "uid": 0}],
        "norm_tensor": tensors,
        "norm_tensor_num": len(tensors),
        "ori_network_platform": "ONNX",
        "target_platform": ["rk3588"],
        "version": "2.3.2-source_code",
        "virtual_tensor": [],
    }
    return {**description, **changes}


def rknn_file(description: dict[str, Any] | None = None, *, version: int = 6, payload: bytes = bytes(range(256)) * 8) -> bytes:
    """A .rknn: header, payload, length of the JSON, JSON."""
    text = json.dumps(rknn_description() if description is None else description).encode()
    header = b"RKNN" + bytes(4) + struct.pack("<QQ", version, len(payload))
    if version > 1:
        header = header.ljust(64, b"\0")
    return header + payload + struct.pack("<Q", len(text)) + text


def _counted(text: str) -> bytes:
    """A text with its length before and a null byte behind, in words of four bytes."""
    data = text.encode()
    padded = data + bytes(4 - len(data) % 4)
    return struct.pack("<I", len(data)) + padded


def rknn_payload(layers: Sequence[tuple[str, str]], types: dict[str, Any], attributes: dict[str, Any]) -> bytes:
    """The texts of a payload: types of inputs and outputs, attributes in Python's notation, layers with the last one first."""
    parts = [_counted(json.dumps({name: entry})) for name, entry in types.items()]
    parts += [_counted("rk3588"), _counted(repr(attributes)), bytes(range(64))]
    parts += [_counted(name) + _counted(kind) + bytes([7, 1, 200, 0] * 9) for name, kind in reversed(layers)]
    return b"".join(parts) + bytes(range(256)) * 4


def nb_tensor(
    name: str,
    dims: Sequence[int],
    data_format: int = 2,
    quantization: int = 2,
    scale: float = 0.5,
    zero_point: int = 128,
    fraction_bits: int = 0,
    slots: int = 6,
) -> bytes:
    """An entry of the table of inputs or outputs; *dims* has the fastest axis first."""
    extents = [*dims, *[0] * (slots - len(dims))]
    numbers = struct.pack(f"<I{slots}I3Iifi", len(dims), *extents, data_format, 0, quantization, fraction_bits, scale, zero_point)
    return numbers + name.encode().ljust(64, b"\0")


def nb_file(
    inputs: Sequence[bytes] | None = None,
    outputs: Sequence[bytes] | None = None,
    layers: Sequence[str] = ("conv_0", "softmax_1"),
    *,
    version: int = 0x10014,
    customer: int = 0x10000016,
) -> bytes:
    """An .nb: preamble, counts, memory pool, tables of offset and size, the tables themselves."""
    inputs = [nb_tensor("input[0]", (224, 224, 3, 1), scale=0.007843)] if inputs is None else inputs
    outputs = [nb_tensor("uid_1_out_0", (2, 1), scale=0.065554)] if outputs is None else outputs
    named = [name.encode().ljust(64, b"\0") + struct.pack("<3I", index, 1, index) for index, name in enumerate(layers)]
    header = b"VPMN" + struct.pack("<II", version, customer) + b"lenet".ljust(64, b"\0")
    header += struct.pack("<4I", len(named), len(named), len(inputs), len(outputs))
    header = header.ljust(348, b"\x55") + struct.pack("<3I", 1092608, 64, 0) + bytes(16)
    tables = [b"".join(entries) for entries in (inputs, outputs, named)]
    position = len(header) + 12 * 8
    directory = b""
    for table in tables:
        directory += struct.pack("<II", position, len(table))
        position += len(table)
    return header + directory.ljust(12 * 8, b"\0") + b"".join(tables) + bytes(range(256))


def nb_tensor_of_version_2(
    name: str,
    dims: Sequence[int],
    data_format: int = 2,
    quantization: int = 2,
    scale: float = 0.5,
    zero_point: int = 0,
    position: int = 0,
) -> bytes:
    """A record of 112 bytes; *dims* has the fastest axis first."""
    extents = [*dims, *[0] * (6 - len(dims))]
    number = struct.pack("<i", position) if quantization == 1 else struct.pack("<f", scale)
    head = struct.pack("<I6I3I", len(dims), *extents, data_format, 0, quantization) + number + struct.pack("<i", zero_point)
    return head + name.encode().ljust(64, b"\0")


def nb_file_of_version_2(tensors: Sequence[bytes], *, version: int = 0x20000, customer: int = 0x1000003B) -> bytes:
    """An .nb of the second version: preamble, bytes that mean nothing here, name, tensors, instructions."""
    head = (b"VPMN" + struct.pack("<II", version, customer)).ljust(0x328, b"\x55")
    return head + b"yolact".ljust(64, b"\0") + b"\xaa" * 76 + b"".join(tensors) + b"\xcc" * 512
