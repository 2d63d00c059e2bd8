"""Jobs on their way: who submitted them, how they are stopped, and what a reset of the NPU does to those that wait.

A job that is out of time while it runs looks to the driver like an NPU that hangs. It ends with ``VIP_ERROR_TIMEOUT`` and the NPU
is reset; jobs that had been submitted and had not begun are lost with the reset and end with ``VIP_ERROR_RECOVERY``: their owners
submit them again.

State and lock: the set of jobs belongs to :class:`Jobs` and is protected by its lock, which is never held while anything waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence

from ...errors import AnynpuError, DeviceError
from ...npu import Device, Launch, RunControl, Step, run_steps, start_steps
from .refusal import Status

__all__ = ["Job", "Jobs"]


class Job:
    """One job.

    :ivar owners: the networks that it executes
    """

    def __init__(self, owners: frozenset[Hashable], control: RunControl) -> None:
        self.owners = owners
        self.control = control
        self.launch: Launch | None = None

    def stop(self, error: AnynpuError) -> None:
        """End it before it begins, or between two layers."""
        if self.launch is not None:
            self.launch.stop(error)
        else:
            self.control.cancel(error)

    def wait(self) -> None:
        """Wait for a job that was started; raises what it ended with."""
        assert self.launch is not None
        self.launch.result()


class Jobs:
    """All jobs of one driver."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._on_their_way: set[Job] = set()

    def run(
        self, device: Device, owners: Sequence[Hashable], steps: Sequence[Step], *, core: int, priority: int, timeout_ms: int
    ) -> None:
        """Execute in the calling thread.

        :param core: -1 for any
        :param priority: larger goes first
        :param timeout_ms: 0 for none
        """
        job = self._enter(owners, timeout_ms)
        try:
            run_steps(
                device,
                steps,
                mask=_mask(core),
                priority=-priority,
                control=job.control,
                on_timeout=lambda: self._reset(job),
            )
        finally:
            self._leave(job)

    def start(
        self, device: Device, owners: Sequence[Hashable], steps: Sequence[Step], *, core: int, priority: int, timeout_ms: int
    ) -> Job:
        """Submit, and return at once."""
        job = self._enter(owners, timeout_ms)
        try:
            job.launch = start_steps(
                device,
                steps,
                mask=_mask(core),
                priority=-priority,
                control=job.control,
                on_timeout=lambda: self._reset(job),
            )
        except BaseException:
            self._leave(job)
            raise
        job.launch.add_done_callback(lambda _: self._leave(job))
        return job

    def stop_all(self, owner: Hashable, error: Callable[[], AnynpuError]) -> None:
        """Stop the jobs of *owner*."""
        with self._lock:
            jobs = [job for job in self._on_their_way if owner in job.owners]
        for job in jobs:
            job.stop(error())

    @property
    def count(self) -> int:
        """How many are on their way."""
        with self._lock:
            return len(self._on_their_way)

    def _enter(self, owners: Sequence[Hashable], timeout_ms: int) -> Job:
        job = Job(frozenset(owners), RunControl(timeout_ms / 1000 if timeout_ms else None))
        with self._lock:
            self._on_their_way.add(job)
        return job

    def _leave(self, job: Job) -> None:
        with self._lock:
            self._on_their_way.discard(job)

    def _reset(self, hung: Job) -> None:
        """*hung* was out of time while it ran; it still has its core."""
        with self._lock:
            lost = [job for job in self._on_their_way if job is not hung and not job.control.began]
        for job in lost:
            job.stop(
                DeviceError(
                    "the NPU was reset after another network ran out of its time",
                    hint="submit the network again",
                    code=int(Status.VIP_ERROR_RECOVERY),
                )
            )


def _mask(core: int) -> int | None:
    return None if core < 0 else 1 << core
