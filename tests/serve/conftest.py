"""Servers on a fake device, on loopback and free ports."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from session.fake import FakeDevice
from waiting import PATIENCE

from anynpu.serve import ServeOptions, Server
from anynpu.tensor import DType, TensorSpec

Array = npt.NDArray[Any]
Serve = Callable[..., Server]

TYPES = {
    "BOOL": DType.BOOL,
    "UINT8": DType.UINT8,
    "UINT16": DType.UINT16,
    "UINT32": DType.UINT32,
    "UINT64": DType.UINT64,
    "INT8": DType.INT8,
    "INT16": DType.INT16,
    "INT32": DType.INT32,
    "INT64": DType.INT64,
    "FP16": DType.FLOAT16,
    "FP32": DType.FLOAT32,
}


class EchoDevice(FakeDevice):
    """Has an input and an output of every type, and gives back what it is given."""

    def __init__(self, **behaviour: Any) -> None:
        inputs = tuple(TensorSpec(f"in_{name}", (2, 3), kind) for name, kind in TYPES.items())
        outputs = tuple(TensorSpec(f"out_{name}", (2, 3), kind) for name, kind in TYPES.items())
        super().__init__(2, inputs=inputs, outputs=outputs, **behaviour)

    def compute(self, number: int, arrays: Sequence[Array]) -> Array:
        return arrays[number]


def samples() -> dict[str, Array]:
    """A value for each type, its extremes among them. FP16 and FP32 come as float32, as sessions give outputs of floats."""
    found = {}
    for name, kind in TYPES.items():
        storage = kind.storage
        if storage.kind in "iu":
            limits = np.iinfo(storage)
            values = [limits.min, limits.max, 1, 2, 3, limits.max // 2]
        elif storage.kind == "b":
            values = [True, False, True, True, False, False]
        else:
            values = [0.5, -2.25, 1024.0, 0.0, -0.125, 3.0]
        found[name] = np.array(values, storage).reshape(2, 3)
    return found


def exchange(
    server: Server, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """One HTTP request: status, headers and body of its answer."""
    connection = http.client.HTTPConnection(server.http_address, timeout=PATIENCE)
    try:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def infer_body(value: float = 1.0, **parameters: Any) -> bytes:
    """A JSON request for the model of a plain fake device."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [value] * 4}
    return json.dumps({"inputs": [tensor], "parameters": parameters}).encode()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts servers of the model ``net`` on a device, and ends them.

    They shed nothing because of a predicted wait, which depends on how busy this machine is; tests of that state ``max_wait_ms``.
    """
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "net.rknn").write_bytes(b"model")
    servers: list[Server] = []

    def start(device: FakeDevice, *models: str | Path, **options: Any) -> Server:
        given = {"host": "127.0.0.1", "port": 0, "grpc_port": 0, "drain_timeout": PATIENCE, "max_wait_ms": 1e6}
        given |= {"device": device, **options}
        server = Server(models or [folder], ServeOptions(**given))
        server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop(PATIENCE)
