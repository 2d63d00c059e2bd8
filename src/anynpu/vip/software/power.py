"""The power of the NPU: on, off, stopped, and at what share of its clock.

State: three values that :class:`Power` owns. Each is written by one assignment and read by one, so there is no lock; a job looks
when it is submitted, and what changes after that concerns the next one.
"""

from __future__ import annotations

from .refusal import Refusal, Status

__all__ = ["Power"]


class Power:
    """The state of one device."""

    def __init__(self) -> None:
        self.on = True
        self.running = True
        self.percent = 100
        """Of the chip's clock."""

    def require(self) -> None:
        """Refuse work that nothing would do."""
        if not self.on:
            raise Refusal(
                Status.VIP_ERROR_POWER_OFF, "the NPU has no power", "call vip_power_management with VIP_POWER_PROPERTY_ON"
            )
        if not self.running:
            raise Refusal(
                Status.VIP_ERROR_POWER_STOP, "the NPU was stopped", "call vip_power_management with VIP_POWER_PROPERTY_START"
            )
