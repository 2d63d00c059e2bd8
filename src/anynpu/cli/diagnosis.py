"""What ``anynpu doctor`` looks at: each look gives findings, and each finding says what to do."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from .. import chips
from ..devices import DeviceChoice, board_chip, choose_device, find_npu
from ..errors import AnynpuError
from ..modelfile import FileKind, identify, read, vendorfile
from ..rknn.vendor import FOLDERS, NAMES, OLDEST, read_version
from ..vip.preflight import target_words
from ..vip.vendor import FOLDERS as VIP_FOLDERS
from ..vip.vendor import HELPERS as VIP_HELPERS
from ..vip.vendor import NAMES as VIP_NAMES
from ..vip.vendor import VendorLibrary as VipLibrary

__all__ = ["Finding", "diagnose", "docker_flags"]

State = Literal["ok", "note", "problem"]

_RENDER_NODES = ("dev/dri/renderD129", "dev/dri/renderD128")
_DRIVER_FILES = ("sys/kernel/debug/rknpu/version", "proc/debug/rknpu/version", "sys/module/rknpu/version")
_TREE = "sys/firmware/devicetree/base/compatible"
_MAINLINE = "sys/module/rocket"
_CORE_0_ONLY = ((0, 9, 2),)
"""Drivers that hang when another core than the first is used."""

_PACKAGES = (
    ("numpy", ""),
    ("cffi", ""),
    ("onnx", "sim"),
    ("onnxruntime", "sim"),
    ("opencv-python-headless", "vision"),
)
_VARIABLES = (
    "ANYNPU_DEVICE",
    "ANYNPU_CHIP",
    "ANYNPU_RKNN_LIBRARY",
    "ANYNPU_VIP_LIBRARY",
    "ANYNPU_ENGINE",
    "ANYNPU_ISA",
    "ANYNPU_REALTIME",
)


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    :ivar advice: what to do; empty where there is nothing to do
    """

    topic: str
    state: State
    text: str
    advice: str = ""


def diagnose(*, root: Path = Path("/"), environment: Mapping[str, str] | None = None, model: Path | None = None) -> list[Finding]:
    """Look at the machine, and at *model* if one is given.

    :param root: where the system's files are
    """
    environment = os.environ if environment is None else environment
    findings = [*_npu(root), *_vendor_library(root, environment), *_vip_library(root, environment), *_driver(root)]
    findings += [*_permissions(root), *_python(), *_engine()]
    findings += _environment(environment)
    if model is not None:
        findings += _model(model, root, environment)
    findings.append(_choice(root, environment))
    return findings


def docker_flags(root: Path = Path("/")) -> list[str]:
    """What a container needs to reach the NPU of this machine."""
    flags = []
    for node in (*_RENDER_NODES, "dev/vipcore", "dev/galcore", "dev/mpp_service", "dev/rga"):
        if (root / node).exists():
            flags.append(f"--device /{node}")
    if (root / "dev/dma_heap").is_dir():
        flags.append("--device /dev/dma_heap")
    if (root / _TREE).exists():
        flags += [
            "-v /sys/firmware/devicetree/base/compatible:/sys/firmware/devicetree/base/compatible:ro",
            "--security-opt systempaths=unconfined",
        ]
    for library in (*_libraries(root), *_vip_libraries(root, (*VIP_NAMES, *VIP_HELPERS))):
        flags.append(f"-v {library}:{library}:ro")
    return flags


def _npu(root: Path) -> Iterator[Finding]:
    found = find_npu(root)
    chip = board_chip(root)
    name = f", {chip}" if chip else ""
    if (root / _MAINLINE).exists():
        yield Finding(
            "device",
            "problem",
            f"the mainline driver 'rocket' drives the NPU{name}; the vendor's library does not work with it",
            "boot the vendor's kernel with the rknpu driver, or use the software NPU with ANYNPU_DEVICE=sim",
        )
    elif found is None:
        yield Finding("device", "ok", "no NPU found: neither an rknpu driver nor /dev/vipcore", "the software NPU will be used")
    else:
        kind = "Rockchip" if found[0] == "rknn" else "Allwinner"
        yield Finding("device", "ok", f"{kind} NPU{name}: {found[1]}")


