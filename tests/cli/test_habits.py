"""What all commands have in common: --json, -q and -v, help without numpy, narrow terminals, messages in the words of the command line."""

from __future__ import annotations

import inspect
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from anynpu import chips
from anynpu.cli.app import COMMANDS, GROUPS, _first_sentence, _function, app
from anynpu.cli.helpers import console
from anynpu.cli.helpers.compile_summary import story
from anynpu.cli.helpers.console import plain_table
from anynpu.cli.helpers.option_names import as_options
from anynpu.errors import CompileError
from anynpu.vendors import registry

Invoke = Callable[..., Any]

WITHOUT_JSON = {"exec"}
"""Its output is the program's."""


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_says_what_a_command_says_itself(name: str) -> None:
    assert COMMANDS[name] == _first_sentence(_function(name))


def test_the_help_lists_the_commands_of_vendors(invoke: Invoke) -> None:
    listed = invoke("--help").out
    for vendor in registry.all_vendors():
        for name in vendor.commands:
            assert f"  {name} " in listed


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in WITHOUT_JSON])
def test_every_command_has_json(invoke: Invoke, name: str) -> None:
    assert "--json" in invoke(name, "--help").out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_quiet_and_verbose(name: str, invoke: Invoke) -> None:
    text = invoke(name, "--help").out
    assert "-q, --quiet" in text
    assert "-v, --verbose" in text
    assert not {"quiet", "verbose"} & set(inspect.signature(_function(name) or print).parameters)


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_need_no_numpy(option: str) -> None:
    program = (
        "import sys; sys.modules['numpy'] = None\n"
        f"from anynpu.cli.app import run\ntry:\n    run(['{option}'])\nexcept SystemExit as end:\n    assert not end.code, end.code"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "anynpu" in done.stdout


def test_commands_that_compile_nothing_load_no_compiler() -> None:
    program = (
        "import sys\nsys.modules['anynpu.compiler.pipeline'] = None\n"
        "from anynpu.cli.commands import doctor, exec, replay, selftest, serve, top\nprint('all of them')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "all of them\n", done.stderr


def test_quiet_leaves_progress_and_notes_out(invoke: Invoke, model_path: Path, tmp_path: Path) -> None:
    outcome = invoke("compile", model_path, "-o", tmp_path / "a.rknn", "-t", "rk3588", "--dtype", "fp16", "-q")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("wrote ")
    assert "compiling" in invoke("compile", model_path, "-o", tmp_path / "a.rknn", "-t", "rk3588", "--dtype", "fp16").err


def test_verbose_says_where_an_error_came_from(invoke: Invoke, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(b"\x00\x01")
    assert "Traceback" not in invoke("inspect", damaged).err
    assert "Traceback" in invoke("inspect", damaged, "-v").err


def test_the_log_of_a_command_ends_with_it(invoke: Invoke, model_path: Path) -> None:
    before = list(logging.getLogger("anynpu").handlers)
    assert invoke("inspect", model_path, "-v").code == 0
    assert logging.getLogger("anynpu").handlers == before


def test_compile_as_json(invoke: Invoke, model_path: Path, pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.rknn"
    outcome = invoke("compile", model_path, "-o", out, "-t", "rk3588", "--dataset", pictures, "--std", "255,255,255", "--json")
    data = json.loads(outcome.out)
    assert (data["path"], data["bytes"], data["chip"]) == (str(out), out.stat().st_size, "rk3588")
    assert data["accuracy"][0].startswith("ranges: ")
    assert data["programs"][0]["layers"]


def test_lib_as_json(invoke: Invoke) -> None:
    data = json.loads(invoke("lib", "--json", "--library", "rga").out)
    assert data["libs"].endswith("-lrga")
    assert Path(data["headers"]).is_dir()


def test_a_missing_chip_gets_the_list(invoke: Invoke, model_path: Path, tmp_path: Path) -> None:
    for arguments in (("calibrate", model_path), ("calibrate", "-o", tmp_path / "a.json")):
        outcome = invoke(*arguments)
        assert outcome.code == 2
        assert ", ".join(chips.names()) in " ".join(outcome.err.split())


def test_a_folder_in_place_of_a_file_says_what_is_in_it(invoke: Invoke, model_path: Path, pictures: Path) -> None:
    outcome = invoke("inspect", model_path.parent)
    assert outcome.code == 2
    assert f"name a file in it: {model_path}" in outcome.err
    assert "is a folder without models" in invoke("inspect", pictures).err


@pytest.mark.parametrize(
    "arguments",
    [
        ("compile", "MODEL", "-t", "rk3588", "--dtype", "fp16", "--output", "PLACE"),
        ("profile", "MODEL", "--html", "PLACE"),
        ("compare", "MODEL", "MODEL", "--html", "PLACE"),
        ("predict", "MODEL", "--plot", "PLACE"),
    ],
)
def test_where_results_go_is_checked_before_the_work(
    invoke: Invoke, model_path: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    place = tmp_path / "none" / "result"
    outcome = invoke(*({"MODEL": model_path, "PLACE": place}.get(word, word) for word in arguments))
    assert outcome.code == 2
    assert f"there is no folder {place.parent}" in outcome.err
    assert "compiling" not in outcome.err


def test_a_folder_that_may_not_be_written_to(
    invoke: Invoke, model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: False if path == tmp_path and mode == os.W_OK else may(path, mode))
    outcome = invoke("profile", model_path, "--html", tmp_path / "page.html")
    assert (outcome.code, "may not be written to" in outcome.err) == (2, True)


def test_shapes_are_taken_as_they_are_printed(invoke: Invoke, dynamic_path: Path) -> None:
    outcome = invoke("check", dynamic_path, "-t", "rk3588", "--shape", "images=1x3x16x16")
    assert outcome.code == 0, outcome.err


def test_messages_name_options(invoke: Invoke, model_path: Path, tmp_path: Path) -> None:
    outcome = invoke("compile", model_path, "-o", tmp_path / "a.rknn", "-t", "rk3588")
    assert outcome.code == 1
    assert "--dataset FOLDER" in outcome.err
    assert "dataset=" not in outcome.err


def test_words_of_python_become_words_of_the_command_line() -> None:
    error = CompileError("no shape", hint="choose one: --shape x=1,3, or shapes={'x': (1, 3)}")
    assert as_options(str(error)).endswith("choose one: --shape x=1,3")
    assert as_options("custom_ops=['A'], or --custom-op A") == "--custom-op A"
    assert as_options("use dtype='fp16'") == "use --dtype fp16"
    assert as_options("images=1,3,8,8 is no shape") == "images=1,3,8,8 is no shape"


@pytest.mark.parametrize(("width", "last"), [(60, "internal"), (80, "note"), (200, "note")])
def test_narrow_tables_keep_their_first_columns(width: int, last: str, capsys: pytest.CaptureFixture[str]) -> None:
    counts = ("layers", "on CPU", "MACs", "weights", "internal")
    table = plain_table("chip", *counts, "note", right=counts)
    for chip in ("rk3588", "rv1103"):
        table.add_row(chip, "149", "2", "1.08 G", "984.9 kB", "1.3 MB", "MaxPool: kernel 9 is outside 1-7; MaxPool: kernel 13 is")
    shown = console._SafeConsole(width=width, markup=False, soft_wrap=True)
    shown.print(table)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[-1] == last
    assert [line.split()[:2] for line in lines if line.startswith("r")] == [["rk3588", "149"], ["rv1103", "149"]]
    assert max(map(len, lines)) <= width
    assert ("left out, the terminal is too narrow: note" in lines) is (width == 60)


def test_an_unknown_command_gets_a_suggestion(invoke: Invoke) -> None:
    outcome = invoke("compil")
    assert (outcome.code, "did you mean compile?" in outcome.err) == (2, True)


def _completed(words: str) -> list[str]:
    variables = {"_ANYNPU_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    command = [sys.executable, "-c", "from anynpu.cli import main; main()"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **variables})
    return done.stdout.split()


def test_the_shell_completes_commands_and_chips(invoke: Invoke) -> None:
    assert _completed("anynpu comp") == ["compile", "compare", "completion"]
    assert "rk3588" in _completed("anynpu check -t rk35")
    assert "_ANYNPU_COMPLETE" in invoke("completion", "bash").out


def test_notes_of_the_compiler_are_sentences(compiled_path: Path) -> None:
    import dataclasses

    import anynpu

    model = anynpu.load(compiled_path)
    layer = model.programs[0].layers[0]
    tensor = layer.outputs[0]
    notes = {
        "accuracy": f"ranges: minmax; groups: {tensor} in 2, noise 1/25, +2.0 % time (float16: +0.0 %); "
        f"groups: not {tensor} in 4, noise 1/9, +30.0 % time; refit: left out, no convolution to fit",
        "warnings": f"error: {tensor}: its channels differ 300 times in range",
    }
    fitted = "refit: 3 convolutions, cosine 0.9 -> 0.95 on 6 samples held out and 6 perturbed copies (minmax, 2 groups)"
    (line,) = story(dataclasses.replace(model, provenance={"accuracy": fitted}))
    assert line.split() == ["weights", *["3", "convolutions", "fitted", "to", "rounded", "inputs:"], *fitted.split()[3:]]
    lines = story(dataclasses.replace(model, provenance=notes))
    assert [line.split()[0] for line in lines] == ["ranges", "scales", "cost", "weights", "cost", "look"]
    assert not any(re.search(r"error:|noise 1/|groups: ", line) for line in lines)
    assert all(layer.name in line for line in lines if line.split()[0] in ("scales", "cost", "look"))


def test_every_command_is_in_one_group_of_the_help() -> None:
    named = [name for names in GROUPS.values() for name in names]
    assert sorted(named) == sorted([*COMMANDS, "vpm-run"])
    shown = CliRunner().invoke(app, ["--help"]).output
    places = [shown.index(f"\n{title}:\n") for title in GROUPS]
    assert places == sorted(places)
    for title, names in GROUPS.items():
        part = shown.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
        assert tuple(re.findall(r"^  (\S+)", part, re.MULTILINE)) == names
