"""The REST face: the routes of the protocol, and what each of them does with a request.

A request whose client has gone is cancelled by its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import math
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from ..analysis.pages import page
from ..errors import AccessDeniedError, OverloadedError, RequestError
from .configuration import configuration
from .connection import Request
from .failures import ClientGone, failure_of, message_of, retry_after_of
from .interfaces import Model
from .model import InferRequest
from .openapi import describe
from .options import is_loopback
from .rest_bodies import HEADER_LENGTH, OutputForms, encode_answer, header_length, parse_infer, parse_json
from .service import NAME, Service
from .unpack import unpack

__all__ = ["Application", "Exchange", "Handler", "Mount", "description", "is_local"]

log = logging.getLogger("anynpu.serve")

Handler = Callable[["Exchange"], Awaitable[None]]

OPEN_PATHS = ("/v2/health/live", "/v2/health/ready", "/", "/status", "/status.js", "/status.css")
"""Paths that need no key: they tell nothing but that the server is there."""


class Exchange:
    """One request and its answer."""

    def __init__(self, service: Service, request: Request, parameters: dict[str, str]) -> None:
        self.service = service
        self.parameters = parameters
        self.headers = request.headers
        self._request = request
        self._holding = service.limits.open(request.client, request.drop)

    async def body(self, model: Model | None = None) -> bytes | memoryview:
        """All of the body, within the limits of the server, and those of the model that it is for."""
        incoming = self._request.body
        if incoming is None:
            return b""
        limits, options = self.service.limits, self.service.options
        encoding = self.headers.get("content-encoding", "").strip().lower()
        plain = encoding in ("", "identity")
        header = self.headers.get(HEADER_LENGTH, "")
        text = int(header) if header.isascii() and header.isdigit() and len(header) < 12 else None
        if model is None or text is None:
            most = min(options.max_json_bytes, options.max_request_bytes)
        else:
            most = limits.max_body(model, min(text, options.max_json_bytes))
        declared = int(self.headers.get("content-length", "0"))
        limits.check_size(declared)
        if plain and text is None:
            limits.check_json(declared)
        elif plain:
            limits.check_size(declared, most)
        # what is packed may be a little longer than what it holds
        body = await incoming.read(self._holding, most if plain else most + most // 100 + 1024, text or 0)
        return body if plain else await unpack(body, encoding, self._holding, most)

    async def json(self) -> dict[str, Any]:
        """The JSON object in the body."""
        body = await self.body()
        return await self.service.convert(len(body), parse_json, body)

    async def raw_body(self, most: int) -> bytes | memoryview:
        """All of a body of at most *most* bytes that is no request of the protocol, such as a file."""
        incoming = self._request.body
        if incoming is None:
            return b""
        if self.headers.get("content-encoding", "").strip().lower() not in ("", "identity"):
            raise RequestError("a file comes as it is", hint="leave content-encoding out")
        self.service.limits.check_size(int(self.headers.get("content-length", "0")), most)
        return await incoming.read(self._holding, most)

    def end(self) -> None:
        """Give back what the request held."""
        self._holding.close()

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

        self._request.when_gone.add(cancel)
        try:
            yield
        except asyncio.CancelledError:
            if not gone:
                raise
            raise ClientGone from None
        finally:
            self._request.when_gone.discard(cancel)

    async def answer(
        self, status: int, parts: list[bytes], kind: bytes = b"application/json", *headers: tuple[bytes, bytes]
    ) -> None:
        """Send the answer. It counts as bytes in flight until the client has taken it."""
        self._holding.add(sum(map(len, parts)))
        await self._request.answer(status, parts, kind, list(headers))

    async def answer_json(self, document: Any, status: int = 200) -> None:
        """Send an answer of JSON."""
        await self.answer(status, [json.dumps(document).encode()])

    async def fail(self, error: BaseException) -> None:
        """Send what went wrong."""
        failure = failure_of(error)
        if failure.status == 500:
            log.error("a request failed: %s", error, exc_info=error)
        headers = []
        seconds = retry_after_of(error)
        if seconds is not None:
            headers = [
                (b"retry-after", str(math.ceil(seconds)).encode()),
                (b"retry-after-ms", str(math.ceil(seconds * 1000)).encode()),
            ]
        if failure.status == 401:
            headers = [(b"www-authenticate", b"Bearer")]
        body = json.dumps({"error": message_of(error)}).encode()
        await self.answer(failure.status, [body], b"application/json", *headers)


class Mount(Protocol):
    """What a server offers besides its models: pages and calls of another room.

    :ivar title: what the log calls it
    :ivar path: of its first page
    """

    @property
    def title(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def open_paths(self) -> Sequence[str]:
        """Paths that need no key."""

    def routes(self) -> Sequence[tuple[str, str, Handler]]:
        """Method, path and what answers."""

    async def close(self) -> None:
        """The server ends."""


class Application:
    """Answers requests, with errors as answers.

    :param mounts: what there is besides the protocol
    """

    def __init__(self, service: Service, mounts: Sequence[Mount] = ()) -> None:
        self._service = service
        self._only_local = is_loopback(service.options.host) and not service.keys
        self._open_paths = {*OPEN_PATHS, *(path for mount in mounts for path in mount.open_paths)}
        handlers: dict[str, dict[str, Handler]] = {}
        for method, path, handler in (*_ROUTES, *(route for mount in mounts for route in mount.routes())):
            handlers.setdefault(path, {})[method] = handler
        self._fixed = {path: methods for path, methods in handlers.items() if "{" not in path}
        self._patterns = [
            (re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", path)), methods) for path, methods in handlers.items() if "{" in path
        ]

    async def handle(self, request: Request) -> None:
        """Answer a request."""
        methods, parameters = self._find(request.path)
        exchange = Exchange(self._service, request, parameters)
        try:
            if request.crowded:
                raise OverloadedError("the server has too many connections", hint="come again in 1 s", retry_after=1.0)
            self._check_access(request)
            handler = methods.get("GET" if request.method == "HEAD" else request.method)
            if handler is None:
                await _wrong_method(exchange, methods)
            else:
                await handler(exchange)
        except ClientGone:
            pass
        except Exception as error:  # the client must get an answer whatever happened
            await exchange.fail(error)
            # a traceback has frames, and these have the body: nothing may live on because somebody still has the error
            error.__traceback__ = None
        finally:
            exchange.end()

    def _find(self, path: str) -> tuple[dict[str, Handler], dict[str, str]]:
        """The handlers of a raw path, and its parameters, decoded: an encoded slash is part of a name, and fixed parts are plain text."""
        if path in self._fixed:
            return self._fixed[path], {}
        for pattern, methods in self._patterns:
            if found := pattern.fullmatch(path):
                return methods, {key: unquote(value, errors="replace") for key, value in found.groupdict().items()}
        return {}, {}

    def _check_access(self, request: Request) -> None:
        headers = request.headers
        host = headers.get("host", "")
        if self._only_local and not is_local(host):
            # a page of the web that made its name point at this machine
            raise AccessDeniedError(f"the server does not go by the name {host!r}", hint="address it as 127.0.0.1 or localhost")
        origin = headers.get("origin")
        if origin is not None and _place_of(origin) != host:
            raise AccessDeniedError(
                "pages of other servers may not use this one", hint="call it from a program, or from its own page"
            )
        if request.path not in self._open_paths:
            self._service.check_key(
                headers.get("authorization"), headers.get("x-api-key"), _CONTROL.fullmatch(request.path) is not None
            )


_CONTROL = re.compile(r"/v2/repository/models/[^/]+/(un)?load")
"""Paths that change which models there are."""


async def _wrong_method(exchange: Exchange, methods: dict[str, Handler]) -> None:
    if not methods:
        await exchange.answer_json({"error": "there is no such path; the protocol's begin with /v2"}, 404)
        return
    allowed = ", ".join(methods)
    body = json.dumps({"error": f"this path takes {allowed} and no other method"}).encode()
    await exchange.answer(405, [body], b"application/json", (b"allow", allowed.encode()))


def _place_of(origin: str) -> str | None:
    """Host and port of an origin; None for what is none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{0,5})?")
