"""Hostile clients for :mod:`benchmarks.bench_attack`, each bounded in what it sends and in how long it lasts.

``python -m benchmarks.serve_attack crowd HOST:PORT SECONDS`` is the crowd alone, as a process of its own.
"""

from __future__ import annotations

import gzip
import math
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from anynpu.session.protocol.messages import SERVICE

__all__ = ["ATTACKS", "KEY", "crowd"]

KEY = "a-key-of-the-benchmarks"
MIB = 2**20
INFER = b"POST /v2/models/net/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: " + KEY.encode() + b"\r\n"
IDLE, SLOW, BURST = 8, 500, 2500


def trailers(http: str, rpc: str) -> None:
    """98 MB of trailers on one connection."""
    with _connect(http) as client:
        _send(client, INFER + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n")
        for number in range(98):
            if not _send(client, b"".join(b"X-%d-%d: %s\r\n" % (number, line, b"y" * 80) for line in range(10_500))):
                return
        _send(client, b"\r\n")


def messages(http: str, rpc: str, key: str = "", compression: Any = None) -> None:
    """40 calls at a time with messages of 60 MiB."""
    data = bytes(60 * MIB)
    with grpc.insecure_channel(rpc, options=[("grpc.max_send_message_length", -1)]) as channel:
        call = channel.unary_unary(f"/{SERVICE}/ModelInfer")

        def ask(_: int) -> None:
            try:
                call(data, metadata=(("x-api-key", key),) if key else (), compression=compression, timeout=60)
            except grpc.RpcError:
                pass

        with ThreadPoolExecutor(40) as pool:
            list(pool.map(ask, range(40)))


def packed(http: str, rpc: str) -> None:
    """64 requests of 61 kB at a time that become 60 MiB each."""
    body = gzip.compress(bytes(60 * MIB))
    head = INFER + b"Content-Encoding: gzip\r\nInference-Header-Content-Length: 100\r\nContent-Length: %d\r\n\r\n" % len(body)
    _all_at_once(64, lambda _: _ask(http, head + body))


def stalled(http: str, rpc: str) -> None:
    """Bodies of 60 MiB that stop before their last byte, on 16 connections; and a good client meanwhile."""
    head = INFER + b"Inference-Header-Content-Length: 100\r\nContent-Length: %d\r\n\r\n" % (60 * MIB)
    clients = [_connect(http) for _ in range(16)]

    def stall(client: socket.socket) -> None:
        _send(client, head)
        for _ in range(59):
            if not _send(client, bytes(MIB)):
                return

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(stall, clients))
    time.sleep(1.0)
    for client in clients:
        client.close()


ATTACKS: dict[str, Callable[[str, str], None]] = {
    "98 MB of trailers on one connection": trailers,
    "gRPC: 40 x 60 MiB without a key": messages,
    "gRPC: the same with gzip": lambda http, rpc: messages(http, rpc, compression=grpc.Compression.Gzip),
    "gRPC: 40 x 60 MiB with a key": lambda http, rpc: messages(http, rpc, KEY),
    "gRPC: the same with gzip, with a key": lambda http, rpc: messages(http, rpc, KEY, grpc.Compression.Gzip),
    "HTTP: 64 x 61 kB of gzip": packed,
    "HTTP: 16 bodies of 60 MiB that stall": stalled,
}


def crowd(http: str, seconds: float) -> None:
    """8 clients that announce a body and are idle, 500 that send a byte now and then, and 2,500 that connect again and again.

    Writes a line when all of them are there, from when on it lasts *seconds*; and at the end how many connections were tried.
    """
    ended = threading.Event()
    head = INFER + b"Content-Length: %d\r\n\r\n" % (60 * MIB)
    idle = [_connect(http) for _ in range(IDLE)]
    for one in idle:
        _send(one, head)
    slow: list[socket.socket] = []

    def crawl() -> None:
        while not ended.is_set():
            while len(slow) < SLOW:
                slow.append(_connect(http))
            full.set()
            for number, one in enumerate(slow):
                if not _send(one, b"P" if one not in begun else b"x"):
                    one.close()
                    slow[number] = _connect(http)
                begun.add(one)
            ended.wait(0.2)

    full = threading.Event()
    begun: set[socket.socket] = set()
    crawler = threading.Thread(target=crawl)
    crawler.start()
    full.wait(120)
    end, tried = math.inf, IDLE + SLOW
    while time.monotonic() < end:
        burst = []
        for _ in range(BURST):
            if time.monotonic() > end:
                break
            tried += 1
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(_address(http))
            burst.append(one)
        if end == math.inf:
            print("begun", flush=True)
            end = time.monotonic() + seconds
        time.sleep(0.5)
        for one in burst:
            one.close()
    ended.set()
    crawler.join()
    for one in (*idle, *slow):
        one.close()
    print(tried, flush=True)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def _connect(http: str) -> socket.socket:
    client = socket.socket()
    client.settimeout(20)
    try:
        client.connect(_address(http))
    except OSError:
        pass  # sending will find it
    return client


def _send(client: socket.socket, data: bytes) -> bool:
    try:
        client.sendall(data)
    except OSError:
        return False
    return True


def _ask(http: str, request: bytes) -> None:
    with _connect(http) as client:
        if _send(client, request):
            try:
                client.recv(65536)
            except OSError:
                pass


def _all_at_once(count: int, work: Callable[[int], None]) -> None:
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(work, range(count)))


if __name__ == "__main__":
    crowd(sys.argv[2], float(sys.argv[3]))
