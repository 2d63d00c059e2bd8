"""A folder of images, scored on all boards of a cluster with Ray Data: one actor on each board, all of its cores busy.

python examples/folder_scoring/score_folder.py classifier.rknn pictures/ scores.jsonl --virtual 3
python examples/folder_scoring/score_folder.py /srv/classifier.rknn pictures/ scores.jsonl --address auto
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import ray

from anynpu import InferenceSession, make_provider_options
from anynpu.serve.cluster import VirtualBoards

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
BATCH = 32
"""Images that an actor gets at a time: enough to keep three cores busy, few enough to spread a small folder over all boards."""


class Scorer:
    """What runs on a board: one session, which owns all cores."""

    def __init__(self, model: str, device: str | None) -> None:
        self._session = InferenceSession(model, provider_options=[make_provider_options(layout="nhwc")], device=device)
        (self._input, *_) = self._session.get_inputs()
        _, self._height, self._width, _ = self._input.shape

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The best class and its score for each image; an image that cannot be read has none, and the reason."""
        pictures = [self._read(data) for data in batch["bytes"]]
        feeds = ({self._input.name: picture} for picture in pictures if picture is not None)
        scores = (np.asarray(outputs[0]).reshape(-1) for outputs in self._session.stream(feeds))
        found = [None if picture is None else next(scores) for picture in pictures]
        return {
            "path": batch["path"],
            "class": np.array([-1 if score is None else int(score.argmax()) for score in found]),
            "score": np.array([np.nan if score is None else float(score.max()) for score in found]),
            "problem": np.array(["no picture" if score is None else "" for score in found]),
        }

    def _read(self, data: bytes) -> npt.NDArray[np.uint8] | None:
        picture = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) if data else None
        if picture is None:
            return None
        resized = cv2.resize(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB), (self._width, self._height))
        return np.asarray(resized, np.uint8)[np.newaxis]


def score(model: str, folder: Path, device: str | None = None) -> Iterator[dict[str, Any]]:
    """A row for each image below *folder*, as they get done; on all boards that nobody else uses."""
    paths = sorted(str(path) for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise SystemExit(f"there are no images below {folder}")
    boards = int(ray.available_resources().get("NPU", 0))
    if not boards:
        raise SystemExit("no board is free: do they all serve, or has none joined with --resources='{\"NPU\": 1}'?")
    rows = ray.data.read_binary_files([f"local://{path}" for path in paths], include_paths=True)  # read here, not on the boards
    scored = rows.map_batches(
        Scorer,
        fn_constructor_args=(model, device),
        batch_size=BATCH,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=boards),
        resources={"NPU": 1},
        num_cpus=0,
    )
    for row in scored.iter_rows():
        problem = row["problem"]
        yield {
            "path": row["path"],
            "class": None if problem else int(row["class"]),
            "score": None if problem else float(row["score"]),
            **({"problem": problem} if problem else {}),
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and score."""
    parser = argparse.ArgumentParser(description="Score a folder of images on all boards of a cluster.")
    parser.add_argument("model", help="a model with one image in and the scores of classes out, as every board finds it")
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path, help="JSON, one object a line")
    parser.add_argument("--device", help="where the model runs on a board: sim:rk3588, rknn ...")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--virtual", type=int, metavar="N", help="make so many boards on this machine")
    where.add_argument("--address", help="a Ray cluster: auto, or HOST:PORT")
    given = parser.parse_args(arguments)
    with contextlib.ExitStack() as stack:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if given.virtual is not None:
            boards = stack.enter_context(VirtualBoards(given.virtual))
            given.address, given.model = boards.address, str(Path(given.model).resolve())
            options["_node_ip_address"] = boards.host
        ray.init(given.address, **options)
        stack.callback(ray.shutdown)
        ray.data.DataContext.get_current().enable_progress_bars = False
        began, count = time.monotonic(), 0
        with given.output.open("w", encoding="utf-8") as output:
            for row in score(given.model, given.folder, given.device):
                output.write(f"{json.dumps(row)}\n")
                count += 1
        seconds = time.monotonic() - began
    print(f"{count} images in {seconds:.1f} s, {count / seconds:.1f} a second: {given.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
