"""``vip_buffer``: memory that networks read and write, from the allocator or from the caller.

Who owns what: a buffer owns its descriptor and its place in the device's account until it is destroyed; memory that the caller
brought stays his. A job keeps the bytes of the buffers that it was submitted with, so destroying one takes nothing away from a
job on its way.

Concurrency: what a buffer is never changes; its only transition is :meth:`BufferState.close`, and a call that finds it closed is
rejected. The pieces of scattered memory are copied by jobs and by ``vip_flush_buffer``, one numpy copy each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._vip import ffi
from ...errors import DeviceMemoryError
from ...npu import Buffer, Device
from ...tensor import round_up
from ...vendors.libraries import Refusal
from ..attributes import MAX_DIMENSIONS, buffer_bytes
from ..constants import vip_buffer_format_e, vip_buffer_memory_type_e, vip_buffer_quantize_format_e
from ..generations import A, C, Generation
from .handles import Status, address_of

ALIGNMENT = 64
Bytes = npt.NDArray[np.uint8]

_BITS_OF_4 = (vip_buffer_format_e.VIP_BUFFER_FORMAT_INT4, vip_buffer_format_e.VIP_BUFFER_FORMAT_UINT4)
_MAX_VALUE = 0xFFFF_FFFF


@dataclass(frozen=True)
class BufferShape:
    """What ``vip_buffer_create_params_t`` states."""

    dims: tuple[int, ...]
    data_format: int
    quant_format: int
    memory_type: int

    @property
    def nbytes(self) -> int:
        return buffer_bytes(self.dims, self.data_format)


class BufferState:
    """One buffer.

    :ivar nbytes: what ``vip_get_buffer_size`` states: that of the tensor
    :ivar pieces: where scattered memory lies; the buffer's own memory is then a copy in one piece
    """

    def __init__(self, shape: BufferShape, buffer: Buffer, pieces: tuple[Bytes, ...] = ()) -> None:
        self.shape = shape
        self.nbytes = shape.nbytes
        self.pieces = pieces
        self._buffer = buffer
        self._bytes: Bytes | None = buffer.array(np.uint8)
        self.address = buffer.address
        self.physical_address = buffer.physical_address

    @property
    def closed(self) -> bool:
        return self._bytes is None

    @property
    def fd(self) -> int:
        return -1 if self._buffer.closed else self._buffer.fd

    def bytes(self) -> Bytes | None:
        """The memory, which lives as long as the array does; None after the end of the buffer."""
        return self._bytes

    def covers(self, address: int, size: int) -> bool:
        """Whether all of these bytes, by physical address, are this buffer's."""
        return self._start(address, size) is not None

    def part(self, address: int, size: int) -> Bytes:
        """Bytes by physical address."""
        memory, start = self._bytes, self._start(address, size)
        assert memory is not None
        assert start is not None
        return memory[start : start + size]

    def _start(self, address: int, size: int) -> int | None:
        """Where they begin. What ``vip_map_buffer`` gives counts as a physical address: the interface reports C programs no other."""
        memory = self._bytes
        for base in () if memory is None else (self.physical_address, memory.ctypes.data):
            if memory is not None and base <= address and address + size <= base + memory.size:
                return address - base
        return None

    def gather(self, memory: Bytes) -> None:
        """Bring scattered memory together."""
        at = 0
        for piece in self.pieces:
            memory[at : at + piece.size] = piece
            at += piece.size

    def scatter(self, memory: Bytes) -> None:
        """The way back."""
        at = 0
        for piece in self.pieces:
            piece[:] = memory[at : at + piece.size]
            at += piece.size

    def close(self) -> None:
        """Give it back; again is harmless."""
        self._bytes = None
        self._buffer.close()


def read_shape(params: Any, generation: Generation) -> BufferShape:
    """The checked contents of a ``vip_buffer_create_params_t *``."""
    if params == ffi.NULL:
        raise Refusal(Status.VIP_ERROR_INVALID_ARGUMENTS, "the parameters are a null pointer")
    count, kind, quant, memory = params.num_of_dims, params.data_format, params.quant_format, params.memory_type
    if not 1 <= count <= MAX_DIMENSIONS:
        raise _wrong(f"a buffer of {count} dimensions cannot be made", f"there are 1 to {MAX_DIMENSIONS}")
    dims = tuple(params.sizes[0:count])
    if not all(dims):
        raise _wrong(f"a buffer of {list(dims)} has no elements", "each of the first num_of_dims sizes must be positive")
    if not _format_exists(kind, generation):
        raise _wrong(f"there is no data format {kind} in VIPLite {generation.name}", "use one of vip_buffer_format_e")
    if not 0 <= quant < vip_buffer_quantize_format_e.VIP_BUFFER_QUANTIZE_MAX:
        raise _wrong(f"there is no quantization format {quant}", "use one of vip_buffer_quantize_format_e")
    if memory >= vip_buffer_memory_type_e.VIP_BUFFER_MEMORY_TYPE_MAX:
        raise _wrong(f"there is no memory type {memory}", "use VIP_BUFFER_MEMORY_TYPE_DEFAULT")
    if memory == vip_buffer_memory_type_e.VIP_BUFFER_MEMORY_TYPE_SECURE:
        raise Refusal(Status.VIP_ERROR_NOT_SUPPORTED, "secure memory is not available", "use VIP_BUFFER_MEMORY_TYPE_DEFAULT")
    shape = BufferShape(dims, kind, quant, memory)
    if shape.nbytes > _MAX_VALUE:
        raise Refusal(Status.VIP_ERROR_OUT_OF_MEMORY, f"{shape.nbytes} bytes do not fit 32 bits", "make smaller buffers")
    return shape


