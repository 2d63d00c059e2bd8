"""What a session reports about its model: inputs, outputs, metadata, and the types of outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import FeedNameError, OptionError
from ..program import OnnxMetadata
from ..tensor import DType, Layout, Quantization, TensorSpec
from .feeds import channels_last

_TYPES = {DType.FLOAT32: "float", DType.FLOAT16: "float16", DType.BFLOAT16: "bfloat16"}


@dataclass(frozen=True)
class NodeArg:
    """An input or output.

    :ivar shape: in the order of ``layout``; an dynamic dimension of an ONNX model is its name, or None
    :ivar type: as onnxruntime writes it, for example ``tensor(float)``; the type inside the model
    :ivar layout: ``NCHW``, ``NHWC``, ``NC1HWC2``, or ``UNDEFINED`` for what is not an image
    :ivar quantization: scale and zero point; None for values as they are
    :ivar strides: bytes from one element to the next along each axis
    """

    name: str
    shape: list[Any]
    type: str
    layout: str
    quantization: Quantization | None = field(default=None)
    strides: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class ModelMetadata:
    """What the model states about itself.

    :ivar custom_metadata_map: the ``metadata_props`` of the ONNX model, and under ``rknn_custom_string`` the text of the model file
    """

    custom_metadata_map: Mapping[str, str] = field(default_factory=dict)
    producer_name: str = ""
    graph_name: str = ""
    description: str = ""
    version: int = 0
    domain: str = ""
    graph_description: str = ""

    @classmethod
    def of_entries(cls, entries: Mapping[str, str]) -> ModelMetadata:
        """From what a backend has."""
        found = OnnxMetadata.of_entries(entries)
        return cls(
            dict(found.properties),
            producer_name=found.producer_name,
            graph_name=found.graph_name,
            description=found.description,
            version=found.version,
            domain=found.domain,
            graph_description=found.graph_description,
        )


def type_string(dtype: DType) -> str:
    """As onnxruntime writes a type.

    >>> type_string(DType.FLOAT32), type_string(DType.INT8)
    ('tensor(float)', 'tensor(int8)')
    """
    return f"tensor({_TYPES.get(dtype, dtype.value)})"


def node(spec: TensorSpec, last: bool) -> NodeArg:
    """An input or output as a user feeds or gets it."""
    shape = channels_last(spec.shape) if last else spec.shape
    layout = "UNDEFINED" if len(spec.shape) != 4 else "NHWC" if last else "NCHW"
    return NodeArg(spec.name, list(shape), type_string(spec.dtype), layout, spec.quantization, byte_strides(shape, spec))


def native_node(spec: TensorSpec) -> NodeArg:
    """An input or output as it lies in the device's memory."""
    layout = "UNDEFINED" if spec.layout is Layout.PLAIN else spec.layout.value.upper()
    shape = spec.memory_shape
    return NodeArg(spec.name, list(shape), type_string(spec.dtype), layout, spec.quantization, byte_strides(shape, spec))


def byte_strides(shape: Sequence[int], spec: TensorSpec) -> list[int]:
    """Bytes from one element to the next along each axis of *shape*."""
    strides, step = [], spec.dtype.storage.itemsize
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return strides[::-1]


def output_types(outputs: Sequence[TensorSpec], asked: str | Mapping[str, str]) -> list[np.dtype[Any]]:
    """The type in which each output is given."""
    if isinstance(asked, Mapping):
        unknown = [name for name in asked if name not in [spec.name for spec in outputs]]
        if unknown:
            raise OptionError(
                f"output_type names '{unknown[0]}', which is no output",
                hint=f"there are: {', '.join(spec.name for spec in outputs)}",
            )
    types = []
    for spec in outputs:
        kind = asked.get(spec.name, "float32") if isinstance(asked, Mapping) else asked
        own = spec.dtype.storage
        values = spec.quantization is not None or spec.dtype.is_float
        if kind == "model":
            types.append(np.dtype(np.float32) if spec.dtype is DType.BFLOAT16 else own)
        elif kind == "float32" and not values and not isinstance(asked, Mapping):
            types.append(own)
        else:
            types.append(np.dtype(kind))
    return types


def wanted_outputs(names: object, outputs: Sequence[TensorSpec]) -> list[int]:
    """The numbers of the outputs that *names* asks for; all for None and for an empty list."""
    if names is None:
        return list(range(len(outputs)))
    if isinstance(names, str):
        names = [names]
    if not isinstance(names, Sequence):
        raise FeedNameError(f"output_names must be a list of names, not {type(names).__name__}", hint="pass None for all outputs")
    if not names:
        return list(range(len(outputs)))
    numbers = {spec.name: number for number, spec in enumerate(outputs)}
    try:
        return [numbers[name] for name in names]
    except (KeyError, TypeError):
        unknown = next(name for name in names if name not in numbers)
        raise FeedNameError(
            f"Unknown output name: there is no output {unknown!r}", hint=f"the model has: {', '.join(numbers)}"
        ) from None
