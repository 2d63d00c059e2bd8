"""TensorFlow and Keras models, converted by the tf2onnx that is installed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..._util.printable import printable
from ...errors import CompileError, MissingDependencyError
from .confined import converted_confined, is_installed

__all__ = [
    "is_keras_model",
    "keras_file_to_onnx",
    "keras_to_onnx",
    "read_keras_file",
    "read_saved_model",
    "saved_model_file_to_onnx",
]

OPSET = 17


def is_keras_model(model: Any) -> bool:
    """Whether an object is a model of Keras. Nothing is imported: whoever has one has Keras."""
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
        raise _missing(what, command) from error
    return package


def _require_packages(what: str, command: str) -> None:
    if not (is_installed("tensorflow") and is_installed("tf2onnx")):
        raise _missing(what, command)


def _missing(what: str, command: str) -> MissingDependencyError:
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
