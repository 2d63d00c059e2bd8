"""What a comparison asks of its two sides.

A :class:`Subject` runs samples and tells the values of its tensors, by the names that they have in the ONNX model and in its order of
axes. The side that is judged is also asked for its *units*: what it executes step by step, each of which can be run alone on values of the
other side.

A subject keeps the tensors of its last run, so one thread at a time uses it; there is no lock in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ..._util.types import Array
from ...errors import ShapeError, TensorNameError
from ...tensor import TensorSpec

__all__ = ["InputSpec", "Outcome", "Sample", "Subject", "Unit", "check_interfaces"]

Sample = Mapping[str, Array]
"""Raw inputs by name: what a program would feed to the compiled model, in the shape of the ONNX model."""


@dataclass(frozen=True)
class InputSpec:
    """An input as a sample has it.

    :ivar low: smallest value that it can stand for, where that is known
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Unit:
    """One step of the side that is judged.

    :ivar index: number of the layer, -1 for an input
    :ivar tensors: what it makes, by the names of the ONNX model
    :ivar specs: the same as they lie in memory; empty where that is not known
    :ivar nodes: the ONNX nodes in it
    """

    index: int
    name: str
    kind: str
    tensors: tuple[str, ...]
    specs: tuple[TensorSpec, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What a unit made of one sample: values by tensor and, where they are quantised, their codes."""

    values: Mapping[str, Array]
    codes: Mapping[str, Array] = field(default_factory=dict)


class Subject(Protocol):
    """One side of a comparison."""

    title: str
    """What reports call it."""

    @property
    def inputs(self) -> Sequence[InputSpec]: ...

    @property
    def outputs(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each output, by name and in order."""
        ...

    @property
    def tensors(self) -> AbstractSet[str]:
        """Names of all tensors whose values it can tell."""
        ...

    def watch(self, names: AbstractSet[str]) -> None:
        """Called once, before the first sample: only these tensors matter."""
        ...

    def units(self) -> Sequence[Unit]:
        """The steps, in the order of execution, as far as they make tensors that are watched."""
        ...

    def run(self, sample: Sample) -> Mapping[str, Array]:
        """Values of the watched tensors."""
        ...

    def outcome(self, unit: Unit) -> Outcome:
        """What a unit made in the last run."""
        ...

    def alone(self, unit: Unit, values: Mapping[str, Array]) -> Outcome | None:
        """What a unit makes of *values*, those of the other side; None where they do not have all that it reads."""
        ...

    def same_arithmetic(self, unit: Unit, other: Subject) -> bool:
        """Whether the other side computes these tensors from the same codes to the same codes, so that nothing may differ."""
        ...


def check_interfaces(a: Subject, b: Subject) -> None:
    """Refuse two sides that do not take and give the same tensors."""
    sides = (
        (a.title, {entry.name: entry.shape for entry in a.inputs}),
        (b.title, {entry.name: entry.shape for entry in b.inputs}),
    )
    _check("input", *sides)
    _check("output", (a.title, dict(a.outputs)), (b.title, dict(b.outputs)))


def _check(what: str, a: tuple[str, Mapping[str, tuple[int, ...]]], b: tuple[str, Mapping[str, tuple[int, ...]]]) -> None:
    (first, left), (second, right) = a, b
    if left.keys() != right.keys():
        raise TensorNameError(
            f"the {what}s differ: {first} has {', '.join(left)}; {second} has {', '.join(right)}",
            hint="compare two forms of one network",
        )
    for name, shape in left.items():
        if shape != right[name]:
            raise ShapeError(
                f"{what} '{name}' is {list(shape)} in {first} and {list(right[name])} in {second}",
                hint="compare them at one shape: --shape for an ONNX model, --shape-set for a compiled one",
            )
