"""Small programs with the RKNN calls, each with one fault, and the same programs without it.

A program is a function of :class:`Board` and *wrong*. Its name states the fault; ``RKNN`` has what the sanitizer must find.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from compiler.onnx_builders import Net
from rknn.support import (
    FP16,
    INT8,
    NCHW,
    NHWC,
    NULL,
    UINT8,
    attr,
    dynamic_model,
    input_struct,
    memory_array,
    opened,
    picture_model,
    pixels,
    set_picture,
)

import anynpu
from anynpu import chips
from anynpu._rknn import ffi
from anynpu.program import Model
from anynpu.rknn.constants import Flag, rknn_query_cmd
from anynpu.rknn.software.library import SoftwareLibrary

SIDE = 36
"""Rows of 36 pixels lie 48 apart on rk3588."""
TO_DEVICE, FROM_DEVICE = 1, 2
NO_INPUT_FLUSH = int(Flag.RKNN_FLAG_DISABLE_FLUSH_INPUT_MEM_CACHE)
NO_OUTPUT_FLUSH = int(Flag.RKNN_FLAG_DISABLE_FLUSH_OUTPUT_MEM_CACHE)
NON_CACHEABLE = 2
NATIVE_INPUT = rknn_query_cmd.RKNN_QUERY_NATIVE_INPUT_ATTR
NATIVE_OUTPUT = rknn_query_cmd.RKNN_QUERY_NATIVE_OUTPUT_ATTR


@functools.cache
def model(chip: str = "rk3588") -> Model:
    """A convolution on an image, for pixels from 0 to 255."""
    net = Net(seed=4)
    net.output(net.op("Relu", net.conv(net.input("image", (1, 3, SIDE, SIDE)), 8, pads=[1, 1, 1, 1])))
    samples = [{"image": np.full((1, 3, SIDE, SIDE), value, np.float32)} for value in (0.0, 255.0)]
    return anynpu.compile(net.proto(), target=chip, dataset=samples, std=(255, 255, 255), name="small")


@functools.cache
def picture(shift: int = 0) -> npt.NDArray[np.uint8]:
    """A smooth image with structure, height by width by color."""
    rows, columns = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    waves = [np.sin(3 + 4 * rows + c + shift) * np.cos(4 * columns + c / 2) for c in range(3)]
    return np.stack([(125 * wave + 128).astype(np.uint8) for wave in waves], axis=-1)


class Board:
    """The library with what most programs begin with."""

    def __init__(self, chip: str = "rk3588") -> None:
        self.library = SoftwareLibrary(chip)
        self.chip = chip

    def open(self, flags: int = 0) -> int:
        return opened(self.library, model(self.chip), flags)

    def set(self, handle: int, array: Any = None, **fields: Any) -> int:
        return set_picture(self.library, handle, picture() if array is None else array, **fields)

    def run(self, handle: int) -> int:
        code: int = self.library.rknn_run(handle, NULL)
        return code

    def outputs(self, handle: int) -> Any:
        outputs = ffi.new("rknn_output[1]")
        outputs[0].want_float = 1
        assert self.library.rknn_outputs_get(handle, 1, outputs, NULL) == 0
        return outputs

    def release(self, handle: int, outputs: Any) -> None:
        assert self.library.rknn_outputs_release(handle, 1, outputs) == 0

    def close(self, handle: int, *memories: Any) -> None:
        for memory in memories:
            assert self.library.rknn_destroy_mem(handle, memory) == 0
        assert self.library.rknn_destroy(handle) == 0

    def bind(self, handle: int, *, flags: int | None = None, kind: int = UINT8) -> tuple[Any, Any]:
        """Memory for the input and for the output."""
        seen = attr(self.library, handle, NATIVE_INPUT)
        seen.type, seen.pass_through = kind, 0
        made = []
        for wanted in (seen, attr(self.library, handle, NATIVE_OUTPUT)):
            size = wanted.size_with_stride
            memory = (
                self.library.rknn_create_mem(handle, size)
                if flags is None
                else self.library.rknn_create_mem2(handle, size, flags)
            )
            assert self.library.rknn_set_io_mem(handle, memory, wanted) == 0, self.library.last_error()
            made.append(memory)
        return made[0], made[1]

    def write(self, memory: Any, array: npt.NDArray[Any] | None = None, *, dense: bool = False) -> None:
        """Copy an image row by row, or as if rows had no padding."""
        data = picture() if array is None else array
        target = memory_array(memory)
        if dense:
            target[: data.nbytes] = data.reshape(-1)
        else:
            target.reshape(SIDE, -1)[:, : SIDE * 3] = data.reshape(SIDE, -1)

    def sync(self, handle: int, memory: Any, mode: int) -> None:
        assert self.library.rknn_mem_sync(handle, memory, mode) == 0


Program = Callable[[Board, bool], None]
RKNN: dict[str, tuple[str, str, Program]] = {}
"""By name: what is found, the chip, and the program."""


def fault(finding: str, chip: str = "rk3588") -> Callable[[Program], Program]:
    def note(program: Program) -> Program:
        RKNN[program.__name__] = (finding, chip, program)
        return program

    return note


# caches


@fault("input-not-flushed")
def forgets_to_flush(board: Board, wrong: bool) -> None:
    handle = board.open(NO_INPUT_FLUSH)
    source, target = board.bind(handle)
    board.write(source)
    if not wrong:
        board.sync(handle, source, TO_DEVICE)
    board.run(handle)
    board.close(handle, source, target)


@fault("input-not-flushed")
def flushes_the_first_picture_only(board: Board, wrong: bool) -> None:
    handle = board.open(NO_INPUT_FLUSH)
    source, target = board.bind(handle)
    for number in range(3):
        board.write(source, picture(number))
        if not wrong or number == 0:
            board.sync(handle, source, TO_DEVICE)
        board.run(handle)
    board.close(handle, source, target)


@fault("input-not-flushed")
def syncs_in_the_wrong_direction(board: Board, wrong: bool) -> None:
    handle = board.open(NO_INPUT_FLUSH)
    source, target = board.bind(handle)
    board.write(source)
    board.sync(handle, source, FROM_DEVICE if wrong else TO_DEVICE)
    board.run(handle)
    board.close(handle, source, target)


@fault("output-not-invalidated")
def forgets_to_invalidate(board: Board, wrong: bool) -> None:
    handle = board.open(NO_OUTPUT_FLUSH)
    source, target = board.bind(handle)
    board.write(source)
    board.run(handle)
    if not wrong:
        board.sync(handle, target, FROM_DEVICE)
    assert memory_array(target).any() != wrong
    board.close(handle, source, target)


@fault("output-not-invalidated")
def invalidates_too_late(board: Board, wrong: bool) -> None:
    handle = board.open(NO_OUTPUT_FLUSH)
    source, target = board.bind(handle)
    board.write(source)
    board.run(handle)
    if wrong:
        memory_array(target).sum()
    board.sync(handle, target, FROM_DEVICE)
    memory_array(target).sum()
    board.close(handle, source, target)


@fault("flush-disabled-general")
def disables_flushing_and_sets_inputs(board: Board, wrong: bool) -> None:
    handle = board.open(NO_INPUT_FLUSH if wrong else 0)
    board.set(handle)
    board.run(handle)
    board.release(handle, board.outputs(handle))
    board.close(handle)


# lifetimes


@fault("use-after-destroy")
def runs_after_destroy(board: Board, wrong: bool) -> None:
    handle = board.open()
    board.set(handle)
    if not wrong:
        board.run(handle)
    board.close(handle)
    if wrong:
        assert board.run(handle) < 0


@fault("double-destroy")
def destroys_twice(board: Board, wrong: bool) -> None:
    handle = board.open()
    board.close(handle)
    if wrong:
        assert board.library.rknn_destroy(handle) < 0


@fault("unknown-handle")
def runs_a_handle_that_was_never_given(board: Board, wrong: bool) -> None:
    handle = 0 if wrong else board.open()
    if wrong:
        assert board.run(handle) < 0
    else:
        board.close(handle)


@fault("use-after-destroy")
def binds_memory_after_destroying_it(board: Board, wrong: bool) -> None:
    handle = board.open()
    wanted = attr(board.library, handle, NATIVE_OUTPUT)
    memory = board.library.rknn_create_mem(handle, wanted.size_with_stride)
    if wrong:
        board.library.rknn_destroy_mem(handle, memory)
    assert (board.library.rknn_set_io_mem(handle, memory, wanted) < 0) == wrong
    board.close(handle, *(() if wrong else (memory,)))


@fault("double-destroy")
def destroys_memory_twice(board: Board, wrong: bool) -> None:
    handle = board.open()
    memory = board.library.rknn_create_mem(handle, 64)
    for _ in range(2 if wrong else 1):
        board.library.rknn_destroy_mem(handle, memory)
    board.close(handle)


@fault("use-after-destroy")
def runs_with_memory_that_was_destroyed(board: Board, wrong: bool) -> None:
    handle = board.open()
    source, target = board.bind(handle)
    board.write(source)
    if wrong:
        board.library.rknn_destroy_mem(handle, source)
    assert (board.run(handle) < 0) == wrong
    board.close(handle, *((target,) if wrong else (source, target)))


@fault("use-after-destroy")
def destroys_the_context_before_its_memory(board: Board, wrong: bool) -> None:
    handle = board.open()
    memory = board.library.rknn_create_mem(handle, 64)
    calls = [lambda: board.library.rknn_destroy_mem(handle, memory), lambda: board.library.rknn_destroy(handle)]
    for call in reversed(calls) if wrong else calls:
        call()


@fault("double-release")
def releases_outputs_twice(board: Board, wrong: bool) -> None:
    handle = board.open()
    board.set(handle)
    board.run(handle)
    outputs = board.outputs(handle)
    for _ in range(2 if wrong else 1):
        board.release(handle, outputs)
    board.close(handle)


@fault("outputs-not-released")
def never_releases_outputs(board: Board, wrong: bool) -> None:
    handle = board.open()
    for _ in range(3):
        board.set(handle)
        board.run(handle)
        outputs = board.outputs(handle)
        if not wrong:
            board.release(handle, outputs)
    board.close(handle)


@fault("context-leak")
def forgets_a_context(board: Board, wrong: bool) -> None:
    handle = board.open()
    if not wrong:
        board.close(handle)


@fault("context-leak")
def forgets_a_duplicate(board: Board, wrong: bool) -> None:
    first, second = ffi.new("rknn_context *", board.open()), ffi.new("rknn_context *")
    assert board.library.rknn_dup_context(first, second) == 0
    board.close(first[0])
    if not wrong:
        board.close(second[0])


def product(board: Board, *, old_name: bool = False) -> int:
    info, attributes = ffi.new("rknn_matmul_info *"), ffi.new("rknn_matmul_io_attr *")
    info.M, info.K, info.N, info.type = 4, 64, 32, 2
    made, shape = ffi.new("rknn_matmul_ctx *"), ffi.new("rknn_matmul_shape *", (4, 64, 32))
    if old_name:
        assert board.library.rknn_matmul_create_dyn_shape(made, info, 1, shape, attributes) == 0, board.library.last_error()
    else:
        assert board.library.rknn_matmul_create(made, info, attributes) == 0, board.library.last_error()
    return int(made[0])


class Product:
    """A matmul of 4 x 64 and 64 x 32 with memory for all three matrices."""

    def __init__(self, board: Board) -> None:
        self.library = board.library
        info, attributes = ffi.new("rknn_matmul_info *"), ffi.new("rknn_matmul_io_attr *")
        info.M, info.K, info.N, info.type = 4, 64, 32, 2
        made = ffi.new("rknn_matmul_ctx *")
        assert self.library.rknn_matmul_create(made, info, attributes) == 0
        self.handle = int(made[0])
        self.memory = {}
        for name in "ABC":
            attribute = ffi.addressof(attributes, name)
            self.memory[name] = self.library.rknn_create_mem(self.handle, attribute.size)
            assert self.library.rknn_matmul_set_io_mem(self.handle, self.memory[name], attribute) == 0

    def write(self, names: str, value: int = 1) -> None:
        for name in names:
            memory_array(self.memory[name])[:] = value

    def run(self) -> None:
        assert self.library.rknn_matmul_run(self.handle) == 0

    def close(self, names: str = "ABC") -> None:
        for name in names:
            assert self.library.rknn_destroy_mem(self.handle, self.memory[name]) == 0
        assert self.library.rknn_matmul_destroy(self.handle) == 0


@fault("input-never-set")
def multiplies_a_matrix_that_nobody_wrote(board: Board, wrong: bool) -> None:
    product = Product(board)
    product.write("B" if wrong else "AB")
    product.run()
    assert not wrong or not memory_array(product.memory["C"]).any()
    product.close()


@fault("write-outside-buffer")
def writes_behind_a_matrix(board: Board, wrong: bool) -> None:
    product = Product(board)
    product.write("AB")
    if wrong:
        ffi.memmove(product.memory["B"].virt_addr + product.memory["B"].size, b"x", 1)
    product.run()
    product.close()


@fault("context-leak")
def forgets_a_product(board: Board, wrong: bool) -> None:
    handle = product(board)
    if not wrong:
        assert board.library.rknn_matmul_destroy(handle) == 0


@fault("memory-leak")
def forgets_memory(board: Board, wrong: bool) -> None:
    handle = board.open()
    source, target = board.bind(handle)
    board.close(handle, source, *(() if wrong else (target,)))


@fault("destroyed-during-run")
def destroys_memory_that_a_run_uses(board: Board, wrong: bool) -> None:
    handle = board.open()
    source, target = board.bind(handle)
    board.write(source)
    running = Running(board, lambda: board.run(handle))
    if wrong:
        board.library.rknn_destroy_mem(handle, target)
    running.end()
    if not wrong:
        board.library.rknn_destroy_mem(handle, target)
    board.close(handle, source)


# bounds


@fault("write-outside-buffer")
def writes_behind_memory(board: Board, wrong: bool) -> None:
    handle = board.open()
    source, target = board.bind(handle)
    board.write(source)
    if wrong:
        ffi.memmove(source.virt_addr + source.size, b"x", 1)
    board.run(handle)
    board.close(handle, source, target)


@fault("write-outside-buffer")
def writes_behind_an_output(board: Board, wrong: bool) -> None:
    handle = board.open()
    board.set(handle)
    board.run(handle)
    outputs = board.outputs(handle)
    if wrong:
        ffi.memmove(outputs[0].buf + outputs[0].size, b"xyz", 3)
    board.release(handle, outputs)
    board.close(handle)


@fault("stride-padding-written")
def ignores_the_stride(board: Board, wrong: bool) -> None:
    handle = board.open()
    source, target = board.bind(handle)
    board.write(source, dense=wrong)
    board.run(handle)
    board.close(handle, source, target)


@fault("buffer-too-small")
def gives_half_a_picture(board: Board, wrong: bool) -> None:
    handle = board.open()
    assert (board.set(handle, picture()[: SIDE // 2] if wrong else None) < 0) == wrong
    board.close(handle)


@fault("buffer-too-small")
def binds_memory_that_is_too_small(board: Board, wrong: bool) -> None:
    handle = board.open()
    wanted = attr(board.library, handle, NATIVE_OUTPUT)
    memory = board.library.rknn_create_mem(handle, wanted.size_with_stride // (2 if wrong else 1))
    assert (board.library.rknn_set_io_mem(handle, memory, wanted) < 0) == wrong
    board.close(handle, memory)


@fault("buffer-too-small")
def gives_a_small_buffer_for_an_output(board: Board, wrong: bool) -> None:
    handle = board.open()
    board.set(handle)
    board.run(handle)
    room = ffi.new("float[]", 8 * SIDE * SIDE)
    outputs = ffi.new("rknn_output[1]")
    outputs[0].want_float, outputs[0].is_prealloc, outputs[0].buf = 1, 1, room
    outputs[0].size = 16 if wrong else ffi.sizeof(room)
    assert (board.library.rknn_outputs_get(handle, 1, outputs, NULL) < 0) == wrong
    board.close(handle)


# threads


class Running:
    """A run in another thread, which waits for its core until :meth:`end`."""

    def __init__(self, board: Board, run: Callable[[], object]) -> None:
        scheduler = board.library.device_for(chips.get(board.chip)).scheduler
        self._cores = scheduler.acquire((1 << scheduler.cores) - 1)
        self._cores.take()
        self._thread = threading.Thread(target=run)
        self._thread.start()
        while not scheduler.waiting:
            time.sleep(0.001)

    def end(self) -> None:
        self._cores.release()
        self._thread.join()


@fault("written-during-run")
def writes_the_next_picture_too_early(board: Board, wrong: bool) -> None:
    handle = board.open()
    source, target = board.bind(handle)
    board.write(source)
    running = Running(board, lambda: board.run(handle))
    if wrong:
        board.write(source, picture(1))
    running.end()
    board.write(source, picture(2))
    board.close(handle, source, target)


@fault("written-during-run")
def writes_the_next_matrix_too_early(board: Board, wrong: bool) -> None:
    product = Product(board)
    product.write("AB")
    running = Running(board, product.run)
    if wrong:
        product.write("A", 2)
    running.end()
    product.write("A", 3)
    product.close()


@fault("destroyed-during-run")
def destroys_a_matrix_that_a_product_uses(board: Board, wrong: bool) -> None:
    product = Product(board)
    product.write("AB")
    running = Running(board, lambda: board.library.rknn_matmul_run(product.handle))
    if wrong:
        board.library.rknn_destroy_mem(product.handle, product.memory["C"])
    running.end()
    product.close("AB" if wrong else "ABC")


@fault("context-in-two-threads")
def shares_a_context_with_a_thread(board: Board, wrong: bool) -> None:
    handle = board.open()
    board.set(handle)
    running = Running(board, lambda: board.run(handle))
    if wrong:
        board.library.rknn_set_core_mask(handle, 1)
    running.end()
    board.library.rknn_set_core_mask(handle, 2)
    board.close(handle)


# order of calls


@fault("api-mixed")
def sets_inputs_and_binds_outputs(board: Board, wrong: bool) -> None:
    handle = board.open()
    board.set(handle)
    memories = []
    if wrong:
        wanted = attr(board.library, handle, NATIVE_OUTPUT)
        memories.append(board.library.rknn_create_mem(handle, wanted.size_with_stride))
        assert board.library.rknn_set_io_mem(handle, memories[0], wanted) == 0
    board.run(handle)
    if not wrong:
        board.release(handle, board.outputs(handle))
    board.close(handle, *memories)


@fault("api-mixed")
def binds_inputs_and_gets_outputs(board: Board, wrong: bool) -> None:
    handle = board.open()
    source, target = board.bind(handle)
    board.write(source)
    board.run(handle)
    if wrong:
        board.release(handle, board.outputs(handle))
    board.close(handle, source, target)


@fault("api-mixed")
def sets_an_input_that_is_bound(board: Board, wrong: bool) -> None:
    handle = board.open()
    source, target = board.bind(handle)
    if wrong:
        assert board.set(handle) < 0
    else:
        board.write(source)
    board.close(handle, source, target)


@fault("input-never-set")
def runs_without_inputs(board: Board, wrong: bool) -> None:
    handle = board.open()
    if not wrong:
        board.set(handle)
    assert (board.run(handle) < 0) == wrong
    board.close(handle)


@fault("input-never-set")
def runs_on_memory_that_nobody_wrote(board: Board, wrong: bool) -> None:
    handle = board.open()
    source, target = board.bind(handle)
    if not wrong:
        board.write(source)
    board.run(handle)
    board.close(handle, source, target)


@fault("output-never-bound", "rv1106")
def binds_no_output(board: Board, wrong: bool) -> None:
    handle = board.open()
    wanted = attr(board.library, handle, NATIVE_INPUT)
    wanted.type, wanted.pass_through = UINT8, 0
    source = board.library.rknn_create_mem(handle, wanted.size_with_stride)
    assert board.library.rknn_set_io_mem(handle, source, wanted) == 0
    board.write(source)
    seen = attr(board.library, handle, NATIVE_OUTPUT)
    target = board.library.rknn_create_mem(handle, seen.size_with_stride)
    if not wrong:
        assert board.library.rknn_set_io_mem(handle, target, seen) == 0
    assert (board.run(handle) < 0) == wrong
    board.close(handle, source, target)


@fault("call-order")
def gets_outputs_before_the_run(board: Board, wrong: bool) -> None:
    handle = board.open()
    board.set(handle)
    outputs = ffi.new("rknn_output[1]")
    outputs[0].want_float = 1
    if not wrong:
        board.run(handle)
    assert (board.library.rknn_outputs_get(handle, 1, outputs, NULL) < 0) == wrong
    if not wrong:
        board.release(handle, outputs)
    board.close(handle)


@fault("call-order")
def runs_before_choosing_shapes(board: Board, wrong: bool) -> None:
    handle = opened(board.library, dynamic_model())
    if not wrong:
        choose_shapes(board, handle)
    else:
        assert board.run(handle) < 0
    board.close(handle)


def choose_shapes(board: Board, handle: int) -> None:
    shapes = ffi.new("rknn_tensor_attr[2]")
    for index in range(2):
        shapes[index] = attr(board.library, handle, rknn_query_cmd.RKNN_QUERY_INPUT_ATTR, index)[0]
    assert board.library.rknn_set_input_shapes(handle, 2, shapes) == 0, board.library.last_error()


@fault("deprecated-call")
def uses_the_old_name_of_a_product(board: Board, wrong: bool) -> None:
    assert board.library.rknn_matmul_destroy(product(board, old_name=wrong)) == 0


@fault("not-on-board")
def does_not_block(board: Board, wrong: bool) -> None:
    handle = board.open()
    board.set(handle)
    extend = ffi.new("rknn_run_extend *")
    extend.non_block = int(wrong)
    assert board.library.rknn_run(handle, extend) == 0
    board.release(handle, board.outputs(handle))
    board.close(handle)


@fault("not-on-board", "rv1106")
def sets_inputs_on_a_small_chip(board: Board, wrong: bool) -> None:
    handle = board.open()
    if wrong:
        assert board.set(handle) < 0
    board.close(handle)


@fault("core-mask", "rk3566")
def chooses_a_core_of_a_chip_with_one(board: Board, wrong: bool) -> None:
    handle = board.open()
    if wrong:
        assert board.library.rknn_set_core_mask(handle, 1) < 0
    board.close(handle)


@fault("core-mask")
def chooses_a_fourth_core(board: Board, wrong: bool) -> None:
    handle = board.open()
    assert (board.library.rknn_set_core_mask(handle, 8 if wrong else 7) < 0) == wrong
    board.close(handle)


@fault("core-mask")
def shares_a_batch_among_four_cores(board: Board, wrong: bool) -> None:
    handle = board.open()
    assert (board.library.rknn_set_batch_core_num(handle, 4 if wrong else 3) < 0) == wrong
    board.close(handle)


@fault("bad-argument")
def gives_two_inputs_to_a_model_with_one(board: Board, wrong: bool) -> None:
    handle = board.open()
    one = input_struct(picture())
    assert (board.library.rknn_inputs_set(handle, 2 if wrong else 1, one) < 0) == wrong
    board.close(handle)


@fault("bad-argument")
def asks_for_an_input_that_is_not_there(board: Board, wrong: bool) -> None:
    handle = board.open()
    seen = ffi.new("rknn_tensor_attr *")
    seen.index = int(wrong)
    query = int(rknn_query_cmd.RKNN_QUERY_INPUT_ATTR)
    assert (board.library.rknn_query(handle, query, seen, ffi.sizeof("rknn_tensor_attr")) < 0) == wrong
    board.close(handle)


@fault("repeated-index")
def leaves_the_indices_of_outputs_at_0(board: Board, wrong: bool) -> None:
    handle = opened(board.library, picture_model())
    board.set(handle, pixels())
    board.run(handle)
    outputs = ffi.new("rknn_output[2]")
    outputs[1].index = int(not wrong)
    assert board.library.rknn_outputs_get(handle, 2, outputs, NULL) == 0
    assert board.library.rknn_outputs_release(handle, 2, outputs) == 0
    board.close(handle)


# values


@fault("wrong-signedness")
def gives_codes_as_pixels(board: Board, wrong: bool) -> None:
    handle = board.open()
    codes = (picture().astype(np.int16) - 128).astype(np.int8)
    board.set(handle, codes, kind=UINT8 if wrong else INT8)
    board.close(handle)


@fault("wrong-signedness")
def gives_pixels_as_codes(board: Board, wrong: bool) -> None:
    handle = board.open()
    board.set(handle, kind=INT8 if wrong else UINT8)
    board.close(handle)


@fault("wrong-element-size")
def gives_float16_as_int8(board: Board, wrong: bool) -> None:
    handle = board.open()
    board.set(handle, picture().astype(np.float16), kind=INT8 if wrong else FP16)
    board.close(handle)


@fault("wrong-element-size")
def writes_float16_into_memory_for_int8(board: Board, wrong: bool) -> None:
    handle = board.open()
    data = (picture().astype(np.float32) / 255).astype(np.float16).reshape(-1).view(np.uint8)[: picture().size]
    board.set(handle, data if wrong else picture().reshape(-1), kind=UINT8)
    board.close(handle)


@fault("wrong-layout")
def gives_planes_as_pixels(board: Board, wrong: bool) -> None:
    handle = board.open()
    board.set(handle, picture().transpose(2, 0, 1), fmt=NHWC if wrong else NCHW)
    board.close(handle)


@fault("wrong-layout")
def gives_pixels_as_planes(board: Board, wrong: bool) -> None:
    handle = board.open()
    board.set(handle, fmt=NCHW if wrong else NHWC)
    board.close(handle)


@fault("values-out-of-range")
def normalises_twice(board: Board, wrong: bool) -> None:
    handle = board.open()
    board.set(handle, picture().astype(np.float32) / (255 if wrong else 1))
    board.close(handle)
