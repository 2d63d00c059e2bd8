"""``anynpu doctor``: what this machine has, what would be used, and what to do."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from ... import chips
from ...errors import AnynpuError
from ...modelfile import FileKind, read, vendorfile
from ...modelfile.recognize import kind_of, name_content, open_source, vendor_of
from ...vendors import Finding, registry
from ...vendors.devices import SOFTWARE, DeviceChoice, board_chip, choose_device, find_npu
from ..helpers.console import print_json, results
from ..helpers.options import JsonOption

# What ``anynpu doctor`` looks at: each look gives findings, and each finding states what to do.


_TREE = "sys/firmware/devicetree/base/compatible"

_PACKAGES = (
    ("numpy", ""),
    ("cffi", ""),
    ("onnx", "sim"),
    ("onnxruntime", "sim"),
    ("opencv-python-headless", "vision"),
)
_VARIABLES = ("ANYNPU_DEVICE", "ANYNPU_CHIP", "ANYNPU_ENGINE", "ANYNPU_ISA", "ANYNPU_REALTIME", "ANYNPU_TIMING")


def diagnose(*, root: Path = Path("/"), environment: Mapping[str, str] | None = None, model: Path | None = None) -> list[Finding]:
    """Look at the machine, and at *model* if one is given.

    :param root: where the system's files are
    """
    environment = os.environ if environment is None else environment
    found = [finding for vendor in registry.all_vendors() for finding in vendor.diagnose(root, environment)]
    about_devices = [finding for finding in found if finding.topic == "device"]
    findings = about_devices or [_npu(root)]
    findings += [finding for finding in found if finding.topic != "device"]
    findings += [*_permissions(root), *_python(), *_engine()]
    findings += _environment(environment)
    if model is not None:
        findings += _model(model, root, environment)
    findings.append(_choice(root, environment))
    return findings


def docker_flags(root: Path = Path("/")) -> list[str]:
    """What a container needs to reach the NPU of this machine."""
    vendors = registry.all_vendors()
    nodes = dict.fromkeys(node for vendor in vendors for node in (*vendor.device_nodes, *vendor.container_nodes))
    flags = [f"--device /{node}" for node in nodes if not node.startswith("dev/dma_heap") and (root / node).exists()]
    if (root / "dev/dma_heap").is_dir():
        flags.append("--device /dev/dma_heap")
    if (root / _TREE).exists():
        flags += [f"-v /{_TREE}:/{_TREE}:ro", "--security-opt systempaths=unconfined"]
    libraries = [library for vendor in vendors for library in vendor.installed_libraries(root, helpers=True)]
    return flags + [f"-v {library}:{library}:ro" for library in libraries]


def _npu(root: Path) -> Finding:
    found = find_npu(root)
    if found is None:
        words = " nor ".join(vendor.system_words for vendor in registry.all_vendors() if vendor.system_words)
        return Finding("device", "ok", f"no NPU found: neither {words}", "the software NPU will be used")
    chip = board_chip(root)
    return Finding("device", "ok", f"{registry.get(found[0]).title} NPU{f', {chip}' if chip else ''}: {found[1]}")


def _permissions(root: Path) -> Iterator[Finding]:
    for node in dict.fromkeys(node for vendor in registry.all_vendors() for node in vendor.device_nodes):
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
        from ...npu.engines.native_levels import choose_level

        yield Finding("engine", "ok", f"native kernels: {choose_level(None)}, {os.cpu_count()} host processors")
    except (ImportError, AnynpuError) as error:
        yield Finding(
            "engine",
            "problem",
            f"the compiled engine does not work: {error}",
            "install anynpu again: pip install --force-reinstall anynpu",
        )


def _environment(environment: Mapping[str, str]) -> Iterator[Finding]:
    libraries = (vendor.library_variable for vendor in registry.all_vendors())
    given = [f"{name}={environment[name]}" for name in (*_VARIABLES, *libraries) if environment.get(name)]
    if given:
        yield Finding("environment", "note", ", ".join(given))


def _model(model: Path, root: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    try:
        data = open_source(model).data
        if kind_of(data) is FileKind.ANYNPU:
            compiled = read(model, verify=False)
            yield Finding("model", "ok", f"{model.name}: compiled by anynpu for {compiled.chip}")
            yield from _fits(model, compiled.chip, root, environment)
            return
        vendor, form = vendor_of(data) or (None, None)
        if vendor is None or form is None:
            other = name_content(data)
            if other is not None:
                yield Finding("model", "problem", f"{model.name} is {other[0]}, not a model", other[1])
            else:
                advice = f"anynpu compile {model.name} --target rk3588"
                yield Finding("model", "problem", f"{model.name} is not a compiled model", advice)
            return
        info = vendorfile.read(model)
    except AnynpuError as error:
        yield Finding("model", "problem", f"{model.name}: {error.message}", error.hint)
        return
    yield Finding(
        "model", "ok", f"{model.name}: compiled by {info.toolkit or 'the vendor'} for {info.chip or 'a chip that is not known'}"
    )
    yield from vendor.diagnose_file(info, root)
    if info.chip:
        yield from _fits(model, info.chip, root, environment)


def _fits(model: Path, name: str, root: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    board = board_chip(root) or environment.get("ANYNPU_CHIP")
    if not board:
        return
    here, there = (registry.of_chip(chip).target_words(chip) for chip in (chips.get(board), chips.get(name)))
    if here != there:
        text = f"{model.name} is for {there}, this board is {here}"
        yield Finding("model", "problem", text, f"compile it again with --target {board}")


def _choice(root: Path, environment: Mapping[str, str]) -> Finding:
    try:
        choice = choose_device(environment=environment, root=root)
    except AnynpuError as error:
        return Finding("choice", "problem", error.message, error.hint)
    return Finding("choice", "ok", f"{_device_name(choice)} will be used: {choice.reason}")


def _device_name(choice: DeviceChoice) -> str:
    if choice.kind == SOFTWARE:
        return f"the software NPU{f' as {choice.detail}' if choice.detail else ''}"
    return f"{registry.get(choice.kind).title}'s library{f' {choice.detail}' if choice.detail else ''}"


_STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}


def command(
    model: Annotated[
        Path | None,
        typer.Argument(metavar="[MODEL]", help="A model to check on this machine.", exists=True, dir_okay=False, readable=True),
    ] = None,
    docker: Annotated[bool, typer.Option("--docker", help="Print the flags that give a container the NPU.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Look at device, driver, library, Python and environment, and state what to do.

    Ends with 1 if something has to be done before a model runs.

    \b
    Example:
      anynpu doctor
      anynpu doctor yolo.rknn
      docker run $(anynpu doctor --docker) image
    """
    console = results()
    if docker:
        console.print(" ".join(docker_flags()))
        return
    findings = diagnose(model=model)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            console.print(_line(finding))
    if any(finding.state == "problem" for finding in findings):
        raise typer.Exit(1)


def _line(finding: Finding) -> Text:
    line = Text.assemble((f"{finding.topic:<12}", _STYLES[finding.state]), finding.text)
    if finding.advice:
        line.append(f"\n{'':<12}-> {finding.advice}", style="cyan" if finding.state != "problem" else "yellow")
    return line
