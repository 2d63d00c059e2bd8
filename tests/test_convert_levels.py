from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from anynpu._native import ffi, lib

LEVELS = [ffi.string(lib.anynpu_level_name(level)) for level in range(lib.anynpu_level_count())]


@pytest.fixture(params=LEVELS, ids=lambda name: name.decode())
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test once for each instruction set that this machine has."""
    before = ffi.string(lib.anynpu_level())
    if not lib.anynpu_use_level(request.param):
        pytest.skip(f"this processor has no {request.param.decode()}")
    yield request.param.decode()
    lib.anynpu_use_level(before)


def test_the_best_level_is_chosen_and_plain_c_is_always_there() -> None:
    assert LEVELS[-1] == b"generic"
    best = next(name for name in LEVELS if lib.anynpu_use_level(name))
    assert ffi.string(lib.anynpu_level()) == best


def test_an_unknown_level_changes_nothing() -> None:
    before = ffi.string(lib.anynpu_level())
    assert lib.anynpu_use_level(b"abacus") == 0
    assert ffi.string(lib.anynpu_level()) == before
    assert lib.anynpu_level_name(len(LEVELS)) == ffi.NULL


def test_without_the_extension_the_import_fails_and_says_what_to_do() -> None:
    """There is no numpy fallback that would be silently slow."""
    code = """
import sys
sys.modules["anynpu._native"] = None
import anynpu.errors
try:
    import anynpu.program.convert
except anynpu.errors.MissingDependencyError as error:
    assert isinstance(error, ImportError)
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "anynpu._native" in result.stdout
    assert "pip install" in result.stdout


def test_the_compiled_module_does_not_bring_a_c_parser_along() -> None:
    code = "import sys, anynpu.program.convert; print([name for name in ('pycparser', 'cffi.api') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
