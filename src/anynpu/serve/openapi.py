"""The OpenAPI description of the REST face: what each path takes and gives, for people, for generators of clients and for fuzzers.

The paths come from the table of routes; what is said about each stands here. Everything is a pure function of that table.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable
from typing import Any

from ..session.protocol.messages import DATATYPES
from .rest_bodies import HEADER_LENGTH, MAX_AXES, MAX_EXTENT, MAX_TENSORS

__all__ = ["describe"]

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
_CONTROL = (*_BODY_ERRORS, 404, 503)

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
        "load", "Load or reload a model", _answer("It is loaded", "Done"), (*_CONTROL, 500), "LoadRequest"
    ),
    ("POST", "/v2/repository/models/{model}/unload"): _operation(
        "unload", "Take a model away", _answer("It is unloaded", "Done"), _CONTROL, "UnloadRequest"
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
    ("GET", "/metrics"): _operation("metrics", "Figures for Prometheus", _page("text/plain")),
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
