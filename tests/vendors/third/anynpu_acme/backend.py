"""The backend of sessions: one model on anynpu's software NPU, one context per lane.

Threads: a lane is used by one thread at a time; ``cancel`` comes from another one and only touches the control of the run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from anynpu import modelfile
from anynpu.errors import DeviceUnavailable, OptionError
from anynpu.npu import Buffer, Context, Device, LoadedModel, RunControl
from anynpu.session import Bound, Feed, Marks, SessionOptions
from anynpu.tensor import Layout, TensorSpec
from anynpu.vendors.devices import SOFTWARE, choose_device
from anynpu.vendors.libraries import Lender, session_errors

from . import VENDOR

__all__ = ["AcmeBackend", "open_backend"]

Array = npt.NDArray[Any]


def open_backend(
    model: str | PathLike[str] | bytes, options: SessionOptions, device: str | None = None, weights_from: object = None
) -> AcmeBackend:
    """The backend of a session for *model*."""
    if options.family not in ("", VENDOR.name):
        raise OptionError(f"the provider {options.provider} is not for ACME's models", hint="leave providers out")
    if choose_device(device).kind != SOFTWARE:
        raise DeviceUnavailable("libacme.so does not exist", hint="pass device='sim'")
    if weights_from is not None and not isinstance(weights_from, AcmeBackend):
        raise OptionError("weights can be shared between ACME's sessions only", hint="leave use_weight_from out")
    with session_errors():
        return AcmeBackend(model, weights_from)


class AcmeBackend(Lender[LoadedModel]):
    """One model on one device."""

    provider = VENDOR.providers[0]
    lanes_on_demand = True
    core_masks: tuple[int, ...] = ()
    shape_sets: tuple[tuple[tuple[int, ...], ...], ...] = ()
    metadata: Mapping[str, str] = {}

    def __init__(self, source: str | PathLike[str] | bytes, weights_from: AcmeBackend | None) -> None:
        super().__init__(weights_from)
        self._model = modelfile.read_or_twin(source)
        self.chip = self._model.chip
        self._device = Device(self.chip) if weights_from is None else weights_from._device
        self._open_root(self._load, self._describe)

    def _load(self) -> LoadedModel:
        return self._device.load(self._model, weights_from=None if self._lender is None else self._lender._root)

    def _describe(self) -> None:
        self.cores = self._device.cores
        self.description = f"software NPU, {self.chip}, {self.cores} cores"
        self.native_inputs, self.native_outputs = self._root.inputs, self._root.outputs
        self.inputs, self.outputs = (tuple(map(_logical, specs)) for specs in (self.native_inputs, self.native_outputs))

    def open_lane(self, mask: int) -> AcmeLane:
        """A new context; there is one way to use the cores."""
        del mask
        return AcmeLane(self, self._root.context())

    def allocate(self, nbytes: int) -> AcmeMemory:
        """Memory of the device."""
        return AcmeMemory(self._device.allocate(max(1, nbytes)))

    def import_fd(self, fd: int, nbytes: int, offset: int, address: int = 0) -> AcmeMemory:
        """Memory that another owner allocated."""
        del address
        return AcmeMemory(Buffer.from_fd(fd, nbytes, offset))


class AcmeMemory:
    """Memory that both sides see."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.nbytes, self.address = buffer.size, buffer.address
        self.fd, self.offset = buffer.fd, buffer.offset

    def array(self) -> npt.NDArray[np.uint8]:
        """The bytes, shared."""
        return self.buffer.array(np.uint8)

    def sync_to_device(self) -> None:
        """Nothing to do."""

    def sync_from_device(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Give it back."""
        self.buffer.close()


class AcmeLane:
    """One context of a session."""

    def __init__(self, backend: AcmeBackend, context: Context) -> None:
        self._backend = backend
        self._context = context
        self._control: RunControl | None = None

    def infer(
        self, feed: Feed, wanted: Sequence[int], types: Sequence[np.dtype[Any]], timeout: float | None, marks: Marks
    ) -> list[Array]:
        """Inputs, run, outputs."""
        for spec, array, last in zip(self._backend.inputs, feed.arrays, feed.nhwc, strict=True):
            self._context.write(spec.name, array, layout="nhwc" if last else None)
        marks.written = time.perf_counter_ns()
        self._run(timeout)
        marks.ran = time.perf_counter_ns()
        results = []
        for index, kind in zip(wanted, types, strict=True):
            spec = self._backend.outputs[index]
            values = kind != spec.dtype.storage
            results.append(self._context.read(spec.name, dequantize=values).astype(kind, copy=False))
        return results

    def run_bound(self, inputs: Sequence[Bound], outputs: Sequence[Bound], timeout: float | None) -> None:
        """Execute on memory of the caller."""
        for spec, bound in zip(self._backend.native_inputs, inputs, strict=True):
            if bound.spec == spec:
                self._context.bind_input(spec.name, bound.memory.buffer)  # type: ignore[attr-defined]
            else:
                values = bound.memory.array()[: bound.spec.nbytes].view(bound.spec.dtype.storage).reshape(bound.spec.memory_shape)
                layout = "nhwc" if bound.spec.layout is Layout.NHWC else None
                self._context.bind_input(spec.name, None)
                self._context.write(spec.name, values, layout=layout)
        for spec, bound in zip(self._backend.native_outputs, outputs, strict=True):
            self._context.bind_output(spec.name, bound.memory.buffer)  # type: ignore[attr-defined]
        try:
            self._run(timeout)
        finally:
            for spec in self._backend.native_inputs:
                self._context.bind_input(spec.name, None)
            for spec in self._backend.native_outputs:
                self._context.bind_output(spec.name, None)

    def cancel(self) -> bool:
        """Stop the run."""
        control = self._control
        return control is not None and control.cancel()

    def abandon(self) -> None:
        """Nothing waits for a lane."""

    def close(self) -> None:
        """Give the context back."""
        self._context.close()

    def _run(self, timeout: float | None) -> None:
        self._control = RunControl(timeout)
        try:
            self._context.execute(control=self._control)
        finally:
            self._control = None


def _logical(spec: TensorSpec) -> TensorSpec:
    """How a session sees an input or output: in the order of the model, one element after the other."""
    return replace(spec, layout=Layout.row_major(len(spec.shape)), c1=0, c2=0, w_stride=0)
