"""Hybrid quantization in two steps: what the first writes and the second reads back.

``NAME.model`` is the ONNX model, ``NAME.data`` states how it is compiled (the calibration data are read again),
``NAME.quantization.cfg`` is for the user: ``custom_quantize_layers`` names tensors that stay in float16, and
``quantize_parameters`` has the range of each int8 tensor, whose ``min`` and ``max`` may be changed. The file is YAML; what is
read here is the part of YAML that such files use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...compiler.toolkit.quantization_cfg import CfgEntry, read_cfg
from ...errors import ModelError, ParameterError
from ...program import Model
from ...tensor import Affine, DType
from .config import Config

_FORMAT = "anynpu hybrid quantization 1"
_CLOSE = 1e-6
_COPY = re.compile(r"(?:[-_](?:rs|sw|mm|expand|int8|float16|to_int8|to_float16)|#\d+)$")
"""What the vendor's toolkit appends to the name of a tensor that it copies into another shape or type."""


@dataclass(frozen=True)
class Prepared:
    """What the second step needs besides the model.

    :ivar sizes: shapes that were given for inputs
    """

    config: Config
    dataset: str
    name: str
    batch: int | None
    sizes: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class QuantizationConfig:
    """What a user asks for in a ``.quantization.cfg``.

    :ivar floats: tensors that stay in float16
    :ivar ranges: scale and zero point of tensors whose range was changed
    :ivar tensors: all int8 tensors that the file lists
    """

    floats: tuple[str, ...]
    ranges: Mapping[str, tuple[float, int]]
    tensors: frozenset[str] = frozenset()


def write_prepared(path: Path, prepared: Prepared) -> None:
    """``NAME.data``."""
    document = {"format": _FORMAT, **asdict(prepared)}
    path.write_text(json.dumps(document, indent=1, default=_plain) + "\n", encoding="utf-8")


