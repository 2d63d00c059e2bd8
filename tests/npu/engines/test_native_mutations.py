"""Would the comparison with the oracle notice an error of the native engine? A changed number in an operator must change its output."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from anynpu.npu.engines.native import NativeEngine
from anynpu.tensor import DType

from .cases import BUILDERS, case, expected
from .cases_large import LARGE_BUILDERS, large_case, reference_result
from .mutations import mutations
from .native_support import run_native
from .support import same

SEEDS = 16


@pytest.mark.full
def test_small_errors_are_noticed() -> None:
    engine = NativeEngine()
    made: Counter[str] = Counter()
    noticed: Counter[str] = Counter()
    for operator in BUILDERS:
        for dtype in (DType.INT8, DType.INT16):
            for seed in range(SEEDS):
                truth = expected(operator, dtype, seed)
                for name, wrong in mutations(case(operator, dtype, seed), dtype, np.random.default_rng(seed)):
                    made[name] += 1
                    noticed[name] += not same(run_native(wrong, engine), truth)
    share = {name: noticed[name] / made[name] for name in made}
    print("noticed by error:", {name: round(value, 3) for name, value in share.items()})
    assert sum(noticed.values()) >= 0.97 * sum(made.values())
    assert {name for name, value in share.items() if value < 0.9} == set()


@pytest.mark.full
def test_small_errors_of_large_cases_are_noticed() -> None:
    """Fast kernels run the large cases; the change is in one channel of many, or in one entry of a table."""
    engine = NativeEngine()
    made: Counter[str] = Counter()
    noticed: Counter[str] = Counter()
    for operator in LARGE_BUILDERS:
        for seed in range(SEEDS):
            right = large_case(operator, seed)
            truth = reference_result(right)
            for _, wrong in mutations(right, DType.INT8, np.random.default_rng(seed)):
                made[operator] += 1
                noticed[operator] += not same(run_native(wrong, engine), truth)
    print("noticed by operator:", {operator: round(noticed[operator] / made[operator], 3) for operator in made})
    assert sum(noticed.values()) >= 0.95 * sum(made.values())
