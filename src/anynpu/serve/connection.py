"""HTTP/1.1 connections: one request at a time, bounded in every phase, and every wait has a timeout.

httptools parses heads; bodies are in :mod:`anynpu.serve.body`. A body stays in the socket until the handler asks for it. If the handler
answers without having asked, what comes is thrown away unread, so that rejecting an image costs little. What a client sends behind a
request is not read before that one is answered, and the next request does not begin before the client has taken the answer.

A connection has one deadline, for what the client owes: the head, the body, or taking its answer. A client that lets it pass is cut off.
When there are too many connections, a new one takes the place of the one that has owed something for longest. If there is none, its request
is rejected.

Everything belongs to the event loop of the server: no lock.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import resource
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from itertools import islice
from typing import Any

from .._util import optional as _optional
from ..errors import RequestError, ServeError
from .body import MAX_HEAD, Body, ChunkedBody
from .failures import ClientGone
from .limits import GRACE, PROGRESS, Complaints, Limits
from .options import ServeOptions, check_secret

KEEP_ALIVE = 75.0
"""Seconds that an idle connection stays: a camera that sends an image now and then must not find it closed."""

MAX_HEADERS = 256
"""Of one request."""

PIECE = 2**15
"""Bytes that are received at a time before it is known where they belong."""

SCRATCH = 2**18
"""Bytes that are received at a time if they are thrown away, into memory that all connections share."""

WRITE = 2**18
"""Bytes of an answer that are handed to the transport at a time, and less than which go out together with their head."""

LINGER = 2.0
"""Seconds for which a client may go on sending unwanted data, before it is cut off."""

SINGLE = frozenset(
    ("host", "content-length", "content-encoding", "authorization", "x-api-key", "origin", "inference-header-content-length")
)
"""Headers that must not come twice: a proxy might have looked at the other one."""


class Connections:
    """What all HTTP connections of a server share.

    :param handle: answers a request, whatever happens
    :ivar max_thrown: bytes of one request that are thrown away at most before its client is cut off
    :ivar owing: connections whose clients owe something, those first that have sent nothing for longest
    """

    def __init__(self, options: ServeOptions, limits: Limits, handle: Callable[[Request], Awaitable[None]]) -> None:
        self.options = options
        self.limits = limits
        self.handle = handle
        self.parser: Any = _optional.httptools()
        self.scratch = memoryview(bytearray(SCRATCH))  # filled and used up within one callback
        self.max_thrown = max(options.max_request_bytes, 2**20) + SCRATCH
        self.open: dict[Connection, None] = {}
        self.owing: dict[Connection, None] = {}
        self.ending = False

    def make_room(self, now: float, before: float) -> bool:
        """Cut off the client that has owed something for longest, if it had time enough: it must not keep others out.

        :param before: when that must have begun
        """
        oldest = next(iter(self.owing), None)
        if oldest is None or now - oldest.since < GRACE or oldest.since > before:
            return False
        oldest.abort()
        oldest.leave()
        return True

    def cut_off_late(self, now: float) -> None:
        """Cut off all whose deadline has passed; to be called several times a second."""
        for connection in [one for one in self.open if one.deadline < now]:
            connection.abort()

    def end(self) -> None:
        """No further requests: connections close when they have answered what they have."""
        self.ending = True
        for connection in list(self.open):
            connection.end()


class Request:
    """One request, where its head, and the way to answer it.

    :ivar path: as it was sent, with its percent signs: a proxy compares the same text
    :ivar crowded: whether it came over a connection above the limit
    :ivar client: the address that it came from
    :ivar when_gone: called when the client has gone
    """

    __slots__ = ("_connection", "body", "client", "crowded", "expects", "headers", "keep_alive", "method", "path", "when_gone")

    def __init__(self, connection: Connection, method: str, path: str, headers: dict[str, str], keep_alive: bool) -> None:
        self._connection = connection
        self.method = method
        self.path = path
        self.headers = headers
        self.keep_alive = keep_alive
        self.crowded = connection.crowded
        self.client = connection.client
        self.expects = headers.get("expect", "").lower() == "100-continue"
        self.body: Body | None = None
        self.when_gone: set[Callable[[], None]] = set()

    def drop(self) -> None:
        """The server needs the space: cut the client off."""
        self._connection.abort()

    async def answer(self, status: int, parts: list[bytes], kind: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        """Send the answer, as quickly as the client takes it."""
        connection = self._connection
        self.keep_alive = self.keep_alive and connection.stays(self)
        head = [b"HTTP/1.1 ", _status_line(status), _date(int(time.time())), b"content-type: ", kind]
        head += [part for name, value in headers for part in (b"\r\n", name, b": ", value)]
        head.append(b"\r\ncontent-length: %d\r\n" % sum(map(len, parts)))
        head.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        if self.method == "HEAD":
            parts = []
        if sum(map(len, parts)) < WRITE:
            connection.write(b"".join((*head, *parts)))
            return
        connection.write(b"".join(head))
        for part in parts:
            view = memoryview(part)
            for start in range(0, len(view), WRITE):
                await connection.drained()
                connection.write(view[start : start + WRITE])


class Connection(asyncio.BufferedProtocol):
    """One connection.

    :param client: the address of the other side
    :param crowded: whether it is above the limit, so that its request is to be rejected
    :param first: what the client has sent already
    :ivar deadline: when the client is cut off
    :ivar since: when it began to owe something, or last sent a good part of it
    :ivar made: whether it has begun; before that, there is TLS's handshake
    """

    def __init__(self, shared: Connections, client: str, crowded: bool, closed: Callable[[], None], first: bytes = b"") -> None:
        self._shared = shared
        self._first = first
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self.client = client
        self.crowded = crowded
        self.deadline = float("inf")
        self.since = 0.0
        self.made = False
        self._transport: Any = None
        self._lost = False
        self._paused = False
        self._drained: asyncio.Future[None] | None = None
        self._reading = True
        self._request: Request | None = None  # from the end of its head to the end of its answer
        self._answered = False
        self._task: asyncio.Task[None] | None = None
        self._behind = b""  # what came behind that request
        self._body: Body | None = None  # as long as some of it has not come
        self._thrown = 0
        self._step = 0
        self._lingering = False
        self._new_head()

    def connection_made(self, transport: Any) -> None:
        """The client is there."""
        self._transport = transport
        self.made = True
        self._shared.open[self] = None
        if self._shared.ending:
            transport.abort()
        self._owes(self._shared.options.header_timeout)
        if self._first:
            # Not here: the transport begins to read behind this call, whatever is asked of it. What is put in line now is done before
            # anything that it reads.
            self._loop.call_soon(self._feed_first)

    def _feed_first(self) -> None:
        first, self._first = self._first, b""
        self._feed(first)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._lost = True
        if self._transport is not None:
            self._transport.close()  # TLS of Python 3.10 takes it for open otherwise, and warns
        self._shared.open.pop(self, None)
        self._owes(None)
        self.leave()
        if self._body is not None:
            self._body.fail(ClientGone())
        self.resume_writing()
        if self._request is not None:
            for call in tuple(self._request.when_gone):
                call()
        self._new_head()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        body = self._body
        return self._shared.scratch[:PIECE] if body is None or not body.direct else body.buffer(self._shared.scratch)

    def buffer_updated(self, nbytes: int) -> None:
        """They are there."""
        body = self._body
        if self._lingering:
            self._throw_away(nbytes)
            return
        if body is None or not body.direct:
            self._feed(bytes(self._shared.scratch[:nbytes]))
            return
        if body.unwanted:
            self._throw_away(nbytes)
        else:
            self._sends(nbytes)
        body.came(nbytes)
        if not body.left:
            self._received()

    def pause_writing(self) -> None:
        """The client does not take its answer. It has one deadline for all of it, however often it takes a little."""
        self._paused = True
        if self._body is None and self.deadline == float("inf"):
            self._owes(self._shared.options.write_timeout)

    def resume_writing(self) -> None:
        """It does again."""
        self._paused = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def write(self, data: bytes | memoryview) -> None:
        """Send, or raise if the client has gone."""
        if self._lost:
            raise ClientGone
        self._transport.write(data)

    async def drained(self) -> None:
        """Return when the client has taken most of what was written."""
        if self._paused and not self._lost:
            self._drained = self._loop.create_future()
            await self._drained
            self._drained = None

    def abort(self) -> None:
        """Cut the client off."""
        self._owes(None)
        self._transport.abort()

    def leave(self) -> None:
        """Not counted any more: who makes space does so at once, not when its transport has noticed. May be called twice."""
        closed, self._closed = self._closed, _nothing
        closed()

    def end(self) -> None:
        """The server ends: a connection without a request is closed."""
        if self._request is None:
            self._close()

    def stays(self, request: Request) -> bool:
        """Whether the connection can go on after the answer to a request."""
        body = self._body
        if body is not None and (isinstance(body, ChunkedBody) or body.left > self._shared.max_thrown):
            return False  # discarding the unwanted rest would take too long
        return not (self._shared.ending or request.crowded)

    def _new_head(self) -> None:
        self._parser: Any = None
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._head_complete = False
        self._end = b""  # the last bytes of what has come of the head

    def on_url(self, url: bytes) -> None:
        """Called by the parser, with a part of the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        self._headers.append((name, value))
        if len(self._headers) > MAX_HEADERS:
            raise RequestError(f"the request has more than {MAX_HEADERS} headers", hint="send fewer")

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self._head_complete = True

    def _feed(self, data: bytes) -> None:
        """Heads, chunks, and what of a body came along with a head."""
        while data and not self._lost:
            if self._body is not None:
                if self._body.unwanted:
                    self._throw_away(len(data))
                else:
                    self._sends(len(data))
                try:
                    data = self._body.feed(data)
                except RequestError as error:
                    self._body.fail(error)
                    self._lose_track()
                    return
                if self._body.left:
                    return
                self._received()
            elif self._request is not None:
                self._behind += data
                self._pause()
                return
            else:
                data = self._feed_head(data)

    def _feed_head(self, data: bytes) -> bytes:
        """Give the parser what belongs to the head; gives back the rest."""
        joined = self._end + data
        found = joined.find(b"\r\n\r\n")
        end = len(data) if found < 0 else found + 4 - len(self._end)
        if not self._head_bytes:
            self._parser = self._shared.parser.HttpRequestParser(self)
            self._owes(self._shared.options.header_timeout)
        self._end = joined[-3:] if found < 0 else b""
        self._head_bytes += end
        if self._head_bytes > MAX_HEAD:
            self._refuse(431, f"the head of a request has more than {MAX_HEAD} bytes")
            return b""
        try:
            self._parser.feed_data(data[:end])
        except self._shared.parser.HttpParserUpgrade:
            pass  # such a request need not be followed
        except self._shared.parser.HttpParserCallbackError:
            self._refuse(431, f"the request has more than {MAX_HEADERS} headers")
            return b""
        except self._shared.parser.HttpParserError:
            self._refuse(400, "this is no HTTP request that can be understood")
            return b""
        if self._head_complete:
            try:
                self._begin(complete=found >= 0)
            except RequestError as error:
                self._refuse(400, str(error))
                return b""
        return data[end:]

    def _begin(self, complete: bool) -> None:
        """The head of a request is there."""
        headers: dict[str, str] = {}
        for raw, value in self._headers:
            name = raw.decode("latin-1").lower()
            if name in SINGLE and name in headers:
                raise RequestError(f"the header {name} comes twice", hint="send it once")
            headers[name] = value.decode("latin-1")
        if not complete:
            raise RequestError("the head ends without CR LF", hint="end its lines with CR LF")
        try:
            path = (self._shared.parser.parse_url(self._url).path or b"").decode("latin-1")
        except self._shared.parser.HttpParserError:
            raise RequestError("the target of the request is no URL", hint="send a path") from None
        request = Request(self, self._parser.get_method().decode("latin-1"), path, headers, self._parser.should_keep_alive())
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers:
            if headers["transfer-encoding"].strip().lower() != "chunked" or "content-length" in headers:
                raise RequestError("the body comes in a way that is not understood", hint="send it chunked, or with its length")
            self._body = ChunkedBody(self._wants_body)
        elif not length.isascii() or not length.isdigit():
            raise RequestError("the length of the body is no number", hint="send content-length as an integer")
        elif int(length):
            self._body = Body(int(length), self._wants_body)
        request.body = self._body
        self._new_head()
        self._request, self._answered, self._thrown = request, False, 0
        if self._body is not None:
            self._owes(self._shared.options.body_timeout)
            self._pause()
        else:
            self._owes(None)
        self._task = self._loop.create_task(self._respond(request))

    def _wants_body(self) -> None:
        """Called when the body is read."""
        if self._request is not None and self._request.expects and not self._paused:
            self._request.expects = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._resume()

    async def _respond(self, request: Request) -> None:
        try:
            await self._shared.handle(request)
            await self.drained()
        except ClientGone:
            pass
        finally:
            self._answered = True
            if self._body is not None and not self._lost:
                self._body.discard()
                if request.expects:  # the client waits for a word that does not come, and then may or may not send
                    request.keep_alive = False
                self._resume()
            else:
                self._next()

    def _received(self) -> None:
        """All of the body has come."""
        self._body = None
        if self._answered:
            self._next()
        else:
            self._owes(None)
            self._resume()  # so that it is seen when the client goes away

    def _next(self) -> None:
        """The request is done with: on to the next one."""
        request, self._request, self._task = self._request, None, None
        if self._lost:
            return
        if request is None or not request.keep_alive or self._shared.ending:
            self._close()
            return
        self._owes(KEEP_ALIVE, waits=True)
        behind, self._behind = self._behind, b""
        self._resume()
        self._feed(behind)

    def _sends(self, nbytes: int) -> None:
        """So much of a body has come: who goes on sending is not the first to make space, however long it takes."""
        self._step += nbytes
        if self._step >= PROGRESS and self in self._shared.owing:
            self._step = 0
            self.since = self._loop.time()
            self._shared.owing[self] = self._shared.owing.pop(self)  # to the end

    def _throw_away(self, nbytes: int) -> None:
        self._thrown += nbytes
        if self._thrown > self._shared.max_thrown:
            self.abort()

    def _lose_track(self) -> None:
        """What comes cannot be understood any more: it is thrown away, and the connection closes behind the answer."""
        if self._request is not None:
            self._request.keep_alive = False
        self._body = None
        self._lingering = True
        if self._answered:
            self._next()

    def _refuse(self, status: int, message: str) -> None:
        """Answer what is no request, and close."""
        text = json.dumps({"error": message}).encode()
        head = b"HTTP/1.1 %scontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self._transport.write(head % (_status_line(status), len(text)) + text)
        self._lingering = True
        self._close()

    def _close(self) -> None:
        """Close when everything is written, within a time limit.

        If the client is still sending, what it sends is thrown away for a moment: else the answer would be lost with the connection.
        """
        if self._lingering and self._transport.can_write_eof() and not self._transport.is_closing():
            self._owes(LINGER)
            self._resume()
            try:
                self._transport.write_eof()
            except OSError:  # the client has gone
                self.abort()
        else:
            self._owes(self._shared.options.write_timeout)
            self._pause()
            self._transport.close()

    def _pause(self) -> None:
        if self._reading and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def _resume(self) -> None:
        if not self._reading and not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()

    def _owes(self, seconds: float | None, waits: bool = False) -> None:
        """The client owes something, for so many seconds, or nothing.

        :param waits: it does not keep others out meanwhile
        """
        now = self._loop.time()
        self.deadline = float("inf") if seconds is None else now + seconds
        self._shared.owing.pop(self, None)
        if seconds is not None and not waits and not self._lost:
            self.since = now
            self._shared.owing[self] = None


