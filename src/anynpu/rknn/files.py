"""What a vendor-compiled ``.rknn`` states about itself: the fixed header, and the JSON at the end. The rest stays closed."""

from __future__ import annotations

import ast
import json
import math
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .. import chips
from ..errors import ModelFormatError
from ..modelfile.recognize import FileKind
from ..modelfile.vendorfile import DAMAGED, VendorModelInfo, VendorTensor
from .table import ENCRYPTED_MARK, MARK

# What stands in plain text in the payload of a vendor-compiled ``.rknn``: texts that anyone sees who opens the file as text.
#
# rknn-toolkit2 writes, before the instructions and weights: JSON with the type and layout of inputs and outputs; a text in Python's
# notation with mean, std and the ranges of inputs and outputs; and for each layer its name, as ``Conv:Conv_12``, with the operator
# right behind it. Nothing else of the payload is looked at.


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
    """Texts after their length, a name and its operator one after the other. The toolkit writes the last layer first."""
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


_KIND = FileKind("rknn")
_MAX_TEXT = 1024
_MAX_TENSORS = 4096
_MAX_DIMENSIONS = 16
_HEADER = struct.Struct("<4s4xQQ")
_PAYLOAD_STARTS = (64, 24)  # the header has 64 bytes, only 24 in the oldest format or without a payload
_MAX_TRAILER = 8 << 20
_SEARCH_WINDOW = 1 << 20
_SEARCH_BUDGET = 8 << 20
_MAX_CANDIDATES = 4096
_WHOLE = "RKNN_OP_NNBG"
"""The operator that stands for the whole network, whose layers are not in the readable part."""

_TYPES = {"fp16": "float16", "fp32": "float32", "half": "float16", "float": "float32"}


def read(data: memoryview) -> VendorModelInfo:
    """What a vendor-compiled ``.rknn`` states about itself.

    :raises ModelFormatError: it is no ``.rknn`` of Rockchip's toolkits
    """
    if bytes(data[:8]) == ENCRYPTED_MARK:
        return VendorModelInfo(_KIND, 0, toolkit="rknn-toolkit2", notes=("the file is encrypted; nothing in it can be read",))
    if bytes(data[:4]) != MARK or len(data) < _HEADER.size:
        raise ModelFormatError("this is not an .rknn file", hint=DAMAGED)
    _, version, payload = _HEADER.unpack_from(data)
    notes: list[str] = []
    blocks = list(_trailer(data, payload))
    if not blocks:
        notes.append(
            f"the description is not where the header points (payload of {payload} bytes in a file of {len(data)}); searched for it"
        )
    window = data[-_SEARCH_WINDOW:]
    blocks += [block for block in _json_blocks(window) if block not in blocks]
    if not blocks:
        notes.append("no description was found: the file is cut off, or of a format that is not known")
    main: dict[str, Any] = next((block for block in blocks if "norm_tensor" in block or "target_platform" in block), {})
    text = payload_text(data[_HEADER.size : _HEADER.size + min(payload, len(data))])
    known = {name: _completed(tensor, text) for name, tensor in _named_tensors(blocks).items()}
    inputs, outputs = (_ports(blocks, main, direction, known) for direction in ("input", "output"))
    if blocks and not (inputs or outputs):
        notes.append("inputs and outputs are not named in a way that is known")
    if any(not tensor.scale and tensor.quantization != "none" for tensor in (*inputs, *outputs)):
        notes.append("scales and zero points are not in the readable part of the file")
    layers = _nodes(main) or tuple(f"{name} ({kind})" for name, kind in text.layers)
    if main and not layers:
        notes.append("the layers are not in the readable part of the file")
    targets = _targets(blocks)
    return VendorModelInfo(
        _KIND,
        version,
        target=", ".join(targets),
        chip=_known_chip(targets),
        toolkit=_toolkit(blocks),
        name=_first_text(blocks, "name"),
        inputs=inputs,
        outputs=outputs,
        layers=layers,
        notes=tuple(notes),
        preprocess=dict(text.preprocess),
    )


def _trailer(data: memoryview, payload: int) -> Iterator[dict[str, Any]]:
    """The JSON after the payload and its length."""
    for start in _PAYLOAD_STARTS:
        position = start + payload
        if position + 8 > len(data):
            continue
        size = int.from_bytes(data[position : position + 8], "little")
        if not 2 <= size <= min(_MAX_TRAILER, len(data) - position - 8):
            continue
        block = _parse(bytes(data[position + 8 : position + 8 + size]))
        if isinstance(block, dict):
            yield block
            return


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _json_blocks(window: memoryview) -> Iterator[dict[str, Any]]:
    """Objects that stand somewhere among other bytes. The work is bounded by a budget of characters, whatever the bytes are."""
    text = bytes(window).decode("latin-1")  # one character a byte, so that positions stay what they are
    decoder = json.JSONDecoder()
    budget, position = _SEARCH_BUDGET, 0
    for _ in range(_MAX_CANDIDATES):
        candidate = _CANDIDATE.search(text, position)
        if candidate is None or budget <= 0:
            return
        start = candidate.start()
        position = start + 1
        try:
            _, end = decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            budget -= error.pos - start
            continue
        except (ValueError, RecursionError):
            budget -= 1 << 16
            continue
        budget -= end - start
        position = end
        block = _parse(bytes(window[start:end]))
        for item in block if isinstance(block, list) else [block]:
            if isinstance(item, dict):
                yield item


_CANDIDATE = re.compile(r'\{\s*"|\[\s*\{\s*"')


def _text(value: Any) -> str:
    return value[:_MAX_TEXT] if isinstance(value, str) else ""


def _first_text(blocks: list[dict[str, Any]], key: str) -> str:
    return next((_text(block[key]) for block in blocks if _text(block.get(key))), "")


