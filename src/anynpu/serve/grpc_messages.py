"""Receiving messages of gRPC within the bytes in flight.

gRPC gives a message only when all of it is there, and does not say before how large it is. So a call gets room for the largest message
before it is received, for a moment, and waits for that room if there is none. Nothing is received for a call that waits: its client
can send no more than the window of HTTP/2. A message that takes longer, or a stream that waits for its next request, counts for four times
what the kernel has received on its connection since. As with HTTP, one that does not go on loses its place when others need the room.

Everything belongs to the event loop of the server: no lock but the turnstile, which keeps the order in which calls came.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from ..errors import OverloadedError
from .limits import GRACE, Holding, Limits
from .options import ServeOptions

__all__ = ["Dropped", "Intake"]

PATIENCE = 5.0
"""Seconds that a call waits for room."""

SHORT = 0.02
"""Seconds for which a call has room for the largest message if others wait for it."""

MAX_WAITING = 64
"""Calls that wait for room."""

POLL = 0.002
LOOK = 0.02
"""Seconds between two checks of what has arrived for those who are slow."""

MAX_PEERS = 1024
"""Connections that are remembered."""

GROWTH = 4
"""How many times what has arrived of a message counts."""

SLACK = 2**16
"""Bytes that arrive besides messages, and do not count."""

_COUNT = struct.Struct("Q")
_BYTES_RECEIVED = 128
"""Where the kernel's ``tcp_info`` has the bytes that were received on a connection."""


class Dropped(OverloadedError):
    """A call had to make room while it received its message."""


class _Peer:
    """A connection of gRPC, found by the address of its client.

    :ivar readings: calls that receive a message on it; those that are slow are true
    """

    def __init__(self, name: str) -> None:
        self.readings: dict[_Reading, bool] = {}
        self._base = 0  # bytes that were received before, or have been given out since
        self._fd, self._address = _find_socket(name)

    def begin(self, reading: _Reading) -> None:
        """A call begins to receive."""
        if not self.readings:
            self._base = self._received()
        self.readings[reading] = False

    def end(self, reading: _Reading, nbytes: int) -> None:
        """It has received a message of so many bytes, or does not go on."""
        del self.readings[reading]
        if self.readings:
            self._base = min(self._received(), self._base + nbytes + nbytes // 1000 + 64)

    def arrived(self) -> int:
        """Bytes that the kernel has received and that nobody was given."""
        return max(0, self._received() - self._base - SLACK)

    def _received(self) -> int:
        """All that was ever received; 0 if the connection is gone, or is none of TCP."""
        if self._fd < 0:
            return 0
        try:
            with _Borrowed(self._fd) as own:
                if own.getpeername() != self._address:
                    return 0
                info = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED + 8)
        except OSError:
            return 0
        return int(_COUNT.unpack_from(info, _BYTES_RECEIVED)[0]) if len(info) >= _BYTES_RECEIVED + 8 else 0


@dataclass(eq=False)
class _Reading:
    """A call that receives a message.

    :ivar dropped: whether it had to make room
    :ivar began: when its client could begin to send
    """

    task: asyncio.Task[Any]
    holding: Holding
    dropped: bool = False
    began: float = 0.0
    peer: _Peer | None = None

    def drop(self) -> None:
        """Make room."""
        self.dropped = True
        self.task.cancel()


