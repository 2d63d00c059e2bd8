"""The driver between the first ``vip_init`` and the last ``vip_destroy``: devices, power, jobs and the log.

Who owns what: the driver owns one device for each chip it has met (one, unless the library follows its models), the state of its
power and the jobs. Its lock protects the table of devices, the folder of the log and the number of captures. :meth:`Driver.close` ends
everything; the library calls it once.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from ...chips import Chip
from ...npu import Device, Engine
from .jobs import Hang, Jobs
from .power import Power
from .refusal import Refusal, Status

__all__ = ["LOG_FILE", "MAX_CAPTURES", "Driver"]

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
