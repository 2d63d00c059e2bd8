"""What a session knows of an ONNX model without the compiler, and what a program receives about compiling."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...modelfile import FileKind, identify

__all__ = ["OnnxPort", "is_onnx", "program_variables"]


@dataclass(frozen=True)
class OnnxPort:
    """An input or output as the ONNX model declares it: sizes, names of dynamic dimensions, or None."""

    name: str
    kind: int
    shape: tuple[int | str | None, ...]

    @property
    def is_open(self) -> bool:
        return any(not isinstance(extent, int) for extent in self.shape)


def program_variables(environment: Mapping[str, str], *, float16: bool = False, datasets: Sequence[str] = ()) -> dict[str, str]:
    """*environment*, changed so that sessions of a program with onnxruntime's names compile ONNX models.

    :param float16: compile ONNX models as float16
    :param datasets: calibration data, ``FOLDER`` or ``MODEL=FOLDER``; a model that has some is compiled as int8
    """
    changed = dict(environment)
    chip = environment.get("ANYNPU_CHIP")
    changed.setdefault("ANYNPU_DEVICE", f"sim:{chip}" if chip else "sim")
    if float16:
        changed["ANYNPU_ONNX_DTYPE"] = "fp16"
    if datasets:
        entries = [entry.partition("=") for entry in datasets]
        absolute = [f"{name}={os.path.abspath(folder)}" if mark else os.path.abspath(name) for name, mark, folder in entries]
        changed["ANYNPU_ONNX_DATASET"] = os.pathsep.join(absolute)
    return changed


def is_onnx(model: object) -> bool:
    """Whether a model is an ONNX file, or its contents."""
    if isinstance(model, (str, os.PathLike)) and not os.path.isfile(model):
        return False
    if not isinstance(model, (str, os.PathLike, bytes)):
        return False
    return identify(model) is FileKind.ONNX
