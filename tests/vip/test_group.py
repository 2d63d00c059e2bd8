"""What concerns more than one network, from Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anynpu.errors import AnynpuError, DeviceClosed, ParameterError
from anynpu.vip import Group, Network, SoftwareLibrary, power, query_hardware, set_log_path
from anynpu.vip.buffer import Buffer

from .support import picture, small_model


def filled(library: SoftwareLibrary, seed: int) -> Network:
    network = Network(small_model(), device=library)
    buffer = network.bind_input(0)
    buffer.bytes()[:] = np.random.default_rng(seed).integers(0, 256, buffer.size)
    return network


def test_a_group_gives_what_its_networks_give() -> None:
    library = SoftwareLibrary("t527")
    first, second = filled(library, 1), filled(library, 2)
    expected = []
    for network in (first, second):
        network.execute()
        expected.append([codes.copy() for codes in network.get_outputs(decode=False)])
    with Group([first, second], timeout=300) as group:
        for submit in (group.run, lambda: (group.trigger(), group.wait())):
            submit()
            for network, codes in zip((first, second), expected, strict=True):
                for one, other in zip(network.get_outputs(decode=False), codes, strict=True):
                    np.testing.assert_array_equal(one, other)
        assert group.profile.microseconds >= first.profile.microseconds
        group.run(1)
    with pytest.raises(DeviceClosed):
        group.run()
    first.close()
    second.close()


def test_groups_of_nothing_or_of_two_devices_are_refused() -> None:
    first, second = filled(SoftwareLibrary("t527"), 1), filled(SoftwareLibrary("t527"), 1)
    for networks in ([], [first, second]):
        with pytest.raises(ParameterError):
            Group(networks)
    first.close()
    second.close()


def test_power_holds_while_a_network_is_open() -> None:
    library = SoftwareLibrary("t527")
    with Network(small_model(), device=library) as network:
        network.run([picture()])
        full = network.profile.microseconds
        power(percent=50, device=library)
        network.run([picture()])
        assert network.profile.microseconds > full
        power("off", device=library)
        with pytest.raises(AnynpuError, match="POWER"):
            network.run([picture()])
        power("on", device=library)
        network.run([picture()])
    for wrong in ({}, {"action": "on", "percent": 5}, {"percent": 0}):
        with pytest.raises(ParameterError):
            power(**wrong, device=library)  # type: ignore[arg-type]


def test_a_folder_for_messages_that_is_not_there_is_refused(tmp_path: Path) -> None:
    library = SoftwareLibrary("t527")
    with Network(small_model(), device=library):
        set_log_path(tmp_path, device=library)
        with pytest.raises(AnynpuError):
            set_log_path(tmp_path / "missing" / "folder", device=library)


def test_what_the_npu_is_by_device() -> None:
    assert query_hardware("sim:a733").customer_id == 0x1000003B
    assert query_hardware("sim:t527").cores == (1,)


def test_memory_by_the_address_that_a_program_can_know() -> None:
    library = SoftwareLibrary("t527")
    with Network(small_model(), device=library) as network:
        info = network.inputs[0]
        first = Buffer.allocate(library, info)
        second = Buffer.from_physical(library, info, [(first.address, first.size)])
        first.bytes()[:] = 7
        assert np.all(second.bytes()[: info.nbytes] == 7)
        second.close()
        first.close()
