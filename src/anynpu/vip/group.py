"""What concerns more than one network, for Python programs: groups, the power of the NPU, and where its messages go.

>>> with Group([detect, classify]) as group:                                    # doctest: +SKIP
...     group.run()
...     print(group.profile)
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from .._util.lifetime import Closeable, at_end
from .._vip import ffi
from ..errors import DeviceClosed, ParameterError
from ..vendors.devices import DeviceChoice
from .constants import vip_group_property_e, vip_power_property_e
from .info import NetworkProfile
from .library import VipLibrary, check, open_library
from .network import Network

__all__ = ["Group", "power", "set_log_path"]

Device = str | DeviceChoice | VipLibrary | None
Action = Literal["off", "on", "stop", "start"]


def _destroy(library: VipLibrary, handle: Any) -> None:
    library.vip_destroy_group(handle)
    library.vip_destroy()


class Group(Closeable):
    """Networks that are submitted together, in order: ``vip_create_group`` and what belongs to it.

    The networks stay the caller's. For one thread at a time.

    :param networks: prepared networks of one library
    :param timeout: seconds for a run of all; None for no limit
    """

    def __init__(self, networks: Sequence[Network], *, timeout: float | None = None) -> None:
        if not networks or any(network.library is not networks[0].library for network in networks):
            raise ParameterError("a group takes networks of one library, at least one", hint="open them on the same device")
        self.library = library = networks[0].library
        self.networks = tuple(networks)
        handle = ffi.new("vip_group *")
        check(library, "vip_init", library.vip_init(0))
        try:
            check(library, "vip_create_group", library.vip_create_group(len(networks), handle))
        except BaseException:
            library.vip_destroy()
            raise
        self._handle = handle[0]
        self._finalizer = at_end(self, _destroy, library, self._handle)
        try:
            for network in networks:
                check(library, "vip_add_network", library.vip_add_network(self._handle, network.handle))
            if timeout is not None:
                value = ffi.new("uint32_t *", max(1, round(timeout * 1000)))
                property = int(vip_group_property_e.VIP_GROUP_PROP_SET_TIME_OUT)
                check(library, "vip_set_group", library.vip_set_group(self._handle, property, value))
        except BaseException:
            self.close()
            raise

    @property
    def handle(self) -> Any:
        """The ``vip_group``."""
        if not self._finalizer.alive:
            raise DeviceClosed("the group was closed", hint="make it again")
        return self._handle

    def run(self, count: int | None = None) -> None:
        """Execute the first *count* networks, all by default, and return when they are done."""
        check(self.library, "vip_run_group", self.library.vip_run_group(self.handle, self._count(count)))

    def trigger(self, count: int | None = None) -> None:
        """Submit them and return at once; :meth:`wait` waits."""
        check(self.library, "vip_trigger_group", self.library.vip_trigger_group(self.handle, self._count(count)))

    def wait(self) -> None:
        """Wait for what was triggered."""
        check(self.library, "vip_wait_group", self.library.vip_wait_group(self.handle))

    @property
    def profile(self) -> NetworkProfile:
        """The last run of the group."""
        value = ffi.new("vip_inference_profile_t *")
        property = int(vip_group_property_e.VIP_GROUP_PROP_PROFILING)
        check(self.library, "vip_query_group", self.library.vip_query_group(self.handle, property, value))
        return NetworkProfile(value.inference_time, value.total_cycle)

    def close(self) -> None:
        """Give the group back; its networks stay, and again is harmless."""
        self._finalizer()

    def _count(self, count: int | None) -> int:
        return len(self.networks) if count is None else count

    def __repr__(self) -> str:
        return f"<vip.Group of {len(self.networks)} networks>" if self._finalizer.alive else "<vip.Group, closed>"


def power(action: Action | None = None, *, percent: int | None = None, device: Device = None) -> None:
    """``vip_power_management``: switch the NPU off or on, stop or start it, or set its clock to *percent* of the highest.

    It holds as long as a network of that device is open. Not for V85x, whose call wants a network.
    """
    properties = {name: vip_power_property_e[f"VIP_POWER_PROPERTY_{name.upper()}"] for name in ("off", "on", "stop", "start")}
    if (action is None) == (percent is None) or (action is not None and action not in properties):
        raise ParameterError("give an action or a percentage", hint=f"actions are {', '.join(properties)}; percent is 1 to 100")
    if percent is not None and not 1 <= percent <= 100:
        raise ParameterError(f"{percent} % of the clock is not possible", hint="use 1 to 100")
    with _driver(device) as library:
        value, property = ffi.NULL, vip_power_property_e.VIP_POWER_PROPERTY_SET_FREQUENCY
        if action is not None:
            property = properties[action]
        else:
            value = ffi.new("vip_power_frequency_t *", {"fscale_percent": percent})
        check(library, "vip_power_management", library.vip_power_management(ffi.NULL, int(property), value))


def set_log_path(folder: str | os.PathLike[str], *, device: Device = None) -> None:
    """``vip_set_log_path``: write what goes wrong into a file in *folder*, as long as a network of that device is open."""
    with _driver(device) as library:
        path = ffi.new("char[]", os.fsencode(folder))
        check(library, "vip_set_log_path", library.vip_set_log_path(path))


@contextmanager
def _driver(device: Device) -> Iterator[VipLibrary]:
    """A library between ``vip_init`` and ``vip_destroy``; those calls are counted."""
    library = open_library(device)
    check(library, "vip_init", library.vip_init(0))
    try:
        yield library
    finally:
        library.vip_destroy()
