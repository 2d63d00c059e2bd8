"""Nothing grows: neither with inferences nor with contexts that come and go. The long run is in ``benchmarks/bench_rknn.py``."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from anynpu._rknn import ffi
from anynpu.rknn.software.library import SoftwareLibrary

from .robustness import Footprint, assert_empty, get_outputs, image, init, resident_bytes, set_image

RUNS = 3000
LIVES = 300
SHARE = 4
"""A round is this part of the runs."""

MAX_ROUNDS = 16
TOLERANCE = 256 * 2**10
"""Bytes in every round; a leak of one small output in each run would be more."""


def assert_flat(step: Callable[[int], None], count: int) -> None:
    """Do *step* again and again after a third of *count* for warming up; memory, files and threads stay as they are.

    A leak grows in every round; an allocator that takes more pages does so in some of them. So rounds go on until memory did not grow
    in one, and what grows in all of them leaks.
    """
    for number in range(count // 3):
        step(number)
    gc.collect()
    footprint, resident = Footprint.now(), [resident_bytes()]
    while len(resident) <= MAX_ROUNDS:
        for number in range(count // SHARE):
            step(number)
        resident.append(resident_bytes())
        if len(resident) > 2 and resident[-1] - resident[-2] < TOLERANCE:
            break
    footprint.assert_unchanged()
    grown = [after - before for before, after in pairwise(resident)]
    assert grown[-1] < TOLERANCE, f"bytes more in each round of {count // SHARE}: {grown}"


@pytest.mark.full
@pytest.mark.parametrize("name", ["int8", "fp16"])
def test_inferences_leave_nothing(name: str) -> None:
    library = SoftwareLibrary()
    handle = init(library, name, 0x8)
    pictures = [image(seed) for seed in range(4)]
    attr, sizes = ffi.new("rknn_tensor_attr *"), ffi.new("rknn_mem_size *")
    detail = ffi.new("rknn_perf_detail *")

    def infer(number: int) -> None:
        assert set_image(library, handle, pictures[number % 4]) == 0
        assert library.rknn_run(handle, ffi.NULL) == 0
        assert get_outputs(library, handle, want_float=bool(number & 1))[0] == 0
        assert library.rknn_query(handle, 1, attr, ffi.sizeof("rknn_tensor_attr")) == 0
        assert library.rknn_query(handle, 6, sizes, ffi.sizeof("rknn_mem_size")) == 0
        if number % 50 == 0:
            assert library.rknn_query(handle, 3, detail, ffi.sizeof("rknn_perf_detail")) == 0

    assert_flat(infer, RUNS)
    assert library.rknn_destroy(handle) == 0
    assert_empty(library)
    library.close()


@pytest.mark.full
def test_contexts_that_come_and_go_leave_nothing() -> None:
    library = SoftwareLibrary()
    picture = image()
    names = ["int8", "fp16", "single"]

    def live(number: int) -> None:
        handle = init(library, names[number % 3], 0x800 if number & 1 else 0)
        twin = ffi.new("rknn_context *")
        assert library.rknn_dup_context(ffi.new("rknn_context *", handle), twin) == 0
        memory = library.rknn_create_mem(handle, 4096)
        assert memory != ffi.NULL
        for entry in (handle, int(twin[0])):
            assert set_image(library, entry, picture) == 0
            extend = ffi.new("rknn_run_extend *", {"non_block": number % 4 == 0})
            assert library.rknn_run(entry, extend) == 0
            assert get_outputs(library, entry)[0] == 0
        outputs = ffi.new("rknn_output[2]")
        outputs[1].index = 1
        assert library.rknn_outputs_get(handle, 2, outputs, ffi.NULL) == 0  # never released
        assert library.rknn_destroy(handle) == 0
        assert library.rknn_destroy_mem(handle, memory) == 0
        assert library.rknn_destroy(twin[0]) == 0

    assert_flat(live, LIVES)
    assert_empty(library)
    library.close()


def test_calls_that_fail_leave_nothing() -> None:
    library = SoftwareLibrary()
    handle = init(library, "int8")
    attr = ffi.new("rknn_tensor_attr *")
    inputs = ffi.new("rknn_input[1]")
    room = np.zeros(64 * 1024, np.uint8)

    def fail(number: int) -> None:
        attr.index = 7
        assert library.rknn_query(handle, 1, attr, ffi.sizeof("rknn_tensor_attr")) == -5
        inputs[0].buf, inputs[0].size, inputs[0].type = ffi.cast("void *", room.ctypes.data), room.nbytes, number % 4000
        inputs[0].pass_through = number & 1  # what is passed through may call itself anything
        assert library.rknn_inputs_set(handle, 1, inputs) in (0, -8)
        assert library.rknn_set_io_mem(handle, ffi.NULL, attr) == -5
        assert library.rknn_create_mem(handle, 0) == ffi.NULL
        assert library.rknn_destroy(number) == -7

    assert_flat(fail, RUNS)
    assert library.rknn_destroy(handle) == 0
    assert_empty(library)
    library.close()


@pytest.mark.parametrize("chip", ["rk3588", "rv1103"])
def test_a_library_ends_with_its_last_user(chip: str) -> None:
    """No cycle keeps it until the collector comes: sanitizers and fault plans go through all libraries that there are."""
    library = SoftwareLibrary(chip)
    watched = weakref.ref(library)
    gc.disable()
    try:
        del library
        assert watched() is None
    finally:
        gc.enable()