class Intake:
    """Receives the messages of all calls of one server.

    :param end: what gRPC gives when there is no further message
    """

    def __init__(self, limits: Limits, options: ServeOptions, end: Any) -> None:
        self._limits = limits
        self._largest = min(options.max_request_bytes, options.max_inflight_bytes)
        self._end = end
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._peers: OrderedDict[str, _Peer] = OrderedDict()
        self._slow: dict[_Peer, None] = {}
        self._quick: dict[_Reading, None] = {}  # those that have room for the largest message, the oldest first
        self._looking: asyncio.TimerHandle | None = None

    async def receive(self, context: Any, soon: bool = True) -> tuple[bytes, Holding] | None:
        """The next message of a call, and what counts it; None if there is no further one.

        :param soon: whether the client ought to send it now; not so for a further one of a stream
        """
        task = asyncio.current_task()
        assert task is not None
        name = str(context.peer())
        holding = self._limits.open(name.rpartition(":")[0], lambda: reading.drop())
        reading = _Reading(task, holding)
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None
        nbytes = 0
        try:
            if soon:
                await self._enter(holding)
            peer = reading.peer = self._peer(name)
            reading.began = loop.time()
            peer.begin(reading)
            try:
                if soon:
                    self._quick[reading] = None
                    timer = loop.call_later(GRACE, self._slow_down, reading)
                else:
                    self._slow_down(reading)
                data = await context.read()
                nbytes = 0 if data is self._end else len(data)
            finally:
                if timer is not None:
                    timer.cancel()
                self._quick.pop(reading, None)
                peer.end(reading, nbytes)
                holding.received()
            if data is self._end:
                holding.close()
                return None
            more = nbytes - holding.nbytes
            (holding.take if more > 0 else holding.add)(more)
            return data, holding
        except BaseException as error:
            holding.close()
            if not reading.dropped or not isinstance(error, asyncio.CancelledError):
                raise
            getattr(task, "uncancel", int)()  # Python 3.10 has no such thing
            raise Dropped(
                "the message did not come in time, and others need the room", hint="come again in 1 s, or send less at a time"
            ) from None

    async def _enter(self, holding: Holding) -> None:
        """Wait for room for the largest message."""
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE
        if self._waiting >= MAX_WAITING:
            raise OverloadedError(f"{MAX_WAITING} calls wait already", hint="come again in 1 s, or send less at a time")
        self._waiting += 1
        try:
            async with self._turn:
                while True:
                    try:
                        holding.take(self._largest)
                        return
                    except OverloadedError:
                        if loop.time() > until:
                            raise
                    oldest = next(iter(self._quick), None)
                    if oldest is not None and loop.time() - oldest.began > SHORT:
                        self._slow_down(oldest)
                    await asyncio.sleep(POLL)
        finally:
            self._waiting -= 1

    def _peer(self, name: str) -> _Peer:
        peer = self._peers.pop(name, None)
        if peer is None:
            peer = _Peer(name)
        self._peers[name] = peer
        while len(self._peers) > MAX_PEERS:
            self._peers.popitem(last=False)
        return peer

    def _slow_down(self, reading: _Reading) -> None:
        """From now on, what has arrived counts."""
        assert reading.peer is not None
        self._quick.pop(reading, None)
        reading.peer.readings[reading] = True
        reading.holding.receive()
        self._slow[reading.peer] = None
        self._look()

    def _look(self) -> None:
        """See what has arrived for those who are slow, as long as there are any."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        coming = False
        for peer in list(self._slow):
            slow = [reading for reading, is_slow in peer.readings.items() if is_slow]
            if not slow:
                del self._slow[peer]
            arrived = peer.arrived()
            coming = coming or bool(arrived)
            # a message may grow as fast as it has: there is room for that too
            left = min(GROWTH * arrived, self._largest * len(slow))
            for reading in slow:
                share = min(left, self._largest)
                left -= share
                more = share - reading.holding.nbytes
                if more <= 0:
                    reading.holding.add(more)
                    continue
                try:
                    reading.holding.arrived(more)
                except OverloadedError:
                    reading.holding.drop()
        if self._slow:
            self._looking = asyncio.get_running_loop().call_later(LOOK if coming else 5 * LOOK, self._look)


class _Borrowed:
    """A socket of gRPC's, as one of Python's, which is never closed here; it may be closed, or be another one, at any moment."""

    def __init__(self, fd: int) -> None:
        # With all three given nothing is asked of the system, which takes time. An address of IPv6 has room for one of IPv4 too, which is
        # what both kinds of sockets give here; the other way round it would be cut off.
        self._socket = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=fd)

    def __enter__(self) -> socket.socket:
        return self._socket

    def __exit__(self, *_: object) -> None:
        self._socket.detach()


def _find_socket(peer: str) -> tuple[int, Any]:
    """The descriptor of a connection to *peer*, as gRPC writes it, and its address; -1 if there is none."""
    kind, _, rest = peer.partition(":")
    host, _, port = rest.replace("%5B", "[").replace("%5D", "]").rpartition(":")
    host = host.strip("[]")
    if kind not in ("ipv4", "ipv6") or not port.isdigit():
        return -1, None
    for name in os.listdir("/proc/self/fd"):
        address: Any = None
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with _Borrowed(int(name)) as own:
                    address = own.getpeername()
        if isinstance(address, tuple) and address[1] == int(port) and address[0].removeprefix("::ffff:") == host:
            return int(name), address
    return -1, None
