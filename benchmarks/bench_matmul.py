"""Products of matrices beside numpy's float32 product of the same shape, and beside the measured peak of the multiply-add instructions."""

from __future__ import annotations

from functools import partial

import numpy as np

from anynpu.npu.engines.native_levels import available
from anynpu.npu.matmul import StoredMatrix
from anynpu.tensor import DType

from . import print_table
from .engine_layers import peak_runner
from .engine_timing import cpu_times

SHAPES = ((1, 4096, 4096), (8, 4096, 4096), (32, 4096, 4096), (512, 1024, 1024))
SECONDS = 1.0


def main() -> None:
    """A table for each fast instruction set of the processor: one thread, CPU time, candidates that take turns."""
    for isa in available()[:-1] or available():
        peak = peak_runner(isa)
        peak_macs = peak()
        rows = []
        for m, k, n in SHAPES:
            rng = np.random.default_rng(k)
            codes = [rng.integers(-128, 128, shape, np.int8) for shape in ((m, k), (k, n))]
            floats = [rng.standard_normal(shape, np.float32) for shape in ((m, k), (k, n))]
            halves = [values.astype(np.float16) for values in floats]
            int8, float16 = (StoredMatrix(k, n, kind, kind, isa=isa) for kind in (DType.INT8, DType.FLOAT16))
            product = np.empty((m, n), np.float32)
            times = cpu_times(
                {
                    "int8": partial(int8.multiply, *codes, out=product.view(np.int32)),
                    "float16": partial(float16.multiply, *halves, out=product),
                    "numpy": partial(np.matmul, *floats, out=product),
                    "peak": peak,
                },
                SECONDS,
            )
            rates = {name: (peak_macs if name == "peak" else m * k * n) / taken.best for name, taken in times.items()}
            rows.append(
                [
                    f"{m}x{k}x{n}",
                    *(times[name].milliseconds for name in ("int8", "float16", "numpy")),
                    *(f"{times[name].best / times['numpy'].best:.2f}" for name in ("int8", "float16")),
                    f"{rates['int8'] / 1e9:.0f}",
                    f"{rates['peak'] / 1e9:.0f}",
                    f"{rates['int8'] / rates['peak']:.0%}",
                ]
            )
        header = ["m x k x n", "int8", "float16", "numpy float32", "int8 is", "float16 is", "GMAC/s int8", "peak", "of peak"]
        print_table(f"matmuls, ms CPU, one thread, {isa}, best (median); numpy is 1", header, rows)


if __name__ == "__main__":
    main()
