"""Clients that offer a server a given number of requests a second, whether it keeps up or not.

One event loop and one small parser for all connections, so that what is measured is the server and not its clients. Every request is
counted: answered with a status, or lost with its connection.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field

__all__ = ["Load", "offer"]


@dataclass
class Load:
    """What came of it.

    :ivar offered: requests that were sent
    :ivar statuses: how often each status was answered; 0 for requests whose connection ended without an answer
    :ivar accepted_ms: how long each answer with status 200 took
    :ivar refused_ms: how long each other one took
    """

    offered: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    accepted_ms: list[float] = field(default_factory=list)
    refused_ms: list[float] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        """Of the milliseconds of what was accepted."""
        return _percentile(self.accepted_ms, share)

    def refused_percentile(self, share: float) -> float:
        """Of the milliseconds of what was rejected."""
        return _percentile(self.refused_ms, share)


def _percentile(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * share))] if times else 0.0


def offer(address: str, request: bytes, seconds: float, rate: float = 0.0) -> Load:
    """Send *request* (head and body) for *seconds*.

    :param rate: requests a second, at random moments; 0: one client that sends when it has its answer
    """
    return asyncio.run(_offer(address, request, seconds, rate))


async def _offer(address: str, request: bytes, seconds: float, rate: float) -> Load:
    load = Load()
    host, _, port = address.rpartition(":")
    idle: list[_Connection] = []
    tasks: set[asyncio.Task[None]] = set()

    async def ask() -> None:
        connection = idle.pop() if idle else None
        if connection is None or connection.transport.is_closing():
            _, connection = await asyncio.get_running_loop().create_connection(_Connection, host, int(port))
        load.offered += 1
        began = time.perf_counter()
        status = await connection.ask(request)
        took = 1e3 * (time.perf_counter() - began)
        load.statuses[status] += 1
        (load.accepted_ms if status == 200 else load.refused_ms).append(took)
        if status and not connection.transport.is_closing():
            idle.append(connection)

    end = time.perf_counter() + seconds
    turn = time.perf_counter()
    rng = random.Random(1)
    while time.perf_counter() < end:
        if not rate:
            await ask()
            continue
        turn += rng.expovariate(rate)
        await asyncio.sleep(max(0.0, turn - time.perf_counter()))
        task = asyncio.create_task(ask())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    if tasks:
        await asyncio.wait(tasks, timeout=60)
    for connection in idle:
        connection.transport.close()
    return load


class _Connection(asyncio.Protocol):
    """One request at a time."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._answer: asyncio.Future[int] | None = None
        self._data = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    async def ask(self, request: bytes) -> int:
        """The status of the answer; 0 if there was none."""
        self._answer = asyncio.get_running_loop().create_future()
        self._data.clear()
        self.transport.write(request)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        self._data += data
        head = self._data.find(b"\r\n\r\n")
        if head < 0:
            return
        lines = bytes(self._data[:head]).lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        if len(self._data) >= head + 4 + length:
            if b"connection: close" in lines:
                self.transport.close()
            self._end(int(lines[0].split()[1]))

    def connection_lost(self, error: Exception | None) -> None:
        self._end(0)

    def _end(self, status: int) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(status)
