"""The suite itself: it stays quick, it states what it misses, and a tool is there only if it runs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import tools
import watch

pytest_plugins = ["pytester"]

TESTS = Path(__file__).parent
ROOT = TESTS.parent
CONFTEST = """
import pytest
from tools import Skips
import watch

watch.machine_factor = lambda: 1.0  # the same figures on every machine

def pytest_configure(config):
    config.addinivalue_line("markers", "full: long")
    config.pluginmanager.register(watch.Watch({limit}, 10), "watch")
    config.pluginmanager.register(Skips(), "skips")
"""
BURN = """
import time

def burn():
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
"""


def run_inner(pytester: pytest.Pytester, text: str, *arguments: str, limit: float | None = None) -> pytest.RunResult:
    """Run tests in a process of its own, with the plugins of this suite."""
    pytester.makeconftest(CONFTEST.format(limit=limit))
    pytester.makepyfile(BURN + text)
    pytester._monkeypatch.setenv("PYTHONPATH", str(TESTS))
    pytester._monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # loading what is installed takes seconds
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments)


# ---- the watch ----

TWO = """
import pytest

def test_quick():
    pass

{mark}
def test_slow():
    burn()
"""


@pytest.mark.parametrize("workers", [(), ("-p", "xdist", "-n", "2")], ids=["one process", "workers"])
def test_a_slow_test_fails_the_run(pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    result = run_inner(pytester, TWO.format(mark=""), *workers, limit=0.01)
    result.assert_outcomes(passed=2)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*slowest*", "*test_slow*", "TOO SLOW: *::test_slow took * s of CPU time*'make test-all'*"])
    assert "TOO SLOW" not in "".join(line for line in result.outlines if "test_quick" in line)


def test_a_slow_test_with_the_mark_is_printed_and_fails_nothing(pytester: pytest.Pytester) -> None:
    result = run_inner(pytester, TWO.format(mark="@pytest.mark.full"), limit=0.01)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*test_slow*"])
    result.stdout.no_fnmatch_line("*TOO SLOW*")


def test_a_run_without_a_limit_fails_nothing(pytester: pytest.Pytester) -> None:
    assert run_inner(pytester, TWO.format(mark="")).ret == 0


def test_waiting_costs_nothing_and_children_count(pytester: pytest.Pytester) -> None:
    text = """
import subprocess, sys

def test_waits():
    time.sleep(0.5)

def test_has_a_child():
    subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.5: pass"], check=True)
"""
    result = run_inner(pytester, text, limit=0.2)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["TOO SLOW: *::test_has_a_child *"])
    result.stdout.no_fnmatch_line("TOO SLOW: *::test_waits *")


def test_a_shared_fixture_counts_by_itself(pytester: pytest.Pytester) -> None:
    text = """
import pytest

@pytest.fixture(scope="module")
def shared():
    burn()

def test_first(shared):
    pass
"""
    result = run_inner(pytester, text, limit=0.2)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["TOO SLOW: fixture shared of *"])
    result.stdout.no_fnmatch_line("TOO SLOW: *::test_first *")


def test_every_entry_goes_into_a_file(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST.format(limit=None).replace("10)", "0, 'cpu.txt')"))
    pytester.makepyfile(BURN + TWO.format(mark=""))
    pytester._monkeypatch.setenv("PYTHONPATH", str(TESTS))
    assert pytester.runpytest_subprocess("-p", "no:cacheprovider").ret == 0
    lines = [line.split("\t") for line in (pytester.path / "cpu.txt").read_text(encoding="utf-8").splitlines()]
    assert [name.rpartition("::")[2] for _, name in lines] == ["test_slow", "test_quick"]
    assert float(lines[0][0]) >= 0.3 > float(lines[1][0])


def test_a_slower_machine_has_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = watch.Watch(limit=5.0, slowest=10)
    plugin.entries = [watch.Entry("quick", 4.0, True), watch.Entry("slow", 12.0, True), watch.Entry("marked", 99.0, False)]
    monkeypatch.setattr(watch, "machine_factor", lambda: 1.0)
    assert [entry.name for entry in plugin.too_slow()] == ["slow"]
    monkeypatch.setattr(watch, "machine_factor", lambda: 3.0)
    assert plugin.too_slow() == []
    monkeypatch.setattr(watch, "machine_factor", lambda: 1.0)
    plugin.entries = [watch.Entry("while others ran", 12.0, True, factor=3.0)]
    assert plugin.too_slow() == []


def test_the_machine_is_measured_beside_a_test_above_the_limit(pytester: pytest.Pytester) -> None:
    """What is slow because of its neighbors is measured beside them, not at the end."""
    pytester.makeconftest(
        CONFTEST.format(limit=0.01) + "factors = iter([1000.0])\nwatch.machine_factor = lambda: next(factors, 1.0)\n"
    )
    pytester.makepyfile(BURN + TWO.format(mark=""))
    pytester._monkeypatch.setenv("PYTHONPATH", str(TESTS))
    pytester._monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    assert pytester.runpytest_subprocess("-p", "no:cacheprovider").ret == 0


def test_random_examples_are_the_same_in_each_run_and_have_no_deadline() -> None:
    """Every use of hypothesis reports it: by chance, or on a busy machine, no run differs from another."""
    users = [
        path
        for path in TESTS.rglob("*.py")
        if re.search(r"^(from|import) hypothesis", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert users
    for path in users:
        text = path.read_text(encoding="utf-8")
        for needed in ("derandomize=True", "deadline=None", "HealthCheck"):
            assert needed in text, (path, needed)
        for place in re.finditer(r"^( *)@given", text, re.MULTILINE):
            assert re.search(r"@(STEADY|BOUNDED|settings\(STEADY, .*\))\n\s*$", text[: place.start()]), (
                path,
                "@given without settings",
            )


def test_a_generator_that_tests_share_begins_anew_in_each() -> None:
    """Which tests run before another in its process is chance: workers take them as they come."""
    shared = re.compile(r"^(\w+)(?:: .*?)? = (?:np\.)?random\.(?:default_rng|Random)\([^()]*\)$", re.MULTILINE)
    found = [
        (path, match[1])
        for path in TESTS.rglob("*.py")
        if path.parent.name not in ("scripts", "programs")
        for match in shared.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found
    for path, name in found:
        assert "def same_numbers() -> None:" in path.read_text(encoding="utf-8"), f"{path}: {name} goes on from test to test"


def test_no_wait_is_given_up_that_a_busy_machine_could_need() -> None:
    """What is waited for comes in milliseconds; who waits less than two minutes for it takes a busy machine for a hung program."""
    short = re.compile(r"(?:timeout=|\.(?:join|wait|result|exception|acquire)\()(?:[1-9]\d|1[01]\d)(?:\.0)?[,)]")
    found = [
        f"{path.relative_to(TESTS)}: {match[0]}"
        for path in TESTS.rglob("*.py")
        if "in_virtual_time" not in (text := path.read_text(encoding="utf-8"))
        for match in short.finditer(text)
    ]
    assert found == []


# ---- tools ----

MISSING = """
import tools

