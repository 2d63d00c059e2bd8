"""A device for sessions that needs no NPU: lanes that double their input, and sleep, fail or hang as they are set to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from anynpu.errors import DeviceError, DeviceTimeout, JobCancelled
from anynpu.npu.memory import Buffer
from anynpu.session import Backend, Bound, Feed, InferenceSession, Marks, Memory, SessionOptions
from anynpu.tensor import Affine, DType, Layout, TensorSpec

Array = npt.NDArray[Any]

X = TensorSpec("x", (1, 4), DType.FLOAT32)
Y = TensorSpec("y", (1, 4), DType.FLOAT32)

GUARD = 120.0
"""Seconds after which a wait is a deadlock; no test waits so long on purpose."""

MASKS = {1: (), 2: (1, 2, 3, 0xFFFF), 3: (1, 2, 4, 3, 7, 0xFFFF)}


class FakeMemory:
    """Device memory in the shape of a memfd."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self.syncs: list[str] = []

    @property
    def nbytes(self) -> int:
        return self._buffer.size

    @property
    def address(self) -> int:
        return self._buffer.address

    @property
    def fd(self) -> int:
        return self._buffer.fd

    @property
    def offset(self) -> int:
        return self._buffer.offset

    def array(self) -> npt.NDArray[np.uint8]:
        return self._buffer.array(np.uint8)

    def sync_to_device(self) -> None:
        self.syncs.append("to")

    def sync_from_device(self) -> None:
        self.syncs.append("from")

    def close(self) -> None:
        self._buffer.close()


class FakeLane:
    """One context. Notices when two threads use it at once."""

    def __init__(self, backend: FakeBackend, mask: int) -> None:
        self.backend = backend
        self.mask = mask
        self.closed = False
        self.abandoned = False
        self.user: int | None = None
        self.stop = threading.Event()
        self.arrays: list[Array] = []
        self.shape_set = 0

    def _used(self) -> None:
        me = threading.get_ident()
        assert not self.closed, "a closed lane is used"
        if self.user not in (None, me):
            self.backend.device.violations.append(f"{self.user} and {me}")
        self.user = me

    def infer(
        self, feed: Feed, wanted: Sequence[int], types: Sequence[np.dtype[Any]], timeout: float | None, marks: Marks
    ) -> list[Array]:
        self.write(feed.arrays, feed.nhwc, feed.shape_set)
        marks.written = time.perf_counter_ns()
        self.run(timeout)
        marks.ran = time.perf_counter_ns()
        return self.read(wanted, types)

    def write(self, arrays: Sequence[Array], nhwc: Sequence[bool], shape_set: int) -> None:
        self._used()
        assert all(array.flags.c_contiguous and array.dtype.isnative for array in arrays)
        self.arrays = [
            array.transpose(0, 3, 1, 2) if last and array.ndim == 4 else array for array, last in zip(arrays, nhwc, strict=True)
        ]
        self.shape_set = shape_set
        self.backend.device.writes.append((tuple(arrays), tuple(nhwc), shape_set))

    def run(self, timeout: float | None) -> None:
        self._used()
        try:
            self._run(timeout)
        except BaseException:
            self.user = None
            raise

    def _run(self, timeout: float | None) -> None:
        device = self.backend.device
        device.core_runs[self.mask] = device.core_runs.get(self.mask, 0) + 1
        device.threads.add(threading.get_ident())
        seconds = device.run_time(self) if callable(device.run_time) else device.run_time
        if device.gate is not None:
            device.entered.release()
            if not device.gate.wait(GUARD):
                raise AssertionError("nobody opened the gate")
        if seconds:
            limit = seconds if timeout is None else min(seconds, timeout)
            if device.stoppable:
                if self.stop.wait(limit):
                    self.stop.clear()
                    raise JobCancelled("the job was cancelled")
            else:
                time.sleep(limit)
            if limit < seconds:
                raise DeviceTimeout("the job did not finish in time")
        if device.fails is not None and device.fails(self):
            raise DeviceError("the fake device failed", code=-1, call="run")

    def read(self, wanted: Sequence[int], types: Sequence[np.dtype[Any]]) -> list[Array]:
        self._used()
        with np.errstate(over="ignore"):
            results = [
                self.backend.device.compute(number, self.arrays).astype(kind) for number, kind in zip(wanted, types, strict=True)
            ]
        self.user = None
        return results

    def run_bound(self, inputs: Sequence[Bound], outputs: Sequence[Bound], timeout: float | None) -> None:
        self._used()
        self.backend.device.bound_runs.append((self.mask, tuple(bound.spec for bound in inputs)))
        self.arrays = [_load(bound) for bound in inputs]
        self.run(timeout)
        for number, bound in enumerate(outputs):
            result = self.backend.device.compute(number, self.arrays)
            stored = np.ascontiguousarray(result.astype(bound.spec.dtype.storage))
            bound.memory.array()[: stored.nbytes] = stored.reshape(-1).view(np.uint8)
        self.user = None

    def cancel(self) -> bool:
        if self.backend.device.stoppable:
            self.stop.set()
        return self.backend.device.stoppable

    def abandon(self) -> None:
        self.abandoned = True

    def close(self) -> None:
        assert not self.closed, "a lane is closed twice"
        self.closed = True
        self.backend.device.open_lanes -= 1


