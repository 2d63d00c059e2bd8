"""The vendors' own model files: what a genuine ``.rknn`` or ``.nb`` says about itself.

Such a file can be inspected here and executed by the vendor's runtime only. What is read is what public descriptions of the formats name:
the fixed header and the JSON at the end of a ``.rknn``, the fixed header and the tables of inputs, outputs and layers of a ``.nb`` of
version 1. Everything else stays closed, and ``notes`` says so.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from .. import chips
from ..errors import ModelFormatError, VendorModelError
from .recognise import ENCRYPTED_MAGIC, RKNN_MAGIC, VIP_MAGIC, Contents, FileKind, Source, open_source

__all__ = ["VendorModelInfo", "VendorTensor", "read_nb", "read_rknn", "refuse_vendor_model"]

_MAX_TEXT_LENGTH = 1024
_MAX_TENSORS = 4096
_MAX_DIMENSIONS = 16
_MAX_LAYERS = 100_000
_DAMAGED = "the file is damaged or was cut off; copy it again or export it again with the vendor's toolkit"


@dataclass(frozen=True)
class VendorTensor:
    """An input or output, as far as the file tells.

    :ivar shape: in the order of the original model (N, C, H, W)
    :ivar dtype: such as ``int8``; empty where the file does not say
    :ivar layout: such as ``nchw``; empty where the file does not say
    :ivar quantization: ``affine``, ``fixed point``, ``none``, or empty where the file does not say
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = ""
    layout: str = ""
    quantization: str = ""
    scale: float | None = None
    zero_point: int | None = None
    fraction_bits: int | None = None


@dataclass(frozen=True)
class VendorModelInfo:
    """What a vendor's file says about itself.

    :ivar version: of the file format
    :ivar target: the chips it was compiled for, or the number that the hardware must have
    :ivar target_id: that number, for a .nb; 0 where there is none
    :ivar chip: the first of those that is in the catalogue; empty where none is
    :ivar toolkit: the tool that wrote it and its version
    :ivar memory_bytes: memory pool that it needs; 0 where the file does not say
    :ivar notes: what was not understood, or is not to be had from the file
    """

    kind: FileKind
    version: int
    target: str = ""
    chip: str = ""
    toolkit: str = ""
    name: str = ""
    inputs: tuple[VendorTensor, ...] = ()
    outputs: tuple[VendorTensor, ...] = ()
    layers: tuple[str, ...] = ()
    memory_bytes: int = 0
    notes: tuple[str, ...] = ()
    target_id: int = 0


def refuse_vendor_model(contents: Contents, kind: FileKind) -> NoReturn:
    """Raise the error for a model that only the vendor's runtime executes, with what the file says about itself."""
    info = _rknn(contents.data) if kind is FileKind.RKNN else _nb(contents.data)
    stem = Path(contents.name).stem if contents.mapped else "model"
    source = info.toolkit or ("rknn-toolkit2" if kind is FileKind.RKNN else "the vendor's compiler")
    target = f" for {info.target}" if info.target else ""
    chip = info.chip or ("rk3588" if kind is FileKind.RKNN else "t527")
    raise VendorModelError(
        f"{contents.name} was compiled by {source}{target}; only the vendor's runtime can execute it",
        hint=f"put its twin beside it (anynpu compile {stem}.onnx -o {stem}.anynpu --target {chip}), or run on the board",
    )


def read_rknn(source: Source) -> VendorModelInfo:
    """What a genuine ``.rknn`` says about itself.

    :raises ModelFormatError: it is no ``.rknn`` of Rockchip's toolkits
    """
    return _rknn(open_source(source).data)


def read_nb(source: Source) -> VendorModelInfo:
    """What a genuine ``.nb`` (NBG) says about itself; of version 2 only the target.

    :raises ModelFormatError: it is no ``.nb``, or is damaged
    """
    return _nb(open_source(source).data)


# --- .rknn ---------------------------------------------------------------------------------------------------------------------------

