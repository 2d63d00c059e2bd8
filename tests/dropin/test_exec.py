"""``anynpu exec`` and ``anynpu lib`` from the outside: a program on a board that is not there."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anynpu.cli.app import run as run_cli
from anynpu.dropin.environment import include_folder, library_folder

from .conftest import Models
from .running import build, clean_environment, run

COMMAND = [sys.executable, "-m", "anynpu.cli"]


def execute(
    *arguments: str | Path, code: int | None = 0, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    changed = clean_environment(ANYNPU_PYTHON=None, LD_LIBRARY_PATH=None, **environment)
    return run([*COMMAND, "exec", *arguments], changed, code=code, cwd=cwd)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("system")
    (folder / "plugins").mkdir()
    build("plugin.c", folder / "plugins" / "libplugin.so", "-shared", "-fPIC", library=None)
    return build("system.c", folder / "system", "-Wl,-rpath,$ORIGIN/plugins", library=None)


@pytest.fixture(scope="module")
def infer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("infer.c", tmp_path_factory.mktemp("infer") / "infer")


def test_a_program_finds_a_board(system: Path, tmp_path: Path) -> None:
    done = execute("--chip", "rk3588", "--", system, cwd=tmp_path)
    assert done.stdout.splitlines() == [
        "anynpu,rk3588-virtual|rockchip,rk3588|",
        "anynpu virtual board (rk3588)|",
        "RKNPU driver: v0.9.8",
        "NPU load:  Core0:  0%, Core1:  0%, Core2:  0%,",
    ]


@pytest.mark.full
def test_other_languages_find_it_too(tmp_path: Path) -> None:
    path = "/proc/device-tree/compatible"
    program = build("stream.cpp", tmp_path / "stream", compiler="c++", library=None)
    for command in ([program, path], [sys.executable, "-c", "import sys; sys.stdout.write(open(sys.argv[1]).read())", path]):
        assert execute("--chip", "rk3566", "--", *command).stdout == "anynpu,rk3566-virtual\0rockchip,rk3566\0"


def test_another_chip_has_another_board(system: Path) -> None:
    assert execute("--chip", "rv1106", "--", system, "load").stdout == "NPU load:  0%\n"


@pytest.mark.full
def test_the_exit_status_is_the_programs_own(system: Path) -> None:
    execute("--", system, "exit", code=42)
    execute("--", system, "signal", code=-signal.SIGTERM)


def test_arguments_and_output_pass_through(tmp_path: Path) -> None:
    done = execute("--", sys.executable, "-c", "import sys; print(sys.argv[1:])", "--chip", "--", "-x")
    assert done.stdout == "['--chip', '--', '-x']\n"


@pytest.mark.parametrize(("name", "code"), [("no-such-program", 127), ("./plain.txt", 126)])
def test_a_program_that_cannot_run(tmp_path: Path, name: str, code: int) -> None:
    (tmp_path / "plain.txt").write_text("no program")
    done = execute("--", name, code=code, cwd=tmp_path)
    assert name in done.stderr
    assert "hint:" in done.stderr


def test_a_program_that_is_not_for_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "wrong"
    path.write_bytes(b"\x7fELF" + bytes(60))
    path.chmod(0o755)
    assert "cannot be executed" in execute("--", path, code=126).stderr


@pytest.mark.full
def test_a_program_links_and_runs(infer: Path, models: Models) -> None:
    assert execute("--chip", "rk3588", "--", infer, models.small, "2").stdout == "0\n1\n"
    assert execute("--", infer, models.small, "1").stdout == "0\n"  # the chip of the model


@pytest.mark.full
def test_the_version_that_the_library_states(models: Models) -> None:
    source = "import sys; from anynpu.rknn import Context; print(Context(sys.argv[1]).version.api)"
    program = (sys.executable, "-c", source, models.small)
    assert execute("--chip", "rk3588", "--api-version", "1.6.0", "--", *program).stdout.startswith("1.6.0 (")
    assert "not a version" in execute("--api-version", "newest", "--", *program, code=2).stderr


@pytest.mark.full
def test_the_wrong_chip_is_refused_and_the_log_says_why(infer: Path, models: Models) -> None:
    done = execute("--chip", "rk3566", "--", infer, models.small, "1", code=1, RKNN_LOG_LEVEL="0")
    assert re.search(
        r"^E RKNN: \[\d\d:\d\d:\d\d\.\d{3}\] rknn_init: the model was compiled for rk3588, this is rk3566 .*-13\)$",
        done.stderr,
        re.MULTILINE,
    )


@pytest.mark.full
def test_the_log_level_decides_what_is_printed(infer: Path, models: Models) -> None:
    assert execute("--", infer, models.small, "1", RKNN_LOG_LEVEL="-1").stderr == ""
    for level in ({}, {"RKNN_LOG_LEVEL": "0"}):
        assert execute("--", infer, models.small, "1", **level).stderr.count("\n") == 1  # the wrong mask at the end
    loud = execute("--", infer, models.small, "1", RKNN_LOG_LEVEL="5").stderr
    assert "I RKNN: " in loud
    assert "D RKNN: " in loud
    assert "rknn_set_core_mask(context=0x10000001, core_mask=RKNN_NPU_CORE_0) = 0" in loud


def test_the_call_log_for_readers(infer: Path, models: Models, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    execute("--log", log, "--", infer, models.small, "1")
    lines = log.read_text().splitlines()
    names = [re.match(r"\d+\.\d{6} \d+ (\w+)\(", line)[1] for line in lines]  # type: ignore[index]
    assert names == [
        "rknn_init",
        "rknn_query",
        "rknn_set_core_mask",
        "rknn_inputs_set",
        "rknn_run",
        "rknn_outputs_get",
        "rknn_outputs_release",
        "rknn_set_core_mask",
        "rknn_destroy",
    ]
    assert all(re.search(r" = -?\d+.* \[\d+\.\d us\]", line) for line in lines)
    assert "inputs={index=0, buf=0x" in lines[3]
    assert "type=RKNN_TENSOR_UINT8, fmt=RKNN_TENSOR_NHWC" in lines[3]
    assert "= -5 RKNN_ERR_PARAM_INVALID" in lines[7]
    assert "core mask 64 is not possible" in lines[7]


@pytest.mark.full
def test_the_call_log_for_programs_and_the_trace(infer: Path, models: Models, tmp_path: Path) -> None:
    log, trace = tmp_path / "calls.jsonl", tmp_path / "trace.json"
    for _ in range(2):  # a second run does not add to the first
        execute("--log", log, "--log-format", "json", "--trace", trace, "--", infer, models.small, "1")
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(calls) == 9
    assert calls[0]["call"] == "rknn_init"
    assert calls[0]["arguments"]["context"] == "0x10000001"
    assert calls[0]["us"] > 0
    assert (calls[7]["result"], calls[7]["code"]) == (-5, "RKNN_ERR_PARAM_INVALID")
    assert "why" in calls[7]
    slices = json.loads(trace.read_text().rstrip().rstrip(",") + "]")
    assert [entry["name"] for entry in slices] == [call["call"] for call in calls]
    assert all(entry["ph"] == "X" and entry["dur"] >= 0 for entry in slices)


@pytest.mark.full
def test_the_log_on_stderr(infer: Path, models: Models) -> None:
    assert execute("--log", "-", "--", infer, models.small, "1").stderr.count(" rknn_run(") == 1


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def called(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            run_cli(list(arguments))
        assert ended.value.code in (0, None)
        return capsys.readouterr().out

    return called


def test_lib_says_where_things_are(cli: Callable[..., Any]) -> None:
    assert cli("lib", "--path") == f"{library_folder()}\n"
    assert cli("lib", "--include") == f"{include_folder()}\n"
    assert cli("lib", "--cflags") == f"-I{include_folder()}\n"
    assert cli("lib", "--libs", "--library", "rknnmrt").rstrip().endswith("-lrknnmrt")
    assert "find_package(anynpu)" in cli("lib")


def test_a_program_runs_without_exec(cli: Callable[..., str], models: Models, tmp_path: Path) -> None:
    """The library finds its Python by what `anynpu lib` left beside it, or by its own place."""
    flags = cli("lib", "--libs").split()
    program = build("infer.c", tmp_path / "infer", *flags)
    done = run([program, models.small, "1"], clean_environment(ANYNPU_PYTHON=None, LD_LIBRARY_PATH=None))
    assert done.stdout == "0\n"
