"""A floor under the speed of convolutions, relative to what the processor does at the most in the same run.

Accumulators that the compiler keeps in memory instead of registers halve the speed and change no result. Nothing but a measurement sees it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from anynpu._native import ffi, lib
from anynpu.npu.control import RunControl
from anynpu.npu.engines.native import NativeEngine
from anynpu.program import Conv, Epilogue
from anynpu.tensor import Affine, DType

from .ingredients import Case, nhwc
from .native_support import single_layer

pytestmark = pytest.mark.full  # it measures, again and again on a busy machine

FLOOR = 0.6  # registers: 0.9 and more; memory: less than 0.5
LEAST_ROUNDS = 10
MAX_ROUNDS = 300  # on a busy machine the best round may be a long time coming
PEAK_ROUNDS = 50_000
PLAIN_PEAK_ROUNDS = 500


def convolution(channels: int, kernel: int, extent: int) -> tuple[Case, int]:
    """A convolution that is nearly all multiplication, and its multiply-accumulates."""
    rng = np.random.default_rng(extent)
    shape = (1, extent, extent, channels)
    codes = rng.integers(-128, 128, shape, np.int8)
    op = Conv(
        rng.integers(-128, 128, (channels, kernel, kernel, channels), np.int8),
        rng.integers(-20, 20, channels, np.int32),
        rng.integers(-1000, 1000, channels, np.int32),
        Epilogue(np.full(1, 1e-3, np.float32), np.zeros(1, np.int32)),
        pads=(kernel // 2,) * 4,
    )
    input_spec = nhwc("x", shape, DType.INT8, Affine.per_tensor(0.02, -3))
    output_spec = nhwc("y", shape, DType.INT8, Affine.per_tensor(0.05, 4))
    return Case(op, (codes,), (input_spec,), (output_spec,)), extent**2 * channels**2 * kernel**2


def rate(work: Callable[[], object], macs: int) -> float:
    """Multiply-accumulates in a nanosecond of CPU time: what else runs on the machine does not count."""
    begin = time.process_time_ns()
    work()
    return macs / max(1, time.process_time_ns() - begin)


@pytest.mark.parametrize(("channels", "kernel", "extent"), [(64, 3, 80), (256, 1, 40)], ids=["3x3", "1x1"])
def test_convolutions_come_close_to_the_peak_of_the_processor(channels: int, kernel: int, extent: int) -> None:
    engine = NativeEngine()
    assert ffi.string(lib.anynpu_level()).decode() == engine.isa, "the peak would be another instruction set's"
    made, macs = convolution(channels, kernel, extent)
    program = single_layer(made)
    output = np.empty(program.output_specs[0].memory_shape, np.int8)
    bound = engine.prepare(program).bind({"input 0": made.inputs[0], "output 0": output})
    peak_rounds = PLAIN_PEAK_ROUNDS if engine.isa == "generic" else PEAK_ROUNDS

    control = RunControl()
    peak_macs = lib.anynpu_peak(peak_rounds)
    reached = peak = 0.0
    for number in range(MAX_ROUNDS):
        peak = max(peak, rate(lambda: lib.anynpu_peak(peak_rounds), peak_macs))
        reached = max(reached, rate(lambda: bound.run(control), macs))
        if number + 1 >= LEAST_ROUNDS and (engine.isa == "generic" or reached >= FLOOR * peak):
            break

    assert len(np.unique(output)) > 1
    if engine.isa != "generic":  # plain C has no floor: its peak is the compiler's work too
        assert reached >= FLOOR * peak, f"{reached:.0f} of {peak:.0f} GMAC/s with {engine.isa}"
