"""The RK3588 NPU below its API, as the mainline Linux driver ``rocket`` takes it: command streams and what executes them.

:func:`emit` writes the stream of a convolution, :func:`execute` runs the tasks of a job on memory. Experimental: verified against streams
and results of other programs and against 4,096 bytes of a board, not yet run on a board.
"""

from __future__ import annotations

from .checker import StreamFinding, check_job
from .emitter import Emitted, emit, write
from .executor import execute
from .job import RecordedJob, is_stream, read_job, read_tasks
from .stream import Command, StreamTask, decode, disassemble, encode

__all__ = [
    "Command",
    "Emitted",
    "RecordedJob",
    "StreamFinding",
    "StreamTask",
    "check_job",
    "decode",
    "disassemble",
    "emit",
    "encode",
    "execute",
    "is_stream",
    "read_job",
    "read_tasks",
    "write",
]
