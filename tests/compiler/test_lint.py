"""Lint names the tensors that suffer, and is silent where nothing does."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from diseased_network import STEM, diseased_network, diseased_samples
from onnx import TensorProto, helper, numpy_helper

import anynpu
from anynpu.compiler import Finding, lint
from anynpu.compiler.quantize.lint import RULES

SAMPLES = diseased_samples(6)


def by_rule(findings: list[Finding]) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for finding in findings:
        assert finding.rule in RULES
        assert finding.remedy
        assert finding.numbers
        found.setdefault(finding.rule, []).append(finding)
    return found


@pytest.fixture(scope="module")
def diseased() -> dict[str, list[Finding]]:
    return by_rule(lint(diseased_network(), dataset=SAMPLES))


@pytest.mark.parametrize(
    ("rule", "tensor", "severity"),
    [
        ("group-noise", STEM, "error"),
        ("first-layers", STEM, "warning"),
        ("starved-channels", STEM, "warning"),
        ("cancellation", "depth_act", "warning"),
    ],
)
def test_lint_reports_the_tensor_and_its_rule(diseased: dict[str, list[Finding]], rule: str, tensor: str, severity: str) -> None:
    finding = next(entry for entry in diseased[rule] if entry.tensor == tensor)
    assert finding.severity == severity
    assert str(finding).startswith(f"{severity}: {tensor}: ")


def test_a_flat_table_is_named() -> None:
    """Only where a code stands before the table: Rockchip's tables see the unrounded sum, and so does the vendor's simulator."""
    found = lint(diseased_network(), "t527", dataset=SAMPLES)
    finding = next(entry for entry in found if entry.rule == "flat-table" and entry.tensor == "stem")
    assert str(finding).startswith("note: stem: ")
    for arithmetic in ("chip", "simulator"):
        rules = {
            entry.rule for entry in lint(diseased_network(), dataset=SAMPLES, arithmetic=arithmetic) if entry.tensor == "stem"
        }
        assert "flat-table" not in rules


def test_the_worst_comes_first() -> None:
    severities = [finding.severity for finding in lint(diseased_network(), dataset=SAMPLES)]
    assert severities == sorted(severities, key=["error", "warning", "note"].index)


def small_network(**extra: Any) -> onnx.ModelProto:
    """One convolution with Relu, one dense layer of two classes."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((8, 3, 3, 3)), "v": rng.standard_normal((8, 2))}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Sigmoid", ["c"], ["s"]),
        helper.make_node("GlobalAveragePool", ["s"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "v"], ["y"], "dense"),
        *extra.get("nodes", ()),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2]), *extra.get("outputs", ())]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])],
        outputs,
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def pictures(count: int = 6, scale: float = 1.0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    return [{"x": (scale * rng.standard_normal((1, 3, 16, 16))).astype(np.float32)} for _ in range(count)]


def test_a_healthy_network_has_notes_at_most() -> None:
    findings = lint(small_network(), dataset=pictures())
    assert {finding.severity for finding in findings} <= {"note"}
    assert [finding.tensor for finding in findings if finding.rule == "two-classes"] == ["y"]


def joined(factor: float) -> onnx.ModelProto:
    """Boxes and scores in one output, as exporters of detectors write them: boxes are *factor* times as large."""
    rng = np.random.default_rng(0)
    weights = {"b": rng.standard_normal((4, 3, 1, 1)), "s": rng.standard_normal((2, 3, 1, 1)), "factor": np.array(factor)}
    nodes = [
        helper.make_node("Conv", ["x", "b"], ["places"]),
        helper.make_node("Mul", ["places", "factor"], ["boxes"]),
        helper.make_node("Conv", ["x", "s"], ["logits"]),
        helper.make_node("Sigmoid", ["logits"], ["scores"]),
        helper.make_node("Concat", ["boxes", "scores"], ["both"], axis=1),
        helper.make_node("Reshape", ["both", "shape"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "joined",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 6, 256])],
        [
            *(numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()),
            numpy_helper.from_array(np.array([1, 6, 256]), "shape"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def test_scores_that_share_an_output_with_boxes() -> None:
    (finding,) = by_rule(lint(joined(100.0), dataset=pictures()))["mixed-output"]
    assert (finding.severity, finding.tensor) == ("error", "y")
    assert "'scores'" in finding.text
    assert finding.numbers["codes"] < 1
    assert "--hybrid y" in finding.remedy
    assert "mixed-output" not in by_rule(lint(joined(0.5), dataset=pictures()))


def test_compiling_warns_of_scores_that_are_lost_and_the_remedy_helps() -> None:
    samples = pictures()
    options: dict[str, Any] = {"dataset": samples, "accuracy": "fast"}
    lost = anynpu.compile(joined(100.0), without=["mixed"], **options)
    kept = anynpu.compile(joined(100.0), without=["mixed"], hybrid=["y"], **options)
    assert "error: y: it has one scale" in lost.provenance["warnings"]
    assert "it has one scale" not in kept.provenance.get("warnings", "")


def faint(size: float) -> onnx.ModelProto:
    """A convolution whose results have about this size, and its Swish."""
    rng = np.random.default_rng(0)
    weights = numpy_helper.from_array((size * rng.standard_normal((8, 3, 3, 3))).astype(np.float32), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Sigmoid", ["c"], ["s"]),
        helper.make_node("Mul", ["c", "s"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "faint",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 14, 14])],
        [weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def test_results_that_the_chips_table_does_not_resolve() -> None:
    samples = pictures()
    (finding,) = by_rule(lint(faint(1e-4), dataset=samples))["coarse-table"]
    assert (finding.severity, finding.tensor) == ("error", "y")
    assert "coarse-table" not in by_rule(lint(faint(0.1), dataset=samples))
    options: dict[str, Any] = {"dataset": samples, "accuracy": "fast"}
    lost = anynpu.compile(faint(1e-4), **options)
    assert "the chip's table" in lost.provenance["warnings"]
    for other in ({"hybrid": ["y"]}, {"arithmetic": "simulator"}):
        assert "the chip's table" not in anynpu.compile(faint(1e-4), **options, **other).provenance.get("warnings", "")


def test_one_sample_that_sets_the_range() -> None:
    samples = pictures()
    samples[3] = {"x": samples[3]["x"] * 20.0}
    found = by_rule(lint(small_network(), dataset=samples))["one-sample"]
    assert [finding.numbers["sample"] for finding in found] == [4.0] * len(found)
    assert "c" in [finding.tensor for finding in found]


def test_a_second_reader_blocks_a_fusion() -> None:
    extra = helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 8, 16, 16])
    network = small_network(nodes=[helper.make_node("MaxPool", ["c"], ["z"], kernel_shape=[1, 1])], outputs=[extra])
    (finding,) = by_rule(lint(network, dataset=pictures()))["second-reader"]
    assert finding.tensor == "c"


def test_unequal_channels_of_a_picture() -> None:
    raw = [{"x": np.random.default_rng(seed).integers(0, 256, (1, 3, 16, 16)).astype(np.uint8)} for seed in range(4)]
    unequal = by_rule(lint(small_network(), dataset=raw, mean=(124, 116, 104), std=(58, 57, 40)))
    assert [finding.tensor for finding in unequal["input-steps"]] == ["x"]
    equal = by_rule(lint(small_network(), dataset=raw, mean=(0, 0, 0), std=(255, 255, 255)))
    assert "input-steps" not in equal


def test_compiling_warns_of_what_is_left_over() -> None:
    rescued = anynpu.compile(diseased_network(), dataset=SAMPLES)
    assert STEM not in rescued.provenance.get("warnings", "")
    spoilt = anynpu.compile(diseased_network(), dataset=SAMPLES, channel_groups=1)
    assert f"error: {STEM}: two groups" in spoilt.provenance["warnings"]


def test_clipped_heads_are_an_error() -> None:
    rng = np.random.default_rng(4)
    samples = [
        {"x": (rng.standard_normal((1, 3, 32, 32)) * (1 + 4 * (rng.random((1, 3, 32, 32)) > 0.999))).astype(np.float32)}
        for _ in range(6)
    ]
    options: dict[str, Any] = {"dataset": samples, "percentile": 99.0}
    assert "clipped" not in anynpu.compile(diseased_network(), **options).provenance.get("warnings", "")
    assert "are cut to" in anynpu.compile(diseased_network(), **options, without=["heads"]).provenance["warnings"]
