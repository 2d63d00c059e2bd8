"""The end of a server that is a process of its own, and what it does when descriptors are short."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from waiting import PATIENCE, wait_until

from .conftest import infer_body

TESTS = Path(__file__).parents[1]
PROGRAM = """
import logging, resource, signal, sys, threading
sys.path.insert(0, {tests!r})
logging.basicConfig(level=logging.INFO, format="%(message)s")
signal.signal(signal.SIGHUP, signal.{hangup})
if {descriptors}:
    resource.setrlimit(resource.RLIMIT_NOFILE, ({descriptors}, {descriptors}))
from anynpu.serve import ServeOptions, Server
from session.fake import FakeDevice
device = FakeDevice(1, gated={gated})
class Ended(Server):
    exit_grace = {grace}
    def run(self):
        super().run()
        if self.exit_grace:
            logging.info("what comes behind the server hangs")
            behind.set()
            threading.Event().wait()
if Ended.exit_grace:  # its time begins here when that hangs, however long the server itself took
    import anynpu.serve.server as module
    behind, exit_after = threading.Event(), module._exit_after
    module._exit_after = lambda seconds: (behind.wait(), exit_after(seconds))
Ended([{model!r}], ServeOptions(port=0, grpc_port=0, device=device, drain_timeout={drain}), exits=True).run()
"""


@contextmanager
def process(tmp_path: Path, **given: object) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """A server of its own: its process, its address, and the lines of its log so far."""
    model = tmp_path / "net.rknn"
    model.write_bytes(b"model")
    values = {
        "tests": str(TESTS),
        "model": str(model),
        "hangup": "SIG_DFL",
        "descriptors": 0,
        "gated": False,
        "drain": 30.0,
        "grace": 0.0,
    }
    program = PROGRAM.format(**{**values, **given})
    running = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    assert running.stderr is not None
    killer = threading.Timer(PATIENCE, running.kill)
    killer.start()
    lines: list[str] = []
    try:
        for line in running.stderr:
            if found := re.search(r"serving on http://(\S+)", line):
                reader = threading.Thread(target=lines.extend, args=(running.stderr,))
                reader.start()
                yield running, found[1], lines
                break
        else:
            pytest.fail("the server did not start")
    finally:
        running.kill()
        running.wait(PATIENCE)
        reader.join(PATIENCE)
        killer.cancel()
        running.stderr.close()


def ask(address: str) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
    connection.request("POST", "/v2/models/net/infer", infer_body())
    return connection


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_lets_the_server_end_in_order(tmp_path: Path, number: signal.Signals) -> None:
    with process(tmp_path) as (running, address, lines):
        with closing(ask(address)) as client:
            assert client.getresponse().status == 200
        running.send_signal(number)
        assert running.wait(PATIENCE) == 0
    assert lines[-1] == "ended\n"


def test_a_hangup_that_is_ignored_is_ignored(tmp_path: Path) -> None:
    with process(tmp_path, hangup="SIG_IGN") as (running, address, _):
        running.send_signal(signal.SIGHUP)
        with closing(ask(address)) as client:
            assert client.getresponse().status == 200
        assert running.poll() is None


def test_a_run_that_does_not_stop_does_not_hold_the_process(tmp_path: Path) -> None:
    with process(tmp_path, gated=True, drain=1.0) as (running, address, lines):
        hanging = ask(address)
        status = http.client.HTTPConnection(address, timeout=PATIENCE)
        while True:
            status.request("GET", "/status/data")
            if b'"running": 1' in status.getresponse().read():
                break
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE) == 1
        hanging.close()
        status.close()
    assert any("not ended within 1 s" in line for line in lines)


def test_what_comes_behind_the_server_does_not_hold_the_process(tmp_path: Path) -> None:
    """A cluster takes its applications away when the server has ended, and has some seconds for that."""
    with process(tmp_path, drain=0.3, grace=0.2) as (running, _, lines):
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE) == 1
    assert any("what comes behind the server hangs" in line for line in lines)
    assert any("not ended within 0.5 s" in line for line in lines)


def test_more_connections_than_descriptors(tmp_path: Path) -> None:
    with process(tmp_path, descriptors=320) as (_, address, lines):
        host, port = address.split(":")
        kept = http.client.HTTPConnection(address, timeout=PATIENCE)
        kept.request("GET", "/v2/health/live")
        assert kept.getresponse().read() == b'{"live": true}'
        crowd = []
        for _ in range(600):
            crowd.append(socket.create_connection((host, int(port)), timeout=PATIENCE))
        kept.request("POST", "/v2/models/net/infer", infer_body())
        assert kept.getresponse().status == 200
        wait_until(lambda: sum(_is_closed(one) for one in crowd) > 300, "most connections are closed")
        for one in crowd:
            one.close()
        kept.close()
    assert not any("Traceback" in line for line in lines)
    assert any("connections were closed before they had sent a request" in line for line in lines)
    assert len(lines) < 60


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
