"""Files that are written for the user: checked against the inputs, and complete or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from ..errors import OutputFileError

SOURCE_SUFFIXES = (".onnx", ".tflite", ".pt", ".pt2", ".keras")
"""Extensions of source models, which no compiled model and no report has."""

Contents = str | bytes | memoryview | Iterable[bytes | bytearray | memoryview]


def check_output(path: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str]] = ()) -> None:
    """Reject a path that cannot be an output: an input under any name, or something other than a regular file.

    :param inputs: files that are read; links are followed, and paths that do not exist are ignored
    :raises OutputFileError: the path is one of them, or exists and is not a regular file
    """
    target = Path(path)
    try:
        there = target.stat()
    except OSError:
        return
    for entry in inputs:
        try:
            read = os.stat(entry)
        except (OSError, ValueError):
            continue
        if os.path.samestat(there, read):
            raise OutputFileError(f"{target} is an input of this command and would be overwritten", hint="name another output")
    if not stat.S_ISREG(there.st_mode):
        raise OutputFileError(
            f"{target} cannot be written: it is not a regular file", hint="name a file, or one that does not exist yet"
        )


def check_suffix(path: str | os.PathLike[str]) -> None:
    """Reject the extension of a source model for a product that is none.

    :raises OutputFileError: the path has one of :data:`SOURCE_SUFFIXES`
    """
    suffix = Path(path).suffix.lower()
    if suffix in SOURCE_SUFFIXES:
        raise OutputFileError(
            f"{path}: {suffix} is an extension of source models, and this is not one",
            hint="name the output with another extension",
        )


def write_output(
    path: str | os.PathLike[str],
    contents: Contents,
    *,
    inputs: Iterable[str | os.PathLike[str]] = (),
    check: Callable[[Path], object] | None = None,
) -> Path:
    """Write a file and return its path. The file appears complete or not at all; a link is followed, and stays.

    :param contents: text, bytes, or the pieces of the file
    :param inputs: files that are read, see :func:`check_output`
    :param check: called with the complete file before it appears under its name; an error that it raises removes the file
    :raises OutputFileError: the path is an input or not a regular file, or the file cannot be written
    """
    check_output(path, inputs)
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name[:200]}.{secrets.token_hex(6)}.tmp")
    if isinstance(contents, str):
        contents = contents.encode()
    try:
        try:
            with temporary.open("xb") as file:
                for piece in (contents,) if isinstance(contents, bytes | memoryview) else contents:
                    file.write(piece)
            if check is not None:
                check(temporary)
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OutputFileError(
            f"{path} cannot be written: {error.strerror or error}",
            hint="check that the folder exists, may be written to and has space",
        ) from error
    return Path(path)
