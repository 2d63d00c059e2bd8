"""The ONNX-to-ONNX rewrite: the same function, and onnxruntime's own quantizer keeps more of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from diseased_network import STEM, diseased_network, diseased_samples
from onnx import TensorProto, helper, numpy_helper

from anynpu._util import optional as _optional
from anynpu.compiler import optimize
from anynpu.compiler.quantize.search import Score

from .running import run_fp32

Array = npt.NDArray[Any]

CALIBRATION = diseased_samples(6)
HELD_OUT = diseased_samples(4, 1000)


def explained(expected: list[list[Array]], given: list[list[Array]]) -> float:
    """The share of the output's variance over the image that is still there."""
    shares = []
    for (first,), (second,) in zip(expected, given, strict=True):
        moving = first - first.mean(axis=(2, 3), keepdims=True)
        shares.append(1.0 - float(((first - second) ** 2).sum() / (moving**2).sum()))
    return float(np.mean(shares))


def quantised_elsewhere(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """The model after onnxruntime's static quantizer with its own defaults."""
    _optional.onnxruntime()
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._samples = iter(CALIBRATION)

        def get_next(self) -> dict[str, Array] | None:
            return next(self._samples, None)

    source, result = folder / "float.onnx", folder / "int8.onnx"
    onnx.save(model, source)
    quantize_static(source, result, Reader())
    return onnx.load(result)


def test_another_quantiser_keeps_more(tmp_path: Path) -> None:
    network = diseased_network()
    better = optimize(network, dataset=CALIBRATION)
    assert list(better.groups) == [STEM]
    assert better.groups[STEM][0] == 4
    assert better.relative_error < 1e-5
    expected = run_fp32(network, HELD_OUT)
    np.testing.assert_allclose(run_fp32(better.model, HELD_OUT)[0][0], expected[0][0], rtol=1e-3, atol=1e-3)
    before = explained(expected, run_fp32(quantised_elsewhere(network, tmp_path), HELD_OUT))
    after = explained(expected, run_fp32(quantised_elsewhere(better.model, tmp_path), HELD_OUT))
    assert before < 0.5
    assert after > 0.95


def test_names_of_inputs_and_outputs_stay() -> None:
    better = optimize(diseased_network(), dataset=CALIBRATION)
    onnx.checker.check_model(better.model)
    assert [value.name for value in better.model.graph.input] == ["x"]
    assert [value.name for value in better.model.graph.output] == ["y"]
    assert better.nodes[1] > better.nodes[0]


def test_nothing_is_split_where_nothing_gains() -> None:
    better = optimize(diseased_network(), dataset=CALIBRATION, channel_groups=1)
    assert better.groups == {}
    assert better.largest_error == 0.0


@pytest.mark.parametrize("reader", ["dense", "depthwise chain", "both"])
def test_parts_of_every_kind_of_reader_add_up(reader: str) -> None:
    """A wide spread in a first convolution, read by dense convolutions, by depthwise ones in a row, or by one of each."""
    rng = np.random.default_rng(8)
    gains = np.logspace(0, 3, 8)[rng.permutation(8)]
    constants = {
        "w0": rng.standard_normal((8, 3, 1, 1)) * gains[:, None, None, None],
        "d1": rng.standard_normal((8, 1, 3, 3)) / gains[:, None, None, None] ** 0.4,
        "d2": rng.standard_normal((8, 1, 3, 3)) / gains[:, None, None, None] ** 0.6,
        "p": rng.standard_normal((4, 8, 1, 1)) / gains[None, :, None, None],
        "q": rng.standard_normal((4, 8, 1, 1)),
    }
    nodes = [helper.make_node("Conv", ["x", "w0"], ["a"], "first"), helper.make_node("Relu", ["a"], ["r"])]
    depthwise = [
        helper.make_node("Conv", ["r", "d1"], ["b"], "one", group=8, pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["b"], ["br"]),
        helper.make_node("Conv", ["br", "d2"], ["c"], "two", group=8, pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["c", "q"], ["deep"], "three"),
    ]
    dense = [helper.make_node("Conv", ["r", "p"], ["flat"], "four")]
    if reader == "dense":
        nodes += [*dense, helper.make_node("Identity", ["flat"], ["y"])]
    elif reader == "depthwise chain":
        nodes += [*depthwise, helper.make_node("Identity", ["deep"], ["y"])]
    else:
        nodes += [*depthwise, *dense, helper.make_node("Add", ["deep", "flat"], ["y"])]
        constants["q"] = constants["q"] / 100
    graph = helper.make_graph(
        nodes,
        "parts",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 32, 32])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in constants.items()],
    )
    network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    better = optimize(network, dataset=CALIBRATION)
    assert "r" in better.groups
    for (first,), (second,) in zip(run_fp32(network, HELD_OUT), run_fp32(better.model, HELD_OUT), strict=True):
        np.testing.assert_allclose(second, first, rtol=1e-4, atol=1e-4 * np.abs(first).max())


def test_outputs_that_are_joined_can_be_taken_apart() -> None:
    rng = np.random.default_rng(3)
    constants = {"v": rng.standard_normal((2, 3, 1, 1)), "w": rng.standard_normal((2, 3, 1, 1)) * 100}
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["small"]),
        helper.make_node("Conv", ["x", "w"], ["large"]),
        helper.make_node("Concat", ["small", "large"], ["y"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "heads",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 32, 32])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in constants.items()],
    )
    network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    assert [value.name for value in optimize(network, dataset=CALIBRATION).model.graph.output] == ["y"]
    apart = optimize(network, dataset=CALIBRATION, split_outputs=True).model
    assert [value.name for value in apart.graph.output] == ["small", "large"]


def test_a_split_that_does_not_help_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The evaluates state that every rewritten model is worse than the original, which is evaluated first."""
    scores = iter([Score(0.99, 0.99, 0.98, (0.98,), True), *[Score(0.9, 0.9, 0.8, (0.8,), True)] * 2])
    monkeypatch.setitem(optimize.__globals__, "plain_score", lambda *_, **__: next(scores))
    refused = optimize(diseased_network(), dataset=diseased_samples(4))
    assert refused.groups == {}
    assert refused.note.startswith("not kept")
    assert optimize(diseased_network(), dataset=diseased_samples(4), judged=False).groups
