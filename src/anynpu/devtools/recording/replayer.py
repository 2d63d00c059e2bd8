"""Makes the calls of a recording again, one after the other, and names the first that answers differently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..._util.printable import printable
from ...errors import ParameterError
from .recorder import outcome
from .roles import CallShape, CallTable, Scope, require
from .trace import Trace, hash_of

__all__ = ["Difference", "Replay", "replay"]


_WORDS = {"left": "arguments after the call", "memory_after": "memory after the call"}


@dataclass(frozen=True)
class Difference:
    """Where a replay parts from its recording.

    :ivar number: of the call, from 1
    :ivar what: what differs: ``result``, ``left`` (what the call leaves in its arguments) or ``memory_after``
    :ivar detail: what the call asks for, such as the name of a query
    :ivar why: what the library says about a call that failed
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
