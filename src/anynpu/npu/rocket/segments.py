"""Which layers of a program run as command streams, and where features change their layout.

Consecutive layers with streams are one *segment*. Between them features stay in planes; they are converted at the borders, where a layer on
the CPU, an input or an output of the program is on the other side.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from ...program import Conv, Layer, MemoryPlan, Program
from ...tensor import TensorSpec, round_up
from .layouts import LANES, plane_bytes
from .lower import Lanes, Lowered, Unsupported, lower

__all__ = ["Features", "Part", "Streams", "plan"]

_WRITTEN_CHANNELS = 64


@dataclass(frozen=True)
class Features:
    """How a tensor lies in the device's memory: in planes, or as the raw rows of one channel.

    :ivar lanes: the channel of each channel slot, where that is another order; *channels* counts the channel slots then
    """

    height: int
    width: int
    channels: int
    raw: bool = False
    lanes: Lanes | None = None

    @property
    def size(self) -> int:
        """Bytes; the chip may write whole blocks of 64 channels."""
        if self.raw:
            return self.height * max(self.width, LANES)
        last = self.channels if self.lanes is None else self.channels + _WRITTEN_CHANNELS  # a part may begin with any plane
        return round_up(last, _WRITTEN_CHANNELS) // LANES * plane_bytes(self.height, self.width)


@dataclass(frozen=True)
class Part:
    """Layers [first, last) of the program, which run as streams or on the CPU.

    :ivar loads: tensors that are converted into the device's memory before
    :ivar stores: tensors that are converted out of it after
    """

    first: int
    last: int
    streams: bool
    loads: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Streams:
    """A program as segments of streams and of layers on the CPU.

    :ivar lowered: by index of the layer
    :ivar reasons: why layers run on the CPU, by index
    :ivar features: tensors that lie in the device's memory
    """

    program: Program
    parts: tuple[Part, ...]
    lowered: Mapping[int, tuple[Lowered, ...]]
    reasons: Mapping[int, str]
    features: Mapping[str, Features]

    @property
    def share(self) -> float:
        """The part of the program's multiplications that streams make."""
        total = sum(layer.macs for layer in self.program.layers)
        return sum(self.program.layers[index].macs for index in self.lowered) / total if total else 0.0

    @property
    def conversions(self) -> int:
        """Changes of layout in one run."""
        return sum(len(part.loads) + len(part.stores) for part in self.parts)

    def on_cpu(self, part: Part) -> Program:
        """The layers of a part as a program."""
        layers = self.program.layers[part.first : part.last]
        made = {name for layer in layers for name in layer.outputs}
        inputs = tuple(dict.fromkeys(name for layer in layers for name in layer.inputs if name not in made))
        outputs = tuple(name for name in made if name in self._read_elsewhere(part))
        return Program(inputs, outputs, self.program.tensors, layers, MemoryPlan({}, 0), self.program.views)

    def _read_elsewhere(self, part: Part) -> set[str]:
        wanted = {self._owner(name) for name in self.program.outputs}
        for index, layer in enumerate(self.program.layers):
            if not part.first <= index < part.last:
                wanted |= {self._owner(name) for name in layer.inputs}
        wanted |= set(self.program.outputs)
        return wanted | {name for name in self.program.tensors if self._owner(name) in wanted}

    def _owner(self, name: str) -> str:
        return _owner(self.program, name)


def _owner(program: Program, name: str) -> str:
    while name in program.views:
        name = program.views[name]
    return name


def plan(program: Program, without: Collection[str] = ()) -> Streams:
    """Decide which layers run as streams, and where features are converted.

    :param without: features of the chip, of :data:`~.lower.FEATURES`, that are not used
    """
    lowered: dict[int, tuple[Lowered, ...]] = {}
    lanes = _lanes(program)
    reasons: dict[int, str] = {}
    for index, layer in enumerate(program.layers):
        try:
            lowered[index] = lower(layer, program.tensors, without, lanes)
        except Unsupported as reason:
            reasons[index] = str(reason)
    features: dict[str, Features] = {}
    for index in tuple(lowered):
        wanted = _features_of(program.layers[index], lowered[index], lanes)
        if any(features.get(name, each) != each for name, each in wanted.items()):
            del lowered[index]
            reasons[index] = "another layer reads its input in planes"
        else:
            features |= wanted
    parts = tuple(_parts(program, lowered))
    return Streams(program, parts, lowered, reasons, features)


