"""What the arguments of calls are: how each is written down before and after a call, and how it is made again.

A vendor's table gives each call a :class:`CallShape`: a role for each argument. A role is used three times: :meth:`Role.before` gives what
a recording says of an argument, :meth:`Role.build` makes the argument again from that, and :meth:`Role.after` gives what the call has left
there. A replay compares what :meth:`Role.after` says of its own call with what the recording says.

Objects of the interface (contexts, memory) are known by names that count them: ``context1``, ``memory2``.

A recording may be a stranger's file. So what :meth:`Role.build` makes is as large as the call takes it to be, or it raises
:class:`ParameterError`: a library that gets a pointer and a size believes both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal

from ...errors import ParameterError
from .trace import MAX_DATA, hash_of

__all__ = [
    "CallShape",
    "CallTable",
    "Data",
    "Handle",
    "Named",
    "RecordedHandles",
    "NewHandle",
    "Number",
    "Role",
    "Scope",
    "Struct",
    "Unused",
    "byte_count",
    "require",
]

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
        """Write into memory what a recording says was in it."""
        for name, key in contents.items():
            view = self._view(name)
            if view is not None:
                data = self.data(key)
                view[: len(data)] = data[: len(view)]


class Role:
    """An argument that is not read."""

    def before(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        """What a recording says of it."""
        del scope, value, arguments
        return None

    def build(self, scope: Scope, recorded: Any, entries: list[Any]) -> Any:
        """The argument again.

        :param entries: what the recording says of all arguments
        """
        del recorded, entries
        return scope.ffi.NULL

    def after(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        """What a call that succeeded has left there; None for nothing."""
        del scope, value, arguments
        return None

    def label(self, recorded: Any) -> str:
        """The name of the argument's value, where it says which call this is."""
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
        require(len(data) == size, f"{len(data)} bytes, and the call says {size}")
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
