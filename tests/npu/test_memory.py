"""Buffers and the memory account."""

from __future__ import annotations

import ctypes
import gc
import itertools
import mmap
import os
import weakref
from pathlib import Path

import numpy as np
import pytest

from anynpu.errors import DeviceClosed, DeviceMemoryError
from anynpu.npu import Buffer, MemoryPool, Purpose
from anynpu.npu.engines.native_memory import has_room
from anynpu.tensor import DType, Layout, TensorSpec


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_the_descriptor_can_be_mapped_by_somebody_else() -> None:
    with Buffer.allocate(5000) as buffer, mmap.mmap(buffer.fd, 5000) as foreign:
        foreign[4999] = 42
        assert buffer.view()[4999] == 42
        buffer.array(np.uint8)[0] = 7
        assert foreign[0] == 7


def test_the_virtual_address_is_the_memory() -> None:
    with Buffer.allocate(16) as buffer:
        ctypes.memmove(buffer.address + 3, b"abc", 3)
        assert bytes(buffer.view()[3:6]) == b"abc"


def test_new_memory_is_zero_and_has_the_size_asked_for() -> None:
    with Buffer.allocate(100) as buffer:
        assert buffer.size == 100
        assert bytes(buffer.view()) == bytes(100)


def test_physical_addresses_are_never_zero_and_do_not_overlap() -> None:
    with Buffer.allocate(10_000) as first, Buffer.allocate(1) as second, Buffer.allocate(1) as third:
        spans = sorted((buffer.physical_address, buffer.physical_address + buffer.size) for buffer in (first, second, third))
        assert spans[0][0] > 0
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


def test_a_buffer_without_bytes_is_a_buffer() -> None:
    with Buffer.allocate(0) as buffer:
        assert buffer.size == 0
        assert buffer.array(np.float32).shape == (0,)
        assert buffer.fd >= 0


def test_a_tensor_has_its_memory_shape() -> None:
    image = TensorSpec("x", (1, 3, 4, 5), DType.INT8, Layout.NHWC)
    packed = TensorSpec("w", (3, 5), DType.INT4)
    with Buffer.allocate(200) as buffer:
        view = buffer.tensor(image, 64)
        view[0, 1, 2, 1] = -3
        assert view.shape == (1, 4, 5, 3)
        assert buffer.array(np.int8)[64 + (1 * 5 + 2) * 3 + 1] == -3
        assert buffer.tensor(packed).shape == (8,)
        with pytest.raises(DeviceMemoryError, match="at least 201 bytes"):
            buffer.tensor(image, 141)


def test_a_foreign_descriptor_is_read_and_written() -> None:
    fd = os.memfd_create("foreign")
    try:
        os.write(fd, bytes(range(256)) * 40)
        with Buffer.from_fd(fd, 100, offset=5003) as buffer:
            assert buffer.offset == 5003
            assert list(buffer.view()[:2]) == [5003 % 256, 5004 % 256]
            buffer.array(np.uint8)[1] = 99
            assert os.pread(fd, 1, 5004) == b"\x63"
    finally:
        os.close(fd)


def test_the_owner_may_close_his_descriptor_after_the_import() -> None:
    fd = os.memfd_create("foreign")
    os.ftruncate(fd, 64)
    with Buffer.from_fd(fd, 64) as buffer:
        os.close(fd)
        buffer.array(np.uint8)[:] = 5
        with Buffer.from_fd(buffer.fd, 64) as again:
            assert set(again.view()) == {5}


def test_a_foreign_descriptor_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    before = open_descriptors()
    short = os.memfd_create("short")
    os.ftruncate(short, 10)
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    readonly = os.open(path, os.O_RDONLY)
    closed = os.dup(short)
    os.close(closed)
    for fd, size, offset in (
        (short, 11, 0),
        (short, 5, 8),
        (readonly, 10, 0),
        (closed, 1, 0),
        (-1, 1, 0),
        (short, 0, 0),
        (short, 1, -1),
    ):
        with pytest.raises(DeviceMemoryError) as caught:
            Buffer.from_fd(fd, size, offset)
        assert caught.value.hint
    os.close(short)
    os.close(readonly)
    assert open_descriptors() == before


def test_a_foreign_address_is_used_and_kept_alive_as_long_as_a_view_exists() -> None:
    class Owner:
        def __init__(self) -> None:
            self.data = np.zeros(32, np.uint8)

    owner = Owner()
    alive = weakref.ref(owner)
    data = owner.data
    buffer = Buffer.from_address(data.ctypes.data, 32, keep_alive=owner)
    del owner
    view = buffer.array(np.int16)
    view[3] = 258
    assert data[6:8].tolist() == [2, 1]
    assert buffer.fd == -1
    buffer.close()
    gc.collect()
    assert alive() is not None
    del view
    gc.collect()
    assert alive() is None


def test_an_impossible_address_is_refused() -> None:
    for address, size in ((0, 4), (4096, 0), (-1, 4)):
        with pytest.raises(DeviceMemoryError):
            Buffer.from_address(address, size)


