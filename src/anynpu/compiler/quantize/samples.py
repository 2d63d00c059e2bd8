"""One calibration sample: from an array of whatever layout, or a file, to what the float model takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..._util.array_files import open_array
from ..._util.types import Array
from ...errors import CalibrationError, ImageError
from ...program import Preprocess
from ..images import IMAGE_SUFFIXES, DecodedImages

__all__ = ["InputInfo", "Item", "Sample", "check_input", "check_takes_images", "count_samples", "samples_of"]

Sample = dict[str, Array]
"""One set of inputs by name, in the shapes and types of the model."""


@dataclass(frozen=True)
class InputInfo:
    """An input of the model, and what happens to raw data before it.

    :ivar shape: fixed, in the order of the ONNX model, the batch first
    :ivar preprocess: (x - mean) / std, in the order of the channels as the model takes them
    :ivar may_be_infinite: as a mask that is added; NaN is always a mistake
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    preprocess: Preprocess | None = None
    may_be_infinite: bool = False


@dataclass(frozen=True)
class Item:
    """What one file, line or element of the source holds: arrays, or paths of files, by input name. It can be several samples."""

    label: str
    values: Mapping[str, Array | Path]


def check_input(info: InputInfo) -> None:
    """Refuse a preprocessing that does not fit the input."""
    if info.preprocess is None:
        return
    mean, std = info.preprocess.mean, info.preprocess.std
    if np.dtype(info.dtype).kind != "f":
        raise CalibrationError(
            f"mean and std need a float input, but this one is {np.dtype(info.dtype).name}",
            tensor=info.name,
            hint="leave them out for this input: the model takes its raw values",
        )
    if len(mean) != len(std) or not mean:
        raise CalibrationError(
            f"{len(mean)} mean values and {len(std)} std values",
            tensor=info.name,
            hint="give one of each for every channel, or one for all",
        )
    if not all(value and np.isfinite(value) for value in std) or not all(np.isfinite(value) for value in mean):
        raise CalibrationError(
            f"mean {list(mean)} and std {list(std)} must be finite, and std not zero",
            tensor=info.name,
            hint="std 1 leaves the values as they are",
        )
    _channel_axis(info, len(mean))


def _channel_axis(info: InputInfo, values: int) -> int:
    """The axis that *values* mean values run along."""
    for axis in (1, len(info.shape) - 1):
        if values == 1 or (0 < axis < len(info.shape) and info.shape[axis] == values):
            return axis
    raise CalibrationError(
        f"{values} mean values for an input of shape {list(info.shape)}",
        tensor=info.name,
        hint="give one for every channel, or one for all",
    )


def check_takes_images(info: InputInfo, path: Path) -> None:
    """Refuse a file that is no image by its name, and an input that is none by its shape."""
    if path.suffix.lower() not in IMAGE_SUFFIXES:
        raise CalibrationError(
            f"'{path}' is neither an image nor .npy by its name",
            tensor=info.name,
            hint=f"images end in {' '.join(sorted(IMAGE_SUFFIXES))}",
        )
    if len(info.shape) != 4 or info.shape[1] not in (1, 3, 4):
        raise CalibrationError(
            f"'{path}' is an image, but input '{info.name}' takes {list(info.shape)}",
            tensor=info.name,
            hint="images fit inputs [N, C, H, W] with 1, 3 or 4 channels; give this input as .npy",
        )


def _load_npy(path: Path) -> Array:
    try:
        return open_array(path)
    except (OSError, ValueError) as error:
        raise CalibrationError(
            f"cannot read '{path}': {error}", hint="write it with numpy.save, as an array of numbers"
        ) from None


@dataclass(frozen=True)
class _Arrangement:
    """How an array lies: its rows are single elements of the model's batch, each in the order ``inner``."""

    rows: int
    inner: tuple[int, ...]


def _arrange(shape: tuple[int, ...], info: InputInfo, label: str) -> _Arrangement:
    """How an array of *shape* holds one sample or several of an input."""
    batch, item = info.shape[:1], info.shape[1:]
    orders = [item]
    if len(item) == 3:
        channels, height, width = item
        orders.append((height, width, channels))
        if channels == 1:
            orders.append((height, width))
    for inner in orders:
        if shape == inner:
            return _Arrangement(1, inner)
        if shape[1:] in (inner, batch + inner) and shape:
            if not shape[0]:
                raise CalibrationError(
                    f"{label} is empty: its shape is {list(shape)}", tensor=info.name, hint="pass at least one sample"
                )
            return _Arrangement(shape[0] * (batch[0] if batch and shape[1:] == batch + inner else 1), inner)
    raise CalibrationError(
        f"{label}: input '{info.name}' takes {list(info.shape)}, got {list(shape)}",
        tensor=info.name,
        hint=_shape_hint(shape, info.shape),
    )


