"""Would the comparison with the oracle notice an error? A changed number in an operator must change the output."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from anynpu.tensor import DType

from .cases import BUILDERS, case, expected
from .mutations import mutations
from .support import run_guarded, same

SEEDS = 30
WITHOUT_NUMBERS = {"cast"}


@pytest.mark.full
def test_small_errors_are_noticed() -> None:
    made: Counter[tuple[str, str]] = Counter()
    noticed: Counter[tuple[str, str]] = Counter()
    for operator in BUILDERS:
        for dtype in (DType.INT8, DType.INT16):
            for seed in range(SEEDS):
                truth = expected(operator, dtype, seed)
                for name, wrong in mutations(case(operator, dtype, seed), dtype, np.random.default_rng(seed)):
                    made[operator, name] += 1
                    noticed[operator, name] += not same(run_guarded(wrong), truth)
    share = {operator: _share(made, noticed, operator, None) for operator in BUILDERS if operator not in WITHOUT_NUMBERS}
    by_error = {name: _share(made, noticed, None, name) for name in {name for _, name in made}}
    print("noticed by operator:", {key: round(value, 3) for key, value in share.items()})
    print("noticed by error:", {key: round(value, 3) for key, value in by_error.items()})
    assert _share(made, noticed, None, None) >= 0.97
    assert {key for key, value in share.items() if value < 0.93} == set()
    assert {key for key, value in by_error.items() if value < 0.93} == set()


def _share(made: Counter[tuple[str, str]], noticed: Counter[tuple[str, str]], operator: str | None, name: str | None) -> float:
    keys = [key for key in made if operator in (None, key[0]) and name in (None, key[1])]
    assert sum(made[key] for key in keys) >= 8, f"too few errors of {operator or name} to report"
    return sum(noticed[key] for key in keys) / sum(made[key] for key in keys)
