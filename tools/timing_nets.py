"""Networks that public numbers name but do not come with, built from their published architecture: shapes only, no weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Net:
    """A graph that grows node by node; tensors are named by number, and their shapes are known."""

    def __init__(self, *shape: int) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.shapes: dict[str, tuple[int, ...]] = {"x": shape}
        self._input = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)

    def weight(self, *shape: int) -> str:
        """A tensor of weights without its bytes."""
        name = f"w{len(self.weights)}"
        self.weights.append(TensorProto(name=name, dims=list(shape), data_type=TensorProto.FLOAT))
        return name

    def constant(self, value: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, kind: str, inputs: Sequence[str], shape: tuple[int, ...], **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], f"{kind}_{len(self.nodes)}", **attributes))
        self.shapes[name] = shape
        return name

    def conv(
        self, x: str, channels: int, kernel: int | tuple[int, int], stride: int = 1, groups: int = 1, pad: bool = True
    ) -> str:
        """A convolution with ReLU."""
        n, before, height, width = self.shapes[x]
        kh, kw = (kernel, kernel) if isinstance(kernel, int) else kernel
        ph, pw = (kh // 2, kw // 2) if pad else (0, 0)
        out = (n, channels, (height + 2 * ph - kh) // stride + 1, (width + 2 * pw - kw) // stride + 1)
        weight, bias = self.weight(channels, before // groups, kh, kw), self.weight(channels)
        y = self.add(
            "Conv", [x, weight, bias], out, pads=[ph, pw, ph, pw], strides=[stride] * 2, group=groups, kernel_shape=[kh, kw]
        )
        return self.add("Relu", [y], out)

    def pool(self, x: str, kernel: int, stride: int, pad: int = 0, kind: str = "MaxPool") -> str:
        n, c, height, width = self.shapes[x]
        out = (n, c, (height + 2 * pad - kernel) // stride + 1, (width + 2 * pad - kernel) // stride + 1)
        return self.add(kind, [x], out, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4)

    def concat(self, parts: Sequence[str]) -> str:
        n, _, height, width = self.shapes[parts[0]]
        return self.add("Concat", parts, (n, sum(self.shapes[part][1] for part in parts), height, width), axis=1)

    def classifier(self, x: str, classes: int) -> str:
        n, c, *_ = self.shapes[x]
        pooled = self.add("GlobalAveragePool", [x], (n, c, 1, 1))
        flat = self.add("Flatten", [pooled], (n, c))
        return self.dense(flat, classes)

    def dense(self, x: str, columns: int) -> str:
        *rows, depth = self.shapes[x]
        if len(rows) == 1:
            return self.add("Gemm", [x, self.weight(depth, columns), self.weight(columns)], (*rows, columns))
        return self.add("MatMul", [x, self.weight(depth, columns)], (*rows, columns))

    def model(self, *outputs: str) -> onnx.ModelProto:
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, self.shapes[name]) for name in outputs]
        graph = helper.make_graph(self.nodes, "net", [self._input], infos, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def lenet() -> onnx.ModelProto:
    net = Net(1, 1, 28, 28)
    x = net.pool(net.conv("x", 20, 5, pad=False), 2, 2)
    x = net.pool(net.conv(x, 50, 5, pad=False), 2, 2)
    flat = net.add("Flatten", [x], (1, 800))
    return net.model(net.dense(net.add("Relu", [net.dense(flat, 500)], (1, 500)), 10))


def mobilenet_v1() -> onnx.ModelProto:
    net = Net(1, 3, 224, 224)
    x = net.conv("x", 32, 3, 2)
    for channels, stride in [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]:
        before = net.shapes[x][1]
        x = net.conv(net.conv(x, before, 3, stride, groups=before), channels, 1)
    return net.model(net.classifier(x, 1000))


def inception_v1() -> onnx.ModelProto:
    net = Net(1, 3, 224, 224)
    x = net.pool(net.conv("x", 64, 7, 2), 3, 2, 1)
    x = net.pool(net.conv(net.conv(x, 64, 1), 192, 3), 3, 2, 1)
    rows = [
        (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), None, (192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64), (112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128), None,
        (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
    ]  # fmt: skip
    for row in rows:
        if row is None:
            x = net.pool(x, 3, 2, 1)
            continue
        a, b1, b3, c1, c5, d = row
        parts = [net.conv(x, a, 1), net.conv(net.conv(x, b1, 1), b3, 3), net.conv(net.conv(x, c1, 1), c5, 5)]
        x = net.concat([*parts, net.conv(net.pool(x, 3, 1, 1), d, 1)])
    return net.model(net.classifier(x, 1000))


def inception_v3() -> onnx.ModelProto:
    net = Net(1, 3, 299, 299)
    x = net.conv(net.conv(net.conv("x", 32, 3, 2, pad=False), 32, 3, pad=False), 64, 3)
    x = net.pool(net.conv(net.conv(net.pool(x, 3, 2), 80, 1), 192, 3, pad=False), 3, 2)
    for pooled in (32, 64, 64):
        tower = net.conv(net.conv(net.conv(x, 64, 1), 96, 3), 96, 3)
        last = net.conv(net.pool(x, 3, 1, 1, "AveragePool"), pooled, 1)
        x = net.concat([net.conv(x, 64, 1), net.conv(net.conv(x, 48, 1), 64, 5), tower, last])
    tower = net.conv(net.conv(net.conv(x, 64, 1), 96, 3), 96, 3, 2, pad=False)
    x = net.concat([net.conv(x, 384, 3, 2, pad=False), tower, net.pool(x, 3, 2)])
    for inner in (128, 160, 160, 192):
        one = net.conv(net.conv(net.conv(x, inner, 1), inner, (1, 7)), 192, (7, 1))
        two = net.conv(x, inner, 1)
        for kernel, channels in (((7, 1), inner), ((1, 7), inner), ((7, 1), inner), ((1, 7), 192)):
            two = net.conv(two, channels, kernel)
        x = net.concat([net.conv(x, 192, 1), one, two, net.conv(net.pool(x, 3, 1, 1, "AveragePool"), 192, 1)])
    seven = net.conv(net.conv(net.conv(net.conv(x, 192, 1), 192, (1, 7)), 192, (7, 1)), 192, 3, 2, pad=False)
    x = net.concat([net.conv(net.conv(x, 192, 1), 320, 3, 2, pad=False), seven, net.pool(x, 3, 2)])
    for _ in range(2):
        three, double = net.conv(x, 384, 1), net.conv(net.conv(x, 448, 1), 384, 3)
        parts = [net.conv(part, 384, kernel) for part in (three, double) for kernel in ((1, 3), (3, 1))]
        x = net.concat([net.conv(x, 320, 1), *parts, net.conv(net.pool(x, 3, 1, 1, "AveragePool"), 192, 1)])
    return net.model(net.classifier(x, 1000))


def transformer(
    tokens: int, width: int, layers: int, heads: int, inner: int, *, key_heads: int = 0, gated: bool = False, vocabulary: int = 0
) -> onnx.ModelProto:
    """A transformer over embedded tokens; decoders are gated, have fewer heads of keys, and end with the vocabulary."""
    net = Net(1, tokens, width)
    depth = width // heads
    x = "x"

    def norm(y: str) -> str:
        scale, bias = net.weight(width), net.weight(width)
        return net.add("LayerNormalization", [y, scale, bias], (1, tokens, width), axis=-1)

    def split(y: str, count: int, order: list[int]) -> str:
        shaped = net.add("Reshape", [y, net.constant(np.array([1, tokens, count, depth]))], (1, tokens, count, depth))
        sizes = (1, tokens, count, depth)
        turned = net.add("Transpose", [shaped], tuple(sizes[axis] for axis in order), perm=order)
        return turned

    def shared(y: str) -> str:
        """Keys or values, each head of which may serve several of the queries."""
        count = heads // (key_heads or heads)
        made = net.dense(y, width // count)
        return made if count == 1 else net.add("Concat", [made] * count, (1, tokens, width), axis=2)

    for _ in range(layers):
        y = norm(x)
        q = split(net.dense(y, width), heads, [0, 2, 1, 3])
        k, v = (split(shared(y), heads, order) for order in ([0, 2, 3, 1], [0, 2, 1, 3]))
        scores = net.add("MatMul", [q, k], (1, heads, tokens, tokens))
        scaled = net.add("Mul", [scores, net.constant(np.float32(depth**-0.5))], (1, heads, tokens, tokens))
        weights = net.add("Softmax", [scaled], (1, heads, tokens, tokens), axis=-1)
        mixed = net.add("MatMul", [weights, v], (1, heads, tokens, depth))
        back = net.add("Transpose", [mixed], (1, tokens, heads, depth), perm=[0, 2, 1, 3])
        flat = net.add("Reshape", [back, net.constant(np.array([1, tokens, width]))], (1, tokens, width))
        x = net.add("Add", [x, net.dense(flat, width)], (1, tokens, width))
        y = norm(x)
        inside = (1, tokens, inner)
        if gated:
            gate = net.dense(y, inner)
            gate = net.add("Mul", [gate, net.add("Sigmoid", [gate], inside)], inside)
            hidden = net.add("Mul", [gate, net.dense(y, inner)], inside)
        else:
            hidden = net.add("Relu", [net.dense(y, inner)], inside)
        x = net.add("Add", [x, net.dense(hidden, width)], (1, tokens, width))
    return net.model(net.dense(norm(x), vocabulary) if vocabulary else norm(x))


NETS: dict[str, Callable[[], onnx.ModelProto]] = {
    "lenet": lenet,
    "mobilenet_v1 224": mobilenet_v1,
    "inception_v1": inception_v1,
    "inception_v3 299": inception_v3,
    "smolvlm_siglip_512": lambda: transformer(1024, 768, 12, 12, 3072),
    **{
        f"smollm2_135m_w{tokens}": (
            lambda tokens=tokens: transformer(tokens, 576, 30, 9, 1536, key_heads=3, gated=True, vocabulary=49152)  # type: ignore[misc]
        )
        for tokens in (32, 64, 128, 256)
    },
    "smollm2_360m_w32": lambda: transformer(32, 960, 32, 15, 2560, key_heads=5, gated=True, vocabulary=49152),
}
"""By the names that the numbers have."""
