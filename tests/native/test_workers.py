"""The pool of threads on its own, under ThreadSanitizer and AddressSanitizer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tools import need

from .building import NATIVE

SOURCES = (NATIVE / "workers.c", Path(__file__).with_name("workers.c"))


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_every_row_once_and_no_race(sanitizer: str, tmp_path: Path) -> None:
    compiler = need("thread sanitizer" if sanitizer == "thread" else "address sanitizer")
    flags = (f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-pthread")
    command = [compiler, *flags, f"-I{NATIVE}", *map(str, SOURCES), "-o", str(tmp_path / "workers")]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run([str(tmp_path / "workers")], capture_output=True, text=True, check=False, env=environment, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
