"""Many threads in one library: contexts of their own, shared ones, and ends in the middle of everything."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from anynpu._rknn import ffi
from anynpu.rknn.constants import Code
from anynpu.rknn.software.library import SoftwareLibrary

from .robustness import Footprint, Surprises, assert_empty, get_outputs, image, init, samples, set_image

SECONDS = float(os.environ.get("ANYNPU_THREAD_SECONDS", "3"))
"""Of the long test; `make soak` asks for more."""

THREADS = 16
ENDED = {int(Code.RKNN_ERR_CTX_INVALID)}
DOCUMENTED = frozenset(int(code) for code in Code)
LIMIT = 120


@pytest.fixture
def library() -> Iterator[SoftwareLibrary]:
    """A library that reports no fault of its own and has nothing left after the test."""
    samples()
    footprint = Footprint.now()
    with Surprises() as surprises:
        library = SoftwareLibrary()
        yield library
        assert not surprises.records, surprises.records[0]
        assert_empty(library)
        library.close()
    footprint.assert_unchanged()


def together(functions: list[Callable[[], Any]]) -> list[Any]:
    """Run all functions at the same time; gives their results or raises what one of them raised."""
    begin = threading.Barrier(len(functions))

    def run(function: Callable[[], Any]) -> Any:
        begin.wait(LIMIT)
        return function()

    with ThreadPoolExecutor(len(functions)) as pool:
        return [future.result(LIMIT + SECONDS) for future in [pool.submit(run, function) for function in functions]]


def infer(library: SoftwareLibrary, handle: int, picture: np.ndarray[Any, Any]) -> list[bytes]:
    """A whole inference, which must succeed."""
    assert set_image(library, handle, picture) == 0, library.last_error()
    assert library.rknn_run(handle, ffi.NULL) == 0, library.last_error()
    code, outputs = get_outputs(library, handle)
    assert code == 0, library.last_error()
    return outputs


def duplicate(library: SoftwareLibrary, handle: int) -> int:
    source, target = ffi.new("rknn_context *", handle), ffi.new("rknn_context *")
    assert library.rknn_dup_context(source, target) == 0, library.last_error()
    return int(target[0])


@pytest.mark.full
def test_sixteen_contexts_of_one_model_give_what_one_gives(library: SoftwareLibrary) -> None:
    first = init(library, "int8")
    pictures = [image(seed) for seed in range(THREADS)]
    expected = [infer(library, first, picture) for picture in pictures]
    handles = [duplicate(library, first) for _ in range(THREADS)]
    assert library.rknn_destroy(first) == 0  # the weights stay for who uses them
    end = time.monotonic() + SECONDS

    def work(number: int) -> None:
        rounds = 0
        while not rounds or time.monotonic() < end:  # a thread may begin late
            which = (number + rounds) % THREADS
            assert infer(library, handles[number], pictures[which]) == expected[which]
            rounds += 1

    together([lambda number=number: work(number) for number in range(THREADS)])  # type: ignore[misc]
    for handle in handles:
        assert library.rknn_destroy(handle) == 0


@pytest.mark.parametrize("flags", [0x800, pytest.param(0, marks=pytest.mark.full), pytest.param(0x8, marks=pytest.mark.full)])
def test_contexts_come_and_go_beside_each_other(library: SoftwareLibrary, flags: int) -> None:
    names = ["int8", "fp16", "single", "int8"]
    picture = image()
    expected = {}
    for name in names:
        handle = init(library, name)
        expected[name] = infer(library, handle, picture)
        library.rknn_destroy(handle)

    def work(name: str) -> None:
        for _ in range(15):
            handle = init(library, name, flags)
            assert infer(library, handle, picture) == expected[name]
            twin = duplicate(library, handle)
            assert library.rknn_destroy(handle) == 0
            assert infer(library, twin, picture) == expected[name]
            assert library.rknn_destroy(twin) == 0

    together([lambda name=name: work(name) for name in names])  # type: ignore[misc]


def test_only_one_of_several_destroys_a_context(library: SoftwareLibrary) -> None:
    for _ in range(30):
        handle = init(library, "int8")
        codes = together([lambda handle=handle: library.rknn_destroy(handle)] * 4)  # type: ignore[misc]
        assert sorted(codes) == [-7, -7, -7, 0]


def until_ended(call: Callable[[], int], allowed: frozenset[int] = frozenset({0})) -> Callable[[], int]:
    """Call again and again, until the context is gone; nothing but *allowed* comes before."""

    def work() -> int:
        end = time.monotonic() + LIMIT
        calls = 0
        while time.monotonic() < end:
            code = call()
            calls += 1
            if code in ENDED:
                return calls
            assert code in allowed, code
        raise AssertionError("the context never ended")

    return work


@pytest.mark.parametrize("round_number", [0, *(pytest.param(number, marks=pytest.mark.full) for number in range(1, 4))])
def test_destroying_ends_what_others_do(library: SoftwareLibrary, round_number: int) -> None:
    picture = image()
    answer = ffi.new("rknn_tensor_attr *")
    sizes = ffi.new("rknn_mem_size *")
    for repetition in range(12):
        handle = init(library, "int8", 0x8)
        infer(library, handle, picture)
        detail = ffi.new("rknn_perf_detail *")

        def destroy(handle: int = handle, pause: float = 0.0005 * repetition * (round_number + 1)) -> int:
            time.sleep(pause)
            return int(library.rknn_destroy(handle))

        def dup(handle: int = handle) -> int:
            source, target = ffi.new("rknn_context *", handle), ffi.new("rknn_context *")
            code = int(library.rknn_dup_context(source, target))
            if code == 0:
                assert library.rknn_destroy(target[0]) == 0
            return code

        gone = frozenset({0, -4})  # a context whose weights are gone a moment before it is
        codes = together(
            [
                until_ended(lambda: library.rknn_run(handle, ffi.NULL)),  # noqa: B023
                until_ended(lambda: set_image(library, handle, picture)),  # noqa: B023
                until_ended(lambda: get_outputs(library, handle)[0]),  # noqa: B023
                until_ended(lambda: library.rknn_query(handle, 1, answer, ffi.sizeof("rknn_tensor_attr"))),  # noqa: B023
                until_ended(lambda: library.rknn_query(handle, 6, sizes, ffi.sizeof("rknn_mem_size"))),  # noqa: B023
                until_ended(lambda: library.rknn_query(handle, 3, detail, ffi.sizeof("rknn_perf_detail"))),  # noqa: B023
                until_ended(dup, gone),
                destroy,
            ]
        )
        assert codes[-1] == 0


def test_threads_take_turns_in_one_context(library: SoftwareLibrary) -> None:
    handle = init(library, "int8")
    pictures = [image(seed) for seed in range(4)]
    expected = {tuple(infer(library, handle, picture)) for picture in pictures}

    def work(number: int) -> None:
        for _ in range(60):
            assert tuple(infer(library, handle, pictures[number])) in expected

    together([lambda number=number: work(number) for number in range(4)])  # type: ignore[misc]
    assert library.rknn_destroy(handle) == 0


def test_shapes_change_under_the_hands_of_others(library: SoftwareLibrary) -> None:
    handle = init(library, "dynamic")
    shapes = [(1, 8, 8, 3), (1, 12, 8, 3), (1, 4, 4, 3)]
    attrs = []
    for shape in shapes:
        attr = ffi.new("rknn_tensor_attr *")
        attr.n_dims, attr.fmt, attr.dims = 4, 1, shape
        attrs.append(attr)
    assert library.rknn_set_input_shapes(handle, 1, attrs[0]) == 0
    picture = image(0, shapes[1])  # enough for each of them

    def change(number: int) -> None:
        for count in range(120):
            assert library.rknn_set_input_shapes(handle, 1, attrs[(count * number) % 3]) == 0

    def use() -> None:
        for _ in range(120):
            assert set_image(library, handle, picture) == 0
            assert library.rknn_run(handle, ffi.NULL) in (0, -8)  # new shapes want new inputs
            code, outputs = get_outputs(library, handle)
            assert code in (0, -9)
            if code == 0:
                assert len(outputs[0]) in {4 * 5 * height * width for _, height, width, _ in shapes}

    together([lambda: change(1), lambda: change(2), use, use])
    assert library.rknn_destroy(handle) == 0


@pytest.mark.parametrize("command", [1, 8], ids=["converted", "native"])
def test_bound_memory_is_destroyed_while_it_is_used(library: SoftwareLibrary, command: int) -> None:
    handle = init(library, "int8")
    attrs = [ffi.new("rknn_tensor_attr *") for _ in range(2)]
    for attr, ask in zip(attrs, (command, command + 1), strict=True):
        assert library.rknn_query(handle, ask, attr, ffi.sizeof("rknn_tensor_attr")) == 0
    if command == 1:
        attrs[0].type, attrs[1].type = 3, 0
    nbytes = 4 * 64 * 64

    for _ in range(40):
        memories = [library.rknn_create_mem(handle, nbytes) for _ in attrs]
        for memory, attr in zip(memories, attrs, strict=True):
            assert library.rknn_set_io_mem(handle, memory, attr) == 0, library.last_error()

        def run() -> None:
            for _ in range(10):
                assert library.rknn_run(handle, ffi.NULL) in (0, -7, -8, -9)

        def destroy(index: int, memories: list[Any] = memories) -> None:
            time.sleep(0.0002)
            assert library.rknn_destroy_mem(handle, memories[index]) == 0

        together([run, lambda: destroy(0), lambda: destroy(1)])
    assert library.rknn_destroy(handle) == 0


def test_frames_end_with_their_context(library: SoftwareLibrary) -> None:
    picture = image()
    for repetition in range(25):
        handle = init(library, "int8")
        infer(library, handle, picture)

        def queue(handle: int = handle) -> int:
            extend = ffi.new("rknn_run_extend *", {"non_block": 1})
            return int(library.rknn_run(handle, extend))

        def destroy(handle: int = handle, pause: float = 0.0003 * repetition) -> int:
            time.sleep(pause)
            return int(library.rknn_destroy(handle))

        def wait(handle: int = handle) -> int:
            # before the first frame there is nothing to wait for
            return int(library.rknn_wait(handle, ffi.NULL))

        results = together(
            [
                until_ended(queue),
                until_ended(queue),
                until_ended(wait, frozenset({0, -5})),
                until_ended(lambda: get_outputs(library, handle)[0]),  # noqa: B023
                destroy,
            ]
        )
        assert results[-1] == 0


def test_frames_come_in_order_and_can_be_waited_for(library: SoftwareLibrary) -> None:
    handle = init(library, "int8")
    expected = infer(library, handle, image(3))
    frames = []
    for _ in range(20):
        extend = ffi.new("rknn_run_extend *", {"non_block": 1})
        assert library.rknn_run(handle, extend) == 0
        frames.append(extend.frame_id)
    assert frames == sorted(set(frames))
    codes = together(
        [
            lambda frame=frame: library.rknn_wait(handle, ffi.new("rknn_run_extend *", {"frame_id": frame}))  # type: ignore[misc]
            for frame in frames
        ]
    )
    assert set(codes) == {0}
    assert get_outputs(library, handle) == (0, expected)
    assert library.rknn_destroy(handle) == 0


def product(library: SoftwareLibrary) -> tuple[int, list[Any]]:
    """A context for a product of int8 matrices of 4x64 and 64x64, and its memory."""
    info = ffi.new("rknn_matmul_info *", {"M": 4, "K": 64, "N": 64, "type": 2})
    handle, attr = ffi.new("rknn_matmul_ctx *"), ffi.new("rknn_matmul_io_attr *")
    assert library.rknn_matmul_create(handle, info, attr) == 0, library.last_error()
    memories = []
    for matrix in (attr.A, attr.B, attr.C):
        memories.append(library.rknn_create_mem(handle[0], matrix.size))
        assert library.rknn_matmul_set_io_mem(handle[0], memories[-1], ffi.addressof(matrix)) == 0
    ffi.memmove(memories[0].virt_addr, bytes(range(100)), 100)
    ffi.memmove(memories[1].virt_addr, bytes(number % 251 for number in range(4096)), 4096)
    return int(handle[0]), memories


def test_products_of_several_threads_and_their_ends(library: SoftwareLibrary) -> None:
    handle, memories = product(library)
    assert library.rknn_matmul_run(handle) == 0
    expected = bytes(ffi.buffer(memories[2].virt_addr, memories[2].size))
    for repetition in range(15):
        other, others = product(library)

        def destroy(other: int = other, pause: float = 0.0003 * repetition) -> int:
            time.sleep(pause)
            return int(library.rknn_matmul_destroy(other))

        def run(other: int = other) -> int:
            return int(library.rknn_matmul_run(other))

        def neighbour() -> int:
            for _ in range(20):
                assert library.rknn_matmul_run(handle) == 0
            return 0

        assert together([until_ended(run), until_ended(run), neighbour, destroy])[-1] == 0
        for memory in others:
            assert library.rknn_destroy_mem(other, memory) == 0
    assert bytes(ffi.buffer(memories[2].virt_addr, memories[2].size)) == expected
    assert library.rknn_matmul_destroy(handle) == 0
    for memory in memories:
        assert library.rknn_destroy_mem(handle, memory) == 0


def test_the_library_is_closed_while_it_is_used() -> None:
    footprint = Footprint.now()
    with Surprises() as surprises:
        for repetition in range(12):
            library = SoftwareLibrary()
            handles = [init(library, "int8") for _ in range(3)]
            for handle in handles:
                infer(library, handle, image())

            def close(library: SoftwareLibrary = library, pause: float = 0.0005 * repetition) -> None:
                time.sleep(pause)
                library.close()

            def work(handle: int, library: SoftwareLibrary = library) -> None:
                for call in (
                    lambda: library.rknn_run(handle, ffi.NULL),
                    lambda: set_image(library, handle, image()),
                ):
                    until_ended(call, frozenset({0}))()

            multiplying, _ = product(library)
            multiply = until_ended(lambda: library.rknn_matmul_run(multiplying))  # noqa: B023
            together([*(lambda handle=handle: work(handle) for handle in handles), multiply, close])  # type: ignore[misc]
            assert library.rknn_destroy(handles[0]) in ENDED
    assert not surprises.records, surprises.records[0]
    footprint.assert_unchanged()
