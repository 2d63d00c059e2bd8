"""Which way a model comes in: by its type, the first bytes of its file, or the file's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import CompileError
from .pytorch import is_torch_model, torch_file_to_onnx, torch_to_onnx
from .tensorflow import is_keras_model, keras_file_to_onnx, keras_to_onnx, saved_model_file_to_onnx
from .tflite import is_tflite, tflite_to_onnx

__all__ = ["as_onnx", "is_foreign", "takes_examples", "takes_folder"]

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

    :param shapes: by input name, for models that do not say them
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
