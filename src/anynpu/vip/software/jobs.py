"""Jobs in flight: who submitted them, how they are stopped, and what a reset of the NPU does to those that wait.

A job that is out of time while it runs looks to the driver like an NPU that hangs. It ends with ``VIP_ERROR_TIMEOUT`` and the NPU
is reset; jobs that had been submitted and had not begun are lost with the reset and end with ``VIP_ERROR_RECOVERY``: their owners
submit them again.

A job is known by its control, which stops it.

State and lock: the table of jobs belongs to :class:`Jobs` and is protected by its lock, which is never held while anything waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from ...errors import AnynpuError, DeviceError
from ...npu import Device, DeviceJob, RunControl, Stage, run_stages, start_stages
from .refusal import Status

__all__ = ["Hang", "Jobs"]


@dataclass(frozen=True)
class Hang:
    """A job that ran out of its time.

    :ivar networks: what it executed, each as its text
    :ivar lost: jobs that had been submitted and were lost with the reset
    """

    networks: tuple[str, ...]
    timeout_ms: int
    lost: int

    def text(self) -> str:
        """What a capture of the hang holds."""
        lines = [f"the NPU did not finish within {self.timeout_ms} ms and was reset", *self.networks]
        return "\n".join([*lines, f"jobs lost with the reset: {self.lost}", ""])


class Jobs:
    """All jobs of one driver.

    :param on_hang: told about each job that runs out of its time
    """

    def __init__(self, on_hang: Callable[[Hang], None] = lambda hang: None) -> None:
        self._on_hang = on_hang
        self._lock = threading.Lock()
        self._in_flight: dict[RunControl, frozenset[Hashable]] = {}  # with the networks that they execute

    def run(
        self, device: Device, owners: Sequence[Hashable], stages: Sequence[Stage], *, core: int, priority: int, timeout_ms: int
    ) -> None:
        """Execute in the calling thread.

        :param core: -1 for any
        :param priority: larger goes first
        :param timeout_ms: 0 for none
        """
        control = self._enter(owners, timeout_ms)
        try:
            run_stages(
                device,
                stages,
                mask=_mask(core),
                priority=-priority,
                control=control,
                on_timeout=lambda: self._reset(control),
            )
        finally:
            self._leave(control)

    def start(
        self, device: Device, owners: Sequence[Hashable], stages: Sequence[Stage], *, core: int, priority: int, timeout_ms: int
    ) -> DeviceJob[None]:
        """Submit, and return at once."""
        control = self._enter(owners, timeout_ms)
        try:
            job = start_stages(
                device,
                stages,
                mask=_mask(core),
                priority=-priority,
                control=control,
                on_timeout=lambda: self._reset(control),
            )
        except BaseException:
            self._leave(control)
            raise
        job.add_done_callback(lambda _: self._leave(control))
        return job

    def stop_all(self, owner: Hashable, error: Callable[[], AnynpuError]) -> None:
        """Stop the jobs of *owner*: before they begin, or between two layers."""
        with self._lock:
            controls = [control for control, owners in self._in_flight.items() if owner in owners]
        for control in controls:
            control.cancel(error())

    @property
    def count(self) -> int:
        """How many are in flight."""
        with self._lock:
            return len(self._in_flight)

    def _enter(self, owners: Sequence[Hashable], timeout_ms: int) -> RunControl:
        control = RunControl(timeout_ms / 1000 if timeout_ms else None)
        with self._lock:
            self._in_flight[control] = frozenset(owners)
        return control

    def _leave(self, control: RunControl) -> None:
        with self._lock:
            self._in_flight.pop(control, None)

    def _reset(self, hung: RunControl) -> None:
        """*hung* was out of time while it ran; it still has its core."""
        with self._lock:
            lost = [control for control in self._in_flight if control is not hung and not control.began]
            networks = tuple(str(owner) for owner in self._in_flight.get(hung, ()))
        self._on_hang(Hang(networks, round((hung.timeout or 0) * 1000), len(lost)))
        for control in lost:
            control.cancel(
                DeviceError(
                    "the NPU was reset after another network ran out of its time",
                    hint="submit the network again",
                    code=int(Status.VIP_ERROR_RECOVERY),
                )
            )


def _mask(core: int) -> int | None:
    return None if core < 0 else 1 << core
