"""What the libraries of all vendors have in common: objects with the functions of a C interface as attributes.

A vendor adds its functions, its codes and its words. Behind such an object is either a file that was loaded (:class:`LoadedLibrary`) or the
software NPU, which raises a :class:`Refusal` inside and notes it as a :class:`CallFailure`. Which of the two it is makes no difference to
callers: what only some libraries can do is asked of all, and the base class states no.

Who owns what: :class:`OpenLibraries` owns the libraries of one vendor; its lock protects the table and is held while a library is
opened, so that each is opened once. They stay open until the process ends. A forked child opens its own, and leaves what it inherited
alone (:func:`anynpu._util.lifetime.at_end`): the threads that worked on it, and may hold its locks, are the parent's. :class:`Failures`
keeps one note for each thread and needs no lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from ..chips.chip import Chip
from ..devtools import faults
from ..devtools.faults import wrap_calls
from ..devtools.recording import RECORD_VARIABLE, CallTable, record_calls
from ..errors import AnynpuError, CallFailed, DeviceClosed, DeviceUnavailable, ModelError, SessionModelError, UnsupportedCall
from . import registry
from .devices import SOFTWARE, DeviceChoice, choose_device
from .registry import Vendor

CodeT = TypeVar("CodeT", bound=IntEnum)
LibraryT = TypeVar("LibraryT", bound="Library")


def functions_of(lib: Any, prefix: str) -> tuple[str, ...]:
    """The names of all functions of an interface that begin with *prefix*, from the extension module that declares them."""
    return tuple(name.removeprefix("anynpu_") for name in dir(lib) if name.startswith(f"anynpu_{prefix}"))


def instrumented(library: LibraryT) -> LibraryT:
    """*library*, with what this process asks for around its calls; a real NPU's stay as they are."""
    injector = faults.active()
    software: object = library
    if not isinstance(software, SoftwareCalls) or (injector is None and RECORD_VARIABLE not in os.environ):
        return library
    with software.unwatched():
        if injector is not None:
            wrap_calls(software, injector)
        record_calls(software, software.tracing())
    return library


@dataclass(frozen=True)
class CallFailure:
    """Why a call failed."""

    call: str
    code: int
    text: str
    hint: str = ""
    injected: bool = False
    """Whether it failed by a fault plan, and not for what the caller did."""

    @property
    def status(self) -> int:
        """The code, as VIPLite calls it."""
        return self.code


