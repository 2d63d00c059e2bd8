"""The recorded cases, once for all tests that replay them."""

from __future__ import annotations

from pathlib import Path

import pytest

from .record import record


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of cases."""
    path = tmp_path_factory.mktemp("recorded") / "cases"
    assert record(path) >= 2000
    return path
