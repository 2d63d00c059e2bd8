"""What options of the compiler take that have no plain type: words for messages, and whether a value is that."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from .._util.options import is_number, is_whole

__all__ = ["CUSTOM", "NAMED", "ORDER", "PAIRS", "PER_INPUT", "SHAPES", "WAY_TO_JUDGE"]

Takes = tuple[str, Callable[[Any], bool]]


def _all(value: Any, fits: Callable[[Any], bool]) -> bool:
    listed = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes)
    return listed and np.ndim(value) <= 1 and all(fits(entry) for entry in value)


def _by_name(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) and fits(entry) for name, entry in value.items())


def _are_numbers(value: Any) -> bool:
    return is_number(value) or _all(value, is_number)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_set_of_shapes(value: Any) -> bool:
    return _by_name(value, lambda shape: _all(shape, is_whole))


def _is_pair(value: Any) -> bool:
    listed = isinstance(value, Sequence) and not isinstance(value, str | bytes) and len(value) == 2
    return listed and is_number(value[0]) and is_whole(value[1])


PER_INPUT: Takes = (
    "a number, a list of them, or a dict of either by input name",
    lambda value: value is None or _are_numbers(value) or _by_name(value, _are_numbers),
)
ORDER: Takes = (
    "a string, or a dict of strings by input name",
    lambda value: value is None or _is_text(value) or _by_name(value, _is_text),
)
SHAPES: Takes = (
    "a dict of shapes by input name, such as {'x': (1, 3, 480, 480)}, or a list of such dicts",
    lambda value: value is None or _is_set_of_shapes(value) or (_all(value, _is_set_of_shapes) and len(value) > 0),
)
NAMED: Takes = (
    "a dict of values by input name, such as {'shape': (1, 12, 64)}",
    lambda value: value is None or value == () or _by_name(value, lambda entry: True),
)
WAY_TO_JUDGE: Takes = (
    "the name of a metric, or a function of (expected outputs, given outputs)",
    lambda value: value is None or _is_text(value) or callable(value),
)
CUSTOM: Takes = (
    "a list of names of operators, or a dict of what is known about them by name",
    lambda value: isinstance(value, Collection) and not isinstance(value, bytes),
)
PAIRS: Takes = (
    "a dict of (scale, zero point) by tensor name, such as {'conv1': (0.05, -17)}",
    lambda value: value is None or _by_name(value, _is_pair),
)
