"""CPU time of one thing with the anynpu of this interpreter: ``python before_after_child.py WHAT FILE``. One number, in seconds.

Only names of the documentation are used, so that trees before and after a move run the same file.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 0.5
CALLS = 50


def best(call: Callable[[], object]) -> float:
    """The least CPU time of one call, over groups of calls."""
    for _ in range(CALLS):
        call()
    least, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        begin = time.process_time()
        for _ in range(CALLS):
            call()
        least = min(least, (time.process_time() - begin) / CALLS)
    return least


def session_run(model: Path) -> float:
    """``InferenceSession.run``."""
    import numpy as np

    from anynpu.session import InferenceSession

    with InferenceSession(str(model), device="sim") as session:
        (given,) = session.get_inputs()
        feed = {given.name: np.zeros(given.shape, np.float32)}
        return best(lambda: session.run(None, feed))


def rknn_run(model: Path) -> float:
    """``rknn_run`` alone, from Python, after one rknn_inputs_set."""
    from anynpu._rknn import ffi
    from anynpu.rknn import open_library

    library: Any = open_library("sim:rk3588")
    data = model.read_bytes()
    handle = ffi.new("rknn_context *")
    assert library.rknn_init(handle, ffi.from_buffer(data), len(data), 0, ffi.NULL) == 0
    attr = ffi.new("rknn_tensor_attr *")
    assert library.rknn_query(handle[0], 1, attr, ffi.sizeof("rknn_tensor_attr")) == 0
    pixels = ffi.new("unsigned char[]", attr.n_elems)
    given = ffi.new("rknn_input *")
    given.buf, given.size, given.type, given.fmt = pixels, attr.n_elems, 3, 1
    assert library.rknn_inputs_set(handle[0], 1, given) == 0
    taken = best(lambda: library.rknn_run(handle[0], ffi.NULL))
    assert library.rknn_destroy(handle[0]) == 0
    return taken


def import_anynpu(_: Path) -> float:
    """``import anynpu``, with numpy."""
    begin = time.process_time()
    import anynpu

    assert anynpu.__all__
    return time.process_time() - begin


def compile_network(network: Path) -> float:
    """A compilation to int8 with samples.npy of the same folder."""
    import anynpu

    compiler = anynpu.compile  # imported at first use
    begin = time.process_time()
    compiler(str(network), "rk3588", dataset=str(network.with_name("samples.npy")))
    return time.process_time() - begin


def write_model(path: Path) -> float:
    """The compiled model of one convolution that the others run."""
    import numpy as np

    import anynpu

    source = path.with_suffix(".onnx")
    dataset = [{"images": np.random.default_rng(1).uniform(0, 255, (1, 3, 32, 32)).astype(np.float32)} for _ in range(2)]
    anynpu.compile(str(source), "rk3588", dataset=dataset, std=(255, 255, 255)).save(path)
    return 0.0


if __name__ == "__main__":
    print(f"{globals()[sys.argv[1]](Path(sys.argv[2])):.9f}")
