"""rapidocr-onnxruntime, another project's package, reads the same text on ten pages on onnxruntime and under ``exec --onnxruntime``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools import need_module

pytestmark = pytest.mark.full  # three real networks, compiled for several widths

PROGRAM = Path(__file__).parent / "ocr_pages.py"
PAGES = 10
NEEDED = ("rapidocr_onnxruntime", "pyclipper", "shapely", "PIL", "tqdm", "yaml", "six")


def pages(before: list[str], cache: Path) -> list[list[str]]:
    environment = {**os.environ, "ANYNPU_CACHE": str(cache), "ORT_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(
        [*before, sys.executable, str(PROGRAM), str(PAGES)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[list[str]] = json.loads(done.stdout)
    return found


def test_it_reads_the_same_text(tmp_path: Path) -> None:
    for name in NEEDED[1:]:  # its own import would load onnxruntime into this process
        need_module(name)
    theirs = pages([], tmp_path)
    exec_ = [sys.executable, "-m", "anynpu.cli", "exec", "--chip", "rk3588", "--onnxruntime", "--float16", "--"]
    ours = pages(exec_, tmp_path)
    assert list(tmp_path.glob("onnx/*.rknn")), "nothing was compiled"
    assert ours == theirs
    assert len(theirs) == PAGES
    assert all(len(lines) == 4 for lines in theirs)
    assert theirs[0][0].replace(" ", "") == "Thequickbrownfox"
