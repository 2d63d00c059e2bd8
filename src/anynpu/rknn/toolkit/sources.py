"""Models as ``load_onnx`` and its relatives take them: cut out, with sizes and constants, as ONNX."""

from __future__ import annotations

import importlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..._util.optional import onnx
from ...compiler.importers import torch_file_to_onnx
from ...compiler.importers.onnx_model import load_onnx
from ...errors import CompileError, MissingDependencyError, ModelError, ParameterError
from .config import check_shape

__all__ = ["ModelSource", "from_onnx", "from_pytorch", "from_tflite"]

Shape = tuple[int, ...]
OPSET = 17


@dataclass(frozen=True)
class ModelSource:
    """A model to compile.

    :ivar proto: an ``onnx.ModelProto``
    :ivar inputs: the shape of each input; 0 where an axis has no fixed extent
    :ivar sizes: shapes that the caller gave, by name of the input
    """

    proto: Any
    name: str
    inputs: dict[str, Shape]
    sizes: dict[str, Shape]

    @property
    def shapes(self) -> dict[str, Shape]:
        """The shapes of all inputs, as they will be compiled."""
        return {name: self.sizes.get(name, tuple(extent or 1 for extent in shape)) for name, shape in self.inputs.items()}


def from_onnx(
    model: str,
    inputs: Sequence[str] | None = None,
    input_size_list: Sequence[Sequence[int]] | None = None,
    input_initial_val: Sequence[Any] | None = None,
    outputs: Sequence[str] | None = None,
    custom: Sequence[str] = (),
) -> ModelSource:
    """An ONNX file, or the part of it between some tensors.

    :param input_size_list: a shape for each input, with or without the batch
    :param input_initial_val: an array for each input that is to become a constant, None for the others
    :param custom: types of custom operators
    """
    path = Path(model)
    if not path.is_file():
        raise ModelError(f"there is no ONNX model {model}", hint="check the path")
    return source_of(load_onnx(str(path), dict.fromkeys(custom)), path.stem, inputs, input_size_list, input_initial_val, outputs)


def source_of(
    proto: Any,
    name: str,
    inputs: Sequence[str] | None = None,
    input_size_list: Sequence[Sequence[int]] | None = None,
    input_initial_val: Sequence[Any] | None = None,
    outputs: Sequence[str] | None = None,
) -> ModelSource:
    """The same for a model that is at hand."""
    if inputs or outputs:
        proto = _part(proto, inputs, outputs)
    known = {initializer.name for initializer in proto.graph.initializer}
    shapes = {entry.name: _shape(entry) for entry in proto.graph.input if entry.name not in known}
    order = list(inputs or shapes)
    sizes: dict[str, Shape] = {}
    if input_size_list is not None:
        if len(input_size_list) != len(order):
            raise ParameterError(
                f"input_size_list has {len(input_size_list)} shapes for {len(order)} inputs", hint="give one for each input"
            )
        for entry, size in zip(order, input_size_list, strict=True):
            rank = len(shapes.get(entry, ())) or len(size)
            given = tuple(int(extent) for extent in size)
            sizes[entry] = (1, *given) if len(given) == rank - 1 else given
            if shapes.get(entry):
                check_shape("input_size_list", entry, shapes[entry], sizes[entry])
    if input_initial_val is not None:
        for entry, value in zip(order, input_initial_val, strict=False):
            if value is not None:
                _fix(proto, entry, np.asarray(value))
                shapes.pop(entry, None)
                sizes.pop(entry, None)
    return ModelSource(proto, name, shapes, sizes)


def from_pytorch(model: Any, input_size_list: Sequence[Sequence[int]]) -> ModelSource:
    """A TorchScript file or a module, exported as ONNX by the installed torch."""
    if isinstance(model, (str, Path)):
        path = Path(model)
        if not path.is_file():
            raise ModelError(f"there is no PyTorch model {model}", hint="check the path")
        examples = tuple(np.zeros([int(extent) for extent in size], np.float32) for size in input_size_list)
        return source_of(load_onnx(torch_file_to_onnx(path, None, examples)), path.stem)
    torch = _framework("torch", "load_pytorch", "torch")
    model.eval()
    zeros = tuple(torch.zeros(*(int(extent) for extent in size)) for size in input_size_list)
    file = io.BytesIO()
    try:
        torch.onnx.export(model, zeros, file, opset_version=OPSET, dynamo=False)
    except Exception as error:  # torch raises whatever it meets in the model
        raise CompileError(
            f"torch cannot export the model as ONNX: {error}", hint="export it yourself and use load_onnx"
        ) from error
    return source_of(load_onnx(file.getvalue()), "model")


def from_tflite(model: str, input_is_nchw: bool = False) -> ModelSource:
    """A TFLite file. Pictures become NCHW; with *input_is_nchw* the installed tf2onnx converts it, which leaves them as they are."""
    if not Path(model).is_file():
        raise ModelError(f"there is no TFLite model {model}", hint="check the path")
    with Path(model).open("rb") as file:
        head = file.read(8)
    if head[4:] == b"TFL3" and not input_is_nchw:
        return source_of(load_onnx(model), Path(model).stem)
    convert = _framework("tf2onnx.convert", "load_tflite", "tf2onnx")
    try:
        proto, _ = convert.from_tflite(str(model), opset=OPSET)
        if not input_is_nchw:
            pictures = [entry.name for entry in proto.graph.input if len(_shape(entry)) == 4]
            proto, _ = convert.from_tflite(str(model), opset=OPSET, inputs_as_nchw=pictures)
    except Exception as error:  # tf2onnx raises whatever it meets in the model
        raise CompileError(f"tf2onnx cannot convert the model: {error}", hint="convert it yourself and use load_onnx") from error
    return source_of(load_onnx(proto.SerializeToString()), Path(model).stem)


def _framework(module: str, call: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"{call} needs the package '{package}'", hint=f"pip install {package}, or export the model as ONNX and use load_onnx"
        ) from error


def _shape(entry: Any) -> Shape:
    return tuple(int(axis.dim_value) for axis in entry.type.tensor_type.shape.dim)


def _part(proto: Any, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Any:
    package = onnx()
    inferred = package.shape_inference.infer_shapes(proto)
    constants = {initializer.name for initializer in proto.graph.initializer}
    begin = list(inputs or (entry.name for entry in proto.graph.input if entry.name not in constants))
    end = list(outputs or (entry.name for entry in proto.graph.output))
    made = {name for node in proto.graph.node for name in node.output} | {entry.name for entry in proto.graph.input}
    for name in (*begin, *end):
        if name not in made:
            raise ParameterError(f"the model has no tensor '{name}'", hint="take names from the ONNX file")
    try:
        return package.utils.Extractor(inferred).extract_model(begin, end)
    except (KeyError, ValueError) as error:
        raise CompileError(
            f"the part of the model cannot be cut out: {error}", hint="cut it out with onnx.utils.extract_model"
        ) from error


def _fix(proto: Any, name: str, value: Any) -> None:
    """Make a constant of an input."""
    package = onnx()
    for index, entry in enumerate(proto.graph.input):
        if entry.name == name:
            kind = package.helper.tensor_dtype_to_np_dtype(entry.type.tensor_type.elem_type)
            proto.graph.initializer.append(package.numpy_helper.from_array(np.ascontiguousarray(value, kind), name))
            del proto.graph.input[index]
            return
    raise ParameterError(f"the model has no input '{name}'", hint="take names from the ONNX file")
