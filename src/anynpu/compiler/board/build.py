"""From ONNX to two files that agree: one for the board, by the vendor's toolkit, and its anynpu model for everywhere else.

The quantization config chooses ranges and weights under the toolkit's own rules (:mod:`anynpu.compiler.export`). The toolkit
gets them through its configuration file, and the anynpu model is compiled from the same model with the scales that this file
then has. The toolkit runs in a process of its own (:mod:`anynpu.compiler.board.environment`); without a toolkit everything is
written that another machine needs.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ... import chips
from ..._util import optional as _optional
from ..._util.output_files import write_output
from ..._util.progress import Progress
from ...errors import CompileError, OutputFileError, ToolkitError
from ...modelfile import CompiledModel
from ...modelfile.stand_ins import TWIN_SUFFIX, VENDOR_HASH, twin_folders, twin_name, vendor_hash
from ...program import Preprocess
from ...tensor import Affine
from ...vendors import registry
from .. import CompileOptions, compile, optimize
from ..export import Handover, better, float_handover, handover, toolkit_score
from ..lower.formats import format_of
from ..quantize.dataset import InputInfo, open_dataset
from ..toolkit.quantization_cfg import QuantizationCfg, final_ranges, read_cfg
from ..toolkit.quantizer import VENDOR, WholeRanges, affine_of
from . import acuity_ranges, worker
from .environment import TIME_LIMIT, Toolkit, plain_text, run_logged

# What VeriSilicon's ACUITY needs to make a file for an Allwinner board with our scales, and the anynpu model of that file.
#
# ACUITY is not public, so nothing here was ever tried with it: names, fields and commands are those of public scripts and
# tables of its users. It names layers on its own when it imports a model, so its own table of quantization is made first, and
# then edited as text (:mod:`anynpu.compiler.board.acuity_ranges`, which goes into the folder as a script of its own).


COMMANDS = "build_nb.sh"
ACUITY_SCRIPT = "set_ranges.py"

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
    """Write the anynpu model ``NAME.anynpu``, and the folder ``NAME.acuity`` with all that ACUITY needs for the same scales."""
    if target not in OPTIMIZE:
        raise CompileError(
            f"ACUITY's name of the NPU of {target} is not known",
            hint=f"choose one of: {', '.join(OPTIMIZE)}; or use anynpu compile",
        )
    job = output / f"{name}.acuity"
    check_folder(job, (model, options.dataset))
    given = float_handover(model, options)
    onnx_model = given.model
    # ACUITY quantizes the model's own weights, so there is no weight reconstruction
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
    shutil.copyfile(acuity_ranges.__file__, job / ACUITY_SCRIPT)
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
    """What ACUITY receives about the inputs: arrays that need nothing done to them."""
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
    shift = 128 if kind == "u8" else 0  # a program's quantized values are int8, ACUITY's are uint8
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
python3 {ACUITY_SCRIPT} "$NAME.quantize" ranges.json
"$PEGASUS" export ovxlib --model "$NAME.json" --model-data "$NAME.data" --model-quantize "$NAME.quantize" \\
    --with-input-meta "${{NAME}}_inputmeta.yml" --dtype quantized --batch-size 1 --target-ide-project linux64 \\
    --optimize {OPTIMIZE[target]} --viv-sdk "$VIV_SDK" --pack-nbg-unify --output-path "nbg/$NAME"
"""


# What a build wrote, and what it may be called.


@dataclass(frozen=True)
class Built:
    """What a build wrote.

    :ivar job: the folder that the toolkit worked in, or that another machine needs
    :ivar rknn: the vendor's file; None where there was no toolkit
    :ivar twin: what the software NPU runs in its place
    :ivar by_hash: the same under the hash of the vendor's file, which programs that pass bytes find
    :ivar notes: what was tried and chosen
    """

    job: Path
    rknn: Path | None
    twin: Path
    by_hash: Path | None
    notes: tuple[str, ...] = field(default=())


def check_name(name: str) -> None:
    """Reject a name that would be more than a name in a path, a script or a list of files.

    A model's name is often that of a stranger's file. With a line end it can continue a script, with a slash it leaves its folder, with a
    dash it is a flag.

    >>> check_name("yolo v8 (640)")
    """
    if not name.isprintable() or "/" in name or "\\" in name or name[:1] in ("", ".", "-"):
        raise CompileError(
            f"{name[:80]!r} cannot be the name of what is built", hint="rename the file, or give another: --name yolo"
        )


def check_folder(job: Path, inputs: Iterable[Any]) -> None:
    """Reject a folder that a build would replace while it holds what the build reads."""
    for entry in inputs:
        if isinstance(entry, str | Path) and Path(entry).exists() and Path(entry).resolve().is_relative_to(job.resolve()):
            raise OutputFileError(f"{entry} is an input and lies in {job}, which is replaced", hint="name another output folder")


def fresh_folder(job: Path) -> None:
    """Make the folder of a build, empty, with a folder for samples."""
    shutil.rmtree(job, ignore_errors=True)
    (job / "samples").mkdir(parents=True)


