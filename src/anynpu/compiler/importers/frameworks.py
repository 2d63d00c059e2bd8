"""Models of PyTorch, TensorFlow, Keras and TFLite as ONNX: recognized by type, first bytes or file name, and converted."""

from __future__ import annotations

import importlib
import inspect
import io
import logging
import sys
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ..._util.printable import printable
from ...errors import CompileError, MissingDependencyError
from .confined import converted_confined, is_installed
from .program_files import check_graphs, is_scripted
from .tflite import is_tflite, tflite_to_onnx

# PyTorch models, exported as ONNX by the torch that is installed: its exporter first, the older one where that fails.


_log = logging.getLogger("anynpu.compiler")

OLD_OPSET = 17
"""What the older exporter is asked for."""


def is_torch_model(model: Any) -> bool:
    """Whether an object is a module or an exported program of PyTorch. Nothing is imported: a caller that has one has imported torch."""
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
        raise _missing_torch(what) from error


def _require_torch(what: str) -> None:
    if not is_installed("torch"):
        raise _missing_torch(what)


def _missing_torch(what: str) -> MissingDependencyError:
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


# TensorFlow and Keras models, converted by the tf2onnx that is installed.


OPSET = 17


def is_keras_model(model: Any) -> bool:
    """Whether an object is a model of Keras. Nothing is imported: a caller that has one has imported Keras."""
    kinds = [getattr(sys.modules.get(name), "Model", None) for name in ("keras", "tensorflow.keras", "tf_keras")]
    return any(isinstance(kind, type) and isinstance(model, kind) for kind in kinds)


def keras_to_onnx(model: Any) -> Any:
    """The ONNX model of a Keras model."""
    convert = _packages("a Keras model", "tf2onnx.convert.from_keras(model, output_path='model.onnx')")
    return _converted(lambda: convert.convert.from_keras(model, opset=OPSET, inputs_as_nchw=_pictures(model))[0])


def keras_file_to_onnx(path: Path, *, trust: bool = False) -> Any:
    """The ONNX model of a ``.keras`` or ``.h5`` file.

    :param trust: Keras loads the file as it is, in this process
    """
    if trust:
        return read_keras_file(path, _nothing)
    _require_packages("a Keras model", _keras_command(path))
    return converted_confined("keras", path)


def read_keras_file(path: Path, confine: Callable[[], None]) -> Any:
    """Convert a file of Keras in this process.

    :param confine: called before Keras gets the file
    """
    _packages("a Keras model", _keras_command(path))
    keras = importlib.import_module("tensorflow").keras
    confine()
    loaded = _converted(lambda: keras.models.load_model(str(path), compile=False))
    return keras_to_onnx(loaded)


def saved_model_file_to_onnx(folder: Path, *, trust: bool = False) -> Any:
    """The ONNX model of a SavedModel folder.

    :param trust: TensorFlow loads the folder as it is, in this process
    """
    if trust:
        return read_saved_model(folder, _nothing)
    _require_packages(f"{folder}, a SavedModel of TensorFlow,", _saved_command(folder))
    return converted_confined("saved_model", folder)


def read_saved_model(folder: Path, confine: Callable[[], None]) -> Any:
    """Convert a SavedModel in this process.

    :param confine: called before TensorFlow gets the folder
    """
    convert = _packages(f"{folder}, a SavedModel of TensorFlow,", _saved_command(folder))
    loader = importlib.import_module("tf2onnx.tf_loader")
    confine()

    def run() -> Any:
        graph, inputs, outputs, *_ = loader.from_saved_model(str(folder), None, None, return_tensors_to_rename=False)
        return convert.convert._convert_common(graph, input_names=inputs, output_names=outputs, opset=OPSET)[0]

    return _converted(run)


def _nothing() -> None:
    """For a file that is trusted."""


def _keras_command(path: Path) -> str:
    return f"python -m tf2onnx.convert --keras {path} --output {path.stem}.onnx"


def _saved_command(folder: Path) -> str:
    return f"python -m tf2onnx.convert --saved-model {folder} --output {folder.name}.onnx"


def _pictures(model: Any) -> list[str]:
    """Inputs of four axes, which become NCHW as everywhere here."""
    return [entry.name for entry in getattr(model, "inputs", ()) if len(getattr(entry, "shape", ())) == 4]


def _packages(what: str, command: str) -> Any:
    try:
        importlib.import_module("tensorflow")
        package = importlib.import_module("tf2onnx")
        importlib.import_module("tf2onnx.convert")
    except ImportError as error:
        raise _missing_tf2onnx(what, command) from error
    return package


def _require_packages(what: str, command: str) -> None:
    if not (is_installed("tensorflow") and is_installed("tf2onnx")):
        raise _missing_tf2onnx(what, command)


def _missing_tf2onnx(what: str, command: str) -> MissingDependencyError:
    return MissingDependencyError(
        f"{what} needs the packages 'tensorflow' and 'tf2onnx'",
        hint=f"pip install tensorflow tf2onnx; or convert it where they are: {command}; or make a .tflite file of it, "
        "which needs neither here",
    )


