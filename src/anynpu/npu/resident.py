"""A model in device memory: what a loaded model and its contexts have in common.

Locks: the prepared programs are made at first use under the resident model's lock, so that two contexts never prepare the same one twice.
Everything else is set once.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from ..errors import ShapeError
from ..program import Model
from .engines.base import Engine, Executable, check_sizes
from .engines.preparation import Preparation
from .memory import Buffer

__all__ = ["Resident", "internal_size", "shape_set"]


class Resident:
    """A model whose weights lie in device memory, and its prepared programs."""

    def __init__(self, model: Model, weights: Buffer, engine: Engine) -> None:
        for program in model.programs:
            check_sizes(program)  # now, not when the first run prepares it
        self.model = model
        self.weights = weights
        self._engine = engine
        self._preparation = Preparation(stored=weights.size)
        self._lock = threading.Lock()
        self._executables: dict[int, Executable] = {}
        if getattr(engine, "eager", False):  # it looks now whether it computes the right bytes
            for index in range(len(model.programs)):
                self.executable(index)

    def executable(self, index: int) -> Executable:
        """The prepared program of one shape set."""
        with self._lock:
            if index not in self._executables:
                self._executables[index] = self._engine.prepare(self.model.programs[index], self._preparation)
            return self._executables[index]


def internal_size(model: Model) -> int:
    """Bytes of internal memory that serve every program of a model."""
    return max(program.memory.size for program in model.programs)


def shape_set(model: Model, shapes: int | Mapping[str, Sequence[int]]) -> int:
    """The index of the program for *shapes*: an index, or the shape of each input by name."""
    sets = [{spec.name: spec.shape for spec in program.input_specs} for program in model.programs]
    if isinstance(shapes, int):
        if 0 <= shapes < len(sets):
            return shapes
        raise ShapeError(f"there is no shape set {shapes}: the model has {len(sets)}", hint=f"use 0 to {len(sets) - 1}")
    wanted = {name: tuple(int(extent) for extent in shape) for name, shape in shapes.items()}
    for index, known in enumerate(sets):
        if all(known.get(name) == shape for name, shape in wanted.items()):
            return index
    listed = "; ".join(", ".join(f"{name} {list(shape)}" for name, shape in known.items()) for known in sets)
    asked = ", ".join(f"{name} {list(shape)}" for name, shape in wanted.items())
    raise ShapeError(f"the model was not compiled for {asked}", hint=f"it has: {listed}")
