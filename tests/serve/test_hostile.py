"""Clients that mean harm: what they send is bounded in every phase, and they lose before those who behave."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import logging
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from fuzz.http2_streams import PREFACE, Frame, header_block, right_call
from session.fake import FakeDevice
from tritonclient.utils import InferenceServerException
from waiting import PATIENCE, wait_until

from anynpu.errors import OverloadedError, RequestError, RequestTooLargeError
from anynpu.serve import ServeOptions, Server
from anynpu.serve.body import FREE, MAX_RATIO, STEP, Body, ChunkedBody, pieces, unpack
from anynpu.serve.connection import MAX_HEADERS
from anynpu.serve.grpc_service import SLACK, WINDOW
from anynpu.serve.limits import GRACE, Complaints, Holding, Limits
from anynpu.serve.model import InferRequest
from anynpu.serve.rest_bodies import parse_infer
from anynpu.serve.rest_service import Exchange
from anynpu.session.protocol.messages import SERVICE
from anynpu.tensor import DType, TensorSpec

from .conftest import Serve, exchange, infer_body
from .test_connection import SIZE, Large, connect, connect_all, head_of, large_body, read_answer
from .test_load import Clock, status_of

INFER = "/v2/models/net/infer"
KEY = "a-key-of-the-tests-0123456789"
CHUNKED = f"POST {INFER} HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode()


def answer_to(server: Server, beginning: bytes, more: bytes, times: int = 4000) -> tuple[bytes, int]:
    """Send *more* again and again until the server has had enough: its answer, and how often it took it."""
    with connect(server) as client:
        client.sendall(beginning)
        sent = 0
        try:
            while sent < times:
                client.sendall(more)
                sent += 1
        except ConnectionError:
            pass
        answer = b""
        try:
            while piece := client.recv(65536):
                answer += piece
        except ConnectionError:
            pass
        return answer, sent


@pytest.mark.parametrize(
    ("beginning", "more", "status"),
    [
        (CHUNKED + b"1\r\n{\r\n0\r\n", b"X: " + b"y" * 1000 + b"\r\n", 400),
        (CHUNKED + b"1\r\n{\r\n0\r\n", b"X" * 1000, 400),
        (CHUNKED, b"1;" + b"x" * 1000 + b"\r\n \r\n", 400),
        (CHUNKED, b"1\r\n \r\n" * 100, 400),
        (CHUNKED, b"0" * 1000, 400),
        (b"", b"\r\n" * 500, 431),
        (b"GET / HTTP/1.1\r\n", b"x" * 1000, 431),
        (b"GET /", b"x" * 1000, 431),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * MAX_HEADERS, b"X: y\r\n", 431),
    ],
    ids=["trailers", "trailer", "extensions", "tiny chunks", "size", "empty lines", "header", "target", "headers"],
)
def test_what_is_not_body_is_bounded(serve: Serve, beginning: bytes, more: bytes, status: int) -> None:
    server = serve(FakeDevice())
    answer, sent = answer_to(server, beginning, more)
    assert sent < 4000 or answer
    assert not answer or answer.startswith(b"HTTP/1.1 %d " % status)
    wait_until(lambda: status_of(server)["connections"] == 1, "the connection is closed")
    assert exchange(server, "POST", INFER, infer_body())[0] == 200


@pytest.mark.parametrize(
    "wrong", [b"x\r\n", b"-1\r\n", b"1\n{\r\n", b"1\r\n{x", b"+1\r\n", b"0x1\r\n", b"\r\n", b"1\r{\r\n", b"f" * 16 + b"\r\n"]
)
def test_what_is_no_chunk_is_told_so(serve: Serve, wrong: bytes) -> None:
    server = serve(FakeDevice())
    with connect(server) as client:
        client.sendall(CHUNKED + wrong + b"0\r\n\r\n")
        assert read_answer(client)[0] == 400
        assert client.recv(100) == b""


def until(wait: threading.Event) -> Iterator[bytes]:
    """No message, and no end before *wait*."""
    wait.wait(PATIENCE)
    yield from ()


def silent_calls(channel: grpc.Channel, count: int, method: str, wait: threading.Event, **metadata: str) -> list[Any]:
    """Calls that never send their message."""
    call = channel.stream_unary(f"/{SERVICE}/{method}")
    return [call.future(until(wait), metadata=tuple(metadata.items()), timeout=PATIENCE) for _ in range(count)]


def test_keys_are_checked_before_a_message_is_read(serve: Serve) -> None:
    server = serve(FakeDevice(), api_keys=(KEY,))
    done = threading.Event()
    with grpc.insecure_channel(server.grpc_address) as channel:
        for method in ("ModelInfer", "ModelMetadata", "RepositoryModelLoad"):
            (call,) = silent_calls(channel, 1, method, done)
            assert call.code() == grpc.StatusCode.UNAUTHENTICATED
        stream = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")(until(done), timeout=PATIENCE)
        assert stream.code() == grpc.StatusCode.UNAUTHENTICATED
        (call,) = silent_calls(channel, 1, "ServerLive", done)
        assert call.code() == grpc.StatusCode.OK  # whoever asks how the server is need not send anything
        done.set()


def test_calls_that_do_not_send_do_not_keep_others_out(serve: Serve) -> None:
    server = serve(FakeDevice(), max_inflight_bytes=2**20, max_request_bytes=2**20)  # there is space for one message
    done = threading.Event()
    with grpc.insecure_channel(server.grpc_address) as channel, triton_grpc.InferenceServerClient(server.grpc_address) as client:
        silent = silent_calls(channel, 20, "ModelInfer", done)
        tensor = triton_grpc.InferInput("x", [1, 4], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 4), np.float32))

        def is_served() -> bool:
            try:
                return bool(client.infer("net", [tensor]).as_numpy("y")[0, 0] == 2)
            except InferenceServerException:
                return False

        wait_until(is_served, "a good client is served")
        # over HTTP nobody waits for the space of a call that has only just begun: the client is asked to come again
        wait_until(lambda: exchange(server, "POST", INFER, infer_body())[0] == 200, "one over HTTP is served too")
        assert not any(call.done() for call in silent)
        done.set()
        for call in silent:
            call.exception(300)
    wait_until(lambda: status_of(server)["inflight_bytes"] == 0, "the bytes are given back")


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_messages(serve: Serve, compression: grpc.Compression) -> None:
    server = serve(Large(), max_request_bytes=2**20)
    tensor = triton_grpc.InferInput("x", [1, SIZE], "FP32")
    tensor.set_data_from_numpy(np.full((1, SIZE), 4, np.float32))
    name = compression.name.lower()
    with triton_grpc.InferenceServerClient(server.grpc_address) as client:
        assert client.infer("net", [tensor], compression_algorithm=name).as_numpy("y")[0, 0] == 8
    with grpc.insecure_channel(server.grpc_address) as channel:
        call = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        with pytest.raises(grpc.RpcError) as caught:
            call(bytes(2**22), compression=compression, timeout=300)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
    wait_until(lambda: status_of(server)["inflight_bytes"] == 0, "the bytes are given back")


def test_the_ratio_of_a_message_is_bounded(serve: Serve) -> None:
    """gRPC itself would unpack it whole before anybody counts."""
    server = serve(FakeDevice(), max_request_bytes=4 * FREE)
    with grpc.insecure_channel(server.grpc_address) as channel:
        call = channel.unary_unary(f"/{SERVICE}/ModelMetadata")
        with pytest.raises(grpc.RpcError) as caught:
            call(bytes(FREE + 1), compression=grpc.Compression.Gzip, timeout=PATIENCE)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
        assert "when unpacked" in caught.value.details()  # type: ignore[attr-defined]


def test_what_was_refused_does_not_live_on(serve: Serve) -> None:
    server = serve(Large())
    body, length = large_body()
    wrong = body.replace(b'"FP32"', b'"FP99"')
    headers = {"Inference-Header-Content-Length": str(length)}

    def alive() -> int:
        """Looks at all there is, which takes a while after many tests: so not again and again without a pause."""
        time.sleep(0.1)
        return sum(isinstance(one, Exchange | Body | ChunkedBody | InferRequest | Holding) for one in gc.get_objects())

    gc.collect()
    others = alive()  # of tests before this one
    gc.disable()
    try:
        for _ in range(3):
            assert exchange(server, "POST", INFER, wrong, headers)[0] == 400
            assert exchange(server, "POST", INFER, gzip.compress(wrong), {**headers, "Content-Encoding": "gzip"})[0] == 400
            assert exchange(server, "POST", INFER, b"{" + bytes(200_000))[0] == 400  # read by another thread
            assert exchange(server, "POST", "/v2/models/other/infer", body)[0] == 404
            with grpc.insecure_channel(server.grpc_address) as channel, pytest.raises(grpc.RpcError):
                channel.unary_unary(f"/{SERVICE}/ModelInfer")(bytes(100_000), timeout=PATIENCE)
        wait_until(lambda: alive() <= others, "nothing of the requests is left")
    finally:
        gc.enable()


def test_a_body_is_counted_while_it_is_unpacked() -> None:
    limits = Limits(ServeOptions(max_inflight_bytes=3 * STEP))
    holding = limits.open("a")
    bomb = gzip.compress(bytes(100 * STEP))
    with pytest.raises(OverloadedError, match="in flight"):
        asyncio.run(unpack(bomb, "gzip", holding, 2**30))
    assert holding.nbytes <= 3 * STEP
    holding.close()
    assert limits.bytes == 0


def test_the_ratio_of_a_body_is_bounded() -> None:
    black = gzip.compress(bytes(FREE))
    assert sum(map(len, pieces(black, "gzip", 2**30))) == FREE
    with pytest.raises(RequestTooLargeError, match=f"larger than {FREE} bytes when unpacked"):
        list(pieces(gzip.compress(bytes(FREE + 1)), "gzip", 2**30))
    noise = np.random.default_rng(1).bytes(FREE // 4)
    assert len(gzip.compress(noise)) * MAX_RATIO > 4 * FREE
    assert b"".join(pieces(gzip.compress(noise * 5, 1), "gzip", 2**30)) == noise * 5
    for cut in (0, 1, 20, 70_000):
        with pytest.raises(RequestError, match="ends too early"):
            list(pieces(gzip.compress(noise)[:cut], "gzip", 2**30))
    with pytest.raises(RequestError, match="3 bytes are left"):
        list(pieces(gzip.compress(b"x") + b"abc", "gzip", 2**30))


@pytest.mark.parametrize("leaving", [False, True], ids=["staying", "leaving"])
def test_large_json_is_read_one_at_a_time(serve: Serve, monkeypatch: pytest.MonkeyPatch, leaving: bool) -> None:
    """Small objects take 30 times their JSON: 12 clients with 7 MB took 1.5 GB."""
    server = serve(FakeDevice())
    body = infer_body()[:-1] + b', "x": [' + b"{}, " * 50_000 + b"{}]}"
    head = f"POST {INFER} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    go, lock, running, most, begun = threading.Event(), threading.Lock(), 0, 0, 0

    def parse(*given: Any) -> Any:
        nonlocal running, most, begun
        with lock:
            running, begun = running + 1, begun + 1
            most = max(most, running)
        try:
            assert go.wait(PATIENCE)
            return parse_infer(*given)
        finally:
            with lock:
                running -= 1

    monkeypatch.setattr("anynpu.serve.rest_service.parse_infer", parse)
    with connect_all(server, 4) as clients:
        try:
            for number, client in enumerate(clients, 1):
                client.sendall(head + body)
                held = len(body) * (1 if leaving else number)
                wait_until(lambda held=held: status_of(server)["inflight_bytes"] >= held, "the body has arrived")  # type: ignore[misc]
                if leaving:
                    wait_until(lambda: begun >= 1, "the first body is being read")
                    client.close()
                    wait_until(lambda: status_of(server)["inflight_bytes"] == 0, "the client has disconnected")
        finally:
            go.set()
        if not leaving:
            assert [read_answer(client)[0] for client in clients] == [200] * 4
    wait_until(lambda: begun >= 1 and running == 0, "nothing is being read")
    assert most == 1


def test_a_length_that_is_only_announced_costs_nothing(serve: Serve) -> None:
    body, length = large_body()
    server = serve(Large(), max_inflight_bytes=len(body) + 1000)
    with connect_all(server, 8) as idle:
        for one in idle:
            one.sendall(head_of(body, length))
        with connect(server) as client:
            client.sendall(head_of(body, length) + body)
            assert read_answer(client)[0] == 200
        for one in idle:
            one.sendall(body)
            assert read_answer(one)[0] == 200
            one.close()


def test_those_who_stop_sending_lose_first(serve: Serve) -> None:
    body, length = large_body()
    server = serve(Large(), max_inflight_bytes=2 * len(body))

    def is_served() -> bool:
        with connect(server) as client:
            client.sendall(head_of(body, length) + body)
            return read_answer(client)[0] == 200

    with connect_all(server, 2) as stalled:
        for number, one in enumerate(stalled, 1):
            one.sendall(head_of(body, length) + body[:-1])
            wait_until(
                lambda count=number: status_of(server)["inflight_bytes"] == count * (len(body) - 1), "all but one byte is there"
            )
        wait_until(is_served, "a good client is served")
        with pytest.raises((ConnectionError, AssertionError)):
            read_answer(stalled[0])  # it was the first to stop
    wait_until(lambda: status_of(server)["inflight_bytes"] == 0, "the bytes are given back")


def test_idle_connection_is_evicted_first() -> None:
    clock = Clock()
    limits = Limits(ServeOptions(max_inflight_bytes=1000), clock)
    dropped: list[str] = []
    a, b, c = (limits.open(name[0], lambda name=name: dropped.append(name)) for name in ("a1", "a2", "b1"))  # type: ignore[misc]
    for one in (a, b, c):
        one.receive()
    a.arrived(400)
    b.arrived(500)
    c.arrived(90)
    with pytest.raises(OverloadedError):
        b.arrived(20)  # all send, and it belongs to the client with the most
    c.arrived(50)
    assert dropped == ["a2"]  # the newest one of that client
    assert (limits.bytes, limits.clients["a"]) == (540, 400)
    clock.now += GRACE + 0.1
    c.arrived(450)
    clock.now += GRACE + 0.1
    fresh = limits.open("c")
    fresh.take(100)
    assert dropped == ["a2", "a1"]  # it has sent nothing for longest
    c.received()
    with pytest.raises(OverloadedError, match="690 bytes"):
        fresh.take(999)  # what has come completely stays
    for one in (a, b, c, fresh):
        one.close()
    assert (limits.bytes, dict(limits.clients), limits.receiving) == (0, {}, {})


def test_a_body_is_bounded_by_what_the_model_takes(serve: Serve) -> None:
    server = serve(FakeDevice())
    for lines in ("Content-Length: 9000000", "Inference-Header-Content-Length: 100\r\nContent-Length: 2000000"):
        with connect(server) as client:
            client.sendall(f"POST {INFER} HTTP/1.1\r\nHost: 127.0.0.1\r\n{lines}\r\n\r\n".encode())
            status, answer, _ = read_answer(client)  # before anything of it was sent
            assert (status, "takes" in json.loads(answer)["error"]) == (413, True)
    with connect(server) as client:
        client.sendall(
            CHUNKED.replace(b"\r\n\r\n", b"\r\nInference-Header-Content-Length: 10\r\n\r\n") + b"ffffff\r\n" + bytes(2_000_000)
        )
        assert read_answer(client)[0] == 413


def test_an_answer_that_nobody_takes_is_counted_and_has_one_deadline(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    close = Holding.close

    def noted(holding: Holding) -> None:
        counted.append(holding.nbytes)
        close(holding)

    monkeypatch.setattr(Holding, "close", noted)
    large = TensorSpec("y", (1, 4_000_000), DType.FLOAT32)
    server = serve(FakeDevice(outputs=(large,)), write_timeout=0.5)
    document = {**json.loads(infer_body()), "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    body = json.dumps(document).encode()
    with socket.socket() as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.settimeout(PATIENCE)
        lazy.connect(("127.0.0.1", server.port))
        lazy.sendall(b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%s" % (INFER.encode(), len(body), body))
        taken = 0
        try:
            while piece := lazy.recv(2000):  # taking a little now and then does not help
                taken += len(piece)
                if max(counted, default=0) <= 16_000_000:  # what is on its way after the end need not be waited for
                    threading.Event().wait(0.002)
        except ConnectionError:
            pass
        assert taken < 16_000_000
    wait_until(lambda: status_of(server)["inflight_bytes"] == 0, "the bytes are given back")
    assert max(counted) > 16_000_000, "until its deadline the whole answer counts"


def test_complaints_come_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    complaints = Complaints("%d connections were closed", clock)
    with caplog.at_level(logging.WARNING, "anynpu.serve"):
        for _ in range(5000):
            clock.now += 0.001
            complaints.add()
    assert 5 <= len(caplog.records) <= 6
    assert caplog.records[1].getMessage() == "1000 connections were closed"


def test_origins_and_hosts_that_are_none(serve: Serve) -> None:
    server = serve(FakeDevice())
    for origin in ("http://[", "http://[::1", "//", "http://]"):
        assert exchange(server, "POST", INFER, infer_body(), {"Origin": origin})[0] == 403
    for header in (
        "Host: 127.0.0.1",
        "host: localhost",
        "Content-Length: 0\r\nContent-Length: 0",
        "X-API-Key: a\r\nX-API-Key: b",
    ):
        with connect(server) as client:
            client.sendall(f"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}\r\n\r\n".encode())
            assert read_answer(client)[0] == 400


def sent_slowly(client: socket.socket, size: int) -> None:
    """Begin a call of gRPC whose message is larger than *size*, and send so much of it as its windows open."""
    call = right_call()
    client.sendall(PREFACE + Frame(4, 0, 0, b"").written() + Frame(1, 4, 1, header_block(call.headers)).written())
    left, windows, unread = struct.pack(">BI", 0, 2 * size) + bytes(size), {0: 65535, 1: 65535}, b""
    while left:
        room = min(len(left), 16384, *windows.values())
        if room > 0:
            client.sendall(Frame(0, 0, 1, left[:room]).written())
            left = left[room:]
            windows = {stream: window - room for stream, window in windows.items()}
            continue
        unread += client.recv(65536) or pytest.fail("the server closed the connection")
        while len(unread) >= 9 and len(unread) >= (end := 9 + int.from_bytes(unread[:3], "big")):
            kind, stream, payload = unread[3], int.from_bytes(unread[5:9], "big"), unread[9:end]
            unread = unread[end:]
            if kind == 8:
                windows[stream] += int.from_bytes(payload, "big")
            elif kind == 4 and payload:
                client.sendall(Frame(4, 1, 0, b"").written())  # what it states holds from here on
                settings = dict(struct.iter_unpack(">HI", payload))
                windows[1] += settings.get(4, 65535) - 65535


def test_a_message_that_comes_slowly_is_counted(serve: Serve) -> None:
    """gRPC states nothing of a message before it is complete: the kernel does, for the socket of its client."""
    largest, size = 2**26, 2**22
    server = serve(FakeDevice(), max_request_bytes=largest, max_inflight_bytes=2 * largest)
    assert server.grpc_port is not None

    def counted() -> bool:
        """Neither the space for the largest message, which it has for a moment, nor nothing."""
        return size - WINDOW - SLACK <= status_of(server)["inflight_bytes"] < largest

    with socket.create_connection(("127.0.0.1", server.grpc_port), timeout=PATIENCE) as client:
        sent_slowly(client, size)
        wait_until(counted, "what has arrived is counted")
    wait_until(lambda: status_of(server)["inflight_bytes"] == 0, "and given back")


def test_names_that_are_no_text_are_one_line_a_second(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """gRPC has five tracebacks for each of them; whoever can reach the port could fill the log."""
    server = serve(FakeDevice())
    assert server.grpc_port is not None
    data = PREFACE + Frame(4, 0, 0, b"").written()
    for number in range(20):
        headers = [(name, value + b"\xff" * (name == b":path")) for name, value in right_call().headers]
        data += Frame(1, 5, 2 * number + 1, header_block(headers)).written()
    with caplog.at_level(logging.WARNING), socket.create_connection(("127.0.0.1", server.grpc_port), timeout=PATIENCE) as client:
        client.sendall(data)
        answer = b""
        while answer.count(b"grpc-status") + answer.count(b"\x00\x00\x04\x03") < 1:
            answer += client.recv(65536) or pytest.fail("gRPC closed the connection")
    with grpc.insecure_channel(server.grpc_address) as channel:  # and it goes on
        live = channel.unary_unary(f"/{SERVICE}/ServerLive")
        assert live(b"", timeout=PATIENCE)
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(("version", "warned"), [("1.83.2", False), ("1.84.0", True), ("2.0", True), ("unknown", False)])
def test_versions_of_grpc_that_one_packet_ends(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: str, warned: bool
) -> None:
    monkeypatch.setattr(grpc, "__version__", version)
    with caplog.at_level(logging.WARNING, "anynpu.serve"):
        serve(FakeDevice())
    assert any("stops listening" in message for message in caplog.messages) is warned