SCRIPT = "build_rknn.py"
"""What builds the vendor's file, here and on another machine."""

_VENDOR = "rknn"
_ACUITY = "vip"
_FLOATS = ("fp16", "float16")
_CANNOT = {
    "custom_ops": "custom operators",
    "preprocess": "a pre-process node",
    "channel_groups": "channel groups: the toolkit has one scale per tensor",
}


def build(
    model: Any,
    output: Path,
    target: str,
    options: CompileOptions,
    toolkit: Toolkit | None,
    *,
    name: str = "",
    time_limit: float = TIME_LIMIT,
    progress: Progress | None = None,
    tell: Callable[[str], None] | None = None,
) -> Built:
    """Write ``NAME.rknn`` and ``NAME.anynpu`` into the folder *output*; without a *toolkit*, all that another machine needs for the former.

    :param options: as for :func:`anynpu.compile`
    :param time_limit: seconds that the toolkit may take
    :raises ToolkitError: the toolkit failed; with its last lines
    """
    tell = tell or (lambda line: None)
    name = name or options.name or (Path(model).stem if isinstance(model, (str, Path)) else "model")
    vendor = registry.of_chip(chips.get(target)).name
    check_name(name)
    _check(target, vendor, options)
    if vendor == _ACUITY:
        return build_acuity(model, output, target, options, name=name, progress=progress)
    job, rknn = output / f"{name}.toolkit", output / f"{name}.rknn"
    check_folder(job, (model, options.dataset))
    if toolkit is None and rknn.exists():
        raise OutputFileError(
            f"{rknn} is there, and without the toolkit only the anynpu model would be replaced",
            hint="move or delete it, or name another output folder",
        )
    given, passed = _chosen(model, target, options, progress)
    _write_job(job, name, target, options, given)
    if toolkit is None:
        twin = _twin(job / f"{name}.onnx", target, passed, given, None, progress)
        return Built(job, None, twin.save(output / f"{name}{TWIN_SUFFIX}"), None, given.notes)
    tell(f"building with rknn-toolkit2 {toolkit.version}")
    made, cfg = _run(toolkit, job, output, name, time_limit, quantized=options.dtype not in _FLOATS)
    twin = _twin(job / f"{name}.onnx", target, passed, given, cfg, progress)
    return _published(job, made, twin, cfg, rknn, given.notes)


def _published(job: Path, made: Path, twin: CompiledModel, cfg: Path | None, rknn: Path, notes: tuple[str, ...]) -> Built:
    """Put both files into place. Wherever this ends, no vendor model has the anynpu model of another one.

    The anynpu model is found by the vendor model's hash first; the one beside it is missing while the vendor model is replaced.
    """
    contents = made.read_bytes()
    tied = replace(twin, provenance={**twin.provenance, VENDOR_HASH: vendor_hash(contents)})
    folder, beside = twin_folders()[0], rknn.with_suffix(TWIN_SUFFIX)
    folder.mkdir(parents=True, exist_ok=True)
    by_hash = tied.save(folder / twin_name(contents))
    beside.unlink(missing_ok=True)
    write_output(rknn, contents)
    tied.save(beside)
    if cfg is not None:
        write_output(rknn.with_name(cfg.name), cfg.read_bytes())
    return Built(job, rknn, beside, by_hash, notes)


def _check(target: str, vendor: str, options: CompileOptions) -> None:
    """Reject what the toolkits, or their interfaces that are used here, do not have."""
    if vendor not in (_VENDOR, _ACUITY):
        raise CompileError(f"there is no toolkit for {target} here", hint="'anynpu compile' makes a file for the software NPU")
    for key, words in _CANNOT.items():
        if getattr(options, key):
            raise CompileError(f"build has no {words}", hint=f"leave {key} out, or use anynpu compile")
    if options.shapes is not None and not isinstance(options.shapes, Mapping):
        raise CompileError("build takes one set of shapes", hint="give one shape for each input")
    if vendor == _VENDOR and options.dtype not in ("w8a8", "int8", *_FLOATS):
        raise CompileError(f"build writes int8 and float16 models, not {options.dtype}", hint="leave --dtype out, or use fp16")
    format_of(options.dtype, chips.get(target))  # before the toolkit starts: not every chip takes every type


def _chosen(model: Any, target: str, options: CompileOptions, progress: Progress | None) -> tuple[Handover, CompileOptions]:
    """What the toolkit is given, and the options with which the anynpu model of it is compiled."""
    passed = replace(options, quantizer="anynpu", shapes=None, batch=None, ranges=None, channel_order=None)
    if options.dtype in _FLOATS:
        return float_handover(model, options), passed
    common = {key: getattr(options, key) for key in ("dataset", "mean", "std", "calibration_limit")}
    whole = {**common, **{key: getattr(options, key) for key in ("shapes", "batch", "channel_order")}}
    refit = options.accuracy != "fast"
    given = handover(model, target, refit=refit, progress=progress, **whole)
    if refit and given.score is not None:
        given = _or_split(given, target, common, progress)
    return given, passed


