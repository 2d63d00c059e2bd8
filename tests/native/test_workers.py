"""The pool of threads by itself, under ThreadSanitizer and AddressSanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from .building import NATIVE

COMPILER = os.environ.get("CC", "gcc")
SOURCES = (NATIVE / "workers.c", Path(__file__).with_name("workers.c"))


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_every_row_once_and_no_race(sanitizer: str, tmp_path: Path) -> None:
    if shutil.which(COMPILER) is None:
        pytest.skip(f"there is no compiler '{COMPILER}'")
    flags = (f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-pthread")
    empty = tmp_path / "empty.c"
    empty.write_text("int main(void) { return 0; }\n")
    for sources, name in ([(empty,), "empty"], [SOURCES, "workers"]):
        command = [COMPILER, *flags, f"-I{NATIVE}", *map(str, sources), "-o", str(tmp_path / name)]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if built.returncode != 0 and name == "empty":
            pytest.skip(f"{COMPILER} has no {sanitizer} sanitizer")
        assert built.returncode == 0, built.stderr
    done = subprocess.run([str(tmp_path / "empty")], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"the {sanitizer} sanitizer does not run here: {done.stderr[:200]}")
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run([str(tmp_path / "workers")], capture_output=True, text=True, check=False, env=environment, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
