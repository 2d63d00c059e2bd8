"""All ``vip_*`` calls, answered by the software NPU.

:class:`SoftwareLibrary` has one method for each function of the interface, with its name and its parameters: pointers of
``anynpu._vip.ffi`` and numbers. A method never raises: it returns a status (or a null pointer) as the C function does, and
:meth:`SoftwareLibrary.last_error` reports the calling thread why.

Who owns what: the library owns the table of handles and, between the first ``vip_init`` and the last ``vip_destroy``, the driver,
which owns devices and jobs. Locks: the library's lock protects the count of ``vip_init`` and the driver; everything else protects
itself (see there).
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from ... import chips
from ..._vip import ffi
from ...chips import Chip
from ...devtools import sanitizer
from ...npu import Device, Engine
from ...npu.value_check import ValueCheck
from ...program import Model
from ...vendors import at_first_use
from ...vendors.libraries import Failures, Refusal, SoftwareCalls
from ..constants import (
    vip_buffer_operation_type_e,
    vip_create_network_type_e,
    vip_dup_network_type_e,
    vip_power_property_e,
)
from ..generations import generation_of_chip
from ..interface import CallFailure, VipLibrary
from .buffers import BufferState, from_descriptor, from_handle, from_physical, new_buffer, new_cached, read_shape
from .handles import Handles, Status, address_of, status_of
from .jobs import Driver
from .network import GroupState, NetworkState, Weights, read_model, same_network
from .properties import answer_buffer, answer_group, answer_hardware, answer_network, set_group, set_network

log = logging.getLogger("anynpu.vip")

DEFAULT_CHIP = "t527"
_BEFORE_INIT = frozenset({"vip_init", "vip_get_version"})
_NOT_A_STATUS = {"vip_map_buffer": ffi.NULL, "vip_get_buffer_size": 0}
"""What these return where others return a status that is not zero."""

_NETWORK_OUT = {"vip_create_network": 3, "vip_dup_network": 4, "vip_weak_dup_network": 1}
_OUT_PARAMETER = {
    **_NETWORK_OUT,
    "vip_create_group": 1,
    "vip_create_buffer": 2,
    "vip_create_buffer_cache": 2,
    "vip_create_buffer_from_physical": 4,
    "vip_create_buffer_from_handle": 3,
    "vip_create_buffer_from_fd": 3,
}
"""Which parameter becomes VIP_NULL when the call fails."""


class SoftwareLibrary(SoftwareCalls, VipLibrary):
    """VIPLite without a board.

    :param chip: the chip that it stands for; if not given, each network runs on the chip it was compiled for, and calls that
        concern no network are answered as on t527
    :param engine: as for :class:`anynpu.npu.Device`, and so is *realtime*
    :param captures: the folder for captures of hangs, until ``vip_set_log_path`` names another; None for none

    >>> library = SoftwareLibrary("t527")
    >>> hex(library.vip_get_version()), library.vip_destroy()
    ('0x10d00', -4)
    >>> library.last_error().text
    'vip_destroy was called before vip_init'
    """

    def __init__(
        self,
        chip: str | None = None,
        *,
        engine: Engine | str | None = None,
        realtime: float | bool | None = None,
        captures: Path | None = None,
    ) -> None:
        self.chip: Chip | None = None if chip is None else chips.get(chip)
        self.generation = generation_of_chip(self._any_chip())
        self.handles = Handles()
        self._engine = engine
        self._realtime = realtime
        self._captures = captures
        self._lock = threading.Lock()
        self._count = 0
        self._driver: Driver | None = None
        self._failures = Failures(
            log,
            status_of,
            no_memory=(Status.VIP_ERROR_OUT_OF_MEMORY, "destroy what is not used"),
            fault=Status.VIP_ERROR_FAILURE,
        )
        for name in self.generation.missing:
            setattr(self, name, functools.partial(self._missing, name))
        sanitizer.enlist(self, f"{__package__}.sanitizer")

    # what the calls share

    opening = "vip_create_network"
    codes: ClassVar = Status
    tracing = staticmethod(at_first_use("anynpu.vip.tracing:table"))
    fault_codes: ClassVar = {"lost": Status.VIP_ERROR_IO, "version": Status.VIP_ERROR_NETWORK_INCOMPATIBLE}

    def refused(self, call: str, arguments: tuple[Any, ...], error: BaseException) -> Any:
        """Note why *call* fails, and give what it returns."""
        _clear_out(call, arguments)
        status = self.failed(call, error)
        return _NOT_A_STATUS.get(call, status)

    unwatched = sanitizer.set_aside

    def cut_model(self, arguments: tuple[Any, ...], keep: float) -> tuple[Any, ...]:
        """The arguments of ``vip_create_network`` with the first bytes of the model."""
        data, size, kind, network = arguments
        if data == ffi.NULL:
            return arguments
        if kind == vip_create_network_type_e.VIP_CREATE_NETWORK_FROM_FILE:
            whole = Path(os.fsdecode(ffi.string(ffi.cast("char *", data)))).read_bytes()
            data, size = ffi.from_buffer(whole), len(whole)
        return data, max(int(size * keep), 1), int(vip_create_network_type_e.VIP_CREATE_NETWORK_FROM_MEMORY), network

    @property
    def description(self) -> str:
        """Description of the device for users."""
        if self.chip is None:
            return "software NPU, the chip of each model"
        return f"software NPU, {self.chip.name}, {self.chip.cores} core{'' if self.chip.cores == 1 else 's'}"

    lanes_on_demand = True

    def chip_of(self, handle: Any) -> Chip | None:
        """The chip that a network runs on."""
        network = self.handles.find(address_of(handle), NetworkState)
        return None if network is None else network.device.chip

    def model_of(self, network: Any) -> Model | None:
        """The model of a network."""
        found = self.handles.find(address_of(network), NetworkState)
        return None if found is None else found.model

    def fd_of(self, buffer: Any) -> int:
        """The descriptor of a buffer's memory."""
        found = self.handles.find(address_of(buffer), BufferState)
        return -1 if found is None else found.fd

    def cancel(self, handle: Any) -> bool:
        """Stop the runs of a network."""
        network = self.handles.find(address_of(handle), NetworkState)
        if network is not None:
            network.cancel()
        return network is not None

    @property
    def initialised(self) -> bool:
        """Whether ``vip_init`` was called more often than ``vip_destroy``."""
        return self._driver is not None

    def last_error(self) -> CallFailure | None:
        """Why the last call that failed in this thread did so."""
        return self._failures.last

    def close(self) -> None:
        """End everything that was made through this library, as the last ``vip_destroy`` does."""
        with self._lock:
            self._count = 0
            driver, self._driver = self._driver, None
        if driver is not None:
            self._end(driver)

    def device_for(self, chip: Chip) -> Device:
        """The device that stands for *chip*, between ``vip_init`` and ``vip_destroy``."""
        return self._require_driver("device_for").device(chip)

    def _value_check(self) -> ValueCheck | None:
        return None if self.warn is None else ValueCheck(self.warn)

    def failed(self, call: str, error: BaseException) -> int:
        """Note why *call* fails, and give its status."""
        status, text = self._failures.note(call, error)
        driver = self._driver
        if driver is not None:
            driver.log(f"{call}: {text} ({status.name}, {int(status)})")
        return int(status)

    def _any_chip(self) -> Chip:
        return self.chip or chips.get(DEFAULT_CHIP)

    def _missing(self, name: str, *arguments: Any) -> Any:
        _clear_out(name, arguments)
        reason = f"VIPLite {self.generation.name} does not have {name}"
        return self.failed(name, Refusal(Status.VIP_ERROR_NOT_SUPPORTED, reason, "run on a chip of a later generation"))

    def _require_driver(self, call: str) -> Driver:
        driver = self._driver
        if driver is None:
            raise Refusal(
                Status.VIP_ERROR_NOT_SUPPORTED,
                f"{call} was called before vip_init",
                "please call vip_init() to initialize viplite",
            )
        return driver

    def _network(self, handle: Any) -> NetworkState:
        found = self.handles.find(address_of(handle), NetworkState)
        if found is None:
            raise Refusal(
                Status.VIP_ERROR_INVALID_NETWORK,
                f"there is no network {address_of(handle):#x}",
                "use a network that vip_create_network gave and that was not destroyed",
            )
        return found

    def _buffer(self, handle: Any) -> BufferState:
        found = self.handles.find(address_of(handle), BufferState)
        if found is None:
            raise _no_buffer(handle)
        return found

    def _group(self, handle: Any) -> GroupState:
        found = self.handles.find(address_of(handle), GroupState)
        if found is None:
            raise Refusal(Status.VIP_ERROR_INVALID_ARGUMENTS, f"there is no group {address_of(handle):#x}")
        return found

    def _give(self, out: Any, entry: object, kind: str) -> int:
        out[0] = ffi.cast(kind, self.handles.add(entry))
        return 0

    def _end(self, driver: Driver) -> None:
        for network in self.handles.all(NetworkState):
            network.close()
        driver.close()
        for buffer in self.handles.all(BufferState):
            buffer.close()
        self.handles.clear()

    # the driver

    def vip_get_version(self) -> int:
        """The version of the interface: major, minor and patch."""
        return self.generation.version

    def vip_init(self, video_mem_size: int) -> int:
        """Start the driver, the first time; on V85x with a limit for its memory."""
        with self._lock:
            if self._driver is None:
                limit = (video_mem_size or self._any_chip().dram_bytes) if self.generation.init_takes_size else None
                self._driver = Driver(memory_limit=limit, engine=self._engine, realtime=self._realtime, captures=self._captures)
                if self.chip is not None:
                    self._driver.device(self.chip)
            self._count += 1
        return 0

    def vip_destroy(self) -> int:
        """End the driver, the last time: networks, buffers and groups that are left are ended with it."""
        with self._lock:
            self._require_driver("vip_destroy")
            self._count -= 1
            driver = None
            if not self._count:
                driver, self._driver = self._driver, None
        if driver is not None:
            self._end(driver)
        return 0

    def vip_query_hardware(self, property: int, size: int, value: Any) -> int:
        """Answer a query about the NPU."""
        answer_hardware(self._any_chip(), property, size, value)
        return 0

    def vip_power_management(self, device_or_network: Any, property: int, value: Any) -> int:
        """Switch the NPU off and on, stop and start it, set its clock."""
        if self.generation.power_by_network:
            self._network(device_or_network)
        elif address_of(device_or_network) & 0xFFFF_FFFF:
            raise Refusal(Status.VIP_ERROR_INVALID_ARGUMENTS, "there is one device, with the number 0")
        power = self._require_driver("vip_power_management").power
        if property == vip_power_property_e.VIP_POWER_PROPERTY_SET_FREQUENCY:
            if value == ffi.NULL:
                raise Refusal(Status.VIP_ERROR_INVALID_ARGUMENTS, "the frequency is a null pointer")
            percent = ffi.cast("vip_power_frequency_t *", value).fscale_percent
            if not 1 <= percent <= 100:
                raise Refusal(Status.VIP_ERROR_INVALID_ARGUMENTS, f"{percent} % of the clock is not possible", "use 1 to 100")
            power.percent = percent
        elif property in (vip_power_property_e.VIP_POWER_PROPERTY_OFF, vip_power_property_e.VIP_POWER_PROPERTY_ON):
            power.on = property == vip_power_property_e.VIP_POWER_PROPERTY_ON
        elif property in (vip_power_property_e.VIP_POWER_PROPERTY_STOP, vip_power_property_e.VIP_POWER_PROPERTY_START):
            power.running = property == vip_power_property_e.VIP_POWER_PROPERTY_START
        else:
            raise Refusal(
                Status.VIP_ERROR_NOT_SUPPORTED, f"there is no power property {property}", "use one of vip_power_property_e"
            )
        return 0

    def vip_set_log_path(self, path: Any) -> int:
        """Write what goes wrong into a file in that folder."""
        if path == ffi.NULL:
            raise Refusal(Status.VIP_ERROR_INVALID_ARGUMENTS, "the path is a null pointer")
        self._require_driver("vip_set_log_path").set_log(Path(os.fsdecode(ffi.string(path))))
        return 0

    # buffers

    def vip_create_buffer(self, create_param: Any, size_of_param: int, buffer: Any) -> int:
        """Memory of the device."""
        _check_size_of_param(size_of_param)
        device = self._require_driver("vip_create_buffer").device(self._any_chip())
        return self._give(buffer, new_buffer(device, read_shape(create_param, self.generation)), "vip_buffer")

    def vip_create_buffer_cache(self, create_param: Any, size_of_param: int, buffer: Any) -> int:
        """Memory of the process, which the CPU caches."""
        _check_size_of_param(size_of_param)
        return self._give(buffer, new_cached(read_shape(create_param, self.generation)), "vip_buffer")

    def vip_create_buffer_from_physical(
        self, create_param: Any, physical_table: Any, size_table: Any, physical_num: int, buffer: Any
    ) -> int:
        """Memory by physical address."""
        device = self._require_driver("vip_create_buffer_from_physical").device(self._any_chip())
        known = self.handles.all(BufferState)
        shape = read_shape(create_param, self.generation)
        return self._give(buffer, from_physical(shape, physical_table, size_table, physical_num, known, device), "vip_buffer")

    def vip_create_buffer_from_handle(self, create_param: Any, handle_logical: Any, handle_size: int, buffer: Any) -> int:
        """Memory of the caller, by address."""
        shape = read_shape(create_param, self.generation)
        return self._give(buffer, from_handle(shape, handle_logical, handle_size), "vip_buffer")

    def vip_create_buffer_from_fd(self, create_param: Any, fd: int, memory_size: int, buffer: Any) -> int:
        """Memory of the caller, by descriptor."""
        shape = read_shape(create_param, self.generation)
        return self._give(buffer, from_descriptor(shape, fd, memory_size), "vip_buffer")

    def vip_destroy_buffer(self, buffer: Any) -> int:
        """Give a buffer back."""
        found = self.handles.remove(address_of(buffer), BufferState)
        if found is None:
            raise _no_buffer(buffer)
        found.close()
        return 0

    def vip_map_buffer(self, buffer: Any) -> Any:
        """The address of a buffer in this process."""
        return ffi.cast("void *", self._buffer(buffer).address)

    def vip_unmap_buffer(self, buffer: Any) -> int:
        """Nothing to do: a buffer is mapped for as long as it exists."""
        del buffer
        return 0

    def vip_get_buffer_size(self, buffer: Any) -> int:
        """Bytes of its tensor."""
        return self._buffer(buffer).nbytes

    def vip_flush_buffer(self, buffer: Any, type: int) -> int:
        """Host and device see the same memory; only what lies in several pieces is brought together or taken apart."""
        found = self.handles.find(address_of(buffer), BufferState)
        memory = None if found is None else found.bytes()
        if found is None or memory is None:
            raise Refusal(Status.VIP_ERROR_FAILURE, f"there is no buffer {address_of(buffer):#x}")
        if type == vip_buffer_operation_type_e.VIP_BUFFER_OPER_TYPE_FLUSH:
            found.scatter(memory)
        elif type == vip_buffer_operation_type_e.VIP_BUFFER_OPER_TYPE_INVALIDATE:
            found.gather(memory)
        else:
            raise Refusal(Status.VIP_ERROR_FAILURE, f"there is no way {type} to flush", "use VIP_BUFFER_OPER_TYPE_FLUSH")
        return 0

    # networks

    def vip_create_network(self, data: Any, size_of_data: int, type: int, network: Any) -> int:
        """A network from a file, or from its bytes, which are copied."""
        driver = self._require_driver("vip_create_network")
        model = read_model(data, size_of_data, type, self.chip, self.generation)
        weights = Weights(model, driver.device(chips.get(model.chip)))
        return self._give(network, NetworkState(weights, driver.power, driver.jobs, values=self._value_check()), "vip_network")

    def vip_dup_network(self, data: Any, size_of_data: int, type: int, network: Any, dup_network: Any) -> int:
        """A second network with the same weights."""
        source = self._network(network)
        kinds = vip_dup_network_type_e
        origins = {
            kinds.VIP_DUP_FROM_NBG_FILE: vip_create_network_type_e.VIP_CREATE_NETWORK_FROM_FILE,
            kinds.VIP_DUP_FROM_NBG_MEMORY: vip_create_network_type_e.VIP_CREATE_NETWORK_FROM_MEMORY,
            kinds.VIP_DUP_FROM_NBG_FLASH: vip_create_network_type_e.VIP_CREATE_NETWORK_FROM_FLASH,
        }
        known = functools.reduce(lambda left, right: left | right, kinds)
        asked = [origin for kind, origin in origins.items() if type & kind]
        if type & ~int(known) or len(asked) > 1 or (asked and type & kinds.VIP_DUP_FROM_NETWORK):
            raise Refusal(Status.VIP_ERROR_INVALID_ARGUMENTS, f"there is no way {type:#x} to duplicate a network")
        if asked:
            model = read_model(data, size_of_data, int(asked[0]), source.device.chip, self.generation)
            if not same_network(source.model, model):
                raise Refusal(
                    Status.VIP_ERROR_INVALID_NETWORK,
                    f"'{model.name}' is not the network '{source.model.name}'",
                    "pass the model that the network was created from",
                )
        return self._give(dup_network, source.duplicate(), "vip_network")

    def vip_weak_dup_network(self, network: Any, dup_network: Any) -> int:
        """A second network with the same weights and the same internal memory; the two take turns."""
        return self._give(dup_network, self._network(network).duplicate(weak=True), "vip_network")

    def vip_destroy_network(self, network: Any) -> int:
        """End a network; a job that is on its way stops."""
        found = self.handles.remove(address_of(network), NetworkState)
        if found is None:
            self._network(network)
        else:
            found.close()
        return 0

    def vip_set_network(self, network: Any, property: int, value: Any) -> int:
        """Set a property."""
        set_network(self._network(network), self.generation, self.handles, property, value)
        return 0

    def vip_query_network(self, network: Any, property: int, value: Any) -> int:
        """Answer a query for a property."""
        answer_network(self._network(network), self.generation, property, value)
        return 0

    def vip_prepare_network(self, network: Any) -> int:
        """Put a network into memory."""
        self._network(network).prepare()
        return 0

    def vip_finish_network(self, network: Any) -> int:
        """Take a network out of memory."""
        self._network(network).finish()
        return 0

    def vip_query_input(self, network: Any, index: int, property: int, value: Any) -> int:
        """Answer a query for a property of an input."""
        answer_buffer([port.attributes for port in self._network(network).inputs], index, property, value, "input")
        return 0

    def vip_query_output(self, network: Any, index: int, property: int, value: Any) -> int:
        """Answer a query for a property of an output."""
        answer_buffer([port.attributes for port in self._network(network).outputs], index, property, value, "output")
        return 0

    def vip_set_input(self, network: Any, index: int, input: Any) -> int:
        """Let the network read an input from a buffer."""
        found = self._network(network)
        found.require_prepared()
        found.bind(found.inputs, index, self._buffer(input), "input")
        return 0

    def vip_set_output(self, network: Any, index: int, output: Any) -> int:
        """Let the network write an output to a buffer."""
        found = self._network(network)
        found.require_prepared()
        found.bind(found.outputs, index, self._buffer(output), "output")
        return 0

    def vip_run_network(self, network: Any) -> int:
        """Execute, and return when it is done."""
        self._network(network).run()
        return 0

    def vip_trigger_network(self, network: Any) -> int:
        """Submit, and return at once."""
        self._network(network).trigger()
        return 0

    def vip_wait_network(self, network: Any) -> int:
        """Wait for what was triggered."""
        self._network(network).wait()
        return 0

    def vip_cancel_network(self, network: Any) -> int:
        """Stop what is on its way; nothing to do where nothing is."""
        self._network(network).cancel()
        return 0

    def vip_set_ppu_param(self, network: Any, param: Any, index: int) -> int:
        """Layers of our models have no parameters of the shader unit that could be changed."""
        self._network(network)
        if param == ffi.NULL:
            raise Refusal(Status.VIP_ERROR_INVALID_ARGUMENTS, "the parameters are a null pointer")
        raise Refusal(Status.VIP_ERROR_NOT_SUPPORTED, f"operation {index} has no parameters of the shader unit")

    # groups

    def vip_create_group(self, count: int, group: Any) -> int:
        """Space for *count* networks."""
        if not count:
            raise Refusal(Status.VIP_ERROR_INVALID_ARGUMENTS, "a group without networks cannot be made")
        return self._give(group, GroupState(count, self._require_driver("vip_create_group").jobs), "vip_group")

    def vip_destroy_group(self, group: Any) -> int:
        """End a group; its networks stay."""
        found = self.handles.remove(address_of(group), GroupState)
        if found is None:
            self._group(group)
        else:
            found.close()
        return 0

    def vip_set_group(self, group: Any, property: int, value: Any) -> int:
        """Set a property."""
        set_group(self._group(group), self.generation, property, value)
        return 0

    def vip_query_group(self, group: Any, property: int, value: Any) -> int:
        """Answer a query for a property."""
        answer_group(self._group(group), property, value)
        return 0

    def vip_add_network(self, group: Any, network: Any) -> int:
        """Put a network into a group."""
        self._group(group).add(self._network(network))
        return 0

    def vip_run_group(self, group: Any, num: int) -> int:
        """Execute the first *num* networks, and return when they are done."""
        self._group(group).run(num)
        return 0

    def vip_trigger_group(self, group: Any, num: int) -> int:
        """Submit the first *num* networks, and return at once."""
        self._group(group).trigger(num)
        return 0

    def vip_wait_group(self, group: Any) -> int:
        """Wait for what was triggered."""
        self._group(group).wait()
        return 0


