"""Who is watched, and when: the libraries of this process, while a sanitizer is on.

A library enlists itself when it is made, with the module of its observer. Without a sanitizer nothing more happens: calls go
where they always went. With one, the observer puts itself in the place of the library's calls, and takes itself away at the end.

State: the sanitizer of the process and the set of libraries, under one lock. A forked child is on its own: it inherits neither findings
nor objects of its parent, and its libraries are new.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from ...errors import OptionError, SanitizerError
from .objects import Made
from .report import Reporter, Suppressions
from .stacks import Stack

__all__ = ["EXIT_CODE", "Observer", "at_exit", "delist", "enlist", "sanitize", "set_aside"]

log = logging.getLogger("anynpu.devtools.sanitizer")

EXIT_CODE = 23
"""Of a program with findings, unless ``ANYNPU_SANITIZE_EXITCODE`` says another; 0 leaves the program's own."""


class Observer:
    """Stands around the calls of one library.

    :param names: the calls
    """

    def __init__(self, library: Any, reporter: Reporter, names: tuple[str, ...]) -> None:
        self.library = library
        self._reporter = reporter
        self._active = True
        self._names = names
        self._before: dict[str, Any] = {}
        self._own: dict[str, Callable[..., Any]] = {}

    quiet_calls: frozenset[str] = frozenset()
    """Calls that have to be watched for as long as there is memory with two sides."""

    number_calls: frozenset[str] = frozenset()
    """Calls whose result is a number, for which zero is no success."""

    def install(self) -> None:
        """Take the place of the calls, as they are now."""
        for name in self._names:
            self._before[name] = vars(self.library).get(name)  # what a chip lacks has answers of its own
            self._own[name] = self._around(name, getattr(self.library, name))
            setattr(self.library, name, self._own[name])

    def tell(self, id: str, call: str, text: str, *, subject: object = None, origin: Stack | None = None) -> None:
        """Report one fault of the calling thread."""
        if self._active:
            self._reporter.add(id, call, text, subject=subject, origin=origin)

    def remove(self) -> None:
        """Give it back. Who has kept a call goes through it unwatched; memory with two sides is kept the same on both."""
        self._active = False
        if not self.has_left():
            self.uninstall()
            self._own.clear()  # they know the library: it ends with its last user, not when the collector comes

    def uninstall(self) -> None:
        """Give the calls back that nobody has wrapped since."""
        for name, own in self._own.items():
            if vars(self.library).get(name) is not own:
                continue
            before = self._before[name]
            if before is None:
                vars(self.library).pop(name)
            else:
                setattr(self.library, name, before)

    def _around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """One call with what is done before and after it. Programs make these calls for every picture: it is one function on purpose."""
        before = getattr(self, f"before_{name}", None)
        after = getattr(self, f"after_{name}", None)
        quiet, codes = name in self.quiet_calls, name not in self.number_calls

        @functools.wraps(call)
        def watched(*arguments: Any) -> Any:
            if not self._active and not quiet:
                return call(*arguments)
            inside: Made | None = None
            try:
                inside = self.enter(name, arguments)
                if before is not None:
                    before(*arguments)
            except Exception:
                _own_fault(name)
            try:
                result = call(*arguments)
            finally:
                if inside is not None:
                    inside.leave()
            try:
                if (codes and not result and result.__class__ is int) or not self.failed(name, result):
                    changed = None if after is None else after(result, *arguments)
                    return result if changed is None else changed
                self._refused(name, arguments)
            except Exception:
                _own_fault(name)
            return result

        return watched

    def _refused(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.abandoned(name, arguments)
        failure = self.library.last_error()
        if failure is not None and failure.call == name and not failure.injected:
            self.refused(name, arguments, failure)

    # what vendors fill in

    def enter(self, name: str, arguments: tuple[Any, ...]) -> Made | None:
        """Before a call; the object that the calling thread is in from now on, if it is known."""

    def failed(self, name: str, result: Any) -> bool:
        """Whether *result* is that of a call that was refused."""
        return False

    def abandoned(self, name: str, arguments: tuple[Any, ...]) -> None:
        """A call failed, for whatever reason: forget what was to come of it."""

    def refused(self, name: str, arguments: tuple[Any, ...], failure: Any) -> None:
        """A call was refused, and not by a plan of faults.

        :param failure: what the library says about it
        """

    def has_left(self) -> bool:
        """Whether there is memory with two sides."""
        return False

    def finish(self) -> None:
        """The end: what is left now is left for good."""


class _Sanitizer:
    """One time of watching."""

    def __init__(self, reporter: Reporter, exit_code: int | None) -> None:
        self.reporter = reporter
        self.exit_code = exit_code
        self.process = os.getpid()
        self.observers: list[Observer] = []
        self.finished = False

    def watch(self, library: Any, module: str) -> None:
        observer: Observer = importlib.import_module(module).observe(library, self.reporter)
        observer.install()
        self.observers.append(observer)

    def finish(self) -> None:
        if self.finished:
            return
        self.finished = True
        for observer in self.observers:
            try:
                observer.finish()
            except Exception:
                _own_fault("exit")
            observer.remove()


def _own_fault(call: str) -> None:
    """A fault of ours must not become one of the program."""
    log.exception("the sanitizer failed in %s", call)


_lock = threading.RLock()
_libraries: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_sanitizer: _Sanitizer | None = None


def enlist(library: Any, module: str) -> None:
    """Called by a library of the software NPU when it is made.

    :param module: its ``observe(library, reporter)`` makes the observer; loaded when somebody watches
    """
    _renew_in_children()
    with _lock:
        _libraries[library] = module
        _start_by_environment()
        if _sanitizer is not None and not _sanitizer.finished and _sanitizer.process == os.getpid():
            _sanitizer.watch(library, module)


@contextlib.contextmanager
def set_aside(library: Any) -> Iterator[None]:
    """Nobody watches *library* in the block: what is put around its calls there goes below the observers."""
    with _lock:
        observers = [] if _sanitizer is None else [each for each in _sanitizer.observers if each.library is library]
        for observer in observers:
            observer.uninstall()
        try:
            yield
        finally:
            for observer in observers:
                observer.install()


def delist(library: Any) -> None:
    """A library is closed for good: who watches later has nothing to watch."""
    with _lock:
        _libraries.pop(library, None)


@functools.cache
def _renew_in_children() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_renew)


