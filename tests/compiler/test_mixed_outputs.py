"""Outputs that join boxes in pixels and scores from 0 to 1 keep their detections in int8 models, without a hint from the user."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import onnx
import pytest

from anynpu.compiler.quantize.metrics import detections, metric_of, soft_detections
from anynpu.compiler.quantize.search import Score
from anynpu.compiler.warnings import warn_of_loss
from anynpu.tensor import DType

from . import detectors
from .onnx_builders import Net, feeds
from .running import Run, execute

KINDS = ("yolov5", "yolov8", "yolo11")
SURE = 0.3


def compiled(kind: str, target: str, **options: object) -> Run:
    proto = detectors.plain(kind)
    images = feeds(proto, 24, seed=1)
    return execute(proto, target, samples=images[12:], dataset=images[:12], **({"algorithm": "percentile"} | options))


def rows(output: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Boxes as x, y, width, height, and scores by class."""
    if output.shape[1] < output.shape[2]:
        return output[0, :4].T, output[0, 4:].T
    return output[0, :, :4], output[0, :, 5:] * output[0, :, 4:5]


def overlap(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    low = np.maximum(first[:, :2] - first[:, 2:] / 2, second[:, :2] - second[:, 2:] / 2)
    high = np.minimum(first[:, :2] + first[:, 2:] / 2, second[:, :2] + second[:, 2:] / 2)
    shared = np.maximum(high - low, 0).prod(axis=1)
    return shared / np.maximum(first[:, 2:].prod(axis=1) + second[:, 2:].prod(axis=1) - shared, 1e-9)


def kept(run: Run) -> tuple[int, int]:
    """How many detections the float model has, and how many of them the compiled model has at the same place and of the same class."""
    found = same = 0
    for (expected,), (given,) in zip(run.expected, run.results, strict=True):
        (boxes, scores), (others, its) = rows(expected.astype(np.float64)), rows(given.astype(np.float64))
        sure = scores.max(axis=1) > SURE
        right = (its.max(axis=1) > SURE * 0.8) & (its.argmax(axis=1) == scores.argmax(axis=1)) & (overlap(boxes, others) > 0.5)
        found += int(sure.sum())
        same += int((sure & right).sum())
    return same, found


@pytest.mark.parametrize("target", ["rk3588", "rk3566", "rv1106"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_export_keeps_its_detections(kind: str, target: str) -> None:
    run = compiled(kind, target)
    same, found = kept(run)
    assert found >= 20
    assert same >= 0.9 * found
    proto = detectors.plain(kind)
    assert list(run.program.outputs) == [output.name for output in proto.graph.output]
    assert run.program.output_specs[0].shape == run.expected[0][0].shape
    assert run.program.output_specs[0].dtype is not DType.INT8


def test_one_line_says_what_was_done_and_how_to_undo_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "anynpu.compiler"):
        model = compiled("yolov8", "rk3588").model
    (line,) = [record.getMessage() for record in caplog.records if "joins values" in record.getMessage()]
    assert line == model.provenance["mixed_outputs"]
    for part in (f"'{model.programs[0].outputs[0]}'", "float16", "ms predicted", "want_float=0", "--without mixed"):
        assert part in line
    caplog.clear()
    run = compiled("yolov8", "rk3588", without=["mixed"])
    assert run.program.output_specs[0].dtype is DType.INT8
    assert len(np.unique([rows(given)[1] for (given,) in run.results])) <= 4, "one step for boxes and scores"
    assert "joins values" not in caplog.text


def test_without_mixed_it_is_an_error_in_the_findings() -> None:
    assert "one scale" in compiled("yolov8", "rk3588", without=["mixed"]).model.provenance["warnings"]
    assert "one scale" not in compiled("yolov8", "rk3588").model.provenance.get("warnings", "")


def test_a_detector_is_judged_by_its_detections_without_a_hint() -> None:
    run = compiled("yolov8", "rk3588")
    assert "detections" in run.model.provenance["accuracy"]
    expected = [list(entry) for entry in run.expected]
    assert metric_of(None, [expected[0][0].shape], expected)[1] is detections
    classes = [[np.array([[0.1, 0.9]], np.float32)]]
    assert metric_of(None, [(1, 2)], classes)[0] == "margin"
    assert metric_of(None, [(1, 8, 40)], [[np.zeros((1, 8, 40), np.float32)]])[0] == "cosine"


def test_a_detector_is_also_tried_with_wider_ranges() -> None:
    """Sparse scores lie above a percentile: a trained YOLOv8n kept 73 of 91 detections with 99.99, and 83 with all values."""
    notes = compiled("yolov8", "rk3588").model.provenance["accuracy"]
    for ranges in ("percentile 99.99", "percentile 99.999", "minmax"):
        assert f"tried: {ranges}, " in notes
    assert "tried: minmax" not in compiled("yolov8", "rk3588", percentile=99.95).model.provenance["accuracy"]


def test_scores_that_shrink_are_seen_below_every_threshold() -> None:
    output = np.zeros((1, 6, 40), np.float32)
    output[0, :4] = [[10.0], [10.0], [4.0], [4.0]]
    output[0, 4, 3] = 0.25
    weaker = output.copy()
    weaker[0, 4, 3] = 0.15
    assert detections([output], [weaker]) == 1.0
    assert soft_detections([output], [output]) == 1.0
    assert soft_detections([output], [weaker]) < 0.7


def test_keypoints_are_no_scores() -> None:
    output = np.zeros((1, 11, 40), np.float32)
    output[0, :4] = [[10.0], [10.0], [4.0], [4.0]]
    output[0, 4, 3] = 0.9
    output[0, 5:] = 50.0
    assert detections([output], [output * 1.0]) == 1.0
    lost = output.copy()
    lost[0, 4] = 0.0
    assert detections([output], [lost]) == 0.0


def test_a_network_with_outputs_of_its_own_is_left_alone() -> None:
    run = execute(detectors.yolov8(), "rk3588", accuracy="fast")
    assert {spec.dtype for spec in run.program.output_specs} == {DType.INT8}
    assert "mixed_outputs" not in run.model.provenance


def anchors(scale: float) -> onnx.ModelProto:
    """Boxes and raw scores of the same anchors, as BlazeFace has them: most scores lie far below zero, and none far above."""
    net = Net(seed=2)
    feature = net.op("Relu", net.conv(net.input("x", (1, 3, 32, 32)), 8, strides=[2, 2], pads=[1, 1, 1, 1]))
    boxes = net.conv(feature, 16, 1, cin=8)
    kernel = net.constant(-scale * np.abs(net.random.normal(size=(1, 8, 1, 1))).astype(np.float32))
    scores = net.op("Conv", feature, kernel, net.constant(np.full(1, 4.0, np.float32)))
    for values, channels in ((boxes, 16), (scores, 1)):
        net.output(net.op("Reshape", net.op("Transpose", values, perm=[0, 2, 3, 1]), net.constant([1, 256, channels])))
    return net.proto()


@pytest.mark.parametrize("target", ["rk3588", "rv1106"])
def test_raw_scores_far_below_zero_leave_those_near_it_their_values(target: str) -> None:
    proto = anchors(60.0)
    images = feeds(proto, 24, seed=1)
    run = execute(proto, target, samples=images[12:], dataset=images[:12])
    expected, given = (np.stack([outputs[1] for outputs in entries]) for entries in (run.expected, run.results))
    assert expected.min() < -100.0
    assert run.program.output_specs[1].quantization.scale < 0.1  # type: ignore[union-attr]
    assert np.all(given[expected < -50.0] < -5.0), "what is no detection stays none"
    assert "cut to" not in run.model.provenance.get("warnings", "")
    assert {spec.dtype for spec in run.program.output_specs} == {DType.INT8}


def test_only_scores_next_to_boxes_are_cut_off() -> None:
    alone = anchors(60.0)
    del alone.graph.output[0]
    run = execute(alone, samples=feeds(alone, 6))
    assert run.program.output_specs[0].quantization.scale > 0.3  # type: ignore[union-attr]
    near = anchors(0.5)
    run = execute(near, samples=feeds(near, 6))
    lowest = min(float(outputs[1].min()) for outputs in run.expected)
    assert min(float(outputs[1].min()) for outputs in run.results) == pytest.approx(lowest, rel=0.1)


def test_a_loss_of_more_than_two_percent_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    names = ["boxes", "scores"]
    good = Score(0.99, 0.99, 0.98, shown=0.985, outputs=(0.99, 0.99))
    with caplog.at_level(logging.WARNING, "anynpu.compiler"):
        warn_of_loss(good, [], "detections", names)
        warn_of_loss(None, [], "detections", names)
        warn_of_loss(replace(good, shown=0.9), [], "margin", names)
        assert not caplog.text
        warn_of_loss(replace(good, shown=0.97), [], "detections", names)
        assert "keeps detections 0.97" in caplog.text
        caplog.clear()
        warn_of_loss(replace(good, outputs=(0.999, 0.95)), [], "cosine", names)
        assert "cosine 0.95 in output 'scores'" in caplog.text
