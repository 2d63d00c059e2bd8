"""Detectors that were exported with their NonMaxSuppression: the network on the NPU, the rest on the host."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import pytest

import anynpu
from anynpu.compiler import Tail
from anynpu.compiler.importers.split_post_processing import ModelWithTail
from anynpu.errors import CompileError, FeedNameError, SessionError, UnsupportedOperatorError
from anynpu.modelfile.post_processing import tail_path

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
    with pytest.raises(FeedNameError, match="host post-processing reads"):
        Tail(model).run({})
    with pytest.raises(CompileError, match="this is no post-processing file"):
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


def test_sessions_give_what_the_onnx_model_gave(tmp_path: Path) -> None:
    proto = detector()
    (sample,) = feeds(proto, 1)
    path = anynpu.compile(proto, "rk3588", dtype="fp16").save(tmp_path / "yolo.rknn")
    (wanted,) = run_fp32(proto, [sample])
    names = [value.name for value in proto.graph.output]
    with anynpu.InferenceSession(path, device="sim:rk3588") as session:
        assert session.output_names == names
        assert session.get_outputs()[0].shape == [-1, 3]
        given = session.run(None, sample)
        (chosen,) = session.run([names[1]], sample)
        answered = session.submit(None, sample).result()
        with pytest.raises(SessionError, match="cannot run on bound memory"):
            session.backend.open_lane(0).run_bound((), (), None)
        with anynpu.InferenceSession(path, device="sim:rk3588", use_weight_from=session) as other:
            np.testing.assert_array_equal(other.run(None, sample)[0], wanted[0])
    for one, two, other_one in zip(wanted, given, answered, strict=True):
        assert one.dtype == two.dtype
        np.testing.assert_allclose(two, one, atol=2e-3)
        np.testing.assert_array_equal(other_one, two)
    np.testing.assert_array_equal(chosen, given[1])


def test_a_tail_of_another_model_is_refused(tmp_path: Path) -> None:
    path = anynpu.compile(detector(), "rk3588", dtype="fp16").save(tmp_path / "yolo.rknn")
    net = Net()
    net.output(net.op("Relu", net.input("x", (1, 4))))
    anynpu.compile(net.proto(), "rk3588", dtype="fp16").save(path)
    with pytest.raises(SessionError, match=r"yolo.tail.onnx is the post-processing file of another model"):
        anynpu.InferenceSession(path, device="sim:rk3588")


@pytest.mark.parametrize("batch", [1, "batch"])
def test_onnx_files_as_onnxruntime_takes_them(batch: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled at first use, with fixed and with dynamic shapes."""
    monkeypatch.setenv("ANYNPU_CACHE", str(tmp_path / "cache"))
    proto = detector()
    (sample,) = feeds(proto, 1)
    (wanted,) = run_fp32(proto, [sample])
    if isinstance(batch, str):
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = batch
    onnx.save(proto, tmp_path / "yolo.onnx")
    options = anynpu.session.onnxruntime.SessionOptions()
    options.add_session_config_entry("anynpu.dtype", "fp16")
    with anynpu.session.onnxruntime.InferenceSession(str(tmp_path / "yolo.onnx"), options) as session:
        for one, two in zip(wanted, session.run(None, sample), strict=True):
            np.testing.assert_allclose(two, one, atol=2e-3)