def _shape_hint(shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    if len(wanted) != 4 or not 2 <= len(shape) <= 5:
        return "one sample has the input's shape, with or without its first axis; several are stacked along a new first axis"
    _, channels, height, width = wanted
    image = shape[-3:]
    if image in ((channels, width, height), (width, height, channels)) and height != width:
        return f"height and width are exchanged: the input is {height} high and {width} wide"
    last = image[-1] in (1, 3, 4) and image[0] not in (1, 3, 4)
    got_channels = (image[-1] if last else image[0]) if len(image) == 3 else 1
    if got_channels != channels:
        return f"the array has {got_channels} channels, the input {channels}"
    return f"resize the picture to {height} x {width} (height x width), as [H, W, C] or [C, H, W]"


def _value_shape(value: Array | Path) -> tuple[int, ...] | None:
    """The shape of a value, None for an image (which is scaled to fit)."""
    if isinstance(value, Path):
        return _load_npy(value).shape if value.suffix.lower() == ".npy" else None
    return value.shape


def _samples_of_shape(shape: tuple[int, ...] | None, info: InputInfo, label: str) -> int:
    if shape is None:
        return 1
    batch = info.shape[0] if info.shape else 1
    return -(-_arrange(shape, info, label).rows // batch)


def _count(counts: Mapping[str, int], label: str) -> int:
    """The number of samples of an item whose inputs have *counts*; an input with one is repeated."""
    several = {name: count for name, count in counts.items() if count > 1}
    if len(set(several.values())) > 1:
        listed = ", ".join(f"{name!r} {count}" for name, count in several.items())
        raise CalibrationError(
            f"{label}: the inputs have different numbers of samples: {listed}", hint="stack as many for each input"
        )
    return max(counts.values())


def count_samples(items: Iterable[Item], inputs: Sequence[InputInfo], limit: int | None) -> int:
    """How many samples the *items* are, up to *limit*; refuses shapes that do not fit, without reading the data."""
    total = 0
    for item in items:
        counts = {info.name: _samples_of_shape(_value_shape(item.values[info.name]), info, item.label) for info in inputs}
        total += _count(counts, item.label)
        if limit is not None and total >= limit:
            return limit
    return total


def samples_of(item: Item, inputs: Sequence[InputInfo], images: DecodedImages) -> Iterator[Sample]:
    """The samples of an item, as the float model takes them."""
    arrays = {info.name: _load(item.values[info.name], info, item.label, images) for info in inputs}
    counts = {info.name: _samples_of_shape(arrays[info.name].shape, info, item.label) for info in inputs}
    total = _count(counts, item.label)
    for index in range(total):
        label = item.label if total == 1 else f"{item.label}, sample {index}"
        yield {info.name: _prepare(arrays[info.name], index if counts[info.name] > 1 else 0, info, label) for info in inputs}


def _load(value: Array | Path, info: InputInfo, label: str, images: DecodedImages) -> Array:
    if not isinstance(value, Path):
        return value
    if value.suffix.lower() == ".npy":
        return _load_npy(value)
    _, channels, height, width = info.shape
    try:
        image: Array = images.scaled(value, height, width, channels)
    except ImageError as error:
        where = "" if label == f"'{value}'" else f"{label}: "
        raise CalibrationError(f"{where}{error.message}", tensor=info.name, hint=error.hint) from error
    takes_bgr = info.preprocess is not None and info.preprocess.picture == "bgr"
    return image[..., ::-1] if takes_bgr else image


def _prepare(array: Array, index: int, info: InputInfo, label: str) -> Array:
    """Sample *index* of an array, as the float model takes it."""
    arrangement = _arrange(array.shape, info, label)
    batch = info.shape[0] if info.shape else 1
    rows = array.reshape(arrangement.rows, *arrangement.inner)[index * batch : (index + 1) * batch]
    if arrangement.inner != info.shape[1:] and len(arrangement.inner) == 3:
        rows = rows.transpose(0, 3, 1, 2)
    if len(rows) < batch:
        rows = rows[np.arange(batch) % len(rows)]
    return _cast(rows.reshape(info.shape), info, label)


def _cast(values: Array, info: InputInfo, label: str) -> Array:
    dtype = np.dtype(info.dtype)
    if dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            floats = values.astype(np.promote_types(np.float32, dtype), order="C")
            if info.preprocess is not None:
                floats = _normalise(floats, info, info.preprocess)
            floats = floats.astype(dtype, copy=False)
        strange = ~np.isfinite(floats)
        if strange.any() and not (info.may_be_infinite and np.isinf(values[strange]).all()):
            raise CalibrationError(
                f"{label} holds NaN, infinity or values beyond {dtype.name}",
                tensor=info.name,
                hint="remove the sample or repair it",
            )
        return floats
    if dtype.kind in "ui":
        limits = np.iinfo(dtype)
        # NaN compares unequal to itself and so is refused here too
        whole = values.dtype.kind != "f" or bool((values == np.rint(values)).all())
        if not whole or (values.size and not (limits.min <= values.min() and values.max() <= limits.max)):
            raise CalibrationError(
                f"{label} holds values that {dtype.name} cannot hold",
                tensor=info.name,
                hint=f"the input takes whole numbers from {limits.min} to {limits.max}",
            )
    return np.ascontiguousarray(values).astype(dtype)


def _normalise(values: Array, info: InputInfo, preprocess: Preprocess) -> Array:
    along = [1] * values.ndim
    if len(preprocess.mean) > 1:
        along[_channel_axis(info, len(preprocess.mean))] = -1
    values -= np.asarray(preprocess.mean, values.dtype).reshape(along)
    values /= np.asarray(preprocess.std, values.dtype).reshape(along)
    return values
