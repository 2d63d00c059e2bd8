"""One ``vip_group``: networks that one job executes one after the other, with nothing of anybody else's in between.

State and lock: the list of networks and the triggered job are protected by the group's lock; a network that was destroyed stays
in the list and is refused when the group runs.
"""

from __future__ import annotations

import threading

from ...npu import DeviceJob, Stage
from .jobs import Jobs
from .network import NetworkState, RunCost
from .refusal import Refusal, Status

__all__ = ["GroupState"]


class GroupState:
    """The state behind the handle of a group.

    :param count: how many networks there is room for
    """

    def __init__(self, count: int, jobs: Jobs) -> None:
        self.lock = threading.RLock()
        self.count = count
        self.timeout_ms = 0
        self.core = -1
        self.profile = RunCost()
        self.triggered: DeviceJob[None] | None = None
        self._jobs = jobs
        self._networks: list[NetworkState] = []
        self._waited_for: list[NetworkState] = []

    def add(self, network: NetworkState) -> None:
        """Put a network behind those that are there."""
        with self.lock:
            if network in self._networks:
                raise Refusal(Status.VIP_ERROR_INVALID_ARGUMENTS, "the network is in the group already")
            if self._networks and network.device is not self._networks[0].device:
                raise Refusal(Status.VIP_ERROR_INVALID_ARGUMENTS, "the networks of a group must be on one device")
            if len(self._networks) >= self.count:
                raise Refusal(
                    Status.VIP_ERROR_OUT_OF_RESOURCE,
                    f"the group has room for {self.count} networks",
                    "give vip_create_group a larger count",
                )
            self._networks.append(network)

    def run(self, number: int) -> None:
        """Execute the first *number* networks."""
        networks, stages = self._stages(number)
        self._jobs.run(
            networks[0].device,
            networks,
            stages,
            core=self.core,
            priority=max(network.priority for network in networks),
            timeout_ms=self.timeout_ms,
        )
        self._note(networks)

    def trigger(self, number: int) -> None:
        """Submit the first *number* networks."""
        with self.lock:
            if self.triggered is not None:
                raise Refusal(Status.VIP_ERROR_FAILURE, "the group is on its way already", "call vip_wait_group before")
            networks, stages = self._stages(number)
            self.triggered = self._jobs.start(
                networks[0].device,
                networks,
                stages,
                core=self.core,
                priority=max(network.priority for network in networks),
                timeout_ms=self.timeout_ms,
            )
            self._waited_for = networks

    def wait(self) -> None:
        """Wait for what :meth:`trigger` submitted."""
        with self.lock:
            job, self.triggered = self.triggered, None
        if job is None:
            raise Refusal(Status.VIP_ERROR_FAILURE, "no job of the group is on its way", "call vip_trigger_group before")
        job.result()
        self._note(self._waited_for)

    def close(self) -> None:
        """Forget the networks; jobs that are in flight go on."""
        with self.lock:
            self._networks = []

    def _stages(self, number: int) -> tuple[list[NetworkState], list[Stage]]:
        with self.lock:
            if not 1 <= number <= len(self._networks):
                raise Refusal(
                    Status.VIP_ERROR_INVALID_ARGUMENTS,
                    f"{number} networks cannot be run, the group has {len(self._networks)}",
                    "call vip_add_network before",
                )
            networks = self._networks[:number]
        return networks, [network.stage() for network in networks]

    def _note(self, networks: list[NetworkState]) -> None:
        self.profile = sum((network.profile for network in networks), RunCost())
