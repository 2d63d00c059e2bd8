"""EZ RKNN Async's own tests, from its published source package: on our library, and on our session under its name.

The package is fetched by name into the build folder and run; nothing of it is in this project.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tools import REQUIRE_ALL, need

from anynpu.dropin.environment import with_stand_ins

from .peer_suite.suite import HERE, NAME, VERSION, Unavailable, fetch, run_suite
from .running import board_environment, clean_environment

# another project's tests, on tensors of 32 MB: not both at once
pytestmark = [pytest.mark.full, pytest.mark.xdist_group("peer suite")]

TESTS, ENOUGH = 40, 36
MODULE = "ztu_somemodelruntime_ez_rknn_async"
CONVERTER = ("rknn",)
"""Its tests convert their models with the vendor's package, for which ours stands in."""

RKNPU3 = "it asks for RKNPU3, another generation of chips, which is not supported here"
EXPECTED_FAILURES = {
    "test_provider_option_helpers_keep_backends_separate": RKNPU3,
    "test_explicit_provider_rejects_the_other_model_header[RKNXdummy-RKNPU2ExecutionProvider-RKNPU3]": RKNPU3,
    "test_explicit_provider_rejects_the_other_model_header[RKNNdummy-RKNPU3ExecutionProvider-RKNPU2]": RKNPU3,
    "test_rknpu3_value_requires_rknpu3_session_context": RKNPU3,
}
"""On our session; the peer on our library has RKNPU3 in its own code."""


@pytest.fixture(scope="module")
def source() -> Path:
    try:
        return fetch()
    except Unavailable as error:
        reason = f"needs the source package {NAME} {VERSION}, which is not to be had: {error}"
        if os.environ.get(REQUIRE_ALL):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


def names(tests: dict[str, str]) -> dict[str, str]:
    return {test.split("::")[-1]: why for test, why in tests.items()}


def test_on_our_library(source: Path, tmp_path: Path) -> None:
    python = need("EZ RKNN Async")
    where = f"import {MODULE}, pathlib; print(pathlib.Path({MODULE}.__file__).parent)"
    found = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True, timeout=600).stdout.strip()
    module = tmp_path / "module"
    module.mkdir()
    (module / MODULE).symlink_to(found)
    environment = board_environment("rk3588") | {"ZTU_RKNPU2_RUNTIME_LIBRARY": "librknnrt.so", "OMP_NUM_THREADS": "1"}
    outcomes = run_suite(source, with_stand_ins(environment, CONVERTER), module, tmp_path)
    assert len(outcomes.results) == TESTS
    assert len(outcomes.passed) >= ENOUGH, outcomes.others


def test_on_our_session_by_an_import_alias(source: Path, tmp_path: Path) -> None:
    environment = clean_environment(ANYNPU_DEVICE="sim:rk3588", OMP_NUM_THREADS="1")
    outcomes = run_suite(source, with_stand_ins(environment, CONVERTER), HERE / "alias", tmp_path)
    assert len(outcomes.results) == TESTS
    assert len(outcomes.passed) >= ENOUGH, outcomes.others
    assert set(names(outcomes.others)) == set(EXPECTED_FAILURES), outcomes.others
