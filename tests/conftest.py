"""What all tests share."""

from __future__ import annotations

import gc
import os

import pytest
from real_models import RealModels, find_real_models
from tools import Skips
from watch import Watch

# What is set for this run of the suite; everything else of ours, and what changes how programs write, is not inherited by the tests.
_OF_THE_SUITE = {
    "ANYNPU_BOARD_DATA",
    "ANYNPU_CHIP_CASES",
    "ANYNPU_ENGINE_CASES",
    "ANYNPU_EP_NETWORKS",
    "ANYNPU_EP_SESSIONS",
    "ANYNPU_FAULT_SECONDS",
    "ANYNPU_FIRST_USES",
    "ANYNPU_FORKS",
    "ANYNPU_INTERRUPTS",
    "ANYNPU_LITE_INFERENCES",
    "ANYNPU_MALFORMED",
    "ANYNPU_MISUSE_STEPS",
    "ANYNPU_OPENAPI_EXAMPLES",
    "ANYNPU_PEER_PYTHON",
    "ANYNPU_REQUIRE_ALL",
    "ANYNPU_SESSION_REQUESTS",
    "ANYNPU_THREAD_SECONDS",
    "ANYNPU_TORCH_PYTHON",
    "ANYNPU_ULTRALYTICS_PYTHON",
}
_OF_TERMINALS = {
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "COLUMNS",
    "FORCE_COLOR",
    "LINES",
    "NO_COLOR",
    "PY_COLORS",
    "TERM",
    "TTY_COMPATIBLE",
}
for variable in list(os.environ):
    ours = variable.startswith(("ANYNPU_", "RKNN_", "VIP_", "OTEL_")) and variable not in _OF_THE_SUITE
    if ours or variable in _OF_TERMINALS:
        del os.environ[variable]

# BLAS with several threads in each of several test processes is ten times slower than with one; numpy is not loaded yet.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# It keeps what it made in a database under HOME, which may be read-only, and which test processes would share; it is not loaded yet.
os.environ.setdefault("PYOPENCL_NO_CACHE", "1")


@pytest.fixture(scope="session")
def real_models() -> RealModels:
    """Paths of the real models."""
    return find_real_models()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("anynpu")
    group.addoption("--cpu-limit", type=float, help="CPU seconds that a test not marked 'full' may take, or the run fails")
    group.addoption("--slowest", type=int, default=0, help="print so many tests that took most CPU time")
    group.addoption("--cpu-report", help="a file for the CPU seconds of all tests, slowest first")


def pytest_configure(config: pytest.Config) -> None:
    options = (config.getoption(name) for name in ("--cpu-limit", "--slowest", "--cpu-report"))
    config.pluginmanager.register(Watch(*options), "watch")
    config.pluginmanager.register(Skips(), "skips")


def pytest_collection_finish() -> None:
    """What was collected stays to the end: without it, a collection of garbage, which many tests ask for, takes a tenth of the time."""
    gc.collect()
    gc.freeze()
