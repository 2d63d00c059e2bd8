"""Packages that a Python program finds under ``anynpu exec`` in place of those it was written for.

A :class:`StandIn` is a distribution and its modules. Each module takes its names from a module of anynpu. They are written as small files
into a folder of the user, which ``PYTHONPATH`` puts first, so that ``import``, ``find_spec`` and ``importlib.metadata`` find them as they
find any package; nothing is installed, and outside of exec nothing is hidden.

The program's Python need not have anynpu: one of the same version takes it from the folders that ``ANYNPU_SITE`` names.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..npu.board import runtime_folder

__all__ = ["ALWAYS", "ON_REQUEST", "STAND_INS", "StandIn", "stand_in_folder", "with_stand_ins"]


@dataclass(frozen=True)
class StandIn:
    """A distribution that a program looks for.

    :ivar distribution: the name under which it is installed
    :ivar version: the one that it says it has
    :ivar modules: which module of anynpu each of its modules takes its names from; an empty text for a package without names
    :ivar files: other files of its packages, by path
    """

    distribution: str
    version: str
    modules: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)


_RKNN_VERSION = "2.3.2"

STAND_INS: Mapping[str, StandIn] = {
    "rknnlite": StandIn(
        "rknn-toolkit-lite2",
        _RKNN_VERSION,
        {
            "rknnlite": "",
            "rknnlite.api": "anynpu.rknn.lite",
            "rknnlite.api.rknn_lite": "anynpu.rknn.lite",
            "rknnlite.api.rknn_runtime": "anynpu.rknn.lite.runtime",
        },
    ),
    "rknn": StandIn(
        "rknn-toolkit2",
        _RKNN_VERSION,
        {
            "rknn": "",
            "rknn.api": "anynpu.rknn.toolkit",
            "rknn.api.rknn": "anynpu.rknn.toolkit",
            "rknn.api.custom_op": "anynpu.rknn.toolkit.customop",
            "rknn.utils": "anynpu.rknn.toolkit.onnx_edit",
        },
        {"rknn/VERSION": f"{_RKNN_VERSION}\n"},
    ),
    "ztu_somemodelruntime_ez_rknn_async": StandIn(
        "ztu-somemodelruntime-ez-rknn-async", "0.11.0", {"ztu_somemodelruntime_ez_rknn_async": "anynpu.session"}
    ),
    "onnxruntime": StandIn(
        "onnxruntime",
        "1.20.0",
        {
            "onnxruntime": "anynpu.session.onnxruntime",
            "onnxruntime.capi": "anynpu.session.onnxruntime.capi",
            "onnxruntime.capi._pybind_state": "anynpu.session.onnxruntime.exceptions",
            "onnxruntime.capi.onnxruntime_inference_collection": "anynpu.session.onnxruntime",
            "onnxruntime.capi.onnxruntime_pybind11_state": "anynpu.session.onnxruntime.exceptions",
        },
    ),
}
"""By the name of the package that a program imports."""

ON_REQUEST = ("onnxruntime",)
"""Those that hide a package which works here as it is."""

ALWAYS = tuple(name for name in STAND_INS if name not in ON_REQUEST)
"""Those that a program gets without asking."""

_LOADER = "_anynpu_stand_in"
_LOADER_TEXT = '''"""Written by anynpu exec: where the packages beside this file take their names from."""

import importlib
import os
import sys


def names(target):
    """The public names of a module of anynpu."""
    try:
        module = importlib.import_module(target)
    except ModuleNotFoundError as error:
        if error.name != "anynpu":
            raise
        here = ".".join(map(str, sys.version_info[:2]))
        wanted = os.environ.get("ANYNPU_PYTHON_VERSION", here)
        if wanted != here:
            raise ModuleNotFoundError(
                f"anynpu is installed for Python {wanted}, this program runs in {here}: install it for this one too", name="anynpu"
            ) from None
        import site

        for folder in filter(None, os.environ.get("ANYNPU_SITE", "").split(":")):
            site.addsitedir(folder)
        module = importlib.import_module(target)
    return {name: getattr(module, name) for name in module.__all__}
'''


def stand_in_folder(names: Iterable[str] = ALWAYS) -> Path:
    """A folder with the packages of these stand-ins, which is made where it is not there yet."""
    chosen = sorted(names)
    root = runtime_folder() / "-".join(("python", *chosen))
    files = {f"{_LOADER}.py": _LOADER_TEXT}
    for name in chosen:
        files.update(_files(STAND_INS[name]))
    for name, text in files.items():
        path = root / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = path.with_name(f".{path.name}.{os.getpid()}")
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(path)
    return root


def with_stand_ins(environment: Mapping[str, str], names: Iterable[str] = ALWAYS) -> dict[str, str]:
    """*environment*, changed so that Python finds these stand-ins before anything that is installed."""
    folder = str(stand_in_folder(names))
    return {**environment, "PYTHONPATH": ":".join(filter(None, (folder, environment.get("PYTHONPATH"))))}


def _files(stand_in: StandIn) -> dict[str, str]:
    modules = stand_in.modules
    packages = {name for name in modules for other in modules if other.startswith(f"{name}.")}
    files = dict(stand_in.files)
    for name, source in modules.items():
        path = name.replace(".", "/")
        text = f'"""Written by anynpu exec: {name}, with the names of {source or "its modules"}."""\n'
        if source:
            text += f'\nfrom {_LOADER} import names\n\nglobals().update(names("{source}"))\ndel names\n'
        files[f"{path}/__init__.py" if name in packages else f"{path}.py"] = text
    top = sorted({name.partition(".")[0] for name in modules})
    folder = f"{stand_in.distribution.replace('-', '_')}-{stand_in.version}.dist-info"
    files[f"{folder}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {stand_in.distribution}\nVersion: {stand_in.version}\n"
        f"Summary: written by anynpu exec; the names of {stand_in.distribution} on anynpu\n"
    )
    files[f"{folder}/top_level.txt"] = "".join(f"{name}\n" for name in top)
    files[f"{folder}/INSTALLER"] = "anynpu\n"
    return files
