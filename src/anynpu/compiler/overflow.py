"""Results beyond float16: where a model of halves is compiled with data, the float model shows which results a chip would lose.

A chip stores the result of each layer as float16, and what is beyond 65504 as infinity. Float layers here compute in float32, so such a
result is cast on its way. Nothing else is: a cast costs time, and few networks come near.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import numpy as np

from .._optional import onnxruntime
from ..errors import AnynpuError
from .calibrate import FloatModel
from .custom import CustomTable
from .dataset import Sample
from .graph import Graph
from .steps import Step

__all__ = ["HALF_MAX", "near_the_end"]

HALF_MAX = 65504.0
"""The largest float16."""

_NEAR = 0.25
"""Of the largest float16: other inputs may go beyond."""

_SAMPLES = 2
_TOGETHER = 256 << 20
"""Bytes of results that are held at a time."""

_log = logging.getLogger("anynpu.compiler")


def near_the_end(graph: Graph, steps: Sequence[Step], samples: Iterable[Sample], custom: CustomTable) -> frozenset[str]:
    """The results of *steps* that come near the end of float16 on the first samples, or go beyond, of which a warning tells.

    Empty where the float model cannot be run: nothing depends on it.
    """
    found: dict[str, float] = {}
    with np.errstate(invalid="ignore"):
        try:
            for names in _groups(graph, steps):
                model = FloatModel(graph, names, custom)
                for sample in islice(samples, _SAMPLES):
                    values = model.run(sample)
                    for name in names:
                        largest = float(np.nanmax(np.abs(values[name]), initial=0))
                        if largest > _NEAR * HALF_MAX:
                            found[name] = max(found.get(name, 0.0), largest)
        except AnynpuError as error:
            _log.debug("results beyond float16 are not looked for: %s", error)
            return frozenset()
    _warn(steps, {name: largest for name, largest in found.items() if largest > HALF_MAX})
    return frozenset(found)


def _groups(graph: Graph, steps: Sequence[Step]) -> Iterator[list[str]]:
    """Names of results, as many at a time as memory allows."""
    onnxruntime()
    names: list[str] = []
    size = 0
    for step in steps:
        for name in step.outputs:
            if step.is_float and graph.dtypes[name] == np.float32 and name not in graph.inputs:
                size += 4 * int(np.prod(graph.shapes[name], dtype=np.int64))
                if names and size > _TOGETHER:
                    yield names
                    names, size = [], 0
                names.append(name)
    if names:
        yield names


def _warn(steps: Sequence[Step], beyond: Mapping[str, float]) -> None:
    """Name the first layer; those after it follow from it."""
    first = next(((step, name) for step in steps for name in step.outputs if name in beyond), None)
    if first is None:
        return
    step, name = first
    _log.warning(
        "the result of '%s' reaches %g on the given data, and float16 ends at 65504: it is infinite on the chip%s; "
        "scale it down, or compile to int8 or bfloat16",
        step.node.label,
        beyond[name],
        f", and so are {len(beyond) - 1} others" if len(beyond) > 1 else "",
    )
