"""The generations of the VIPLite software: what each of them has and states.

Three of them share one binary interface and are distinguished by the version that the library states. A fourth one has other structs
under the same names, and is rejected before any of them is used.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .. import chips, modelfile
from ..chips import Chip
from ..errors import DeviceUnavailable, ModelError
from ..modelfile import vendorfile
from ..modelfile.recognize import FileKind, identify
from .constants import vip_status_e


@dataclass(frozen=True)
class Generation:
    """One generation.

    :ivar version: what ``vip_get_version`` returns: major, minor and patch in a byte each
    :ivar driver: what ``vip_init`` prints as the driver's version
    :ivar wrong_target: the status for a model that was compiled for another NPU
    :ivar missing: calls that its libraries do not have
    :ivar network_properties: those it knows, by number
    :ivar power_by_network: ``vip_power_management`` is given a network, not the number of a device
    """

    name: str
    version: int
    driver: str
    wrong_target: vip_status_e
    missing: frozenset[str]
    network_properties: frozenset[int]
    power_by_network: bool = False
    init_takes_size: bool = False

    @property
    def dotted(self) -> str:
        """The version as text.

        >>> B.dotted
        '1.13.0'
        """
        return f"{self.version >> 16}.{self.version >> 8 & 255}.{self.version & 255}"


_QUERIES_OF_ALL = {0, 1, 2, 3, 6, 7}
_SETTINGS_OF_ALL = {64, 65, 66, 67, 69}

A = Generation(
    "V85x",
    0x00010800,
    "1.8.0",
    vip_status_e.VIP_ERROR_INVALID_NETWORK,
    frozenset(
        {
            "vip_dup_network",
            "vip_weak_dup_network",
            "vip_cancel_network",
            "vip_create_buffer_cache",
            "vip_set_group",
            "vip_query_group",
            "vip_trigger_group",
            "vip_wait_group",
            "vip_set_log_path",
        }
    ),
    frozenset(_QUERIES_OF_ALL | _SETTINGS_OF_ALL),
    power_by_network=True,
    init_takes_size=True,
)
B = Generation(
    "1.13",
    0x00010D00,
    "1.13.0.0-AW-2023-10-19",
    vip_status_e.VIP_ERROR_NETWORK_INCOMPATIBLE,
    frozenset(),
    frozenset(_QUERIES_OF_ALL | {8} | _SETTINGS_OF_ALL | {68}),
)
C = Generation(
    "2.0",
    0x00020003,
    "2.0.3.2-AW-2024-08-30",
    vip_status_e.VIP_ERROR_NOT_SUPPORTED,
    frozenset(),
    frozenset(_QUERIES_OF_ALL | {8} | _SETTINGS_OF_ALL | {68, 70, 71, 72}),
)


def generation_of_chip(chip: Chip) -> Generation:
    """The generation of a chip's software."""
    if chip.vip is None:
        raise DeviceUnavailable(
            f"{chip.name} has no VIPLite NPU", hint="use the RKNN calls for Rockchip's chips, or a chip such as t527"
        )
    return {"1.x (V85x)": A, "1.13": B, "2.0": C}[chip.vip.software]


def generation_of_version(version: int, library: str) -> Generation:
    """The generation of a library that states *version*.

    >>> generation_of_version(0x00020003, "libNBGlinker.so").name
    '2.0'
    """
    if version >= 0x00020200:
        raise DeviceUnavailable(
            f"{library} is VIPLite {version >> 16}.{version >> 8 & 255}, whose structs differ from those of 2.0 under the same names",
            hint="use the library of the board's SDK, of a version from 1.x to 2.1",
        )
    return C if version >= 0x00020000 else B if version >= 0x00010D00 else A


# Whether a model file is for an NPU, before it is handed to it: a driver answers with a number, this names both sides.


def model_target(source: str | os.PathLike[str] | bytes) -> int | None:
    """The number of the NPU that a file is for; None where it does not state, or is no file for a VIP."""
    kind = identify(source)
    if kind is FileKind.NB:
        return vendorfile.read_nb(source).target_id
    if kind is FileKind.ANYNPU:
        identity = chips.get(modelfile.read(source, verify=False).chip).vip
        return None if identity is None else identity.customer_id
    return None


def target_words(customer_id: int) -> str:
    """An NPU by its number, its name and its chips.

    >>> target_words(0x10000016)
    '0x10000016 (VIP9000NANOSI_PLUS_PID0X10000016: t527, mr527, ai985)'
    >>> target_words(0x15)
    '0x15 (not an NPU of the catalogue)'
    """
    known = [chip for chip in chips.all_chips() if chip.vip is not None and chip.vip.customer_id == customer_id]
    if not known or known[0].vip is None:
        return f"{customer_id:#x} (not an NPU of the catalogue)"
    return f"{customer_id:#x} ({known[0].vip.target}: {', '.join(chip.name for chip in known)})"


def check_target(source: str | os.PathLike[str] | bytes, customer_id: int, *, genuine: bool = False) -> None:
    """Raise if *source* cannot run on the NPU of that number.

    :param genuine: the NPU is a real one, which cannot execute what anynpu compiles
    """
    name = "the model in memory" if isinstance(source, bytes) else Path(source).name
    if genuine and identify(source) is FileKind.ANYNPU:
        raise ModelError(
            f"{name} was compiled by anynpu, for the software NPU; the board's library cannot execute it",
            hint="compile the same ONNX with the vendor's ACUITY, or pass device='sim'",
        )
    target = model_target(source)
    if target is not None and target != customer_id:
        raise ModelError(
            f"binary target={target_words(target)}, actual target={target_words(customer_id)}: {name} is for another NPU",
            hint="compile the model for this chip",
        )


def chip_words(chip: Chip) -> str:
    """The NPU of a chip by its number, its name and its chips."""
    return chip.name if chip.vip is None else target_words(chip.vip.customer_id)


def check_chip(source: Path, chip: Chip) -> bool:
    """Raise if *source* cannot run on *chip*; False if the file does not state for which NPU it is."""
    if chip.vip is None or model_target(source) is None:
        return False
    check_target(source, chip.vip.customer_id)
    return True
