"""An ``.onnx`` file where a compiled model is asked for: what it is compiled to, and the cache of compiled models.

It is compiled at first use, if it is said how: as float16, or as int8 with calibration data. The caller reports it with entries of
``SessionOptions``, the user of a program with variables, which ``anynpu exec --onnxruntime`` sets:

=====================  =========================  ======================================================
entry                  variable                   meaning
=====================  =========================  ======================================================
``anynpu.chip``        ``ANYNPU_ONNX_CHIP``       the chip (default: that of the device, else rk3588)
``anynpu.dtype``       ``ANYNPU_ONNX_DTYPE``      ``fp16``, or another type of the compiler
``anynpu.dataset``     ``ANYNPU_ONNX_DATASET``    calibration data; ``MODEL=FOLDER`` for one model, more after ``:``
.                      ``ANYNPU_CACHE``           folder of the cache (default: ``~/.cache/anynpu``)
=====================  =========================  ======================================================

A compiled model is found again by what it was made from: the bytes of the ONNX file and of the files beside it that hold its weights, the
input shapes, the chip, the type, names, sizes and times of the calibration data, and the version of anynpu.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ... import chips
from ...compiler import compile as compile_onnx
from ...compiler.importers.onnx_model import load_onnx
from ...compiler.pipeline import onnx_metadata
from ...errors import ModelError, SessionModelError
from ...modelfile import read
from ...vendors import registry
from ...vendors.devices import SOFTWARE, choose_device
from .ports import OnnxPort

__all__ = ["OnnxSource"]

DEFAULT_CHIP = "rk3588"
HOW = (
    "choose how to compile it: float16 (ANYNPU_ONNX_DTYPE=fp16, anynpu exec --float16), or calibration data "
    "(ANYNPU_ONNX_DATASET=FOLDER, --dataset FOLDER); or give a compiled model"
)


@dataclass
class OnnxSource:
    """An ONNX model and how it is compiled.

    :ivar free: sizes of dynamic dimensions by their name
    """

    model: str | os.PathLike[str] | bytes
    chip: str
    dtype: str
    dataset: str
    free: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        proto = load_onnx(self.model)
        constants = {entry.name for entry in proto.graph.initializer}
        self.inputs = tuple(_port(value, self.free) for value in proto.graph.input if value.name not in constants)
        self.outputs = tuple(_port(value, self.free) for value in proto.graph.output)
        self.entries = onnx_metadata(proto)[0].entries()
        self._digest = hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()

    @classmethod
    def of(
        cls, model: str | os.PathLike[str] | bytes, entries: Mapping[str, str], free: Mapping[str, int], device: object
    ) -> OnnxSource:
        """The source for *model*, from the entries of a session's options and the environment."""

        def setting(name: str) -> str:
            return entries.get(f"anynpu.{name}") or os.environ.get(f"ANYNPU_ONNX_{name.upper()}", "")

        choice = choose_device(device if isinstance(device, str) else None)
        if choice.kind != SOFTWARE and not callable(getattr(device, "open_backend", None)):
            raise SessionModelError(
                "an ONNX model cannot run on the vendor's library",
                hint="compile it with the vendor's toolkit and give the .rknn or .nb file, or use device='sim'",
            )
        name = os.path.splitext(os.path.basename(model))[0] if not isinstance(model, bytes) else ""
        dataset = _dataset_for(name, setting("dataset"))
        dtype = setting("dtype")
        if not dtype and not dataset:
            raise SessionModelError("this is an ONNX model, and no compile options are given", hint=HOW)
        chip = chips.get(setting("chip") or choice.detail or DEFAULT_CHIP).name
        return cls(model, chip, "w8a8" if dataset else dtype, dataset, free)

    @property
    def is_open(self) -> bool:
        """Whether the shape of an input is not fixed."""
        return any(port.is_open for port in self.inputs)

    def compiled(self, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Path:
        """The compiled model for these input shapes, from the cache or made now."""
        fixed = {port.name: tuple(port.shape) for port in self.inputs} if shapes is None else dict(shapes)
        folder = _cache()
        vendor = registry.of_chip(chips.get(self.chip))
        path = folder / f"{self._key(fixed)}{vendor.suffixes[0]}"
        if _is_sound(path):
            return path
        options: dict[str, Any] = {"dataset": self.dataset} if self.dataset else {}
        made = compile_onnx(
            os.fspath(self.model) if not isinstance(self.model, bytes) else self.model,
            self.chip,
            dtype=self.dtype,
            shapes=fixed,
            **options,
        )
        return made.save(path)

    def _key(self, shapes: Mapping[str, tuple[Any, ...]]) -> str:
        from importlib import metadata

        parts = [metadata.version("anynpu"), self._digest, self.chip, self.dtype, repr(sorted(shapes.items()))]
        parts += _fingerprint(Path(self.dataset)) if self.dataset else []
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:40]


def _port(value: Any, free: Mapping[str, int]) -> OnnxPort:
    shape: list[int | str | None] = []
    for axis in value.type.tensor_type.shape.dim:
        if axis.HasField("dim_value") and axis.dim_value > 0:
            shape.append(int(axis.dim_value))
        else:
            shape.append(free.get(axis.dim_param, axis.dim_param or None))
    return OnnxPort(value.name, int(value.type.tensor_type.elem_type), tuple(shape))


def _dataset_for(model: str, setting: str) -> str:
    """The calibration data of one model: an entry with its name, else one without."""
    common = ""
    for entry in filter(None, setting.split(os.pathsep)):
        name, separator, folder = entry.partition("=")
        if separator and name == model:
            return folder
        if not separator:
            common = entry
    return common


def _cache() -> Path:
    root = os.environ.get("ANYNPU_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "anynpu"
    )
    folder = Path(root) / "onnx"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def _is_sound(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        read(path)
    except ModelError:  # of another version, or damaged: it is made again
        return False
    return True


def _fingerprint(data: Path) -> list[str]:
    files = sorted(path for path in data.rglob("*") if path.is_file()) if data.is_dir() else [data]
    found = []
    for path in files:
        state = path.stat()
        found.append(f"{path} {state.st_size} {state.st_mtime_ns}")
    return found
