"""What tests of the sanitizer share."""

from __future__ import annotations

import weakref

import pytest

from anynpu.devtools.sanitizer import watch


@pytest.fixture
def only_own_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries that earlier tests of the process left open are not watched: hundreds of them take seconds in each test."""
    monkeypatch.setattr(watch, "_libraries", weakref.WeakKeyDictionary())
