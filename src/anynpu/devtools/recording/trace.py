"""The file of a recording: JSON, one object per line.

Four kinds of lines: a head for each process (``{"trace": 1, ...}``), data by their hash before their first use (``{"blob": ..., "data":
...}``, without ``data`` where only hashes were asked for), calls (``{"call": ...}``), and the number of calls that a process could not
write so far (``{"gap": ...}``). Lines of several processes may be mixed; each names its process. A line that was cut off is a gap too.

State and lock: a writer has a lock, which is held while the lines of one call are written.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import threading
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import InputError, ParameterError

__all__ = ["FORMAT", "MAX_DATA", "Trace", "TraceWriter", "hash_of", "read_trace"]

log = logging.getLogger("anynpu.devtools.recording")

FORMAT = 1
"""The version of the file."""

MAX_DATA = 1 << 32
"""Bytes of one piece of data: what the largest model has."""

MAX_PROCESSES = 256
"""Processes of one recording: a replay has a library for each."""

_KEPT = 32
"""Hexadecimal digits of a hash that are kept: 128 bits."""


def hash_of(data: bytes) -> str:
    """The hash by which data are known."""
    return hashlib.sha256(data).hexdigest()[:_KEPT]


class TraceWriter:
    """Appends to a file.

    :param payload: whether data are written, or their hashes only
    """

    def __init__(self, path: str, *, payload: bool, head: dict[str, Any]) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._payload = payload
        self._path = path
        self._process = os.getpid()
        self._known: set[str] = set()
        self._lock = threading.Lock()
        self._unwritten_head = [{"trace": FORMAT, "process": self._process, "payload": payload, **head}]
        self._lost = self._marked = 0  # calls that could not be written, and how many of them a gap in the file has
        self._torn = self._reported = False
        self._write([])

    def call(self, entry: dict[str, Any], blobs: Iterable[bytes]) -> None:
        """Write one call, after the data that it names and that were not written before."""
        with self._lock:
            lines = []
            fresh: set[str] = set()
            for data in blobs:
                key = hash_of(data)
                if key in self._known or key in fresh:
                    continue
                fresh.add(key)
                line: dict[str, Any] = {"blob": key, "size": len(data)}
                if self._payload:
                    line["data"] = base64.b64encode(zlib.compress(data, 1)).decode()
                lines.append(line)
            if self._write([*lines, {**entry, "process": self._process}]):
                self._known |= fresh
            else:
                self._lost += 1

    def _write(self, lines: list[dict[str, Any]]) -> bool:
        """Append lines, after the mark of a gap if there is one; False where the system does not take them all."""
        gap = [{"gap": self._lost, "process": self._process}] if self._lost > self._marked else []
        text = "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in [*self._unwritten_head, *gap, *lines])
        data = (f"\n{text}" if self._torn else text).encode()
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError as error:  # a full disk is no reason for the program to fail
            if written:
                self._torn = data[written - 1 : written] != b"\n"
            if not self._reported:
                self._reported = True
                log.warning("the recording %s has a gap: calls cannot be written: %s", self._path, error.strerror)
            return False
        self._unwritten_head, self._marked, self._torn = [], self._lost, False
        return True

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


@dataclass
class Trace:
    """A recording.

    :ivar head: of the first process
    :ivar calls: of all processes, in the order in which they returned
    :ivar sizes: of data, by hash
    :ivar processes: their numbers
    :ivar gap_line: the first line at which calls are missing, up to which the calls were read; 0 where the recording is complete
    :ivar lost: calls that a process could not write
    :ivar skipped: calls after the gap, which were not read
    """

    head: dict[str, Any] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    processes: set[int] = field(default_factory=set)
    gap_line: int = 0
    lost: dict[int, int] = field(default_factory=dict)
    skipped: int = 0
    _data: dict[str, str] = field(default_factory=dict)

    @property
    def gap(self) -> str:
        """The calls that are missing, as text; empty where none is."""
        if not self.gap_line:
            return ""
        lost = max(sum(self.lost.values()), 1)
        after = f", and {self.skipped} after it were not read" if self.skipped else ""
        return f"the recording has a gap at line {self.gap_line}: at least {lost} calls were not written{after}"

    def data(self, key: str) -> bytes:
        """Data by their hash."""
        if key not in self._data:
            raise ParameterError(
                f"the recording has the hash of {self.sizes.get(key, 0)} bytes, and not the bytes",
                hint="record without --record-hashes",
            )
        try:
            size, unpacker = self.sizes[key], zlib.decompressobj()
            # never more than the recording says: a few kilobytes could stand for gigabytes
            data = unpacker.decompress(base64.b64decode(self._data[key], validate=True), size + 1)
        except (ValueError, MemoryError, zlib.error):
            data, size = b"", -1
        if len(data) != size or hash_of(data) != key:
            raise ParameterError("the recording is damaged: data do not have their hash", hint="record again")
        return data

    def has(self, key: str) -> bool:
        """Whether the recording has these data."""
        return key in self._data


def read_trace(path: str | Path) -> Trace:
    """Read a recording, up to the first gap."""
    trace = Trace()
    try:
        with Path(path).open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    _add_line(trace, number, line)
                except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
                    raise ParameterError(f"{path}, line {number}: not of a recording", hint="record again") from error
    except UnicodeDecodeError as error:
        raise ParameterError(f"{path} is not a recording", hint="name a file of anynpu exec --record") from error
    except OSError as error:
        raise ParameterError(f"{path} cannot be read: {error}", hint="name a file of anynpu exec --record") from error
    if not trace.head:
        raise ParameterError(f"{path} is not a recording", hint="name a file of anynpu exec --record")
    return trace


def _add_line(trace: Trace, number: int, line: str) -> None:
    if line.isspace():
        return
    try:
        entry = json.loads(line)
    except json.JSONDecodeError:
        if not line.startswith("{"):
            raise
        trace.gap_line = trace.gap_line or number  # the end of a line is missing
        return
    if "gap" in entry:
        process, lost = int(entry["process"]), int(entry["gap"])
        if lost < 0 or len(trace.lost) > MAX_PROCESSES:
            raise ValueError("not a gap")
        trace.gap_line = trace.gap_line or number
        trace.lost[process] = max(lost, trace.lost.get(process, 0))
    elif trace.gap_line and "call" in entry:
        trace.skipped += 1
    else:
        _add(trace, entry)


def _add(trace: Trace, entry: dict[str, Any]) -> None:
    if "trace" in entry:
        if entry["trace"] != FORMAT:
            raise InputError(f"the recording is of version {entry['trace']!r:.40}", hint=f"this anynpu reads version {FORMAT}")
        trace.head = trace.head or entry
    elif "blob" in entry:
        size = int(entry["size"])
        if not 0 <= size <= MAX_DATA:
            raise ValueError("data of an impossible size")
        trace.sizes[entry["blob"]] = size
        if "data" in entry:
            trace._data[entry["blob"]] = str(entry["data"])
    else:
        if not isinstance(entry["call"], str) or not all(isinstance(entry.get(key, 0), int) for key in ("process", "thread")):
            raise ValueError("not a call")  # each other line is one
        trace.processes.add(entry.get("process", 0))
        if len(trace.processes) > MAX_PROCESSES:
            raise ValueError("too many processes")
        trace.calls.append(entry)
