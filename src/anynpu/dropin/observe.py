"""What a program's calls look like: a log of all of them, a trace for viewers, and messages in the manner of the vendor's library.

What the environment asks for is wrapped around the functions once, when the table is filled; nothing of it exists otherwise:

* ``ANYNPU_CALL_LOG=FILE`` (``-``: stderr), ``ANYNPU_CALL_LOG_FORMAT=human|json``: every call with arguments, result and duration.
* ``ANYNPU_TRACE=FILE``: the calls as slices of the threads that made them, in the JSON that Perfetto and Chrome open.
* The vendor's own variable, such as ``RKNN_LOG_LEVEL=0..5``, on stderr: 0 what failed and why, 3 also what is initialized, 4 also every
  call, 5 with arguments. Without it, each place of the program where a call fails is reported once; -1 is silence.

Concurrency: each entry is one write to a file that is opened for appending, so that threads and processes do not mix their lines; there is
no state besides.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..devtools.sanitizer import stacks
from ..vendors import DropIn
from ..vendors.libraries import CallFailure

__all__ = ["CallObserver", "observer_from"]

SILENT = "-1"
"""The level at which nothing is printed, not even why a call failed."""

MAX_PLACES = 1000
"""Places of a program whose failing calls are remembered."""

INFORMATION, CALLS, ARGUMENTS = 3, 4, 5
"""Levels of the vendor's variable from which on something is said."""

_NOT_READ = ("void", "char", "rknn_tensor_mem", "struct _vip_network", "struct _vip_buffer", "struct _vip_group")
"""Types whose pointers are only printed: there is nothing behind them, or they may be stale where the call itself does not read it."""


@dataclass(frozen=True)
class ObservedCall:
    """One call that has returned.

    :ivar arguments: by name, as texts and numbers
    :ivar why: why it failed, in words; empty if it did not
    """

    name: str
    arguments: dict[str, Any]
    result: Any
    why: str
    begin_ns: int
    elapsed_ns: int
    thread: int

    @property
    def failed(self) -> bool:
        return self.result == "NULL" or (isinstance(self.result, int) and self.result < 0)


Sink = Callable[[ObservedCall], None]


class Messages:
    """What a program's user sees on stderr, in the vendor's form.

    :ivar failures: whether failing calls are reported, each place of the program once
    """

    def __init__(self, served: DropIn, timed: bool, *, failures: bool, warnings: bool) -> None:
        self.failures = failures
        self._warnings = warnings
        self._print = functools.partial(_print, served.log_name, timed)
        self._places: set[tuple[object, ...]] = set()

    def failed(self, failure: CallFailure, code_name: str) -> None:
        """Print why a call failed, unless that was printed for the same place of the program."""
        place = (failure.call, failure.code, *stacks.take().key[:1])
        if place in self._places or len(self._places) >= MAX_PLACES:
            return
        self._places.add(place)
        why = failure.text + (f" ({failure.hint})" if failure.hint else "")
        self._print("E", f"{failure.call}: {why} ({code_name}, {failure.code})")

    def warn(self, text: str) -> None:
        """Print a warning."""
        if self._warnings:
            self._print("W", text)


class CallObserver:
    """Reports each of *sinks* about each call."""

    def __init__(self, sinks: list[Sink], code_name: Callable[[int], str], messages: Messages) -> None:
        self.messages = messages
        self._sinks = sinks
        self._code_name = code_name

    def around(self, ffi: Any, library: Any, name: str) -> Callable[..., Any]:
        """The method *name* of *library*, observed."""
        method: Callable[..., Any] = getattr(library, name)
        sinks = self._sinks
        if not sinks:
            return method
        types = ffi.typeof(f"{name}_fn").args
        names = list(inspect.signature(getattr(type(library), name)).parameters)[1:]
        parameters = list(zip(names, types, strict=True))

        def observed(*arguments: Any) -> Any:
            begin = time.monotonic_ns()
            result = method(*arguments)
            elapsed = time.monotonic_ns() - begin
            shown = _shown_result(ffi, result)
            failed = shown == "NULL" or (isinstance(shown, int) and shown < 0)
            values = {
                key: _shown(ffi, kind, value, read=not failed) for (key, kind), value in zip(parameters, arguments, strict=True)
            }
            reason = library.last_error() if failed else None
            why = "" if reason is None else reason.text + (f" ({reason.hint})" if reason.hint else "")
            call = ObservedCall(name, values, shown, why, begin, elapsed, threading.get_native_id())
            for sink in sinks:
                sink(call)
            return result

        return observed


def observer_from(environment: Mapping[str, str], library: str, served: DropIn) -> CallObserver:
    """The observer that the environment asks for.

    :param library: the name of the drop-in library
    :param served: the vendor's names of results, and of what controls its messages
    """
    sinks: list[Sink] = []
    code_name = served.code_name
    log, trace, level = (environment.get(name) for name in ("ANYNPU_CALL_LOG", "ANYNPU_TRACE", served.log_variable))
    if log:
        form = _json_line if environment.get("ANYNPU_CALL_LOG_FORMAT") == "json" else _human_line
        fd = 2 if log == "-" else _append_to(log)
        sinks.append(lambda call: _write(fd, form(call, code_name)))
    if trace:
        trace_fd = _append_to(trace)
        if os.fstat(trace_fd).st_size == 0:
            _write(trace_fd, "[")
        sinks.append(lambda call: _write(trace_fd, _slice(call) + ","))
    timed = library not in served.log_untimed
    chosen = (level or "").strip()
    if chosen.isdigit():
        sinks.append(lambda call: _message(call, int(chosen), timed, served))
    messages = Messages(served, timed, failures=not chosen.isdigit() and chosen != SILENT, warnings=chosen != SILENT)
    return CallObserver(sinks, code_name, messages)


