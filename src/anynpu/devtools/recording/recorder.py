"""Writes the calls of a library object down as they are made.

The methods are wrapped on the object itself, once, when it is opened and a recording is asked for; otherwise nothing of this exists.

State and lock: names and hashes belong to the recorder and are protected by its lock, which is not held while a call runs. So calls of
several threads are written in the order in which they returned.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any

from .roles import CallShape, CallTable, Scope
from .trace import TraceWriter

__all__ = ["HASHES_VARIABLE", "RECORD_VARIABLE", "Recorder", "record_calls"]

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
