"""The calls of a program as a file, and the file as calls.

``anynpu exec --record trace.jsonl`` (the variable ``ANYNPU_RECORD``) writes every call of a vendor's interface with its arguments, its
result, and the data that go in and come out; ``anynpu replay`` makes the same calls again and names the first that answers differently.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import logging
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal

from ..._util.printable import printable
from ...errors import InputError, ParameterError

__all__ = ["RECORD_VARIABLE", "Difference", "Replay", "Trace", "read_trace", "record_calls", "replay"]


# The file of a recording: JSON, one object per line.
#
# Four kinds of lines: a head for each process (``{"trace": 1, ...}``), data by their hash before their first use (``{"blob": ..., "data":
# ...}``, without ``data`` where only hashes were asked for), calls (``{"call": ...}``), and the number of calls that a process could not
# write so far (``{"gap": ...}``). Lines of several processes may be mixed; each names its process. A line that was cut off is a gap too.
#
# State and lock: a writer has a lock, which is held while the lines of one call are written.


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
            # never more than the recording states: a few kilobytes could stand for gigabytes
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


# What the arguments of calls are: how each is written down before and after a call, and how it is made again.
#
# A vendor's table gives each call a :class:`CallShape`: a role for each argument. A role is used three times: :meth:`Role.before`
# gives what a recording states of an argument, :meth:`Role.build` makes the argument again from that, and :meth:`Role.after` gives
# what the call has left there. A replay compares what :meth:`Role.after` states of its own call with what the recording states.
#
# Objects of the interface (contexts, memory) are known by names that count them: ``context1``, ``memory2``.
#
# A recording may be a stranger's file. So what :meth:`Role.build` makes is as large as the call takes it to be, or it raises
# :class:`ParameterError`: a library that gets a pointer and a size believes both.


NULL = "NULL"


def require(condition: bool, what: str) -> None:
    """Raise unless an argument of a recording is one that a program can have passed."""
    if not condition:
        raise ParameterError(f"the recording is damaged: {what}", hint="record again")


def byte_count(value: Any) -> int:
    """A number of bytes that a replay takes memory for, or raise."""
    require(
        isinstance(value, int) and 0 <= value <= MAX_DATA, f"a size of {value!r:.40}, where 0 to {MAX_DATA} bytes are possible"
    )
    return int(value)


class Scope:
    """What one process has, while it is recorded or replayed.

    :ivar ffi: the bindings
    :ivar table: the vendor's table
    :ivar blobs: data that the call at hand names
    :ivar kept: C objects that must live as long as the library may use them, by a key of the role
    """

    def __init__(self, table: CallTable, library: Any, data: Callable[[str], bytes] | None = None) -> None:
        self.table = table
        self.ffi = table.ffi
        self.library = library
        self.blobs: list[bytes] = []
        self.kept: dict[Any, Any] = {}
        self.bound: dict[str, dict[str, str]] = {}
        self.members: dict[str, list[str]] = {}
        self._names: dict[int, str] = {}
        self._ended: set[str] = set()
        self._owners: dict[str, str] = {}
        self._values: dict[str, Any] = {}
        self._counts: dict[str, int] = {}
        self._data = data

    def blob(self, data: bytes) -> str:
        """Note data, and give the hash by which a recording names them."""
        self.blobs.append(data)
        return hash_of(data)

    def data(self, key: str) -> bytes:
        """The data that a recording names."""
        assert self._data is not None
        return self._data(key)

    def number(self, value: Any) -> int:
        """A handle as a number, whatever its type."""
        return int(value) if isinstance(value, int) else int(self.ffi.cast("uintptr_t", value))

    def name_new(self, kind: str, value: Any) -> str:
        """The name of an object that was made now."""
        number = self.number(value)
        if not number:
            return NULL
        self._counts[kind] = self._counts.get(kind, 0) + 1
        name = f"{kind}{self._counts[kind]}"
        self._names[number] = name
        self._values[name] = value
        return name

    def own(self, name: str, owner: str) -> None:
        """*name* ends with *owner*."""
        self._owners[name] = owner

    def end(self, name: str) -> None:
        """An object has ended: its memory is not looked at any more, nor that of what it owned."""
        self._ended.add(name)
        self._ended.update(owned for owned, owner in self._owners.items() if owner == name)

    def end_all(self) -> None:
        """Everything has ended."""
        self._ended.update(self._values)

    def _view(self, name: str) -> Any:
        """The bytes of memory by its name; None where that is no memory, or none any more."""
        if name not in self._values or name in self._ended or name.rstrip("0123456789") != self.table.memory:
            return None
        return self.table.view(self.library, self._values[name])

    def name(self, value: Any) -> str:
        """The name of an object."""
        number = self.number(value)
        return self._names.get(number, "unknown") if number else NULL

    def value(self, name: str) -> Any:
        """The object of a name; None where there is none, as for one that was never made."""
        return self._values.get(name)

    def snapshot(self, owner: str) -> dict[str, str]:
        """The hashes of all memory that is bound to an object, or to those that were put into it."""
        found = {}
        owners = (owner, *self.members.get(owner, ()))
        for name in sorted({name for each in owners for name in self.bound.get(each, {}).values()}):
            view = self._view(name)
            if view is not None:
                found[name] = self.blob(bytes(view))
        return found

    def restore(self, contents: Mapping[str, str]) -> None:
        """Write into memory what a recording states was in it."""
        for name, key in contents.items():
            view = self._view(name)
            if view is not None:
                data = self.data(key)
                view[: len(data)] = data[: len(view)]


class Role:
    """An argument that is not read."""

    def before(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        """What a recording states of it."""
        del scope, value, arguments
        return None

    def build(self, scope: Scope, recorded: Any, entries: list[Any]) -> Any:
        """The argument again.

        :param entries: what the recording states of all arguments
        """
        del recorded, entries
        return scope.ffi.NULL

    def after(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        """What a call that succeeded has left there; None for nothing."""
        del scope, value, arguments
        return None

    def label(self, recorded: Any) -> str:
        """The name of the argument's value, where it states which call this is."""
        del recorded
        return ""


