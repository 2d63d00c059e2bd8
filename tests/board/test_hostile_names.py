"""Names of strangers' models in what a build writes: paths, scripts and lists of files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from anynpu.compiler import CompileOptions
from anynpu.compiler.board import build
from anynpu.compiler.board.build import COMMANDS, _commands
from anynpu.errors import CompileError


@pytest.mark.parametrize("name", ["a\ntouch owned\n", "../../owned", "a\\b", "-rf", ".hidden", "a\x1b[2J", "a\x00b"])
@pytest.mark.parametrize("target", ["rk3588", "a733"])
def test_a_name_that_is_more_than_a_name_is_refused(name: str, target: str, tmp_path: Path) -> None:
    """A line end in the name of a file became a line of the script that users run."""
    with pytest.raises(CompileError, match="cannot be the name"):
        build(b"never read", tmp_path, target, CompileOptions(), None, name=name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a\ntouch owned\n", "a'; touch owned; '", "$(touch owned)", "`touch owned`", "a b"])
def test_the_script_runs_nothing_but_the_toolkit(name: str, tmp_path: Path) -> None:
    script = tmp_path / COMMANDS
    script.write_text(_commands(name, "a733", "w8a8"), encoding="utf-8")
    environment = {**os.environ, "PEGASUS": "true", "VIV_SDK": "", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    (tmp_path / "python3").symlink_to("/bin/true")
    done = subprocess.run(["sh", str(script)], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == [COMMANDS, "python3"]
