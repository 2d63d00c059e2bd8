"""``anynpu build``: two files with the same scales, by way of a toolkit that can fail in many ways."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from compiler.onnx_builders import Net
from typer.testing import CliRunner
from waiting import PATIENCE, wait_until

import anynpu
from anynpu import modelfile
from anynpu.cli.app import app
from anynpu.compiler import CompileOptions
from anynpu.compiler.board import build, find_toolkit
from anynpu.compiler.board.build import final_cfg
from anynpu.compiler.board.environment import Toolkit, toolkit_at
from anynpu.compiler.board.worker import edited
from anynpu.compiler.toolkit.quantization_cfg import final_ranges, read_cfg
from anynpu.errors import AnynpuError, CompileError, OutputFileError, ToolkitError
from anynpu.modelfile.stand_ins import VENDOR_HASH, find_twin, vendor_hash

from .stub_toolkit import FAILURES, write_stub


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYNPU_TWINS", str(tmp_path / "twins"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("ANYNPU_TOOLKIT", raising=False)


@pytest.fixture
def network(tmp_path: Path) -> Path:
    net = Net()
    net.output(net.conv(net.op("Relu", net.conv(net.input("x", (1, 3, 8, 8)), 4, pads=[1, 1, 1, 1])), 2, 1, cin=4))
    onnx.save(net.proto(), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


@pytest.fixture
def options() -> CompileOptions:
    samples = np.random.default_rng(3).integers(0, 256, (4, 8, 8, 3)).astype(np.uint8)
    return CompileOptions(dataset=samples, std=255.0, accuracy="fast")


def stub(tmp_path: Path, mode: str = "") -> Toolkit:
    return toolkit_at(write_stub(tmp_path / "stub", mode))


def test_the_twin_has_the_scales_of_the_vendors_configuration(tmp_path: Path, network: Path, options: CompileOptions) -> None:
    built = build(network, tmp_path / "out", "rk3588", options, stub(tmp_path))
    assert built.rknn == tmp_path / "out" / "net.rknn"
    wanted = read_cfg(tmp_path / "out" / "net.quantization.cfg").ranges()
    program = modelfile.read(built.twin).programs[0]
    compared = 0
    for name, spec in program.tensors.items():
        if spec.quantization is not None and name in wanted:
            scale, zero = wanted[name]
            assert np.isclose(spec.quantization.scale, scale, rtol=1e-6), name
            assert spec.quantization.zero_point == zero, name
            compared += 1
    assert compared >= 3
    job = json.loads((built.job / "job.json").read_text())
    assert job["config"] == {"target_platform": "rk3588", "mean_values": [[0.0] * 3], "std_values": [[255.0] * 3]}


def test_the_twin_is_found_by_path_and_by_bytes(tmp_path: Path, network: Path, options: CompileOptions) -> None:
    built = build(network, tmp_path / "out", "rk3588", options, stub(tmp_path))
    assert built.rknn is not None
    assert find_twin(built.rknn) == built.twin
    assert find_twin(built.rknn.read_bytes()) == built.by_hash
    with anynpu.InferenceSession(built.rknn.read_bytes(), device="sim:rk3588") as session:
        assert session.run(None, {"x": np.zeros((1, 3, 8, 8), np.uint8)})[0].size == 2 * 8 * 8


def test_the_stub_refuses_other_changes_of_the_configuration(tmp_path: Path, network: Path, options: CompileOptions) -> None:
    """A check of the checker: what the real toolkit rejects, the stub rejects."""
    toolkit = stub(tmp_path)
    built = build(network, tmp_path / "out", "rk3588", options, toolkit)
    script = built.job / "build_rknn.py"
    script.write_text(script.read_text().replace('("min", "max")', '("min", "max", "scale")'))
    from anynpu.compiler.board.environment import run_logged

    with pytest.raises(ToolkitError, match="is invalid"):
        run_logged([str(toolkit.python), "build_rknn.py"], built.job, tmp_path / "log", what="the toolkit")


@pytest.mark.parametrize("mode", [mode for mode in FAILURES if mode != "hang"])
def test_every_failure_of_the_toolkit_is_an_error_with_its_last_lines(
    tmp_path: Path, network: Path, options: CompileOptions, mode: str
) -> None:
    expected = {
        "config": "The target_platform is not supported!",
        "load": "exit code 4: E load_onnx: the model is not supported",
        "exit": "exit code 255: E unsupported operator, exit",
        "crash": "died of SIGSEGV",
        "refused": "quantize_parameters in net.quantization.cfg is invalid!",
        "nothing": "without an error and without a file",
    }
    with pytest.raises(ToolkitError, match=expected[mode]) as caught:
        build(network, tmp_path / "out", "rk3588", options, stub(tmp_path, mode))
    assert "\n" not in caught.value.message
    assert mode == "nothing" or caught.value.lines
    assert not (tmp_path / "out" / "net.rknn").exists()
    assert (tmp_path / "out" / "net.toolkit.log").is_file()


def test_a_toolkit_that_never_comes_back_is_ended(tmp_path: Path, network: Path, options: CompileOptions) -> None:
    with pytest.raises(ToolkitError, match=r"took longer than 0\.2 s and was ended"):
        build(network, tmp_path / "out", "rk3588", options, stub(tmp_path, "hang"), time_limit=0.2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_ends_the_command_ends_the_toolkit(tmp_path: Path, network: Path, number: signal.Signals) -> None:
    np.save(tmp_path / "samples.npy", np.zeros((4, 8, 8, 3), np.uint8))
    toolkit = stub(tmp_path, "hang")
    command = [sys.executable, "-m", "anynpu.cli", "build", network, "-o", tmp_path / "out", "--target", "rk3588"]
    command += ["--toolkit", toolkit.python, "--dataset", tmp_path / "samples.npy", "--accuracy", "fast"]

    def heed() -> None:  # the tests' parent may ignore the signal, and children inherit that
        signal.signal(number, signal.SIG_DFL)

    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heed) as process:
        log = tmp_path / "out" / "net.toolkit.log"
        wait_until(lambda: log.is_file() and b"building" in log.read_bytes(), "the toolkit began")
        begun = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        _, printed = process.communicate(timeout=PATIENCE)
        assert process.returncode == 128 + number
    assert printed.splitlines()[-1] == "interrupted: an earlier build stays complete; run the command again"
    assert begun
    assert psutil.wait_procs(begun, PATIENCE)[1] == []


def test_without_a_toolkit_everything_for_another_machine_is_written(
    tmp_path: Path, network: Path, options: CompileOptions
) -> None:
    built = build(network, tmp_path / "out", "rk3588", options, None)
    assert built.rknn is None
    assert built.twin.is_file()
    assert {path.name for path in built.job.iterdir()} == {"net.onnx", "samples", "dataset.txt", "job.json", "build_rknn.py"}
    from anynpu.compiler.board.environment import run_logged

    run_logged([str(stub(tmp_path).python), "build_rknn.py"], built.job, tmp_path / "log", what="the script")
    assert (built.job / "net.rknn").is_file()


def test_without_a_toolkit_a_vendor_model_of_an_earlier_build_is_no_pair(
    tmp_path: Path, network: Path, options: CompileOptions
) -> None:
    build(network, tmp_path / "out", "rk3588", options, stub(tmp_path))
    with pytest.raises(OutputFileError, match=r"net\.rknn is there"):
        build(network, tmp_path / "out", "rk3588", options, None)


def test_float16_is_rejected_before_the_toolkit_starts_where_the_chip_has_none(tmp_path: Path, network: Path) -> None:
    with pytest.raises(CompileError, match="rv1106 does not take fp16 models"):
        build(network, tmp_path / "out", "rv1106", CompileOptions(dtype="fp16"), stub(tmp_path))
    assert not (tmp_path / "out").exists()


def test_an_anynpu_model_of_another_vendor_file_is_rejected(tmp_path: Path, network: Path, options: CompileOptions) -> None:
    built = build(network, tmp_path / "out", "rk3588", options, stub(tmp_path))
    assert built.rknn is not None
    assert modelfile.read_or_twin(built.rknn).name == "net"
    built.rknn.write_bytes(built.rknn.read_bytes() + b"other")
    with pytest.raises(AnynpuError, match=r"net\.anynpu was built with another vendor file than net\.rknn"):
        anynpu.InferenceSession(built.rknn, device="sim")


_INTERRUPTED = """
import os, sys
from pathlib import Path
import numpy as np
from anynpu.compiler import CompileOptions
from anynpu.compiler.board import build
from anynpu.compiler.board.environment import toolkit_at

