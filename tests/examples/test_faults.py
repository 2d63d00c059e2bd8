"""The example programs that handle every code, each against a plan that produces all of them, and the options of the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dropin.running import board_environment, build, run
from rknn.support import picture_model
from typer.testing import CliRunner
from vip.support import small_model

from anynpu.cli.app import app
from anynpu.devtools.faults import read_plan
from anynpu.rknn.constants import Code
from anynpu.vip.constants import vip_status_e

FOLDER = Path(__file__).parents[2] / "examples" / "faults"


@pytest.mark.parametrize(
    ("program", "plan", "library", "chip", "codes"),
    [
        ("handle_codes.c", "rknn.json", "rknnrt", "rk3588", [code.name for code in Code if code < 0]),
        ("handle_status.c", "viplite.json", "NBGlinker", "a733", [status.name for status in vip_status_e if status < 0]),
    ],
)
def test_every_code_is_produced_and_handled(
    program: str, plan: str, library: str, chip: str, codes: list[str], tmp_path: Path
) -> None:
    assert sorted(str(fault.code) for fault in read_plan(FOLDER / plan).faults) == sorted(codes)
    model = (picture_model if chip == "rk3588" else small_model)(chip).save(tmp_path / "model.rknn")
    built = build(str(FOLDER / program), tmp_path / "program", library=library)
    environment = board_environment(chip) | {"ANYNPU_FAULTS": str(FOLDER / plan), "ANYNPU_SANITIZE": "1"}  # which is silent
    lines = [line for line in run([built, model], environment).stdout.splitlines() if not line.startswith("VIPLite driver")]
    assert sorted(line.partition(":")[0] for line in lines[:-1]) == sorted(codes)
    assert lines[-1].endswith("runs done")


def test_the_command_line_refuses_what_is_no_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"fault": [{"kind": "earthquake"}]}))
    model = picture_model().save(tmp_path / "model.rknn")
    for command in (["exec", "--faults", str(path), "--", "true"], ["bench", str(model), "--faults", str(path)]):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 2, done.output
        assert "earthquake" in done.output
