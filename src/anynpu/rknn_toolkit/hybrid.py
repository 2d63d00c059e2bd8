"""Hybrid quantisation in two steps: what the first writes and the second reads back.

``NAME.model`` is the ONNX model, ``NAME.data`` says how it is compiled (the calibration data are read again), ``NAME.quantization.cfg`` is
for the user: ``custom_quantize_layers`` names tensors that stay in float16, and ``quantize_parameters`` has the range of each int8 tensor,
whose ``min`` and ``max`` may be changed. The file is YAML; what is read here is the part of YAML that such files use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelError, ParameterError
from ..program import Model
from ..tensor import Affine, DType
from .config import Config

__all__ = ["Prepared", "QuantizationConfig", "parse_config", "read_prepared", "write_config", "write_prepared"]

_FORMAT = "anynpu hybrid quantisation 1"
_CLOSE = 1e-6
_FLOATS = ("float16", "fp16", "float32")


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
    """

    floats: tuple[str, ...]
    ranges: Mapping[str, tuple[float, int]]


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
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} is not what hybrid_quantization_step1 wrote: {error}", hint="run step 1 again") from None


def write_config(path: Path, model: Model, proposed: Iterable[str] = ()) -> None:
    """``NAME.quantization.cfg`` of a model that was compiled with one scale per tensor.

    :param proposed: tensors to keep in float16
    """
    floats = list(proposed)
    lines = ["custom_quantize_layers:" + ("" if floats else " {}")]
    lines += [f"    {_quoted(name)}: float16" for name in floats]
    lines.append("quantize_parameters:")
    for name, spec in model.programs[0].tensors.items():
        quantization = spec.quantization
        if spec.dtype is not DType.INT8 or not isinstance(quantization, Affine) or np.size(quantization.scale) != 1:
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
    try:
        document = _parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}", hint="pass the .quantization.cfg of step 1") from None
    layers, parameters = (document.get(key) or {} for key in ("custom_quantize_layers", "quantize_parameters"))
    if not isinstance(layers, dict) or not isinstance(parameters, dict):
        raise ModelError(f"{path} has no tables of layers and parameters", hint="begin again with the file of step 1")
    floats = []
    for name, kind in layers.items():
        if kind not in (*_FLOATS, "int8"):
            raise ParameterError(f"'{name}' cannot be {kind}", hint="custom_quantize_layers takes float16")
        if kind in _FLOATS:
            floats.append(str(name))
    ranges = {name: changed for name, entry in parameters.items() if (changed := _changed(str(name), entry)) is not None}
    return QuantizationConfig(tuple(floats), ranges)


def _changed(name: str, entry: Any) -> tuple[float, int] | None:
    """Scale and zero point of a tensor whose min or max is no longer what its scale says."""
    try:
        low, high, scale, zero = (float(np.ravel(entry[key])[0]) for key in ("min", "max", "scale", "zero_point"))
    except (TypeError, KeyError, ValueError, IndexError):
        raise ModelError(
            f"quantize_parameters of '{name}' lacks numbers for min, max, scale or zero_point", hint="change numbers only"
        ) from None
    written = ((-128 - zero) * scale, (127 - zero) * scale)
    if abs(low - written[0]) <= _CLOSE * scale * 255 and abs(high - written[1]) <= _CLOSE * scale * 255:
        return None
    low, high = min(low, 0.0), max(high, 0.0)
    if not high > low:
        raise ParameterError(f"the range of '{name}' is empty", hint="max must be larger than min")
    changed = (high - low) / 255
    return changed, int(np.clip(np.rint(-128 - low / changed), -128, 127))


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else str(value)


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_/][\w./-]*", name) else json.dumps(name)


_LINE = re.compile(r"""(\s*)(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s:#][^#]*?))\s*:(?:\s+(.*?))?\s*""")


def _parse(text: str) -> dict[str, Any]:
    """Nested mappings by indentation, with scalars and lists in brackets."""
    root: dict[str, Any] = {}
    stack: list[tuple[int, dict[str, Any]]] = [(-1, root)]
    pending: tuple[dict[str, Any], str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if pending is not None and line.lstrip().startswith("- "):  # a list, one entry per line
            holder, key = pending
            entries = holder[key] if isinstance(holder[key], list) else []
            holder[key] = [*entries, _scalar(line.strip()[2:])]
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ModelError(f"line {number} of the quantization.cfg cannot be read: {line.strip()}", hint="write 'name: value'")
        indent = len(match[1])
        key = json.loads(f'"{match[2]}"') if match[2] is not None else match[3] if match[3] is not None else match[4]
        while stack[-1][0] >= indent:
            stack.pop()
        holder = stack[-1][1]
        value = (match[5] or "").partition(" #")[0].strip()
        if value:
            holder[key] = _scalar(value)
            pending = None
        else:
            child: dict[str, Any] = {}
            holder[key] = child
            stack.append((indent, child))
            pending = (holder, key)
    return root


def _scalar(text: str) -> Any:
    text = text.strip()
    if text in ("{}", "~", "null"):
        return {}
    if text.startswith("{") and text.endswith("}"):
        pairs = (pair.rpartition(":") for pair in text[1:-1].split(",") if pair.strip())
        return {key.strip().strip("\"'"): _scalar(value) for key, _, value in pairs}
    if text.startswith("[") and text.endswith("]"):
        return [_scalar(part) for part in text[1:-1].split(",") if part.strip()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip("\"'")
