"""One ``vip_network``: a model, what the caller has set and bound, and the jobs that were submitted.

Who owns what: a network owns its engine context and its internal memory (unless the caller gave some) from
``vip_prepare_network`` to ``vip_finish_network``. Weights are shared with its duplicates.

Locks: ``lock`` protects the properties, the bindings, what is prepared, and the job that was triggered. It is never held while a
job runs: a job takes the bindings that there are when it is submitted, and works with those. Jobs of one network take turns in
the device's scheduler.
"""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import chips, modelfile
from ..._vip import ffi
from ...chips import Chip
from ...errors import JobCancelled
from ...modelfile import vendorfile
from ...modelfile.recognize import FileKind, identify
from ...npu import Buffer, Context, Device, DeviceJob, LoadedModel, Stage
from ...npu.memory import internal_size
from ...npu.value_check import ValueCheck
from ...program import Model
from ...program.convert import Conversion
from ...vendors.libraries import Refusal
from ..attributes import Attributes, input_attributes, output_attributes
from ..constants import vip_create_network_type_e
from ..generations import Generation, target_words
from .buffers import BufferState
from .handles import Status
from .jobs import Jobs, Power

# Models of networks: where they come from, whether they fit the NPU, and their weights.
#
# Who owns what: :class:`Weights` is shared by a network and its duplicates. The weights are in device memory for as long as one of
# them is prepared. Its lock is held while they are put there, so that two networks never do it twice.


_FILE = vip_create_network_type_e.VIP_CREATE_NETWORK_FROM_FILE
_MODES = vip_create_network_type_e.VIP_CREATE_NETWORK_MODE_NORMAL | vip_create_network_type_e.VIP_CREATE_NETWORK_MODE_SECURE
_ORIGINS = {
    _FILE,
    vip_create_network_type_e.VIP_CREATE_NETWORK_FROM_MEMORY,
    vip_create_network_type_e.VIP_CREATE_NETWORK_FROM_FLASH,
}


class Weights:
    """A model for a device, and its weights once they are needed."""

    def __init__(self, model: Model, device: Device) -> None:
        self.model = model
        self.device = device
        self._lock = threading.Lock()
        self._loaded: weakref.ref[LoadedModel] | None = None

    def load(self, memory: Buffer | None = None) -> LoadedModel:
        """The model in device memory; *memory* is where to put the weights, unless they are there already."""
        with self._lock:
            loaded = None if self._loaded is None else self._loaded()
            if loaded is None:
                loaded = self.device.load(self.model, weights=memory)
                self._loaded = weakref.ref(loaded)
            return loaded


def read_model(data: Any, size: int, kind: int, chip: Chip | None, generation: Generation) -> Model:
    """The model that ``vip_create_network`` is given, for *chip* (None: the one it was compiled for)."""
    if data == ffi.NULL:
        raise Refusal(Status.VIP_ERROR_INVALID_ARGUMENTS, "the model is a null pointer")
    origin = kind & ~int(_MODES)
    if origin not in _ORIGINS:
        raise Refusal(
            Status.VIP_ERROR_INVALID_NETWORK,
            f"there is no network type {kind:#x}",
            "use VIP_CREATE_NETWORK_FROM_FILE or VIP_CREATE_NETWORK_FROM_MEMORY",
        )
    if kind & vip_create_network_type_e.VIP_CREATE_NETWORK_MODE_SECURE:
        raise Refusal(Status.VIP_ERROR_NOT_SUPPORTED, "secure networks are not available", "leave out the mode")
    source: Path | bytes
    if origin == _FILE:
        source = Path(os.fsdecode(ffi.string(ffi.cast("char *", data))))
    else:
        if not size:
            raise Refusal(Status.VIP_ERROR_INVALID_ARGUMENTS, "the model in memory has no bytes", "pass the size of the file")
        source = bytes(ffi.buffer(ffi.cast("char *", data), size))
    if chip is not None:
        _check_vendor_file(source, chip, generation)
    model = modelfile.read_or_twin(source)
    own = chips.get(model.chip)
    if own.vip is None:
        raise Refusal(
            generation.wrong_target,
            f"'{model.name}' was compiled for {own.name}, which has no VIPLite NPU",
            f"compile it for {'t527' if chip is None else chip.name}",
        )
    if chip is not None and chip.vip is not None and own.vip.customer_id != chip.vip.customer_id:
        raise _wrong_target(own.vip.customer_id, chip, generation)
    if len(model.programs) > 1 or model.custom_operators:
        what = "custom operators" if model.custom_operators else f"{len(model.programs)} sets of shapes"
        raise Refusal(
            Status.VIP_ERROR_INVALID_NETWORK,
            f"'{model.name}' has {what}, which VIPLite does not know",
            "compile it for one set of shapes, with operators of the compiler's own",
        )
    return model if chip is None else replace(model, chip=chip.name)


