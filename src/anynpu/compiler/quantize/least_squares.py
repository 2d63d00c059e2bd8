"""The arithmetic of the re-fit: weights by least squares, rounded one column after the other so that each makes up for those before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._native import ffi, lib
from ..._util.types import Array, Floats
from ...program.arithmetic import WeightScales, quantize_weights
from ..lower.windows import Window
from .threads import in_order, thread_count

__all__ = ["at_positions", "channel_columns_of", "columns_of", "fit_dense", "fit_depthwise"]

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
_STRIPE = 4 * _BLOCK
_LARGE = 2 * _BLOCK
_ROUNDS = 2
_WORTH_THREADS = 1 << 19
"""Numbers that are moved, or products, from which on a second thread pays."""

_CACHED = 1 << 19
"""Numbers of a depthwise convolution that are worked on together."""

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
    """What a convolution sees at some positions of its output of height and width *extent*, over all samples: [positions, Cin, kernel]."""
    return _columns(window, extent, values, positions, by_channel=False)


def channel_columns_of(window: Window, extent: tuple[int, int], values: Sequence[Array], positions: Sequence[Positions]) -> Array:
    """As :func:`columns_of`, in the order of a depthwise convolution: [Cin, kernel, positions]."""
    return _columns(window, extent, values, positions, by_channel=True)


def _columns(
    window: Window, extent: tuple[int, int], values: Sequence[Array], positions: Sequence[Positions], *, by_channel: bool
) -> Array:
    _, channels, high, wide = values[0].shape
    taps = window.kernel[0] * window.kernel[1]
    ends = np.cumsum([len(taken) for taken in positions])
    count = int(ends[-1])
    result = np.empty((channels, taps, count) if by_channel else (count, channels, taps), np.float32)
    shape = ffi.new(
        "struct anynpu_window *",
        (channels, high, wide, *extent, window.kernel, window.strides, window.dilations, window.pads[:2]),
    )

    def fill(part: tuple[int, Array, Positions]) -> None:
        end, sample, taken = part
        source = np.ascontiguousarray(sample, np.float32)
        places = np.ascontiguousarray(taken, np.int64)
        given = (shape, _pointer("float", source), _pointer("int64_t", places), len(places))
        start = end - len(places)
        if by_channel:
            scratch = np.empty((len(places) + 1) * taps, np.int64)
            target = _pointer("float", result) + start
            lib.anynpu_channel_columns_f32(*given, _pointer("int64_t", scratch), count, target)
        else:
            scratch = np.empty(taps, np.int64)
            lib.anynpu_columns_f32(*given, _pointer("int64_t", scratch), _pointer("float", result) + start * channels * taps)

    threads = 1 if by_channel else _threads_for(result.size)
    for _ in in_order(fill, zip(ends.tolist(), values, positions, strict=True), threads):
        pass
    return result


def _pointer(kind: str, array: Array) -> Any:
    return ffi.cast(f"{kind} *", array.ctypes.data)


def _doubles(array: Floats) -> Any:
    return _pointer("double", array)


def _threads_for(work: int) -> int:
    """Threads for a piece of work: one where it is done sooner than others would have started."""
    return thread_count() if work > _WORTH_THREADS else 1


def fit_dense(columns: Array, wanted: Array, weights: Floats, smallest: Floats, sharing: WeightScales) -> Fitted:
    """Weights [Cout, Cin * kernel] of a convolution that shall give *wanted*, [Cout, positions].

    :param columns: [positions, Cin, kernel]; they are changed
    :param smallest: least scale by output channel
    """
    # one position after the other, in this order of the products: another one rounds otherwise, which changes codes of later layers
    flat = columns.reshape(len(columns), -1)
    rows = np.ascontiguousarray(wanted.T).astype(np.float64)
    mean, target_mean = flat.mean(axis=0, dtype=np.float64), rows.mean(axis=0)
    flat -= mean.astype(np.float32)
    start = weights.reshape(len(weights), -1)
    missing = (rows - target_mean).astype(np.float32) - flat @ start.T.astype(np.float32)
    seen = [(flat[part], missing[part]) for part in _parts(len(flat))]
    parts = in_order(lambda pair: ((pair[0].T @ pair[0])[None], (pair[0].T @ pair[1])[None]), seen, _threads_for(flat.size))
    energy, step = _held(list(parts), len(flat), missing.var(axis=0)[None])
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
        step = _solved(held(narrow[0], ridge), narrow[1])
        lost = ((narrow[2] @ step - narrow[3]) * step).sum(axis=1)
        return float((lost * narrow[4]).sum(dtype=np.float64))

    energy, best = tried + other, _least(loss, _threads_for(tried.size * len(inputs)))
    stiff = held(energy, best)
    return stiff, _solved(stiff, aim + its)


def _solved(matrices: Array, right: Array) -> Array:
    """The solutions of positive definite systems [layers, inputs, inputs], in their own precision: numpy's are in float64 throughout.

    A large one is eliminated block by block, of which only what lies right of the diagonal is looked at: most of it are products, which
    take less time than numpy's way.
    """
    size = matrices.shape[1]
    if len(matrices) > 1 or size < _LARGE:
        result: Array = np.linalg.solve(matrices, right)
        return result
    rest = np.concatenate([matrices[0], right[0]], axis=1)
    kept: list[tuple[slice, Array]] = []
    for start in range(0, size, _BLOCK):
        end = min(start + _BLOCK, size)
        row = rest[start:end, end:]
        part = np.linalg.inv(rest[start:end, start:end]) @ row
        for first in range(end, size, _STRIPE):
            last = min(first + _STRIPE, size)
            rest[first:last, first:] -= row[:, first - end : last - end].T @ part[:, first - end :]
        kept.append((slice(start, end), part))
    solution = np.empty_like(right)
    for block, part in reversed(kept):
        behind = size - block.stop
        solution[0, block] = part[:, behind:] - part[:, :behind] @ solution[0, block.stop :]
    return solution


def _least(loss: Callable[[float], float], threads: int = 1) -> float:
    """The ridge with the least loss, found by going downhill from the middle: each loss is one solution, and has one valley."""
    middle = (len(_RIDGES) - 1) // 2
    first = _RIDGES[middle : middle + 2]  # needed whichever way is down
    known = dict(zip(first, in_order(loss, first, min(threads, len(first))), strict=True))
    best, least = _RIDGES[middle], known[_RIDGES[middle]]
    for side in (_RIDGES[middle + 1 :], _RIDGES[:middle][::-1]):
        for ridge in side:
            lost = known[ridge] if ridge in known else loss(ridge)
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
    energy, size = np.ascontiguousarray(energy, np.float64), np.ascontiguousarray(size, np.float64)
    gradient = np.ascontiguousarray(((better - start) @ energy).T)
    chosen = np.array(start.T, np.float64, order="C")
    lowest, highest = (-128.0 - zero) * size, (127.0 - zero) * size
    for _ in range(_ROUNDS):
        changed = False
        for first in range(0, len(energy), _BLOCK):
            block = slice(first, min(first + _BLOCK, len(energy)))
            local = gradient[block].copy()
            differences = np.empty_like(local)
            changed |= bool(
                lib.anynpu_round_columns_f64(
                    len(local),
                    len(size),
                    _doubles(energy) + first * (len(energy) + 1),
                    len(energy),
                    _doubles(size),
                    _doubles(lowest),
                    _doubles(highest),
                    _doubles(local),
                    _doubles(chosen) + first * len(size),
                    _doubles(differences),
                )
            )
            gradient += energy[:, block] @ differences
        if not changed:
            break
    result: Floats = chosen.T
    return result


def fit_depthwise(
    columns: Callable[[slice], Array], wanted: Array, weights: Floats, smallest: Floats, sharing: WeightScales
) -> Fitted:
    """As :func:`fit_dense` for a depthwise convolution, each channel by itself.

    :param columns: what gives the columns of some channels, [channels, kernel, positions]; they are changed
    """
    count = wanted.shape[1]
    start = weights.reshape(len(weights), -1)
    taps = start.shape[1]
    target_mean = wanted.mean(axis=1, dtype=np.float64)

    def sums(channels: slice) -> tuple[Array, ...]:
        """Means, what is missing, and the products of both parts; of few channels at a time, so that they stay in the cache."""
        seen = columns(channels)
        mean = seen.mean(axis=2, dtype=np.float64)
        seen -= mean.astype(np.float32)[:, :, None]
        predicted = (start[channels].astype(np.float32)[:, None, :] @ seen)[:, 0]
        missing = (wanted[channels] - target_mean[channels, None]).astype(np.float32) - predicted
        found = [mean, missing.var(axis=1)[:, None]]
        for part in _parts(count):
            one = seen[:, :, part]
            found += [one @ one.transpose(0, 2, 1), one @ missing[:, part, None]]
        return tuple(found)

    together = max(_CACHED // (taps * max(count, 1)), 1)
    pieces = [slice(first, min(first + together, len(start))) for first in range(0, len(start), together)]
    found = list(in_order(sums, pieces, _threads_for(len(start) * taps * count)))
    mean, variance, *products = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    energy, step = _held([(products[0], products[1]), (products[2], products[3])], count, variance)
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
