"""TensorFlow and Keras models, converted by the tf2onnx that is installed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import CompileError, MissingDependencyError
from .programs import check_keras_file, check_saved_model

__all__ = ["is_keras_model", "keras_to_onnx", "saved_model_to_onnx"]

OPSET = 17


def is_keras_model(model: Any) -> bool:
    """Whether an object is a model of Keras. Nothing is imported: whoever has one has Keras."""
    kinds = [getattr(sys.modules.get(name), "Model", None) for name in ("keras", "tensorflow.keras", "tf_keras")]
    return any(isinstance(kind, type) and isinstance(model, kind) for kind in kinds)


def keras_to_onnx(model: Any) -> Any:
    """The ONNX model of a Keras model, or of a file of one."""
    file = isinstance(model, (str, Path))
    command = f"python -m tf2onnx.convert --keras {model} --output {Path(model).stem}.onnx" if file else ""
    convert = _package("tf2onnx", "a Keras model", command or "tf2onnx.convert.from_keras(model, output_path='model.onnx')")

    if file:
        check_keras_file(Path(model))

    def run() -> Any:
        loaded = importlib.import_module("tensorflow").keras.models.load_model(str(model), compile=False) if file else model
        return convert.convert.from_keras(loaded, opset=OPSET, inputs_as_nchw=_pictures(loaded))[0]

    return _converted(run)


def saved_model_to_onnx(folder: Path) -> Any:
    """The ONNX model of a SavedModel folder."""
    command = f"python -m tf2onnx.convert --saved-model {folder} --output {folder.name}.onnx"
    convert = _package("tf2onnx", f"{folder}, a SavedModel of TensorFlow,", command)
    loader = importlib.import_module("tf2onnx.tf_loader")
    check_saved_model(folder)

    def run() -> Any:
        graph, inputs, outputs, *_ = loader.from_saved_model(str(folder), None, None, return_tensors_to_rename=False)
        return convert.convert._convert_common(graph, input_names=inputs, output_names=outputs, opset=OPSET)[0]

    return _converted(run)


def _pictures(model: Any) -> list[str]:
    """Inputs of four axes, which become NCHW as everywhere here."""
    return [entry.name for entry in getattr(model, "inputs", ()) if len(getattr(entry, "shape", ())) == 4]


def _package(name: str, what: str, command: str) -> Any:
    try:
        importlib.import_module("tensorflow")
        package = importlib.import_module(name)
        importlib.import_module(f"{name}.convert")
    except ImportError as error:
        raise MissingDependencyError(
            f"{what} needs the packages 'tensorflow' and 'tf2onnx'",
            hint=f"pip install tensorflow tf2onnx; or convert it where they are: {command}; or make a .tflite file of it, "
            "which needs neither here",
        ) from error
    return package


def _converted(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except Exception as error:  # tf2onnx raises whatever it meets in the model
        text = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        raise CompileError(
            f"tf2onnx cannot convert the model: {text}",
            hint="make a .tflite file of it: tf.lite.TFLiteConverter.from_keras_model(model)",
        ) from error
