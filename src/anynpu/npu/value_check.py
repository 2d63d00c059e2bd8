"""The check of values: NaN in inputs, NaN and infinity in outputs.

One rule holds for every interface: float values that a call takes or returns are checked in every run, and each input and output is
reported once. What reports is a session, a context, a network of the VIPLite API, or the handle that a C program has. Integers need no
check. Memory that a program binds is checked where a C program runs on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .._native import ffi, lib
from .._util.types import Array
from ..tensor import DType, TensorSpec

__all__ = ["FLOAT_KINDS", "NAN", "ValueCheck", "from_buffer", "worst_float"]

FLOAT_KINDS = {np.dtype(np.float32).num: lib.ANYNPU_F32, np.dtype(np.float16).num: lib.ANYNPU_F16}
"""The kernel's number of each float type, by the number of the numpy type."""
_TYPES = {DType.FLOAT32: lib.ANYNPU_F32, DType.FLOAT16: lib.ANYNPU_F16, DType.BFLOAT16: lib.ANYNPU_BF16}
_POINTER = ffi.typeof("void *")
NAN = lib.ANYNPU_NAN
from_buffer, worst_float = ffi.from_buffer, lib.anynpu_worst_float
"""For paths where a call of Python for each array would count: what ``worst_float`` gives is compared with :data:`NAN`."""

_HALF = (
    "; the model computes in float16, which ends at 65504: compile it with data (dataset=...) to get a warning with the layer, "
    "or to int8 or bfloat16"
)


class ValueCheck:
    """Checks the float values of inputs and outputs. Any thread may call it.

    :param report: called with a message, once for each input and output

    >>> check = ValueCheck(print)
    >>> check.inputs(["x"], [np.array([1.0, np.nan], np.float32)])
    input 'x': 1 of 2 values are not a number (NaN); the result means nothing
    >>> check.inputs(["x"], [np.array([1.0, np.nan], np.float32)])
    """

    __slots__ = ("_report", "_reported")

    def __init__(self, report: Callable[[str], object]) -> None:
        self._report = report
        self._reported: set[str] = set()

    def inputs(self, names: Sequence[str], arrays: Sequence[Array]) -> None:
        """Check the arrays that are given for inputs."""
        for name, array in zip(names, arrays, strict=True):
            if array.dtype.num in FLOAT_KINDS and _worst(array) == NAN:
                self._input(name, array)

    def output(self, name: str, dtype: DType, array: Array) -> None:
        """Check an array that is returned for an output, which the model computes as *dtype*."""
        if dtype.is_float and array.dtype.num in FLOAT_KINDS and _worst(array):
            self._output(name, array, dtype is DType.FLOAT16)

    def input_at(self, spec: TensorSpec, address: int) -> None:
        """Check the memory of an input, in which it lies as *spec* states. Padding may hold anything, so padded memory is not checked."""
        if _worst_at(spec, address) == NAN:
            self._input(spec.name, _array_at(spec, address))

    def output_at(self, spec: TensorSpec, address: int, dtype: DType) -> None:
        """The same for an output, which the model computes as *dtype*."""
        if dtype.is_float and _worst_at(spec, address):
            self._output(spec.name, _array_at(spec, address), dtype is DType.FLOAT16)

    def _input(self, name: str, array: Array) -> None:
        count = int(np.count_nonzero(np.isnan(array)))
        self._once(f"input '{name}'", f"{count} of {array.size} values are not a number (NaN); the result means nothing")

    def _output(self, name: str, array: Array, half: bool) -> None:
        count = array.size - int(np.count_nonzero(np.isfinite(array)))
        self._once(
            f"output '{name}'", f"{count} of {array.size} values are infinite or not a number (NaN){_HALF if half else ''}"
        )

    def _once(self, tensor: str, text: str) -> None:
        if tensor not in self._reported:
            self._reported.add(tensor)
            self._report(f"{tensor}: {text}")


def _worst(array: Array) -> int:
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    worst: int = worst_float(FLOAT_KINDS[array.dtype.num], from_buffer(array), array.size)
    return worst


def _worst_at(spec: TensorSpec, address: int) -> int:
    kind = _TYPES.get(spec.dtype)
    size = spec.dtype.storage.itemsize
    if kind is None or spec.nbytes != spec.elements * size:
        return 0
    worst: int = worst_float(kind, ffi.cast(_POINTER, address), spec.elements)
    return worst


def _array_at(spec: TensorSpec, address: int) -> Array:
    raw = np.frombuffer(ffi.buffer(ffi.cast(_POINTER, address), spec.nbytes), spec.dtype.storage)
    return (raw.astype(np.uint32) << 16).view(np.float32) if spec.dtype is DType.BFLOAT16 else raw
