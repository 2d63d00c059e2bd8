"""The binary interface: sizes, offsets and values, in the bindings and as C and C++ compilers see them.

The tables are those of the published interface on 64-bit machines. ``name:type@offset``; the header of a line is struct, size, alignment.
"""

from __future__ import annotations

import re
import subprocess
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
from tools import need

from anynpu._rknn import ffi, lib
from anynpu.rknn import constants

HEADER = Path(__file__).parents[2] / "src" / "anynpu" / "rknn" / "abi.h"

STRUCTS = """
rknn_input_output_num 8 4 n_input:u32@0 n_output:u32@4
rknn_tensor_attr 376 4 index:u32@0 n_dims:u32@4 dims:u32[16]@8 name:char[256]@72 n_elems:u32@328 size:u32@332
    fmt:rknn_tensor_format@336 type:rknn_tensor_type@340 qnt_type:rknn_tensor_qnt_type@344 fl:i8@348 zp:i32@352 scale:f32@356
    w_stride:u32@360 size_with_stride:u32@364 pass_through:u8@368 h_stride:u32@372
rknn_input_range 33040 4 index:u32@0 shape_number:u32@4 fmt:rknn_tensor_format@8 name:char[256]@12 dyn_range:u32[512][16]@268
    n_dims:u32@33036
rknn_perf_detail 16 8 perf_data:char*@0 data_len:u64@8
rknn_perf_run 8 8 run_duration:i64@0
rknn_sdk_version 512 1 api_version:char[256]@0 drv_version:char[256]@256
rknn_mem_size 64 8 total_weight_size:u32@0 total_internal_size:u32@4 total_dma_allocated_size:u64@8 total_sram_size:u32@16
    free_sram_size:u32@20 reserved:u32[10]@24
rknn_custom_string 1024 1 string:char[1024]@0
rknn_tensor_mem 40 8 virt_addr:void*@0 phys_addr:u64@8 fd:i32@16 offset:i32@20 size:u32@24 flags:u32@28 priv_data:void*@32
rknn_input 32 8 index:u32@0 buf:void*@8 size:u32@16 pass_through:u8@20 type:rknn_tensor_type@24 fmt:rknn_tensor_format@28
rknn_output 24 8 want_float:u8@0 is_prealloc:u8@1 index:u32@4 buf:void*@8 size:u32@16
rknn_init_extend 136 8 ctx:u64@0 real_model_offset:i32@8 real_model_size:u32@12 model_buffer_fd:i32@16
    model_buffer_flags:u32@20 reserved:u8[112]@24
rknn_run_extend 24 8 frame_id:u64@0 non_block:i32@8 timeout_ms:i32@12 fence_fd:i32@16
rknn_output_extend 8 8 frame_id:u64@0
rknn_quant_params 288 8 name:char[256]@0 scale:f32*@256 scale_len:i32@264 zp:i32*@272 zp_len:i32@280
rknn_matmul_tensor_attr 332 4 name:char[256]@0 n_dims:u32@256 dims:u32[16]@260 size:u32@324 type:rknn_tensor_type@328
rknn_matmul_io_attr 996 4 A:rknn_matmul_tensor_attr@0 B:rknn_matmul_tensor_attr@332 C:rknn_matmul_tensor_attr@664
rknn_matmul_shape 12 4 M:i32@0 K:i32@4 N:i32@8
rknn_matmul_info 64 4 M:i32@0 K:i32@4 N:i32@8 type:rknn_matmul_type@12 B_layout:i16@16 B_quant_type:i16@18 AC_layout:i16@20
    AC_quant_type:i16@22 iommu_domain_id:i32@24 group_size:i16@28 reserved:i8[34]@30
rknn_gpu_op_context 24 8 cl_context:void*@0 cl_command_queue:void*@8 cl_kernel:void*@16
rknn_custom_op_context 48 8 target:rknn_target_type@0 internal_ctx:u64@8 gpu_ctx:rknn_gpu_op_context@16 priv_data:void*@40
rknn_custom_op_tensor 416 8 attr:rknn_tensor_attr@0 mem:rknn_tensor_mem@376
rknn_custom_op_attr 272 8 name:char[256]@0 dtype:rknn_tensor_type@256 n_elems:u32@260 data:void*@264
rknn_custom_op 832 8 version:u32@0 target:rknn_target_type@4 op_type:char[256]@8 cl_kernel_name:char[256]@264
    cl_kernel_source:char*@520 cl_source_size:u64@528 cl_build_options:char[256]@536 init:function@792 prepare:function@800
    compute:function@808 compute_native:function@816 destroy:function@824
"""

