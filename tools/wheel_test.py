"""Shows that an installed package works: the kernels of the engine against numpy, layouts, and the command line. Needs no extra.

    python tools/wheel_test.py

The release runs it on every wheel, on aarch64 under an emulator. It states what it has seen, and ends with 1 if something is wrong.
"""

from __future__ import annotations

import contextlib
import io
import platform
import sys

import numpy as np

from anynpu import chips
from anynpu.cli.app import run
from anynpu.npu import Device
from anynpu.npu.matmul import StoredMatrix
from anynpu.program.convert import nc1hwc2_to_nchw, nchw_to_nc1hwc2
from anynpu.tensor import DType


def main() -> int:
    """Run everything; the number of failures."""
    rng = np.random.default_rng(1)
    seen: list[tuple[str, bool]] = []
    for rows, depth, columns in ((1, 64, 16), (7, 513, 33), (32, 1024, 100)):
        left, right = (rng.integers(-128, 128, shape, np.int8) for shape in ((rows, depth), (depth, columns)))
        matrix = StoredMatrix(depth, columns, DType.INT8, DType.INT8)
        equal = np.array_equal(matrix.multiply(left, right), left.astype(np.int64) @ right.astype(np.int64))
        seen.append((f"int8 product {rows}x{depth}x{columns}", equal))
    for channels in (3, 16, 33):
        picture = rng.integers(-128, 128, (1, channels, 9, 11), np.int8)
        back = nc1hwc2_to_nchw(nchw_to_nc1hwc2(picture, 16), channels)
        seen.append((f"layout of {channels} channels", np.array_equal(back, picture)))
    with Device("rk3588") as device:
        seen.append((f"{device}, {device.engine.name} engine, {getattr(device.engine, 'isa', '')}", True))
    seen.append((f"{len(chips.names())} chips", len(chips.names()) >= 20))
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):  # in this process: an emulator may run no other
        run(["--version"])
    seen.append((text.getvalue().strip(), text.getvalue().startswith("anynpu ")))
    print(f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}")
    for text, good in seen:
        print(f"{'ok   ' if good else 'WRONG'} {text}")
    return sum(not good for _, good in seen)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