def _converted(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except Exception as error:  # tf2onnx raises whatever it meets in the model
        text = printable(str(error).splitlines()[0][:300]) if str(error) else type(error).__name__
        raise CompileError(
            f"tf2onnx cannot convert the model: {text}",
            hint="make a .tflite file of it: tf.lite.TFLiteConverter.from_keras_model(model)",
        ) from error


# Which way a model comes in: by its type, the first bytes of its file, or the file's name.


Shapes = Mapping[str, Sequence[int]]

_TORCH_FILES = {".pt2", ".pt", ".pth", ".torchscript"}
_KERAS_FILES = {".keras", ".h5", ".hdf5"}

_FOREIGN: dict[str, tuple[str, str]] = {
    ".pb": (
        "a frozen TensorFlow graph",
        "python -m tf2onnx.convert --graphdef {name} --inputs IN:0 --outputs OUT:0 --output {stem}.onnx",
    ),
    ".caffemodel": (
        "a Caffe model",
        "python -m caffe2onnx.convert --prototxt {stem}.prototxt --caffemodel {name} --onnx {stem}.onnx",
    ),
    ".prototxt": (
        "a Caffe model",
        "python -m caffe2onnx.convert --prototxt {name} --caffemodel {stem}.caffemodel --onnx {stem}.onnx",
    ),
    ".weights": ("a Darknet model", "load it with a PyTorch implementation of its network, then torch.onnx.export"),
    ".cfg": ("a Darknet model", "load it with a PyTorch implementation of its network, then torch.onnx.export"),
    ".pdmodel": (
        "a PaddlePaddle model",
        "paddle2onnx --model_dir . --model_filename {name} --params_filename {stem}.pdiparams --save_file {stem}.onnx",
    ),
    ".pdiparams": (
        "the weights of a PaddlePaddle model",
        "paddle2onnx --model_dir . --model_filename {stem}.pdmodel --params_filename {name} --save_file {stem}.onnx",
    ),
    ".mlmodel": ("a Core ML model", "export the network that it was made from with torch.onnx.export"),
    ".engine": ("a TensorRT engine", "take the ONNX model that it was built from"),
    ".plan": ("a TensorRT engine", "take the ONNX model that it was built from"),
    ".param": ("an ncnn model", "take the ONNX or PyTorch model that it was made from"),
    ".mnn": ("an MNN model", "take the ONNX or PyTorch model that it was made from"),
    ".xml": ("an OpenVINO model", "take the ONNX or PyTorch model that it was made from"),
    ".safetensors": (
        "weights without a network",
        "optimum-cli export onnx --model FOLDER OUT, or load them into the module and pass that",
    ),
    ".gguf": ("weights of a language model", "take the original model and export it: optimum-cli export onnx --model FOLDER OUT"),
    ".ckpt": (
        "a checkpoint without a network",
        "load it into the module and pass that: anynpu.compile(module, example_inputs=...)",
    ),
    ".pkl": ("a Python object", "export the network that it holds with torch.onnx.export or skl2onnx"),
    ".joblib": ("a Python object", "export the network that it holds with skl2onnx"),
}
"""Files that are not read here: what they are, and what to do."""

_COMPILED = {
    ".ort": "a model in onnxruntime's own format",
    ".dlc": "a model that is compiled for Qualcomm's SNPE",
    ".hef": "a model that is compiled for a Hailo NPU",
    ".om": "a model that is compiled for an Ascend NPU",
    ".blob": "a model that is compiled for a Myriad NPU",
    ".mlmodelc": "a model that is compiled for Core ML",
}
"""Files that were made of a model, which they do not hold any more."""


def as_onnx(model: Any, shapes: Shapes | None = None, example_inputs: Any = None, *, trust: bool = False) -> Any:
    """An ONNX model made from one of another framework; None where *model* is ONNX, or nothing that is known here.

    :param shapes: by input name, for models that do not state them
    :param example_inputs: what a module of PyTorch is called with
    :param trust: files of PyTorch, Keras and TensorFlow are loaded as they are, in this process
    """
    if isinstance(model, (bytes, bytearray, memoryview)):
        return tflite_to_onnx(bytes(model)) if is_tflite(model[:8]) else None
    if isinstance(model, (str, Path)):
        return _from_path(Path(model), shapes, example_inputs, trust)
    if is_torch_model(model):
        return torch_to_onnx(model, shapes, example_inputs)
    if is_keras_model(model):
        return keras_to_onnx(model)
    return None


def takes_examples(model: Any) -> bool:
    """Whether a model is one of PyTorch, which is exported with examples of its inputs."""
    if isinstance(model, (str, Path)):
        return Path(model).suffix.lower() in _TORCH_FILES
    return is_torch_model(model)


def is_foreign(path: Path) -> bool:
    """Whether a file is a model of another framework, by its name or its first bytes."""
    if path.suffix.lower() in (*_TORCH_FILES, *_KERAS_FILES, *_FOREIGN, ".tflite") or path.is_dir():
        return True
    with path.open("rb") as file:
        return is_tflite(file.read(8))


def takes_folder(path: Path) -> bool:
    """Whether a folder is a model."""
    return (path / "saved_model.pb").is_file()


def _from_path(path: Path, shapes: Shapes | None, example_inputs: Any, trust: bool) -> Any:
    suffix = path.suffix.lower()
    if path.is_dir():
        return saved_model_file_to_onnx(path, trust=trust) if takes_folder(path) else None
    if not path.is_file():
        return None
    with path.open("rb") as file:
        head = file.read(8)
    if is_tflite(head):
        return tflite_to_onnx(path.read_bytes(), path.stem)
    if suffix == ".tflite":
        raise CompileError(f"{path} is not a TFLite model, or is damaged", hint="convert the model again")
    if suffix in _TORCH_FILES:
        return torch_file_to_onnx(path, shapes, example_inputs, trust=trust)
    if suffix in _KERAS_FILES:
        return keras_file_to_onnx(path, trust=trust)
    if suffix in _COMPILED:
        raise CompileError(
            f"{path} is {_COMPILED[suffix]}, and nothing can be compiled from it",
            hint="take the ONNX model that it was made from",
        )
    if suffix in _FOREIGN:
        what, command = _FOREIGN[suffix]
        raise CompileError(
            f"{path} is {what}, which is not read here",
            hint=f"make an ONNX model of it: {command.format(name=path.name, stem=path.stem)}",
        )
    return None
