"""Programs for Allwinner's boards after the patterns of the vendor's tools, and headers that programs expect."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from compiler.onnx_builders import Net, feeds

import anynpu

from .running import board_environment, build, run


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("vip_patterns.c", tmp_path_factory.mktemp("vip-patterns") / "program", "-lawnn", library="VIPlite")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One small network in fixed point and with scales, for t527."""
    net = Net()
    net.output(net.conv(net.input("x", (1, 3, 8, 8)), 4, 3))
    proto, folder = net.proto(), tmp_path_factory.mktemp("vip-models")
    made = {}
    for dtype in ("w16a16", "w8a8"):
        model = anynpu.compile(proto, "t527", dtype=dtype, dataset=feeds(proto, 2), accuracy="fast")
        made[dtype] = Path(model.save(folder / f"{dtype}.nb"))
    return made


def test_a_fixed_point_survives_the_question_for_a_scale(program: Path, models: dict[str, Path]) -> None:
    lines = run([program, "union", models["w16a16"]], board_environment("t527")).stdout.splitlines()
    quantization = anynpu.modelfile.read(models["w16a16"]).outputs[0].quantization
    assert f"output_dfp={quantization.fraction_bits}" in lines  # type: ignore[union-attr]


def test_a_scale_survives_the_question_for_a_fixed_point(program: Path, models: dict[str, Path]) -> None:
    lines = run([program, "union", models["w8a8"]], board_environment("t527")).stdout.splitlines()
    quantization = anynpu.modelfile.read(models["w8a8"]).outputs[0].quantization
    assert quantization is not None
    assert f"scale={np.float32(quantization.scale):f} zero_point={quantization.zero_point + 128}" in lines
    assert f"scale={np.float32(quantization.scale):f} again" in lines


def test_times_of_layers_are_refused(program: Path, models: dict[str, Path]) -> None:
    assert "layer times -4" in run([program, "union", models["w8a8"]], board_environment("t527")).stdout


def test_a_context_that_is_destroyed_twice(program: Path, models: dict[str, Path]) -> None:
    done = run([program, "twice", models["w8a8"]], board_environment("t527"))
    assert "inputs 1 outputs 1 elements 144" in done.stdout
    assert "no longer" in done.stderr


def test_a_failing_call_is_explained_once_per_place(program: Path, models: dict[str, Path]) -> None:
    command = [program, "unprepared", models["w8a8"]]
    lines = run(command, board_environment("t527")).stderr.splitlines()
    assert sum(line.startswith("E VIPLite: ") and "vip_run_network: " in line for line in lines) == 1
    assert sum("vip_create_network: " in line and "absent.nb" in line for line in lines) == 1, "through libawnn"
    silent = run(command, {**board_environment("t527"), "ANYNPU_LOG_LEVEL": "-1"}).stderr
    assert "VIPLite" not in silent
    assert "awnn: fail to" in silent


def test_nan_in_a_buffer_is_reported_in_the_run_that_it_comes_with(program: Path, tmp_path: Path) -> None:
    net = Net()
    net.output(net.conv(net.input("x", (1, 3, 8, 8)), 4, 3))
    model = tmp_path / "half.nb"
    anynpu.compile(net.proto(), "t527", dtype="fp16").save(model)
    lines = run([program, "no-number", model], board_environment("t527")).stderr.splitlines()
    warnings = [line for line in lines if line.startswith("W VIPLite: ")]
    assert [line for line in lines if line.startswith("run")] == [f"run {time}" for time in range(5)]
    assert ["input 'x': 1 of 192 values" in warnings[0], "output" in warnings[1], len(warnings)] == [True, True, 2]
    assert lines.index("run 1") < lines.index(warnings[0]) < lines.index("run 2")


def test_a_hang_is_captured_in_the_working_directory(program: Path, models: dict[str, Path], tmp_path: Path) -> None:
    """The network takes a minute in this time, and may take 20 ms."""
    environment = board_environment("t527") | {"ANYNPU_REALTIME": "0.000001"}
    assert run([program, "hang", models["w8a8"]], environment, cwd=tmp_path).stdout.splitlines()[-2:] == ["run -1", "done"]
    (capture,) = tmp_path.iterdir()
    assert capture.name.startswith("viplite_hang_")
    text = capture.read_text()
    assert "did not finish within 20 ms" in text
    assert "priority 44" in text, "a priority is one byte: of 300 in a wider integer, 44 arrives"
    assert "jobs lost with the reset: 0" in text


def test_the_device_of_the_board_is_there(program: Path) -> None:
    assert run([program, "node", "none"], board_environment("t527")).stdout == "done\n"


def test_numbers_of_16_bits(tmp_path: Path) -> None:
    program = build("halves.cpp", tmp_path / "halves", "-std=c++11", compiler="c++", library=None)
    words = run([program]).stdout.split()
    given = [1.0, 0.1, 65519.0, 65520.0, 6e-8, 2e-8, -2.5, 1.00048828125, 1.00146484375]
    with np.errstate(over="ignore"):
        expected = np.array(given, np.float32).astype(np.float16).view(np.uint16)
    assert words == [*(f"{bits:04x}" for bits in expected), "1.5"]
