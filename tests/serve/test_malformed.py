"""Whatever a client sends, it gets an answer that states what is wrong, and the server goes on as before.

``ANYNPU_MALFORMED`` multiplies the number of requests.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import re
import socket
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from typing import Any

import grpc
import numpy as np
import pytest
from session.fake import FakeDevice
from waiting import PATIENCE, wait_until

from anynpu.errors import RequestError
from anynpu.serve import Server
from anynpu.serve.body import pieces
from anynpu.serve.grpc_service import Calls
from anynpu.serve.rest_bodies import parse_infer
from anynpu.session.protocol.messages import METHODS, SERVICE, field_of, messages

from .conftest import Serve, exchange, infer_body
from .malformed import damaged, inference_message, mutated, wrong_body, wrong_connection, wrong_message

TIMES = int(os.environ.get("ANYNPU_MALFORMED", "1"))
INFER = "/v2/models/net/infer"
CLIENT_ERRORS = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "DEADLINE_EXCEEDED"}
"""What a request that may be wrong ends with; its time may be over, since it states itself how much it has."""


def check_unharmed(server: Server) -> None:
    """Nothing is held, nobody is connected but the one who asks, a right request is answered, and nothing counts as failed."""

    def held() -> tuple[int, ...]:
        status = json.loads(exchange(server, "GET", "/status/data")[2])
        model = status["models"][0]
        return status["inflight_bytes"], status["connections"], model["running"], model["waiting"]

    wait_until(lambda: held() == (0, 1, 0, 0), "nothing is held")  # closed connections are noticed a moment later
    assert exchange(server, "POST", INFER, infer_body())[0] == 200
    assert b'outcome="failed"' not in exchange(server, "GET", "/metrics")[2]


def test_reading_any_body_gives_a_request_or_says_what_is_wrong() -> None:
    rng = random.Random(10)
    refused = 0
    for _ in range(3000):
        body, header = mutated(rng)
        try:
            request, _ = parse_infer("net", "", body, header)
        except RequestError:
            refused += 1
        else:
            assert all(isinstance(array, np.ndarray) for array in request.inputs.values())
    assert 2000 < refused < 3000


def json_body(data: Any, datatype: str = "FP32", shape: Sequence[int] = (1, 4)) -> bytes:
    return json.dumps({"inputs": [{"name": "x", "datatype": datatype, "shape": list(shape), "data": data}]}).encode()


@pytest.mark.parametrize(
    "data",
    [
        ["a" * 3000, *[""] * 3300],
        [["a" * 3000], *[[""]] * 3300],
        [1, "a" * 3000, *[2] * 3300],
        [{"a" * 3000: 1}, *[1] * 3300],
        [[1] * 3000, *[[]] * 3300],
    ],
    ids=["texts", "nested texts", "mixed", "objects", "ragged"],
)
def test_reading_json_takes_memory_in_proportion_to_it(data: list[Any]) -> None:
    """numpy gives every element the length of the longest text: 129 kB of JSON took 3.9 GB."""
    body = json_body(data, shape=(1, len(data)))
    tracemalloc.start()
    try:
        with pytest.raises(RequestError):
            parse_infer("net", "", body, None)
        assert tracemalloc.get_traced_memory()[1] < 100 * len(body)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("datatype", "data"),
    [
        *(("FP32", wrong) for wrong in (["1", 1, 1, 1], [True, 1, 1, 1], [None, 1, 1, 1], [1e39, 1, 1, 1], [10**400, 1, 1, 1])),
        *(("FP32", wrong) for wrong in ([1, 2, 3], [1, 2, 3, 4, 5], [[1, 2], [3]], [[1, 2], 3, 4], [1, 2, 3, {}], [[]], [])),
        *(("UINT8", wrong) for wrong in ([256, 1, 1, 1], [-1, 1, 1, 1], [1.0, 1, 1, 1], [True, 1, 1, 1], [2**70, 1, 1, 1])),
        *(("BOOL", wrong) for wrong in ([0, 1, 0, 1], [True, 1, True, True])),
        ("UINT64", [2**64, 1, 1, 1]),
        ("FP16", [70000, 1, 1, 1]),
    ],
)
def test_json_data_that_does_not_fit(datatype: str, data: list[Any]) -> None:
    with pytest.raises(RequestError):
        parse_infer("net", "", json_body(data, datatype), None)


@pytest.mark.parametrize(
    ("datatype", "data", "expected"),
    [
        ("FP32", [1, 2.5, 3, 4], [1, 2.5, 3, 4]),
        ("FP32", [2**70, float("inf"), 3, 4], [2.0**70, np.inf, 3, 4]),
        ("FP64", [[1], [2], [3], [4]], [1, 2, 3, 4]),
        ("FP16", [[[1, 2]], [[3, 65504]]], [1, 2, 3, 65504]),
        ("UINT64", [2**64 - 1, 0, 1, 2], [2**64 - 1, 0, 1, 2]),
        ("INT64", [[-(2**63), 2**63 - 1, 1, 2]], [-(2**63), 2**63 - 1, 1, 2]),
        ("INT8", [-128, 127, 1, 2], [-128, 127, 1, 2]),
        ("BOOL", [True, False, True, True], [True, False, True, True]),
    ],
)
def test_json_data_that_fits(datatype: str, data: list[Any], expected: list[Any]) -> None:
    request, _ = parse_infer("net", "", json_body(data, datatype), None)
    assert request.inputs["x"].shape == (1, 4)
    assert request.inputs["x"].ravel().tolist() == expected


@pytest.mark.parametrize(("depth", "accepted"), [(16, True), (17, False), (900, False)])
def test_json_data_may_be_nested_as_deep_as_a_shape(depth: int, accepted: bool) -> None:
    data: Any = 1
    for _ in range(depth):
        data = [data]
    with nullcontext() if accepted else pytest.raises(RequestError, match="nested"):
        parse_infer("net", "", json_body(data, shape=(1,)), None)


def many(part: bytes) -> bytes:
    return part * (2**20 // len(part) + 16)


@pytest.mark.parametrize(
    "message",
    [
        *(many(field_of(number, b"")) for number in (3, 4, 5, 6, 7, 99)),
        field_of(5, many(field_of(4, b""))),
        field_of(5, field_of(3, bytes(2**20 + 1))),
        field_of(5, field_of(5, many(field_of(8, b"")))),
        field_of(5, field_of(5, field_of(3, bytes(2**19 + 1)))),
        field_of(5, field_of(5, field_of(2, bytes(2**20 + 1)))),
        field_of(5, field_of(5, many(b"\x18\x01"))),
        many(field_of(5, b"")) + b"\x0a",
    ],
    ids=[
        *("id", "parameters", "inputs", "outputs", "raw contents", "unknown", "nested parameters", "shape", "texts"),
        *("int64", "int32", "unpacked", "broken"),
    ],
)
def test_messages_of_many_small_fields_are_rejected_before_they_are_parsed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, message: bytes
) -> None:
    """protobuf makes 2.9 GB of 62 MB of empty fields."""
    server = serve(FakeDevice(), max_request_bytes=2**22)

    def parsed(*_: Any) -> None:
        raise AssertionError("the message was parsed")

    monkeypatch.setattr(Calls, "_read", parsed)
    with grpc.insecure_channel(server.grpc_address) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/{SERVICE}/ModelInfer")(field_of(1, b"net") + message, timeout=PATIENCE)
    assert caught.value.code().name in ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT")  # type: ignore[attr-defined]
    assert "parsed" not in caught.value.details().replace("when parsed", "")  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", ["RepositoryModelLoad", "ModelMetadata"])
def test_other_messages_are_small(serve: Serve, method: str) -> None:
    with grpc.insecure_channel(serve(FakeDevice()).grpc_address) as channel, pytest.raises(grpc.RpcError, match="takes 1048576"):
        channel.unary_unary(f"/{SERVICE}/{method}")(many(field_of(2, b"")), timeout=PATIENCE)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2))
def test_any_body_gets_an_answer_or_a_client_error(serve: Serve, seed: int) -> None:
    """Each time 5000 bodies over HTTP."""
    server = serve(FakeDevice(), max_wait_ms=1e6, max_request_bytes=2**19)
    rng = random.Random(seed)
    seen: Counter[int] = Counter()
    with closing(http.client.HTTPConnection(server.http_address, timeout=PATIENCE)) as connection:
        for _ in range(5000 * TIMES):
            body, headers = wrong_body(rng)
            connection.request("POST", INFER, body, headers)
            answer = connection.getresponse()
            text = answer.read()
            seen[answer.status] += 1
            assert answer.status in (200, 400, 404, 413, 504), (answer.status, text, body, headers)
            assert answer.status == 200 or len(json.loads(text)["error"]) > 10
    assert seen[200] > 100
    assert seen[400] > 3000 * TIMES
    assert seen[413] > 0
    assert seen[504] < 50 * TIMES
    check_unharmed(server)


def statuses_in(answer: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3})", answer)]


async def converse(server: Server, data: bytes, count: int | None = None) -> list[int]:
    """The statuses of all answers to *data* on one connection, which ends when the client has no more to send.

    :param count: answers for which the client waits before it hangs up; None: until nothing has come for a while
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    answer = b""
    try:
        writer.write(data)
        while chunk := await asyncio.wait_for(reader.read(2**16), 0.5 if count is None else PATIENCE):
            answer += chunk
            if count is not None and len(statuses_in(answer)) >= count:
                writer.write_eof()
                answer += await asyncio.wait_for(reader.read(), PATIENCE)
                break
    except (TimeoutError, asyncio.TimeoutError):
        assert count is None, f"{count} answers do not come; so far came {answer[:500]!r}"
        writer.write_eof()
        answer += await asyncio.wait_for(reader.read(), PATIENCE)
    except (ConnectionResetError, BrokenPipeError):
        pass  # the server had closed while more was on its way
    finally:
        writer.close()
    return statuses_in(answer)


