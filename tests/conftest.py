"""What all tests share."""

from __future__ import annotations

import os

import pytest
from real_models import RealModels, find_real_models

# BLAS with several threads in each of several test processes is ten times slower than with one; numpy is not loaded yet.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")


@pytest.fixture(scope="session")
def real_models() -> RealModels:
    """Paths of the real models."""
    return find_real_models()
