"""What an ONNX file states about itself, read without its weights and without asking whether it could be compiled."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..._util import optional as _optional
from ...compiler.importers import is_foreign
from ...errors import ModelFormatError
from ...program import Model


@dataclass(frozen=True)
class OnnxTensor:
    """An input or output. An axis without a fixed size is a text: its name, or ``?``."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class OnnxInfo:
    """The outside of an ONNX model, and how often it uses which operator."""

    inputs: tuple[OnnxTensor, ...]
    outputs: tuple[OnnxTensor, ...]
    opset: int
    producer: str
    nodes: int
    operators: dict[str, int]
    metadata: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """The facts as JSON-ready data."""
        return {"format": "onnx", **asdict(self)}


def describe(path: Path) -> OnnxInfo:
    """Read the ONNX file *path*, or a TFLite file as what it becomes."""
    proto = _read(path)
    graph = proto.graph
    constants = {initializer.name for initializer in graph.initializer}
    opsets = {entry.domain: entry.version for entry in proto.opset_import}
    return OnnxInfo(
        inputs=tuple(_tensor(value) for value in graph.input if value.name not in constants),
        outputs=tuple(_tensor(value) for value in graph.output),
        opset=opsets.get("", opsets.get("ai.onnx", 0)),
        producer=f"{proto.producer_name} {proto.producer_version}".strip(),
        nodes=len(graph.node),
        operators=dict(Counter(node.op_type for node in graph.node).most_common()),
        metadata={entry.key: entry.value for entry in proto.metadata_props},
    )


def input_names(path: Path) -> list[str]:
    """The inputs that a caller supplies."""
    return [tensor.name for tensor in describe(path).inputs]


def foreign_operators(path: Path) -> list[str]:
    """Types of nodes that only a program of the user can compute: their domains are not ONNX's own."""
    from ...compiler.custom_operators import foreign_operators as of_model

    return [] if is_foreign(path) else of_model(_parse(path))


def _read(path: Path) -> Any:
    if not is_foreign(path):
        return _parse(path)
    from ...compiler.importers.onnx_model import read_onnx

    return read_onnx(path)


def _parse(path: Path) -> Any:
    onnx = _optional.onnx()
    from google.protobuf.message import DecodeError

    data = path.read_bytes()
    _check_kind(path, data)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, ValueError, RecursionError):
        proto = None
    if proto is None or not (proto.graph.node or proto.graph.output):
        raise ModelFormatError(f"{path} is not an ONNX model, or is damaged", hint="export the model to ONNX again")
    return proto


def _check_kind(path: Path, data: bytes) -> None:
    """Reject files of other known kinds by their names."""
    from ...modelfile.recognize import FileKind, kind_of, name_content, vendor_of

    found = vendor_of(memoryview(data))
    if found is not None:
        ours = kind_of(memoryview(data)) is FileKind.ANYNPU
        maker = "anynpu" if ours else f"the toolkit of {found[0].title}"
        raise ModelFormatError(
            f"{path} is a compiled model, made by {maker}, not an ONNX model",
            hint="give the ONNX model that it was made of; 'anynpu inspect' shows what a compiled model holds",
        )
    other = name_content(data)
    if other is not None:
        raise ModelFormatError(f"{path} is {other[0]}, not an ONNX model", hint=other[1])


def _tensor(value: Any) -> OnnxTensor:
    onnx = _optional.onnx()
    tensor = value.type.tensor_type
    axes: list[int | str] = []
    for axis in tensor.shape.dim:
        fixed = axis.HasField("dim_value") and axis.dim_value > 0
        axes.append(axis.dim_value if fixed else axis.dim_param or "?")
    known = tensor.elem_type in onnx.TensorProto.DataType.values() and tensor.elem_type != 0
    dtype = onnx.TensorProto.DataType.Name(tensor.elem_type).lower() if known else "?"
    return OnnxTensor(value.name, {"float": "float32", "double": "float64"}.get(dtype, dtype), tuple(axes))


# How images are prepared for a network: what a file states, and what the network itself reacts to.


def trained_orders(model: Model) -> dict[str, str]:
    """The order of channels that each input was trained with, where the file states it."""
    try:
        entries = json.loads(model.provenance.get("channel_order", ""))
    except (ValueError, RecursionError):
        return {}
    names = {spec.name for spec in model.inputs}
    if not isinstance(entries, dict):
        return {}
    return {name: order for name, order in entries.items() if name in names and order in ("rgb", "bgr")}


def reversed_orders(model: Model) -> dict[str, str]:
    """Inputs whose channels the ONNX model takes in another order than the file does, which is RGB but for some pre-process nodes."""
    taken = {name: entry.picture or "rgb" for name, entry in model.preprocess.items()}
    return {name: "bgr" for name, order in trained_orders(model).items() if order != taken.get(name, "rgb")}


def reaction_line(file: Path, dataset: Path, shapes: Mapping[str, tuple[int, ...]] | None) -> tuple[str, dict[str, Any]]:
    """What an ONNX model reacts to on the images of *dataset*, in one line and as data."""
    from ...compiler.quantize.detect_preprocessing import find_recipe, pictures_of

    found = find_recipe(file, pictures_of(dataset), shapes=dict(shapes) if shapes else None)
    tried = {f"{recipe.name} {recipe.order}": round(value, 3) for recipe, value in found.values.items()}
    facts = {"reacts_to": None if found.best is None else found.best.flags, "order_known": found.order_known, "tried": tried}
    return found.words or "cannot be determined: no usual preprocessing stands out on these images", facts
