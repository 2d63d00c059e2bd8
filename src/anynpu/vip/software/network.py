"""One ``vip_network``: a model, what the caller has set and bound, and the jobs that were submitted.

Who owns what: a network owns its engine context and its internal memory (unless the caller gave some) from
``vip_prepare_network`` to ``vip_finish_network``. Weights are shared with its duplicates.

Locks: ``lock`` protects the properties, the bindings, what is prepared, and the job that was triggered. It is never held while a
job runs: a job takes the bindings that there are when it is submitted, and works with those. Jobs of one network take turns in
the device's scheduler.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ... import modelfile
from ...errors import JobCancelled
from ...npu import Buffer, Context, Device, DeviceJob, LoadedModel, Stage
from ...npu.resident import internal_size
from ...npu.value_check import ValueCheck
from ...program import Model
from ...program.convert import Conversion
from ..attributes import Attributes, input_attributes, output_attributes
from .buffers import BufferState
from .jobs import Jobs
from .models import Weights
from .power import Power
from .refusal import Refusal, Status

__all__ = ["NetworkState", "Port", "RunCost"]

HIGHEST_PRIORITY = 255


@dataclass(frozen=True)
class RunCost:
    """What the chip is predicted to have taken for a run."""

    microseconds: int = 0
    cycles: int = 0

    def __add__(self, other: RunCost) -> RunCost:
        return RunCost(self.microseconds + other.microseconds, self.cycles + other.cycles)


class Port:
    """One input or output: how it is seen, and the way between that and the engine."""

    def __init__(self, attributes: Attributes, conversion: Conversion) -> None:
        self.attributes = attributes
        self.conversion = conversion
        self.buffer: BufferState | None = None


@dataclass(frozen=True, eq=False)
class _Prepared:
    """The engine's side of a prepared network.

    :ivar addresses: of the engine's inputs and outputs, by name
    :ivar internal: its internal memory, which weak duplicates share
    """

    loaded: LoadedModel
    context: Context
    addresses: dict[str, int]
    internal: Buffer


@dataclass(frozen=True, eq=False)
class _Move:
    """One way of data for one job. *memory* keeps the buffer's bytes alive, whatever becomes of the buffer."""

    conversion: Conversion
    buffer: BufferState
    memory: npt.NDArray[np.uint8]
    engine: int


