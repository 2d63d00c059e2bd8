"""What the sanitizer knows about the VIPLite calls: their objects, their order, and what a board does with them.

Caches: memory of ``vip_create_buffer_cache`` and of ``vip_create_buffer_from_handle`` is ordinary memory of the process, which the CPU
caches; the NPU sees what was flushed, and the CPU what was invalidated. ``vip_create_buffer`` gives memory without a cache.

What an observer keeps belongs to it and changes within calls of the program; single operations on its dictionaries are atomic.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._vip import ffi
from ...devtools.sanitizer import Observer, Reporter
from ...devtools.sanitizer.memory import Memory, bytes_at, same_bytes
from ...devtools.sanitizer.stacks import Stack, take
from ...devtools.sanitizer.watch import Graveyard, Made, described, judge
from ...npu import Buffer
from ..constants import vip_buffer_operation_type_e
from ..interface import functions
from .buffers import BufferState
from .handles import Handles, Status, address_of
from .network import GroupState, NetworkState

_MEMORY = "buffer"
_NOUNS = {NetworkState: "network", BufferState: _MEMORY, GroupState: "group"}
_HANDLES_AT = {
    "vip_dup_network": (3,),
    "vip_set_input": (0, 2),
    "vip_set_output": (0, 2),
    "vip_add_network": (0, 1),
    "vip_create_network": (),
    "vip_create_group": (),
    "vip_create_buffer": (),
    "vip_create_buffer_cache": (),
    "vip_create_buffer_from_handle": (),
    "vip_create_buffer_from_fd": (),
    "vip_create_buffer_from_physical": (),
    "vip_init": (),
    "vip_destroy": (),
    "vip_get_version": (),
    "vip_query_hardware": (),
    "vip_power_management": (),
    "vip_set_log_path": (),
}
"""Where calls have their handles; all others have one, as the first argument."""

_ACROSS_THREADS = frozenset({"vip_cancel_network", "vip_query_network", "vip_query_input", "vip_query_output"})
"""May be called while another thread is inside the same network."""

_NO_RESULT = frozenset({"vip_get_buffer_size", "vip_get_version"})
_RUNS = frozenset({"vip_run_network", "vip_wait_network", "vip_run_group", "vip_wait_group"})
_ORDER = re.compile(r"on its way|cannot be set any more|is not prepared|before vip_init")
_TOO_SMALL = re.compile(r"takes \d+ bytes")
_CORE = re.compile(r"there is no core")


class _Buffer(Memory):
    """One buffer, and what keeps it mapped."""

    keep: tuple[object, ...] = ()


class _Network(Made):
    """A network or group, and the run that was triggered and not waited for: its buffers, with the bytes of the inputs."""

    def __init__(self, noun: str, handle: int, origin: Stack) -> None:
        super().__init__(noun, handle, origin)
        self.in_flight: dict[BufferState, npt.NDArray[np.uint8] | None] = {}


class VipObserver(Observer):
    """Watches one software library."""

    quiet_calls = frozenset(
        {
            *(
                "vip_run_network",
                "vip_trigger_network",
                "vip_wait_network",
                "vip_run_group",
                "vip_trigger_group",
                "vip_wait_group",
            ),
            *("vip_flush_buffer", "vip_map_buffer", "vip_destroy_buffer"),
        }
    )

    number_calls = _NO_RESULT

    def __init__(self, library: Any, reporter: Reporter) -> None:
        super().__init__(library, reporter, functions())
        self._handles: Handles = library.handles
        self._made: dict[int, _Network] = {}
        self._buffers: dict[BufferState, _Buffer] = {}
        self._numbers: dict[BufferState, int] = {}
        self._gone = Graveyard()
        self._started: list[Stack] = []
        self._ended = False

    def has_left(self) -> bool:
        """Whether there is memory with two sides."""
        return any(buffer.device is not None for buffer in self._buffers.values())

    # every call

    def enter(self, name: str, arguments: tuple[Any, ...]) -> _Network | None:
        """Note who is inside, and complain about a second thread."""
        positions = _HANDLES_AT.get(name, (0,))
        made = self._made.get(address_of(arguments[positions[0]])) if positions else None
        if made is None:
            return None
        other = made.enter(name)
        if other is not None and not (name in _ACROSS_THREADS or other in _ACROSS_THREADS):
            text = f"{name} with {made}, while another thread is in {other} with it"
            self.tell("context-in-two-threads", name, text, subject=made.handle, origin=made.origin)
        return made

    def failed(self, name: str, result: Any) -> bool:
        """A status that is not zero, or no address."""
        if name in _NO_RESULT:
            return name == "vip_get_buffer_size" and result == 0
        return result != 0 if isinstance(result, int) else result == ffi.NULL

    def abandoned(self, name: str, arguments: tuple[Any, ...]) -> None:
        """A run that failed uses no memory any more."""
        if name in _RUNS:
            made = self._made.get(address_of(arguments[0]))
            if made is not None:
                made.in_flight = {}

    def refused(self, name: str, arguments: tuple[Any, ...], failure: Any) -> None:
        """Find out whose fault it is."""
        text, status = failure.text, failure.code
        if not self.library.initialised:
            ended = "; vip_destroy has ended the driver" if self._ended else ""
            self.tell("use-after-destroy" if self._ended else "call-order", name, text + ended)
        elif self._stale(name, arguments):
            return
        elif status == Status.VIP_ERROR_MISSING_INPUT_OUTPUT:
            kind = "input-never-set" if text.startswith("input") else "output-never-bound"
            self.tell("use-after-destroy" if "was destroyed" in text else kind, name, text)
        elif _CORE.search(text):
            self.tell("core-mask", name, text)
        elif status == Status.VIP_ERROR_NETWORK_NOT_PREPARED or _ORDER.search(text):
            self.tell("call-order", name, text)
        elif status == Status.VIP_ERROR_NOT_SUPPORTED:
            self.tell("not-on-board", name, text)
        elif status == Status.VIP_ERROR_INVALID_ARGUMENTS:
            self.tell("buffer-too-small" if _TOO_SMALL.search(text) else "bad-argument", name, text)

    def _stale(self, name: str, arguments: tuple[Any, ...]) -> bool:
        """Whether a handle is of something that is gone, or never was."""
        for position in _HANDLES_AT.get(name, (0,)):
            handle = address_of(arguments[position])
            if not handle or self._handles.find(handle, object) is not None:
                continue
            gone = self._gone.find(handle)
            if gone is None:
                self.tell("unknown-handle", name, f"handle {handle:#x} was never given", subject=handle)
            else:
                kind = "double-destroy" if name.startswith("vip_destroy_") else "use-after-destroy"
                self.tell(kind, name, f"{gone[0]} {handle:#x} was destroyed before", subject=handle, origin=gone[1])
            return True
        return False

    # the driver

    def after_vip_init(self, result: int, *arguments: Any) -> None:
        """The driver was started, or counted."""
        del result, arguments
        self._started.append(take())
        self._ended = False

    def before_vip_destroy(self) -> None:
        """The last one ends all that is left."""
        if len(self._started) == 1:
            self._left("vip_destroy")

    def after_vip_destroy(self, result: int) -> None:
        """The driver was ended, or counted."""
        del result
        if self._started:
            self._started.pop()
        if not self._started:
            self._ended = True
            for number, made in self._made.items():
                self._gone.bury(number, made.noun, made.origin)
            for state, number in self._numbers.items():
                self._gone.bury(number, _MEMORY, self._buffers[state].origin)
            self._made, self._buffers, self._numbers = {}, {}, {}

    # buffers

    def _new(self, out: Any, *, cached: bool, ours: bool) -> None:
        handle = address_of(out[0])
        state = self._handles.find(handle, BufferState)
        if state is None:
            return
        name = f"buffer of {state.nbytes} bytes"
        keep: tuple[object, ...] = ()
        device, tracked, zone = None, False, 0
        host = bytes_at(state.address, state.nbytes)
        if cached:
            device = np.zeros(state.nbytes + 128, np.uint8)
            start = -device.ctypes.data % 64
            device, keep = device[start : start + max(state.nbytes, 1)], (device, state.bytes())
            if ours:  # ordinary memory, but such that accesses can be asked for
                own = Buffer.allocate(state.nbytes, name="cached")
                host, keep = own.array(np.uint8), (*keep, own)
                tracked, zone = True, Buffer.room_behind(state.nbytes)
            state.address, state._bytes = device.ctypes.data, device
        elif ours:
            zone, tracked = Buffer.room_behind(state.nbytes), True
        buffer = _Buffer(host, take(), device=device, tracked=tracked, zone=zone, name=name)
        buffer.keep = keep
        self._buffers[state], self._numbers[state] = buffer, handle

    def after_vip_create_buffer(self, result: int, param: Any, size: int, out: Any) -> None:
        """Memory of the device."""
        del result, param, size
        self._new(out, cached=False, ours=True)

    def after_vip_create_buffer_cache(self, result: int, param: Any, size: int, out: Any) -> None:
        """Memory of the process."""
        del result, param, size
        self._new(out, cached=True, ours=True)

    def after_vip_create_buffer_from_handle(self, result: int, param: Any, logical: Any, size: int, out: Any) -> None:
        """Memory of the caller."""
        del result, param, logical, size
        self._new(out, cached=True, ours=False)

    def after_vip_create_buffer_from_fd(self, result: int, param: Any, fd: int, size: int, out: Any) -> None:
        """Memory of another owner; whether it has a cache is not known."""
        del result, param, fd, size
        self._new(out, cached=False, ours=False)

    def after_vip_create_buffer_from_physical(self, result: int, *arguments: Any) -> None:
        """The same."""
        del result
        self._new(arguments[4], cached=False, ours=False)

    def after_vip_map_buffer(self, result: Any, buffer: Any) -> Any:
        """The CPU's side of it."""
        known = self._known(buffer)
        return None if known is None or known.device is None else ffi.cast("void *", known.address)

    def _known(self, handle: Any) -> _Buffer | None:
        state = self._handles.find(address_of(handle), BufferState)
        return None if state is None else self._buffers.get(state)

    def after_vip_flush_buffer(self, result: int, buffer: Any, type: int) -> None:
        """Flush or invalidate."""
        del result
        known = self._known(buffer)
        if known is None:
            return
        self._check("vip_flush_buffer", known)
        if type == vip_buffer_operation_type_e.VIP_BUFFER_OPER_TYPE_FLUSH:
            known.flush()
            return
        if not known.unread and (count := known.differs()):
            text = f"VIP_BUFFER_OPER_TYPE_INVALIDATE discards {count} bytes of {known.name} that were written and not flushed"
            self.tell("input-not-flushed", "vip_flush_buffer", text, subject=known.address, origin=known.origin)
        known.invalidate()

    def before_vip_destroy_buffer(self, buffer: Any) -> None:
        """Look at it while it is there."""
        state = self._handles.find(address_of(buffer), BufferState)
        known = None if state is None else self._buffers.get(state)
        if state is None or known is None:
            return
        self._check("vip_destroy_buffer", known)
        for made in list(self._made.values()):
            if state in made.in_flight:
                text = f"{known.name}, which a run of {made} uses that was not waited for"
                self.tell("destroyed-during-run", "vip_destroy_buffer", text, origin=known.origin)
        self._gone.bury(address_of(buffer), known.name, known.origin)
        self._buffers.pop(state, None)
        self._numbers.pop(state, None)

    def _check(self, call: str, known: _Buffer) -> None:
        for kind, text in known.faults("VIP_BUFFER_OPER_TYPE_INVALIDATE"):
            self.tell(kind, call, text, subject=known.address, origin=known.origin)

    # networks and groups

    def _make(self, out: Any, noun: str) -> None:
        handle = address_of(out[0])
        self._made[handle] = _Network(noun, handle, take())

    def after_vip_create_network(self, result: int, data: Any, size: int, type: int, network: Any) -> None:
        """A network was made."""
        del result, data, size, type
        self._make(network, "network")

    def after_vip_dup_network(self, result: int, *arguments: Any) -> None:
        """A second one was made."""
        del result
        self._make(arguments[4], "network")

    def after_vip_weak_dup_network(self, result: int, network: Any, out: Any) -> None:
        """The same."""
        del result, network
        self._make(out, "network")

    def after_vip_create_group(self, result: int, count: int, group: Any) -> None:
        """A group was made."""
        del result, count
        self._make(group, "group")

    def before_vip_destroy_network(self, network: Any) -> None:
        """A run that no call waited for is stopped."""
        self._unwaited("vip_destroy_network", network)

    def before_vip_finish_network(self, network: Any) -> None:
        """The same."""
        self._unwaited("vip_finish_network", network)

    def _unwaited(self, call: str, network: Any) -> None:
        made = self._made.get(address_of(network))
        state = self._handles.find(address_of(network), NetworkState)
        if made is not None and state is not None and state.triggered is not None:
            text = f"{made} was triggered, and vip_wait_network was not called"
            self.tell("destroyed-during-run", call, text, subject=made.handle, origin=made.origin)

    def after_vip_destroy_network(self, result: int, network: Any) -> None:
        """A network or group is gone."""
        del result
        made = self._made.pop(address_of(network), None)
        if made is not None:
            self._gone.bury(made.handle, made.noun, made.origin)

    after_vip_destroy_group = after_vip_destroy_network

    # runs

    def before_vip_run_network(self, network: Any) -> None:
        """Look at what is bound."""
        self._before_run("vip_run_network", network, self._networks(network))

    def after_vip_run_network(self, result: int, network: Any) -> None:
        """The outputs are there."""
        del result
        self._ran("vip_run_network", network)

    def before_vip_trigger_network(self, network: Any) -> None:
        """The same, for a run in the background."""
        self._before_run("vip_trigger_network", network, self._networks(network))

    def after_vip_wait_network(self, result: int, network: Any) -> None:
        """A run in the background has ended."""
        del result
        self._ran("vip_wait_network", network)

    def before_vip_run_group(self, group: Any, num: int) -> None:
        """A group is run network by network."""
        self._before_run("vip_run_group", group, self._networks(group, num))

    def after_vip_run_group(self, result: int, group: Any, num: int) -> None:
        """Its outputs are there."""
        del result, num
        self._ran("vip_run_group", group)

    def before_vip_trigger_group(self, group: Any, num: int) -> None:
        """A group in the background."""
        self._before_run("vip_trigger_group", group, self._networks(group, num))

    def after_vip_wait_group(self, result: int, group: Any) -> None:
        """It has ended."""
        del result
        self._ran("vip_wait_group", group)

    def _networks(self, handle: Any, count: int = 1) -> list[NetworkState]:
        number = address_of(handle)
        group = self._handles.find(number, GroupState)
        if group is not None:
            return group._networks[:count]
        network = self._handles.find(number, NetworkState)
        return [] if network is None else [network]

    def _before_run(self, call: str, handle: Any, networks: list[NetworkState]) -> None:
        made = self._made.get(address_of(handle))
        if made is None or made.in_flight:
            return
        written = {port.buffer for network in networks for port in network.outputs}
        for network in networks:
            for index, port in enumerate(network.inputs):
                state = port.buffer
                known = None if state is None else self._buffers.get(state)
                if state is None or known is None:
                    continue
                self._check(call, known)
                if state in written:  # an earlier network of the group fills it
                    made.in_flight.setdefault(state, None)
                elif self._input_is_set(call, known, port.attributes.name):
                    made.in_flight[state] = known.host.copy()
                    if made.may_judge(index):
                        self._judge(call, made, network, index, known)
            for port in network.outputs:
                known = None if port.buffer is None else self._buffers.get(port.buffer)
                if port.buffer is not None and known is not None:
                    self._check(call, known)
                    made.in_flight.setdefault(port.buffer, None)

    def _input_is_set(self, call: str, known: _Buffer, name: str) -> bool:
        known.note_access()
        if not known.written:
            known.written = True
            self.tell("input-never-set", call, f"nothing was written to the buffer of input '{name}'", origin=known.origin)
            return False
        count = known.differs()
        if count:
            text = f"{count} of {known.size} bytes of input '{name}' were written and not flushed"
            self.tell("input-not-flushed", call, text, subject=known.address, origin=known.origin)
        return True

    def _judge(self, call: str, made: _Network, network: NetworkState, index: int, known: _Buffer) -> None:
        port = network.inputs[index]
        seen = port.attributes
        target = network.model.programs[0].input_specs[index]
        applied = seen.preprocess
        said = described(
            seen.spec,
            target,
            codes=applied is None,
            mean=() if applied is None else applied.mean,
            std=() if applied is None else applied.std,
        )
        found = judge(known.host[: seen.nbytes], said)
        if found is not None:
            self.tell(found[0], call, found[1], subject=(made.handle, index), origin=made.origin)

    def _ran(self, call: str, handle: Any) -> None:
        made = self._made.get(address_of(handle))
        if made is None:
            return
        in_flight, made.in_flight = made.in_flight, {}
        for state, before in in_flight.items():
            known = self._buffers.get(state)
            if known is None:
                continue
            if before is None:
                known.wrote()
            elif not same_bytes(before.ctypes.data, known.address, known.size):
                count = int(np.count_nonzero(before != known.host))
                text = f"{count} of {known.size} bytes of {known.name} changed while the run used them"
                self.tell("written-during-run", call, text, subject=known.address, origin=known.origin)

    # the end

    def _left(self, call: str) -> None:
        for handle, made in list(self._made.items()):
            if self._handles.find(handle, object) is not None and not made.origin.owned:
                text = f"{made} was made and vip_destroy_{made.noun} never called"
                self.tell("context-leak", call, text, subject=handle, origin=made.origin)
        for state, known in list(self._buffers.items()):
            self._check(call, known)
            if not state.closed and not known.origin.owned:
                text = f"{known.name} was made and vip_destroy_buffer never called"
                self.tell("memory-leak", call, text, subject=self._numbers.get(state), origin=known.origin)

    def finish(self) -> None:
        """What is left now is left for good."""
        self._left("exit")
        for origin in self._started:
            if not origin.owned:
                self.tell("driver-leak", "exit", "vip_init was called more often than vip_destroy", origin=origin)
                break


def observe(library: Any, reporter: Reporter) -> VipObserver:
    """An observer for a library."""
    return VipObserver(library, reporter)
