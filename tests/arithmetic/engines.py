"""Which engine the software NPU uses, for one test."""

from __future__ import annotations

import pytest

from anynpu.npu.engines.choice import VARIABLE as ENGINE
from anynpu.npu.engines.native_levels import VARIABLE as LEVEL
from anynpu.rknn import library
from anynpu.rknn.table import VENDOR
from anynpu.vendors.libraries import OpenLibraries


def use_engine(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that are opened from now on use *level*: ``reference``, or an instruction set of the native engine.

    A device keeps the engine it began with, and sessions share devices: so there is a library of its own.
    """
    monkeypatch.setenv(*((ENGINE, "reference") if level == "reference" else (LEVEL, level)))
    fresh = OpenLibraries(VENDOR, software=library._software, vendor=library._vendor)
    monkeypatch.setattr(library, "_libraries", fresh)