class NetworkState:
    """The state behind the handle of a network.

    :param weak_of: a network whose internal memory serves this one as well
    :param values: checks what the buffers of the caller hold
    """

    def __init__(
        self,
        weights: Weights,
        power: Power,
        jobs: Jobs,
        *,
        weak_of: NetworkState | None = None,
        values: ValueCheck | None = None,
    ) -> None:
        self.values = values
        self.lock = threading.RLock()
        self.weights = weights
        self.priority = 0
        self.timeout_ms = 0
        self.core = -1
        self.pool: BufferState | None = None
        self.coefficients: BufferState | None = None
        self.profile = RunCost()
        self.triggered: DeviceJob[None] | None = None
        self._power = power
        self._jobs = jobs
        self._weak_of = weak_of
        self._prepared: _Prepared | None = None
        self._profiles: dict[int, RunCost] = {}
        self._moves: tuple[list[_Move], list[_Move]] | None = None  # of the buffers that are bound now
        self.closed = False
        program, chip = self.model.programs[0], self.device.chip
        self.inputs: list[Port] = []
        self.outputs: list[Port] = []
        for spec in program.input_specs:
            seen = input_attributes(self.model, spec, chip)
            self.inputs.append(Port(seen, Conversion(seen.spec, spec, seen.preprocess)))
        for spec in program.output_specs:
            seen = output_attributes(self.model, spec, chip)
            self.outputs.append(Port(seen, Conversion(spec, seen.spec)))

    def __str__(self) -> str:
        layers = len(self.model.programs[0].layers)
        return f"network '{self.model.name}', {layers} layers, priority {self.priority}, core {self.core}"

    @property
    def model(self) -> Model:
        return self.weights.model

    @property
    def device(self) -> Device:
        return self.weights.device

    @property
    def prepared(self) -> bool:
        return self._prepared is not None

    @property
    def pool_size(self) -> int:
        """Bytes of internal memory."""
        return internal_size(self.model)

    def duplicate(self, *, weak: bool = False) -> NetworkState:
        """A network with the same weights; a *weak* one has the same internal memory, too."""
        twin = NetworkState(self.weights, self._power, self._jobs, weak_of=self if weak else None, values=self.values)
        twin.priority, twin.timeout_ms, twin.core = self.priority, self.timeout_ms, self.core
        return twin

    def require_unprepared(self, what: str) -> None:
        """Refuse what has to be said before the network is prepared."""
        if self.prepared:
            raise Refusal(
                Status.VIP_ERROR_INVALID_ARGUMENTS,
                f"{what} cannot be set any more: '{self.model.name}' is prepared",
                "call vip_set_network before vip_prepare_network",
            )

    def prepare(self) -> None:
        """Put the network into memory; nothing to do if it is there."""
        with self.lock:
            self._require_open()
            if self._prepared is not None:
                return
            self._power.require()
            internal = self._internal()
            loaded = self.weights.load(self._memory(self.coefficients, modelfile.weight_size(self.model), "coefficients"))
            context = loaded.context(internal=internal)
            program = self.model.programs[0]
            try:
                addresses = {name: context.input_buffer(name).address for name in program.inputs}
                addresses |= {name: context.output_buffer(name).address for name in program.outputs if name not in addresses}
            except BaseException:
                context.close()
                raise
            self._prepared = _Prepared(loaded, context, addresses, context.internal_memory)

    def finish(self) -> None:
        """The way back: jobs are stopped, memory is given back, bindings are let go. Nothing to do if that was done."""
        with self.lock:
            prepared, self._prepared = self._prepared, None
            self._moves = None
            for port in (*self.inputs, *self.outputs):
                port.buffer = None
        if prepared is not None:
            self._jobs.stop_all(self, lambda: JobCancelled("the network was finished while the job was on its way"))
            prepared.context.close()

    def bind(self, ports: list[Port], index: int, buffer: BufferState, what: str) -> None:
        """Let jobs that are submitted from now on use *buffer*."""
        if index >= len(ports):
            raise Refusal(Status.VIP_ERROR_INVALID_ARGUMENTS, f"there is no {what} {index}: the network has {len(ports)}")
        needed = ports[index].attributes.nbytes
        if buffer.nbytes < needed:
            raise Refusal(
                Status.VIP_ERROR_INVALID_ARGUMENTS,
                f"{what} {index} takes {needed} bytes, the buffer has {buffer.nbytes}",
                f"create it with what vip_query_{what} says",
            )
        with self.lock:
            self.require_prepared()
            ports[index].buffer = buffer
            self._moves = None

    def require_prepared(self) -> _Prepared:
        """What ``vip_prepare_network`` made."""
        self._require_open()
        prepared = self._prepared
        if prepared is None:
            raise Refusal(
                Status.VIP_ERROR_NETWORK_NOT_PREPARED, f"'{self.model.name}' is not prepared", "call vip_prepare_network before"
            )
        return prepared

    def stage(self) -> Stage:
        """The network as it is bound now, as a part of a job."""
        with self.lock:
            prepared = self.require_prepared()
            self._power.require()
            percent = self._power.percent
            moves = self._moves
            if moves is None or any(move.buffer.closed for side in moves for move in side):
                moves = self._moves = self._all_moves(prepared.addresses)
        reads, writes = moves
        profile, values = self.predicted(percent), self.values

        def before() -> None:
            for move in reads:
                if move.buffer.pieces:
                    move.buffer.gather(move.memory)
                if values is not None:
                    values.input_at(move.conversion.source, move.buffer.address)
                move.conversion.run(move.buffer.address, move.engine)

        def after() -> None:
            for move in writes:
                move.conversion.run(move.engine, move.buffer.address)
                if values is not None:
                    values.output_at(move.conversion.target, move.buffer.address, move.conversion.source.dtype)
                if move.buffer.pieces:
                    move.buffer.scatter(move.memory)
            self.profile = profile

        slowed = self.device.clock is not None and percent != 100
        return Stage(prepared.context, before, after, self._latency() * 100 / percent if slowed else None)

    def run(self) -> None:
        """Execute in the calling thread."""
        stage = self.stage()
        self._jobs.run(self.device, (self,), (stage,), core=self.core, priority=self.priority, timeout_ms=self.timeout_ms)

    def trigger(self) -> None:
        """Submit, and return at once."""
        with self.lock:
            if self.triggered is not None:
                raise Refusal(
                    Status.VIP_ERROR_FAILURE, f"'{self.model.name}' is on its way already", "call vip_wait_network before"
                )
            stage = self.stage()
            self.triggered = self._jobs.start(
                self.device, (self,), (stage,), core=self.core, priority=self.priority, timeout_ms=self.timeout_ms
            )

    def wait(self) -> None:
        """Wait for what :meth:`trigger` submitted."""
        with self.lock:
            job, self.triggered = self.triggered, None
        if job is None:
            raise Refusal(
                Status.VIP_ERROR_FAILURE, f"no job of '{self.model.name}' is on its way", "call vip_trigger_network before"
            )
        job.result()

    def predicted(self, percent: int = 100) -> RunCost:
        """What the chip takes for a run at a share of its clock."""
        known = self._profiles.get(percent)
        if known is None:
            latency = self._latency()
            cycles = max(1, round(latency * self.device.chip.clock_hz / 1e6))
            known = self._profiles[percent] = RunCost(max(1, round(latency * 100 / percent)), cycles)
        return known

    def cancel(self) -> None:
        """Stop the jobs that are in flight."""
        self._jobs.stop_all(self, lambda: JobCancelled("the network was cancelled"))

    def close(self) -> None:
        """End the network; handles to it are gone already."""
        self.closed = True
        self.finish()
        self._weak_of = None

    def _all_moves(self, addresses: dict[str, int]) -> tuple[list[_Move], list[_Move]]:
        sides = ((self.inputs, "input"), (self.outputs, "output"))
        reads, writes = (
            [self._move(port, addresses[port.attributes.spec.name], what) for port in ports] for ports, what in sides
        )
        return reads, writes

    def _move(self, port: Port, engine: int, what: str) -> _Move:
        buffer = port.buffer
        memory = None if buffer is None else buffer.bytes()
        if buffer is None or memory is None:
            raise Refusal(
                Status.VIP_ERROR_MISSING_INPUT_OUTPUT,
                f"{what} '{port.attributes.name}' has no buffer"
                + ("" if buffer is None else ": the one that it had was destroyed"),
                f"call vip_set_{what} before",
            )
        return _Move(port.conversion, buffer, memory, engine)

    def _internal(self) -> Buffer | None:
        shared = self._weak_of
        if shared is not None and shared._prepared is not None:
            return shared._prepared.internal
        return self._memory(self.pool, self.pool_size, "memory pool")

    def _memory(self, state: BufferState | None, needed: int, what: str) -> Buffer | None:
        """Memory that the caller gave for a purpose, as the engine takes it."""
        if state is None:
            return None
        memory = state.bytes()
        if memory is None or memory.size < needed:
            have = "was destroyed" if memory is None else f"has {memory.size} bytes"
            raise Refusal(Status.VIP_ERROR_INVALID_ARGUMENTS, f"the {what} takes {needed} bytes, its buffer {have}")
        return Buffer.from_address(memory.ctypes.data, memory.size, keep_alive=memory)

    def _latency(self) -> float:
        return self.device.prediction(self.model.programs[0]).latency_us

    def _require_open(self) -> None:
        if self.closed:
            raise Refusal(Status.VIP_ERROR_INVALID_NETWORK, "the network was destroyed")
