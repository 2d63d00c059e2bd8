"""Requests with something wrong in them, made from right ones: bodies, what is sent on a connection, and messages of gRPC."""

from __future__ import annotations

import copy
import gzip
import json
import random
import zlib
from collections.abc import Callable
from typing import Any

from anynpu.session.protocol.messages import messages

VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 4, 2**31, 2**63, 2**70, 1.5, float("nan"), "", "x", "FP32", "BYTES", [], {}),
    *([[]], [1, [2]], ["1"], {"name": "x"}, [None], [[1, 2], [3]], "é\\u0000", [2**64], [1e400], -(2**63)),
    *(
        1e39,
        [1e39] * 4,
        [1e300, 1, 2, 3],
        [2**70] * 4,
        [10**400, 1, 2, 3],
        float("-inf"),
        "\ud800",
        "y" * 3000,
        [0] * 17,
        [2**31] * 16,
    ),
    *("UINT8", "INT64", "FP16", "FP64", "BF16", "BOOL", [1, 4], [4], [2, 2], [[0] * 4] * 70, {"binary_data_size": 16}),
]

LENGTH = "Inference-Header-Content-Length"
BLOCK = 16
"""Bytes behind the JSON."""


def document() -> dict[str, Any]:
    """A request for a model with the input ``x``, and an input too many in bytes."""
    binary = {"name": "b", "datatype": "INT16", "shape": [2], "parameters": {"binary_data_size": 4}}
    text = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [[1, 2, 3, 4]]}
    outputs = [{"name": "y", "parameters": {"binary_data": True}}]
    return {"id": "1", "parameters": {"priority": 1, "timeout": 10**7}, "inputs": [text, binary], "outputs": outputs}


def binary_document() -> dict[str, Any]:
    """A right request whose tensor is the block behind the JSON."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": BLOCK}}
    return {"id": "2", "inputs": [tensor], "outputs": [{"name": "y"}]}


def places(value: Any) -> list[tuple[Any, Any]]:
    """All containers of a document with their keys."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    return [(value, key) for key in keys] + [place for key in keys for place in places(value[key])]