tools.TOOLS["sky hook"] = tools.Tool(lambda: None, "a sky", required={required})

def test_one():
    tools.need("sky hook")

def test_two():
    tools.need("sky hook")

def test_there():
    assert tools.need("cc")
"""


def test_the_end_says_once_what_to_install(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(tools.REQUIRE_ALL, raising=False)
    result = run_inner(pytester, MISSING.format(required=True))
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(["2 tests were skipped: needs sky hook, *to have it: a sky"])


def test_the_end_names_every_other_reason_in_one_line(pytester: pytest.Pytester) -> None:
    text = """
import pytest

@pytest.mark.skipif(True, reason="no fork here")
@pytest.mark.parametrize("number", range(3))
def test_marked(number):
    pass

def test_called():
    pytest.skip("not as root")
"""
    result = run_inner(pytester, text)
    result.assert_outcomes(skipped=4)
    result.stdout.fnmatch_lines(["3 tests were skipped: no fork here", "1 test was skipped: not as root"])


@pytest.mark.parametrize("required", [True, False])
def test_where_everything_has_to_run_a_missing_tool_fails(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, required: bool
) -> None:
    monkeypatch.setenv(tools.REQUIRE_ALL, "1")
    result = run_inner(pytester, MISSING.format(required=required))
    result.assert_outcomes(passed=1, failed=2 if required else 0, skipped=0 if required else 2)


def test_a_name_on_the_path_is_no_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As rustup's proxy without a toolchain: its name is found, and it fails."""
    proxy = tmp_path / "rustc"
    proxy.write_text("#!/bin/sh\necho 'error: no default toolchain' >&2\nexit 1\n", encoding="utf-8")
    proxy.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(tools.REQUIRE_ALL, "1")
    monkeypatch.setattr(tools, "_found", lambda name: tools.TOOLS[name].find())
    assert tools._path("rustc") == str(proxy)
    assert tools._rust() is None
    with pytest.raises(pytest.skip.Exception, match="needs rustc, which does not run here; to have it: Rust"):
        tools.need("rustc")
    assert not tools.runs([tmp_path / "absent"])


def test_tools_are_found_in_one_place() -> None:
    others = [path for path in TESTS.rglob("*.py") if path.name not in ("tools.py", Path(__file__).name)]
    assert [str(path) for path in others if "shutil.which" in path.read_text(encoding="utf-8")] == []


# ---- the lowest versions ----


def test_every_lower_bound_becomes_a_constraint() -> None:
    script = runpy.run_path(str(ROOT / "tools" / "lowest_versions.py"))
    lowest_versions, project = script["lowest_versions"], script["read_project"](ROOT / "pyproject.toml")
    names = {line.split("==")[0] for line in lowest_versions(project)}
    assert {"numpy", "onnx", "onnxruntime", "httptools", "grpcio"} <= names
    old = {**project, "dependencies": ["numpy>=1.5; python_version < '3.11'"]}
    assert next(lowest_versions(old)) == "numpy==1.5; python_version < '3.11'"
    with pytest.raises(SystemExit, match="'numpy' has no lower bound"):
        list(lowest_versions({**project, "dependencies": ["numpy"]}))


def test_variables_of_the_makefile_reach_the_tests() -> None:
    """``conftest.py`` removes every other variable of ours, also one that ``make soak`` sets."""
    kept = re.search(r"_OF_THE_SUITE = \{(.*?)\}", (TESTS / "conftest.py").read_text(encoding="utf-8"), re.DOTALL)
    assert kept is not None
    given = set(re.findall(r"\b(ANYNPU_\w+)=", (ROOT / "Makefile").read_text(encoding="utf-8")))
    read = {
        name
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"environ\.get\(\"(ANYNPU_\w+)", path.read_text(encoding="utf-8"))
    }
    assert "ANYNPU_EP_SESSIONS" in given & read
    assert (given & read) - set(re.findall(r"\"(\w+)\"", kept[1])) == set()