@lru_cache(maxsize=64)
def _status_line(status: int) -> bytes:
    try:
        return f"{status} {HTTPStatus(status).phrase}\r\n".encode()
    except ValueError:
        return f"{status} \r\n".encode()


@lru_cache(maxsize=2)
def _date(second: int) -> bytes:
    return f"date: {formatdate(second, usegmt=True)}\r\n".encode()


def _nothing() -> None:
    pass


# The socket on which HTTP clients arrive.
#
# How many connections there may be is bounded by the options and by the descriptors that the process may have, of which some are
# kept for model files and sessions. A few are accepted at a time. A client is *waiting* until the head of its first request has
# come. It costs next to nothing then: it has no transport, no parser and no task. So a burst of connections, or a crowd that sends
# a byte now and then, does not hold up the requests of those who are connected. When there are too many, whoever has owed something
# for longest makes space: at once for a client that has sent its request, after a moment for one that has only come. A request that
# has come but was not read yet is not owed.
#
# Everything belongs to the event loop of the server: no lock.


RESERVE = 128
"""Descriptors that connections leave to the rest of the process."""

ACCEPTS = 8
"""Connections that are accepted before other things have their turn."""

LOOKS = 64
"""Waiting clients that are looked at for one that owes its request, before a newcomer is rejected instead."""

