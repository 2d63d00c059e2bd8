"""Buffers in Python: an array view of memory that networks read and write."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from .._util.lifetime import Closeable, at_end
from .._vip import ffi
from ..errors import DeviceClosed, DeviceMemoryError, ParameterError
from ..tensor import round_up
from .constants import vip_buffer_memory_type_e, vip_buffer_operation_type_e, vip_buffer_quantize_format_e
from .info import TensorInfo
from .interface import VipLibrary
from .library import check

ALIGNMENT = 64
"""Of memory that the caller brings: of its address, and of its size."""


def create_params(info: TensorInfo, memory_type: int = vip_buffer_memory_type_e.VIP_BUFFER_MEMORY_TYPE_DEFAULT) -> Any:
    """A ``vip_buffer_create_params_t *`` for an input or output."""
    params = ffi.new("vip_buffer_create_params_t *")
    params.num_of_dims = len(info.dims)
    for axis, extent in enumerate(info.dims):
        params.sizes[axis] = extent
    params.data_format, params.quant_format = int(info.data_format), int(info.quant_format)
    if info.quant_format == vip_buffer_quantize_format_e.VIP_BUFFER_QUANTIZE_DYNAMIC_FIXED_POINT:
        params.quant_data.dfp.fixed_point_pos = info.fixed_point_pos
    elif info.quant_format == vip_buffer_quantize_format_e.VIP_BUFFER_QUANTIZE_TF_ASYMM:
        params.quant_data.affine.scale, params.quant_data.affine.zeroPoint = info.scale, info.zero_point
    params.memory_type = int(memory_type)
    return params


def _destroy(library: VipLibrary, handle: Any) -> None:
    library.vip_destroy_buffer(handle)
    library.vip_destroy()


class Buffer(Closeable):
    """A ``vip_buffer``. Made by the ``buffer`` methods of :class:`anynpu.vip.Network`.

    Arrays that view it keep it alive. Only :meth:`close` ends it before them: do not touch them after it.

    :ivar info: what it holds
    :ivar keep: what must live as long as the buffer does, such as the array that it was made from
    """

    def __init__(self, library: VipLibrary, info: TensorInfo, call: str, *arguments: Any, keep: object = None) -> None:
        self.info = info
        self.keep = keep
        self._library = library
        handle = ffi.new("vip_buffer *")
        check(library, "vip_init", library.vip_init(0))  # the driver lives as long as the buffer does
        try:
            check(library, call, getattr(library, call)(*arguments, handle))
        except BaseException:
            library.vip_destroy()
            raise
        self._handle = handle[0]
        self._finalizer = at_end(self, _destroy, library, self._handle)

    @classmethod
    def allocate(cls, library: VipLibrary, info: TensorInfo, *, cached: bool = False) -> Buffer:
        """New memory: of the device, or of the process, which the CPU caches."""
        call = "vip_create_buffer_cache" if cached else "vip_create_buffer"
        return cls(library, info, call, create_params(info), ffi.sizeof("vip_buffer_create_params_t"))

    @classmethod
    def from_array(cls, library: VipLibrary, info: TensorInfo, array: npt.NDArray[Any]) -> Buffer:
        """The memory of an array itself, whose address and size must be multiples of 64."""
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise ParameterError(
                f"the array for '{info.name}' is not contiguous and writable", hint="pass np.ascontiguousarray(array)"
            )
        params = create_params(info, vip_buffer_memory_type_e.VIP_BUFFER_MEMORY_TYPE_HOST)
        pointer = ffi.cast("void *", array.ctypes.data)
        return cls(library, info, "vip_create_buffer_from_handle", params, pointer, array.nbytes, keep=array)

    @classmethod
    def from_fd(cls, library: VipLibrary, info: TensorInfo, fd: int, size: int | None = None) -> Buffer:
        """Memory that another owner allocated and shares by descriptor; its size must be a multiple of 64."""
        params = create_params(info, vip_buffer_memory_type_e.VIP_BUFFER_MEMORY_TYPE_DMA_BUF)
        whole = round_up(info.nbytes, ALIGNMENT) if size is None else size
        return cls(library, info, "vip_create_buffer_from_fd", params, fd, whole)

    @classmethod
    def from_physical(cls, library: VipLibrary, info: TensorInfo, pieces: list[tuple[int, int]]) -> Buffer:
        """Memory by physical address and size, in one piece or in several."""
        params = create_params(info)
        addresses = ffi.new("vip_address_t[]", [address for address, _ in pieces])
        sizes = ffi.new("uint32_t[]", [size for _, size in pieces])
        return cls(library, info, "vip_create_buffer_from_physical", params, addresses, sizes, len(pieces))

    @property
    def handle(self) -> Any:
        """The ``vip_buffer``."""
        if not self._finalizer.alive:
            raise DeviceClosed("the buffer was closed", hint="keep it open for as long as anything uses it")
        return self._handle

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    @property
    def size(self) -> int:
        """In bytes, as the library states."""
        return int(self._library.vip_get_buffer_size(self.handle))

    @property
    def address(self) -> int:
        """The virtual address of the first byte."""
        pointer = self._library.vip_map_buffer(self.handle)
        if pointer == ffi.NULL:
            raise DeviceMemoryError("the buffer cannot be mapped", call="vip_map_buffer", hint="it may be of secure memory")
        return int(ffi.cast("uintptr_t", pointer))

    def bytes(self) -> npt.NDArray[np.uint8]:
        """The memory, shared."""
        memory = (ctypes.c_ubyte * self.size).from_address(self.address)
        memory._keep_alive = self  # type: ignore[attr-defined]
        return np.frombuffer(memoryview(memory).cast("B"), np.uint8)

    def array(self) -> npt.NDArray[Any]:
        """The memory, shared, as elements of the tensor."""
        memory = self.bytes()
        if self.info.spec.dtype.bits < 8:
            return memory
        return memory[: self.info.nbytes].view(self.info.dtype).reshape(self.info.shape)

    def flush(self) -> None:
        """Make what the host wrote visible to the device."""
        self._flush(vip_buffer_operation_type_e.VIP_BUFFER_OPER_TYPE_FLUSH)

    def invalidate(self) -> None:
        """Make what the device wrote visible to the host."""
        self._flush(vip_buffer_operation_type_e.VIP_BUFFER_OPER_TYPE_INVALIDATE)

    def close(self) -> None:
        """Give it back; again is harmless."""
        self._finalizer()

    def _flush(self, way: vip_buffer_operation_type_e) -> None:
        check(self._library, "vip_flush_buffer", self._library.vip_flush_buffer(self.handle, int(way)))

    def __repr__(self) -> str:
        return "<vip.Buffer, closed>" if self.closed else f"<vip.Buffer of {self.info.nbytes} bytes for '{self.info.name}'>"