def new_buffer(device: Device, shape: BufferShape) -> BufferState:
    """Memory of the device."""
    return BufferState(shape, device.allocate(shape.nbytes))


def new_cached(shape: BufferShape) -> BufferState:
    """Ordinary memory of the process, aligned as the NPU wants it."""
    size = round_up(shape.nbytes, ALIGNMENT)
    memory = np.zeros(size + ALIGNMENT, np.uint8)
    address = memory.ctypes.data + -memory.ctypes.data % ALIGNMENT
    return BufferState(shape, Buffer.from_address(address, size, keep_alive=memory))


def from_handle(shape: BufferShape, logical: Any, size: int) -> BufferState:
    """Memory of the caller, by its address."""
    address = address_of(logical)
    if not address:
        raise _wrong("the memory is a null pointer", "")
    if address % ALIGNMENT:
        raise _wrong(
            f"the memory at {address:#x} is not aligned to {ALIGNMENT} bytes", f"allocate it with aligned_alloc({ALIGNMENT}, ...)"
        )
    _check_size(shape, size)
    return BufferState(shape, Buffer.from_address(address, size))


def from_descriptor(shape: BufferShape, fd: int, size: int) -> BufferState:
    """Memory of the caller, by its descriptor."""
    _check_size(shape, size)
    try:
        return BufferState(shape, Buffer.from_fd(fd, size))
    except DeviceMemoryError as error:
        raise Refusal(Status.VIP_ERROR_IO, error.message, error.hint) from error


def from_physical(
    shape: BufferShape, addresses: Any, sizes: Any, count: int, known: list[BufferState], device: Device
) -> BufferState:
    """Memory by physical address, in one piece or in several. Only memory of this library has such addresses: those of its buffers, and
    where they are mapped."""
    if addresses == ffi.NULL or sizes == ffi.NULL or not count:
        raise _wrong("a table of addresses or sizes is missing", "give physical_num entries, at least one")
    if addresses[0] % ALIGNMENT:
        raise _wrong(f"the first piece, at {addresses[0]:#x}, is not aligned to {ALIGNMENT} bytes", "")
    table = [(int(addresses[index]), int(sizes[index])) for index in range(count)]
    total = sum(size for _, size in table)
    if total < shape.nbytes:
        raise _wrong(f"the tensor takes {shape.nbytes} bytes, the table has {total}", "")
    pieces = []
    for address, size in table:
        owner = next((buffer for buffer in known if buffer.covers(address, size)), None)
        if owner is None or not size:
            raise _wrong(
                f"no memory of this library has {size} bytes at the physical address {address:#x}",
                "the software NPU knows the physical addresses of its own buffers only; pass a descriptor instead",
            )
        pieces.append(owner.part(address, size))
    if count == 1:
        (piece,) = pieces
        return BufferState(shape, Buffer.from_address(piece.ctypes.data, piece.size, keep_alive=piece))
    state = BufferState(shape, device.allocate(total), tuple(pieces))
    memory = state.bytes()
    assert memory is not None
    state.gather(memory)
    return state


def _check_size(shape: BufferShape, size: int) -> None:
    if size % ALIGNMENT:
        raise _wrong(f"{size} bytes are not a multiple of {ALIGNMENT}", f"round the size up to a multiple of {ALIGNMENT}")
    if size < shape.nbytes:
        raise _wrong(f"the tensor takes {shape.nbytes} bytes, the memory has {size}", "")


def _format_exists(kind: int, generation: Generation) -> bool:
    if kind in _BITS_OF_4:
        return generation is not A
    if kind == vip_buffer_format_e.VIP_BUFFER_FORMAT_BOOL8:
        return generation is C
    return kind in vip_buffer_format_e._value2member_map_


def _wrong(text: str, hint: str) -> Refusal[Status]:
    return Refusal(Status.VIP_ERROR_INVALID_ARGUMENTS, text, hint)
