"""Arrays from untrusted ``.npy`` files."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt


def open_array(path: str | os.PathLike[str]) -> npt.NDArray[Any]:
    """The array of numbers in a ``.npy`` file, mapped: whatever shape the file claims, no memory is taken for it. Never a pickle.

    :raises ValueError: it holds something else, or is damaged
    :raises OSError: it cannot be read
    """
    try:
        with np.errstate(over="ignore"):  # numpy multiplies the sizes that the file claims
            array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (EOFError, SyntaxError, TypeError, MemoryError, OverflowError) as error:
        raise ValueError(f"it is damaged: {error}") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        if not isinstance(array, np.ndarray):
            array.close()
        raise ValueError("it does not hold an array of numbers")
    return array
