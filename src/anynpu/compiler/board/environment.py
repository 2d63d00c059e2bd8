"""The vendor's toolkit, which is never part of anynpu: where it is installed, and how to install it into an environment of its own."""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...errors import ToolkitError

# Programs of others in a process of their own: with a time limit, a log, and an error that shows its last lines.
#
# The vendor's toolkit raises, calls ``exit``, dies of signals and can wait for ever. None of that reaches us: the process is a
# session of its own, which is ended as a whole, and what it printed is in a file.


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
    tell: Callable[[str], None] | None = None,
) -> None:
    """Run *command* in *folder*; what it prints goes to *log*.

    :param what: what it does, for the error
    :param environment: variables besides those of this process
    :param tell: called with the last line of the log, again and again while the command runs
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
            ended = _ended_within(process.pid, time_limit, log, tell)
        finally:  # also where this is interrupted
            code = _end(process)
    if not ended:
        raise ToolkitError(
            f"{what} took longer than {time_limit:g} s and was ended",
            hint=f"allow more time (--time-limit), or see {log}",
            lines=last_lines(log),
        )
    if code:
        lines = last_lines(log)
        reason = reason_of(lines)
        raise ToolkitError(f"{what} {_ending(code)}{reason and f': {reason}'}", hint=hint, code=code, lines=lines)


def _ended_within(pid: int, seconds: float, log: Path, tell: Callable[[str], None] | None) -> bool:
    """Wait for a child; it stays a zombie, so that its number still names its group and no other."""
    deadline = time.monotonic() + seconds
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= deadline:
            return False
        if tell is not None:
            for line in last_lines(log, 1):
                tell(line.strip())
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


_REASON = re.compile(r"(?:\w*Error|E(?: \w+)?): .*\S|E .*\S")


def reason_of(lines: Sequence[str]) -> str:
    """The line of a log that states why a program failed: the last error in it, else the last line.

    >>> reason_of(["E load_onnx: not supported", "anynpu: load_onnx failed"])
    'E load_onnx: not supported'
    """
    reasons = [line.strip() for line in lines if _REASON.match(line.strip())]
    return next((line for line in reversed(reasons) if "Traceback" not in line), lines[-1].strip() if lines else "")


_BAR = re.compile(r"\d+%\||#{4,}|\u2588")
"""A progress bar."""

_COLOR = re.compile(r"\x1b\[[0-9;]*m")


def plain_text(log: Path) -> str:
    """The text of a log without colors."""
    return _COLOR.sub("", log.read_text(encoding="utf-8", errors="replace"))


def last_lines(log: Path, count: int = _SHOWN) -> list[str]:
    """The last lines of a log that are neither blank nor a progress bar, without control characters."""
    with log.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(file.tell() - _MAX_TAIL, 0))
        text = _COLOR.sub("", file.read().decode("utf-8", "replace"))
    lines = (line.rpartition("\r")[2] for line in text.replace("\r\n", "\n").split("\n"))
    shown = ("".join(letter for letter in line if letter.isprintable())[:_MAX_LINE].rstrip() for line in lines)
    return [line for line in shown if line.strip() and not _BAR.search(line)][-count:]


ENVIRONMENT_VARIABLE = "ANYNPU_TOOLKIT"
"""The environment to use: its folder, or its Python."""

PACKAGE = "rknn-toolkit2"

REQUIREMENTS = (
    f"{PACKAGE}>=2.3.2",
    "torch==2.4.0",
    "onnx>=1.16.1,<1.19",
    "numpy<=1.26.4",
    "protobuf<=4.25.4",
    "setuptools<82",
)
"""What is installed. The bounds are those with which the toolkit is known to run; it takes no torch after 2.4.0, and pip would find that
out only after it has fetched 800 MB of another one."""

SIZE = "5.6 GB"
"""What the environment takes on disk."""

LICENCE = (
    "rknn-toolkit2 is Rockchip's, not part of anynpu and not under its license. Rockchip's terms allow it for applications on Rockchip's "
    "products, and installing it means accepting them. The package does not contain them; they are the file LICENSE of "
    "https://github.com/airockchip/rknn-toolkit2."
)

PYTHONS = ((3, 8), (3, 12))
"""The oldest and the newest Python that the toolkit is published for and that anynpu's script runs with."""

_SYSTEMS = {"x86_64", "aarch64"}
_PREFERRED = ("3.11", "3.10", "3.12", "3.9", "3.8")
_ASK = f"import importlib.metadata as m, sys; print('.'.join(map(str, sys.version_info[:2]))); print(m.version('{PACKAGE}'))"
_ASK_LIMIT = 60.0
_INSTALL_LIMIT = 3600.0


