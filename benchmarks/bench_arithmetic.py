"""The chip's integers beside rounding mode ``simulator``: the same detector compiled both ways, per instruction set; candidates take turns.

Ratios of CPU time, one thread. What the two rules make of an image differs by design and is not compared here.
"""

from __future__ import annotations

from functools import partial

import anynpu
from anynpu import Device, Model
from anynpu.cli.demo.detection import MEAN, STD, find_detector
from anynpu.cli.demo.pages import page
from anynpu.npu.engines.native import NativeEngine
from anynpu.npu.engines.native_levels import available

from . import print_table
from .engine_timing import cpu_times, verdict

GOALS = {"avx512vnni": 1.08, "avx2": 1.12}
CALIBRATION_PAGES = 2
HELD_OUT_PAGE = 10_000
SECONDS = 20.0
SIMULATOR, CHIP = "simulator", "chip"


def main() -> None:
    """Print the table."""
    models = {arithmetic: _compiled(arithmetic) for arithmetic in (SIMULATOR, CHIP)}
    image = page(HELD_OUT_PAGE)
    rows = []
    for isa in available():
        if isa == "generic":
            continue  # plain C has no goal, and takes seconds
        with Device("rk3588", engine=NativeEngine(isa=isa)) as device:
            contexts = {arithmetic: device.load(model).context() for arithmetic, model in models.items()}
            runs = {name: partial(context.run, image[None], layout="nhwc") for name, context in contexts.items()}
            times = cpu_times(runs, SECONDS)
        ratio = times[CHIP].best / times[SIMULATOR].best
        goal = verdict(ratio, GOALS[isa]) if isa in GOALS else ""
        rows.append([isa, times[SIMULATOR].milliseconds, times[CHIP].milliseconds, f"{ratio:.3f}", goal])
    header = ["ms CPU, best (median)", "float rule", "chip's rule", "ratio", "goal"]
    print_table("PP-OCRv4 detection 480x480 by both rules, one thread", header, rows)


def _compiled(arithmetic: str) -> Model:
    pages = [page(seed) for seed in range(CALIBRATION_PAGES)]
    shapes = {"x": (1, 3, 480, 480)}
    return anynpu.compile(find_detector(), "rk3588", dataset=pages, mean=MEAN, std=STD, shapes=shapes, arithmetic=arithmetic)


if __name__ == "__main__":
    main()