"""A host and a port, without a user."""


@functools.lru_cache(maxsize=256)
def is_local(host: str) -> bool:
    """Whether a Host header names this machine by a loopback address."""
    found = _HOST.fullmatch(host)
    return found is not None and is_loopback(found[1].lower())


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
        body = await exchange.body(model)
        header = exchange.headers.get(HEADER_LENGTH)
        length = len(body) if header is None else header_length(header, len(body))
        exchange.service.limits.check_json(length)
        given = exchange.parameters["model"], exchange.parameters.get("version", ""), body, header
        request, forms = await exchange.service.convert(length, parse_infer, *given)
        return request

    parameters = exchange.parameters
    with exchange.cancelled_if_gone():
        answer = await exchange.service.infer("http", parameters["model"], parameters.get("version", ""), read, exchange.headers)
    written = 8 * sum(array.size for name, array in answer.outputs.items() if not forms.binary(name))
    parts, length = await exchange.service.convert(written, encode_answer, answer, forms)
    if length is None:
        await exchange.answer(200, parts)
    else:
        header = (HEADER_LENGTH.encode(), str(length).encode())
        await exchange.answer(200, parts, b"application/octet-stream", header)


async def _index(exchange: Exchange) -> None:
    only_ready = (await exchange.json()).get("ready", False)
    if not isinstance(only_ready, bool):
        raise RequestError(f"ready is {only_ready!r:.60}", hint="it takes true or false")
    await exchange.service.repository.refresh()
    entries = exchange.service.repository.index(only_ready)
    await exchange.answer_json(
        [{"name": one.name, "version": one.version, "state": one.state, "reason": one.reason} for one in entries]
    )


