"""What devices report about themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_until

from anynpu.npu import CoreScheduler, Device
from anynpu.npu.board import StatusFile, now_ns, open_status, read_statuses


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "anynpu" / "devices"


def test_a_device_shows_up_with_its_first_job_and_goes_with_its_end(runtime: Path) -> None:
    device = Device("rk3588")
    assert read_statuses() == []
    with device.scheduler.acquire(0b101):
        (status,) = read_statuses()
        assert (status.pid, status.chip, len(status.cores)) == (os.getpid(), "rk3588", 3)
        assert [bool(core.since_ns) for core in status.cores] == [True, False, True]
        assert status.busy_ns(now_ns())[0] > 0
    (status,) = read_statuses()
    assert [core.jobs for core in status.cores] == [1, 0, 1]
    assert not any(core.since_ns for core in status.cores)
    device.close()
    assert list(runtime.iterdir()) == []


def test_a_forgotten_device_leaves_nothing(runtime: Path) -> None:
    device = Device("rk3566")
    with device.scheduler.acquire():
        pass
    assert len(list(runtime.iterdir())) == 1
    del device
    assert list(runtime.iterdir()) == []


def test_the_file_of_a_process_that_was_killed_is_removed(runtime: Path) -> None:
    code = """
import time
from anynpu.npu import Device
device = Device("rk3588")
with device.scheduler.acquire():
    print(flush=True)
    time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    assert [status.pid for status in read_statuses()] == [process.pid]
    process.kill()
    process.wait()
    process.stdout.close()
    wait_until(lambda: not read_statuses(), "the process is gone for good")
    assert list(runtime.iterdir()) == []


def test_a_forked_child_writes_into_no_file_of_its_parent(runtime: Path) -> None:
    status = StatusFile("rk3588", 1)
    child = os.fork()
    if child == 0:
        status.ended((0,), [7], [7], 7)
        status.close()
        os._exit(0)
    os.waitpid(child, 0)
    (seen,) = read_statuses()
    assert seen.cores[0].jobs == 0
    status.close()


def test_no_place_for_a_file_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setattr("anynpu.npu.board.runtime_folder", lambda: blocked)
    assert open_status("rk3588", 3) is None
    scheduler = CoreScheduler(1, status=lambda: open_status("rk3588", 1))
    with scheduler.acquire():
        pass
    assert read_statuses() == []


def test_rubbish_in_the_folder_is_passed_over(runtime: Path) -> None:
    runtime.mkdir(parents=True)
    (runtime / "notes").write_text("?")
    (runtime / f"{os.getpid()}.1").write_bytes(b"{")
    assert read_statuses() == []
