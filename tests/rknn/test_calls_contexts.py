"""Calls that make, end and set up contexts: rknn_init with its flags, rknn_dup_context, rknn_destroy, cores, shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anynpu import chips
from anynpu._rknn import ffi
from anynpu.program import Model
from anynpu.rknn import Code, Flag, RknnLibrary, SoftwareLibrary, rknn_core_mask, rknn_query_cmd

from .conftest import Open
from .support import (
    CHANNELS,
    HEIGHT,
    NCHW,
    NULL,
    UNDEFINED,
    WIDTH,
    attr,
    dynamic_model,
    features_model,
    file_bytes,
    get_outputs,
    init,
    input_struct,
    memory_array,
    opened,
    picture_model,
    pixels,
    resolution_model,
    set_picture,
)

Q = rknn_query_cmd
FLAGS = [flag for flag in Flag if flag & 0xFFFF and flag not in (Flag.RKNN_FLAG_SHARE_WEIGHT_MEM, Flag.RKNN_FLAG_SHARE_SRAM)]


def reason(library: RknnLibrary) -> str:
    failure = library.last_error()
    return "" if failure is None else failure.text


def path_pointer(path: Path) -> Any:
    return ffi.new("char[]", str(path).encode())


def result(library: RknnLibrary, handle: int) -> list[bytes]:
    """The outputs of the standard image."""
    assert set_picture(library, handle, pixels()) == 0, reason(library)
    assert library.rknn_run(handle, NULL) == 0, reason(library)
    return get_outputs(library, handle, 2, want_float=False)


def mem_size(library: RknnLibrary, handle: int) -> Any:
    answer = ffi.new("rknn_mem_size *")
    assert library.rknn_query(handle, Q.RKNN_QUERY_MEM_SIZE, answer, ffi.sizeof("rknn_mem_size")) == 0
    return answer


# rknn_init


def test_init_from_bytes_copies_them(library: SoftwareLibrary) -> None:
    data = bytearray(file_bytes(picture_model()))
    handle = ffi.new("rknn_context *")
    assert library.rknn_init(handle, ffi.from_buffer(data), len(data), 0, NULL) == 0
    assert 0 < handle[0] < 2**32
    before = result(library, handle[0])
    data[:] = bytes(len(data))
    assert result(library, handle[0]) == before


def test_init_from_a_path(library: SoftwareLibrary, tmp_path: Path) -> None:
    path = tmp_path / "ein Modell äöü.rknn"
    path.write_bytes(file_bytes(picture_model()))
    handle = ffi.new("rknn_context *")
    assert library.rknn_init(handle, path_pointer(path), 0, 0, NULL) == 0
    assert result(library, handle[0]) == result(library, opened(library, picture_model()))


@pytest.mark.parametrize("tail", [0, 33])
def test_init_from_a_part_of_a_file(library: SoftwareLibrary, tmp_path: Path, tail: int) -> None:
    data = file_bytes(picture_model())
    path = tmp_path / "bundle"
    path.write_bytes(b"header" * 7 + data + bytes(tail))
    extend = ffi.new("rknn_init_extend *", {"real_model_offset": 42, "real_model_size": len(data)})
    handle = ffi.new("rknn_context *")
    assert library.rknn_init(handle, path_pointer(path), 0, 0, extend) == 0, reason(library)
    assert result(library, handle[0]) == result(library, opened(library, picture_model()))


def test_a_size_of_zero_reaches_to_the_end_of_the_file(library: SoftwareLibrary, tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    path.write_bytes(b"head" + file_bytes(picture_model()))
    extend = ffi.new("rknn_init_extend *", {"real_model_offset": 4})
    assert library.rknn_init(ffi.new("rknn_context *"), path_pointer(path), 0, 0, extend) == 0, reason(library)


@pytest.mark.parametrize(("offset", "size"), [(-1, 10), (0, 10**6), (10**6, 0), (10**6, 10)])
def test_a_part_outside_of_the_file(library: SoftwareLibrary, tmp_path: Path, offset: int, size: int) -> None:
    path = tmp_path / "bundle"
    path.write_bytes(file_bytes(picture_model()))
    extend = ffi.new("rknn_init_extend *", {"real_model_offset": offset, "real_model_size": size})
    assert library.rknn_init(ffi.new("rknn_context *"), path_pointer(path), 0, 0, extend) == Code.RKNN_ERR_PARAM_INVALID


def test_a_part_of_a_file_that_does_not_exist(library: SoftwareLibrary, tmp_path: Path) -> None:
    extend = ffi.new("rknn_init_extend *", {"real_model_offset": 4})
    handle = ffi.new("rknn_context *", 77)
    code = library.rknn_init(handle, path_pointer(tmp_path / "none"), 0, 0, extend)
    assert (code, handle[0]) == (Code.RKNN_ERR_MODEL_INVALID, 77)


@pytest.mark.parametrize("content", [b"", b"RKNN", b"no model at all" * 100])
def test_what_is_no_model(library: SoftwareLibrary, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.rknn"
    path.write_bytes(content)
    assert library.rknn_init(ffi.new("rknn_context *"), path_pointer(path), 0, 0, NULL) == Code.RKNN_ERR_MODEL_INVALID
    if content:
        assert init(library, content)[0] == Code.RKNN_ERR_MODEL_INVALID


def test_a_damaged_model(library: SoftwareLibrary) -> None:
    data = file_bytes(picture_model())
    assert init(library, data[: len(data) // 2])[0] == Code.RKNN_ERR_MODEL_INVALID
    assert (
        init(library, file_bytes(picture_model(), True))[0] == Code.RKNN_ERR_MODEL_INVALID
    )  # without weights, and nobody's shared


def test_null_pointers_of_init(library: SoftwareLibrary) -> None:
    data = file_bytes(picture_model())
    assert library.rknn_init(NULL, ffi.from_buffer(data), len(data), 0, NULL) == Code.RKNN_ERR_PARAM_INVALID
    assert library.rknn_init(ffi.new("rknn_context *"), NULL, 0, 0, NULL) == Code.RKNN_ERR_PARAM_INVALID


def test_flags_without_a_meaning(library: SoftwareLibrary) -> None:
    assert init(library, picture_model(), 0x8000_0000)[0] == Code.RKNN_ERR_PARAM_INVALID


def test_a_chip_of_the_other_family() -> None:
    with pytest.raises(NotImplementedError, match="has no RKNN NPU"):
        SoftwareLibrary("t527")


@pytest.mark.parametrize(
    "flag",
    [flag for flag in FLAGS if flag not in (Flag.RKNN_FLAG_MEM_ALLOC_OUTSIDE, Flag.RKNN_FLAG_INTERNAL_ALLOC_OUTSIDE)],
    ids=lambda flag: flag.name,
)
def test_flags_that_do_not_change_results(library: SoftwareLibrary, flag: Flag) -> None:
    handle = opened(library, picture_model(), flag)
    if flag == Flag.RKNN_FLAG_COLLECT_MODEL_INFO_ONLY:
        assert set_picture(library, handle, pixels()) == Code.RKNN_ERR_CTX_INVALID
    else:
        assert result(library, handle) == result(library, opened(library, picture_model()))


def test_a_context_that_only_tells(library: SoftwareLibrary) -> None:
    full = opened(library, picture_model())
    handle = opened(library, picture_model(), Flag.RKNN_FLAG_COLLECT_MODEL_INFO_ONLY)
    sizes = mem_size(library, handle)
    assert sizes.total_weight_size == mem_size(library, full).total_weight_size > 0
    assert sizes.total_internal_size == mem_size(library, full).total_internal_size > 0
    memory = library.rknn_create_mem(full, 10_000)
    about = attr(library, handle, Q.RKNN_QUERY_NATIVE_INPUT_ATTR)
    refused = [
        library.rknn_run(handle, NULL),
        library.rknn_run(handle, ffi.new("rknn_run_extend *", {"non_block": 1})),
        library.rknn_wait(handle, NULL),
        library.rknn_set_core_mask(handle, 1),
        library.rknn_set_batch_core_num(handle, 1),
        library.rknn_outputs_get(handle, 2, ffi.new("rknn_output[2]"), NULL),
        library.rknn_set_io_mem(handle, memory, about),
        library.rknn_set_weight_mem(handle, memory),
        library.rknn_set_internal_mem(handle, memory),
        library.rknn_set_input_shapes(handle, 1, about),
        library.rknn_dup_context(ffi.new("rknn_context *", handle), ffi.new("rknn_context *")),
        init(
            library,
            picture_model(),
            Flag.RKNN_FLAG_SHARE_WEIGHT_MEM,
            ffi.new("rknn_init_extend *", {"ctx": handle}),
        )[0],
    ]
    assert set(refused) == {int(Code.RKNN_ERR_CTX_INVALID)}
    assert "RKNN_FLAG_COLLECT_MODEL_INFO_ONLY" in reason(library)
    assert library.rknn_destroy(handle) == 0


@pytest.mark.parametrize(
    "flags", [Flag.RKNN_FLAG_MEM_ALLOC_OUTSIDE, Flag.RKNN_FLAG_INTERNAL_ALLOC_OUTSIDE], ids=["everything", "internal"]
)
@pytest.mark.parametrize("weights_first", [True, False])
def test_memory_from_outside(library: SoftwareLibrary, flags: Flag, weights_first: bool) -> None:
    expected = result(library, opened(library, picture_model()))
    handle = opened(library, picture_model(), flags)
    sizes = mem_size(library, handle)
    weights = library.rknn_create_mem(handle, sizes.total_weight_size)
    internal = library.rknn_create_mem(handle, sizes.total_internal_size)
    all_outside = flags == Flag.RKNN_FLAG_MEM_ALLOC_OUTSIDE
    assert set_picture(library, handle, pixels()) == Code.RKNN_ERR_MALLOC_FAIL
    assert library.rknn_run(handle, NULL) == Code.RKNN_ERR_MALLOC_FAIL
    setters = [lambda: library.rknn_set_weight_mem(handle, weights), lambda: library.rknn_set_internal_mem(handle, internal)]
    codes = [setter() for setter in (setters if weights_first else setters[::-1])]
    assert sorted(codes) == ([0, 0] if all_outside else [Code.RKNN_ERR_PARAM_INVALID, 0])
    assert result(library, handle) == expected
    assert memory_array(internal).any()  # intermediate tensors are really there
    assert memory_array(weights).any() == all_outside


@pytest.mark.parametrize("flags", [Flag.RKNN_FLAG_MEM_ALLOC_OUTSIDE, Flag.RKNN_FLAG_PRIOR_HIGH])
def test_memory_that_does_not_fit(library: SoftwareLibrary, flags: Flag) -> None:
    handle = opened(library, picture_model(), flags)
    small = library.rknn_create_mem(handle, 16)
    assert library.rknn_set_weight_mem(handle, small) in (Code.RKNN_ERR_PARAM_INVALID, Code.RKNN_ERR_MALLOC_FAIL)
    assert library.rknn_set_internal_mem(handle, small) == Code.RKNN_ERR_PARAM_INVALID
    for call in (library.rknn_set_weight_mem, library.rknn_set_internal_mem):
        assert call(handle, NULL) == Code.RKNN_ERR_PARAM_INVALID
        assert call(handle + 1000, small) == Code.RKNN_ERR_CTX_INVALID


def test_other_internal_memory_keeps_what_is_bound(library: SoftwareLibrary) -> None:
    handle = opened(library, picture_model(), Flag.RKNN_FLAG_INTERNAL_ALLOC_OUTSIDE)
    size = mem_size(library, handle).total_internal_size
    assert library.rknn_set_internal_mem(handle, library.rknn_create_mem(handle, size)) == 0
    about = attr(library, handle, Q.RKNN_QUERY_NATIVE_INPUT_ATTR)
    memory = library.rknn_create_mem(handle, about.size_with_stride)
    memory_array(memory).view(np.int8)[:] = np.arange(about.size_with_stride, dtype=np.int64).astype(np.int8)
    about.pass_through = 1
    assert library.rknn_set_io_mem(handle, memory, about) == 0
    assert library.rknn_run(handle, NULL) == 0
    before = get_outputs(library, handle, 2)
    assert library.rknn_set_internal_mem(handle, library.rknn_create_mem(handle, size)) == 0
    assert library.rknn_run(handle, NULL) == 0, reason(library)
    assert get_outputs(library, handle, 2) == before


# sharing


def small_result(library: RknnLibrary, handle: int, side: int) -> bytes:
    picture = np.random.default_rng(1).normal(size=(1, side, side, 3)).astype(np.float32)
    assert set_picture(library, handle, picture) == 0, reason(library)
    assert library.rknn_run(handle, NULL) == 0, reason(library)
    return get_outputs(library, handle, 1)[0]


def test_weights_of_another_model(library: SoftwareLibrary) -> None:
    first = opened(library, resolution_model(8))
    extend = ffi.new("rknn_init_extend *", {"ctx": first})
    second = opened(library, file_bytes(resolution_model(12), True), Flag.RKNN_FLAG_SHARE_WEIGHT_MEM, extend)
    expected = small_result(library, opened(library, resolution_model(12)), 12)
    assert small_result(library, second, 12) == expected
    assert mem_size(library, second).total_dma_allocated_size < mem_size(library, first).total_dma_allocated_size + 12 * 12 * 11
    assert library.rknn_destroy(first) == 0
    assert small_result(library, second, 12) == expected  # the weights stay while somebody uses them


def test_weights_that_do_not_fit(library: SoftwareLibrary) -> None:
    other = opened(library, picture_model())
    extend = ffi.new("rknn_init_extend *", {"ctx": other})
    code, _ = init(library, file_bytes(resolution_model(12), True), Flag.RKNN_FLAG_SHARE_WEIGHT_MEM, extend)
    assert code == Code.RKNN_ERR_MODEL_INVALID


@pytest.mark.parametrize("flag", [Flag.RKNN_FLAG_SHARE_WEIGHT_MEM, Flag.RKNN_FLAG_SHARE_SRAM | Flag.RKNN_FLAG_ENABLE_SRAM])
def test_sharing_needs_a_context(library: SoftwareLibrary, flag: Flag) -> None:
    assert init(library, picture_model(), flag)[0] == Code.RKNN_ERR_PARAM_INVALID
    gone = opened(library, picture_model())
    assert library.rknn_destroy(gone) == 0
    extend = ffi.new("rknn_init_extend *", {"ctx": gone})
    assert init(library, picture_model(), flag, extend)[0] == Code.RKNN_ERR_CTX_INVALID


def test_weights_of_a_context_that_has_none_yet(library: SoftwareLibrary) -> None:
    empty = opened(library, resolution_model(8), Flag.RKNN_FLAG_MEM_ALLOC_OUTSIDE)
    extend = ffi.new("rknn_init_extend *", {"ctx": empty})
    code, _ = init(library, file_bytes(resolution_model(12), True), Flag.RKNN_FLAG_SHARE_WEIGHT_MEM, extend)
    assert code == Code.RKNN_ERR_MALLOC_FAIL


def test_a_dynamic_model_shares_nothing(library: SoftwareLibrary) -> None:
    first = opened(library, dynamic_model())
    extend = ffi.new("rknn_init_extend *", {"ctx": first})
    assert init(library, dynamic_model(), Flag.RKNN_FLAG_SHARE_WEIGHT_MEM, extend)[0] == Code.RKNN_ERR_MODEL_INVALID
    code = library.rknn_dup_context(ffi.new("rknn_context *", first), ffi.new("rknn_context *"))
    assert code == Code.RKNN_ERR_MODEL_INVALID


def test_sram_is_accounted_for(library: SoftwareLibrary) -> None:
    plain = opened(library, picture_model())
    total = mem_size(library, plain).total_sram_size
    assert total == chips.get("rk3588").sram_bytes == mem_size(library, plain).free_sram_size
    first = opened(library, picture_model(), Flag.RKNN_FLAG_ENABLE_SRAM)
    used = mem_size(library, first).total_internal_size
    assert mem_size(library, plain).free_sram_size == total - used
    extend = ffi.new("rknn_init_extend *", {"ctx": first})
    second = opened(library, picture_model(), Flag.RKNN_FLAG_ENABLE_SRAM | Flag.RKNN_FLAG_SHARE_SRAM, extend)
    assert mem_size(library, plain).free_sram_size == total - used
    assert result(library, second) == result(library, plain)
    third = opened(library, picture_model(), Flag.RKNN_FLAG_ENABLE_SRAM)
    assert mem_size(library, plain).free_sram_size == total - 2 * used
    for handle in (first, third):
        assert library.rknn_destroy(handle) == 0
    assert mem_size(library, plain).free_sram_size == total - used  # the second still uses it
    assert library.rknn_destroy(second) == 0
    assert mem_size(library, plain).free_sram_size == total


def test_sharing_sram_needs_sram(library: SoftwareLibrary) -> None:
    first = opened(library, picture_model())
    extend = ffi.new("rknn_init_extend *", {"ctx": first})
    assert init(library, picture_model(), Flag.RKNN_FLAG_SHARE_SRAM, extend)[0] == Code.RKNN_ERR_PARAM_INVALID


# rknn_dup_context, rknn_destroy


def test_duplicates_have_inputs_of_their_own(library: SoftwareLibrary) -> None:
    source, copy = ffi.new("rknn_context *", opened(library, picture_model())), ffi.new("rknn_context *")
    assert library.rknn_dup_context(source, copy) == 0
    assert copy[0] not in (0, source[0])
    assert library.rknn_run(copy[0], NULL) == Code.RKNN_ERR_INPUT_INVALID
    expected = result(library, source[0])
    assert set_picture(library, copy[0], pixels(seed=9)) == 0
    assert library.rknn_run(copy[0], NULL) == 0
    assert get_outputs(library, source[0], 2, want_float=False) == expected != get_outputs(library, copy[0], 2, want_float=False)
    assert library.rknn_destroy(source[0]) == 0
    assert result(library, copy[0]) == expected
    assert library.rknn_destroy(copy[0]) == 0


def test_duplicates_share_weights(library: SoftwareLibrary) -> None:
    source, copy = ffi.new("rknn_context *", opened(library, picture_model())), ffi.new("rknn_context *")
    assert library.rknn_dup_context(source, copy) == 0
    weights = mem_size(library, source[0]).total_weight_size
    first, second = (mem_size(library, handle[0]).total_dma_allocated_size for handle in (source, copy))
    assert first - second >= weights > 0


def test_null_and_stale_contexts_of_dup(library: SoftwareLibrary) -> None:
    source = ffi.new("rknn_context *", opened(library, picture_model()))
    assert library.rknn_dup_context(NULL, source) == Code.RKNN_ERR_PARAM_INVALID
    assert library.rknn_dup_context(source, NULL) == Code.RKNN_ERR_PARAM_INVALID
    assert library.rknn_destroy(source[0]) == 0
    assert library.rknn_dup_context(source, ffi.new("rknn_context *")) == Code.RKNN_ERR_CTX_INVALID


def test_every_call_refuses_a_context_that_is_gone(library: SoftwareLibrary) -> None:
    gone, alive = opened(library, picture_model()), opened(library, picture_model())
    memory = library.rknn_create_mem(alive, 64)
    about = attr(library, alive, Q.RKNN_QUERY_INPUT_ATTR)
    assert library.rknn_destroy(gone) == 0
    for handle in (gone, 0, 12345, alive + 1):
        codes = [
            library.rknn_destroy(handle),
            library.rknn_query(handle, 0, ffi.new("rknn_input_output_num *"), 8),
            library.rknn_set_core_mask(handle, 1),
            library.rknn_set_batch_core_num(handle, 1),
            library.rknn_inputs_set(handle, 1, input_struct(pixels())),
            library.rknn_run(handle, NULL),
            library.rknn_wait(handle, NULL),
            library.rknn_outputs_get(handle, 1, ffi.new("rknn_output[1]"), NULL),
            library.rknn_outputs_release(handle, 1, ffi.new("rknn_output[1]")),
            library.rknn_set_weight_mem(handle, memory),
            library.rknn_set_internal_mem(handle, memory),
            library.rknn_set_io_mem(handle, memory, about),
            library.rknn_set_input_shapes(handle, 1, about),
            library.rknn_set_input_shape(handle, about),
            library.rknn_mem_sync(handle, memory, 1),
            library.rknn_destroy_mem(handle, memory),
        ]
        assert set(codes) == {int(Code.RKNN_ERR_CTX_INVALID)}
        pointers = [
            library.rknn_create_mem(handle, 64),
            library.rknn_create_mem2(handle, 64, 0),
            library.rknn_create_mem_from_fd(handle, 0, ffi.cast("void *", 4096), 64, 0),
            library.rknn_create_mem_from_phys(handle, 4096, ffi.cast("void *", 4096), 64),
        ]
        assert all(pointer == NULL for pointer in pointers)
        failure = library.last_error()
        assert failure is not None
        assert failure.code == Code.RKNN_ERR_CTX_INVALID


def test_a_closed_library_is_a_device_that_is_gone(open_software: Open) -> None:
    library = open_software("rk3588")
    handle = opened(library, picture_model())
    library.close()
    assert init(library, picture_model())[0] == Code.RKNN_ERR_DEVICE_UNAVAILABLE
    assert library.rknn_run(handle, NULL) == Code.RKNN_ERR_CTX_INVALID


# cores


@pytest.mark.parametrize("mask", [0, 1, 2, 4, 3, 7, 0xFFFF])
def test_masks_of_rk3588(library: SoftwareLibrary, mask: int) -> None:
    handle = opened(library, picture_model())
    assert library.rknn_set_core_mask(handle, mask) == 0
    assert result(library, handle) == result(library, opened(library, picture_model()))


@pytest.mark.parametrize(
    ("chip", "mask"),
    [("rk3588", 5), ("rk3588", 6), ("rk3588", 8), ("rk3588", 0x10000), ("rk3588", -1), ("rk3576", 4), ("rk3576", 7)],
)
def test_masks_that_are_not_possible(open_software: Open, chip: str, mask: int) -> None:
    library = open_software(chip)
    handle = opened(library, picture_model(chip))
    assert library.rknn_set_core_mask(handle, mask) == Code.RKNN_ERR_PARAM_INVALID


def test_a_mask_chooses_cores(library: SoftwareLibrary) -> None:
    handle = opened(library, picture_model())
    device = library.device_for(chips.get("rk3588"))
    for core, mask in enumerate((rknn_core_mask.RKNN_NPU_CORE_0, rknn_core_mask.RKNN_NPU_CORE_1, rknn_core_mask.RKNN_NPU_CORE_2)):
        before = [entry.jobs for entry in device.statistics]
        assert library.rknn_set_core_mask(handle, int(mask)) == 0
        result(library, handle)
        after = [entry.jobs for entry in device.statistics]
        assert [new - old for old, new in zip(before, after, strict=True)] == [int(index == core) for index in range(3)]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_batches_on_several_cores(library: SoftwareLibrary, count: int) -> None:
    model = picture_model(batch=2)
    handle, plain = opened(library, model), opened(library, model)
    assert library.rknn_set_batch_core_num(handle, count) == 0
    outputs = []
    for context in (handle, plain):
        assert set_picture(library, context, pixels(2)) == 0
        assert library.rknn_run(context, NULL) == 0
        outputs.append(get_outputs(library, context, 2))
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("count", [0, -1, 4])
def test_numbers_of_cores_that_are_not_possible(library: SoftwareLibrary, count: int) -> None:
    handle = opened(library, picture_model(batch=2))
    assert library.rknn_set_batch_core_num(handle, count) == Code.RKNN_ERR_PARAM_INVALID


# rknn_set_input_shapes


def shape_structs(library: RknnLibrary, handle: int, *shapes: tuple[int, ...], fmt: int | None = None) -> Any:
    structs = ffi.new("rknn_tensor_attr[]", len(shapes))
    for index, shape in enumerate(shapes):
        structs[index] = attr(library, handle, Q.RKNN_QUERY_INPUT_ATTR, index)[0]
        structs[index].n_dims = len(shape)
        for axis in range(16):
            structs[index].dims[axis] = shape[axis] if axis < len(shape) else 0
        if fmt is not None:
            structs[index].fmt = fmt
    return structs


SMALL, LARGE = ((1, 8, 8, 3), (1, 4)), ((1, 12, 16, 3), (1, 6))


def dynamic_result(library: RknnLibrary, handle: int, sizes: tuple[tuple[int, ...], ...]) -> list[bytes]:
    random = np.random.default_rng(4)
    arrays = [random.uniform(-1, 1, size).astype(np.float32) for size in sizes]
    inputs = ffi.new("rknn_input[2]")
    for index, array in enumerate(arrays):
        inputs[index] = input_struct(array, index=index)[0]
    assert library.rknn_inputs_set(handle, 2, inputs) == 0, reason(library)
    assert library.rknn_run(handle, NULL) == 0, reason(library)
    return get_outputs(library, handle, 2)


def test_switching_between_shapes(library: SoftwareLibrary) -> None:
    handle = opened(library, dynamic_model())
    results = []
    for sizes in (SMALL, LARGE, SMALL, SMALL):
        assert library.rknn_set_input_shapes(handle, 2, shape_structs(library, handle, *sizes)) == 0, reason(library)
        results.append(dynamic_result(library, handle, sizes))
    assert results[0] == results[2] == results[3]
    assert [len(data) for data in results[0]] == [4 * 8 * 8 * 4, 4 * 4]
    assert [len(data) for data in results[1]] == [4 * 12 * 16 * 4, 6 * 4]


def test_shapes_may_come_in_any_order_and_as_channels_first(library: SoftwareLibrary) -> None:
    handle = opened(library, dynamic_model())
    structs = shape_structs(library, handle, *LARGE)
    turned = ffi.new("rknn_tensor_attr[2]")
    turned[0], turned[1] = structs[1], structs[0]
    assert library.rknn_set_input_shapes(handle, 2, turned) == 0
    assert library.rknn_set_input_shapes(handle, 2, shape_structs(library, handle, (1, 3, 8, 8), (1, 4))) == 0
    assert library.rknn_set_input_shapes(handle, 2, shape_structs(library, handle, *LARGE, fmt=UNDEFINED)) == 0
    dynamic_result(library, handle, LARGE)


def test_shapes_that_are_refused(library: SoftwareLibrary) -> None:
    handle = opened(library, dynamic_model())
    good = shape_structs(library, handle, *SMALL)
    same = ffi.new("rknn_tensor_attr[2]")
    same[0] = same[1] = good[0]
    too_many = shape_structs(library, handle, *SMALL)
    too_many[0].n_dims = 17
    for n_inputs, structs in (
        (2, shape_structs(library, handle, (1, 9, 8, 3), (1, 4))),
        (2, shape_structs(library, handle, SMALL[0], LARGE[1])),  # each exists, but not together
        (2, shape_structs(library, handle, *SMALL, fmt=NCHW)),
        (2, same),
        (2, too_many),
        (1, good),
        (3, good),
        (2, NULL),
    ):
        assert library.rknn_set_input_shapes(handle, n_inputs, structs) == Code.RKNN_ERR_PARAM_INVALID
    assert library.rknn_run(handle, NULL) == Code.RKNN_ERR_INPUT_INVALID
    inputs = ffi.new("rknn_input[2]")
    assert library.rknn_inputs_set(handle, 2, inputs) == Code.RKNN_ERR_INPUT_INVALID
    assert "rknn_set_input_shapes" in getattr(library.last_error(), "hint", "")


@pytest.mark.parametrize("model", [picture_model, features_model])
def test_shapes_of_a_model_with_one_set(library: SoftwareLibrary, model: Any) -> None:
    compiled: Model = model()
    handle = opened(library, compiled)
    structs = ffi.new("rknn_tensor_attr[]", len(compiled.inputs))
    assert library.rknn_set_input_shapes(handle, len(compiled.inputs), structs) == Code.RKNN_ERR_MODEL_INVALID


def test_new_shapes_let_go_of_bound_memory(library: SoftwareLibrary) -> None:
    handle = opened(library, dynamic_model())
    assert library.rknn_set_input_shapes(handle, 2, shape_structs(library, handle, *SMALL)) == 0
    about = attr(library, handle, Q.RKNN_QUERY_CURRENT_NATIVE_INPUT_ATTR)
    assert library.rknn_set_io_mem(handle, library.rknn_create_mem(handle, about.size_with_stride), about) == 0
    assert library.rknn_set_input_shapes(handle, 2, shape_structs(library, handle, *LARGE)) == 0
    assert library.rknn_run(handle, NULL) == Code.RKNN_ERR_INPUT_INVALID
    dynamic_result(library, handle, LARGE)


def test_sizes_of_the_standard_picture(library: SoftwareLibrary) -> None:
    """What the tests above rely on."""
    maps, scores = result(library, opened(library, picture_model()))
    assert (len(maps), len(scores)) == (CHANNELS * HEIGHT * WIDTH, 10)
    assert len(set(maps)) > 20
