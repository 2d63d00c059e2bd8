"""The benchmarks as a whole: one that fails does not take the others with it, and servers state that they serve when they do."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import onnx.parser
import psutil
import pytest
from onnx import helper
from waiting import PATIENCE, wait_until

ROOT = Path(__file__).parents[1]


def run_all(folder: Path, *arguments: str, limit: float | None = None) -> int:
    return int(runpy.run_path(str(ROOT / "benchmarks" / "run_all.py"))["main"](list(arguments), folder, limit))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four benchmarks: two that end well, one that fails, one that takes its whole process with it."""
    package = tmp_path / "measured"
    package.mkdir()
    (package / "__init__.py").touch()
    note = "from pathlib import Path\n\ndef {function}() -> None:\n    Path(__file__).with_suffix('.{function}').touch()\n    {end}\n"
    (package / "bench_a.py").write_text(note.format(function="main", end="pass"), encoding="utf-8")
    (package / "bench_b.py").write_text(note.format(function="main", end="raise ValueError('broken')"), encoding="utf-8")
    (package / "bench_c.py").write_text(note.format(function="main", end="import os; os._exit(9)"), encoding="utf-8")
    (package / "bench_d.py").write_text(
        note.format(function="main", end="pass") + note.format(function="soak", end="pass"), encoding="utf-8"
    )
    return package


def _is_over(process: int) -> bool:
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def ran(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.suffix in (".main", ".soak")}


def test_a_benchmark_that_fails_is_named_and_the_others_run(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_all(folder) == 1
    assert ran(folder) == {"bench_a.main", "bench_b.main", "bench_c.main", "bench_d.main"}
    text = capfd.readouterr().err
    assert "ValueError: broken" in text
    assert text.splitlines()[-1] == "failed: b, c"


def test_the_end_says_how_long_each_took(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_all(folder, "a", "d") == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[-4] == "seconds, and of CPU time:"
    assert [line.split()[2] for line in lines[-3:]] == ["a", "d", "all"]


def test_one_that_does_not_end_in_time_is_ended(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "bench_b.py").write_text("import time\n\ndef main() -> None:\n    time.sleep(3600)\n", encoding="utf-8")
    assert run_all(folder, "b", limit=0.0) == 1
    assert "the benchmark b did not end in 0 s; the others go on" in capfd.readouterr().err


def test_what_a_benchmark_leaves_behind_ends_with_it(folder: Path) -> None:
    text = """
    import subprocess, sys
    from pathlib import Path
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    Path(__file__).with_suffix(".child").write_text(str(child.pid))
    """
    (folder / "bench_b.py").write_text("def main() -> None:" + text, encoding="utf-8")
    assert run_all(folder, "b") == 0
    child = int((folder / "bench_b.child").read_text())
    wait_until(lambda: _is_over(child), "the child of the benchmark ends")


def test_a_signal_ends_what_was_started(folder: Path) -> None:
    shutil.copy(ROOT / "benchmarks" / "run_all.py", folder)
    note = folder / "bench_b.child"
    text = f"""
    import os, time
    from pathlib import Path
    Path({str(note)!r} + ".new").write_text(str(os.getpid()))
    os.rename({str(note)!r} + ".new", {str(note)!r})
    time.sleep(3600)
    """
    (folder / "bench_b.py").write_text("def main() -> None:" + text, encoding="utf-8")
    with subprocess.Popen([sys.executable, "-m", f"{folder.name}.run_all", "b"], cwd=folder.parent) as process:
        wait_until(note.exists, "the benchmark begins")
        process.terminate()
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM
    child = int(note.read_text())
    wait_until(lambda: _is_over(child), "the benchmark ends")


def test_those_that_are_named(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_all(folder, "a", "d") == 0
    assert ran(folder) == {"bench_a.main", "bench_d.main"}
    assert run_all(folder, "soak") == 0
    assert "bench_d.soak" in ran(folder)
    assert run_all(folder, "soak", "none") == 2
    assert "no such benchmark: none" in capfd.readouterr().err


def test_the_echo_server_listens_before_it_says_so() -> None:
    command = [sys.executable, "-m", "benchmarks.serve_echo"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ})
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+) and grpc://127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert found is not None
        for port in map(int, found.groups()):
            socket.create_connection(("127.0.0.1", port), timeout=120).close()
    finally:
        process.kill()
        process.communicate(timeout=120)


@pytest.mark.parametrize("opset", [11, 17])
def test_onnxruntime_prepares_networks_of_any_version(opset: int, tmp_path: Path) -> None:
    """Converters between versions go one way for many operators, Relu after version 14 for one."""
    graph = onnx.parser.parse_graph("net (float[1, 4] x) => (float[1, 4] y) { y = Relu(x) }")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    prepare = runpy.run_path(str(ROOT / "benchmarks" / "engine_onnxruntime.py"))["prepare"]
    prepared = onnx.load(prepare(model, tmp_path / "net.onnx"))
    assert prepared.opset_import[0].version >= 13