async def _load(exchange: Exchange) -> None:
    parameters = (await exchange.json()).get("parameters", {})
    if not isinstance(parameters, dict):
        raise RequestError("parameters is no object", hint='send "parameters": {...}, or nothing')
    await exchange.service.load(exchange.parameters["model"], parameters)
    await exchange.answer_json({})


async def _unload(exchange: Exchange) -> None:
    await exchange.json()
    await exchange.service.unload(exchange.parameters["model"])
    await exchange.answer_json({})


async def _region_status(exchange: Exchange) -> None:
    found = exchange.service.regions.status(exchange.parameters.get("region", ""))
    await exchange.answer_json(
        [{"name": one.name, "key": one.key, "offset": one.offset, "byte_size": one.nbytes} for one in found]
    )


async def _register(exchange: Exchange) -> None:
    given = await exchange.json()
    regions = exchange.service.regions
    regions.register(exchange.parameters["region"], given.get("key"), given.get("offset", 0), given.get("byte_size"))
    await exchange.answer_json({})


async def _unregister(exchange: Exchange) -> None:
    await exchange.json()
    exchange.service.regions.unregister(exchange.parameters.get("region", ""))
    await exchange.answer_json({})


async def _metrics(exchange: Exchange) -> None:
    await exchange.service.repository.refresh()
    await exchange.answer(200, [exchange.service.metrics.text()], b"text/plain; version=0.0.4; charset=utf-8")


_PAGE_POLICY = (
    b"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; "
    b"frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


async def _status_page(exchange: Exchange) -> None:
    headers = (b"content-security-policy", _PAGE_POLICY), (b"x-content-type-options", b"nosniff")
    await exchange.answer(200, [page("status.html")], b"text/html; charset=utf-8", *headers)


async def _status_script(exchange: Exchange) -> None:
    await exchange.answer(200, [page("status.js")], b"text/javascript; charset=utf-8", (b"x-content-type-options", b"nosniff"))


async def _status_style(exchange: Exchange) -> None:
    await exchange.answer(200, [page("status.css")], b"text/css; charset=utf-8", (b"x-content-type-options", b"nosniff"))


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
    ("GET", "/status.js", _status_script),
    ("GET", "/status.css", _status_style),
    ("GET", "/status/data", _status_data),
    ("GET", "/openapi.json", _description),
)


def description(*, keyed: bool = False) -> dict[str, Any]:
    """The OpenAPI document of all paths.

    :param keyed: whether clients need a key
    """
    return describe([(method, path) for method, path, _ in _ROUTES], Service.version(), OPEN_PATHS, keyed=keyed)
