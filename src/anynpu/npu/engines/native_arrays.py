"""Numbers of a program as C sees them: arrays per channel, epilogues, packed memory. Everything here lives as long as its keeper."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..._native import ffi, lib
from ..._util.types import Array
from ...errors import DeviceMemoryError
from ...program import Curve, Epilogue, Finish, FixedPoint, Staircase, limits_of
from ...tensor import round_up
from .preparation import Preparation

__all__ = ["Keeper", "aligned_bytes"]


ALIGNMENT = 64

_CELLS = 4096
"""Of a threshold table: several for each of its edges, so that a number is found at once."""

_C_TYPES = {
    np.dtype(np.int8): "int8_t[]",
    np.dtype(np.int16): "int16_t[]",
    np.dtype(np.int32): "int32_t[]",
    np.dtype(np.int64): "int64_t[]",
    np.dtype(np.float32): "float[]",
    np.dtype(np.uintp): "size_t[]",
}


def aligned_bytes(size: int) -> npt.NDArray[np.uint8]:
    """*size* bytes of memory at an address that is a multiple of 64.

    :raises DeviceMemoryError: the system does not have them
    """
    try:
        memory = np.empty(size + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError) as error:  # ValueError: more than an address can count
        raise DeviceMemoryError(
            f"{size} bytes of working memory are not available",
            hint="compile a smaller model, or close contexts that are not used",
        ) from error
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + size]


class Keeper:
    """Makes descriptors and arrays for C and keeps them alive.

    :param preparation: what counts the memory of the arrays
    """

    def __init__(self, preparation: Preparation | None = None) -> None:
        self.preparation = preparation or Preparation()
        self._alive: list[Any] = []

    def struct(self, name: str) -> Any:
        """A new descriptor, all zero."""
        made = ffi.new(f"struct {name} *")
        self._alive.append(made)
        return made

    def keep(self, thing: Any) -> Any:
        self._alive.append(thing)
        return thing

    def memory(self, size: int) -> Any:
        """New memory of *size* bytes for C, at a multiple of 64."""
        self.preparation.take(size)
        return ffi.from_buffer(self.keep(aligned_bytes(size)))

    def pointer(self, values: Array) -> Any:
        """The elements of an array, in place where they lie side by side."""
        held = np.ascontiguousarray(values)
        if held.flags.owndata:  # a view of stored weights takes nothing
            self.preparation.take(held.nbytes)
        self._alive.append(held)
        return ffi.from_buffer(_C_TYPES[held.dtype], held)

    def by_channel(self, values: Array, channels: int, dtype: npt.DTypeLike) -> Any:
        """One entry for each channel (a single one serves all), filled up with zeros to whole vectors."""
        padded = np.zeros(round_up(channels, lib.ANYNPU_CHANNEL_PADDING), dtype)
        padded[:channels] = values
        return self.pointer(padded)

    def fill_table(self, target: Any, table: Array, groups: tuple[int, ...], channels: int) -> None:
        """Write a table and the row of each channel (NULL where there is one) into the descriptor *target*; equal rows become one."""
        if groups:
            numbers: dict[bytes, int] = {}
            row_of = [numbers.setdefault(row.tobytes(), len(numbers)) for row in table]
            table = table[[row_of.index(number) for number in range(len(numbers))]]
            if len(table) > 1:
                target.row = self.by_channel(np.repeat(row_of, groups), channels, np.int32)
        target.table = self.pointer(table)

    def fill_epilogue(
        self, target: Any, epilogue: Finish, channels: int, dtype: np.dtype[Any], residual_zero: Array | None = None
    ) -> None:
        """Write an epilogue into the descriptor *target*; without a *residual_zero* it has no residual."""
        low, high = map(np.array, limits_of(dtype))
        if isinstance(epilogue, Epilogue):
            if epilogue.clamp is not None:
                low, high = epilogue.clamp
            if epilogue.multiplier.size:
                target.multiplier = self.by_channel(epilogue.multiplier, channels, np.float32)
            if epilogue.slope is not None:
                target.slope = self.by_channel(epilogue.slope, channels, np.float32)
            if residual_zero is not None and epilogue.residual_multiplier is not None:
                target.residual_multiplier = self.by_channel(epilogue.residual_multiplier, channels, np.float32)
        else:
            target.fixed = self._fixed_point(epilogue, channels)
        target.zero_point = self.by_channel(epilogue.zero_point, channels, np.int32)
        target.low = self.by_channel(low, channels, np.int32)
        target.high = self.by_channel(high, channels, np.int32)
        if residual_zero is not None and epilogue.residual_multiplier is not None:
            target.residual_zero = self.by_channel(residual_zero, channels, np.int32)
        if epilogue.table is not None:
            self.fill_table(target, epilogue.table, epilogue.table_groups, channels)
        if isinstance(epilogue, Epilogue) and epilogue.staircases:
            target.staircases = self._staircases(epilogue.staircases)
            if epilogue.staircase_groups:
                numbers = np.repeat(np.arange(len(epilogue.staircases)), epilogue.staircase_groups)
                target.staircase = self.by_channel(numbers, channels, np.int32)

    def _staircases(self, staircases: tuple[Staircase, ...]) -> Any:
        made = self.keep(ffi.new("struct anynpu_staircase[]", len(staircases)))
        for target, staircase in zip(made, staircases, strict=True):
            edges = staircase.edges
            width = max(float(edges[-1]) - float(edges[0]), float(np.finfo(np.float32).tiny)) / _CELLS
            # what is surely not above a number of a cell is what is not above all of the cell before it
            ends = float(edges[0]) + (np.arange(_CELLS) - 1) * width
            target.edges, target.codes = self.pointer(edges), self.pointer(staircase.codes)
            starts = np.searchsorted(edges.astype(np.float64), ends, side="right").astype(np.int32)
            starts[0] = 0
            target.starts = self.pointer(starts)
            target.count, target.cells = edges.size, _CELLS
            target.cells_per_unit = min(1.0 / width, float(np.finfo(np.float32).max))
        return made

    def _fixed_point(self, stage: FixedPoint, channels: int) -> Any:
        made = self.struct("anynpu_fixed_point")
        for name, values in (("channel", stage.channel_multiplier), ("multiplier", stage.multiplier), ("shift", stage.shift)):
            if values.size:
                setattr(made, name, self.by_channel(values, channels, np.int32))
        if stage.bounds is not None:
            made.low, made.high = (self.by_channel(bound, channels, np.int32) for bound in stage.bounds)
        if stage.slope is not None:
            made.slope = self.by_channel(stage.slope, channels, np.int32)
        made.residual_multiplier = stage.residual_multiplier or 0
        made.residual_shift = stage.residual_shift
        if stage.curves:
            made.curves = self._curves(stage.curves)
            if stage.curve_groups:
                made.curve = self.by_channel(np.repeat(np.arange(len(stage.curves)), stage.curve_groups), channels, np.int32)
        return made

    def _curves(self, curves: tuple[Curve, ...]) -> Any:
        made = self.keep(ffi.new("struct anynpu_curve[]", len(curves)))
        for target, curve in zip(made, curves, strict=True):
            target.offset, target.multiplier, target.shift = curve.offset, curve.multiplier, curve.shift
            target.slope, target.slope_shift = curve.slope, curve.slope_shift
            target.negative, target.positive = self.pointer(curve.negative), self.pointer(curve.positive)
        return made