class Library:
    """The base of library objects.

    :ivar lanes_on_demand: whether a model may be opened again while it runs
    :ivar genuine: whether it drives a real NPU, which executes the vendor's files and none of ours
    """

    lanes_on_demand = False
    genuine = False

    @property
    def description(self) -> str:
        """Description of the device for users."""
        return type(self).__name__

    def words(self, chip: Chip, *details: str) -> str:
        """Description of the device for users of a session.

        :param details: further facts about a real NPU
        """
        cores = f"{chip.cores} core{'' if chip.cores == 1 else 's'}"
        if self.genuine:
            return ", ".join((chip.name.upper(), self.description, *details, cores))
        return f"software NPU, {chip.name}, {cores}"

    def chip_of(self, handle: Any) -> Chip | None:
        """The chip that the model behind *handle* runs on; None where the library does not state."""
        del handle
        return None

    def metadata_of(self, handle: Any) -> Mapping[str, str]:
        """What the model behind *handle* states about itself, besides its text; nothing where the library does not state."""
        del handle
        return {}

    def predicted_us(self, handle: Any) -> float | None:
        """The predicted time of a run; None on a real NPU, whose time is real."""
        del handle
        return None

    def cancel(self, handle: Any) -> bool:
        """Ask the run of *handle* to stop, from another thread; False where the library cannot."""
        del handle
        return False

    def has(self, *names: str) -> bool:
        """Whether the functions *names* can be called by their address."""
        del names
        return False

    def last_error(self) -> CallFailure | None:
        """Why the last call that failed in this thread did so; None where the library does not state."""
        return None

    def close(self) -> None:
        """End everything that was made through this library."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class SoftwareCalls:
    """What a library of the software NPU has besides its calls, for calls that fail on purpose (:mod:`anynpu.devtools.faults`).

    A vendor's class names the call that opens a model, its codes, and what a call that fails returns.
    """

    opening = ""
    """The call that opens a model."""
    codes: ClassVar[type[IntEnum]]
    fault_codes: ClassVar[Mapping[str, int]]
    """What it answers where the device is ``lost``, or where the ``version`` of the driver does not fit."""

    tracing: Callable[[], CallTable]
    """What a recording knows about the calls."""

    def opening_call(self) -> str:
        """The call that opens a model."""
        return self.opening

    def code_number(self, code: int | str) -> int:
        """A quantized value of the interface by its number or name; raises KeyError where there is none."""
        known = {int(each): each for each in self.codes}
        return int(self.codes[code] if isinstance(code, str) else known[code])

    def fault_code(self, kind: str) -> int:
        """What opening a model answers at a fault."""
        return int(self.fault_codes[kind])

    def fail_call(self, call: str, arguments: tuple[Any, ...], code: int, text: str) -> Any:
        """Let *call* fail: note why, and give what it returns."""
        return self.refused(call, arguments, Refusal(self.codes(code), text, injected=True))

    warn: Callable[[str], object] | None = None
    """Prints a warning where a C program calls; None where Python code calls, which checks values itself."""
    _failures: Failures[Any]

    def report_failures(self, report: Callable[[CallFailure, str], object]) -> None:
        """Call *report* with each call that fails, and the name of its code."""
        self._failures.report = report

    def unwatched(self) -> AbstractContextManager[None]:
        """A block in which its calls have no outermost wrapper."""
        return nullcontext()

    def refused(self, call: str, arguments: tuple[Any, ...], error: BaseException) -> Any:
        """Note why *call* fails, and give what it returns."""
        raise NotImplementedError

    def cut_model(self, arguments: tuple[Any, ...], keep: float) -> tuple[Any, ...]:
        """The arguments of the opening call with a model of which that part is there."""
        raise NotImplementedError


class LoadedLibrary(Library):
    """A library that was loaded at run time.

    :param path: file, or a name that the system's loader finds
    :param hint: what to do if it cannot be loaded
    """

    noun = "library"
    """What the vendor calls it."""
    genuine = True

    def __init__(self, path: str | os.PathLike[str], *, hint: str) -> None:
        self.path = os.fspath(path)
        try:
            self._library = ctypes.CDLL(self.path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            raise DeviceUnavailable(f"{self.path} cannot be loaded: {error}", hint=hint) from error

    def has(self, *names: str) -> bool:
        """Whether the library has these functions."""
        return all(hasattr(self._library, name) for name in names)

    def _bind(self, ffi: Any, names: Sequence[str]) -> None:
        """Make the functions attributes; one that the library lacks raises :class:`UnsupportedCall` when it is called."""
        for name in names:
            setattr(self, name, self._function(ffi, name))

    def _function(self, ffi: Any, name: str) -> Any:
        try:
            symbol = getattr(self._library, name)
        except AttributeError:
            return functools.partial(self._missing, name)
        return ffi.cast(f"{name}_fn", ctypes.cast(symbol, ctypes.c_void_p).value)

    def _missing(self, name: str, *arguments: Any) -> Any:
        del arguments
        raise UnsupportedCall(
            f"{self.description} does not have {name}", hint=f"a later version of the {self.noun} may have it", call=name
        )


def find_library(
    load: Callable[[str], LibraryT], path: str, names: Sequence[str], folders: Sequence[str], *, reason: str, hint: str
) -> LibraryT:
    """The library at *path*, or the first that can be loaded: by name, as the system's loader finds it, then as a file of *folders*.

    :param path: empty to search
    :param reason: why there should be one
    :param hint: what to do if there is none
    """
    if path:
        return load(path)
    failures = []
    candidates = [*names, *(str(Path(folder, name)) for folder in folders for name in names if Path(folder, name).exists())]
    for candidate in candidates:
        try:
            return load(candidate)
        except DeviceUnavailable as error:
            failures.append(error)
    if len(candidates) > len(names):
        raise failures[-1]
    why = f" ({reason})" if reason else ""
    raise DeviceUnavailable(f"there is an NPU{why}, but no {' or '.join(names)}", hint=hint)


class OpenLibraries(Generic[LibraryT]):
    """The open libraries of one vendor: the same object for the same device.

    :param own: the vendor
    :param software: opens the software NPU as a chip, or as that of each model if the name is empty
    :param vendor: opens the vendor's library: a file, or any if the path is empty
    :param on_engine: opens the software NPU as a chip, with an engine by name; None where there is no other engine
    """

    def __init__(
        self,
        own: Vendor,
        *,
        software: Callable[[str], LibraryT],
        vendor: Callable[[str, str], LibraryT],
        on_engine: Callable[[str, str], LibraryT] | None = None,
    ) -> None:
        self._own = own
        self._on_engine = on_engine
        self._software = software
        self._vendor = vendor
        self._open: dict[tuple[str, str, str, object], LibraryT] = {}
        self._left_behind: list[object] = []  # in a forked child, what is the parent's: never closed
        self._hooked = False
        self._lock = threading.Lock()

    def get(self, device: str | DeviceChoice | LibraryT | None) -> LibraryT:
        """The library for *device*, which may be a library already."""
        if device is not None and not isinstance(device, (str, DeviceChoice)):
            return device
        choice = device if isinstance(device, DeviceChoice) else choose_device(device)
        if choice.kind not in (SOFTWARE, self._own.name):
            other = registry.get(choice.kind)
            raise DeviceUnavailable(
                f"this device ({choice.reason}) has no {self._own.interface} NPU",
                hint=f"{other.title}'s chips have the {other.interface} calls; or pass device='{SOFTWARE}'",
            )
        injector = faults.active() if choice.kind == SOFTWARE else None
        key = (choice.kind, choice.detail, choice.engine, injector)
        with self._lock:
            if not self._hooked and hasattr(os, "register_at_fork"):
                self._hooked = True
                os.register_at_fork(after_in_child=self._after_fork)
            if key not in self._open:
                self._open[key] = instrumented(self._made(choice))
                if injector is not None:
                    injector.at_end(functools.partial(self._end, key))
            return self._open[key]

    def _made(self, choice: DeviceChoice) -> LibraryT:
        if choice.kind != SOFTWARE:
            return self._vendor(choice.detail, choice.reason)
        if not choice.engine:
            return self._software(choice.detail)
        if self._on_engine is None:
            raise DeviceUnavailable(
                f"{self._own.title}'s chips do not run on '{choice.engine}'", hint=f"pass device='{SOFTWARE}'"
            )
        return self._on_engine(choice.detail, choice.engine)

    def _end(self, key: tuple[str, str, str, object]) -> None:
        """The faults of a library are over, and with them what was opened under them."""
        with self._lock:
            library = self._open.pop(key, None)
        if library is not None:
            library.close()

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._left_behind.append(self._open)
        self._open = {}


@dataclass(frozen=True)
class Meanings:
    """What the codes of an interface mean.

    :ivar codes: their names
    :ivar classes: the errors they become, where that is not :class:`CallFailed`
    :ivar texts: text and hint of each, for libraries that do not state more
    :ivar unknown: the text of all others
    """

    codes: type[IntEnum]
    classes: Mapping[int, type[AnynpuError]]
    texts: Mapping[int, tuple[str, str]]
    unknown: str

    def error(self, library: Library, call: str, code: int, kind: type[AnynpuError] | None = None) -> AnynpuError:
        """The error that *code* stands for, in the library's own words where it has some for this call.

        :param kind: the class, where that of the code does not fit
        """
        failure = library.last_error()
        if failure is not None and failure.call == call and failure.code == code:
            text, hint = failure.text, failure.hint
        else:
            text, hint = self.texts.get(code, (self.unknown, ""))
        name = self.codes(code).name if code in self.codes._value2member_map_ else ""
        return (kind or self.classes.get(code, CallFailed))(text, hint=hint, code=code, call=call, code_name=name)


class Refusal(Exception, Generic[CodeT]):
    """Ends a call of the software NPU with *code*.

    :ivar text: what is wrong, with the names and numbers involved
    :ivar hint: what the caller can do about it
    :ivar injected: by a fault plan
    """

    def __init__(self, code: CodeT, text: str, hint: str = "", *, injected: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.hint = hint
        self.injected = injected


class Failures(Generic[CodeT]):
    """Notes why calls of the software NPU failed, the last one for each thread.

    :param code_of: the code that states best what an error states
    :param no_memory: code and hint for Python's own lack of memory
    :param fault: the code for what should not happen
    """

    def __init__(
        self, log: logging.Logger, code_of: Callable[[AnynpuError], CodeT], *, no_memory: tuple[CodeT, str], fault: CodeT
    ) -> None:
        self.report: Callable[[CallFailure, str], object] | None = None
        """Called with each failure and the name of its code."""
        self._log = log
        self._code_of = code_of
        self._no_memory = no_memory
        self._fault = fault
        self._notes = threading.local()

    @property
    def last(self) -> CallFailure | None:
        """Why the last call that failed in this thread did so."""
        failure: CallFailure | None = getattr(self._notes, "last", None)
        return failure

    def note(self, call: str, error: BaseException) -> tuple[CodeT, str]:
        """Note that *call* fails with *error*; its code and what is wrong."""
        code: CodeT
        if isinstance(error, Refusal):
            code, text, hint = error.code, error.text, error.hint
        elif isinstance(error, AnynpuError):
            code, text, hint = self._code_of(error), error.message, error.hint
        elif isinstance(error, MemoryError):
            (code, hint), text = self._no_memory, f"out of memory: {error}"
        else:
            code, text = self._fault, f"{type(error).__name__}: {error}"
            hint = "this is a fault of anynpu; please report it"
            self._log.error("%s failed in an unexpected way", call, exc_info=error)
        failure = CallFailure(call, int(code), text, hint, isinstance(error, Refusal) and error.injected)
        self._notes.last = failure
        if self.report is not None:
            self.report(failure, code.name)
        self._log.debug("%s: %s (%s, %d)", call, text, code.name, int(code))
        return code, text


# Backends of sessions whose weights other backends use.
#
# Who owns what: a backend owns its root, the first object of the device that holds its weights. The root stays while a backend that
# borrowed the weights is open; the last to close destroys it. The lock of :class:`Lender` protects the number of borrowers
# and what belongs to it; it is never held during a call.


class Closable(Protocol):
    """What can be closed."""

    def close(self) -> None:
        """End it; again is harmless."""


RootT = TypeVar("RootT", bound=Closable)


class Lender(Generic[RootT]):
    """The base of backends.

    :param lender: the backend whose weights this one uses
    """

    _root: RootT

    def __init__(self, lender: Lender[RootT] | None) -> None:
        self._lock = threading.Lock()
        self._lender = lender
        self._borrowers = 0
        self._closing = False
        self._root_taken = False

    def _open_root(self, make: Callable[[], RootT], describe: Callable[[], None]) -> None:
        """Make the root, which may use the weights of the lender; undo all of it if it cannot be made or described."""
        if self._lender is not None:
            self._lender.lend(1)
        try:
            self._root = make()
            try:
                describe()
            except BaseException:
                self._root.close()
                raise
        except BaseException:
            if self._lender is not None:
                self._lender.lend(-1)
            raise

    def _take_root(self) -> bool:
        """Whether the root is free for a device worker, which has it from now on."""
        with self._lock:
            if self._closing:
                raise DeviceClosed("the session was closed", hint="open a new one")
            first, self._root_taken = not self._root_taken, True
        return first

    def is_root(self, part: RootT) -> bool:
        """Whether *part* is the backend's own, which no device worker closes."""
        return part is self._root

    def lend(self, change: int) -> None:
        """Another backend begins or ceases to share the weights."""
        with self._lock:
            if change > 0 and self._closing:
                raise DeviceClosed("the session to share weights with was closed", hint="keep it open")
            self._borrowers += change
            last = self._closing and self._borrowers == 0
        if last:
            self._root.close()

    def close(self) -> None:
        """Destroy the root, or let the last backend that shares its weights do so."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            last = self._borrowers == 0
        if last:
            self._root.close()
        if self._lender is not None:
            self._lender.lend(-1)


@contextlib.contextmanager
def session_errors() -> Iterator[None]:
    """Turn the errors of models into what a session raises, which are RuntimeErrors too.

    >>> with session_errors():
    ...     raise ModelError("this is no model")
    Traceback (most recent call last):
    anynpu.errors.SessionModelError: this is no model
    """
    try:
        yield
    except ModelError as error:
        if isinstance(error, RuntimeError):
            raise
        raise SessionModelError(
            error.message, hint=error.hint, code=error.code, call=error.call, code_name=error.code_name
        ) from error
