"""``anynpu compare`` of a folder that ``anynpu build`` wrote: the vendor's simulator and the anynpu model, layer by layer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiler.onnx_builders import Net
from typer.testing import CliRunner

from anynpu.cli.app import app
from anynpu.compiler import CompileOptions
from anynpu.compiler.board import build
from anynpu.compiler.board.environment import Toolkit, toolkit_at
from anynpu.compiler.board.simulator import VendorSimulation, read_results, simulator_twin
from anynpu.errors import ToolkitError

from .stub_toolkit import write_stub


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYNPU_TWINS", str(tmp_path / "twins"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("ANYNPU_TOOLKIT", raising=False)


@pytest.fixture
def toolkit(tmp_path: Path) -> Toolkit:
    return toolkit_at(write_stub(tmp_path / "stub"))


@pytest.fixture
def job(tmp_path: Path, toolkit: Toolkit) -> Path:
    net = Net()
    net.output(net.conv(net.op("Relu", net.conv(net.input("x", (1, 3, 8, 8)), 4, pads=[1, 1, 1, 1])), 2, 1, cin=4))
    onnx.save(net.proto(), tmp_path / "net.onnx")
    samples = np.random.default_rng(3).integers(0, 256, (4, 8, 8, 3)).astype(np.uint8)
    options = CompileOptions(dataset=samples, mean=10.0, std=200.0, accuracy="fast")
    return build(tmp_path / "net.onnx", tmp_path / "out", "rk3588", options, toolkit).job


def test_the_command_compares_every_layer_with_the_simulator(job: Path, toolkit: Toolkit) -> None:
    result = CliRunner().invoke(app, ["compare", str(job), "--toolkit", str(toolkit.python), "--samples", "1", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["samples"] == 1
    layers = [entry for entry in document["layers"] if entry["index"] >= 0]
    assert [entry["operator"] for entry in layers] == ["Transpose", "ConvRelu", "Conv"]  # the simulator's order of an image first
    assert all(entry["alone"]["cosine"] > 0.99 for entry in document["layers"] if entry["alone"])
    assert document["rules"][0].startswith("Output ")


def test_the_twin_for_it_rounds_as_simulators_do_and_has_the_scales_of_the_configuration(job: Path) -> None:
    twin = simulator_twin(job)
    assert twin.arithmetic == "simulator"
    assert list(twin.preprocess["x"].mean) == [10.0] * 3
    document = json.loads((job / "job.json").read_text())
    (output,) = twin.programs[0].output_specs
    assert output.quantization is not None
    low, high = document["ranges"][output.name]
    assert output.quantization.scale == pytest.approx((high - low) / 255, rel=1e-6)


def test_a_simulator_that_fails_is_an_error_with_its_last_lines(tmp_path: Path, job: Path) -> None:
    failing = toolkit_at(write_stub(tmp_path / "failing", "analysis"))
    with pytest.raises(ToolkitError, match="the input is wrong"):
        VendorSimulation(job, failing).values({"x": np.zeros((1, 3, 8, 8), np.float32)})


def test_a_folder_without_a_build_and_a_machine_without_the_toolkit_are_refused(tmp_path: Path, toolkit: Toolkit) -> None:
    with pytest.raises(ToolkitError, match="no folder of 'anynpu build'"):
        VendorSimulation(tmp_path, toolkit)
    (tmp_path / "job.json").write_text('{"name": "net"}')
    with pytest.raises(ToolkitError, match=r"lacks net\.onnx, net\.model"):
        VendorSimulation(tmp_path, toolkit)
    result = CliRunner().invoke(app, ["compare", str(tmp_path)])
    assert isinstance(result.exception, ToolkitError)
    with pytest.raises(ToolkitError, match=r"map_name_to_file\.txt"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    "flags",
    [
        ["a.onnx", "b.rknn", "--toolkit", "."],
        [".", "--arithmetic", "chip,simulator"],
    ],
)
def test_flags_that_do_not_go_together_are_refused(flags: list[str]) -> None:
    assert CliRunner().invoke(app, ["compare", *flags]).exit_code == 2


def test_results_have_the_names_of_the_model(tmp_path: Path) -> None:
    """What the toolkit made in another shape, and codes before numbers of the same tensor."""
    folder = tmp_path / "simulator" / "npy"
    folder.mkdir(parents=True)
    lines = ["layer_name  file_name", "---"]
    for number, name in enumerate(["x", "x_int8", "a b", "scores_mm", "other"]):
        np.save(folder / f"f{number}.npy", np.full(2, number, np.float32))
        lines.append(f"{name:20s}f{number}.txt   ")
    lines.append("lost                f9.txt")
    (tmp_path / "map_name_to_file.txt").write_text("\n".join(lines))
    values = read_results(tmp_path)
    assert {name: float(value[0]) for name, value in values.items()} == {
        "x": 1.0,
        "x_int8": 1.0,
        "a b": 2.0,
        "scores_mm": 3.0,
        "scores": 3.0,
        "other": 4.0,
    }
