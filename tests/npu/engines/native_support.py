"""Running single operators in the native engine, with everything checked that it must not touch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pytest

from anynpu.npu.control import RunControl
from anynpu.npu.engines import native_arrays
from anynpu.npu.engines.native import NativeEngine, NativeExecutable
from anynpu.program import Layer, MemoryPlan, Program

from .ingredients import Array, Case

GUARD = 64


def single_layer(made: Case) -> Program:
    """A program of one layer."""
    inputs = tuple(f"input {number}" for number in range(len(made.inputs)))
    outputs = tuple(f"output {number}" for number in range(len(made.output_specs)))
    specs = zip((*inputs, *outputs), (*made.input_specs, *made.output_specs), strict=True)
    tensors = {name: spec.renamed(name) for name, spec in specs}
    return Program(inputs, outputs, tensors, (Layer("it", "it", made.op, inputs, outputs),), MemoryPlan({}, 0))


class _Guarded:
    """Arrays with guard bytes before and after."""

    def __init__(self, fill: int) -> None:
        self._fill = fill
        self._buffers: list[npt.NDArray[np.uint8]] = []

    def bytes(self, size: int) -> npt.NDArray[np.uint8]:
        buffer = np.full(size + 2 * GUARD + 64, self._fill, np.uint8)
        first = -buffer.ctypes.data % 64 + GUARD
        self._buffers.append(buffer[first - GUARD : first + size + GUARD])
        return buffer[first : first + size]

    def check(self, what: str) -> None:
        for buffer in self._buffers:
            assert np.all(buffer[:GUARD] == self._fill), f"bytes before {what} were overwritten"
            assert np.all(buffer[-GUARD:] == self._fill), f"bytes after {what} were overwritten"


@contextmanager
def guarded_scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside, scratch and packed weights have guard bytes around them; they are checked at the end."""
    guarded = _Guarded(0x5A)
    with monkeypatch.context() as patch:
        patch.setattr(native_arrays, "aligned_bytes", guarded.bytes)
        yield
    guarded.check("scratch memory or packed weights")


def run_native(made: Case, engine: NativeEngine, around: int = 0xA5) -> list[Array]:
    """Execute a case with guard bytes of the value *around* before and after each tensor; return the outputs."""
    program = single_layer(made)
    inputs, outputs = _Guarded(around), _Guarded(0xC3)
    arrays = {}
    for name, array in zip(program.inputs, made.inputs, strict=True):
        arrays[name] = inputs.bytes(array.nbytes).view(array.dtype).reshape(array.shape)
        arrays[name][...] = array
    for name in program.outputs:
        spec = program.tensors[name]
        arrays[name] = outputs.bytes(spec.nbytes).view(spec.dtype.storage).reshape(spec.memory_shape)
    engine.prepare(program).bind(arrays).run(RunControl())
    inputs.check("an input")
    outputs.check("an output")
    for name, array in zip(program.inputs, made.inputs, strict=True):
        assert arrays[name].tobytes() == array.tobytes(), "an input was changed"
    return [arrays[name] for name in program.outputs]


def kernel_of(made: Case, engine: NativeEngine) -> str:
    """The kernel that runs a case; empty where it is not C."""
    executable = engine.prepare(single_layer(made))
    assert isinstance(executable, NativeExecutable)
    return executable.kernels.get(0, "")
