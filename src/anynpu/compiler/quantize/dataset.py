"""Calibration data: samples from folders, files, arrays and Python iterables, ready for the float model.

A sample is what a program would feed to the compiled model: raw pixels, or values in the range the preprocessing expects. The channel
order and (x - mean) / std of each input are applied here, so that the float model sees what the NPU will compute with.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..._util.array_files import open_array
from ..._util.types import Array
from ...errors import CalibrationError, ImageError
from ...program import Preprocess
from ..images import IMAGE_SUFFIXES, DecodedImages

# One calibration sample: from an array of whatever layout, or a file, to what the float model takes.


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
    """Reject a preprocessing that does not fit the input."""
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
    """Reject a file that is no image by its name, and an input that is none by its shape."""
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
    return f"resize the image to {height} x {width} (height x width), as [H, W, C] or [C, H, W]"


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
    """How many samples the *items* are, up to *limit*; rejects shapes that do not fit, without reading the data."""
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
        # NaN compares unequal to itself and so is rejected here too
        whole = values.dtype.kind != "f" or bool((values == np.rint(values)).all())
        if not whole or (values.size and not (limits.min <= values.min() and values.max() <= limits.max)):
            raise CalibrationError(
                f"{label} holds values that {dtype.name} cannot hold",
                tensor=info.name,
                hint=f"the input takes integers from {limits.min} to {limits.max}",
            )
    return np.ascontiguousarray(values).astype(dtype)


def _normalise(values: Array, info: InputInfo, preprocess: Preprocess) -> Array:
    along = [1] * values.ndim
    if len(preprocess.mean) > 1:
        along[_channel_axis(info, len(preprocess.mean))] = -1
    values -= np.asarray(preprocess.mean, values.dtype).reshape(along)
    values /= np.asarray(preprocess.std, values.dtype).reshape(along)
    return values


MAX_ARCHIVE = 4 << 30
"""Bytes of the arrays in a .npz file."""


_FORMS = "a folder of images, a dataset file (one sample a line), an image, .npy, .npz, an array, or an iterable of samples"


class Dataset:
    """Samples that can be gone through more than once, with the same result each time.

    Each sample is a dict of arrays by input name. ``length`` is None where it is known only after a pass.

    :ivar length: number of samples, where it is known
    :ivar description: the source in a few words
    """

    def __init__(
        self, items: Iterable[Item], inputs: Sequence[InputInfo], *, what: str, limit: int | None, length: int | None
    ) -> None:
        self._items = items
        self._inputs = tuple(inputs)
        self._what = what
        self._limit = limit
        self._images = DecodedImages()
        self.length = length

    @property
    def description(self) -> str:
        if self.length is not None:
            return f"{self._what} ({self.length} sample{'' if self.length == 1 else 's'})"
        return self._what if self._limit is None else f"{self._what} (at most {self._limit} samples)"

    def first_images(self, count: int) -> list[Array]:
        """The first images of a dataset of one input, in their own size; those that cannot be read are left to the pass over it.

        Samples that a function makes are not images: it would be called once more.
        """
        channels = self._inputs[0].shape[1] if len(self._inputs) == 1 and len(self._inputs[0].shape) == 4 else 0
        if channels not in (1, 3) or isinstance(self._items, _Repeated):
            return []
        found = []
        for item in itertools.islice(self._items, count if self._limit is None else min(count, self._limit)):
            (value,) = item.values.values()
            if isinstance(value, Path) and value.suffix.lower() in IMAGE_SUFFIXES:
                with contextlib.suppress(ImageError):
                    found.append(self._images.whole(value, channels))
        return found

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError(f"the number of samples of {self._what} is not known before a pass over it")
        return self.length

    def __iter__(self) -> Iterator[Sample]:
        served = 0
        for item in self._items:
            for sample in samples_of(item, self._inputs, self._images):
                yield sample
                served += 1
                if served == self._limit:
                    return
        if not served:
            raise CalibrationError(
                f"{self._what} gave no samples", hint="calibration needs at least one sample; 10 to 20 are a good number"
            )

    def __repr__(self) -> str:
        return f"<Dataset {self.description}>"


def open_dataset(source: Any, inputs: Sequence[InputInfo], *, limit: int | None = None) -> Dataset:
    """The calibration data in *source* for a model with these *inputs*; *limit* is the largest number of samples to use.

    The source is one of

    * a folder of images, taken in the order of their names (a folder without images: its .npy files);
    * a dataset file: text, one sample a line, images or .npy files, several inputs separated by spaces;
    * an image, a .npy file (one sample, or a batch), or a .npz file (such arrays by input name);
    * an array, or a dict of arrays by input name, as in .npy and .npz;
    * an iterable of samples: each a dict by input name, a tuple or list by position, an array or the path of a file;
    * a function without arguments that returns such an iterable; it is called for each pass.

    What can be read only once (a generator) is kept in memory as it is read, up to the limit.

    >>> from anynpu.program import Preprocess
    >>> image = InputInfo("x", (1, 3, 2, 2), np.dtype("float32"), Preprocess((0.0,), (255.0,)))
    >>> dataset = open_dataset(np.full((5, 2, 2, 3), 255, np.uint8), [image])
    >>> len(dataset), next(iter(dataset))["x"].shape, float(next(iter(dataset))["x"].max())
    (5, (1, 3, 2, 2), 1.0)

    :raises CalibrationError: nothing there, or it does not fit; the message names the file or the sample
    """
    if limit is not None and limit < 1:
        raise CalibrationError(f"the limit of calibration samples is {limit}", hint="use at least 1, or None for all")
    if not inputs:
        raise CalibrationError("the model has no inputs to calibrate", hint="check the model's graph inputs")
    for info in inputs:
        check_input(info)
    if isinstance(source, (str, os.PathLike)):
        what, items = _from_path(Path(source), inputs)
    elif isinstance(source, np.ndarray):
        what, items = f"array {list(source.shape)}", [_item(source, inputs, "the array")]
    elif isinstance(source, Mapping):
        what, items = "arrays by name", [_item(source, inputs, "the arrays")]
    elif isinstance(source, (list, tuple)):
        what, items = "list of samples", [_item(sample, inputs, f"sample {index}") for index, sample in enumerate(source)]
        if not items:
            raise CalibrationError(
                "the list of calibration samples is empty", hint="pass at least one sample; 10 to 20 are a good number"
            )
    elif isinstance(source, Iterable) and not isinstance(source, (bytes, bytearray, memoryview)):
        replay = _Replay(source, inputs)
        if next(iter(replay), None) is None:
            raise CalibrationError(
                f"{replay.what} gave no samples", hint="was it read to its end before? Pass a fresh one, or a list"
            )
        return Dataset(replay, inputs, what=replay.what, limit=limit, length=None)
    elif callable(source):
        repeated = _Repeated(source, inputs)
        return Dataset(repeated, inputs, what=repeated.what, limit=limit, length=None)
    else:
        raise CalibrationError(f"a {type(source).__name__} is no calibration data", hint=f"pass {_FORMS}")
    return Dataset(items, inputs, what=what, limit=limit, length=count_samples(items, inputs, limit))


def _from_path(path: Path, inputs: Sequence[InputInfo]) -> tuple[str, list[Item]]:
    if path.is_dir():
        return _from_folder(path, inputs)
    if not path.is_file():
        raise CalibrationError(f"there is no calibration data at '{path}'", hint=f"check the path; it can be {_FORMS}")
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return f"file {path}", [_item(_load_npz(path), inputs, f"'{path}'")]
    if suffix == ".npy" or suffix in IMAGE_SUFFIXES:
        return f"file {path}", [_item(path, inputs, f"'{path}'")]
    return _from_text(path, inputs)


def _from_folder(folder: Path, inputs: Sequence[InputInfo]) -> tuple[str, list[Item]]:
    files = sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    chosen = [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES]
    kind = "images"
    if not chosen:
        chosen = [file for file in files if file.suffix.lower() == ".npy"]
        kind = "arrays"
    if not chosen:
        found = f"its {len(files)} files are others" if files else "it is empty"
        raise CalibrationError(
            f"no images in the folder '{folder}': {found}; looked for {' '.join(sorted(IMAGE_SUFFIXES))} and .npy, not in folders below it",
            hint="name the folder that holds the images themselves",
        )
    return f"folder {folder} of {kind}", [_item(file, inputs, f"'{file}'") for file in chosen]


def _from_text(path: Path, inputs: Sequence[InputInfo]) -> tuple[str, list[Item]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise CalibrationError(
            f"'{path}' is not text, and not an image, .npy or .npz by its name", hint=f"pass {_FORMS}"
        ) from None
    except OSError as error:
        raise CalibrationError(f"cannot read '{path}': {error.strerror}", hint="check its permissions") from None
    items = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        label = f"'{path}' line {number}"
        # A name with spaces is no problem where the line is one file.
        names = [line] if len(inputs) == 1 else line.split()
        files = [_find(name, path.parent, label) for name in names]
        items.append(_item(files, inputs, f"{label} ({line})"))
    if not items:
        raise CalibrationError(
            f"the dataset file '{path}' names no samples", hint="write one sample a line: the path of an image or a .npy file"
        )
    return f"dataset file {path}", items


def _find(name: str, folder: Path, label: str) -> Path:
    for candidate in (folder / name, Path(name)):
        if candidate.is_file():
            return candidate
    raise CalibrationError(
        f"{label}: there is no file '{name}' in '{folder}' or in the current folder",
        hint="paths are relative to the dataset file; a line holds one path for each input of the model",
    )


class _Replay:
    """An iterable that is read once; what was read is kept for the next pass."""

    def __init__(self, source: Iterable[Any], inputs: Sequence[InputInfo]) -> None:
        self.what = f"iterable {type(source).__name__}"
        self._inputs = inputs
        self._iterator = iter(source)
        self._kept: list[Item] = []

    def __iter__(self) -> Iterator[Item]:
        index = 0
        while True:
            if index == len(self._kept):
                try:
                    sample = next(self._iterator)
                except StopIteration:
                    return
                item = _item(sample, self._inputs, f"sample {index}")
                # Copied, as a generator may fill the same array again and again.
                values = {name: value if isinstance(value, Path) else value.copy() for name, value in item.values.items()}
                self._kept.append(Item(item.label, values))
            yield self._kept[index]
            index += 1


class _Repeated:
    """A function that is called for each pass."""

    def __init__(self, function: Callable[[], Iterable[Any]], inputs: Sequence[InputInfo]) -> None:
        self.what = f"function {getattr(function, '__name__', type(function).__name__)}"
        self._function = function
        self._inputs = inputs

    def __iter__(self) -> Iterator[Item]:
        samples = self._function()
        if not isinstance(samples, Iterable) or isinstance(samples, (str, bytes)):
            raise CalibrationError(
                f"{self.what} returned a {type(samples).__name__}, not an iterable of samples",
                hint="return a list, or write it as a generator",
            )
        return (_item(sample, self._inputs, f"sample {index}") for index, sample in enumerate(samples))


def _item(sample: Any, inputs: Sequence[InputInfo], label: str) -> Item:
    """A sample of any form, by input name."""
    names = [info.name for info in inputs]
    if isinstance(sample, Mapping):
        if len(sample) == len(names) == 1:
            given = {names[0]: next(iter(sample.values()))}
        else:
            missing = [name for name in names if name not in sample]
            if missing:
                raise CalibrationError(
                    f"{label} has no array for input {', '.join(map(repr, missing))}; it has {', '.join(map(repr, sample)) or 'none'}",
                    hint=f"the inputs of the model are {', '.join(map(repr, names))}",
                )
            given = {name: sample[name] for name in names}
    else:
        values = sample if isinstance(sample, (list, tuple)) else [sample]
        if len(values) != len(names):
            raise CalibrationError(
                f"{label} has {len(values)} value{'' if len(values) == 1 else 's'} for {len(names)} input{'' if len(names) == 1 else 's'}",
                hint=f"give one for each of {', '.join(map(repr, names))}: a dict or tuple, a line of a dataset file, or an .npz"
                if len(names) > 1
                else "wrap a list of numbers in numpy.array",
            )
        given = dict(zip(names, values, strict=True))
    return Item(label, {info.name: _value(given[info.name], info, label) for info in inputs})


def _value(value: Any, info: InputInfo, label: str) -> Array | Path:
    """A path of a file that exists, or an array of numbers."""
    if isinstance(value, (str, os.PathLike)):
        path = Path(value)
        if not path.is_file():
            raise CalibrationError(f"{label}: there is no file '{path}'", tensor=info.name, hint="check the path")
        if path.suffix.lower() != ".npy":
            check_takes_images(info, path)
        return path
    array = np.asarray(value)
    if array.dtype.kind not in "buif":
        raise CalibrationError(
            f"{label} is {_describe_type(value)}, not an array of numbers",
            tensor=info.name,
            hint="pass numpy arrays of integers or floats",
        )
    return array


def _describe_type(value: Any) -> str:
    return f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"


def _bound_archive(path: Path, archive: zipfile.ZipFile) -> None:
    """A small file can hold much when it is unpacked."""
    size = sum(entry.file_size for entry in archive.infolist())
    if size > MAX_ARCHIVE:
        raise CalibrationError(
            f"'{path}' holds {size} bytes when it is unpacked; at most {MAX_ARCHIVE} are read", hint="write samples as .npy files"
        )


def _load_npz(path: Path) -> dict[str, Array]:
    try:
        # Opened here, as numpy.load leaves a damaged file open.
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.ndarray):
                _bound_archive(path, archive.zip)
            arrays = None if isinstance(archive, np.ndarray) else {name: archive[name] for name in archive.files}
    # RuntimeError: an archive with a password, or packed in a way that Python does not know
    except (OSError, ValueError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise CalibrationError(f"cannot read '{path}': {error}", hint="write it with numpy.savez, arrays by input name") from None
    if arrays is None:
        raise CalibrationError(f"'{path}' holds a single array, as .npy files do", hint="rename it to .npy")
    return arrays
