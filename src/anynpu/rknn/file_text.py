"""What stands in clear in the payload of a genuine ``.rknn``: texts that anyone sees who opens the file as text.

rknn-toolkit2 writes, before the instructions and weights: JSON with the type and layout of inputs and outputs; a text in Python's notation
with mean, std and the ranges of inputs and outputs; and for each layer its name, as ``Conv:Conv_12``, with the operator right behind it.
Nothing else of the payload is looked at.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["PayloadText", "payload_text"]

_HEAD = 1 << 16
"""Bytes at the beginning in which the texts about inputs and outputs stand."""

_MAX_BYTES = 16 << 20
"""Of those in which layers are looked for: a large network has some megabytes of them."""

_MAX_LAYERS = 100_000
_MAX_VALUES = 4096
_MAX_ATTRIBUTES = 1 << 15

# Each begins where no other can begin: a text that fits almost everywhere, and never to its end, would take minutes otherwise.
_LAYER = re.compile(
    rb"(?<=\x00\x00)([A-Za-z]\w{1,63}):([^\x00-\x1f]{1,512})\x00{1,4}([\x01-\x40])\x00\x00\x00([A-Za-z]\w{1,63})\x00"
)
_TEXT = re.compile(rb"[^\x00-\x1f]+")
_MAX_TYPES = 1 << 14
_ENDS = ("InputOperator", "OutputOperator")


@dataclass(frozen=True)
class PayloadText:
    """What was found.

    :ivar layers: name and operator, in the order of execution
    :ivar types: type and layout of inputs and outputs, in small letters
    :ivar preprocess: mean and std of inputs that have them
    :ivar scales: scale and zero point of inputs and outputs, where they are named
    """

    layers: tuple[tuple[str, str], ...] = ()
    types: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    preprocess: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = field(default_factory=dict)
    scales: Mapping[str, tuple[float, int]] = field(default_factory=dict)


def payload_text(payload: memoryview) -> PayloadText:
    """The texts of a payload; whatever is not of the known form is left out."""
    head = bytes(payload[:_HEAD])
    preprocess, scales = _attributes(head)
    return PayloadText(_layers(bytes(payload[:_MAX_BYTES])), _types(head), preprocess, scales)


def _layers(data: bytes) -> tuple[tuple[str, str], ...]:
    """Texts with their length in front, a name and its operator one after the other. The toolkit writes the last layer first."""
    found = []
    for match in _LAYER.finditer(data):
        start, size = match.start(), match.end(2) - match.start()
        if data[max(start - 4, 0) : start] != size.to_bytes(4, "little") or match[3][0] != len(match[4]):
            continue
        kind = match[4].decode()
        if kind not in _ENDS:
            found.append((match[2].decode("utf-8", "replace"), kind))
        if len(found) >= _MAX_LAYERS:
            break
    return tuple(reversed(found))


def _blocks(head: bytes, begin: bytes, most: int) -> Iterator[str]:
    """What stands between *begin* and the last brace, at most once in each text."""
    for match in _TEXT.finditer(head):
        text = match.group()
        start = text.find(begin)
        end = text.rfind(b"}") + 1
        if 0 <= start < end <= start + most:
            yield text[start:end].decode("utf-8", "replace")


def _types(head: bytes) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for text in _blocks(head, b'{"', _MAX_TYPES):
        try:
            block = json.loads(text)
        except (ValueError, RecursionError):
            continue
        for name, entry in list(block.items())[:_MAX_VALUES] if isinstance(block, dict) else []:
            if isinstance(entry, dict):
                kind, layout = entry.get("dtype"), entry.get("layout")
                if isinstance(kind, str) and isinstance(layout, str) and kind.isalnum() and layout.isalnum():
                    found.setdefault(name, (kind.lower()[:16], layout.lower()[:16]))
    return found


def _attributes(
    head: bytes,
) -> tuple[dict[str, tuple[tuple[float, ...], tuple[float, ...]]], dict[str, tuple[float, int]]]:
    text = next(_blocks(head, b"{'attrs': ", _MAX_ATTRIBUTES), None)
    document: Any = None
    if text is not None:
        try:
            document = ast.literal_eval(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            document = None
    if not isinstance(document, dict):
        return {}, {}
    preprocess = {}
    for name, entry in _named(document.get("attrs")):
        mean, std = (_numbers(entry.get(key)) for key in ("mean", "std"))
        count = max(len(mean), len(std))
        if mean and std and {len(mean), len(std)} <= {1, count}:  # one number stands for all channels
            preprocess[name] = (mean * (count // len(mean)), std * (count // len(std)))
    scales = {}
    for name, entry in _named(document.get("quant_tab")):
        scale, zero = (_numbers(entry.get(key)) for key in ("scale", "zero_point"))
        if len(scale) == len(zero) == 1 and scale[0] > 0 and zero[0] == int(zero[0]):
            scales[name] = (scale[0], int(zero[0]))
    return preprocess, scales


def _named(value: Any) -> list[tuple[str, dict[Any, Any]]]:
    entries = list(value.items())[:_MAX_VALUES] if isinstance(value, dict) else []
    return [(name, entry) for name, entry in entries if isinstance(name, str) and isinstance(entry, dict)]


def _numbers(value: Any) -> tuple[float, ...]:
    """A list of numbers; empty for anything else."""
    entries = value if isinstance(value, list) and len(value) <= _MAX_VALUES else []
    if not all(isinstance(entry, (int, float)) and not isinstance(entry, bool) and abs(entry) < 1e30 for entry in entries):
        return ()
    return tuple(float(entry) for entry in entries)