ENUMS = """
rknn_query_cmd RKNN_QUERY_ IN_OUT_NUM=0 INPUT_ATTR=1 OUTPUT_ATTR=2 PERF_DETAIL=3 PERF_RUN=4 SDK_VERSION=5 MEM_SIZE=6
    CUSTOM_STRING=7 NATIVE_INPUT_ATTR=8 NATIVE_NC1HWC2_INPUT_ATTR=8 NATIVE_OUTPUT_ATTR=9 NATIVE_NC1HWC2_OUTPUT_ATTR=9
    NATIVE_NHWC_INPUT_ATTR=10 NATIVE_NHWC_OUTPUT_ATTR=11 DEVICE_MEM_INFO=12 INPUT_DYNAMIC_RANGE=13 CURRENT_INPUT_ATTR=14
    CURRENT_OUTPUT_ATTR=15 CURRENT_NATIVE_INPUT_ATTR=16 CURRENT_NATIVE_OUTPUT_ATTR=17 CMD_MAX=18
rknn_tensor_type RKNN_TENSOR_ FLOAT32=0 FLOAT16=1 INT8=2 UINT8=3 INT16=4 UINT16=5 INT32=6 UINT32=7 INT64=8 BOOL=9 INT4=10
    BFLOAT16=11 TYPE_MAX=12
rknn_tensor_qnt_type RKNN_TENSOR_QNT_ NONE=0 DFP=1 AFFINE_ASYMMETRIC=2 MAX=3
rknn_tensor_format RKNN_TENSOR_ NCHW=0 NHWC=1 NC1HWC2=2 UNDEFINED=3 FORMAT_MAX=4
rknn_core_mask RKNN_NPU_CORE_ AUTO=0 0=1 1=2 2=4 0_1=3 0_1_2=7 ALL=65535 UNDEFINED=65536
rknn_tensor_mem_flags RKNN_TENSOR_MEMORY_FLAGS_ ALLOC_INSIDE=1 FROM_FD=2 FROM_PHYS=3 UNKNOWN=4
rknn_mem_alloc_flags RKNN_FLAG_MEMORY_ FLAGS_DEFAULT=0 CACHEABLE=1 NON_CACHEABLE=2 TRY_ALLOC_SRAM=4
rknn_mem_sync_mode RKNN_MEMORY_SYNC_ TO_DEVICE=1 FROM_DEVICE=2 BIDIRECTIONAL=3
rknn_matmul_type RKNN_ FLOAT16_MM_FLOAT16_TO_FLOAT32=1 INT8_MM_INT8_TO_INT32=2 INT8_MM_INT8_TO_INT8=3
    FLOAT16_MM_FLOAT16_TO_FLOAT16=4 FLOAT16_MM_INT8_TO_FLOAT32=5 FLOAT16_MM_INT8_TO_FLOAT16=6 FLOAT16_MM_INT4_TO_FLOAT32=7
    FLOAT16_MM_INT4_TO_FLOAT16=8 INT8_MM_INT8_TO_FLOAT32=9 INT4_MM_INT4_TO_INT16=10 INT8_MM_INT4_TO_INT32=11
    FLOAT16_MM_INT4_TO_BFLOAT16=12 INT8_MM_INT4_TO_FLOAT16=15
rknn_matmul_quant_type RKNN_QUANT_TYPE_ PER_LAYER_SYM=0 PER_LAYER_ASYM=1 PER_CHANNEL_SYM=2 PER_CHANNEL_ASYM=3 PER_GROUP_SYM=4
    PER_GROUP_ASYM=5
rknn_matmul_layout RKNN_MM_LAYOUT_ NORM=0 NATIVE=1 TP_NORM=2
rknn_target_type RKNN_TARGET_TYPE_ CPU=1 GPU=2 MAX=3
"""

