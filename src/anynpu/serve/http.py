"""The REST face: an ASGI application of Starlette's routes.

A request whose client has gone is cancelled by its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from .. import _optional
from ..errors import AccessDeniedError, AnynpuError, OverloadedError, RequestError
from .configuration import configuration
from .connection import BODY, CROWDED, GONE, ConnectionEnded, IncomingBody
from .faces import Model
from .failures import ClientGone, failure_of, message_of
from .model import InferRequest
from .openapi import describe
from .options import is_loopback
from .rest import HEADER_LENGTH, OutputForms, decompress, encode_answer, header_length, parse_infer, parse_json
from .service import NAME, Service
from .status import page

__all__ = ["application", "description"]

log = logging.getLogger("anynpu.serve")

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Handler = Callable[["Exchange"], Awaitable[None]]

LARGE_JSON = 2**17
"""Bytes of JSON that are read or written by another thread than that of the event loop."""

OPEN_PATHS = ("/v2/health/live", "/v2/health/ready", "/", "/status")
"""Paths that need no key: they tell nothing but that the server is there."""


class Exchange:
    """One request and its answer."""

    def __init__(self, service: Service, scope: Scope, receive: Receive, send: Send) -> None:
        self.service = service
        self.parameters: dict[str, str] = scope.get("path_params", {})
        self.headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        self.crowded = CROWDED in scope
        self._incoming: IncomingBody | None = scope.get(BODY)
        self._when_gone: set[Callable[[], None]] = scope.get(GONE, set())
        self._receive = receive
        self._send = send
        self._held = 0

    async def body(self) -> bytes | memoryview:
        """All of the body, within the limits of the server."""
        body = await self._small_body() if self._incoming is None else await self._large_body(self._incoming)
        encoding = self.headers.get("content-encoding", "").strip().lower()
        if encoding not in ("", "identity"):
            body = await asyncio.to_thread(decompress, body, encoding, self.service.options.max_request_bytes)
            self._hold(max(0, len(body) - self._held))
        return body

    async def _large_body(self, incoming: IncomingBody) -> memoryview:
        """It goes straight to memory in which the first tensor behind the JSON begins a cache line."""
        self._hold(incoming.length)
        header = self.headers.get(HEADER_LENGTH, "")
        try:
            return await incoming.read(int(header) if header.isascii() and header.isdigit() and len(header) < 12 else 0)
        except ConnectionEnded:
            raise ClientGone from None

    async def _small_body(self) -> bytes:
        length = self.headers.get("content-length", "0")
        self._hold(int(length) if length.isascii() and length.isdigit() else 0)
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > self._held:
                self.service.limits.check_size(size)
                self._hold(size - self._held)
            chunks.append(chunk)
            if not message.get("more_body", False):
                break
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _hold(self, nbytes: int) -> None:
        self.service.limits.take(nbytes)
        self._held += nbytes

    def end(self) -> None:
        """Give back what the request held."""
        self.service.limits.give(self._held)
        self._held = 0

    @contextlib.contextmanager
    def cancelled_if_gone(self) -> Iterator[None]:
        """While this lasts, the calling task is cancelled when the client has gone."""
        task = asyncio.current_task()
        assert task is not None
        gone = False

        def cancel() -> None:
            nonlocal gone
            gone = True
            task.cancel()

        self._when_gone.add(cancel)
        try:
            yield
        except asyncio.CancelledError:
            if not gone:
                raise
            raise ClientGone from None
        finally:
            self._when_gone.discard(cancel)

    async def answer(
        self, status: int, parts: list[bytes], kind: bytes = b"application/json", *headers: tuple[bytes, bytes]
    ) -> None:
        """Send the answer."""
        length = str(sum(map(len, parts))).encode()
        head = [(b"content-type", kind), (b"content-length", length), *headers]
        await self._send({"type": "http.response.start", "status": status, "headers": head})
        for index, part in enumerate(parts, 1):
            await self._send({"type": "http.response.body", "body": part, "more_body": index < len(parts)})

    async def answer_json(self, document: Any, status: int = 200) -> None:
        """Send an answer of JSON."""
        await self.answer(status, [json.dumps(document).encode()])

    async def fail(self, error: BaseException) -> None:
        """Send what went wrong."""
        failure = failure_of(error)
        if failure.status == 500:
            log.error("a request failed: %s", error, exc_info=error)
        headers = []
        if isinstance(error, OverloadedError):
            headers = [
                (b"retry-after", str(math.ceil(error.retry_after)).encode()),
                (b"retry-after-ms", str(math.ceil(error.retry_after * 1000)).encode()),
            ]
        if self.crowded:
            headers.append((b"connection", b"close"))
        if failure.status == 401:
            headers = [(b"www-authenticate", b"Bearer")]
        body = json.dumps({"error": message_of(error)}).encode()
        await self.answer(failure.status, [body], b"application/json", *headers)


class Endpoint:
    """The handlers of a path as an ASGI application, with errors as answers."""

    def __init__(self, service: Service, handlers: Mapping[str, Handler]) -> None:
        self._service = service
        self._handlers = handlers
        self._only_local = is_loopback(service.options.host) and not service.keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(self._service, scope, receive, send)
        method = scope["method"]
        try:
            if exchange.crowded:
                raise OverloadedError("the server has too many connections", hint="come again in 1 s", retry_after=1.0)
            self._check_access(exchange, scope["path"])
            await self._handlers.get("GET" if method == "HEAD" else method, self._wrong_method)(exchange)
        except ClientGone:
            pass
        except AnynpuError as error:
            await exchange.fail(error)
        except Exception as error:  # the client must get an answer whatever happened
            await exchange.fail(error)
        finally:
            exchange.end()

    async def _wrong_method(self, exchange: Exchange) -> None:
        if not self._handlers:
            await exchange.answer_json({"error": "there is no such path; the protocol's begin with /v2"}, 404)
            return
        allowed = ", ".join(self._handlers)
        body = json.dumps({"error": f"this path takes {allowed} and no other method"}).encode()
        await exchange.answer(405, [body], b"application/json", (b"allow", allowed.encode()))

    def _check_access(self, exchange: Exchange, path: str) -> None:
        headers = exchange.headers
        host = headers.get("host", "")
        if self._only_local and not _is_local(host):
            # a page of the web that made its name point at this machine
            raise AccessDeniedError(f"the server does not go by the name {host!r}", hint="address it as 127.0.0.1 or localhost")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            raise AccessDeniedError(
                "pages of other servers may not use this one", hint="call it from a program, or from its own page"
            )
        if path not in OPEN_PATHS:
            self._service.keys.check(headers.get("authorization"), headers.get("x-api-key"))


@functools.lru_cache(maxsize=256)
def _is_local(host: str) -> bool:
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


async def _live(exchange: Exchange) -> None:
    await exchange.answer_json({"live": True})


async def _ready(exchange: Exchange) -> None:
    ready = exchange.service.is_ready()
    await exchange.answer_json({"ready": ready}, 200 if ready else 503)


async def _server(exchange: Exchange) -> None:
    await exchange.answer_json({"name": NAME, "version": exchange.service.version(), "extensions": exchange.service.extensions()})


def _model(exchange: Exchange) -> Model:
    return exchange.service.model(exchange.parameters["model"], exchange.parameters.get("version", ""))


async def _model_ready(exchange: Exchange) -> None:
    model = _model(exchange)
    await exchange.answer_json({"name": model.name, "ready": True})


async def _metadata(exchange: Exchange) -> None:
    model = _model(exchange)

    def described(tensors: Any) -> list[dict[str, Any]]:
        return [{"name": one.name, "datatype": one.datatype, "shape": list(one.shape)} for one in tensors]

    await exchange.answer_json(
        {
            "name": model.name,
            "versions": exchange.service.repository.versions(model.name),
            "platform": model.platform,
            "inputs": described(model.inputs),
            "outputs": described(model.outputs),
        }
    )


async def _configuration(exchange: Exchange) -> None:
    await exchange.answer_json(configuration(_model(exchange), exchange.service.options))


async def _statistics(exchange: Exchange) -> None:
    parameters = exchange.parameters
    found = await exchange.service.statistics(parameters.get("model", ""), parameters.get("version", ""))
    await exchange.answer_json({"model_stats": found})


async def _infer(exchange: Exchange) -> None:
    forms = OutputForms({}, False)

    async def read(model: Model) -> InferRequest:
        nonlocal forms
        body = await exchange.body()
        header = exchange.headers.get(HEADER_LENGTH)
        exchange.service.limits.check_json(len(body) if header is None else header_length(header, len(body)))
        given = exchange.parameters["model"], exchange.parameters.get("version", ""), body, header
        if header is None and len(body) > LARGE_JSON:
            request, forms = await asyncio.to_thread(parse_infer, *given)
        else:
            request, forms = parse_infer(*given)
        return request

    parameters = exchange.parameters
    with exchange.cancelled_if_gone():
        answer = await exchange.service.infer("http", parameters["model"], parameters.get("version", ""), read, exchange.headers)
    large = sum(array.size for name, array in answer.outputs.items() if not forms.binary(name)) > LARGE_JSON // 8
    parts, length = await asyncio.to_thread(encode_answer, answer, forms) if large else encode_answer(answer, forms)
    if length is None:
        await exchange.answer(200, parts)
    else:
        header = (HEADER_LENGTH.encode(), str(length).encode())
        await exchange.answer(200, parts, b"application/octet-stream", header)


async def _index(exchange: Exchange) -> None:
    only_ready = parse_json(await exchange.body()).get("ready", False)
    if not isinstance(only_ready, bool):
        raise RequestError(f"ready is {only_ready!r:.60}", hint="it takes true or false")
    await exchange.service.repository.refresh()
    entries = exchange.service.repository.index(only_ready)
    await exchange.answer_json(
        [{"name": one.name, "version": one.version, "state": one.state, "reason": one.reason} for one in entries]
    )


async def _load(exchange: Exchange) -> None:
    parameters = parse_json(await exchange.body()).get("parameters", {})
    if not isinstance(parameters, dict):
        raise RequestError("parameters is no object", hint='send "parameters": {...}, or nothing')
    await exchange.service.load(exchange.parameters["model"], parameters)
    await exchange.answer_json({})


async def _unload(exchange: Exchange) -> None:
    parse_json(await exchange.body())
    await exchange.service.unload(exchange.parameters["model"])
    await exchange.answer_json({})


async def _region_status(exchange: Exchange) -> None:
    found = exchange.service.regions.status(exchange.parameters.get("region", ""))
    await exchange.answer_json(
        [{"name": one.name, "key": one.key, "offset": one.offset, "byte_size": one.nbytes} for one in found]
    )


async def _register(exchange: Exchange) -> None:
    given = parse_json(await exchange.body())
    regions = exchange.service.regions
    regions.register(exchange.parameters["region"], given.get("key"), given.get("offset", 0), given.get("byte_size"))
    await exchange.answer_json({})


async def _unregister(exchange: Exchange) -> None:
    parse_json(await exchange.body())
    exchange.service.regions.unregister(exchange.parameters.get("region", ""))
    await exchange.answer_json({})


async def _metrics(exchange: Exchange) -> None:
    await exchange.service.repository.refresh()
    await exchange.answer(200, [exchange.service.metrics.text()], b"text/plain; version=0.0.4; charset=utf-8")


async def _status_page(exchange: Exchange) -> None:
    policy = b"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
    await exchange.answer(200, [page()], b"text/html; charset=utf-8", (b"content-security-policy", policy))


async def _status_data(exchange: Exchange) -> None:
    await exchange.service.repository.refresh()
    await exchange.answer_json(exchange.service.metrics.status())


async def _description(exchange: Exchange) -> None:
    await exchange.answer_json(description(keyed=bool(exchange.service.keys)))


_ROUTES: tuple[tuple[str, str, Handler], ...] = (  # looked through in this order, so what comes most often is first
    ("POST", "/v2/models/{model}/infer", _infer),
    ("POST", "/v2/models/{model}/versions/{version}/infer", _infer),
    ("GET", "/v2/health/live", _live),
    ("GET", "/v2/health/ready", _ready),
    ("GET", "/v2", _server),
    ("GET", "/v2/models/stats", _statistics),
    ("GET", "/v2/models/{model}", _metadata),
    ("GET", "/v2/models/{model}/versions/{version}", _metadata),
    ("GET", "/v2/models/{model}/ready", _model_ready),
    ("GET", "/v2/models/{model}/versions/{version}/ready", _model_ready),
    ("GET", "/v2/models/{model}/stats", _statistics),
    ("GET", "/v2/models/{model}/versions/{version}/stats", _statistics),
    ("GET", "/v2/models/{model}/config", _configuration),
    ("GET", "/v2/models/{model}/versions/{version}/config", _configuration),
    ("POST", "/v2/repository/index", _index),
    ("POST", "/v2/repository/models/{model}/load", _load),
    ("POST", "/v2/repository/models/{model}/unload", _unload),
    ("GET", "/v2/systemsharedmemory/status", _region_status),
    ("GET", "/v2/systemsharedmemory/region/{region}/status", _region_status),
    ("POST", "/v2/systemsharedmemory/region/{region}/register", _register),
    ("POST", "/v2/systemsharedmemory/region/{region}/unregister", _unregister),
    ("POST", "/v2/systemsharedmemory/unregister", _unregister),
    ("GET", "/metrics", _metrics),
    ("GET", "/", _status_page),
    ("GET", "/status", _status_page),
    ("GET", "/status/data", _status_data),
    ("GET", "/openapi.json", _description),
)


def description(*, keyed: bool = False) -> dict[str, Any]:
    """The OpenAPI document of all paths.

    :param keyed: whether clients need a key
    """
    return describe([(method, path) for method, path, _ in _ROUTES], Service.version(), OPEN_PATHS, keyed=keyed)


def application(service: Service) -> Any:
    """The ASGI application."""
    routing = _optional.starlette("routing")
    handlers: dict[str, dict[str, Handler]] = {}
    for method, path, handler in _ROUTES:
        handlers.setdefault(path, {})[method] = handler
    routes = [routing.Route(path, endpoint=Endpoint(service, methods)) for path, methods in handlers.items()]
    return routing.Router(routes, redirect_slashes=False, default=Endpoint(service, {}))
