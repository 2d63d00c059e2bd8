"""Detectors that were exported with their NonMaxSuppression: the network on the NPU, the rest on the host."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import pytest

import anynpu
from anynpu.compiler import Tail
from anynpu.compiler.tail import ModelWithTail, tail_path
from anynpu.errors import CompileError, FeedNameError, UnsupportedOperatorError

from .onnx_builders import Array, Net, feeds
from .running import run_fp32


def detector() -> onnx.ModelProto:
    """Sixteen boxes of four numbers and two classes, and what NonMaxSuppression selects of them."""
    net = Net()
    x = net.input("x", (1, 3, 4, 4))
    features = net.op("Relu", net.conv(x, 8, pads=[1, 1, 1, 1]))
    net.shapes[features] = (0, 8)
    boxes = net.op("Sigmoid", net.conv(features, 4, 1))
    scores = net.op("Sigmoid", net.conv(features, 2, 1))
    boxes = net.op("Transpose", net.op("Reshape", boxes, net.constant([1, 4, 16])), perm=[0, 2, 1])
    scores = net.op("Reshape", scores, net.constant([1, 2, 16]))
    limits = net.constant([5]), net.constant([0.5]), net.constant([0.1])
    selected = net.op("NonMaxSuppression", boxes, scores, *limits)
    places = net.op("Gather", selected, net.constant(np.array(2)), axis=1)
    chosen = net.op("Gather", boxes, places, axis=1)
    net.output(selected, chosen, scores)
    return net.proto()


def ends(model: anynpu.Model, sample: dict[str, Array]) -> dict[str, Array]:
    with anynpu.Device(model.chip) as device, device.load(model).context() as context:
        return dict(zip((spec.name for spec in context.outputs), context.run(sample), strict=True))


@pytest.mark.parametrize("dtype", ["fp16", "w8a8"])
def test_a_detector_with_its_suppression_works_from_end_to_end(
    dtype: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    proto = detector()
    samples = feeds(proto, 4)
    with caplog.at_level(logging.WARNING, "anynpu.compiler"):
        model = anynpu.compile(proto, "rk3588", dtype=dtype, dataset=samples, algorithm="minmax")
    assert "'NonMaxSuppression' at the end runs on the host: the model ends in" in caplog.text
    assert isinstance(model, ModelWithTail)
    path = model.save(tmp_path / "yolo.rknn")
    tail = Tail(path)
    names = [value.name for value in proto.graph.output]
    for sample, wanted in zip(samples, run_fp32(proto, samples), strict=True):
        found = ends(model, sample)
        boxes, scores = (found[name] for name in tail.inputs)
        given = tail.run(found, names)
        assert [entry.shape[1:] for entry in given] == [entry.shape[1:] for entry in wanted]
        np.testing.assert_allclose(boxes[0, given[0][:, 2]], given[1][0], rtol=1e-6)  # it is about the boxes that the NPU gave
        np.testing.assert_allclose(scores, wanted[2], atol=0.03)
        if dtype == "fp16":
            np.testing.assert_array_equal(given[0], wanted[0])
            np.testing.assert_allclose(given[1], wanted[1], atol=2e-3)


def test_the_tail_can_be_cut(tmp_path: Path) -> None:
    model = anynpu.compile(detector(), "rk3588", dtype="fp16", tail="cut")
    assert not isinstance(model, ModelWithTail)
    path = model.save(tmp_path / "yolo.rknn")
    assert not tail_path(path).exists()
    with pytest.raises(CompileError, match="there is no file"):
        Tail(path)


def test_check_looks_at_what_the_npu_would_run() -> None:
    assert anynpu.check(detector(), "rk3588").layers


def test_what_the_tail_reads_has_to_be_given() -> None:
    model = anynpu.compile(detector(), "rk3588", dtype="fp16")
    assert isinstance(model, ModelWithTail)
    with pytest.raises(FeedNameError, match="the tail reads"):
        Tail(model).run({})
    with pytest.raises(CompileError, match="this is no tail"):
        Tail(b"nothing")


def test_what_stands_in_the_middle_is_refused() -> None:
    net = Net()
    x = net.input("x", (1, 3, 4, 4))
    places = net.op("NonZero", net.conv(x, 4, pads=[1, 1, 1, 1]))
    rows = net.op("Cast", net.op("Transpose", places, perm=[1, 0]), to=1)
    net.output(net.op("Gemm", rows, net.weights(4, 4)))
    with pytest.raises(UnsupportedOperatorError, match="depends on the data"):
        anynpu.compile(net.proto(), "rk3588", dtype="fp16")


def test_places_in_a_constant_are_a_constant() -> None:
    """Exports of transformers have such: nothing of it depends on the data."""
    net = Net()
    x = net.input("x", (2, 6))
    places = net.op("Reshape", net.op("NonZero", net.constant([0.0, 1.0, 0.0, 1.0, 1.0, 0.0])), net.constant([3]))
    net.output(net.op("Gather", x, places, axis=1))
    model = anynpu.compile(net.proto(), "rk3588", dtype="fp16")
    assert model.outputs[0].shape == (2, 3)
