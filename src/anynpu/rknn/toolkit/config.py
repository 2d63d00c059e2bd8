"""What ``RKNN.config`` is given, and what the compiler makes of it."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ... import chips
from ..._util.optional import onnx
from ..._util.types import Array
from ...compiler.images import IMAGE_SUFFIXES, load_image
from ...compiler.importers import torch_file_to_onnx
from ...compiler.importers.onnx_model import load_onnx
from ...errors import CompileError, MissingDependencyError, ModelError, ParameterError, ShapeError

Say = Callable[[str], None]
Shape = tuple[int, ...]

DEFAULTS: Mapping[str, Any] = {
    "mean_values": None,
    "std_values": None,
    "quantized_dtype": "w8a8",
    "quantized_algorithm": "normal",
    "quantized_method": "channel",
    "quantized_hybrid_level": 0,
    "target_platform": None,
    "quant_img_RGB2BGR": False,
    "float_dtype": "float16",
    "optimization_level": 3,
    "custom_string": None,
    "remove_weight": False,
    "compress_weight": False,
    "inputs_yuv_fmt": None,
    "single_core_mode": False,
    "dynamic_input": None,
    "model_pruning": False,
    "op_target": None,
    "quantize_weight": False,
    "remove_reshape": False,
    "sparse_infer": False,
    "mini_rknn": False,
    "enable_flash_attention": False,
    "auto_hybrid_cos_thresh": 0.98,
    "auto_hybrid_euc_thresh": None,
    "memory_plan_strategy": "BestFit",
    "compute_order": "WidthFirst",
    "compiler_control_file": None,
}
"""Every keyword of the vendor's with its default."""

_WITH_EFFECT = {
    *("mean_values", "std_values", "quantized_dtype", "quantized_algorithm", "quantized_method", "target_platform"),
    *("quant_img_RGB2BGR", "custom_string", "remove_weight", "dynamic_input"),
}
_DTYPES = {"w8a8": "w8a8", "asymmetric_quantized-8": "w8a8", "w16a16": "w16a16", "asymmetric_quantized-16": "w16a16"}
_ALGORITHMS = {"normal": "percentile", "mmse": "mse", "kl_divergence": "kl", "gdq": "mse"}
_METHODS = {"channel": None, "layer": False}


@dataclass(frozen=True)
class Config:
    """What has an effect, in the compiler's words.

    :ivar mean: as given: for one input, or a list of them
    :ivar dynamic: the shapes of all inputs for each set
    """

    target: str
    mean: Any = None
    std: Any = None
    dtype: str = "w8a8"
    algorithm: str = "percentile"
    per_channel: bool | None = None
    bgr: bool = False
    custom_string: str = ""
    remove_weight: bool = False
    dynamic: list[list[Shape]] = field(default_factory=list)

    def check_dynamic(self, inputs: Mapping[str, Shape]) -> None:
        """Reject shapes of ``dynamic_input`` that a model with these inputs cannot have."""
        for shapes in self.dynamic:
            if len(shapes) != len(inputs):
                raise CompileError(
                    f"a set of dynamic_input has {len(shapes)} shapes, the model has {len(inputs)} inputs",
                    hint="dynamic_input=[[[1, 3, 224, 224]], [[1, 3, 192, 192]]]: sets, and in each a shape per input",
                )
            for (name, declared), shape in zip(inputs.items(), shapes, strict=True):
                check_shape("dynamic_input", name, declared, shape)

    def options(self, inputs: Mapping[str, Shape]) -> dict[str, Any]:
        """Options of the compiler that do not depend on how the model is built."""
        names = list(inputs)
        options: dict[str, Any] = {"custom_string": self.custom_string}
        for key, given in (("mean", self.mean), ("std", self.std)):
            values = _by_input(key, given, names)
            if values:
                options[key] = values
        if self.dynamic:
            self.check_dynamic(inputs)
            options["shapes"] = [dict(zip(names, shapes, strict=True)) for shapes in self.dynamic]
        return options


def check_shape(what: str, name: str, declared: Shape, given: Shape) -> None:
    """Reject a shape that differs from the model's in a fixed dimension other than the batch.

    :param what: the argument that has the shape
    :param declared: 0 where a dimension is dynamic
    """
    if len(given) != len(declared) or any(want and want != have for want, have in list(zip(declared, given, strict=True))[1:]):
        text = ", ".join(str(extent or "?") for extent in declared)
        raise ShapeError(
            f"{what}: input '{name}' takes [{text}], got {list(given)}",
            hint="export the model with dynamic dimensions (shown as ?); only these and the batch can be chosen",
        )


