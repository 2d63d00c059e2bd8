"""``anynpu vpm-run``: the published transcript, the files it reads and writes, and the faults it does not have."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from builders import ProgramBuilder
from typer.testing import CliRunner

from anynpu import modelfile
from anynpu.cli.app import app
from anynpu.errors import ParameterError
from anynpu.program import Dense, MemoryPlan, Model, Pool, Program
from anynpu.tensor import Affine
from anynpu.vip import Network, SoftwareLibrary
from anynpu.vip.vpmrun import VpmOptions, _first_lines, read_sample, vpm_run

from .support import Calls, picture, small_file, small_model

TRANSCRIPT = """\
loop_count=1, device_id=0, file_name=sample.txt bypass=1
init vip lite, driver version=0x00010d00...
VIPLite driver software version 1.13.0.0-AW-2023-10-19
vip lite init OK.

cid=0x10000016, device_count=1
  device[0] core_count=1
config file read network count=1
init test resources, task_count: 1 ...
create/prepare networks ...
task i=0, binary name: ./network_binary.nb
nbg name=./network_binary.nb
create network 0: 1281 us.
input 0 dim 224 224 3 1, data_format=2, quant_format=2, name=input[0], scale=0.007843, zero_point=128
ouput 0 dim 2 1 0 0, data_format=2, name=uid_1_out_0, scale=0.065554, zero_point=128
memory pool size=1092608byte
network core count=1
prepare network 0: 1121 us.
golden file count=0
input 0 name: ./input_0.dat
read input and golden 0: 502 us.
task: 0, loop count: 1
start to run network=./network_binary.nb
run time for this network 0: 13142 us.
run network done...
profile inference time=12978us, cycle=6209883
destroy test resource task_count=1
vpm run ret=0
"""
"""As published for a T527."""

TIMINGS = re.compile(r"\d+ us\.|time=\d+us|cycle=\d+")


def published_model() -> Model:
    """A network with the inputs, outputs and memory of the transcript's."""
    b = ProgramBuilder()
    b.tensor("input[0]", (1, 3, 224, 224), quantization=Affine.per_tensor(0.007843, 0))
    b.tensor("pooled", (1, 3, 1, 1), quantization=Affine.per_tensor(0.007843, 0))
    b.tensor("uid_1_out_0", (1, 2), quantization=Affine.per_tensor(0.065554, 0))
    b.layer(Pool("max", (224, 224)), ["input[0]"], ["pooled"])
    b.view("flat", "pooled", (1, 3))
    arrays = b.conv(2, 1, 3)
    arrays["weights"] = arrays["weights"].reshape(2, 3)
    b.layer(Dense(**arrays), ["flat"], ["uid_1_out_0"])
    program: Program = b.program(["input[0]"], ["uid_1_out_0"])
    plan = MemoryPlan(program.memory.offsets, 1092608)
    from dataclasses import replace

    return Model("t527", "w8a8", (replace(program, memory=plan),), name="network")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the tool is started, with a model and an image in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.nb").write_bytes(small_file())
    with Network(small_file(), device="sim:t527") as network:
        (tmp_path / "x.dat").write_bytes(network.inputs[0].encode(picture()).tobytes())
    return tmp_path


def run(options: VpmOptions, library: SoftwareLibrary | str = "sim:t527") -> tuple[int, list[str]]:
    lines: list[str] = []
    return vpm_run(options, lines.append, device=library), lines


def sample(folder: Path, *entries: str) -> str:
    (folder / "sample.txt").write_text("\n".join(entries) + "\n", encoding="ascii")
    return "sample.txt"


def test_the_published_transcript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    modelfile.write(published_model(), "network_binary.nb")
    Path("input_0.dat").write_bytes(bytes(224 * 224 * 3))
    sample(tmp_path, "[network]", "./network_binary.nb", "[input]", "./input_0.dat")
    result = CliRunner().invoke(app, ["vpm-run", "-s", "sample.txt", "--npu", "sim:t527"])
    assert result.exit_code == 0, result.output
    assert TIMINGS.sub("*", result.output).splitlines() == TIMINGS.sub("*", TRANSCRIPT).splitlines()
    assert len(TIMINGS.findall(result.output)) == len(TIMINGS.findall(TRANSCRIPT)) == 6


