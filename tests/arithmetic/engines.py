"""Which engine the software NPU uses, for one test."""

from __future__ import annotations

import pytest

from anynpu.npu.engines.base import ReferenceEngine
from anynpu.npu.engines.native import NativeEngine
from anynpu.rknn import library
from anynpu.rknn.software.library import SoftwareLibrary
from anynpu.rknn.table import VENDOR
from anynpu.vendors.libraries import OpenLibraries


def use_engine(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that are opened from now on use *level*: ``reference``, or an instruction set of the native engine.

    A device keeps the engine it began with, and sessions share devices: so there is a library of its own. The environment variables
    are not used, since one of them holds for the rest of the process.
    """

    def software(chip: str) -> SoftwareLibrary:
        return SoftwareLibrary(chip or None, engine=ReferenceEngine() if level == "reference" else NativeEngine(isa=level))

    monkeypatch.setattr(library, "_libraries", OpenLibraries(VENDOR, software=software, vendor=library._vendor))
