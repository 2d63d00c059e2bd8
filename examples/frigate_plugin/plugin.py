"""A detector plugin in the shape that Frigate's own for Rockchip has, on the vendor's two Python classes.

It is written for a board and knows nothing of anynpu: it finds the chip in the device tree, converts an ONNX model with ``rknn.api`` where
there is no ``.rknn`` yet, and runs it with ``rknnlite.api``. ``anynpu exec`` runs it anywhere.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

logger = logging.getLogger(__name__)

CHIPS = ("rk3562", "rk3566", "rk3568", "rk3576", "rk3588")
MAX_OBJECTS = 20
SCORE = 0.4
OVERLAP = 0.4

Floats = npt.NDArray[np.float32]


def chip_of_this_board() -> str:
    """The chip, as the device tree names it."""
    try:
        names = Path("/proc/device-tree/compatible").read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise RuntimeError("this is no board of Rockchip's: it has no device tree") from error
    chip = names.rstrip("\0").split(",")[-1]
    if chip not in CHIPS:
        raise RuntimeError(f"the chip {chip} is not supported")
    return chip


class Detector:
    """Finds objects in images.

    :param model: a ``.rknn`` or an ONNX file; an ONNX file is converted once for each chip
    :param num_cores: how many cores to use; 0 leaves it to the runtime
    :param size: width and height of the model's input
    """

    type_key = "rknn"

    def __init__(self, model: Path, num_cores: int = 0, size: int = 320) -> None:
        from rknnlite.api import RKNNLite

        self.size = size
        chip = chip_of_this_board()
        path = model if model.suffix == ".rknn" else converted(model, chip)
        self.rknn = RKNNLite(verbose=False)
        if self.rknn.load_rknn(str(path)) != 0:
            raise RuntimeError(f"{path} cannot be loaded")
        if self.rknn.init_runtime(core_mask=2**num_cores - 1) != 0:
            raise RuntimeError("the runtime cannot be started; is the container privileged?")

    def detect_raw(self, picture: npt.NDArray[np.uint8]) -> Floats:
        """Rows of class, score, top, left, bottom, right in parts of the image; rows of zeros fill them up."""
        outputs = self.rknn.inference(inputs=[picture])
        if outputs is None:
            raise RuntimeError("the inference failed")
        return boxes_of(outputs[0], self.size)

    def close(self) -> None:
        """Give the NPU back."""
        self.rknn.release()


def converted(model: Path, chip: str) -> Path:
    """The float16 model for *chip* beside its ONNX file, made if it is not there."""
    from rknn.api import RKNN

    target = model.with_name(f"{model.stem}-{chip}.rknn")
    if target.is_file():
        return target
    logger.info("converting %s for %s", model, chip)
    rknn = RKNN(verbose=False)
    try:
        rknn.config(mean_values=[[0, 0, 0]], std_values=[[255, 255, 255]], target_platform=chip)
        if rknn.load_onnx(model=str(model)) != 0:
            raise RuntimeError(f"{model} cannot be loaded")
        if rknn.build(do_quantization=False) != 0:
            raise RuntimeError(f"{model} cannot be converted")
        if rknn.export_rknn(str(target)) != 0:
            raise RuntimeError(f"{target} cannot be written")
    finally:
        rknn.release()
    return target


def boxes_of(output: Any, size: int) -> Floats:
    """The objects of an output [1, 4 + classes, n] with center and size in pixels."""
    rows = output[0].T
    scores = rows[:, 4:].max(axis=1)
    chosen = np.flatnonzero(scores > SCORE)
    order = chosen[np.argsort(-scores[chosen], kind="stable")]
    half = rows[:, 2:4] / 2
    low, high = (rows[:, :2] - half) / size, (rows[:, :2] + half) / size
    kept: list[int] = []
    for index in order:
        if len(kept) < MAX_OBJECTS and all(_overlap(low, high, index, other) <= OVERLAP for other in kept):
            kept.append(int(index))
    table = np.zeros((MAX_OBJECTS, 6), np.float32)
    for row, index in enumerate(kept):
        table[row] = (rows[index, 4:].argmax(), scores[index], low[index, 1], low[index, 0], high[index, 1], high[index, 0])
    return table


def _overlap(low: Any, high: Any, a: int, b: int) -> float:
    inner = np.clip(np.minimum(high[a], high[b]) - np.maximum(low[a], low[b]), 0, None).prod()
    outer = (high[a] - low[a]).prod() + (high[b] - low[b]).prod() - inner
    return float(inner / outer) if outer > 0 else 0.0
