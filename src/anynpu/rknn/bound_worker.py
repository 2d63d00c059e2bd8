"""A lane for chips without the general calls (the RV1103 and RV1106 family): all inputs and outputs are in memory bound to the context.

Each input is converted once, into the bound memory, and each output once, out of it. The runtime of these chips takes pictures as bytes
(and applies mean and std itself), or codes; it does not say what mean and std are, so pictures of floats are refused.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._util.types import Array
from ..errors import AnynpuError, FeedTypeError
from ..program.convert import convert
from ..session import Bound, Feed, Marks
from ..tensor import DType, Layout, TensorSpec
from .context import Context
from .worker import BoundContext, RknnLane, RknnMemory

if TYPE_CHECKING:
    from .backend import RknnBackend

__all__ = ["BoundLane"]


class BoundLane(RknnLane):
    """One context with memory of its own for every input and output."""

    def __init__(self, backend: RknnBackend, context: Context, mask: int) -> None:
        super().__init__(backend, context, mask)
        self._own = BoundContext(backend, context)
        self._memories: dict[tuple[str, TensorSpec], RknnMemory] = {}
        self._results = [self._memory("output", spec) for spec in backend.native_outputs]

    def infer(
        self, feed: Feed, wanted: Sequence[int], types: Sequence[np.dtype[Any]], timeout: float | None, marks: Marks
    ) -> list[Array]:
        """Inputs, run, outputs."""
        inputs = [self._write(*entry) for entry in zip(self.backend.native_inputs, feed.arrays, feed.nhwc, strict=True)]
        self._running = True
        try:
            self._own.bind(inputs, self._results)
            marks.written = time.perf_counter_ns()
            self.context.execute(timeout=timeout)
            marks.ran = time.perf_counter_ns()
        except AnynpuError as error:
            raise self._understood(error) from None
        finally:
            self._running = False
        return [self._read(number, kind) for number, kind in zip(wanted, types, strict=True)]

    def close(self) -> None:
        """Give the memory back and destroy the context."""
        self._own.forget()
        for memory in self._memories.values():
            memory.close()
        self._memories.clear()
        super().close()

    def _memory(self, kind: str, spec: TensorSpec) -> Bound:
        memory = self._memories.get((kind, spec))
        if memory is None:
            memory = self._memories[kind, spec] = RknnMemory(self.context.memory(spec.nbytes))
        return Bound(memory, spec)

    def _write(self, native: TensorSpec, array: Array, last: bool) -> Bound:
        image = len(native.shape) == 4
        kind = DType(array.dtype.name)
        order = Layout.PLAIN if not image else Layout.NHWC if last else Layout.NCHW
        target = native
        if kind is not native.dtype and image:
            if kind is not DType.UINT8:
                raise FeedTypeError(
                    f"input '{native.name}' does not take {kind.value} on {self.backend.chip}: its runtime normalises bytes only",
                    hint=f"pass uint8 pixels, or {native.dtype.value} codes",
                )
            target = TensorSpec(native.name, native.shape, kind, Layout.NHWC, w_stride=native.w_stride)
        source = TensorSpec(native.name, native.shape, kind, order, native.quantization if kind is native.dtype else None)
        bound = self._memory("input", target)
        convert(array, source, target, out=bound.memory.array()[: target.nbytes])
        bound.memory.sync_to_device()
        return bound

    def _read(self, number: int, kind: np.dtype[Any]) -> Array:
        memory, spec = self._results[number]
        memory.sync_from_device()
        order = Layout.PLAIN if spec.layout is Layout.PLAIN else Layout.NCHW
        dtype = DType(kind.name)
        codes = spec.quantization if dtype is spec.dtype else None
        target = TensorSpec(spec.name, spec.shape, dtype, order, codes)
        return convert(memory.array()[: spec.nbytes], spec, target)