def test_a_slice_is_the_same_memory() -> None:
    with Buffer.allocate(64) as buffer:
        part = buffer.slice(16, 8)
        inner = part.slice(4, 4)
        inner.array(np.uint8)[:] = 9
        assert list(buffer.view()[19:25]) == [0, 9, 9, 9, 9, 0]
        assert (inner.offset, inner.fd, inner.address) == (20, buffer.fd, buffer.address + 20)
        assert inner.physical_address == buffer.physical_address + 20
        for offset, size in ((60, 5), (-1, 2), (0, 65)):
            with pytest.raises(DeviceMemoryError):
                buffer.slice(offset, size)
    with pytest.raises(DeviceClosed):
        inner.view()


def test_closing_a_slice_leaves_its_parent() -> None:
    with Buffer.allocate(64) as buffer:
        part = buffer.slice(0, 8)
        part.close()
        assert part.closed
        assert not buffer.closed
        assert buffer.fd >= 0
        os.fstat(buffer.fd)


def test_nothing_works_after_close_and_closing_twice_does() -> None:
    buffer = Buffer.allocate(64)
    fd, view = buffer.fd, buffer.array(np.uint8)
    view[0] = 3
    buffer.close()
    buffer.close()
    for use in (buffer.view, buffer.array, lambda: buffer.fd, lambda: buffer.address, lambda: buffer.slice(0, 1)):
        with pytest.raises(DeviceClosed):
            use()
    with pytest.raises(OSError):
        os.fstat(fd)
    assert view[0] == 3, "a view that is still held must not point to unmapped memory"


@pytest.mark.parametrize("shared", [True, False])
def test_systems_without_memfd(monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    monkeypatch.delattr(os, "memfd_create")
    if not shared:
        monkeypatch.setattr(os.path, "isdir", lambda path: False)
    with Buffer.allocate(100) as buffer:
        buffer.array(np.uint8)[:] = 1
        assert bytes(buffer.view()) == b"\x01" * 100
        assert (buffer.fd >= 0) is shared
        if shared:
            assert os.pread(buffer.fd, 2, 98) == b"\x01\x01"


def test_memory_that_is_not_to_be_had() -> None:
    before = open_descriptors()
    with pytest.raises(DeviceMemoryError, match="not available"):
        Buffer.allocate(1 << 62)
    with pytest.raises(DeviceMemoryError):
        Buffer.allocate(-1)
    assert open_descriptors() == before


def test_no_descriptor_is_left_behind() -> None:
    gc.collect()
    before = open_descriptors()
    for index in range(200):
        buffer = Buffer.allocate(4096)
        with Buffer.from_fd(buffer.fd, 100) as other:
            other.slice(0, 10).array()
        if index % 2:
            buffer.close()
        del buffer
    assert open_descriptors() == before


def test_the_account_by_purpose() -> None:
    pool = MemoryPool()
    weights = pool.allocate(1000, Purpose.WEIGHTS)
    internal = pool.allocate(200, Purpose.INTERNAL)
    pool.allocate(30, Purpose.IO)  # forgotten at once
    mine = pool.allocate(4)
    usage = pool.usage()
    assert (usage.weights, usage.internal, usage.io, usage.user, usage.total) == (1000, 200, 0, 4, 1204)
    assert usage.peak == 1230
    weights.close()
    weights.close()
    internal.slice(0, 10).close()
    usage = pool.usage()
    assert (usage.weights, usage.internal, usage.total, usage.peak) == (0, 200, 204, 1230)
    assert mine.size == 4


def test_the_limit_of_the_account() -> None:
    pool = MemoryPool(limit=100)
    first = pool.allocate(60, Purpose.WEIGHTS)
    with pytest.raises(DeviceMemoryError, match="41 bytes of internal memory do not fit: 60 of 100"):
        pool.allocate(41, Purpose.INTERNAL)
    assert pool.usage().total == 60
    assert pool.allocate(40, Purpose.IO).size == 40
    first.close()
    assert pool.allocate(100, Purpose.IO).size == 100


def test_what_cannot_be_allocated_is_not_on_the_account() -> None:
    pool = MemoryPool()
    with pytest.raises(DeviceMemoryError):
        pool.allocate(1 << 62)
    assert pool.usage().total == 0


def test_closing_the_account_closes_every_buffer() -> None:
    pool = MemoryPool()
    buffers = [pool.allocate(10) for _ in range(3)]
    pool.close()
    assert all(buffer.closed for buffer in buffers)
    assert pool.usage().total == 0


@pytest.mark.parametrize("size", [1, mmap.PAGESIZE - 1, mmap.PAGESIZE, 640 * 640 * 3])
def test_a_kernel_may_read_past_a_buffer_of_ours_without_a_copy(size: int) -> None:
    """A tensor that ends with its page would otherwise be copied before and after every run."""
    with Buffer.allocate(size) as buffer:
        assert buffer.size == size
        assert has_room(buffer.array())
    page = mmap.mmap(-1, mmap.PAGESIZE)
    assert not has_room(np.frombuffer(memoryview(page), np.uint8)), "after memory of another owner nothing is sure"


def test_every_closing_is_noticed_by_who_remembers_the_last_one() -> None:
    buffer = Buffer.allocate(64)
    part = buffer.slice(0, 8)
    seen = Buffer.closings
    assert Buffer.closings is seen
    part.close()
    assert Buffer.closings is not seen
    seen = Buffer.closings
    buffer.close()
    assert Buffer.closings is not seen
