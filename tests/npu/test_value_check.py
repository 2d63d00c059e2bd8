"""NaN in inputs, NaN and infinity in outputs: reported by every interface, in the run that they come with, once for each tensor."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiler.onnx_builders import Net

import anynpu
from anynpu._util.types import Array
from anynpu.npu.value_check import ValueCheck
from anynpu.rknn import Context
from anynpu.rknn.lite import RKNNLite
from anynpu.tensor import DType, Layout, TensorSpec
from anynpu.vip import Network

GOOD = np.linspace(0, 1, 8, dtype=np.float32)[None]
BAD = np.where(GOOD > 0.9, np.nan, GOOD).astype(np.float32)
LARGE = np.full((1, 8), 100.0, np.float32)
INPUT = "input 'x': 1 of 8 values are not a number (NaN); the result means nothing"
LATE = 6
"""Good runs before the bad one."""

Run = Callable[[Array], object]


def model_of(chip: str, path: Path, dtype: str = "fp16") -> Path:
    """A product whose first result is beyond float16 for large inputs."""
    net = Net()
    weights = np.tile(np.array([[1000.0, 1.0]], np.float32), (8, 1))
    net.output(net.op("MatMul", net.input("x", (1, 8)), net.constant(weights)))
    data = [{"x": GOOD}] if dtype == "int8" else None
    return Path(anynpu.compile(net.proto(), chip, dtype=dtype, dataset=data).save(path))


@contextmanager
def session(path: Path) -> Iterator[Run]:
    with anynpu.InferenceSession(path) as opened:
        yield lambda x: opened.run(None, {"x": x})


@contextmanager
def submitted(path: Path) -> Iterator[Run]:
    with anynpu.InferenceSession(path) as opened:
        yield lambda x: opened.submit(None, {"x": x}).result()


@contextmanager
def device(path: Path) -> Iterator[Run]:
    with anynpu.Device(anynpu.load(path).chip) as opened, opened.load(path).context() as context:
        yield lambda x: context.run({"x": x})


@contextmanager
def rknn(path: Path) -> Iterator[Run]:
    with Context(path) as context:
        yield lambda x: context.run([x])


@contextmanager
def rknnlite(path: Path) -> Iterator[Run]:
    lite = RKNNLite()
    assert lite.load_rknn(str(path)) == 0
    assert lite.init_runtime() == 0
    yield lambda x: lite.inference(inputs=[x])
    lite.release()


@contextmanager
def vip(path: Path) -> Iterator[Run]:
    with closing(Network(path)) as network:
        yield lambda x: network.run([x])


INTERFACES = {
    "session": (session, "rk3588"),
    "submit": (submitted, "rk3588"),
    "session on VIPLite": (session, "t527"),
    "Device": (device, "rk3588"),
    "anynpu.rknn": (rknn, "rk3588"),
    "RKNNLite": (rknnlite, "rk3588"),
    "anynpu.vip": (vip, "t527"),
}


@pytest.mark.parametrize("dtype", ["fp16", "int8"])
@pytest.mark.parametrize("name", INTERFACES)
def test_each_interface_reports_nan_in_an_input(name: str, dtype: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    interface, chip = INTERFACES[name]
    path = model_of(chip, tmp_path / ("m.rknn" if chip == "rk3588" else "m.nb"), dtype)
    with interface(path) as run, caplog.at_level(logging.WARNING, "anynpu"):
        for _ in range(LATE):
            run(GOOD)
        assert caplog.messages == []
        run(BAD)
        found = list(caplog.messages)
        run(BAD)
    assert INPUT in found
    assert all(text == INPUT or "output" in text for text in found)
    assert caplog.messages == found, "once"


@pytest.mark.parametrize("name", INTERFACES)
def test_each_interface_reports_infinity_in_an_output(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    interface, chip = INTERFACES[name]
    path = model_of(chip, tmp_path / ("m.rknn" if chip == "rk3588" else "m.nb"))
    with interface(path) as run, caplog.at_level(logging.WARNING, "anynpu"):
        for _ in range(LATE):
            run(GOOD)
        assert caplog.messages == []
        for _ in range(3):
            run(LARGE)
    (message,) = caplog.messages
    assert "1 of 2 values are infinite or not a number (NaN); the model computes in float16, which ends at 65504" in message


def reported(specs: Sequence[tuple[TensorSpec, Array]], *, output: bool) -> list[str]:
    texts: list[str] = []
    check = ValueCheck(texts.append)
    for spec, array in specs:
        if output:
            check.output_at(spec, array.ctypes.data, spec.dtype)
        else:
            check.input_at(spec, array.ctypes.data)
    return texts


def test_memory_is_checked_in_every_float_type() -> None:
    values = np.array([1, -np.inf, 3, np.nan], np.float32)
    stored = {
        DType.FLOAT32: values,
        DType.FLOAT16: values.astype(np.float16),
        DType.BFLOAT16: (values.view(np.uint32) >> 16).astype(np.uint16),
        DType.INT32: values.view(np.int32),
    }
    for dtype, array in stored.items():
        spec = TensorSpec("x", (1, 4), dtype)
        expected = dtype.is_float
        assert bool(reported([(spec, array)], output=False)) == expected
        assert bool(reported([(spec, array)], output=True)) == expected
        if expected:
            assert reported([(spec, array)], output=False)[0].startswith("input 'x': 1 of 4 values")
            assert reported([(spec, array)], output=True)[0].startswith("output 'x': 2 of 4 values")
        infinite = TensorSpec("x", (1, 3), dtype)
        assert reported([(infinite, array)], output=False) == [], "a mask may hold infinity"


def test_padding_is_not_checked() -> None:
    padded = TensorSpec("x", (1, 3, 1, 2), DType.FLOAT16, Layout.NC1HWC2, c2=8)
    assert reported([(padded, np.full(padded.memory_shape, np.nan, np.float16))], output=False) == []


@pytest.mark.parametrize("count", [1, 7, 64, 1000])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_every_place_is_seen(count: int, kind: type[np.floating]) -> None:
    for place in {0, count // 2, count - 1}:
        for sign in (1, -1):
            texts: list[str] = []
            check = ValueCheck(texts.append)
            values = np.full(count, np.finfo(kind).max, kind)
            check.inputs(["x"], [values])
            assert texts == []
            values[place] = np.copysign(np.nan, sign)
            check.inputs(["x"], [values])
            assert len(texts) == 1
            check.inputs(["y"], [values.reshape(1, -1)[:, ::-1]])
            assert len(texts) == 2, "memory in another order"


def test_a_mask_of_infinity_is_not_reported(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    net = Net()
    net.output(net.op("Softmax", net.op("Add", net.input("x", (1, 8)), net.input("mask", (1, 8)))))
    proto: onnx.ModelProto = net.proto()
    path = Path(anynpu.compile(proto, "rk3588", dtype="fp16").save(tmp_path / "m.rknn"))
    mask = np.zeros((1, 8), np.float32)
    mask[0, 3] = -np.inf
    with anynpu.InferenceSession(path) as opened, caplog.at_level(logging.WARNING, "anynpu"):
        for _ in range(3):
            opened.run(None, {"x": GOOD, "mask": mask})
    assert caplog.messages == []
