"""What a vendor-compiled ``.nb`` states about itself: the fixed header, the tables of inputs, outputs and layers of version 1,
and the table of tensors of version 2. The rest stays closed."""

from __future__ import annotations

import math
import struct
from dataclasses import replace

from .. import chips
from ..errors import ModelFormatError
from ..modelfile.recognize import FileKind
from ..modelfile.vendorfile import DAMAGED, VendorModelInfo, VendorTensor
from .table import MARK

_KIND = FileKind("nb")
_MAX_TENSORS = 4096
_MAX_LAYERS = 100_000
_PREAMBLE = struct.Struct("<4sII")
_NAME = 12
_COUNTS = 76
_POOL = 348
_TABLES = 376
_FIRST_WITH_TABLES = 0x10008
_FIRST_WITH_SIX_DIMENSIONS = 0x1000B
_SECOND = 0x20000
_SECOND_NAME = 0x328
_SECOND_RECORD = struct.Struct("<8I2I4si64s")
"""Rank, six sizes, type, zero, quantization, position of the point or scale, zero point, name."""
_SECOND_SEARCHED = 1 << 20
_PICTURE_CHANNELS = (1, 3, 4)
_LAYER = struct.Struct("<64s3I")
_FORMATS = (
    "float32", "float16", "uint8", "int8", "uint16", "int16", "char", "bfloat16", "int32", "uint32", "int64", "uint64", "float64",
    "int4", "uint4", "", "bool",
)  # fmt: skip
_QUANTIZATIONS = ("none", "fixed point", "affine")


def read(data: memoryview) -> VendorModelInfo:
    """What a vendor-compiled ``.nb`` (NBG) states about itself; of version 2 its target, name, inputs and outputs.

    :raises ModelFormatError: it is no ``.nb``, or is damaged
    """
    if bytes(data[:4]) != MARK or len(data) < _PREAMBLE.size:
        raise ModelFormatError("this is not an .nb file", hint=DAMAGED)
    _, version, customer = _PREAMBLE.unpack_from(data)
    matching = [chip.name for chip in chips.all_chips() if chip.vip is not None and chip.vip.customer_id == customer]
    target = f"{', '.join(matching)} (target {customer:#x})" if matching else f"target {customer:#x}"
    chip = matching[0] if matching else ""
    info = VendorModelInfo(_KIND, version, target=target, chip=chip, toolkit="ACUITY", target_id=customer)
    if version >= _SECOND:
        return _second_version(data, info)
    if version < _FIRST_WITH_TABLES:
        return replace(info, notes=(f"version {version:#x} is older than what is read here: only version and target",))
    if len(data) < _TABLES + 24:
        raise ModelFormatError(f"the .nb file is cut off: {len(data)} bytes", hint=DAMAGED)
    layer_count, _, input_count, output_count = struct.unpack_from("<4I", data, _COUNTS)
    (pool,) = struct.unpack_from("<I", data, _POOL)
    inputs_at, inputs_size, outputs_at, outputs_size, layers_at, layers_size = struct.unpack_from("<6I", data, _TABLES)
    notes = ["the instructions of the NPU are not readable"]
    layers = _layers(_table(data, layers_at, layers_size, layer_count, _LAYER.size, "layers"))
    entry = 116 if version >= _FIRST_WITH_SIX_DIMENSIONS else 108
    return replace(
        info,
        name=_text(data[_NAME:_COUNTS]),
        inputs=_tensors(_table(data, inputs_at, inputs_size, input_count, entry, "inputs"), entry, notes),
        outputs=_tensors(_table(data, outputs_at, outputs_size, output_count, entry, "outputs"), entry, notes),
        layers=layers,
        memory_bytes=pool,
        notes=tuple(notes),
    )


def _table(data: memoryview, offset: int, size: int, count: int, entry: int, what: str) -> memoryview:
    """The bytes of a table, checked against the file and against its own size."""
    if count > (_MAX_LAYERS if what == "layers" else _MAX_TENSORS):
        raise ModelFormatError(f"the .nb file claims {count} {what}", hint=DAMAGED)
    if offset + count * entry > len(data) or count * entry > size:
        raise ModelFormatError(f"the table of {count} {what} lies outside the .nb file or its own {size} bytes", hint=DAMAGED)
    return data[offset : offset + count * entry]


def _text(data: memoryview | bytes) -> str:
    return bytes(data).partition(b"\0")[0].decode("utf-8", "replace")


def _layers(table: memoryview) -> tuple[str, ...]:
    return tuple(_text(name) for name, *_ in _LAYER.iter_unpack(table))


