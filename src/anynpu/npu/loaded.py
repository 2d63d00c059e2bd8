"""Models in device memory.

Who owns what: a :class:`LoadedModel` is the user's handle. What is in memory (the placed model, its weights buffer, the prepared
programs) is held together by one object that the handle and every context refer to (:mod:`anynpu.npu.resident`); it goes away with the
last of them. Closing the handle therefore only ends the making of new contexts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .. import modelfile
from .._util.lifetime import Closeable
from ..errors import DeviceClosed, DeviceMemoryError, ModelError
from ..program import Model, Program
from ..tensor import TensorSpec
from .context import Context
from .memory import Buffer, Purpose
from .resident import Resident, internal_size

if TYPE_CHECKING:
    from .device import Device

__all__ = ["LoadedModel"]


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
