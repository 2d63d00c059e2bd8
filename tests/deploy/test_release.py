"""What makes a release: the rule for versions, the workflows, the action, and what is run on every wheel."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools import need

from anynpu.cli.demo.samples import write_samples

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))

import release_check  # noqa: E402
import wheel_test  # noqa: E402

OLD = "## 0.1.0 - 2026-01-01\n"


@pytest.mark.parametrize(
    ("tag", "version", "changelog", "words"),
    [
        ("v0.2.0", "0.2.0", f"## 0.2.0 - 2026-02-01\n### Added\n- x\n{OLD}", ""),
        ("v0.1.1", "0.1.1", f"## 0.1.1 - 2026-02-01\n### Fixed\n- x\n{OLD}", ""),
        ("v0.2.1", "0.2.0", f"## 0.2.0 - 2026-02-01\n{OLD}", "the tag v0.2.1 is not v0.2.0"),
        ("v0.3.0", "0.3.0", f"## 0.2.0 - 2026-02-01\n{OLD}", "is about 0.2.0, not about 0.3.0"),
        ("v0.2.0", "0.2.0", f"## 0.2.0 - unreleased\n{OLD}", "has no date"),
        ("v0.2.0", "0.2.0", "# Changelog\n", "has no section"),
        ("v0.1.1", "0.1.1", f"## 0.1.1 - 2026-02-01\n### Added\n- x\n{OLD}", "something was added"),
        ("v0.1.1", "0.1.1", f"## 0.1.1 - 2026-02-01\n### Removed\n- x\n{OLD}", "something was removed"),
        ("v0.1.0", "0.1.0", f"## 0.1.0 - 2026-02-01\n{OLD}", "does not come after"),
    ],
)
def test_version_tag_and_changelog_agree(tag: str, version: str, changelog: str, words: str) -> None:
    found = release_check.problems(tag, version, changelog)
    assert (words in " ".join(found)) if words else not found


def test_the_changelog_is_one_that_the_rule_reads() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = release_check.problems("v0.1.0", "0.1.0", changelog.replace("unreleased", "2026-01-01", 1))
    assert found == []


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", [".github/workflows/checks.yml", ".github/workflows/release.yml"])
def test_workflows_run_what_is_there(path: str) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert commands
    for command in commands:
        for target in re.findall(r"^make ([\w-]+)", command, re.MULTILINE):
            assert target in targets
        for file in re.findall(r"(?:tools|deploy|\.ci)/[\w./-]+", command):
            assert (ROOT / file).is_file(), file
    for job in workflow["jobs"].values():
        for needed in job.get("needs", ()):
            assert needed in workflow["jobs"]


def test_the_action_hands_every_input_to_its_script() -> None:
    action = read("action.yml")
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    for name in action["inputs"]:
        assert f"${{{{ inputs.{name} }}}}" in text
    for step in action["runs"]["steps"]:
        assert "${{" not in step["run"]  # what a stranger names a file must not become a command
    script = (ROOT / "deploy/github/check_model.sh").read_text(encoding="utf-8")
    for variable in action["runs"]["steps"][1]["env"]:
        assert f"${variable}" in script or f"${{{variable}" in script
    example = read("deploy/github/example-workflow.yml")["jobs"]["rk3588"]["steps"][-1]
    assert set(example["with"]) <= set(action["inputs"])


def test_wheels_are_for_old_glibc_and_one_for_all_pythons() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'wheel.py-api = "cp310"' in text
    table = text.partition("[tool.cibuildwheel]")[2].partition("\n[tool.")[0]
    assert 'build = "cp310-*"' in table
    assert table.count("manylinux_2_28") == 2
    assert "tools/wheel_test.py" in table


def test_what_runs_on_every_wheel_passes_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert wheel_test.main() == 0
    assert "WRONG" not in capsys.readouterr().out


@pytest.mark.full
def test_the_script_of_the_action(tmp_path: Path) -> None:
    write_samples(tmp_path, pictures=3)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = {**os.environ, "PATH": path, "RUNNER_TEMP": str(tmp_path), "MODEL": "yolo.onnx", "TARGET": "rk3588"}
    if not any(Path(folder, "anynpu").is_file() for folder in path.split(os.pathsep)):
        pytest.fail("the environment of the tests has no anynpu command")

    def script(**more: str) -> subprocess.CompletedProcess[str]:
        command = [need("bash"), str(ROOT / "deploy/github/check_model.sh")]
        return subprocess.run(command, cwd=tmp_path, env={**variables, **more}, capture_output=True, text=True, check=False)

    given = {"DATASET": "street", "OPTIONS": "--std 255,255,255"}
    done = script(**given, BELOW="cosine=0.5")
    assert done.returncode == 0, done.stderr
    assert "wrote " in done.stdout
    assert script(**given, BELOW="snr=150").returncode == 3
    assert script(TARGET="rk9999").returncode == 2
