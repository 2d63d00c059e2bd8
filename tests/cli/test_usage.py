"""Help, version, exit status and wrong usage, for every command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tools import need

from anynpu.cli.helpers import console

Invoke = Callable[..., Any]

COMMANDS = ("compile", "check", "inspect", "lint", "optimize", "run", "exec", "lib", "serve", "cluster", "demo", "samples")


def test_help_lists_every_command(invoke: Invoke) -> None:
    outcome = invoke("--help")
    assert outcome.code == 0
    for command in COMMANDS:
        assert f"  {command} " in outcome.out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_has_an_example(invoke: Invoke, command: str) -> None:
    outcome = invoke(command, "--help")
    assert outcome.code == 0
    example = outcome.out.partition("Example:\n")[2].splitlines()[0]
    assert example.strip().startswith(f"anynpu {command}")


def test_without_a_command_it_prints_help(invoke: Invoke) -> None:
    outcome = invoke()
    assert outcome.code == 2
    assert "Usage: anynpu" in outcome.out + outcome.err


def test_version(invoke: Invoke) -> None:
    outcome = invoke("--version")
    assert outcome.code == 0
    assert outcome.out.startswith("anynpu ")


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_option_is_wrong_usage(invoke: Invoke, command: str) -> None:
    outcome = invoke(command, "--nonsense")
    assert outcome.code == 2
    assert "--nonsense" in outcome.err
    assert outcome.out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("compile", "absent.onnx", "-o", "out.rknn", "--target", "rk3588"),
        ("check", "absent.onnx", "--target", "all"),
        ("inspect", "absent.onnx"),
        ("run", "absent.onnx"),
    ],
)
def test_a_missing_file_is_wrong_usage(invoke: Invoke, arguments: tuple[str, ...]) -> None:
    outcome = invoke(*arguments)
    assert outcome.code == 2
    assert "absent.onnx" in outcome.err
    assert "does not exist" in outcome.err


@pytest.mark.parametrize("command", ["compile", "check", "demo"])
def test_an_unknown_chip_is_wrong_usage_and_gets_a_suggestion(
    invoke: Invoke, command: str, model_path: Path, tmp_path: Path
) -> None:
    arguments = {
        "compile": [model_path, "-o", tmp_path / "out.rknn"],
        "check": [model_path],
        "demo": ["--output", tmp_path / "demo"],
    }[command]
    outcome = invoke(command, *arguments, "--target", "rk3589")
    assert outcome.code == 2
    assert "'rk3589'" in outcome.err
    assert "did you mean rk3588" in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_chip_of_run(invoke: Invoke, compiled_path: Path) -> None:
    outcome = invoke("run", compiled_path, "--target", "rk3589")
    assert outcome.code == 2
    assert "did you mean rk3588" in outcome.err


def test_a_missing_command_line_package_names_the_pip_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import anynpu.cli

    monkeypatch.delitem(sys.modules, "anynpu.cli.app", raising=False)
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit) as exit_info:
        anynpu.cli.main()
    assert exit_info.value.code == 1
    assert "pip install typer rich" in capsys.readouterr().err


def test_a_missing_extra_names_the_pip_line(invoke: Invoke, model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    outcome = invoke("inspect", model_path)
    assert outcome.code == 1
    assert outcome.err.splitlines()[1] == "  hint: in a clone of anynpu: pip install '.[sim]'"


def test_an_interrupt_exits_with_130(invoke: Invoke, model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("anynpu.cli.commands.inspect.describe", interrupted)
    assert invoke("inspect", model_path).code == 130


def test_a_file_system_error_is_one_line(invoke: Invoke, model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "small.onnx")

    monkeypatch.setattr("anynpu.cli.commands.inspect.describe", full)
    outcome = invoke("inspect", model_path)
    assert outcome.code == 1
    assert outcome.err == "error: small.onnx: No space left on device\n"


def test_a_closed_pipe_is_quiet(model_path: Path) -> None:
    command = f"{sys.executable} -m anynpu.cli inspect {model_path} --json | true"
    done = subprocess.run([need("bash"), "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_a_process_reports_its_status(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(b"\x00\x01\x02")
    done = subprocess.run(
        [sys.executable, "-m", "anynpu.cli", "inspect", str(damaged)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "\n  hint: " in done.stderr


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 kB"), (1_572_864, "1.5 MB")])
def test_sizes_are_readable(count: int, text: str) -> None:
    assert console.size_text(count) == text


@pytest.mark.parametrize("name", ["--target", "--chip", "-t"])
def test_the_chip_has_the_same_names_everywhere(
    invoke: Invoke, model_path: Path, pictures: Path, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "small.rknn"
    assert invoke("compile", model_path, "-o", out, name, "rk3588", "--dtype", "fp16").code == 0
    for command in ("check", "predict", "profile", "report"):
        assert invoke(command, model_path, name, "rk3588").code == 0, command
    for command in ("run", "inspect"):
        assert invoke(command, out, name, "rk3588").code == 0, command
    assert invoke("lint", model_path, "--dataset", pictures, name, "rk3588").code == 0
    assert invoke("exec", name, "rk3588", "--", "no-such-program").code == 127


def test_commands_that_take_one_chip_have_the_same_default(invoke: Invoke, model_path: Path, tmp_path: Path) -> None:
    assert "rk3588" in invoke("check", model_path).out
    assert "rk3588" in invoke("profile", model_path).out
    outcome = invoke("compile", model_path, "-o", tmp_path / "x.rknn", "--dtype", "fp16")
    assert outcome.code == 0
    assert "for rk3588" in outcome.err


def test_the_name_of_an_option_is_no_value(
    invoke: Invoke, model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (("exec", "--trace", "--", "true"), ("profile", model_path, "--html", "--json")):
        outcome = invoke(*arguments)
        assert outcome.code == 2
        assert "needs a value" in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_a_network_alone_is_shown(invoke: Invoke) -> None:
    assert invoke("models", "yolox-nano").out == invoke("models", "show", "yolox-nano").out
    assert "yolox-nano" in invoke("models", "yolox-nano").out
    assert invoke("models", "yolox-nano", "pose").code == 2


def test_lint_takes_the_channel_order(invoke: Invoke, model_path: Path, pictures: Path) -> None:
    assert invoke("lint", model_path, "--dataset", pictures, "--std", "255,255,255", "--channel-order", "bgr").code == 0


def test_profile_names_what_it_wrote(invoke: Invoke, model_path: Path, tmp_path: Path) -> None:
    page, trace = tmp_path / "page.html", tmp_path / "trace.json"
    outcome = invoke("profile", model_path, "--html", page, "--trace", trace)
    assert f"wrote {page}\nwrote {trace}\n" in outcome.out


def test_the_example_of_a_mean_is_in_pixels(invoke: Invoke, model_path: Path, tmp_path: Path) -> None:
    outcome = invoke("compile", model_path, "-o", tmp_path / "x.rknn", "--mean", "abc")
    assert outcome.code == 2
    assert "127.5,127.5,127.5" in outcome.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("compile", "MODEL", "-o", "--target", "rk3588"),
        ("compile", "MODEL", "-o", "x.rknn", "--dataset", "--std", "255"),
        ("compile", "MODEL", "-o", "x.rknn", "--target", "--dtype", "fp16"),
        ("compile", "MODEL", "-o", "x.rknn", "--target=--dtype", "fp16"),
        ("compile", "MODEL", "-o", "x.rknn", "--std", "--mean", "1"),
        ("compile", "MODEL", "-o", "x.rknn", "-t", "-v"),
        ("check", "MODEL", "--dtype", "--layers"),
        ("optimize", "MODEL", "-o", "--dataset", "street"),
        ("replay", "--model", "--json"),
        ("top", "--count", "--json"),
        ("lib", "-l", "--path"),
        ("exec", "--chip", "--", "true"),
        ("cluster", "MODEL", "--virtual", "--port", "1"),
    ],
)
def test_an_option_without_its_value_is_named(
    invoke: Invoke, model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    outcome = invoke(*(str(model_path) if argument == "MODEL" else argument for argument in arguments))
    assert outcome.code == 2
    assert "needs a value, and got" in outcome.err
    assert sorted(tmp_path.iterdir()) == before


def test_values_that_begin_with_one_dash_are_values(invoke: Invoke, model_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.rknn"
    assert invoke("compile", model_path, "-o", out, "--dtype", "fp16", "--mean", "-1,0,1").code == 0
    assert invoke("exec", "--chip", "rk3588", "--", "no-such-program", "--trace", "--log").code == 127
    assert invoke("exec", "--chip", "rk3588", "no-such-program", "--trace", "--log").code in (2, 127)


def test_a_file_that_does_not_exist_comes_with_names_like_it(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("yolo.onnx").write_bytes(b"")
    assert "did you mean yolo.onnx?" in invoke("check", "yol.onnx").err
    assert "did you mean yolo.onnx?" in invoke("check", "yolo.onxx").err
    assert "check the path" in invoke("check", "resnet50.tflite").err
    assert "there is no folder models" in invoke("check", "models/yolo.onnx").err


def test_wrong_values_come_without_words_of_the_parser(invoke: Invoke) -> None:
    shell, count = invoke("completion", "tcsh"), invoke("top", "--count", "many")
    assert (shell.code, count.code) == (2, 2)
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in shell.err
    assert "Value error" not in shell.err
    assert "takes an integer" in count.err


_CONTENTS = {
    "empty.onnx": (b"", "an empty file"),
    "photo.jpg": (b"\xff\xd8\xff\xe0" + bytes(40), "a JPEG image"),
    "pointer.onnx": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "a Git LFS pointer"),
    "page.onnx": (b"\n<!DOCTYPE html><html></html>", "a web page"),
    "archive.rknn": (b"PK\x03\x04" + bytes(40), "a ZIP archive"),
}


@pytest.mark.parametrize("name", _CONTENTS)
def test_every_command_names_what_a_file_is_that_holds_no_model(
    invoke: Invoke, model_path: Path, pictures: Path, tmp_path: Path, name: str
) -> None:
    content, words = _CONTENTS[name]
    file = tmp_path / name
    file.write_bytes(content)
    for arguments in (
        ("compile", file, "-o", tmp_path / "x.rknn", "--dtype", "fp16"),
        ("build", file, "-o", tmp_path / "out", "--dtype", "fp16"),
        ("check", file),
        ("lint", file, "--dataset", pictures),
        ("optimize", file, "-o", tmp_path / "x.onnx", "--dataset", pictures),
        ("export", file, "--qdq", tmp_path / "x.onnx", "--dataset", pictures),
        ("inspect", file),
        ("run", file),
        ("compare", file, model_path),
        ("compare", model_path, file),
        ("predict", file),
        ("profile", file),
        ("report", file),
        ("bench", file),
        ("serve", file, "--port", 0, "--grpc-port", -1),
        ("twin", file, "--onnx", model_path),
        ("doctor", file),
    ):
        outcome = invoke(*arguments)
        assert outcome.code == 1, arguments
        text = outcome.err + outcome.out
        assert words in text, (arguments, text)
        assert "hint" in text or "->" in text, (arguments, text)
        assert "\\n" not in text, (arguments, text)
        assert not outcome.err.startswith("\n"), arguments


def test_a_recording_and_a_folder_of_build_are_recognized(invoke: Invoke, tmp_path: Path) -> None:
    photo = tmp_path / "photo.jpg"
    photo.write_bytes(b"\xff\xd8\xff\xe0" + bytes(40))
    assert "photo.jpg is not a recording" in invoke("replay", photo).err
    folder = tmp_path / "empty"
    folder.mkdir()
    assert "empty is no folder of 'anynpu build'" in invoke("compare", folder).err
