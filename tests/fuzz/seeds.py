"""The sound model files that mutants are made of: small, and with every operator between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from builders import every_operator_model, wide_model
from compiler.onnx_builders import Net, feeds
from compiler.random_nets import RandomNet

import anynpu
from anynpu import modelfile

__all__ = ["write_seeds"]


def write_seeds(folder: Path) -> list[Path]:
    """Compile all of them into *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [modelfile.write(every_operator_model(sides=(4,)), folder / "every.rknn")]
    paths.append(modelfile.write(every_operator_model(sides=(4, 6)), folder / "sizes.rknn"))
    paths.append(modelfile.write(wide_model(), folder / "wide.rknn"))
    for seed in range(6):
        proto = RandomNet(seed).build()
        for chip, dtype in (("rk3588", "w8a8"), ("rk3588", "fp16"), ("t527", "uint8")):
            paths.append(_compiled(proto, chip, dtype, folder / f"net{seed}-{dtype}.model"))
    for index, proto in enumerate((_attention(), _signal(), _pictures())):
        paths.append(_compiled(proto, "rk3588", "fp16", folder / f"float{index}.model"))
        paths.append(_compiled(proto, "rk3588", "w8a8", folder / f"mixed{index}.model"))
    return paths


def _compiled(proto: Any, chip: str, dtype: str, path: Path) -> Path:
    model = anynpu.compile(proto, chip, dtype=dtype, dataset=feeds(proto, 2))
    return model.save(path)


def _attention() -> Any:
    """Normalization, attention and a gate: what transformers are made of."""
    net = Net(17, seed=1)
    x = net.input("x", (1, 6, 16))
    normal = net.op("LayerNormalization", x, net.weights(16), net.weights(16), axis=-1)
    query, key, value = (net.op("MatMul", normal, net.weights(16, 16)) for _ in range(3))
    scores = net.op("Softmax", net.op("MatMul", query, net.op("Transpose", key, perm=[0, 2, 1])), axis=-1)
    mixed = net.op("Add", net.op("MatMul", scores, value), x)
    gate = net.op("Mul", net.op("Erf", mixed), net.op("Sigmoid", mixed))
    net.output(net.op("ReduceMean", gate, axes=[1], keepdims=0), net.op("ReduceL2", gate, axes=[2]))
    return net.proto()


def _signal() -> Any:
    """Operators that few kernels have, so that onnxruntime runs them."""
    net = Net(seed=2)
    x = net.input("x", (1, 4, 12))
    total = net.op("CumSum", x, net.constant(np.array(2, np.int64)))
    sines = net.op("Sin", net.op("Cos", total))
    powers = net.op("Pow", net.op("Abs", sines), net.constant(np.array(1.5, np.float32)))
    net.output(net.op("ReduceLogSumExp", powers, axes=[1]), net.op("Einsum", x, sines, equation="bct,bdt->bcd"))
    return net.proto()


def _pictures() -> Any:
    """A float head on an image: normalization over space, cubic interpolation, a wide softmax."""
    net = Net(seed=3)
    x = net.input("x", (1, 3, 8, 8))
    features = net.conv(x, 6, 3, cin=3, pads=[1] * 4)
    normal = net.op("InstanceNormalization", features, net.weights(6), net.weights(6))
    larger = net.op("Resize", normal, "", net.constant(np.array([1, 1, 2, 2], np.float32)), mode="cubic")
    net.output(net.op("LRN", larger, size=3), net.op("Softmax", features, axis=1))
    return net.proto()
