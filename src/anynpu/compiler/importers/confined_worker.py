"""The process that reads one file of another framework for :mod:`anynpu.compiler.importers.confined`.

The libraries are imported first; then the process gives up its rights, and only then a library gets the file.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import AnynpuError
from .confinement import Confinement, confine

__all__ = ["CONVERSIONS", "main"]


def _exported(path: Path) -> Any:
    from .pytorch import load_exported, torch_to_onnx
    from .torch_archives import written_again_exported

    file = written_again_exported(path)
    _import("torch", "torch.export", "torch.onnx", "onnxscript")
    confine()
    return torch_to_onnx(load_exported(file, path))


def _script(path: Path, shapes: Any = None, example_inputs: Any = None) -> Any:
    from .pytorch import load_script, torch_to_onnx
    from .torch_archives import written_again_script

    file = written_again_script(path)
    _import("torch", "torch.onnx", "torchvision")
    confine()
    return torch_to_onnx(load_script(file, path), shapes, example_inputs)


def _keras(path: Path) -> Any:
    from .program_files import check_keras_file
    from .tensorflow import read_keras_file

    check_keras_file(path)
    return read_keras_file(path, confine)


def _saved_model(path: Path) -> Any:
    from .program_files import check_saved_model
    from .tensorflow import read_saved_model

    check_saved_model(path)
    return read_saved_model(path, confine)


CONVERSIONS: dict[str, Callable[..., Any]] = {
    "exported": _exported,
    "script": _script,
    "keras": _keras,
    "saved_model": _saved_model,
}


def _import(*names: str) -> None:
    """Import what a library would import later: some look for programs then, which a restricted process cannot start."""
    tempfile.tempdir = "/tmp"  # or the module looks for a folder that it can write to
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            pass  # the conversion names what is missing


def main() -> None:
    """Convert the file that standard input names; the result goes to standard output."""
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no result
    kind, path, arguments = pickle.load(sys.stdin.buffer)
    try:
        answer = b"+" + CONVERSIONS[kind](Path(path), **arguments).SerializeToString()
    except (AnynpuError, Confinement) as error:
        text, hint = str(error).partition("\n  hint: ")[0], getattr(error, "hint", None) or ""
        answer = b"-" + json.dumps({"kind": type(error).__name__, "error": text, "hint": hint}).encode()
    except MemoryError:
        answer = (
            b"-" + json.dumps({"kind": "CompileError", "error": f"{path} needs more memory than there is", "hint": ""}).encode()
        )
    results.write(answer)
    results.flush()
    os._exit(0)
