"""A server whose cores only sleep: a device with a known capacity, whatever machine this is.

``python -m benchmarks.serve_sleeper MODEL`` serves on free ports until it is ended; the model file need not hold anything.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from anynpu.errors import UnsupportedCall
from anynpu.serve import ServeOptions, Server
from anynpu.session import Backend, Bound, Feed, Marks, Memory, SessionOptions
from anynpu.tensor import DType, TensorSpec

CORES = 3
SECONDS = 0.03


class Lane:
    """A context that sleeps."""

    def infer(self, feed: Feed, wanted: Sequence[int], types: Sequence[Any], timeout: float | None, marks: Marks) -> list[Any]:
        """Sleep, and give zeros."""
        marks.written = time.perf_counter_ns()
        time.sleep(SECONDS)
        marks.ran = time.perf_counter_ns()
        return [np.zeros((1, 2), kind) for kind in types]

    def run_bound(self, inputs: Sequence[Bound], outputs: Sequence[Bound], timeout: float | None) -> None:
        """Not measured."""
        raise UnsupportedCall("this device takes no memory of others", hint="use run")

    def cancel(self) -> bool:
        """It sleeps on."""
        return False

    def abandon(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""


class Sleeper:
    """The device, and its one model."""

    description, provider, chip, cores = f"sleeper, {CORES} cores", "Sleeper", "sleeper", CORES
    core_masks: tuple[int, ...] = ()
    lanes_on_demand = True
    inputs = native_inputs = (TensorSpec("x", (1, 4), DType.FLOAT32),)
    outputs = native_outputs = (TensorSpec("y", (1, 2), DType.FLOAT32),)
    shape_sets: tuple[tuple[tuple[int, ...], ...], ...] = ()
    metadata: dict[str, str] = {}  # noqa: RUF012  nobody writes to it

    def open_backend(self, model: Any, options: SessionOptions, weights_from: Backend | None) -> Sleeper:
        """Itself: there is nothing to open."""
        return self

    def open_lane(self, mask: int) -> Lane:
        """A context that sleeps."""
        return Lane()

    def allocate(self, nbytes: int) -> Memory:
        """Not measured."""
        raise UnsupportedCall("this device has no memory", hint="use run")

    def import_fd(self, fd: int, nbytes: int, offset: int, address: int = 0) -> Memory:
        """Not measured."""
        raise UnsupportedCall("this device has no memory", hint="use run")

    def close(self) -> None:
        """Nothing is held."""


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
    Server([f"net={sys.argv[1]}"], ServeOptions(port=0, grpc_port=0, device=Sleeper())).run()
