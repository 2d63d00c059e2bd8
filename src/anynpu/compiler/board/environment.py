"""The vendor's toolkit, which is never part of anynpu: where it is installed, and how to install it into an environment of its own."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...errors import ToolkitError
from .runner import run_logged

__all__ = [
    "ENVIRONMENT_VARIABLE",
    "LICENCE",
    "PYTHONS",
    "REQUIREMENTS",
    "Toolkit",
    "default_folder",
    "find_toolkit",
    "install",
    "suitable_python",
    "toolkit_at",
]

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

LICENCE = (
    "rknn-toolkit2 is Rockchip's, not part of anynpu and not under its licence. Rockchip's terms allow it for applications on Rockchip's "
    "products; they come with the package (LICENSE), and installing it means accepting them."
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
    tell(f"installing; torch alone is 800 MB, and what it needs 2 GB more; pip writes to {log}")
    command = [str(place / "bin" / "python"), "-m", "pip", "install", "--no-input", "--disable-pip-version-check", *REQUIREMENTS]
    run_logged(command, place, log, what="installing the toolkit", time_limit=_INSTALL_LIMIT)
    return toolkit_at(place)


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
