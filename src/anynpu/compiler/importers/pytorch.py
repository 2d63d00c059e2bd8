"""PyTorch models, exported as ONNX by the torch that is installed: its exporter first, the older one where that fails."""

from __future__ import annotations

import importlib
import inspect
import io
import logging
import sys
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ..._util.printable import printable
from ...errors import CompileError, MissingDependencyError
from .confined import converted_confined, is_installed
from .torch_archives import check_graphs
from .torch_operators import is_scripted

__all__ = ["is_torch_model", "load_exported", "load_script", "torch_file_to_onnx", "torch_to_onnx"]

Shapes = Mapping[str, Sequence[int]]

_log = logging.getLogger("anynpu.compiler")

OLD_OPSET = 17
"""What the older exporter is asked for."""


def is_torch_model(model: Any) -> bool:
    """Whether an object is a module or an exported program of PyTorch. Nothing is imported: whoever has one has torch."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    kinds = [
        getattr(getattr(torch, "nn", None), "Module", None),
        getattr(sys.modules.get("torch.export"), "ExportedProgram", None),
    ]
    return any(isinstance(kind, type) and isinstance(model, kind) for kind in kinds)


def torch_to_onnx(model: Any, shapes: Shapes | None = None, example_inputs: Any = None) -> Any:
    """The ONNX model of a module or exported program.

    :param example_inputs: what it is called with: a tensor, a tuple of arguments, or a dict by name. Arrays of numpy will do
    """
    torch = _torch("a module of PyTorch")
    if _is_exported(model):
        return _export(torch, model)
    arguments, named = _examples(torch, model, shapes, example_inputs)
    training = bool(getattr(model, "training", False))
    model.eval()
    try:
        return _export(torch, model, arguments, named, list(shapes or ()))
    finally:
        if training:
            model.train()


def torch_file_to_onnx(path: Path, shapes: Shapes | None = None, example_inputs: Any = None, *, trust: bool = False) -> Any:
    """The ONNX model of a ``.pt2`` file (torch.export), or of a TorchScript file, which needs the shapes of its inputs.

    :param trust: torch loads the file as it is, in this process
    """
    kind = _kind(path)
    if kind == "exported":
        if trust:
            return _export(_torch(path.name), _loaded(lambda: importlib.import_module("torch.export").load(str(path)), path))
        _require_torch(path.name)
        return converted_confined(kind, path)
    if kind == "script":
        if trust:
            torch = _torch(path.name)
            module = _loaded(lambda: torch.jit.load(str(path), map_location="cpu"), path)
            return torch_to_onnx(module, shapes, example_inputs)
        _require_torch(path.name)
        if example_inputs is None and not shapes:
            raise _no_shapes()
        return converted_confined(kind, path, {"shapes": shapes, "example_inputs": example_inputs})
    raise CompileError(
        f"{path} holds weights or a pickled object of PyTorch, not a network that can be run without its source",
        hint="load it in your program and pass the module: anynpu.compile(module, example_inputs=...); or write a program: "
        "torch.export.save(torch.export.export(module, args), 'model.pt2'); for a model of ultralytics: yolo export model=FILE format=onnx",
    )


def load_exported(file: BinaryIO, path: Path) -> Any:
    """The program in an archive that :func:`written_again_exported` wrote for *path*."""
    _torch(path.name)
    return _loaded(lambda: importlib.import_module("torch.export").load(file), path)


def load_script(file: BinaryIO, path: Path) -> Any:
    """The module in an archive that :func:`written_again_script` wrote for *path*, if its graphs use listed operators only."""
    torch = _torch(path.name)
    module = _loaded(lambda: torch.jit.load(file, map_location="cpu"), path)
    check_graphs(path, _graphs(module), is_scripted)
    return module


def _graphs(module: Any) -> list[Any]:
    """The graphs of all methods of a module and its submodules, with what they call inlined."""
    graphs = []
    for each in module.modules():
        own = each._c
        graphs += [own._get_method(name).inlined_graph for name in own._method_names()]
        graphs += [hook.inlined_graph for hook in (*own._get_forward_hooks(), *own._get_forward_pre_hooks())]
    return graphs


def _kind(path: Path) -> str:
    """What a zip archive of PyTorch holds; nothing of it is unpickled."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return "unknown"
    if any(
        name.endswith((".json", "archive_format")) and ("models/" in name or "serialized_exported_program" in name)
        for name in names
    ):
        return "exported"
    if any("/code/" in name or name.endswith("constants.pkl") for name in names):
        return "script"
    return "unknown"


