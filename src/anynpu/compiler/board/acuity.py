"""What VeriSilicon's ACUITY needs to make a file for an Allwinner board with our scales, and the twin of that file.

ACUITY is not public, so nothing here was ever tried with it: names, fields and commands are those of public scripts and tables of its
users. It names layers by itself when it imports a model, so its own table of quantisation is made first, and then edited as text
(:mod:`anynpu.compiler.board.acuity_ranges`, which goes into the folder as a script of its own).
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..._util import optional as _optional
from ..._util.progress import Progress
from ...errors import CompileError
from ...modelfile import CompiledModel
from ...modelfile.stand_ins import TWIN_SUFFIX
from ...program import Preprocess
from ...tensor import Affine
from .. import CompileOptions, compile
from ..quantize.dataset import InputInfo, open_dataset
from ..toolkit.export import float_handover
from . import acuity_ranges
from .built import Built, check_folder, fresh_folder

__all__ = ["COMMANDS", "OPTIMIZE", "SCRIPT", "build_acuity"]

COMMANDS = "build_nb.sh"
SCRIPT = "set_ranges.py"

_NANO_DI = "VIP9000NANODI_PLUS_PID0X1000003B"
_NANO_SI = "VIP9000NANOSI_PLUS_PID0X10000016"
_PICO = "VIP9000PICO_PID0XEE"
OPTIMIZE = {
    "v851": _PICO,
    "v853": _PICO,
    "r853": _PICO,
    "t527": _NANO_SI,
    "mr527": _NANO_SI,
    "a733": _NANO_DI,
    "t736": _NANO_DI,
    "t536": _NANO_DI,
    "mr536": _NANO_DI,
}
"""ACUITY's names of the chips' NPUs, as users of public scripts have them."""

_TYPES = {"w8a8": ("asymmetric_affine", "uint8", "u8"), "i8": ("perchannel_symmetric_affine", "int8", "i8")}
"""Quantizer, type on the command line and type in the table."""

_UNTRIED = "What is written for ACUITY was never tried with ACUITY"


def build_acuity(
    model: Any, output: Path, target: str, options: CompileOptions, *, name: str, progress: Progress | None = None
) -> Built:
    """Write the twin ``NAME.anynpu``, and the folder ``NAME.acuity`` with all that ACUITY needs for the same scales."""
    if target not in OPTIMIZE:
        raise CompileError(
            f"ACUITY's name of the NPU of {target} is not known",
            hint=f"choose one of: {', '.join(OPTIMIZE)}; or use anynpu compile",
        )
    job = output / f"{name}.acuity"
    check_folder(job, (model, options.dataset))
    given = float_handover(model, options)
    onnx_model = given.model
    # ACUITY quantises the model's own weights, so there is no re-fit
    plain = replace(options, shapes=None, batch=None, channel_order=None, accuracy="fast", name=name)
    twin = compile(onnx_model, target, plain, progress=progress)
    if twin.dtype not in _TYPES:
        raise CompileError(
            f"build writes uint8 and int8 models for ACUITY, not {twin.dtype}", hint="leave --dtype out, or use i8"
        )
    fresh_folder(job)
    _optional.onnx().save(onnx_model, str(job / f"{name}.onnx"))
    _write_samples(job, onnx_model, options, given.preprocess)
    (job / f"{name}_inputmeta.yml").write_text(_inputmeta(onnx_model), encoding="utf-8")
    (job / "ranges.json").write_text(json.dumps(_ranges(onnx_model, twin), indent=1) + "\n", encoding="utf-8")
    shutil.copyfile(acuity_ranges.__file__, job / SCRIPT)
    (job / COMMANDS).write_text(_commands(name, target, twin.dtype), encoding="utf-8")
    (job / COMMANDS).chmod(0o755)
    return Built(job, None, twin.save(output / f"{name}{TWIN_SUFFIX}"), None, (_UNTRIED,))


def _inputs(model: Any) -> list[tuple[str, tuple[int, ...], Any]]:
    """Name, shape and type of each input."""
    types = _optional.onnx().helper
    return [
        (
            entry.name,
            tuple(axis.dim_value for axis in entry.type.tensor_type.shape.dim),
            np.dtype(types.tensor_dtype_to_np_dtype(entry.type.tensor_type.elem_type)),
        )
        for entry in model.graph.input
    ]


def _write_samples(job: Path, model: Any, options: CompileOptions, preprocess: Mapping[str, Preprocess]) -> None:
    """The samples as the model takes them, after mean and std; one line of dataset.txt per sample."""
    inputs = _inputs(model)
    data = open_dataset(
        options.dataset, [InputInfo(*entry, preprocess.get(entry[0])) for entry in inputs], limit=options.calibration_limit
    )
    lines = []
    for index, sample in enumerate(data):
        files = []
        for number, (key, _, dtype) in enumerate(inputs):
            file = f"samples/{index:04d}-{number}.npy"
            np.save(job / file, sample[key].astype(dtype))
            files.append(file)
        lines.append(" ".join(files))
    (job / "dataset.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _inputmeta(model: Any) -> str:
    """What ACUITY is told about the inputs: arrays that need nothing done to them."""
    lines = ["input_meta:", "  databases:", "  - path: dataset.txt", "    type: TEXT", "    ports:"]
    for name, shape, dtype in _inputs(model):
        lines += [
            f"    - lid: {json.dumps(name)}  # ACUITY adds a number to names: see the input layers of its JSON file",
            "      category: undefined",
            f"      dtype: {dtype.name}",
            "      sparse: false",
            "      layout: nchw",
            f"      shape: [{', '.join(map(str, shape))}]",
            "      fitting: scale",
            "      preprocess:",
            "        reverse_channel: false",
            "        scale: 1.0",
            "        preproc_node_params:",
            "          add_preproc_node: false",
            "          preproc_type: TENSOR",
            f"          preproc_perm: [{', '.join(map(str, range(len(shape))))}]",
            "      redirect_to_output: false",
        ]
    return "\n".join(lines) + "\n"


def _ranges(model: Any, twin: CompiledModel) -> dict[str, dict[str, Any]]:
    """By tensor: the entry of ACUITY's table, and the names under which ACUITY may have it."""
    made = {output: node for node in model.graph.node for output in node.output}
    _, _, kind = _TYPES[twin.dtype]
    shift = 128 if kind == "u8" else 0  # a program's codes are int8, ACUITY's are uint8
    found = {}
    for name, spec in twin.programs[0].tensors.items():
        quantization = spec.quantization
        if not isinstance(quantization, Affine) or not quantization.is_per_tensor:
            continue
        scale, zero = quantization.scale, quantization.zero_point
        node = made.get(name)
        found[name] = {
            "names": [name] if node is None else [name, *filter(None, [node.name])],
            "qtype": kind,
            "quantizer": "asymmetric_affine",
            "max_value": scale * (127 - zero),
            "min_value": scale * (-128 - zero),
            "scale": scale,
            "zero_point": zero + shift,
        }
    return found


