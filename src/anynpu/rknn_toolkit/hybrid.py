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

from ..compiler.quantization_cfg import CfgEntry, read_cfg
from ..errors import ModelError
from ..program import Model
from ..tensor import Affine, DType
from .config import Config

__all__ = ["Prepared", "QuantizationConfig", "parse_config", "read_prepared", "write_config", "write_prepared"]

_FORMAT = "anynpu hybrid quantisation 1"
_CLOSE = 1e-6


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
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
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
    cfg = read_cfg(path)
    ranges = {name: entry.affine for name, entry in cfg.entries.items() if _was_changed(name, entry)}
    return QuantizationConfig(cfg.floats, ranges)


def _was_changed(name: str, entry: CfgEntry) -> bool:
    """Whether min or max of a tensor is no longer what its scale says."""
    if not entry.scale:
        raise ModelError(f"quantize_parameters of '{name}' lacks numbers for scale or zero_point", hint="change numbers only")
    width = entry.scale * 255
    written = ((-128 - entry.zero_point) * entry.scale, (127 - entry.zero_point) * entry.scale)
    return abs(entry.low - written[0]) > _CLOSE * width or abs(entry.high - written[1]) > _CLOSE * width


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else str(value)


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_/][\w./-]*", name) else json.dumps(name)
