"""A model with its calibration data, ready to be looked at: what ``lint`` and ``optimize`` start from; and ``lint`` itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ... import chips
from ..._util.progress import Progress
from ...errors import CompileError
from ..compile_options import CompileOptions, shape_sets
from ..custom_operators import custom_table
from ..importers.onnx_model import load_onnx
from ..lower.formats import format_of, with_arithmetic
from ..lower.fuse import OWN_RULES, FusionRules
from ..lower.steps import Step
from ..pipeline import calibrated, plan_steps, prepare
from .dataset import Dataset
from .lint import Finding, lint_steps
from .search import Workbench


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
    rules: Callable[[chips.Chip], FusionRules] = lambda chip: OWN_RULES,
    progress: Progress | None = None,
    **changes: Any,
) -> Study:
    """Import a model and run the data set through it; options as in :func:`anynpu.compile`, with one set of shapes.

    :param rules: what is fused on a chip
    """
    options = CompileOptions.merged(None, changes)
    if options.dataset is None:
        raise CompileError(
            "calibration data is needed", hint="pass typical inputs, such as a folder of images (dataset=..., --dataset FOLDER)"
        )
    chip = chips.get(target)
    kind = with_arithmetic(format_of("w8a8", chip), chip, options.arithmetic)
    custom = custom_table(options.custom_ops)
    proto = load_onnx(model, options.custom_ops, shapes=shape_sets(options.shapes)[0], trust=options.trust)
    prepared = prepare(proto, shape_sets(options.shapes)[0], options, custom)
    graph, preprocess = prepared.graph, prepared.normalisation.preprocess
    steps = plan_steps(graph, kind, (), rules(chip))
    seen, data = calibrated(prepared, [(graph, steps)], options, custom, progress)
    return Study(Workbench(graph, chip, seen, data, kind, preprocess, progress=progress), steps, data)


def lint(model: Any, target: str = "rk3588", **options: Any) -> list[Finding]:
    """What in *model* is known to suffer from int8, the worst first. Options as in :func:`open_study`; a dataset is needed.

    >>> for finding in anynpu.compiler.quantize.lint("yolo.onnx", dataset="street/"):    # doctest: +SKIP
    ...     print(finding, finding.remedy)
    """
    study = open_study(model, target, **options)
    bench = study.bench
    return lint_steps(bench.graph, study.steps, bench.calibration, bench.preprocess)