def _commands(name: str, target: str, dtype: str) -> str:
    quantizer, qtype, _ = _TYPES[dtype]
    quoted = shlex.quote(name)
    return f"""\
#!/bin/sh
# Makes a .nb file for {target} with VeriSilicon's ACUITY. {_UNTRIED}.
# PEGASUS: the program of that name; VIV_SDK: the folder of the Vivante SDK. Both are set in Allwinner's images.
set -e
cd "$(dirname "$0")"
NAME={quoted}
"$PEGASUS" import onnx --model "$NAME.onnx" --output-model "$NAME.json" --output-data "$NAME.data"
"$PEGASUS" quantize --model "$NAME.json" --model-data "$NAME.data" --with-input-meta "${{NAME}}_inputmeta.yml" \\
    --batch-size 1 --device CPU --rebuild --quantizer {quantizer} --qtype {qtype} --model-quantize "$NAME.quantize"
python3 {SCRIPT} "$NAME.quantize" ranges.json
"$PEGASUS" export ovxlib --model "$NAME.json" --model-data "$NAME.data" --model-quantize "$NAME.quantize" \\
    --with-input-meta "${{NAME}}_inputmeta.yml" --dtype quantized --batch-size 1 --target-ide-project linux64 \\
    --optimize {OPTIMIZE[target]} --viv-sdk "$VIV_SDK" --pack-nbg-unify --output-path "nbg/$NAME"
"""
