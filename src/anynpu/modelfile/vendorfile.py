"""The vendors' own model files: what they state about themselves.

Such a file can be inspected here and executed by the vendor's runtime only. Each vendor's table has a reader for each of its formats; what
it does not understand stays closed, and ``notes`` reports it. ``read_NAME`` reads a file of one format: ``read_rknn``, ``read_nb``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, cast

from ..errors import ModelFormatError, VendorModelError
from ..vendors import FileFormat, Vendor, registry
from .recognize import Contents, FileKind, Source, name_content, open_source, vendor_of

DAMAGED = "the file is damaged or was cut off; copy it again or export it again with the vendor's toolkit"
"""What to do about a file that cannot be read."""


@dataclass(frozen=True)
class VendorTensor:
    """An input or output, where the file reports.

    :ivar shape: in the order of the original model (N, C, H, W)
    :ivar dtype: such as ``int8``; empty where the file does not state
    :ivar layout: such as ``nchw``; empty where the file does not state
    :ivar quantization: ``affine``, ``fixed point``, ``none``, or empty where the file does not state
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
    """What a vendor's file states about itself.

    :ivar version: of the file format
    :ivar target: the chips it was compiled for, or the number that the hardware must have
    :ivar target_id: that number, for a .nb; 0 where there is none
    :ivar chip: the first of those that is in the catalogue; empty where none is
    :ivar toolkit: the tool that wrote it and its version
    :ivar memory_bytes: memory pool that it needs; 0 where the file does not state
    :ivar notes: what was not understood, or is not in the file
    :ivar preprocess: mean and std of inputs, where the file states them
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
    preprocess: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = field(default_factory=dict)


def read(source: Source) -> VendorModelInfo:
    """What a file that a vendor's tools wrote states about itself.

    :raises ModelFormatError: it is no such file, or is damaged
    """
    contents = open_source(source)
    data = contents.data
    _, form = vendor_of(data) or (None, None)
    if form is None:
        other = name_content(data) or ("not a model of a vendor's tools", "give the .rknn or .nb file")
        raise ModelFormatError(f"{contents.name} is {other[0]}", hint=other[1])
    return cast(VendorModelInfo, form.read(data))


def refuse_vendor_model(contents: Contents, vendor: Vendor, form: FileFormat) -> NoReturn:
    """Raise the error for a model that only the vendor's runtime executes, with what the file states about itself."""
    info = cast(VendorModelInfo, form.read(contents.data))
    stem = Path(contents.name).stem if contents.mapped else "model"
    file = contents.name if contents.mapped else f"model{vendor.suffixes[0]}"
    target = f" for {info.target}" if info.target else ""
    chip = info.chip or vendor.chips[0].name
    raise VendorModelError(
        f"{contents.name} was compiled by {info.toolkit or form.toolkit}{target}; only the vendor's runtime can execute it",
        hint=f"make one (anynpu twin {file} --onnx {stem}.onnx), or put one beside it (anynpu compile {stem}.onnx -o {stem}.anynpu "
        f"--target {chip}), or run on the board",
    )


def __getattr__(name: str) -> Callable[[Source], VendorModelInfo]:
    # an import statement asks for __path__: for that no distribution of the system is looked through
    vendors = registry.all_vendors() if name.startswith("read_") else ()
    form = next((form for vendor in vendors for form in vendor.files if form.name == name.removeprefix("read_")), None)
    if form is None:
        raise AttributeError(f"module 'anynpu.modelfile.vendorfile' has no attribute {name!r}")
    read_bytes = form.read

    def read_source(source: Source) -> VendorModelInfo:
        return cast(VendorModelInfo, read_bytes(open_source(source).data))

    globals()[name] = read_source
    return read_source
