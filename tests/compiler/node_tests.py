"""ONNX's own tests of operators, as far as onnxruntime runs them: compiled, executed, compared.

The cases are those of ``onnx.backend.test``: one small model each, with inputs. An input that the compiler wants as a constant (the shape
of a Reshape) is given as one, as its message says.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import re
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

import anynpu
from anynpu import _optional
from anynpu.errors import AnynpuError, CompileError
from anynpu.npu import Device

Array = npt.NDArray[Any]

PARTS = 8
TOLERANCE = {"fp16": 0.01, "w8a8": 0.05}
"""Largest error of real numbers, relative to the span of the result."""


@dataclass(frozen=True, eq=False)
class NodeCase:
    """A model, its inputs by name, and what onnxruntime makes of them."""

    name: str
    model: onnx.ModelProto
    feeds: dict[str, Any]
    expected: list[Any]


@dataclass(frozen=True)
class Outcome:
    """What became of a case: ``runs``, ``refused`` with a typed error, ``wrong`` or ``untyped``."""

    case: str
    dtype: str
    kind: str
    text: str = ""


def modules(part: int | None = None) -> list[str]:
    """The modules of cases in one of the parts, or all of them."""
    package = importlib.import_module("onnx.backend.test.case.node")
    names = sorted(entry.name for entry in pkgutil.iter_modules(package.__path__) if not entry.ispkg)
    return [name for name in names if part is None or zlib.crc32(name.encode()) % PARTS == part]


def cases_of(module: str) -> Iterator[NodeCase]:
    """The cases of one module that onnxruntime runs. A process can ask for a module once: importing it is what makes them."""
    found = importlib.import_module("onnx.backend.test.case.node")._NodeTestCases
    before = len(found)
    state = np.random.get_state()
    np.random.seed(0)  # the cases draw from numpy's own generator, and int8 may see a tie where there is none
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            importlib.import_module(f"onnx.backend.test.case.node.{module}")
        except ImportError:
            return  # it needs a package that is not here
        finally:
            np.random.set_state(state)
    for case in found[before:]:
        ready = _run(case)
        if ready is not None:
            yield ready


def _run(case: Any) -> NodeCase | None:
    runtime = _optional.onnxruntime()
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    inputs, _ = case.data_sets[0]
    with contextlib.suppress(Exception):  # onnxruntime's exception classes are private; what it does not run is no case
        session = runtime.InferenceSession(case.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        feeds = {entry.name: _plain(value) for entry, value in zip(session.get_inputs(), inputs, strict=False)}
        return NodeCase(case.name, case.model, feeds, session.run(None, feeds))
    return None


def _plain(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return value if isinstance(value, list) or value is None else np.asarray(value)


def outcome_of(case: NodeCase, dtype: str, device: Device) -> Outcome:
    """Compile and run one case."""
    try:
        results = _execute(case, dtype, device)
    except AnynpuError as error:
        return Outcome(case.name, dtype, "refused", error.message.splitlines()[0])
    except Exception as error:  # the point of the exercise: there should be none
        return Outcome(case.name, dtype, "untyped", f"{type(error).__name__}: {error}")
    for wanted, given in zip(case.expected, results, strict=True):
        text = _difference(np.asarray(wanted), given, TOLERANCE[dtype])
        if text:
            return Outcome(case.name, dtype, "wrong", text)
    return Outcome(case.name, dtype, "runs")


def _execute(case: NodeCase, dtype: str, device: Device) -> list[Array]:
    constants: dict[str, Any] = {}
    options: dict[str, Any] = {} if dtype == "fp16" else {"dataset": [case.feeds], "algorithm": "minmax", "accuracy": "fast"}
    while True:
        try:
            model = anynpu.compile(case.model, device.chip.name, dtype=dtype, constants=constants, **options)
            break
        except CompileError as error:
            if "constants=" not in error.hint or error.tensor in constants:
                raise
            constants[error.tensor] = case.feeds[error.tensor]
    with device.load(model).context() as context:
        return context.run({spec.name: case.feeds[spec.name] for spec in context.inputs})


def _difference(wanted: Array, given: Array, tolerance: float) -> str:
    if wanted.shape != given.shape:
        return f"{list(given.shape)} instead of {list(wanted.shape)}"
    if wanted.dtype.kind in "biu":
        share = float(np.mean(wanted.astype(np.float64) != given.astype(np.float64))) if wanted.size else 0.0
        return f"{100 * share:.0f} % of the whole numbers differ" if share else ""
    one, other = wanted.astype(np.float64), given.astype(np.float64)
    finite = np.isfinite(one)
    if (np.isfinite(other) != finite).any():
        return "numbers that are not finite differ"
    if not finite.any():
        return ""
    error = float(np.abs(one[finite] - other[finite]).max() / max(np.ptp(np.append(one[finite], 0.0)), 1e-6))
    return f"off by {error:.3f} of the span" if error > tolerance else ""


EXPECTED: tuple[tuple[str, str, str], ...] = (
    # why, what the outcome says, which cases
    (
        "the shape of the result depends on the data",
        "depends on the data",
        r"nonmaxsuppression|nonzero|unique|compress|tfidf|strnorm",
    ),
    (
        "there is nothing to run: no input is left",
        "do not depend on any input",
        r"window|constant|range|melweight|shape|size|eyelike|if$",
    ),
    ("sequences and optional values are no tensors", "has no tensor shape|INVALID_GRAPH", r"seq|opt|loop|split_to"),
    ("strings are no numbers", "string|type object|needs fixed numbers|opset", r"string|regex|label_encoder"),
    ("operators of trees and features (ai.onnx.ml)", "opset", r"ai_onnx_ml"),
    (
        "tensors without elements",
        "needs fixed numbers|no elements|takes|cannot be executed",
        r"empty|zero|out_of_bounds|allowzero",
    ),
    ("BitCast, and others that no chip has", "no float operator of this name", r"bitcast|.*"),
    ("training", "training mode", r"training"),
    ("a Scan of operator set 8, which has a batch", "has a batch", r"scan_sum"),
    ("not a number is no value to calibrate with", "NaN", r"attention.*(neginf|causal)"),
    ("steps of 8 between neighbours of 10000 in float16", "off by", r"softmax_large_number"),
    ("a product beyond 65504, or the lowest float32 as a mask", "not finite", r"reduce_prod_default_axes|qk_matmul_bias.*causal"),
    ("one code of the input is 6 % of the least value", "off by", r"reduce_min_default_axes_keepdims_example"),
    ("a step function at a number that is no code", "off by", r"thresholdedrelu_example"),
    ("an operator set before 7", "opset 1;", r"test_not_"),
    ("halves are rounded, and 8 bits do not hit them", "off by", r"^test_round$"),
    ("rounding to codes is that of float32", "whole numbers differ", r"dynamicquantizelinear_min_adjusted"),
)
"""Refusals and differences that are meant, by reason."""


def is_expected(outcome: Outcome) -> bool:
    """Whether an outcome is right, or one of those that are meant."""
    if outcome.kind == "runs":
        return True
    return outcome.kind != "untyped" and any(
        re.search(text, outcome.text) and re.search(cases, outcome.case) for _, text, cases in EXPECTED
    )
