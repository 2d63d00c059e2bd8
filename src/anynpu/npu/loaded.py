"""Models in device memory.

Who owns what: a :class:`LoadedModel` is the user's handle. What is in memory (the placed model, its weights buffer, the prepared
programs) is held together by one object that the handle and every context refer to; it goes away with the last of them. Closing the
handle therefore only ends the making of new contexts.

Locks: the prepared programs are made at first use under the resident model's lock, so that two contexts never prepare the same one twice.
Everything else is set once.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .. import modelfile
from ..errors import DeviceClosed, DeviceMemoryError, ModelError, ShapeError
from ..lifetime import Closeable
from ..program import Model, Program
from ..tensor import TensorSpec
from .engines.base import Engine, Executable
from .memory import Buffer, Purpose

if TYPE_CHECKING:
    from .context import Context
    from .device import Device

__all__ = ["LoadedModel"]


class Resident:
    """A model whose weights lie in device memory, and its prepared programs."""

    def __init__(self, model: Model, weights: Buffer, engine: Engine) -> None:
        self.model = model
        self.weights = weights
        self._engine = engine
        self._lock = threading.Lock()
        self._executables: dict[int, Executable] = {}

    def executable(self, index: int) -> Executable:
        """The prepared program of one shape set."""
        with self._lock:
            if index not in self._executables:
                self._executables[index] = self._engine.prepare(self.model.programs[index])
            return self._executables[index]


class LoadedModel(Closeable):
    """A model in the memory of a device, shared by all its contexts. Made by :meth:`Device.load`.

    >>> with Device("rk3588") as device:                                   # doctest: +SKIP
    ...     model = device.load("det.rknn")
    ...     first, second = model.context(), model.context()               # one copy of the weights
    """

    def __init__(
        self, device: Device, model: Model, *, weights: Buffer | None = None, weights_from: LoadedModel | None = None
    ) -> None:
        self._device = device
        if weights_from is not None:
            if weights is not None:
                raise DeviceMemoryError("weights and weights_from exclude each other", hint="pass one of them")
            weights = weights_from.weights
            placed = _attach(model, weights)
        elif model.weightless:
            if weights is None:
                raise ModelError(
                    f"the model '{model.name}' was saved without its weights",
                    hint="load it with weights_from=..., a model of the same network that has them, or with the buffer that holds them",
                )
            placed = _attach(model, weights)
        else:
            if weights is None:
                weights = device.memory.allocate(modelfile.weight_size(model), Purpose.WEIGHTS)
            placed = modelfile.place_weights(model, weights.view())
        self._resident: Resident | None = Resident(placed, weights, device.engine)

    @property
    def device(self) -> Device:
        return self._device

    @property
    def model(self) -> Model:
        """The model, its weights in device memory."""
        return self._require().model

    @property
    def weights(self) -> Buffer:
        """The memory that the weights lie in."""
        return self._require().weights

    @property
    def programs(self) -> tuple[Program, ...]:
        """One program for each set of input shapes."""
        return self._require().model.programs

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs of the first shape set."""
        return self.programs[0].input_specs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs of the first shape set."""
        return self.programs[0].output_specs

    @property
    def internal_size(self) -> int:
        """Bytes of internal memory that a context needs: enough for every shape set."""
        return internal_size(self._require().model)

    @property
    def closed(self) -> bool:
        return self._resident is None

    def context(self, *, internal: Buffer | None = None, shapes: int | Mapping[str, Sequence[int]] = 0) -> Context:
        """A new user of the model, with inputs and outputs of its own.

        :param internal: internal memory to use, of at least ``internal_size`` bytes; contexts that get the same buffer run in turn
        :param shapes: the shape set to begin with, by index or by the shape of each input
        """
        from .context import Context

        return Context(self, internal=internal, shapes=shapes)

    def close(self) -> None:
        """Make no more contexts. The memory is given back when the last context is closed."""
        self._resident = None

    def _require(self) -> Resident:
        resident = self._resident
        if resident is None:
            raise DeviceClosed("the loaded model was closed", hint="load it again")
        return resident

    def __repr__(self) -> str:
        resident = self._resident
        return "<LoadedModel, closed>" if resident is None else f"<LoadedModel {resident.model.name or 'without a name'}>"


def _attach(model: Model, weights: Buffer) -> Model:
    """The model on weights that are in memory already; refused if they are another network's."""
    if model.weightless:
        return modelfile.attach_weights(model, weights.view())
    encoded = modelfile.encode(model, remove_weight=True)
    return modelfile.decode(encoded.header, weights.view())


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
