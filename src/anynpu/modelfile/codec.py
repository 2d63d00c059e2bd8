"""Dataclasses to JSON and back, by their annotations.

What a class declares is what its JSON must hold: an unknown field, a missing one, a value of another type, or an unknown class of a
union is rejected. A field that equals its default is left out, so that a field added later with a default still reads older files.
Arrays do not go into the JSON: a :class:`Store` takes them and gives a reference.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from .._util.types import Array

T = TypeVar("T")

MAX_TEXT_LENGTH = 1 << 20
_TAG = "type"


class Mismatch(Exception):
    """A value does not fit what the class declares; ``str`` gives the place and the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []

    def at(self, step: str) -> Mismatch:
        """The same, one step further out."""
        self.path.insert(0, step)
        return self

    def __str__(self) -> str:
        place = "".join(self.path).removeprefix(".")
        return f"{place}: {self.reason}" if place else self.reason


class Store(Protocol):
    """Takes what does not belong in JSON, and returns the reference that stands for it."""

    def put_array(self, array: Array) -> dict[str, Any]: ...


class Loader(Protocol):
    """Gives back what a reference stands for; raises :class:`Mismatch` where it stands for nothing."""

    def get_array(self, reference: Any) -> Array: ...


def to_json(value: Any, kind: Any, store: Store) -> Any:
    """JSON for *value*, which is declared as *kind*."""
    return _codec(kind).encode(value, store)


def from_json(data: Any, kind: type[T], loader: Loader) -> T:
    """The *kind* that *data* describes; raises :class:`Mismatch`."""
    declared: Any = kind
    result: T = _codec(declared).decode(data, loader)
    return result


def map_arrays(value: T, function: Callable[[Array], Array]) -> T:
    """*value* with every array in it replaced, in the order in which :func:`to_json` meets them. What has no array stays as it is."""
    replaced: Any = value
    if isinstance(value, np.ndarray):
        replaced = function(value)
    elif isinstance(value, tuple):
        items = tuple(map_arrays(item, function) for item in value)
        if any(new is not old for new, old in zip(items, value, strict=True)):
            replaced = items
    elif isinstance(value, Mapping):
        entries = {key: map_arrays(item, function) for key, item in value.items()}
        if any(entries[key] is not item for key, item in value.items()):
            replaced = entries
    elif is_dataclass(value) and not isinstance(value, type):
        changed = {}
        for name in _array_fields(type(value)):
            old = getattr(value, name)
            new = map_arrays(old, function)
            if new is not old:
                changed[name] = new
        if changed:
            replaced = dataclasses.replace(value, **changed)
    return typing.cast(T, replaced)


@functools.cache
def _array_fields(kind: Any) -> tuple[str, ...]:
    """The fields of a dataclass in which an array can be: few of many, and loading looks at no others."""
    hints = typing.get_type_hints(kind)
    return tuple(field.name for field in fields(kind) if _may_hold_array(hints[field.name], frozenset()))


def _may_hold_array(kind: Any, seen: frozenset[Any]) -> bool:
    """Whether a value that is declared as *kind* can be or have an array. What is not known can."""
    if kind in seen or kind is Ellipsis or _origin(kind) is typing.Literal:
        return False
    if isinstance(kind, type) and is_dataclass(kind):
        return any(_may_hold_array(hint, seen | {kind}) for hint in typing.get_type_hints(kind).values())
    if isinstance(kind, type) and issubclass(kind, (str, int, float, enum.Enum, type(None))):
        return False
    if _origin(kind) is np.ndarray:
        return True
    inner = typing.get_args(kind)
    return not inner or any(_may_hold_array(each, seen) for each in inner)


@dataclass(frozen=True)
class _Codec:
    encode: Callable[[Any, Store], Any]
    decode: Callable[[Any, Loader], Any]


def _same(check: Callable[[Any], Any]) -> _Codec:
    """A type whose JSON looks like itself."""
    return _Codec(lambda value, store: check(value), lambda data, loader: check(data))


def _integer(value: Any) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise Mismatch(f"takes an integer, got {_shown(value)}")
    if not -(1 << 63) <= value < 1 << 63:
        raise Mismatch("is a number beyond 64 bits")
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise Mismatch(f"takes a number, got {_shown(value)}")
    number = float(value)
    if not math.isfinite(number):
        raise Mismatch("is not a finite number")
    return number


