"""Options of a wrong type: an error of the tree that names the option and what it takes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import anynpu
from anynpu.compiler.quantize.metrics import metric_of
from anynpu.errors import CompileError, CompileOptionError, OptionTypeError
from anynpu.serve.options import ServeOptions


@pytest.mark.parametrize(
    ("name", "value", "takes"),
    [
        ("dtype", 3, "a string"),
        ("batch", "2", "an integer or None"),
        ("batch", 2.5, "an integer or None"),
        ("batch", True, "an integer or None"),
        ("mean", "a", "a number, a list of them"),
        ("mean", ["a", "b", "c"], "a number, a list of them"),
        ("std", [1, 2, None], "a number, a list of them"),
        ("std", {"x": "1"}, "a dict of either by input name"),
        ("channel_order", ["bgr"], "a string, or a dict"),
        ("shapes", 3, "a dict of shapes by input name"),
        ("shapes", {"x": 3}, "a dict of shapes by input name"),
        ("shapes", {"x": "1,3,8,8"}, "a dict of shapes by input name"),
        ("shapes", {"x": (1, 3, 8.5, 8)}, "a dict of shapes by input name"),
        ("shapes", [], "a dict of shapes by input name"),
        ("constants", [1], "a dict of values by input name"),
        ("algorithm", None, "a string"),
        ("percentile", "a", "a number"),
        ("channel_groups", 1.5, "an integer or None"),
        ("per_channel", "yes", "True, False or None"),
        ("without", "refit", "a list of strings"),
        ("without", None, "a list of strings"),
        ("metric", [], "the name of a metric, or a function"),
        ("time_budget", "a", "a number"),
        ("calibration_limit", "3", "an integer or None"),
        ("hybrid", "conv1", "a list of strings"),
        ("keep_float_outputs", "no", "True or False"),
        ("custom_ops", 3, "a list of names of operators"),
        ("tail", None, "a string"),
        ("name", b"net", "a string"),
        ("arithmetic", 3, "a string or None"),
        ("ranges", {"c": 3}, "(scale, zero point) by tensor name"),
        ("ranges", "ranges.json", "(scale, zero point) by tensor name"),
        ("options", 3, "a CompileOptions"),
        ("progress", 3, "a function"),
    ],
)
def test_value_of_a_wrong_type(name: str, value: Any, takes: str) -> None:
    with pytest.raises(CompileOptionError) as caught:
        anynpu.compile("never read.onnx", **{name: value})
    assert isinstance(caught.value, TypeError)
    assert caught.value.message.startswith(f"{name} takes ")
    assert takes in caught.value.message
    assert caught.value.hint


def test_unknown_option() -> None:
    with pytest.raises(CompileOptionError, match="there is no option 'batches'; did you mean batch") as caught:
        anynpu.compile("never read.onnx", batches=1)
    assert "calibration_limit" in caught.value.hint


def test_numbers_of_numpy_and_sets_of_names_are_fine() -> None:
    options = anynpu.CompileOptions(
        batch=np.int64(2),  # type: ignore[arg-type]
        percentile=np.float32(99.5),  # type: ignore[arg-type]
        mean=np.array([1.0, 2.0, 3.0]),  # type: ignore[arg-type]
        std={"x": np.float64(2)},
        shapes={"x": np.array([1, 3, 8, 8])},  # type: ignore[dict-item]
        hybrid={"a", "b"},  # type: ignore[arg-type]
    )
    assert options.batch == 2


def test_other_tables() -> None:
    with pytest.raises(OptionTypeError, match=r"port takes an integer, got '80' \(str\)"):
        ServeOptions(port="80")  # type: ignore[arg-type]


def metric_without_arguments() -> float:
    return 0.0


def metric_of_words(expected: Any, given: Any) -> str:
    return "good"


def metric_that_fails(expected: Any, given: Any) -> float:
    raise ZeroDivisionError("by nothing")


@pytest.mark.parametrize("metric", [metric_without_arguments, metric_of_words, metric_that_fails])
def test_metric_that_fails_is_named(metric: Any) -> None:
    _, judged = metric_of(metric, [(1, 4)])
    with pytest.raises(CompileError, match=f"the metric {metric.__name__} failed: ") as caught:
        judged([np.ones(4)], [np.ones(4)])
    assert caught.value.__cause__ is not None


def test_metric_that_gives_no_number() -> None:
    _, judged = metric_of(lambda expected, given: float("nan"), [(1, 4)])
    with pytest.raises(CompileError, match="NaN"):
        judged([np.ones(4)], [np.ones(4)])


def test_the_package_is_a_command() -> None:
    done = subprocess.run([sys.executable, "-m", "anynpu", "--version"], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert anynpu.__version__ in done.stdout
