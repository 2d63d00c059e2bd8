"""ACME's NPUs: a vendor that anynpu does not know, in a distribution of its own. All of it is made up.

The table below is what makes it a vendor: a chip, the formats of its models, the mark of its files, its provider. ``backend.py`` runs
models for sessions on anynpu's software NPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path

from anynpu.chips import Chip, Source
from anynpu.chips.support import COMMON_LIMITS
from anynpu.vendors import Alias, FileFormat, Finding, Format, Vendor, at_first_use

__all__ = ["VENDOR"]

_EACH_TYPE_1 = {"int8": 1, "float16": 1}
_DATASHEET = Source("the datasheet that ACME never wrote")

A100 = Chip(
    name="acme100",
    aliases=("acme100pro",),
    family="acme",
    library="libacme",
    generation="ACME 1",
    vip=None,
    cores=2,
    macs_per_cycle={"int8": 512, "float16": 128},
    clock_hz=500_000_000,
    buffer_bytes=128 * 1024,
    sram_bytes=0,
    dram_bytes=None,
    channel_block=_EACH_TYPE_1,
    channel_alignment=_EACH_TYPE_1,
    input_width_alignment=_EACH_TYPE_1,
    pixel_alignment=1,
    quantized_types=("w8a8", "fp16"),
    float16=True,
    core_masks=(),
    multicore_operators=frozenset(),
    multicore_activations=frozenset(),
    matmul={},
    matmul_types=(),
    calls={},
    queries={},
    limits=COMMON_LIMITS,
    sources={field.name: _DATASHEET for field in fields(Chip)},
)

LIBRARY_MAGIC = b"ACMENET1"


def _diagnose(root: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    del environment
    libraries = VENDOR.installed_libraries(root)
    for library in libraries:
        yield Finding("vendor", "ok", f"{library}, of ACME")
    if not libraries and (root / "dev/acme0").exists():
        yield Finding("vendor", "problem", "libacme.so not found", "buy ACME's SDK")


VENDOR = Vendor(
    name="acme",
    title="ACME",
    interface="ACME",
    chips=(A100,),
    formats={"w8a8": Format("w8a8", "int8"), "fp16": Format("fp16", "float16", floats=True)},
    aliases={"eight": Alias("w8a8"), "float16": Alias("fp16")},
    mark=b"ACME",
    suffixes=(".acme",),
    files=(FileFormat("acmenet", "acmec", lambda head: head.startswith(LIBRARY_MAGIC), at_first_use("anynpu_acme.files:read")),),
    library_variable="ANYNPU_ACME_LIBRARY",
    library_names=("libacme.so",),
    library_folders=("/usr/lib",),
    system_marks=("dev/acme0",),
    system_words="/dev/acme0",
    device_tree="acme",
    device_nodes=("dev/acme0",),
    providers=("AcmeExecutionProvider",),
    memory_names=("acme",),
    open_backend=at_first_use("anynpu_acme.backend:open_backend"),
    diagnose=_diagnose,
    board_files=lambda chip: {"dev/acme0": ""},
)
