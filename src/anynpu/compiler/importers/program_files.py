"""Files of Keras and TensorFlow, inspected before their libraries read them.

A Keras file names classes and functions, a SavedModel operators. Names that are no part of a network are rejected here. The libraries read
what remains in a process without rights (:mod:`anynpu.compiler.importers.confined`).
"""

from __future__ import annotations

import importlib
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import CompileError
from .torch_archives import MAX_TEXT, rejection, sound_archive

__all__ = ["check_keras_file", "check_saved_model"]

_KERAS_MODULE = re.compile(
    r"(keras|keras\.src|tf_keras|tf_keras\.src|tensorflow\.keras|tensorflow\.python\.keras)"
    r"(\.(layers|models|engine|initializers|regularizers|constraints|optimizers|losses|metrics|activations|dtype_policies|quantizers|ops)(\.\w+)*)?"
)
_KERAS_CODE = frozenset(("Lambda", "__lambda__", "function", "TorchModuleWrapper", "TFSMLayer", "JaxLayer", "FlaxLayer"))
_TENSORFLOW_CODE = (b"EagerPyFunc", b"PyFunc", b"WriteFile", b"ReadFile", b"LoadLibrary")


def check_keras_file(path: Path) -> None:
    """Reject a Keras file that names anything but Keras' own layers."""
    if zipfile.is_zipfile(path):
        with sound_archive(path) as archive:
            if "config.json" not in archive.namelist():
                raise rejection(path, "has no config.json")
            text = _text(path, archive, archive.getinfo("config.json"))
    else:
        try:
            with importlib.import_module("h5py").File(path, "r") as file:
                raw = file.attrs["model_config"]
        except (OSError, KeyError, ImportError) as error:
            raise CompileError(
                f"{path} is no model of Keras: {error}", hint="save the whole model: model.save('model.keras')"
            ) from None
        text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
    document = _json(path, text)
    if isinstance(document, dict):
        document.pop("compile_config", None)  # what a model is trained with is not read
    for key, value in _entries(document):
        if key == "class_name" and str(value) in _KERAS_CODE:
            raise rejection(path, f"has a part of the kind {value}, which runs code of the file")
        if key == "class_name" and isinstance(value, str) and not value[:1].isupper() and not value.startswith("__"):
            raise rejection(path, f"names the function {value[:60]!r}")
        if key == "module" and value is not None and not (isinstance(value, str) and _KERAS_MODULE.fullmatch(value)):
            raise rejection(path, f"names the module {str(value)[:60]!r}")


def check_saved_model(folder: Path) -> None:
    """Reject a SavedModel whose graph runs Python or uses files."""
    data = (folder / "saved_model.pb").read_bytes()
    for name in _TENSORFLOW_CODE:
        if name in data:
            raise rejection(folder, f"has the operator {name.decode()}")


def _text(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> str:
    if entry.file_size > MAX_TEXT:
        raise CompileError(f"{path} has a text of {entry.file_size} bytes ({entry.filename})", hint="save it again")
    try:
        return archive.read(entry).decode("utf-8", "replace")
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError) as error:
        raise CompileError(f"{path} is damaged: {error}", hint="save it again") from None


def _json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise CompileError(f"{path} is damaged: its description is no JSON", hint="save it again") from None


def _entries(document: Any) -> Iterator[tuple[str, Any]]:
    """All names with their values, at any depth."""
    left = [document]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            yield from one.items()
            left += one.values()
        elif isinstance(one, list):
            left += one
