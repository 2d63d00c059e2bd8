"""The ``.quantization.cfg`` of Rockchip's toolkit, read: which range each int8 tensor has, and what stays in float16.

The file is YAML; what is read here is the part of YAML that such files use. It is never written from what was read: the toolkit takes
changes of ``min`` and ``max`` only, as text (:mod:`anynpu.compiler.board.worker`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ModelError, ParameterError

FLOATS = ("float16", "fp16", "float32")
"""The types that ``custom_quantize_layers`` may name for a layer in float."""

_SUFFIX = "_int8"
MADE_SUFFIXES = ("_tp_rs", "_tp-rs", "_mm", "-rs", "_rs")
"""What the toolkit appends to the name of a tensor that it makes in another shape: by a convolution for a Gemm, or before a Reshape."""


@dataclass(frozen=True)
class CfgEntry:
    """The quantization of one int8 tensor: ``min`` and ``max`` decide, ``scale`` and ``zero_point`` are what they were before an edit.

    Only where a tensor was always 0 are they what counts: the toolkit writes 0 for both ends then.
    """

    low: float
    high: float
    scale: float
    zero_point: int

    @property
    def is_zero(self) -> bool:
        """Whether the tensor was 0 in all samples, and has a scale all the same."""
        return self.low == self.high == 0.0 and 0.0 < self.scale < np.inf and -128 <= self.zero_point <= 127

    @property
    def affine(self) -> tuple[float, int]:
        """Scale and zero point as the toolkit derives them: in double, the zero point from the unrounded scale."""
        if self.is_zero:
            return self.scale, self.zero_point
        low, high = min(self.low, 0.0), max(self.high, 0.0)
        scale = (high - low) / 255
        return scale, int(np.clip(np.rint(-128 - low / scale), -128, 127))


@dataclass(frozen=True)
class QuantizationCfg:
    """A ``.quantization.cfg``.

    :ivar floats: tensors whose producer computes in float16
    :ivar entries: int8 tensors by their name in the ONNX model; an input or output has its range, not that of a copy
    """

    floats: tuple[str, ...] = ()
    entries: dict[str, CfgEntry] = field(default_factory=dict)

    def ranges(self) -> dict[str, tuple[float, int]]:
        """Scale and zero point of every int8 tensor."""
        return {name: entry.affine for name, entry in self.entries.items()}


def final_ranges(log: str) -> dict[str, tuple[float, float]]:
    """The ranges that the toolkit took instead of those that it was asked for, from what it printed in step 2.

    :param log: without colors

    >>> lines = ["The (min, max) of quantize_parameters['x'] were changed:", "    from: (0.0, 1.0)", "    to  : (0.0, 3.0)"]
    >>> final_ranges("\\n".join([*lines, "    But final to (0.0, 2.0)!"]))
    {'x': (0.0, 2.0)}
    """
    found: dict[str, tuple[float, float]] = {}
    name, before = "", (0.0, 0.0)
    for line in log.splitlines():
        if (changed := _CHANGED.search(line)) is not None:
            name = changed[1]
        elif name and (numbers := _PAIR.search(line)) is not None:
            low, high = float(numbers[2]), float(numbers[3])
            if numbers[1] == "from:":
                before = (low, high)
            elif numbers[1] == "But final to":
                found[name] = (low, high)
        elif name and "BUT IT IS INVALID" in line:
            found[name] = before
    return found


_CHANGED = re.compile(r"quantize_parameters\['(.*)'\] were changed:")
_PAIR = re.compile(r"\s(from:|But final to)\s*\(([-+.\deE]+), ([-+.\deE]+)\)")


def parse_cfg(
    text: str, source: str = "the .quantization.cfg", final: Mapping[str, tuple[float, float]] | None = None
) -> QuantizationCfg:
    """What the text of a ``.quantization.cfg`` states.

    :param final: ranges that count instead, by the names of the file

    >>> lines = ["quantize_parameters:", "    x_int8:", "        dtype: int8", "        min: [-1.0]", "        max: [1.0]"]
    >>> cfg = parse_cfg("\\n".join(lines))
    >>> cfg.ranges()["x"][1]
    0
    """
    document = _parse_yaml(text)
    layers, parameters = (document.get(key) or {} for key in ("custom_quantize_layers", "quantize_parameters"))
    if not isinstance(layers, dict) or not isinstance(parameters, dict) or "quantize_parameters" not in document:
        raise ModelError(f"{source} has no tables of layers and parameters", hint="begin again with the file of step 1")
    floats = []
    for name, kind in layers.items():
        if kind not in (*FLOATS, "int8"):
            raise ParameterError(f"'{name}' cannot be {kind}", hint="custom_quantize_layers takes float16")
        if kind in FLOATS:
            floats.append(str(name))
    entries: dict[str, CfgEntry] = {}
    for name, values in parameters.items():
        if isinstance(values, dict) and values.get("dtype", "int8") == "int8":
            entry = _entry(str(name), values)
            low, high = (final or {}).get(str(name), (entry.low, entry.high))
            entries[str(name)] = replace(entry, low=low, high=high)
    for name in [name for name in entries if name.endswith(_SUFFIX)]:
        whole = name[: -len(_SUFFIX)]
        if whole in parameters or whole not in entries:
            entries[whole] = entries.pop(name)
    for name in list(entries):
        for suffix in MADE_SUFFIXES:
            if name.endswith(suffix):
                entries.setdefault(name[: -len(suffix)], entries[name])
    return QuantizationCfg(tuple(floats), entries)


def _entry(name: str, values: dict[str, Any]) -> CfgEntry:
    try:
        low, high = (float(np.ravel(values[key])[0]) for key in ("min", "max"))
        scale, zero = (np.ravel(values.get(key, [])) for key in ("scale", "zero_point"))
        entry = CfgEntry(low, high, float(scale[0]) if scale.size else 0.0, int(zero[0]) if zero.size else 0)
    except (TypeError, KeyError, ValueError, IndexError, OverflowError):
        raise ModelError(
            f"quantize_parameters of '{name}' lacks numbers for min, max, scale or zero_point", hint="change numbers only"
        ) from None
    if not entry.is_zero and not (np.isfinite([low, high]).all() and (max(high, 0.0) - min(low, 0.0)) / 255 > 0):
        raise ParameterError(f"the range of '{name}' is empty", hint="max must be larger than min")
    return entry


def read_cfg(path: Path, final: Mapping[str, tuple[float, float]] | None = None) -> QuantizationCfg:
    """A ``.quantization.cfg`` from a file; *final* as for :func:`parse_cfg`."""
    try:
        return parse_cfg(path.read_text(encoding="utf-8"), str(path), final)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}", hint="pass the .quantization.cfg of step 1") from None
    except UnicodeDecodeError:
        raise ModelError(f"{path} is not text", hint="pass the .quantization.cfg of step 1") from None


_MAX_LINE = 1 << 20
_MAX_GAP = " " * 1000
"""Length of a line that is read, and spaces inside of one: the pattern takes time in proportion to their product."""

_MAX_DEPTH = 4
"""Lists in lists."""

_LINE = re.compile(r"""(\s*)(?:"((?:[^"\\]|\\.)*)"|'((?:[^']|'')*)'|([^\s:#](?:[^#]|(?<=\S)#)*?))\s*:(?:\s+(.*?))?\s*""")


