"""The REST interface: the routes of the protocol, and what each of them does with a request.

A request whose client has gone is cancelled by its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import json
import logging
import math
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from ..analysis.pages import page
from ..errors import AccessDeniedError, OverloadedError, RequestError
from ..session.protocol.messages import DATATYPES
from .body import unpack
from .connection import Request
from .failures import ClientGone, failure_of, message_of, retry_after_of
from .interfaces import Model
from .model import InferRequest
from .options import is_loopback
from .rest_bodies import (
    HEADER_LENGTH,
    MAX_AXES,
    MAX_EXTENT,
    MAX_TENSORS,
    OutputForms,
    encode_answer,
    header_length,
    parse_infer,
    parse_json,
)
from .service import NAME, Service, configuration

# The OpenAPI description of the REST interface: what each path takes and gives, for people, for generators of clients and for fuzzers.
#
# The paths come from the table of routes; what is said about each stands here. Everything is a pure function of that table.


Schema = dict[str, Any]

VERSION_PART = "/versions/{version}"
"""Paths with and without it do the same; without it, the highest version is meant."""

_JSON = "application/json"
_BYTES = "application/octet-stream"
_MAX_VALUE = 2**63 - 1


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def _object(properties: dict[str, Schema], optional: Collection[str] = (), **more: Any) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, **({"required": required} if required else {}), **more}


_TEXT: Schema = {"type": "string"}
_FLAG: Schema = {"type": "boolean"}
_NUMBER: Schema = {"type": "number"}
_NATURAL: Schema = {"type": "integer", "minimum": 0, "maximum": _MAX_VALUE}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_SHAPE = _list({"type": "integer", "minimum": 0, "maximum": MAX_EXTENT}, maxItems=MAX_AXES)
_SIZE: Schema = {**_NATURAL, "description": "Bytes of the tensor after the JSON, which then has no data"}

_SHARED: dict[str, Schema] = {
    "shared_memory_region": {**_TEXT, "description": "The tensor lies in this region instead, which must be registered"},
    "shared_memory_byte_size": _NATURAL,
    "shared_memory_offset": _NATURAL,
}

_SCHEMAS: dict[str, Schema] = {
    "Error": _object({"error": {**_TEXT, "minLength": 1, "description": "What is wrong, and after 'hint:' what to do"}}),
    "Live": _object({"live": _FLAG}),
    "Ready": _object({"ready": _FLAG}),
    "ServerMetadata": _object({"name": _TEXT, "version": _TEXT, "extensions": _list(_TEXT)}),
    "Datatype": {"type": "string", "enum": [*DATATYPES]},
    "TensorMetadata": _object({"name": _TEXT, "datatype": _ref("Datatype"), "shape": _SHAPE}),
    "ModelMetadata": _object(
        {
            "name": _TEXT,
            "versions": _list(_TEXT),
            "platform": _TEXT,
            "inputs": _list(_ref("TensorMetadata")),
            "outputs": _list(_ref("TensorMetadata")),
        }
    ),
    "ConfiguredTensor": _object(
        {
            "name": _TEXT,
            "data_type": {"type": "string", "pattern": "^TYPE_[A-Z0-9]+$"},
            "dims": {**_SHAPE, "description": "Of one sample if max_batch_size is not 0"},
        }
    ),
    "ModelConfiguration": _object(
        {
            "name": _TEXT,
            "platform": _TEXT,
            "backend": _TEXT,
            "max_batch_size": _COUNT,
            "input": _list(_ref("ConfiguredTensor")),
            "output": _list(_ref("ConfiguredTensor")),
            "instance_group": _list(_object({"name": _TEXT, "kind": _TEXT, "count": _COUNT})),
            "default_model_filename": _TEXT,
            "dynamic_batching": _object(
                {"preferred_batch_size": _list(_COUNT), "max_queue_delay_microseconds": _COUNT},
            ),
        },
        ["dynamic_batching"],
    ),
    "ModelReady": _object({"name": _TEXT, "ready": _FLAG}),
    "TensorData": _list(
        {"anyOf": [_NUMBER, _FLAG, _ref("TensorData")]}, description="In row-major order, flat or nested like the shape"
    ),
    "InputTensor": _object(
        {
            "name": _TEXT,
            "datatype": _ref("Datatype"),
            "shape": _SHAPE,
            "data": _ref("TensorData"),
            "parameters": _object({"binary_data_size": _SIZE, **_SHARED}, ["binary_data_size", *_SHARED]),
        },
        ["data", "parameters"],
    ),
    "RequestedOutput": _object(
        {
            "name": _TEXT,
            "parameters": _object(
                {"binary_data": {**_FLAG, "description": "As bytes after the JSON; default: binary_data_output"}, **_SHARED},
                ["binary_data", *_SHARED],
            ),
        },
        ["parameters"],
    ),
    "InferRequest": _object(
        {
            "id": {**_TEXT, "description": "Comes back in the answer"},
            "inputs": _list(_ref("InputTensor"), maxItems=MAX_TENSORS),
            "outputs": _list(_ref("RequestedOutput"), maxItems=MAX_TENSORS, description="Empty or left out: all"),
            "parameters": _object(
                {
                    "priority": {**_NATURAL, "description": "1 is the most urgent; 0 is none"},
                    "timeout": {**_NATURAL, "description": "Microseconds; 0 is none"},
                    "binary_data_output": {**_FLAG, "description": "All outputs as bytes after the JSON"},
                },
                ["priority", "timeout", "binary_data_output"],
            ),
        },
        ["id", "outputs", "parameters"],
    ),
    "OutputTensor": _object(
        {
            "name": _TEXT,
            "datatype": _ref("Datatype"),
            "shape": _SHAPE,
            "data": _list({"anyOf": [_NUMBER, _FLAG]}),
            "parameters": _object({"binary_data_size": _SIZE, **_SHARED}, ["binary_data_size", *_SHARED]),
        },
        ["data", "parameters"],
    ),
    "InferAnswer": _object(
        {"id": _TEXT, "model_name": _TEXT, "model_version": _TEXT, "outputs": _list(_ref("OutputTensor"))}, ["id"]
    ),
    "Duration": _object({"count": _COUNT, "ns": _COUNT}),
    "ModelStatistics": _object(
        {
            "name": _TEXT,
            "version": _TEXT,
            "last_inference": {**_COUNT, "description": "Milliseconds since 1970"},
            "inference_count": _COUNT,
            "execution_count": _COUNT,
            "inference_stats": _object(
                dict.fromkeys(("success", "fail", "queue", "compute_input", "compute_infer", "compute_output"), _ref("Duration"))
            ),
        }
    ),
    "Statistics": _object({"model_stats": _list(_ref("ModelStatistics"))}),
    "IndexRequest": _object({"ready": {**_FLAG, "description": "Only models that are loaded"}}, ["ready"]),
    "Index": _list(
        _object({"name": _TEXT, "version": _TEXT, "state": {"type": "string", "enum": ["READY", "UNAVAILABLE"]}, "reason": _TEXT})
    ),
    "LoadRequest": _object(
        {
            "parameters": _object(
                {"path": {"type": ["string", "null"], "description": "A file below the folder of --load-root"}},
                ["path"],
                additionalProperties=False,
            )
        },
        ["parameters"],
    ),
    "UnloadRequest": {"type": "object"},
    "Done": {"type": "object", "maxProperties": 0},
    "Regions": _list(_object({"name": _TEXT, "key": _TEXT, "offset": _COUNT, "byte_size": _COUNT})),
    "RegisterRequest": _object(
        {
            "key": {**_TEXT, "description": "The name of the POSIX shared memory object"},
            "offset": {**_NATURAL, "description": "Where in it the region begins"},
            "byte_size": {**_NATURAL, "minimum": 1},
        },
        ["offset"],
    ),
    "Status": _object(
        {
            "uptime_s": _NUMBER,
            "process": _COUNT,
            "connections": _COUNT,
            "inflight_bytes": _COUNT,
            "models": _list({"type": "object"}),
            "unavailable": _list(_object({"name": _TEXT, "version": _TEXT, "reason": _TEXT})),
        }
    ),
    "Description": {"type": "object", "required": ["openapi", "info", "paths"]},
}

_RETRY = {"Retry-After": "Seconds until it is worth trying again", "Retry-After-Ms": "The same in milliseconds"}

_ERRORS: dict[int, tuple[str, dict[str, str]]] = {
    400: ("The request is not what it should be", {}),
    401: ("No API key, or a wrong one", {"WWW-Authenticate": "The kind of key that is asked for"}),
    403: ("The server does not let clients do this, or not from this page or under this name", {}),
    404: ("There is no such model or version", {}),
    413: ("The request is larger than the server takes", {}),
    429: ("The server is busy; nothing was begun", _RETRY),
    499: ("The inference was cancelled on the device", {}),
    500: ("The device or the server failed", {}),
    503: ("The model, the server, the device or its memory is not available now", _RETRY),
    504: ("The inference did not finish within its time", {}),
}

_LENGTH_PARAMETER: Schema = {
    "name": HEADER_LENGTH,
    "in": "header",
    "required": False,
    "description": "Bytes of the JSON at the start of the body; the bytes of the tensors follow, in the order of the inputs",
    "schema": {"type": "integer", "minimum": 0, "maximum": 10**12 - 1},
}
_BINARY_BODY: Schema = {
    "schema": {
        "type": "string",
        "format": "binary",
        "description": "The binary tensor extension: JSON, then the tensors whose binary_data_size it states, little-endian, row-major",
    }
}


def _answer(text: str, schema: str, status: int = 200) -> dict[str, Any]:
    return {str(status): {"description": text, "content": {_JSON: {"schema": _ref(schema)}}}}


def _operation(name: str, summary: str, answers: dict[str, Any], errors: Iterable[int] = (), body: str = "") -> dict[str, Any]:
    described: dict[str, Any] = {"operationId": name, "summary": summary}
    if body:
        described["requestBody"] = {"required": False, "content": {_JSON: {"schema": _ref(body)}}}
    described["responses"] = {**answers, **{str(status): _error(status) for status in (*errors, 401, 403)}}
    return described


def _error(status: int) -> dict[str, Any]:
    text, headers = _ERRORS[status]
    answer: dict[str, Any] = _answer(text, "Error", status)[str(status)]
    if headers:
        answer["headers"] = {name: {"description": said, "schema": _TEXT} for name, said in headers.items()}
    return answer


def _inference() -> dict[str, Any]:
    """The one operation whose bodies are more than JSON."""
    answer = _answer("The outputs, in the order in which they were asked for", "InferAnswer")
    answer["200"]["content"][_BYTES] = _BINARY_BODY
    answer["200"]["headers"] = {HEADER_LENGTH: {"description": _LENGTH_PARAMETER["description"], "schema": _TEXT}}
    described = _operation("infer", "Run a model", answer, (400, 404, 413, 429, 499, 500, 503, 504), "InferRequest")
    described["parameters"] = [_LENGTH_PARAMETER]
    described["requestBody"]["required"] = True
    described["requestBody"]["content"][_BYTES] = _BINARY_BODY
    return described


def _page(kind: str) -> dict[str, Any]:
    return {"200": {"description": "A text", "content": {kind: {"schema": _TEXT}}}}


_BODY_ERRORS = (400, 413, 429)
_CONTROL_ERRORS = (*_BODY_ERRORS, 404, 503)

_OPERATIONS: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/v2/models/{model}/infer"): _inference(),
    ("GET", "/v2/health/live"): _operation("live", "Whether the server runs", _answer("It does", "Live")),
    ("GET", "/v2/health/ready"): _operation(
        "ready", "Whether it takes requests", _answer("It does", "Ready") | _answer("Not now", "Ready", 503)
    ),
    ("GET", "/v2"): _operation("server", "Name, version and extensions", _answer("The server", "ServerMetadata")),
    ("GET", "/v2/models/stats"): _operation("all_statistics", "Statistics of all models", _answer("Counts", "Statistics")),
    ("GET", "/v2/models/{model}"): _operation(
        "model", "Inputs, outputs and versions of a model", _answer("The model", "ModelMetadata"), (404, 503)
    ),
    ("GET", "/v2/models/{model}/ready"): _operation(
        "model_ready", "Whether a model takes requests", _answer("It does", "ModelReady"), (404, 503)
    ),
    ("GET", "/v2/models/{model}/stats"): _operation(
        "statistics", "Statistics of a model", _answer("Counts", "Statistics"), (404, 503)
    ),
    ("GET", "/v2/models/{model}/config"): _operation(
        "configuration", "The configuration of a model", _answer("The model", "ModelConfiguration"), (404, 503)
    ),
    ("POST", "/v2/repository/index"): _operation(
        "index", "All models, loaded or not", _answer("The models", "Index"), _BODY_ERRORS, "IndexRequest"
    ),
    ("POST", "/v2/repository/models/{model}/load"): _operation(
        "load", "Load or reload a model", _answer("It is loaded", "Done"), (*_CONTROL_ERRORS, 500), "LoadRequest"
    ),
    ("POST", "/v2/repository/models/{model}/unload"): _operation(
        "unload", "Take a model away", _answer("It is unloaded", "Done"), _CONTROL_ERRORS, "UnloadRequest"
    ),
    ("GET", "/v2/systemsharedmemory/status"): _operation(
        "all_regions", "Regions of shared memory", _answer("All of them", "Regions")
    ),
    ("GET", "/v2/systemsharedmemory/region/{region}/status"): _operation(
        "region", "A region of shared memory", _answer("It alone", "Regions"), (400,)
    ),
    ("POST", "/v2/systemsharedmemory/region/{region}/register"): _operation(
        "register",
        "Share memory of this machine with the server",
        _answer("It can be used", "Done"),
        _BODY_ERRORS,
        "RegisterRequest",
    ),
    ("POST", "/v2/systemsharedmemory/region/{region}/unregister"): _operation(
        "unregister", "Share a region no longer", _answer("It is forgotten", "Done"), _BODY_ERRORS, "UnloadRequest"
    ),
    ("POST", "/v2/systemsharedmemory/unregister"): _operation(
        "unregister_all", "Share no region any longer", _answer("All are forgotten", "Done"), _BODY_ERRORS, "UnloadRequest"
    ),
    ("GET", "/metrics"): _operation("metrics", "Metrics for Prometheus", _page("text/plain")),
    ("GET", "/"): _operation("home", "The status page", _page("text/html")),
    ("GET", "/status"): _operation("status_page", "The status page", _page("text/html")),
    ("GET", "/status.js"): _operation("status_script", "Its script", _page("text/javascript")),
    ("GET", "/status.css"): _operation("status_style", "Its style", _page("text/css")),
    ("GET", "/status/data"): _operation("status", "What the status page shows", _answer("Figures", "Status")),
    ("GET", "/openapi.json"): _operation("description", "This description", _answer("OpenAPI 3.1", "Description")),
}

_PARAMETERS = {
    "model": "The name of a model",
    "version": "Its version, an integer",
    "region": "The name of a region of shared memory",
}

_SECURITY: dict[str, Schema] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "Authorization: Bearer KEY"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def describe(
    routes: Iterable[tuple[str, str]], version: str, open_paths: Collection[str], *, keyed: bool = False
) -> dict[str, Any]:
    """The document for a table of routes.

    :param routes: methods and paths; each must be one that this module knows
    :param open_paths: those that need no key
    :param keyed: whether the others need one

    >>> list(describe([("GET", "/v2/health/live")], "1", ())["paths"])
    ['/v2/health/live']
    """
    paths: dict[str, dict[str, Any]] = {}
    for method, path in routes:
        operation = copy.deepcopy(_OPERATIONS[method, path.replace(VERSION_PART, "")])
        if VERSION_PART in path:
            operation["operationId"] += "_of_version"
        named = [
            {"name": name, "in": "path", "required": True, "description": text, "schema": {**_TEXT, "minLength": 1}}
            for name, text in _PARAMETERS.items()
            if f"{{{name}}}" in path
        ]
        if named:
            operation["parameters"] = [*named, *operation.get("parameters", ())]
        if keyed and path in open_paths:
            operation["security"] = []
        paths.setdefault(path, {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "anynpu inference server",
            "version": version,
            "description": "The Open Inference Protocol, version 2, with the extensions for binary tensors, statistics and the "
            "model repository. Any other method of a path gets 405.",
        },
        "paths": paths,
        "components": copy.deepcopy({"schemas": _SCHEMAS, "securitySchemes": _SECURITY}),
        **({"security": [{name: []} for name in _SECURITY]} if keyed else {}),
    }


log = logging.getLogger("anynpu.serve")

Handler = Callable[["Exchange"], Awaitable[None]]

OPEN_PATHS = ("/v2/health/live", "/v2/health/ready", "/", "/status", "/status.js", "/status.css")
"""Paths that need no key: they reveal nothing but that the server is there."""


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
    """What a server offers besides its models: pages and calls of another package.

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
            # a traceback has frames, and these have the body: nothing may live on because a caller still holds the error
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
                headers.get("authorization"), headers.get("x-api-key"), _CONTROL_PATH.fullmatch(request.path) is not None
            )


_CONTROL_PATH = re.compile(r"/v2/repository/models/[^/]+/(un)?load")
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