def read_prepared(path: Path) -> Prepared:
    """``NAME.data``, read back."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.pop("format") != _FORMAT:
            raise ValueError("another format")
        config = document.pop("config")
        config["dynamic"] = [[tuple(shape) for shape in shapes] for shapes in config["dynamic"]]
        document["sizes"] = {name: tuple(shape) for name, shape in document["sizes"].items()}
        return Prepared(Config(**config), **document)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path} is not what hybrid_quantization_step1 wrote: {error}", hint="run step 1 again") from None


def onnx_names(proto: Any) -> set[str]:
    """The tensors of an ONNX model that a ``.quantization.cfg`` can name: step 2 knows no others."""
    return {*(entry.name for entry in proto.graph.input), *(name for node in proto.graph.node for name in node.output)}


def resolve(wanted: QuantizationConfig, proto: Any, warn: Callable[[str], None]) -> tuple[str, ...]:
    """Tensors of the compiled model for the names of ``custom_quantize_layers``.

    A name such as ``output0-rs`` or ``output0_int8`` is a copy that the vendor's toolkit makes; the tensor itself stands for it. A tensor
    whose layer was fused with the next one stands for the result of both.

    :param proto: the ONNX model
    """
    names = onnx_names(proto)
    found: dict[str, None] = {}
    for name in wanted.floats:
        own = name
        while own not in names and (copy := _COPY.search(own)) is not None:
            own = own[: copy.start()]
        if own not in names:
            own = name  # the compiler rejects it, with a hint
        taken = [own] if own not in names or own in wanted.tensors else between(proto, [[own, own]], wanted.tensors) or [own]
        if taken != [name]:
            warn(f"'{name}' is not a tensor of the compiled model; instead {', '.join(map(repr, taken))} stays in float16")
        found.update(dict.fromkeys(taken))
    return tuple(found)


def between(proto: Any, pairs: Any, known: Container[str]) -> list[str]:
    """The tensors that the nodes between pairs of tensors write, as ``custom_hybrid`` selects them.

    A tensor that the compiled model does not have, because its layer was fused with the next one, stands for the result of both.

    :param pairs: input and output of each subgraph; the same name twice is the layer that writes it
    :param known: tensors of the compiled model
    :raises ParameterError: a name is unknown, or no path leads from the input to the output
    """
    nodes, names = list(proto.graph.node), onnx_names(proto)
    if not isinstance(pairs, (list, tuple)) or not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs):
        raise ParameterError(
            "custom_hybrid is not a list of pairs of tensor names", hint="custom_hybrid=[['input_name', 'output_name']]"
        )
    found: dict[str, None] = {}
    for first, last in pairs:
        for name in (first, last):
            if name not in names:
                raise ParameterError(f"custom_hybrid: the model has no tensor '{name}'", hint="take names from the ONNX file")
        reached, needed = {first}, {last}
        for node in nodes:  # in topological order
            if not reached.isdisjoint(node.input):
                reached.update(filter(None, node.output))
        for node in reversed(nodes):
            if not needed.isdisjoint(node.output):
                needed.update(filter(None, node.input))
        inside = {name for node in nodes for name in node.output if name in reached & needed and (name != first or first == last)}
        if not inside:
            raise ParameterError(
                f"custom_hybrid: no layer leads from '{first}' to '{last}'", hint="give the input first, then the output"
            )
        for node in nodes:
            for name in node.output:
                if name in inside and name in known:
                    found[name] = None
                elif name in inside:
                    inside.update(result for reader in nodes if name in reader.input for result in filter(None, reader.output))
    return list(found)


def write_config(path: Path, model: Model, names: Container[str], proposed: Iterable[str] = ()) -> None:
    """``NAME.quantization.cfg`` of a model that was compiled with one scale per tensor.

    :param names: tensors of the ONNX model; the copies in another layout or type that the compiler adds are left out
    :param proposed: tensors to keep in float16
    """
    floats = list(dict.fromkeys(proposed))
    lines = ["custom_quantize_layers:" + ("" if floats else " {}")]
    lines += [f"    {_quoted(name)}: float16" for name in floats]
    lines.append("quantize_parameters:")
    for name, spec in model.programs[0].tensors.items():
        quantization = spec.quantization
        if (
            name not in names
            or spec.dtype is not DType.INT8
            or not isinstance(quantization, Affine)
            or np.size(quantization.scale) != 1
        ):
            continue
        scale, zero = float(np.ravel(quantization.scale)[0]), int(np.ravel(quantization.zero_point)[0])
        lines += [
            f"    {_quoted(name)}:",
            "        qtype: asymmetric_quantized",
            "        qmethod: layer",
            "        dtype: int8",
            f"        min: [{(-128 - zero) * scale!r}]",
            f"        max: [{(127 - zero) * scale!r}]",
            f"        scale: [{scale!r}]",
            f"        zero_point: [{zero}]",
        ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def parse_config(path: Path) -> QuantizationConfig:
    """What a ``.quantization.cfg`` asks for."""
    cfg = read_cfg(path)
    ranges = {name: entry.affine for name, entry in cfg.entries.items() if _was_changed(name, entry)}
    return QuantizationConfig(cfg.floats, ranges, frozenset(cfg.entries))


def _was_changed(name: str, entry: CfgEntry) -> bool:
    """Whether min or max of a tensor is no longer what its scale states."""
    if not entry.scale:
        raise ModelError(f"quantize_parameters of '{name}' lacks numbers for scale or zero_point", hint="change numbers only")
    width = entry.scale * 255
    written = ((-128 - entry.zero_point) * entry.scale, (127 - entry.zero_point) * entry.scale)
    return abs(entry.low - written[0]) > _CLOSE * width or abs(entry.high - written[1]) > _CLOSE * width


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else str(value)


def _quoted(name: str) -> str:
    """A key of YAML: plain where it may be, as programs look for names in the text."""
    return name if re.fullmatch(r"[A-Za-z_/](?:[\w./:-]*[\w./-])?", name) else json.dumps(name)
