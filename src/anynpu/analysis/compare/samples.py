"""What both sides are fed with: a data set, or random values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ...compiler.quantize.dataset import Dataset, InputInfo, open_dataset
from .side import InputSpec, Sample

__all__ = ["dataset_samples", "random_samples"]


def dataset_samples(source: Path, inputs: Sequence[InputSpec], limit: int | None = None) -> Dataset:
    """The samples of a folder, a list, a .npy or .npz file, as calibration reads them; mean and std are left to each side."""
    infos = [InputInfo(entry.name, entry.shape, entry.dtype, may_be_infinite=entry.low is None) for entry in inputs]
    return open_dataset(source, infos, limit=limit)


def random_samples(inputs: Sequence[InputSpec], count: int, seed: int) -> Iterator[Sample]:
    """Random inputs over the range that each input takes: pixels where it has mean and std, the range of its codes where it is
    quantised, else normally distributed numbers; zeros and ones for whole numbers."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        sample = {}
        for entry in inputs:
            if entry.dtype.kind != "f":
                sample[entry.name] = random.integers(0, 2, entry.shape).astype(entry.dtype)
            elif entry.low is not None and entry.high is not None:
                sample[entry.name] = random.uniform(entry.low, entry.high, entry.shape).astype(np.float32)
            else:
                sample[entry.name] = random.standard_normal(entry.shape, np.float32)
        yield sample
