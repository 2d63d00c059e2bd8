"""Memory of the device in Python: an array view of it, its descriptor and its addresses."""

from __future__ import annotations

import ctypes
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .._rknn import ffi
from .._util.lifetime import Closeable, at_end
from ..errors import DeviceClosed, DeviceMemoryError
from .constants import rknn_mem_sync_mode
from .interface import RknnLibrary
from .library import check

_MODES = {
    "to_device": rknn_mem_sync_mode.RKNN_MEMORY_SYNC_TO_DEVICE,
    "from_device": rknn_mem_sync_mode.RKNN_MEMORY_SYNC_FROM_DEVICE,
    "both": rknn_mem_sync_mode.RKNN_MEMORY_SYNC_BIDIRECTIONAL,
}


def _destroy(library: RknnLibrary, handle: int, pointer: Any) -> None:
    library.rknn_destroy_mem(handle, pointer)


class TensorMemory(Closeable):
    """A ``rknn_tensor_mem``. Made by the ``memory`` methods of :class:`anynpu.rknn.Context`.

    Arrays that view it keep it alive. Only :meth:`close` ends it before them: do not touch them after it.

    :ivar keep: what must live as long as the memory does, such as the array that it was made from
    """

    def __init__(self, library: RknnLibrary, handle: int, pointer: Any, call: str, keep: object = None) -> None:
        if pointer == ffi.NULL:
            failure = library.last_error()
            if failure is not None and failure.call == call:
                check(library, call, failure.code)
            raise DeviceMemoryError("the memory is not available", call=call, hint="close what is no longer used")
        self.keep = keep
        self._library, self._handle = library, handle
        self._pointer: Any = pointer
        self._finalizer = at_end(self, _destroy, library, handle, pointer)

    @property
    def pointer(self) -> Any:
        """The ``rknn_tensor_mem *``."""
        if not self._finalizer.alive:
            raise DeviceClosed("the memory was closed", hint="keep it open for as long as anything uses it")
        return self._pointer

    @property
    def handle(self) -> int:
        """The ``rknn_context`` that it was made with."""
        return self._handle

    @property
    def size(self) -> int:
        return int(self.pointer.size)

    @property
    def fd(self) -> int:
        """The descriptor, which other libraries can map."""
        return int(self.pointer.fd)

    @property
    def physical_address(self) -> int:
        return int(self.pointer.phys_addr)

    @property
    def address(self) -> int:
        """The virtual address of the first byte."""
        return int(ffi.cast("uintptr_t", self.pointer.virt_addr)) + int(self.pointer.offset)

    def array(self, dtype: npt.DTypeLike = np.uint8, shape: tuple[int, ...] | None = None) -> npt.NDArray[Any]:
        """The memory as an array, without a copy."""
        memory = (ctypes.c_ubyte * self.size).from_address(self.address)
        memory._keep_alive = self  # type: ignore[attr-defined]
        view = np.frombuffer(memoryview(memory).cast("B"), np.uint8)
        kind = np.dtype(dtype)
        if shape is None:
            return view[: view.size // kind.itemsize * kind.itemsize].view(kind)
        needed = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        if needed > view.size:
            raise DeviceMemoryError(f"{needed} bytes are not inside memory of {view.size}", hint="make the memory larger")
        return view[:needed].view(kind).reshape(shape)

    def sync(self, direction: Literal["to_device", "from_device", "both"]) -> None:
        """Make what one side wrote visible to the other, where memory has a cache."""
        check(self._library, "rknn_mem_sync", self._library.rknn_mem_sync(self._handle, self.pointer, int(_MODES[direction])))

    def close(self) -> None:
        """Give it back; again is harmless."""
        self._finalizer()

    def __repr__(self) -> str:
        return f"<TensorMemory of {self._pointer.size} bytes>" if self._finalizer.alive else "<TensorMemory, closed>"