def _torch(what: str) -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise _missing(what) from error


def _require_torch(what: str) -> None:
    if not is_installed("torch"):
        raise _missing(what)


def _missing(what: str) -> MissingDependencyError:
    return MissingDependencyError(
        f"{what} needs the package 'torch'",
        hint="pip install torch onnxscript, or export the model as ONNX where torch is: torch.onnx.export(module, args, 'model.onnx')",
    )


def _no_shapes() -> CompileError:
    return CompileError(
        "the shapes of a PyTorch model's inputs are not known",
        hint="pass example_inputs=(tensor, ...), or shapes: --shape x=1,3,224,224",
    )


def _is_exported(model: Any) -> bool:
    kind = getattr(sys.modules.get("torch.export"), "ExportedProgram", None)
    return isinstance(kind, type) and isinstance(model, kind)


def _loaded(load: Any, path: Path) -> Any:
    try:
        return load()
    except Exception as error:  # torch raises whatever it meets in the file
        raise CompileError(
            f"torch cannot load {path}: {_line(error)}", hint="save it again with the torch that is installed"
        ) from error


def _examples(torch: Any, model: Any, shapes: Shapes | None, given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments of a call."""
    if given is None:
        if not shapes:
            raise _no_shapes()
        return tuple(torch.zeros(tuple(int(extent) for extent in shape)) for shape in shapes.values()), {}
    if isinstance(given, Mapping):
        return (), {str(name): _tensor(torch, value) for name, value in given.items()}
    values = given if isinstance(given, (tuple, list)) else (given,)
    return tuple(_tensor(torch, value) for value in values), {}


def _tensor(torch: Any, value: Any) -> Any:
    return torch.from_numpy(value) if type(value).__module__ == "numpy" and hasattr(value, "dtype") else value


def _export(
    torch: Any, model: Any, arguments: tuple[Any, ...] = (), named: Mapping[str, Any] | None = None, names: Sequence[str] = ()
) -> Any:
    problems = []
    routes: tuple[Any, ...] = (_by_export, _by_trace)
    if isinstance(model, getattr(getattr(torch, "jit", None), "ScriptModule", ())):
        routes = (_by_trace,)  # torch.export does not take TorchScript
    for route in routes:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return route(torch, model, arguments, dict(named or {}), names)
        except Exception as error:  # torch raises whatever it meets in the model
            problems.append(f"{route.__name__[4:]}: {_line(error)}")
            _log.info("torch's exporter (%s) failed: %s", route.__name__[4:], _line(error))
    raise CompileError(
        f"torch cannot export the model as ONNX ({'; '.join(problems)})",
        hint="pip install onnxscript if it is missing; else export it yourself with torch.onnx.export and give the .onnx file",
    )


def _by_export(torch: Any, model: Any, arguments: tuple[Any, ...], named: dict[str, Any], names: Sequence[str]) -> Any:
    """torch.export, then its ONNX exporter."""
    exported = _is_exported(model)
    program = torch.onnx.export(
        model,
        () if exported else arguments,
        kwargs=None if exported else named or None,
        dynamo=True,
        verbose=False,
        **({"input_names": list(names)} if names else {}),
    )
    return program.model_proto


def _by_trace(torch: Any, model: Any, arguments: tuple[Any, ...], named: dict[str, Any], names: Sequence[str]) -> Any:
    """The older exporter, which records one run."""
    if _is_exported(model):
        examples = model.example_inputs
        arguments, named, model = tuple(examples[0]), dict(examples[1]), model.module()
    file = io.BytesIO()
    labels = list(names) or _parameters(model)[: len(arguments)] + list(named)
    torch.onnx.export(
        model,
        (*arguments, named) if named else arguments,
        file,
        opset_version=OLD_OPSET,
        dynamo=False,
        **({"input_names": labels} if labels else {}),
    )
    from ..._util.optional import onnx

    return onnx().load_model_from_string(file.getvalue())


def _parameters(model: Any) -> list[str]:
    try:
        found = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError, AttributeError):
        return []
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [entry.name for entry in found if entry.kind in plain]


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return printable(lines[0][:300]) if lines else type(error).__name__
