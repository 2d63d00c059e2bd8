"""Recorded streams and jobs, and random ones."""

from __future__ import annotations

import base64
import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from anynpu.npu.rocket.plan import Convolution

DATA = Path(__file__).parent / "data"
BOARD_DATA = Path(os.environ.get("ANYNPU_BOARD_DATA", ""))


def recorded_streams() -> list[dict[str, Any]]:
    """The cases of streams.jsonl.gz, raw weights and biases as arrays."""
    with gzip.open(DATA / "streams.jsonl.gz", "rt", encoding="utf-8") as file:
        cases = [json.loads(line) for line in file]
    for case in cases:
        if "weights" in case:
            case["weights"] = np.frombuffer(base64.b64decode(case["weights"]), np.uint8)
            case["bias"] = np.frombuffer(base64.b64decode(case["bias"]), "<i4")
    return cases


def has_packing_error(conv: Convolution) -> bool:
    """Whether Mesa packs the weights of this convolution wrongly: lanes of the last block of a depthwise one."""
    return conv.depthwise and conv.in_channels > 32 and -conv.in_channels % 16 != 0
