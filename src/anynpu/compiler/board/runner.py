"""Programs of others in a process of their own: with a time limit, a log, and an error that shows its last lines.

The vendor's toolkit raises, calls ``exit``, dies of signals and can wait for ever. None of that reaches us: the process is a session of its
own, which is ended as a whole, and what it printed is in a file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ...errors import ToolkitError

__all__ = ["TIME_LIMIT", "last_lines", "run_logged"]

TIME_LIMIT = 1800.0
"""Seconds that the toolkit may take."""

_SHOWN = 12
_MAX_TAIL = 1 << 16
_MAX_LINE = 300
_POLL = 0.05


def run_logged(
    command: Sequence[str],
    folder: Path,
    log: Path,
    *,
    what: str,
    time_limit: float = TIME_LIMIT,
    environment: Mapping[str, str] | None = None,
    hint: str = "",
) -> None:
    """Run *command* in *folder*; what it prints goes to *log*.

    :param what: what it does, for the error
    :param environment: variables besides those of this process
    :raises ToolkitError: it failed, died or took too long; with its last lines
    """
    hint = hint or f"the whole log is {log}"
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                list(command),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        except OSError as error:
            raise ToolkitError(f"{what}: {command[0]} cannot be started: {error.strerror}", hint="check the path") from None
        try:
            ended = _ended_within(process.pid, time_limit)
        finally:  # also where this is interrupted
            code = _end(process)
    if not ended:
        raise ToolkitError(
            f"{what} took longer than {time_limit:g} s and was ended{_told(log)}",
            hint=f"allow more time (--time-limit), or see {log}",
        )
    if code:
        raise ToolkitError(f"{what} {_ending(code)}{_told(log)}", hint=hint, code=code)


def _ended_within(pid: int, seconds: float) -> bool:
    """Wait for a child; it stays a zombie, so that its number still names its group and nobody else's."""
    deadline = time.monotonic() + seconds
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL)
    return True


def _end(process: subprocess.Popen[bytes]) -> int:
    """End the process and all that it started, and give its exit code."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _ending(code: int) -> str:
    if code > 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    illegal = " (the toolkit needs a processor with AVX2)" if name == "SIGILL" else ""
    return f"died of {name}{illegal}"


def _told(log: Path) -> str:
    lines = last_lines(log)
    return f"; its last lines:\n{os.linesep.join(f'  | {line}' for line in lines)}" if lines else "; it printed nothing"


def last_lines(log: Path, count: int = _SHOWN) -> list[str]:
    """The last lines of a log that are not blank, without control characters."""
    with log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(file.tell() - _MAX_TAIL, 0))
        text = file.read().decode("utf-8", "replace")
    lines = (line.rpartition("\r")[2] for line in text.replace("\r\n", "\n").split("\n"))
    shown = ("".join(letter for letter in line if letter.isprintable())[:_MAX_LINE].rstrip() for line in lines)
    return [line for line in shown if line.strip()][-count:]
