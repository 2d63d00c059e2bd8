"""``anynpu doctor``: the right advice for each machine."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from tools import need
from vendor_files import nb_file, rknn_description, rknn_file

from anynpu.cli.commands.doctor import Finding, diagnose, docker_flags


def look(root: Path, environment: dict[str, str] | None = None, model: Path | None = None) -> dict[str, list[Finding]]:
    topics: dict[str, list[Finding]] = {}
    for finding in diagnose(root=root, environment=environment or {}, model=model):
        topics.setdefault(finding.topic, []).append(finding)
    return topics


def board(root: Path, chip: bytes = b"rockchip,rk3588", driver: str = "RKNPU driver: v0.9.8") -> Path:
    """A machine with an NPU."""
    for path, content in {
        "proc/device-tree/compatible": b"vendor,board\0" + chip + b"\0",
        "sys/firmware/devicetree/base/compatible": b"vendor,board\0" + chip + b"\0",
        "sys/kernel/debug/rknpu/version": driver.encode(),
        "dev/dri/renderD129": b"",
    }.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return root


def library(path: Path, version: str) -> Path:
    """A shared library that states a version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f'const char version[] = "librknnrt version: {version} (test)";\n'
    subprocess.run([need("cc"), "-shared", "-fPIC", "-x", "c", "-o", path, "-"], input=text.encode(), check=True)
    return path


def test_a_machine_without_an_npu_uses_the_software_one(tmp_path: Path) -> None:
    found = look(tmp_path)
    assert all(finding.state != "problem" for findings in found.values() for finding in findings)
    assert "no NPU found" in found["device"][0].text
    assert "software NPU will be used" in found["choice"][0].text


def test_a_board_without_the_vendors_library_says_what_to_install(tmp_path: Path) -> None:
    found = look(board(tmp_path))
    assert "rk3588" in found["device"][0].text
    assert found["vendor"][0].state == "problem"
    assert "ANYNPU_RKNN_LIBRARY" in found["vendor"][0].advice
    assert "Rockchip's library will be used" in found["choice"][0].text


def test_a_whole_board(tmp_path: Path) -> None:
    library(board(tmp_path) / "usr/lib/librknnrt.so", "2.3.2")
    found = look(tmp_path)
    assert found["vendor"][0].text.endswith("version 2.3.2")
    assert found["driver"][0].text == "rknpu 0.9.8"
    assert all(finding.state != "problem" for findings in found.values() for finding in findings)


def test_a_broken_library(tmp_path: Path) -> None:
    broken = board(tmp_path) / "usr/lib/librknnrt.so"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"\x7fELF, but not really")
    found = look(tmp_path)
    assert found["vendor"][0].state == "problem"
    assert "cannot be loaded" in found["vendor"][0].text


def test_a_library_that_is_named_and_absent(tmp_path: Path) -> None:
    found = look(tmp_path, {"ANYNPU_RKNN_LIBRARY": str(tmp_path / "nowhere.so")})
    assert "does not exist" in found["vendor"][0].text
    assert "ANYNPU_RKNN_LIBRARY" in found["vendor"][0].advice


def test_a_library_that_is_too_old(tmp_path: Path) -> None:
    library(board(tmp_path) / "usr/lib/librknnrt.so", "1.2.0")
    assert "update it" in look(tmp_path)["vendor"][0].advice


def test_a_driver_that_hangs_on_other_cores(tmp_path: Path) -> None:
    found = look(board(tmp_path, driver="RKNPU driver: v0.9.2"))
    assert found["driver"][0].state == "problem"
    assert "core 0" in found["driver"][0].advice


def test_the_mainline_driver(tmp_path: Path) -> None:
    (board(tmp_path) / "sys/module/rocket").mkdir(parents=True)
    missing = look(tmp_path)["device"][0]
    assert missing.state == "problem"
    assert "modprobe rocket" in missing.advice
    (tmp_path / "dev/accel").mkdir(parents=True)
    (tmp_path / "dev/accel/accel0").touch()
    found = look(tmp_path)["device"][0]
    assert found.state == "note"
    assert "200 MHz" in found.text
    assert "ANYNPU_DEVICE=rocket" in found.advice


