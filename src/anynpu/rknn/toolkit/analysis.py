"""``accuracy_analysis``: every layer beside the float model, as the files that the vendor's toolkit writes.

``golden`` holds the values of the float model, ``simulator`` those of the compiled one, ``runtime`` those of a target.
Each has a tensor as NAME.txt, a number on each line, and as npy/NAME.npy in its shape; ``map_name_to_file.txt`` has the names.
``error_analysis.txt`` has a row for each layer: cosine and Euclidean distance to golden, in the network as it stands (entire) and fed with
golden's values (single).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..._util.types import Array
from ...analysis.compare import CompiledSubject, OnnxSubject
from ...compiler.quantize.dataset import InputInfo, open_dataset
from ...program import Model

__all__ = ["Row", "analyse", "table", "write"]

_NAME = 64
_PAIR = 20


@dataclass(frozen=True)
class Row:
    """One tensor of one layer; each pair is (cosine, Euclidean distance)."""

    kind: str
    tensor: str
    entire: tuple[float, float]
    single: tuple[float, float]
    runtime: tuple[float, float] | None = None
    single_sim: tuple[float, float] | None = None


@dataclass(frozen=True)
class Analysis:
    """The rows, and the values behind them by tensor."""

    rows: tuple[Row, ...]
    golden: Mapping[str, Array]
    simulator: Mapping[str, Array]
    runtime: Mapping[str, Array]


def analyse(
    proto: Any,
    model: Model,
    inputs: Sequence[Any],
    shapes: Mapping[str, tuple[int, ...]],
    runtime: Mapping[str, Array] | None = None,
) -> Analysis:
    """Compare a compiled model with the ONNX model that it was made of, on one sample.

    :param inputs: a file or an array for each input
    :param runtime: outputs of the target, by name; empty where its layers compute as the simulator's
    """
    golden = OnnxSubject(proto, "golden", shapes=shapes, preprocess=model.preprocess)
    subject = CompiledSubject(model, "simulator")
    infos = [InputInfo(entry.name, entry.shape, entry.dtype) for entry in golden.inputs]
    (sample,) = open_dataset([tuple(inputs)], infos, limit=1)
    common = golden.tensors & subject.tensors
    golden.watch(common)
    subject.watch(common)
    right = golden.run(sample)
    subject.run(sample)
    rows: list[Row] = []
    values: dict[str, dict[str, Array]] = {"golden": {}, "simulator": {}, "runtime": {}}
    for unit in subject.units():
        made, alone = subject.outcome(unit), subject.alone(unit, right)
        for name in unit.tensors:
            expected = right.get(name)
            if expected is None or expected.size != made.values[name].size:
                continue
            result = made.values[name].reshape(expected.shape)
            own = result if alone is None else alone.values[name].reshape(expected.shape)
            entire, single = _errors(expected, result), _errors(expected, own)
            on_target, of_target = None, None
            if runtime is not None:
                taken = runtime[name].reshape(expected.shape) if name in runtime else None if runtime else result
                if taken is not None:
                    on_target, of_target = _errors(expected, taken), _errors(result, taken)
                    values["runtime"][name] = taken
            values["golden"][name], values["simulator"][name] = expected, result
            rows.append(Row(unit.kind, name, entire, single, on_target, of_target))
    return Analysis(tuple(rows), values["golden"], values["simulator"], values["runtime"])


def table(rows: Sequence[Row]) -> str:
    """The text of ``error_analysis.txt``."""
    with_target = any(row.runtime is not None for row in rows)
    pair = "cos | euc".center(_PAIR)
    groups = ["simulator_error".center(2 * _PAIR), *(["runtime_error".center(2 * _PAIR)] if with_target else [])]
    columns = ["entire", "single", *(["entire", "single_sim"] if with_target else [])]
    rule = "-" * (_NAME + _PAIR * len(columns))
    lines = [
        "# simulator_error: the compiled model beside the float model ('golden'), layer by layer",
        "#     entire: with all that went wrong before the layer",
        "#     single: the layer alone, fed with the values of the float model",
        *(
            [
                "# runtime_error: the target beside the float model",
                "#     entire: with all that went wrong before the layer",
                "#     single_sim: the target beside the simulator",
            ]
            if with_target
            else []
        ),
        "",
        "layer_name".ljust(_NAME) + "".join(groups).rstrip(),
        " " * _NAME + "".join(column.center(_PAIR) for column in columns).rstrip(),
        " " * _NAME + (pair * len(columns)).rstrip(),
        rule,
    ]
    for row in rows:
        cells = [row.entire, row.single, *([row.runtime, row.single_sim] if with_target else [])]
        texts = ["\\ | \\" if cell is None else f"{cell[0]:.5f} | {cell[1]:.4f}" for cell in cells]
        lines.append(f"[{row.kind}] {row.tensor} ".ljust(_NAME) + "".join(text.center(_PAIR) for text in texts).rstrip())
    return "\n".join([*lines, rule, ""])


def write(analysis: Analysis, folder: Path) -> None:
    """All files of an analysis."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "error_analysis.txt").write_text(table(analysis.rows), encoding="utf-8")
    files: dict[str, str] = {}
    for row in analysis.rows:
        stem = re.sub(r"[^\w.-]+", "_", row.tensor) or "tensor"
        taken = set(files.values())
        name, number = stem, 1
        while name in taken:
            name, number = f"{stem}_{number}", number + 1
        files.setdefault(row.tensor, name)
    for part, values in (("golden", analysis.golden), ("simulator", analysis.simulator), ("runtime", analysis.runtime)):
        if part != "runtime" or values:
            (folder / part / "npy").mkdir(parents=True, exist_ok=True)
        for tensor, value in values.items():
            np.save(folder / part / "npy" / f"{files[tensor]}.npy", value)
            (folder / part / f"{files[tensor]}.txt").write_text(_numbers(value), encoding="utf-8")
    width = max(map(len, ("layer_name", *files))) + 4
    lines = [("layer_name", "file_name"), *((tensor, f"{name}.txt") for tensor, name in files.items())]
    text = "".join(f"{tensor.ljust(width)}{name}\n" for tensor, name in lines)
    (folder / "map_name_to_file.txt").write_text(text, encoding="utf-8")


def _numbers(values: Array) -> str:
    """One number on each line, with the digits that float32 needs."""
    return "".join(f"{value:.9g}\n" for value in np.asarray(values, np.float64).ravel().tolist())


def _errors(expected: Array, given: Array) -> tuple[float, float]:
    a, b = (np.asarray(values, np.float64).ravel() for values in (expected, given))
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    distance = float(np.linalg.norm(a - b))
    cosine = float(a @ b) / lengths if lengths else float(distance == 0.0)
    return min(cosine, 1.0), distance
