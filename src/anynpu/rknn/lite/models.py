"""Which model and which device a path and a program's surroundings stand for.

A file of the vendor's toolkit runs on the vendor's library alone. Elsewhere its *twin* runs, ``NAME.anynpu`` beside it; where there is
none, but the ONNX file that it came from, the twin is compiled at first use and kept.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ... import chips, modelfile
from ..._util.lifetime import ModuleLock
from ...errors import AnynpuError, ModelError, ModelFormatError, VendorModelError
from ...modelfile import CompiledModel, FileKind
from ...modelfile.vendorfile import VendorModelInfo
from ...modelfile.vendorfile import read as read_vendor_file
from ...vendors.devices import SOFTWARE, choose_device
from ...vendors.registry import all_vendors

__all__ = ["choose", "find_onnx", "open_model", "under_exec"]

Say = Callable[[str], None]

_TWIN = ".anynpu"
_RECIPE = ".compile.json"
_OBSERVERS = ("ANYNPU_CALL_LOG", "ANYNPU_TRACE", "RKNN_LOG_LEVEL")
_TAGS = re.compile(r"[-_.](?:i8|int8|u8|fp|fp16|fp32|float16|w8a8)$", re.IGNORECASE)
_MAX_RECIPE = 1 << 20
_twins = ModuleLock()
"""Held while a twin is compiled: objects of a pool that load the same file wait for the first."""


def under_exec(environment: Mapping[str, str] | None = None) -> bool:
    """Whether ``anynpu exec`` has started this program, so that its board and the board's library are ours."""
    return bool((os.environ if environment is None else environment).get("ANYNPU_BOARD_ROOT"))


def choose(target: str | None = None, environment: Mapping[str, str] | None = None) -> str | None:
    """The device for a program: None where the machine and the environment decide.

    Under ``anynpu exec`` the machine looks like a board whose library is ours. The software NPU is then taken directly, so that errors say
    why; not where the calls of that library are to be written down.

    >>> choose("rk3566", {"ANYNPU_BOARD_ROOT": "/tmp/board", "ANYNPU_CHIP": "rk3588"})
    'sim:rk3588'
    """
    environment = os.environ if environment is None else environment
    if environment.get("ANYNPU_DEVICE") or any(environment.get(vendor.library_variable) for vendor in all_vendors()):
        return None
    if under_exec(environment):
        if any(environment.get(name) for name in _OBSERVERS):
            return None
        chip = environment.get("ANYNPU_CHIP")
        return f"{SOFTWARE}:{chip}" if chip else SOFTWARE
    choice = choose_device(None, environment=environment)
    known = target is not None and target.lower() in chips.names()
    return (
        f"{SOFTWARE}:{target.lower()}" if target is not None and known and choice.kind == SOFTWARE and not choice.detail else None
    )


def open_model(path: Path, device: str | None, say: Say) -> Path | CompiledModel:
    """What :class:`~anynpu.rknn.lite.runtime.Runtime` is to open for the file *path*.

    :param say: called with the line about a twin that is compiled
    :raises ModelError: it is no model, or there is no way to run it
    """
    kind = modelfile.identify(path)
    if kind is FileKind.ANYNPU:
        return path
    if not kind.of_a_vendor:
        raise ModelFormatError(
            f"Invalid RKNN model: {path} ({kind.value})", hint="compile an ONNX model with anynpu.compile or RKNN"
        )
    if choose_device(device).kind != SOFTWARE and not under_exec():
        return path
    with _twins:
        try:
            modelfile.read_or_twin(path)
        except VendorModelError:
            source = find_onnx(path)
            return path if source is None else _compile_twin(path, source, path.with_suffix(_TWIN), say)
        return path


def find_onnx(path: Path) -> Path | None:
    """The ONNX file that a vendor's file came from: in its folder or the one above, under the same name, with or without what names of such
    files end with (the chip, the type); or two above a folder that is named after the chip."""
    path = path.absolute()
    folders = [path.parent, *path.parent.parents[: 2 if path.parent.name.lower() in chips.names() else 1]]
    for folder in folders:
        for stem in _stems(path.stem):
            candidate = folder / f"{stem}.onnx"
            if candidate.is_file():
                return candidate
    return None


def _stems(stem: str) -> list[str]:
    stems = [stem]
    ends = re.compile(rf"[-_.](?:{'|'.join(map(re.escape, chips.names()))})$", re.IGNORECASE)
    for _ in range(3):
        shorter = _TAGS.sub("", ends.sub("", stems[-1]))
        if shorter == stems[-1] or not shorter:
            break
        stems.append(shorter)
    return stems


def _compile_twin(path: Path, source: Path, twin: Path, say: Say) -> Path | CompiledModel:
    from ...compiler import compile

    info = read_vendor_file(path)
    chip = os.environ.get("ANYNPU_CHIP") or info.chip or "rk3588"
    options = _recipe(path, source)
    if "dtype" not in options:
        dataset = next((file for file in (source.with_suffix(".txt"), source.parent / "dataset.txt") if file.is_file()), None)
        if dataset is not None and _is_int8(info):
            options.setdefault("dataset", str(dataset))
        options["dtype"] = "w8a8" if "dataset" in options else "fp16"
    try:
        model = compile(str(source), chip, **options)
    except AnynpuError:
        raise
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        # whoever wrote the file of options could write anything there
        raise ModelError(
            f"{source.name} cannot be compiled with {path.with_suffix(_RECIPE).name}: {str(error)[:200]}",
            hint='it takes options of anynpu.compile, for example {"std": [255, 255, 255]}',
        ) from error
    kept = "kept in memory"
    try:
        model.save(twin)
        kept = f"kept as {twin.name}"
    except (OSError, AnynpuError):  # a folder that cannot be written to, such as a mounted library of models
        pass
    scaled = (
        ""
        if "mean" in options or "std" in options
        else f", without mean and std ({path.with_suffix(_RECIPE).name} can give them)"
    )
    say(
        f"{path.name} is the vendor's: compiled an anynpu model from {source.name} for {chip} as {options['dtype']}{scaled}; {kept}"
    )
    return path if twin.is_file() else model


def _recipe(path: Path, source: Path) -> dict[str, Any]:
    """Options of the compiler that lie beside the model or its source, as ``NAME.compile.json``."""
    for file in (path.with_suffix(_RECIPE), source.with_suffix(_RECIPE)):
        if file.is_file():
            if file.stat().st_size > _MAX_RECIPE:
                raise ModelError(
                    f"{file} has more than {_MAX_RECIPE} bytes", hint="write a JSON object of options of anynpu.compile"
                )
            try:
                options = json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError) as error:
                raise ModelError(
                    f"{file} cannot be read: {str(error)[:200]}", hint="write a JSON object of options of anynpu.compile"
                ) from None
            if not isinstance(options, dict):
                raise ModelError(f"{file} is no JSON object", hint='for example {"std": [255, 255, 255]}')
            if isinstance(options.get("dataset"), str):
                options["dataset"] = str(file.parent / options["dataset"])
            return options
    return {}


def _is_int8(info: VendorModelInfo) -> bool:
    return any(tensor.dtype in ("int8", "uint8") for tensor in info.inputs) or not any(tensor.dtype for tensor in info.inputs)