def _truth(value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise Mismatch(f"takes true or false, got {_shown(value)}")
    return bool(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Mismatch(f"takes text, got {_shown(value)}")
    if len(value) > MAX_TEXT_LENGTH:
        raise Mismatch(f"is a text of more than {MAX_TEXT_LENGTH} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Mismatch("is a text that is not valid Unicode") from None
    return value


def _shown(value: Any) -> str:
    """A value for a message, cut to a sane length."""
    if isinstance(value, (dict, list, tuple, np.ndarray)):
        return f"a {type(value).__name__} of {len(value) if getattr(value, 'shape', True) else 1}"
    text = repr(value) if isinstance(value, (str, int, float, type(None))) else type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."


_PLAIN: Mapping[Any, _Codec] = {int: _same(_integer), float: _same(_number), bool: _same(_truth), str: _same(_text)}


# A header can be millions of numbers in one list: lists in which nothing is wrong are read without a call for each entry. Where something
# may be wrong these give None, and the entries are looked at one by one, so that the message states which it is.


def _integers(items: list[Any]) -> tuple[Any, ...] | None:
    if set(map(type, items)) != {int} or min(items) < -(1 << 63) or max(items) >= 1 << 63:
        return None
    return tuple(items)


def _numbers(items: list[Any]) -> tuple[Any, ...] | None:
    if not set(map(type, items)) <= {int, float}:
        return None
    try:
        values = tuple(map(float, items))
    except OverflowError:
        return None
    return values if all(map(math.isfinite, values)) else None


def _texts(items: list[Any]) -> tuple[Any, ...] | None:
    if set(map(type, items)) != {str} or max(map(len, items)) > MAX_TEXT_LENGTH:
        return None
    try:
        "".join(items).encode()
    except UnicodeEncodeError:
        return None
    return tuple(items)


_PLAIN_LISTS: Mapping[Any, Callable[[list[Any]], tuple[Any, ...] | None]] = {int: _integers, float: _numbers, str: _texts}


def _origin(kind: Any) -> Any:
    """What a generic annotation is made of; through an alias of its own kind, as numpy's NDArray is from 2.5 on with Python 3.12."""
    origin = typing.get_origin(kind)
    return typing.get_origin(origin.__value__) if hasattr(origin, "__value__") else origin


@functools.cache
def _codec(kind: Any) -> _Codec:
    """The codec for an annotation."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin, arguments = _origin(kind), typing.get_args(kind)
    if origin is np.ndarray:
        return _Codec(_encode_array, lambda data, loader: loader.get_array(data))
    if origin is typing.Literal:
        return _choice(arguments)
    if origin is tuple:
        return _tuple(arguments)
    if origin is collections.abc.Mapping:
        return _mapping(_codec(arguments[1]))
    if origin in (types.UnionType, typing.Union):
        return _union(arguments)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _enumeration(kind)
    if is_dataclass(kind):
        return _structure(typing.cast("type[Any]", kind))
    raise TypeError(f"no JSON form for the annotation {kind!r}")


def _encode_array(value: Any, store: Store) -> Any:
    if not isinstance(value, np.ndarray):
        raise Mismatch(f"takes an array, got {_shown(value)}")
    return store.put_array(value)


def _choice(options: tuple[Any, ...]) -> _Codec:
    def check(value: Any) -> Any:
        if not isinstance(value, str) or value not in options:
            raise Mismatch(f"takes one of {', '.join(map(str, options))}, got {_shown(value)}")
        return value

    return _same(check)


def _enumeration(kind: type[enum.Enum]) -> _Codec:
    by_value = {member.value: member for member in kind}

    def encode(value: Any, store: Store) -> Any:
        if not isinstance(value, kind):
            raise Mismatch(f"takes a {kind.__name__}, got {_shown(value)}")
        return value.value

    def decode(data: Any, loader: Loader) -> Any:
        if not isinstance(data, str) or data not in by_value:
            raise Mismatch(f"is no {kind.__name__}: {_shown(data)}")
        return by_value[data]

    return _Codec(encode, decode)


def _tuple(arguments: tuple[Any, ...]) -> _Codec:
    repeated = len(arguments) == 2 and arguments[1] is Ellipsis
    length = None if repeated else len(arguments)
    codecs = [_codec(argument) for argument in (arguments[:1] if repeated else arguments)]

    def run(items: Any, expected: type[Any], step: Callable[[_Codec, Any], Any]) -> list[Any]:
        if not isinstance(items, expected):
            raise Mismatch(f"takes a {expected.__name__}, got {_shown(items)}")
        if length is not None and len(items) != length:
            raise Mismatch(f"takes {length} entries, got {len(items)}")
        results = []
        for index, item in enumerate(items):
            try:
                results.append(step(codecs[0] if repeated else codecs[index], item))
            except Mismatch as error:
                raise error.at(f"[{index}]") from None
        return results

    plain = _PLAIN_LISTS.get(arguments[0]) if repeated else None

    def decode(data: Any, loader: Loader) -> Any:
        result = plain(data) if plain is not None and isinstance(data, list) else None
        return tuple(run(data, list, lambda codec, item: codec.decode(item, loader))) if result is None else result

    return _Codec(lambda value, store: run(value, tuple, lambda codec, item: codec.encode(item, store)), decode)


def _mapping(codec: _Codec) -> _Codec:
    def run(items: Any, step: Callable[[Any], Any]) -> dict[str, Any]:
        if not isinstance(items, Mapping):
            raise Mismatch(f"takes names with values, got {_shown(items)}")
        results = {}
        for key, item in items.items():
            try:
                results[_text(key)] = step(item)
            except Mismatch as error:
                raise error.at(f"[{_shown(key)}]") from None
        return results

    return _Codec(
        lambda value, store: run(value, lambda item: codec.encode(item, store)),
        lambda data, loader: run(data, lambda item: codec.decode(item, loader)),
    )


def _union(arguments: tuple[Any, ...]) -> _Codec:
    """Something or nothing, one of several kinds, or both.

    Dataclasses have the name of the class beside their fields; text, arrays and tuples are distinguished by what their JSON is.
    """
    kinds = [kind for kind in arguments if kind is not type(None)]
    optional = len(kinds) < len(arguments)
    inner = _codec(kinds[0]) if len(kinds) == 1 else _tagged(kinds) if all(map(is_dataclass, kinds)) else _by_form(kinds)
    if not optional:
        return inner
    return _Codec(
        lambda value, store: None if value is None else inner.encode(value, store),
        lambda data, loader: None if data is None else inner.decode(data, loader),
    )


def _matches(kind: Any, value: Any, form: bool) -> bool:
    """Whether *value* is of one of the kinds that have no name beside them; with *form*, whether it is its JSON."""
    origin = _origin(kind) or kind
    if origin is np.ndarray:
        return isinstance(value, dict if form else np.ndarray)
    if origin is tuple:
        inner = typing.get_args(kind)[0]
        if form and isinstance(value, list) and inner in _PLAIN:
            return set(map(type, value)) <= {inner}
        return isinstance(value, list if form else tuple) and all(_matches(inner, item, form) for item in value)
    if isinstance(value, (bool, np.bool_)) or origin not in (int, float, str):
        return False
    return isinstance(value, {int: (int, np.integer), float: (float, np.floating), str: (str,)}[origin])


def _by_form(kinds: list[Any]) -> _Codec:
    options = [(kind, _codec(kind)) for kind in kinds]

    def choose(value: Any, form: bool) -> _Codec:
        for kind, codec in options:
            if _matches(kind, value, form):
                return codec
        raise Mismatch(f"takes {' or '.join(map(_name, kinds))}, got {_shown(value)}")

    return _Codec(
        lambda value, store: choose(value, False).encode(value, store),
        lambda data, loader: choose(data, True).decode(data, loader),
    )


def _name(kind: Any) -> str:
    """A kind for a message."""
    origin = _origin(kind) or kind
    inner = f" of {_name(typing.get_args(kind)[0])}" if origin is tuple else ""
    return {np.ndarray: "an array", tuple: "a list", str: "text", int: "an integer", float: "a number"}[origin] + inner


def _tagged(kinds: list[Any]) -> _Codec:
    codecs = {kind.__name__: (kind, _codec(kind)) for kind in kinds}

    def encode(value: Any, store: Store) -> Any:
        kind, codec = codecs.get(type(value).__name__, (None, None))
        if kind is not type(value) or codec is None:
            raise Mismatch(f"is a {type(value).__name__}, which has no place here")
        return {_TAG: type(value).__name__, **codec.encode(value, store)}

    def decode(data: Any, loader: Loader) -> Any:
        if not isinstance(data, dict):
            raise Mismatch(f"takes fields with a type, got {_shown(data)}")
        rest = dict(data)
        tag = rest.pop(_TAG, None)
        if not isinstance(tag, str) or tag not in codecs:
            raise Mismatch(f"has the unknown type {_shown(tag)}")
        return codecs[tag][1].decode(rest, loader)

    return _Codec(encode, decode)


def _structure(kind: type[Any]) -> _Codec:
    hints = typing.get_type_hints(kind)
    members = [(field, _codec(hints[field.name])) for field in fields(kind)]
    names = {field.name for field, _ in members}

    def encode(value: Any, store: Store) -> Any:
        if not isinstance(value, kind):
            raise Mismatch(f"takes a {kind.__name__}, got {_shown(value)}")
        result = {}
        for field, codec in members:
            item = getattr(value, field.name)
            if _is_default(field, item):
                continue
            try:
                result[field.name] = codec.encode(item, store)
            except Mismatch as error:
                raise error.at(f".{field.name}") from None
        return result

    def decode(data: Any, loader: Loader) -> Any:
        if not isinstance(data, dict):
            raise Mismatch(f"takes the fields of a {kind.__name__}, got {_shown(data)}")
        if not names >= data.keys():
            raise Mismatch(f"has the unknown field {_shown(min(data.keys() - names))}")
        values = {}
        for field, codec in members:
            if field.name in data:
                try:
                    values[field.name] = codec.decode(data[field.name], loader)
                except Mismatch as error:
                    raise error.at(f".{field.name}") from None
            elif field.default is MISSING and field.default_factory is MISSING:
                raise Mismatch(f"lacks the field '{field.name}'")
        try:
            return kind(**values)
        except ValueError as error:  # the class's own checks
            raise Mismatch(str(error)) from None

    return _Codec(encode, decode)


def _is_default(field: Field[Any], item: Any) -> bool:
    if field.default_factory is not MISSING:
        return isinstance(item, Mapping) and not item
    if field.default is MISSING or type(item) is not type(field.default):
        return False
    return item is field.default or (isinstance(item, (str, int, float, tuple)) and bool(item == field.default))
