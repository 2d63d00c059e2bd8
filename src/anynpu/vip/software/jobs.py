"""Jobs in flight: who submitted them, how they are stopped, and what a reset of the NPU does to those that wait.

A job that is out of time while it runs looks to the driver like an NPU that hangs. It ends with ``VIP_ERROR_TIMEOUT`` and the NPU
is reset; jobs that had been submitted and had not begun are lost with the reset and end with ``VIP_ERROR_RECOVERY``: their owners
submit them again.

A job is known by its control, which stops it.

State and lock: the table of jobs belongs to :class:`Jobs` and is protected by its lock, which is never held while anything waits.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...chips import Chip
from ...errors import AnynpuError, DeviceError
from ...npu import Device, DeviceJob, Engine, RunControl, Stage, run_stages, start_stages
from ...vendors.libraries import Refusal
from .handles import Status


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

    :param on_hang: called with each job that runs out of its time
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


# The power of the NPU: on, off, stopped, and at what share of its clock.
#
# State: three values that :class:`Power` owns. Each is written by one assignment and read by one, so there is no lock; a job looks
# when it is submitted, and what changes after that concerns the next one.


class Power:
    """The state of one device."""

    def __init__(self) -> None:
        self.on = True
        self.running = True
        self.percent = 100
        """Of the chip's clock."""

    def require(self) -> None:
        """Reject work that nothing would do."""
        if not self.on:
            raise Refusal(
                Status.VIP_ERROR_POWER_OFF, "the NPU has no power", "call vip_power_management with VIP_POWER_PROPERTY_ON"
            )
        if not self.running:
            raise Refusal(
                Status.VIP_ERROR_POWER_STOP, "the NPU was stopped", "call vip_power_management with VIP_POWER_PROPERTY_START"
            )


# The driver between the first ``vip_init`` and the last ``vip_destroy``: devices, power, jobs and the log.
#
# Who owns what: the driver owns one device for each chip it has met (one, unless the library follows its models), the state of its
# power and the jobs. Its lock protects the table of devices, the folder of the log and the number of captures. :meth:`Driver.close` ends
# everything; the library calls it once.


LOG_FILE = "viplite.log"
"""In the folder that ``vip_set_log_path`` names: why calls failed."""

MAX_CAPTURES = 8
"""Captures of hangs that one driver writes: a program that tries for ever does not fill the disk."""


class Driver:
    """What ``vip_init`` starts.

    :param memory_limit: bytes of device memory that all networks and buffers together may have; None for no limit
    :param captures: the folder for captures of hangs until ``vip_set_log_path`` names another; None for no captures
    """

    def __init__(
        self,
        *,
        memory_limit: int | None,
        engine: Engine | str | None,
        realtime: float | bool | None,
        captures: Path | None = None,
    ) -> None:
        self.power = Power()
        self.jobs = Jobs(self._capture)
        self._captures = captures
        self._captured = 0
        self._memory_limit = memory_limit
        self._engine = engine
        self._realtime = realtime
        self._lock = threading.Lock()
        self._devices: dict[str, Device] = {}
        self._log: Path | None = None
        self._closed = False

    def device(self, chip: Chip) -> Device:
        """The device that stands for *chip*."""
        with self._lock:
            if self._closed:
                raise Refusal(
                    Status.VIP_ERROR_NOT_SUPPORTED, "the driver was ended by the last vip_destroy", "call vip_init again"
                )
            if chip.name not in self._devices:
                self._devices[chip.name] = Device(
                    chip.name, memory_limit=self._memory_limit, engine=self._engine, realtime=self._realtime
                )
            return self._devices[chip.name]

    def recover(self) -> None:
        """An interrupt ended what the calling thread did: give up the cores that it has."""
        for device in tuple(self._devices.values()):
            device.scheduler.recover(threading.get_ident())

    def set_log(self, folder: Path) -> None:
        """Write failures into a file in *folder* from now on."""
        path = folder / LOG_FILE
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644))
        except (OSError, ValueError) as error:
            raise Refusal(Status.VIP_ERROR_IO, f"{path} cannot be written: {error}", "name a folder that exists") from error
        with self._lock:
            self._log, self._captures = path, folder

    def log(self, line: str) -> None:
        """Add a line to the log, if there is one. A full disk is no reason for a call to fail."""
        path = self._log
        if path is None:
            return
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
        except OSError:
            with self._lock:
                self._log = None

    def _capture(self, hang: Hang) -> None:
        """Write down what hung, as a board's driver does. A folder that cannot be written is no reason for a call to fail."""
        with self._lock:
            folder, number = self._captures, self._captured
            if folder is None or number >= MAX_CAPTURES:
                return
            self._captured += 1
        path = folder / f"viplite_hang_{os.getpid()}_{number}.txt"
        try:
            path.write_text(hang.text(), encoding="utf-8")
        except OSError as error:
            self.log(f"{path} cannot be written: {error}")
        else:
            self.log(f"fail to ioctl vipcore, command[4]:VIPDRV_WAIT_TASK; see {path}")

    def close(self) -> None:
        """End the devices, and with them all jobs."""
        with self._lock:
            self._closed = True
            devices, self._devices = list(self._devices.values()), {}
        for device in devices:
            device.close()
