"""The examples as modules, and small models for them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import anynpu

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

Load = Callable[[str, str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Imports a module of an example, as its script does: from its own folder. Forgets it afterwards, since names may recur."""
    before = set(sys.modules)

    def import_module(example: str, name: str) -> ModuleType:
        monkeypatch.syspath_prepend(str(EXAMPLES / example))
        return importlib.import_module(name)

    yield import_module
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and Path(file).is_relative_to(EXAMPLES):
            del sys.modules[name]


@pytest.fixture(scope="session")
def picture_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled model of images of 48 x 64."""
    rng = np.random.default_rng(3)
    weights = numpy_helper.from_array(rng.standard_normal((4, 3, 3, 3)).astype(np.float32), "weights")
    graph = helper.make_graph(
        [helper.make_node("Conv", ["images", "weights"], ["features"], "conv", strides=[8, 8], pads=[1, 1, 1, 1])],
        "net",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, 48, 64])],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, [1, 4, 6, 8])],
        [weights],
    )
    folder = tmp_path_factory.mktemp("picture_model")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), folder / "net.onnx")
    pictures = [rng.integers(0, 256, (48, 64, 3), np.uint8) for _ in range(2)]
    anynpu.compile(folder / "net.onnx", target="rk3588", dataset=pictures, std=(255, 255, 255)).save(folder / "net.rknn")
    return folder / "net.rknn"
