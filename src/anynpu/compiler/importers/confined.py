"""Reads files of PyTorch, Keras and TensorFlow in a process that cannot write files, start programs or use the network.

The libraries that read such files were not written for untrusted ones. The process (:mod:`anynpu.compiler.importers.confined_worker`)
gives back an ONNX model, which is checked as any other.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..._util.printable import printable
from ...errors import AnynpuError, CompileError, MissingDependencyError

MAX_RESULT = (1 << 31) - 1
_START = "import sys; sys.path[:] = sys.argv[1:]; from anynpu.compiler.importers.confined_worker import main; main()"
_TRUST = (
    "if you trust the file, pass --trust (trust=True), which loads it in this process; "
    "or convert it to ONNX in a container and compile the .onnx file"
)
_ERRORS = {kind.__name__: kind for kind in (CompileError, MissingDependencyError)}

_log = logging.getLogger("anynpu.compiler")


def is_installed(package: str) -> bool:
    """Whether a package can be imported, without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # a module without a specification is there
        return True


def converted_confined(kind: str, path: Path, arguments: Mapping[str, Any] | None = None) -> Any:
    """The ONNX model of a file.

    :param kind: what the file is: a name of :data:`anynpu.compiler.importers.confined_worker.CONVERSIONS`
    :param arguments: of the conversion
    :raises CompileError: the file is not converted, or the kernel does not restrict a process
    """
    order = pickle.dumps((kind, str(path), dict(arguments or {})))
    command = [sys.executable, "-c", _START, *map(os.path.abspath, sys.path)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        result, text = process.communicate(order)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    for line in text.decode("utf-8", "replace").splitlines()[-40:]:
        _log.info("%s: %s", path.name, printable(line[:500]))
    if process.returncode == 0 and result[:1] == b"+" and len(result) <= MAX_RESULT:
        return _parsed(path, result[1:])
    if process.returncode == 0 and result[:1] == b"-":
        raise _error(path, result[1:])
    raise CompileError(
        f"the process that reads {path} ended with the status {process.returncode}",
        hint="its file may be damaged, or needs more memory than there is; the text is shown with -vv",
    )


def _parsed(path: Path, data: bytes) -> Any:
    from google.protobuf.message import DecodeError

    from ..._util.optional import onnx

    try:
        return onnx().load_model_from_string(data)
    except (DecodeError, ValueError, RecursionError):
        raise CompileError(
            f"{path} was not converted to an ONNX model", hint="convert it yourself and give the .onnx file"
        ) from None


def _error(path: Path, data: bytes) -> AnynpuError:
    try:
        report = json.loads(data)
        kind, message, hint = str(report["kind"]), str(report["error"])[:2000], str(report["hint"])[:2000]
    except (ValueError, KeyError, TypeError, RecursionError):
        return CompileError(f"{path} was not converted", hint="convert it yourself and give the .onnx file")
    if kind == "Confinement":
        return CompileError(f"{path} is not read, because this system does not restrict a process: {message}", hint=_TRUST)
    return _ERRORS.get(kind, CompileError)(printable(message), hint=printable(hint))
