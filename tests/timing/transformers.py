"""Small transformers for the timing model: one block, written as exporters write it."""

from __future__ import annotations

import numpy as np

from .nets import Chain


def dense(chain: Chain, columns: int) -> str:
    depth = chain.shape[-1]
    chain.op("MatMul", chain.constant(np.zeros((depth, columns), np.float32)))
    chain.shape = [*chain.shape[:-1], columns]
    return chain.last


def written_norm(chain: Chain) -> str:
    """A LayerNormalization as seven operators."""
    before = chain.last
    mean = chain.op("ReduceMean", axes=[-1])
    chain.last = before
    centred = chain.op("Sub", mean)
    chain.op("Pow", chain.constant(np.float32(2)))
    chain.op("ReduceMean", axes=[-1])
    chain.op("Add", chain.constant(np.float32(1e-5)))
    deviation = chain.op("Sqrt")
    chain.last = centred
    return chain.op("Div", deviation)


def attention(chain: Chain, tokens: int, heads: int, depth: int, *, mask: bool = False) -> str:
    """Queries, keys and values from the last tensor, and the attention between them."""
    source = chain.last
    width = heads * depth
    turned = []
    for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        chain.last = source
        chain.shape = [1, tokens, width]
        dense(chain, width)
        chain.op("Reshape", chain.constant(np.array([1, tokens, heads, depth])))
        turned.append(chain.op("Transpose", perm=perm))
    query, key, value = turned
    chain.last = query
    chain.op("MatMul", key)
    chain.op("Mul", chain.constant(np.float32(depth**-0.5)))
    if mask:
        chain.op("Add", chain.constant(np.zeros((1, 1, tokens, tokens), np.float32)))
    chain.op("Softmax", axis=-1)
    chain.op("MatMul", value)
    chain.op("Transpose", perm=[0, 2, 1, 3])
    chain.op("Reshape", chain.constant(np.array([1, tokens, width])))
    chain.shape = [1, tokens, width]
    return chain.last


def block(tokens: int = 20, heads: int = 4, depth: int = 16, *, mask: bool = False) -> Chain:
    """One block: norm, attention, residual, norm, two dense layers with GELU, residual."""
    width = heads * depth
    chain = Chain(1, tokens, width)
    written_norm(chain)
    attention(chain, tokens, heads, depth, mask=mask)
    chain.op("Relu")  # so that the projection is not taken for a part of the attention
    dense(chain, width)
    first = chain.op("Add", "x")
    written_norm(chain)
    chain.shape = [1, tokens, width]
    dense(chain, 4 * width)
    hidden = chain.last
    chain.op("Div", chain.constant(np.float32(2**0.5)))
    chain.op("Erf")
    chain.op("Add", chain.constant(np.float32(1)))
    chain.op("Mul", hidden)
    chain.op("Mul", chain.constant(np.float32(0.5)))
    dense(chain, width)
    chain.op("Add", first)
    return chain
