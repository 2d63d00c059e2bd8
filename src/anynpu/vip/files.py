"""What a genuine ``.nb`` says about itself: the fixed header, and the tables of inputs, outputs and layers of version 1. The rest stays
closed."""

from __future__ import annotations

import math
import struct
from dataclasses import replace

from .. import chips
from ..errors import ModelFormatError
from ..modelfile.recognise import FileKind
from ..modelfile.vendorfile import DAMAGED, VendorModelInfo, VendorTensor
from .table import MARK

__all__ = ["read"]

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
_LAYER = struct.Struct("<64s3I")
_FORMATS = (
    "float32", "float16", "uint8", "int8", "uint16", "int16", "char", "bfloat16", "int32", "uint32", "int64", "uint64", "float64",
    "int4", "uint4", "", "bool",
)  # fmt: skip
_QUANTIZATIONS = ("none", "fixed point", "affine")


def read(data: memoryview) -> VendorModelInfo:
    """What a genuine ``.nb`` (NBG) says about itself; of version 2 only the target.

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
        return replace(info, notes=("the format of version 2 is not documented: only version and target can be read",))
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
                layout="nchw" if rank == 4 else "plain",
                quantization=kind,
                scale=float(scale) if kind == "affine" and math.isfinite(scale) else None,
                zero_point=zero_point if kind == "affine" else None,
                fraction_bits=fraction_bits if kind == "fixed point" else None,
            )
        )
    return tuple(found)
