"""A backend whose model runs in processes of their own, for models that are not trusted.

Each device worker is one process (:mod:`anynpu.session.isolated_worker`) with a limit of memory and of CPU time. Whatever the model does,
its device worker can be stopped: a run that exceeds its time, or is cancelled, ends with its process, and the next run starts
another. So does a crash: it is an error of one request.

What this costs: a process takes about half a second and 150 MB, once per device worker and after each that was ended; a run
copies its tensors twice more. Results are the same. It is no sandbox: the process has the files and the network that the user has.

Concurrency: a device worker is used by one thread at a time, as every device worker; ``cancel`` and ``abandon`` come from others
and only kill the process.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import errors
from .._util.types import Array
from ..errors import AnynpuError, DeviceError, DeviceTimeout, JobCancelled, OptionError
from ..npu.memory import Buffer
from .isolated_messages import SharedArrays, receive, send
from .ortvalue import HostMemory
from .protocol.messages import ModelDetails
from .remote import run_bound_by_copies

if TYPE_CHECKING:
    from .backend import Backend, Bound, Marks, Memory
    from .feeds import Feed
    from .options import SessionOptions


_GRACE = 0.5
"""Seconds after its time in which a run may still stop on its own, which spares its process."""
_START = "import sys; sys.path[:] = sys.argv[5:]; from anynpu.session.isolated_worker import main; main()"  # nothing of the working folder


def open_backend(
    model: str | PathLike[str] | bytes, options: SessionOptions, device: object, weights_from: Backend | None
) -> IsolatedBackend:
    """The backend for a model in processes of their own."""
    if weights_from is not None:
        raise OptionError("an isolated model shares no weights", hint="leave use_weight_from or isolate out")
    if device is not None and not isinstance(device, str):
        raise OptionError("an isolated model runs on a device by name", hint="name the device, or leave isolate out")
    return IsolatedBackend(model, options, device)


class IsolatedBackend:
    """One model, in one process per device worker."""

    def __init__(self, model: str | PathLike[str] | bytes, options: SessionOptions, device: str | None) -> None:
        self._model = model if isinstance(model, bytes) else os.path.abspath(os.fspath(model))
        self._device = device
        self._options = options
        self._spare: WorkerProcess | None = None
        worker, answer = self.start_worker()
        self._spare = worker
        details = ModelDetails.from_text(str(answer["details"]))
        self.description = f"{details.description}, isolated"
        self.provider = details.provider
        self.chip = details.chip
        self.cores = details.cores
        self.core_masks = tuple(int(mask) for mask in answer["core_masks"])
        self.lanes_on_demand = True
        self.inputs = self.native_inputs = details.inputs
        self.outputs = self.native_outputs = details.outputs
        self.shape_sets = details.shape_sets
        self.metadata: Mapping[str, str] = dict(details.metadata)

    def start_worker(self) -> tuple[WorkerProcess, dict[str, Any]]:
        """A process that has opened the model, and what it states about it."""
        options = self._options
        values = asdict(replace(options, isolate=False, given={}))  # what the caller wrote may be of any type
        worker = WorkerProcess(options.isolate_cpu_s)
        try:
            if isinstance(self._model, bytes):
                worker.inputs.put_bytes(self._model)
            answer = worker.call(
                {
                    "call": "open",
                    "model": None if isinstance(self._model, bytes) else self._model,
                    "device": self._device,
                    "options": values,
                    "memory": options.isolate_memory_mb << 20,
                    "cpu_seconds": options.isolate_cpu_s,
                },
                None,
            )
        except BaseException:
            worker.close()
            raise
        return worker, answer

    def open_lane(self, mask: int) -> IsolatedLane:
        """A process of its own."""
        worker, self._spare = self._spare, None
        return IsolatedLane(self, mask, worker)

    def allocate(self, nbytes: int) -> Memory:
        """Memory of the host."""
        return HostMemory(Buffer.allocate(nbytes))

    def import_fd(self, fd: int, nbytes: int, offset: int, address: int = 0) -> Memory:
        """Memory that another owner allocated."""
        return HostMemory(Buffer.from_fd(fd, nbytes, offset))

    def close(self) -> None:
        """End the process that no device worker has taken."""
        worker, self._spare = self._spare, None
        if worker is not None:
            worker.close()


class IsolatedLane:
    """One process, which is replaced when it has ended."""

    def __init__(self, backend: IsolatedBackend, mask: int, worker: WorkerProcess | None) -> None:
        self._backend = backend
        self._mask = mask
        self._worker = worker
        self._cancelled = False
        self._ready(fresh=worker is not None)

    def infer(
        self, feed: Feed, wanted: Sequence[int], types: Sequence[np.dtype[Any]], timeout: float | None, marks: Marks
    ) -> list[Array]:
        """Copy the inputs to the process and the outputs from it."""
        self._cancelled = False
        worker = self._ready()
        places = worker.inputs.put(feed.arrays)
        message = {
            "call": "infer",
            "arrays": places,
            "nhwc": [bool(last) for last in feed.nhwc],
            "shape_set": feed.shape_set,
            "wanted": list(wanted),
            "types": [kind.name for kind in types],
            "timeout": timeout,
        }
        marks.written = time.perf_counter_ns()
        try:
            answer = worker.call(message, timeout)
        except AnynpuError:
            if self._cancelled:
                raise JobCancelled("the request was cancelled") from None
            raise
        marks.ran = time.perf_counter_ns()
        results = [array.copy() for array in worker.outputs.arrays(answer["arrays"])]
        if [result.dtype for result in results] != list(types):
            raise DeviceError("an isolated process has sent other outputs than were asked for", hint="do not trust the model")
        return results

    def run_bound(self, inputs: Sequence[Bound], outputs: Sequence[Bound], timeout: float | None) -> None:
        """As :meth:`infer`, from and to memory of the host."""
        run_bound_by_copies(self, inputs, outputs, timeout)

    def cancel(self) -> bool:
        """End the process, and with it the run."""
        self._cancelled = True
        worker = self._worker
        if worker is not None:
            worker.kill()
        return True

    def abandon(self) -> None:
        """End the process that hangs."""
        self.cancel()

    def close(self) -> None:
        """End the process."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def _ready(self, *, fresh: bool = False) -> WorkerProcess:
        """The process, with its device worker open."""
        worker = self._worker
        if worker is not None and not fresh and worker.alive:
            return worker
        if not fresh or worker is None:
            if worker is not None:
                worker.close()
            worker, _ = self._backend.start_worker()
            self._worker = worker
        worker.call({"call": "open_lane", "mask": self._mask}, None)
        return worker


