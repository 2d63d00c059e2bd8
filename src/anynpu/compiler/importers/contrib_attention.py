"""Attention as onnxruntime writes it in one node, as the products and the softmax that it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..._util.optional import onnx
from .contrib_writer import RuntimeNode, Writer

__all__ = ["attention", "multi_head_attention", "quantized_attention"]

_FAR = -10000.0
"""What is added to the score of a key that does not count, unless the node says otherwise."""


def attention(write: Writer, node: RuntimeNode) -> None:
    """Attention: queries, keys and values from one product with constant weights."""
    _refuse(write, node, 4)
    projected = _projected(write, node.input(0), node.input(1), node.input(2))
    parts = write.split(projected, _sizes(write, node, node.input(1)), -1)
    causal = node.whole("unidirectional", 0) == 1
    _attended(write, node, parts, mask=node.input(3), bias=node.input(5), causal=causal, source=node.input(0))


def quantized_attention(write: Writer, node: RuntimeNode) -> None:
    """QAttention: the same on codes, whose scales are inputs."""
    _refuse(write, node, 8)
    source = write.node("DequantizeLinear", [node.input(0), node.input(3), *_zero(node, 6)])
    axis: dict[str, Any] = {"axis": 1} if write.opset >= 13 else {}  # before, there is one scale for all
    weights = write.node("DequantizeLinear", [node.input(1), node.input(4), *_zero(node, 7)], **axis)
    projected = _projected(write, source, weights, node.input(2))
    parts = write.split(projected, _sizes(write, node, node.input(1)), -1)
    causal = node.whole("unidirectional", 0) == 1
    _attended(write, node, parts, mask=node.input(5), bias="", causal=causal, source=node.input(0))


def multi_head_attention(write: Writer, node: RuntimeNode) -> None:
    """MultiHeadAttention: queries, keys and values are there already, of three axes each."""
    if not all(node.input(index) and write.rank(node.input(index)) == 3 for index in range(3)):
        raise node.refused("queries, keys and values are packed, or split into heads")
    _refuse(write, node, 6, 7)
    parts = [node.input(index) for index in range(3)]
    if node.input(3):
        total = write.value(node.input(3))
        if total is None or total.size % 3:
            raise node.refused("its bias is computed")
        parts = [
            write.node("Add", [part, write.constant(piece)]) for part, piece in zip(parts, total.reshape(3, -1), strict=True)
        ]
    causal = node.whole("unidirectional", 0) == 1
    _attended(write, node, parts, mask=node.input(4), bias=node.input(5), causal=causal, source=node.input(0))


def _zero(node: RuntimeNode, index: int) -> list[str]:
    return [node.input(index)] if node.input(index) else []


def _refuse(write: Writer, node: RuntimeNode, *past: int) -> None:
    """Refuse what has no plain form; *past* are the places of keys and values of earlier runs."""
    write.only_outputs(node, 0)
    if any(node.input(index) for index in past):
        raise node.refused("it continues from keys and values of earlier runs")
    if node.whole("do_rotary", 0):
        raise node.refused("it turns queries and keys")


def _projected(write: Writer, source: str, weights: str, bias: str) -> str:
    product = write.node("MatMul", [source, weights])
    return write.node("Add", [product, bias]) if bias else product


def _sizes(write: Writer, node: RuntimeNode, weights: str) -> list[int]:
    """The widths of queries, keys and values."""
    given = [int(size) for size in node.numbers("qkv_hidden_sizes")]
    if given:
        return given
    shape = write.shape(weights)
    if shape is None or len(shape) != 2 or shape[1] % 3:
        raise node.refused("its weights are computed")
    return [shape[1] // 3] * 3


def _attended(write: Writer, node: RuntimeNode, parts: Sequence[str], *, mask: str, bias: str, causal: bool, source: str) -> None:
    """Scores, softmax and the sum of values, for each head.

    :param source: a tensor whose second axis counts the queries
    """
    heads = node.whole("num_heads", 0)
    if heads < 1:
        raise node.refused("it does not say how many heads it has")
    by_head = write.whole([0, 0, heads, -1])
    queries, keys, values = (write.node("Reshape", [part, by_head]) for part in parts)
    queries = write.node("Transpose", [queries], perm=[0, 2, 1, 3])
    turned = write.node("Transpose", [keys], perm=[0, 2, 3, 1])
    values = write.node("Transpose", [values], perm=[0, 2, 1, 3])
    scores = write.node("MatMul", [queries, turned])
    scale = node.number("scale", 0.0)
    if scale:
        scores = write.node("Mul", [scores, write.number(scale)])
    else:
        width = write.node("Cast", [write.length(queries, 3)], to=onnx().TensorProto.FLOAT)
        scores = write.node("Div", [scores, write.node("Sqrt", [width])])
    if bias:
        scores = write.node("Add", [scores, bias])
    if mask:
        far = node.number("mask_filter_value", _FAR)
        key = mask, far
        if key not in write.masks:  # all layers of a network have the same
            counts = _counting(write, node, mask, parts[1])
            write.masks[key] = write.node("Where", [counts, write.number(0.0), write.number(far)])
        scores = write.node("Add", [scores, write.masks[key]])
    if causal:
        places = write.counted(write.length(source, 1))
        later = write.node("Less", [write.unsqueezed(places, [1]), write.unsqueezed(places, [0])])
        scores = write.node("Add", [scores, write.node("Where", [later, write.number(_FAR), write.number(0.0)])])
    shares = write.node("Softmax", [scores], axis=-1) if write.opset >= 13 else write.node("Softmax", [scores], axis=3)
    mixed = write.node("Transpose", [write.node("MatMul", [shares, values])], perm=[0, 2, 1, 3])
    write.node("Reshape", [mixed, write.whole([0, 0, -1])], node.output(0))


def _counting(write: Writer, node: RuntimeNode, mask: str, keys: str) -> str:
    """Which keys count, as truth values that fit the scores: [batch, 1, 1 or queries, keys]."""
    rank = 1 if mask in write.lengths else write.rank(mask)
    if rank == 1:  # how many of the first keys count
        places = write.unsqueezed(write.counted(write.length(keys, 1)), [0])
        lengths = write.node("Cast", [mask], to=onnx().TensorProto.INT64)
        counts = write.node("Less", [places, write.unsqueezed(lengths, [1])])
        return write.unsqueezed(counts, [1, 2])
    if rank not in (None, 2, 3):
        raise node.refused(f"its mask has {rank} axes")
    counts = write.node("Cast", [mask], to=onnx().TensorProto.BOOL)
    return write.unsqueezed(counts, [1] if rank == 3 else [1, 2])
