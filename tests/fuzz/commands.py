"""Random and mutated command streams of the RK3588 NPU, with the memory that they work on.

A file is the number of tasks, their addresses and numbers of words (uint32 each), and the memory, which begins at :data:`BASE`.
"""

from __future__ import annotations

import random
import struct
from dataclasses import replace

import numpy as np

from anynpu.errors import AnynpuError
from anynpu.npu import rocket
from anynpu.npu.rocket.plan import Addition, Addresses, Convolution
from anynpu.npu.rocket.registers import BLOCKS, ORDER, REGISTERS, TARGETS
from anynpu.npu.rocket.stream import Command, task_size
from anynpu.program import Curve

from .modelfiles import name_of

__all__ = ["BASE", "mutant", "outcome"]

BASE = 0x1000_0000
_SIZE = 1 << 17
_INTERESTING = (
    0,
    1,
    2,
    3,
    7,
    15,
    16,
    31,
    32,
    63,
    64,
    127,
    128,
    255,
    256,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
)


def _convolution(dice: random.Random) -> Convolution:
    """A small one; about half of what the emitter takes."""
    channels, depthwise, size = dice.choice([1, 2, 8, 16, 17, 40, 64]), dice.random() < 0.3, dice.randint(1, 12)
    kernel = dice.choice([1, 1, 2, 3, 3, 5])
    pad, outputs = dice.randint(0, kernel - 1), dice.choice([1, 2, 7, 16, 33, 40])
    made = Convolution(
        height=max(size, kernel),
        width=max(dice.randint(1, 12), kernel),
        in_channels=channels,
        out_channels=channels if depthwise else outputs,
        kernel=(kernel, kernel),
        strides=(dice.randint(1, 3), dice.randint(1, 3)),
        pads=(pad, pad, pad, pad),
        depthwise=depthwise and channels > 1,
        padding=dice.randint(-128, 127),
        weight_offset=dice.randint(-128, 128),
        output_zero=dice.randint(-128, 127),
        multiplier=dice.randint(-(1 << 15), (1 << 15) - 1),
        shift=dice.randint(0, 31),
        addition=Addition(dice.randint(-128, 128), dice.randint(0, (1 << 16) - 1), dice.randint(0, 63))
        if dice.random() < 0.3
        else None,
    )
    per_channel = dice.random() < 0.3
    made = replace(made, per_channel=per_channel, channel_offsets=per_channel and dice.random() < 0.3)
    return made if made.addition is not None or dice.random() < 0.8 else replace(made, curve=_curve(dice))


def _curve(dice: random.Random) -> Curve:
    """Smooth tables, or random ones."""
    if dice.random() < 0.5:
        tables = np.sort(np.random.default_rng(dice.getrandbits(32)).integers(-32768, 32768, 1026)).reshape(2, -1)
    else:
        tables = np.random.default_rng(dice.getrandbits(32)).integers(-32768, 32768, (2, 513))
    negative, positive = tables.astype(np.int16)
    offset = dice.choice([0, dice.randint(-(1 << 20), 1 << 20)])
    return Curve(
        offset, dice.randint(0, 32767), dice.randint(0, 31), negative, positive, dice.choice([0, 20000]), dice.randint(0, 31)
    )


def _changed(command: Command, dice: random.Random) -> Command:
    """A word with another value, mostly in one field."""
    fields = REGISTERS[command.register].fields if command.register in REGISTERS else ()
    kind = dice.random()
    if fields and kind < 0.5:
        field = dice.choice(fields)
        return command._replace(
            value=command.value & ~field.mask | field.write(dice.choice([*_INTERESTING, dice.getrandbits(16)]))
        )
    if kind < 0.7:
        return command._replace(value=command.value ^ 1 << dice.randrange(32))
    if kind < 0.9:
        return command._replace(
            value=dice.choice([*_INTERESTING, BASE, BASE + _SIZE - dice.randrange(256), dice.getrandbits(32)])
        )
    return Command(
        dice.choice([*BLOCKS, 0, dice.getrandbits(16)]), dice.choice([*ORDER, dice.getrandbits(16)]), dice.getrandbits(32)
    )


def mutant(dice: random.Random) -> bytes:
    """One file: a job as the emitter writes it, with up to eight changes, or of random words."""
    memory = bytearray(dice.randbytes(1024) * (_SIZE // 1024))
    places = [BASE + (index << 14) for index in range(6)]
    stream = places[4] - BASE
    if dice.random() < 0.05:
        words = np.frombuffer(
            b"".join(
                Command(TARGETS[REGISTERS[number].block], number, dice.getrandbits(dice.choice([1, 4, 32]))).word.to_bytes(
                    8, "little"
                )
                for number in ORDER
            )
            if dice.random() < 0.5
            else dice.randbytes(8 * 136),
            np.uint64,
        )
        count, size = 1, task_size()
    else:
        try:
            conv = _convolution(dice)
            words, count = rocket.write(conv, Addresses(*places[:5], added=places[5]))
        except AnynpuError:
            return mutant(dice)
        tasks = []
        size = task_size(conv.tables)
        for task in rocket.decode(words):
            commands = list(task.commands)
            for _ in range(dice.choice([0, 1, 1, 1, 2, 8])):
                index = dice.randrange(len(commands) if dice.random() < 0.05 else size[0])
                commands[index] = _changed(commands[index], dice)
            if dice.random() < 0.03:
                commands.insert(dice.randrange(size[0]), commands.pop(dice.randrange(size[0])))
            tasks.append(replace(task, commands=tuple(commands)))
        words = rocket.encode(tasks)
    memory[stream : stream + words.nbytes] = words.astype("<u8").tobytes()
    rows = [(BASE + stream + size[1] * index, size[0]) for index in range(count)]
    if dice.random() < 0.05:
        rows[dice.randrange(count)] = (
            dice.choice([0, BASE + _SIZE - 8, dice.getrandbits(32)]),
            dice.choice([0, 1, 129, 136, 1 << 31]),
        )
    return struct.pack(f"<I{2 * count}I", count, *(number for row in rows for number in row)) + bytes(memory)


def outcome(data: bytes) -> str:
    """Check, print and run one file; how that ended. An exception that is not ours goes through."""
    (count,) = struct.unpack_from("<I", data)
    rows = np.frombuffer(data, "<u4", 2 * count, 4).reshape(-1, 2)
    given = np.frombuffer(data[4 + 8 * count :], np.uint8)
    findings = rocket.check_job(given, BASE, rows)
    for address, words in rows.tolist():
        if address >= BASE and address + 8 * words <= BASE + given.size:
            stream = given[address - BASE : address - BASE + 8 * words]
            tasks = rocket.decode(stream)
            assert rocket.encode(tasks).tobytes() == stream.tobytes()
            assert all(rocket.disassemble(tasks))
    results: list[str | bytes] = []
    for engine in ("native", "reference"):
        memory = given.copy()
        try:
            rocket.execute(memory, BASE, rows, engine=engine)
            results.append(memory.tobytes())
        except AnynpuError as error:
            results.append(f"{name_of(error)}: {error}")
    assert results[0] == results[1], "the engines differ"
    if isinstance(results[0], bytes):
        return "run, with findings" if findings else "run"
    assert findings, f"rejected, but the checker finds nothing: {results[0]}"
    return "rejected"