def test_any_bytes_on_a_connection_of_http(serve: Serve) -> None:
    server = serve(FakeDevice(), max_wait_ms=1e6, max_queue=1000, max_request_bytes=2**19)
    rng = random.Random(20)
    seen: Counter[int] = Counter()

    async def ask() -> None:
        for _ in range(10 * TIMES):
            given = [wrong_connection(rng, INFER) for _ in range(100)]
            found = await asyncio.gather(*(converse(server, data) for data in given))
            for data, statuses in zip(given, found, strict=True):
                seen.update(statuses)
                assert all(status < 500 or status == 504 for status in statuses), (statuses, data[:3000])

    asyncio.run(ask())
    assert {100, 200, 400, 403, 404, 405, 413} <= seen.keys()
    check_unharmed(server)


def test_requests_behind_each_other_on_one_connection(serve: Serve) -> None:
    server = serve(FakeDevice(), max_wait_ms=1e6)

    def request(body: bytes) -> bytes:
        return f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    right, wrong = request(infer_body()), request(b"{")
    assert asyncio.run(converse(server, right * 3 + wrong + right, 5)) == [200, 200, 200, 400, 200]
    chunked = b"POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" % INFER.encode()
    for byte in infer_body():
        chunked += b"1\r\n%c\r\n" % byte
    assert asyncio.run(converse(server, (chunked + b"0\r\n\r\n") * 2, 2)) == [200, 200]
    # what cannot be parsed is answered in its turn, and ends the connection
    assert asyncio.run(converse(server, right * 2 + b"garbage\r\n\r\n", 3)) == [200, 200, 400]
    assert asyncio.run(converse(server, b"garbage\r\n\r\n", 1)) == [400]
    check_unharmed(server)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "inputs is no list"),
        (b"[" * 100_000, "no JSON"),
        (b'{"inputs": []}', "no array for input 'x'"),
        (b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4]}]}', "has no data"),
        (b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 5], "data": [1, 2]}]}', "has 2 elements"),
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
        list(pieces(bomb, "gzip", 1_000_000))
    with pytest.raises(RequestError, match="ends too early"):
        list(pieces(bomb[:1000], "gzip", 2**23))
    with pytest.raises(RequestError, match="no gzip"):
        list(pieces(b"x" * 100, "gzip", 2**23))
    with pytest.raises(RequestError, match="'br'"):
        list(pieces(b"", "br", 1))