network, out, python, level, last = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
samples = np.random.default_rng(level).integers(0, level, (4, 8, 8, 3)).astype(np.uint8)
toolkit, count = toolkit_at(Path(python)), 0

def hook(event, arguments):
    global count
    if event in ("open", "os.rename", "os.remove", "os.mkdir", "subprocess.Popen") and out.split("/out")[0] in str(arguments):
        count += 1
        if count == last:
            os._exit(9)

sys.addaudithook(hook)
build(Path(network), Path(out), "rk3588", CompileOptions(dataset=samples, std=255.0, accuracy="fast"), toolkit)
print(count)
"""


@pytest.mark.full
def test_a_build_that_is_interrupted_leaves_no_vendor_model_with_another_anynpu_model(tmp_path: Path, network: Path) -> None:
    """It ends at ten places where it writes, removes or renames something, over a build of other calibration data."""
    python, out = write_stub(tmp_path / "stub"), tmp_path / "out"

    def run(level: int, last: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", _INTERRUPTED, network, out, python, str(level), str(last)]
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=PATIENCE)

    assert run(256, 0).returncode == 0
    total = int(run(256, 0).stdout.split()[-1])  # what is there already need not be made
    assert total > 20
    early, late = np.linspace(1, total - 12, 4).astype(int), np.linspace(total - 10, total, 6).astype(int)
    for place in (*early.tolist(), *late.tolist()):
        assert run(64, place).returncode == 9, place
        model = modelfile.read_or_twin(out / "net.rknn")
        assert model.provenance[VENDOR_HASH] == vendor_hash(out / "net.rknn"), place
        assert run(256, 0).returncode == 0


def test_a_float16_model_is_built_without_quantisation(tmp_path: Path, network: Path) -> None:
    built = build(network, tmp_path / "out", "rk3588", CompileOptions(dtype="fp16"), stub(tmp_path))
    assert built.rknn is not None
    assert modelfile.read(built.twin).dtype == "fp16"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"channel_groups": 2}, "build has no channel groups"),
        ({"custom_ops": ("Odd",)}, "build has no custom operators"),
        ({"shapes": [{"x": (1, 3, 8, 8)}, {"x": (1, 3, 16, 16)}]}, "one set of shapes"),
        ({"dtype": "w16a16"}, "int8 and float16"),
    ],
)
def test_what_the_toolkit_does_not_have_is_refused(
    tmp_path: Path, network: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(CompileError, match=message):
        build(network, tmp_path, "rk3588", CompileOptions(dataset=[], **changes), None)  # type: ignore[arg-type]


def test_the_command_builds_and_says_what_it_wrote(tmp_path: Path, network: Path, options: CompileOptions) -> None:
    np.save(tmp_path / "samples.npy", options.dataset)
    command = [
        "build",
        str(network),
        "-o",
        str(tmp_path / "out"),
        "--dataset",
        str(tmp_path / "samples.npy"),
        "--std",
        "255",
        "-t",
        "rk3588",
    ]
    without = CliRunner().invoke(app, command)
    assert without.exit_code == 0, without.output
    assert "no rknn-toolkit2 is installed here" in without.output
    unwanted = CliRunner().invoke(app, [*command, "--no-toolkit"])
    assert "--no-toolkit: no vendor model was built." in unwanted.output
    assert "is installed here" not in unwanted.output
    python = write_stub(tmp_path / "stub")
    done = CliRunner().invoke(app, [*command, "--toolkit", str(python)])
    assert done.exit_code == 0, done.output
    assert "equal output values by chip and simulator rounding, 4 calibration samples: " in done.output
    assert "the anynpu model follows: chip (--arithmetic)" in done.output
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path / "out" / "net.rknn")])
    assert "net.anynpu runs in its place" in shown.output.replace("\n", "")
    assert "net.rknn" in done.output


def test_an_environment_without_the_toolkit_is_refused(tmp_path: Path) -> None:
    python = write_stub(tmp_path)
    (tmp_path / "packages" / "rknn_toolkit2-2.5.0.dist-info" / "METADATA").unlink()
    (tmp_path / "packages" / "rknn_toolkit2-2.5.0.dist-info").rmdir()
    with pytest.raises(ToolkitError, match="does not have rknn-toolkit2"):
        toolkit_at(python)
    with pytest.raises(ToolkitError, match="no environment of Python"):
        toolkit_at(tmp_path)


def test_a_toolkit_is_found_by_variable_and_where_it_was_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_toolkit() is None
    python = write_stub(tmp_path / "stub")
    installed = tmp_path / "data" / "anynpu" / "rknn-toolkit2" / "bin"
    installed.mkdir(parents=True)
    (installed / "python").symlink_to(python)
    found = find_toolkit()
    assert found is not None
    assert found.version == "2.5.0"
    monkeypatch.setenv("ANYNPU_TOOLKIT", str(tmp_path / "nowhere"))
    with pytest.raises(ToolkitError):
        find_toolkit()


def test_nothing_is_installed_without_consent(tmp_path: Path) -> None:
    asked = CliRunner().invoke(
        app, ["toolkit", "install", "--folder", str(tmp_path / "env"), "--python", "/bin/false"], input="n\n"
    )
    assert asked.exit_code == 1
    assert "rknn-toolkit2>=" in asked.output
    assert "Rockchip's" in asked.output
    assert not (tmp_path / "env").exists()


_FAKE_PYTHON = """#!/bin/sh
case "$*" in
  "-m venv"*) mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
  "-m pip install"*) echo "$*" ;;
  *) printf '3.11\\n2.5.0\\n' ;;
