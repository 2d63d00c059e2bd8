"""``sample.txt``: which networks ``vpm-run`` runs, on what, and what should come out.

Sections are ``[network]``, ``[input]``, ``[golden]`` and ``[output]``, each alone on its line; the lines behind it name files,
one each. A ``[network]`` begins the next task. ``#`` begins a comment. Blanks at the end of a line and the line ends of Windows
do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..errors import ParameterError

__all__ = ["MAX_TASKS", "SampleEntry", "read_sample"]

MAX_TASKS = 128
_MAX_LINE_LENGTH = 254
_SECTIONS = ("[network]", "[input]", "[golden]", "[output]")


@dataclass
class SampleEntry:
    """One network, and the files of its inputs and outputs, as the sample names them."""

    network: str = ""
    inputs: list[str] = field(default_factory=list)
    goldens: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


def read_sample(path: str | Path) -> list[SampleEntry]:
    """The tasks of a file."""
    source = Path(path)
    try:
        text = source.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ParameterError(f"{source} cannot be read: {error.strerror or error}", hint="name a sample.txt with -s") from error
    tasks: list[SampleEntry] = []
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        if len(entry) > _MAX_LINE_LENGTH:
            raise _wrong(source, number, f"it has {len(entry)} characters, at most {_MAX_LINE_LENGTH} are possible")
        if entry in _SECTIONS:
            section = entry
            if section == "[network]":
                tasks.append(SampleEntry())
            continue
        if entry.startswith("[") and entry.endswith("]"):
            raise _wrong(source, number, f"there is no section {entry}")
        if not tasks or not section:
            raise _wrong(source, number, "it comes before [network]")
        _add(tasks[-1], section, entry, source, number)
    if not tasks:
        raise ParameterError(f"{source} has no [network]", hint="a line [network], and after it the path of a .nb file")
    for task in tasks:
        if not task.network:
            raise ParameterError(f"{source} has a [network] without a file", hint="put the path of a .nb file after it")
    if len(tasks) > MAX_TASKS:
        raise ParameterError(f"{source} has {len(tasks)} networks, at most {MAX_TASKS} are possible", hint="divide it")
    return tasks


def _add(task: SampleEntry, section: str, entry: str, source: Path, number: int) -> None:
    if section == "[network]":
        if task.network:
            raise _wrong(source, number, "a second file for one [network]")
        task.network = entry
    else:
        {"[input]": task.inputs, "[golden]": task.goldens, "[output]": task.outputs}[section].append(entry)


def _wrong(source: Path, number: int, why: str) -> ParameterError:
    return ParameterError(f"{source}, line {number}: {why}", hint=f"sections are {', '.join(_SECTIONS)}")
