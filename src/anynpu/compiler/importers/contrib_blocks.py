"""Weights that onnxruntime packs in blocks of a few bits each, as the real numbers that they stand for."""

from __future__ import annotations

import numpy as np

from ..._util.types import Array
from .contrib_writer import RuntimeNode, Writer

__all__ = ["gather_blocks", "matmul_blocks", "matmul_tables"]

_BITS = (2, 4, 8)
_HALF_FP4 = (0.0, 0.0052083333, 2.0 / 3.0, 1.0, 1.0 / 3.0, 0.5, 1.0 / 6.0, 0.25)
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334),
    *(-0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""The sixteen numbers of a type are between -1 and 1; each block has one factor for them."""


def matmul_blocks(write: Writer, node: RuntimeNode) -> None:
    """MatMulNBits: a product with weights of a few bits, each block of which has a scale and perhaps a zero point."""
    rows, columns, bits, block = (node.whole(name, 0) for name in ("K", "N", "bits", "block_size"))
    packed, scales = write.unpacked(node.input(1)), write.unpacked(node.input(2))
    if packed is None or scales is None:
        raise node.refused("its weights are computed, or not there")
    if bits not in _BITS or block < 1 or rows < 1 or columns < 1:
        raise node.refused(f"weights of {bits} bits in blocks of {block}")
    blocks = -(-rows // block)
    codes = _unpacked(packed, bits, columns * blocks * block).reshape(columns, blocks * block)[:, :rows]
    group = write.unpacked(node.input(4)) if node.input(4) else np.arange(rows) // block
    if group is None or group.shape != (rows,) or group.min() < 0 or group.max() >= blocks:
        raise node.refused("the order of its blocks is computed, or fits nothing")
    factors = _checked(scales.astype(np.float32), columns * blocks).reshape(columns, blocks)
    zeros = _zeros(write, node, node.input(3), bits, columns, blocks)
    weights = (codes.astype(np.float32) - zeros[:, group]) * factors[:, group]
    product = write.node("MatMul", [node.input(0), write.constant(weights.T)], "" if node.input(5) else node.output(0))
    if node.input(5):
        write.node("Add", [product, node.input(5)], node.output(0))


def matmul_tables(write: Writer, node: RuntimeNode) -> None:
    """MatMulBnb4: a product with weights that are places in a table of sixteen numbers."""
    rows, columns, block, kind = (node.whole(name, 0) for name in ("K", "N", "block_size", "quant_type"))
    packed, largest = write.unpacked(node.input(1)), write.unpacked(node.input(2))
    if packed is None or largest is None:
        raise node.refused("its weights are computed, or not there")
    if kind not in (0, 1) or block < 1 or rows < 1 or columns < 1:
        raise node.refused(f"weights of kind {kind} in blocks of {block}")
    table = np.array(_NF4 if kind else (*_HALF_FP4, *(-value for value in _HALF_FP4)), np.float32)
    data = packed.reshape(-1).view(np.uint8)
    count = rows * columns
    places = _checked(np.stack([data >> 4, data & 15], axis=1).reshape(-1), count + count % 2)[:count]
    factors = _checked(largest.astype(np.float32).reshape(-1), -(-count // block))
    weights = (table[places] * np.repeat(factors, block)[:count]).reshape(columns, rows)
    write.node("MatMul", [node.input(0), write.constant(weights.T)], node.output(0))


def gather_blocks(write: Writer, node: RuntimeNode) -> None:
    """GatherBlockQuantized: rows of a table of a few bits."""
    table, scales = write.unpacked(node.input(0)), write.unpacked(node.input(2))
    bits, block, along = node.whole("bits", 4), node.whole("block_size", 128), node.whole("quantize_axis", 1)
    if table is None or scales is None or table.ndim != 2 or along % 2 != 1 or node.whole("gather_axis", 0) % 2 or block < 1:
        raise node.refused("its table is computed, or is not one of rows")
    packed = table.dtype == np.uint8 and bits in (2, 4)
    columns = table.shape[1] * (8 // bits) if packed else table.shape[1]
    codes = _unpacked(table, bits, len(table) * columns).reshape(len(table), columns) if packed else table.astype(np.int64)
    blocks = -(-columns // block)
    group = np.arange(columns) // block
    factors = _checked(scales.astype(np.float32), len(table) * blocks).reshape(len(table), blocks)
    middle = 0 if table.dtype.name.startswith("int") else 1 << (bits - 1)
    if node.input(3):
        given = write.unpacked(node.input(3))
        if given is None:
            raise node.refused("its zero points are computed")
        zeros = _unpacked(given, bits, -1).reshape(len(table), -1)[:, :blocks] if packed else given.reshape(len(table), blocks)
    else:
        zeros = np.full((len(table), blocks), middle)
    values = (codes.astype(np.float32) - zeros.astype(np.float32)[:, group]) * factors[:, group]
    write.node("Gather", [write.constant(values), node.input(1)], node.output(0), axis=0)


def _zeros(write: Writer, node: RuntimeNode, name: str, bits: int, columns: int, blocks: int) -> Array:
    if not name:
        return np.full((columns, blocks), float(1 << (bits - 1)), np.float32)
    given = write.unpacked(name)
    if given is None:
        raise node.refused("its zero points are computed")
    if given.dtype.kind == "f":
        return _checked(given.astype(np.float32), columns * blocks).reshape(columns, blocks)
    per_byte = 8 // bits
    found: Array = _unpacked(given, bits, columns * -(-blocks // per_byte) * per_byte).reshape(columns, -1)[:, :blocks]
    return found.astype(np.float32)


def _unpacked(packed: Array, bits: int, count: int) -> Array:
    """Codes of a few bits, the lowest of a byte first.

    :param count: how many there have to be; -1: as many as there are
    """
    data = packed.reshape(-1).view(np.uint8)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes: Array = ((data[:, None] >> shifts) & np.uint8((1 << bits) - 1)).reshape(-1)
    return codes if count < 0 else _checked(codes, count)


def _checked(values: Array, count: int) -> Array:
    if values.size != count:
        raise ValueError(f"{values.size} numbers where {count} belong")
    return values
