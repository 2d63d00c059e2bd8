"""The body of an HTTP request on its way: straight into memory, counted as it comes, or thrown away.

A body of known length is received by the kernel straight into the memory that the tensors will be views of. That memory grows with what
arrives: a length that is only announced costs nothing. A chunked body is taken apart here; what is not data in it (sizes, extensions,
trailers) is bounded like the head of a request.

Belongs to the event loop of the server: no lock.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator

import numpy as np

from ..errors import AnynpuError, RequestError, RequestTooLargeError
from .limits import Holding

# Compressed requests, unpacked step by step: every step is counted before the next one, so a small body cannot become a large surprise.


MAX_RATIO = 100
"""How many times its size a body may become when it is unpacked."""

FREE = 2**23
"""Bytes that it may become whatever its size: a black image is small when it is packed."""

STEP = 2**20
"""Bytes that are unpacked at a time, by another thread than that of the event loop."""

FIRST_STEP = 2**16
"""Bytes that are unpacked at once."""

_WINDOW = {"gzip": 31, "deflate": 15}


def pieces(body: bytes | memoryview, encoding: str, most: int) -> Iterator[bytes]:
    """A body without its compression, piece by piece; together they must not become longer than *most*.

    >>> b"".join(pieces(zlib.compress(b"text"), "deflate", 10))
    b'text'
    """
    if encoding not in _WINDOW:
        raise RequestError(f"the encoding {encoding!r} is not understood", hint="use gzip or deflate, or none")
    reader = zlib.decompressobj(_WINDOW[encoding])
    bound = min(most, max(FREE, MAX_RATIO * len(body)))
    size, step = 0, FIRST_STEP
    for start in range(0, len(body), FIRST_STEP):
        given: bytes | memoryview = body[start : start + FIRST_STEP]
        while given and not reader.eof:
            try:
                piece = reader.decompress(given, step)
            except zlib.error as error:
                raise RequestError(
                    f"the body is no {encoding}: {error}", hint="send a body in the encoding of the header Content-Encoding"
                ) from None
            given, step = reader.unconsumed_tail, STEP
            size += len(piece)
            if size > bound:
                raise RequestTooLargeError(
                    f"the body is larger than {bound} bytes when unpacked",
                    hint="send less at a time" if bound == most else "send it without compression",
                )
            yield piece
        if reader.eof:
            left = len(reader.unused_data) + len(body) - min(len(body), start + FIRST_STEP)
            if left:
                raise RequestError(f"{left} bytes are left after the {encoding}", hint="send one compressed body")
            return
    raise RequestError(f"the {encoding} of the body ends too early", hint="send all of it")


async def unpack(body: bytes | memoryview, encoding: str, holding: Holding, most: int) -> memoryview:
    """A body without its compression.

    :param holding: counts what it becomes
    :param most: bytes that it may become
    """
    unpacked = bytearray()
    rest = pieces(body, encoding, most)
    piece = next(rest, None)
    while piece is not None:
        holding.take(len(piece))
        unpacked += piece
        piece = await asyncio.to_thread(next, rest, None) if len(piece) >= FIRST_STEP else next(rest, None)
    return memoryview(unpacked)


def encoding_of(message: bytes) -> str:
    """How a message of gRPC is compressed, which its first bytes report: none of ours begins so otherwise.

    >>> encoding_of(b"\\x1f\\x8b\\x08..."), encoding_of(b"\\x78\\x9c..."), encoding_of(b"\\x0a\\x03net")
    ('gzip', 'deflate', '')
    """
    if message[:2] == b"\x1f\x8b":
        return "gzip"
    if message[:1] == b"\x78" and len(message) > 1 and (message[0] << 8 | message[1]) % 31 == 0:
        return "deflate"
    return ""


MAX_HEAD = 2**16
"""Bytes of a request that are not body: its head, or the trailers and extensions of its chunks."""

ALIGNMENT = 64
"""Of tensors in memory: a cache line."""

FIRST_PIECE = 2**21
"""Bytes of memory that a body gets before any of it is there. Smaller than what the kernel gives in huge pages."""

GROWTH = 4
"""How many times more memory a body gets when what it has is full."""

MAX_LINE = 4096
"""Bytes of a line between two chunks."""

CHUNK_SHARE = 16
"""One byte in so many of a chunked body may be no data, besides what every request may have: tiny chunks cost too much."""

_HEX = frozenset(b"0123456789abcdefABCDEF")


class Body:
    """A body of known length.

    :ivar left: bytes that have not come yet
    :ivar unwanted: whether what comes is thrown away
    :param resume: called when bytes are wanted
    """

    def __init__(self, length: int, resume: Callable[[], None]) -> None:
        self.length = self.left = length
        self.unwanted = False
        self._resume = resume
        self._early = b""  # what came along with the head
        self._error: BaseException | None = None
        self._holding: Holding | None = None
        self._memory: memoryview | None = None
        self._aligned = 0
        self._there: asyncio.Future[None] | None = None

    @property
    def direct(self) -> bool:
        """Whether bytes need not be looked at: they go to their place, or nowhere."""
        return self.unwanted or self._memory is not None

    async def read(self, holding: Holding, most: int, aligned: int = 0) -> memoryview:
        """All of it. To be called once.

        :param holding: counts the bytes
        :param most: bytes that there may be
        :param aligned: the byte that lies at the beginning of a cache line
        """
        if self._error is not None:
            raise self._error
        self._holding, self._aligned = holding, aligned
        holding.receive()
        try:
            self._begin(most)
            if self.left:
                self._there = asyncio.get_running_loop().create_future()
                self._resume()
                await self._there
            return self._data()
        finally:
            self.discard()  # its reader has it now, or it is not wanted
            self._there = None
            holding.received()

    def buffer(self, scratch: memoryview) -> memoryview:
        """Where the kernel may put the next bytes: to their place, or nowhere."""
        if self._memory is None:
            return scratch[: self.left]
        at = self.length - self.left
        self._grow(at + 1)
        return self._memory[at:]

    def came(self, nbytes: int) -> None:
        """So many bytes are in the buffer."""
        self.left -= nbytes
        self._count(nbytes)
        if not self.left:
            self._done()

    def feed(self, data: bytes) -> bytes:
        """Take bytes that came another way; gives back those that are not of this body."""
        piece, rest = data[: self.left], data[self.left :]
        if self._memory is not None:
            at = self.length - self.left
            self._grow(at + len(piece))
            self._memory[at : at + len(piece)] = piece
        elif not self.unwanted:
            self._early += piece
        self.came(len(piece))
        return rest

    def discard(self) -> None:
        """The body is not wanted: what still comes is discarded, what has come is released."""
        self.unwanted = True
        self._early, self._memory, self._holding = b"", None, None

    def fail(self, error: BaseException) -> None:
        """Waiting and later readers get an error."""
        self.discard()
        self._error = error
        if self._there is not None and not self._there.done():
            self._there.set_exception(error)

    def _begin(self, most: int) -> None:
        if self.length > most:
            raise _too_large(most)
        self._memory = _aligned_memory(self.length if self.length <= FIRST_PIECE else FIRST_PIECE // 2, self._aligned)
        early, self._early = self._early, b""
        self._memory[: len(early)] = early
        assert self._holding is not None
        self._holding.arrived(len(early))

    def _count(self, nbytes: int) -> None:
        if self._holding is not None:
            try:
                self._holding.arrived(nbytes)
            except AnynpuError as error:
                self.fail(error)

    def _grow(self, size: int) -> None:
        assert self._memory is not None
        if size > len(self._memory):
            old = self._memory
            self._memory = _aligned_memory(min(self.length, max(size, GROWTH * len(old))), self._aligned)
            self._memory[: len(old)] = old

    def _data(self) -> memoryview:
        assert self._memory is not None
        return self._memory

    def _done(self) -> None:
        if self._there is not None and not self._there.done():
            self._there.set_result(None)


class ChunkedBody(Body):
    """A chunked body, whose length is unknown before its end."""

    def __init__(self, resume: Callable[[], None]) -> None:
        super().__init__(1, resume)  # something is left until the end
        self._phase = "size"
        self._line = b""
        self._chunk = 0
        self._other = 0
        self._size = 0
        self._most: int | None = None
        self._bytes = bytearray()

    @property
    def direct(self) -> bool:
        """They have to be taken apart."""
        return False

    def feed(self, data: bytes) -> bytes:
        """Take bytes; gives back those behind the end of the body. Raises for what is no chunk."""
        at = 0
        while at < len(data) and self.left:
            if self._phase == "data":
                piece = data[at : at + self._chunk]
                at += len(piece)
                self._chunk -= len(piece)
                self._take(piece)
                if not self._chunk:
                    self._phase = "end"
                continue
            end = data.find(b"\n", at) + 1
            stop = end or len(data)
            self._line += data[at:stop]
            self._other += stop - at
            at = stop
            if len(self._line) > MAX_LINE or self._other > MAX_HEAD + self._size // CHUNK_SHARE:
                raise RequestError(
                    "the body has too much besides its data: trailers, extensions or tiny chunks", hint="send less"
                )
            if end:
                line, self._line = self._line, b""
                self._look_at(line)
        return data[at:]

    def discard(self) -> None:
        """The body is not wanted."""
        super().discard()
        self._bytes = bytearray()

    def _look_at(self, line: bytes) -> None:
        text = line[:-2]
        if not line.endswith(b"\r\n") or b"\r" in text or (self._phase == "end" and text):
            raise _no_chunk()
        if self._phase == "end":
            self._phase = "size"
        elif self._phase == "size":
            digits = text.partition(b";")[0].rstrip(b" \t")
            if not 0 < len(digits) <= 15 or not _HEX.issuperset(digits):
                raise _no_chunk()
            self._chunk = int(digits, 16)
            self._phase = "data" if self._chunk else "trailers"
        elif not text:
            self.left = 0
            self._done()

    def _take(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._most is not None and self._size > self._most:
            self.fail(_too_large(self._most))
        self._count(len(piece))
        if not self.unwanted:
            self._bytes += piece

    def _begin(self, most: int) -> None:
        self._most = most
        if self._size > most:
            raise _too_large(most)
        assert self._holding is not None
        self._holding.arrived(self._size)

    def _data(self) -> memoryview:
        return memoryview(self._bytes)


def _aligned_memory(size: int, aligned: int) -> memoryview:
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -(memory.ctypes.data + aligned) % ALIGNMENT
    return memory[start : start + size].data


def _too_large(most: int) -> RequestTooLargeError:
    return RequestTooLargeError(f"the request has more than {most} bytes", hint="send less at a time, or raise --max-request")


def _no_chunk() -> RequestError:
    return RequestError(
        "invalid chunked encoding", hint="send the body in chunks as HTTP/1.1 defines them, or with Content-Length"
    )
