"""Annotations that the codec of model files has to understand."""

from __future__ import annotations

import types
import typing

import numpy as np
import numpy.typing as npt

from anynpu.modelfile.codec import _origin


def test_arrays_are_known_by_every_spelling() -> None:
    """numpy's NDArray is a plain alias, or (from 2.5 on, with Python 3.12) an object that has the meaning in ``__value__``."""
    alias = types.SimpleNamespace(__value__=np.ndarray[typing.Any, np.dtype[typing.Any]])
    assert _origin(types.GenericAlias(alias, (typing.Any,))) is np.ndarray  # type: ignore[arg-type]
    assert _origin(npt.NDArray[np.int8]) is np.ndarray
    assert _origin(tuple[int, ...]) is tuple
    assert _origin(int) is None
