"""Calls about memory: rknn_create_mem and its kin, rknn_destroy_mem, rknn_mem_sync, rknn_set_io_mem."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator

import numpy as np
import pytest

from anynpu._rknn import ffi
from anynpu.rknn import Code, Flag, RknnLibrary, SoftwareLibrary, rknn_mem_alloc_flags, rknn_query_cmd

from .conftest import Open
from .support import FP32, NC1HWC2, NULL, attr, features_model, memory_array, opened, picture_model

Q = rknn_query_cmd
SIZE = 5000


@pytest.fixture
def handle(library: SoftwareLibrary) -> int:
    return opened(library, picture_model())


@pytest.fixture
def shared() -> Iterator[tuple[int, mmap.mmap]]:
    """A memfd of two pages and its mapping."""
    fd = os.memfd_create("test")
    os.ftruncate(fd, 8192)
    with mmap.mmap(fd, 8192) as mapping:
        yield fd, mapping
    os.close(fd)


def why(library: RknnLibrary) -> int:
    failure = library.last_error()
    assert failure is not None
    return failure.code


# rknn_create_mem, rknn_create_mem2


def test_fields_of_new_memory(library: SoftwareLibrary, handle: int) -> None:
    memory = library.rknn_create_mem(handle, SIZE)
    assert (memory.size, memory.offset, memory.flags) == (SIZE, 0, 1)
    assert memory.fd >= 0
    assert memory.phys_addr != 0
    assert not memory_array(memory).any()
    memory_array(memory)[:3] = (1, 2, 3)
    with mmap.mmap(memory.fd, SIZE) as mapping:  # a real descriptor, which other libraries can map
        assert mapping[:4] == b"\1\2\3\0"


def test_pieces_of_memory_differ(library: SoftwareLibrary, handle: int) -> None:
    first, second = library.rknn_create_mem(handle, SIZE), library.rknn_create_mem(handle, SIZE)
    assert first.fd != second.fd
    assert first.virt_addr != second.virt_addr
    assert abs(int(first.phys_addr) - int(second.phys_addr)) >= SIZE


def test_memory_of_no_bytes(library: SoftwareLibrary, handle: int) -> None:
    assert library.rknn_create_mem(handle, 0) == NULL
    assert why(library) == Code.RKNN_ERR_PARAM_INVALID


def test_memory_that_is_not_to_be_had(library: SoftwareLibrary, handle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(os, "memfd_create", fail)
    assert library.rknn_create_mem(handle, SIZE) == NULL
    assert why(library) == Code.RKNN_ERR_MALLOC_FAIL


@pytest.mark.parametrize("flags", [0, 1, 2, 4, 5, 6])
def test_kinds_of_memory(library: SoftwareLibrary, handle: int, flags: int) -> None:
    memory = library.rknn_create_mem2(handle, SIZE, flags)
    assert (memory.size, memory.flags) == (SIZE, 1)


@pytest.mark.parametrize("flags", [3, 8, 0x10000])
def test_kinds_of_memory_that_do_not_exist(library: SoftwareLibrary, handle: int, flags: int) -> None:
    assert library.rknn_create_mem2(handle, SIZE, flags) == NULL
    assert why(library) == Code.RKNN_ERR_PARAM_INVALID


def test_memory_beyond_32_bits(library: SoftwareLibrary, handle: int) -> None:
    assert library.rknn_create_mem2(handle, 2**32, 0) == NULL
    assert why(library) == Code.RKNN_ERR_MALLOC_FAIL


def test_memory_without_a_context(library: SoftwareLibrary) -> None:
    memory = library.rknn_create_mem2(0, SIZE, int(Flag.RKNN_MEM_FLAG_ALLOC_NO_CONTEXT))
    assert memory.size == SIZE
    assert library.rknn_destroy_mem(0, memory) == 0


def test_memory_in_sram_is_accounted_for(library: SoftwareLibrary, handle: int) -> None:
    def free() -> int:
        answer = ffi.new("rknn_mem_size *")
        assert library.rknn_query(handle, Q.RKNN_QUERY_MEM_SIZE, answer, 64) == 0
        return int(answer.free_sram_size)

    before = free()
    memory = library.rknn_create_mem2(handle, SIZE, int(rknn_mem_alloc_flags.RKNN_FLAG_MEMORY_TRY_ALLOC_SRAM))
    assert free() == before - SIZE
    assert library.rknn_destroy_mem(handle, memory) == 0
    assert free() == before


# memory of the caller


@pytest.mark.parametrize("offset", [0, 100])
@pytest.mark.parametrize("mapped", [True, False], ids=["address", "descriptor"])
def test_memory_from_a_descriptor(
    library: SoftwareLibrary, handle: int, shared: tuple[int, mmap.mmap], offset: int, mapped: bool
) -> None:
    fd, mapping = shared
    view = np.frombuffer(mapping, np.uint8)
    address = ffi.cast("void *", view.ctypes.data if mapped else 0)
    memory = library.rknn_create_mem_from_fd(handle, fd, address, SIZE, offset)
    assert (memory.size, memory.fd, memory.offset, memory.flags) == (SIZE, fd, offset, 2)
    memory_array(memory)[0] = 77
    assert view[offset] == 77
    assert library.rknn_destroy_mem(handle, memory) == 0
    assert view[offset] == 77  # the caller's memory stays
    os.fstat(fd)
    del view


def test_memory_of_the_library_again_by_its_descriptor(library: SoftwareLibrary, handle: int) -> None:
    first = library.rknn_create_mem(handle, SIZE)
    second = library.rknn_create_mem_from_fd(handle, first.fd, first.virt_addr, 64, 128)
    memory_array(second)[:] = 9
    assert memory_array(first)[127:193].tolist() == [0] + [9] * 64 + [0]


def test_descriptors_that_cannot_be_used(library: SoftwareLibrary, handle: int, shared: tuple[int, mmap.mmap]) -> None:
    fd, _ = shared
    for descriptor, size, offset, code in (
        (fd, 0, 0, Code.RKNN_ERR_PARAM_INVALID),
        (fd, 16, -1, Code.RKNN_ERR_PARAM_INVALID),
        (fd, 8192, 1, Code.RKNN_ERR_MALLOC_FAIL),
        (-1, 16, 0, Code.RKNN_ERR_MALLOC_FAIL),
    ):
        assert library.rknn_create_mem_from_fd(handle, descriptor, NULL, size, offset) == NULL
        assert why(library) == code


def test_memory_by_physical_address(library: SoftwareLibrary, handle: int) -> None:
    array = np.zeros(SIZE, np.uint8)
    memory = library.rknn_create_mem_from_phys(handle, 0xABC000, ffi.cast("void *", array.ctypes.data), SIZE)
    assert (memory.size, memory.phys_addr, memory.flags, memory.offset) == (SIZE, 0xABC000, 3, 0)
    memory_array(memory)[5] = 6
    assert array[5] == 6
    assert library.rknn_destroy_mem(handle, memory) == 0
    assert array[5] == 6


def test_memory_of_the_library_by_physical_address(library: SoftwareLibrary, handle: int) -> None:
    first = library.rknn_create_mem(handle, SIZE)
    second = library.rknn_create_mem_from_phys(handle, first.phys_addr + 16, NULL, 32)
    memory_array(second)[:] = 4
    assert memory_array(first)[15:49].tolist() == [0] + [4] * 32 + [0]


def test_physical_addresses_that_cannot_be_used(library: SoftwareLibrary, handle: int) -> None:
    first = library.rknn_create_mem(handle, SIZE)
    for address, size in ((1, 16), (first.phys_addr, SIZE + 1), (first.phys_addr, 0)):
        assert library.rknn_create_mem_from_phys(handle, address, NULL, size) == NULL
        assert why(library) == Code.RKNN_ERR_PARAM_INVALID


# rknn_destroy_mem, rknn_mem_sync


def test_destroying_closes_the_descriptor(library: SoftwareLibrary, handle: int) -> None:
    memory = library.rknn_create_mem(handle, SIZE)
    fd = memory.fd
    assert library.rknn_destroy_mem(handle, memory) == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert library.rknn_destroy_mem(handle, memory) == Code.RKNN_ERR_PARAM_INVALID


def test_memory_outlives_its_context(library: SoftwareLibrary, handle: int) -> None:
    memory = library.rknn_create_mem(handle, SIZE)
    assert library.rknn_destroy(handle) == 0
    memory_array(memory)[0] = 1
    assert library.rknn_destroy_mem(handle, memory) == 0


def test_memory_that_was_never_given(library: SoftwareLibrary, handle: int) -> None:
    foreign = ffi.new("rknn_tensor_mem *")
    about = attr(library, handle, Q.RKNN_QUERY_NATIVE_INPUT_ATTR)
    for memory in (NULL, foreign, ffi.cast("rknn_tensor_mem *", 0xDEADBEEF)):
        assert library.rknn_destroy_mem(handle, memory) == Code.RKNN_ERR_PARAM_INVALID
        assert library.rknn_mem_sync(handle, memory, 1) == Code.RKNN_ERR_PARAM_INVALID
        assert library.rknn_set_io_mem(handle, memory, about) == Code.RKNN_ERR_PARAM_INVALID


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_synchronising_changes_nothing(library: SoftwareLibrary, handle: int, mode: int) -> None:
    memory = library.rknn_create_mem(handle, SIZE)
    memory_array(memory)[:] = 5
    assert library.rknn_mem_sync(handle, memory, mode) == 0
    assert (memory_array(memory) == 5).all()


@pytest.mark.parametrize("mode", [-1, 4])
def test_ways_to_synchronise_that_do_not_exist(library: SoftwareLibrary, handle: int, mode: int) -> None:
    memory = library.rknn_create_mem(handle, SIZE)
    assert library.rknn_mem_sync(handle, memory, mode) == Code.RKNN_ERR_PARAM_INVALID


# rknn_set_io_mem; what it does to data is in test_zero_copy.py


def test_memory_that_is_too_small(library: SoftwareLibrary, handle: int) -> None:
    for command in (Q.RKNN_QUERY_NATIVE_INPUT_ATTR, Q.RKNN_QUERY_NATIVE_OUTPUT_ATTR, Q.RKNN_QUERY_OUTPUT_ATTR):
        about = attr(library, handle, command)
        needed = about.size_with_stride if command == Q.RKNN_QUERY_NATIVE_INPUT_ATTR else about.size
        assert library.rknn_set_io_mem(handle, library.rknn_create_mem(handle, needed - 1), about) == Code.RKNN_ERR_PARAM_INVALID
        assert library.rknn_set_io_mem(handle, library.rknn_create_mem(handle, needed), about) == 0


def test_a_changed_type_counts_by_elements(library: SoftwareLibrary, handle: int) -> None:
    """Demonstrations change the type alone and allocate n_elems times 4: size of the attributes is not looked at."""
    about = attr(library, handle, Q.RKNN_QUERY_OUTPUT_ATTR)
    about.type = FP32
    enough = about.n_elems * 4
    assert library.rknn_set_io_mem(handle, library.rknn_create_mem(handle, enough - 1), about) == Code.RKNN_ERR_PARAM_INVALID
    assert library.rknn_set_io_mem(handle, library.rknn_create_mem(handle, enough), about) == 0


def test_attributes_that_do_not_fit(library: SoftwareLibrary, handle: int) -> None:
    memory = library.rknn_create_mem(handle, 100_000)
    good = bytes(ffi.buffer(attr(library, handle, Q.RKNN_QUERY_NATIVE_INPUT_ATTR)))
    assert library.rknn_set_io_mem(handle, memory, NULL) == Code.RKNN_ERR_PARAM_INVALID
    for field, value in (
        ("name", b"nobody"),
        ("fmt", NC1HWC2),
        ("fmt", 17),
        ("type", 5),
        ("type", 99),
        ("n_dims", 17),
        ("n_dims", 3),
        ("w_stride", 3),
        ("h_stride", 1),
    ):
        about = ffi.new("rknn_tensor_attr *")
        ffi.memmove(about, good, len(good))
        setattr(about, field, value)
        assert library.rknn_set_io_mem(handle, memory, about) == Code.RKNN_ERR_PARAM_INVALID, (field, value)


def test_small_chips_take_native_memory_alone(open_software: Open) -> None:
    library = open_software("rv1106")
    handle = opened(library, features_model("rv1106"))
    memory = library.rknn_create_mem(handle, 100_000)
    about = attr(library, handle, Q.RKNN_QUERY_NATIVE_INPUT_ATTR)
    assert about.fmt == NC1HWC2
    about.type = FP32
    assert library.rknn_set_io_mem(handle, memory, about) == Code.RKNN_ERR_PARAM_INVALID


def test_binding_the_same_again_changes_nothing(library: SoftwareLibrary, handle: int) -> None:
    about = attr(library, handle, Q.RKNN_QUERY_NATIVE_INPUT_ATTR)
    memory = library.rknn_create_mem(handle, about.size_with_stride)
    for _ in range(3):
        assert library.rknn_set_io_mem(handle, memory, about) == 0
        assert library.rknn_run(handle, NULL) == 0
