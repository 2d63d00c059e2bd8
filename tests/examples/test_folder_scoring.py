"""The example that scores a folder: every image gets a row, with what a session gives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from tools import need_module

from anynpu import InferenceSession, make_provider_options

from .conftest import EXAMPLES

COUNT = 80


@pytest.mark.full
@pytest.mark.xdist_group("ray")
def test_every_picture_of_a_folder_is_scored(picture_model: Path, tmp_path: Path) -> None:
    need_module("ray")
    need_module("pyarrow")
    folder = tmp_path / "pictures"
    (folder / "more").mkdir(parents=True)
    rng = np.random.default_rng(5)
    pictures = {}
    for number in range(COUNT):
        path = folder / ("more" if number % 2 else "") / f"{number:03d}.png"
        pictures[str(path)] = rng.integers(0, 256, (48, 64, 3), np.uint8)
        cv2.imwrite(str(path), pictures[str(path)][..., ::-1])
    broken = folder / "broken.jpg"
    broken.write_bytes(b"this is no picture")
    (folder / "notes.txt").write_text("not an image either", encoding="utf-8")

    output = tmp_path / "scores.jsonl"
    script = EXAMPLES / "folder_scoring" / "score_folder.py"
    command = [
        sys.executable,
        str(script),
        str(picture_model),
        str(folder),
        str(output),
        "--virtual",
        "2",
        "--device",
        "sim:rk3588",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(f"{COUNT + 1} images in ")

    rows = {row["path"]: row for row in map(json.loads, output.read_text(encoding="utf-8").splitlines())}
    assert set(rows) == {*pictures, str(broken)}
    assert rows[str(broken)] == {"path": str(broken), "class": None, "score": None, "problem": "no picture"}
    with InferenceSession(picture_model, provider_options=[make_provider_options(layout="nhwc")], device="sim:rk3588") as session:
        for path, picture in pictures.items():
            values = session.run(None, {"images": picture[np.newaxis]})[0].reshape(-1)
            assert (rows[path]["class"], rows[path]["score"]) == (int(values.argmax()), pytest.approx(float(values.max())))
