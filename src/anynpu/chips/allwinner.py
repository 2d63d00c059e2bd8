"""Allwinner's chips, whose NPU is a VIP9000 of VeriSilicon.

Little is published about these NPUs: what they are called, how they identify themselves, and their TOPS. The rest is assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from .chip import Chip, OperatorLimits, Source, VipIdentity
from .support import COMMON_LIMITS, calls, queries

KIB = 1024
MIB = 1024 * KIB
MHZ = 1_000_000

_LIMITS = replace(
    COMMON_LIMITS,
    npu_operators=COMMON_LIMITS.npu_operators | {"Greater", "Less", "Equal", "Where", "LogSoftmax", "ArgMax", "Tile"},
    softmax_axes=(1, 2, 3),
    transpose_pixels_max=None,
)
"""No document gives the limits of a VIP: those of other NPUs, and the operators that its shader cores add."""

_SDK = Source("vendor's SDK, chip configuration")
_NO_RKNN = Source("VIPs have no RKNN API")
_LAYOUT = ("channel_block", "channel_alignment", "input_width_alignment", "pixel_alignment")
_SEEN_ON_BOARDS = ("cores", "macs_per_cycle", "clock_hz", "buffer_bytes", "float16", *_LAYOUT)


def _assumed(text: str) -> Source:
    return Source(text, assumed=True)


_SOURCES: Mapping[str, Source] = {
    "name": _SDK,
    "aliases": _assumed("variants of package, memory or market with the same NPU"),
    "family": _SDK,
    "library": _SDK,
    "generation": _SDK,
    "vip": Source("vendor's SDK and the headers of its sample models"),
    "cores": Source("board transcripts: core_count=1"),
    "macs_per_cycle": _assumed("TOPS divided by the clock, rounded up to a multiple of 512"),
    "macs_per_cycle.int16": _assumed("half of int8"),
    "macs_per_cycle.float16": _assumed("shaders compute floats: a user measured 25 and 42 times the time of uint8 on T527"),
    "clock_hz": Source("highest clock in board transcripts"),
    "buffer_bytes": _assumed("twice V853's"),
    "sram_bytes": _assumed("none beyond the NPU's own"),
    "dram_bytes": _assumed("the board brings it"),
    **dict.fromkeys(_LAYOUT, Source("tensors in board transcripts have neither padding nor channel blocks")),
    "quantized_types": _assumed("what the vendor's compiler offers; of bf16 no run is published, and a user's T527 hung with it"),
    "float16": Source("vendor's samples with float16 outputs, and float16 models in transcripts of T527"),
    "core_masks": _NO_RKNN,
    "multicore_operators": Source("the NPU has one core"),
    "multicore_activations": Source("the NPU has one core"),
    "matmul": _NO_RKNN,
    "matmul_types": _NO_RKNN,
    "calls": _NO_RKNN,
    "queries": _NO_RKNN,
    "limits": _assumed("as the RKNN NPUs"),
    **{f"limits.{field.name}": _assumed("as the RKNN NPUs") for field in fields(OperatorLimits)},
    "limits.npu_operators": _assumed("as the RKNN NPUs, and what shader cores can add"),
    "limits.softmax_axes": _assumed("shader cores take any axis"),
    "limits.transpose_pixels_max": _assumed("no limit is known"),
}

_EACH_TYPE_1 = {"int8": 1, "uint8": 1, "int16": 1, "float16": 1}


def _macs(int8: int) -> dict[str, int]:
    return {"int8": int8, "uint8": int8, "int16": int8 // 2, "float16": int8 // 32}


_V853 = Chip(
    name="v853",
    aliases=("v853s",),
    family="vip",
    library="viplite",
    generation="VIP9000 Pico (v1)",
    vip=VipIdentity(customer_id=0xEE, target="VIP9000PICO_PID0XEE", software="1.x (V85x)", linker="libVIPlite.so"),
    cores=1,
    macs_per_cycle=_macs(1024),
    clock_hz=546 * MHZ,
    buffer_bytes=128 * KIB,
    sram_bytes=0,
    dram_bytes=None,
    channel_block=_EACH_TYPE_1,
    channel_alignment=_EACH_TYPE_1,
    input_width_alignment=_EACH_TYPE_1,
    pixel_alignment=1,
    quantized_types=("w8a8", "i8", "i8dfp", "w16a16", "fp16"),
    float16=True,
    core_masks=(),
    multicore_operators=frozenset(),
    multicore_activations=frozenset(),
    matmul={},
    matmul_types=(),
    calls=calls("none"),
    queries=queries("none"),
    limits=_LIMITS,
    sources={
        **_SOURCES,
        "macs_per_cycle": _assumed("1 TOPS divided by the clock, rounded up to a multiple of 512"),
        "clock_hz": _assumed("as the lower clock seen on T527"),
        "buffer_bytes": Source("vendor's V853 documentation: a cache of 128 KiB"),
        "quantized_types": Source("vendor's V853 documentation: uint8, int8 and int16, and float on the programmable engine"),
        "float16": Source("vendor's V853 documentation: a model that is not quantized runs on the programmable engine, slowly"),
        "macs_per_cycle.float16": _assumed("the programmable engine, as on T527"),
        "cores": _assumed("one, as on T527 and A733"),
        **dict.fromkeys(_LAYOUT, _assumed("as T527 and A733")),
    },
)

_AS_V853 = dict.fromkeys(("clock_hz", "buffer_bytes", "quantized_types", "float16"), _assumed("as V853, the same NPU design"))

_V851 = replace(
    _V853,
    name="v851",
    aliases=("v851s", "v851se", "v851s3", "v851s4"),
    macs_per_cycle=_macs(512),
    dram_bytes=64 * MIB,
    sources={
        **_V853.sources,
        **_AS_V853,
        "macs_per_cycle": _assumed("0.5 TOPS (V851s and V851se) divided by the clock, rounded up to a multiple of 512"),
        "dram_bytes": _assumed("64 MiB in the package of V851s"),
    },
)

_R853 = replace(
    _V853,
    name="r853",
    aliases=(),
    sources={**_V853.sources, **_AS_V853, "macs_per_cycle": _assumed("as V853, the same NPU design")},
)

_T527 = replace(
    _V853,
    name="t527",
    aliases=("a527",),
    generation="VIP9000 NanoSi Plus (v2)",
    vip=VipIdentity(customer_id=0x10000016, target="VIP9000NANOSI_PLUS_PID0X10000016", software="1.13", linker="libVIPlite.so"),
    macs_per_cycle=_macs(1536),
    clock_hz=696 * MHZ,
    buffer_bytes=256 * KIB,
    quantized_types=("w8a8", "i8", "i8dfp", "w16a16", "fp16", "bf16"),
    sources={**_SOURCES, "macs_per_cycle": _assumed("2 TOPS divided by the clock, rounded up to a multiple of 512")},
)

_AS_T527 = dict.fromkeys(_SEEN_ON_BOARDS, _assumed("as T527, the same NPU"))
_MR527 = replace(_T527, name="mr527", aliases=(), sources={**_SOURCES, **_AS_T527})
_AI985 = replace(_T527, name="ai985", aliases=(), sources={**_SOURCES, **_AS_T527})

_A733 = replace(
    _V853,
    name="a733",
    aliases=("a733mx",),
    generation="VIP9000 NanoDi Plus (v3)",
    vip=VipIdentity(customer_id=0x1000003B, target="VIP9000NANODI_PLUS_PID0X1000003B", software="2.0", linker="libNBGlinker.so"),
    macs_per_cycle=_macs(1536),
    clock_hz=1008 * MHZ,
    buffer_bytes=256 * KIB,
    quantized_types=("w8a8", "i8", "i8dfp", "w16a16", "fp16", "bf16"),
    sources={**_SOURCES, "macs_per_cycle": _assumed("3 TOPS divided by the clock, rounded up to a multiple of 512")},
)

_AS_A733 = dict.fromkeys(_SEEN_ON_BOARDS, _assumed("as A733, the same NPU"))
_T736 = replace(_A733, name="t736", aliases=(), sources={**_SOURCES, **_AS_A733})
_MR536 = replace(_A733, name="mr536", aliases=(), sources={**_SOURCES, **_AS_A733})
_T536 = replace(_A733, name="t536", aliases=(), sources={**_SOURCES, **_AS_A733})

ALLWINNER: tuple[Chip, ...] = (_V851, _V853, _R853, _T527, _MR527, _AI985, _A733, _T736, _MR536, _T536)
"""Allwinner's chips, in the order of the catalogue."""
