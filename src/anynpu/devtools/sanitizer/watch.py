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
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import OptionError, SanitizerError
from ...tensor import Layout, TensorSpec
from .report import Reporter, Suppressions
from .stacks import Stack

# Whether data is what it is said to be: by how smooth it is, and by the range that the model was calibrated for.
#
# These are judgments, not proofs. Each asks for much (large differences, enough data) before it speaks: data without structure, such as
# noise or one color, gets no finding.


Array = npt.NDArray[np.generic]
Judgement = tuple[str, str]
"""The name of a kind of finding, and what happened."""

_ENOUGH = 512
_SAMPLE = 1 << 16
_WIDE_JUMP = 192
_DISTINCT = 32
_SIDES = 8


@dataclass(frozen=True)
class Described:
    """What a program states about data.

    :ivar dtype: uint8, int8, float16, float32 and so on
    :ivar shape: in the order of the model: batch, channels, height, width
    :ivar channels_last: how it lies in memory
    :ivar codes: already quantized
    :ivar mean: and *std*, which the model applies
    :ivar low: and *high*, the values that its codes reach; None where it is not quantized
    :ivar step: between two codes
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    channels_last: bool
    codes: bool = False
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    low: float | None = None
    high: float | None = None
    step: float = 0.0


def judge(data: npt.NDArray[np.uint8], said: Described) -> Judgement | None:
    """The first thing that is wrong with *data*, the bytes of one tensor without padding."""
    if data.size < _ENOUGH:
        return _range(data, said)
    if said.dtype in ("uint8", "int8"):
        return _width(data, said) or _sign(data, said) or _layout(data, said) or _range(data, said)
    return _range(data, said)


def _lag(data: npt.NDArray[np.int16], lag: int) -> float:
    return float(np.abs(data[lag:] - data[:-lag]).mean()) if data.size > lag else 0.0


def _neighbour(said: Described) -> int:
    """How far apart neighbors of a row lie."""
    return said.shape[1] if said.channels_last and len(said.shape) == 4 else 1


def _sign(data: npt.NDArray[np.uint8], said: Described) -> Judgement | None:
    sample = data[:_SAMPLE]
    unsigned, signed = sample.astype(np.int16), sample.view(np.int8).astype(np.int16)
    lag = _neighbour(said)
    as_said, otherwise = (unsigned, signed) if said.dtype == "uint8" else (signed, unsigned)
    rough, smooth = _lag(as_said, lag), _lag(otherwise, lag)
    jumps = float((np.abs(as_said[lag:] - as_said[:-lag]) > _WIDE_JUMP).mean())
    # a page of black and white is smooth either way round only where it has two levels; codes of an image are spread
    if rough > 16 and rough > 2 * smooth and jumps > 0.01 and float(otherwise.std()) >= 20:
        other = "int8" if said.dtype == "uint8" else "uint8"
        return "wrong-signedness", (
            f"'{said.name}' is given as {said.dtype}; neighbors differ by {rough:.0f} on average, read as {other} by {smooth:.0f}"
        )
    return None


def _width(data: npt.NDArray[np.uint8], said: Described) -> Judgement | None:
    sample = data[: min(data.size, 8192) // 4 * 4]
    even, odd = (np.unique(sample[start::2]).size for start in (0, 1))
    if odd > 40 or even < 64 or even < 3 * odd:
        return None
    with np.errstate(all="ignore"):
        numbers = np.abs(sample.view(np.float16).astype(np.float32))
    plausible = np.isfinite(numbers) & (((numbers > 1e-4) & (numbers < 1e4)) | (numbers == 0))
    if float(plausible.mean()) < 0.95:
        return None
    return "wrong-element-size", (
        f"'{said.name}' is given as {said.dtype}; every second byte has {odd} values and the others {even}, as float16 numbers have"
    )


def _layout(data: npt.NDArray[np.uint8], said: Described) -> Judgement | None:
    if len(said.shape) != 4 or said.shape[1] not in (3, 4) or min(said.shape[2:]) < _SIDES:
        return None
    _, channels, height, width = said.shape
    sample = data[: channels * height * width].astype(np.int16)
    planar, packed = _lag(sample, width), _lag(sample, channels * width)
    right, wrong = (packed, planar) if said.channels_last else (planar, packed)
    if right > 4 and right > 2 * wrong:
        was, other = ("NHWC", "NCHW") if said.channels_last else ("NCHW", "NHWC")
        return "wrong-layout", (
            f"'{said.name}' is given as {was}; rows differ by {right:.0f} on average, read as {other} by {wrong:.0f}"
        )
    return None


def _range(data: npt.NDArray[np.uint8], said: Described) -> Judgement | None:
    if said.codes or said.low is None or said.high is None or said.dtype not in ("uint8", "float16", "float32"):
        return None
    kind = np.dtype(said.dtype)
    values = data[: data.size // kind.itemsize * kind.itemsize].view(kind)[:_SAMPLE].astype(np.float32)
    if values.size < _DISTINCT or np.unique(values).size < _DISTINCT:
        return None
    if not np.isfinite(values).all():
        return "values-out-of-range", f"'{said.name}' has values that are infinite or not numbers"
    mean, std = _average(said.mean, 0.0), _average(said.std, 1.0)
    values = (values - mean) / std
    outside = float(((values < said.low - said.step) | (values > said.high + said.step)).mean())
    spread = float(np.percentile(values, 99) - np.percentile(values, 1))
    span = (
        f"after mean and std it goes from {values.min():.4g} to {values.max():.4g}, "
        f"the model was calibrated for {said.low:.4g} to {said.high:.4g}"
    )
    if outside > 0.95:
        return "values-out-of-range", f"{outside:.0%} of '{said.name}' saturate: {span}"
    if spread < 2.5 * said.step:
        return "values-out-of-range", f"'{said.name}' collapses into {max(1, round(spread / said.step))} codes of 256: {span}"
    return None


def _average(numbers: tuple[float, ...], default: float) -> float:
    return sum(numbers) / len(numbers) if numbers else default


# What observers of all vendors keep about the objects of a program: who made them, who is inside, and what became of them.


VALUE_CHECKS = 3
"""How often the values of one input are evaluated: a program does the same with each image."""

MAX_REMEMBERED = 4096
"""Objects that are gone and still known by their handle."""


@dataclass(eq=False)
class Made:
    """A context, a network or a group.

    :ivar noun: what the vendor calls it
    :ivar inside: which thread is in which call with it
    """

    noun: str
    handle: int
    origin: Stack
    inside: dict[int, str] = field(default_factory=dict)
    judged: dict[int, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.noun} {self.handle:#x}"

    def enter(self, call: str) -> str | None:
        """The calling thread enters; which call another thread is in with it, if any is."""
        me = threading.get_ident()
        self.inside[me] = call
        if len(self.inside) == 1:
            return None
        return next((name for thread, name in list(self.inside.items()) if thread != me), None)

    def leave(self) -> None:
        """The calling thread leaves."""
        self.inside.pop(threading.get_ident(), None)

    def may_judge(self, index: int) -> bool:
        """Whether the values of an input must be looked at again."""
        count = self.judged.get(index, 0)
        self.judged[index] = count + 1
        return count < VALUE_CHECKS


class Graveyard:
    """Objects that were destroyed, by handle; the oldest are forgotten."""

    def __init__(self) -> None:
        self._gone: OrderedDict[int, tuple[str, Stack]] = OrderedDict()

    def bury(self, handle: int, noun: str, origin: Stack) -> None:
        """Something was destroyed."""
        self._gone[handle] = (noun, origin)
        while len(self._gone) > MAX_REMEMBERED:
            self._gone.popitem(last=False)

    def raise_again(self, handle: int) -> None:
        """The handle was given again."""
        self._gone.pop(handle, None)

    def find(self, handle: int) -> tuple[str, Stack] | None:
        """What the handle stood for, if it did."""
        return self._gone.get(handle)


def described(
    source: TensorSpec,
    target: TensorSpec,
    *,
    codes: bool,
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
) -> Described:
    """What data as *source* for the engine's *target* is said to be."""
    low = high = None
    step = 0.0
    quantization = target.quantization
    if quantization is not None and quantization.is_per_tensor:
        first, last = target.dtype.limits
        step = quantization.scale
        low, high = ((code - quantization.zero_point) * step for code in (first, last))
    return Described(
        source.name,
        source.dtype.value,
        source.shape,
        source.layout is Layout.NHWC,
        codes,
        mean,
        std,
        low,
        high,
        step,
    )


