"""Memory of this machine, as a binding wants it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..npu.memory import Buffer

__all__ = ["HostMemory"]


class HostMemory:
    """A buffer that no device has to be told about: either both sides see the same memory, or calls copy it."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self.nbytes = buffer.size
        self.address = buffer.address
        self.fd = buffer.fd
        self.offset = buffer.offset

    def array(self) -> npt.NDArray[np.uint8]:
        """The bytes, shared."""
        return self._buffer.array(np.uint8)

    def sync_to_device(self) -> None:
        """Nothing to do."""

    def sync_from_device(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Give it back."""
        self._buffer.close()