def test_other_calls_with_malformed_bodies(serve: Serve) -> None:
    server = serve(FakeDevice())
    for path in ("index", "models/net/load", "models/net/unload", "models/nothing/load", "models/nothing/unload"):
        for body in (b"{", b"[]", b'{"parameters": 1}', b'{"ready": 3}', b'{"parameters": {"config": "{}"}}', b"\xff"):
            status, _, answer = exchange(server, "POST", f"/v2/repository/{path}", body)
            assert status in (200, 400, 403, 404), answer


@pytest.fixture
def channel(serve: Serve) -> Iterator[tuple[Server, Any]]:
    """A server and a channel to it."""
    server = serve(FakeDevice(), max_wait_ms=1e6, max_request_bytes=2**19)
    with grpc.insecure_channel(server.grpc_address) as found:
        yield server, found
    check_unharmed(server)


def outcome(call: Callable[..., Any], data: bytes) -> str:
    """The status of a call; an error must have a text."""
    try:
        call(data, timeout=PATIENCE)
    except grpc.RpcError as error:
        text, code = error.details(), str(error.code().name)
    else:
        return "OK"
    assert len(text) > 10
    return code


@pytest.mark.full
def test_any_message_over_grpc(channel: tuple[Server, Any]) -> None:
    rng = random.Random(12)
    seen: Counter[str] = Counter()
    call = channel[1].unary_unary(f"/{SERVICE}/ModelInfer")
    for _ in range(2500 * TIMES):
        data = wrong_message(rng)
        code = outcome(call, data)
        seen[code] += 1
        assert code in CLIENT_ERRORS, (code, data)
    assert seen["OK"] > 25 * TIMES
    assert seen["INVALID_ARGUMENT"] > 1250 * TIMES
    assert seen["NOT_FOUND"] > 25 * TIMES
    assert outcome(call, bytes(2**19 + 1)) == "RESOURCE_EXHAUSTED"
    assert outcome(call, inference_message().SerializeToString()) == "OK"