class WorkerProcess:
    """A process and the two pieces of memory that it shares."""

    def __init__(self, cpu_seconds: int) -> None:
        self._cpu_seconds = cpu_seconds
        self._killed = False
        self.inputs, self.outputs = SharedArrays.create("anynpu inputs"), SharedArrays.create("anynpu outputs")
        self._control, other = socket.socketpair()
        with other:
            descriptors = (other.fileno(), self.inputs.fd, self.outputs.fd)
            command = [sys.executable, "-c", _START, *map(str, descriptors), str(os.getpid()), *map(os.path.abspath, sys.path)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=descriptors, close_fds=True
            )

    @property
    def alive(self) -> bool:
        return not self._killed and self._process.poll() is None

    def call(self, message: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
        """Send a message and wait for its answer; the process is ended where it does not come in time.

        :raises AnynpuError: what the process raised, or why there is no answer
        """
        self._control.settimeout(None if timeout is None else timeout + _GRACE)
        try:
            send(self._control, message)
            answer = receive(self._control)
        except TimeoutError:
            self.kill()
            raise DeviceTimeout(
                f"the isolated model did not finish within {timeout:g} s, and its process was ended", hint="give it more time"
            ) from None
        except (OSError, json.JSONDecodeError):
            answer = None
        if answer is None:
            raise self._end()
        if "error" in answer:
            kind = getattr(errors, str(answer["error"]), DeviceError)
            known = isinstance(kind, type) and issubclass(kind, AnynpuError)
            raise (kind if known else DeviceError)(str(answer.get("message")), hint=str(answer.get("hint") or ""))
        return answer

    def kill(self) -> None:
        """End it at once."""
        self._killed = True  # the system may take a moment
        self._process.kill()

    def close(self) -> None:
        """End it and give everything back."""
        self._process.kill()
        self._process.wait()
        self._control.close()
        self.inputs.close()
        self.outputs.close()

    def _end(self) -> AnynpuError:
        """Why it ended."""
        self._process.kill()  # if it sent nonsense
        status = self._process.wait()
        if status == -signal.SIGXCPU:
            return DeviceTimeout(
                f"the isolated model used more than {self._cpu_seconds} s of CPU time, and its process was ended",
                hint="raise isolate_cpu_s, if you trust it that far",
            )
        name = signal.Signals(-status).name if status < 0 else f"status {status}"
        return DeviceError(
            f"the process of the isolated model ended ({name})", hint="do not trust the model; the next run starts a new one"
        )
