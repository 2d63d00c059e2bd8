"""Byte streams for a server of gRPC: HTTP/2 frames, HPACK blocks and messages, written here, with something wrong in most of them."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from serve.malformed import damaged, inference_message, wrong_message

from anynpu.session.protocol.messages import METHODS, SERVICE

__all__ = ["PING_MARK", "Frame", "grpc_stream", "header_block", "right_call"]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED, WITH_PRIORITY = 1, 4, 8, 32
PING_MARK = b"anynpu!!"
"""What the last ping of a stream holds: once it is answered, all frames before it were taken."""

Headers = list[tuple[bytes, bytes]]


@dataclass
class Frame:
    """One frame; *length* is what its head states, if that is not the truth."""

    kind: int
    flags: int
    stream: int
    payload: bytes
    length: int | None = None

    def written(self) -> bytes:
        """Its bytes."""
        size = len(self.payload) if self.length is None else self.length
        return struct.pack(">I", size & 0xFFFFFF)[1:] + struct.pack(">BBI", self.kind, self.flags, self.stream) + self.payload


@dataclass
class Call:
    """A call before it becomes frames."""

    headers: Headers
    messages: list[bytes]
    block: Callable[[Headers], bytes] = field(default=lambda headers: header_block(headers))


def integer(value: int, bits: int, first: int) -> bytes:
    """A number of HPACK with a prefix of *bits* bits in a byte that begins with *first*."""
    limit = (1 << bits) - 1
    if value < limit:
        return bytes((first | value,))
    made = bytearray((first | limit,))
    value -= limit
    while value >= 128:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)


def header_block(headers: Headers, first: int = 0) -> bytes:
    """Literals with names, which nothing has to remember (0), may remember (64) or must not (16)."""
    made = b""
    for name, value in headers:
        made += bytes((first,)) + integer(len(name), 7, 0) + name + integer(len(value), 7, 0) + value
    return made


def prefixed(message: bytes, packed: int = 0) -> bytes:
    """A message of gRPC."""
    return struct.pack(">BI", packed, len(message)) + message


def right_call(method: str = "ModelInfer", message: bytes | None = None) -> Call:
    """A call that is answered."""
    path = f"/{SERVICE}/{method}".encode()
    headers = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"127.0.0.1")]
    headers += [(b"content-type", b"application/grpc"), (b"te", b"trailers")]
    if message is None:
        message = inference_message().SerializeToString() if method in ("ModelInfer", "ModelStreamInfer") else b""
    return Call(headers, [prefixed(message)])


STRANGE_HEADERS: Headers = [
    *(
        (b":path", value)
        for value in (b"", b"/", b"x", b"/\xff\xfe", b"/a/b/c", b"/inference.GRPCInferenceService/", b"/" + b"a" * 3000)
    ),
    *((b":method", value) for value in (b"GET", b"", b"PUT", b"post")),
    *(
        (name, b"x")
        for name in (b":status", b":other", b"Upper", b"", b"\x00", b"connection", b"transfer-encoding", b"a" * 3000, b"x-bin")
    ),
    *((b"grpc-timeout", value) for value in (b"1S", b"0n", b"99999999H", b"-1S", b"1", b"S", b"1X", b"\xff", b"1" * 300 + b"S")),
    *((b"grpc-encoding", value) for value in (b"gzip", b"identity", b"br", b"", b"deflate")),
    *((b"content-type", value) for value in (b"application/grpc+proto", b"text/html", b"application/json", b"")),
    *((b"x-bin", value) for value in (b"AAAA", b"====", b"\x00", b"A" * 2000)),
    *((b"authorization", value) for value in (b"Bearer x", b"", b"\x80")),
    *((b"te", value) for value in (b"", b"gzip")),
    (b"content-length", b"3"),
    (b"x", b"y" * 20_000),
]
STRANGE_BLOCKS = (
    *(b"\x80", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\xbe", b"\xff\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00"),
    *(
        b"\x3f\xff\xff\xff\xff\x0f",
        b"\x20\x3f\xe1\x1f\x20",
        b"\x00\xff\xff\xff\xff\xff\x0f",
        b"\x00\x81\xff\x81\xff",
        b"\x40\x01x\x7f",
    ),
    *(
        b"\x00\x84\xff\xff\xff\xff\x01x",
        b"\x10\x00\x00",
        b"\x82\x86\x84\xbf",
        b"\x0f\xff\xff\xff\xff\xff\xff",
        b"\x00\x7f\x80\x80\x80\x80\x10",
    ),
)


def _change_headers(call: Call, dice: random.Random) -> None:
    match dice.randrange(5):
        case 0:
            call.headers.insert(dice.randint(0, len(call.headers)), dice.choice(STRANGE_HEADERS))
        case 1:
            name, value = dice.choice(STRANGE_HEADERS)
            call.headers = [(key, value if key == name else old) for key, old in call.headers] + [(name, value)] * (
                name[:1] != b":"
            )
        case 2:
            del call.headers[dice.randrange(len(call.headers))]
        case 3:
            call.headers += [dice.choice(call.headers)] * dice.choice((1, 2, 100))
        case _:
            dice.shuffle(call.headers)


def _change_block(call: Call, dice: random.Random) -> None:
    strange, kind, how = dice.choice(STRANGE_BLOCKS), dice.choice((16, 64, 0)), dice.randrange(5)
    seed = dice.getrandbits(32)

    def made(headers: Headers) -> bytes:
        block = header_block(headers, kind)
        if how == 0:
            return block + strange
        if how == 1:
            return strange + block
        if how == 2:
            return damaged(random.Random(seed), block, 6)
        if how == 3:
            return block[: seed % len(block)]
        return block + header_block([(b"x%d" % number, b"y" * 40) for number in range(100)], 64)

    call.block = made


def _change_message(call: Call, dice: random.Random) -> None:
    message = wrong_message(dice)
    match dice.randrange(6):
        case 0:
            call.messages = [struct.pack(">BI", 0, dice.choice((0, 1, len(message) + 1, 2**31, 2**32 - 1))) + message]
        case 1:
            call.messages = [prefixed(message, dice.choice((1, 2, 255)))]
        case 2:
            call.messages = [prefixed(message)] * dice.choice((2, 5))
        case 3:
            call.messages = []
        case 4:
            call.messages = [damaged(dice, prefixed(message), 8)]
        case _:
            call.messages = [prefixed(message)]


def frames_of(call: Call, stream: int, dice: random.Random) -> list[Frame]:
    """The frames of a call; its block and its messages may come in pieces."""
    block = call.block(call.headers)
    pieces = [block]
    if dice.random() < 0.2 and len(block) > 2:
        cut = dice.randrange(1, len(block))
        pieces = [block[:cut], block[cut:]]
    made = [Frame(CONTINUATION if number else HEADERS, 0, stream, piece) for number, piece in enumerate(pieces)]
    made[-1].flags |= END_HEADERS
    data = b"".join(call.messages)
    step = dice.choice((len(data) or 1, len(data) or 1, 5, 1))
    parts = [data[at : at + step] for at in range(0, len(data), step)] or [b""]
    made += [Frame(DATA, 0, stream, part) for part in parts[:200]]
    made[-1].flags |= END_STREAM
    return made


def _strange_frame(dice: random.Random, stream: int) -> Frame:
    number = dice.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, dice.getrandbits(32)))
    word = struct.pack(">I", number)
    settings = b"".join(
        struct.pack(">HI", dice.randint(0, 9), dice.choice((0, 1, 16384, 2**24, 2**31, 2**32 - 1))) for _ in range(3)
    )
    return dice.choice(
        (
            Frame(RST_STREAM, 0, stream, word),
            Frame(WINDOW_UPDATE, 0, dice.choice((0, stream)), word),
            Frame(SETTINGS, dice.choice((0, 0, 1)), dice.choice((0, 0, stream)), settings[: dice.choice((6, 12, 18, 5))]),
            Frame(PING, dice.choice((0, 1)), dice.choice((0, stream)), bytes(dice.choice((8, 8, 7, 0)))),
            Frame(PRIORITY, 0, stream, word + b"\0"),
            Frame(GOAWAY, 0, 0, word + word + b"x" * dice.choice((0, 100))),
            Frame(PUSH_PROMISE, END_HEADERS, stream, word + header_block([(b"x", b"y")])),
            Frame(CONTINUATION, dice.choice((0, END_HEADERS)), stream, header_block([(b"x", b"y")])),
            Frame(dice.randint(10, 255), dice.getrandbits(8), stream, dice.randbytes(dice.choice((0, 9, 300)))),
            Frame(DATA, END_STREAM, stream, b""),
        )
    )


def _change_frames(frames: list[Frame], dice: random.Random) -> None:
    at = dice.randrange(len(frames))
    frame = frames[at]
    match dice.randrange(10):
        case 0:
            frames[at:at] = [_strange_frame(dice, frame.stream)] * dice.choice((1, 1, 1, 50))
        case 1:
            del frames[at]
        case 2:
            frames.insert(dice.randrange(len(frames)), replace(frame))
        case 3:
            frame.kind = dice.choice((*range(10), 200))
        case 4:
            frame.flags ^= 1 << dice.randrange(8)
        case 5:
            frame.stream = dice.choice((0, 1, 2, 3, 2**31 - 1, 2**31 + 1, frame.stream + 2))
        case 6:
            frame.length = dice.choice((0, len(frame.payload) + 1, max(0, len(frame.payload) - 1), 16385, 2**24 - 1))
        case 7:
            frame.flags |= PADDED
            frame.payload = bytes((dice.choice((0, 1, 5, 255)),)) + frame.payload + bytes(dice.choice((0, 5)))
        case 8:
            frame.payload = damaged(dice, frame.payload + b"\0", 4)
        case _:
            other = dice.randrange(len(frames))
            frames[at], frames[other] = frames[other], frames[at]


def grpc_stream(dice: random.Random) -> bytes:
    """What a client sends on one connection; the last frame is a ping with :data:`PING_MARK`."""
    frames = [Frame(SETTINGS, 0, 0, b"")]
    for number in range(dice.choice((1, 1, 2, 4))):
        call = right_call("ModelInfer" if dice.random() < 0.6 else dice.choice(list(METHODS)))
        for _ in range(dice.choice((0, 1, 1, 2))):
            try:
                dice.choice((_change_headers, _change_block, _change_message, _change_message))(call, dice)
            except (IndexError, ValueError):
                continue  # there is no such place
        frames += frames_of(call, 2 * number + 1, dice)
    for _ in range(dice.choice((0, 0, 1, 1, 2, 5))):
        if frames:
            _change_frames(frames, dice)
    frames.append(Frame(PING, 0, 0, PING_MARK))
    data = PREFACE + b"".join(frame.written() for frame in frames)
    how = dice.random()
    if how < 0.06:
        data = damaged(dice, data, 6)
    elif how < 0.1:
        data = data[: dice.randrange(len(data))]
    return data
