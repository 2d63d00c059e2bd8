"""Files with command streams: a stream alone, or a recorded job with the memory of the device."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...errors import CommandStreamError
from .registers import BLOCKS
from .stream import StreamTask, decode, words_of

__all__ = ["RecordedJob", "is_stream", "read_job", "read_tasks"]

_PARTS = ("memory", "base", "tasks")
_MAX_BYTES = 1 << 30
_MAX_STREAM_BYTES = 64 << 20


@dataclass(frozen=True, eq=False)
class RecordedJob:
    """A job as it was recorded.

    :ivar memory: the device's memory before it
    :ivar base: device address of its first byte
    :ivar tasks: rows of the address of a command stream and its number of words
    """

    memory: npt.NDArray[np.uint8]
    base: int
    tasks: npt.NDArray[np.int64]

    def stream(self, index: int) -> StreamTask:
        """The commands of a task."""
        address, words = self.tasks[index].tolist()
        first, size = address - self.base, 8 * words
        if first < 0 or words <= 0 or first + size > self.memory.size:
            raise CommandStreamError(
                f"task {index} has its stream of {words} words at {address:#x}, outside the memory of the job",
                hint="record the job again: its memory must hold the command streams",
            )
        (task, *_) = decode(self.memory[first : first + size])
        return StreamTask(task.commands, address)


def read_job(path: str | Path) -> RecordedJob:
    """A recorded job: an ``.npz`` file with the arrays ``memory``, ``base`` and ``tasks``.

    :raises CommandStreamError: the file holds something else, or is damaged
    :raises OSError: it cannot be read
    """
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist() if entry.filename.removesuffix(".npy") in _PARTS)
        if size > _MAX_BYTES:
            raise ValueError(f"its arrays take {size} bytes; at most {_MAX_BYTES} are read")
        with np.load(path, allow_pickle=False) as arrays:
            memory, base, tasks = (np.asarray(arrays[name]) for name in _PARTS)
    except (KeyError, ValueError, EOFError, zipfile.BadZipFile, MemoryError) as error:
        raise CommandStreamError(
            f"{path} is not a recorded job: {error}", hint="a job has the arrays memory (uint8), base and tasks ([N, 2])"
        ) from None
    fits = memory.dtype == np.uint8 and memory.ndim == 1 and base.size == 1 and base.dtype.kind in "iu"
    if not fits or tasks.ndim != 2 or tasks.shape[1] != 2 or tasks.dtype.kind not in "iu":
        raise CommandStreamError(
            f"{path} has memory {memory.dtype} {list(memory.shape)} and tasks {tasks.dtype} {list(tasks.shape)}",
            hint="a job has memory as uint8 [N], base as one integer and tasks as integers [N, 2]",
        )
    return RecordedJob(memory, int(base.reshape(())), tasks.astype(np.int64))


def is_stream(head: bytes) -> bool:
    """Whether a file that begins with *head* is a command stream: its first words name blocks of the NPU.

    >>> is_stream(bytes.fromhex("4010b10000000102"))
    True
    """
    words = np.frombuffer(head[: len(head) // 8 * 8], "<u8")[:8].tolist()
    return bool(words) and all(word >> 48 in BLOCKS for word in words)


def read_tasks(path: str | Path) -> tuple[StreamTask, ...]:
    """The tasks of a command stream (64-bit little-endian words) or of a recorded job (``.npz``).

    :raises CommandStreamError: the file is neither, or is damaged
    """
    if zipfile.is_zipfile(path):
        job = read_job(path)
        return tuple(job.stream(index) for index in range(len(job.tasks)))
    with Path(path).open("rb") as file:
        data = file.read(_MAX_STREAM_BYTES + 1)
    if len(data) > _MAX_STREAM_BYTES or len(data) % 8 or not is_stream(data):
        raise CommandStreamError(f"{path} is not a command stream", hint="a stream is a file of 64-bit little-endian words")
    return decode(words_of(np.frombuffer(data, np.uint8)))