esac
"""


def test_the_toolkit_is_installed_with_bounds_that_pip_need_not_search(tmp_path: Path) -> None:
    python = tmp_path / "python3.11"
    python.write_text(_FAKE_PYTHON)
    python.chmod(0o755)
    folder = tmp_path / "env"
    done = CliRunner().invoke(app, ["toolkit", "install", "--yes", "--folder", str(folder), "--python", str(python)])
    assert done.exit_code == 0, done.output
    assert f"rknn-toolkit2 2.5.0, {folder / 'bin' / 'python'}" in done.output
    assert "5.6 GB on disk" in done.output
    assert "installing 5.6 GB; pip writes to" in done.output.replace("\n", "")  # without a terminal too
    again = CliRunner().invoke(app, ["toolkit", "install", "--folder", str(folder), "--python", str(python)], input="n\n")
    assert f"{folder} exists: everything in it is deleted and replaced" in again.output.replace("\n", "")
    assert again.exit_code == 1
    # the toolkit takes no torch after 2.4.0: with a wider bound pip fetches 800 MB twice
    assert "torch==2.4.0" in folder.with_name("env.log").read_text().split()


CFG = """custom_quantize_layers: {}
quantize_parameters:
    x:
        dtype: float32
        min:
        -   0.0
        max:
        -   1.0
        scale: []
        zero_point: []
    853_mp#1:
        dtype: float32
        min:
        -   0.0
    '1177':
        dtype: int8
        min:
        -   -2.5
        max:
        -   2.5
        scale:
        -   0.0196
        zero_point:
        -   0
        ori_min:
        -   -2.5
    x_int8:
        dtype: int8
        min:
        -   0.0
        max:
        -   1.0
        scale:
        -   0.00392156862745098
        zero_point:
        -   -128
