"""The socket on which HTTP clients arrive.

How many connections there may be is bounded by the options and by the descriptors that the process may have, of which some are kept for
model files and sessions. A few are accepted at a time. A client is *waiting* until the head of its first request has come. It costs next to
nothing then: it has no transport, no parser and no task. So a burst of connections, or a crowd that sends a byte now and then, does not
hold up the requests of those who are connected. When there are too many, whoever has owed something for longest makes room: at once for a
client that has sent its request, after a moment for one that has only come. A request that has come but was not read yet is not owed.

Everything belongs to the event loop of the server: no lock.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import resource
import socket
import ssl
from dataclasses import dataclass
from itertools import islice

from ..errors import ServeError
from .connection import Connection, Connections
from .limits import Complaints
from .options import ServeOptions, check_secret

__all__ = ["Listener", "connection_bound", "listen"]

RESERVE = 128
"""Descriptors that connections leave to the rest of the process."""

ACCEPTS = 8
"""Connections that are accepted before other things have their turn."""

LOOKS = 64
"""Waiting clients that are looked at for one that owes its request, before a newcomer is refused instead."""

BACKLOG = 1024

SWEEP = 0.1
"""Seconds between two checks of the deadlines of all connections."""

HASTE = 0.02
"""Seconds that a client may wait even if others come: the head of a request is one packet, right behind the handshake."""

MAX_WAITING = 1024
"""Bytes of a first request that are kept while it waits; with more of them it goes to the parser as it is."""

_BEGINNING = re.compile(rb"[A-Z]{1,16}(?: .*)?", re.DOTALL)
"""What may become a request; everything else is refused at once, by the parser."""
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
    # asyncio switches Nagle's algorithm off only for sockets that say that they are TCP
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
        """Let nobody in any more, wait until all requests are answered, and cut off who is left after *timeout* seconds."""
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
        """Let nobody in any more. May be called twice."""
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
        """Whether a waiting client has sent what :meth:`_hear` would begin with: it may be that nobody has read it yet."""
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
