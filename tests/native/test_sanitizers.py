"""The native sources under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest
from npu.engines.cases_large import large_case
from tools import need

from anynpu.npu.engines import native_levels

from .building import Programs, build_programs
from .record import write_cases
from .replaying import replay

pytestmark = pytest.mark.full  # it compiles all kernels again

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
# optimized fully, the kernels with their checks take minutes to compile
FLAGS = (*SANITIZERS, "-O1", "-g", "-fno-omit-frame-pointer")
# some sandboxes forbid what the search for leaks needs, and nothing here allocates
ENVIRONMENT = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    folder = tmp_path_factory.mktemp("sanitizers")
    return build_programs(folder, need("address sanitizer"), platform.machine(), FLAGS)


def test_nothing_is_reported(programs: Programs, recorded: Path) -> None:
    done = replay([str(programs.replay)], recorded, environment=ENVIRONMENT)
    assert (done.code, done.failed) == (0, 0), done.text
    assert tuple(done.kernels) == native_levels.available()
    assert done.passed >= 2000 * len(done.kernels)
    assert "Sanitizer" not in done.text
    assert "runtime error" not in done.text


def test_nothing_is_reported_about_products(programs: Programs) -> None:
    done = subprocess.run(
        [str(programs.products)], capture_output=True, text=True, check=False, env={**os.environ, **ENVIRONMENT}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert tuple(line.split(":")[0] for line in done.stdout.splitlines()[:-1]) == native_levels.available()
    assert done.stderr == ""


def test_a_wrong_byte_is_noticed(programs: Programs, tmp_path: Path) -> None:
    """The last byte of the last output is changed; after it come 8 numbers of the one layer and its one form."""
    cases = tmp_path / "cases"
    assert write_cases(cases, iter([("it", large_case("table", 0))])) == 1
    levels = len(native_levels.available())
    assert replay([str(programs.replay)], cases, environment=ENVIRONMENT).passed == levels
    data = bytearray(cases.read_bytes())
    data[-4 * 8 - 1] ^= 1
    cases.write_bytes(data)
    done = replay([str(programs.replay)], cases, environment=ENVIRONMENT)
    assert (done.code, done.passed, done.failed) == (1, 0, levels)
    assert "case 'it' at level generic, kernel plain: byte " in done.text
