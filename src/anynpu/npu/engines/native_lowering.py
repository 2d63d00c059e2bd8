"""From layers of a program to what C executes: descriptors, and the places of tensors in the table of pointers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._native import lib
from ..._util.types import Array
from ...tensor import TensorSpec
from .native_arrays import Keeper
from .preparation import Preparation

__all__ = ["Lowering", "NativeLayer", "codes_of", "image_shape"]


@dataclass(frozen=True)
class NativeLayer:
    """One layer for C, before a kernel is chosen; the fields are those of ``struct anynpu_layer``.

    :ivar fast: another form of the layer, which is used where there is a fast kernel for it
    :ivar weights: the weights of a convolution, as its descriptor has them
    """

    kind: int
    codes: int
    descriptor: Any
    inputs: Any
    output: int
    fast: NativeLayer | None = None
    weights: Array | None = None


class Lowering:
    """What the lowering of the layers of one program shares.

    :ivar places: the tensors that native layers use, and the place of each in the table of pointers
    """

    def __init__(self, tensors: Mapping[str, TensorSpec], preparation: Preparation | None = None) -> None:
        self.tensors = tensors
        self.keeper = Keeper(preparation)
        self.places: dict[str, int] = {}

    def layer(
        self, kind: int, codes: int, descriptor: Any, inputs: Sequence[str], output: str, *, least_inputs: int = 1
    ) -> NativeLayer:
        """A layer on tensors that are given by name; missing inputs up to *least_inputs* are marked as such."""
        places = [self._place(name) for name in inputs]
        places += [-1] * (least_inputs - len(places))
        return NativeLayer(kind, codes, descriptor, self.keeper.pointer(np.array(places, np.int32)), self._place(output))

    def _place(self, name: str) -> int:
        return self.places.setdefault(name, len(self.places))


def codes_of(types: Sequence[np.dtype[Any]]) -> int | None:
    """The kind of quantized values, where all *types* are int8 or all are int16; None for other types and for mixtures."""
    kinds = {np.dtype(np.int8): lib.ANYNPU_CODES_I8, np.dtype(np.int16): lib.ANYNPU_CODES_I16}
    return kinds.get(types[0]) if len(set(types)) == 1 else None


def image_shape(memory: tuple[int, ...]) -> tuple[int, ...] | None:
    """N, H, W, C of an image; of rank 3 it has the height 1. None for what is no image."""
    if len(memory) == 3:
        return (memory[0], 1, *memory[1:])
    return memory if len(memory) == 4 else None