def test_outputs_are_saved_shown_and_compared(folder: Path) -> None:
    with Network(small_file(), device="sim:t527") as network:
        values = network.run([picture()])
        raw = network.get_outputs(decode=False)
    for index, codes in enumerate(raw):
        (folder / f"golden{index}.dat").write_bytes(codes.tobytes())
    name = sample(
        folder, "# a comment", "[network]", "model.nb", "", "[input]", "x.dat", "[golden]", "golden0.dat", "golden1.dat",
        "[output]", "scores.txt", "features.bin",
    )  # fmt: skip
    ret, lines = run(VpmOptions(name, bypass=False, show_top5=True, save_text=True))
    assert ret == 0
    assert [line for line in lines if "passed" in line] == ["    Test output 0 passed.", "    Test output 1 passed."]
    top = lines[lines.index(" --- Top5 ---") + 1]
    best = int(values[0].argmax())
    assert top == f"{best:3d}: {values[0][0, best]:8.6f}"
    assert Path("features.bin").read_bytes() == raw[1].tobytes()
    expected = [f"{number:.16f}" for number in values[0].reshape(-1).tolist()]
    assert Path("scores.txt").read_text().splitlines() == Path("output_0.txt").read_text().splitlines() == expected


def test_a_golden_file_that_differs(folder: Path) -> None:
    (folder / "wrong.dat").write_bytes(bytes(5))
    (folder / "short.bin").write_bytes(bytes(3))
    name = sample(folder, "[network]", "model.nb", "[input]", "x.dat", "[golden]", "wrong.dat", "short.bin")
    ret, lines = run(VpmOptions(name, bypass=False))
    assert ret == -1
    assert lines[-1] == "vpm run ret=-1"
    assert "Test output 0 failed" in lines
    assert "Test output 1 failed" in lines
    assert "the golden file has 3 bytes, the output 384" in lines
    assert len(Path("failed_output_0.dat").read_bytes()) == 5
    assert len(Path("failed_output_0.txt").read_text().splitlines()) == 5
    ret, lines = run(VpmOptions(name))  # nothing is compared, and that is said
    assert ret == 0
    assert "bypass=1: outputs are neither compared, saved nor shown; use -b 0" in lines
    assert not [line for line in lines if "Test output" in line]


@pytest.mark.parametrize("dtype", ["w8a8", "w16a16", "fp16"])
def test_numbers_as_text_become_codes(folder: Path, dtype: str) -> None:
    (folder / "model.nb").write_bytes(small_file("t527", dtype))
    (folder / "x.tensor").write_text("".join(f"{number!r}\n" for number in picture().reshape(-1).tolist()))
    name = sample(folder, "[network]", "model.nb", "[input]", "x.tensor", "[output]", "a.dat", "b.dat")
    assert run(VpmOptions(name, bypass=False))[0] == 0
    with Network(small_model("t527", dtype), device="sim:t527") as network:
        network.run([picture()])
        raw = network.get_outputs(decode=False)
    assert [Path("a.dat").read_bytes(), Path("b.dat").read_bytes()] == [codes.tobytes() for codes in raw]


def test_windows_and_blanks(folder: Path) -> None:
    text = b"[network] \r\nmodel.nb\t\r\n\r\n[input]\r\n  x.dat  \r\n"
    (folder / "sample.txt").write_bytes(text)
    assert run(VpmOptions("sample.txt"))[0] == 0


def test_several_networks_and_loops(folder: Path) -> None:
    (folder / "other.nb").write_bytes(small_file("t527", "i8"))
    name = sample(folder, "[network]", "model.nb", "[input]", "x.dat", "[network]", "other.nb", "[input]", "x.dat")
    ret, lines = run(VpmOptions(name, loops=3))
    assert ret == 0
    ran = [line.split("=")[1] for line in lines if line.startswith("start to run network=")]
    assert ran == ["model.nb", "other.nb"] * 3
    profiles = [tuple(map(int, re.findall(r"\d+", line))) for line in lines if line.startswith("profile inference time=")]
    averages = [line for line in lines if "profile avg inference time" in line]
    assert len(profiles) == 6
    for index, line in enumerate(averages):
        times = [time for time, _ in profiles[index::2]]
        assert f"time={round(sum(times) / 3)}us" in line
    assert len(averages) == 2