BACKLOG = 1024

SWEEP = 0.1
"""Seconds between two checks of the deadlines of all connections."""

HASTE = 0.02
"""Seconds that a client may wait even if others come: the head of a request is one packet, right behind the handshake."""

MAX_WAITING = 1024
"""Bytes of a first request that are kept while it waits; with more of them it goes to the parser as it is."""

_BEGINNING = re.compile(rb"[A-Z]{1,16}(?: .*)?", re.DOTALL)
"""What may become a request; everything else is rejected at once, by the parser."""
_END_OF_HEAD = re.compile(rb"\n\r?\n")

RETRY = 0.1
"""Seconds until connections are accepted again if the system has no descriptors left."""


def connection_bound(most: int, limit: int | None = None, used: int | None = None) -> int:
    """How many connections of each protocol there may be: *most*, or what the descriptors of the process allow.

    :param limit: descriptors that the process may have
    :param used: those that it has already

    >>> connection_bound(1024, limit=1024, used=96), connection_bound(1024, limit=20000, used=96)
    (400, 1024)
    """
    if limit is None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return most
    if used is None:
        used = len(os.listdir("/proc/self/fd"))
    return max(8, min(most, (limit - used - RESERVE) // 2))


def listen(host: str, port: int) -> socket.socket:
    """A socket that clients can connect to."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches Nagle's algorithm off only for sockets that state that they are TCP
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), port))
        listener.setblocking(False)
        return listener
    except OSError as error:
        listener.close()
        raise ServeError(f"cannot listen on {host}:{port}: {error.strerror}", hint="choose another --host or --port") from None


@dataclass(slots=True)
class _Arrival:
    """A client whose first request has not come yet.

    :ivar since: when it came
    :ivar data: what it has sent
    """

    since: float
    client: str
    data: bytes = b""


class Listener:
    """Accepts connections, and ends them.

    :param bound: connections that there may be, whatever they are good for
    """

    def __init__(self, listening: socket.socket, shared: Connections, bound: int) -> None:
        self._socket = listening
        self._shared = shared
        self._bound = bound
        self._loop = asyncio.get_running_loop()
        self._tls = _tls_context(shared.options)
        self._hall: dict[socket.socket, _Arrival] = {}  # in the order in which they came
        self._tasks: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._sweeping: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._too_many = Complaints("%d connections were closed before they had sent a request: there are too many")
        self._no_descriptors = Complaints("connections cannot be accepted (%d times): the process has no descriptors left")

    def start(self) -> None:
        """Let clients in."""
        self._socket.listen(BACKLOG)
        self._loop.add_reader(self._socket, self._accept)
        self._sweep()

    async def end(self, timeout: float) -> None:
        """Accept no more connections, wait until all requests are answered, and close the connections that are left after
        *timeout* seconds."""
        self.close()
        for waiting in list(self._hall):
            self._dismiss(waiting)
        self._shared.end()
        if self._shared.limits.connections:
            self._empty.clear()
            try:
                await asyncio.wait_for(self._empty.wait(), timeout)
            except (asyncio.TimeoutError, TimeoutError):
                self.cut_off()
        if self._sweeping is not None:
            self._sweeping.cancel()

    def close(self) -> None:
        """Accept no more connections. May be called twice."""
        if self._retry is not None:
            self._retry.cancel()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def cut_off(self) -> None:
        """End all connections."""
        for waiting in list(self._hall):
            self._dismiss(waiting)
        for connection in list(self._shared.open):
            connection.abort()
        for task in list(self._tasks):
            task.cancel()

    def _accept(self) -> None:
        limits, options = self._shared.limits, self._shared.options
        for _ in range(ACCEPTS):
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                self._no_descriptors.add()
                self._loop.remove_reader(self._socket)
                self._retry = self._loop.call_later(RETRY, self._loop.add_reader, self._socket, self._accept)
                return
            if limits.connections >= min(2 * options.max_connections, self._bound + ACCEPTS) and not self._make_room(HASTE):
                self._too_many.add()
                accepted.close()
                continue
            accepted.setblocking(False)
            limits.connections += 1
            self._hall[accepted] = _Arrival(self._loop.time(), str(address[0]))
            self._loop.add_reader(accepted, self._hear, accepted)

    def _hear(self, accepted: socket.socket) -> None:
        """A waiting client sends something, or has gone."""
        arrival = self._hall[accepted]
        try:
            data = accepted.recv(1, socket.MSG_PEEK) if self._tls is not None else accepted.recv(MAX_WAITING)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._dismiss(accepted)
            return
        if self._tls is None:
            arrival.data += data
            waits = len(arrival.data) < MAX_WAITING and _BEGINNING.fullmatch(arrival.data)
            if waits and not _END_OF_HEAD.search(arrival.data):
                return
        self._begin(accepted, arrival)

    def _begin(self, accepted: socket.socket, arrival: _Arrival) -> None:
        """A client has sent its first request."""
        self._loop.remove_reader(accepted)
        del self._hall[accepted]
        limits, options = self._shared.limits, self._shared.options
        crowded = limits.connections > min(options.max_connections, self._bound) and not self._make_room(0.0)
        connection = Connection(self._shared, arrival.client, crowded, self._closed, arrival.data)
        task = self._loop.create_task(self._connect(accepted, connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _make_room(self, haste: float) -> bool:
        """Cut off who has owed something for longest: a connection, or a client that has been waiting for *haste* seconds."""
        now = self._loop.time()
        waiting = next((one for one in islice(self._hall, LOOKS) if not self._has_request(one)), None)
        if waiting is not None and now - self._hall[waiting].since < haste:
            waiting = None
        if self._shared.make_room(now, before=now if waiting is None else self._hall[waiting].since):
            return True
        if waiting is None:
            return False
        self._too_many.add()
        self._dismiss(waiting)
        return True

    def _has_request(self, accepted: socket.socket) -> bool:
        """Whether a waiting client has sent what :meth:`_hear` would begin with: it may not have been read yet."""
        try:
            data = accepted.recv(MAX_WAITING, socket.MSG_PEEK)
        except OSError:
            return False
        return bool(data) and (self._tls is not None or _END_OF_HEAD.search(self._hall[accepted].data + data) is not None)

    def _dismiss(self, waiting: socket.socket) -> None:
        self._loop.remove_reader(waiting)
        del self._hall[waiting]
        waiting.close()
        self._closed()

    async def _connect(self, accepted: socket.socket, connection: Connection) -> None:
        """Shake hands, if there is TLS."""
        given = {} if self._tls is None else {"ssl_handshake_timeout": self._shared.options.header_timeout}
        try:
            await self._loop.connect_accepted_socket(lambda: connection, accepted, ssl=self._tls, **given)
        except (OSError, asyncio.CancelledError):  # of TLS, or the client has gone already
            accepted.close()
            if not connection.made:
                self._closed()

    def _closed(self) -> None:
        self._shared.limits.connections -= 1
        if not self._shared.limits.connections:
            self._empty.set()

    def _sweep(self) -> None:
        now = self._loop.time()
        self._shared.cut_off_late(now)
        late = now - self._shared.options.header_timeout
        for waiting in [one for one, arrival in self._hall.items() if arrival.since < late]:
            self._dismiss(waiting)
        self._sweeping = self._loop.call_later(SWEEP, self._sweep)


def _tls_context(options: ServeOptions) -> ssl.SSLContext | None:
    if options.certificate is None or options.private_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        check_secret(options.private_key)
        context.load_cert_chain(options.certificate, options.private_key)
    except (OSError, ssl.SSLError) as error:
        raise ServeError(f"the TLS certificate cannot be read: {error}", hint="look at --certificate and --private-key") from None
    return context
