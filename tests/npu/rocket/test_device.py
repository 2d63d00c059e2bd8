"""The emulated /dev/accel/accel0: from Python, and from programs without any library."""

from __future__ import annotations

import errno
import json
import mmap
import os
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tools import need

from anynpu.devtools import faults
from anynpu.devtools.faults import Fault, Plan
from anynpu.dropin.environment import program_environment
from anynpu.npu import rocket
from anynpu.npu.rocket.device import BASE, AccelDevice, AccelFile, JobRequest

from .cases import DATA

PROGRAMS = Path(__file__).parent / "programs"
NATIVE = Path(__file__).parents[3] / "src" / "anynpu" / "dropin" / "native"
TIMEOUT = 600
HOUR = 3_600_000_000_000


def recorded() -> rocket.RecordedJob:
    return rocket.read_job(DATA / "conv_15_20_33_k3s2.npz")


def expected() -> Any:
    job = recorded()
    memory = job.memory.copy()
    rocket.execute(memory, job.base, job.tasks)
    return memory


@pytest.fixture
def file() -> Any:
    made = AccelDevice().open()
    yield made
    made.close()


def fill(file: AccelFile, job: rocket.RecordedJob) -> tuple[int, Any]:
    """One buffer with the memory of a job; gives its handle and its bytes."""
    handle, address, offset = file.create_bo(job.memory.size)
    assert address == job.base
    memory = mmap.mmap(file.fd, job.memory.size, offset=offset)
    memory[:] = job.memory.tobytes()
    return handle, np.frombuffer(memory, np.uint8)


def request(job: rocket.RecordedJob, handle: int, **changes: Any) -> JobRequest:
    tasks = tuple((address, words) for address, words in job.tasks.tolist())
    return JobRequest(**{"tasks": tasks, "reads": (), "writes": (handle,), **changes})


def test_a_job_gives_the_bytes_of_the_register_engine(file: AccelFile) -> None:
    job = recorded()
    handle, memory = fill(file, job)
    file.submit([request(job, handle)])
    file.prep_bo(handle, time.monotonic_ns() + HOUR)
    np.testing.assert_array_equal(memory, expected())


def test_a_wait_has_an_absolute_deadline(file: AccelFile) -> None:
    """The job cannot begin while all cores are taken."""
    job = recorded()
    handle, memory = fill(file, job)
    for _ in range(3):
        file.device.cores.acquire()
    try:
        file.submit([request(job, handle)])
        for timeout, number in ((0, errno.EBUSY), (1, errno.ETIMEDOUT), (time.monotonic_ns() + 1000, errno.ETIMEDOUT)):
            with pytest.raises(OSError) as caught:
                file.prep_bo(handle, timeout)
            assert caught.value.errno == number
    finally:
        for _ in range(3):
            file.device.cores.release()
    file.prep_bo(handle, time.monotonic_ns() + HOUR)
    file.prep_bo(handle, 0)
    np.testing.assert_array_equal(memory, expected())