def _check_vendor_file(source: Path | bytes, chip: Chip, generation: Generation) -> None:
    """Reject a file of the vendor's compiler that is for another NPU, naming both, before its anynpu model is looked for."""
    if identify(source) is not FileKind.NB:
        return
    target = vendorfile.read_nb(source).target_id
    if chip.vip is not None and target != chip.vip.customer_id:
        raise _wrong_target(target, chip, generation)


def _wrong_target(target: int, chip: Chip, generation: Generation) -> Refusal[Status]:
    assert chip.vip is not None
    return Refusal(
        generation.wrong_target,
        f"binary target={target_words(target)}, actual target={target_words(chip.vip.customer_id)}",
        f"compile the model for {chip.name}",
    )


def same_network(first: Model, second: Model) -> bool:
    """Whether two models have the same tensors at their ends and the same weights."""
    if (first.dtype, first.inputs, first.outputs) != (second.dtype, second.inputs, second.outputs):
        return False
    return modelfile.encode(first).weight_digest == modelfile.encode(second).weight_digest


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
        """Reject what has to be said before the network is prepared."""
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
                f"create it with what vip_query_{what} states",
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


# One ``vip_group``: networks that one job executes one after the other, with nothing of anybody else's in between.
#
# State and lock: the list of networks and the triggered job are protected by the group's lock; a network that was destroyed stays
# in the list and is rejected when the group runs.


class GroupState:
    """The state behind the handle of a group.

    :param count: how many networks there is space for
    """

    def __init__(self, count: int, jobs: Jobs) -> None:
        self.lock = threading.RLock()
        self.count = count
        self.timeout_ms = 0
        self.core = -1
        self.profile = RunCost()
        self.triggered: DeviceJob[None] | None = None
        self._jobs = jobs
        self._networks: list[NetworkState] = []
        self._waited_for: list[NetworkState] = []

    def add(self, network: NetworkState) -> None:
        """Put a network behind those that are there."""
        with self.lock:
            if network in self._networks:
                raise Refusal(Status.VIP_ERROR_INVALID_ARGUMENTS, "the network is in the group already")
            if self._networks and network.device is not self._networks[0].device:
                raise Refusal(Status.VIP_ERROR_INVALID_ARGUMENTS, "the networks of a group must be on one device")
            if len(self._networks) >= self.count:
                raise Refusal(
                    Status.VIP_ERROR_OUT_OF_RESOURCE,
                    f"the group has space for {self.count} networks",
                    "give vip_create_group a larger count",
                )
            self._networks.append(network)

    def run(self, number: int) -> None:
        """Execute the first *number* networks."""
        networks, stages = self._stages(number)
        self._jobs.run(
            networks[0].device,
            networks,
            stages,
            core=self.core,
            priority=max(network.priority for network in networks),
            timeout_ms=self.timeout_ms,
        )
        self._note(networks)

    def trigger(self, number: int) -> None:
        """Submit the first *number* networks."""
        with self.lock:
            if self.triggered is not None:
                raise Refusal(Status.VIP_ERROR_FAILURE, "the group is on its way already", "call vip_wait_group before")
            networks, stages = self._stages(number)
            self.triggered = self._jobs.start(
                networks[0].device,
                networks,
                stages,
                core=self.core,
                priority=max(network.priority for network in networks),
                timeout_ms=self.timeout_ms,
            )
            self._waited_for = networks

    def wait(self) -> None:
        """Wait for what :meth:`trigger` submitted."""
        with self.lock:
            job, self.triggered = self.triggered, None
        if job is None:
            raise Refusal(Status.VIP_ERROR_FAILURE, "no job of the group is on its way", "call vip_trigger_group before")
        job.result()
        self._note(self._waited_for)

    def close(self) -> None:
        """Forget the networks; jobs that are in flight go on."""
        with self.lock:
            self._networks = []

    def _stages(self, number: int) -> tuple[list[NetworkState], list[Stage]]:
        with self.lock:
            if not 1 <= number <= len(self._networks):
                raise Refusal(
                    Status.VIP_ERROR_INVALID_ARGUMENTS,
                    f"{number} networks cannot be run, the group has {len(self._networks)}",
                    "call vip_add_network before",
                )
            networks = self._networks[:number]
        return networks, [network.stage() for network in networks]

    def _note(self, networks: list[NetworkState]) -> None:
        self.profile = sum((network.profile for network in networks), RunCost())
