"""The binary interface: sizes, offsets and values, in the bindings and as C and C++ compilers see them.

The tables are those of the published interface. ``name:type@offset``; the header of a line is struct, size, alignment.
"""

from __future__ import annotations

import re
import subprocess
from enum import IntEnum
from pathlib import Path

import pytest
from tools import need

from anynpu._vip import ffi
from anynpu.vip import constants
from anynpu.vip.interface import functions

HEADER = Path(__file__).parents[2] / "src" / "anynpu" / "vip" / "abi.h"

STRUCTS = """
vip_buffer_create_params_t 48 4 num_of_dims:u32@0 sizes:u32[6]@4 data_format:i32@28 quant_format:i32@32
    quant_data:vip_quant_data_t@36 memory_type:u32@44
vip_buffer_param_t 44 4 dim_count:u32@0 dim_size:u32[6]@4 data_format:i32@28 quant_format:i32@32 quant_data:vip_param_quant_data_t@36
vip_nld_layer_id_t 16 8 layer_count:i32@0 layer_id:i32*@8
vip_nld_output_info_t 136 8 layer_name:char[64]@0 layer_id:u32@64 layer_output_index:u32@68 uid:u32@72 param:vip_buffer_param_t@76
    size:u32@120 memory:void*@128
vip_nld_output_t 16 8 count:u32@0 info:vip_nld_output_info_t*@8
vip_fixed_point_t 4 4 fixed_point_pos:i32@0
vip_affine_t 8 4 scale:f32@0 zeroPoint:i32@4
vip_quant_data_t 8 4 dfp:vip_fixed_point_t@0 affine:vip_affine_t@0
vip_tf_affine_t 8 4 tf_scale:f32@0 tf_zero_point:i32@4
vip_param_quant_data_t 8 4 dfp:vip_fixed_point_t@0 affine:vip_tf_affine_t@0
vip_inference_profile_t 8 4 inference_time:u32@0 total_cycle:u32@4
vip_ppu_param_t 52 4 work_dim:u32@0 global_offset:u32[3]@4 global_scale:u32[3]@16 local_size:u32[3]@28 global_size:u32[3]@40
vip_power_frequency_t 1 1 fscale_percent:u8@0
"""

ENUMS = """
vip_bool_e vip_ false_e=0 true_e=1
vip_status_e VIP_ SUCCESS=0 ERROR_TIMEOUT=-1 ERROR_IO=-2 ERROR_INVALID_ARGUMENTS=-3 ERROR_NOT_SUPPORTED=-4
    ERROR_OUT_OF_RESOURCE=-5 ERROR_OUT_OF_MEMORY=-6 ERROR_INVALID_NETWORK=-7 ERROR_MISSING_INPUT_OUTPUT=-8
    ERROR_NETWORK_NOT_PREPARED=-9 ERROR_NETWORK_INCOMPATIBLE=-10 ERROR_FAILURE=-11 ERROR_POWER_OFF=-12 ERROR_POWER_STOP=-13
    ERROR_RECOVERY=-14 ERROR_CANCELED=-15 ERROR_NAN_INF=-16 ERROR_FUSA=-17
vip_buffer_format_e VIP_BUFFER_FORMAT_ FP32=0 FP16=1 UINT8=2 INT8=3 UINT16=4 INT16=5 CHAR=6 BFP16=7 INT32=8 UINT32=9 INT64=10
    UINT64=11 FP64=12 INT4=13 UINT4=14 BOOL8=16
vip_buffer_quantize_format_e VIP_BUFFER_QUANTIZE_ NONE=0 DYNAMIC_FIXED_POINT=1 TF_ASYMM=2 MAX=3
vip_buffer_memory_type_e VIP_BUFFER_MEMORY_TYPE_ DEFAULT=0 HOST=1 SECURE=2 DMA_BUF=3 MAX=4
vip_create_network_type_e VIP_CREATE_NETWORK_ FROM_NONE=0 FROM_FILE=1 FROM_MEMORY=2 FROM_FLASH=4 MODE_NORMAL=0x10
    MODE_SECURE=0x20
vip_dup_network_type_e VIP_DUP_ NONE=0 FOR_CMD_BY_NETWORK=1 FOR_CMD_BY_NBG=2 FROM_NBG_FILE=0x100 FROM_NBG_MEMORY=0x200
    FROM_NBG_FLASH=0x400 FROM_NETWORK=0x800
vip_power_property_e VIP_POWER_PROPERTY_ NONE=0 SET_FREQUENCY=1 OFF=2 ON=4 STOP=8 START=0x10 MAX=0x11
vip_query_hardware_property_e VIP_QUERY_HW_PROP_ CID=0 DEVICE_COUNT=1 CORE_COUNT_EACH_DEVICE=2 MAX=3
vip_network_property_e VIP_NETWORK_PROP_ LAYER_COUNT=0 INPUT_COUNT=1 OUTPUT_COUNT=2 NETWORK_NAME=3 ADDRESS_INFO=4
    READ_REG_IRQ=5 MEMORY_POOL_SIZE=6 PROFILING=7 CORE_COUNT=8 GET_LAYER_DUMP_OUTPUT=9 CHANGE_PPU_PARAM=64 SET_MEMORY_POOL=65
    SET_DEVICE_ID=66 SET_DEVICE_INDEX=66 SET_PRIORITY=67 SET_TIME_OUT=68 SET_COEFF_MEMORY=69 SET_CORE_INDEX=70
    SET_ENABLE_NPD=71 SET_VIPSRAM_PRELOAD=72 SET_LAYER_DUMP_ID=73
vip_group_property_e VIP_GROUP_PROP_ PROFILING=0 SET_DEVICE_ID=64 SET_DEVICE_INDEX=64 SET_CORE_INDEX=65 SET_TIME_OUT=68
vip_buffer_property_e VIP_BUFFER_PROP_ QUANT_FORMAT=0 NUM_OF_DIMENSION=1 SIZES_OF_DIMENSION=2 DATA_FORMAT=3 FIXED_POINT_POS=4
    TF_SCALE=5 TF_ZERO_POINT=6 NAME=7
vip_buffer_operation_type_e VIP_BUFFER_OPER_TYPE_ NONE=0 FLUSH=1 INVALIDATE=2 MAX=3
"""