def mutated(rng: random.Random) -> tuple[bytes, str | None]:
    """A body and its header length, with something wrong in most cases."""
    given = document() if rng.random() < 0.6 else binary_document()
    if len(given["inputs"]) == 2 and rng.random() < 0.5:
        del given["inputs"][1]
    for _ in range(rng.randint(0, 3)):
        container, key = rng.choice(places(given))
        if rng.random() < 0.25:
            try:
                del container[key]
            except (KeyError, IndexError):
                pass
        else:
            if isinstance(container, list) and key >= len(container):
                continue
            container[key] = copy.deepcopy(rng.choice(VALUES))
    text = json.dumps(given).encode()
    header: str | None = str(len(text))
    body = text + bytes(BLOCK if "b" not in text.decode() else 4)
    choice = rng.random()
    if choice < 0.3:
        body = damaged(rng, body, 8)
    elif choice < 0.4:
        body = body[: rng.randrange(len(body))]
    elif choice < 0.5:
        header = rng.choice(["-1", "0", "99999999999999", "x", "1.5", "", str(len(text) // 2), str(len(text) + 1), "0x10", "1e2"])
    elif choice < 0.6:
        header, body = None, text
    return body, header


def damaged(rng: random.Random, data: bytes, most: int = 4) -> bytes:
    """Some bytes are other ones, too many or missing."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, most)):
        how, at = rng.random(), rng.randrange(len(changed))
        if how < 0.6:
            changed[at] = rng.randrange(256)
        elif how < 0.8 and len(changed) > 1:
            del changed[at]
        else:
            changed.insert(at, rng.randrange(256))
    return bytes(changed)


def _nested(rng: random.Random) -> bytes:
    depth = rng.randint(1, 1100)
    opening, closing = rng.choice([("[", "]"), ('{"a": ', "}")])
    value = opening * depth + "1" + closing * (depth if rng.random() < 0.9 else depth - 1)
    tensor = '{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}'
    place = rng.choice(
        [
            f'{{"inputs": {value}}}',
            f'{{"inputs": [{value}]}}',
            f'{{"id": {value}, "inputs": [{tensor}]}}',
            f'{{"parameters": {value}, "inputs": [{tensor}]}}',
            f'{{"parameters": {{"priority": {value}}}, "inputs": [{tensor}]}}',
            f'{{"inputs": [{tensor}], "outputs": {value}}}',
            f'{{"inputs": [{tensor}], "outputs": [{{"name": {value}}}]}}',
            f'{{"inputs": [{{"name": "x", "datatype": "FP32", "shape": {value}, "data": [1]}}]}}',
            f'{{"inputs": [{{"name": "x", "datatype": "FP32", "shape": [1], "data": {value}}}]}}',
            f'{{"inputs": [{{"name": {value}, "datatype": "FP32", "shape": [1], "data": [1]}}]}}',
            f'{{"inputs": [{{"name": "x", "datatype": {value}, "shape": [1], "data": [1]}}]}}',
            f'{{"inputs": [{{"name": "x", "datatype": "FP32", "shape": [1], "parameters": {{"binary_data_size": {value}}}}}]}}',
            value,
        ]
    )
    return place.encode()


def _numbers(rng: random.Random) -> bytes:
    number = rng.choice(
        ["1" * rng.randint(300, 5000), "1e999", "-1e999", "NaN", "Infinity", "-Infinity", "1e39", "-0.0", "01", "1.", ".5", "0x1"]
    )
    number = rng.choice([number, f"{rng.randint(-(2**66), 2**66)}", f"{rng.random()}e{rng.randint(-400, 400)}"])
    datatype = rng.choice(["BOOL", "UINT8", "INT8", "UINT64", "INT64", "FP16", "FP32", "FP64", "BF16"])
    data = ", ".join(rng.choice([number, "1", "0.5"]) for _ in range(4))
    shape = rng.choice(["1, 4", "1, 4", number, f"1, 4, {number}"])
    return f'{{"inputs": [{{"name": "x", "datatype": "{datatype}", "shape": [{shape}], "data": [{data}]}}]}}'.encode()


def _keys(rng: random.Random) -> bytes:
    """Keys that come twice, with different values."""
    fields = ['"name": "x"', '"datatype": "FP32"', '"shape": [1, 4]', '"data": [1, 2, 3, 4]']
    fields += rng.choices(['"name": 3', '"datatype": "INT8"', '"shape": [4]', '"data": "AAAA"', '"data": null', '"": 1'], k=3)
    rng.shuffle(fields)
    return f'{{"inputs": [], "inputs": [{{{", ".join(fields)}}}], "id": 1, "id": "1"}}'.encode()


def _bad_text(rng: random.Random) -> bytes:
    text = json.dumps(document() if rng.random() < 0.5 else binary_document())
    kind = rng.choice(["utf-16", "utf-32", "utf-8-sig", "utf-7", "cp037", "broken"])
    if kind != "broken":
        return text.encode(kind)
    return text.encode().replace(
        b'"x"', rng.choice([b'"\xff"', b'"\xc3"', b'"\xed\xa0\x80"', b'"\x00"', b'"\n"', b'"\xf8\x88\x80\x80\x80"'])
    )


def _compressed(rng: random.Random) -> tuple[bytes, dict[str, str]]:
    encoding = rng.choice(["gzip", "deflate", "br", "GZIP", "gzip, gzip", "identity", "x"])
    plain = rng.choice([json.dumps(document()).encode(), bytes(rng.randint(1, 2**20)), b"[" * 2**16, b""])
    packed = gzip.compress(plain, 1, mtime=0) if rng.random() < 0.5 else zlib.compress(plain, 1)
    how = rng.random()
    if how < 0.3:
        packed = damaged(rng, packed)
    elif how < 0.5:
        packed = packed[: rng.randrange(len(packed))]
    elif how < 0.6:
        packed += packed
    return packed, {"Content-Encoding": encoding}


def wrong_body(rng: random.Random) -> tuple[bytes, dict[str, str]]:
    """A body and headers for an inference over HTTP."""
    kind = rng.random()
    if kind < 0.7:
        body, header = mutated(rng)
        return body, {} if header is None else {LENGTH: header}
    if kind < 0.94:
        make: Callable[[random.Random], bytes] = rng.choice([_nested, _numbers, _keys, _bad_text])
        body = make(rng)
        return body, {LENGTH: str(len(body))} if rng.random() < 0.2 else {}
    return _compressed(rng)


def wrong_connection(rng: random.Random, path: str) -> bytes:
    """What a client sends on one connection: requests of HTTP with something wrong around their bodies, or no HTTP at all."""
    body = json.dumps(binary_document()).encode() + bytes(BLOCK) if rng.random() < 0.5 else wrong_body(rng)[0]
    if rng.random() < 0.2:
        body += b" " * 70_000  # goes another way through the server
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode()
    right = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    size = len(body)
    wrong_lengths = [size + 1, size + 10**6, max(0, size - 3), -1, 10**18, 10**30, "x", "", f"{size}, {size}", f"+{size}", "٣"]
    chunk = rng.choice(
        [b"%x\r\n" % size, b"%x;a=b\r\n" % size, b"%x\r\n" % (size + 5), b"zz\r\n", b"-1\r\n", b"f" * 20 + b"\r\n", b"\r\n"]
    )
    made: list[Callable[[], bytes]] = [
        lambda: head + f"Content-Length: {rng.choice(wrong_lengths)}\r\n\r\n".encode() + body,
        lambda: head + b"Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (size, size + 1) + body,
        lambda: (
            head
            + b"Transfer-Encoding: chunked\r\n\r\n"
            + chunk
            + body
            + rng.choice([b"\r\n0\r\n\r\n", b"0\r\n\r\n", b"", b"\r\n"])
        ),
        lambda: head + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n" + chunk + body + b"\r\n0\r\n\r\n",
        lambda: head + b"Transfer-Encoding: %s\r\n\r\n" % rng.choice([b"gzip", b"chunked, chunked", b"x"]) + body,
        lambda: head + b"X: " + b"y" * rng.choice([100, 70_000]) + b"\r\n\r\n",
        lambda: head + b"".join(b"X-%d: y\r\n" % number for number in range(rng.choice([50, 9000]))) + b"\r\n",
        lambda: head + rng.choice([b"X\x00: y", b"X : y", b": y", b"X", b"X: \x00", b"X: \xff\xfe", b" X: y"]) + b"\r\n\r\n",
        lambda: head + b"Content-Length: %d\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n" % size + body,
        lambda: head + b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\n" % size + body,
        lambda: right.replace(b"HTTP/1.1", rng.choice([b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9", b"http/1.1", b""]), 1),
        lambda: right.replace(b"POST", rng.choice([b"GET", b"post", b"PO ST", b"\xff", b"", b"CONNECT", b"X" * 5000]), 1),
        lambda: right.replace(
            path.encode(),
            rng.choice([b"*", b"", b"//", b"/%ff%fe", b"/v2/models/%00/infer", b"/" + b"a" * 9000, b"/\xe9", b"/v2/../../etc"]),
            1,
        ),
        lambda: right.replace(
            b"Host: 127.0.0.1\r\n",
            rng.choice([b"", b"Host: \r\n", b"Host: [\r\n", b"Host: a\r\nHost: b\r\n", b"Host: \xff\r\n"]),
            1,
        ),
        lambda: right.replace(b"\r\n", b"\n"),
        lambda: damaged(rng, right, 12),
        lambda: right[: rng.randrange(len(right))],
        lambda: right * rng.randint(2, 6) + damaged(rng, right),
        lambda: rng.randbytes(rng.randint(1, 2000)),
        lambda: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.randbytes(50),
        lambda: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(500),
    ]
    return rng.choice(made)()


def inference_message() -> Any:
    """A right request of gRPC."""
    request = messages().ModelInferRequest(model_name="net", id="1")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    request.raw_input_contents.append(bytes(16))
    request.parameters["priority"].int64_param = 1
    request.outputs.add(name="y")
    return request


def wrong_message(rng: random.Random) -> bytes:
    """Bytes of an inference over gRPC with something wrong in most cases."""
    request = inference_message()
    (tensor,) = request.inputs
    contents = (
        "bool_contents",
        "int_contents",
        "int64_contents",
        "uint_contents",
        "uint64_contents",
        "fp32_contents",
        "fp64_contents",
    )
    changes: list[Callable[[], Any]] = [
        lambda: request.raw_input_contents.append(rng.randbytes(rng.randint(0, 20))),
        lambda: request.raw_input_contents.pop(),
        lambda: (
            request.raw_input_contents.__setitem__(0, bytes(rng.choice([0, 1, 15, 17, 64])))
            if request.raw_input_contents
            else None
        ),
        lambda: setattr(
            tensor, "datatype", rng.choice(["", "BYTES", "BOOL", "INT8", "UINT64", "FP16", "FP64", "BF16", "fp32", "x" * 500])
        ),
        lambda: tensor.shape.extend([rng.choice([-1, 0, 1, 2**31, 2**62, -(2**63)])]),
        lambda: tensor.shape.extend([1] * rng.choice([14, 15, 100])),
        lambda: tensor.ClearField("shape"),
        lambda: setattr(tensor, "name", rng.choice(["", "z", "\0", "x" * 4000])),
        lambda: request.inputs.add(name=rng.choice(["x", "z"]), datatype="FP32", shape=[1, 4]),
        lambda: getattr(tensor.contents, rng.choice(contents)).extend([rng.choice([0, 1])] * rng.choice([1, 4, 9])),
        lambda: tensor.contents.bytes_contents.append(b"text"),
        lambda: request.outputs.add(name=rng.choice(["y", "z", ""])),
        lambda: setattr(
            request.parameters[rng.choice(["priority", "timeout"])], "int64_param", rng.choice([-1, 2**62, -(2**63)])
        ),
        lambda: setattr(request.parameters[rng.choice(["priority", "timeout"])], "string_param", "soon"),
        lambda: setattr(request.parameters["priority"], "uint64_param", 2**64 - 1),
        lambda: setattr(request.parameters["priority"], "double_param", float("nan")),
        lambda: request.parameters["timeout"].ClearField("int64_param"),
        lambda: setattr(request, "model_name", rng.choice(["", "other", "net/", "\0"])),
        lambda: setattr(request, "model_version", rng.choice(["9", "-1", "one", "1" * 1000])),
    ]
    for change in rng.sample(changes, rng.randint(0, 3)):
        change()
    data: bytes = request.SerializeToString()
    how = rng.random()
    if how < 0.3:
        return damaged(rng, data or b"x")
    if how < 0.35:
        return data[: rng.randrange(len(data))]
    if how < 0.4:
        return rng.randbytes(rng.randint(0, 200))
    return data
