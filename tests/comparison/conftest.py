"""The network, compiled once."""

from __future__ import annotations

import onnx
import pytest

import anynpu
from anynpu.program import Model

from .networks import network, samples


@pytest.fixture(scope="session")
def proto() -> onnx.ModelProto:
    return network()


@pytest.fixture(scope="session")
def model(proto: onnx.ModelProto) -> Model:
    return anynpu.compile(proto, target="rk3588", dataset=samples(8, seed=0))


@pytest.fixture(scope="session")
def half_model(proto: onnx.ModelProto) -> Model:
    return anynpu.compile(proto, target="rk3588", dtype="fp16")
