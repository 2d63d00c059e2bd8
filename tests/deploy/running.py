"""Boards and proxies as processes on loopback: they are started, asked, killed and ended here."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ports import free_ports
from waiting import PATIENCE, wait_until

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
INFER = "/v2/models/net/infer"
LONG = 600.0
"""Seconds of a run that nobody waits for."""

SERVER_BOARD = Path(__file__).parent / "board.py"


@dataclass(frozen=True)
class Answer:
    """The answer to an HTTP request."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def ask(port: int, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
    """One HTTP request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        return Answer(answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def infer_body(seconds: float = 0.0, value: float = 0.0, **parameters: Any) -> bytes:
    """A request that takes so long; its answer is twice the values."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [seconds, value, 0, 0]}
    return json.dumps({"inputs": [tensor], "parameters": parameters}).encode()


def answers(port: int, path: str = "/v2/health/ready", status: int = 200) -> bool:
    """Whether a server is there and gives this status."""
    try:
        return ask(port, "GET", path).status == status
    except (OSError, http.client.HTTPException):
        return False


class Process:
    """A process with its output in a file."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self._log = log
        with log.open("ab") as output:
            self.popen = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **(environment or {})},
            )

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until the process does something; its output is shown if it ends or does not."""

        def checked() -> bool:
            assert self.popen.poll() is None, f"{what}: the process ended:\n{self.output()}"
            return condition()

        try:
            wait_until(checked, what)
        except AssertionError:
            sys.stderr.write(self.output())
            raise

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """End it as the loss of power does."""
        self.popen.kill()
        self.popen.wait(PATIENCE)

    def end(self) -> None:
        """End it as an operator does; kill it if that does not help."""
        if self.popen.poll() is None:
            self.popen.terminate()
            try:
                self.popen.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()


class Board:
    """A server on a fake NPU."""

    def __init__(self, folder: Path, number: int) -> None:
        self.port, self.grpc_port = free_ports(2)
        self._model = folder / "net.rknn"
        self._model.write_bytes(b"model")
        self._log = folder / f"board-{number}.log"
        self.process: Process | None = None

    def start(self) -> None:
        command = [sys.executable, str(SERVER_BOARD), str(self._model), str(self.port), str(self.grpc_port)]
        self.process = Process(command, self._log)

    def wait_ready(self) -> None:
        assert self.process is not None
        self.process.wait_for(lambda: answers(self.port), "the board answers")

    def statistics(self) -> dict[str, Any]:
        (found,) = ask(self.port, "GET", "/v2/models/net/stats").json()["model_stats"]
        assert isinstance(found, dict)
        return found

    def inferences(self) -> int:
        return int(self.statistics()["inference_stats"]["success"]["count"])

    def status(self) -> dict[str, Any]:
        (model,) = ask(self.port, "GET", "/status/data").json()["models"]
        assert isinstance(model, dict)
        return model


@dataclass
class Hold:
    """Requests sent straight to a board that keep it busy until they are taken back."""

    board: Board
    _connections: list[http.client.HTTPConnection] = field(default_factory=list)

    def fill(self, count: int) -> None:
        """Run one request and let the others wait."""
        for _ in range(count):
            connection = http.client.HTTPConnection("127.0.0.1", self.board.port, timeout=PATIENCE)
            connection.request("POST", INFER, infer_body(LONG))
            self._connections.append(connection)
        wait_until(lambda: sum(self._inside()) == count, f"{count} requests are inside")

    def release(self) -> None:
        """The clients go away: the board drops what they wanted."""
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        wait_until(lambda: sum(self._inside()) == 0, "the board is idle")

    def _inside(self) -> tuple[int, int]:
        model = self.board.status()
        return model["waiting"], model["running"]
