"""What ``anynpu doctor`` finds out about Rockchip's library and driver."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..modelfile.vendorfile import VendorModelInfo
from ..vendors import Finding
from ..vendors.devices import board_chip, find_npu
from .library import OLDEST, read_version
from .table import VENDOR

_DRIVER_FILES = ("sys/kernel/debug/rknpu/version", "proc/debug/rknpu/version", "sys/module/rknpu/version")
_MAINLINE = "sys/module/rocket"
_CORE_0_ONLY = ((0, 9, 2),)
"""Drivers that hang when another core than the first is used."""


def diagnose(root: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Look at the driver of the mainline kernel, at the libraries and at the vendor's driver."""
    if (root / _MAINLINE).exists():
        yield _mainline(root)
    yield from _library(root, environment)
    yield from _driver(root)


def _mainline(root: Path) -> Finding:
    """The driver of a mainline kernel, which the vendor's library does not know."""
    chip = board_chip(root)
    text = f"the mainline driver 'rocket' drives the NPU{f', {chip}' if chip else ''}; the vendor's library does not work with it"
    nodes = sorted((root / "dev/accel").glob("accel*"))
    if not nodes:
        return Finding(
            "device", "problem", f"{text}, and there is no /dev/accel/accelN", "load the module: modprobe rocket; see dmesg"
        )
    if not os.access(nodes[0], os.R_OK | os.W_OK):
        return Finding(
            "device", "problem", f"{text}; /dev/accel/{nodes[0].name} may not be opened", "add yourself to the group render"
        )
    return Finding(
        "device",
        "note",
        f"{text}; mainline kernels run the NPU at 200 MHz",
        "ANYNPU_DEVICE=rocket runs convolutions of int8 models on it (experimental); ANYNPU_DEVICE=sim is the software NPU",
    )


def _library(root: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    named = VENDOR.named_library(environment)
    libraries = [Path(named)] if named else VENDOR.installed_libraries(root)
    if not libraries:
        needed = (find_npu(root) or ("",))[0] == VENDOR.name
        yield Finding(
            "vendor",
            "problem" if needed else "ok",
            f"{' and '.join(VENDOR.library_names)} not found ({VENDOR.library_variable}, ld path, {VENDOR.library_folders[0]})",
            f"install the runtime of the board's SDK, or name it with {VENDOR.library_variable}" if needed else "",
        )
    for library in libraries:
        yield _one_library(library)


def _one_library(library: Path) -> Finding:
    if not library.is_file():
        return Finding("vendor", "problem", f"{library} does not exist", "correct ANYNPU_RKNN_LIBRARY or ANYNPU_DEVICE")
    version = read_version(str(library))
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        return Finding(
            "vendor",
            "problem",
            f"{library} cannot be loaded: {error}",
            f"it must be for {platform.machine()}; take the one of the SDK that fits, and install what it needs",
        )
    if version is None:
        return Finding("vendor", "note", f"{library}, of a version that it does not state")
    dotted = ".".join(map(str, version))
    if version < OLDEST:
        return Finding(
            "vendor", "problem", f"{library} is version {dotted}", f"update it to {'.'.join(map(str, OLDEST))} or later"
        )
    return Finding("vendor", "ok", f"{library}, version {dotted}")


def _driver(root: Path) -> Iterator[Finding]:
    for file in _DRIVER_FILES:
        try:
            text = (root / file).read_text(errors="replace").strip()
        except PermissionError:
            yield Finding("driver", "note", f"/{file} may not be read", "run as root to see the driver's version")
            return
        except OSError:
            continue
        match = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
        if match is None:
            yield Finding("driver", "note", f"/{file} contains '{text}'")
        elif tuple(map(int, match.groups())) in _CORE_0_ONLY:
            yield Finding(
                "driver",
                "problem",
                f"rknpu {match[0]} hangs on other cores than the first",
                "update the kernel, or use core 0 only",
            )
        else:
            yield Finding("driver", "ok", f"rknpu {match[0]}")
        return


def diagnose_file(info: VendorModelInfo, root: Path) -> Iterator[Finding]:
    """Whether the runtime is as new as the toolkit of a file."""
    wanted = re.search(r"(\d+)\.(\d+)\.(\d+)", info.toolkit)
    for library in VENDOR.installed_libraries(root):
        version = read_version(str(library))
        if wanted is not None and version is not None and version < tuple(map(int, wanted.groups())):
            yield Finding(
                "model",
                "problem",
                f"the model is of toolkit {wanted[0]}, {library.name} is {'.'.join(map(str, version))}",
                f"update the runtime to {wanted[0]}, or convert the model with the older toolkit",
            )