def config_of(given: Mapping[str, Any], once: Say) -> Config:
    """Check the keywords of ``config``.

    :param once: called with a sentence for each keyword that has no effect here
    :raises AnynpuError: one that has an effect has a value that is not known
    """
    for name, value in given.items():
        if name not in DEFAULTS:
            once(f"config: {name} is not known and has no effect")
        elif name not in _WITH_EFFECT and not _same(value, DEFAULTS[name]):
            once(f"config: {name} has no effect here")
    values = {**DEFAULTS, **given}
    target = values["target_platform"]
    target = target[0] if isinstance(target, (list, tuple)) and target else target
    if not isinstance(target, str):
        raise ParameterError("target_platform is not set", hint="config(target_platform='rk3588')")
    dtype = _known("quantized_dtype", values["quantized_dtype"], _DTYPES)
    method = values["quantized_method"]
    if method not in _METHODS:
        once(f"config: quantized_method {method} has no effect here; weights have a scale for each output channel")
    if values["quantized_algorithm"] == "gdq":
        once("config: gdq is done as mmse; the compiler fits weights to the data in any case")
    return Config(
        chips.get(target.lower()).name,
        values["mean_values"],
        values["std_values"],
        dtype,
        _known("quantized_algorithm", values["quantized_algorithm"], _ALGORITHMS),
        _METHODS.get(method),
        bool(
            values["quant_img_RGB2BGR"]
            if not isinstance(values["quant_img_RGB2BGR"], (list, tuple))
            else any(values["quant_img_RGB2BGR"])
        ),
        str(values["custom_string"] or ""),
        bool(values["remove_weight"]),
        [[tuple(int(extent) for extent in shape) for shape in shapes] for shapes in values["dynamic_input"] or []],
    )


def bgr_dataset(path: Path, inputs: Mapping[str, Shape]) -> Callable[[], Iterator[dict[str, Array | Path]]]:
    """The samples of a dataset file with images as BGR, for models that are fed with BGR."""
    folder, names = path.parent, list(inputs)

    def samples() -> Iterator[dict[str, Array | Path]]:
        for line in path.read_text(encoding="utf-8-sig").splitlines():
            parts = [line.strip()] if len(names) == 1 else line.split()
            if not line.strip():
                continue
            sample: dict[str, Array | Path] = {}
            for name, part in zip(names, parts, strict=True):
                file = folder / part if (folder / part).is_file() else Path(part)
                shape = inputs[name]
                picture = file.suffix.lower() in IMAGE_SUFFIXES and len(shape) == 4 and shape[1] == 3
                sample[name] = load_image(file, shape[2], shape[3])[np.newaxis, :, :, ::-1] if picture else file
            yield sample

    return samples


def _same(value: Any, default: Any) -> bool:
    return bool(value is default or (isinstance(value, type(default)) and value == default))


def _known(what: str, value: Any, table: Mapping[str, str]) -> str:
    if value not in table:
        raise ParameterError(f"{what} '{value}' is not supported", hint=f"use one of: {', '.join(table)}")
    return table[value]


def _by_input(what: str, given: Any, names: Sequence[str]) -> dict[str, list[float]]:
    """Values for each input from a flat list, for one input, or a list of lists."""
    if given is None:
        return {}
    entries = [given] if not isinstance(given, (list, tuple, np.ndarray)) else list(given)
    if entries and all(isinstance(entry, (int, float, np.number)) for entry in entries):
        entries = [entries]
    if len(entries) > len(names):
        raise CompileError(
            f"{what}_values has {len(entries)} lists, the model has {len(names)} inputs", hint=f"inputs are: {', '.join(names)}"
        )
    found = {}
    for name, entry in zip(names, entries, strict=False):
        if entry is not None:
            values = entry if isinstance(entry, (list, tuple, np.ndarray)) else [entry]
            found[name] = [float(value) for value in values]
    return found


# Models as ``load_onnx`` and its relatives take them: cut out, with sizes and constants, as ONNX.


OPSET = 17


@dataclass(frozen=True)
class ModelSource:
    """A model to compile.

    :ivar proto: an ``onnx.ModelProto``
    :ivar inputs: the shape of each input; 0 where an axis has no fixed size
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
    """A TFLite file. Images become NCHW; with *input_is_nchw* the installed tf2onnx converts it, which leaves them as they are."""
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
