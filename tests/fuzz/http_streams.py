"""Byte streams for a server of HTTP/1.1: requests taken as heads, bodies, chunks and trailers, with something wrong in most of them."""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from serve.malformed import binary_document, damaged, wrong_body

__all__ = ["http_stream"]

INFER = b"/v2/models/net/infer"
TARGETS = (
    INFER,
    b"/v2/health/live",
    b"/v2",
    b"/metrics",
    b"/status",
    b"/v2/models/net/config",
    b"/v2/repository/index",
    b"/openapi.json",
)
STRANGE_TARGETS = (
    *(
        b"",
        b"*",
        b"//",
        b"/%",
        b"/%zz",
        b"/%00",
        b"/\xff",
        b"/v2/models/%2e%2e/infer",
        b"/v2/models/net/versions/x/infer",
        b"?",
        b"/v2?a=%ff",
    ),
    *(
        b"http://127.0.0.1/v2",
        b"http://[/v2",
        b"/" + b"a" * 5000,
        b"/v2/models/net/infer#x",
        b"/v2/models/" + b"n" * 300 + b"/infer",
    ),
)
METHODS = (b"GET", b"POST", b"PUT", b"HEAD", b"OPTIONS", b"CONNECT", b"TRACE", b"get", b"", b"P\x00ST", b"X" * 300, b"PRI")
VERSIONS = (b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.", b"HTTP/1.10", b"http/1.1", b"", b"HTTP/1.1 x")
ENDINGS = (b"\r\n", b"\n", b"\r", b"\r\n ", b"\r\r\n", b"", b"\n\r")
HEADERS = (
    *((b"Host", value) for value in (b"127.0.0.1", b"", b"[", b"a, b", b"\xff", b"x" * 3000)),
    *(
        (b"Content-Length", value)
        for value in (b"0", b"-1", b"+4", b"4 4", b"4,4", b"18446744073709551616", b"0x4", b"", b"\xd9\xa3", b"04")
    ),
    *(
        (b"Transfer-Encoding", value)
        for value in (b"chunked", b"Chunked", b"chunked, chunked", b"gzip, chunked", b"xchunked", b"", b"identity")
    ),
    *((b"Connection", value) for value in (b"close", b"keep-alive", b"upgrade", b"close, keep-alive", b",,,", b"Host")),
    *((b"Expect", value) for value in (b"100-continue", b"100-Continue", b"200-ok", b"")),
    *((b"Content-Encoding", value) for value in (b"gzip", b"deflate", b"br", b"gzip, gzip", b"identity")),
    *((b"Inference-Header-Content-Length", value) for value in (b"0", b"-1", b"99999999", b"x", b"1e3")),
    *((b"Origin", value) for value in (b"http://[", b"null", b"http://x", b"\x00", b"http://" + b"x" * 2000)),
    *((b"Authorization", value) for value in (b"Bearer", b"Bearer x", b"Basic \xff", b"")),
    *((b"traceparent", value) for value in (b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-00", b"ff", b"\xff" * 50)),
    *((name, b"y") for name in (b"", b"X ", b" X", b"X\x00", b"X\xff", b"X" * 3000, b"(x)", b"Upgrade")),
    *((b"X", value) for value in (b"\x00", b"\x01", b"a\rb", b"a\nb", b"\xff\xfe", b"y" * 70_000, b"\x1b[2J")),
)
SIZES = (
    b"",
    b"0",
    b"00000",
    b"-1",
    b"+1",
    b"0x1",
    b"g",
    b"ffffffffffffffff",
    b"10000000000000000",
    b"1 ",
    b" 1",
    b"1;",
    b"1;a=b",
    b"1\x00",
    b"7fffffff",
)


@dataclass
class Chunk:
    """A chunk as it is written: what is said of its size, and what comes."""

    size: bytes
    data: bytes
    end: bytes = b"\r\n"


@dataclass
class Request:
    """One request, taken apart."""

    method: bytes = b"POST"
    target: bytes = INFER
    version: bytes = b"HTTP/1.1"
    headers: list[tuple[bytes, bytes]] = field(default_factory=lambda: [(b"Host", b"127.0.0.1")])
    body: bytes = b""
    chunks: list[Chunk] | None = None
    trailers: list[tuple[bytes, bytes]] = field(default_factory=list)
    ending: bytes = b"\r\n"
    colon: bytes = b": "

    def written(self) -> bytes:
        """Its bytes."""
        lines = [b" ".join((self.method, self.target, self.version))]
        lines += [name + self.colon + value for name, value in self.headers]
        data = self.ending.join(lines) + self.ending + b"\r\n"
        if self.chunks is None:
            return data + self.body
        data += b"".join(chunk.size + b"\r\n" + chunk.data + chunk.end for chunk in self.chunks)
        return data + b"".join(name + b": " + value + b"\r\n" for name, value in self.trailers) + b"\r\n"


def right_request(dice: random.Random) -> Request:
    """A request that the server answers with 200, with its body in one piece or in chunks."""
    if dice.random() < 0.3:
        return Request(b"GET", dice.choice(TARGETS[1:]))
    text = json.dumps(binary_document()).encode()
    body = text + bytes(16)
    made = Request(headers=[(b"Host", b"127.0.0.1"), (b"Inference-Header-Content-Length", b"%d" % len(text))])
    if dice.random() < 0.2:
        body = gzip.compress(body, 1, mtime=0)
        made.headers.append((b"Content-Encoding", b"gzip"))
    if dice.random() < 0.5:
        made.body = body
        made.headers.append((b"Content-Length", b"%d" % len(body)))
        return made
    made.headers.append((b"Transfer-Encoding", b"chunked"))
    step = dice.choice((1, 7, 64, 1000))
    made.chunks = [Chunk(b"%x" % len(part), part) for part in (body[at : at + step] for at in range(0, len(body), step))]
    made.chunks.append(Chunk(b"0", b"", b""))
    return made


def _change_line(made: Request, dice: random.Random) -> None:
    match dice.randrange(3):
        case 0:
            made.method = dice.choice(METHODS)
        case 1:
            made.target = dice.choice(STRANGE_TARGETS)
        case _:
            made.version = dice.choice(VERSIONS)


def _add_header(made: Request, dice: random.Random) -> None:
    made.headers.insert(dice.randint(0, len(made.headers)), dice.choice(HEADERS))


def _remove_header(made: Request, dice: random.Random) -> None:
    del made.headers[dice.randrange(len(made.headers))]


def _repeat_header(made: Request, dice: random.Random) -> None:
    made.headers += [dice.choice(made.headers)] * dice.choice((1, 3, 200))


def _change_value(made: Request, dice: random.Random) -> None:
    at = dice.randrange(len(made.headers))
    name, value = made.headers[at]
    made.headers[at] = (damaged(dice, name + b"x"), value) if dice.random() < 0.3 else (name, damaged(dice, value + b"0"))


def _change_lines(made: Request, dice: random.Random) -> None:
    if dice.random() < 0.7:
        made.ending = dice.choice(ENDINGS)
    else:
        made.colon = dice.choice((b":", b" : ", b"", b":\t", b":\r\n "))


def _change_chunk(made: Request, dice: random.Random) -> None:
    chunks = made.chunks or []
    chunk = dice.choice(chunks)
    match dice.randrange(6):
        case 0:
            chunk.size = dice.choice(SIZES)
        case 1:
            chunk.size += b";" + dice.randbytes(dice.choice((1, 10, 5000)))
        case 2:
            chunk.data = chunk.data[:-1] if dice.random() < 0.5 else chunk.data + b"x"
        case 3:
            chunk.end = dice.choice((b"", b"\n", b"\r", b"\r\n\r\n", b"x\r\n"))
        case 4:
            chunks.insert(dice.randrange(len(chunks)), Chunk(b"0", b"", dice.choice((b"", b"\r\n"))))
        case _:
            chunks *= dice.choice((2, 10))


def _add_trailers(made: Request, dice: random.Random) -> None:
    made.chunks = made.chunks or [Chunk(b"0", b"", b"")]
    made.trailers += [dice.choice(HEADERS)] * dice.choice((1, 1, 5, 400))


def _change_body(made: Request, dice: random.Random) -> None:
    made.body, headers = wrong_body(dice)
    made.chunks = None
    made.headers = [(b"Host", b"127.0.0.1"), (b"Content-Length", b"%d" % len(made.body))]
    made.headers += [(name.encode(), value.encode()) for name, value in headers.items()]


def _both_lengths(made: Request, dice: random.Random) -> None:
    made.headers += [(b"Content-Length", b"%d" % dice.choice((0, 4, len(made.body)))), (b"Transfer-Encoding", b"chunked")]


CHANGES: tuple[Callable[[Request, random.Random], None], ...] = (
    _change_line,
    _add_header,
    _add_header,
    _remove_header,
    _repeat_header,
    _change_value,
    _change_lines,
    _change_chunk,
    _change_chunk,
    _add_trailers,
    _change_body,
    _both_lengths,
)


def http_stream(dice: random.Random) -> bytes:
    """What a client sends on one connection."""
    requests = [right_request(dice) for _ in range(dice.choice((1, 1, 1, 2, 4)))]
    for _ in range(dice.choice((0, 1, 1, 1, 2, 4))):
        made = dice.choice(requests)
        try:
            dice.choice(CHANGES)(made, dice)
        except (IndexError, ValueError):
            continue  # there is no such place
    if dice.random() < 0.1:
        requests += copy.deepcopy(requests)
    data = b"".join(made.written() for made in requests)
    how = dice.random()
    if how < 0.1:
        data = damaged(dice, data, 12)
    elif how < 0.2:
        data = data[: dice.randrange(len(data))]
    elif how < 0.22:
        data = dice.randbytes(dice.choice((1, 100, 5000)))
    return data
