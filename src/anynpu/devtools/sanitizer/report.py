"""Findings as they are told: once each, as text, JSON or SARIF, without those that a file suppresses.

Concurrency: one lock protects the list, the keys that were seen and the file; it is never held while the program runs.
"""

from __future__ import annotations

import fnmatch
import json
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from ..._util.output_files import write_output
from ...errors import OptionError, OutputFileError
from .kinds import KINDS, Kind, kind
from .stacks import Stack, StackFrame, take

__all__ = ["Finding", "Reporter", "Suppressions"]

MAX_FINDINGS = 100
"""Of one process; a program that is wrong in a loop should not fill a disk."""
_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass(frozen=True)
class Finding:
    """One fault of a program.

    :ivar call: the call in which it was noticed
    :ivar text: what happened, with the names and numbers involved
    :ivar stack: where that call came from
    :ivar origin: where the object was made, if one is concerned
    """

    kind: Kind
    call: str
    text: str
    stack: Stack
    origin: Stack | None
    thread: int
    process: int

    @property
    def id(self) -> str:
        return self.kind.id

    def __str__(self) -> str:
        lines = [
            f"anynpu sanitizer: {self.id} in {self.call}: {self.kind.title}",
            f"  {self.text}",
            f"  on a board: {self.kind.board}",
            f"  to fix it: {self.kind.mend}",
            *(f"    #{index} {frame}" for index, frame in enumerate(self.stack.frames())),
        ]
        if self.origin is not None and self.origin is not self.stack and self.origin.frames():
            lines += ["  made here:", *(f"    #{index} {frame}" for index, frame in enumerate(self.origin.frames()))]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "id": self.id,
            "title": self.kind.title,
            "call": self.call,
            "text": self.text,
            "board": self.kind.board,
            "mend": self.kind.mend,
            "stack": [_frame(frame) for frame in self.stack.frames()],
            "origin": [] if self.origin is None else [_frame(frame) for frame in self.origin.frames()],
            "thread": self.thread,
            "process": self.process,
        }


def _frame(frame: StackFrame) -> dict[str, Any]:
    return {"function": frame.function, "file": frame.file, "line": frame.line}


class Suppressions:
    """What not to report. Each line of the file is ``KIND:PATTERN``; both may have ``*`` and ``?``, ``#`` begins a comment.

    The pattern is compared with the function, the file and the file's name of every frame, and with the call.

    >>> rules = Suppressions(["memory-leak:*/third_party/*  # not ours", "*:rknn_query"])
    >>> rules.cover("bad-argument", ["rknn_query"]), rules.cover("memory-leak", ["rknn_query", "/src/third_party/x.c"])
    (True, True)
    >>> rules.cover("memory-leak", ["main.c"])
    False
    """

    def __init__(self, lines: Iterable[str] = (), *, source: str = "suppressions") -> None:
        self._rules: list[tuple[str, str]] = []
        for number, line in enumerate(lines, 1):
            text = line.split("#", 1)[0].strip()
            id, colon, pattern = (part.strip() for part in text.partition(":"))
            if text and (not colon or not pattern or not fnmatch.filter(KINDS, id)):
                raise OptionError(
                    f"{source}, line {number}: '{text}' is not KIND:PATTERN", hint=f"the kinds are {', '.join(KINDS)}, or *"
                )
            if text:
                self._rules.append((id, pattern))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Suppressions:
        """Those of a file."""
        try:
            return cls(Path(path).read_text(encoding="utf-8").splitlines(), source=os.fspath(path))
        except OSError as error:
            raise OptionError(f"{os.fspath(path)} cannot be read: {error.strerror}", hint="check the path") from error
        except UnicodeDecodeError as error:
            raise OptionError(f"{os.fspath(path)} is not text in UTF-8", hint="write one KIND:PATTERN per line") from error

    def cover(self, id: str, names: Iterable[str]) -> bool:
        """Whether a finding of this kind with these names is suppressed."""
        rules = [pattern for wanted, pattern in self._rules if fnmatch.fnmatchcase(id, wanted)]
        return bool(rules) and any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in rules)


