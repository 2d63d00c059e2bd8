"""From ONNX to two files that agree: one for the board, by the vendor's toolkit, and its twin for everywhere else.

The recipe chooses ranges and weights under the toolkit's own rules (:mod:`anynpu.compiler.toolkit.export`). The toolkit gets them through
its configuration file, and the twin is compiled from the same model with the scales that this file then has. The toolkit runs in a
process of its own (:mod:`anynpu.compiler.board.runner`); without a toolkit everything is written that another machine needs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ... import chips
from ..._util import optional as _optional
from ..._util.progress import Progress
from ...errors import CompileError, ToolkitError
from ...modelfile import CompiledModel
from ...modelfile.stand_ins import TWIN_SUFFIX, twin_folders, twin_name
from ...vendors import registry
from .. import CompileOptions, compile, optimize
from ..toolkit.export import Handover, better, float_handover, handover, toolkit_score
from ..toolkit.quantization_cfg import read_cfg
from ..toolkit.quantizer import VENDOR, WholeRanges, affine_of
from . import worker
from .acuity import build_acuity
from .built import Built, check_folder, check_name, fresh_folder
from .environment import Toolkit
from .runner import TIME_LIMIT, run_logged

__all__ = ["SCRIPT", "build"]

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
    job = output / f"{name}.toolkit"
    check_folder(job, (model, options.dataset))
    given, passed = _chosen(model, target, options, progress)
    _write_job(job, name, target, options, given)
    rknn = cfg = None
    if toolkit is not None:
        tell(f"building with rknn-toolkit2 {toolkit.version}")
        rknn, cfg = _run(toolkit, job, output, name, time_limit, quantized=options.dtype not in _FLOATS)
    twin = _twin(job / f"{name}.onnx", target, passed, given, cfg, name, progress)
    path = twin.save(output / f"{name}{TWIN_SUFFIX}")
    return Built(job, rknn, path, None if rknn is None else _by_hash(rknn, path), given.notes)


def _check(target: str, vendor: str, options: CompileOptions) -> None:
    """Refuse what the toolkits, or their interfaces that are used here, do not have."""
    if vendor not in (_VENDOR, _ACUITY):
        raise CompileError(f"there is no toolkit for {target} here", hint="'anynpu compile' makes a file for the software NPU")
    for key, words in _CANNOT.items():
        if getattr(options, key):
            raise CompileError(f"build has no {words}", hint=f"leave {key} out, or use anynpu compile")
    if options.shapes is not None and not isinstance(options.shapes, Mapping):
        raise CompileError("build takes one set of shapes", hint="give one shape for each input")
    if vendor == _VENDOR and options.dtype not in ("w8a8", "int8", *_FLOATS):
        raise CompileError(f"build writes int8 and float16 models, not {options.dtype}", hint="leave --dtype out, or use fp16")


def _chosen(model: Any, target: str, options: CompileOptions, progress: Progress | None) -> tuple[Handover, CompileOptions]:
    """What the toolkit is given, and the options with which the twin of it is compiled."""
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
    """Run the script, and fetch the vendor's file and its configuration."""
    log = output / f"{name}.toolkit.log"
    run_logged(
        [str(toolkit.python), "-u", SCRIPT], job, log, what="the vendor's toolkit", time_limit=time_limit, environment=_QUIET
    )
    made = job / f"{name}.rknn"
    if not made.is_file() or not made.stat().st_size:
        raise ToolkitError("the vendor's toolkit ended without an error and without a file", hint=f"see {log}")
    rknn = output / made.name
    shutil.copyfile(made, rknn)
    if not quantized:
        return rknn, None
    cfg = output / f"{name}.quantization.cfg"
    shutil.copyfile(job / cfg.name, cfg)
    return rknn, cfg


_QUIET = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONIOENCODING": "utf-8"}


def _twin(
    model: Path,
    target: str,
    options: CompileOptions,
    given: Handover,
    cfg: Path | None,
    name: str,
    progress: Progress | None,
) -> CompiledModel:
    """The model that the software NPU runs in place of the vendor's file, with the scales of its configuration where there is one."""
    common: dict[str, Any] = {"name": name, "accuracy": "fast"}
    if options.dtype in _FLOATS:
        return compile(model, target, replace(options, dataset=None, **common), progress=progress)
    if cfg is not None:
        ranges = WholeRanges(read_cfg(cfg).ranges())
    else:
        ranges = WholeRanges({key: affine_of(*ends) for key, ends in given.ranges.items()})
    return compile(model, target, replace(options, quantizer=VENDOR, ranges=ranges, **common), progress=progress)


def _by_hash(rknn: Path, twin: Path) -> Path:
    folder = twin_folders()[0]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / twin_name(rknn)
    shutil.copyfile(twin, path)
    return path
