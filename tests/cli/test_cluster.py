"""``anynpu cluster`` as a process: virtual boards until a signal, with nothing left behind; and wrong usage."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.http as triton_http
from tools import need_module

import anynpu.serve.cluster as cluster_package
from anynpu.session import InferenceSession

GUARD = 600
"""Seconds after which a process is taken for hung: on a machine with other work Ray takes a minute to start."""


def test_the_process_ends_when_its_time_is_over(invoke: Any, compiled_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``anynpu serve`` does, whatever Ray does then. Without Ray: what the command makes of its options."""
    made: list[dict[str, Any]] = []

    class FakeServer:
        def __init__(self, plans: Any, options: Any, **given: Any) -> None:
            made.append(given)

        def run(self) -> None:
            pass

    fake = types.ModuleType("anynpu.serve.cluster")
    fake.__dict__.update(ClusterServer=FakeServer, VirtualBoards=None, __path__=list(cluster_package.__path__))
    monkeypatch.setitem(sys.modules, "anynpu.serve.cluster", fake)
    monkeypatch.setattr("anynpu.cli.commands.cluster.start_log", lambda as_json: None)
    assert invoke("cluster", compiled_path, "--address", "auto").code == 0
    assert made == [{"address": "auto", "attach": False, "exits": True}]


@pytest.mark.full
@pytest.mark.xdist_group("ray")
def test_virtual_boards_until_a_signal(compiled_path: Path) -> None:
    need_module("ray")
    picture = np.random.default_rng(3).random((1, 3, 16, 16), np.float32)
    with InferenceSession(compiled_path, device="sim:rk3588") as session:
        (expected,) = session.run(None, picture)
    options = ("--virtual", "1", "--device", "sim:rk3588", "--port", "0", "--grpc-port", "0", "--json-log", "--drain", "500")
    command = [sys.executable, "-m", "anynpu.cli", "cluster", str(compiled_path), *options]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    assert process.stderr is not None
    killer = threading.Timer(GUARD, process.kill)
    killer.start()
    try:
        address = _address(process)
        family = psutil.Process(process.pid).children(recursive=True)
        assert any("raylet" in _name(each) for each in family)
        tensor = triton_http.InferInput("images", [1, 3, 16, 16], "FP32")
        tensor.set_data_from_numpy(picture)
        with triton_http.InferenceServerClient(address) as client:
            assert np.array_equal(client.infer("small", [tensor]).as_numpy("scores"), expected)
        process.send_signal(signal.SIGINT)
        assert process.wait(GUARD) == 0
    finally:
        killer.cancel()
        if process.poll() is None:
            process.kill()
            process.wait(GUARD)
        process.stderr.close()
    _, alive = psutil.wait_procs(family, timeout=GUARD)
    assert [each.cmdline()[:3] for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:  # it had something to do and has done it
        return ""


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    said: list[str] = []
    for line in process.stderr:
        said.append(line)
        found = re.search(r"serving on http://(\S+) and", json.loads(line)["message"]) if line.startswith("{") else None
        if found:
            return found[1]
    pytest.fail(f"the cluster ended: {''.join(said)[-4000:]}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("net.rknn",), "either virtual or has an address"),
        (("net.rknn", "--virtual", "2", "--address", "auto"), "either virtual or has an address"),
        (("--virtual", "2"), "either models, for all of its boards, or pools"),
        (("net.rknn", "--pool", "a=b.rknn", "--virtual", "2"), "either models, for all of its boards, or pools"),
        (("--pool", "rk3588", "--virtual", "2"), "is no pool"),
        (("net.rknn", "--virtual", "2", "--host", "0.0.0.0"), "no TLS and no API keys"),
        (("absent.rknn", "--virtual", "2"), "there is no model file absent.rknn"),
    ],
)
def test_wrong_usage(
    invoke: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.rknn").write_bytes(b"x")
    outcome = invoke("cluster", *arguments)
    assert (outcome.code, message in outcome.err) == (1, True), outcome.err


def test_without_ray_the_extra_is_named(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    outcome = invoke("cluster", "net.rknn", "--address", "auto")
    assert outcome.code == 1
    assert "pip install '.[cluster]'" in outcome.err