def open_for_programs(chip: str | None) -> SoftwareLibrary:
    """The library behind ``libVIPlite.so``: captures of hangs lie in the working directory, which is the vendor's default."""
    return SoftwareLibrary(chip, captures=Path())


def _guarded(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """*method* with failures as statuses, and rejected before ``vip_init``."""
    needs_driver = name not in _BEFORE_INIT

    @functools.wraps(method)
    def call(self: SoftwareLibrary, *arguments: Any) -> Any:
        try:
            if needs_driver and self._driver is None:
                self._require_driver(name)
            out = _OUT_PARAMETER.get(name)
            if out is not None and arguments[out] == ffi.NULL:
                raise Refusal(Status.VIP_ERROR_INVALID_ARGUMENTS, "there is no place for the result: a null pointer")
            return method(self, *arguments)
        except Exception as error:  # nothing may leave through C; what is not an error of ours is logged with its traceback
            return self.refused(name, arguments, error)
        except BaseException:  # an interrupt, which may have come anywhere
            if self._driver is not None:
                self._driver.recover()
            raise

    return call


def _clear_out(name: str, arguments: tuple[Any, ...]) -> None:
    out = _OUT_PARAMETER.get(name)
    if out is not None and arguments[out] != ffi.NULL:
        arguments[out][0] = ffi.NULL


for _name in [name for name in vars(SoftwareLibrary) if name.startswith("vip_")]:
    setattr(SoftwareLibrary, _name, _guarded(_name, getattr(SoftwareLibrary, _name)))
del _name


def _no_buffer(handle: Any) -> Refusal[Status]:
    return Refusal(
        Status.VIP_ERROR_INVALID_ARGUMENTS,
        f"there is no buffer {address_of(handle):#x}",
        "use a buffer that a vip_create_buffer call gave and that was not destroyed",
    )


def _check_size_of_param(size: int) -> None:
    """Clients are known that pass zero."""
    if size and size < ffi.sizeof("vip_buffer_create_params_t"):
        raise Refusal(
            Status.VIP_ERROR_INVALID_ARGUMENTS, f"the parameters have {size} bytes", "pass sizeof(vip_buffer_create_params_t)"
        )
