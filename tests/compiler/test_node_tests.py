"""ONNX's own tests of operators in float16 and int8: what onnxruntime runs, runs; what is refused, is refused for a reason."""

from __future__ import annotations

import logging
from collections import Counter

import onnx
import pytest

from anynpu.npu import Device

from .node_tests import PARTS, cases_of, is_expected, modules, outcome_of

_SEEN_WITH = "1.23."
"""The version of ONNX whose cases the list of expected refusals knows; others add cases."""

_LEAST = (155, 157, 229, 99, 128, 258, 106, 147)
"""Cases of each part that run, at least; the others are about strings, sequences, and shapes that depend on the data."""

_TYPES = ("fp16", "w8a8")


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS))
def test_operators_of_onnx(part: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    outcomes = []
    with Device("rk3588") as device:
        for module in modules(part):
            for case in cases_of(module):
                outcomes += [outcome_of(case, dtype, device) for dtype in _TYPES]
    untyped = [outcome for outcome in outcomes if outcome.kind == "untyped"]
    assert not untyped
    runs = Counter(outcome.dtype for outcome in outcomes if outcome.kind == "runs")
    known = onnx.__version__.startswith(_SEEN_WITH)
    if known:
        assert [outcome for outcome in outcomes if not is_expected(outcome)] == []
    for dtype in _TYPES:
        assert runs[dtype] >= (_LEAST[part] if known else 0.75 * len(outcomes) / len(_TYPES)), outcomes
