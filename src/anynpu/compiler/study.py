"""A model with its calibration data, ready to be looked at: what ``lint`` and ``optimize`` start from; and ``lint`` itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import chips
from ..errors import CompileError
from .calibrate import calibrate
from .custom import CustomOperators, custom_table
from .dataset import Dataset, InputInfo, open_dataset
from .driver import Progress, plan_steps, prepare
from .formats import format_of
from .groups import grouping_candidates
from .importer import Shapes, load_onnx
from .lint import Finding, lint_steps
from .options import InputOptions, PerInput, shape_sets
from .quantize import quantized_tensors
from .steps import Step
from .workbench import Workbench

__all__ = ["Study", "lint", "open_study"]


@dataclass(frozen=True, eq=False)
class Study:
    """A calibrated network.

    :ivar steps: its steps, those that int8 can compute in integers
    """

    bench: Workbench
    steps: list[Step]
    data: Dataset


def open_study(
    model: Any,
    target: str = "rk3588",
    *,
    dataset: Any,
    mean: PerInput = None,
    std: PerInput = None,
    channel_order: str | Mapping[str, str] | None = None,
    shapes: Shapes | None = None,
    batch: int | None = None,
    calibration_limit: int | None = None,
    custom_ops: CustomOperators = (),
    progress: Progress | None = None,
) -> Study:
    """Import a model and run the data set through it; parameters as in :func:`anynpu.compile`."""
    if dataset is None:
        raise CompileError("calibration data is needed", hint="pass a folder of typical images (dataset=..., --dataset FOLDER)")
    chip = chips.get(target)
    kind = format_of("w8a8", chip)
    custom = custom_table(custom_ops)
    proto = load_onnx(model, custom_ops)
    prepared = prepare(proto, shape_sets(shapes)[0], batch, InputOptions(mean, std, channel_order), custom)
    graph, preprocess = prepared.graph, prepared.normalisation.preprocess
    steps = plan_steps(graph, kind, ())
    infos = [InputInfo(name, graph.shapes[name], graph.dtypes[name], preprocess.get(name)) for name in graph.inputs]
    data = open_dataset(dataset, infos, limit=calibration_limit)
    names = quantized_tensors(graph, steps)
    seen = calibrate(graph, names, grouping_candidates(graph, steps), data, data.length, progress, custom)
    return Study(Workbench(graph, chip, seen, data, kind, preprocess, progress=progress), steps, data)


def lint(model: Any, target: str = "rk3588", **options: Any) -> list[Finding]:
    """What in *model* is known to suffer from int8, the worst first. Options as in :func:`open_study`; a dataset is needed.

    >>> for finding in anynpu.compiler.lint("yolo.onnx", dataset="street/"):    # doctest: +SKIP
    ...     print(finding, finding.remedy)
    """
    study = open_study(model, target, **options)
    bench = study.bench
    return lint_steps(bench.graph, study.steps, bench.calibration, bench.preprocess)
