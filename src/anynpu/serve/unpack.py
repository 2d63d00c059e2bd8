"""Compressed requests, unpacked step by step: every step is counted before the next one, so a small body cannot become a large surprise."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator

from ..errors import RequestError, RequestTooLargeError
from .limits import Holding

__all__ = ["MAX_RATIO", "encoding_of", "pieces", "unpack"]

MAX_RATIO = 100
"""How many times its size a body may become when it is unpacked."""

FREE = 2**23
"""Bytes that it may become whatever its size: a black picture is small when it is packed."""

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
                    f"the body is no {encoding}: {error}", hint="send what the header Content-Encoding says"
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
    """How a message of gRPC is compressed, which its first bytes tell: none of ours begins so otherwise.

    >>> encoding_of(b"\\x1f\\x8b\\x08..."), encoding_of(b"\\x78\\x9c..."), encoding_of(b"\\x0a\\x03net")
    ('gzip', 'deflate', '')
    """
    if message[:2] == b"\x1f\x8b":
        return "gzip"
    if message[:1] == b"\x78" and len(message) > 1 and (message[0] << 8 | message[1]) % 31 == 0:
        return "deflate"
    return ""
