"""Perturbed copies of samples, to judge a quantised network on more than the samples themselves.

A picture comes again with grain, out of focus, darker or brighter, or shifted by a few pixels. What a camera can do to a picture can move
a tensor beyond the range that was seen in calibration; a recipe that only just fits the samples shows it here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ..._util.types import Array
from ...program import Preprocess

__all__ = ["KINDS", "perturbed"]

Sample = Mapping[str, Array]
Change = Callable[[Array, Array, Array, np.random.Generator], Array]

_CHANNELS = (1, 3, 4)
_SMALLEST = 8
_GRAIN = 0.04
_FACTORS = (0.65, 1.35)
_SHIFT = 0.03


def _grain(picture: Array, low: Array, high: Array, random: np.random.Generator) -> Array:
    result: Array = picture + (high - low) * random.normal(0.0, _GRAIN, picture.shape).astype(np.float32)
    return result


def _blur(picture: Array, low: Array, high: Array, random: np.random.Generator) -> Array:
    for axis in (2, 3, 2, 3):
        ends = [(1, 1) if index == axis else (0, 0) for index in range(4)]
        wide = np.pad(picture, ends, mode="edge")
        size = picture.shape[axis]
        picture = np.asarray(sum(np.take(wide, range(start, start + size), axis) for start in range(3)) / 3.0)
    return picture


def _light(picture: Array, low: Array, high: Array, random: np.random.Generator) -> Array:
    result: Array = low + (picture - low) * _FACTORS[int(random.integers(len(_FACTORS)))]
    return result


def _shift(picture: Array, low: Array, high: Array, random: np.random.Generator) -> Array:
    for axis in (2, 3):
        size = picture.shape[axis]
        by = max(round(_SHIFT * size), 1) * int(random.choice((-1, 1)))
        picture = np.take(picture, np.clip(np.arange(size) + by, 0, size - 1), axis)
    return picture


KINDS: dict[str, Change] = {"light": _light, "grain": _grain, "shift": _shift, "blur": _blur}
"""What can happen to a picture, by name."""


def perturbed(sample: Sample, kind: str, preprocess: Mapping[str, Preprocess], seed: int) -> dict[str, Array] | None:
    """A copy of a normalised sample with its pictures changed; None where it has no picture. The same *seed* gives the same copy.

    >>> picture = {"x": np.full((1, 3, 8, 8), 0.5, np.float32)}
    >>> round(float(perturbed(picture, "light", {"x": Preprocess((0.0,) * 3, (255.0,) * 3)}, 0)["x"].max()), 3)
    0.675
    """
    random = np.random.default_rng(seed)
    result: dict[str, Array] = dict(sample)
    found = False
    for name, values in sample.items():
        if not _is_picture(values):
            continue
        low, high = _ends(values, preprocess.get(name))
        changed = KINDS[kind](values.astype(np.float32), low, high, random)
        result[name] = np.clip(changed, np.minimum(low, high), np.maximum(low, high)).astype(values.dtype)
        found = True
    return result if found else None


def _is_picture(values: Array) -> bool:
    if values.ndim != 4 or values.dtype.kind != "f" or values.shape[1] not in _CHANNELS or min(values.shape[2:]) < _SMALLEST:
        return False
    return bool(np.isfinite(values).all())  # else it is a mask


def _ends(values: Array, preprocess: Preprocess | None) -> tuple[Array, Array]:
    """What black and white are, by channel: the ends of a byte where the normalisation is known, else those of the sample."""
    if preprocess is not None:
        mean, std = (np.asarray(entry, np.float32).reshape(1, -1, 1, 1) for entry in (preprocess.mean, preprocess.std))
        return (0.0 - mean) / std, (255.0 - mean) / std
    return tuple(np.asarray(end, np.float32).reshape(1, 1, 1, 1) for end in (values.min(), values.max()))  # type: ignore[return-value]
