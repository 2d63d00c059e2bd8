"""A hundred thousand random calls through the library from C, right and wrong, by three threads: documented answers, no signal, no hang."""

from __future__ import annotations

import shutil
from dataclasses import fields
from pathlib import Path

import pytest

from .conftest import Models
from .running import build, clean_environment, run

pytestmark = pytest.mark.full  # a hundred thousand calls

STEPS = 100_000


@pytest.mark.parametrize(
    ("steps", "flags"), [(STEPS, []), (STEPS // 5, ["-fsanitize=address,undefined"])], ids=["plain", "sanitizers"]
)
def test_misuse(models: Models, tmp_path: Path, steps: int, flags: list[str]) -> None:
    for field in fields(models):
        shutil.copy(getattr(models, field.name), tmp_path)
    program = build("misuse.c", tmp_path / "misuse", *flags)
    # the first rknn_init that fails states why, unless the log is off
    environment = clean_environment(ASAN_OPTIONS="detect_leaks=0", UBSAN_OPTIONS="halt_on_error=1", RKNN_LOG_LEVEL="-1")
    done = run([program, tmp_path, str(steps), "7"], environment, timeout=1200)
    assert done.stderr == ""
    succeeded, refused = map(int, done.stdout.split())
    assert succeeded + refused >= steps
    assert min(succeeded, refused) > steps // 10
