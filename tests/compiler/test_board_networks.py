"""Networks that a real RV1103 ran: compiled by us, executed by every engine, the bytes of the board."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arithmetic.board_cases import BoardCase
from arithmetic.engines import use_engine
from onnx import numpy_helper

import anynpu
from anynpu.errors import CompileError, TensorNameError
from anynpu.npu.engines.native_levels import available
from anynpu.program import Conv, FixedPoint, Model

from .board_networks import NETWORKS, PROGRAMS, calibration_images, network, recorded_ranges

RAW_BYTES = {"mean": (0, 0, 0), "std": (1, 1, 1)}


@functools.cache
def compiled(name: str, arithmetic: str = "chip", *, recorded: bool = True) -> Model:
    case = BoardCase(name)
    return anynpu.compile(
        network(case),
        target="rv1106",
        dataset=calibration_images(case),
        quantizer="vendor",
        arithmetic=arithmetic,
        ranges=recorded_ranges(case) if recorded else None,
        **RAW_BYTES,
    )


def wrong_bytes(name: str, model: Model | Path, **options: Any) -> int:
    case = BoardCase(name)
    wrong = 0
    with anynpu.InferenceSession(model, provider_options={"layout": "nhwc", "output_type": "model", **options}) as session:
        for pattern in case.patterns:
            (codes,) = session.run(None, {"input": case.input(pattern)})
            assert codes.dtype == np.int8
            order = codes.transpose(0, 2, 3, 1) if codes.ndim == 4 else codes
            wrong += int((np.ascontiguousarray(order).reshape(-1) != case.output(pattern)).sum())
    return wrong


@pytest.mark.parametrize("level", ["reference", *available()])
@pytest.mark.parametrize("name", [*NETWORKS, *PROGRAMS])
def test_the_bytes_of_the_board(name: str, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the ranges that were recorded; through a file."""
    use_engine(level, monkeypatch)
    path = compiled(name).save(tmp_path / "model.rknn")
    assert wrong_bytes(name, path) == 0


@pytest.mark.parametrize("name", NETWORKS)
def test_calibration_finds_what_the_toolkit_found(name: str, tmp_path: Path) -> None:
    """Scales and zero points as recorded, and the same bytes."""
    model = compiled(name, recorded=False)
    tensors = model.programs[0].tensors
    for tensor, (scale, zero) in recorded_ranges(BoardCase(name)).items():
        if tensor in tensors:
            quantization = tensors[tensor].quantization
            assert quantization is not None
            # the toolkit's own range of a normalized tensor is 5e-6 away from the float network's
            assert quantization.scale == pytest.approx(scale, rel=1e-5 if name == "batchnorm" else 2e-7), tensor
            assert quantization.zero_point == zero, tensor
    assert wrong_bytes(name, model.save(tmp_path / "model.rknn")) == 0


@pytest.mark.parametrize("name", NETWORKS)
def test_the_registers_of_the_vendors_program(name: str) -> None:
    """Multiplier, shift and zero point of the last stage, where the case records them."""
    registers = BoardCase(name).record.get("registers") or {}
    tasks = [registers] if "0x4084" in registers else [entry for entry in registers.values() if "0x4084" in entry]
    layer = compiled(name).programs[0].layers[-1]
    if not tasks or not isinstance(getattr(layer.op, "epilogue", None), FixedPoint):
        return
    stage, flat = layer.op.epilogue, tasks[-1]
    shift = int(flat["0x4088"], 16) & 0x3F
    assert int(stage.multiplier[0]) == int(flat["0x4084"], 16) & 0xFFFF
    assert int(stage.shift[0]) + (14 if stage.slope is not None else 0) == shift


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_integers_of_a_known_program(name: str) -> None:
    """From the float network: every multiplier, shift, zero point, bias and weight of the program that the board ran."""
    params = BoardCase(name).record["params"]
    conv = compiled(name).programs[0].layers[0].op
    assert isinstance(conv, Conv)
    stage = conv.epilogue
    assert isinstance(stage, FixedPoint)
    codes = conv.weights.transpose(0, 3, 1, 2).reshape(len(conv.weights), -1).astype(np.int64)
    zeros = conv.weight_zero.astype(np.int64)
    assert codes.tolist() == params["w"]
    assert zeros.tolist() == params["wz"]
    # the program's bias holds the zero point of the input
    assert (conv.bias + 128 * (codes - zeros[:, None]).sum(1)).tolist() == params["bias"]
    assert stage.channel_multiplier.tolist() == params["c"]
    assert (stage.multiplier.tolist(), stage.shift.tolist()) == ([params["m"]], [params["shift"]])
    assert stage.zero_point.tolist() == [params["z_out"]]


@pytest.mark.parametrize(
    ("cases", "expected", "share"), [(NETWORKS, 634, 0.02), (PROGRAMS, 206, 0.5)], ids=["networks", "programs"]
)
def test_the_rule_of_the_simulator_gets_bytes_wrong(cases: list[str], expected: int, share: float, tmp_path: Path) -> None:
    """What the same cases give with sums in float32: the numbers of docs/validation.md."""
    wrong = sum(wrong_bytes(name, compiled(name, "simulator").save(tmp_path / f"{name}.rknn")) for name in cases)
    # one program has 190 ties, and the order in which a processor sums decides them
    assert wrong == pytest.approx(expected, rel=share)


def test_what_cannot_be_asked_for() -> None:
    case = BoardCase("relu")
    options = {"dataset": calibration_images(case), "target": "rv1106", **RAW_BYTES}
    with pytest.raises(TensorNameError, match="no tensor of the model"):
        anynpu.compile(network(case), quantizer="vendor", ranges={"nowhere": (1.0, 0)}, **options)
    with pytest.raises(CompileError, match=r"ranges of 'output'"):
        anynpu.compile(network(case), ranges={"output": (0.0, 300)}, **options)
    with pytest.raises(CompileError, match="no quantizer 'other'"):
        anynpu.compile(network(case), quantizer="other", **options)
    with pytest.raises(CompileError, match="no arithmetic 'exact'"):
        anynpu.compile(network(case), arithmetic="exact", **options)
    with pytest.raises(CompileError, match="not known for w8a8 models of t527"):
        anynpu.compile(network(case), arithmetic="chip", **{**options, "target": "t527"})


def test_an_output_that_is_always_zero_can_be_saved(tmp_path: Path) -> None:
    """Its scale is next to nothing, so the factor that leads to it is larger than the chip's 15 bits."""
    case = BoardCase("relu")
    proto = network(case)
    (bias,) = (tensor for tensor in proto.graph.initializer if tensor.name == "stem_b")
    bias.CopyFrom(numpy_helper.from_array(np.full(3, -100, np.float32), "stem_b"))
    options: dict[str, Any] = {"dataset": calibration_images(case), "target": "rv1106", "arithmetic": "chip", **RAW_BYTES}
    path = anynpu.compile(proto, **options).save(tmp_path / "dead.rknn")
    with anynpu.InferenceSession(path, provider_options={"layout": "nhwc"}) as session:
        (result,) = session.run(None, {"input": case.input("ramp")})
    assert np.abs(result).max() < 1e-6