def test_a_device_node_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = board(tmp_path) / "dev/dri/renderD129"
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != node and real(path, mode))
    assert "group render" in look(tmp_path)["access"][0].advice


def test_a_wrong_device_name(tmp_path: Path) -> None:
    found = look(tmp_path, {"ANYNPU_DEVICE": "gpu"})
    assert found["choice"][0].state == "problem"
    assert "sim:rk3588" in found["choice"][0].advice


def test_a_model_newer_than_the_runtime(tmp_path: Path) -> None:
    library(board(tmp_path) / "usr/lib/librknnrt.so", "1.6.0")
    model = tmp_path / "yolo.rknn"
    model.write_bytes(rknn_file(rknn_description(version="2.3.2", target_platform=["rk3566"])))
    texts = [finding.text for finding in look(tmp_path, model=model)["model"]]
    assert any("toolkit 2.3.2, librknnrt.so is 1.6.0" in text for text in texts)
    assert any("for rk3566, this board is rk3588" in text for text in texts)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a model")
    assert look(tmp_path, model=text)["model"][0].state == "problem"


def test_flags_for_a_container(tmp_path: Path) -> None:
    assert docker_flags(tmp_path) == []
    flags = docker_flags(board(tmp_path))
    assert "--device /dev/dri/renderD129" in flags
    assert any("devicetree" in flag for flag in flags)


def test_the_command_prints_json_and_ends_well_here() -> None:
    from typer.testing import CliRunner

    from anynpu.cli.app import app

    result = CliRunner().invoke(app, ["doctor", "--json"], env={"ANYNPU_DEVICE": "sim"})
    assert result.exit_code == 0
    assert {entry["topic"] for entry in json.loads(result.stdout)} >= {"device", "python", "choice"}
    result = CliRunner().invoke(app, ["doctor"], env={"ANYNPU_DEVICE": "nothing"})
    assert result.exit_code == 1


def vip_board(root: Path, version: int | None = None) -> Path:
    """A machine with a T527; with a *version*, with a library of it."""
    for path, content in {"proc/device-tree/compatible": b"vendor,board\0allwinner,t527\0", "dev/vipcore": b""}.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    if version is not None:
        library = root / "usr/lib/libVIPlite.so"
        library.parent.mkdir(parents=True, exist_ok=True)
        source = f"unsigned vip_get_version(void) {{ return {version}; }}\n"
        subprocess.run([need("cc"), "-shared", "-fPIC", "-x", "c", "-o", library, "-"], input=source.encode(), check=True)
    return root


def test_a_board_of_allwinner(tmp_path: Path) -> None:
    found = look(vip_board(tmp_path))
    assert "t527" in found["device"][0].text
    assert any("ANYNPU_VIP_LIBRARY" in finding.advice for finding in found["vendor"])
    found = look(vip_board(tmp_path, 0x00010D00))
    assert [finding for finding in found["vendor"] if finding.state == "problem"] == []
    assert any(finding.text.endswith("libVIPlite.so, VIPLite 1.13.0") for finding in found["vendor"])
    assert any("libVIPlite.so" in flag for flag in docker_flags(tmp_path))
    assert "--device /dev/vipcore" in docker_flags(tmp_path)


def test_a_library_of_allwinner_that_is_too_new(tmp_path: Path) -> None:
    found = look(vip_board(tmp_path, 0x00020300))
    (problem,) = [finding for finding in found["vendor"] if finding.state == "problem"]
    assert "structs differ" in problem.text


def test_a_model_for_another_npu_of_allwinner(tmp_path: Path) -> None:
    model = tmp_path / "lenet.nb"
    model.write_bytes(nb_file(customer=0x1000003B))
    problems = [finding for finding in look(vip_board(tmp_path), model=model)["model"] if finding.state == "problem"]
    assert len(problems) == 1
    assert "0x1000003b" in problems[0].text
    assert "0x10000016" in problems[0].text
    model.write_bytes(nb_file(customer=0x10000016))
    assert all(finding.state == "ok" for finding in look(vip_board(tmp_path), model=model)["model"])
