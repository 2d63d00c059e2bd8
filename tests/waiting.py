"""Waiting for events in tests."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["PATIENCE", "wait_until"]

PATIENCE = 300.0
"""Seconds after which a test that waits is taken for hung. No test is meant to need them, and a busy machine must not reach them."""


def wait_until(condition: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
    """Return when *condition* holds; fails with *what* did not happen if it never does."""
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, f"it did not happen: {what}"
        time.sleep(0.001)
