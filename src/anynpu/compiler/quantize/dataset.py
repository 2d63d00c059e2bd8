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
from pathlib import Path
from typing import Any

import numpy as np

from ..._util.types import Array
from ...errors import CalibrationError, ImageError
from ..images import IMAGE_SUFFIXES, DecodedImages, load_image
from .samples import InputInfo, Item, Sample, check_input, check_takes_images, count_samples, samples_of

__all__ = ["Dataset", "InputInfo", "Sample", "load_image", "open_dataset"]

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
