"""CPU time of one inference by the raw calls from Python: ``python -m benchmarks.overheads_child MODEL SECONDS general|zero``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from anynpu._rknn import ffi
from anynpu.rknn.library import open_library

NATIVE_INPUT, NATIVE_OUTPUT = 8, 9
UINT8, NHWC = 3, 1
TO_DEVICE, FROM_DEVICE = 1, 2


def main(model: str, seconds: float, way: str) -> float:
    """The best time of one inference."""
    library: Any = open_library("sim:rk3588")
    data = Path(model).read_bytes()
    handle = ffi.new("rknn_context *")
    assert library.rknn_init(handle, ffi.from_buffer(data), len(data), 0, ffi.NULL) == 0
    attr = ffi.new("rknn_tensor_attr *")
    assert library.rknn_query(handle[0], 1, attr, ffi.sizeof("rknn_tensor_attr")) == 0
    pixels = np.random.default_rng(2).integers(0, 256, attr.n_elems).astype(np.uint8)
    once, end = (_zero_copy if way == "zero" else _general)(library, handle[0], pixels)
    best, until, run = float("inf"), 0.0, 0
    while run < 5 or time.perf_counter() < until:
        pixels[run % pixels.size] += 1  # another image, which a recording has to write
        begin = time.process_time()
        once()
        taken = time.process_time() - begin
        if run < 4:  # values are evaluated for the first images only
            until = time.perf_counter() + seconds
        else:
            best = min(best, taken)
        run += 1
    end()
    assert library.rknn_destroy(handle[0]) == 0
    return best


Steps = tuple[Callable[[], None], Callable[[], None]]
"""One inference, and the end."""


def _general(library: Any, handle: int, pixels: Any) -> Steps:
    given, got = ffi.new("rknn_input *"), ffi.new("rknn_output *")
    given.buf, given.size, given.type, given.fmt = ffi.from_buffer(pixels), pixels.nbytes, UINT8, NHWC
    got.want_float = 1

    def once() -> None:
        assert library.rknn_inputs_set(handle, 1, given) == 0
        assert library.rknn_run(handle, ffi.NULL) == 0
        assert library.rknn_outputs_get(handle, 1, got, ffi.NULL) == 0
        library.rknn_outputs_release(handle, 1, got)

    return once, lambda: None


def _zero_copy(library: Any, handle: int, pixels: Any) -> Steps:
    memories: list[Any] = []
    for query in (NATIVE_INPUT, NATIVE_OUTPUT):
        attr = ffi.new("rknn_tensor_attr *")
        assert library.rknn_query(handle, query, attr, ffi.sizeof("rknn_tensor_attr")) == 0
        if query == NATIVE_INPUT:
            attr.type, attr.pass_through = UINT8, 0
        memories.append(library.rknn_create_mem(handle, attr.size_with_stride))
        assert library.rknn_set_io_mem(handle, memories[-1], attr) == 0

    def once() -> None:
        ffi.memmove(memories[0].virt_addr, pixels, pixels.nbytes)
        library.rknn_mem_sync(handle, memories[0], TO_DEVICE)
        assert library.rknn_run(handle, ffi.NULL) == 0
        library.rknn_mem_sync(handle, memories[1], FROM_DEVICE)

    def end() -> None:
        for memory in memories:
            assert library.rknn_destroy_mem(handle, memory) == 0

    return once, end


if __name__ == "__main__":
    print(f"{main(sys.argv[1], float(sys.argv[2]), sys.argv[3]):.9f}")