_RKNN_HEADER = struct.Struct("<4s4xQQ")
_PAYLOAD_STARTS = (64, 24)  # the header has 64 bytes, only 24 in the oldest format or without a payload
_MAX_TRAILER = 8 << 20
_SEARCH_WINDOW = 1 << 20
_SEARCH_BUDGET = 8 << 20
_MAX_CANDIDATES = 4096
_RKNN_TYPES = {"fp16": "float16", "fp32": "float32", "half": "float16", "float": "float32"}


def _rknn(data: memoryview) -> VendorModelInfo:
    if bytes(data[:8]) == ENCRYPTED_MAGIC:
        return VendorModelInfo(
            FileKind.RKNN, 0, toolkit="rknn-toolkit2", notes=("the file is encrypted; nothing in it can be read",)
        )
    if bytes(data[:4]) != RKNN_MAGIC or len(data) < _RKNN_HEADER.size:
        raise ModelFormatError("this is not an .rknn file", hint=_DAMAGED)
    _, version, payload = _RKNN_HEADER.unpack_from(data)
    notes: list[str] = []
    blocks = list(_trailer(data, payload))
    if not blocks:
        notes.append(
            f"the description is not where the header says (payload of {payload} bytes in a file of {len(data)}); searched for it"
        )
    window = data[-_SEARCH_WINDOW:]
    blocks += [block for block in _json_blocks(window) if block not in blocks]
    if not blocks:
        notes.append("no description was found: the file is cut off, or of a format that is not known")
    main: dict[str, Any] = next((block for block in blocks if "norm_tensor" in block or "target_platform" in block), {})
    known = _named_tensors(blocks)
    inputs, outputs = (_ports(blocks, main, direction, known) for direction in ("input", "output"))
    if blocks and not (inputs or outputs):
        notes.append("inputs and outputs are not named in a way that is known")
    if any(not tensor.scale for tensor in (*inputs, *outputs)):
        notes.append("scales and zero points are not in the readable part of the file")
    targets = _targets(blocks)
    return VendorModelInfo(
        FileKind.RKNN,
        version,
        target=", ".join(targets),
        chip=_known_chip(targets),
        toolkit=_toolkit(blocks),
        name=_first_text(blocks, "name"),
        inputs=inputs,
        outputs=outputs,
        layers=_nodes(main),
        notes=tuple(notes),
    )


