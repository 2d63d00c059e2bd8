"""The file of a recording: JSON, one object per line.

Three kinds of lines: a head for each process (``{"trace": 1, ...}``), data by their hash before their first use (``{"blob": ..., "data":
...}``, without ``data`` where only hashes were asked for), and calls (``{"call": ...}``). Lines of several processes may be mixed;
each names its process.

State and lock: a writer has a lock, which is held while the lines of one call are written.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError, ParameterError

__all__ = ["FORMAT", "MAX_DATA", "Trace", "TraceWriter", "hash_of", "read_trace"]

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
        self._process = os.getpid()
        self._known: set[str] = set()
        self._lock = threading.Lock()
        self._write([{"trace": FORMAT, "process": self._process, "payload": payload, **head}])

    def call(self, entry: dict[str, Any], blobs: Iterable[bytes]) -> None:
        """Write one call, after the data that it names and that were not written before."""
        with self._lock:
            lines = []
            for data in blobs:
                key = hash_of(data)
                if key in self._known:
                    continue
                self._known.add(key)
                line: dict[str, Any] = {"blob": key, "size": len(data)}
                if self._payload:
                    line["data"] = base64.b64encode(zlib.compress(data, 1)).decode()
                lines.append(line)
            self._write([*lines, {**entry, "process": self._process}])

    def _write(self, lines: list[dict[str, Any]]) -> None:
        text = "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines).encode()
        try:
            while text:
                text = text[os.write(self._fd, text) :]
        except OSError:  # a full disk is no reason for the program to fail
            self._payload = False

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
    """

    head: dict[str, Any] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    processes: set[int] = field(default_factory=set)
    _data: dict[str, str] = field(default_factory=dict)

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
    """Read a recording."""
    trace = Trace()
    try:
        with Path(path).open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    _add(trace, json.loads(line))
                except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
                    raise ParameterError(f"{path}, line {number}: not of a recording", hint="record again") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"{path} cannot be read: {error}", hint="name a file of anynpu exec --record") from error
    if not trace.head:
        raise ParameterError(f"{path} is no recording", hint="name a file of anynpu exec --record")
    return trace


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
