"""Layers, programs and models: how operators, tensors and memory come together."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby
from typing import Literal

from .._util.types import Array
from ..tensor import DType, Layout, TensorSpec
from .float_operators import Float
from .integer_operators import (
    Binary,
    Concat,
    Conv,
    Convert,
    ConvTranspose,
    Dense,
    MatMul,
    Pad,
    Pool,
    Resize,
    Slice,
    Table,
    Transpose,
)

# Custom operators of the layer program: what the program's user computes.


AttributeValue = Array | str | tuple[str, ...]
"""An attribute of a custom operator: int64 for integers, float32 for others (a single one has no axes), text, or several texts."""


@dataclass(frozen=True, eq=False)
class CustomConstant:
    """An input of a custom operator that never changes. It lies with the weights, row-major.

    :ivar position: its place among all inputs of the operator
    """

    position: int
    name: str
    value: Array

    @property
    def spec(self) -> TensorSpec:
        """The constant as a tensor."""
        return TensorSpec(self.name, self.value.shape, DType(self.value.dtype.name), Layout.row_major(self.value.ndim))


@dataclass(frozen=True, eq=False)
class Custom:
    """An operator that the program's user computes, on the CPU. Its tensors are row-major; those of real numbers are float32.

    :ivar op_type: the name under which the function that computes it is registered
    :ivar constants: inputs that are constants; the inputs of the layer are the others, in order
    """

    op_type: str
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    constants: tuple[CustomConstant, ...] = ()


# What an ONNX model states about itself, kept for programs that ask a session for it.


_PREFIX = "anynpu.onnx."


@dataclass(frozen=True)
class OnnxMetadata:
    """The description that an ONNX model carries.

    :ivar properties: ``metadata_props``: class names, strides, character lists
    :ivar version: ``model_version``
    """

    properties: Mapping[str, str] = field(default_factory=dict)
    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0

    def entries(self) -> dict[str, str]:
        """All of it as text by key: the properties as they are, the rest under keys of its own.

        >>> OnnxMetadata({"stride": "32"}, graph_name="det", version=2).entries()
        {'stride': '32', 'anynpu.onnx.graph_name': 'det', 'anynpu.onnx.version': '2'}
        """
        own = {f"{_PREFIX}{name}": str(getattr(self, name)) for name in _SINGLE if getattr(self, name)}
        return {**self.properties, **own}

    @classmethod
    def of_entries(cls, entries: Mapping[str, str]) -> OnnxMetadata:
        """The same, back from text by key."""
        single = {name: entries[key] for name in _SINGLE if (key := f"{_PREFIX}{name}") in entries}
        version = single.pop("version", "0")
        properties = {key: value for key, value in entries.items() if not key.startswith(_PREFIX)}
        return cls(properties, **single, version=int(version) if version.lstrip("-").isdecimal() else 0)


_SINGLE = tuple(entry.name for entry in fields(OnnxMetadata) if entry.name != "properties")


class Placement(str, enum.Enum):
    """Which processor of the chip executes a layer."""

    NPU = "npu"
    CPU = "cpu"


Op = (
    Conv
    | ConvTranspose
    | Dense
    | MatMul
    | Binary
    | Table
    | Concat
    | Slice
    | Pad
    | Pool
    | Resize
    | Transpose
    | Convert
    | Custom
    | Float
)


@dataclass(frozen=True, eq=False, repr=False)
class Layer:
    """One step of the NPU.

    :ivar name: the ONNX node it stands for
    :ivar kind: what perf tables print, such as ``ConvAddRelu``
    :ivar nodes: all ONNX nodes that went into it
    :ivar reason: why it is on the CPU; empty on the NPU
    :ivar macs: multiply-accumulates
    :ivar weight_bytes: bytes of weights, bias and tables
    :ivar operator: the ONNX operator that it does, such as ``Conv``; empty for an activation alone
    :ivar activation: the function that it applies to every element; ``Lut`` for a chain that has no name
    """

    name: str
    kind: str
    op: Op
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    placement: Placement = Placement.NPU
    reason: str = ""
    macs: int = 0
    weight_bytes: int = 0
    nodes: tuple[str, ...] = ()
    operator: str = ""
    activation: str = ""

    def __repr__(self) -> str:
        return f"Layer({self.name!r}, {type(self.op).__name__}, outputs {list(self.outputs)})"

    @property
    def does(self) -> str:
        """What it mainly does, by name: its operator, or its activation where that is all."""
        return self.operator or self.activation


@dataclass(frozen=True)
class MemoryPlan:
    """Where tensors lie in internal memory. Inputs and outputs of the program are not in it: they have buffers of their own.

    :ivar offsets: byte offset of each tensor that owns memory
    :ivar size: bytes of internal memory
    """

    offsets: Mapping[str, int]
    size: int


@dataclass(frozen=True)
class FloatStretch:
    """Neighboring float layers, which are executed as one: layers [first, last) of a program.

    :ivar inputs: tensors that they read and that are made before
    :ivar outputs: tensors that they make for others: these have memory, what only they themselves read has none
    """

    first: int
    last: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def float_stretches(layers: Sequence[Layer], outputs: Collection[str], views: Mapping[str, str]) -> tuple[FloatStretch, ...]:
    """The segments of float layers among *layers* of a program with these *outputs* and *views*."""
    readers: dict[str, int] = {}
    for index, layer in enumerate(layers):
        for name in layer.inputs:
            readers[views.get(name, name)] = index  # the last one
    wanted = {views.get(name, name) for name in outputs}
    found = []
    for is_float, group in groupby(range(len(layers)), lambda index: isinstance(layers[index].op, Float)):
        if is_float:
            indices = list(group)
            first, last = indices[0], indices[-1] + 1
            stretch = layers[first:last]
            made = dict.fromkeys(name for layer in stretch for name in layer.outputs)
            read = dict.fromkeys(name for layer in stretch for name in layer.inputs if name not in made)
            leaving = tuple(name for name in made if name in wanted or readers.get(name, -1) >= last)
            found.append(FloatStretch(first, last, tuple(read), leaving))
    return tuple(found)


@dataclass(frozen=True, eq=False, repr=False)
class Program:
    """What the NPU executes for one set of input shapes.

    :ivar views: tensors that are another tensor's memory under another shape (a reshape): name -> owner of the memory
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: Mapping[str, TensorSpec]
    layers: tuple[Layer, ...]
    memory: MemoryPlan
    views: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Program({len(self.layers)} layers, inputs {list(self.inputs)}, outputs {list(self.outputs)})"

    @property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        return tuple(self.tensors[name] for name in self.inputs)

    @property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        return tuple(self.tensors[name] for name in self.outputs)

    def layers_on(self, placement: Placement) -> Iterator[Layer]:
        """The layers that one processor executes."""
        return (layer for layer in self.layers if layer.placement is placement)

    def float_stretches(self) -> tuple[FloatStretch, ...]:
        """Its segments of float layers, in order."""
        return float_stretches(self.layers, self.outputs, self.views)

    @property
    def custom_operators(self) -> tuple[str, ...]:
        """The types of the custom operators that it needs, in the order of execution, each once."""
        return tuple(dict.fromkeys(layer.op.op_type for layer in self.layers if isinstance(layer.op, Custom)))


