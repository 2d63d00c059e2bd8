"""What ``check`` states about layers on the CPU: each rewrite that it names computes the same, and leaves nothing there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

import anynpu
from anynpu.cli.commands.check import advice_lines

from .onnx_builders import Array, Net, feeds
from .running import run_fp32

CHIP = "rk3588"
Part = Callable[[Net, str], str]


def norm(net: Net, x: str) -> str:
    return net.op("Div", x, net.op("Add", net.op("ReduceL2", x, axes=[1]), net.constant([1.0])))


def norm_by_parts(net: Net, x: str) -> str:
    squares = net.op("ReduceSum", net.op("Mul", x, x), net.constant([1]))
    return net.op("Div", x, net.op("Add", net.op("Sqrt", squares), net.constant([1.0])))


def weights(*shape: int) -> Array:
    values: Array = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    return values


def patches(net: Net, x: str) -> str:
    return net.op("Conv", x, net.constant(weights(6, 4, 16, 16)), strides=[16, 16])


def patches_by_parts(net: Net, x: str) -> str:
    blocks = weights(6, 4, 16, 16).reshape(6, 4, 4, 4, 4, 4).transpose(0, 3, 5, 1, 2, 4).reshape(6, 64, 4, 4)
    return net.op("Conv", net.op("SpaceToDepth", x, blocksize=4), net.constant(blocks), strides=[4, 4])


def wide_depthwise(net: Net, x: str) -> str:
    return net.op("Conv", x, net.constant(weights(4, 1, 9, 9)), group=4)


def diagonal(net: Net, x: str) -> str:
    dense = np.zeros((4, 4, 9, 9), np.float32)
    dense[range(4), range(4)] = weights(4, 1, 9, 9)[:, 0]
    return net.op("Conv", x, net.constant(dense))


def padded(net: Net, x: str) -> str:
    return net.op("Conv", x, net.constant(weights(4, 4, 3, 3)), pads=[24] * 4, dilations=[24, 24])


def padded_before(net: Net, x: str) -> str:
    wide = net.op("Pad", x, net.constant([0, 0, 24, 24, 0, 0, 24, 24]))
    return net.op("Conv", wide, net.constant(weights(4, 4, 3, 3)), dilations=[24, 24])


def pooled_up(net: Net, x: str) -> str:
    return net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)


def pooled_with_pads(net: Net, x: str) -> str:
    return net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1])


def enlarged(net: Net, x: str) -> str:
    return net.op(
        "Resize", x, "", net.constant([1.0, 1.0, 16.0, 16.0]), coordinate_transformation_mode="asymmetric", nearest_mode="floor"
    )


def enlarged_twice(net: Net, x: str) -> str:
    for _ in range(2):
        x = net.op(
            "Resize", x, "", net.constant([1.0, 1.0, 4.0, 4.0]), coordinate_transformation_mode="asymmetric", nearest_mode="floor"
        )
    return x


def repeated(net: Net, x: str) -> str:
    return net.op("Tile", x, net.constant([1, 2, 1, 1]))


def joined(net: Net, x: str) -> str:
    return net.op("Concat", x, x, axis=1)


def log_softmax(net: Net, x: str) -> str:
    return net.op("LogSoftmax", x, axis=1)


def log_of_softmax(net: Net, x: str) -> str:
    return net.op("Log", net.op("Softmax", x, axis=1))


def running_sum(net: Net, x: str) -> str:
    return net.op("CumSum", x, net.constant(np.array(3)))


def product_with_ones(net: Net, x: str) -> str:
    return net.op("MatMul", x, net.constant(np.triu(np.ones((32, 32), np.float32))))


def products(net: Net, x: str) -> str:
    return net.op("Einsum", x, x, equation="bchw,bcvw->bchv")


def products_by_parts(net: Net, x: str) -> str:
    return net.op("MatMul", x, net.op("Transpose", x, perm=[0, 1, 3, 2]))


def model_of(part: Part) -> onnx.ModelProto:
    net = Net()
    net.output(part(net, net.op("Relu", net.input("x", (1, 4, 32, 32)))))
    return net.proto()


@pytest.mark.parametrize(
    ("part", "words", "instead"),
    [
        (norm, "torch.sqrt((x * x).sum(...))", norm_by_parts),
        (patches, "SpaceToDepth by 2 or 4", patches_by_parts),
        (wide_depthwise, "on its diagonal", diagonal),
        (padded, "a Pad layer before it", padded_before),
        (pooled_up, "ceil_mode=False", pooled_with_pads),
        (enlarged, "two in a row", enlarged_twice),
        (repeated, "Concat of the same tensor", joined),
        (log_softmax, "Softmax and Log", log_of_softmax),
        (products, "torch.matmul", products_by_parts),
        (running_sum, "triangular matrix of ones", product_with_ones),
    ],
)
def test_a_rewrite_leaves_nothing_on_the_cpu(part: Part, words: str, instead: Part) -> None:
    before, after = model_of(part), model_of(instead)
    (line,) = advice_lines(anynpu.check(before, CHIP))
    assert words in line
    assert not anynpu.check(after, CHIP).on_cpu
    samples = feeds(before, 1)
    (wanted,), (given,) = run_fp32(before, samples)[0], run_fp32(after, samples)[0]
    np.testing.assert_allclose(given, wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max())


def masked(net: Net, x: str) -> str:
    first = net.op("Equal", x, net.constant(np.full(1, 2.0, np.float32)))
    return net.op("Where", net.op("Not", first), x, net.constant(np.zeros(1, np.float32)))


def test_an_advice_is_given_once() -> None:
    lines = advice_lines(anynpu.check(model_of(masked), CHIP))
    assert [line.partition(":")[0] for line in lines] == ["Equal, Not, Where"]


def test_there_is_a_word_for_every_operator() -> None:
    (line,) = advice_lines(anynpu.check(model_of(lambda net, x: net.op("Hardmax", x, axis=1)), CHIP))
    assert line.startswith("Hardmax: let your program compute it")
