"""Who makes space when there are too many connections, on a loop with a clock of its own: clients act while it does not run."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager

import pytest
from waiting import PATIENCE

from anynpu.serve import ServeOptions
from anynpu.serve.connection import HASTE, Connections, Listener, Request, listen
from anynpu.serve.limits import GRACE, PROGRESS, Limits

WHOLE = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
UPLOAD = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000\r\n\r\n"


class Loop(asyncio.SelectorEventLoop):
    """Goes on on its own, and by leaps."""

    leapt = 0.0

    def time(self) -> float:
        return super().time() + self.leapt


class Place:
    """A listener that takes so many connections, and its clients."""

    def __init__(self, loop: Loop, limits: Limits, port: int, stack: ExitStack) -> None:
        self.loop, self.limits, self._port, self._stack = loop, limits, port, stack

    def client(self, sends: bytes = b"") -> socket.socket:
        """Connects and sends at once; nobody reads it until the loop runs."""
        made = self._stack.enter_context(socket.create_connection(("127.0.0.1", self._port)))
        made.sendall(sends)
        made.setblocking(False)
        return made

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.001)

    async def arrivals(self, count: int) -> None:
        """So many are connected, and what they have sent was read."""
        await self.until(lambda: self.limits.connections == count)
        for _ in range(5):
            await asyncio.sleep(0)

    async def answer(self, client: socket.socket) -> bytes:
        try:
            return await asyncio.wait_for(self.loop.sock_recv(client, 1000), PATIENCE)
        except ConnectionError:
            return b""


@asynccontextmanager
async def listening(most: int) -> AsyncIterator[Place]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Loop)
    options = ServeOptions(max_connections=most, header_timeout=3600.0, body_timeout=3600.0)
    limits = Limits(options, loop.time)

    async def handle(request: Request) -> None:
        if request.body is not None:
            await request.body.read(limits.open(request.client), 10**8)
        await request.answer(503 if request.crowded else 200, [], b"text/plain", [])

    with ExitStack() as stack:
        listener_socket = listen("127.0.0.1", 0)
        listener = Listener(listener_socket, Connections(options, limits, handle), 1000)
        listener.start()
        place = Place(loop, limits, listener_socket.getsockname()[1], stack)
        try:
            yield place
        finally:
            listener.close()
            listener.cut_off()
            await listener.end(0.0)


def run(story: Callable[[Place], object], most: int) -> None:
    async def main() -> None:
        async with listening(most) as place:
            await story(place)  # type: ignore[misc]

    loop = Loop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_a_request_that_nobody_has_read_yet_is_not_owed() -> None:
    async def story(place: Place) -> None:
        slow = place.client(UPLOAD)
        await place.arrivals(1)
        place.loop.leapt += 2 * GRACE
        good = [place.client(WHOLE) for _ in range(2)]  # both are there before the loop hears of one
        assert [(await place.answer(one))[:12] for one in good] == [b"HTTP/1.1 200"] * 2
        assert await place.answer(slow) == b""

    run(story, most=2)


def test_who_has_owed_for_longest_makes_room() -> None:
    async def story(place: Place) -> None:
        slow = place.client(UPLOAD)
        await place.arrivals(1)
        place.loop.leapt += 2 * GRACE
        waiting = place.client()
        await place.arrivals(2)
        place.loop.leapt += 2 * HASTE  # it takes its time between connecting and sending, as on a busy machine
        assert (await place.answer(place.client(WHOLE))).startswith(b"HTTP/1.1 200 ")
        assert await place.answer(slow) == b""
        waiting.sendall(WHOLE)
        assert (await place.answer(waiting))[:12] == b"HTTP/1.1 200"

    run(story, most=2)


def test_who_goes_on_sending_stays() -> None:
    async def story(place: Place) -> None:
        sending = place.client(UPLOAD)
        await place.arrivals(1)
        place.loop.leapt += 2 * GRACE
        waiting = place.client()
        await place.arrivals(2)
        await place.loop.sock_sendall(sending, bytes(4 * PROGRESS))
        await place.until(lambda: place.limits.bytes >= 4 * PROGRESS)
        place.loop.leapt += 2 * GRACE
        assert (await place.answer(place.client(WHOLE))).startswith(b"HTTP/1.1 200 ")
        assert await place.answer(waiting) == b""
        with pytest.raises(BlockingIOError):
            sending.recv(1)

    run(story, most=2)
