"""EPContext models: compiled models in an ONNX file that onnxruntime opens with the plug-in execution provider.

Such a file has one node of type ``EPContext``, which holds a compiled model or its path. The inputs and outputs of the file are declared
with the types and shapes that the provider accepts. Scales and zero points are in ``notes`` of the node and in the file's metadata.
"""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import chips
from ..._util import optional as _optional
from ..._util.output_files import write_output
from ...errors import ModelFormatError, OptionError
from ...modelfile import FileKind, identify, read, vendorfile
from ...program import Preprocess
from ...tensor import Affine, DType, DynamicFixedPoint, TensorSpec
from ...vendors import of_chip

__all__ = ["PROVIDER", "InputForm", "OutputForm", "Port", "describe_model", "wrap_model"]

PROVIDER = "AnynpuExecutionProvider"
"""The provider that opens these models: ``source`` of their nodes."""

_LIMIT = 2**31 - 2**20
"""Bytes of a model that an ONNX file can hold."""


class InputForm(str, enum.Enum):
    """How the inputs of a wrapped model are declared."""

    FLOAT = "float"
    UINT8 = "uint8"
    NATIVE = "native"


class OutputForm(str, enum.Enum):
    """How the outputs of a wrapped model are declared."""

    FLOAT = "float"
    NATIVE = "native"


@dataclass(frozen=True)
class Port:
    """An input or output of a compiled model.

    :ivar shape: in the order of the ONNX model; a dynamic dimension is a name
    :ivar dtype: of the values that the NPU reads or writes
    :ivar quantization: scale and zero point, or fraction bits; empty for values as they are
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str
    quantization: dict[str, float | int]

    @property
    def is_float(self) -> bool:
        """Whether its values are real numbers, quantized or not."""
        return bool(self.quantization) or self.dtype in ("float16", "float32", "bfloat16")


@dataclass(frozen=True)
class _Description:
    chip: str
    sdk: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    viplite: bool
    normalization: Mapping[str, Preprocess]
    """What the provider computes before it quantizes an input; the RKNN runtimes do it themselves."""


def wrap_model(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    embed: bool = False,
    inputs: InputForm | str = InputForm.FLOAT,
    outputs: OutputForm | str = OutputForm.FLOAT,
) -> Path:
    """Write an EPContext model for a compiled one.

    :param model: a model of anynpu, or a file of the vendor's toolkit (``.rknn``, ``.nb``)
    :param output: the ONNX file to write
    :param embed: store the content of *model* in the file, instead of its path relative to the file
    :param inputs: ``float`` for float32 in the order of the ONNX model, ``uint8`` for images as uint8 pixels in NHWC, ``native`` for the
        values that the NPU reads, images in NHWC
    :param outputs: ``float`` for float32, ``native`` for the values that the NPU writes
    :returns: *output*
    :raises ModelFormatError: *model* is not a compiled model, or does not state its inputs and outputs
    :raises OptionError: *model* is not below the folder of *output* and ``embed`` is false, or is too large to embed

    >>> wrap_model("yolo.rknn", "yolo_ctx.onnx")                                        # doctest: +SKIP
    PosixPath('yolo_ctx.onnx')
    """
    model, output = Path(model), Path(output)
    input_form, output_form = InputForm(inputs), OutputForm(outputs)
    found = describe_model(model)
    content: str | bytes = _content(model) if embed else _relative(model, output)
    proto = _context_model(model.stem, found, content, input_form, output_form)
    return write_output(output, proto.SerializeToString(), inputs=[model])


def describe_model(model: Path) -> _Description:
    """Chip, inputs and outputs of a compiled model or of a vendor's file."""
    kind = identify(model)
    if kind is FileKind.ANYNPU:
        return _of_anynpu(model)
    if kind.of_a_vendor:
        return _of_vendor(model)
    raise ModelFormatError(
        f"{model} is not a compiled model",
        hint=f"compile it first: anynpu compile {model.stem}.onnx -o {model.stem}.rknn --target rk3588",
    )


def _of_anynpu(path: Path) -> _Description:
    model = read(path)
    first = model.programs[0]
    vendor = of_chip(chips.get(model.chip))
    viplite = vendor.native_buffers

    def ports(names: Sequence[str]) -> tuple[Port, ...]:
        return tuple(_port([vendor.port(model, program.tensors[name]) for program in model.programs]) for name in names)

    normalization = {name: each for name, each in model.preprocess.items() if viplite and not each.picture}
    return _Description(model.chip, "anynpu", ports(first.inputs), ports(first.outputs), viplite, normalization)


