"""The matmul calls one by one: the samples of the reference, what is rejected and why, dynamic shapes, cores, memory."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from waiting import wait_until

from anynpu import chips
from anynpu._rknn import ffi
from anynpu.rknn import Code, SoftwareLibrary
from anynpu.rknn.constants import rknn_core_mask, rknn_matmul_type

from .matmul_calls import CHIPS, TYPES, Calls, nibbles, possible, random_matrix

INVALID, UNMATCH, CONTEXT = -5, -13, -7


@pytest.fixture
def library() -> Iterator[SoftwareLibrary]:
    made = SoftwareLibrary("rk3588")
    yield made
    made.close()


@pytest.fixture
def calls(library: SoftwareLibrary) -> Iterator[Calls]:
    """A product of 4 x 64 x 32 in int8 with memory, A all ones."""
    with Calls(library) as made:
        assert made.create(4, 64, 32, 2) == 0
        made.allocate()
        made.bytes("A")[:] = 1
        yield made


def c_of(calls: Calls, m: int = 4, n: int = 32) -> Any:
    return calls.bytes("C").view(np.int32)[: m * n].reshape(m, n).copy()


# ---- the samples of the reference, line by line


def test_sample_of_create(library: SoftwareLibrary) -> None:
    ctx = ffi.new("rknn_matmul_ctx *")
    info = ffi.new("rknn_matmul_info *")
    ffi.memmove(info, bytes(ffi.sizeof("rknn_matmul_info")), ffi.sizeof("rknn_matmul_info"))
    info.M = 4
    info.K = 64
    info.N = 32
    info.type = rknn_matmul_type.RKNN_INT8_MM_INT8_TO_INT32
    info.B_layout = 0
    info.AC_layout = 0

    io_attr = ffi.new("rknn_matmul_io_attr *")
    ffi.memmove(io_attr, bytes(ffi.sizeof("rknn_matmul_io_attr")), ffi.sizeof("rknn_matmul_io_attr"))

    ret = library.rknn_matmul_create(ctx, info, io_attr)
    assert ret == 0
    assert (io_attr.A.size, io_attr.B.size, io_attr.C.size) == (4 * 64, 64 * 32, 4 * 32 * 4)
    assert [ffi.string(attr.name) for attr in (io_attr.A, io_attr.B, io_attr.C)] == [b"A", b"B", b"C"]
    assert library.rknn_matmul_destroy(ctx[0]) == 0


def test_sample_of_set_io_mem_core_mask_run_and_destroy(library: SoftwareLibrary) -> None:
    ctx = ffi.new("rknn_matmul_ctx *")
    info = ffi.new("rknn_matmul_info *", {"M": 4, "K": 64, "N": 32, "type": 2})
    io_attr = ffi.new("rknn_matmul_io_attr *")
    ret = library.rknn_matmul_create(ctx, info, io_attr)
    assert ret == 0
    # Create A
    memory_a = library.rknn_create_mem(ctx[0], io_attr.A.size)
    assert memory_a != ffi.NULL
    ffi.memmove(memory_a.virt_addr, b"\x01" * memory_a.size, memory_a.size)
    # Set A
    ret = library.rknn_matmul_set_io_mem(ctx[0], memory_a, ffi.addressof(io_attr, "A"))
    assert ret == 0
    memory_b = library.rknn_create_mem(ctx[0], io_attr.B.size)
    ffi.memmove(memory_b.virt_addr, b"\x02" * memory_b.size, memory_b.size)
    assert library.rknn_matmul_set_io_mem(ctx[0], memory_b, ffi.addressof(io_attr, "B")) == 0
    memory_c = library.rknn_create_mem(ctx[0], io_attr.C.size)
    assert library.rknn_matmul_set_io_mem(ctx[0], memory_c, ffi.addressof(io_attr, "C")) == 0

    assert library.rknn_matmul_set_core_mask(ctx[0], rknn_core_mask.RKNN_NPU_CORE_AUTO) == 0

    ret = library.rknn_matmul_run(ctx[0])
    assert ret == 0
    assert ffi.unpack(ffi.cast("int32_t *", memory_c.virt_addr), 4 * 32) == [128] * (4 * 32)

    for memory in (memory_a, memory_b, memory_c):
        assert library.rknn_destroy_mem(ctx[0], memory) == 0
    ret = library.rknn_matmul_destroy(ctx[0])
    assert ret == 0


def test_sample_of_quant_params_and_dynamic_shapes_of_later_references(library: SoftwareLibrary) -> None:
    shape_num = 2
    shapes = ffi.new("rknn_matmul_shape[]", shape_num)
    for i in range(shape_num):
        shapes[i].M = i + 1
        shapes[i].K = 64
        shapes[i].N = 32
    ctx = ffi.new("rknn_matmul_ctx *")
    info = ffi.new("rknn_matmul_info *", {"type": rknn_matmul_type.RKNN_INT8_MM_INT8_TO_INT8})
    io_attr = ffi.new("rknn_matmul_io_attr[]", shape_num)
    assert library.rknn_matmul_create_dynamic_shape(ctx, info, shape_num, shapes, io_attr) == 0
    assert [attr.A.size for attr in io_attr] == [64, 128]

    params_a = ffi.new("rknn_quant_params *")
    ffi.memmove(params_a.name, io_attr[0].A.name, len(params_a.name))
    scale, zp = ffi.new("float[]", [0.2]), ffi.new("int32_t[]", [0])
    params_a.scale_len, params_a.scale = 1, scale
    params_a.zp_len, params_a.zp = 1, zp
    assert library.rknn_matmul_set_quant_params(ctx[0], params_a) == 0
    scale[0] = 99.0  # the caller frees it now: it was copied

    memories = {}
    for name in "ABC":
        memories[name] = library.rknn_create_mem(ctx[0], max(getattr(attr, name).size for attr in io_attr))
        ffi.memmove(memories[name].virt_addr, b"\x01" * memories[name].size, memories[name].size)
    for i in range(shape_num):
        assert library.rknn_matmul_set_dynamic_shape(ctx[0], ffi.addressof(shapes, i)) == 0
        for name in "ABC":
            assert library.rknn_matmul_set_io_mem(ctx[0], memories[name], ffi.addressof(io_attr[i], name)) == 0
        assert library.rknn_matmul_run(ctx[0]) == 0
        assert ffi.unpack(ffi.cast("int8_t *", memories["C"].virt_addr), (i + 1) * 32) == [13] * ((i + 1) * 32)  # 64 * 0.2
    for memory in memories.values():
        library.rknn_destroy_mem(ctx[0], memory)
    assert library.rknn_matmul_destroy(ctx[0]) == 0


# ---- B as it is now


@pytest.mark.parametrize("b_layout", [0, 1, 2])
@pytest.mark.parametrize("m", [1, 4, 33])
def test_a_changed_byte_of_b_is_seen_by_the_next_run(library: SoftwareLibrary, b_layout: int, m: int) -> None:
    with Calls(library) as calls:
        assert calls.create(m, 64, 64, 2, B_layout=b_layout) == 0
        calls.allocate()
        calls.bytes("A")[:] = 1
        assert calls.run() == 0
        assert not c_of(calls, m, 64).any()
        for position in (0, 1000, 4095):
            calls.bytes("B")[:] = 0
            calls.bytes("B")[position] = 7
            assert calls.run() == 0
            assert c_of(calls, m, 64).sum() == 7 * m
        calls.bytes("B")[:] = 0
        assert calls.run() == 0
        assert not c_of(calls, m, 64).any()


def test_other_memory_may_be_bound(calls: Calls) -> None:
    calls.bytes("B")[:] = 1
    other = calls.library.rknn_create_mem(calls.context, 64 * 32 + 100)
    ffi.memmove(other.virt_addr, b"\x03" * other.size, other.size)
    assert calls.run() == 0
    assert (c_of(calls) == 64).all()
    assert calls.library.rknn_matmul_set_io_mem(calls.context, other, calls.attribute("B")) == 0
    assert calls.run() == 0
    assert (c_of(calls) == 192).all()
    calls.library.rknn_destroy_mem(calls.context, other)


# ---- old and new callers


def test_a_struct_of_sdk_1_6_is_not_read_past_its_end(library: SoftwareLibrary) -> None:
    """24 bytes at the end of a page that nobody may read past."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    assert protect(ctypes.c_void_p(address + page), ctypes.c_size_t(page), 0) == 0
    try:
        memory[page - 24 : page] = np.array([4, 64, 32, 2, 1, 1], np.int32).tobytes()  # M, K, N, type, B_layout, AC_layout
        info = ffi.cast("rknn_matmul_info *", address + page - 24)
        context, attributes = ffi.new("rknn_matmul_ctx *"), ffi.new("rknn_matmul_io_attr *")
        assert library.rknn_matmul_create(context, info, attributes) == 0
        assert (attributes.A.n_dims, attributes.B.n_dims) == (3, 4)
        assert library.rknn_matmul_destroy(context[0]) == 0
        source, target = ffi.new("int8_t[]", 64 * 32), ffi.new("int8_t[]", 64 * 32)
        assert library.rknn_B_normal_layout_to_native_layout(source, target, 64, 32, info) == 0
    finally:
        protect(ctypes.c_void_p(address + page), ctypes.c_size_t(page), 3)


