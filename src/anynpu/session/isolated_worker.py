"""The process that runs a model which is not trusted; :mod:`anynpu.session.isolation` starts it.

It owns a backend with one device worker and answers one message after the other. Tensors lie in two shared pieces of memory, one
that the parent writes and one that is written here; messages are JSON with a length before it.

Limits: before the model is opened the process may not take more memory than it has by then plus what it was granted (``RLIMIT_AS``), and
each message has its own limit of CPU time (``RLIMIT_CPU``: the system ends the process). It also ends when its parent does, which a
thread watches, since a library may be busy for long.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import select
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .._util.optional import MAX_TENSOR_VARIABLE, onnxruntime
from ..errors import AnynpuError, DeviceMemoryError, MissingDependencyError
from .devices import open_backend
from .feeds import Feed
from .isolated_messages import Place, SharedArrays, receive, send
from .options import SessionOptions
from .protocol.messages import ModelDetails

_NO_NEW_PRIVILEGES = 38
_LOOK_EVERY_MS = 1000


class Worker:
    """One device worker, and the messages for it."""

    def __init__(self, control: socket.socket, inputs: SharedArrays, outputs: SharedArrays) -> None:
        self._control = control
        self._inputs = inputs
        self._outputs = outputs
        self._backend: Any = None
        self._lane: Any = None
        self._cpu_seconds = 0

    def serve(self) -> None:
        """Answer messages until the parent closes its end."""
        calls: dict[str, Callable[..., Any]] = {"open": self._open, "open_lane": self._open_lane, "infer": self._infer}
        while (message := receive(self._control)) is not None:
            self._limit_time()
            try:
                answer = calls[message.pop("call")](**message)
            except AnynpuError as error:
                answer = {"error": type(error).__name__, "message": error.message, "hint": error.hint}
            except MemoryError:
                answer = {
                    "error": DeviceMemoryError.__name__,
                    "message": "the model needs more memory than an isolated one may have",
                    "hint": "raise isolate_memory_mb, if you trust it that far",
                }
            send(self._control, answer)

    def _open(self, model: str | None, device: str | None, options: Mapping[str, Any], memory: int, cpu_seconds: int) -> Any:
        values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
        source: str | bytes = model if model is not None else self._inputs.take_bytes()
        self._cpu_seconds = cpu_seconds
        os.environ[MAX_TENSOR_VARIABLE] = str(1 << 20)  # the system sets the limits here
        _limit_memory(memory)
        self._limit_time()
        backend = self._backend = open_backend(source, SessionOptions(**values), device, None)
        details = ModelDetails(
            backend.description,
            backend.provider,
            backend.chip,
            backend.cores,
            "any",
            backend.inputs,
            backend.outputs,
            backend.shape_sets,
            dict(backend.metadata),
        )
        return {"details": details.to_text(), "core_masks": list(backend.core_masks)}

    def _open_lane(self, mask: int) -> Any:
        self._lane = self._backend.open_lane(mask)
        return {}

    def _infer(
        self, arrays: list[Place], nhwc: list[bool], shape_set: int, wanted: list[int], types: list[str], timeout: float | None
    ) -> Any:
        feed = Feed(self._inputs.arrays(arrays), nhwc, shape_set)
        marks = _Marks()
        results = self._lane.infer(feed, wanted, [np.dtype(name) for name in types], timeout, marks)
        places = self._outputs.put(results)
        return {"arrays": places, "written": marks.written, "ran": marks.ran}

    def _limit_time(self) -> None:
        """A new account of CPU time, for the next message."""
        if self._cpu_seconds:
            used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
            _, hard = resource.getrlimit(resource.RLIMIT_CPU)
            resource.setrlimit(resource.RLIMIT_CPU, (int(used) + 1 + self._cpu_seconds, hard))


class _Marks:
    written = 0
    ran = 0


def _limit_memory(memory: int) -> None:
    try:
        onnxruntime()  # what it takes itself is not the model's
    except MissingDependencyError:
        pass
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * mmap.PAGESIZE + memory
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _watch(control: socket.socket, parent: int) -> None:
    poll = select.poll()
    poll.register(control, 0)
    while not poll.poll(_LOOK_EVERY_MS) and os.getppid() == parent:
        pass
    os._exit(0)


def main() -> None:
    """Run with the descriptors of the socket and of the two shared pieces of memory, and the number of the parent."""
    control, inputs, outputs, parent = map(int, sys.argv[1:5])
    ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    connection = socket.socket(fileno=control)
    threading.Thread(target=_watch, args=(connection, parent), daemon=True).start()
    Worker(connection, SharedArrays(inputs), SharedArrays(outputs)).serve()
    os._exit(0)
