"""Random sequences of right and wrong calls: only the statuses that are due, and nothing left at the end. Leaks. Threads."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from waiting import wait_until

from anynpu._vip import ffi
from anynpu.vip import Awnn, Network, SoftwareLibrary

from .misuse import Machine, memory_in_use
from .support import Calls, picture, small_file

STEPS = 400
SEEDS = range(max(1, int(os.environ.get("ANYNPU_MISUSE_STEPS", "6000")) // STEPS))
"""`make soak` asks for more."""


@pytest.mark.parametrize("seed", SEEDS)
def test_random_calls_are_answered_and_leave_nothing(seed: int) -> None:
    library = SoftwareLibrary("t527")
    machine = Machine(library, seed)
    for _ in range(STEPS):
        machine.step()
    machine.decent()
    for call in ("vip_run_network", "vip_trigger_network", "vip_wait_network", "vip_run_group"):
        assert machine.trail.count(f"{call} 0") > 0  # not everything is rejected
    machine.finish_all()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def life(calls: Calls) -> None:
    """Everything that a program does, once."""
    library = calls.library
    calls.ok(library.vip_init(0))
    network, (given,), outputs = calls.ready()
    twin = ffi.new("vip_network *")
    calls.ok(library.vip_dup_network(ffi.NULL, 0, 0x801, network, twin))
    calls.ok(library.vip_prepare_network(twin[0]))
    calls.ok(library.vip_set_input(twin[0], 0, given))
    for index, buffer in enumerate(outputs):
        calls.ok(library.vip_set_output(twin[0], index, buffer))
    calls.ok(library.vip_trigger_network(twin[0]))
    calls.ok(library.vip_run_network(network))
    calls.ok(library.vip_wait_network(twin[0]))
    assert library.vip_run_network(ffi.NULL) == -7
    for entry in (twin[0], network):
        calls.ok(library.vip_destroy_network(entry))
    for buffer in (given, *outputs):
        calls.ok(library.vip_destroy_buffer(buffer))
    assert memory_in_use(library) == 0
    calls.ok(library.vip_destroy())


def test_programs_leave_nothing_behind(open_calls: Callable[..., Calls]) -> None:
    calls = open_calls(init=False)
    for _ in range(3):
        life(calls)
    gc.collect()
    files, threads, objects = open_files(), threading.active_count(), len(gc.get_objects())
    for _ in range(30):
        life(calls)
    gc.collect()
    assert open_files() <= files
    wait_until(lambda: threading.active_count() <= threads + 1, "the threads end")  # a worker may still linger
    assert len(gc.get_objects()) < objects + 300


def test_objects_that_are_forgotten_give_everything_back(open_calls: Callable[..., Calls], tmp_path: Any) -> None:
    library = open_calls(init=False).library
    path = tmp_path / "model.nb"
    path.write_bytes(small_file())
    files = open_files()
    for _ in range(3):
        network = Network(path, device=library)
        network.run([picture()])
        twin = network.duplicate()
        twin.run([picture()])
        Awnn(path, device=library).run()
        del network, twin
    gc.collect()
    assert not library.initialised
    assert open_files() <= files


def test_many_threads_with_duplicates(open_calls: Callable[..., Calls]) -> None:
    library = open_calls(init=False).library
    inputs = [picture(seed) for seed in range(4)]
    with Network(small_file(), device=library) as network:
        expected = [network.run([values]) for values in inputs]
        wrong: list[object] = []

        def work(index: int) -> None:
            with network.duplicate(priority=index * 60) as own:
                for turn in range(10):
                    case = (index + turn) % len(inputs)
                    for found, due in zip(own.run([inputs[case]]), expected[case], strict=True):
                        if not np.array_equal(found, due):
                            wrong.append((index, turn))

        threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(600)
        assert wrong == []
    assert not library.initialised


def test_one_network_in_many_threads_takes_turns(calls: Calls) -> None:
    network, (given,), (scores, _) = calls.ready()
    calls.bytes(given)[:] = 9
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.extend(calls.library.vip_run_network(network) for _ in range(10)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert statuses == [0] * 40
    assert calls.bytes(scores).any()


def test_the_driver_may_end_while_others_call(open_calls: Callable[..., Calls]) -> None:
    allowed = {0, -3, -4, -7, -8, -9, -11, -15}
    calls = open_calls(init=False)
    library = calls.library
    unexpected: list[int] = []
    stop = threading.Event()

    def work() -> None:
        out = ffi.new("vip_network *")
        data = small_file()
        while not stop.is_set():
            for status in (
                library.vip_create_network(ffi.from_buffer(data), len(data), 2, out),
                library.vip_prepare_network(out[0]),
                library.vip_run_network(out[0]),
                library.vip_destroy_network(out[0]),
            ):
                if status not in allowed:
                    unexpected.append(status)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        calls.ok(library.vip_init(0))
        network, *_ = calls.ready()
        calls.ok(library.vip_run_network(network))
        calls.ok(library.vip_destroy())
    stop.set()
    for thread in threads:
        thread.join(600)
    assert unexpected == []
