"""What a build wrote, and what it may be called."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import CompileError, OutputFileError

__all__ = ["Built", "check_folder", "check_name", "fresh_folder"]


@dataclass(frozen=True)
class Built:
    """What a build wrote.

    :ivar job: the folder that the toolkit worked in, or that another machine needs
    :ivar rknn: the vendor's file; None where there was no toolkit
    :ivar twin: what the software NPU runs in its place
    :ivar by_hash: the same under the hash of the vendor's file, which programs that pass bytes find
    :ivar notes: what was tried and chosen
    """

    job: Path
    rknn: Path | None
    twin: Path
    by_hash: Path | None
    notes: tuple[str, ...] = field(default=())


def check_name(name: str) -> None:
    """Refuse a name that would be more than a name in a path, a script or a list of files.

    A model's name is often that of a stranger's file. With a line end it can continue a script, with a slash it leaves its folder, with a
    dash it is a flag.

    >>> check_name("yolo v8 (640)")
    """
    if not name.isprintable() or "/" in name or "\\" in name or name[:1] in ("", ".", "-"):
        raise CompileError(
            f"{name[:80]!r} cannot be the name of what is built", hint="rename the file, or give another: --name yolo"
        )


def check_folder(job: Path, inputs: Iterable[Any]) -> None:
    """Reject a folder that a build would replace while it holds what the build reads."""
    for entry in inputs:
        if isinstance(entry, str | Path) and Path(entry).exists() and Path(entry).resolve().is_relative_to(job.resolve()):
            raise OutputFileError(f"{entry} is an input and lies in {job}, which is replaced", hint="name another output folder")


def fresh_folder(job: Path) -> None:
    """Make the folder of a build, empty, with a folder for samples."""
    shutil.rmtree(job, ignore_errors=True)
    (job / "samples").mkdir(parents=True)
