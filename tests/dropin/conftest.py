"""Models for the programs, made once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import anynpu
from anynpu import modelfile

SIDE = 32


@dataclass(frozen=True)
class Models:
    """Paths of compiled models.

    :ivar small: one convolution, for rk3588
    :ivar mini: the same for rv1106
    :ivar other: another network for rk3588, of the same input
    :ivar dynamic: with two sizes, for rk3588
    :ivar dense: one convolution whose channels need no padding, for rk3588
    :ivar custom: a convolution and the operator Gain, for rk3588
    :ivar slow: enough work to be in the middle of it, for rk3588
    """

    small: Path
    mini: Path
    other: Path
    dynamic: Path
    dense: Path
    custom: Path
    slow: Path


def network(channels: int, layers: int = 1, side: int | str = SIDE, seed: int = 5) -> onnx.ModelProto:
    """Convolutions with ReLU on an image."""
    rng = np.random.default_rng(seed)
    nodes, constants, before, depth = [], [], "images", 3
    for index in range(layers):
        scale = 1 / np.sqrt(9 * depth)
        weights = rng.standard_normal((channels, depth, 3, 3)) * scale
        constants.append(numpy_helper.from_array(weights.astype(np.float32), f"w{index}"))
        nodes.append(helper.make_node("Conv", [before, f"w{index}"], [f"c{index}"], f"conv{index}", pads=[1, 1, 1, 1]))
        before, depth = f"r{index}", channels
        nodes.append(helper.make_node("Relu", [f"c{index}"], [before], f"relu{index}"))
    nodes[-1].output[0] = "features"
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, side, side])],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, [1, channels, side, side])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def with_gain(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A custom operator behind a network."""
    (output,) = proto.graph.output
    proto.graph.node.append(helper.make_node("Gain", [output.name], ["scaled"], "gain", domain="acme", gain=2.5))
    output.name = "scaled"
    proto.opset_import.append(helper.make_opsetid("acme", 1))
    return proto


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("dropin-models")
    rng = np.random.default_rng(9)

    def compiled(
        name: str, proto: onnx.ModelProto, chip: str = "rk3588", side: int = SIDE, samples: int = 3, **options: Any
    ) -> Path:
        source = folder / f"{name}.onnx"
        onnx.save(proto, source)
        pictures = [rng.integers(0, 256, (1, 3, side, side)).astype(np.float32) for _ in range(samples)]
        dataset = [{"images": picture} for picture in pictures]
        model = anynpu.compile(source, chip, dataset=dataset, std=(255, 255, 255), **options)
        return modelfile.write(model, folder / f"{name}.rknn")

    return Models(
        compiled("small", network(20)),
        compiled("mini", network(20), "rv1106"),
        compiled("other", network(24, layers=2, seed=6)),
        compiled("dynamic", network(8, side="side"), side=16, shapes=[{"images": (1, 3, 16, 16)}, {"images": (1, 3, 24, 24)}]),
        compiled("dense", network(32)),
        compiled("custom", with_gain(network(8)), custom_ops={"Gain": lambda shapes, attributes: shapes}),
        compiled("slow", network(64, layers=6, side=160), side=160, samples=1),
    )