@dataclass(frozen=True)
class Toolkit:
    """An environment that has the toolkit.

    :ivar python: its Python
    :ivar version: of the toolkit
    """

    python: Path
    version: str


def default_folder() -> Path:
    """Where ``anynpu toolkit install`` puts the environment."""
    data = os.environ.get("XDG_DATA_HOME", "")
    home = Path(data) if data.startswith("/") else Path(os.path.expanduser("~")) / ".local" / "share"
    return home / "anynpu" / "rknn-toolkit2"


def find_toolkit(path: Path | None = None) -> Toolkit | None:
    """The toolkit at *path*, or the one that ``ANYNPU_TOOLKIT`` names, or the one that was installed here; None if there is none.

    :raises ToolkitError: one was named, and is not there
    """
    named = path or (Path(os.environ[ENVIRONMENT_VARIABLE]) if os.environ.get(ENVIRONMENT_VARIABLE) else None)
    if named is not None:
        return toolkit_at(named)
    folder = default_folder()
    return toolkit_at(folder) if (folder / "bin" / "python").exists() else None


def toolkit_at(path: Path) -> Toolkit:
    """The toolkit in an environment, given by its folder or by its Python."""
    python = path / "bin" / "python" if path.is_dir() else path
    # not resolved: a virtual environment is known by the path of the link to its Python
    python = Path(os.path.abspath(python))
    try:
        answer = subprocess.run(
            [str(python), "-c", _ASK], capture_output=True, text=True, timeout=_ASK_LIMIT, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolkitError(f"{path} is no environment of Python: {error}", hint=_HINT) from None
    lines = answer.stdout.split()
    if answer.returncode or len(lines) != 2:
        last = (answer.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise ToolkitError(f"{path} does not have {PACKAGE}: {last}", hint=_HINT)
    return Toolkit(python, lines[1])


_HINT = "install it with 'anynpu toolkit install', or name its environment: --toolkit FOLDER"


def install(
    folder: Path | None = None, python: str | None = None, *, log: Path | None = None, tell: Callable[[str], None] | None = None
) -> Toolkit:
    """Make an environment and install the toolkit into it. Callers ask the user first: see :data:`LICENCE`.

    :param python: the Python to make it with; by default the first that fits
    :param tell: called with a line for every step
    :raises ToolkitError: no Python fits, or the installation failed
    """
    tell = tell or (lambda line: None)
    if sys.platform != "linux" or platform.machine() not in _SYSTEMS:
        raise ToolkitError(
            f"{PACKAGE} is published for Linux on {' and '.join(sorted(_SYSTEMS))}, not for {sys.platform} on {platform.machine()}",
            hint="build without it: the files that 'anynpu build' writes then are for another machine",
        )
    place = folder or default_folder()
    chosen = python or suitable_python()
    place.parent.mkdir(parents=True, exist_ok=True)
    log = log or place.with_name(f"{place.name}.log")
    tell(f"making {place} with {chosen}")
    run_logged([chosen, "-m", "venv", "--clear", str(place)], place.parent, log, what="making the environment")
    tell(f"installing {SIZE}; pip writes to {log}")
    command = [str(place / "bin" / "python"), "-m", "pip", "install", "--no-input", "--disable-pip-version-check", *REQUIREMENTS]
    run_logged(command, place, log, what="installing the toolkit", time_limit=_INSTALL_LIMIT, tell=_pip_steps(tell))
    return toolkit_at(place)


def _pip_steps(tell: Callable[[str], None]) -> Callable[[str], None]:
    """Passes on what pip downloads and installs, each once."""
    last = ""

    def step(line: str) -> None:
        nonlocal last
        if line != last and line.startswith(("Downloading ", "Installing ", "Successfully ")):
            last = line
            tell(line[:100])

    return step


def suitable_python() -> str:
    """A Python that the toolkit is published for: one on the path, else the one that runs this."""
    from shutil import which

    for version in _PREFERRED:
        found = which(f"python{version}")
        if found is not None and _version_of(found) == version:
            return found
    if PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        return sys.executable
    raise ToolkitError(
        f"{PACKAGE} needs Python {'.'.join(map(str, PYTHONS[0]))} to {'.'.join(map(str, PYTHONS[1]))}, and none is on the path",
        hint="install Python 3.11, or name one: anynpu toolkit install --python PATH",
    )


def _version_of(python: str) -> str:
    """The version of a Python; empty where it does not run, as shims of version managers may not."""
    try:
        answer = subprocess.run(
            [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            timeout=_ASK_LIMIT,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""