def _targets(blocks: list[dict[str, Any]]) -> list[str]:
    for block in blocks:
        for key in ("target_platform", "target", "platform"):
            value = block.get(key)
            names = value[:16] if isinstance(value, list) else [value]
            targets = [_text(name).lower() for name in names if _text(name)]
            if targets:
                return targets
    return []


def _known_chip(targets: list[str]) -> str:
    return next((name for name in targets if name in chips.names()), "")


def _toolkit(blocks: list[dict[str, Any]]) -> str:
    for block in blocks:
        number = re.match(r"v?(\d+(?:\.\d+){1,3})", _text(block.get("version")))
        if number:
            older = "ovxlib_version" in block  # Rockchip's first line of toolkits, for other chips
            return f"{'rknn-toolkit' if older else 'rknn-toolkit2'} {number.group(1)}"
    return ""


def _nodes(main: dict[str, Any]) -> tuple[str, ...]:
    nodes = main.get("nodes")
    found = []
    for node in nodes[:_MAX_LAYERS] if isinstance(nodes, list) else []:
        if isinstance(node, dict):
            if _text(node.get("op")) == _WHOLE:
                continue
            name, kind = _text(node.get("name")), _text(node.get("op")).removeprefix("RKNN_OP_").removeprefix("VSI_NN_OP_")
            found.append(f"{name} ({kind})" if name and kind else name or kind)
    return tuple(filter(None, found))


def _tensor(entry: Any) -> VendorTensor | None:
    """A tensor, if a JSON object looks like one: a name and a shape, and perhaps a type and a layout."""
    if not isinstance(entry, dict):
        return None
    name = next((_text(entry[key]) for key in ("url", "name", "tensor_name") if _text(entry.get(key))), "")
    shape = next((entry[key] for key in ("size", "shape", "dims", "ori_shape") if isinstance(entry.get(key), list)), None)
    if not name or shape is None or len(shape) > _MAX_DIMENSIONS:
        return None
    if not all(isinstance(extent, int) and not isinstance(extent, bool) and 0 <= extent < 1 << 40 for extent in shape):
        return None
    declared = entry.get("dtype", entry.get("type"))
    details = declared if isinstance(declared, dict) else {}
    dtype = _text(declared) or _text(details.get("vx_type")) or _text(details.get("qnt_type"))
    dtype = dtype.rpartition("VSI_NN_TYPE_")[2].lower()
    quantization = "affine" if _text(details.get("qnt_method")) else ""
    if details and all(details.get(key) == "" for key in ("qnt_method", "qnt_type", "vx_type")):
        dtype, quantization = "float16", "none"  # so rknn-toolkit2 2.5.0 wrote it for models that were not quantized
    scale, zero = (_number(entry.get(key, details.get(key))) for key in ("scale", "zero_point"))
    return VendorTensor(
        name,
        tuple(shape),
        dtype=_TYPES.get(dtype, dtype),
        layout=(_text(entry.get("layout")) or _text(entry.get("fmt"))).lower(),
        quantization=quantization,
        scale=scale,
        zero_point=None if zero is None else int(zero),
    )


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e30 or not math.isfinite(value):
        return None
    return float(value)


def _entries(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    return value[:_MAX_TENSORS] if isinstance(value, list) else []


def _named_tensors(blocks: list[dict[str, Any]]) -> dict[str, VendorTensor]:
    """Everything that looks like a tensor, by name: where one block lacks the type or layout, another may have it."""
    found: dict[str, VendorTensor] = {}
    for block in blocks:
        for value in (block, *block.values()):
            for entry in [value] if value is block else _entries(value):
                tensor = _tensor(entry)
                if tensor is not None:
                    found[tensor.name] = _merged(found.get(tensor.name), tensor)
    return found


def _completed(tensor: VendorTensor, text: PayloadText) -> VendorTensor:
    """A tensor with what the payload states about it in plain text, where the description states nothing."""
    dtype, layout = text.types.get(tensor.name, ("", ""))
    scale, zero = text.scales.get(tensor.name, (None, None))
    return _merged(tensor, replace(tensor, dtype=_TYPES.get(dtype, dtype), layout=layout, scale=scale, zero_point=zero))


def _merged(first: VendorTensor | None, second: VendorTensor) -> VendorTensor:
    if first is None:
        return second
    return replace(
        first,
        dtype=first.dtype or second.dtype,
        layout=first.layout or second.layout,
        quantization=first.quantization or second.quantization,
        scale=second.scale if first.scale is None else first.scale,
        zero_point=second.zero_point if first.zero_point is None else first.zero_point,
    )


def _ports(
    blocks: list[dict[str, Any]], main: dict[str, Any], direction: str, known: dict[str, VendorTensor]
) -> tuple[VendorTensor, ...]:
    """Inputs or outputs: by the links of the graph to its tensors, or by a list of that name."""
    by_number = {}
    for entry in _entries(main.get("norm_tensor")):
        tensor = _tensor(entry)
        number = entry.get("tensor_id") if isinstance(entry, dict) else None
        if tensor is not None and isinstance(number, int):
            by_number[number] = known[tensor.name]
    linked = []
    for link in _entries(main.get("graph")):
        if isinstance(link, dict) and link.get("left") == direction and link.get("right") == "norm_tensor":
            number = link.get("right_tensor_id")
            if isinstance(number, int) and number in by_number:
                linked.append(by_number[number])
    if linked:
        return tuple(linked)
    for block in blocks:
        for key in (f"{direction}s", direction, f"{direction}_tensors", f"{direction}_attrs"):
            listed = [_tensor(entry) for entry in _entries(block.get(key))]
            named = tuple(known[tensor.name] for tensor in listed if tensor is not None)
            if named:
                return named
    return ()
