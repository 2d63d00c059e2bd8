"""A caller who does everything in any order, with handles of all kinds, and who knows what must come back."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from anynpu import chips
from anynpu._vip import ffi
from anynpu.vip import SoftwareLibrary

from .support import SHAPE, small_file

INPUT_BYTES = int(np.prod(SHAPE))
OUTPUT_BYTES = (5, 8 * 8 * 6)
NULL = 0


@dataclass
class Buffer:
    """A buffer as the caller knows it."""

    handle: int
    size: int
    alive: bool = True


@dataclass
class Network:
    """A network as the caller knows it."""

    handle: int
    alive: bool = True
    prepared: bool = False
    triggered: bool = False
    inputs: list[Buffer | None] = field(default_factory=lambda: [None])
    outputs: list[Buffer | None] = field(default_factory=lambda: [None, None])


@dataclass
class Group:
    """A group as the caller knows it."""

    handle: int
    room: int
    alive: bool = True
    triggered: bool = False
    members: list[Network] = field(default_factory=list)


class Machine:
    """Makes random calls on a library and asserts each status."""

    def __init__(self, library: SoftwareLibrary, seed: int) -> None:
        self.library = library
        self.random = Random(seed)
        self.inits = 0
        self.on = self.running = True
        self.networks: list[Network] = []
        self.buffers: list[Buffer] = []
        self.groups: list[Group] = []
        self.trail: list[str] = []
        self.families = [
            *[self.init] * 2,
            self.destroy,
            *[self.create_network] * 3,
            *[self.create_buffer] * 4,
            self.destroy_buffer,
            self.destroy_network,
            *[self.prepare] * 4,
            self.finish,
            *[self.bind] * 8,
            *[self.run] * 4,
            *[self.trigger] * 2,
            *[self.wait] * 2,
            self.cancel,
            self.duplicate,
            self.query,
            self.configure,
            self.power,
            self.group,
            self.add,
            self.run_group,
            self.wait_group,
            self.misplace,
        ]

    def step(self) -> None:
        """One call."""
        self.random.choice(self.families)()

    def decent(self) -> None:
        """What a well-behaved caller does, from whatever state."""
        self.init()
        self.expect("vip_power_management", {0}, ffi.NULL, 4, ffi.NULL)
        self.expect("vip_power_management", {0}, ffi.NULL, 16, ffi.NULL)
        self.on = self.running = True
        network = self._new_network()
        self.expect("vip_prepare_network", {0}, self.pointer("vip_network", network.handle))
        network.prepared = True
        network.inputs[0] = self._new_buffer(INPUT_BYTES)
        network.outputs = [self._new_buffer(size) for size in OUTPUT_BYTES]
        handle = self.pointer("vip_network", network.handle)
        for index, buffer in enumerate(network.inputs):
            self.expect("vip_set_input", {0}, handle, index, self.pointer("vip_buffer", buffer.handle))  # type: ignore[union-attr]
        for index, buffer in enumerate(network.outputs):
            self.expect("vip_set_output", {0}, handle, index, self.pointer("vip_buffer", buffer.handle))  # type: ignore[union-attr]
        self.expect("vip_run_network", {0}, handle)

    def finish_all(self) -> None:
        """End, and look at what is left."""
        for network in self.networks:
            if network.alive and network.triggered and self.inits:
                self.library.vip_wait_network(self.pointer("vip_network", network.handle))
        while self.inits:
            self.destroy()
        assert self.library.handles.all(object) == []
        assert not self.library.initialised

    # what a call needs

    def expect(self, call: str, statuses: set[int], *arguments: Any) -> int:
        """Make a call, whose status must be among those."""
        status = int(getattr(self.library, call)(*arguments))
        self.trail.append(f"{call} {status}")
        wanted = statuses if self.inits or call == "vip_init" else {-4}
        assert status in wanted, (status, wanted, self.library.last_error(), self.trail[-12:])
        return status

    @staticmethod
    def pointer(kind: str, number: int) -> Any:
        return ffi.cast(kind, number)

    def _wrong(self) -> int:
        """A number that is no handle of the kind wanted: null, an address, or made up."""
        return self.random.choice([NULL, 0x7F00_0000_0000, 16, 0x00A9_0000_7000_0010])

    def _network(self) -> tuple[Network | None, Any]:
        """One that exists, existed, or never did."""
        if self.networks and self.random.random() < 0.9:
            alive = [network for network in self.networks if network.alive]
            entry = self.random.choice(alive if alive and self.random.random() < 0.85 else self.networks)
            return (entry if entry.alive else None), self.pointer("vip_network", entry.handle)
        strangers = [buffer.handle for buffer in self.buffers] or [NULL]
        return None, self.pointer("vip_network", self.random.choice([self._wrong(), strangers[-1]]))

    def _buffer(self) -> tuple[Buffer | None, Any]:
        if self.buffers and self.random.random() < 0.9:
            alive = [buffer for buffer in self.buffers if buffer.alive]
            entry = self.random.choice(alive if alive and self.random.random() < 0.85 else self.buffers)
            return (entry if entry.alive else None), self.pointer("vip_buffer", entry.handle)
        strangers = [network.handle for network in self.networks] or [NULL]
        return None, self.pointer("vip_buffer", self.random.choice([self._wrong(), strangers[-1]]))

    def _group(self) -> tuple[Group | None, Any]:
        if self.groups and self.random.random() < 0.9:
            entry = self.random.choice(self.groups)
            return (entry if entry.alive else None), self.pointer("vip_group", entry.handle)
        return None, self.pointer("vip_group", self._wrong())

    def _submission(self, network: Network | None) -> set[int]:
        """What submitting it must answer."""
        if network is None or not network.alive:
            return {-7}
        if not network.prepared:
            return {-9}
        if not self.on:
            return {-12}
        if not self.running:
            return {-13}
        complete = all(buffer is not None and buffer.alive for buffer in (*network.inputs, *network.outputs))
        return {0} if complete else {-8}

    def _new_network(self) -> Network:
        out = ffi.new("vip_network *")
        data = small_file()
        self.expect("vip_create_network", {0}, ffi.from_buffer(data), len(data), 2, out)
        network = Network(int(ffi.cast("uintptr_t", out[0])))
        self.networks.append(network)
        return network

    def _new_buffer(self, size: int) -> Buffer:
        params = ffi.new("vip_buffer_create_params_t *", {"num_of_dims": 1, "sizes": [size], "data_format": 2})
        out = ffi.new("vip_buffer *")
        call = self.random.choice(["vip_create_buffer", "vip_create_buffer_cache"])
        self.expect(call, {0}, params, 48, out)
        buffer = Buffer(int(ffi.cast("uintptr_t", out[0])), size)
        self.buffers.append(buffer)
        return buffer

    # calls

    def init(self) -> None:
        if self.inits < 3:
            self.expect("vip_init", {0}, self.random.randrange(1 << 32))
            self.inits += 1

    def destroy(self) -> None:
        if self.inits == 1 and self.random.random() < 0.8 and self.trail[-1:] != ["vip_destroy 0"]:
            return  # the last one is rare: it ends everything
        if self.expect("vip_destroy", {0}) == 0:
            self.inits -= 1
            if not self.inits:
                for entry in (*self.networks, *self.buffers, *self.groups):
                    entry.alive = False
                self.on = self.running = True

    def create_network(self) -> None:
        data = small_file()
        kind = self.random.choice([2, 2, 2, 4, 0, 9])
        source = self.random.choice([data, data, data, data[:300], bytes(100)])
        expected = -7 if kind in (0, 9) or source is not data else 0
        if self.random.random() < 0.1:
            self.expect("vip_create_network", {-3}, ffi.NULL, 5, kind, ffi.new("vip_network *"))
            return
        out = ffi.new("vip_network *", ffi.cast("vip_network", 1))
        if self.expect("vip_create_network", {expected}, ffi.from_buffer(source), len(source), kind, out) == 0:
            self.networks.append(Network(int(ffi.cast("uintptr_t", out[0]))))
        else:
            assert out[0] == ffi.NULL

    def create_buffer(self) -> None:
        if self.inits:
            self._new_buffer(self.random.choice([INPUT_BYTES, INPUT_BYTES, *OUTPUT_BYTES, 384, 1, 700]))

    def destroy_buffer(self) -> None:
        buffer, handle = self._buffer()
        if self.expect("vip_destroy_buffer", {-3 if buffer is None else 0}, handle) == 0 and buffer is not None:
            buffer.alive = False

    def destroy_network(self) -> None:
        network, handle = self._network()
        if self.expect("vip_destroy_network", {-7 if network is None else 0}, handle) == 0 and network is not None:
            network.alive = network.prepared = False

    def prepare(self) -> None:
        network, handle = self._network()
        powerless = {-12} if not self.on else {-13} if not self.running else {0}
        expected = {-7} if network is None else {0} if network.prepared else powerless
        if self.expect("vip_prepare_network", expected, handle) == 0 and network is not None:
            network.prepared = True

    def finish(self) -> None:
        network, handle = self._network()
        if self.expect("vip_finish_network", {-7 if network is None else 0}, handle) == 0 and network is not None:
            network.prepared = False
            network.inputs, network.outputs = [None], [None, None]

    def bind(self) -> None:
        network, handle = self._network()
        buffer, memory = self._buffer()
        side = self.random.choice(["input", "output"])
        index = self.random.choice([0, 0, 0, 1, 1, 2])
        if network is None:
            expected = -7
        elif not network.prepared:
            expected = -9
        else:
            bound = network.inputs if side == "input" else network.outputs
            sizes = (INPUT_BYTES,) if side == "input" else OUTPUT_BYTES
            fits = buffer is not None and index < len(bound) and buffer.size >= sizes[index]
            expected = 0 if fits else -3
        if self.expect(f"vip_set_{side}", {expected}, handle, index, memory) == 0 and network is not None:
            (network.inputs if side == "input" else network.outputs)[index] = buffer

    def run(self) -> None:
        network, handle = self._network()
        self.expect("vip_run_network", self._submission(network), handle)

    def trigger(self) -> None:
        network, handle = self._network()
        expected = {-11} if network is not None and network.triggered else self._submission(network)
        if self.expect("vip_trigger_network", expected, handle) == 0 and network is not None:
            network.triggered = True

    def wait(self) -> None:
        network, handle = self._network()
        expected = {-7} if network is None else {0, -15} if network.triggered else {-11}
        self.expect("vip_wait_network", expected, handle)
        if network is not None and self.inits:
            network.triggered = False

    def cancel(self) -> None:
        network, handle = self._network()
        self.expect("vip_cancel_network", {-7 if network is None else 0}, handle)

    def duplicate(self) -> None:
        network, handle = self._network()
        out = ffi.new("vip_network *")
        weak = self.random.random() < 0.5
        arguments = (handle, out) if weak else (ffi.NULL, 0, 0x801, handle, out)
        call = "vip_weak_dup_network" if weak else "vip_dup_network"
        if self.expect(call, {-7 if network is None else 0}, *arguments) == 0:
            self.networks.append(Network(int(ffi.cast("uintptr_t", out[0]))))

    def query(self) -> None:
        network, handle = self._network()
        property = self.random.choice([0, 1, 2, 6, 3, 7, 4, 99])
        expected = -7 if network is None else -4 if property in (4, 99) else 0
        self.expect("vip_query_network", {expected}, handle, property, ffi.new("char[64]"))
        index, entry = self.random.choice([0, 0, 5]), self.random.choice([0, 1, 2, 3, 4, 5, 6, 7, 8])
        expected = -7 if network is None else -3 if index else -4 if entry == 8 else 0
        self.expect("vip_query_input", {expected}, handle, index, entry, ffi.new("char[64]"))

    def configure(self) -> None:
        network, handle = self._network()
        property, value = self.random.choice([(67, 200), (68, 0), (66, 0), (66, 3), (65, 0), (73, 1), (0, 1)])
        pointer = ffi.new("uint64_t *", value)
        late = network is not None and network.prepared and property in (65, 66)
        expected = -7 if network is None else -4 if property in (73, 0) else -3 if late or value == 3 or property == 65 else 0
        self.expect("vip_set_network", {expected}, handle, property, pointer)

    def power(self) -> None:
        property = self.random.choice([2, 4, 4, 4, 8, 16, 16, 16, 7])
        status = self.expect("vip_power_management", {-4 if property == 7 else 0}, ffi.NULL, property, ffi.NULL)
        if status == 0:
            self.on = {2: False, 4: True}.get(property, self.on)
            self.running = {8: False, 16: True}.get(property, self.running)

    def group(self) -> None:
        room = self.random.choice([0, 1, 2, 3])
        out = ffi.new("vip_group *")
        if self.expect("vip_create_group", {0 if room else -3}, room, out) == 0:
            self.groups.append(Group(int(ffi.cast("uintptr_t", out[0])), room))
        if self.random.random() < 0.3:
            group, handle = self._group()
            if self.expect("vip_destroy_group", {-3 if group is None else 0}, handle) == 0 and group is not None:
                group.alive = False

    def add(self) -> None:
        group, handle = self._group()
        network, member = self._network()
        if group is None:
            expected = -3
        elif network is None:
            expected = -7
        elif any(entry is network for entry in group.members):
            expected = -3
        else:
            expected = 0 if len(group.members) < group.room else -5
        if self.expect("vip_add_network", {expected}, handle, member) == 0 and group is not None and network is not None:
            group.members.append(network)

    def _group_submission(self, group: Group | None, number: int) -> set[int]:
        if group is None or not 1 <= number <= len(group.members):
            return {-3}
        for network in group.members[:number]:
            expected = self._submission(network)
            if expected != {0}:
                return expected
        return {0}

    def run_group(self) -> None:
        group, handle = self._group()
        number = self.random.choice([0, 1, 1, 2, 3])
        if self.random.random() < 0.5:
            self.expect("vip_run_group", self._group_submission(group, number), handle, number)
            return
        expected = {-11} if group is not None and group.triggered else self._group_submission(group, number)
        if self.expect("vip_trigger_group", expected, handle, number) == 0 and group is not None:
            group.triggered = True

    def wait_group(self) -> None:
        group, handle = self._group()
        expected = {-3} if group is None else {0, -15} if group.triggered else {-11}
        self.expect("vip_wait_group", expected, handle)
        if group is not None and self.inits:
            group.triggered = False

    def misplace(self) -> None:
        """Buffers where there are none."""
        _, memory = self._buffer()
        assert self.library.vip_unmap_buffer(memory) == (0 if self.inits else -4)
        wrong = self.pointer("vip_buffer", self._wrong())
        assert self.library.vip_map_buffer(wrong) == ffi.NULL
        assert self.library.vip_get_buffer_size(wrong) == 0
        self.expect("vip_flush_buffer", {-11}, wrong, 1)


def memory_in_use(library: SoftwareLibrary) -> int:
    """Bytes of device memory, while the driver is there."""
    return library.device_for(chips.get("t527")).memory_usage().total
