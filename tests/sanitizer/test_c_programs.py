"""Wrong programs in C under ``anynpu exec --sanitize``: each fault is found where it is, and nothing else.

All cases of one vendor run in one process; the stack of a finding states which case it belongs to.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dropin.running import build, clean_environment, run
from tools import need

from anynpu import modelfile
from anynpu.cli.app import run as run_cli
from anynpu.devtools.sanitizer.memory import accesses_are_known

from .rknn_programs import model
from .vip_programs import model_file

RKNN = {
    "no_flush": "input-not-flushed",
    "no_invalidate": "output-not-invalidated",
    "output_for_other_hardware": "output-not-invalidated",
    "use_after_destroy": "use-after-destroy",
    "double_destroy": "double-destroy",
    "uninitialised": "unknown-handle",
    "memory_after_context": "use-after-destroy",
    "context_leak": "context-leak",
    "memory_leak": "memory-leak",
    "not_released": "outputs-not-released",
    "released_twice": "double-release",
    "behind_output": "write-outside-buffer",
    "behind_memory": "write-outside-buffer",
    "dense_rows": "stride-padding-written",
    "half_a_picture": "buffer-too-small",
    "mixed": "api-mixed",
    "no_input": "input-never-set",
    "core_mask": "core-mask",
    "two_threads": "context-in-two-threads",
}
VIP = {
    "before_init": "call-order",
    "no_flush": "input-not-flushed",
    "no_invalidate": "output-not-invalidated",
    "use_after_destroy": "use-after-destroy",
    "double_destroy": "double-destroy",
    "network_leak": "context-leak",
    "buffer_leak": "memory-leak",
    "before_prepare": "call-order",
    "never_written": "input-never-set",
    "behind_buffer": "write-outside-buffer",
    "written_during_run": "written-during-run",
    "destroyed_during_run": "destroyed-during-run",
    "wrong_index": "bad-argument",
    "driver_leak": "driver-leak",
}
DURING_RUNS = ("two_threads", "written_during_run", "destroyed_during_run")
"""What a program does while the NPU is busy."""

SLOWLY = {"rknn": "0.0001", "vip": "0.00001"}
"""Of the chip's speed: a run lasts for a good part of a second, so that others come before its end on a busy machine too."""


def execute(*arguments: str | Path, code: int | None = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    changed = clean_environment(ANYNPU_PYTHON=None, LD_LIBRARY_PATH=None, **environment)
    return run([sys.executable, "-m", "anynpu.cli", "exec", *arguments], changed, code=code)


def case_of(finding: dict[str, Any], cases: dict[str, str]) -> str:
    names = [frame["function"] for frame in (*finding["stack"], *finding["origin"])]
    return next((name for name in names if name in cases), "")


@pytest.fixture(scope="module")
def rknn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    need("addr2line")
    folder = tmp_path_factory.mktemp("faults-rknn")
    return build("faults_rknn.c", folder / "faults", "-fno-inline"), modelfile.write(model(), folder / "small.rknn")


def test_a_stack_without_debug_information_names_symbols_and_commands(tmp_path: Path) -> None:
    """The command of a frame gives the line when it is run on the same program with debug information."""
    tool = need("addr2line")
    file = modelfile.write(model(), tmp_path / "small.rknn")
    for flags, function in ((("-g0",), "no_input"), (("-g0", "-s"), "")):
        program = build("faults_rknn.c", tmp_path / "faults", "-fno-inline", *flags)
        done = execute("--chip", "rk3588", "--sanitize", "--", program, file, "wrong", "no_input", code=23)
        frames = re.findall(r"^    #\d+ (\S+) \((\S+); addr2line (-i -f -C -e (\S+) (0x[0-9a-f]+))\)$", done.stderr, re.MULTILINE)
        assert frames, done.stderr
        assert {entry[1] for entry in frames} == {entry[3] for entry in frames} == {str(program)}
        assert function in [entry[0] for entry in frames] or not function
    described = build("faults_rknn.c", tmp_path / "described", "-fno-inline")
    offsets = [entry[4] for entry in frames]
    places = run([tool, "-f", "-e", described, *offsets]).stdout
    assert re.search(r"^no_input\n\S*faults_rknn\.c:\d+", places, re.MULTILINE)


@pytest.fixture(scope="module")
def vip(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    need("addr2line")
    folder = tmp_path_factory.mktemp("faults-vip")
    (folder / "small.nb").write_bytes(model_file())
    return build("faults_vip.c", folder / "faults", "-fno-inline", library="VIPlite"), folder / "small.nb"


@pytest.mark.full
@pytest.mark.parametrize(("vendor", "chip", "cases"), [("rknn", "rk3588", RKNN), ("vip", "t527", VIP)])
def test_each_fault_is_found_where_it_is(
    vendor: str, chip: str, cases: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if not accesses_are_known():
        pytest.skip("this system does not report which pages were touched")
    program, file = request.getfixturevalue(vendor)
    report = tmp_path / "found.json"
    options = ["--chip", chip, "--sanitize", "--sanitize-report", report, "--", program, file]
    timed = [case for case in cases if case in DURING_RUNS]
    assert timed
    for names, speed in (([case for case in cases if case not in timed], {}), (timed, {"ANYNPU_REALTIME": SLOWLY[vendor]})):
        done = execute(*options, "wrong", *names, code=23, **speed)
        findings = json.loads(report.read_text())["findings"]
        found = [(case_of(one, cases), one["id"]) for one in findings]
        assert sorted(found) == sorted((case, cases[case]) for case in names), done.stderr
        for frame in (one["stack"][0] for one in findings):
            assert frame["file"].endswith(f"faults_{vendor}.c")
            assert frame["line"]
        assert re.search(rf"anynpu sanitizer: {len(names)} findings?", done.stderr)
        mended = execute(*options, "mended", *names, **speed)
        assert mended.stderr == ""
        assert json.loads(report.read_text())["findings"] == []


@pytest.mark.full
def test_stale_data_under_the_sanitizer_and_right_data_without(rknn: tuple[Path, Path]) -> None:
    """Both print how many bytes of the output are not zero: all of a run on zeros are, and all of what nobody wrote."""
    program, file = rknn
    command = ["--chip", "rk3588", "--", program, file, "wrong", "no_flush", "no_invalidate"]
    right = execute(*command).stdout.split()
    stale = execute("--sanitize", "--sanitize-exit-code", "0", *command).stdout.split()
    assert all(int(number) for number in right)
    assert len(right) == len(stale) == 2
    assert all(one != other for one, other in zip(right, stale, strict=True))


@pytest.mark.full
def test_a_thread_with_a_small_stack_is_watched_too(rknn: tuple[Path, Path], tmp_path: Path) -> None:
    program, file = rknn
    done = execute("--chip", "rk3588", "--sanitize", "--", program, file, "wrong", "small_stack", code=23)
    assert "double-destroy in rknn_destroy" in done.stderr
    rules = tmp_path / "rules"
    rules.write_text("double-destroy:rknn_destroy\n")
    execute("--chip", "rk3588", "--sanitize", "--suppressions", rules, "--", program, file, "wrong", "small_stack")


@pytest.mark.parametrize(
    ("options", "words"),
    [(["--sanitize-report", "x.json"], "add it"), (["--sanitize", "--suppressions", "rules"], "no-such-kind")],
)
def test_options_that_mean_nothing_are_refused(
    options: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rules").write_text("no-such-kind:x")
    with pytest.raises(SystemExit) as ended:
        run_cli(["exec", *options, "--", sys.executable])
    assert ended.value.code not in (0, None)
    assert words in capsys.readouterr().err