def test_the_name_of_sdk_2_0_makes_the_same(library: SoftwareLibrary) -> None:
    shapes = ffi.new("rknn_matmul_shape[]", [(1, 64, 32), (8, 64, 32)])
    context, attributes = ffi.new("rknn_matmul_ctx *"), ffi.new("rknn_matmul_io_attr[]", 2)
    info = ffi.new("rknn_matmul_info *", {"type": 2})
    assert library.rknn_matmul_create_dyn_shape(context, info, 2, shapes, attributes) == 0
    assert [attribute.C.size for attribute in attributes] == [128, 1024]
    assert library.rknn_matmul_destroy(context[0]) == 0
    assert library.rknn_matmul_create_dyn_shape(context, info, 0, shapes, attributes) == INVALID


def test_b_conversion_refuses_the_parameters_of_sdk_2_0(library: SoftwareLibrary) -> None:
    memory = ffi.new("int8_t[]", 64 * 32)
    sub_n = ffi.cast("rknn_matmul_info *", 32)
    assert library.rknn_B_normal_layout_to_native_layout(memory, memory, 64, 32, sub_n) == INVALID
    assert library.rknn_B_normal_layout_to_native_layout(memory, memory, 64, 32, ffi.NULL) == INVALID


def test_b_conversion_of_four_bits(library: SoftwareLibrary) -> None:
    rng = np.random.default_rng(5)
    b = random_matrix(rng, "int4", (64, 128))
    blocks = np.array(
        [b[k1 * 32 + k2, n1 * 64 + n2] for n1 in range(2) for k1 in range(2) for n2 in range(64) for k2 in range(32)], np.int8
    )
    source, target = nibbles(b), np.zeros(64 * 128 // 2, np.uint8)
    info = ffi.new("rknn_matmul_info *", {"type": 10})
    convert = library.rknn_B_normal_layout_to_native_layout
    assert convert(ffi.from_buffer(source), ffi.from_buffer(target), 64, 128, info) == 0
    assert np.array_equal(target, nibbles(blocks))


# ---- what is rejected


@pytest.mark.parametrize("chip", CHIPS)
def test_types_that_a_chip_does_not_have(chip: str) -> None:
    library = SoftwareLibrary(chip)
    with Calls(library) as calls:
        for kind in [*rknn_matmul_type, 0, 13, 14, 16, 0xFFFF_FFFF]:
            code = calls.create(1, 256, 256, int(kind))
            assert code == (0 if kind in possible(chip) else INVALID), kind
            if code == 0:
                library.rknn_matmul_destroy(calls.context)
                calls.handle[0] = 0
        assert calls.create(1, 256, 256, 14) == INVALID
        assert calls.why() == "there is no matmul type 14"
    library.close()


@pytest.mark.parametrize("chip", [chip.name for chip in chips.all_chips() if chip.family == "rknn" and not chip.matmul])
def test_chips_without_the_calls(chip: str) -> None:
    library = SoftwareLibrary(chip)
    context, attributes = ffi.new("rknn_matmul_ctx *"), ffi.new("rknn_matmul_io_attr *")
    info = ffi.new("rknn_matmul_info *", {"M": 1, "K": 64, "N": 32, "type": 2})
    assert library.rknn_matmul_create(context, info, attributes) == UNMATCH
    assert context[0] == 0
    library.close()


@pytest.mark.parametrize("chip", CHIPS)
def test_extents_that_do_not_fit(chip: str) -> None:
    library = SoftwareLibrary(chip)
    with Calls(library) as calls:
        for kind in possible(chip):
            limits = chips.get(chip).matmul[TYPES[kind][0]]
            k, n = limits.k_multiple, limits.n_multiple
            for m, wrong_k, wrong_n in (
                (0, k, n),
                (1, 0, n),
                (1, k, 0),
                (-1, k, n),
                (1, k + 1, n),
                (1, k // 2, n),
                (1, k, n // 2),
                (1, k, n + 1),
                (1, 10240 + k, n),
            ):
                assert calls.create(m, wrong_k, wrong_n, kind) == INVALID, (kind, m, wrong_k, wrong_n)
            assert calls.create(1, 10240 + k, n, kind) == INVALID
            assert calls.why().startswith(f"K = {10240 + k} is too long for")
        assert calls.context == 0
    library.close()


def test_layouts_and_schemes_that_do_not_exist(library: SoftwareLibrary) -> None:
    wrong: list[dict[str, int]] = [{"B_layout": 3}, {"B_layout": -1}, {"AC_layout": 2}, {"B_quant_type": 6}, {"AC_quant_type": 2}]
    for fields in wrong:
        with Calls(library) as calls:
            assert calls.create(1, 64, 64, 2, **fields) == INVALID, fields
    for kind, scheme, group_size in (
        (2, 4, 32),
        (1, 2, 0),
        (9, 2, 0),
        (10, 2, 0),
        (9, 4, 0),
        (9, 4, 48),
        (9, 5, 20),
        (9, 4, -32),
    ):
        with Calls(library) as calls:
            assert calls.create(1, 64, 64, kind, B_quant_type=scheme, group_size=group_size) == INVALID, (kind, scheme)
    single = SoftwareLibrary("rk3566")
    with Calls(single) as calls:
        assert calls.create(1, 64, 64, 2, B_layout=2) == INVALID
        assert "transposed" in calls.why()
    single.close()


def test_null_pointers(calls: Calls) -> None:
    library, context, null = calls.library, calls.context, ffi.NULL
    pointers = ffi.new("rknn_matmul_ctx *"), ffi.new("rknn_matmul_info *", {"M": 1, "K": 32, "N": 32, "type": 2})
    attributes = ffi.new("rknn_matmul_io_attr[]", 1)
    shape = ffi.new("rknn_matmul_shape *", (1, 32, 32))
    for position in range(3):
        arguments = [*pointers, attributes]
        arguments[position] = null
        assert library.rknn_matmul_create(*arguments) == INVALID
    for position in (0, 1, 3, 4):
        dynamic = [*pointers, 1, shape, attributes]
        dynamic[position] = null
        assert library.rknn_matmul_create_dynamic_shape(*dynamic) == INVALID
    assert library.rknn_matmul_set_io_mem(context, null, calls.attribute("A")) == INVALID
    assert library.rknn_matmul_set_io_mem(context, calls.memory["A"], null) == INVALID
    assert library.rknn_matmul_set_quant_params(context, null) == INVALID
    assert library.rknn_matmul_get_quant_params(context, null, null) == INVALID
    assert library.rknn_matmul_set_dynamic_shape(context, null) == INVALID
    memory = ffi.new("char[]", 1024)
    for arguments in ([null, memory, 32, 32, pointers[1]], [memory, null, 32, 32, pointers[1]]):
        assert library.rknn_B_normal_layout_to_native_layout(*arguments) == INVALID


def test_binding_what_does_not_fit(calls: Calls) -> None:
    library, context = calls.library, calls.context
    small = library.rknn_create_mem(context, 255)
    assert library.rknn_matmul_set_io_mem(context, small, calls.attribute("A")) == INVALID
    assert calls.why() == "memory of 255 bytes is too small for matrix A"
    attribute = ffi.new("rknn_matmul_tensor_attr *", {"name": b"A", "size": 12})
    assert library.rknn_matmul_set_io_mem(context, calls.memory["A"], attribute) == INVALID
    attribute.name, attribute.size = b"D", 256
    assert library.rknn_matmul_set_io_mem(context, calls.memory["A"], attribute) == INVALID
    assert library.rknn_matmul_set_io_mem(context, ffi.new("rknn_tensor_mem *"), calls.attribute("A")) == INVALID
    library.rknn_destroy_mem(context, small)


def test_running_without_memory(library: SoftwareLibrary) -> None:
    with Calls(library) as calls:
        assert calls.create(1, 64, 32, 2) == 0
        assert calls.run() == Code.RKNN_ERR_INPUT_INVALID
        assert calls.why() == "matrix A has no memory"
        calls.allocate()
        assert calls.run() == 0
        assert library.rknn_destroy_mem(calls.context, calls.memory.pop("C")) == 0
        assert calls.run() == Code.RKNN_ERR_OUTPUT_INVALID
        assert calls.why() == "the memory of matrix C was destroyed"


def test_contexts_that_are_gone_or_of_another_kind(library: SoftwareLibrary) -> None:
    with Calls(library) as calls:
        assert calls.create(1, 64, 32, 2) == 0
        context = calls.context
        assert library.rknn_run(context, ffi.NULL) == CONTEXT
        assert library.rknn_matmul_destroy(context) == 0
        assert library.rknn_matmul_destroy(context) == CONTEXT
        assert library.rknn_matmul_run(context) == CONTEXT
        assert library.rknn_matmul_set_core_mask(context, 1) == CONTEXT
        params, shape = ffi.new("rknn_quant_params *"), ffi.new("rknn_matmul_shape *")
        assert library.rknn_matmul_set_quant_params(context, params) == CONTEXT
        assert library.rknn_matmul_get_quant_params(context, params, ffi.new("float *")) == CONTEXT
        assert library.rknn_matmul_set_dynamic_shape(context, shape) == CONTEXT
        assert library.rknn_matmul_set_io_mem(context, ffi.NULL, calls.attribute("A")) == CONTEXT
        assert library.rknn_create_mem(context, 64) == ffi.NULL
        for foreign in (0, 1, 12345):
            assert library.rknn_matmul_run(foreign) == CONTEXT
        calls.handle[0] = 0


def test_parameters_that_do_not_fit(library: SoftwareLibrary) -> None:
    with Calls(library) as calls:
        assert calls.create(1, 64, 32, 3, B_quant_type=2) == 0
        assert calls.set_parameters("B", np.ones(31)) == INVALID
        assert calls.set_parameters("B", np.ones(32), np.zeros(31)) == INVALID
        assert calls.set_parameters("B", np.ones(32)) == 0
        assert calls.set_parameters("A", [1.0, 2.0]) == INVALID
        for scale in (0.0, -1.0, np.nan, np.inf):
            assert calls.set_parameters("A", scale) == INVALID
        assert calls.set_parameters("A", 1.0, 3) == INVALID
        assert "RKNN_QUANT_TYPE_PER_LAYER_SYM" in calls.why()
        assert calls.set_parameters("X", 1.0) == INVALID
        empty = ffi.new("rknn_quant_params *", {"name": b"A"})
        assert library.rknn_matmul_set_quant_params(calls.context, empty) == INVALID
        for length in (-1, 2, 2**31 - 1):  # nothing is read: there is nothing to read
            empty.scale, empty.scale_len = ffi.new("float *", 1.0), length
            assert library.rknn_matmul_set_quant_params(calls.context, empty) == INVALID
            empty.scale_len, empty.zp_len = 1, length
            assert library.rknn_matmul_set_quant_params(calls.context, empty) == INVALID
        empty.scale, empty.scale_len, empty.zp_len = ffi.NULL, 1, 0
        assert library.rknn_matmul_set_quant_params(calls.context, empty) == INVALID
        library.rknn_matmul_destroy(calls.context)
        assert calls.create(1, 64, 32, 3, AC_quant_type=1) == 0
        assert calls.set_parameters("A", 1.0, 128) == INVALID
        assert calls.set_parameters("A", 1.0, -128) == 0
        library.rknn_matmul_destroy(calls.context)
        assert calls.create(1, 64, 32, 1) == 0
        assert calls.set_parameters("A", 1.0) == INVALID
        assert calls.why() == "A is float16, which is not quantized"


def test_get_quant_params(library: SoftwareLibrary) -> None:
    scale, params = ffi.new("float *"), ffi.new("rknn_quant_params *")
    with Calls(library) as calls:
        assert calls.create(1, 64, 32, 2) == 0
        assert library.rknn_matmul_get_quant_params(calls.context, params, scale) == INVALID
        library.rknn_matmul_destroy(calls.context)
        assert calls.create(1, 64, 32, 2, B_quant_type=2) == 0
        assert library.rknn_matmul_get_quant_params(calls.context, params, scale) == 0
        assert scale[0] == 1
        given = np.linspace(0.5, 2.0, 32, dtype=np.float32)
        assert calls.set_parameters("B", given) == 0
        assert library.rknn_matmul_get_quant_params(calls.context, params, scale) == 0
        assert (scale[0], params.scale_len, params.zp_len) == (2.0, 32, 32)
        assert ffi.unpack(params.scale, 32) == given.tolist()
        assert ffi.unpack(params.zp, 32) == [0] * 32
        assert ffi.string(params.name) == b"B"
        assert library.rknn_matmul_get_quant_params(calls.context, ffi.NULL, scale) == 0


# ---- dynamic shapes


def test_dynamic_shapes(library: SoftwareLibrary) -> None:
    rng = np.random.default_rng(1)
    extents = [(1, 64, 32), (5, 64, 32), (2, 128, 64)]
    shapes = ffi.new("rknn_matmul_shape[]", extents)
    context, attributes = ffi.new("rknn_matmul_ctx *"), ffi.new("rknn_matmul_io_attr[]", 3)
    info = ffi.new("rknn_matmul_info *", {"M": -1, "K": -1, "N": -1, "type": 2, "B_layout": 2})
    assert library.rknn_matmul_create_dynamic_shape(context, info, 3, shapes, attributes) == 0
    with Calls(library) as calls:
        calls.handle[0] = context[0]
        for name in "ABC":
            size = max(getattr(attribute, name).size for attribute in attributes)
            calls.memory[name] = library.rknn_create_mem(context[0], size)
            attribute = ffi.addressof(attributes[0], name)
            assert library.rknn_matmul_set_io_mem(context[0], calls.memory[name], attribute) == 0
        assert calls.run() == INVALID
        assert calls.why() == "no shape is chosen"
        for index in (2, 0, 1, 2):
            m, k, n = extents[index]
            assert library.rknn_matmul_set_dynamic_shape(context[0], ffi.addressof(shapes, index)) == 0
            a, b = random_matrix(rng, "int8", (m, k)), random_matrix(rng, "int8", (k, n))
            calls.write("A", a, "int8")
            calls.write("B", b.T, "int8")
            assert calls.run() == 0
            assert np.array_equal(c_of(calls, m, n), a.astype(np.int64) @ b)
        other = ffi.new("rknn_matmul_shape *", (3, 64, 32))
        assert library.rknn_matmul_set_dynamic_shape(context[0], other) == INVALID
        small = library.rknn_create_mem(context[0], attributes[0].A.size)
        assert library.rknn_matmul_set_io_mem(context[0], small, ffi.addressof(attributes[0], "A")) == 0
        assert calls.run() == Code.RKNN_ERR_INPUT_INVALID
        assert calls.why() == "the memory of matrix A has 64 bytes, 256 are needed for this shape"
        library.rknn_destroy_mem(context[0], small)
    with Calls(library) as calls:
        for count in (0, -1, 513):
            assert library.rknn_matmul_create_dynamic_shape(calls.handle, info, count, shapes, attributes) == INVALID


def test_a_bad_shape_among_good_ones_makes_nothing(library: SoftwareLibrary) -> None:
    shapes = ffi.new("rknn_matmul_shape[]", [(1, 64, 32), (1, 63, 32)])
    context, attributes = ffi.new("rknn_matmul_ctx *"), ffi.new("rknn_matmul_io_attr[]", 2)
    info = ffi.new("rknn_matmul_info *", {"type": 2})
    assert library.rknn_matmul_create_dynamic_shape(context, info, 2, shapes, attributes) == INVALID
    assert context[0] == 0
    assert attributes[0].A.size == 0
    assert len(library.handles) == 0


# ---- cores


@pytest.mark.parametrize("chip", CHIPS)
def test_core_masks(chip: str) -> None:
    library = SoftwareLibrary(chip)
    with Calls(library) as calls:
        assert calls.create(40, 256, 512, 2) == 0
        calls.allocate()
        calls.bytes("A")[:] = 1
        calls.bytes("B")[:] = 2
        masks = chips.get(chip).core_masks
        for mask in (0, 1, 2, 4, 3, 5, 6, 7, 0xFFFF, 8, 0x10000, -1):
            code = library.rknn_matmul_set_core_mask(calls.context, mask)
            assert code == (UNMATCH if not masks else 0 if mask in masks else INVALID), mask
            if code == 0:
                before = [core.jobs for core in library.device_for(chips.get(chip)).statistics]
                calls.bytes("C")[:] = 0
                assert calls.run() == 0
                assert (c_of(calls, 40, 512) == 512).all()
                after = [core.jobs for core in library.device_for(chips.get(chip)).statistics]
                used = [new - old for old, new in zip(before, after, strict=True)]
                wanted = [1] * len(used) if mask == 0xFFFF else [mask >> core & 1 for core in range(len(used))]
                assert used == wanted if mask else sum(used) == 1
        assert calls.run() == 0
    library.close()


def test_threads_share_the_device(library: SoftwareLibrary) -> None:
    """Eight contexts, and one that two threads run at the same time: every product is whole."""
    rng = np.random.default_rng(2)
    failures: list[str] = []

    def multiply(calls: Calls, wanted: Any, mask: int) -> None:
        library.rknn_matmul_set_core_mask(calls.context, mask)
        for _ in range(20):
            if calls.run() != 0 or not np.array_equal(c_of(calls, 8, 64), wanted):
                failures.append(calls.why())

    threads, made = [], []
    for index in range(8):
        calls = Calls(library)
        made.append(calls)
        assert calls.create(8, 256, 64, 2) == 0
        calls.allocate()
        a, b = random_matrix(rng, "int8", (8, 256)), random_matrix(rng, "int8", (256, 64))
        calls.write("A", a, "int8")
        calls.write("B", b, "int8")
        mask = (0, 1, 2, 4, 3, 7)[index % 6]
        for _ in range(2 if index == 0 else 1):
            threads.append(threading.Thread(target=multiply, args=(calls, a.astype(np.int64) @ b, mask)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    for calls in made:
        with calls:
            pass
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []


def test_a_context_may_be_destroyed_while_it_runs(library: SoftwareLibrary) -> None:
    for _ in range(10):
        calls = Calls(library)
        assert calls.create(64, 1024, 512, 2) == 0
        calls.allocate()
        codes: list[int] = []
        thread = threading.Thread(target=lambda run=calls.run, codes=codes: codes.extend(run() for _ in range(5)))
        thread.start()
        assert library.rknn_matmul_destroy(calls.context) == 0
        thread.join(300)
        assert not thread.is_alive()
        assert set(codes) <= {0, CONTEXT}
        for memory in calls.memory.values():
            assert library.rknn_destroy_mem(calls.context, memory) == 0


def test_memory_may_be_destroyed_while_a_product_reads_it(library: SoftwareLibrary) -> None:
    for _ in range(10):
        with Calls(library) as calls:
            assert calls.create(8, 1024, 512, 2) == 0
            calls.allocate()
            assert calls.run() == 0
            codes: list[int] = []
            thread = threading.Thread(target=lambda run=calls.run, codes=codes: codes.extend(run() for _ in range(20)))
            thread.start()
            assert library.rknn_destroy_mem(calls.context, calls.memory.pop("B")) == 0
            thread.join(300)
            assert not thread.is_alive()
            assert set(codes) <= {0, Code.RKNN_ERR_INPUT_INVALID}
            assert calls.run() == Code.RKNN_ERR_INPUT_INVALID


def test_nothing_stays_behind(library: SoftwareLibrary) -> None:
    def once() -> None:
        with Calls(library) as calls:
            assert calls.create(4, 64, 64, 2) == 0
            calls.allocate()
            assert library.rknn_matmul_set_core_mask(calls.context, 7) == 0
            assert calls.run() == 0

    once()
    gc.collect()  # what earlier tests left must not go in between
    descriptors, tasks = len(os.listdir("/proc/self/fd")), set(os.listdir("/proc/self/task"))
    for _ in range(50):
        once()
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    wait_until(lambda: set(os.listdir("/proc/self/task")) <= tasks, "the threads end")
    assert len(library.handles) == 0
    assert len(library.memories) == 0
