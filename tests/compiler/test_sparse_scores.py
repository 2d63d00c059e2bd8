"""Scores that are nearly always small keep their rare large values up to an output."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

import anynpu

from .onnx_builders import Net
from .running import run_fp32, run_model

CLASSES = 16


def samples(count: int, seed: int) -> list[dict[str, np.ndarray]]:
    """Images of noise with one bright spot, at another place in each."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        image = rng.normal(0.0, 0.05, (1, 4, 64, 64)).astype(np.float32)
        y, x = rng.integers(0, 64, 2)
        image[0, :, y, x] = 1.0
        found.append({"x": image})
    return found


def network(end: Callable[[Net, str], str]) -> onnx.ModelProto:
    """Scores of 16 classes, of which one is large at the spot, and what comes after them."""
    net = Net(13)
    kernel = np.zeros((CLASSES, 4, 1, 1), np.float32)
    kernel[3] = 2.0
    logits = net.op(
        "Conv", net.input("x", (1, 4, 64, 64)), net.constant(kernel), net.constant(np.full(CLASSES, -5.0, np.float32))
    )
    net.output(end(net, net.op("Sigmoid", logits)))
    return net.proto()


def selected(net: Net, scores: str) -> str:
    kernel = np.zeros((2, CLASSES, 1, 1), np.float32)
    kernel[0, 3] = kernel[1, 5] = 1.0
    return net.op("Conv", scores, net.constant(kernel))


def product(net: Net, scores: str) -> str:
    return selected(net, net.op("Mul", scores, scores))


def rows(net: Net, scores: str) -> str:
    flat = net.op("Transpose", net.op("Reshape", scores, net.constant(np.int64([1, CLASSES, -1]))), perm=[0, 2, 1])
    return net.op("MatMul", flat, net.constant(np.eye(CLASSES, 2, -3, dtype=np.float32)))


def twice(net: Net, scores: str) -> str:
    return net.op("Conv", selected(net, scores), net.constant(np.ones((1, 2, 1, 1), np.float32)))


ENDS = {"selected": selected, "product": product, "rows": rows, "twice": twice}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("chip", ["rk3588", "t527"])
@pytest.mark.parametrize("accuracy", ["fast", "default"])
def test_rare_scores_are_not_clipped_before_the_last_linear_layer(end: str, chip: str, accuracy: str) -> None:
    model = network(ENDS[end])
    compiled = anynpu.compile(model, chip, dataset=samples(8, 1), accuracy=accuracy)
    unseen = samples(2, 2)
    for expected, given in zip(run_fp32(model, unseen), run_model(compiled, unseen), strict=True):
        assert given[0].max() > 0.95 * expected[0].max()
