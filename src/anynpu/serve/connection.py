"""HTTP connections: large bodies go straight to their place, and nobody is waited for for ever.

uvicorn parses heads (with httptools) and small bodies. A body of some size whose length is known is received by the kernel straight into
the memory that the tensors will be views of; until the application asks for it, it stays in the socket, and if the application answers
without having asked, what comes is thrown away unread, so that refusing a picture costs little.

uvicorn itself ends only connections that are idle between two requests. Each connection here has one timer, which is armed while the client
owes something, and another while it does not read. A client that lets one run out is cut off. A connection above the limit takes the place
of the one that has owed something for longest; if there is none, its request is refused, and above twice the limit it is cut off at once.

Everything belongs to the event loop of the server: no lock.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _optional
from .limits import Limits
from .options import ServeOptions

__all__ = ["BODY", "CROWDED", "GONE", "ConnectionEnded", "IncomingBody", "protocol_class"]

BODY = "anynpu.body"
"""Where the scope of a request has its :class:`IncomingBody`, if it has one."""

GONE = "anynpu.gone"
"""In the scope of a request: a set of what is called when its client has gone."""

CROWDED = "anynpu.crowded"
"""In the scope of a request that came over a connection above the limit."""

DIRECT = 2**16
"""Bytes of a body that goes straight to its place."""

MAX_HEAD_LENGTH = 2**16
"""Bytes of the head of a request."""

ALIGNMENT = 64
"""Of tensors in memory: a cache line."""

INTERIM = b"HTTP/1.1 100 "
"""How the answer begins for which the client waits before it sends its body."""

GRACE = 0.5
"""Seconds that a client may owe something even if there are too many connections."""

SCRATCH = 2**18
"""Bytes that are received at a time into memory that all connections share: heads, small bodies, and what is thrown away."""


class ConnectionEnded(Exception):
    """The client went away before its body was there."""


class IncomingBody:
    """A body that is on its way.

    :ivar length: its bytes
    :ivar left: bytes that have not come yet
    """

    def __init__(self, length: int, flow: Any) -> None:
        self.length = self.left = length
        self.ended = False
        self._flow = flow
        self._early: list[bytes] = []  # what came along with the head
        self._place: memoryview | None = None
        self._there: asyncio.Future[None] | None = None

    async def read(self, aligned: int = 0) -> memoryview:
        """All of it. To be called once.

        :param aligned: the byte that lies at the beginning of a cache line
        """
        memory = np.empty(self.length + ALIGNMENT, np.uint8)
        start = -(memory.ctypes.data + aligned) % ALIGNMENT
        self._place = memory[start : start + self.length].data
        early, self._early, self.left = self._early, [], self.length
        for piece in early:
            self.take(piece)
        if self.left:
            self._there = asyncio.get_running_loop().create_future()
            self._flow.resume_reading()
            if self.ended:
                raise ConnectionEnded
            await self._there
        return self._place

    def buffer(self, scratch: memoryview) -> memoryview:
        """Where the next bytes go: to their place, or nowhere."""
        if self._place is None:
            return scratch[: self.left]
        return self._place[self.length - self.left :]

    def take(self, piece: bytes) -> None:
        """Bytes that came along with the head."""
        if self._place is None:
            self._early.append(piece)
        else:
            start = self.length - self.left
            self._place[start : start + len(piece)] = piece
        self.received(len(piece))

    def received(self, nbytes: int) -> None:
        """So many bytes more are where they belong."""
        self.left -= nbytes
        if not self.left and self._there is not None and not self._there.done():
            self._there.set_result(None)

    def end(self) -> None:
        """Nothing more comes."""
        self.ended = True
        if self._there is not None and not self._there.done():
            self._there.set_exception(ConnectionEnded())


class OneWrite:
    """A transport that sends the pieces of an answer together: a head and a small body would else wake the client twice.

    What it has collected goes out with :meth:`flush`, which the connection calls at the end of an answer, or when there is much of it.

    A connection that is closed while a body is on its way would take the answer with it: clients who send first and read then would find
    it broken. Such a one is closed when the body has come, or its time is over.

    :param awaiting: whether a body is on its way
    """

    def __init__(self, transport: Any, awaiting: Callable[[], bool]) -> None:
        self._transport = transport
        self._awaiting = awaiting
        self._ending = False
        self._pieces: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Collect *data*."""
        if len(data) >= DIRECT:
            self.flush()
            self._transport.write(data)
            return
        self._pieces.append(data)
        self._size += len(data)
        if self._size >= DIRECT or data.startswith(INTERIM):
            self.flush()

    def flush(self) -> None:
        """Send what was collected."""
        if self._pieces:
            data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            self._pieces, self._size = [], 0
            self._transport.write(data)

    def is_closing(self) -> bool:
        """Whether it is closed, or will be."""
        return self._ending or bool(self._transport.is_closing())

    def close(self) -> None:
        """Send what was collected, and close, though perhaps not at once."""
        self.flush()
        self._ending = self._awaiting()
        if not self._ending:
            self._transport.close()

    def body_came(self) -> None:
        """Nothing is on its way any more."""
        if self._ending:
            self._transport.close()


