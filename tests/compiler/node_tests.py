"""ONNX's own tests of operators, where onnxruntime runs them: compiled, executed, compared.

The cases are those of ``onnx.backend.test``: one small model each, with inputs. An input that the compiler wants as a constant (the shape
of a Reshape) is given as one, as its message states.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import warnings
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

import anynpu
from anynpu._util import optional as _optional
from anynpu.compiler import Tail
from anynpu.compiler.importers.split_post_processing import ModelWithTail
from anynpu.errors import AnynpuError, CompileError
from anynpu.modelfile.validate import validate_model
from anynpu.npu import Device

Array = npt.NDArray[Any]

PARTS = 8
TOLERANCE = {"fp16": 0.01, "w8a8": 0.05}
"""Largest error of real numbers, relative to the span of the result."""


@dataclass(frozen=True, eq=False)
class NodeCase:
    """A model, its inputs by name, and what onnxruntime makes of them; also what ONNX expects, which is not always the same."""

    name: str
    model: onnx.ModelProto
    feeds: dict[str, Any]
    expected: list[Any]
    declared: list[Any]


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
    inputs, outputs = case.data_sets[0]
    with contextlib.suppress(Exception):  # onnxruntime's exception classes are private; what it does not run is no case
        session = runtime.InferenceSession(case.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        feeds = {entry.name: _plain(value) for entry, value in zip(session.get_inputs(), inputs, strict=False)}
        return NodeCase(case.name, case.model, feeds, session.run(None, feeds), [_plain(value) for value in outputs])
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
    texts = [_differences(_flat(expected), results, TOLERANCE[dtype]) for expected in (case.expected, case.declared)]
    return Outcome(case.name, dtype, "wrong", texts[0]) if all(texts) else Outcome(case.name, dtype, "runs")


def _differences(expected: Sequence[Array], results: Sequence[Array], tolerance: float) -> str:
    if len(expected) != len(results):
        return f"{len(results)} results instead of {len(expected)}"
    texts = (_difference(wanted, given, tolerance) for wanted, given in zip(expected, results, strict=True))
    return next(filter(None, texts), "")


def _execute(case: NodeCase, dtype: str, device: Device) -> list[Array]:
    feeds, shapes, constants = _as_tensors(case)
    options: dict[str, Any] = {} if dtype == "fp16" else {"dataset": [feeds], "algorithm": "minmax", "accuracy": "fast"}
    while True:
        try:
            model = anynpu.compile(case.model, device.chip.name, dtype=dtype, constants=constants, shapes=shapes, **options)
            break
        except CompileError as error:
            if "constants=" not in error.hint or error.tensor in constants:
                raise
            constants[error.tensor] = feeds[error.tensor]
    validate_model(model)  # as a file it would be looked at like this
    with device.load(model).context() as context:
        results = context.run({spec.name: feeds[spec.name] for spec in context.inputs})
        if isinstance(model, ModelWithTail):  # as sessions do
            tail = Tail(model)
            results = tail.run(dict(zip((spec.name for spec in context.outputs), results, strict=True)), tail.order)
        return results


def _as_tensors(case: NodeCase) -> tuple[dict[str, Array], dict[str, tuple[int, ...]], dict[str, Any]]:
    """Feeds that are tensors, shapes that have to be said, and constants.

    The shapes state what an dynamic dimension is, how many tensors a sequence has, and that an input has no elements.
    """
    feeds: dict[str, Array] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    constants: dict[str, Any] = {}
    axes = {value.name: value.type.tensor_type.shape.dim for value in case.model.graph.input}
    for name, value in case.feeds.items():
        if isinstance(value, list) and value:
            feeds.update({f"{name}.{index}": np.asarray(element) for index, element in enumerate(value)})
            shapes.update({f"{name}.{index}": np.shape(element) for index, element in enumerate(value)})
        elif value is None or isinstance(value, list):
            constants[name] = value
        else:
            feeds[name] = value
            if not value.size or not all(axis.dim_value for axis in axes[name]):
                shapes[name] = value.shape
    return feeds, shapes, constants


def _flat(values: Sequence[Any]) -> list[Array]:
    """Results as tensors: a sequence is its elements."""
    return [np.asarray(element) for value in values for element in (value if isinstance(value, list) else [value])]


def _difference(wanted: Array, given: Array, tolerance: float) -> str:
    if wanted.shape != given.shape:
        return f"{list(given.shape)} instead of {list(wanted.shape)}"
    if wanted.dtype.kind in "biu":
        share = float(np.mean(wanted.astype(np.float64) != given.astype(np.float64))) if wanted.size else 0.0
        return f"{100 * share:.0f} % of the integers differ" if share else ""
    one, other = wanted.astype(np.float64), given.astype(np.float64)
    finite = np.isfinite(one)
    if (np.isfinite(other) != finite).any():
        return "numbers that are not finite differ"
    if not finite.any():
        return ""
    error = float(np.abs(one[finite] - other[finite]).max() / max(np.ptp(np.append(one[finite], 0.0)), 1e-6))
    return f"off by {error:.3f} of the span" if error > tolerance else ""


@dataclass(frozen=True)
class Reason:
    """Why cases do not run.

    :ivar outcome: what is said of them
    :ivar cases: their names, without ``test_``
    :ivar dtypes: the types in which they do not
    """

    text: str
    outcome: str
    cases: tuple[str, ...]
    dtypes: tuple[str, ...] = ("fp16", "w8a8")


_STRINGS = (
    *("string_concat", "string_concat_broadcasting", "string_concat_empty_string", "string_concat_utf8"),
    *("string_concat_zero_dimensional", "string_split_basic", "string_split_consecutive_delimiters"),
    *("string_split_empty_string_delimiter", "string_split_empty_tensor", "string_split_maxsplit", "string_split_no_delimiter"),
    *("strnormalizer_export_monday_casesensintive_nochangecase", "strnormalizer_nostopwords_nochangecase"),
    *("equal_string", "equal_string_broadcast", "regex_full_match_basic", "regex_full_match_email_domain"),
)
_LARGE = tuple(
    f"{name}_large_number{form}" for name in ("softmax", "logsoftmax") for form in ("", "_expanded", "_expanded_ver18")
)

REASONS = (
    Reason("strings are no numbers", "the type (tensor.string|object)", _STRINGS),
    Reason(
        "Dropout in training is random",
        "training mode",
        ("training_dropout", "training_dropout_default", "training_dropout_default_mask", "training_dropout_mask"),
    ),
    Reason(
        "BatchNormalization in training has the statistics of the batch",
        "training mode",
        ("batchnorm_example_training_mode", "batchnorm_epsilon_training_mode"),
    ),
    Reason("10000 to 10003 are one number in float16", "off by", _LARGE),
    Reason("a product beyond 65504", "not finite", ("reduce_prod_default_axes_keepdims_example",)),
    Reason("2.345 in float16 lies on the other side of a half", "integers differ", ("dynamicquantizelinear_min_adjusted",)),
    Reason(
        "2.345 in float16 lies on the other side of a half",
        "integers differ",
        ("dynamicquantizelinear_min_adjusted_expanded",),
        ("fp16",),
    ),
    Reason(
        "the overlap is 1/7, and the limit 1/7 in float16 is less", "instead of", ("nonmaxsuppression_iou_threshold_boundary",)
    ),
    Reason(
        "values behind a mask are so far that no quantized value is left for the others",
        "off by",
        ("attention_4d_softcap_neginf_mask_poison_expanded",),
        ("w8a8",),
    ),
)
"""All cases that do not run, or give something else, by reason; with the version of ONNX that they were seen with."""


def listed(dtype: str) -> dict[str, Reason]:
    """The reason of each case that does not run in a type."""
    return {f"test_{name}": reason for reason in REASONS if dtype in reason.dtypes for name in reason.cases}
