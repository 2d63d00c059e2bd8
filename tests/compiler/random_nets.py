"""Random small networks: ten to twenty nodes from the operators that networks are made of."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from .cases_elementwise import CHAINS
from .onnx_builders import Net

_ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Softplus", "Elu", "HardSigmoid", "Abs", "Erf")


@dataclass(frozen=True)
class _Tensor:
    name: str
    shape: tuple[int, ...]


class RandomNet:
    """Grows a network node by node. Every value that nobody read is an output in the end."""

    def __init__(self, seed: int) -> None:
        self._net = Net(seed=seed)
        self._random = self._net.random
        self._tensors: list[_Tensor] = []
        self._read: set[str] = set()

    def build(self) -> onnx.ModelProto:
        for index in range(int(self._random.integers(1, 3))):
            channels, extent = int(self._random.choice([3, 4, 8])), int(self._random.integers(8, 13))
            shape = (1, channels, extent, extent + 1)
            self._conv(self._add(self._net.input(f"in{index}", shape), shape))
        wanted = int(self._random.integers(10, 21))
        while len(self._net.nodes) < wanted:
            makers = [self._conv, self._conv, self._conv, self._activation, self._chain, self._pool, self._resize, self._binary]
            makers += [self._concat, self._split, self._pad, self._shuffle, self._softmax, self._scale, self._excite, self._slice]
            makers[int(self._random.integers(len(makers)))](self._pick(4))
        if self._random.integers(2):
            self._head(self._pick(4))
        self._net.output(*(tensor.name for tensor in self._tensors if tensor.name not in self._read))
        return self._net.proto()

    def _add(self, name: str, shape: tuple[int, ...]) -> _Tensor:
        tensor = _Tensor(name, shape)
        self._tensors.append(tensor)
        return tensor

    def _pick(self, rank: int) -> _Tensor:
        """A tensor, more likely a late one."""
        fitting = [tensor for tensor in self._tensors if len(tensor.shape) == rank]
        return fitting[-1 - min(int(self._random.geometric(0.5)) - 1, len(fitting) - 1)]

    def _use(self, *tensors: _Tensor) -> list[str]:
        self._read.update(tensor.name for tensor in tensors)
        return [tensor.name for tensor in tensors]

    def _elementwise(self, source: _Tensor, name: str) -> None:
        self._use(source)
        self._add(name, source.shape)

    def _conv(self, source: _Tensor) -> None:
        batch, into, height, width = source.shape
        kernel = int(self._random.choice([1, 3]))
        stride = int(self._random.choice([1, 1, 2])) if min(height, width) > 6 else 1
        depthwise = bool(self._random.integers(4) == 0)
        out = into if depthwise else int(self._random.choice([4, 6, 8]))
        pad = kernel // 2
        (name,) = self._use(source)
        result = self._net.conv(
            name,
            out,
            kernel,
            cin=into,
            group=into if depthwise else 1,
            strides=[stride] * 2,
            pads=[pad] * 4,
            bias=bool(self._random.integers(2)),
        )
        shape = (batch, out, *((extent + 2 * pad - kernel) // stride + 1 for extent in (height, width)))
        if self._random.integers(2):
            result = self._net.op(str(self._random.choice(_ACTIVATIONS)), result)
        self._add(result, shape)

    def _activation(self, source: _Tensor) -> None:
        self._elementwise(source, self._net.op(str(self._random.choice(_ACTIVATIONS)), source.name))

    def _chain(self, source: _Tensor) -> None:
        self._elementwise(source, CHAINS[str(self._random.choice(list(CHAINS)))](self._net, source.name))

    def _scale(self, source: _Tensor) -> None:
        channels = source.shape[1]
        if self._random.integers(2):
            self._elementwise(source, self._net.batch_norm(source.name, channels))
        else:
            self._elementwise(
                source, self._net.op("Mul", source.name, self._net.weights(1, channels, 1, 1, scale=0.2, shift=1.0))
            )

    def _pool(self, source: _Tensor) -> None:
        batch, channels, height, width = source.shape
        if min(height, width) < 4:
            self._activation(source)
            return
        (name,) = self._use(source)
        kind = str(self._random.choice(["MaxPool", "AveragePool"]))
        result = self._net.op(kind, name, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
        self._add(result, (batch, channels, (height - 1) // 2 + 1, (width - 1) // 2 + 1))

    def _resize(self, source: _Tensor) -> None:
        batch, channels, height, width = source.shape
        if max(height, width) > 14:
            self._pool(source)
            return
        (name,) = self._use(source)
        mode = str(self._random.choice(["nearest", "linear"]))
        result = self._net.op(
            "Resize",
            name,
            "",
            self._net.constant([1.0, 1.0, 2.0, 2.0]),
            mode=mode,
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )
        self._add(result, (batch, channels, 2 * height, 2 * width))

    def _binary(self, source: _Tensor) -> None:
        others = [tensor for tensor in self._tensors if tensor.shape == source.shape]
        other = others[int(self._random.integers(len(others)))]
        kind = str(self._random.choice(["Add", "Add", "Sub", "Mul", "Max", "Min"]))
        self._add(self._net.op(kind, *self._use(source, other)), source.shape)

    def _excite(self, source: _Tensor) -> None:
        channels = source.shape[1]
        pooled = self._net.op("GlobalAveragePool", *self._use(source))
        gate = self._net.op("Sigmoid", self._net.conv(pooled, channels, 1, cin=channels))
        self._add(self._net.op("Mul", source.name, gate), source.shape)

    def _concat(self, source: _Tensor) -> None:
        others = [
            tensor for tensor in self._tensors if tensor.shape[:1] + tensor.shape[2:] == source.shape[:1] + source.shape[2:]
        ]
        other = others[int(self._random.integers(len(others)))]
        if source.shape[1] + other.shape[1] > 24:
            self._activation(source)
            return
        name = self._net.op("Concat", *self._use(source, other), axis=1)
        self._add(name, (source.shape[0], source.shape[1] + other.shape[1], *source.shape[2:]))

    def _split(self, source: _Tensor) -> None:
        batch, channels, *image = source.shape
        if channels < 4:
            self._conv(source)
            return
        first = int(self._random.integers(1, channels - 1))
        names = self._net.ops("Split", *self._use(source), self._net.constant([first, channels - first]), count=2, axis=1)
        for name, extent in zip(names, (first, channels - first), strict=True):
            self._add(name, (batch, extent, *image))

    def _slice(self, source: _Tensor) -> None:
        batch, channels, height, width = source.shape
        if height < 4:
            self._activation(source)
            return
        name = self._net.op("Slice", *self._use(source), *map(self._net.constant, ([1], [height], [2])))
        self._add(name, (batch, channels, height - 1, width))

    def _pad(self, source: _Tensor) -> None:
        batch, channels, height, width = source.shape
        mode = str(self._random.choice(["constant", "edge"]))
        name = self._net.op("Pad", *self._use(source), self._net.constant([0, 0, 1, 0, 0, 0, 0, 1]), mode=mode)
        self._add(name, (batch, channels, height + 1, width + 1))

    def _shuffle(self, source: _Tensor) -> None:
        batch, channels, height, width = source.shape
        if channels % 2:
            self._conv(source)
            return
        split = self._net.op("Reshape", *self._use(source), self._net.constant([batch, 2, channels // 2, height, width]))
        turned = self._net.op("Transpose", split, perm=[0, 2, 1, 3, 4])
        self._add(self._net.op("Reshape", turned, self._net.constant([batch, channels, height, width])), source.shape)

    def _softmax(self, source: _Tensor) -> None:
        self._elementwise(source, self._net.op("Softmax", source.name, axis=int(self._random.integers(1, 4))))

    def _head(self, source: _Tensor) -> None:
        """A classifier, or the transposed rows of a detector."""
        batch, channels, height, width = source.shape
        if self._random.integers(2):
            flat = self._net.op("Flatten", *self._use(source))
            size = channels * height * width
            self._add(
                self._net.op("Gemm", flat, self._net.weights(5, size, scale=size**-0.5), self._net.weights(5), transB=1),
                (batch, 5),
            )
        else:
            rows = self._net.op("Reshape", *self._use(source), self._net.constant([batch, channels, height * width]))
            turned = self._net.op("Transpose", rows, perm=[0, 2, 1])
            product = self._net.op("MatMul", turned, self._net.weights(channels, 6, scale=channels**-0.5))
            self._add(self._net.op("Add", product, self._net.weights(6)), (batch, height * width, 6))
