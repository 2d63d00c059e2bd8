"""The arithmetic of the re-fit: weights by least squares, rounded one column after the other so that each makes up for those before it.

Arrays lie with the positions of a layer's output along their last axis: reading a tensor, its mean and the products of matrices then all go
through memory in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ..arithmetic import WeightScales, quantize_weights
from ..types import Array, Floats
from .windows import Window

__all__ = ["at_positions", "columns_of", "fit_dense", "fit_depthwise"]

Positions = npt.NDArray[np.int64]
Fitted = tuple[Array, Array, Array, Floats]
"""Codes, scales, zero points and bias."""

_RIDGES = (0.05, 0.25, 1.0, 4.0)
"""How strongly weights may be held where they are, in relation to the mean energy of an input."""

_FITTED, _JUDGING = 2, 3
"""Two thirds of the positions try how strongly, and the others, which are those of other samples, judge."""

_TELLING = 48
"""Outputs that tell how strongly weights are held."""

_BLOCK = 64
_ROUNDS = 2
_TINY = 1e-12


def at_positions(values: Array, positions: Positions) -> Array:
    """A tensor [N, C, H, W] at some positions of N, H and W: [C, positions]."""
    batch, channels = values.shape[:2]
    if batch == 1:
        result: Array = values.reshape(channels, -1).take(positions, axis=1)
        return result
    planes = values.reshape(batch, channels, -1)
    image, place = np.divmod(positions, planes.shape[2])
    gathered: Array = planes[image, :, place].T
    return gathered


def columns_of(window: Window, extent: tuple[int, int], values: Sequence[Array], positions: Sequence[Positions]) -> Array:
    """What a convolution sees at some positions of its output of height and width *extent*, over all samples: [Cin, kernel, positions]."""
    ends = np.cumsum([len(taken) for taken in positions])
    result = np.empty((values[0].shape[1], window.kernel[0] * window.kernel[1], int(ends[-1])), np.float32)
    for end, sample, taken in zip(ends, values, positions, strict=True):  # several threads would mostly wait for each other
        _fill_columns(result[:, :, end - len(taken) : end], window, extent, sample, taken)
    return result


def _fill_columns(part: Array, window: Window, extent: tuple[int, int], values: Array, positions: Positions) -> None:
    high, wide = values.shape[2:]
    image, rest = np.divmod(positions, extent[0] * extent[1])
    row, column = np.divmod(rest, extent[1])
    rows = [
        _inside(row * window.strides[0] + tap * window.dilations[0] - window.pads[0], high) for tap in range(window.kernel[0])
    ]
    columns = [
        _inside(column * window.strides[1] + tap * window.dilations[1] - window.pads[1], wide) for tap in range(window.kernel[1])
    ]
    starts = [(image * high + place) * wide for place, _ in rows]
    for index in range(part.shape[1]):
        down, across = divmod(index, window.kernel[1])
        part[:, index] = at_positions(values, starts[down] + columns[across][0])
        for _, beyond in (rows[down], columns[across]):  # a padded copy of the tensor would take longer than the few positions
            if len(beyond):
                part[:, index, beyond] = 0.0


def _inside(places: Positions, extent: int) -> tuple[Positions, Positions]:
    """Places within an axis, and the numbers of those that are in its padding."""
    beyond = np.flatnonzero((places < 0) | (places >= extent))
    return (np.clip(places, 0, extent - 1) if len(beyond) else places), beyond


def fit_dense(columns: Array, wanted: Array, weights: Floats, smallest: Floats, sharing: WeightScales) -> Fitted:
    """Weights [Cout, Cin * kernel] of a convolution that shall give *wanted*, [Cout, positions].

    :param columns: [Cin, kernel, positions]
    :param smallest: least scale by output channel
    """
    # one position after the other, in this order of the products: another one rounds otherwise, which changes codes of later layers
    flat = np.ascontiguousarray(columns.reshape(-1, columns.shape[-1]).T)
    rows = np.ascontiguousarray(wanted.T).astype(np.float64)
    mean, target_mean = flat.mean(axis=0, dtype=np.float64), rows.mean(axis=0)
    flat -= mean.astype(np.float32)
    start = weights.reshape(len(weights), -1)
    missing = (rows - target_mean).astype(np.float32) - flat @ start.T.astype(np.float32)
    parts = [(flat[part].T @ flat[part], flat[part].T @ missing[part]) for part in _parts(len(flat))]
    energy, step = _held([(one[None], other[None]) for one, other in parts], len(flat), missing.var(axis=0)[None])
    energy, better = energy[0], start + step[0].T
    codes, scales, zeros = quantize_weights(better, smallest_scale=smallest, scales=sharing)
    size, zero = scales.astype(np.float64), zeros.astype(np.float64)
    chosen = (codes - zero[:, None]) * size[:, None]
    chosen = _round_columns(better, chosen, energy, size, zero)
    offset = target_mean - chosen @ mean
    return np.rint(chosen / size[:, None] + zero[:, None]).astype(np.int8), scales, zeros, offset


def _parts(count: int) -> tuple[slice, slice]:
    """The positions that weights are tried on, and those that judge."""
    cut = _FITTED * count // _JUDGING
    return slice(0, cut), slice(cut, count)


def _held(parts: Sequence[tuple[Array, Array]], count: int, variance: Array) -> tuple[Floats, Floats]:
    """The energy of the inputs with what holds weights where they are, and the best change of the weights; for a number of layers at once.

    How strongly weights are held is what does best on positions of other samples: where inputs have lost much, weights have to move far;
    where they have lost little, moving fits them to the samples.

    :param parts: products of the inputs [layers, inputs, inputs] and of inputs and what is missing [layers, inputs, outputs], of both parts
    :param count: positions of both together
    :param variance: of what is missing, [layers, outputs]
    """
    (tried, aim), (other, its) = (tuple(product.astype(np.float64) / count for product in part) for part in parts)
    inputs = np.arange(tried.shape[1])

    def held(energy: Array, ridge: float) -> Array:
        result: Array = energy.copy()
        result[:, inputs, inputs] += (ridge * np.trace(energy, axis1=1, axis2=2) / len(inputs) + _TINY)[:, None]
        return result

    # float32 is enough to tell them apart: what holds the weights keeps the condition below 20 for each input; and so are some outputs
    some = np.arange(0, aim.shape[2], -(-aim.shape[2] // _TELLING))
    share = 1.0 / (variance[:, some] + _TINY)
    narrow: list[Array] = [array.astype(np.float32) for array in (tried, aim[:, :, some], other, 2.0 * its[:, :, some], share)]

    def loss(ridge: float) -> float:
        step = np.linalg.solve(held(narrow[0], ridge), narrow[1])
        lost = ((narrow[2] @ step - narrow[3]) * step).sum(axis=1)
        return float((lost * narrow[4]).sum(dtype=np.float64))

    energy, best = tried + other, _least(loss)
    stiff = held(energy, best)
    step: Floats = np.linalg.solve(stiff, aim + its).astype(np.float64)
    return stiff, step


def _least(loss: Callable[[float], float]) -> float:
    """The ridge with the least loss, found by going downhill from the middle: each loss is one solution, and has one valley."""
    middle = (len(_RIDGES) - 1) // 2
    best, least = _RIDGES[middle], loss(_RIDGES[middle])
    for side in (_RIDGES[middle + 1 :], _RIDGES[:middle][::-1]):
        for ridge in side:
            lost = loss(ridge)
            if lost >= least:
                break
            best, least = ridge, lost
        if best != _RIDGES[middle]:
            break
    return best


def _round_columns(better: Floats, start: Floats, energy: Floats, size: Floats, zero: Floats) -> Floats:
    """*start* with each column moved to the codes that make up best for what the other columns lose.

    Columns are taken in blocks: inside a block each sees at once what the one before it did, the others are told once a block. Here a
    column lies in memory as a row.
    """
    gradient = np.ascontiguousarray(((better - start) @ energy).T)
    chosen = np.ascontiguousarray(start.T)
    diagonal = np.diag(energy)
    lowest, highest = (-128.0 - zero) * size, (127.0 - zero) * size
    for _ in range(_ROUNDS):
        changed = False
        for first in range(0, len(energy), _BLOCK):
            block = slice(first, min(first + _BLOCK, len(energy)))
            local = gradient[block].copy()
            differences = np.zeros_like(local)
            for index in range(len(local)):
                column = first + index
                ideal = local[index] / diagonal[column]
                ideal += chosen[column]
                ideal /= size
                np.rint(ideal, out=ideal)
                ideal *= size
                np.maximum(ideal, lowest, out=ideal)  # np.clip takes three times as long for a few values
                np.minimum(ideal, highest, out=ideal)
                difference = chosen[column] - ideal
                if difference.any():
                    local[index + 1 :] += energy[column, first + index + 1 : block.stop, None] * difference
                    differences[index] = difference
                    chosen[column] = ideal
                    changed = True
            gradient += energy[:, block] @ differences
        if not changed:
            break
    result: Floats = chosen.T
    return result


def fit_depthwise(columns: Array, wanted: Array, weights: Floats, smallest: Floats, sharing: WeightScales) -> Fitted:
    """As :func:`fit_dense` for a depthwise convolution, each channel by itself. Changes *columns*."""
    count = columns.shape[-1]
    mean, target_mean = columns.mean(axis=2, dtype=np.float64), wanted.mean(axis=1, dtype=np.float64)
    columns -= mean.astype(np.float32)[:, :, None]
    start = weights.reshape(len(weights), -1)
    taps = start.shape[1]
    predicted = (start.astype(np.float32)[:, None, :] @ columns)[:, 0]
    missing = (wanted - target_mean[:, None]).astype(np.float32) - predicted
    seen = [(columns[:, :, part], missing[:, part, None]) for part in _parts(count)]
    parts = [(one @ one.transpose(0, 2, 1), one @ other) for one, other in seen]
    energy, step = _held(parts, count, missing.var(axis=1)[:, None])
    better = start + step[:, :, 0]
    codes, scales, zeros = quantize_weights(better, smallest_scale=smallest, scales=sharing)
    size, zero = scales.astype(np.float64), zeros.astype(np.float64)
    chosen = (codes - zero[:, None]) * size[:, None]
    for _ in range(_ROUNDS):
        for index in range(taps):
            gradient = ((better - chosen) * energy[:, index]).sum(axis=1)
            ideal = chosen[:, index] + gradient / energy[:, index, index]
            chosen[:, index] = (np.clip(np.rint(ideal / size) + zero, -128, 127) - zero) * size
    offset = target_mean - (chosen * mean).sum(axis=1)
    return np.rint(chosen / size[:, None] + zero[:, None]).astype(np.int8), scales, zeros, offset