log = logging.getLogger("anynpu.devtools.sanitizer")

EXIT_CODE = 23
"""Of a program with findings, unless ``ANYNPU_SANITIZE_EXITCODE`` states another; 0 leaves the program's own."""


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
        """Restore the calls that have not been wrapped since."""
        for name, own in self._own.items():
            if vars(self.library).get(name) is not own:
                continue
            before = self._before[name]
            if before is None:
                vars(self.library).pop(name)
            else:
                setattr(self.library, name, before)

    def _around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """One call with what is done before and after it. Programs make these calls for every image: it is one function on purpose."""
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
        """Whether *result* is that of a call that was rejected."""
        return False

    def abandoned(self, name: str, arguments: tuple[Any, ...]) -> None:
        """A call failed, for whatever reason: forget what was to come of it."""

    def refused(self, name: str, arguments: tuple[Any, ...], failure: Any) -> None:
        """A call was rejected, and not by a fault plan.

        :param failure: what the library states about it
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

    :param module: its ``observe(library, reporter)`` makes the observer; loaded when a sanitizer is active
    """
    _renew_in_children()
    with _lock:
        _libraries[library] = module
        _start_by_environment()
        if _sanitizer is not None and not _sanitizer.finished and _sanitizer.process == os.getpid():
            _sanitizer.watch(library, module)


@contextlib.contextmanager
def set_aside(library: Any) -> Iterator[None]:
    """*library* is not watched in the block: what is put around its calls there goes below the observers."""
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
    except OptionError as error:  # in the middle of the program's first call there is no caller to raise to
        rules = None
        if stream is not None:
            stream.write(f"anynpu sanitizer: {error}\n")
    run = os.environ.setdefault("ANYNPU_SANITIZE_RUN", _run())
    reporter = Reporter(stream=stream, path=os.environ.get("ANYNPU_SANITIZE_REPORT") or None, suppressions=rules, run=run)
    text = os.environ.get("ANYNPU_SANITIZE_EXITCODE", "")
    _sanitizer = _Sanitizer(reporter, int(text) if text.isdigit() else EXIT_CODE)
    atexit.register(at_exit)


def at_exit() -> None:
    """The program ends: report what is left, and end with the exit code of the sanitizer if there were findings.

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
