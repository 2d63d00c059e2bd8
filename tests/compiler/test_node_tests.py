"""ONNX's own tests of operators in float16 and int8: what onnxruntime runs, runs; what does not, is listed with its reason."""

from __future__ import annotations

import logging
import re

import onnx
import onnxruntime
import pytest

from anynpu.npu import Device

from .node_tests import PARTS, cases_of, listed, modules, outcome_of

_SEEN_WITH = ("1.23.", "1.31.")
"""The versions of ONNX and onnxruntime whose cases the list of reasons knows; others have more or fewer."""

_CASES = (173, 173, 246, 110, 148, 280, 124, 158)
"""Cases of each part that onnxruntime runs."""

_TYPES = ("fp16", "w8a8")
_KNOWN = all(package.__version__.startswith(seen) for package, seen in zip((onnx, onnxruntime), _SEEN_WITH, strict=True))


def test_few_cases_do_not_run() -> None:
    assert sum(_CASES) == 1412
    assert {dtype: sum(_CASES) - len(listed(dtype)) for dtype in _TYPES} == {"fp16": 1379, "w8a8": 1379}


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS))
def test_operators_of_onnx(part: int, caplog: pytest.LogCaptureFixture) -> None:
    """A case that is not listed runs, and one that is listed does not, for the reason that the list has."""
    caplog.set_level(logging.CRITICAL)
    outcomes = []
    with Device("rk3588") as device:
        for module in modules(part):
            for case in cases_of(module):
                outcomes += [outcome_of(case, dtype, device) for dtype in _TYPES]
    assert [outcome for outcome in outcomes if outcome.kind == "untyped"] == []
    lacking = [outcome for outcome in outcomes if outcome.kind != "runs"]
    if not _KNOWN:
        assert len(lacking) <= 0.2 * len(outcomes), lacking
        return
    assert len(outcomes) == len(_TYPES) * _CASES[part]
    reasons = {dtype: listed(dtype) for dtype in _TYPES}
    strange = [
        outcome
        for outcome in lacking
        if outcome.case not in reasons[outcome.dtype] or not re.search(reasons[outcome.dtype][outcome.case].outcome, outcome.text)
    ]
    assert strange == []
    assert [outcome for outcome in outcomes if outcome.kind == "runs" and outcome.case in reasons[outcome.dtype]] == []