@dataclass(frozen=True)
class Preprocess:
    """What happens to a raw input before quantization: (x - mean) / std per channel.

    :ivar picture: ``rgb`` or ``bgr`` where the model begins with a pre-process node: what it takes is an image, bytes in the order height,
        width, channel, and mean and std are those of the image's channels. Empty where the caller normalizes and quantizes
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    picture: Literal["", "rgb", "bgr"] = ""


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A compiled model: one or more programs for one chip.

    :ivar chip: name in the catalogue
    :ivar dtype: its format: ``w8a8``, ``fp16`` or ``w16a16``; for Allwinner's chips also ``i8``, ``i8dfp`` or ``bf16``
    :ivar preprocess: by input name; an input without an entry takes its values as they are
    :ivar provenance: source file, versions, options, calibration: text that helps to find out where the model came from
    :ivar arithmetic: by which rule its int8 layers round: ``chip`` or ``simulator``; float layers from quantized values to
      quantized values sum in float32 too
    :ivar metadata: what the ONNX model states about itself; None for one that was made otherwise
    :ivar weightless: the weights were left out (remove_weight) and must come from another context

    What the compiler makes and :func:`anynpu.load` reads is an :class:`anynpu.modelfile.CompiledModel`, which can be saved.
    """

    chip: str
    dtype: str
    programs: tuple[Program, ...]
    name: str = ""
    custom_string: str = ""
    preprocess: Mapping[str, Preprocess] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)
    weightless: bool = False
    arithmetic: str = "simulator"
    metadata: OnnxMetadata | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.chip}, {self.dtype}, shape sets: {len(self.programs)})"

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs of the first shape set."""
        return self.programs[0].input_specs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs of the first shape set."""
        return self.programs[0].output_specs

    @property
    def custom_operators(self) -> tuple[str, ...]:
        """The types of the custom operators that any shape set needs, each once."""
        return tuple(dict.fromkeys(name for program in self.programs for name in program.custom_operators))