"""


def test_an_edit_changes_two_numbers_and_no_other_byte() -> None:
    text, changed = edited(CFG, {"1177": (-1.0, 3.0), "x": (0.0, 2.0), "unknown": (0.0, 1.0)})
    assert changed == ["1177", "x_int8"]
    before, after = CFG.split("\n"), text.split("\n")
    assert len(before) == len(after)
    assert [(old, new) for old, new in zip(before, after, strict=True) if old != new] == [
        ("        -   -2.5", "        -   -1.0"),
        ("        -   2.5", "        -   3.0"),
        ("        -   1.0", "        -   2.0"),
    ]
    assert edited(CFG, {})[0] == CFG


def test_a_configuration_is_read_back_as_it_was_edited(tmp_path: Path) -> None:
    scale, zero = 0.0123, -17
    text, _ = edited(CFG, {"1177": ((-128 - zero) * scale, (127 - zero) * scale)})
    (tmp_path / "net.quantization.cfg").write_text(text)
    ranges = read_cfg(tmp_path / "net.quantization.cfg").ranges()
    assert set(ranges) == {"1177", "x"}
    assert [zero for _, zero in ranges.values()] == [zero, -128]
    assert np.allclose([ranges["1177"][0], ranges["x"][0]], [scale, 1 / 255], rtol=1e-12)


@pytest.mark.parametrize("suffix", ["_mm", "-rs", "_rs", "_tp_rs"])
def test_a_tensor_that_the_toolkit_makes_in_another_shape_has_the_range_of_the_models(tmp_path: Path, suffix: str) -> None:
    """A Gemm is a convolution to the toolkit, whose result has another name and shape."""
    renamed = CFG.replace("'1177'", f"scores{suffix}")
    text, changed = edited(renamed, {"scores": (-1.0, 3.0)})
    assert changed == [f"scores{suffix}"]
    (tmp_path / "net.quantization.cfg").write_text(text)
    assert read_cfg(tmp_path / "net.quantization.cfg").ranges()["scores"][0] == pytest.approx(4 / 255)


def test_compile_takes_the_vendors_configuration_as_ranges(tmp_path: Path, network: Path, options: CompileOptions) -> None:
    built = build(network, tmp_path / "out", "rk3588", options, stub(tmp_path))
    np.save(tmp_path / "samples.npy", options.dataset)
    command = [
        "compile",
        str(network),
        "-o",
        str(tmp_path / "again.rknn"),
        "--dataset",
        str(tmp_path / "samples.npy"),
        "-t",
        "rk3588",
    ]
    cfg = str(tmp_path / "out" / "net.quantization.cfg")
    done = CliRunner().invoke(app, [*command, "--std", "255", "--ranges", cfg, "--quantizer", "vendor"])
    assert done.exit_code == 0, done.output
    again, twin = (modelfile.read(path).programs[0] for path in (tmp_path / "again.rknn", built.twin))
    assert [spec.quantization for spec in again.output_specs] == [spec.quantization for spec in twin.output_specs]


SHARED = """custom_quantize_layers: {}
quantize_parameters:
    a:
        dtype: int8
        min: &id001
        -   -2.0
        max:
        -   2.0
        scale:
        -   0.01568627450980392
        zero_point:
        -   0
        ori_min: *id001
        ori_max: &id002
        -   2.5
    b:
        dtype: int8
        min: *id001
        max:
        -   1.0
        scale:
        -   0.011764705882352941
        zero_point:
        -   42
        ori_max: *id002