def _port(specs: Sequence[TensorSpec]) -> Port:
    """One input or output of all programs of a model, which differ in their shapes."""
    spec = specs[0]
    axes = zip(*(each.shape for each in specs), strict=True)
    shape = tuple(sizes[0] if len(set(sizes)) == 1 else f"{spec.name}_{axis}" for axis, sizes in enumerate(axes))
    quantization: dict[str, float | int] = {}
    if isinstance(spec.quantization, Affine):
        quantization = {"scale": spec.quantization.scales[0], "zero_point": spec.quantization.zero_points[0]}
    elif isinstance(spec.quantization, DynamicFixedPoint):
        quantization = {"fraction_bits": spec.quantization.fraction_bits}
    dtype = "float16" if spec.dtype is DType.FLOAT32 else spec.dtype.value
    return Port(spec.name, shape, dtype, quantization)


def _of_vendor(path: Path) -> _Description:
    info = vendorfile.read(path)
    if not info.inputs or not info.outputs or not all(port.shape and port.dtype for port in (*info.inputs, *info.outputs)):
        raise ModelFormatError(
            f"{path} does not state the types and shapes of its inputs and outputs",
            hint="the file is encrypted or was built without them; build it again with a current toolkit",
        )

    def port(tensor: vendorfile.VendorTensor) -> Port:
        quantization: dict[str, float | int] = {}
        if tensor.scale is not None and tensor.zero_point is not None and not tensor.dtype.startswith("float"):
            quantization = {"scale": tensor.scale, "zero_point": tensor.zero_point}
        elif tensor.fraction_bits is not None:
            quantization = {"fraction_bits": tensor.fraction_bits}
        return Port(tensor.name, tensor.shape, tensor.dtype, quantization)

    inputs, outputs = tuple(map(port, info.inputs)), tuple(map(port, info.outputs))
    return _Description(info.chip, info.toolkit, inputs, outputs, info.kind is FileKind.NB, {})


def _content(model: Path) -> bytes:
    if model.stat().st_size > _LIMIT:
        raise OptionError(f"{model} is too large to embed: an ONNX file holds at most 2 GB", hint="leave embed out")
    return model.read_bytes()


def _relative(model: Path, output: Path) -> str:
    folder = output.resolve().parent
    try:
        return model.resolve().relative_to(folder).as_posix()
    except ValueError:
        raise OptionError(
            f"{model} is not below {folder}, the folder of {output.name}",
            hint=f"write the output next to {model.name}, or embed the model in it (--embed)",
        ) from None


def _declared(port: Port, form: InputForm | OutputForm, viplite: bool) -> tuple[str, tuple[int | str, ...], str]:
    """Element type, shape and layout letter with which a port is declared: C as in ONNX, H for NHWC, Q for quantized values."""
    image = len(port.shape) == 4
    last = (*port.shape[:1], *port.shape[2:], *port.shape[1:2]) if image else port.shape
    if not port.is_float:
        return port.dtype, port.shape, "C"
    if form is InputForm.UINT8:
        return ("uint8", last, "H") if image else ("float32", port.shape, "C")
    if form is InputForm.NATIVE and viplite:
        return port.dtype, port.shape, "Q"
    if form is InputForm.NATIVE:
        return port.dtype, last, "H" if image else "C"
    if form is OutputForm.NATIVE:
        return port.dtype, port.shape, "C"
    return "float32", port.shape, "C"


def _context_model(name: str, found: _Description, content: str | bytes, input_form: InputForm, output_form: OutputForm) -> Any:
    from importlib import metadata

    onnx = _optional.onnx()
    helper, types = onnx.helper, onnx.TensorProto.DataType

    def values(ports: Sequence[Port], form: InputForm | OutputForm) -> tuple[list[Any], str]:
        declared = [_declared(port, form, found.viplite) for port in ports]
        infos = [
            helper.make_tensor_value_info(port.name, types.Value("FLOAT" if dtype == "float32" else dtype.upper()), shape)
            for port, (dtype, shape, _) in zip(ports, declared, strict=True)
        ]
        return infos, "".join(layout for _, _, layout in declared)

    inputs, layouts = values(found.inputs, input_form)
    outputs, _ = values(found.outputs, output_form)
    notes = json.dumps(
        {
            "inputs": {port.name: {"type": port.dtype, **port.quantization} for port in found.inputs},
            "outputs": {port.name: {"type": port.dtype, **port.quantization} for port in found.outputs},
        }
    )
    normalization = {
        f"input_{what}_{number}": list(values)
        for number, port in enumerate(found.inputs)
        if (each := found.normalization.get(port.name))
        for what, values in (("mean", each.mean), ("std", each.std))
    }
    node = helper.make_node(
        "EPContext",
        [port.name for port in found.inputs],
        [port.name for port in found.outputs],
        name=name,
        domain="com.microsoft",
        ep_cache_context=content,
        embed_mode=int(isinstance(content, bytes)),
        main_context=1,
        source=PROVIDER,
        ep_sdk_version=metadata.version("anynpu"),
        hardware_architecture=found.chip,
        partition_name=name,
        notes=notes,
        input_layouts=layouts,
        **normalization,
    )
    graph = helper.make_graph([node], name, inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="anynpu")
    helper.set_model_props(proto, {"anynpu.chip": found.chip, "anynpu.compiler": found.sdk, "anynpu.quantization": notes})
    return proto
