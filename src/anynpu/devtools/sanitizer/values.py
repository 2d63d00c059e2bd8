"""Whether data is what it is said to be: by how smooth it is, and by the range that the model was calibrated for.

These are judgements, not proofs. Each asks for much (large differences, enough data) before it speaks: data without structure, such as
noise or one colour, gets no finding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Described", "judge"]

Array = npt.NDArray[np.generic]
Judgement = tuple[str, str]
"""The name of a kind of finding, and what happened."""

_ENOUGH = 512
_SAMPLE = 1 << 16
_WIDE_JUMP = 192
_DISTINCT = 32
_SIDES = 8


@dataclass(frozen=True)
class Described:
    """What a program says about data.

    :ivar dtype: uint8, int8, float16, float32 and so on
    :ivar shape: in the order of the model: batch, channels, height, width
    :ivar channels_last: how it lies in memory
    :ivar codes: already quantised
    :ivar mean: and *std*, which the model applies
    :ivar low: and *high*, the values that its codes reach; None where it is not quantised
    :ivar step: between two codes
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    channels_last: bool
    codes: bool = False
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    low: float | None = None
    high: float | None = None
    step: float = 0.0


def judge(data: npt.NDArray[np.uint8], said: Described) -> Judgement | None:
    """The first thing that is wrong with *data*, the bytes of one tensor without padding."""
    if data.size < _ENOUGH:
        return _range(data, said)
    if said.dtype in ("uint8", "int8"):
        return _width(data, said) or _sign(data, said) or _layout(data, said) or _range(data, said)
    return _range(data, said)


def _lag(data: npt.NDArray[np.int16], lag: int) -> float:
    return float(np.abs(data[lag:] - data[:-lag]).mean()) if data.size > lag else 0.0


def _neighbour(said: Described) -> int:
    """How far apart neighbours of a row lie."""
    return said.shape[1] if said.channels_last and len(said.shape) == 4 else 1


def _sign(data: npt.NDArray[np.uint8], said: Described) -> Judgement | None:
    sample = data[:_SAMPLE]
    unsigned, signed = sample.astype(np.int16), sample.view(np.int8).astype(np.int16)
    lag = _neighbour(said)
    as_said, otherwise = (unsigned, signed) if said.dtype == "uint8" else (signed, unsigned)
    rough, smooth = _lag(as_said, lag), _lag(otherwise, lag)
    jumps = float((np.abs(as_said[lag:] - as_said[:-lag]) > _WIDE_JUMP).mean())
    # a page of black and white is smooth either way round only where it has two levels; codes of a picture are spread
    if rough > 16 and rough > 2 * smooth and jumps > 0.01 and float(otherwise.std()) >= 20:
        other = "int8" if said.dtype == "uint8" else "uint8"
        return "wrong-signedness", (
            f"'{said.name}' is given as {said.dtype}; neighbours differ by {rough:.0f} on average, read as {other} by {smooth:.0f}"
        )
    return None


def _width(data: npt.NDArray[np.uint8], said: Described) -> Judgement | None:
    sample = data[: min(data.size, 8192) // 4 * 4]
    even, odd = (np.unique(sample[start::2]).size for start in (0, 1))
    if odd > 40 or even < 64 or even < 3 * odd:
        return None
    with np.errstate(all="ignore"):
        numbers = np.abs(sample.view(np.float16).astype(np.float32))
    plausible = np.isfinite(numbers) & (((numbers > 1e-4) & (numbers < 1e4)) | (numbers == 0))
    if float(plausible.mean()) < 0.95:
        return None
    return "wrong-element-size", (
        f"'{said.name}' is given as {said.dtype}; every second byte has {odd} values and the others {even}, as float16 numbers have"
    )


def _layout(data: npt.NDArray[np.uint8], said: Described) -> Judgement | None:
    if len(said.shape) != 4 or said.shape[1] not in (3, 4) or min(said.shape[2:]) < _SIDES:
        return None
    _, channels, height, width = said.shape
    sample = data[: channels * height * width].astype(np.int16)
    planar, packed = _lag(sample, width), _lag(sample, channels * width)
    right, wrong = (packed, planar) if said.channels_last else (planar, packed)
    if right > 4 and right > 2 * wrong:
        was, other = ("NHWC", "NCHW") if said.channels_last else ("NCHW", "NHWC")
        return "wrong-layout", (
            f"'{said.name}' is given as {was}; rows differ by {right:.0f} on average, read as {other} by {wrong:.0f}"
        )
    return None


def _range(data: npt.NDArray[np.uint8], said: Described) -> Judgement | None:
    if said.codes or said.low is None or said.high is None or said.dtype not in ("uint8", "float16", "float32"):
        return None
    kind = np.dtype(said.dtype)
    values = data[: data.size // kind.itemsize * kind.itemsize].view(kind)[:_SAMPLE].astype(np.float32)
    if values.size < _DISTINCT or np.unique(values).size < _DISTINCT:
        return None
    if not np.isfinite(values).all():
        return "values-out-of-range", f"'{said.name}' has values that are infinite or not numbers"
    mean, std = _average(said.mean, 0.0), _average(said.std, 1.0)
    values = (values - mean) / std
    outside = float(((values < said.low - said.step) | (values > said.high + said.step)).mean())
    spread = float(np.percentile(values, 99) - np.percentile(values, 1))
    span = (
        f"after mean and std it goes from {values.min():.4g} to {values.max():.4g}, "
        f"the model was calibrated for {said.low:.4g} to {said.high:.4g}"
    )
    if outside > 0.95:
        return "values-out-of-range", f"{outside:.0%} of '{said.name}' saturate: {span}"
    if spread < 2.5 * said.step:
        return "values-out-of-range", f"'{said.name}' collapses into {max(1, round(spread / said.step))} codes of 256: {span}"
    return None


def _average(numbers: tuple[float, ...], default: float) -> float:
    return sum(numbers) / len(numbers) if numbers else default
