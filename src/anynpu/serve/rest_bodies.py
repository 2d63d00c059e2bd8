"""Bodies of the REST protocol: JSON, with tensors inside it or as bytes behind it (the binary tensor extension).

Everything here is a pure function of what a client sent; whatever that is, the result is a request or a RequestError.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Set
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from .._util.types import Array
from ..errors import RequestError
from ..session.protocol.messages import DATATYPES, array_from_bytes, bytes_of, datatype_of, element_size
from .model import InferAnswer, InferRequest
from .regions import SharedPlace, SharedTensor, read_place

HEADER_LENGTH = "inference-header-content-length"
"""The header that states where the JSON ends and the bytes of the tensors begin."""

MAX_TENSORS = 1024
MAX_AXES = 16
MAX_EXTENT = 2**31
MAX_INT64 = 2**63 - 1


@dataclass(frozen=True)
class OutputForms:
    """Which outputs the client wants as bytes: those by name, else *default*."""

    by_name: Mapping[str, bool]
    default: bool

    def binary(self, name: str) -> bool:
        """Whether output *name* goes as bytes."""
        return self.by_name.get(name, self.default)


def parse_json(data: bytes | memoryview) -> dict[str, Any]:
    """A JSON object; an empty text is an empty one.

    >>> parse_json(b'{"id": "7"}')
    {'id': '7'}
    """
    if not data:
        return {}
    try:
        document = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is no JSON: {error}", hint="send a JSON object") from None
    if not isinstance(document, dict):
        raise RequestError(f"the body is a JSON {type(document).__name__}, not an object", hint="send {...}")
    return document


def parse_infer(model: str, version: str, body: bytes | memoryview, header: str | None) -> tuple[InferRequest, OutputForms]:
    """The request in *body*.

    :param header: the value of :data:`HEADER_LENGTH`, if there is one
    """
    length = len(body) if header is None else header_length(header, len(body))
    document = parse_json(body[:length] if header is not None else body)
    parameters = _object(document, "parameters")
    priority, timeout = read_parameters(parameters)
    inputs, shared_inputs, end = _inputs(document, body, length)
    if end != len(body):
        raise RequestError(
            f"{len(body) - end} bytes are left after the tensors", hint="let binary_data_size of the inputs add up to all bytes"
        )
    names, forms, shared_outputs = _outputs(document, _flag(parameters, "binary_data_output"))
    identity = document.get("id", "")
    if not isinstance(identity, str):
        raise RequestError(f"the id is {_shown(identity)}", hint="ids are texts")
    return InferRequest(model, version, identity, inputs, names, priority, timeout, shared_inputs, shared_outputs), forms


def read_parameters(parameters: Mapping[str, Any]) -> tuple[int, float | None]:
    """Priority and seconds from the parameters of a request: ``priority`` (1 is the most urgent) and ``timeout`` (microseconds)."""
    priority = _natural(parameters, "priority")
    timeout = _natural(parameters, "timeout")
    return min(priority, 2**31 - 1), timeout / 1e6 if timeout else None


def _natural(parameters: Mapping[str, Any], key: str) -> int:
    value = parameters.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise RequestError(f"the parameter {key} is {_shown(value)}", hint="it takes an integer from 0")
    return value


def header_length(header: str, most: int) -> int:
    """The length of the JSON in a body of *most* bytes.

    >>> header_length("12", 100)
    12
    """
    if not header.isascii() or not header.isdigit() or len(header) > 12 or int(header) > most:
        raise RequestError(
            f"{HEADER_LENGTH} is {_shown(header)}, and the body has {most} bytes", hint="it is the number of bytes of the JSON"
        )
    return int(header)


def _inputs(
    document: Mapping[str, Any], body: bytes | memoryview, offset: int
) -> tuple[dict[str, Array], dict[str, SharedTensor], int]:
    inputs: dict[str, Array] = {}
    shared: dict[str, SharedTensor] = {}
    for entry in _list(document, "inputs"):
        name, datatype, shape = _text(entry, "name", "an input"), entry.get("datatype"), _shape(entry)
        if not isinstance(datatype, str):
            raise RequestError(f"input '{name}' has no datatype", hint=f"give one of: {', '.join(DATATYPES)}")
        if name in inputs or name in shared:
            raise RequestError(f"input '{name}' comes twice", hint="give each input once")
        parameters = _object(entry, "parameters")
        place = read_place(parameters, name)
        if place is not None:
            shared[name] = SharedTensor(place, datatype, shape)
            continue
        size = parameters.get("binary_data_size")
        try:
            if size is None:
                inputs[name] = _from_json(entry.get("data"), datatype, shape, name)
            else:
                if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= len(body) - offset:
                    raise RequestError(
                        f"binary_data_size of input '{name}' is {_shown(size)}, and {len(body) - offset} bytes are left",
                        hint="it is the number of bytes of the tensor after the JSON",
                    )
                inputs[name] = array_from_bytes(body, offset, size, datatype, shape, name)
                offset += size
        except (ValueError, OverflowError) as error:
            if isinstance(error, RequestError):
                raise
            raise RequestError(
                f"input '{name}' is no tensor of shape {list(shape)}: {error}", hint="look at shape and data"
            ) from None
    return inputs, shared, offset


def _outputs(document: Mapping[str, Any], default: bool) -> tuple[list[str], OutputForms, dict[str, SharedPlace]]:
    forms: dict[str, bool] = {}
    shared: dict[str, SharedPlace] = {}
    for entry in _list(document, "outputs") if "outputs" in document else ():
        name = _text(entry, "name", "an output")
        if name in forms:
            raise RequestError(f"output '{name}' comes twice", hint="ask for each output once")
        parameters = _object(entry, "parameters")
        if parameters.get("classification"):
            raise RequestError("classification of outputs is not supported", hint="ask for the output itself and sort it")
        forms[name] = _flag(parameters, "binary_data") if "binary_data" in parameters else default
        place = read_place(parameters, name)
        if place is not None:
            shared[name] = place
    return list(forms), OutputForms(forms, default), shared


def _list(document: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    entries = document.get(key)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries) or len(entries) > MAX_TENSORS:
        raise RequestError(f"{key} is no list of tensors", hint=f'send "{key}": [{{"name": ...}}]')
    return entries


def _object(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = document.get(key, {})
    if not isinstance(value, dict):
        raise RequestError(f"{key} is {_shown(value)}", hint=f'send "{key}": {{...}}')
    return value


def _text(entry: Mapping[str, Any], key: str, what: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str):
        raise RequestError(f"{what} has the {key} {_shown(value)}", hint="give a text")
    return value


def _flag(parameters: Mapping[str, Any], key: str) -> bool:
    value = parameters.get(key, False)
    if not isinstance(value, bool):
        raise RequestError(f"the parameter {key} is {_shown(value)}", hint="it takes true or false")
    return value


def _shape(entry: Mapping[str, Any]) -> tuple[int, ...]:
    shape = entry.get("shape")
    if (
        not isinstance(shape, list)
        or len(shape) > MAX_AXES
        or any(isinstance(extent, bool) or not isinstance(extent, int) or not 0 <= extent <= MAX_EXTENT for extent in shape)
    ):
        raise RequestError(f"the shape of {_shown(entry.get('name'))} is {_shown(shape)}", hint="send a list of integers from 0")
    return tuple(shape)


def _from_json(data: Any, datatype: str, shape: tuple[int, ...], name: str) -> Array:
    element_size(datatype, name)
    if not isinstance(data, list):
        raise RequestError(
            f"input '{name}' has no data", hint="send a list of numbers, or binary_data_size and bytes after the JSON"
        )
    target = np.dtype(np.float32) if datatype == "BF16" else DATATYPES[datatype].newbyteorder("=")
    values, types = _elements(data, name)
    if len(values) != math.prod(shape):
        raise RequestError(
            f"input '{name}' has {len(values)} elements, and its shape is {list(shape)}", hint="send as many as the shape has"
        )
    if not types <= _JSON_TYPES[target.kind]:
        raise _unfit(name, target)
    if target.kind in "iu":
        return _integers(values, target, name).reshape(shape)
    if target.kind == "b":
        return np.array(values, target).reshape(shape)
    array = np.fromiter(values, np.float64, len(values))
    with np.errstate(over="ignore"):
        cast = array.astype(target)
    if np.isinf(cast).sum() > np.isinf(array).sum():
        raise _unfit(name, target)
    return cast.reshape(shape)


_JSON_TYPES: Mapping[str, Set[type]] = {"f": {int, float}, "i": {int}, "u": {int}, "b": {bool}}
"""The types of JSON values that an element may have, by the kind of the tensor's type."""


