"""Raises KeyboardInterrupt at a chosen step of the calling thread, where Python itself would: after a call, at the beginning of a function,
and at a jump back."""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import anynpu

PACKAGE = str(Path(anynpu.__file__).parent)

_names: dict[CodeType, dict[int, str]] = {}


def _name(code: CodeType, offset: int) -> str:
    if code not in _names:
        _names[code] = {one.offset: one.opname for one in dis.get_instructions(code)}
    return _names[code].get(offset, "")


class Interrupter:
    """Counts the steps at which an interrupt could come, and raises at one of them.

    :param step: the one at which it raises; None for none
    :param folder: only steps of files below it count
    """

    def __init__(self, step: int | None, folder: str = PACKAGE) -> None:
        self.steps = 0
        self.raised_at = ""
        self._step = step
        self._folder = folder
        self._before: dict[FrameType, int] = {}

    def call(self, function: Callable[[], Any]) -> Any:
        """Call *function* with the interrupt."""
        old = sys.gettrace()
        sys.settrace(self._enter)
        try:
            return function()
        finally:
            sys.settrace(old)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code.co_flags & inspect.CO_GENERATOR or not code.co_filename.startswith(self._folder):
            return None  # a generator is entered once more when it is thrown away, where an interrupt would be ignored
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        self._count(frame)
        return self._inside

    def _inside(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            before = self._before.get(frame, -1)
            self._before[frame] = frame.f_lasti
            name = _name(frame.f_code, before)
            if name.startswith("CALL") or (name.startswith("JUMP") and frame.f_lasti < before):
                self._count(frame)
        elif event == "return":
            self._before.pop(frame, None)
        return self._inside

    def _count(self, frame: FrameType) -> None:
        self.steps += 1
        if self.steps - 1 == self._step:
            self.raised_at = f"{frame.f_code.co_filename}:{frame.f_lineno}, {frame.f_code.co_name}"
            raise KeyboardInterrupt