def _trailer(data: memoryview, payload: int) -> Iterator[dict[str, Any]]:
    """The JSON behind the payload, with its length in front."""
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
    return value[:_MAX_TEXT_LENGTH] if isinstance(value, str) else ""


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
    scale, zero = (_number(entry.get(key, details.get(key))) for key in ("scale", "zero_point"))
    return VendorTensor(
        name,
        tuple(shape),
        dtype=_RKNN_TYPES.get(dtype, dtype),
        layout=(_text(entry.get("layout")) or _text(entry.get("fmt"))).lower(),
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


def _merged(first: VendorTensor | None, second: VendorTensor) -> VendorTensor:
    if first is None:
        return second
    return replace(
        first,
        dtype=first.dtype or second.dtype,
        layout=first.layout or second.layout,
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


# --- .nb -----------------------------------------------------------------------------------------------------------------------------

_NB_PREAMBLE = struct.Struct("<4sII")
_NB_NAME = 12
_NB_COUNTS = 76
_NB_POOL = 348
_NB_TABLES = 376
_NB_FIRST_WITH_TABLES = 0x10008
_NB_FIRST_WITH_SIX_DIMENSIONS = 0x1000B
_NB_SECOND = 0x20000
_NB_LAYER = struct.Struct("<64s3I")
_NB_FORMATS = (
    "float32", "float16", "uint8", "int8", "uint16", "int16", "char", "bfloat16", "int32", "uint32", "int64", "uint64", "float64",
    "int4", "uint4", "", "bool",
)  # fmt: skip
_NB_QUANTIZATIONS = ("none", "fixed point", "affine")


def _nb(data: memoryview) -> VendorModelInfo:
    if bytes(data[:4]) != VIP_MAGIC or len(data) < _NB_PREAMBLE.size:
        raise ModelFormatError("this is not an .nb file", hint=_DAMAGED)
    _, version, customer = _NB_PREAMBLE.unpack_from(data)
    matching = [chip.name for chip in chips.all_chips() if chip.vip is not None and chip.vip.customer_id == customer]
    target = f"{', '.join(matching)} (target {customer:#x})" if matching else f"target {customer:#x}"
    chip = matching[0] if matching else ""
    info = VendorModelInfo(FileKind.NB, version, target=target, chip=chip, toolkit="ACUITY", target_id=customer)
    if version >= _NB_SECOND:
        return replace(info, notes=("the format of version 2 is not documented: only version and target can be read",))
    if version < _NB_FIRST_WITH_TABLES:
        return replace(info, notes=(f"version {version:#x} is older than what is read here: only version and target",))
    if len(data) < _NB_TABLES + 24:
        raise ModelFormatError(f"the .nb file is cut off: {len(data)} bytes", hint=_DAMAGED)
    layer_count, _, input_count, output_count = struct.unpack_from("<4I", data, _NB_COUNTS)
    (pool,) = struct.unpack_from("<I", data, _NB_POOL)
    inputs_at, inputs_size, outputs_at, outputs_size, layers_at, layers_size = struct.unpack_from("<6I", data, _NB_TABLES)
    notes = ["the instructions of the NPU are not readable"]
    layers = _nb_layers(_nb_table(data, layers_at, layers_size, layer_count, _NB_LAYER.size, "layers"))
    entry = 116 if version >= _NB_FIRST_WITH_SIX_DIMENSIONS else 108
    return replace(
        info,
        name=_nb_text(data[_NB_NAME:_NB_COUNTS]),
        inputs=_nb_tensors(_nb_table(data, inputs_at, inputs_size, input_count, entry, "inputs"), entry, notes),
        outputs=_nb_tensors(_nb_table(data, outputs_at, outputs_size, output_count, entry, "outputs"), entry, notes),
        layers=layers,
        memory_bytes=pool,
        notes=tuple(notes),
    )


def _nb_table(data: memoryview, offset: int, size: int, count: int, entry: int, what: str) -> memoryview:
    """The bytes of a table, checked against the file and against its own size."""
    if count > (_MAX_LAYERS if what == "layers" else _MAX_TENSORS):
        raise ModelFormatError(f"the .nb file claims {count} {what}", hint=_DAMAGED)
    if offset + count * entry > len(data) or count * entry > size:
        raise ModelFormatError(f"the table of {count} {what} lies outside the .nb file or its own {size} bytes", hint=_DAMAGED)
    return data[offset : offset + count * entry]


def _nb_text(data: memoryview | bytes) -> str:
    return bytes(data).partition(b"\0")[0].decode("utf-8", "replace")


def _nb_layers(table: memoryview) -> tuple[str, ...]:
    return tuple(_nb_text(name) for name, *_ in _NB_LAYER.iter_unpack(table))


def _nb_tensors(table: memoryview, entry: int, notes: list[str]) -> tuple[VendorTensor, ...]:
    dimensions = 6 if entry == 116 else 4
    layout = struct.Struct(f"<I{dimensions}I3Iifi64s")
    found = []
    for rank, *rest in layout.iter_unpack(table):
        extents, (format_code, _, quantization, fraction_bits, scale, zero_point, name) = rest[:dimensions], rest[dimensions:]
        text = _nb_text(name)
        if not 1 <= rank <= dimensions:
            raise ModelFormatError(f"the tensor '{text}' of the .nb file has {rank} axes", hint=_DAMAGED)
        dtype = _NB_FORMATS[format_code] if format_code < len(_NB_FORMATS) else ""
        if not dtype:
            notes.append(f"the type {format_code} of tensor '{text}' is not known")
        kind = _NB_QUANTIZATIONS[quantization] if quantization < len(_NB_QUANTIZATIONS) else ""
        found.append(
            VendorTensor(
                text,
                tuple(reversed(extents[:rank])),  # the file has the fastest axis first
                dtype=dtype,
                layout="nchw" if rank == 4 else "plain",
                quantization=kind,
                scale=float(scale) if kind == "affine" and math.isfinite(scale) else None,
                zero_point=zero_point if kind == "affine" else None,
                fraction_bits=fraction_bits if kind == "fixed point" else None,
            )
        )
    return tuple(found)
