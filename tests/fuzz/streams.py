"""Sends mutated byte streams to a running server: the part that runs in a process of its own, which a driver watches.

Run as ``python -m fuzz.streams http|grpc STATE FIRST COUNT SECONDS``. The server is in this process, with a device that needs no NPU. Each
stream is written into ``STATE/current`` before it is sent, and its number into ``STATE/number``; ``STATE/progress`` states what was done.

Whatever comes, the server answers in its protocol or closes the connection; then it holds nothing, and answers right requests as before.
What ends the process is a finding: an answer of the class 500 (but 503 and 504), an error in the log, a connection that stays, more than
5 s of CPU time for one stream (SIGPROF), memory beyond :data:`MEMORY`.
"""

from __future__ import annotations

import collections
import http.client
import json
import logging
import random
import re
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from serve.conftest import infer_body
from session.fake import FakeDevice

from anynpu.serve import ServeOptions, Server

from .http2_streams import PING_MARK, Frame, grpc_stream
from .http_streams import http_stream
from .modelfiles import CPU_SECONDS, note, peak_memory

__all__ = ["STREAMS", "Harness", "running"]

STREAMS: dict[str, Callable[[random.Random], bytes]] = {"http": http_stream, "grpc": grpc_stream}
MEMORY = 1 << 30
PATIENCE = 300.0
"""Seconds after which a connection that does not end is a finding."""
IDLE = {"http": 0.02, "grpc": 0.2}
"""Seconds that a connection may be quiet before the client hangs up: what is in flight then is dropped. No result depends on it."""
CHECK_EVERY = 50
PING_ANSWER = Frame(6, 1, 0, PING_MARK).written()


class _Errors(logging.Handler):
    """Collects what a server states about errors of its own."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(self.format(record))


class Harness:
    """A server, and what a client does to it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._errors = _Errors()

    def __enter__(self) -> Harness:
        for name in ("anynpu", "asyncio", "grpc"):
            logging.getLogger(name).addHandler(self._errors)
        return self

    def __exit__(self, *_: object) -> None:
        for name in ("anynpu", "asyncio", "grpc"):
            logging.getLogger(name).removeHandler(self._errors)

    def send(self, what: str, data: bytes) -> str:
        """Send one stream, and state how it ended; raises AssertionError for what must not happen."""
        found = self._http(data) if what == "http" else self._grpc(data)
        assert not self._errors.records, "\n".join(self._errors.records)
        return found

    def _http(self, data: bytes) -> str:
        answer = self._exchange(self.server.port, data, b"HTTP/1.1 ", IDLE["http"])
        statuses = [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]
        assert not answer or answer.startswith(b"HTTP/1.1 "), answer[:200]
        wrong = [status for status in statuses if status >= 500 and status not in (503, 504)]
        assert not wrong, (statuses, answer[:2000])
        return f"{statuses[-1]}" if statuses else "closed"

    def _grpc(self, data: bytes) -> str:
        answer = self._exchange(self.server.grpc_port or 0, data, PING_ANSWER, IDLE["grpc"])
        kinds = collections.Counter(kind for kind, _ in _frames(answer))
        return "goaway" if kinds[7] else "answered" if kinds[1] else "reset" if kinds[3] else "closed"

    def _exchange(self, port: int, data: bytes, sign: bytes, idle: float) -> bytes:
        """Send, hang up when *sign* has come or nothing has for a while, and read until the server closes too."""
        answer = b""
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
            try:
                client.sendall(data)
                client.settimeout(idle)
                try:
                    while sign not in answer and (piece := client.recv(65536)):
                        answer += piece
                except TimeoutError:
                    pass
                client.settimeout(PATIENCE)
                client.shutdown(socket.SHUT_WR)
                while piece := client.recv(65536):
                    answer += piece
            except TimeoutError:
                raise AssertionError(f"the connection does not end; so far came {answer[:500]!r}") from None
            except OSError:
                pass  # the server had closed while more was on its way
        return answer

    def check(self) -> None:
        """The server is unharmed: it holds nothing, nobody is connected, and a right request is answered."""
        end = time.monotonic() + PATIENCE
        while (held := self._held()) != (0, 1, 0, 0):
            assert time.monotonic() < end, f"the server holds (bytes, connections, running, waiting) {held}"
            time.sleep(0.05)
        assert self._ask("POST", "/v2/models/net/infer", infer_body())[0] == 200
        status, metrics = self._ask("GET", "/metrics")
        assert status == 200
        assert b'outcome="failed"' not in metrics
        if self.server.grpc_port is not None:
            with socket.create_connection(("127.0.0.1", self.server.grpc_port), timeout=PATIENCE) as client:
                client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
                assert client.recv(9), "gRPC does not answer"
        assert not self._errors.records, "\n".join(self._errors.records)

    def _held(self) -> tuple[int, ...]:
        status = json.loads(self._ask("GET", "/status/data")[1])
        model = status["models"][0]
        return status["inflight_bytes"], status["connections"], model["running"], model["waiting"]

    def _ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@contextmanager
def running(folder: Path) -> Iterator[Harness]:
    """A server of the model ``net`` and its harness; *folder* is for the model's file."""
    (folder / "net.rknn").write_bytes(b"model")
    options = ServeOptions(
        host="127.0.0.1",
        port=0,
        grpc_port=0,
        device=FakeDevice(),
        max_request_bytes=1 << 20,
        drain_timeout=PATIENCE,
        max_wait_ms=1e6,
    )
    with Server([folder], options) as server, Harness(server) as harness:
        yield harness


def _frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 9 <= len(data):
        size = struct.unpack(">I", b"\0" + data[at : at + 3])[0]
        yield data[at + 3], data[at + 9 : at + 9 + size]
        at += 9 + size


def main(what: str, state: str, first: str, count: str, seconds: str) -> None:
    """Work through streams; see the text at the head of this file."""
    current, progress = Path(state, "current"), Path(state, "progress")
    results: collections.Counter[str] = collections.Counter()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    end = time.monotonic() + float(seconds)
    started, slowest, done = int(first), 0.0, 0
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as harness, ExitStack() as files:
        file = files.enter_context(current.open("wb", buffering=0))
        counter = files.enter_context(Path(state, "number").open("wb", buffering=0))
        for number in range(started, started + int(count)):
            if time.monotonic() > end:
                break
            counter.seek(0)
            counter.write(b"%020d" % number)
            data = STREAMS[what](random.Random(f"{what} {number}"))
            file.seek(0)
            file.truncate()
            file.write(data)
            before = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            results[harness.send(what, data)] += 1
            signal.setitimer(signal.ITIMER_PROF, 0)
            if number % CHECK_EVERY == 0:
                harness.check()
            done += 1
            slowest = max(slowest, time.process_time() - before)
            peak = peak_memory()
            assert peak <= MEMORY, f"{peak} bytes of memory"
            if done % CHECK_EVERY == 0:
                note(progress, done, results, slowest, peak)
        harness.check()
    note(progress, done, results, slowest, peak_memory())
    current.unlink()


if __name__ == "__main__":
    main(*sys.argv[1:])
