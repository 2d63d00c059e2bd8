"""Whatever a client sends, it gets an answer that says what is wrong, and the server goes on."""

from __future__ import annotations

import copy
import http.client
import json
import random
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
from session.fake import FakeDevice

from anynpu.errors import RequestError
from anynpu.inference_protocol import messages
from anynpu.serve.rest import decompress, parse_infer

from .conftest import Serve, exchange, infer_body

VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 4, 2**31, 2**63, 2**70, 1.5, float("nan"), "", "x", "FP32", "BYTES", [], {}),
    *([[]], [1, [2]], ["1"], {"name": "x"}, [None], [[1, 2], [3]], "é\\u0000", [2**64], [1e400], -(2**63)),
]


def document() -> dict[str, Any]:
    binary = {"name": "b", "datatype": "INT16", "shape": [2], "parameters": {"binary_data_size": 4}}
    text = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [[1, 2, 3, 4]]}
    outputs = [{"name": "y", "parameters": {"binary_data": True}}]
    return {"id": "1", "parameters": {"priority": 1, "timeout": 10**7}, "inputs": [text, binary], "outputs": outputs}


def places(value: Any) -> list[tuple[Any, Any]]:
    """All containers of a document with their keys."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    return [(value, key) for key in keys] + [place for key in keys for place in places(value[key])]


def mutated(rng: random.Random) -> tuple[bytes, str | None]:
    """A body and its header length, with something wrong in most cases."""
    given = document()
    if rng.random() < 0.5:
        del given["inputs"][1]
    for _ in range(rng.randint(1, 3)):
        container, key = rng.choice(places(given))
        if rng.random() < 0.25:
            try:
                del container[key]
            except (KeyError, IndexError):
                pass
        else:
            if isinstance(container, list) and key >= len(container):
                continue
            container[key] = copy.deepcopy(rng.choice(VALUES))
    text = json.dumps(given).encode()
    header: str | None = str(len(text))
    body = text + bytes(4)
    choice = rng.random()
    if choice < 0.3:
        damaged = bytearray(body)
        for _ in range(rng.randint(1, 8)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        body = bytes(damaged)
    elif choice < 0.4:
        body = body[: rng.randrange(len(body))]
    elif choice < 0.5:
        header = rng.choice(["-1", "0", "99999999999999", "x", "1.5", "", str(len(text) // 2)])
    elif choice < 0.6:
        header, body = None, text
    return body, header


def test_reading_any_body_gives_a_request_or_says_what_is_wrong() -> None:
    rng = random.Random(10)
    refused = 0
    for _ in range(6000):
        body, header = mutated(rng)
        try:
            request, _ = parse_infer("net", "", body, header)
        except RequestError:
            refused += 1
        else:
            assert all(isinstance(array, np.ndarray) for array in request.inputs.values())
    assert 4000 < refused < 6000


def test_the_server_answers_any_body_with_a_client_error(serve: Serve) -> None:
    server = serve(FakeDevice(), max_wait_ms=10_000)
    rng = random.Random(11)
    connection = http.client.HTTPConnection(server.http_address, timeout=20)
    seen: set[int] = set()
    for _ in range(1500):
        body, header = mutated(rng)
        headers = {} if header is None else {"Inference-Header-Content-Length": header}
        connection.request("POST", "/v2/models/net/infer", body, headers)
        answer = connection.getresponse()
        text = answer.read()
        seen.add(answer.status)
        assert answer.status in (200, 400, 404), (answer.status, text, body)
        assert answer.status == 200 or json.loads(text)["error"]
    connection.close()
    assert seen >= {200, 400}
    assert exchange(server, "POST", "/v2/models/net/infer", infer_body())[0] == 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "inputs is no list"),
        (b"[" * 100_000, "no JSON"),
        (b'{"inputs": []}', "no array for input 'x'"),
        (b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4]}]}', "has no data"),
        (b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 5], "data": [1, 2]}]}', "no tensor of shape"),
        (b'{"inputs": [{"name": "x", "datatype": "UINT8", "shape": [1, 4], "data": [1, 2, 3, 256]}]}', "does not fit uint8"),
        (b'{"inputs": [{"name": "x", "datatype": "INT8", "shape": [1, 4], "data": [1, 2, 3, 1.5]}]}', "does not fit int8"),
        (b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [0, 2147483648], "data": []}]}', ""),
        (b'{"inputs": [{"name": "x", "datatype": "FP99", "shape": [1], "data": [1]}]}', "FP99"),
        (b"1" * 5000, "no JSON"),
    ],
)
def test_messages(serve: Serve, body: bytes, message: str) -> None:
    status, _, answer = exchange(serve(FakeDevice()), "POST", "/v2/models/net/infer", body)
    assert status == 400
    assert message in json.loads(answer)["error"]


def test_a_small_body_that_unpacks_to_a_large_one() -> None:
    import gzip

    bomb = gzip.compress(bytes(2**22))
    with pytest.raises(RequestError, match="larger than 1000000 bytes"):
        decompress(bomb, "gzip", 1_000_000)
    with pytest.raises(RequestError, match="ends too early"):
        decompress(bomb[:1000], "gzip", 2**23)
    with pytest.raises(RequestError, match="no gzip"):
        decompress(b"x" * 100, "gzip", 2**23)
    with pytest.raises(RequestError, match="'br'"):
        decompress(b"", "br", 1)


def test_other_calls_with_malformed_bodies(serve: Serve) -> None:
    server = serve(FakeDevice())
    for path in ("index", "models/net/load", "models/net/unload", "models/nothing/load", "models/nothing/unload"):
        for body in (b"{", b"[]", b'{"parameters": 1}', b'{"ready": 3}', b'{"parameters": {"config": "{}"}}', b"\xff"):
            status, _, answer = exchange(server, "POST", f"/v2/repository/{path}", body)
            assert status in (200, 400, 403, 404), answer


def message_bytes() -> bytes:
    request = messages().ModelInferRequest(model_name="net", id="1")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    request.raw_input_contents.append(bytes(16))
    request.parameters["priority"].int64_param = 1
    request.outputs.add(name="y")
    data: bytes = request.SerializeToString()
    return data


def damage(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        how, at = rng.random(), rng.randrange(len(changed))
        if how < 0.6:
            changed[at] = rng.randrange(256)
        elif how < 0.8 and len(changed) > 1:
            del changed[at]
        else:
            changed.insert(at, rng.randrange(256))
    return bytes(changed)


def test_damaged_messages_over_grpc(serve: Serve) -> None:
    server = serve(FakeDevice(), max_wait_ms=10_000)
    rng = random.Random(12)
    seen: set[str] = set()
    with grpc.insecure_channel(server.grpc_address) as channel:
        call: Callable[..., Any] = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for _ in range(800):
            try:
                call(damage(rng, message_bytes()), timeout=20)
                seen.add("OK")
            except grpc.RpcError as error:
                seen.add(error.code().name)
        call(message_bytes(), timeout=20)
    assert {"OK", "INVALID_ARGUMENT", "NOT_FOUND"} <= seen <= {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "DEADLINE_EXCEEDED"}
