"""Optional packages, imported at first use with a clear error where one is missing."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..errors import MissingDependencyError, OptionError
from .lifetime import ModuleLock, unforked

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

MISTAKEN_OPTIMIZERS = ["Pad_Fusion"]
"""Optimizers of onnxruntime that change results: in 1.31 this one turns the zeros of a Pad before a MaxPool into minus infinity."""


MAX_PIXELS = 1 << 27
"""Of an image: 400 MB in color. OpenCV's own bound is eight times that, which a file of three megabytes can reach."""


MAX_TENSOR_VARIABLE = "ANYNPU_MAX_TENSOR_MB"
"""The variable that raises :func:`max_tensor_bytes`."""


def max_tensor_bytes() -> int:
    """Bytes, in float32, of the largest tensor that a float graph may make in this process.

    A file of some hundred bytes can ask for gigabytes between two operators, and nothing can stop onnxruntime inside one. It is 1 GiB, or
    what the environment states.
    """
    text = os.environ.get(MAX_TENSOR_VARIABLE) or "1024"
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text)):
        raise OptionError(f"{MAX_TENSOR_VARIABLE} is '{text[:40]}'", hint="give megabytes as an integer, such as 4096")
    return int(text) << 20


def entry_points(group: str) -> list[EntryPoint]:
    """What installed distributions declare for *group*, by name.

    Importing ``importlib.metadata`` takes longer than most of what a command does, so that it is asked only where it may have an answer.
    """
    if not _may_declare(group):
        return []
    from importlib import metadata

    return sorted(metadata.entry_points(group=group), key=lambda entry: entry.name)


def _may_declare(group: str) -> bool:
    """Whether a file of entry points has the name of *group* in it, or distributions are not only in folders."""
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_distributions")]
    if finders != [importlib.machinery.PathFinder]:
        return True
    for folder in sys.path:
        if not isinstance(folder, str) or folder.lower().endswith(".egg"):
            return True
        try:
            names = os.listdir(folder or ".")
        except NotADirectoryError:  # an archive
            return True
        except OSError:
            continue
        for name in names:
            if name.lower().endswith((".dist-info", ".egg-info")):
                try:
                    with open(f"{folder or '.'}/{name}/entry_points.txt", "rb", buffering=0) as file:
                        if group.encode() in file.read():
                            return True
                except OSError:
                    continue
    return False


def _load(package: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if not f"{package}.".startswith(f"{error.name}."):  # something else is missing
            raise
        raise MissingDependencyError.for_extra(package, extra) from None


def onnx() -> Any:
    """The package ``onnx``."""
    return _load("onnx", "sim")


_ORT = "onnxruntime"
_ort_lock = ModuleLock()
_ort: ModuleType | None = None


def onnxruntime() -> Any:
    """Microsoft's package ``onnxruntime``, without its telemetry: that starts a thread, writes under the user's cache folder, and makes
    forked children hang at exit.

    A program may have put something else under that name, ``anynpu.session.onnxruntime`` for one: it keeps what it has, and this gives
    the vendor-compiled package all the same.
    """
    global _ort
    if _ort is None:
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        with _ort_lock:
            _ort = _ort or _genuine_onnxruntime()
    return _ort


def ort_session(model: str | bytes, options: Any, **settings: Any) -> Any:
    """A session of onnxruntime on the CPU; forks wait until it is made, since onnxruntime holds locks of the process meanwhile."""
    runtime = onnxruntime()
    with unforked():
        return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"], **settings)


def _genuine_onnxruntime() -> ModuleType:
    held = sys.modules.get(_ORT)
    folders = [folder for entry in sys.path if _has_core(folder := Path(entry or ".", _ORT))]
    if (_ORT in sys.modules and held is None) or not folders:  # forbidden, or not installed
        raise MissingDependencyError.for_extra(_ORT, "sim")
    if held is not None and any(map(_has_core, map(Path, getattr(held, "__path__", ())))):
        return importlib.import_module(_ORT)  # which waits for a thread that is still importing it
    if held is None and not any(map(_is_named, sys.modules)) and not _shadowed(folders[0]):
        return importlib.import_module(_ORT)
    with unforked():
        return _onnxruntime_in(folders[0])


def _onnxruntime_in(folder: Path) -> ModuleType:
    """The package in *folder*, imported beside what the program has under its name."""
    spec = importlib.machinery.PathFinder.find_spec(_ORT, [str(folder.parent)])
    if spec is None or spec.loader is None:
        raise MissingDependencyError.for_extra(_ORT, "sim")
    own = str(folder.resolve())
    replaced = {name: module for name, module in sys.modules.items() if _is_named(name) and not _lies_in(module, own)}
    for name in replaced:
        del sys.modules[name]
    kept = set(sys.modules)
    module = sys.modules[_ORT] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[_ORT]
        raise
    finally:
        if replaced or _shadowed(folder):  # the program goes on with what it had
            for name in [name for name in sys.modules if _is_named(name) and name not in kept]:
                del sys.modules[name]
            sys.modules.update(replaced)
    return module


def _has_core(folder: Path) -> bool:
    """Whether a folder is the vendor-compiled package: it has the compiled part."""
    return any(path.suffix in (".so", ".pyd") for path in folder.glob("capi/onnxruntime_pybind11_state*"))


def _is_named(name: str) -> bool:
    return name == _ORT or name.startswith(f"{_ORT}.")


def _lies_in(module: ModuleType | None, folder: str) -> bool:
    path = getattr(module, "__file__", None)
    return path is not None and os.path.realpath(path).startswith(folder + os.sep)


def _shadowed(folder: Path) -> bool:
    """Whether ``import onnxruntime`` would give a program something else than the package in *folder*."""
    found = importlib.machinery.PathFinder.find_spec(_ORT)
    places = () if found is None else found.submodule_search_locations or ()
    return str(folder) not in [str(Path(place)) for place in places]


def cv2() -> Any:
    """The package ``cv2`` (opencv-python-headless), which rejects images of more than :data:`MAX_PIXELS` before it decodes them.

    It reads that bound once, when it is loaded; a program that has loaded it before keeps its own.
    """
    os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(MAX_PIXELS))
    return _load("cv2", "vision")


def pyopencl() -> Any:
    """The package ``pyopencl``."""
    return _load("pyopencl", "opencl")


def grpc() -> Any:
    """The package ``grpc`` (grpcio)."""
    return _load("grpc", "serve")


def grpc_aio() -> Any:
    """The asyncio half of ``grpc``."""
    return _load("grpc.aio", "serve")


def httptools() -> Any:
    """The package ``httptools``."""
    return _load("httptools", "serve")


def prometheus_client(module: str = "") -> Any:
    """The package ``prometheus_client``, or a module of it."""
    return _load(f"prometheus_client.{module}" if module else "prometheus_client", "serve")


def protobuf(module: str) -> Any:
    """A module of ``google.protobuf``."""
    return _load(f"google.protobuf.{module}", "serve")


def ray(module: str = "") -> Any:
    """The package ``ray``, or a module of it."""
    return _load(f"ray.{module}" if module else "ray", "cluster")


def opentelemetry(module: str) -> Any:
    """A module of ``opentelemetry``, which several packages share."""
    return _load(f"opentelemetry.{module}", "trace")
