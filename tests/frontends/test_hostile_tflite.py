"""TFLite files that stand for more than they hold: many places that point to one."""

from __future__ import annotations

import numpy as np
import pytest
from tflite_files import Shared, Tflite

from anynpu.compiler.importers.tflite.model import MAX_TENSORS, read_tflite
from anynpu.errors import ModelFormatError


def file_with(count: int, name: str = "t", weights: int = 0) -> bytes:
    """A file with *count* tensors that are all the same one."""
    net = Tflite()
    value = np.zeros(weights, np.uint8) if weights else None
    net.tensor(name, (max(weights, 1),), "uint8", value)
    net.tensors = Shared(net.tensors[0], count)
    return net.file([0], [0])


def test_a_long_name_that_all_tensors_share_is_not_copied_for_each() -> None:
    with pytest.raises(ModelFormatError, match="stands for far more than it holds"):
        read_tflite(file_with(2000, name="n" * 100_000))


def test_weights_that_all_tensors_share_are_not_copied_for_each() -> None:
    with pytest.raises(ModelFormatError, match="stands for far more than it holds"):
        read_tflite(file_with(1000, weights=1 << 16))


def test_more_tensors_than_any_network_has_are_refused() -> None:
    with pytest.raises(ModelFormatError, match=f"more than {MAX_TENSORS} tensors"):
        read_tflite(file_with(MAX_TENSORS + 1))


def test_some_that_share_are_read() -> None:
    """Converters let tensors share what is the same."""
    model = read_tflite(file_with(300, name="weights", weights=4096))
    assert len({tensor.name for tensor in model.tensors}) == 300
    assert all(tensor.data.size == 4096 for tensor in model.tensors)
