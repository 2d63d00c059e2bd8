"""What a session drives: one model on one device, seen through two small protocols.

``anynpu.rknn`` and ``anynpu.vip`` implement them; so does whatever a test or a program hands to ``InferenceSession(device=...)``.

Who calls what, and when:

* A :class:`Backend` is opened by the session's constructor and closed after its last device worker. ``open_lane`` may be called
  while other device workers run if ``lanes_on_demand`` is true; else only before the first run.
* A :class:`Lane` is one context of the device. One thread at a time uses it, not always the same one; the session guarantees that. Only
  ``cancel`` comes from another thread while it runs. Device workers never share state that a run changes.
* ``infer`` converts each array once, straight into the memory that the device reads, and each output once, straight into the array that
  the user gets. It lets go of the GIL while it converts or waits. There is no other copy.

Memory that a user binds (:class:`Memory`) may be used by any device worker of its backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from .._util.types import Array
from ..tensor import TensorSpec

if TYPE_CHECKING:
    from .feeds import Feed
    from .options import SessionOptions


class Memory(Protocol):
    """Device memory that the host can reach as well."""

    @property
    def nbytes(self) -> int: ...

    @property
    def address(self) -> int:
        """Of the first byte, in this process."""

    @property
    def fd(self) -> int:
        """A descriptor that others can map; -1 where there is none."""

    @property
    def offset(self) -> int:
        """Where the memory begins inside that of ``fd``."""

    def array(self) -> npt.NDArray[np.uint8]:
        """The bytes, shared."""

    def sync_to_device(self) -> None:
        """Make what the host wrote visible to the device."""

    def sync_from_device(self) -> None:
        """Make what the device wrote visible to the host."""

    def close(self) -> None: ...


class Marks(Protocol):
    """Moments of a request, by ``time.perf_counter_ns``."""

    written: int
    ran: int


class Bound(NamedTuple):
    """Memory and what it holds."""

    memory: Memory
    spec: TensorSpec


class Lane(Protocol):
    """One context of the device."""

    def infer(
        self, feed: Feed, wanted: Sequence[int], types: Sequence[np.dtype[Any]], timeout: float | None, marks: Marks
    ) -> list[Array]:
        """Put the inputs where the device reads them, execute, and give the outputs *wanted*.

        :param feed: contiguous arrays in native byte order, of types that :mod:`anynpu.session.feeds` lets through
        :param types: the type of each output, which comes as a new array in the model's order of axes
        :param timeout: seconds; then :class:`~anynpu.errors.DeviceTimeout`, if the device can stop at all
        :param marks: notified when the inputs were there and when the run had ended
        """

    def run_bound(self, inputs: Sequence[Bound], outputs: Sequence[Bound], timeout: float | None) -> None:
        """Execute on memory of the caller, one piece for each input and output. The specs state what it holds: for an input values
        (float32, float16 or uint8 without quantization, NHWC for images) or what ``native_inputs`` states, for an output what
        ``native_outputs`` states."""

    def cancel(self) -> bool:
        """Ask the run to stop, from another thread and without waiting for it; False if this device cannot."""

    def abandon(self) -> None:
        """The session has given the device worker up because its thread did not come back; nothing may wait for it. From another thread."""

    def close(self) -> None: ...


@runtime_checkable
class Backend(Protocol):
    """One model on one device."""

    description: str
    """Description for users: ``software NPU, rk3588, 3 cores``."""
    provider: str
    """The name of the execution provider, such as ``RKNPU2ExecutionProvider``."""
    chip: str
    cores: int
    core_masks: tuple[int, ...]
    """Masks that a device worker may have; empty where the chip has no choice (then 0 and 1 mean the one way there is)."""
    lanes_on_demand: bool
    """Whether a device worker may be opened while others run."""
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    native_inputs: tuple[TensorSpec, ...]
    native_outputs: tuple[TensorSpec, ...]
    shape_sets: tuple[tuple[tuple[int, ...], ...], ...]
    """For a model with dynamic shapes: for each set, the shape of each input. Empty for one set of shapes. A backend that takes any shapes
    has a method ``grow(number, shapes)`` as well, which a session calls before the first feed of new ones."""
    metadata: Mapping[str, str]
    """What the model states about itself: the entries of :class:`anynpu.program.OnnxMetadata`, and ``rknn_custom_string``."""

    def open_lane(self, mask: int) -> Lane:
        """A new context on the cores of *mask* (0: any)."""

    def allocate(self, nbytes: int) -> Memory: ...

    def import_fd(self, fd: int, nbytes: int, offset: int, address: int = 0) -> Memory:
        """Another owner's memory. The descriptor is duplicated; *address* is where it is mapped already, 0 if it is not."""

    def close(self) -> None:
        """Give everything back. Weights that another backend shares stay until it closes too."""


class DeviceFactory(Protocol):
    """What ``InferenceSession(device=...)`` takes besides a name."""

    def open_backend(
        self, model: str | PathLike[str] | bytes, options: SessionOptions, weights_from: Backend | None
    ) -> Backend: ...