def _parse_yaml(text: str) -> dict[str, Any]:
    """Nested mappings by indentation, with scalars and lists, in brackets or one entry per line."""
    root: dict[str, Any] = {}
    stack: list[tuple[int, dict[str, Any]]] = [(-1, root)]
    pending: tuple[dict[str, Any], str] | None = None
    anchors: dict[str, tuple[dict[str, Any], str]] = {}
    for number, line in _joined(text):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if pending is not None and line.lstrip().startswith("- "):
            holder, key = pending
            if not isinstance(holder[key], list):
                holder[key] = []
            holder[key].append(_scalar(line.strip()[2:]))
            continue
        match = None if len(line) > _MAX_LINE or _MAX_GAP in line.lstrip() else _LINE.fullmatch(line)
        name = None if match is None else _key(match)
        if match is None or name is None:
            raise ModelError(
                f"line {number} of the quantization.cfg cannot be read: {line.strip()[:200]}", hint="write 'name: value'"
            )
        indent, key = len(match[1]), name
        while stack[-1][0] >= indent:
            stack.pop()
        holder = stack[-1][1]
        value = (match[5] or "").partition(" #")[0].strip()
        if value.startswith("&"):  # a list that another place names again
            anchors[value[1:]] = (holder, key)
            value = ""
        if value.startswith("*") and value[1:] in anchors:
            there, name = anchors[value[1:]]
            holder[key], pending = there[name], None
            continue
        if value:
            holder[key] = _scalar(value)
            pending = None
        else:
            child: dict[str, Any] = {}
            holder[key] = child
            stack.append((indent, child))
            pending = (holder, key)
    return root


_BRACKETS = {"{": "}", "[": "]"}
_OPENS = re.compile(r":\s+([{\[])[^}\]]*$")


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """The lines with their numbers; a list in brackets that goes on over several lines is one line."""
    lines = enumerate(map(str.rstrip, text.splitlines()), 1)
    for number, line in lines:
        opened = None if line.lstrip().startswith("#") else _OPENS.search(line[:_MAX_LINE])
        if opened is None:
            yield number, line
            continue
        parts, size, end = [line], len(line), _BRACKETS[opened[1]]
        for _, more in lines:
            size += len(more)
            parts.append(more.strip())
            if end in more or size > _MAX_LINE:
                break
        yield number, " ".join(parts)


def _key(match: re.Match[str]) -> str | None:
    if match[2] is not None:
        try:
            return str(json.loads(f'"{match[2]}"'))
        except ValueError:  # an escape that there is not
            return None
    return str(match[3].replace("''", "'") if match[3] is not None else match[4])


def _scalar(text: str, depth: int = 0) -> Any:
    text = text.strip()
    if depth > _MAX_DEPTH:
        return text
    if text in ("{}", "~", "null"):
        return {}
    if text.startswith("{") and text.endswith("}"):
        pairs = (pair.rpartition(":") for pair in text[1:-1].split(",") if pair.strip())
        return {key.strip().strip("\"'"): _scalar(value, depth + 1) for key, _, value in pairs}
    if text.startswith("[") and text.endswith("]"):
        return [_scalar(part, depth + 1) for part in text[1:-1].split(",") if part.strip()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip("\"'")
