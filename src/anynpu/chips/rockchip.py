"""Rockchip's chips with an RKNN NPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from .chip import Chip, ConvTransposeLimits, MatMulRules, OperatorLimits, Range, Source
from .support import COMMON_LIMITS, calls, queries

KIB = 1024
MIB = 1024 * KIB
MHZ = 1_000_000

_MULTICORE_OPERATORS = frozenset({"Conv", "Add", "Concat", "Mul"})
_MULTICORE_ACTIVATIONS = frozenset({"Relu", "Clip", "ThresholdedRelu", "PRelu", "LeakyRelu"})


def _assumed(text: str) -> Source:
    return Source(text, assumed=True)


_DOCUMENTS = Source("vendor's documents")
_TOOLKIT = Source("vendor's toolkit documents")
_TABLE_C2 = Source("vendor's user guide 2.3, Table 5-1")
_OPERATOR_LIST = Source("vendor's operator support list")
_TABLE_CALLS = Source("RKNN C API reference 1.6.0, Table 4-1")
_TABLE_QUERIES = Source("RKNN C API reference 1.6.0, Table 4-2")
_FIGURES = Source("published TRM and datasheet values")
_IN_PACKAGE = _assumed("memory in the package of the common variant")
_LATER_MATRIX = Source("support matrix of the vendor's 2.3.2 documents; the reference 1.6.0 does not list the chip")
_NO_MASKS = Source("support matrix of the vendor's 2.3.2 documents: no rknn_set_core_mask")
_NO_SRAM = _assumed("none is documented")
_ONE_CORE = Source("the chip has one core")


_STRIDES_1248 = ConvTransposeLimits(kernel=Range(1, 31), strides=(1, 2, 4, 8), depthwise=True, grouped=False)


def _without(limits: OperatorLimits, *operators: str) -> frozenset[str]:
    return limits.npu_operators - set(operators)


_LIMITS_SOURCES: Mapping[str, Source] = {
    **{f"limits.{field.name}": _OPERATOR_LIST for field in fields(OperatorLimits)},
    "limits.npu_operators": _assumed("the vendor's list, completed by what the listed operators imply"),
    "limits.global_average_pool_staged": _assumed("pooling in stages gives the same mean, and the NPU has each stage"),
    "limits.transpose_pixels_max": _assumed("as RK3588"),
}

_SOURCES: Mapping[str, Source] = {
    "name": _DOCUMENTS,
    "aliases": _assumed("variants of package, temperature grade or memory with the same NPU"),
    "family": _DOCUMENTS,
    "library": _DOCUMENTS,
    "generation": _DOCUMENTS,
    "vip": Source("not a VIP"),
    "cores": Source("published hardware numbers"),
    "macs_per_cycle": _assumed("inferred from published model latencies"),
    "macs_per_cycle.int16": _assumed("half of int8, as on RK3588"),
    "macs_per_cycle.float16": _assumed("half of int8, as on RK3588"),
    "clock_hz": _assumed("about 1 GHz, inferred from published latencies"),
    "buffer_bytes": _assumed("a value with which a latency model fits published numbers"),
    "sram_bytes": Source("the reference 1.6.0 names SRAM for RK3588 only"),
    "dram_bytes": _assumed("boards bring their own memory"),
    "channel_block": _DOCUMENTS,
    "channel_alignment": _DOCUMENTS,
    "channel_alignment.int16": _assumed("as float16, which has the same width"),
    "input_width_alignment": _DOCUMENTS,
    "input_width_alignment.int16": _assumed("as float16, which has the same width"),
    "pixel_alignment": _DOCUMENTS,
    "quantized_types": _TOOLKIT,
    "float16": _TOOLKIT,
    "core_masks": Source("RKNN C API reference 1.6.0, Table 4-1: no rknn_set_core_mask; clients see error -13"),
    "multicore_operators": _ONE_CORE,
    "multicore_activations": _ONE_CORE,
    "matmul": _DOCUMENTS,
    "matmul_types": _DOCUMENTS,
    "calls": _TABLE_CALLS,
    "queries": _TABLE_QUERIES,
    "limits": _OPERATOR_LIST,
    **_LIMITS_SOURCES,
}


def _matmul(
    a_block: int,
    b_block: tuple[int, int],
    multiples: tuple[int, int],
    c_block: int = 4,
    segment_k: int | None = None,
    transposed_b: bool = True,
) -> MatMulRules:
    return MatMulRules(
        k_multiple=multiples[0],
        n_multiple=multiples[1],
        a_block=a_block,
        b_block_n=b_block[0],
        b_block_k=b_block[1],
        c_block=c_block,
        k_max=10240,
        segment_k=segment_k,
        transposed_b=transposed_b,
    )


_FLOAT16_SUMS = ("float16", "float16", "float32")
_INT8_SUMS = ("int8", "int8", "int32")
_RK3588_PRODUCTS = (
    _FLOAT16_SUMS,
    _INT8_SUMS,
    ("int8", "int8", "int8"),
    ("float16", "float16", "float16"),
    ("int8", "int8", "float32"),
    ("int4", "int4", "int16"),
)
_RK3576_PRODUCTS = (
    _FLOAT16_SUMS,
    _INT8_SUMS,
    ("float16", "float16", "float16"),
    ("float16", "int8", "float32"),
    ("float16", "int8", "float16"),
    ("float16", "int4", "float32"),
    ("float16", "int4", "float16"),
    ("float16", "int4", "bfloat16"),
    ("int8", "int4", "int32"),
    ("int8", "int4", "float16"),
)
_PRODUCTS_OF_LATER_SDKS = _assumed(
    "vendor's documents; int8 B to float16, and what SDKs after 2.2 added, are documented for no chip"
)


def _matmul_large(segment_k: int, int4_c_block: int) -> dict[str, MatMulRules]:
    return {
        "int4": _matmul(32, (64, 32), (32, 64), c_block=int4_c_block, segment_k=segment_k),
        "int8": _matmul(16, (32, 32), (32, 32), segment_k=segment_k),
        "float16": _matmul(8, (16, 32), (32, 16), segment_k=segment_k),
    }


_RK3588 = Chip(
    name="rk3588",
    aliases=("rk3588s", "rk3588s2", "rk3588j", "rk3588m"),
    family="rknn",
    library="librknnrt",
    generation="RKNPU2",
    vip=None,
    cores=3,
    macs_per_cycle={"int4": 2048, "int8": 1024, "int16": 512, "float16": 512},
    clock_hz=1000 * MHZ,
    buffer_bytes=384 * KIB,
    sram_bytes=956 * KIB,
    dram_bytes=None,
    channel_block={"int8": 16, "float16": 8, "int16": 8},
    channel_alignment={"int8": 32, "float16": 16, "int16": 16},
    input_width_alignment={"int8": 16, "float16": 8, "int16": 8},
    pixel_alignment=4,
    quantized_types=("w8a8", "fp16"),
    float16=True,
    core_masks=(0, 1, 2, 4, 3, 7, 0xFFFF),
    multicore_operators=_MULTICORE_OPERATORS,
    multicore_activations=_MULTICORE_ACTIVATIONS,
    matmul=_matmul_large(segment_k=8192, int4_c_block=8),
    matmul_types=_RK3588_PRODUCTS,
    calls=calls("multi"),
    queries=queries("multi"),
    limits=replace(COMMON_LIMITS, conv_transpose=_STRIDES_1248),
    sources={
        **_SOURCES,
        "macs_per_cycle": Source("published TRM and datasheet values; 3x3 64->64 layers log exactly 1024"),
        "macs_per_cycle.float16": _FIGURES,
        "macs_per_cycle.int4": _assumed("twice int8"),
        "macs_per_cycle.int16": _assumed("half of int8"),
        "clock_hz": _FIGURES,
        "buffer_bytes": _FIGURES,
        "sram_bytes": Source("vendor's RK3588 NPU SRAM note: 1 MiB on the chip, up to 956 KiB of it for the NPU"),
        "core_masks": Source("RKNN C API reference 1.6.0, 4.3.2, and RKNN_NPU_CORE_ALL of SDK 2.0; clients see 5 and 6 rejected"),
        "multicore_operators": Source("RKNN C API reference 1.6.0, 4.3.2; Mul by later documents"),
        "multicore_activations": Source("RKNN C API reference 1.6.0, 4.3.2"),
        "limits.transpose_pixels_max": Source("logged by the vendor's compiler (airockchip/rknn-toolkit2 issue 490)"),
    },
)

_AS_RK3588 = _assumed("as RK3588, the nearest relative")

_RK3576 = replace(
    _RK3588,
    name="rk3576",
    aliases=("rk3576j", "rk3576m"),
    cores=2,
    buffer_bytes=512 * KIB,
    sram_bytes=0,
    quantized_types=("w8a8", "fp16", "w4a16"),
    core_masks=(0, 1, 2, 3, 0xFFFF),
    multicore_activations=_MULTICORE_ACTIVATIONS | {"Sigmoid", "Tanh", "HardSwish", "Swish", "Mish"},
    matmul=_matmul_large(segment_k=4096, int4_c_block=4),
    matmul_types=_RK3576_PRODUCTS,
    limits=replace(COMMON_LIMITS, npu_operators=COMMON_LIMITS.npu_operators | {"Greater"}, transpose_pixels_max=None),
    sources={
        **_SOURCES,
        "macs_per_cycle": _assumed("published latencies behave as 1024 dense"),
        "macs_per_cycle.int4": _assumed("twice int8, as on RK3588"),
        "clock_hz": _assumed("as RK3588"),
        "buffer_bytes": _assumed("a value with which a latency model fits published numbers"),
        "sram_bytes": _NO_SRAM,
        "channel_block": _TABLE_C2,
        "channel_block.int16": _AS_RK3588,
        "core_masks": _assumed("RK3588's masks that name no third core"),
        "matmul_types": _PRODUCTS_OF_LATER_SDKS,
        "multicore_operators": _DOCUMENTS,
        "multicore_activations": _assumed("those the vendor's documents name; they hint at others"),
        "calls": _LATER_MATRIX,
        "queries": _LATER_MATRIX,
        "limits.transpose_pixels_max": Source("users see RK3588's limit absent here (airockchip/rknn-toolkit2 issue 490)"),
    },
)

_RK3568 = replace(
    _RK3588,
    name="rk3568",
    aliases=("rk3568b2", "rk3568j", "rk3568m"),
    cores=1,
    macs_per_cycle={"int8": 512, "int16": 256, "float16": 256},
    buffer_bytes=256 * KIB,
    sram_bytes=0,
    channel_block={"int8": 8, "float16": 4, "int16": 4},
    channel_alignment={"int8": 16, "float16": 8, "int16": 8},
    input_width_alignment={"int8": 8, "float16": 4, "int16": 4},
    core_masks=(),
    multicore_operators=frozenset(),
    multicore_activations=frozenset(),
    matmul={
        "int8": _matmul(8, (16, 32), (32, 16), transposed_b=False),
        "float16": _matmul(4, (8, 16), (16, 8), transposed_b=False),
    },
    matmul_types=(_FLOAT16_SUMS, _INT8_SUMS),
    calls=calls("single"),
    queries=queries("single"),
    limits=replace(
        COMMON_LIMITS, npu_operators=_without(COMMON_LIMITS, "Softmax"), softmax_axes=(), conv_transpose=_STRIDES_1248
    ),
    sources={
        **_SOURCES,
        "clock_hz": _assumed("top of the 0.8-1.0 GHz that published latencies point to"),
    },
)

_RK3566 = replace(
    _RK3568,
    name="rk3566",
    aliases=(),
    clock_hz=900 * MHZ,
    sources={**_RK3568.sources, "clock_hz": _assumed("middle of the 0.8-1.0 GHz that published latencies point to")},
)

_RK3562 = replace(
    _RK3568,
    name="rk3562",
    aliases=("rk3562j",),
    channel_block={"int8": 16, "float16": 8, "int16": 8},
    channel_alignment={"int8": 32, "float16": 16, "int16": 16},
    input_width_alignment={"int8": 16, "float16": 8, "int16": 8},
    quantized_types=("w8a8", "fp16", "w8a16"),
    matmul={"int8": _matmul(16, (16, 32), (32, 16)), "float16": _matmul(8, (8, 32), (32, 8))},
    limits=replace(COMMON_LIMITS, npu_operators=_without(COMMON_LIMITS, "Min")),
    sources=_SOURCES,
)

_RV1126B = replace(
    _RK3562,
    name="rv1126b",
    aliases=(),
    macs_per_cycle={"int8": 1536, "int16": 768, "float16": 768},
    channel_block={"int8": 16, "float16": 8},
    channel_alignment={"int8": 32, "float16": 16},
    input_width_alignment={"int8": 8, "float16": 4},
    quantized_types=("w8a8", "fp16", "w4a16"),
    matmul=_matmul_large(segment_k=4096, int4_c_block=4),
    matmul_types=_RK3576_PRODUCTS,
    limits=replace(COMMON_LIMITS, npu_operators=COMMON_LIMITS.npu_operators | {"Greater"}, transpose_pixels_max=None),
    sources={
        **_SOURCES,
        "cores": _assumed("the support matrix groups it with the chips of one core"),
        "macs_per_cycle": _assumed("3 TOPS, which users quote, at 1 GHz"),
        "clock_hz": _assumed("1 GHz, as RK3588"),
        "buffer_bytes": _assumed("as RK3562"),
        "sram_bytes": _NO_SRAM,
        "core_masks": _NO_MASKS,
        "channel_block": _assumed("vendor's documents; published output strides point to 8 for int8 instead"),
        "channel_alignment": _assumed("as RK3576"),
        "input_width_alignment": _assumed("published output strides align the width to 8"),
        "matmul": _assumed("as RK3576, which takes the same types"),
        "matmul_types": _assumed("as RK3576"),
        "calls": _LATER_MATRIX,
        "queries": _LATER_MATRIX,
        "limits.transpose_pixels_max": _assumed("as RK3576"),
    },
)

_RV1106 = replace(
    _RK3562,
    name="rv1106",
    aliases=("rv1106g2", "rv1106g3"),
    library="librknnmrt",
    macs_per_cycle={"int8": 512, "int16": 256},
    clock_hz=500 * MHZ,
    buffer_bytes=128 * KIB,
    dram_bytes=128 * MIB,
    quantized_types=("w8a8", "w16a16"),
    float16=False,
    matmul={},
    matmul_types=(),
    calls=calls("mini"),
    queries=queries("mini"),
    limits=replace(COMMON_LIMITS, npu_operators=_without(COMMON_LIMITS, "GRU", "Gather")),
    sources={
        **_SOURCES,
        "macs_per_cycle": _assumed("0.5 TOPS class; no latency per model is published"),
        "clock_hz": _assumed("what makes 0.5 TOPS of 512 MAC a cycle"),
        "buffer_bytes": _assumed("half of RK3562's"),
        "dram_bytes": _IN_PACKAGE,
        "matmul": Source("RKNN C API reference 1.6.0, Table 4-1: no matmul calls"),
        "matmul_types": Source("RKNN C API reference 1.6.0, Table 4-1: no matmul calls"),
        "float16": Source("vendor's toolkit documents: quantized models only"),
    },
)

_RV1103 = replace(
    _RV1106,
    name="rv1103",
    aliases=("rv1103g1",),
    dram_bytes=64 * MIB,
    sources={**_RV1106.sources, "dram_bytes": _IN_PACKAGE},
)

_AS_RV1106 = _assumed("as RV1106 without the B")

_RV1106B = replace(
    _RV1106,
    name="rv1106b",
    aliases=(),
    channel_block={"int8": 8},
    channel_alignment={"int8": 16},
    input_width_alignment={"int8": 8},
    quantized_types=("w8a8",),
    macs_per_cycle={"int8": 512},
    calls=calls("mini_b"),
    queries=queries("mini_b"),
    limits=replace(
        COMMON_LIMITS, npu_operators=_without(COMMON_LIMITS, "LSTM", "GRU", "Gather", "Pow", "Min"), lstm_size_max=None
    ),
    sources={
        **_RV1106.sources,
        "cores": _AS_RV1106,
        "macs_per_cycle": _AS_RV1106,
        "clock_hz": _AS_RV1106,
        "buffer_bytes": _AS_RV1106,
        "sram_bytes": _NO_SRAM,
        "dram_bytes": _AS_RV1106,
        "core_masks": _NO_MASKS,
        "channel_block": _TABLE_C2,
        "channel_alignment": _assumed("twice the channel block, as on RK3566"),
        "quantized_types": _assumed("the vendor's documents give no layout for any other type"),
        "matmul": Source("support matrix of the vendor's 2.3.2 documents: no matmul calls"),
        "matmul_types": Source("support matrix of the vendor's 2.3.2 documents: no matmul calls"),
        "calls": _LATER_MATRIX,
        "queries": Source("support matrix of the vendor's 2.3.2 documents; clients see NHWC outputs rejected"),
        "float16": _assumed("as RV1106: quantized models only"),
    },
)

_RV1103B = replace(
    _RV1106B,
    name="rv1103b",
    aliases=(),
    dram_bytes=64 * MIB,
    sources={**_RV1106B.sources, "dram_bytes": _assumed("as RV1103 without the B")},
)

ROCKCHIP: tuple[Chip, ...] = (
    _RK3588,
    _RK3576,
    _RK3566,
    _RK3568,
    _RK3562,
    _RV1103,
    _RV1106,
    _RV1103B,
    _RV1106B,
    _RV1126B,
)
"""Rockchip's chips, in the order of the catalogue."""
