"""Command streams as data: words to commands and back, and as text.

A stream holds the tasks of an operation at a fixed distance. A task is 126 register writes and four words of the program counter, which
link it to the next task and start the blocks. A task with lookup tables has their 1,026 entries in addition, and nine times the space.
Decoding loses nothing: any words are decoded and encoded back to the same words; what a register means is checked where it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...errors import CommandStreamError
from .registers import (
    BLOCKS,
    DESCRIPTIONS,
    LOOKUP_DATA,
    LOOKUP_TABLE,
    ORDER,
    PC_BASE_ADDRESS,
    PC_REGISTER_AMOUNTS,
    REGISTERS,
    TARGETS,
    describe,
)

__all__ = ["Command", "StreamTask", "TASK_BYTES", "decode", "disassemble", "encode", "task_size", "task_words", "words_of"]

Words = npt.NDArray[np.uint64]

_TASK_WORDS = 130
"""Words of a convolution task: one for each entry of ``ORDER``, and four of the program counter."""

TASK_BYTES = 1088
"""Bytes from one task of a stream to the next: 1,040 rounded up to a multiple of 64. Tasks with tables take a multiple of it."""

Tables = tuple[Sequence[int], ...]
"""The entries of lookup tables, by number of the table."""

_ENABLE = 0x0081
_CONVOLUTION_BLOCKS = 0x1D
_START = 0x0041
_WRITE = 1 << 17


class Command(NamedTuple):
    """One word: which block, which register, which value."""

    target: int
    register: int
    value: int

    @property
    def block(self) -> str:
        """Name of the block, or the target in hexadecimal."""
        return BLOCKS.get(self.target, f"{self.target:#06x}")

    @property
    def word(self) -> int:
        """The command as 64 bits."""
        return self.target << 48 | (self.value & 0xFFFFFFFF) << 16 | self.register


@dataclass(frozen=True)
class StreamTask:
    """The commands of one task in order, padding words included.

    :ivar offset: bytes from the beginning of the stream
    """

    commands: tuple[Command, ...]
    offset: int = 0

    def registers(self) -> dict[int, int]:
        """The value that each register has when the task starts: the last one that is written to it.

        :raises CommandStreamError: a word writes a register that is not in the table, or names another block than the register's
        """
        found: dict[int, int] = {}
        for index, command in enumerate(self.commands):
            if command.target in (0, _START, _ENABLE):
                continue
            register = REGISTERS.get(command.register)
            if register is None or TARGETS[register.block] != command.target:
                raise CommandStreamError(
                    f"word {index} writes register {command.register:#06x} of block {command.block}, which is not known",
                    hint="convolution tasks write the registers of anynpu.npu.rocket.registers.REGISTERS",
                )
            found[command.register] = command.value
        return found

    def tables(self) -> dict[tuple[int, int], int]:
        """The entries that the task writes to lookup tables, by table and place; the last one that is written to a place."""
        found: dict[tuple[int, int], int] = {}
        table, place = 0, 0
        for command in self.commands:
            if command.target != TARGETS["DPU"]:
                continue
            if command.register == LOOKUP_TABLE:
                table, place = command.value >> 16 ^ _WRITE >> 16, command.value & 0x3FF
            elif command.register == LOOKUP_DATA:
                found[table, place] = command.value
                place += 1
        return found

    @property
    def enabled(self) -> int | None:
        """The mask of blocks that the last word starts; None if the task starts nothing."""
        masks = [command.value for command in self.commands if command.target == _ENABLE]
        return masks[-1] if masks else None


def decode(words: npt.ArrayLike) -> tuple[StreamTask, ...]:
    """The tasks of a stream.

    :param words: 64-bit words, or bytes as an array of uint8
    :raises CommandStreamError: the bytes are not whole words

    >>> decode(np.array([0x0201_0000_002A_1040], np.uint64))[0].commands[0]
    Command(target=513, register=4160, value=42)
    """
    array = words_of(words)
    stride = TASK_BYTES // 8
    values = array.tolist()
    commands = [Command(word >> 48, word & 0xFFFF, (word >> 16) & 0xFFFFFFFF) for word in values]
    tasks: list[StreamTask] = []
    first = 0
    for last in range(stride, len(commands) + stride, stride):
        if last >= len(commands) or not _goes_on(commands[last - 1]):
            tasks.append(StreamTask(tuple(commands[first:last]), first * 8))
            first = last
    return tuple(tasks)


def _goes_on(command: Command) -> bool:
    """Whether a task goes on after *command*: between the entries of a lookup table it does."""
    return command.register in (LOOKUP_TABLE, LOOKUP_DATA) and command.target == TARGETS["DPU"]


def words_of(words: npt.ArrayLike) -> Words:
    """*words* as an array of 64-bit words.

    :raises CommandStreamError: it is neither that nor whole words as bytes
    """
    array = np.ascontiguousarray(words)
    if array.dtype == np.uint8 and array.ndim == 1:
        if array.nbytes % 8:
            raise CommandStreamError(f"{array.nbytes} bytes are not whole words of 8 bytes", hint="pass the complete stream")
        return array.view("<u8").astype(np.uint64)
    if array.ndim != 1 or array.dtype.kind not in "ui":
        raise CommandStreamError(
            f"a stream is one row of 64-bit words, got {array.dtype} {list(array.shape)}", hint="pass a uint64 array"
        )
    return array.astype(np.uint64)


def encode(tasks: Iterable[StreamTask]) -> Words:
    """The words of *tasks*, as :func:`decode` reads them."""
    return np.array([command.word for task in tasks for command in task.commands], np.uint64)


def task_size(tables: Tables = ()) -> tuple[int, int]:
    """The number of words of a convolution task, and the bytes from one to the next.

    >>> task_size()
    (130, 1088)
    """
    entries = sum(map(len, tables))
    words = _TASK_WORDS + (entries + 2 * len(tables) - 2 if tables else 0)
    return words, -(-8 * words // TASK_BYTES) * TASK_BYTES


def task_words(registers: Mapping[int, int], *, next_task: int | None = None, last: bool = True, tables: Tables = ()) -> Words:
    """The words of one convolution task, padded to the distance between tasks.

    :param registers: the value of each register; those that are left out are 0
    :param next_task: address of the next task, 0 in the last of several; None where there is one task
    :param tables: entries that are written to the lookup tables
    """
    written = [(number, registers.get(number, 0)) for number in ORDER]
    if tables:
        first = ORDER.index(LOOKUP_TABLE)
        written[first : first + 2] = _table_writes(tables)
    words = [Command(TARGETS[REGISTERS[number].block], number, value).word for number, value in written]
    count, size = task_size(tables)
    link = 0 if next_task is None else Command(TARGETS["PC"], PC_BASE_ADDRESS, next_task).word
    amounts = Command(TARGETS["PC"], PC_REGISTER_AMOUNTS, 0 if last else (count + 1) // 2 - 1).word
    words += [link, amounts, _START << 48, Command(_ENABLE, 0x0008, _CONVOLUTION_BLOCKS).word]
    words += [0] * (size // 8 - len(words))
    return np.array(words, np.uint64)


def _table_writes(tables: Tables) -> Iterator[tuple[int, int]]:
    for number, entries in enumerate(tables):
        yield LOOKUP_TABLE, _WRITE | number << 16
        yield from ((LOOKUP_DATA, entry & 0xFFFF) for entry in entries)


def disassemble(tasks: Iterable[StreamTask], *, zeros: bool = False) -> Iterator[str]:
    """A stream as lines of text: a heading for each task, then a register in each line with its fields by name.

    :param zeros: also the registers that are written with 0
    """
    for index, task in enumerate(tasks):
        yield f"task {index} at {task.offset:#x}, {len(task.commands)} words"
        for is_entry, commands in groupby(task.commands, lambda each: each.register == LOOKUP_DATA):
            listed = tuple(commands)
            for command in listed[-1:] if is_entry else listed:
                line = _line(command)
                if line and (zeros or command.value):
                    yield f"  {line}{f'  (the last of {len(listed)})' if len(listed) > 1 and is_entry else ''}"


def _line(command: Command) -> str:
    if command.word == 0:
        return ""
    if command.target == _ENABLE:
        return f"{'PC':9} {command.register:04X} {'ENABLE':20} blocks {command.value:#x}"
    register = REGISTERS.get(command.register)
    if register is None or TARGETS[register.block] != command.target:
        return f"{command.block:9} {command.register:04X} {'unknown':20} {command.value:#x}"
    note = DESCRIPTIONS.get(command.register)
    text = describe(register, command.value)
    return f"{register.block:9} {command.register:04X} {register.name:20} {text}{f'  ({note})' if note else ''}"