EXPORTS = """
add_network cancel_network create_buffer create_buffer_cache create_buffer_from_fd create_buffer_from_handle
create_buffer_from_physical create_group create_network destroy destroy_buffer destroy_group destroy_network dup_network
finish_network flush_buffer get_buffer_size get_version init map_buffer power_management prepare_network query_group
query_hardware query_input query_network query_output run_group run_network set_group set_input set_network set_output
set_ppu_param trigger_group trigger_network unmap_buffer wait_group wait_network weak_dup_network set_log_path
"""

SCALARS = {"u8": "uint8_t", "u32": "uint32_t", "i32": "int32_t", "f32": "float"}
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
    base, suffix = re.fullmatch(r"(\w+)(.*)", short).groups()  # type: ignore[union-attr]
    return SCALARS.get(base, base) + suffix


def fields(words: list[str]) -> list[tuple[str, str, int]]:
    """Name, short type and offset of each field."""
    return [(name, kind, int(offset)) for name, kind, offset in (re.split("[:@]", word) for word in words)]


def assertions() -> str:
    """A translation unit that compiles if the header agrees with the tables."""
    lines = ["#include <stddef.h>", '#include "abi.h"', "#ifdef __cplusplus", "#define HOLDS(what) static_assert(what, #what)"]
    lines += ["#else", "#define HOLDS(what) _Static_assert(what, #what)", "#define alignof _Alignof", "#endif"]
    for struct, (size, alignment, *words) in rows(STRUCTS).items():
        lines.append(f"HOLDS(sizeof({struct}) == {size} && alignof({struct}) == {alignment});")
        for name, kind, offset in fields(words):
            lines.append(f"HOLDS(offsetof({struct}, {name}) == {offset});")
            lines.append(f"HOLDS(sizeof((({struct} *)0)->{name}) == sizeof({c_type(kind)}));")
    for enum, entries in values(ENUMS).items():
        lines.append(f"HOLDS(sizeof({enum}) == 4 && sizeof(enum _{enum}) == 4);")
        lines += [f"HOLDS({name} == {value});" for name, value in entries.items()]
    lines.append("HOLDS(sizeof(vip_address_t) == 8 && sizeof(vip_network) == sizeof(void *) && sizeof(vip_enum) == 4);")
    return "\n".join(lines) + "\n"


def compiles(source: str, language: str, folder: Path) -> subprocess.CompletedProcess[str]:
    name, standard = LANGUAGES[language]
    compiler = need(name)
    file = folder / "unit.txt"
    file.write_text(source, encoding="utf-8")
    flags = ["-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{HEADER.parent}"]
    command = [compiler, "-x", language, standard, *flags, str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.parametrize("struct", rows(STRUCTS))
def test_structs_of_the_bindings(struct: str) -> None:
    size, alignment, *words = rows(STRUCTS)[struct]
    assert (ffi.sizeof(struct), ffi.alignof(struct)) == (int(size), int(alignment))
    expected = fields(words)
    found = ffi.typeof(struct).fields
    assert [(name, field.offset) for name, field in found] == [(name, offset) for name, _, offset in expected]
    for (_, field), (name, kind, _) in zip(found, expected, strict=True):
        assert field.type is ffi.typeof(c_type(kind)), name


@pytest.mark.parametrize("language", LANGUAGES)
def test_compilers_see_the_same_interface(language: str, tmp_path: Path) -> None:
    result = compiles(assertions(), language, tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("language", LANGUAGES)
def test_compilers_would_see_a_difference(language: str, tmp_path: Path) -> None:
    known = "offsetof(vip_buffer_create_params_t, memory_type) == 44"
    assert known in assertions()
    result = compiles(assertions().replace(known, known.replace("44", "40")), language, tmp_path)
    assert result.returncode != 0
    assert "memory_type" in result.stderr


@pytest.mark.parametrize("enum", values(ENUMS))
def test_enumerations(enum: str) -> None:
    expected = values(ENUMS)[enum]
    members: dict[str, IntEnum] = getattr(constants, enum).__members__
    assert {name: member.value for name, member in members.items()} == expected
    assert ffi.typeof(enum).relements == expected


def test_every_type_of_the_header_is_in_a_table() -> None:
    declared = re.findall(r"^} (\w+);$", HEADER.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(declared) == sorted([*rows(STRUCTS), *rows(ENUMS)])


def test_the_functions_are_those_that_the_vendors_libraries_export() -> None:
    assert sorted(functions()) == sorted(f"vip_{name}" for name in EXPORTS.split())