def _vendor_library(root: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    named = environment.get("ANYNPU_RKNN_LIBRARY", "")
    device = environment.get("ANYNPU_DEVICE", "")
    if device.startswith("rknn:"):
        named = device.partition(":")[2]
    has_npu = find_npu(root)
    libraries = [Path(named)] if named else _libraries(root)
    if not libraries:
        needed = has_npu is not None and has_npu[0] == "rknn"
        yield Finding(
            "vendor",
            "problem" if needed else "ok",
            f"{' and '.join(NAMES)} not found (ANYNPU_RKNN_LIBRARY, ld path, {FOLDERS[0]})",
            "install the runtime of the board's SDK, or name it with ANYNPU_RKNN_LIBRARY" if needed else "",
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


def _libraries(root: Path) -> list[Path]:
    return [
        root / folder.lstrip("/") / name for folder in FOLDERS for name in NAMES if (root / folder.lstrip("/") / name).is_file()
    ]


def _vip_library(root: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Allwinner's library: only where there is something to say about it."""
    named = environment.get("ANYNPU_VIP_LIBRARY", "")
    device = environment.get("ANYNPU_DEVICE", "")
    if device.startswith("vip:"):
        named = device.partition(":")[2]
    found = find_npu(root)
    libraries = [Path(named)] if named else _vip_libraries(root, VIP_NAMES)
    if not libraries and found is not None and found[0] == "vip":
        yield Finding(
            "vendor",
            "problem",
            f"{' and '.join(VIP_NAMES)} not found (ANYNPU_VIP_LIBRARY, ld path, {VIP_FOLDERS[0]})",
            "install the libraries of the board's SDK, or name one with ANYNPU_VIP_LIBRARY",
        )
    for path in libraries:
        try:
            library = VipLibrary(path)
        except AnynpuError as error:
            yield Finding("vendor", "problem", error.message, error.hint)
        else:
            yield Finding("vendor", "ok", f"{path}, VIPLite {library.description.split()[-1]}")


def _vip_libraries(root: Path, names: tuple[str, ...]) -> list[Path]:
    paths = [root / folder.lstrip("/") / name for folder in VIP_FOLDERS for name in names]
    return [path for path in paths if path.is_file()]


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
            yield Finding("driver", "note", f"/{file} says '{text}'")
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


def _permissions(root: Path) -> Iterator[Finding]:
    for node in (*_RENDER_NODES, "dev/vipcore", "dev/dma_heap/system"):
        path = root / node
        if path.exists() and not os.access(path, os.R_OK | os.W_OK):
            group = f"; it belongs to group {path.stat().st_gid}"
            yield Finding(
                "access",
                "problem",
                f"/{node} may not be opened{group}",
                "add yourself to the group render (or video), or use sudo",
            )


def _python() -> Iterator[Finding]:
    parts, missing = [], []
    for package, extra in _PACKAGES:
        try:
            parts.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            missing.append((package, extra))
    yield Finding("python", "ok", ", ".join([f"{sys.version_info[0]}.{sys.version_info[1]}", *parts]))
    for package, extra in missing:
        name = f"anynpu[{extra}]" if extra else package
        yield Finding("python", "note", f"{package} is not installed", f"pip install '{name}', where you compile models")


def _engine() -> Iterator[Finding]:
    try:
        from ..npu.engines.native_levels import choose_level

        yield Finding("engine", "ok", f"native kernels: {choose_level(None)}, {os.cpu_count()} host processors")
    except (ImportError, AnynpuError) as error:
        yield Finding(
            "engine",
            "problem",
            f"the compiled engine does not work: {error}",
            "install anynpu again: pip install --force-reinstall anynpu",
        )


def _environment(environment: Mapping[str, str]) -> Iterator[Finding]:
    given = [f"{name}={environment[name]}" for name in _VARIABLES if environment.get(name)]
    if given:
        yield Finding("environment", "note", ", ".join(given))


def _model(model: Path, root: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    try:
        kind = identify(model)
        if kind is FileKind.ANYNPU:
            compiled = read(model, verify=False)
            yield Finding("model", "ok", f"{model.name}: compiled by anynpu for {compiled.chip}")
            yield from _fits(model, compiled.chip, root, environment)
            return
        if kind not in (FileKind.RKNN, FileKind.NB):
            yield Finding(
                "model", "problem", f"{model.name} is not a compiled model", f"anynpu compile {model.name} --target rk3588"
            )
            return
        info = vendorfile.read_rknn(model) if kind is FileKind.RKNN else vendorfile.read_nb(model)
    except AnynpuError as error:
        yield Finding("model", "problem", f"{model.name}: {error.message}", error.hint)
        return
    yield Finding(
        "model", "ok", f"{model.name}: compiled by {info.toolkit or 'the vendor'} for {info.chip or 'a chip that is not known'}"
    )
    yield from _toolkit_fits(info.toolkit, root)
    if info.chip:
        yield from _fits(model, info.chip, root, environment)


def _toolkit_fits(toolkit: str, root: Path) -> Iterator[Finding]:
    wanted = re.search(r"(\d+)\.(\d+)\.(\d+)", toolkit)
    for library in _libraries(root):
        version = read_version(str(library))
        if wanted is not None and version is not None and version < tuple(map(int, wanted.groups())):
            yield Finding(
                "model",
                "problem",
                f"the model is of toolkit {wanted[0]}, {library.name} is {'.'.join(map(str, version))}",
                f"update the runtime to {wanted[0]}, or convert the model with the older toolkit",
            )


def _fits(model: Path, chip: str, root: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    board = board_chip(root) or environment.get("ANYNPU_CHIP")
    if not board:
        return
    here, there = chips.get(board).vip, chips.get(chip).vip
    if here is not None and there is not None:
        if here.customer_id != there.customer_id:
            text = f"{model.name} is for {target_words(there.customer_id)}, this board has {target_words(here.customer_id)}"
            yield Finding("model", "problem", text, f"compile it again with --target {board}")
    elif chips.get(board).name != chips.get(chip).name:
        yield Finding(
            "model", "problem", f"{model.name} is for {chip}, this board is {board}", f"compile it again with --target {board}"
        )


def _choice(root: Path, environment: Mapping[str, str]) -> Finding:
    try:
        choice = choose_device(environment=environment, root=root)
    except AnynpuError as error:
        return Finding("choice", "problem", error.message, error.hint)
    return Finding("choice", "ok", f"{_device_name(choice)} will be used: {choice.reason}")


def _device_name(choice: DeviceChoice) -> str:
    if choice.kind == "sim":
        return f"the software NPU{f' as {choice.detail}' if choice.detail else ''}"
    vendor = "Rockchip" if choice.kind == "rknn" else "Allwinner"
    return f"{vendor}'s library{f' {choice.detail}' if choice.detail else ''}"
