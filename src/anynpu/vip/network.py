"""VIPLite for Python programs: one network, numpy in and out, errors as exceptions.

>>> with Network("det.nb") as network:                                          # doctest: +SKIP
...     print(network.inputs[0].shape, network.profile)
...     (heat,) = network.run([page])

What concerns more than one network, for Python programs: groups, the power of the NPU, and where its messages go.

>>> with Group([detect, classify]) as group:                                    # doctest: +SKIP
...     group.run()
...     print(group.profile)
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .. import modelfile
from .._util.lifetime import Closeable, at_end
from .._util.types import Array
from .._vip import ffi
from ..errors import DeviceClosed, ParameterError, TensorNameError
from ..npu.value_check import ValueCheck
from ..program import Model
from ..vendors.devices import DeviceChoice
from .buffer import Buffer
from .constants import (
    vip_create_network_type_e,
    vip_dup_network_type_e,
    vip_group_property_e,
    vip_network_property_e,
    vip_power_property_e,
    vip_query_hardware_property_e,
)
from .generations import check_target
from .info import HardwareInfo, NetworkProfile, TensorInfo, read_info
from .interface import VipLibrary
from .library import check, open_library

Inputs = Mapping[str, npt.ArrayLike] | Sequence[npt.ArrayLike] | Array


def query_hardware(device: str | DeviceChoice | VipLibrary | None = None) -> HardwareInfo:
    """``vip_query_hardware``: what the NPU is. A library object has to be between ``vip_init`` and ``vip_destroy``."""
    if isinstance(device, VipLibrary):
        return _hardware(device)
    library = open_library(device)
    check(library, "vip_init", library.vip_init(0))
    try:
        return _hardware(library)
    finally:
        library.vip_destroy()


def _hardware(library: VipLibrary) -> HardwareInfo:
    def ask(property: vip_query_hardware_property_e, count: int = 1) -> list[int]:
        value = ffi.new("uint32_t[]", count)
        check(library, "vip_query_hardware", library.vip_query_hardware(int(property), 4 * count, value))
        return [int(number) for number in value]

    (devices,) = ask(vip_query_hardware_property_e.VIP_QUERY_HW_PROP_DEVICE_COUNT)
    cores = ask(vip_query_hardware_property_e.VIP_QUERY_HW_PROP_CORE_COUNT_EACH_DEVICE, max(1, devices))
    return HardwareInfo(ask(vip_query_hardware_property_e.VIP_QUERY_HW_PROP_CID)[0], devices, tuple(cores))


def _destroy_network(library: VipLibrary, handle: Any) -> None:
    library.vip_finish_network(handle)
    library.vip_destroy_network(handle)
    library.vip_destroy()


log = logging.getLogger("anynpu.vip")


class Network(Closeable):
    """A model on an NPU, through the VIPLite calls.

    :param model: a file, its bytes, or a compiled model
    :param device: see :mod:`anynpu.vendors.devices`; or a library object
    :param priority: 0 to 255; of the networks that wait for a core, that with the highest runs first
    :param timeout: seconds for a run, waiting included; None for no limit
    :param core: the core to run on, where there is a choice
    :param prepare: False leaves that to :meth:`prepare`, for settings that have to come before
    :param video_memory: on V85x, the bytes of memory that the driver may use for everything; 0 for what there is

    Threads: a network does one thing at a time; give each thread its own with :meth:`duplicate`.
    """

    library: VipLibrary

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes | Model,
        *,
        device: str | DeviceChoice | VipLibrary | None = None,
        priority: int | None = None,
        timeout: float | None = None,
        core: int | None = None,
        prepare: bool = True,
        video_memory: int = 0,
    ) -> None:
        library = open_library(device)
        if isinstance(model, Model):
            model = modelfile.to_bytes(model)
        if isinstance(model, bytes):
            if not model:
                raise ParameterError("the model is empty", hint="pass the bytes of a .nb file")
            data, size = ffi.from_buffer(model), len(model)
            kind = vip_create_network_type_e.VIP_CREATE_NETWORK_FROM_MEMORY
        else:
            data, size = ffi.new("char[]", os.fsencode(Path(model))), 0
            kind = vip_create_network_type_e.VIP_CREATE_NETWORK_FROM_FILE
        handle = ffi.new("vip_network *")
        check(library, "vip_init", library.vip_init(video_memory))
        try:
            if library.genuine:
                check_target(model, query_hardware(library).customer_id, genuine=True)
            check(library, "vip_create_network", library.vip_create_network(data, size, int(kind), handle))
        except BaseException:
            library.vip_destroy()
            raise
        self._adopt(library, handle[0], None)
        try:
            self._configure(priority, timeout, core)
            if prepare:
                self.prepare()
        except BaseException:
            self.close()
            raise

    @classmethod
    def _of(
        cls, library: VipLibrary, handle: Any, source: Network, configuration: tuple[int | None, float | None, int | None]
    ) -> Network:
        network = cls.__new__(cls)
        network._adopt(library, handle, source)
        try:
            network._configure(*configuration)
            network.prepare()
        except BaseException:
            network.close()
            raise
        return network

    def _adopt(self, library: VipLibrary, handle: Any, source: Network | None) -> None:
        self.library = library
        self._handle = handle
        self._source = source  # a duplicate must not outlive what it was made from
        self._finalizer = at_end(self, _destroy_network, library, handle)
        self._bound: dict[tuple[str, int], Buffer] = {}
        self._infos: dict[str, tuple[TensorInfo, ...]] = {}
        self._kept: list[Buffer] = []
        self._values = ValueCheck(log.warning)

    def _configure(self, priority: int | None, timeout: float | None, core: int | None) -> None:
        if priority is not None:
            self.set_priority(priority)
        if timeout is not None:
            self.set_timeout(timeout)
        if core is not None:
            self.set_property(vip_network_property_e.VIP_NETWORK_PROP_SET_CORE_INDEX, ffi.new("int32_t *", core))

    # what it is

    @property
    def handle(self) -> Any:
        """The ``vip_network``."""
        if not self._finalizer.alive:
            raise DeviceClosed("the network was closed", hint="make a new one")
        return self._handle

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    @property
    def name(self) -> str:
        """What the model calls itself."""
        value = ffi.new("char[256]")
        self._query(vip_network_property_e.VIP_NETWORK_PROP_NETWORK_NAME, value)
        text: bytes = ffi.string(value)
        return text.decode("utf-8", "replace")

    @property
    def layers(self) -> int:
        return self._number(vip_network_property_e.VIP_NETWORK_PROP_LAYER_COUNT)

    @property
    def memory_pool_size(self) -> int:
        """Bytes of internal memory."""
        return self._number(vip_network_property_e.VIP_NETWORK_PROP_MEMORY_POOL_SIZE)

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        return self._tensors("input", vip_network_property_e.VIP_NETWORK_PROP_INPUT_COUNT)

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        return self._tensors("output", vip_network_property_e.VIP_NETWORK_PROP_OUTPUT_COUNT)

    @property
    def hardware(self) -> HardwareInfo:
        """The NPU that it runs on."""
        return query_hardware(self.library)

    @property
    def profile(self) -> NetworkProfile:
        """The time of the last run on the device."""
        value = ffi.new("vip_inference_profile_t *")
        self._query(vip_network_property_e.VIP_NETWORK_PROP_PROFILING, value)
        return NetworkProfile(value.inference_time, value.total_cycle)

    # what it does

    def run(self, inputs: Inputs, *, decode: bool = True) -> list[Array]:
        """Write the inputs, execute, read the outputs.

        :param inputs: by name or in order. float32 are numbers, which become codes; the network's own type is taken as it is
        :param decode: False gives the outputs in the network's own type
        :return: the outputs in arrays of your own
        """
        self.set_inputs(inputs)
        self.execute()
        return self.get_outputs(decode=decode)

    def set_inputs(self, inputs: Inputs) -> None:
        """Put the inputs of the next run into the buffers that are bound, or into new ones."""
        infos = self.inputs
        for info, array in zip(infos, _in_order(inputs, infos), strict=True):
            self._values.inputs([info.name], [np.asarray(array)])
            codes = info.encode(array)
            buffer = self.bind_input(info.index)
            memory = buffer.bytes()
            memory[: codes.nbytes] = codes.reshape(-1).view(np.uint8)
            buffer.flush()

    def execute(self) -> None:
        """``vip_run_network``: execute on what the buffers hold."""
        self._bind_outputs()
        self._call("vip_run_network")

    def trigger(self) -> None:
        """``vip_trigger_network``: submit, and return at once. :meth:`wait` waits."""
        self._bind_outputs()
        self._call("vip_trigger_network")

    def wait(self) -> None:
        """``vip_wait_network``: wait for what was triggered."""
        self._call("vip_wait_network")

    def cancel(self) -> None:
        """``vip_cancel_network``: stop what is on its way; waiting threads get :class:`JobCancelled`."""
        self._call("vip_cancel_network")

    def get_outputs(self, *, decode: bool = True) -> list[Array]:
        """The outputs of the last run, in arrays of your own."""
        self._bind_outputs()
        result = []
        for info in self.outputs:
            buffer = self._bound["output", info.index]
            buffer.invalidate()
            result.append(info.decode(buffer.array()) if decode else buffer.array().copy())
            self._values.output(info.name, info.spec.dtype, result[-1])
        return result

    def prepare(self) -> None:
        """``vip_prepare_network``: put the network into memory; again is harmless."""
        self._call("vip_prepare_network")

    def set_property(self, property: vip_network_property_e, value: Any) -> None:
        """``vip_set_network``: *value* is a pointer to what the property takes. Most have to be set before :meth:`prepare`."""
        self._call("vip_set_network", int(property), value)

    def set_memory_pool(self, buffer: Buffer) -> None:
        """Use *buffer*, of at least :attr:`memory_pool_size` bytes, for intermediate tensors; before :meth:`prepare`."""
        self.set_property(vip_network_property_e.VIP_NETWORK_PROP_SET_MEMORY_POOL, buffer.handle)
        self._kept.append(buffer)

    def set_coefficient_memory(self, buffer: Buffer) -> None:
        """Put the weights into *buffer*; before :meth:`prepare`."""
        self.set_property(vip_network_property_e.VIP_NETWORK_PROP_SET_COEFF_MEMORY, buffer.handle)
        self._kept.append(buffer)

    def set_priority(self, priority: int) -> None:
        """0 to 255: of the networks that wait for a core, that with the highest runs first."""
        if not 0 <= priority <= 255:
            raise ParameterError(f"priority {priority} is not possible", hint="use 0 to 255, where 255 goes first")
        self.set_property(vip_network_property_e.VIP_NETWORK_PROP_SET_PRIORITY, ffi.new("uint8_t *", priority))

    def set_timeout(self, seconds: float | None) -> None:
        """How long a run may take, waiting included; None for as long as it likes."""
        milliseconds = 0 if seconds is None else max(1, round(seconds * 1000))
        self.set_property(vip_network_property_e.VIP_NETWORK_PROP_SET_TIME_OUT, ffi.new("uint32_t *", milliseconds))

    def duplicate(
        self,
        *,
        weak: bool = False,
        model: str | os.PathLike[str] | bytes | None = None,
        priority: int | None = None,
        timeout: float | None = None,
        core: int | None = None,
    ) -> Network:
        """A network of the same model that shares its weights, for another thread; a *weak* one shares internal memory, too.

        :param model: the file or its bytes once more; rejected if it is another network
        """
        library, result = self.library, ffi.new("vip_network *")
        check(library, "vip_init", library.vip_init(0))
        try:
            if weak:
                check(library, "vip_weak_dup_network", library.vip_weak_dup_network(self.handle, result))
            else:
                data, size, kind = _duplicated_from(model)
                check(library, "vip_dup_network", library.vip_dup_network(data, size, int(kind), self.handle, result))
        except BaseException:
            library.vip_destroy()
            raise
        return Network._of(library, result[0], self, (priority, timeout, core))

    # memory

    def bind_input(self, name: str | int, buffer: Buffer | None = None) -> Buffer:
        """Read an input from *buffer*; without one, from what is bound or else from new memory, which is returned."""
        return self._bind("input", _named(self.inputs, name), buffer)

    def bind_output(self, name: str | int, buffer: Buffer | None = None) -> Buffer:
        """Write an output to *buffer*; without one, to what is bound or else to new memory, which is returned."""
        return self._bind("output", _named(self.outputs, name), buffer)

    def buffer(self, info: TensorInfo, *, cached: bool = False) -> Buffer:
        """Memory for an input or output, to bind to this network or to others."""
        return Buffer.allocate(self.library, info, cached=cached)

    def buffer_from_array(self, info: TensorInfo, array: npt.NDArray[Any]) -> Buffer:
        """The memory of an array itself, whose address and size must be multiples of 64."""
        return Buffer.from_array(self.library, info, array)

    def buffer_from_fd(self, info: TensorInfo, fd: int, size: int | None = None) -> Buffer:
        """Memory that another owner shares by descriptor; its size must be a multiple of 64."""
        return Buffer.from_fd(self.library, info, fd, size)

    def close(self) -> None:
        """Finish and destroy the network; again is harmless. A run in another thread stops."""
        self._finalizer()
        for buffer in self._bound.values():
            if buffer.keep is _OWN:
                buffer.close()
        self._bound.clear()
        self._kept.clear()
        self._source = None

    def __repr__(self) -> str:
        return "<vip.Network, closed>" if self.closed else f"<vip.Network {self.name!r} on {self.library.description}>"

    def _bind(self, side: str, info: TensorInfo, buffer: Buffer | None) -> Buffer:
        bound = self._bound.get((side, info.index))
        if buffer is None:
            if bound is not None and not bound.closed:
                return bound
            buffer = Buffer.allocate(self.library, info)
            buffer.keep = _OWN
        if buffer is not bound:
            self._call(f"vip_set_{side}", info.index, buffer.handle)
            self._bound[side, info.index] = buffer
            if bound is not None and bound.keep is _OWN:
                bound.close()
        return buffer

    def _bind_outputs(self) -> None:
        for info in self.outputs:
            self.bind_output(info.index)

    def _tensors(self, side: str, count: vip_network_property_e) -> tuple[TensorInfo, ...]:
        known = self._infos.get(side)
        if known is None:
            number = self._number(count)
            known = tuple(read_info(self.library, self.handle, index, is_input=side == "input") for index in range(number))
            self._infos[side] = known
        return known

    def _call(self, name: str, *arguments: Any) -> None:
        check(self.library, name, getattr(self.library, name)(self.handle, *arguments))

    def _query(self, property: vip_network_property_e, value: Any) -> None:
        self._call("vip_query_network", int(property), value)

    def _number(self, property: vip_network_property_e) -> int:
        value = ffi.new("uint32_t *")
        self._query(property, value)
        return int(value[0])


_OWN = object()
"""Marks buffers that a network has made for itself."""


def _duplicated_from(model: str | os.PathLike[str] | bytes | None) -> tuple[Any, int, vip_dup_network_type_e]:
    """What ``vip_dup_network`` receives about the model."""
    kinds = vip_dup_network_type_e
    if model is None:
        return ffi.NULL, 0, kinds.VIP_DUP_FOR_CMD_BY_NETWORK | kinds.VIP_DUP_FROM_NETWORK
    if isinstance(model, bytes):
        return ffi.from_buffer(model), len(model), kinds.VIP_DUP_FOR_CMD_BY_NBG | kinds.VIP_DUP_FROM_NBG_MEMORY
    return ffi.new("char[]", os.fsencode(Path(model))), 0, kinds.VIP_DUP_FOR_CMD_BY_NBG | kinds.VIP_DUP_FROM_NBG_FILE


def _in_order(given: Inputs, infos: Sequence[TensorInfo]) -> list[npt.ArrayLike]:
    names = [info.name for info in infos]
    if isinstance(given, Mapping):
        unknown = [name for name in given if name not in names]
        missing = [name for name in names if name not in given]
        if unknown or missing:
            what = f"there is no input '{unknown[0]}'" if unknown else f"input '{missing[0]}' is missing"
            raise TensorNameError(what, hint=f"the model has: {', '.join(names)}")
        return [given[name] for name in names]
    entries: list[npt.ArrayLike] = [given] if isinstance(given, np.ndarray) else list(given)
    if len(entries) != len(names):
        raise TensorNameError(f"{len(entries)} inputs for a model with {len(names)}", hint=f"it has: {', '.join(names)}")
    return entries


def _named(infos: Sequence[TensorInfo], name: str | int) -> TensorInfo:
    for info in infos:
        if name in (info.name, info.index) and not isinstance(name, bool):
            return info
    raise TensorNameError(f"there is no tensor {name!r}", hint=f"there are: {', '.join(info.name for info in infos)}")


Device = str | DeviceChoice | VipLibrary | None
Action = Literal["off", "on", "stop", "start"]


def _destroy_group(library: VipLibrary, handle: Any) -> None:
    library.vip_destroy_group(handle)
    library.vip_destroy()


class Group(Closeable):
    """Networks that are submitted together, in order: ``vip_create_group`` and what belongs to it.

    The networks stay the caller's. For one thread at a time.

    :param networks: prepared networks of one library
    :param timeout: seconds for a run of all; None for no limit
    """

    def __init__(self, networks: Sequence[Network], *, timeout: float | None = None) -> None:
        if not networks or any(network.library is not networks[0].library for network in networks):
            raise ParameterError("a group takes networks of one library, at least one", hint="open them on the same device")
        self.library = library = networks[0].library
        self.networks = tuple(networks)
        handle = ffi.new("vip_group *")
        check(library, "vip_init", library.vip_init(0))
        try:
            check(library, "vip_create_group", library.vip_create_group(len(networks), handle))
        except BaseException:
            library.vip_destroy()
            raise
        self._handle = handle[0]
        self._finalizer = at_end(self, _destroy_group, library, self._handle)
        try:
            for network in networks:
                check(library, "vip_add_network", library.vip_add_network(self._handle, network.handle))
            if timeout is not None:
                value = ffi.new("uint32_t *", max(1, round(timeout * 1000)))
                property = int(vip_group_property_e.VIP_GROUP_PROP_SET_TIME_OUT)
                check(library, "vip_set_group", library.vip_set_group(self._handle, property, value))
        except BaseException:
            self.close()
            raise

    @property
    def handle(self) -> Any:
        """The ``vip_group``."""
        if not self._finalizer.alive:
            raise DeviceClosed("the group was closed", hint="make it again")
        return self._handle

    def run(self, count: int | None = None) -> None:
        """Execute the first *count* networks, all by default, and return when they are done."""
        check(self.library, "vip_run_group", self.library.vip_run_group(self.handle, self._count(count)))

    def trigger(self, count: int | None = None) -> None:
        """Submit them and return at once; :meth:`wait` waits."""
        check(self.library, "vip_trigger_group", self.library.vip_trigger_group(self.handle, self._count(count)))

    def wait(self) -> None:
        """Wait for what was triggered."""
        check(self.library, "vip_wait_group", self.library.vip_wait_group(self.handle))

    @property
    def profile(self) -> NetworkProfile:
        """The last run of the group."""
        value = ffi.new("vip_inference_profile_t *")
        property = int(vip_group_property_e.VIP_GROUP_PROP_PROFILING)
        check(self.library, "vip_query_group", self.library.vip_query_group(self.handle, property, value))
        return NetworkProfile(value.inference_time, value.total_cycle)

    def close(self) -> None:
        """Give the group back; its networks stay, and again is harmless."""
        self._finalizer()

    def _count(self, count: int | None) -> int:
        return len(self.networks) if count is None else count

    def __repr__(self) -> str:
        return f"<vip.Group of {len(self.networks)} networks>" if self._finalizer.alive else "<vip.Group, closed>"


def power(action: Action | None = None, *, percent: int | None = None, device: Device = None) -> None:
    """``vip_power_management``: switch the NPU off or on, stop or start it, or set its clock to *percent* of the highest.

    It holds as long as a network of that device is open. Not for V85x, whose call wants a network.
    """
    properties = {name: vip_power_property_e[f"VIP_POWER_PROPERTY_{name.upper()}"] for name in ("off", "on", "stop", "start")}
    if (action is None) == (percent is None) or (action is not None and action not in properties):
        raise ParameterError("give an action or a percentage", hint=f"actions are {', '.join(properties)}; percent is 1 to 100")
    if percent is not None and not 1 <= percent <= 100:
        raise ParameterError(f"{percent} % of the clock is not possible", hint="use 1 to 100")
    with _driver(device) as library:
        value, property = ffi.NULL, vip_power_property_e.VIP_POWER_PROPERTY_SET_FREQUENCY
        if action is not None:
            property = properties[action]
        else:
            value = ffi.new("vip_power_frequency_t *", {"fscale_percent": percent})
        check(library, "vip_power_management", library.vip_power_management(ffi.NULL, int(property), value))


def set_log_path(folder: str | os.PathLike[str], *, device: Device = None) -> None:
    """``vip_set_log_path``: write what goes wrong into a file in *folder*, as long as a network of that device is open."""
    with _driver(device) as library:
        path = ffi.new("char[]", os.fsencode(folder))
        check(library, "vip_set_log_path", library.vip_set_log_path(path))


@contextmanager
def _driver(device: Device) -> Iterator[VipLibrary]:
    """A library between ``vip_init`` and ``vip_destroy``; those calls are counted."""
    library = open_library(device)
    check(library, "vip_init", library.vip_init(0))
    try:
        yield library
    finally:
        library.vip_destroy()