def protocol_class(options: ServeOptions, limits: Limits) -> type[Any]:
    """A protocol for uvicorn that keeps to the options."""
    httptools: Any = _optional.httptools()
    base: Any = _optional.uvicorn("protocols.http.httptools_impl").HttpToolsProtocol
    scratch = memoryview(bytearray(SCRATCH))  # filled and used up within one callback, so all connections may share it

    owing: dict[Connection, None] = {}  # those whose timer runs, in the order in which it began

    class Connection(base, asyncio.BufferedProtocol):  # type: ignore[misc]
        """One connection."""

        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self._body: IncomingBody | None = None  # of the request that is being received
            self._direct = False  # whether the parser is done with that request
            self._stage = "head"  # what the client owes; nothing once its request is there
            self._head_bytes = 0
            self._crowded = False
            self._when_gone: set[Callable[[], None]] = set()
            self._owed = ""
            self._since = 0.0
            self._owed_timer: asyncio.TimerHandle | None = None
            self._unread_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            wrapped: Any = OneWrite(transport, self._awaits_body)
            super().connection_made(wrapped)
            limits.connections += 1
            if limits.connections > 2 * options.max_connections:
                transport.abort()
                return
            self._crowded = limits.connections > options.max_connections and not self._make_room()
            self._expect("head")

        def connection_lost(self, exc: Exception | None) -> None:
            limits.connections -= 1
            self._expect("")
            self.resume_writing()
            if self._body is not None:
                self._body.end()
            super().connection_lost(exc)
            for call in tuple(self._when_gone):
                call()

        def get_buffer(self, sizehint: int) -> memoryview:
            """Where the next bytes go."""
            return self._body.buffer(scratch) if self._direct and self._body is not None else scratch

        def buffer_updated(self, nbytes: int) -> None:
            """They are there."""
            if not self._direct:
                self.data_received(bytes(scratch[:nbytes]))
                return
            assert self._body is not None
            self._body.received(nbytes)
            if not self._body.left:
                self._direct = False
                self.on_message_complete()
                self._expect(self._stage)
                self.transport.body_came()

        def data_received(self, data: bytes) -> None:
            """Heads, and bodies that are small or of unknown length."""
            if self._stage == "head":
                self._head_bytes += len(data)
            super().data_received(data)
            if self.transport.is_closing():
                self._expect("")
                return
            if self._stage == "head" and self._head_bytes > MAX_HEAD_LENGTH:
                self._refuse(
                    b"431 Request Header Fields Too Large", f"the head of a request has more than {MAX_HEAD_LENGTH} bytes"
                )
                return
            if self._body is not None and self._body.left:
                self._direct = True
                self.parser = httptools.HttpRequestParser(self)  # for the next request: this one's body does not come by it
            self._expect(self._stage)

        def on_message_begin(self) -> None:
            """A request begins."""
            super().on_message_begin()
            self._stage = "head"
            self._body = None

        def on_headers_complete(self) -> None:
            """Its head is there."""
            self._stage, self._head_bytes = "body", 0
            self.scope[GONE] = self._when_gone
            if self._crowded:
                self.scope[CROWDED] = True
            length = _direct_length(self.headers)
            alone = self.cycle is None or self.cycle.response_complete
            if length and alone and not self.expect_100_continue and not self.parser.should_upgrade():
                self._body = self.scope[BODY] = IncomingBody(length, self.flow)
                self.flow.pause_reading()
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            """A piece of a body."""
            if self._body is None:
                super().on_body(body)
            else:
                self._body.take(body)

        def on_message_complete(self) -> None:
            """All of the request is there."""
            self._stage = ""
            if self._body is not None:
                self.flow.resume_reading()  # so that it is seen when the client goes away
            super().on_message_complete()

        def on_response_complete(self) -> None:
            """All of the answer is written."""
            self.transport.flush()
            super().on_response_complete()
            if self._direct:
                self.flow.resume_reading()  # what nobody asked for is thrown away

        def send_400_response(self, msg: str) -> None:
            """What cannot be parsed."""
            self._refuse(b"400 Bad Request", "this is no HTTP request that can be understood")

        def pause_writing(self) -> None:
            """The client does not take its answer."""
            super().pause_writing()
            if self._unread_timer is None:
                self._unread_timer = self.loop.call_later(options.write_timeout, self.transport.abort)

        def resume_writing(self) -> None:
            """It does again."""
            if self._unread_timer is not None:
                self._unread_timer.cancel()
                self._unread_timer = None
            super().resume_writing()

        def _awaits_body(self) -> bool:
            return self._direct

        def _make_room(self) -> bool:
            """Cut off the client that has owed something for longest, if it had time enough: it must not keep others out."""
            oldest = next(iter(owing), None)
            if oldest is None or self.loop.time() - oldest._since < GRACE:
                return False
            oldest._expect("")
            oldest.transport.abort()
            return True

        def _refuse(self, status: bytes, message: str) -> None:
            if self.cycle is None or self.cycle.response_complete:  # or it would be taken for the answer to an earlier request
                text = json.dumps({"error": message}).encode()
                head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
                self.transport.write(head % (status, len(text)) + text)
            self.transport.close()
            self._expect("")

        def _expect(self, what: str) -> None:
            if what == self._owed:
                return
            self._owed = what
            if self._owed_timer is not None:
                self._owed_timer.cancel()
                self._owed_timer = None
                del owing[self]
            if what:
                self._since = self.loop.time()
                owing[self] = None
                seconds = options.header_timeout if what == "head" else options.body_timeout
                self._owed_timer = self.loop.call_later(seconds, self.transport.abort)

    return Connection


def _direct_length(headers: list[tuple[bytes, bytes]]) -> int:
    """The length of a body that can go straight to its place; 0 for any other.

    >>> _direct_length([(b"content-length", b"1228800")])
    1228800
    """
    lengths = [value for name, value in headers if name == b"content-length"]
    if len(lengths) != 1 or not lengths[0].isdigit() or any(name == b"transfer-encoding" for name, _ in headers):
        return 0
    length = int(lengths[0])
    return length if length > DIRECT else 0
