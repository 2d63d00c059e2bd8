"""Command streams as data: words to commands and back, and as text.

A stream holds the tasks of an operation at a fixed distance. A task is 126 register writes and four words of the program counter, which
link it to the next task and start the blocks. Decoding loses nothing: any words are decoded and encoded back to the same words; what a
register means is checked where it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...errors import CommandStreamError
from .registers import (
    BLOCKS,
    DESCRIPTIONS,
    ORDER,
    PC_BASE_ADDRESS,
    PC_REGISTER_AMOUNTS,
    REGISTERS,
    TARGETS,
    describe,
)

__all__ = ["Command", "TASK_BYTES", "TASK_WORDS", "StreamTask", "decode", "disassemble", "encode", "task_words", "words_of"]

Words = npt.NDArray[np.uint64]

TASK_WORDS = 130
"""Words of a convolution task: one for each entry of ``ORDER``, and four of the program counter."""

TASK_BYTES = 1088
"""Bytes from one task of a stream to the next: 1,040 rounded up to a multiple of 64."""

_ENABLE = 0x0081
_CONVOLUTION_BLOCKS = 0x1D
_START = 0x0041
_NEXT_REGISTERS = 64


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
    return tuple(StreamTask(tuple(commands[first : first + stride]), first * 8) for first in range(0, len(commands), stride))


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


def task_words(registers: Mapping[int, int], *, next_task: int | None = None, last: bool = True) -> Words:
    """The words of one convolution task, padded to the distance between tasks.

    :param registers: the value of each register; those that are left out are 0
    :param next_task: address of the next task, 0 in the last of several; None where there is one task
    """
    words = [Command(TARGETS[REGISTERS[number].block], number, registers.get(number, 0)).word for number in ORDER]
    link = 0 if next_task is None else Command(TARGETS["PC"], PC_BASE_ADDRESS, next_task).word
    amounts = Command(TARGETS["PC"], PC_REGISTER_AMOUNTS, 0 if last else _NEXT_REGISTERS).word
    words += [link, amounts, _START << 48, Command(_ENABLE, 0x0008, _CONVOLUTION_BLOCKS).word]
    words += [0] * (TASK_BYTES // 8 - len(words))
    return np.array(words, np.uint64)


def disassemble(tasks: Iterable[StreamTask], *, zeros: bool = False) -> Iterator[str]:
    """A stream as lines of text: a heading for each task, then a register in each line with its fields by name.

    :param zeros: also the registers that are written with 0
    """
    for index, task in enumerate(tasks):
        yield f"task {index} at {task.offset:#x}, {len(task.commands)} words"
        for command in task.commands:
            line = _line(command)
            if line and (zeros or command.value):
                yield f"  {line}"


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
