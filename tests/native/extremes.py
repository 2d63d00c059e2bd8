"""Cases at the limits: codes on their saturation, sums that just fit, zero points that no byte holds, values far beyond the range."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from npu.engines.cases_large import LARGE_BUILDERS, large_case
from npu.engines.ingredients import Array, Case, Rng, nhwc
from npu.engines.test_reference import constant_dense

from anynpu.program import Binary, Conv, ConvTranspose, Dense, Epilogue, Finish, FixedPoint, MatMul, Pool
from anynpu.tensor import Affine, DType

__all__ = ["extreme_cases"]

SEEDS = 12
FAR_ZEROS = (-40_000, -300, -129, 128, 300, 40_000)
DEPTHS = (257, 33_000, 33_100, 66_100, 70_001)
"""From about 33,000 products on 32 bits do not hold the sum any more."""


DILATIONS = (7, 900, (1 << 20) - 1, 1 << 20)
"""With the last ones, the scratch memory of a fast kernel would be terabytes."""


def extreme_cases() -> Iterator[tuple[str, Case]]:
    """Names and cases; the same every time."""
    for depth in DEPTHS:
        yield f"sum of {depth} products", constant_dense(depth, DType.INT8, 7)
    yield "sum of 4001 products of 16 bits", constant_dense(4_001, DType.INT16, -5)
    for dilation in DILATIONS:
        for groups in (1, 8):
            yield f"dilation of {dilation}, {groups} groups", _dilated(dilation, groups)
    for operator in LARGE_BUILDERS:
        for seed in range(SEEDS):
            made = large_case(operator, seed)
            rng = np.random.default_rng([seed, *b"extremes"])
            yield f"saturation {operator} {seed}", _on_rails(made, rng)
            if isinstance(made.op, Conv | ConvTranspose | Dense | MatMul | Binary | Pool) and made.op.epilogue is not None:
                yield f"far output zero {operator} {seed}", _with_epilogue(made, _far_zero(made.op.epilogue, rng))
                yield f"beyond the range {operator} {seed}", _beyond_the_range(made, rng)
            if isinstance(made.op, Conv | ConvTranspose | Dense | MatMul):
                yield f"far input zero {operator} {seed}", _far_input_zero(made, rng)


def _dilated(dilation: int, groups: int) -> Case:
    """A kernel of 3 x 3 in padding, of which one element meets the input."""
    op = Conv(
        np.arange(8 * 9 * 8 // groups).astype(np.int8).reshape(8, 3, 3, 8 // groups),
        np.zeros(1, np.int32),
        np.full(8, 5, np.int32),
        Epilogue(np.full(1, 0.01, np.float32), np.zeros(1, np.int32)),
        strides=(dilation, dilation),
        pads=(dilation,) * 4,
        dilations=(dilation, dilation),
        groups=groups,
    )
    x = nhwc("x", (1, 1, 1, 8), DType.INT8, Affine.per_tensor(0.1, 3))
    return Case(op, (np.arange(8, dtype=np.int8).reshape(1, 1, 1, 8),), (x,), (x.renamed("y"),))


def _rails(rng: Rng, array: Array) -> Array:
    limits = np.iinfo(array.dtype)
    share = rng.choice([0.0, 0.5, 1.0])
    return np.where(rng.random(array.shape) < share, limits.max, limits.min).astype(array.dtype)


def _on_rails(made: Case, rng: Rng) -> Case:
    """Inputs and weights hold nothing but the first and the last code."""
    made = replace(made, inputs=tuple(_rails(rng, array) for array in made.inputs))
    if isinstance(made.op, Conv | ConvTranspose | Dense):
        made = replace(made, op=replace(made.op, weights=_rails(rng, made.op.weights)))
    return made


def _with_epilogue(made: Case, epilogue: Finish) -> Case:
    assert isinstance(made.op, Conv | ConvTranspose | Dense | MatMul | Binary | Pool)
    return replace(made, op=replace(made.op, epilogue=epilogue))


def _far_zero(epilogue: Finish, rng: Rng) -> Finish:
    """With a zero point for which the values would have to lie elsewhere: most quantized values are on the saturation, some are not."""
    return replace(epilogue, zero_point=(epilogue.zero_point + rng.choice(FAR_ZEROS)).astype(np.int32))


def _beyond_the_range(made: Case, rng: Rng) -> Case:
    """Multipliers of either sign that leave every integer type."""
    assert isinstance(made.op, Conv | ConvTranspose | Dense | MatMul | Binary | Pool)
    assert made.op.epilogue is not None
    if isinstance(made.op.epilogue, FixedPoint):
        multiplier = np.full_like(made.op.epilogue.multiplier, rng.choice([-32767, -1, 0, 1, 32767]))
        return _with_epilogue(made, replace(made.op.epilogue, multiplier=multiplier, shift=np.zeros_like(made.op.epilogue.shift)))
    factor = np.float32(rng.choice([-1e9, -1.0, 1e9, 0.0]))
    epilogue = replace(made.op.epilogue, multiplier=made.op.epilogue.multiplier * factor)
    if isinstance(made.op, Binary):
        scaled = replace(made.op, a_multiplier=made.op.a_multiplier * factor, b_multiplier=made.op.b_multiplier * abs(factor))
        return replace(made, op=scaled)
    return _with_epilogue(made, epilogue)


def _far_input_zero(made: Case, rng: Rng) -> Case:
    spec = made.input_specs[0]
    quantization = Affine.per_tensor(0.1, int(rng.choice(FAR_ZEROS)))
    return replace(made, input_specs=(replace(spec, quantization=quantization), *made.input_specs[1:]))