Unused = Role


class Number(Role):
    """A number."""

    def before(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        return scope.number(value)

    def build(self, scope: Scope, recorded: Any, entries: list[Any]) -> Any:
        require(isinstance(recorded, int) and -(2**63) <= recorded < 2**64, f"{recorded!r:.40} is no number of 64 bits")
        return recorded


@dataclass
class Named(Number):
    """A number with a name, such as what a query asks for."""

    names: type[IntEnum]

    def label(self, recorded: Any) -> str:
        return next((each.name for each in self.names if each == recorded), str(recorded)[:40])


@dataclass
class Handle(Role):
    """An object, by its handle.

    :ivar ctype: of the argument; a number if empty
    """

    ctype: str = ""

    def before(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        return scope.name(value)

    def build(self, scope: Scope, recorded: Any, entries: list[Any]) -> Any:
        value = scope.value(recorded)
        if value is None:
            value = 0 if recorded == NULL else 0xDEAD  # one that is not there
        return scope.ffi.cast(self.ctype, value) if self.ctype else scope.number(value)


@dataclass
class RecordedHandles(Role):
    """A pointer to the handle of an object that is there."""

    ctype: str

    def before(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        return NULL if value == scope.ffi.NULL else scope.name(value[0])

    def build(self, scope: Scope, recorded: Any, entries: list[Any]) -> Any:
        return scope.ffi.NULL if recorded == NULL else scope.ffi.new(f"{self.ctype} *", scope.value(recorded) or 0)


@dataclass
class NewHandle(Role):
    """A pointer to where the handle of a new object goes."""

    kind: str
    ctype: str

    def before(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        return NULL if value == scope.ffi.NULL else "new"

    def build(self, scope: Scope, recorded: Any, entries: list[Any]) -> Any:
        return scope.ffi.NULL if recorded == NULL else scope.ffi.new(f"{self.ctype} *")

    def after(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        return scope.name_new(self.kind, value[0])


@dataclass
class Struct(Role):
    """Structs without pointers.

    :ivar ctype: of one
    :ivar count: the argument with their number; None for one
    :ivar out: whether the call fills them
    """

    ctype: str
    count: int | None = None
    out: bool = False

    def before(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        if value == scope.ffi.NULL:
            return NULL
        return scope.blob(self._bytes(scope, value, arguments))

    def build(self, scope: Scope, recorded: Any, entries: list[Any]) -> Any:
        if recorded == NULL:
            return scope.ffi.NULL
        data = scope.data(recorded)
        count = 1 if self.count is None else byte_count(entries[self.count])
        require(len(data) == count * scope.ffi.sizeof(self.ctype), f"{count} {self.ctype} are not {len(data)} bytes")
        made = scope.ffi.new(f"{self.ctype}[]", max(count, 1))
        scope.ffi.memmove(made, data, len(data))
        scope.kept[self.ctype] = made
        return scope.ffi.cast(f"{self.ctype} *", made)

    def after(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        return scope.blob(self._bytes(scope, value, arguments)) if self.out else None

    def _bytes(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> bytes:
        count = 1 if self.count is None else scope.number(arguments[self.count])
        return bytes(scope.ffi.buffer(scope.ffi.cast("char *", value), count * scope.ffi.sizeof(self.ctype)))


@dataclass
class Data(Role):
    """Bytes, with their number in another argument.

    :ivar out: whether the call writes them
    """

    size: int
    out: bool = False

    def before(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        if value == scope.ffi.NULL:
            return NULL
        return scope.number(arguments[self.size]) if self.out else scope.blob(self._bytes(scope, value, arguments))

    def build(self, scope: Scope, recorded: Any, entries: list[Any]) -> Any:
        if recorded == NULL:
            return scope.ffi.NULL
        size = byte_count(entries[self.size])
        if self.out:
            return scope.ffi.new("char[]", max(size, 1))
        data = scope.data(recorded)
        require(len(data) == size, f"{len(data)} bytes, but the call states {size}")
        return scope.ffi.new("char[]", data)

    def after(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        return scope.blob(self._bytes(scope, value, arguments)) if self.out else None

    def _bytes(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> bytes:
        return bytes(scope.ffi.buffer(scope.ffi.cast("char *", value), scope.number(arguments[self.size])))


@dataclass(frozen=True)
class CallShape:
    """One call.

    :ivar roles: of its arguments
    :ivar makes: the kind of object that it returns; empty where it returns a number
    :ivar bind: for a call that binds memory to an object: (argument of the object, argument of the memory, argument of the place)
    :ivar joins: for a call that puts an object into another: (argument of the other, argument of the object)
    :ivar runs: for a call that uses the memory that is bound: the argument of the object
    :ivar moments: when that memory is looked at
    :ivar pending: whether the run goes on after a call with these arguments, so that its memory is not looked at afterwards
    :ivar owner: for a call that makes memory: the argument of the object that it ends with
    :ivar ends: the argument of the object that a call ends; -1 for all objects
    """

    roles: tuple[Role, ...]
    makes: str = ""
    bind: tuple[int, int, int] | None = None
    joins: tuple[int, int] | None = None
    runs: int | None = None
    moments: Literal["both", "before", "after"] = "both"
    pending: Callable[[tuple[Any, ...]], bool] | None = None
    owner: int | None = None
    ends: int | None = None


@dataclass(frozen=True)
class CallTable:
    """The calls of a vendor.

    :ivar vendor: its name
    :ivar memory: the kind of objects that are memory
    :ivar view: the bytes of memory: (library, object); None where it has none
    :ivar place: names the place to which memory is bound: (call, argument)
    :ivar opaque: calls that cannot be made again, and why
    """

    vendor: str
    ffi: Any
    calls: Mapping[str, CallShape]
    memory: str
    view: Callable[[Any, Any], Any]
    place: Callable[[str, Any], str]
    opaque: Mapping[str, str] = field(default_factory=dict)


# Writes the calls of a library object down as they are made.
#
# The methods are wrapped on the object itself, once, when it is opened and a recording is asked for; otherwise nothing of this exists.
#
# State and lock: names and hashes belong to the recorder and are protected by its lock, which is not held while a call runs. So calls of
# several threads are written in the order in which they returned.


RECORD_VARIABLE = "ANYNPU_RECORD"
"""The environment variable that names the file of a recording."""

HASHES_VARIABLE = "ANYNPU_RECORD_HASHES"
"""Set to 1, the file has hashes of data and not the data."""


def record_calls(library: Any, table: CallTable) -> None:
    """Record the calls of *library* where the environment asks for it."""
    path = os.environ.get(RECORD_VARIABLE)
    if path:
        Recorder(library, table, path, payload=os.environ.get(HASHES_VARIABLE) != "1")


class Recorder:
    """Records one library object."""

    def __init__(self, library: Any, table: CallTable, path: str, *, payload: bool = True) -> None:
        chip = getattr(library, "chip", None)
        self._writer = TraceWriter(
            path, payload=payload, head={"vendor": table.vendor, "chip": None if chip is None else chip.name}
        )
        self._scope = Scope(table, library)
        self._lock = threading.Lock()
        self._threads: dict[int, int] = {}
        for name in dir(type(library)):
            if name in table.calls or name in table.opaque:
                setattr(library, name, self._around(name, table.calls.get(name), getattr(library, name)))

    def _around(self, name: str, shape: CallShape | None, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*arguments: Any) -> Any:
            with self._lock:
                entry, blobs = self._before(name, shape, arguments)
            result = method(*arguments)
            with self._lock:
                self._after(entry, blobs, shape, arguments, result)
            return result

        return call

    def _before(self, name: str, shape: CallShape | None, arguments: tuple[Any, ...]) -> tuple[dict[str, Any], list[bytes]]:
        scope = self._scope
        thread = self._threads.setdefault(threading.get_ident(), len(self._threads) + 1)
        entry: dict[str, Any] = {"call": name, "thread": thread}
        if shape is not None:
            entry["arguments"] = [
                role.before(scope, value, arguments) for role, value in zip(shape.roles, arguments, strict=True)
            ]
            if shape.runs is not None and shape.moments != "after":
                entry["memory"] = scope.snapshot(scope.name(arguments[shape.runs]))
        blobs, scope.blobs = scope.blobs, []
        return entry, blobs

    def _after(
        self, entry: dict[str, Any], blobs: list[bytes], shape: CallShape | None, arguments: tuple[Any, ...], result: Any
    ) -> None:
        entry.update(outcome(self._scope, entry["call"], shape, arguments, result))
        found, self._scope.blobs = self._scope.blobs, []
        self._writer.call(entry, [*blobs, *found])


def outcome(scope: Scope, name: str, shape: CallShape | None, arguments: tuple[Any, ...], result: Any) -> dict[str, Any]:
    """What a call that has returned answered: its result, what it has left in its arguments and in memory."""
    if shape is None:
        return {"result": scope.number(result) if result is not None else None}
    if shape.makes:
        made = scope.name_new(shape.makes, result)
        if shape.owner is not None:
            scope.own(made, scope.name(arguments[shape.owner]))
        return {"result": made}
    code = scope.number(result) if result is not None else 0
    found: dict[str, Any] = {"result": code}
    if code < 0:
        return found
    left = [role.after(scope, value, arguments) for role, value in zip(shape.roles, arguments, strict=True)]
    if any(each is not None for each in left):
        found["left"] = left
    if shape.ends is not None:
        scope.end_all() if shape.ends < 0 else scope.end(scope.name(arguments[shape.ends]))
    if shape.bind is not None:
        owner, memory, place = (arguments[index] for index in shape.bind)
        scope.bound.setdefault(scope.name(owner), {})[scope.table.place(name, place)] = scope.name(memory)
    if shape.joins is not None:
        owner, member = (scope.name(arguments[index]) for index in shape.joins)
        scope.members.setdefault(owner, []).append(member)
    if shape.runs is not None and shape.moments != "before" and not (shape.pending and shape.pending(arguments)):
        found["memory_after"] = scope.snapshot(scope.name(arguments[shape.runs]))
    return found


# Makes the calls of a recording again, one after the other, and names the first that answers differently.


_WORDS = {"left": "arguments after the call", "memory_after": "memory after the call"}


@dataclass(frozen=True)
class Difference:
    """Where a replay parts from its recording.

    :ivar number: of the call, from 1
    :ivar what: what differs: ``result``, ``left`` (what the call leaves in its arguments) or ``memory_after``
    :ivar detail: what the call asks for, such as the name of a query
    :ivar why: what the library states about a call that failed
    """

    number: int
    call: str
    thread: int
    what: str
    recorded: str
    found: str
    why: str = ""
    detail: str = ""

    def __str__(self) -> str:
        call = f"{self.call}({self.detail})" if self.detail else self.call
        what = _WORDS.get(self.what, self.what)
        text = printable(
            f"call {self.number}, {call} (thread {self.thread}): {what}: recorded {self.recorded}, here {self.found}"
        )
        return f"{text}\n  {printable(self.why)}" if self.why else text


@dataclass(frozen=True)
class Replay:
    """How a replay went.

    :ivar calls: that were made
    :ivar model_changed: whether a model was given in the place of the recorded one, and has other bytes
    """

    calls: int
    difference: Difference | None
    model_changed: bool = False


def replay(
    trace: Trace, table: CallTable, open_library: Callable[[], Any], *, model: bytes | None = None, close: bool = True
) -> Replay:
    """Make the calls of *trace* again, each process with a library object of its own.

    :param model: the model in the place of those that were recorded
    :param close: whether the libraries are closed at the end
    """
    scopes: dict[int, Scope] = {}
    try:
        return _replay(trace, table, open_library, model, scopes)
    finally:
        for scope in scopes.values():
            if close:
                scope.library.close()


def _replay(
    trace: Trace, table: CallTable, open_library: Callable[[], Any], model: bytes | None, scopes: dict[int, Scope]
) -> Replay:
    changed = False
    own = "" if model is None else hash_of(model)

    def data(key: str) -> bytes:
        return model if model is not None and key == own else trace.data(key)

    for number, entry in enumerate(trace.calls, 1):
        name, process = entry["call"], entry.get("process", 0)
        shape = table.calls.get(name)
        if shape is None or "arguments" not in entry:
            why = table.opaque.get(name, "the recording does not have its arguments")
            raise ParameterError(
                f"call {number}, {name}, cannot be made again: {why}",
                hint="the calls before it were as recorded; record the program without it to replay the rest",
            )
        if process not in scopes:
            scopes[process] = Scope(table, open_library(), data)
        scope = scopes[process]
        entries = list(entry["arguments"]) if isinstance(entry["arguments"], list) else []
        if model is not None:
            entries, replaced = _with_model(entries, own)
            changed = changed or replaced
        arguments = _arguments(scope, number, entry, shape, entries)
        result = getattr(scope.library, name)(*arguments)
        found = outcome(scope, name, shape, arguments, result)
        difference = _difference(number, entry, shape, found, trace, scope)
        if difference is not None:
            return Replay(number, difference, changed)
        scope.blobs = []
    return Replay(len(trace.calls), None, changed)


def _arguments(scope: Scope, number: int, entry: dict[str, Any], shape: CallShape, entries: list[Any]) -> tuple[Any, ...]:
    """The arguments of a call, and the memory that it uses as it was."""
    try:
        require(len(entries) == len(shape.roles), f"{len(entries)} arguments")
        # a role may change what a later one finds
        arguments = tuple(role.build(scope, entries[index], entries) for index, role in enumerate(shape.roles))
        if shape.runs is not None and shape.moments != "after":
            scope.restore(entry.get("memory", {}))
    except ParameterError as error:
        raise ParameterError(f"call {number}, {entry['call']}: {error.message}", hint=error.hint) from None
    except (TypeError, ValueError, LookupError, OverflowError, AttributeError, MemoryError) as error:
        raise ParameterError(
            f"call {number}, {entry['call']}: the recording is damaged: {printable(str(error)[:200])}", hint="record again"
        ) from None
    return arguments


def _with_model(entries: list[Any], key: str) -> tuple[list[Any], bool]:
    replaced = [{**each, "blob": key} if isinstance(each, dict) and "blob" in each else each for each in entries]
    return replaced, replaced != entries


def _difference(
    number: int, entry: dict[str, Any], shape: CallShape, found: dict[str, Any], trace: Trace, scope: Scope
) -> Difference | None:
    for what in ("result", "left", "memory_after"):
        recorded, here = entry.get(what), found.get(what)
        if recorded == here:
            continue
        failure = scope.library.last_error() if what == "result" else None
        why = "" if failure is None or failure.call != entry["call"] else failure.text
        mine = {hash_of(data): data for data in scope.blobs}
        shown = _shown(recorded, here, trace, mine)
        labels = (role.label(argument) for role, argument in zip(shape.roles, entry["arguments"], strict=True))
        detail = ", ".join(label for label in labels if label)
        return Difference(number, entry["call"], entry.get("thread", 0), what, *shown, why, detail)
    return None


def _shown(recorded: Any, here: Any, trace: Trace, mine: dict[str, bytes]) -> tuple[str, str]:
    """Both sides, narrowed down to the first place where they differ."""
    if isinstance(recorded, list) and isinstance(here, list) and len(recorded) == len(here):
        for index, (one, two) in enumerate(zip(recorded, here, strict=True)):
            if one != two:
                left, right = _shown(one, two, trace, mine)
                return f"[{index}] {left}", right
    if isinstance(recorded, dict) and isinstance(here, dict) and recorded.keys() == here.keys():
        for key in recorded:
            if recorded[key] != here[key]:
                left, right = _shown(recorded[key], here[key], trace, mine)
                return f"{key} {left}", right
    if isinstance(recorded, str) and isinstance(here, str) and here in mine and trace.has(recorded):
        before, now = trace.data(recorded), mine[here]
        places = [index for index, (one, two) in enumerate(zip(before, now, strict=False)) if one != two]
        return f"{len(before)} bytes {recorded[:8]}", f"{len(now)} bytes {here[:8]}, {len(places)} differ" + (
            f", the first at {places[0]}" if places else ""
        )
    return str(recorded), str(here)
