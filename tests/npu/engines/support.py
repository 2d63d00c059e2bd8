"""Running the engine the way a device does, with everything checked that it must not touch."""

from __future__ import annotations

import numpy as np

from anynpu.npu.engines.reference import execute

from .ingredients import Array, Case

GUARD = 64


def run_guarded(made: Case) -> list[Array]:
    """Execute a case with read-only inputs and with guard bytes around each output; return the outputs."""
    inputs = []
    for array in made.inputs:
        held = array.copy()
        held.flags.writeable = False
        inputs.append(held)
    buffers = [np.full(spec.nbytes + 2 * GUARD, 0xA5, np.uint8) for spec in made.output_specs]
    outputs = [
        buffer[GUARD : GUARD + spec.nbytes].view(spec.dtype.storage).reshape(spec.memory_shape)
        for buffer, spec in zip(buffers, made.output_specs, strict=True)
    ]
    execute(made.op, inputs, made.input_specs, made.output_specs, outputs)
    for buffer in buffers:
        assert np.all(buffer[:GUARD] == 0xA5), "bytes before the output were overwritten"
        assert np.all(buffer[-GUARD:] == 0xA5), "bytes after the output were overwritten"
    for held, array in zip(inputs, made.inputs, strict=True):
        assert held.tobytes() == array.tobytes(), "an input was changed"
    return outputs


def same(actual: list[Array], wanted: tuple[Array, ...]) -> bool:
    """Whether all outputs are equal to the last bit."""
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(actual, wanted, strict=True))