def _append_to(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def _write(fd: int, line: str) -> None:
    try:
        os.write(fd, f"{line}\n".encode(errors="replace"))
    except OSError:  # a full disk or a closed stderr is no reason for the program to fail
        pass


def _human_line(call: ObservedCall, code_name: Callable[[int], str]) -> str:
    arguments = ", ".join(f"{name}={_text(value)}" for name, value in call.arguments.items())
    result = "" if call.result is None else f" = {call.result}"
    named = f" {code_name(call.result)}" if isinstance(call.result, int) and call.result else ""
    why = f": {call.why}" if call.why else ""
    return (
        f"{call.begin_ns / 1e9:.6f} {call.thread} {call.name}({arguments}){result}{named} [{call.elapsed_ns / 1e3:.1f} us]{why}"
    )


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}={_text(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_text(inner) for inner in value) + "]"
    return str(value)


def _json_line(call: ObservedCall, code_name: Callable[[int], str]) -> str:
    entry: dict[str, Any] = {
        "time": call.begin_ns / 1e9,
        "process": os.getpid(),
        "thread": call.thread,
        "call": call.name,
        "arguments": call.arguments,
        "result": call.result,
        "us": call.elapsed_ns / 1e3,
    }
    if isinstance(call.result, int):
        entry["code"] = code_name(call.result)
    if call.why:
        entry["why"] = call.why
    return json.dumps(entry)


def _slice(call: ObservedCall) -> str:
    return json.dumps(
        {
            "name": call.name,
            "cat": "api",
            "ph": "X",
            "ts": call.begin_ns / 1e3,
            "dur": call.elapsed_ns / 1e3,
            "pid": os.getpid(),
            "tid": call.thread,
            "args": {**call.arguments, "result": call.result, **({"why": call.why} if call.why else {})},
        }
    )


def _message(call: ObservedCall, level: int, timed: bool, served: DropIn) -> None:
    say = functools.partial(_print, served.log_name, timed)
    if call.failed:
        code = f" ({served.code_name(call.result)}, {call.result})" if isinstance(call.result, int) else ""
        say("E", f"{call.name}: {call.why or 'failed'}{code}")
    elif level >= INFORMATION and call.name == served.first_call:
        say("I", f"initialized context {call.arguments.get('context')} on the software NPU of anynpu")
    if level >= CALLS:
        arguments = ", ".join(f"{name}={_text(value)}" for name, value in call.arguments.items()) if level >= ARGUMENTS else ""
        say("D", f"{call.name}({arguments}) = {call.result}, {call.elapsed_ns / 1e3:.1f} us")


def _print(name: str, timed: bool, kind: str, text: str) -> None:
    now = time.time()
    clock = f"[{time.strftime('%H:%M:%S', time.localtime(now))}.{int(now * 1000) % 1000:03d}] " if timed else ""
    _write(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2, f"{kind} {name}: {clock}{text}")


def _shown_result(ffi: Any, result: Any) -> Any:
    if result is None or isinstance(result, int):
        return None if result is None else int(result)
    return "NULL" if result == ffi.NULL else _address(ffi, result)


def _address(ffi: Any, pointer: Any) -> str:
    return hex(int(ffi.cast("uintptr_t", pointer)))


def _shown(ffi: Any, kind: Any, value: Any, *, read: bool) -> Any:
    """An argument as text, number, or the fields of the struct that it points to."""
    if kind.kind == "enum":
        return kind.elements.get(int(value), int(value))
    if kind.kind == "primitive":
        return hex(value) if kind.cname in ("uint64_t", "unsigned long") else value
    if value == ffi.NULL:
        return "NULL"
    item = kind.item
    if not read or item.kind in ("void", "function") or item.cname in _NOT_READ:
        return _address(ffi, value)
    if item.kind == "struct":
        return _fields(ffi, value)
    return hex(value[0]) if item.kind == "primitive" and isinstance(value[0], int) else _address(ffi, value)


def _fields(ffi: Any, struct: Any) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, field in ffi.typeof(struct).item.fields:
        value = getattr(struct, name)
        if field.type.kind == "primitive":
            shown[name] = value if not isinstance(value, bytes) else value.hex()
        elif field.type.kind == "enum":
            shown[name] = field.type.elements.get(int(value), int(value))
        elif field.type.kind == "pointer":
            shown[name] = "NULL" if value == ffi.NULL else _address(ffi, value)
        elif field.type.kind == "array" and field.type.item.cname == "char" and name == "name":
            shown[name] = ffi.string(value).decode(errors="replace")
    return shown
