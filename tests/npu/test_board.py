"""A board that several processes share: one job at a time on a core, whatever becomes of a process."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from waiting import PATIENCE

from anynpu.errors import DeviceTimeout, ParameterError
from anynpu.npu import Device
from anynpu.npu.board import SharedCores, _lock_file, board_folder, runtime_folder
from anynpu.npu.control import RunControl

from .builders import dense_chain

WORKER = """
import os, sys, time
from anynpu.npu.board import SharedCores
from anynpu.npu.control import RunControl
what, board = sys.argv[1:3]
cores = SharedCores(board, "rk3588", 3)
if what == "hold":
    with cores.held((0, 1), RunControl()):
        print("held", flush=True)
        sys.stdin.read()
elif what == "work":
    mine = tuple(int(core) for core in sys.argv[3].split(","))
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(40):
        with cores.held(mine, RunControl(120)):
            begin = time.monotonic_ns()
            time.sleep(0.001)
            end = time.monotonic_ns()
        print(begin, end)
"""


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A name, in a folder of the test's own."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return "tested"


def start(what: str, board: str, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, what, board, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() in ("held\n", "ready\n")
    return process


@pytest.fixture
def holder(board: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the cores 0 and 1."""
    process = start("hold", board)
    yield process
    process.kill()
    process.communicate(timeout=120)


def test_a_core_of_another_process_is_waited_for(board: str, holder: subprocess.Popen[str]) -> None:
    cores = SharedCores(board, "rk3588", 3)
    assert [cores.is_free(core) for core in range(3)] == [False, False, True]
    with pytest.raises(DeviceTimeout), cores.held((0,), RunControl(0.05)):
        pass
    with cores.held((2,), RunControl(PATIENCE)):
        assert not cores.is_free(2)
    assert cores.is_free(2)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_process_that_dies_blocks_nobody(board: str, holder: subprocess.Popen[str], number: signal.Signals) -> None:
    cores = SharedCores(board, "rk3588", 3)
    taken = threading.Event()

    def take() -> None:
        with cores.held((0, 1, 2), RunControl(PATIENCE)):
            taken.set()

    thread = threading.Thread(target=take)
    thread.start()
    assert not taken.wait(0.05)
    holder.send_signal(number)
    assert taken.wait(120)
    thread.join()


def test_processes_exclude_each_other(board: str) -> None:
    workers = [start("work", board, cores) for cores in ("0", "0,1", "1,0")]
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
    spans = []
    for number, worker in enumerate(workers):
        out, _ = worker.communicate(timeout=120)
        spans += [(*map(int, line.split()), number) for line in out.splitlines()]
    assert len(spans) == 120
    spans.sort()
    for (_, end, _), (begin, _, _) in itertools.pairwise(spans):
        assert end <= begin


def test_who_waited_comes_before_who_had_the_core(board: str) -> None:
    cores = SharedCores(board, "rk3588", 3)
    served = []

    def wait(name: str) -> None:
        with cores.held((0,), RunControl(PATIENCE)):
            served.append(name)

    with cores.held((0,), RunControl()):
        first = threading.Thread(target=wait, args=("who waited",))
        first.start()
        while _lock_file(board_folder(board, "rk3588") / "core0.next").try_acquire():  # until it stands in line
            _lock_file(board_folder(board, "rk3588") / "core0.next").release()
            time.sleep(0.001)
    wait("who had it")
    first.join()
    assert served == ["who waited", "who had it"]


def test_threads_of_one_process_exclude_each_other(board: str) -> None:
    first, second = (SharedCores(board, "rk3588", 3) for _ in range(2))
    with first.held((1,), RunControl()), pytest.raises(DeviceTimeout), second.held((1,), RunControl(0.02)):
        pass
    with second.held((1,), RunControl(PATIENCE)):
        pass


def test_a_forked_child_has_nothing_of_its_parent(board: str) -> None:
    cores = SharedCores(board, "rk3588", 3)
    with cores.held((0,), RunControl()):
        child = os.fork()
        if child == 0:
            os._exit(0 if not cores.is_free(0) and cores.is_free(1) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not SharedCores(board, "rk3588", 3).is_free(0)  # the child's end gave nothing back


def test_a_job_takes_a_core_that_is_free_on_the_board(board: str, holder: subprocess.Popen[str]) -> None:
    with Device("rk3588", board=board) as device, device.load(dense_chain()).context() as context:
        inputs = [np.zeros(spec.shape, np.float32) for spec in context.inputs]
        context.run(inputs)
        job = device.submit(context, inputs)
        job.result(120)
        assert job.cores == (2,)
        with pytest.raises(DeviceTimeout):
            context.run(inputs, mask=1, timeout=0.05)
        with pytest.raises(DeviceTimeout):
            device.submit(context, inputs, mask=1, timeout=0.05).result(120)
        context.run(inputs)  # nothing stayed behind
        assert device.statistics[2].jobs == 3


def test_the_environment_names_the_board(board: str, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYNPU_BOARD", board)
    with Device("rk3588") as device, device.load(dense_chain()).context() as context, pytest.raises(DeviceTimeout):
        context.run([np.zeros(spec.shape, np.float32) for spec in context.inputs], mask=1, timeout=0.05)


def test_names(board: str) -> None:
    for name in ("", "../x", "a/b", "x" * 65, ".hidden"):
        with pytest.raises(ParameterError):
            SharedCores(name, "rk3588", 3)
    assert runtime_folder().stat().st_mode & 0o077 == 0


def test_who_has_a_core_can_be_read(board: str) -> None:
    cores = SharedCores(board, "rk3588", 3)
    table = next(runtime_folder().glob("board-*/rk3588/holders"))
    with cores.held((1,), RunControl()):
        assert np.fromfile(table, np.int32).tolist() == [0, os.getpid(), 0]
    assert np.fromfile(table, np.int32).tolist() == [0, 0, 0]


def test_waiting_ends_when_the_job_is_cancelled(board: str, holder: subprocess.Popen[str]) -> None:
    with Device("rk3588", board=board) as device, device.load(dense_chain()).context() as context:
        job = device.submit(context, [np.zeros(spec.shape, np.float32) for spec in context.inputs], mask=1)
        time.sleep(0.05)
        assert job.cancel()
        assert job.exception(PATIENCE) is not None
