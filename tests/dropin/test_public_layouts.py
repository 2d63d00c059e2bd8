"""A program that was built with other declarations of the same interface: written from the published tables, none of our headers in it.

The tables are those of tests/rknn/test_abi.py and tests/vip/test_abi.py, which hold our headers to them value by value. Here a program is
compiled twice, with our headers and with declarations in which every field lies at its published offset, and both print the same.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from compiler.onnx_builders import Net, feeds
from rknn import test_abi as rknn_abi
from vip import test_abi as vip_abi

import anynpu

from .conftest import Models
from .running import board_environment, build, run

RKNN_CALLS = """
int rknn_init(rknn_context *, void *, uint32_t, uint32_t, rknn_init_extend *);
int rknn_destroy(rknn_context);
int rknn_query(rknn_context, rknn_query_cmd, void *, uint32_t);
int rknn_set_core_mask(rknn_context, rknn_core_mask);
int rknn_inputs_set(rknn_context, uint32_t, rknn_input *);
int rknn_run(rknn_context, rknn_run_extend *);
int rknn_outputs_get(rknn_context, uint32_t, rknn_output *, rknn_output_extend *);
int rknn_outputs_release(rknn_context, uint32_t, rknn_output *);
rknn_tensor_mem *rknn_create_mem(rknn_context, uint32_t);
int rknn_destroy_mem(rknn_context, rknn_tensor_mem *);
int rknn_set_io_mem(rknn_context, rknn_tensor_mem *, rknn_tensor_attr *);
int rknn_mem_sync(rknn_context, rknn_tensor_mem *, rknn_mem_sync_mode);
int rknn_matmul_create(uint64_t *, rknn_matmul_info *, rknn_matmul_io_attr *);
int rknn_matmul_set_io_mem(uint64_t, rknn_tensor_mem *, rknn_matmul_tensor_attr *);
int rknn_matmul_run(uint64_t);
int rknn_matmul_destroy(uint64_t);
"""

VIP_CALLS = """
int vip_init(void);
int vip_destroy(void);
uint32_t vip_get_version(void);
int vip_create_network(const void *, uint32_t, int32_t, vip_network *);
int vip_destroy_network(vip_network);
int vip_set_network(vip_network, int32_t, void *);
int vip_query_network(vip_network, int32_t, void *);
int vip_prepare_network(vip_network);
int vip_finish_network(vip_network);
int vip_run_network(vip_network);
int vip_query_input(vip_network, uint32_t, int32_t, void *);
int vip_query_output(vip_network, uint32_t, int32_t, void *);
int vip_set_input(vip_network, uint32_t, vip_buffer);
int vip_set_output(vip_network, uint32_t, vip_buffer);
int vip_create_buffer(vip_buffer_create_params_t *, uint32_t, vip_buffer *);
int vip_destroy_buffer(vip_buffer);
void *vip_map_buffer(vip_buffer);
uint32_t vip_get_buffer_size(vip_buffer);
int vip_flush_buffer(vip_buffer, int32_t);
typedef void Awnn_Context_t;
void awnn_init(void);
void awnn_uninit(void);
Awnn_Context_t *awnn_create(const char *);
void awnn_destroy(Awnn_Context_t *);
void awnn_set_input_buffers(Awnn_Context_t *, void **);
float **awnn_get_output_buffers(Awnn_Context_t *);
void *awnn_get_output_buffer(Awnn_Context_t *, int);
void awnn_run(Awnn_Context_t *);
"""

PACKED = ("-Wno-unknown-warning-option", "-Wno-packed-not-aligned", "-Wno-address-of-packed-member")
"""What compilers would state of fields whose places are given."""

SCALARS = {**rknn_abi.SCALARS, **vip_abi.SCALARS, "function": "void *"}


def declared(name: str, kind: str) -> str:
    """One field as C declares it; an enumeration is an integer of 32 bits."""
    base, pointer, extents = re.fullmatch(r"(\w+)(\*?)((?:\[\d+\])*)", kind).groups()  # type: ignore[union-attr]
    return f"{SCALARS.get(base, base)} {pointer}{name}{extents}"


def struct(name: str, words: list[str], parsed: list[tuple[str, str, int]]) -> str:
    """Every field at its offset on its own, whatever a compiler would do: members of a union, with what lies before them."""
    size, alignment = words[:2]
    parts = [
        f"struct __attribute__((packed)) {{ char before_{field}[{offset}]; {declared(field, kind)}; }};"
        for field, kind, offset in parsed
    ]
    return f"typedef union __attribute__((aligned({alignment}))) {{ {' '.join(parts)} char whole[{size}]; }} {name};"


def ordered(structs: dict[str, list[str]]) -> list[str]:
    """Structs after those that they hold."""
    done: list[str] = []
    while len(done) < len(structs):
        for name, words in structs.items():
            inner = {re.split(r"[\[*]", word.split(":")[1].split("@")[0])[0] for word in words[2:]}
            if name not in done and inner & structs.keys() <= set(done):
                done.append(name)
    return done


def header(abi: object, handles: str, calls: str) -> str:
    structs = abi.rows(abi.STRUCTS)  # type: ignore[attr-defined]
    constants = abi.values(abi.ENUMS)  # type: ignore[attr-defined]
    lines = ["#include <stdint.h>", handles, *(f"typedef int32_t {enum};" for enum in constants)]
    known = [*constants.values(), *(abi.values(abi.DEFINES).values() if hasattr(abi, "DEFINES") else ())]  # type: ignore[attr-defined]
    lines += [f"#define {name} {value}" for entries in known for name, value in entries.items()]
    lines += [struct(name, structs[name], abi.fields(structs[name][2:])) for name in ordered(structs)]  # type: ignore[attr-defined]
    return "\n".join([*lines, calls])


def built_twice(source: str, name: str, text: str, folder: Path, library: str, *flags: str) -> list[Path]:
    """The program with our headers, and with the declarations of *text*."""
    (folder / name).write_text(text, encoding="utf-8")
    ours = build(source, folder / "ours", *flags, library=library)
    theirs = build(source, folder / "theirs", "-DPUBLIC", f"-I{folder}", *PACKED, *flags, library=library)
    return [ours, theirs]


def test_a_program_for_rknn_that_never_saw_our_headers(models: Models, tmp_path: Path) -> None:
    text = header(rknn_abi, "typedef uint64_t rknn_context; typedef uint64_t rknn_matmul_ctx;", RKNN_CALLS)
    programs = built_twice("layouts_rknn.c", "public_rknn.h", text, tmp_path, "rknnrt")
    ours, theirs = (run([program, models.small], board_environment("rk3588")).stdout for program in programs)
    assert theirs == ours
    assert {line.split()[0] for line in ours.splitlines()} >= {"input", "output", "own", "bound", "matrix", "product", "times"}


@pytest.mark.parametrize("dtype", ["w8a8", pytest.param("w16a16", marks=pytest.mark.full)])
def test_a_program_for_viplite_and_libawnn_that_never_saw_our_headers(dtype: str, tmp_path: Path) -> None:
    net = Net()
    net.output(net.conv(net.input("x", (1, 3, 8, 8)), 4, 3))
    proto = net.proto()
    model = anynpu.compile(proto, "t527", dtype=dtype, dataset=feeds(proto, 2), accuracy="fast")
    path, elements = model.save(tmp_path / "model.nb"), model.outputs[0].elements
    text = header(vip_abi, "typedef void *vip_network; typedef void *vip_buffer; typedef uint32_t vip_uint32_t;", VIP_CALLS)
    programs = built_twice("layouts_vip.c", "public_vip.h", text, tmp_path, "VIPlite", "-lawnn")
    ours, theirs = (run([program, path, str(elements)], board_environment("t527")).stdout for program in programs)
    assert theirs == ours
    assert f"output {elements * (2 if dtype == 'w16a16' else 1)} " in ours
    assert f"floats {4 * elements} " in ours
    assert ("position " if dtype == "w16a16" else "affine ") in ours


@pytest.mark.full
def test_a_field_at_another_place_would_show(models: Models, tmp_path: Path) -> None:
    """The declarations are not ours in disguise: with scale where zp is, the program prints something else."""
    text = header(rknn_abi, "typedef uint64_t rknn_context; typedef uint64_t rknn_matmul_ctx;", RKNN_CALLS)
    wrong = text.replace("char before_scale[356]", "char before_scale[352]")
    assert wrong != text
    programs = built_twice("layouts_rknn.c", "public_rknn.h", wrong, tmp_path, "rknnrt")
    ours, theirs = (run([program, models.small], board_environment("rk3588")).stdout for program in programs)
    assert theirs != ours
