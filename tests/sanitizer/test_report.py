"""Findings as they are reported: files, suppressions, and what a block raises."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from documentation import section

import anynpu
from anynpu.devtools.sanitizer import KINDS, Reporter, Suppressions
from anynpu.devtools.sanitizer.watch import Described, judge
from anynpu.errors import OptionError, SanitizerError

from .rknn_programs import Board, destroys_twice, forgets_a_context


def test_a_block_raises_what_was_found() -> None:
    board = Board()
    with pytest.raises(SanitizerError, match="double-destroy in rknn_destroy"), anynpu.sanitize():
        destroys_twice(board, True)
    with anynpu.sanitize():
        destroys_twice(board, False)


def test_an_error_of_the_block_is_not_hidden() -> None:
    def fail() -> None:
        destroys_twice(Board(), True)
        raise KeyError("mine")

    with pytest.raises(KeyError), anynpu.sanitize():
        fail()


def test_blocks_do_not_nest() -> None:
    with anynpu.sanitize(), pytest.raises(OptionError, match="on already"), anynpu.sanitize():
        pass


def test_a_finding_is_told_once() -> None:
    board = Board()
    with anynpu.sanitize(check=False) as found:
        for _ in range(3):
            forgets_a_context(board, True)
    assert [one.id for one in found.findings] == ["context-leak"]


def test_json_has_what_a_reader_needs(tmp_path: Path) -> None:
    board = Board()
    with anynpu.sanitize(check=False, report=tmp_path / "found.json"):
        destroys_twice(board, True)
    (one,) = json.loads((tmp_path / "found.json").read_text())["findings"]
    assert one["id"] == "double-destroy"
    assert one["call"] == "rknn_destroy"
    assert one["stack"][0]["function"] == "destroys_twice"
    assert one["stack"][0]["file"].endswith("rknn_programs.py")
    assert one["origin"]
    assert all(one[key] for key in ("title", "text", "board", "mend"))


def test_sarif_has_a_rule_and_a_place_for_each_result(tmp_path: Path) -> None:
    board = Board()
    with anynpu.sanitize(check=False, report=tmp_path / "found.sarif"):
        destroys_twice(board, True)
    log = json.loads((tmp_path / "found.sarif").read_text())
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    (result,) = run["results"]
    assert result["ruleId"] in [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"].startswith("file:///")
    assert place["region"]["startLine"] > 0


def test_a_report_without_findings_is_written(tmp_path: Path) -> None:
    with anynpu.sanitize(report=tmp_path / "found.json"):
        pass
    assert json.loads((tmp_path / "found.json").read_text())["findings"] == []


@pytest.mark.parametrize("rule", ["double-destroy:destroys_twice", "*:rknn_programs.py", "double-*:rknn_destroy"])
def test_a_file_suppresses(tmp_path: Path, rule: str) -> None:
    (tmp_path / "rules").write_text(f"# known\n\n{rule}\n")
    board = Board()
    with anynpu.sanitize(suppressions=tmp_path / "rules") as found:
        destroys_twice(board, True)
    assert found.suppressed == 1


@pytest.mark.parametrize("line", ["double-destroy", "no-such-kind:main", "double-destroy:"])
def test_a_line_that_means_nothing_is_refused(line: str) -> None:
    with pytest.raises(OptionError, match="line 2"):
        Suppressions(["*:main", line])


def test_suppressions_are_text(tmp_path: Path) -> None:
    (tmp_path / "rules").write_bytes(b"\xff\xfe")
    with pytest.raises(OptionError, match="not text"):
        Suppressions.read(tmp_path / "rules")


def test_other_suppressions_do_not_hide(tmp_path: Path) -> None:
    board = Board()
    with anynpu.sanitize(check=False, suppressions=Suppressions(["memory-leak:*"])) as found:
        destroys_twice(board, True)
    assert len(found.findings) == 1


def test_processes_of_one_program_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    other = "import sys; from anynpu.devtools.sanitizer import Reporter; Reporter(path=sys.argv[1], run='r').add('core-mask', 'x', 'y')"
    subprocess.run([sys.executable, "-c", other, str(path)], check=True, timeout=600)
    Reporter(path=path, run="r").add("bad-argument", "call", "text")
    assert [one["id"] for one in json.loads(path.read_text())["findings"]] == ["core-mask", "bad-argument"]
    Reporter(path=path, run="another")
    assert json.loads(path.read_text())["findings"] == []


def test_the_page_has_a_row_for_each_kind() -> None:
    assert re.findall(r"^\| `([\w-]+)` \|", section("messages", "Sanitizer findings"), re.MULTILINE) == list(KINDS)


def test_data_without_structure_is_not_judged() -> None:
    rng = np.random.default_rng(1)
    said = Described("x", "uint8", (1, 3, 32, 32), True)
    scan = np.where(rng.random(3072) < 0.5, rng.integers(0, 12, 3072), rng.integers(243, 256, 3072)).astype(np.uint8)
    for data in (rng.integers(0, 256, 3072).astype(np.uint8), np.zeros(3072, np.uint8), np.full(3072, 255, np.uint8), scan):
        assert judge(data, said) is None