def _load(bound: Bound) -> Array:
    spec = bound.spec
    data = bound.memory.array()[: spec.nbytes].view(spec.dtype.storage).reshape(spec.memory_shape).copy()
    return data.transpose(0, 3, 1, 2) if spec.layout is Layout.NHWC else data


class FakeBackend:
    """One model on the fake device."""

    provider = "FakeExecutionProvider"

    def __init__(self, device: FakeDevice, options: SessionOptions) -> None:
        self.device = device
        self.options = options
        self.chip = f"fake{device.cores}"
        self.cores = device.cores
        self.core_masks = MASKS[device.cores]
        self.description = f"fake NPU, {device.cores} cores"
        self.lanes_on_demand = device.on_demand
        self.inputs = device.inputs
        self.outputs = device.outputs
        self.native_inputs = device.inputs
        self.native_outputs = device.outputs
        self.shape_sets = device.shape_sets
        self.metadata: Mapping[str, str] = device.metadata
        self.closed = False

    def open_lane(self, mask: int) -> FakeLane:
        assert not self.closed
        if self.device.refuses is not None and self.device.refuses(mask, self.device.open_lanes):
            raise DeviceError("no more contexts", code=-4, call="rknn_dup_context")
        self.device.open_lanes += 1
        lane = FakeLane(self, mask)
        self.device.lanes.append(lane)
        return lane

    def allocate(self, nbytes: int) -> Memory:
        return FakeMemory(Buffer.allocate(nbytes))

    def import_fd(self, fd: int, nbytes: int, offset: int, address: int = 0) -> Memory:
        return FakeMemory(Buffer.from_fd(fd, nbytes, offset))

    def close(self) -> None:
        assert not self.closed, "a backend is closed twice"
        self.closed = True
        self.device.open_backends -= 1


class FakeDevice:
    """Opens backends and states how their lanes behave."""

    def __init__(
        self,
        cores: int = 1,
        *,
        run_time: float | Callable[[FakeLane], float] = 0.0,
        inputs: tuple[TensorSpec, ...] = (X,),
        outputs: tuple[TensorSpec, ...] = (Y,),
        fails: Callable[[FakeLane], bool] | None = None,
        gated: bool = False,
        stoppable: bool = False,
        on_demand: bool = True,
        shape_sets: tuple[tuple[tuple[int, ...], ...], ...] = (),
        metadata: Mapping[str, str] | None = None,
        refuses: Callable[[int, int], bool] | None = None,
    ) -> None:
        self.cores = cores
        self.run_time = run_time
        self.inputs = inputs
        self.outputs = outputs
        self.fails = fails
        self.gate = threading.Event() if gated else None
        self.entered = threading.Semaphore(0)
        self.stoppable = stoppable
        self.on_demand = on_demand
        self.shape_sets = shape_sets
        self.metadata = metadata or {}
        self.refuses = refuses
        self.open_lanes = 0
        self.open_backends = 0
        self.lanes: list[FakeLane] = []
        self.backends: list[FakeBackend] = []
        self.lent: list[Backend | None] = []
        self.core_runs: dict[int, int] = {}
        self.threads: set[int] = set()
        self.violations: list[str] = []
        self.writes: list[tuple[tuple[Array, ...], tuple[bool, ...], int]] = []
        self.bound_runs: list[tuple[int, tuple[TensorSpec, ...]]] = []

    def open_backend(
        self, model: str | PathLike[str] | bytes, options: SessionOptions, weights_from: Backend | None
    ) -> FakeBackend:
        self.open_backends += 1
        self.lent.append(weights_from)
        backend = FakeBackend(self, options)
        self.backends.append(backend)
        return backend

    def compute(self, number: int, arrays: Sequence[Array]) -> Array:
        """Output *number*: twice the first input, in the output's shape."""
        values = arrays[0].astype(np.float64) * 2 + number
        return np.resize(values, self.outputs[number].shape)

    def wait_entered(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.entered.acquire(timeout=GUARD)

    def open(self, **options: Any) -> InferenceSession:
        """A session on this device with some provider options."""
        return InferenceSession(b"model", provider_options=options, device=self)


def feed(value: float = 1.0) -> Array:
    return np.full((1, 4), value, np.float32)


IMAGE = TensorSpec("image", (1, 3, 4, 5), DType.INT8, Layout.NHWC, Affine.per_tensor(0.5, -3))
