"""Small programs with the VIPLite calls, each with one fault, and the same programs without it."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from compiler.onnx_builders import Net
from vip.support import MEMORY, Calls

import anynpu
from anynpu import modelfile
from anynpu._vip import ffi
from anynpu.vip import SoftwareLibrary

SIDE = 24
FLUSH, INVALIDATE = 1, 2
PROFILING, CORE, TIME_OUT = 3, 70, 67


@functools.cache
def model_file(chip: str = "t527") -> bytes:
    """A convolution on an image of bytes."""
    net = Net(seed=4)
    net.output(net.op("Relu", net.conv(net.input("image", (1, 3, SIDE, SIDE)), 4, pads=[1, 1, 1, 1])))
    samples = [{"image": np.full((1, 3, SIDE, SIDE), value, np.float32)} for value in (0.0, 255.0)]
    return modelfile.to_bytes(anynpu.compile(net.proto(), target=chip, dataset=samples, name="small"))


@functools.cache
def picture(shift: int = 0) -> npt.NDArray[np.uint8]:
    """A smooth image, color by height by width."""
    rows, columns = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    waves = [np.sin(3 + 4 * rows + c + shift) * np.cos(4 * columns + c / 2) for c in range(3)]
    return np.stack([(125 * wave + 128).astype(np.uint8) for wave in waves])


class Board(Calls):
    """The library with what most programs begin with; *init* is left to the program."""

    def __init__(self, chip: str = "t527") -> None:
        super().__init__(SoftwareLibrary(chip), init=False)
        self.chip = chip

    def start(self, **settings: int) -> Any:
        """A network that is prepared."""
        self.ok(self.library.vip_init(0))
        network = self.create(model_file(self.chip), MEMORY)
        self.ok(self.library.vip_prepare_network(network))
        return network

    def cached(self, params: Any) -> Any:
        buffer = ffi.new("vip_buffer *")
        self.ok(self.library.vip_create_buffer_cache(params, ffi.sizeof("vip_buffer_create_params_t"), buffer))
        return buffer[0]

    def bind(self, network: Any, *, cached: bool = False) -> tuple[Any, Any]:
        """Buffers for the input and for the output."""
        make = self.cached if cached else self.buffer
        source, target = (make(self.params(network, 0, is_input=is_input)) for is_input in (True, False))
        self.ok(self.library.vip_set_input(network, 0, source))
        self.ok(self.library.vip_set_output(network, 0, target))
        return source, target

    def write(self, buffer: Any, array: npt.NDArray[Any] | None = None) -> None:
        self.bytes(buffer)[:] = (picture() if array is None else array).reshape(-1).view(np.uint8)

    def flush(self, buffer: Any, way: int = FLUSH) -> None:
        self.ok(self.library.vip_flush_buffer(buffer, way))

    def run(self, network: Any) -> int:
        status: int = self.library.vip_run_network(network)
        return status

    def end(self, network: Any, *buffers: Any, driver: bool = True) -> None:
        """Everything in the right order."""
        self.ok(self.library.vip_finish_network(network))
        self.ok(self.library.vip_destroy_network(network))
        for buffer in buffers:
            self.ok(self.library.vip_destroy_buffer(buffer))
        if driver:
            self.ok(self.library.vip_destroy())


Program = Callable[[Board, bool], None]
VIP: dict[str, tuple[str, str, Program]] = {}
"""By name: what is found, the chip, and the program."""


def fault(finding: str, chip: str = "t527") -> Callable[[Program], Program]:
    def note(program: Program) -> Program:
        VIP[program.__name__] = (finding, chip, program)
        return program

    return note


# caches


@fault("input-not-flushed")
def forgets_to_flush(board: Board, wrong: bool) -> None:
    network = board.start()
    source, target = board.bind(network, cached=True)
    board.write(source)
    if not wrong:
        board.flush(source)
    board.ok(board.run(network))
    board.end(network, source, target)


@fault("input-not-flushed", "a733")
def forgets_to_flush_memory_of_its_own(board: Board, wrong: bool) -> None:
    network = board.start()
    source, target = board.bind(network)
    room = np.zeros(picture().size + 64, np.uint8)
    mine = room[-room.ctypes.data % 64 :][: picture().size]
    made = ffi.new("vip_buffer *")
    params = board.params(network, 0, is_input=True)
    board.ok(board.library.vip_create_buffer_from_handle(params, ffi.from_buffer(mine), mine.size, made))
    board.ok(board.library.vip_set_input(network, 0, made[0]))
    mine[:] = picture().reshape(-1)
    if not wrong:
        board.flush(made[0])
    board.ok(board.run(network))
    board.end(network, source, target, made[0])


@fault("input-not-flushed")
def invalidates_instead_of_flushing(board: Board, wrong: bool) -> None:
    network = board.start()
    source, target = board.bind(network, cached=True)
    board.write(source)
    board.flush(source, INVALIDATE if wrong else FLUSH)
    board.ok(board.run(network))
    board.end(network, source, target)


@fault("output-not-invalidated")
def forgets_to_invalidate(board: Board, wrong: bool) -> None:
    network = board.start()
    source, target = board.bind(network, cached=True)
    board.write(source)
    board.flush(source)
    board.ok(board.run(network))
    if not wrong:
        board.flush(target, INVALIDATE)
    assert board.bytes(target).any() != wrong
    board.end(network, source, target)


# lifetimes


@fault("use-after-destroy")
def runs_after_destroy(board: Board, wrong: bool) -> None:
    network = board.start()
    board.ok(board.library.vip_destroy_network(network))
    if wrong:
        assert board.run(network) != 0
    board.ok(board.library.vip_destroy())


@fault("use-after-destroy")
def binds_a_buffer_after_destroying_it(board: Board, wrong: bool) -> None:
    network = board.start()
    source = board.buffer(board.params(network, 0, is_input=True))
    if wrong:
        board.ok(board.library.vip_destroy_buffer(source))
    assert (board.library.vip_set_input(network, 0, source) != 0) == wrong
    board.end(network, *(() if wrong else (source,)))


@fault("use-after-destroy")
def runs_with_a_buffer_that_was_destroyed(board: Board, wrong: bool) -> None:
    network = board.start()
    source, target = board.bind(network)
    board.write(source)
    if wrong:
        board.ok(board.library.vip_destroy_buffer(source))
    assert (board.run(network) != 0) == wrong
    board.end(network, *((target,) if wrong else (source, target)))


@fault("use-after-destroy")
def goes_on_after_the_driver_has_ended(board: Board, wrong: bool) -> None:
    network = board.start()
    board.ok(board.library.vip_destroy_network(network))
    board.ok(board.library.vip_destroy())
    if wrong:
        assert board.library.vip_query_hardware(0, 4, ffi.new("uint32_t *")) != 0


@fault("double-destroy")
def destroys_a_network_twice(board: Board, wrong: bool) -> None:
    network = board.start()
    for _ in range(2 if wrong else 1):
        board.library.vip_destroy_network(network)
    board.ok(board.library.vip_destroy())


@fault("double-destroy")
def destroys_a_buffer_twice(board: Board, wrong: bool) -> None:
    network = board.start()
    source = board.buffer(board.params(network, 0, is_input=True))
    for _ in range(2 if wrong else 1):
        board.library.vip_destroy_buffer(source)
    board.end(network)


@fault("unknown-handle")
def runs_a_handle_that_was_never_given(board: Board, wrong: bool) -> None:
    network = board.start()
    if wrong:
        assert board.run(ffi.cast("vip_network", 0x1234)) != 0
    board.end(network)


@fault("context-leak")
def forgets_a_network(board: Board, wrong: bool) -> None:
    network = board.start()
    if not wrong:
        board.ok(board.library.vip_destroy_network(network))
    board.ok(board.library.vip_destroy())


@fault("context-leak")
def forgets_a_group(board: Board, wrong: bool) -> None:
    network = board.start()
    group = ffi.new("vip_group *")
    board.ok(board.library.vip_create_group(1, group))
    board.ok(board.library.vip_add_network(group[0], network))
    if not wrong:
        board.ok(board.library.vip_destroy_group(group[0]))
    board.end(network)


@fault("memory-leak")
def forgets_a_buffer(board: Board, wrong: bool) -> None:
    network = board.start()
    source, target = board.bind(network)
    board.end(network, source, *(() if wrong else (target,)))


@fault("driver-leak")
def forgets_the_driver(board: Board, wrong: bool) -> None:
    network = board.start()
    board.end(network, driver=not wrong)


@fault("destroyed-during-run")
def destroys_a_buffer_that_a_run_uses(board: Board, wrong: bool) -> None:
    network = board.start()
    source, target = board.bind(network)
    board.write(source)
    board.ok(board.library.vip_trigger_network(network))
    if wrong:
        board.ok(board.library.vip_destroy_buffer(target))
    board.library.vip_wait_network(network)
    board.end(network, *((source,) if wrong else (source, target)))


@fault("destroyed-during-run")
def finishes_before_waiting(board: Board, wrong: bool) -> None:
    network = board.start()
    source, target = board.bind(network)
    board.write(source)
    board.ok(board.library.vip_trigger_network(network))
    if wrong:
        board.ok(board.library.vip_destroy_network(network))
    else:
        board.ok(board.library.vip_wait_network(network))
        board.ok(board.library.vip_destroy_network(network))
    for buffer in (source, target):
        board.ok(board.library.vip_destroy_buffer(buffer))
    board.ok(board.library.vip_destroy())


# bounds


@fault("write-outside-buffer")
def writes_behind_a_buffer(board: Board, wrong: bool) -> None:
    network = board.start()
    source, target = board.bind(network)
    board.write(source)
    if wrong:
        ffi.memmove(board.library.vip_map_buffer(source) + picture().size, b"x", 1)
    board.ok(board.run(network))
    board.end(network, source, target)


@fault("write-outside-buffer")
def writes_behind_a_cached_buffer(board: Board, wrong: bool) -> None:
    network = board.start()
    source, target = board.bind(network, cached=True)
    board.write(source)
    if wrong:
        ffi.memmove(board.library.vip_map_buffer(source) + picture().size + 20, b"x", 1)
    board.flush(source)
    board.ok(board.run(network))
    board.end(network, source, target)


@fault("buffer-too-small")
def binds_a_buffer_that_is_too_small(board: Board, wrong: bool) -> None:
    network = board.start()
    params = board.params(network, 0, is_input=True)
    if wrong:
        params.sizes[0] = 2
    source = board.buffer(params)
    assert (board.library.vip_set_input(network, 0, source) != 0) == wrong
    board.end(network, source)


# threads


@fault("written-during-run")
def writes_the_next_picture_too_early(board: Board, wrong: bool) -> None:
    network = board.start()
    source, target = board.bind(network)
    board.write(source)
    board.ok(board.library.vip_trigger_network(network))
    if wrong:
        board.write(source, picture(1))
    board.ok(board.library.vip_wait_network(network))
    board.write(source, picture(2))
    board.end(network, source, target)


@fault("context-in-two-threads")
def shares_a_network_with_a_thread(board: Board, wrong: bool) -> None:
    network = board.start()
    source, target = board.bind(network)
    board.write(source)
    chip = board.library.chip_of(network)
    assert chip is not None
    scheduler = board.library.device_for(chip).scheduler
    cores = scheduler.acquire((1 << scheduler.cores) - 1)
    cores.take()
    thread = threading.Thread(target=board.run, args=(network,))
    thread.start()
    while not scheduler.waiting:
        time.sleep(0.001)
    if wrong:
        board.ok(board.library.vip_set_input(network, 0, source))
    cores.release()
    thread.join()
    board.ok(board.library.vip_set_input(network, 0, source))
    board.end(network, source, target)


# order of calls


@fault("call-order")
def calls_before_init(board: Board, wrong: bool) -> None:
    if wrong:
        assert board.library.vip_query_hardware(0, 4, ffi.new("uint32_t *")) != 0
    board.end(board.start())


@fault("call-order")
def binds_before_preparing(board: Board, wrong: bool) -> None:
    board.ok(board.library.vip_init(0))
    network = board.create(model_file(), MEMORY)
    source = board.buffer(board.params(network, 0, is_input=True))
    if not wrong:
        board.ok(board.library.vip_prepare_network(network))
    assert (board.library.vip_set_input(network, 0, source) != 0) == wrong
    board.end(network, source)


@fault("call-order", "a733")
def chooses_the_core_after_preparing(board: Board, wrong: bool) -> None:
    board.ok(board.library.vip_init(0))
    network = board.create(model_file("a733"), MEMORY)
    core = ffi.new("int32_t *", 0)
    if wrong:
        board.ok(board.library.vip_prepare_network(network))
    assert (board.library.vip_set_network(network, core_property(), core) != 0) == wrong
    board.end(network)


def core_property() -> int:
    from anynpu.vip.constants import vip_network_property_e

    return int(vip_network_property_e.VIP_NETWORK_PROP_SET_CORE_INDEX)


@fault("call-order")
def waits_for_nothing(board: Board, wrong: bool) -> None:
    network = board.start()
    if wrong:
        assert board.library.vip_wait_network(network) != 0
    board.end(network)


@fault("call-order")
def triggers_twice(board: Board, wrong: bool) -> None:
    network = board.start()
    source, target = board.bind(network)
    board.write(source)
    board.ok(board.library.vip_trigger_network(network))
    if wrong:
        assert board.library.vip_trigger_network(network) != 0
    board.ok(board.library.vip_wait_network(network))
    board.end(network, source, target)


@fault("input-never-set")
def binds_no_input(board: Board, wrong: bool) -> None:
    network = board.start()
    source, target = (board.buffer(board.params(network, 0, is_input=is_input)) for is_input in (True, False))
    board.ok(board.library.vip_set_output(network, 0, target))
    if not wrong:
        board.ok(board.library.vip_set_input(network, 0, source))
        board.write(source)
    assert (board.run(network) != 0) == wrong
    board.end(network, source, target)


@fault("input-never-set")
def runs_on_a_buffer_that_nobody_wrote(board: Board, wrong: bool) -> None:
    network = board.start()
    source, target = board.bind(network)
    if not wrong:
        board.write(source)
    board.ok(board.run(network))
    board.end(network, source, target)


@fault("output-never-bound")
def binds_no_output(board: Board, wrong: bool) -> None:
    network = board.start()
    source, target = (board.buffer(board.params(network, 0, is_input=is_input)) for is_input in (True, False))
    board.ok(board.library.vip_set_input(network, 0, source))
    board.write(source)
    if not wrong:
        board.ok(board.library.vip_set_output(network, 0, target))
    assert (board.run(network) != 0) == wrong
    board.end(network, source, target)


@fault("not-on-board", "v853")
def duplicates_where_nothing_can_be(board: Board, wrong: bool) -> None:
    network = board.start()
    if wrong:
        assert board.library.vip_weak_dup_network(network, ffi.new("vip_network *")) != 0
    board.end(network)


@fault("core-mask", "a733")
def chooses_a_second_core(board: Board, wrong: bool) -> None:
    board.ok(board.library.vip_init(0))
    network = board.create(model_file("a733"), MEMORY)
    core = ffi.new("int32_t *", 1 if wrong else 0)
    assert (board.library.vip_set_network(network, core_property(), core) != 0) == wrong
    board.end(network)


@fault("bad-argument")
def asks_for_an_input_that_is_not_there(board: Board, wrong: bool) -> None:
    network = board.start()
    assert (board.library.vip_query_input(network, int(wrong), 1, ffi.new("uint32_t *")) != 0) == wrong
    board.end(network)


# values


@fault("wrong-signedness")
def gives_signed_bytes(board: Board, wrong: bool) -> None:
    network = board.start()
    source, target = board.bind(network)
    board.write(source, (picture().astype(np.int16) - 128).astype(np.int8) if wrong else None)
    board.ok(board.run(network))
    board.end(network, source, target)


@fault("wrong-layout")
def gives_pixels_as_planes(board: Board, wrong: bool) -> None:
    network = board.start()
    source, target = board.bind(network)
    board.write(source, np.ascontiguousarray(picture().transpose(1, 2, 0)) if wrong else None)
    board.ok(board.run(network))
    board.end(network, source, target)


@fault("wrong-element-size")
def gives_float16_numbers(board: Board, wrong: bool) -> None:
    network = board.start()
    source, target = board.bind(network)
    numbers = (picture().astype(np.float32) / 255).astype(np.float16).reshape(-1)[: picture().size // 2]
    board.write(source, numbers if wrong else None)
    board.ok(board.run(network))
    board.end(network, source, target)
