"""``anynpu export``: what it writes runs in onnxruntime, and comes back with its scales."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import anynpu
from anynpu.cli.app import run
from anynpu.compiler.export import Handover, handover, scales_of, to_qdq
from anynpu.compiler.toolkit.quantization_cfg import read_cfg

from .onnx_builders import Net
from .running import run_fp32, run_model

Array = npt.NDArray[Any]
SHAPE = (1, 3, 12, 12)


def network(opset: int = 17) -> onnx.ModelProto:
    """A residual, a depthwise and a transposed convolution, a Concat and both kinds of matmuls."""
    net = Net(opset=opset)
    first = net.op("Relu", net.conv(net.input("x", SHAPE), 8, pads=[1, 1, 1, 1]))
    depthwise = net.op("Relu", net.conv(first, 8, cin=8, group=8, pads=[1, 1, 1, 1]))
    summed = net.op("Add", net.conv(depthwise, 8, 1, cin=8), first)
    pooled = net.op("MaxPool", summed, kernel_shape=[2, 2], strides=[2, 2])
    larger = net.op("ConvTranspose", pooled, net.weights(8, 4, 2, 2, scale=0.3), strides=[2, 2])
    net.output(net.op("Concat", larger, summed, axis=1))
    flat = net.op("Flatten", net.op("GlobalAveragePool", pooled))
    hidden = net.op("Relu", net.op("Gemm", flat, net.weights(6, 8, scale=0.3), net.weights(6), transB=1))
    net.output(net.op("MatMul", hidden, net.weights(6, 5, scale=0.3)))
    return net.proto()


def feeds(count: int, seed: int) -> list[dict[str, Array]]:
    random = np.random.default_rng(seed)
    return [{"x": random.normal(size=SHAPE).astype(np.float32)} for _ in range(count)]


def cosine(one: Array, other: Array) -> float:
    return float(np.vdot(one, other) / (np.linalg.norm(one) * np.linalg.norm(other)))


@pytest.fixture(scope="module")
def chosen() -> Handover:
    return handover(network(), "rk3588", refit=False, dataset=feeds(6, 1))


def test_it_runs_in_onnxruntime_and_is_near_the_float_model(chosen: Handover) -> None:
    model = to_qdq(chosen)
    onnx.checker.check_model(model, full_check=True)
    weights = {node.input[1] for node in model.graph.node if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")}
    assert all(name.endswith(".rounded") for name in weights)
    for wanted, found in zip(run_fp32(network(), feeds(6, 1)), run_fp32(model, feeds(6, 1)), strict=True):
        for one, other in zip(wanted, found, strict=True):
            assert np.abs(one - other).max() > 0.0
            assert cosine(one, other) > 0.995


def test_it_comes_back_with_its_scales(chosen: Handover) -> None:
    model = to_qdq(chosen)
    compiled = anynpu.compile(model, "rk3588")
    program = compiled.programs[0]
    known = scales_of(chosen)
    kept = {name: tensor for name, tensor in program.tensors.items() if name in known and tensor.quantization is not None}
    assert len(kept) >= 6
    for name, tensor in kept.items():
        assert (np.float32(tensor.quantization.scale), tensor.quantization.zero_point) == (
            np.float32(known[name][0]),
            known[name][1],
        )
    for wanted, found in zip(run_fp32(model, feeds(6, 3)), run_model(compiled, feeds(6, 3)), strict=True):
        for spec, one, other in zip(program.output_specs, wanted, found, strict=True):
            steps = np.abs(np.rint((np.asarray(other).reshape(one.shape) - one) / spec.quantization.scale))
            assert (steps <= 1).mean() >= 0.999


def test_old_opsets_are_converted() -> None:
    model = to_qdq(handover(network(opset=11), "rk3588", refit=False, dataset=feeds(4, 1)))
    assert next(entry.version for entry in model.opset_import if not entry.domain) >= 13
    wanted, found = run_fp32(network(opset=11), feeds(1, 2))[0], run_fp32(model, feeds(1, 2))[0]
    assert cosine(wanted[0], found[0]) > 0.98


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(network(), tmp_path / "net.onnx")
    np.save(tmp_path / "data.npy", np.concatenate([entry["x"] for entry in feeds(4, 1)]))
    common = [str(tmp_path / "net.onnx"), "--target", "rk3588", "--dataset", str(tmp_path / "data.npy"), "--accuracy", "fast"]

    def invoked(*arguments: str) -> int:
        with pytest.raises(SystemExit) as caught:
            run(["export", *common, *arguments])
        return int(caught.value.code or 0)

    assert invoked("--qdq", str(tmp_path / "out.onnx"), "--scales", str(tmp_path / "out.json")) == 0
    capsys.readouterr()
    scales = json.loads((tmp_path / "out.json").read_text())
    program = anynpu.compile(network(), "rk3588", dataset=feeds(4, 1), ranges=scales, accuracy="fast").programs[0]
    assert np.float32(program.tensors["x"].quantization.scale) == np.float32(scales["x"][0])
    assert onnx.load(tmp_path / "out.onnx").graph.node[0].op_type == "QuantizeLinear"
    assert invoked() == 2
    assert "choose what to write" in capsys.readouterr().err


def test_ranges_are_set_in_a_configuration_of_the_toolkit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(network(), tmp_path / "net.onnx")
    np.save(tmp_path / "data.npy", np.concatenate([entry["x"] for entry in feeds(4, 1)]))
    cfg = tmp_path / "net.quantization.cfg"
    numbers = "".join(f"        {key}:\n        -   {value}\n" for key, value in (("min", -9.5), ("max", 9.5), ("scale", 0.0745)))
    entry = "    {}:\n        dtype: int8\n" + numbers
    files = ["--cfg", str(cfg), "--scales", str(tmp_path / "out.json")]
    command = ["export", str(tmp_path / "net.onnx"), "--target", "rk3588", "--dataset", str(tmp_path / "data.npy"), *files]
    for name, code in (("x_int8", 0), ("another", 1)):
        cfg.write_text("quantize_parameters:\n" + entry.format(name))
        with pytest.raises(SystemExit) as caught:
            run(command)
        assert (caught.value.code or 0) == code
        text = capsys.readouterr()
        if code:
            assert "has no int8 tensor of this model" in text.err
            assert "-   9.5" in cfg.read_text()
            continue
        (scale, zero) = json.loads((tmp_path / "out.json").read_text())["x"]
        found = read_cfg(cfg).ranges()["x"]
        assert found == (pytest.approx(scale, rel=1e-6), zero)
        assert "0.0745" in cfg.read_text()


@pytest.mark.parametrize(
    ("target", "remedy"), [("rk3588", "--hybrid boxes keeps it in float16"), ("rv1106", "make an output of each part")]
)
def test_an_output_of_unlike_values_is_reported(target: str, remedy: str) -> None:
    net = Net()
    x = net.input("x", SHAPE)
    boxes = net.op("Mul", net.op("Relu", net.conv(x, 4, 1)), net.constant(200.0))
    net.nodes.append(onnx.helper.make_node("Concat", [boxes, net.op("Sigmoid", net.conv(x, 2, 1))], ["boxes"], axis=1))
    net.output("boxes")
    notes = handover(net.proto(), target, dataset=feeds(4, 1), refit=False).notes
    (found,) = (note for note in notes if "joins values of different scale" in note)
    assert found.startswith("output 'boxes' ")
    assert found.endswith(remedy)
    assert not any("joins values" in note for note in handover(network(), target, dataset=feeds(4, 1), refit=False).notes)