DEFINES = """
limits RKNN_ MAX_DIMS=16 MAX_NUM_CHANNEL=15 MAX_NAME_LEN=256 MAX_DYNAMIC_SHAPE_NUM=512 CUSTOM_OP_MAX_STR_LEN=64
    CUSTOM_OP_MAX_VALUE_LEN=32
flags RKNN_FLAG_ PRIOR_HIGH=0x0 PRIOR_MEDIUM=0x1 PRIOR_LOW=0x2 ASYNC_MASK=0x4 COLLECT_PERF_MASK=0x8 MEM_ALLOC_OUTSIDE=0x10
    SHARE_WEIGHT_MEM=0x20 FENCE_IN_OUTSIDE=0x40 FENCE_OUT_OUTSIDE=0x80 COLLECT_MODEL_INFO_ONLY=0x100
    INTERNAL_ALLOC_OUTSIDE=0x200 EXECUTE_FALLBACK_PRIOR_DEVICE_GPU=0x400 ENABLE_SRAM=0x800 SHARE_SRAM=0x1000
    DISABLE_PROC_HIGH_PRIORITY=0x2000 DISABLE_FLUSH_INPUT_MEM_CACHE=0x4000 DISABLE_FLUSH_OUTPUT_MEM_CACHE=0x8000
    MODEL_BUFFER_ZERO_COPY=0x10000
memory RKNN_MEM_FLAG_ ALLOC_NO_CONTEXT=0x20000
success RKNN_ SUCC=0
errors RKNN_ERR_ FAIL=-1 TIMEOUT=-2 DEVICE_UNAVAILABLE=-3 MALLOC_FAIL=-4 PARAM_INVALID=-5 MODEL_INVALID=-6 CTX_INVALID=-7
    INPUT_INVALID=-8 OUTPUT_INVALID=-9 DEVICE_UNMATCH=-10 INCOMPATILE_PRE_COMPILE_MODEL=-11
    INCOMPATILE_OPTIMIZATION_LEVEL_VERSION=-12 TARGET_PLATFORM_UNMATCH=-13
warnings RKNN_WARNING_ SKIP_CUSTOM_OP_COMPUTE=-14
"""

SCALARS = {
    **{f"i{bits}": f"int{bits}_t" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}_t" for bits in (8, 16, 32, 64)},
    "f32": "float",
}
TAGS = {"rknn_matmul_info": "rknn_matmul_info_t", "rknn_tensor_mem": "_rknn_tensor_memory"}
"""Tags of structs that are not the name with an underscore before it."""

LANGUAGES = {"c": ("cc", "-std=c11"), "c++": ("c++", "-std=c++11")}


def rows(table: str) -> dict[str, list[str]]:
    """The words of each line after the first one; an indented line goes on with the one before."""
    lines = re.sub(r"\n +", " ", table.strip()).splitlines()
    return {name: words for name, *words in (line.split() for line in lines)}


def values(table: str) -> dict[str, dict[str, int]]:
    """Name -> value for each line of a table of constants."""
    return {
        name: {prefix + key: int(value, 0) for key, value in (word.split("=") for word in words)}
        for name, (prefix, *words) in rows(table).items()
    }


def c_type(short: str) -> str:
    """A type of the table as C writes it, pointers and arrays behind it included."""
    base, suffix = re.fullmatch(r"(\w+)(.*)", short).groups()  # type: ignore[union-attr]
    return SCALARS.get(base, base) + (" *" if suffix == "*" else suffix)


def fields(words: list[str]) -> list[tuple[str, str, int]]:
    """Name, short type and offset of each field."""
    return [(name, kind, int(offset)) for name, kind, offset in (re.split("[:@]", word) for word in words)]


