"""HTTP connections: large bodies in every way in which they can come, rejections in the middle of one, and the limits of a connection."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import tritonclient.http as triton_http
from session.fake import FakeDevice
from waiting import PATIENCE, wait_until

from anynpu.serve import Server
from anynpu.serve.body import ALIGNMENT, MAX_HEAD
from anynpu.serve.limits import GRACE
from anynpu.tensor import DType, TensorSpec

from .conftest import Serve, exchange, infer_body
from .test_load import status_of

SIZE = 100_000
INFER = "/v2/models/net/infer"
ANSWER = 16
"""Bytes of the outputs of a fake device."""


class Large(FakeDevice):
    """Takes large inputs and reports how they lie in memory."""

    def __init__(self, lanes: int = 2, **behaviour: object) -> None:
        inputs = (TensorSpec("x", (1, SIZE), DType.FLOAT32),)
        super().__init__(lanes, inputs=inputs, **behaviour)


def large_body(value: float = 3.0) -> tuple[bytes, int]:
    """A request with binary tensors, and the length of its JSON."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, SIZE], "parameters": {"binary_data_size": 4 * SIZE}}
    text = json.dumps({"inputs": [tensor]}).encode()
    return text + np.full(SIZE, value, np.float32).tobytes(), len(text)


def head_of(body: bytes, json_length: int, *more: str) -> bytes:
    lines = [f"POST {INFER} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    lines += [f"Inference-Header-Content-Length: {json_length}", *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)


@contextmanager
def connect_all(server: Server, count: int) -> Iterator[list[socket.socket]]:
    """So many clients, which are gone afterwards whatever happens."""
    with ExitStack() as stack:
        yield [stack.enter_context(connect(server)) for _ in range(count)]


def read_answer(connection: socket.socket, rest: bytes = b"") -> tuple[int, bytes, bytes]:
    """Status and body of one answer, and what came behind it."""
    while b"\r\n\r\n" not in rest:
        piece = connection.recv(65536)
        assert piece, "the connection ended"
        rest += piece
    head, _, rest = rest.partition(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    while len(rest) < length:
        rest += connection.recv(65536)
    return int(head.split()[1]), rest[:length], rest[length:]


def first_value(answer: bytes) -> float:
    return float(json.loads(answer)["outputs"][0]["data"][0])


def test_a_large_body_lies_where_the_tensor_is_wanted(serve: Serve) -> None:
    device = Large()
    server = serve(device)
    body, length = large_body()
    with connect(server) as connection:
        for pieces in (1, 7, 200):  # however it comes, also with its head
            data = head_of(body, length) + body
            for start in range(0, len(data), len(data) // pieces + 1):
                connection.sendall(data[start : start + len(data) // pieces + 1])
            status, answer, rest = read_answer(connection)
            assert (status, first_value(answer), rest) == (200, 6.0, b"")
    given = [arrays[0] for arrays, _, _ in device.writes]
    assert len(given) == 3
    for array in given:
        np.testing.assert_array_equal(array, 3.0)
        assert array.ctypes.data % ALIGNMENT == 0
    wait_until(lambda: status_of(server)["inflight_bytes"] == 0, "the bytes are given back")


@pytest.mark.parametrize("way", ["chunked", "expect", "pipelined"])
def test_other_ways_to_send_a_large_body(serve: Serve, way: str) -> None:
    server = serve(Large(), max_wait_ms=1e6)
    body, length = large_body()
    with connect(server) as connection:
        if way == "chunked":
            head = head_of(body, length).replace(f"Content-Length: {len(body)}".encode(), b"Transfer-Encoding: chunked")
            chunks = [body[start : start + 50_000] for start in range(0, len(body), 50_000)]
            connection.sendall(head + b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in chunks) + b"0\r\n\r\n")
        elif way == "expect":
            connection.sendall(head_of(body, length, "Expect: 100-continue"))
            assert connection.recv(100).startswith(b"HTTP/1.1 100 Continue")
            connection.sendall(body)
        else:
            other, other_length = large_body(5.0)
            data = head_of(body, length) + body + head_of(other, other_length) + other + head_of(body, length) + body
            threading.Thread(target=connection.sendall, args=(data,)).start()
        status, answer, rest = read_answer(connection)
        assert (status, first_value(answer)) == (200, 6.0)
        if way == "pipelined":
            status, answer, rest = read_answer(connection, rest)
            assert (status, first_value(answer)) == (200, 10.0)
            status, answer, rest = read_answer(connection, rest)
            assert (status, first_value(answer)) == (200, 6.0)


def test_a_refused_body_is_thrown_away_and_the_connection_goes_on(serve: Serve) -> None:
    device = Large(1, gated=True)
    server = serve(device, max_queue=1, max_wait_ms=1e6)
    assert device.gate is not None
    body, length = large_body()
    request = head_of(body, length) + body
    with connect(server) as first, connect(server) as second, connect(server) as third:
        first.sendall(request)
        device.wait_entered()
        second.sendall(request)
        wait_until(lambda: status_of(server)["models"][0]["waiting"] == 1, "the second waits")
        for _ in range(3):
            third.sendall(request)
            status, answer, _ = read_answer(third)
            assert (status, b"full queue" in answer) == (429, True)
        assert status_of(server)["inflight_bytes"] == 2 * (len(body) + ANSWER)
        device.gate.set()
        assert (read_answer(first)[0], read_answer(second)[0]) == (200, 200)
        third.sendall(request)
        assert read_answer(third)[0] == 200


def test_a_refusal_reaches_a_client_that_wants_its_connection_closed(serve: Serve) -> None:
    server = serve(Large(), max_request_bytes=SIZE)
    body, length = large_body()
    for pieces in (1, 20):
        with connect(server) as connection:
            connection.sendall(head_of(body, length, "Connection: close"))
            for start in range(0, len(body), len(body) // pieces + 1):  # many clients read only when they have sent everything
                connection.sendall(body[start : start + len(body) // pieces + 1])
                time.sleep(0.01)
            status, _, rest = read_answer(connection)
            assert (status, rest, connection.recv(100)) == (413, b"", b"")
    wait_until(lambda: status_of(server)["connections"] == 1, "the connection is closed")
    with connect(server) as connection:  # one that never sends it is not waited for
        connection.sendall(head_of(body, length, "Connection: close"))
        assert read_answer(connection)[0] == 413
    wait_until(lambda: status_of(server)["connections"] == 1, "the connection is closed")


def test_a_client_that_goes_away_in_the_middle_of_its_body(serve: Serve) -> None:
    device = Large()
    server = serve(device)
    body, length = large_body()
    for share in (0, 1000, len(body) // 2, len(body) - 1):
        with connect(server) as connection:
            connection.sendall(head_of(body, length) + body[:share])
            wait_until(lambda count=share: status_of(server)["inflight_bytes"] == count, "what has arrived counts, and no more")
        wait_until(lambda: status_of(server)["inflight_bytes"] == 0, "the bytes are given back")
    assert device.writes == []
    wait_until(lambda: status_of(server)["connections"] == 1, "the connection is closed")


def test_a_body_that_stops_coming_is_not_waited_for(serve: Serve) -> None:
    server = serve(Large(), body_timeout=0.3)
    body, length = large_body()
    with connect(server) as connection:
        connection.sendall(head_of(body, length) + body[: len(body) // 2])
        try:
            assert connection.recv(100) == b""
        except ConnectionResetError:
            pass
    wait_until(lambda: status_of(server)["inflight_bytes"] == 0, "the bytes are given back")


def test_a_body_that_is_too_large_is_not_taken_in(serve: Serve) -> None:
    server = serve(Large(), max_request_bytes=SIZE)
    body, length = large_body()
    with connect(server) as connection:
        connection.sendall(head_of(body, length))
        status, answer, _ = read_answer(connection)
        assert (status, f"{len(body)} bytes" in answer.decode()) == (413, True)
        connection.sendall(body)
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert read_answer(connection)[0] == 200


def test_a_compressed_large_body(serve: Serve) -> None:
    server = serve(Large())
    tensor = triton_http.InferInput("x", [1, SIZE], "FP32")
    tensor.set_data_from_numpy(np.random.default_rng(1).standard_normal((1, SIZE)).astype(np.float32))
    with triton_http.InferenceServerClient(server.http_address) as client:
        plain = client.infer("net", [tensor]).as_numpy("y")
        for algorithm in ("gzip", "deflate"):
            np.testing.assert_array_equal(
                client.infer("net", [tensor], request_compression_algorithm=algorithm).as_numpy("y"), plain
            )


def test_a_head_that_does_not_end_is_refused(serve: Serve) -> None:
    server = serve(Large())
    with connect(server) as connection:
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        try:
            for number in range(40):
                connection.sendall(f"X-{number}: ".encode() + b"a" * (MAX_HEAD // 16) + b"\r\n")
                time.sleep(0.002)
        except ConnectionError:
            pass
        assert connection.recv(1000).startswith(b"HTTP/1.1 431 ")
    assert exchange(server, "GET", "/v2/health/live")[0] == 200


def test_what_is_no_http_is_told_so(serve: Serve) -> None:
    server = serve(Large())
    with connect(server) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 is how TLS begins\r\n\r\n")
        status, answer, _ = read_answer(connection)
        assert (status, "no HTTP" in json.loads(answer)["error"]) == (400, True)
        assert connection.recv(100) == b""


def test_idle_clients_do_not_keep_others_out(serve: Serve) -> None:
    server = serve(FakeDevice(), max_connections=20)
    beginnings = (b"", b"POST /v2/mod", head_of(*large_body()))
    with connect_all(server, 20) as slow:
        for number, one in enumerate(slow):
            one.sendall(beginnings[number % 3])
        time.sleep(2 * GRACE)
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: exchange(server, "POST", INFER, infer_body())[0], range(40)))
    assert answers == [200] * 40


def test_beginnings_of_requests_make_room_for_requests(serve: Serve) -> None:
    """However short they are there: a request that has come is worth more."""
    server = serve(FakeDevice(), max_connections=20)
    with connect_all(server, 30) as slow:
        for number, one in enumerate(slow):
            one.sendall((b"POST /v2/mod", b"GET / HTTP/1.1\r\nHost: a\r\n", b"P")[number % 3])
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: exchange(server, "POST", INFER, infer_body())[0], range(10)))
    assert answers == [200] * 10


@pytest.mark.parametrize("size", [1, 7, 40])
def test_a_first_request_in_pieces(serve: Serve, size: int) -> None:
    server = serve(FakeDevice())
    body = infer_body()
    whole = b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%s" % (INFER.encode(), len(body), body)
    with connect(server) as connection:
        for start in range(0, len(whole), size):
            connection.sendall(whole[start : start + size])
        assert read_answer(connection)[0] == 200
        connection.sendall(whole)
        assert read_answer(connection)[0] == 200


@pytest.mark.parametrize(
    "text", [b"GET / HTTP/1.1\n\n", b"GET / HTTP/1.1\nHost: a\r\n\n", b"get / HTTP/1.1", b"\x16\x03\x01", b"P\0"]
)
def test_what_is_no_head_is_not_waited_for(serve: Serve, text: bytes) -> None:
    server = serve(FakeDevice(), header_timeout=3600.0)
    with connect(server) as connection:
        connection.sendall(text)
        assert read_answer(connection)[0] == 400


def test_a_client_that_goes_before_its_request_leaves_nothing(serve: Serve) -> None:
    server = serve(FakeDevice(), header_timeout=3600.0)
    for text in (b"", b"P", b"GET / HTTP/1.1\r\n"):
        with connect(server) as connection:
            connection.sendall(text)

    def alone() -> bool:
        with connect(server) as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            return b"\nanynpu_connections 1.0\n" in read_answer(connection)[1]

    wait_until(alone, "the others are gone")


def test_a_connection_too_many_is_told_so(serve: Serve) -> None:
    server = serve(FakeDevice(), max_connections=2)
    kept = [http.client.HTTPConnection(server.http_address, timeout=PATIENCE) for _ in range(2)]
    for one in kept:  # they owe nothing
        one.request("GET", "/v2/health/live")
        one.getresponse().read()
    status, headers, answer = exchange(server, "POST", INFER, infer_body())
    assert (status, headers["retry-after"], headers["connection"]) == (429, "1", "close")
    assert "too many connections" in json.loads(answer)["error"]
    for one in kept:
        one.close()

    def serves_again() -> bool:
        try:
            return exchange(server, "POST", INFER, infer_body())[0] == 200
        except (http.client.HTTPException, ConnectionError):
            return False

    wait_until(serves_again, "there is space again")
