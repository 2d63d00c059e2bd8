"""What ``anynpu build`` writes for ACUITY: the anynpu model's scales, in files of the form that its users have published."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from compiler.onnx_builders import Net
from typer.testing import CliRunner

from anynpu import modelfile
from anynpu.cli.app import app
from anynpu.compiler import CompileOptions
from anynpu.compiler.board import build
from anynpu.compiler.board.build import ACUITY_SCRIPT, COMMANDS
from anynpu.errors import CompileError

TABLE = """\
# a comment
version: 2
quantize_parameters:
  '@attach_y_0:out0':
    qtype: u8
    quantizer: asymmetric_affine
    rounding: rtne
    max_value: 9.0
    min_value: -9.0
    scale: 0.07
    zero_point: 127
  '@Conv_middle_7:out0':
    qtype: u8
    quantizer: asymmetric_affine
    rounding: rtne
    max_value: 9.0
    min_value: -9.0
    scale: 0.07
    zero_point: 127
  '@Conv_middle_7:weight':
    qtype: u8
    quantizer: asymmetric_affine
    rounding: rtne
    max_value: 1.0
    min_value: -1.0
    scale: 0.01
    zero_point: 128
customized_quantize_layers: {}
"""


@pytest.fixture
def network(tmp_path: Path) -> Path:
    net = Net()
    net.output(net.conv(net.op("Relu", net.conv(net.input("x", (1, 3, 8, 8)), 4, pads=[1, 1, 1, 1])), 2, 1, cin=4))
    onnx.save(net.proto(), tmp_path / "net work.onnx")
    return tmp_path / "net work.onnx"


def options(**changes: object) -> CompileOptions:
    samples = np.random.default_rng(3).integers(0, 256, (4, 8, 8, 3)).astype(np.uint8)
    return CompileOptions(**{"dataset": samples, "std": 255.0, **changes})  # type: ignore[arg-type]


def test_the_folder_has_the_scales_of_the_twin(tmp_path: Path, network: Path) -> None:
    built = build(network, tmp_path / "out", "t527", options(), None)
    assert built.rknn is None
    twin = modelfile.read(built.twin)
    assert (twin.chip, twin.name) == ("t527", "net work")
    ranges = json.loads((built.job / "ranges.json").read_text())
    for name, entry in ranges.items():
        quantization = twin.programs[0].tensors[name].quantization
        assert quantization is not None
        assert (entry["scale"], entry["zero_point"]) == (quantization.scale, quantization.zero_point + 128), name
        assert entry["min_value"] == pytest.approx(-entry["scale"] * entry["zero_point"])
        assert entry["max_value"] - entry["min_value"] == pytest.approx(255 * entry["scale"])
    assert {"x", *twin.programs[0].outputs} <= set(ranges)
    lines = (built.job / "dataset.txt").read_text().splitlines()
    assert len(lines) == 4
    sample = np.load(built.job / lines[0])
    assert (sample.shape, sample.dtype) == ((1, 3, 8, 8), np.float32)
    assert 0 <= sample.min() < sample.max() <= 1
    assert "shape: [1, 3, 8, 8]" in (built.job / "net work_inputmeta.yml").read_text()


@pytest.mark.parametrize(
    ("dtype", "quantizer", "kind"), [("w8a8", "asymmetric_affine", "u8"), ("i8", "perchannel_symmetric_affine", "i8")]
)
def test_the_commands_run_in_order(tmp_path: Path, network: Path, dtype: str, quantizer: str, kind: str) -> None:
    """A stand-in for the vendor's program notes how it was called, and writes a table as ACUITY does."""
    built = build(network, tmp_path / "out", "t527", options(dtype=dtype), None)
    (name,) = modelfile.read(built.twin).programs[0].outputs
    table = tmp_path / "table"
    table.write_text(TABLE.replace("middle", name))
    stand_in = tmp_path / "pegasus"
    stand_in.write_text(f"""#!/bin/sh
echo "$@" >> {shlex.quote(str(tmp_path / "calls"))}
[ "$1" = quantize ] && cp {shlex.quote(str(table))} "net work.quantize"
exit 0
""")
    stand_in.chmod(0o755)
    environment = {
        **os.environ,
        "PEGASUS": str(stand_in),
        "VIV_SDK": "/sdk",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    run = subprocess.run(
        ["/bin/sh", str(built.job / COMMANDS)], env=environment, capture_output=True, text=True, check=True, timeout=600
    )
    assert "1 of " in run.stdout
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call.split()[0] for call in calls] == ["import", "quantize", "export"]
    assert f"--quantizer {quantizer} " in calls[1]
    assert "--optimize VIP9000NANOSI_PLUS_PID0X10000016" in calls[2]
    entry = json.loads((built.job / "ranges.json").read_text())[name]
    before, after = TABLE.replace("middle", name).splitlines(), (built.job / "net work.quantize").read_text().splitlines()
    changed = {new.strip() for old, new in zip(before, after, strict=True) if old != new}
    assert {f"{key}: {entry[key]}" for key in ("max_value", "min_value", "scale", "zero_point")} <= changed
    assert len(changed) == 4 + (kind == "i8")


def test_a_table_of_other_names_is_left_alone(tmp_path: Path, network: Path) -> None:
    job = build(network, tmp_path / "out", "v853", options(), None).job
    table = tmp_path / "other.quantize"
    table.write_text(TABLE)
    run = subprocess.run(
        [sys.executable, str(job / ACUITY_SCRIPT), str(table), str(job / "ranges.json")],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 1
    assert "nothing was changed" in run.stderr
    assert table.read_text() == TABLE


def test_the_command_says_what_to_do_next(tmp_path: Path, network: Path) -> None:
    np.save(tmp_path / "data.npy", np.random.default_rng(3).integers(0, 256, (4, 8, 8, 3)).astype(np.uint8))
    arguments = ["build", network, "-o", tmp_path / "out", "-t", "t527", "--dataset", tmp_path / "data.npy"]
    outcome = CliRunner().invoke(app, list(map(str, arguments)))
    assert outcome.exit_code == 0, outcome.output
    text = " ".join(outcome.output.split())
    assert f"./{COMMANDS}" in text
    assert "never tried with ACUITY" in text
    assert "rknn-toolkit2" not in text


def test_what_acuity_is_not_asked_for(tmp_path: Path, network: Path) -> None:
    with pytest.raises(CompileError, match="not w16a16"):
        build(network, tmp_path / "out", "t527", options(dtype="w16a16"), None)