def assertions() -> str:
    """A translation unit that compiles if the header agrees with the tables."""
    lines = ["#include <stddef.h>", '#include "abi.h"', "#ifdef __cplusplus", "#define HOLDS(what) static_assert(what, #what)"]
    lines += ["#else", "#define HOLDS(what) _Static_assert(what, #what)", "#define alignof _Alignof", "#endif"]
    for struct, (size, alignment, *words) in rows(STRUCTS).items():
        tag = TAGS.get(struct, f"_{struct}")
        lines.append(f"HOLDS(sizeof({struct}) == {size} && sizeof(struct {tag}) == {size} && alignof({struct}) == {alignment});")
        for name, kind, offset in fields(words):
            lines.append(f"HOLDS(offsetof({struct}, {name}) == {offset});")
            if kind != "function":
                lines.append(f"HOLDS(sizeof((({struct} *)0)->{name}) == sizeof({c_type(kind)}));")
    for enum, entries in values(ENUMS).items():
        lines.append(f"HOLDS(sizeof({enum}) == 4 && sizeof(enum _{enum}) == 4);")
        lines += [f"HOLDS({name} == {value});" for name, value in entries.items()]
    for entries in values(DEFINES).values():
        lines += [f"HOLDS({name} == {value});" for name, value in entries.items()]
    return "\n".join(lines) + "\n"


def compiles(source: str, language: str, folder: Path) -> subprocess.CompletedProcess[str]:
    name, standard = LANGUAGES[language]
    compiler = need(name)
    file = folder / "unit.txt"
    file.write_text(source, encoding="utf-8")
    command = [
        compiler,
        "-x",
        language,
        standard,
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fsyntax-only",
        f"-I{HEADER.parent}",
        str(file),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.parametrize("struct", rows(STRUCTS))
def test_structs_of_the_bindings(struct: str) -> None:
    size, alignment, *words = rows(STRUCTS)[struct]
    assert (ffi.sizeof(struct), ffi.alignof(struct)) == (int(size), int(alignment))
    expected = fields(words)
    found = ffi.typeof(struct).fields
    assert [(name, field.offset) for name, field in found] == [(name, offset) for name, _, offset in expected]
    for (_, field), (name, kind, _) in zip(found, expected, strict=True):
        if kind == "function":
            assert field.type.kind == "function", name
        else:
            assert field.type is ffi.typeof(c_type(kind)), name


@pytest.mark.parametrize("language", LANGUAGES)
def test_compilers_see_the_same_interface(language: str, tmp_path: Path) -> None:
    result = compiles(assertions(), language, tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("language", LANGUAGES)
def test_compilers_would_see_a_difference(language: str, tmp_path: Path) -> None:
    wrong = assertions().replace("offsetof(rknn_tensor_attr, h_stride) == 372", "offsetof(rknn_tensor_attr, h_stride) == 368")
    result = compiles(wrong, language, tmp_path)
    assert result.returncode != 0
    assert "h_stride" in result.stderr


@pytest.mark.parametrize("enum", values(ENUMS))
def test_enumerations(enum: str) -> None:
    expected = values(ENUMS)[enum]
    members: dict[str, IntEnum] = getattr(constants, enum).__members__
    assert {name: member.value for name, member in members.items()} == expected
    assert ffi.typeof(enum).relements == expected


def test_defines() -> None:
    expected = {name: value for entries in values(DEFINES).values() for name, value in entries.items()}
    declared = re.findall(r"^#define (\w+) \S+$", HEADER.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(declared) == sorted(expected)
    assert {name: getattr(lib, name) for name in declared} == expected
    ours: dict[str, Any] = {**constants.Code.__members__, **constants.Flag.__members__}
    ours |= {name: value for name, value in vars(constants).items() if name.startswith("RKNN_")}
    assert {name: int(value) for name, value in ours.items()} == expected


def test_every_type_of_the_header_is_in_a_table() -> None:
    declared = re.findall(r"^} (\w+);$", HEADER.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(declared) == sorted([*rows(STRUCTS), *rows(ENUMS)])


def test_handles_are_64_bits_wide() -> None:
    for handle in ("rknn_context", "rknn_matmul_ctx", "rknn_custom_op_interal_context"):
        assert ffi.typeof(handle) is ffi.typeof("uint64_t")
