"""What the sanitizer costs: runs with and without it, by the general calls and by zero copy."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import anynpu
from anynpu import modelfile
from anynpu._rknn import ffi
from anynpu.rknn import SoftwareLibrary

from . import print_table
from .networks import mobilenet_v1

TURNS = 5
SECONDS = 0.6
GOAL = 2.0
NATIVE_INPUT, NATIVE_OUTPUT = 8, 9
UINT8, NHWC = 3, 1


def main() -> None:
    """Print the table, in time of the processor. Both ways take turns; each counts with its best."""
    rows = []
    for title, proto, side in (("MobileNet v1", mobilenet_v1(), 224), ("one small convolution", _convolution(32), 32)):
        data = _compiled(proto, side)
        for name, loop in (("general calls", _general), ("zero copy", _zero_copy)):
            off = on = float("inf")
            for _ in range(TURNS):
                off = min(off, _measured(data, side, loop, watched=False))
                on = min(on, _measured(data, side, loop, watched=True))
            rows.append([f"{title}, {name}", f"{off * 1e3:.3f} ms", f"{on * 1e3:.3f} ms", f"{on / off:.2f}", f"{GOAL:.2f}"])
    print_table("sanitizer: one inference", ["way", "off", "on", "ratio", "goal"], rows)


def _convolution(side: int) -> Any:
    weights = numpy_helper.from_array(np.ones((8, 3, 3, 3), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Conv", ["images", "w"], ["y"], pads=[1, 1, 1, 1])],
        "small",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, side, side])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, side, side])],
        [weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def _compiled(proto: Any, side: int) -> bytes:
    rng = np.random.default_rng(1)
    samples = [{"images": rng.uniform(0, 255, (1, 3, side, side)).astype(np.float32)} for _ in range(2)]
    return modelfile.to_bytes(anynpu.compile(proto, "rk3588", dataset=samples, std=(255, 255, 255)))


Loop = Callable[[SoftwareLibrary, int, int], Callable[[], None]]


def _measured(data: bytes, side: int, loop: Loop, *, watched: bool) -> float:
    library = SoftwareLibrary("rk3588")
    block: Any = anynpu.sanitize(check=False) if watched else contextlib.nullcontext()
    with block:
        handle = ffi.new("rknn_context *")
        assert library.rknn_init(handle, ffi.from_buffer(data), len(data), 0, ffi.NULL) == 0
        once = loop(library, handle[0], side)
        for _ in range(4):  # values are judged for the first pictures only
            once()
        best, end = float("inf"), time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            begin = time.process_time()
            once()
            best = min(best, time.process_time() - begin)
        library.rknn_destroy(handle[0])
    library.close()
    return best


def _pixels(side: int) -> Any:
    return np.random.default_rng(2).integers(0, 256, (side, side, 3)).astype(np.uint8)


def _general(library: SoftwareLibrary, handle: int, side: int) -> Callable[[], None]:
    pixels = _pixels(side)
    given, got = ffi.new("rknn_input *"), ffi.new("rknn_output *")
    given.buf, given.size, given.type, given.fmt = ffi.from_buffer(pixels), pixels.nbytes, UINT8, NHWC
    got.want_float = 1

    def once() -> None:
        assert library.rknn_inputs_set(handle, 1, given) == 0
        assert library.rknn_run(handle, ffi.NULL) == 0
        assert library.rknn_outputs_get(handle, 1, got, ffi.NULL) == 0
        library.rknn_outputs_release(handle, 1, got)

    return once


def _zero_copy(library: SoftwareLibrary, handle: int, side: int) -> Callable[[], None]:
    pixels = _pixels(side)
    memories = []
    for query in (NATIVE_INPUT, NATIVE_OUTPUT):
        attr = ffi.new("rknn_tensor_attr *")
        assert library.rknn_query(handle, query, attr, ffi.sizeof("rknn_tensor_attr")) == 0
        if query == NATIVE_INPUT:
            attr.type, attr.pass_through = UINT8, 0
        memories.append(library.rknn_create_mem(handle, attr.size_with_stride))
        assert library.rknn_set_io_mem(handle, memories[-1], attr) == 0

    def once() -> None:
        ffi.memmove(memories[0].virt_addr, pixels, pixels.nbytes)
        library.rknn_mem_sync(handle, memories[0], 1)
        assert library.rknn_run(handle, ffi.NULL) == 0
        library.rknn_mem_sync(handle, memories[1], 2)

    return once


if __name__ == "__main__":
    main()