def _or_split(given: Handover, target: str, options: dict[str, Any], progress: Progress | None) -> Handover:
    """What was chosen, or the same of the model that ``anynpu optimize`` makes of it, where that is better in the toolkit's graph."""
    split = optimize(given.folded, target, progress=progress, **options)
    if not split.groups and not split.stems:
        return replace(given, notes=(*given.notes, *([f"optimize: {split.note}"] if split.note else [])))
    other = handover(split.model, target, progress=progress, **options)
    before, after = (toolkit_score(entry, target, **options) for entry in (given, other))
    kept = before is not None and after is not None and better(after, before)
    what = [*(f"{name} split" for name in split.groups), *(f"the stem {name} as one convolution" for name in split.stems)]
    note = f"optimize: {'' if kept else 'not kept, '}{', '.join(what)}, in the toolkit's graph {before} -> {after}"
    chosen = other if kept else given
    return replace(chosen, notes=(*chosen.notes, note))


def _write_job(job: Path, name: str, target: str, options: CompileOptions, given: Handover) -> None:
    """The folder with everything that the toolkit is given."""
    fresh_folder(job)
    _optional.onnx().save(given.model, str(job / f"{name}.onnx"))
    inputs = [entry.name for entry in given.model.graph.input]
    lines = []
    for index, sample in enumerate(given.samples):
        files = []
        for number, key in enumerate(inputs):
            file = f"samples/{index:04d}-{number}.npy"
            np.save(job / file, sample[key])
            files.append(file)
        lines.append(" ".join(files))
    (job / "dataset.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    document = {
        "name": name,
        "model": f"{name}.onnx",
        "dataset": "dataset.txt",
        "config": _config(target, options, given),
        "quantize": options.dtype not in _FLOATS,
        "ranges": dict(given.ranges),
        "floats": list(options.hybrid),
        "output": f"{name}.rknn",
    }
    (job / "job.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    shutil.copyfile(worker.__file__, job / SCRIPT)


def _config(target: str, options: CompileOptions, given: Handover) -> dict[str, Any]:
    """The keywords of the toolkit's ``config``."""
    config: dict[str, Any] = {"target_platform": target}
    if given.preprocess:
        names = [entry.name for entry in given.model.graph.input]
        config["mean_values"] = [list(given.preprocess[name].mean) if name in given.preprocess else None for name in names]
        config["std_values"] = [list(given.preprocess[name].std) if name in given.preprocess else None for name in names]
    if options.custom_string:
        config["custom_string"] = options.custom_string
    return config


def _run(toolkit: Toolkit, job: Path, output: Path, name: str, time_limit: float, *, quantized: bool) -> tuple[Path, Path | None]:
    """Run the script; gives the vendor's file and its configuration in the folder of the job."""
    log = output / f"{name}.toolkit.log"
    run_logged(
        [str(toolkit.python), "-u", SCRIPT], job, log, what="the vendor's toolkit", time_limit=time_limit, environment=_QUIET
    )
    made = job / f"{name}.rknn"
    if not made.is_file() or not made.stat().st_size:
        raise ToolkitError("the vendor's toolkit ended without an error and without a file", hint=f"see {log}")
    if not quantized:
        return made, None
    final = final_ranges(plain_text(log))
    (job / FINAL_RANGES).write_text(json.dumps(final, indent=1) + "\n", encoding="utf-8")
    return made, job / f"{name}.quantization.cfg"


FINAL_RANGES = "final_ranges.json"
"""In the folder of a build: the ranges that the toolkit took instead of those that it was asked for."""


def final_cfg(cfg: Path) -> QuantizationCfg:
    """The configuration of a build with the ranges that the toolkit finally took."""
    try:
        final = json.loads((cfg.parent / FINAL_RANGES).read_text(encoding="utf-8"))
    except FileNotFoundError:  # built on another machine
        final = {}
    return read_cfg(cfg, {name: (float(low), float(high)) for name, (low, high) in final.items()})


_QUIET = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONIOENCODING": "utf-8"}


def _twin(
    model: Path,
    target: str,
    options: CompileOptions,
    given: Handover,
    cfg: Path | None,
    progress: Progress | None,
) -> CompiledModel:
    """The model that the software NPU runs in place of the vendor's file, with the scales of its configuration where there is one."""
    common: dict[str, Any] = {"name": model.stem, "accuracy": "fast"}
    if options.dtype in _FLOATS:
        return compile(model, target, replace(options, dataset=None, **common), progress=progress)
    if cfg is not None:
        ranges = WholeRanges(final_cfg(cfg).ranges())
    else:
        ranges = WholeRanges({key: affine_of(*ends) for key, ends in given.ranges.items()})
    return compile(model, target, replace(options, quantizer=VENDOR, ranges=ranges, **common), progress=progress)
