"""What runs elsewhere as one side of a comparison: a device, of which outputs are seen, or a simulator that tells its layers too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet

import numpy as np

from ..._util.types import Array
from ...errors import ShapeError
from .side import InputSpec, Outcome, Sample, Subject, Unit

__all__ = ["LayersSubject", "OutputsSubject"]


class OutputsSubject:
    """Something that runs a whole network.

    The names of its tensors are those of the other side, by position: a vendor's tool may have given them others.

    :param inputs: as the other side has them
    :param outputs: as the other side has them
    :param run: from raw inputs, in order, to outputs as real numbers, in order
    """

    def __init__(
        self,
        title: str,
        inputs: Sequence[InputSpec],
        outputs: Mapping[str, tuple[int, ...]],
        run: Callable[[Sequence[Array]], Sequence[Array]],
    ) -> None:
        self.title = title
        self.inputs = tuple(inputs)
        self.outputs = dict(outputs)
        self._run = run
        self._last: dict[str, Array] = {}

    @property
    def tensors(self) -> AbstractSet[str]:
        return self.outputs.keys()

    def watch(self, names: AbstractSet[str]) -> None:
        """Its outputs are all that there is."""

    def units(self) -> Sequence[Unit]:
        """One for each output."""
        return [Unit(index, name, "Output", (name,)) for index, name in enumerate(self.outputs)]

    def run(self, sample: Sample) -> Mapping[str, Array]:
        """See :meth:`Subject.run`."""
        results = [np.asarray(value) for value in self._run([sample[entry.name] for entry in self.inputs])]
        wanted = list(self.outputs.items())
        if len(results) != len(wanted):
            raise ShapeError(
                f"{self.title} gives {len(results)} outputs, the other side {len(wanted)}",
                hint="let the device run a model of the same network",
            )
        self._last = {}
        for (name, shape), value in zip(wanted, results, strict=True):
            if value.size != int(np.prod(shape)):
                raise ShapeError(
                    f"output '{name}' is {list(value.shape)} on {self.title}, and {list(shape)} on the other side",
                    hint="let the device run a model of the same network and shape",
                )
            self._last[name] = value.reshape(shape)
        return self._last

    def outcome(self, unit: Unit) -> Outcome:
        """See :meth:`Subject.outcome`."""
        return Outcome({name: self._last[name] for name in unit.tensors})

    def alone(self, unit: Unit, values: Mapping[str, Array]) -> Outcome | None:
        """A device cannot run a part of a network."""
        return None

    def same_arithmetic(self, unit: Unit, other: Subject) -> bool:
        """Nothing is known about how it computes."""
        return False


class LayersSubject(OutputsSubject):
    """Something that runs a whole network and tells the results of its layers, too.

    :param tensors: names of all that it may tell
    :param layers: from a sample to values by name
    """

    def __init__(
        self,
        title: str,
        inputs: Sequence[InputSpec],
        outputs: Mapping[str, tuple[int, ...]],
        tensors: AbstractSet[str],
        layers: Callable[[Sample], Mapping[str, Array]],
    ) -> None:
        super().__init__(title, inputs, outputs, lambda arrays: ())
        self._tensors = frozenset(tensors)
        self._layers = layers

    @property
    def tensors(self) -> AbstractSet[str]:
        return self._tensors

    def run(self, sample: Sample) -> Mapping[str, Array]:
        """See :meth:`Subject.run`."""
        self._last = dict(self._layers(sample))
        return self._last