"""


def test_the_anynpu_model_has_the_ranges_that_the_toolkit_finally_took(tmp_path: Path) -> None:
    """They are in its log only: the configuration keeps what was asked for. A range that it calls invalid stays as it was."""
    log = """
W hybrid_quantization_step2: The (min, max) of quantize_parameters['a b'] were changed:
W hybrid_quantization_step2:     from: (-0.5, 3.25)
W hybrid_quantization_step2:     to  : (-0.25, 4e-05)
W hybrid_quantization_step2:         max = 4e-05 > 3.25, may reduce the accuracy!
W hybrid_quantization_step2:     But final to (-0.125, 3.5)!
W hybrid_quantization_step2: The (min, max) of quantize_parameters['kept'] were changed:
W hybrid_quantization_step2:     from: (0.0, 1.0)
W hybrid_quantization_step2:     to  : (0.0, 2.0)
W hybrid_quantization_step2: The (min, max) of quantize_parameters['scores_rs'] were changed:
W hybrid_quantization_step2:     from: (0.0, 6.0)
W hybrid_quantization_step2:     to  : (0.0, 5.0)
W hybrid_quantization_step2:     BUT IT IS INVALID!
"""
    final = final_ranges(log)
    assert final == {"a b": (-0.125, 3.5), "scores_rs": (0.0, 6.0)}
    (tmp_path / "final_ranges.json").write_text(json.dumps(final))
    (tmp_path / "net.quantization.cfg").write_text(CFG.replace("'1177'", "scores_rs"))
    entry = final_cfg(tmp_path / "net.quantization.cfg").entries["scores"]
    assert (entry.low, entry.high) == (0.0, 6.0)


def test_numbers_that_the_file_names_twice_are_edited_in_one_place(tmp_path: Path) -> None:
    (tmp_path / "before.quantization.cfg").write_text(SHARED)
    before = read_cfg(tmp_path / "before.quantization.cfg").entries
    assert [(entry.low, entry.high) for entry in before.values()] == [(-2.0, 2.0), (-2.0, 1.0)]
    text, changed = edited(SHARED, {"a": (-1.0, 3.0)})
    assert changed == ["a"]
    (tmp_path / "after.quantization.cfg").write_text(text)
    after = read_cfg(tmp_path / "after.quantization.cfg").entries
    assert [(entry.low, entry.high) for entry in after.values()] == [(-1.0, 3.0), (-2.0, 1.0)]
    assert "        ori_min:\n        -   -2.0\n" in text  # what the toolkit saw stays
