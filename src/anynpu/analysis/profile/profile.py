"""A profile: for each layer what the chip is predicted to take, what the host took, and how full the memory is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...chips import Chip
from ...chips.timing import Bound, Prediction, predict
from ...chips.timing.parameters import TimingProfile
from ...program import Placement, Program

__all__ = ["LayerProfile", "Profile", "profile_program"]

_MAIN_SHARE = 0.8


@dataclass(frozen=True)
class LayerProfile:
    """One layer.

    :ivar start_us: when it begins on the chip, counted from the start of the run
    :ivar time_us: what it takes there
    :ivar bound: what decides that
    :ivar host_us: what it took on this machine; None where it was not run
    :ivar live_bytes: internal memory that is in use while it runs
    :ivar core_shares: how much of it each core does
    :ivar operations: multiply-accumulates, twice
    :ivar moved_bytes: bytes that it reads and writes
    """

    index: int
    name: str
    kind: str
    on_npu: bool
    reason: str
    start_us: float
    time_us: float
    bound: Bound
    mac_share: float
    operations: int
    moved_bytes: int
    live_bytes: int
    core_shares: tuple[float, ...]
    output_shape: tuple[int, ...]
    dtype: str
    host_us: float | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Profile:
    """All layers of one run, in order."""

    chip: Chip
    prediction: Prediction
    layers: tuple[LayerProfile, ...]
    internal_bytes: int

    def __repr__(self) -> str:
        return f"Profile({self.chip.name}, {len(self.layers)} layers, {self.latency_us:.0f} us)"

    @property
    def latency_us(self) -> float:
        """What the chip is predicted to take."""
        return self.prediction.latency_us

    @property
    def host_us(self) -> float | None:
        """What the layers took on this machine; None where they were not run."""
        times = [layer.host_us for layer in self.layers if layer.host_us is not None]
        return sum(times) if times else None

    def slowest(self, count: int) -> list[LayerProfile]:
        """The layers that take longest on the chip."""
        return sorted(self.layers, key=lambda layer: -layer.time_us)[:count]

    def advice(self) -> list[str]:
        """Where the time goes and what would save some of it, in sentences."""
        return [sentence for sentence in (self._concentration(), self._lookups(), self._cpu(), self._memory()) if sentence]

    def _concentration(self) -> str:
        total, sum_so_far = sum(layer.time_us for layer in self.layers), 0.0
        for count, layer in enumerate(self.slowest(len(self.layers)), 1):
            sum_so_far += layer.time_us
            if sum_so_far >= _MAIN_SHARE * total:
                layers = "1 layer takes" if count == 1 else f"{count} layers take"
                return f"{layers} {100 * sum_so_far / total:.0f} % of {_time_text(self.latency_us)}." if total else ""
        return ""

    def _lookups(self) -> str:
        bound = [layer for layer in self.layers if layer.bound is Bound.LOOKUP]
        if not bound:
            return ""
        saved = sum(self._without_table(layer) for layer in bound)
        number = "1 layer" if len(bound) == 1 else f"{len(bound)} layers"
        return f"Look-up activations bound {number}: ReLU in their place would save about {_time_text(saved)}."

    def _without_table(self, layer: LayerProfile) -> float:
        """Microseconds that a layer bound by its table would save: down to the next bound."""
        predicted = self.prediction.layers[layer.index]
        megahertz = self.chip.clock_hz / 1e6
        return max(0.0, layer.time_us - max(predicted.npu_cycles, predicted.ddr_cycles) / megahertz)

    def _cpu(self) -> str:
        share = self.prediction.cpu_share
        layers = [layer for layer in self.layers if not layer.on_npu]
        if share < 0.01 or not layers:
            return ""
        longest = max(layers, key=lambda layer: layer.time_us)
        return f"The CPU takes {100 * share:.0f} % of the time, most of it for {longest.kind} '{longest.name}': {longest.reason}."

    def _memory(self) -> str:
        spent = sum(layer.time_us for layer in self.layers if layer.bound is Bound.MEMORY)
        if spent < 0.3 * self.latency_us:
            return ""
        share = 100 * spent / self.latency_us
        return f"Memory bounds {share:.0f} % of the time: fewer channels or smaller pictures help, fewer MACs do not."


def _time_text(microseconds: float) -> str:
    """A time for reading.

    >>> _time_text(13_620), _time_text(23.4)
    ('13.6 ms', '23 us')
    """
    return f"{microseconds / 1000:.1f} ms" if microseconds >= 1000 else f"{microseconds:.0f} us"


def profile_program(
    program: Program,
    chip: Chip,
    *,
    cores: int = 1,
    board: TimingProfile | None = None,
    host_us: Mapping[int, float] | None = None,
) -> Profile:
    """The profile of one run of *program* on *chip*.

    :param cores: that the run may use
    :param board: measured parameters of a board, from ``anynpu calibrate``
    :param host_us: what each layer took on this machine, by index
    """
    prediction = predict(program, chip, cores=cores, profile=board)
    live = _live_bytes(program)
    layers, clock = [], 0.0
    for index, (layer, predicted) in enumerate(zip(program.layers, prediction.layers, strict=True)):
        output = program.tensors[layer.outputs[0]]
        layers.append(
            LayerProfile(
                index=index,
                name=layer.name,
                kind=layer.kind,
                on_npu=layer.placement is Placement.NPU,
                reason=layer.reason,
                start_us=clock,
                time_us=predicted.time_us,
                bound=predicted.bound,
                mac_share=float(predicted.mac_share),
                operations=2 * layer.macs,
                moved_bytes=predicted.read_bytes + predicted.written_bytes,
                live_bytes=live[index],
                core_shares=predicted.core_shares,
                output_shape=output.shape,
                dtype=output.dtype.value,
                host_us=None if host_us is None else host_us.get(index),
            )
        )
        clock += predicted.time_us
    return Profile(chip, prediction, tuple(layers), program.memory.size)


def _live_bytes(program: Program) -> list[int]:
    """Bytes of internal memory that hold something while each layer runs."""
    used: dict[str, tuple[int, int]] = {}

    def use(name: str, first: int, last: int) -> None:
        while name in program.views:
            name = program.views[name]
        before = used.get(name, (first, last))
        used[name] = (min(first, before[0]), max(last, before[1]))

    for index, layer in enumerate(program.layers):
        for name in (*layer.inputs, *layer.outputs):
            use(name, index, index)
    for stretch in program.float_stretches():
        for name in (*stretch.inputs, *stretch.outputs):
            use(name, stretch.first, stretch.last - 1)
    live = [0] * len(program.layers)
    for name, (first, last) in used.items():
        if name in program.memory.offsets:
            for index in range(first, last + 1):
                live[index] += program.tensors[name].nbytes
    return live
