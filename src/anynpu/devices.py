"""Which device to use: what the caller says, what the environment says, what is there.

===================  ==========================================================================
text                 device
===================  ==========================================================================
``sim``              the software NPU, as the chip that each model was compiled for
``sim:rk3588``       the software NPU, as this chip
``rknn``             Rockchip's own library on a board, searched for
``rknn:PATH``        Rockchip's own library, this file
``vip``              Allwinner's own library on a board, searched for
``vip:PATH``         Allwinner's own library, this file
===================  ==========================================================================

Without an argument the variable ``ANYNPU_DEVICE`` decides, then ``ANYNPU_RKNN_LIBRARY`` or ``ANYNPU_VIP_LIBRARY``, then what the machine
has. A machine with an NPU never falls silently to the software NPU.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from . import chips
from .errors import DeviceUnavailable

__all__ = ["DeviceChoice", "choose_device", "find_npu"]

_KINDS = ("sim", "rknn", "vip")
_RKNN_MARKS = ("sys/kernel/debug/rknpu", "sys/class/devfreq/fdab0000.npu", "sys/module/rknpu", "dev/rknpu")
_VIP_MARKS = ("dev/vipcore", "dev/galcore")
_TREES = ("proc/device-tree/compatible", "sys/firmware/devicetree/base/compatible")


@dataclass(frozen=True)
class DeviceChoice:
    """A device, and why it was chosen.

    :ivar detail: a chip for ``sim``, a library for the others; empty where any will do
    """

    kind: Literal["sim", "rknn", "vip"]
    detail: str = ""
    reason: str = ""


def choose_device(
    given: str | None = None, *, environment: Mapping[str, str] | None = None, root: Path = Path("/")
) -> DeviceChoice:
    """The device for *given*, or for the environment and the machine.

    :param root: where the system's files are

    >>> choose_device("sim:rk3566")
    DeviceChoice(kind='sim', detail='rk3566', reason='asked for')
    """
    environment = os.environ if environment is None else environment
    if given:
        return _parse(given, "asked for")
    if environment.get("ANYNPU_DEVICE"):
        return _parse(environment["ANYNPU_DEVICE"], "ANYNPU_DEVICE")
    for variable, kind in (("ANYNPU_RKNN_LIBRARY", "rknn"), ("ANYNPU_VIP_LIBRARY", "vip")):
        if environment.get(variable):
            return _parse(f"{kind}:{environment[variable]}", variable)
    found = find_npu(root)
    if found is not None:
        return DeviceChoice(found[0], "", found[1])
    chip = environment.get("ANYNPU_CHIP", "")
    return _parse(f"sim:{chip}", "ANYNPU_CHIP") if chip else DeviceChoice("sim", "", "this machine has no NPU")


def find_npu(root: Path = Path("/")) -> tuple[Literal["rknn", "vip"], str] | None:
    """The kind of NPU that this machine has, and the file that shows it."""
    for mark in _VIP_MARKS:
        if (root / mark).exists():
            return "vip", f"/{mark} exists"
    for mark in _RKNN_MARKS:
        if (root / mark).exists():
            return "rknn", f"/{mark} exists"
    chip = board_chip(root)
    if chip is not None:
        return ("rknn" if chips.get(chip).family == "rknn" else "vip"), f"the device tree names {chip}"
    return None


def board_chip(root: Path = Path("/")) -> str | None:
    """The chip of the catalogue that the device tree names."""
    for tree in _TREES:
        try:
            names = (root / tree).read_bytes().split(b"\0")
        except OSError:
            continue
        for name in names:
            vendor, _, chip = name.decode(errors="replace").partition(",")
            if vendor in ("rockchip", "allwinner") and chip in _known_names():
                return chips.get(chip).name
    return None


def _known_names() -> frozenset[str]:
    return frozenset(name for chip in map(chips.get, chips.names()) for name in (chip.name, *chip.aliases))


def _parse(text: str, reason: str) -> DeviceChoice:
    kind, _, detail = text.partition(":")
    if kind == "sim":
        return DeviceChoice("sim", chips.get(detail).name if detail else "", reason)
    if kind == "rknn":
        return DeviceChoice("rknn", detail, reason)
    if kind == "vip":
        return DeviceChoice("vip", detail, reason)
    raise DeviceUnavailable(
        f"there is no device '{text}' ({reason})", hint=f"use one of: {', '.join(_KINDS)}, sim:rk3588, rknn:/usr/lib/librknnrt.so"
    )