def _renew() -> None:
    """Another thread of the parent may have had the lock."""
    global _lock
    _lock = threading.RLock()


@contextlib.contextmanager
def sanitize(
    *,
    check: bool = True,
    report: str | os.PathLike[str] | None = None,
    suppressions: str | os.PathLike[str] | Suppressions | None = None,
) -> Iterator[Reporter]:
    """Watch what the block does with the software NPU: contexts and memory that it makes, and calls with them.

    :param check: raise :class:`~anynpu.errors.SanitizerError` at the end if something was found
    :param report: a file for the findings: SARIF if its name ends so, else JSON
    :param suppressions: a file with what not to report

    >>> with sanitize(check=False) as found:
    ...     pass
    >>> found.findings
    []
    """
    global _sanitizer
    rules = suppressions if isinstance(suppressions, Suppressions) or suppressions is None else Suppressions.read(suppressions)
    reporter = Reporter(path=report, suppressions=rules, run=_run())
    with _lock:
        if _sanitizer is not None and not _sanitizer.finished and _sanitizer.process == os.getpid():
            raise OptionError(
                "a sanitizer is on already", hint="blocks of anynpu.sanitize() do not nest; is ANYNPU_SANITIZE set?"
            )
        own = _sanitizer = _Sanitizer(reporter, None)
        for library, module in list(_libraries.items()):
            own.watch(library, module)
    try:
        yield reporter
    finally:
        with _lock:
            own.finish()
            _sanitizer = None
    if check and reporter.findings:
        raise SanitizerError(f"{_counted(reporter)}\n{reporter.text()}", hint="docs/messages.md lists the kinds of findings")


def _start_by_environment() -> None:
    """The sanitizer that ``ANYNPU_SANITIZE`` asks for, once in each process; the caller holds the lock."""
    global _sanitizer
    if os.environ.get("ANYNPU_SANITIZE", "") in ("", "0") or (_sanitizer is not None and _sanitizer.process == os.getpid()):
        return
    named = os.environ.get("ANYNPU_SANITIZE_SUPPRESSIONS")
    stream = sys.__stderr__
    try:
        rules = Suppressions.read(named) if named else None
    except OptionError as error:  # in the middle of the program's first call there is nobody to raise to
        rules = None
        if stream is not None:
            stream.write(f"anynpu sanitizer: {error}\n")
    run = os.environ.setdefault("ANYNPU_SANITIZE_RUN", _run())
    reporter = Reporter(stream=stream, path=os.environ.get("ANYNPU_SANITIZE_REPORT") or None, suppressions=rules, run=run)
    text = os.environ.get("ANYNPU_SANITIZE_EXITCODE", "")
    _sanitizer = _Sanitizer(reporter, int(text) if text.isdigit() else EXIT_CODE)
    atexit.register(at_exit)


def at_exit() -> None:
    """The program ends: tell what is left, and end with the exit code of the sanitizer if there were findings.

    As with other sanitizers, nothing of the program runs after that.
    """
    with _lock:
        own = _sanitizer
        if own is None or own.exit_code is None or own.finished or own.process != os.getpid():
            return
        own.finish()
    findings, stream = own.reporter.findings, sys.__stderr__
    if not findings:
        return
    if stream is not None:
        stream.write(f"anynpu sanitizer: {_counted(own.reporter)}\n")
    if own.exit_code:
        for standard in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                standard.flush()
        logging.shutdown()
        ctypes.CDLL(None).fflush(None)
        os._exit(own.exit_code)


def _counted(reporter: Reporter) -> str:
    count = len(reporter.findings)
    hidden = f", {reporter.suppressed} suppressed" if reporter.suppressed else ""
    return f"{count} finding{'' if count == 1 else 's'}{hidden}"


def _run() -> str:
    return f"{os.getpid()}-{time.time_ns()}"
