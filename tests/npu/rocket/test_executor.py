"""The register engine: recorded jobs, bytes of a board, and what it rejects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anynpu.errors import CommandStreamError
from anynpu.npu import rocket
from anynpu.npu.rocket import layouts
from anynpu.npu.rocket.executor import EngineName, Executor
from anynpu.npu.rocket.operation import interpret
from anynpu.npu.rocket.plan import Addresses, Convolution
from anynpu.npu.rocket.registers import REGISTERS, TARGETS
from anynpu.npu.rocket.stream import Command

from .cases import BOARD_DATA, DATA

ENGINES: tuple[EngineName, ...] = ("native", "reference")
JOBS = sorted(DATA.glob("*.npz")) + sorted((BOARD_DATA.parent / "rocket").glob("*.npz"))
BASE = 0x1000_0000


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("path", JOBS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_recorded_job_gives_the_recorded_output(path: Path, engine: EngineName) -> None:
    with np.load(path) as arrays:
        expected = arrays["output" if "output" in arrays else "delegate_output"]
    job = rocket.read_job(path)
    memory = job.memory.copy()
    rocket.execute(memory, job.base, job.tasks, engine=engine)
    last = interpret(job.stream(len(job.tasks) - 1))
    planes = memory[last.output - job.base :]
    codes = layouts.unpack_features(planes, *expected.shape[1:]).view(np.uint8) ^ 0x80
    np.testing.assert_array_equal(codes[np.newaxis], expected)


def test_nothing_but_the_output_is_written() -> None:
    job = rocket.read_job(DATA / "conv_15_20_33_k3s2.npz")
    memory = job.memory.copy()
    rocket.execute(memory, job.base, job.tasks)
    operation = interpret(job.stream(0))
    first = operation.output - job.base
    size = layouts.atoms(operation.out_channels) * operation.out_plane
    changed = np.nonzero(memory != job.memory)[0]
    assert first <= changed.min()
    assert changed.max() < first + size


@pytest.mark.skipif(
    not BOARD_DATA.name or not BOARD_DATA.is_dir(), reason="set ANYNPU_BOARD_DATA to the folder with bytes of boards"
)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_byte_of_an_rk3588_through_a_stream(engine: EngineName) -> None:
    case = json.loads((BOARD_DATA / "rk3588" / "dw_teflon.json").read_text(encoding="utf-8"))
    params = case["params"]
    height, width, channels = params["shape"]
    data = np.frombuffer(bytes.fromhex(case["patterns"]["zero"]["input_hex"]), np.int8).reshape(height, width, channels)
    weights = np.array(params["w"], np.int8).reshape(channels, 3, 3, 1)
    geometry = ((3, 3), (1, 1), (1, 1, 1, 1))
    offset = -params["wz"][0]
    conv = Convolution(
        height, width, channels, channels, *geometry, True, 126, offset, params["z_out"], params["m"], params["shift"]
    )
    places = Addresses(BASE, BASE + 0x1000, BASE + 0x2000, BASE + 0x3000, BASE + 0x4000)
    memory = np.zeros(0x5000, np.uint8)
    memory[:4096] = layouts.pack_features(data).view(np.uint8)
    packed = layouts.pack_weights(weights, -offset, depthwise=True).view(np.uint8)
    memory[0x2000 : 0x2000 + packed.size] = packed
    bias = layouts.pack_bias(np.array(params["bias"]))
    memory[0x3000 : 0x3000 + bias.size] = bias
    words, tasks = rocket.write(conv, places)
    words = changed(words, 0x1184, 126)  # the word that the board had: one byte of the pair
    memory[0x4000 : 0x4000 + words.nbytes] = words.view(np.uint8)
    rocket.execute(memory, BASE, [[BASE + 0x4000, 130]], engine=engine)
    result = layouts.unpack_features(memory[0x1000:], height, width, channels)
    board = np.frombuffer(bytes.fromhex(case["board_output_hex"]["zero"]), np.int8)
    assert tasks == 1
    assert board.size == 4096
    assert np.count_nonzero(result.ravel() != board) == 0


def changed(words: Any, register: int, value: int) -> Any:
    """The words with another value in a register."""
    (task,) = rocket.decode(words)
    commands = tuple(entry._replace(value=value) if entry.register == register else entry for entry in task.commands)
    return rocket.encode([rocket.StreamTask(commands)])


def simple() -> Any:
    """The words of a small convolution."""
    conv = Convolution(4, 4, 16, 16, (1, 1), (1, 1), (0, 0, 0, 0), False, 0, 0, 0, 1, 0)
    places = Addresses(BASE, BASE + 0x1000, BASE + 0x2000, BASE + 0x3000, BASE + 0x4000)
    return rocket.write(conv, places)[0]


def run(words: Any, size: int = 0x5000) -> None:
    memory = np.zeros(size, np.uint8)
    memory[0x4000 : 0x4000 + words.nbytes] = words.view(np.uint8)
    rocket.execute(memory, BASE, [[BASE + 0x4000, 130]])


@pytest.mark.parametrize(
    ("register", "value"),
    [
        (0x100C, 1 << 16),
        (0x1014, 0),
        (0x1014, 1 << 16 | 9),
        (0x1100, 1),
        (0x1020, 5 << 16 | 4),
        (0x3010, 1 | 2 << 8),
        (0x4010, 2 << 29),
        (0x4040, 0x20110),
        (0x4060, 0x12),
        (0x4070, 0x303),
        (0x4088, 1 << 30),
        (0x4084, 1 << 16 | 1),
        (0x40C0, 0x10),
        (0x4100, 1),
        (0x5028, 3),
        (0x5044, 0x7800),
    ],
)
def test_what_is_not_known_is_rejected_with_the_name_of_the_register(register: int, value: int) -> None:
    run(simple())
    with pytest.raises(CommandStreamError, match=REGISTERS[register].label):
        run(changed(simple(), register, value))


@pytest.mark.parametrize(
    ("register", "label"),
    [(0x1070, "FEATURE_DATA_ADDR"), (0x1110, "DCOMP_ADDR0"), (0x4020, "DST_BASE_ADDR"), (0x5020, "BS_BASE_ADDR")],
)
@pytest.mark.parametrize("address", [BASE - 16, BASE + 0x5000 - 16, 0xFFFF_FFF0])
def test_addresses_outside_the_memory_are_rejected(register: int, label: str, address: int) -> None:
    with pytest.raises(CommandStreamError, match=f"task 0: .*{label}.* outside the memory"):
        run(changed(simple(), register, address))


def test_incomplete_streams_are_rejected() -> None:
    words = simple()
    memory = np.zeros(0x5000, np.uint8)
    memory[0x4000 : 0x4000 + words.nbytes] = words.view(np.uint8)
    for count, message in ((129, "PC.ENABLE"), (60, "does not write"), (0, "0 words"), (1 << 20, "words")):
        with pytest.raises(CommandStreamError, match=message):
            rocket.execute(memory, BASE, [[BASE + 0x4000, count]])
    with pytest.raises(CommandStreamError, match="rows of address"):
        rocket.execute(memory, BASE, [1, 2, 3])
    with pytest.raises(CommandStreamError, match="memory is int8"):
        rocket.execute(memory.view(np.int8), BASE, [[BASE, 130]])  # type: ignore[arg-type]
    (task,) = rocket.decode(words)
    foreign = rocket.StreamTask((Command(TARGETS["DPU"], 0x1040, 1), *task.commands))
    with pytest.raises(CommandStreamError, match="block DPU, which is not known"):
        interpret(foreign)


def test_strides_that_overlap_are_rejected() -> None:
    with pytest.raises(CommandStreamError, match="overlap"):
        run(changed(simple(), 0x107C, 1))


def test_tasks_that_come_again_are_prepared_once() -> None:
    job = rocket.read_job(DATA / "conv_15_20_33_k3s2.npz")
    executor = Executor()
    memory = job.memory.copy()
    for _ in range(3):
        executor.run(memory, job.base, job.tasks)
    assert executor.prepared == 1
