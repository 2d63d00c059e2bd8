"""Very many inferences: neither memory nor descriptors nor threads grow, and cores are shared."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from rknn.robustness import Footprint, resident_bytes
from rknn.support import HEIGHT, WIDTH, picture_model

from anynpu import modelfile
from anynpu.rknn.lite import RKNNLite

INFERENCES = int(os.environ.get("ANYNPU_LITE_INFERENCES", "6000"))
"""`make soak` asks for more."""

THREADS = 6
SHARE = 5
"""A round is this part of the inferences."""

MAX_ROUNDS = 15
TOLERANCE = 256
"""Bytes per inference; the vendor's class grows by 42 kB with each call."""


@pytest.mark.full
def test_nothing_grows(tmp_path: Path) -> None:
    path = modelfile.write(picture_model(), tmp_path / "picture.rknn")
    pool = [RKNNLite() for _ in range(THREADS)]
    for number, lite in enumerate(pool):
        assert lite.load_rknn(str(path)) == 0
        assert lite.init_runtime(core_mask=1 << number % 3) == 0
    image = np.random.default_rng(0).integers(0, 256, (1, HEIGHT, WIDTH, 3), np.uint8)
    expected = pool[0].inference([image])[1].tobytes()
    wrong: list[int] = []

    def work(lite: RKNNLite, count: int) -> None:
        for index in range(count):
            outputs = lite.inference(inputs=[image], data_format=["nhwc"])
            if outputs is None or outputs[1].tobytes() != expected:
                wrong.append(index)

    def all_at_once(count: int) -> None:
        threads = [threading.Thread(target=work, args=(lite, count // THREADS)) for lite in pool]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gc.collect()

    all_at_once(max(INFERENCES // 4, 1500))
    footprint, resident = Footprint.now(), [resident_bytes()]
    # A leak grows in every round; an allocator that takes more pages does so in some of them. What grows in all of them leaks.
    limit = TOLERANCE * INFERENCES // SHARE
    while len(resident) <= SHARE or (resident[-1] - resident[-2] >= limit and len(resident) <= MAX_ROUNDS):
        all_at_once(INFERENCES // SHARE)
        resident.append(resident_bytes())
    footprint.assert_unchanged()
    assert wrong == []
    grown = np.diff(resident)
    assert grown[-1] < limit, f"bytes more in each round of {INFERENCES // SHARE} inferences: {grown.tolist()}"
    print(f"rounds of {INFERENCES // SHARE} inferences from {THREADS} threads: bytes more in each of them {grown.tolist()}")
    for lite in pool:
        lite.release()