def _tensors(table: memoryview, entry: int, notes: list[str]) -> tuple[VendorTensor, ...]:
    dimensions = 6 if entry == 116 else 4
    layout = struct.Struct(f"<I{dimensions}I3Iifi64s")
    found = []
    for rank, *rest in layout.iter_unpack(table):
        extents, (format_code, _, quantization, fraction_bits, scale, zero_point, name) = rest[:dimensions], rest[dimensions:]
        text = _text(name)
        if not 1 <= rank <= dimensions:
            raise ModelFormatError(f"the tensor '{text}' of the .nb file has {rank} axes", hint=DAMAGED)
        dtype = _FORMATS[format_code] if format_code < len(_FORMATS) else ""
        if not dtype:
            notes.append(f"the type {format_code} of tensor '{text}' is not known")
        kind = _QUANTIZATIONS[quantization] if quantization < len(_QUANTIZATIONS) else ""
        found.append(
            VendorTensor(
                text,
                tuple(reversed(extents[:rank])),  # the file has the fastest axis first
                dtype=dtype,
                layout=_layout(extents[:rank]),
                quantization=kind,
                scale=float(scale) if kind == "affine" and math.isfinite(scale) else None,
                zero_point=zero_point if kind == "affine" else None,
                fraction_bits=fraction_bits if kind == "fixed point" else None,
            )
        )
    return tuple(found)


def _layout(extents: list[int] | tuple[int, ...]) -> str:
    """The order of axes that the sizes, the fastest first, speak for: an image of 3 channels begins with them or has them third."""
    if len(extents) != 4:
        return "plain"
    pixels_last = extents[0] in _PICTURE_CHANNELS and extents[2] not in _PICTURE_CHANNELS
    return "nhwc" if pixels_last else "nchw"


def _second_version(data: memoryview, info: VendorModelInfo) -> VendorModelInfo:
    """Name and tensors of version 2. Where its table lies is not documented: it is the first run of records that make sense."""
    name = _text(data[_SECOND_NAME : _SECOND_NAME + 64]) if len(data) > _SECOND_NAME else ""
    tensors = _second_tensors(data[:_SECOND_SEARCHED])
    notes = ["the instructions of the NPU are not readable"]
    if not tensors:
        return replace(info, name=name if name.isprintable() else "", notes=("no table of tensors was found in the file",))
    inputs = [tensor for tensor in tensors if not _is_output(tensor.name)] or tensors[:1]
    if len(inputs) == len(tensors) > 1:
        inputs = tensors[:1]
        notes.append("which tensors are inputs is not said by their names: the first one is taken for one")
    outputs = [tensor for tensor in tensors if tensor not in inputs]
    return replace(
        info, name=name if name.isprintable() else "", inputs=tuple(inputs), outputs=tuple(outputs), notes=tuple(notes)
    )


def _is_output(name: str) -> bool:
    return "_out_" in name or name.startswith(("output", "uid_"))


def _second_tensors(data: memoryview) -> list[VendorTensor]:
    """The records of the first run that is one."""
    position = _SECOND_NAME + 64
    while position + _SECOND_RECORD.size <= len(data):
        found: list[VendorTensor] = []
        while position + _SECOND_RECORD.size <= len(data) and len(found) < _MAX_TENSORS:
            tensor = _second_record(data[position : position + _SECOND_RECORD.size])
            if tensor is None:
                break
            found.append(tensor)
            position += _SECOND_RECORD.size
        if found:
            return found
        position += 4
    return []


def _second_record(record: memoryview) -> VendorTensor | None:
    rank, *rest = _SECOND_RECORD.unpack(record)
    extents, format_code, nothing, quantization, number, zero_point, name = (
        rest[:6],
        rest[6],
        rest[7],
        rest[8],
        rest[9],
        rest[10],
        rest[11],
    )
    if not 1 <= rank <= 6 or nothing or quantization >= len(_QUANTIZATIONS) or format_code >= len(_FORMATS):
        return None
    text, _, padding = name.partition(b"\0")
    sensible = all(0 < extent < 1 << 24 for extent in extents[:rank]) and not any(extent > 1 for extent in extents[rank:])
    if not sensible or not text or any(padding) or not all(32 < byte < 127 for byte in text) or not _FORMATS[format_code]:
        return None
    kind = _QUANTIZATIONS[quantization]
    (scale,), (fraction_bits,) = struct.unpack("<f", number), struct.unpack("<i", number)
    return VendorTensor(
        text.decode(),
        tuple(reversed(extents[:rank])),
        dtype=_FORMATS[format_code],
        layout=_layout(extents[:rank]),
        quantization=kind,
        scale=float(scale) if kind == "affine" and math.isfinite(scale) else None,
        zero_point=zero_point if kind == "affine" else None,
        fraction_bits=fraction_bits if kind == "fixed point" else None,
    )
