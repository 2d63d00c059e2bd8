"""What random cases are made of: quantizations, quantized values, tables, and epilogues that center the output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from anynpu.program import Conv, ConvTranspose, Dense, Epilogue, Op
from anynpu.tensor import Affine, DType, DynamicFixedPoint, Layout, Quantization, TensorSpec

from . import oracle

Array = npt.NDArray[Any]
Rng = np.random.Generator


@dataclass(frozen=True, eq=False)
class Case:
    """An operator with its inputs."""

    op: Op
    inputs: tuple[Array, ...]
    input_specs: tuple[TensorSpec, ...]
    output_specs: tuple[TensorSpec, ...]


BUILDERS: dict[str, Callable[[Rng, DType], Case]] = {}


def builder(name: str) -> Callable[[Callable[[Rng, DType], Case]], Callable[[Rng, DType], Case]]:
    def register(build: Callable[[Rng, DType], Case]) -> Callable[[Rng, DType], Case]:
        BUILDERS[name] = build
        return build

    return register


def partition(rng: Rng, total: int) -> tuple[int, ...]:
    """*total* channels as two or more groups where possible."""
    cuts = sorted(rng.choice(np.arange(1, total), size=min(total - 1, int(rng.integers(1, 4))), replace=False).tolist())
    return tuple(int(size) for size in np.diff([0, *cuts, total]))


def quantization(rng: Rng, dtype: DType, channels: int, *, grouped: bool = False, middle: bool = False) -> Quantization:
    """Any scale and zero point; with *middle* the zero point is not far from the middle of the range."""
    low, high = dtype.limits
    sizes = partition(rng, channels) if grouped and channels > 1 else ()
    if not sizes and dtype is DType.INT16 and rng.random() < 0.3:
        return DynamicFixedPoint(int(rng.integers(4, 12)))
    count = len(sizes) or 1
    zeros = rng.integers(low // 4, high // 4, count)
    if not middle:
        zeros = np.array([rng.choice([low, high, rng.integers(low, high + 1), zero]) for zero in zeros])
    return Affine(tuple(float(np.float32(s)) for s in rng.uniform(0.01, 0.1, count)), tuple(zeros.tolist()), sizes)


def codes(rng: Rng, shape: Sequence[int], dtype: DType, *, spread: float = 1.0) -> Array:
    """Quantized values over the whole range, or a bell of a part of it."""
    low, high = dtype.limits
    if spread == 1.0:
        values: Array = rng.integers(low, high + 1, shape)
    else:
        values = np.clip(np.rint(rng.normal(0, spread * high, shape)), low, high)
    return values.astype(dtype.storage)


def random_table(rng: Rng, dtype: DType, rows: int = 1) -> Array:
    low, high = dtype.limits
    return rng.integers(low + 1, high, (rows, 1 << dtype.bits)).astype(dtype.storage)


def nhwc(name: str, memory: Sequence[int], dtype: DType, quantization: Quantization | None = None) -> TensorSpec:
    """A tensor whose memory has that shape, channels last."""
    n, *spatial, c = memory
    return TensorSpec(name, (n, c, *spatial), dtype, Layout.NHWC, quantization)


def plain(name: str, shape: Sequence[int], dtype: DType, quantization: Quantization | None = None) -> TensorSpec:
    return TensorSpec(name, tuple(shape), dtype, Layout.PLAIN, quantization)


def chance(rng: Rng, probability: float) -> bool:
    return bool(rng.random() < probability)


def centred_epilogue(rng: Rng, dtype: DType, scaled: Array, *, table: bool = True) -> tuple[Epilogue, Array]:
    """An epilogue for float64 values *scaled* [pixels, channels], and the gain per channel that its multipliers must have."""
    low, high = dtype.limits
    channels = scaled.shape[1]
    slope = None
    if chance(rng, 0.3) and np.all(np.mean(scaled < 0, axis=0) > 0.2):
        slope = rng.uniform(0.1, 0.9, channels if chance(rng, 0.5) else 1).astype(np.float32)
        scaled = np.where(scaled < 0, scaled * slope, scaled)
    if chance(rng, 0.3):
        scaled = scaled.reshape(-1, 1)  # one multiplier for all channels
    smallest, largest = np.minimum(scaled.min(axis=0), 0.0), np.maximum(scaled.max(axis=0), 0.0)
    gain = 0.85 * (high - low) / np.maximum(largest - smallest, 1e-9)
    if chance(rng, 0.25):
        gain = 2.0 ** np.floor(np.log2(gain))  # makes ties
    room = (high - low) - gain * (largest - smallest)
    zero = np.rint(low + room * rng.uniform(0.35, 0.65) - gain * smallest).astype(np.int32)
    clamp = None
    if chance(rng, 0.3):
        spread = np.broadcast_to(gain * scaled + zero, scaled.shape)
        clamp = np.rint([np.quantile(spread, 0.1, axis=0), np.quantile(spread, 0.95, axis=0)]).astype(np.int32)
    rows: Array | None = None
    groups: tuple[int, ...] = ()
    if table and chance(rng, 0.3):
        groups = partition(rng, channels) if channels > 1 and chance(rng, 0.5) else ()
        rows = random_table(rng, dtype, len(groups) or 1)
    return Epilogue(np.zeros(0, np.float32), zero, clamp, slope, None, rows, groups), gain


def as_rows(op: Op, inputs: Sequence[Array], specs: Sequence[TensorSpec], shape: Sequence[int]) -> Array:
    """The accumulators as float64 [pixels, channels]."""
    found = oracle.sums(op, inputs, specs, shape)
    channels = next(reversed(found))[-1] + 1
    return np.array(list(found.values()), np.float64).reshape(-1, channels)


def with_centred_products(rng: Rng, made: Case, dtype: DType, shape: Sequence[int]) -> Case:
    """A product operator with bias, multipliers, zero point and all the rest of an epilogue."""
    op = made.op
    assert isinstance(op, Conv | ConvTranspose | Dense)
    accumulators = as_rows(op, made.inputs, made.input_specs, shape)
    scaled = accumulators
    has_residual = len(made.inputs) > 1
    weight = 0.0
    if has_residual:
        residual, spec = made.inputs[1], made.input_specs[1]
        zeros = [oracle.zero_of(spec, channel) for channel in range(residual.shape[-1])]
        difference = (residual.astype(np.float64) - zeros).reshape(accumulators.shape)
        weight = float(rng.uniform(0.5, 1.5) * accumulators.std() / difference.std())
        scaled = accumulators + difference * weight
    shift = -np.rint(scaled.mean(axis=0) + scaled.std() * rng.uniform(-0.3, 0.3, scaled.shape[1]))
    bias = shift.astype(np.int64 if dtype is DType.INT16 else np.int32)
    epilogue, gain = centred_epilogue(rng, dtype, scaled + bias)
    epilogue = replace(
        epilogue,
        multiplier=gain.astype(np.float32),
        residual_multiplier=(gain * weight).astype(np.float32) if has_residual else None,
    )
    return replace(made, op=replace(op, bias=bias, epilogue=epilogue))


NO_EPILOGUE = Epilogue(np.ones(1, np.float32), np.zeros(1, np.int32))


def weights(rng: Rng, shape: Sequence[int], dtype: DType) -> tuple[Array, Array]:
    low, high = dtype.limits
    zero: Array = rng.integers(low, high + 1, shape[0])
    if dtype is DType.INT16 and chance(rng, 0.7):
        zero = np.zeros(shape[0])
    elif chance(rng, 0.15):
        zero = zero[:1]
    return codes(rng, shape, dtype), zero.astype(np.int32)