def test_jobs_of_one_file_run_in_order_and_files_have_their_own_memory() -> None:
    device, job = AccelDevice(), recorded()
    files = [device.open() for _ in range(5)]
    filled = [fill(file, job) for file in files]
    right = expected()

    def work(file: AccelFile, handle: int) -> None:
        for _ in range(5):
            file.submit([request(job, handle), request(job, handle)])
            file.prep_bo(handle, time.monotonic_ns() + HOUR)

    threads = [threading.Thread(target=work, args=(file, handle)) for file, (handle, _) in zip(files, filled, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert all((memory == right).all() for _, memory in filled)
    filled[0][1][:] = 0
    assert (filled[1][1] == right).all()
    for file in files:
        assert file.failures == 0
        file.close()


@pytest.mark.parametrize(
    "changes",
    [
        {"reads": (1,), "writes": (1,)},
        {"writes": (77,)},
        {"tasks": ((0x10, 130),)},
        {"tasks": ((BASE, 130),)},
        {"tasks": ((BASE, 1 << 20),)},
    ],
)
def test_a_job_that_cannot_run_says_nothing_and_writes_nothing(file: AccelFile, changes: dict[str, Any]) -> None:
    job = recorded()
    handle, memory = fill(file, job)
    file.submit([request(job, handle, **changes)])
    file.prep_bo(handle, time.monotonic_ns() + HOUR)
    np.testing.assert_array_equal(memory, job.memory)
    assert file.failures == 1


def test_a_job_beyond_the_time_limit_is_given_up(file: AccelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the time that the chip would take; the host's does not count."""
    job = recorded()
    handle, memory = fill(file, job)
    monkeypatch.setattr("anynpu.npu.rocket.device._LIMIT_SECONDS", 1e-9)
    file.submit([request(job, handle)])
    file.prep_bo(handle, time.monotonic_ns() + HOUR)
    np.testing.assert_array_equal(memory, job.memory)
    assert file.failures == 1


def test_freed_memory_is_used_again_and_is_zero(file: AccelFile) -> None:
    first, address, offset = file.create_bo(8192)
    second, *_ = file.create_bo(4096)
    os.pwrite(file.fd, b"old", offset)
    file.gem_close(first)
    again, reused, _ = file.create_bo(4096)
    assert (again, reused) == (second + 1, address)
    assert os.pread(file.fd, 4, offset) == bytes(4)
    with pytest.raises(OSError) as caught:
        file.gem_close(first)
    assert caught.value.errno == errno.EINVAL
    for size, number in ((0, errno.EINVAL), (1 << 31, errno.ENOMEM)):
        with pytest.raises(OSError) as caught:
            file.create_bo(size)
        assert caught.value.errno == number


def test_a_byte_of_a_stream_can_be_wrong_on_purpose(file: AccelFile) -> None:
    job = recorded()
    handle, memory = fill(file, job)
    with faults.inject(Plan((Fault("stream", times=0, bit=3),), seed=4)):
        file.submit([request(job, handle)])
        file.prep_bo(handle, time.monotonic_ns() + HOUR)
    different = np.nonzero(memory != expected())[0]
    assert different.size == 1
    assert memory[different[0]] ^ expected()[different[0]] == 8


def execute(arguments: list[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "anynpu",
        "exec",
        "--device",
        "rocket",
        *options.pop("flags", []),
        "--",
        *map(str, arguments),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    assert done.returncode == options.get("code", 0), done.stdout + done.stderr
    return done


def write_job(path: Path, job: rocket.RecordedJob) -> Path:
    """The job in the form of the programs."""
    tasks = job.tasks.astype("<u4").tobytes()
    path.write_bytes(struct.pack("<II", job.memory.size, len(job.tasks)) + tasks + job.memory.tobytes())
    return path


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("traced") / "traced"
    flags = ["-Wall", "-Wextra", "-Werror", "-g", "-O1", "-pthread", f"-I{NATIVE}"]
    done = subprocess.run(
        [need("cc"), str(PROGRAMS / "traced.c"), "-o", str(target), *flags], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.parametrize(("threads", "runs"), [(1, 1), (5, 3)])
def test_a_program_in_c_that_opens_the_device_as_mesa_does(traced: Path, tmp_path: Path, threads: int, runs: int) -> None:
    """Two rounds of opens, two VERSION calls each, the first file closed twice; PREP and FINI around each mapping, one SUBMIT a run."""
    path = write_job(tmp_path / "job", recorded())
    log = tmp_path / "log"
    execute([traced, path, tmp_path / "out", str(threads), str(runs)], flags=["--log", log, "--log-format", "json"])
    np.testing.assert_array_equal(np.frombuffer((tmp_path / "out").read_bytes(), np.uint8), expected())
    calls = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    requests = [call["arguments"]["request"] for call in calls if call["call"] == "accel_ioctl"]
    assert sum(call["call"] == "accel_open" for call in calls) == threads + 1
    assert requests.count(0xC0406400) == 2 * (2 + threads)
    assert requests.count(0xC0186440) == requests.count(0x40086409) == 4 * threads
    assert requests.count(0x40186441) == threads * runs
    assert requests.count(0x40086443) == threads * (4 + 5 * runs)


def test_a_client_in_python(tmp_path: Path) -> None:
    path = write_job(tmp_path / "job", recorded())
    done = execute([sys.executable, PROGRAMS / "client.py", path, tmp_path / "out"])
    np.testing.assert_array_equal(np.frombuffer((tmp_path / "out").read_bytes(), np.uint8), expected())
    assert "is in both lists" in done.stderr
    assert "handle 99 does not exist" in done.stderr


def test_findings_of_a_program_go_to_the_sanitizer(tmp_path: Path) -> None:
    path = write_job(tmp_path / "job", recorded())
    report = tmp_path / "found.json"
    flags = ["--sanitize", "--sanitize-report", str(report)]
    execute([sys.executable, PROGRAMS / "client.py", path, tmp_path / "out"], flags=flags, code=23)
    found = {entry["id"] for entry in json.loads(report.read_text(encoding="utf-8"))["findings"]}
    assert {"job-same-buffer", "job-unknown-buffer"} <= found


def test_the_device_is_there_with_the_mainline_driver_only() -> None:
    assert program_environment({}, chip="rk3588", mainline=True)["ANYNPU_BOARD_ROOT"].endswith("system-rk3588-mainline")
    command = [sys.executable, "-m", "anynpu", "exec", "--chip", "rk3588", "--", "test", "-e", "/dev/accel/accel0"]
    assert subprocess.run(command, check=False, timeout=TIMEOUT).returncode == 1
    execute(["test", "-e", "/dev/accel/accel0"])
    wrong = [sys.executable, "-m", "anynpu", "exec", "--device", "rocket", "--chip", "rk3566", "--", "true"]
    done = subprocess.run(wrong, check=False, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 2
    assert "drives the NPU of rk3588, not of rk3566" in done.stderr