def test_the_average_is_that_of_all_loops(
    folder: Path, open_calls: Callable[..., Calls], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([10, 20, 60])
    monkeypatch.setattr(Network, "profile", property(lambda self: type("P", (), {"microseconds": next(times), "cycles": 7})()))
    ret, lines = run(VpmOptions(sample(folder, "[network]", "model.nb", "[input]", "x.dat"), loops=3))
    assert ret == 0
    assert "task: 0, profile avg inference time=30us, avg cycle=7, loops=3" in lines


def test_a_run_that_fails(folder: Path, open_calls: Callable[..., Calls]) -> None:
    library = open_calls(realtime=1e-5, init=False).library
    name = sample(folder, "[network]", "model.nb", "[input]", "x.dat")
    ret, lines = run(VpmOptions(name, timeout_ms=20), library)
    assert ret == -2
    assert "fail to run network, status=-1, taskId=0" in lines
    assert not library.initialised


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (["[network]", "missing.nb", "[input]", "x.dat"], "missing.nb cannot be read"),
        (["[network]", "model.nb"], "input count mismatch"),
        (["[network]", "model.nb", "[input]", "x.dat", "[output]", "a.dat"], "output count mismatch"),
        (["[network]", "model.nb", "[input]", "x.npy"], "x.npy is of no kind"),
        (["[network]", "model.nb", "[input]", "y.dat"], "y.dat cannot be read"),
        (["[network]", "model.nb", "[input]", "sample.txt"], "not one number a line"),
        (["[network]", "model.nb", "[input]", "x.dat", "[golden]", "a.txt", "b.txt"], "cannot be a golden file"),
        (["[input]", "x.dat"], "before \\[network\\]"),
        (["[nets]"], "no section \\[nets\\]"),
        (["# nothing"], "no \\[network\\]"),
        (["[network]", "[input]", "x.dat"], "without a file"),
        (["[network]", "a.nb", "b.nb"], "second file"),
        (["[network]", "a" * 300], "300 characters"),
        (["[network]", "a.nb"] * 129, "129 networks"),
    ],
)
def test_samples_that_are_wrong(folder: Path, entries: list[str], words: str) -> None:
    ret, lines = run(VpmOptions(sample(folder, *entries)))
    assert ret == -1
    assert lines[-1] == "vpm run ret=-1"
    assert any(re.search(words, line) for line in lines), lines


def test_a_sample_that_is_not_there(folder: Path) -> None:
    with pytest.raises(ParameterError, match="cannot be read"):
        read_sample("missing.txt")


def test_a_model_for_another_npu_names_both(folder: Path) -> None:
    ret, lines = run(VpmOptions(sample(folder, "[network]", "model.nb", "[input]", "x.dat")), "sim:a733")
    assert ret == -1
    assert any("binary target=0x10000016" in line and "actual target=0x1000003b" in line for line in lines)


def test_a_file_of_another_size_is_said(folder: Path) -> None:
    (folder / "x.dat").write_bytes(bytes(100))
    ret, lines = run(VpmOptions(sample(folder, "[network]", "model.nb", "[input]", "x.dat")))
    assert ret == 0
    assert "input 0: the file has 100 bytes, the buffer 576" in lines


def test_the_command_line(folder: Path) -> None:
    name = sample(folder, "[network]", "model.nb", "[input]", "x.dat")
    invoke = CliRunner().invoke
    old = invoke(app, ["vpm-run", name, "2", "0", "--npu", "sim:t527"])
    assert old.exit_code == 0, old.output
    assert "loop_count=2, device_id=0, file_name=sample.txt bypass=1" in old.output
    wrong = invoke(app, ["vpm-run", "-s", name, "-d", "1", "--npu", "sim:t527"])
    assert wrong.exit_code == 255
    assert "there is no device 1" in wrong.output
    for arguments in ([], [name, "x"], ["-s", name, name], [name, "1", "0", "5"], ["-s", name, "--layer_dump", "3"]):
        assert invoke(app, ["vpm-run", *arguments, "--npu", "sim:t527"]).exit_code == 2
    for refused in (["--layer_profile_dump", "1"], ["--op_segment", "0,1"], ["--layer_dump", "-1"]):
        assert "need a board" in invoke(app, ["vpm-run", "-s", name, *refused, "--npu", "sim:t527"]).output
    assert invoke(app, ["vpm-run", "-s", name, "-c", "0", "--npu", "sim:t527"]).exit_code == 255
    (folder / "model.nb").write_bytes(small_file("a733"))
    assert invoke(app, ["vpm-run", "-s", name, "-c", "0", "--preload", "1", "--npu", "sim:a733"]).exit_code == 0


def test_text_of_outputs_has_sixteen_digits(folder: Path) -> None:
    name = sample(folder, "[network]", "model.nb", "[input]", "x.dat")
    assert run(VpmOptions(name, bypass=False, save_text=True))[0] == 0
    numbers = Path("output_1.txt").read_text().splitlines()
    assert len(numbers) == 384
    assert all(re.fullmatch(r"-?\d+\.\d{16}", number) for number in numbers)
    assert np.array([float(number) for number in numbers]).any()


def test_the_first_lines_are_those_of_the_generation() -> None:
    options = VpmOptions("sample.txt", loops=2, timeout_ms=255, preload=True)
    assert _first_lines(options, 0x00010D00) == ["loop_count=2, device_id=0, file_name=sample.txt bypass=1"]
    assert _first_lines(options, 0x00020003) == [
        "loop_count=2, device_index=0, core_index=-1, file_name=sample.txt, time_out=0xff, bypass=1",
        "enable_npd=0, preload=1",
        "show_top50, save_txt=0",
    ]
