"""``anynpu serve`` as a process: a compiled model, signals, and a sudden end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton_http
from ports import free_ports
from waiting import PATIENCE, wait_until

from anynpu.serve import ServeOptions, Server
from anynpu.session import InferenceSession, make_provider_options

GUARD = 600
"""Seconds after which a process is taken for hung."""


@contextlib.contextmanager
def serving(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """The process, its HTTP and its gRPC address."""
    command = [sys.executable, "-m", "anynpu.cli", "serve", *map(str, arguments), "--json-log"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    assert process.stderr is not None
    killer = threading.Timer(GUARD, process.kill)
    killer.start()
    try:
        for line in process.stderr:
            found = re.search(r"serving on http://(\S+) and grpc://([^\s\"]+)", json.loads(line)["message"])
            if found:
                yield process, found[1], found[2]
                break
        else:
            pytest.fail("the server ended")
    finally:
        killer.cancel()
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE)
        process.stderr.close()


def test_a_compiled_model_until_a_signal(compiled_path: Path) -> None:
    picture = np.random.default_rng(3).random((1, 3, 16, 16), np.float32)
    with InferenceSession(compiled_path, device="sim:rk3588") as session:
        (expected,) = session.run(None, picture)
    with serving(compiled_path, "--device", "sim:rk3588", "--port", 0, "--grpc-port", 0) as (process, http_address, grpc_address):
        tensor = triton_http.InferInput("images", [1, 3, 16, 16], "FP32")
        tensor.set_data_from_numpy(picture)
        with triton_http.InferenceServerClient(http_address) as client:
            assert np.array_equal(client.infer("small", [tensor]).as_numpy("scores"), expected)
            assert client.get_model_metadata("small")["platform"] == "anynpu_rk3588"
        with InferenceSession(f"grpc://{grpc_address}/small") as session:
            assert np.array_equal(session.run(None, picture)[0], expected)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert process.stderr is not None
        assert json.loads(process.stderr.read().splitlines()[-1])["message"] == "ended"


@pytest.mark.full
def test_a_server_that_is_killed_can_be_started_again_and_sessions_go_on(compiled_path: Path) -> None:
    picture = np.random.default_rng(3).random((1, 3, 16, 16), np.float32)
    with InferenceSession(compiled_path, device="sim:rk3588") as session:
        (expected,) = session.run(None, picture)
    http_port, grpc_port = free_ports(2)
    options = "--device", "sim:rk3588", "--port", http_port, "--grpc-port", grpc_port
    rights: list[bool] = []
    stop = threading.Event()

    def use(session: InferenceSession) -> None:
        while not stop.is_set():
            rights.append(np.array_equal(session.run(None, picture)[0], expected))

    with ThreadPoolExecutor(2) as pool, contextlib.ExitStack() as ending:
        ending.callback(stop.set)  # however the test ends
        with serving(compiled_path, *options) as (process, http_address, grpc_address):
            patient = make_provider_options(submit_timeout_ms=GUARD * 1000)
            session = InferenceSession(f"grpc://{grpc_address}/small", provider_options=patient)
            users = [pool.submit(use, session) for _ in range(2)]
            wait_until(lambda: len(rights) > 2, "both users get answers")
            process.kill()
            process.wait(PATIENCE)
            with pytest.raises(OSError), triton_http.InferenceServerClient(http_address) as client:
                client.is_server_live()
        with serving(compiled_path, *options), triton_http.InferenceServerClient(http_address) as client:
            assert client.is_model_ready("small")
            before = len(rights)
            wait_until(lambda: len(rights) > before + 2, "both users get answers again")
            stop.set()
            for user in users:
                user.result(PATIENCE)
            session.close()
    assert all(rights)


def test_wrong_usage(invoke: Any, tmp_path: Path) -> None:
    outcome = invoke("serve", tmp_path / "none.rknn")
    assert (outcome.code, "there is no model file" in outcome.err) == (1, True)
    path = tmp_path / "x.rknn"
    path.write_bytes(b"x")
    outcome = invoke("serve", path, "--host", "0.0.0.0")
    assert (outcome.code, "no TLS and no API keys" in outcome.err) == (1, True)


def test_the_description_is_printed_without_a_model(invoke: Any) -> None:
    outcome = invoke("serve", "--openapi")
    assert outcome.code == 0
    assert "/v2/models/{model}/infer" in json.loads(outcome.out)["paths"]


def test_equal_ports_are_refused(invoke: Any, compiled_path: Path) -> None:
    outcome = invoke("serve", compiled_path, "--port", 18000, "--grpc-port", 18000)
    assert outcome.code == 1
    assert "HTTP and gRPC are both given port 18000" in outcome.err
    assert "--grpc-port" in outcome.err.splitlines()[-1]


def test_a_server_whose_only_model_is_broken_ends_with_a_message(invoke: Any, compiled_path: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.rknn"
    broken.write_bytes(compiled_path.read_bytes()[:500])
    outcome = invoke("serve", broken, "--device", "sim:rk3588", "--port", 0, "--grpc-port", 0)
    assert outcome.code == 1
    assert "no model could be loaded" in outcome.err


def test_a_server_without_grpc_names_http_alone(compiled_path: Path) -> None:
    with Server([compiled_path], ServeOptions(port=0, grpc_port=None, device="sim:rk3588")) as server:
        assert server.grpc_address == ""
        with triton_http.InferenceServerClient(server.http_address) as client:
            assert client.is_model_ready("small")


def test_the_command_without_grpc(invoke: Any, compiled_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def serve(self: Server, models: Any, options: ServeOptions, *, exits: bool, mounts: Any) -> None:
        self.options, self.port, self.grpc_port = options, options.port, options.grpc_port
        seen.append(self._addresses())

    monkeypatch.setattr(Server, "__init__", serve)
    monkeypatch.setattr(Server, "run", lambda self: None)
    assert invoke("serve", compiled_path, "--port", 8000, "--grpc-port", -1).code == 0
    assert seen == ["http://127.0.0.1:8000"]


def test_the_playground_is_for_this_machine_alone(invoke: Any) -> None:
    outcome = invoke("serve", "--playground", "--host", "0.0.0.0", "--insecure")
    assert outcome.code != 0
    assert "for this machine alone" in outcome.err
    assert "127.0.0.1" in outcome.err


def test_a_server_without_models_and_without_a_playground_says_what_is_missing(invoke: Any) -> None:
    outcome = invoke("serve")
    assert outcome.code == 2
    assert "name at least one model" in outcome.err
    assert "--playground" in outcome.err


def test_a_client_is_told_flags_of_the_server_and_no_python() -> None:
    from anynpu.errors import FeedShapeError
    from anynpu.serve.failures import message_of

    error = FeedShapeError("wrong shape", hint='this looks like NHWC; pass make_provider_options(layout="nhwc") or transpose it')
    text = message_of(error)
    assert "make_provider_options" not in text
    assert "start the server with --layout nhwc or transpose it" in text
    missing = message_of(FeedShapeError("wrong rank", hint="the batch axis is missing; pass array[None], and layout='nhwc'"))
    assert missing.endswith("the batch axis is missing; send the shape with a leading 1")