def _lanes(program: Program) -> dict[str, Lanes]:
    """The order of channels in memory for tensors that have scales by group of channels: each group fills planes of its own.

    A depthwise convolution and an addition leave each channel in its channel slot, so that the tensors around them have one order.
    """
    joined: dict[str, str] = {}

    def first_of(name: str) -> str:
        while name in joined:
            name = joined[name]
        return name

    for layer in program.layers:
        if isinstance(layer.op, Conv):
            alike = [*layer.outputs, *layer.inputs[1:], *(layer.inputs[:1] if layer.op.groups > 1 else ())]
            for name in alike[1:]:
                if first_of(name) != first_of(alike[0]):
                    joined[first_of(name)] = first_of(alike[0])
    names: dict[str, list[str]] = {}
    for name, spec in program.tensors.items():
        if spec.quantization is not None and not spec.quantization.is_per_tensor:
            names.setdefault(first_of(name), []).append(name)
    found: dict[str, Lanes] = {}
    for name in program.tensors:
        grouped = names.get(first_of(name))
        if grouped and len({program.tensors[each].shape[1:2] for each in (*grouped, name)}) == 1:
            found[name] = _by_group([program.tensors[each] for each in grouped])
    return found


def _by_group(specs: list[TensorSpec]) -> Lanes:
    """Channels group by group, each from the beginning of a plane."""
    columns = []
    for spec in specs:
        assert spec.quantization is not None
        columns += [values.tolist() for values in spec.quantization.expand(spec.shape[1])]
    groups: dict[tuple[float, ...], list[int]] = {}
    for channel, numbers in enumerate(zip(*columns, strict=True)):
        groups.setdefault(numbers, []).append(channel)
    lanes: list[int] = []
    for channels in groups.values():
        lanes += [-1] * (-len(lanes) % LANES) + channels
    return tuple(lanes)


def _features_of(layer: Layer, parts: tuple[Lowered, ...], lanes: Mapping[str, Lanes]) -> dict[str, Features]:
    conv = parts[0].convolution
    channels, raw = (len(layer.op.weights), False) if conv.depthwise else (conv.in_channels, conv.raw_input)  # type: ignore[union-attr]

    def features(name: str, height: int, width: int, channels: int, raw: bool = False) -> Features:
        order = lanes.get(name)
        return Features(height, width, channels if order is None else len(order), raw, order)

    source, target = layer.inputs[0], layer.outputs[0]
    outputs = len(layer.op.weights)  # type: ignore[union-attr]
    found = {name: features(name, conv.out_height, conv.out_width, outputs) for name in (target, *layer.inputs[1:])}
    return {source: features(source, conv.height, conv.width, channels, raw), **found}


def _parts(program: Program, lowered: Mapping[int, tuple[Lowered, ...]]) -> Iterator[Part]:
    read_by_cpu = {_owner(program, name) for name in program.outputs}
    for index, layer in enumerate(program.layers):
        for name in layer.inputs:
            if index not in lowered or name in program.views:
                read_by_cpu.add(_owner(program, name))
    in_planes: set[str] = set()
    first = 0
    for last in range(1, len(program.layers) + 1):
        if last < len(program.layers) and (last in lowered) == (first in lowered):
            continue
        if first in lowered:
            made = [program.layers[index].outputs[0] for index in range(first, last)]
            loads = []
            known = set(in_planes)
            for index in range(first, last):
                for name in program.layers[index].inputs:
                    if name not in known:
                        loads.append(name)
                        known.add(name)
                known.add(program.layers[index].outputs[0])
            in_planes = known
            stores = tuple(name for name in made if _owner(program, name) in read_by_cpu or name in program.outputs)
            yield Part(first, last, True, tuple(loads), stores)
        else:
            yield Part(first, last, False)
        first = last