class Reporter:
    """Keeps what was found.

    :param stream: told each finding at once
    :param path: a file for all of them: SARIF if its name ends so, else JSON; written after each one
    :param run: the same for all processes of one program, whose findings share the file
    """

    def __init__(
        self,
        *,
        stream: TextIO | None = None,
        path: str | os.PathLike[str] | None = None,
        suppressions: Suppressions | None = None,
        run: str = "",
    ) -> None:
        self.run = run
        self.findings: list[Finding] = []
        self.suppressed = 0
        self._stream = stream
        self._path = None if path is None else Path(path)
        self._suppressions = suppressions or Suppressions()
        self._seen: set[tuple[object, ...]] = set()
        self._lock = threading.Lock()
        self._write()

    def add(self, id: str, call: str, text: str, *, subject: object = None, origin: Stack | None = None) -> None:
        """Report one fault of the calling thread.

        :param subject: what it is about; the same fault of one subject is told once, wherever it comes from
        """
        stack = take()
        if origin is not None and call == "exit":  # what is missing has no place; where the object was made has
            stack = origin
        made = None if origin is None else origin.key
        key = (id, call, stack.key, made) if subject is None else (id, subject, made)
        with self._lock:
            if key in self._seen or len(self._seen) >= MAX_FINDINGS:
                return
            self._seen.add(key)
        found = Finding(kind(id), call, text, stack, origin, threading.get_native_id(), os.getpid())
        if self._suppressions.cover(id, _names(found)):
            self.suppressed += 1
            return
        with self._lock:
            self.findings.append(found)
            if self._stream is not None:
                self._stream.write(f"{found}\n")
                self._stream.flush()
            self._write()

    def text(self) -> str:
        """All findings, for readers."""
        return "\n".join(str(found) for found in self.findings)

    def as_json(self) -> dict[str, Any]:
        """All findings as JSON."""
        return {
            "tool": "anynpu sanitizer",
            "version": 1,
            "run": self.run,
            "findings": [found.as_dict() for found in self.findings],
        }

    def as_sarif(self) -> dict[str, Any]:
        """All findings in the format that code hosts and editors read."""
        return {"$schema": _SARIF, "version": "2.1.0", "runs": [_sarif_run(self.findings, self.run)]}

    def _write(self) -> None:
        if self._path is None:
            return
        sarif = self._path.suffix.lower() == ".sarif"
        content = self.as_sarif() if sarif else self.as_json()
        try:
            write_output(self._path, json.dumps(_merged(self._path, content, sarif), indent=1))
        except OutputFileError as error:  # the program goes on
            if self._stream is not None:
                self._stream.write(f"anynpu sanitizer: {error.message}\n")
            self._path = None


def _merged(path: Path, content: dict[str, Any], sarif: bool) -> dict[str, Any]:
    """With what other processes of the program have written."""
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return content
    own = os.getpid()
    if sarif:
        mine = content["runs"][0]["properties"]
        marks = [(part, part.get("properties", {})) for part in before.get("runs", ())]
        kept = [part for part, mark in marks if mark.get("run") == mine["run"] and mark.get("process") != own]
        return {**content, "runs": [*kept, *content["runs"]]}
    if before.get("run") != content["run"]:
        return content
    kept = [found for found in before.get("findings", ()) if found.get("process") != own]
    return {**content, "findings": [*kept, *content["findings"]]}


def _names(found: Finding) -> list[str]:
    frames = (*found.stack.frames(), *(() if found.origin is None else found.origin.frames()))
    return [
        found.call,
        *(name for frame in frames for name in (frame.function, frame.file, os.path.basename(frame.file))),
    ]


def _sarif_run(findings: list[Finding], run: str) -> dict[str, Any]:
    used = sorted({found.id for found in findings})
    return {
        "tool": {"driver": {"name": "anynpu sanitizer", "rules": [_sarif_rule(KINDS[id]) for id in used]}},
        "results": [_sarif_result(found) for found in findings],
        "properties": {"process": os.getpid(), "run": run},
    }


def _sarif_rule(one: Kind) -> dict[str, Any]:
    return {
        "id": one.id,
        "shortDescription": {"text": one.title},
        "fullDescription": {"text": one.board},
        "help": {"text": one.mend},
    }


def _sarif_result(found: Finding) -> dict[str, Any]:
    frames = found.stack.frames()
    result: dict[str, Any] = {
        "ruleId": found.id,
        "level": "error",
        "message": {"text": f"{found.call}: {found.text} {found.kind.mend}"},
        "locations": [_sarif_location(frame) for frame in frames[:1]],
    }
    if frames:
        result["stacks"] = [{"frames": [{"location": _sarif_location(frame)} for frame in frames]}]
    return result


def _sarif_location(frame: StackFrame) -> dict[str, Any]:
    place: dict[str, Any] = {"artifactLocation": {"uri": Path(frame.file).as_uri() if frame.file.startswith("/") else frame.file}}
    if frame.line:
        place["region"] = {"startLine": frame.line}
    return {"physicalLocation": place, "message": {"text": frame.function}}