def test_any_message_to_the_other_calls_of_grpc(channel: tuple[Server, Any]) -> None:
    rng = random.Random(13)
    protocol = messages()
    parameters = {"path": protocol.ModelRepositoryParameter(string_param="/etc/passwd")}
    right = [
        protocol.ModelMetadataRequest(name="net", version="1"),
        protocol.RepositoryIndexRequest(ready=True),
        protocol.RepositoryModelLoadRequest(model_name="other", parameters=parameters),
    ]
    for name in METHODS:
        if name in ("ModelInfer", "ModelStreamInfer"):
            continue
        call = channel[1].unary_unary(f"/{SERVICE}/{name}")
        for _ in range(120 * TIMES):
            code = outcome(call, damaged(rng, rng.choice(right).SerializeToString(), 6).replace(b"net", b"nut"))
            assert code in {*CLIENT_ERRORS, "PERMISSION_DENIED"}, (name, code)
    assert outcome(channel[1].unary_unary(f"/{SERVICE}/Nothing"), b"") == "UNIMPLEMENTED"


def test_any_message_in_a_stream_of_grpc(channel: tuple[Server, Any]) -> None:
    rng = random.Random(14)
    call = channel[1].stream_stream(
        f"/{SERVICE}/ModelStreamInfer", response_deserializer=messages().ModelStreamInferResponse.FromString
    )
    right = inference_message().SerializeToString()
    for _ in range(10 * TIMES):
        given = [right if number % 10 == 9 else wrong_message(rng) for number in range(100)]
        answers = list(call(iter(given), timeout=PATIENCE))
        assert len(answers) == 100
        assert all(len(answer.error_message) > 10 or answer.infer_response.outputs for answer in answers)
        assert all(answer.infer_response.outputs for answer in answers[9::10])
        assert sum(bool(answer.error_message) for answer in answers) > 50


def test_any_bytes_on_a_connection_of_grpc(channel: tuple[Server, Any]) -> None:
    """No HTTP/2, and HTTP/2 that is damaged, on the port of gRPC: such connections end, and others are served."""
    server, other = channel
    rng = random.Random(15)
    call = other.unary_unary(f"/{SERVICE}/ServerReady")
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for number in range(60 * TIMES):
        frame = rng.randbytes(rng.randint(1, 300))
        data = rng.choice(
            [frame, preface + frame, preface + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" + frame, b"GET / HTTP/1.1\r\n\r\n"]
        )
        with socket.create_connection(("127.0.0.1", server.grpc_port), timeout=PATIENCE) as client:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            try:
                while client.recv(2**16):
                    pass
            except ConnectionResetError:
                pass
        assert number % 10 or outcome(call, b"") == "OK"
