"""What the sanitizer finds in the jobs of the emulated device."""

from __future__ import annotations

from typing import Any

from ...devtools.sanitizer import Observer, Reporter

__all__ = ["observe"]


class _RocketObserver(Observer):
    """Passes the faults that the device finds on to the sanitizer."""

    def __init__(self, device: Any, reporter: Reporter) -> None:
        super().__init__(device, reporter, ())

    def install(self) -> None:
        self.library.reports.append(self.tell)

    def uninstall(self) -> None:
        if self.tell in self.library.reports:
            self.library.reports.remove(self.tell)


def observe(device: Any, reporter: Reporter) -> Observer:
    """The observer of an emulated device."""
    return _RocketObserver(device, reporter)
