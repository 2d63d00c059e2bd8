"""Tensors whose values a type cannot hold: results beyond float16, and results that are small against one quantization step."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import numpy as np

from ..._util.optional import onnxruntime
from ..._util.types import Array
from ...errors import AnynpuError
from ...program import Preprocess
from ..custom_operators import CustomTable
from ..graph import Graph
from ..lower.forms import Form
from ..lower.steps import Step
from .calibrate import Calibration, FloatModel
from .dataset import Sample

# Results beyond float16: the float model shows which results of a model of halves a chip would lose.
#
# A chip stores the result of each layer as float16, what is beyond 65504 as infinity, and what is below its smallest number as
# zero. Float layers here compute in float32, so such a result is cast on its way. Nothing else is: a cast costs time, and few
# networks come near. Where no data is given, inputs are made up: bytes of an image where it is known how they are normalized,
# else random numbers as networks are trained with.


HALF_MAX = 65504.0
"""The largest float16."""

ADDING = ("Add", "Sub", "Where", "Max", "Min", "Clip", "Concat")
"""Operators whose constants are added or chosen: a far one is a mask."""

_NEAR = 0.25
"""Of the largest float16: other inputs may go beyond."""

_NEAR_MADE_UP = 1 / 16
SMALLEST_FEW = 16 * 2.0**-24
"""Results that are all smaller than this have fewer than 16 numbers of float16."""

_BYTES = 255.0
_SAMPLES = 2
_TOGETHER = 256 << 20
"""Bytes of results that are held at a time."""

_log = logging.getLogger("anynpu.compiler")


def near_the_end(
    graph: Graph, steps: Sequence[Step], samples: Iterable[Sample], custom: CustomTable, *, given: bool = True
) -> frozenset[str]:
    """The results of *steps* that come near the end of float16 on the first samples, or go beyond, of which a warning reports.

    Empty where the float model cannot be run: nothing depends on it.

    :param given: whether the samples are the caller's, or made up
    """
    near = HALF_MAX * (_NEAR if given else _NEAR_MADE_UP)
    found: dict[str, float] = {}
    largest_of: dict[str, float] = {}
    with np.errstate(invalid="ignore"):
        try:
            for names in _groups(graph, steps):
                model = FloatModel(graph, names, custom)
                for sample in islice(samples, _SAMPLES):
                    values = model.run(sample)
                    for name in names:
                        largest = float(np.fmax.reduce(np.abs(values[name]), axis=None, initial=0))
                        largest_of[name] = max(largest_of.get(name, 0.0), largest)
                        if largest > near:
                            found[name] = max(found.get(name, 0.0), largest)
        except AnynpuError as error:
            _log.debug("results beyond float16 are not looked for: %s", error)
            return frozenset()
    beyond = {name: largest for name, largest in found.items() if largest > HALF_MAX}
    tiny = {name: largest for name, largest in largest_of.items() if 0.0 < largest < SMALLEST_FEW}
    on = "the given data" if given else "random inputs"
    _warn(steps, beyond, on)
    _warn_of_tiny(graph, steps, tiny, on)
    return frozenset(found) | tiny.keys()


def made_up(graph: Graph, preprocess: Mapping[str, Preprocess]) -> list[Sample]:
    """Inputs for a network that comes without data."""
    rng = np.random.default_rng(0)
    return [{name: _made_up(graph, name, preprocess.get(name), rng) for name in graph.inputs}]


def _made_up(graph: Graph, name: str, normalised: Preprocess | None, rng: np.random.Generator) -> Array:
    shape, dtype = graph.shapes[name], graph.dtypes[name]
    if dtype != np.float32:
        return rng.integers(0, 2, shape).astype(dtype)  # an index that every table has
    if normalised is None:
        return rng.standard_normal(shape, np.float32)
    by_channel = (1, -1, *(1,) * (len(shape) - 2))
    mean, std = (np.asarray(values, np.float32).reshape(by_channel) for values in (normalised.mean, normalised.std))
    result: Array = (_BYTES * rng.random(shape, np.float32) - mean) / std
    return result


def _groups(graph: Graph, steps: Sequence[Step]) -> Iterator[list[str]]:
    """Names of results, as many at a time as memory allows."""
    onnxruntime()
    names: list[str] = []
    size = 0
    for step in steps:
        if step.node.op in ADDING and any(_is_far(graph.constants.get(name)) for name in step.node.inputs):
            continue  # a mask, which ends at the limit of float16
        for name in step.outputs:
            if step.is_float and graph.dtypes[name] == np.float32 and name not in graph.inputs:
                size += 4 * int(np.prod(graph.shapes[name], dtype=np.int64))
                if names and size > _TOGETHER:
                    yield names
                    names, size = [], 0
                names.append(name)
    if names:
        yield names


def _is_far(constant: Array | None) -> bool:
    return constant is not None and constant.dtype.kind == "f" and bool(np.abs(constant).max(initial=0) > HALF_MAX)


def _warn(steps: Sequence[Step], beyond: Mapping[str, float], on: str) -> None:
    """Name the first layer; those after it follow from it."""
    first = next(((step, name) for step in steps for name in step.outputs if name in beyond), None)
    if first is None:
        return
    step, name = first
    _log.warning(
        "the result of '%s' reaches %g on %s, and float16 ends at 65504: it is infinite on the chip%s; "
        "scale it down, or compile to int8 or bfloat16",
        step.node.label,
        beyond[name],
        on,
        f", and so are {len(beyond) - 1} others" if len(beyond) > 1 else "",
    )


def _warn_of_tiny(graph: Graph, steps: Sequence[Step], tiny: Mapping[str, float], on: str) -> None:
    """Name the outputs that are lost, or else the first layer: those after it may be right again."""
    names = [name for step in steps for name in step.outputs if name in tiny]
    if not names:
        return
    outputs = [name for name in names if name in graph.outputs]
    what = f"output '{outputs[0]}'" if outputs else f"the result '{names[0]}'"
    many = len(outputs or names) - 1
    _log.warning(
        "%s is at most %.2g on %s, and float16 has no number between 0 and 6e-08: on the chip %s%s; "
        "scale the network up (untrained weights are often like this), or compile to bfloat16",
        what,
        tiny[(outputs or names)[0]],
        on,
        "all of it is 0" if tiny[(outputs or names)[0]] < 2.0**-25 else "little of it is left",
        f", and so with {many} more" if many else "",
    )


# Results that are small against one code of what they are chosen from: integers would state little about them.
#
# The least of many numbers may be small against the largest, and the quantized values are spread over all of them. Then it is found among
# real numbers.


_CODES = 255
_LEAST = 8
"""A result that spans fewer quantized values of its operand is not chosen among quantized values."""

_FOLLOWING = {Form.FUNCTION, Form.CONCAT, Form.SLICE, Form.PAD, Form.TRANSPOSE, Form.RESHAPE}


def too_coarse(steps: Sequence[Step], seen: Calibration) -> set[str]:
    """The operands of maxima that have to stay real, with what cheap integer steps make them from; a minimum is a maximum turned over."""
    observed = set(seen.observer.names)
    found: set[str] = set()
    for step in reversed(steps):
        if step.is_float:
            continue
        if step.form is Form.POOL and "Max" in step.node.op and observed.issuperset((step.outputs[0], step.inputs[0])):
            result, operand = _span(seen, step.outputs[0]), _span(seen, step.inputs[0])
            if 0.0 < result < _LEAST * operand / _CODES:
                found.add(step.inputs[0])
        elif step.form in _FOLLOWING and not found.isdisjoint(step.outputs):
            found.update(step.reads)
    return found


def _span(seen: Calibration, name: str) -> float:
    low, high = seen.observer.range(name, "minmax")
    return max(high, 0.0) - min(low, 0.0)