def _elements(data: list[Any], name: str) -> tuple[list[Any], set[type]]:
    """The elements of a flat or regularly nested list, and their types; they may be of any type but lists.

    Nothing here takes more memory than *data*: numpy, for example, would make all texts as long as the longest.
    """
    for _ in range(MAX_AXES):
        types = set(map(type, data))
        if list not in types:
            return data, types
        if len(types) > 1 or len(set(map(len, data))) > 1:
            break
        data = list(chain.from_iterable(data))
    raise RequestError(
        f"the data of input '{name}' is not a flat or regularly nested list", hint=f"send numbers, nested at most {MAX_AXES} deep"
    )


def _integers(values: list[int], target: np.dtype[Any], name: str) -> Array:
    """Integers as *target*, all within its limits."""
    limits = np.iinfo(target)
    wide: Any = np.fromiter(values, np.int64 if limits.max <= MAX_INT64 else object, len(values))
    if values and not limits.min <= wide.min() <= wide.max() <= limits.max:
        raise _unfit(name, target)
    return np.asarray(wide.astype(target))


def _unfit(name: str, target: np.dtype[Any]) -> RequestError:
    return RequestError(
        f"the data of input '{name}' does not fit {target}", hint="look at the datatype and the range of its values"
    )


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except RecursionError:
        return "nested too deeply"
    return text if len(text) <= 60 else f"{text[:57]}..."


def encode_answer(answer: InferAnswer, forms: OutputForms) -> tuple[list[bytes], int | None]:
    """The parts of the body, and the length of its JSON if bytes follow."""
    outputs: list[dict[str, Any]] = []
    raw: list[bytes] = []
    for name, array in answer.outputs.items():
        entry: dict[str, Any] = {"name": name, "datatype": datatype_of(array.dtype), "shape": list(array.shape)}
        place = answer.shared.get(name)
        if place is not None:
            entry["parameters"] = place.parameters(array.nbytes)
        elif forms.binary(name):
            raw.append(bytes_of(array))
            entry["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            entry["data"] = array.reshape(-1).tolist()
        outputs.append(entry)
    document: dict[str, Any] = {"model_name": answer.model, "model_version": answer.version, "outputs": outputs}
    if answer.id:
        document["id"] = answer.id
    text = json.dumps(document).encode()
    return [text, *raw], len(text) if raw else None
