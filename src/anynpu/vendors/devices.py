"""Which device to use: what the caller states, what the environment states, what is there.

===================  ==================================================================================
text                 device
===================  ==================================================================================
``sim``              the software NPU, as the chip that each model was compiled for
``sim:CHIP``         the software NPU, as this chip
``rocket``           the NPU of an RK3588 with a mainline kernel, by its driver and without the vendor's library
``rocket:NODE``      the same, this device node; ``rocket:emulated`` for an emulated one
``VENDOR``           the vendor's own library on a board: the one that its variable names, or searched for
``VENDOR:PATH``      the vendor's own library, this file
===================  ==================================================================================

A vendor is named as its table states (:class:`anynpu.vendors.Vendor`): ``rknn`` for Rockchip, ``vip`` for Allwinner. Without an argument
the variable ``ANYNPU_DEVICE`` decides, then the variables that name a vendor's library (``ANYNPU_RKNN_LIBRARY``, ``ANYNPU_VIP_LIBRARY``),
then what the machine has. A machine with an NPU never falls silently to the software NPU.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..chips import catalog as catalogue
from ..errors import DeviceUnavailable
from . import registry

SOFTWARE = "sim"
"""The kind of device that is the software NPU."""

ROCKET = "rocket"
"""The kind of device that is the kernel's driver: the software NPU, whose convolutions run as command streams."""

_ROCKET_CHIP = "rk3588"

_TREES = ("proc/device-tree/compatible", "sys/firmware/devicetree/base/compatible")


@dataclass(frozen=True)
class DeviceChoice:
    """A device, and why it was chosen.

    :ivar kind: ``sim``, or the name of a vendor
    :ivar detail: a chip for ``sim``, a library for the others; empty where any will do
    :ivar engine: what executes layers on ``sim``; empty for the engine of the environment
    """

    kind: str
    detail: str = ""
    reason: str = ""
    engine: str = ""


def choose_device(
    given: str | None = None, *, environment: Mapping[str, str] | None = None, root: Path = Path("/")
) -> DeviceChoice:
    """The device for *given*, or for the environment and the machine.

    :param root: where the system's files are

    >>> choose_device("sim:rk3566")
    DeviceChoice(kind='sim', detail='rk3566', reason='asked for', engine='')
    """
    environment = os.environ if environment is None else environment
    if given:
        return _parse(given, "asked for", environment)
    if environment.get("ANYNPU_DEVICE"):
        return _parse(environment["ANYNPU_DEVICE"], "ANYNPU_DEVICE", environment)
    for vendor in registry.all_vendors():
        if environment.get(vendor.library_variable):
            return DeviceChoice(vendor.name, environment[vendor.library_variable], vendor.library_variable)
    found = find_npu(root)
    if found is not None:
        return DeviceChoice(found[0], "", found[1])
    chip = environment.get("ANYNPU_CHIP", "")
    return _parse(f"sim:{chip}", "ANYNPU_CHIP", environment) if chip else DeviceChoice("sim", "", "this machine has no NPU")


def find_npu(root: Path = Path("/")) -> tuple[str, str] | None:
    """The vendor of the NPU that this machine has, and the file that shows it."""
    for vendor in registry.all_vendors():
        for mark in vendor.system_marks:
            if (root / mark).exists():
                return vendor.name, f"/{mark} exists"
    chip = board_chip(root)
    return None if chip is None else (catalogue.get(chip).family, f"the device tree names {chip}")


def board_chip(root: Path = Path("/")) -> str | None:
    """The chip of the catalogue that the device tree names."""
    for tree in _TREES:
        try:
            names = (root / tree).read_bytes().split(b"\0")
        except OSError:
            continue
        for name in names:
            prefix, _, chip = name.decode(errors="replace").partition(",")
            entry = catalogue.find(chip)
            if entry is not None and prefix == registry.of_chip(entry).device_tree:
                return entry.name
    return None


def _parse(text: str, reason: str, environment: Mapping[str, str]) -> DeviceChoice:
    kind, _, detail = text.partition(":")
    if kind == SOFTWARE:
        return DeviceChoice(SOFTWARE, catalogue.get(detail).name if detail else "", reason)
    if kind == ROCKET:
        return DeviceChoice(SOFTWARE, _ROCKET_CHIP, reason, text)
    named = registry.find(lambda vendor: vendor.name == kind)
    if named is not None:
        return DeviceChoice(kind, detail or environment.get(named.library_variable, ""), reason)
    vendors = registry.all_vendors()
    known = ", ".join((SOFTWARE, ROCKET, *(vendor.name for vendor in vendors)))
    example = vendors[0]
    library = f"{example.library_folders[0]}/{example.library_names[0]}"
    raise DeviceUnavailable(
        f"there is no device '{text}' ({reason})",
        hint=f"use one of: {known}, {SOFTWARE}:{example.chips[0].name}, {example.name}:{library}",
    )
