"""The checker of command streams: each kind of fault is found, and correct streams have none."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anynpu
from anynpu.devtools.sanitizer import KINDS
from anynpu.npu import rocket
from anynpu.npu.rocket import layouts
from anynpu.npu.rocket.checker import Span, StreamFinding, check_job
from anynpu.npu.rocket.device import BASE, AccelDevice, JobRequest
from anynpu.npu.rocket.plan import Addresses, Convolution
from anynpu.npu.rocket.stream import Command

from .cases import DATA
from .test_executor import JOBS

PLACES = Addresses(BASE, BASE + 0x4000, BASE + 0x8000, BASE + 0xC000, BASE + 0xD000)
EDGES = (0, 0x4000, 0x8000, 0xC000, 0xD000, 0xE000)
SPANS = tuple(Span(BASE + first, BASE + last) for first, last in pairwise(EDGES))


def convolution(channels: int = 40, outputs: int = 8, *, depthwise: bool = False) -> Convolution:
    outputs = channels if depthwise else outputs
    return Convolution(8, 8, channels, outputs, (3, 3), (1, 1), (1, 1, 1, 1), depthwise, 5, -3, 0, 1, 0)


def memory_of(conv: Convolution, words: Any, weights: Any = None) -> Any:
    """Memory with a stream and its weights."""
    memory = np.zeros(0xE000, np.uint8)
    depth = 1 if conv.depthwise else conv.in_channels
    given = np.ones((conv.out_channels, 3, 3, depth), np.int8) if weights is None else weights
    packed = layouts.pack_weights(given, -conv.weight_offset, depthwise=conv.depthwise).view(np.uint8)
    memory[0x8000 : 0x8000 + packed.size] = packed
    memory[0xD000 : 0xD000 + words.nbytes] = words.view(np.uint8)
    return memory


def faults_of(
    conv: Convolution, change: Callable[[tuple[Command, ...]], tuple[Command, ...]] | None = None
) -> list[StreamFinding]:
    words, _ = rocket.write(conv, PLACES)
    if change is not None:
        (task,) = rocket.decode(words)
        words = rocket.encode([replace(task, commands=change(task.commands))])
    return check_job(memory_of(conv, words), BASE, [[PLACES.commands, min(130, len(words))]], SPANS)


def put(register: int, value: int) -> Callable[[tuple[Command, ...]], tuple[Command, ...]]:
    return lambda commands: tuple(each._replace(value=value) if each.register == register else each for each in commands)


def without(block: str) -> Callable[[tuple[Command, ...]], tuple[Command, ...]]:
    return lambda commands: tuple(each for each in commands if each.block != block and each.word)


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("channels", [1, 16, 40, 44, 64, 70])
def test_correct_streams_have_no_findings(channels: int, depthwise: bool) -> None:
    conv = convolution(channels, depthwise=depthwise and channels > 1)
    if conv.raw_input:
        conv = replace(conv, in_channels=2)
    assert faults_of(conv) == []


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_recorded_jobs_have_known_faults_only(path: Path) -> None:
    job = rocket.read_job(path)
    found = {finding.kind for finding in check_job(job.memory, job.base, job.tasks)}
    assert found <= {"stream-padding", "stream-weights", "stream-entries"}
    assert ("stream-weights" in found) == (path.stem == "dw_12_40_k5s1")


CASES: dict[str, tuple[Convolution, Callable[[tuple[Command, ...]], tuple[Command, ...]]]] = {
    "stream-incomplete": (convolution(), without("CORE")),
    "stream-rdma": (convolution(), without("DPU_RDMA")),
    "stream-unknown": (convolution(), put(0x4070, 0x103)),
    "stream-entries": (convolution(), put(0x1044, 6)),
    "stream-padding": (convolution(64, depthwise=True), put(0x1184, 0xFFFFFFFB)),
    "stream-empty-slice": (convolution(), put(0x4034, 0x1FFF)),
    "stream-address": (convolution(), put(0x4020, BASE + 0x7F00)),
    "stream-limit": (convolution(), put(0x1040, 0xCC)),
}


@pytest.mark.parametrize("kind", list(CASES))
def test_a_fault_is_found(kind: str) -> None:
    conv, change = CASES[kind]
    found = faults_of(conv, change)
    assert kind in {finding.kind for finding in found}, found
    assert all(finding.text for finding in found)


def test_entries_do_not_matter_for_single_pixels() -> None:
    conv = replace(convolution(), kernel=(1, 1), pads=(0, 0, 0, 0))
    words, _ = rocket.write(conv, PLACES)
    (task,) = rocket.decode(words)
    changed = rocket.encode([replace(task, commands=put(0x1044, 18)(task.commands))])
    memory = memory_of(replace(conv, kernel=(3, 3)), changed)
    assert "stream-entries" not in {each.kind for each in check_job(memory, BASE, [[PLACES.commands, 130]])}


def packed_as_mesa_does(conv: Convolution, weights: Any) -> Any:
    """Depthwise lanes without those that fill the last block up."""
    return np.ascontiguousarray(weights[..., 0].transpose(1, 2, 0)).reshape(-1)


def test_wrongly_packed_weights_are_found() -> None:
    conv = convolution(40, depthwise=True)
    words, _ = rocket.write(conv, PLACES)
    memory = memory_of(conv, words)
    weights = np.random.default_rng(0).integers(-128, 128, (40, 3, 3, 1)).astype(np.int8)
    packed = packed_as_mesa_does(conv, weights).view(np.uint8)
    memory[0x8000 : 0x8000 + packed.size] = packed
    assert [each.kind for each in check_job(memory, BASE, [[PLACES.commands, 130]])] == ["stream-weights"]
    dense = convolution(16, 7)
    words, _ = rocket.write(dense, PLACES)
    memory = memory_of(dense, words)
    memory[0x8000:0x8800] = 1
    (found,) = check_job(memory, BASE, [[PLACES.commands, 130]])
    assert "the kernel that fills an odd number up is not 0" in found.text


def test_every_kind_of_a_job_is_found_by_the_sanitizer() -> None:
    job = rocket.read_job(DATA / "conv_15_20_33_k3s2.npz")
    tasks = tuple((address, words) for address, words in job.tasks.tolist())
    with anynpu.sanitize(check=False) as found:
        device = AccelDevice()
        file = device.open()
        handle, *_ = file.create_bo(job.memory.size)
        os.pwrite(file.fd, job.memory.tobytes(), 0)
        chained = ((tasks[0][0], 2 * 136),)
        for request in (
            JobRequest(tasks, (handle,), (handle,)),
            JobRequest(tasks, (), (99,)),
            JobRequest(chained, (), (handle,)),
        ):
            file.submit([request])
        file.close()
    kinds = {one.id for one in found.findings}
    assert {"job-same-buffer", "job-unknown-buffer", "stream-chained"} <= kinds
    assert {name for name in KINDS if name.startswith(("stream-", "job-"))} == {*CASES, *kinds, "stream-weights"}
