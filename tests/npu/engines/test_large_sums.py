"""Sums that are larger than what float32 holds exactly: the chip's rule in vectors gives the reference's bytes all the same."""

from __future__ import annotations

import numpy as np
import pytest

from anynpu.npu.engines.native import NativeEngine
from anynpu.npu.engines.native_levels import available
from anynpu.program import Conv

from .cases_large import reference_result
from .large_sums import CHANNELS, ENDINGS, FACTORS, OUTS, PIXELS, large_sums
from .native_support import kernel_of, run_native

LEVELS = [level for level in available() if level != "generic"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("factor", FACTORS)
def test_the_bytes_of_the_reference(factor: float, ending: str, level: str) -> None:
    case = large_sums(factor, ending)
    (wanted,) = reference_result(case)
    engine = NativeEngine(isa=level)
    # the line beyond the table of a curve that is nearly flat goes too far for a table of quantized values
    assert kernel_of(case, engine).startswith("conv" if ending != "Swish" or factor > 3e-5 else "plain")
    (given,) = run_native(case, engine)
    assert np.array_equal(given, wanted)
    assert len(np.unique(wanted)) > 1


def test_the_sums_are_as_large_as_they_are_meant_to_be() -> None:
    case = large_sums(1e-4, "")
    conv = case.op
    assert isinstance(conv, Conv)
    weights = conv.weights.reshape(OUTS, CHANNELS).astype(np.int64) - conv.weight_zero[:, None]
    sums = (case.inputs[0].reshape(PIXELS, CHANNELS).astype(np.int64) - 3) @ weights.T
    assert sums.max() > 2**24
    assert sums.min() < -(2**24)
