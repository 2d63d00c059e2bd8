"""What the query calls report and the set calls set, property by property.

A value is written to, or read from, memory of the caller that the call points to: as many bytes as the property has, and no more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..._vip import ffi
from ...chips import Chip
from ...vendors.libraries import Refusal
from ..attributes import NAME_BYTES, Attributes
from ..constants import (
    vip_buffer_property_e,
    vip_buffer_quantize_format_e,
    vip_group_property_e,
    vip_network_property_e,
    vip_query_hardware_property_e,
)
from ..generations import A, Generation
from .buffers import BufferState
from .handles import Handles, Status, address_of
from .network import HIGHEST_PRIORITY, GroupState, NetworkState, RunCost

_BUFFER = vip_buffer_property_e
_GROUP = vip_group_property_e
_HARDWARE = vip_query_hardware_property_e
_NETWORK = vip_network_property_e
_AFFINE = vip_buffer_quantize_format_e.VIP_BUFFER_QUANTIZE_TF_ASYMM
_FIXED_POINT = vip_buffer_quantize_format_e.VIP_BUFFER_QUANTIZE_DYNAMIC_FIXED_POINT
_MAX_VALUE = 0xFFFF_FFFF


def answer_hardware(chip: Chip, property: int, size: int, value: Any) -> None:
    """``vip_query_hardware``."""
    assert chip.vip is not None
    numbers = {
        int(_HARDWARE.VIP_QUERY_HW_PROP_CID): chip.vip.customer_id,
        int(_HARDWARE.VIP_QUERY_HW_PROP_DEVICE_COUNT): 1,
        int(_HARDWARE.VIP_QUERY_HW_PROP_CORE_COUNT_EACH_DEVICE): chip.cores,
    }
    if property not in numbers:
        raise Refusal(Status.VIP_ERROR_NOT_SUPPORTED, f"the hardware has no property {property}")
    if size < 4:
        raise Refusal(Status.VIP_ERROR_INVALID_ARGUMENTS, f"the answer takes 4 bytes, {size} given")
    _write("uint32_t", value, numbers[property])


def answer_network(network: NetworkState, generation: Generation, property: int, value: Any) -> None:
    """``vip_query_network``."""
    _require_known(generation, property, "told")
    if property == _NETWORK.VIP_NETWORK_PROP_PROFILING:
        _write_profile(value, network.profile)
    elif property == _NETWORK.VIP_NETWORK_PROP_NETWORK_NAME:
        _write_name(value, network.model.name)
    elif property == _NETWORK.VIP_NETWORK_PROP_CORE_COUNT:
        _write("uint8_t", value, 1)
    else:
        numbers = {
            int(_NETWORK.VIP_NETWORK_PROP_LAYER_COUNT): len(network.model.programs[0].layers),
            int(_NETWORK.VIP_NETWORK_PROP_INPUT_COUNT): len(network.inputs),
            int(_NETWORK.VIP_NETWORK_PROP_OUTPUT_COUNT): len(network.outputs),
            int(_NETWORK.VIP_NETWORK_PROP_MEMORY_POOL_SIZE): network.pool_size,
        }
        if property not in numbers:
            raise _not_possible(property, "told")
        _write("uint32_t", value, numbers[property])


def answer_buffer(ports: list[Attributes], index: int, property: int, value: Any, what: str) -> None:
    """``vip_query_input`` and ``vip_query_output``."""
    if index >= len(ports):
        raise Refusal(Status.VIP_ERROR_INVALID_ARGUMENTS, f"there is no {what} {index}: the network has {len(ports)}")
    known = _BUFFER_ANSWERS.get(property)
    if known is None:
        raise Refusal(Status.VIP_ERROR_NOT_SUPPORTED, f"an {what} has no property {property}", "use one of vip_buffer_property_e")
    known(ports[index], value)


def answer_group(group: GroupState, property: int, value: Any) -> None:
    """``vip_query_group``."""
    if property != _GROUP.VIP_GROUP_PROP_PROFILING:
        raise _not_possible(property, "told")
    _write_profile(value, group.profile)


def set_network(network: NetworkState, generation: Generation, handles: Handles, property: int, value: Any) -> None:
    """``vip_set_network``."""
    _require_known(generation, property, "set")
    cores = network.device.cores
    with network.lock:
        if property == _NETWORK.VIP_NETWORK_PROP_SET_PRIORITY:
            network.priority = min(_read("uint8_t", value), HIGHEST_PRIORITY)
        elif property == _NETWORK.VIP_NETWORK_PROP_SET_TIME_OUT:
            network.timeout_ms = _read("uint32_t", value)
        elif property == _NETWORK.VIP_NETWORK_PROP_SET_DEVICE_INDEX:
            network.require_unprepared("the device")
            _check_device(_read("uint32_t", value))
        elif property == _NETWORK.VIP_NETWORK_PROP_SET_CORE_INDEX:
            network.require_unprepared("the core")
            network.core = _checked_core(_read("int32_t", value), cores)
        elif property == _NETWORK.VIP_NETWORK_PROP_SET_MEMORY_POOL:
            network.require_unprepared("the memory pool")
            network.pool = _read_buffer(value, handles)
        elif property == _NETWORK.VIP_NETWORK_PROP_SET_COEFF_MEMORY:
            network.require_unprepared("the memory of coefficients")
            network.coefficients = _read_buffer(value, handles)
        elif property == _NETWORK.VIP_NETWORK_PROP_SET_ENABLE_NPD:
            if _read("int32_t", value):
                raise Refusal(
                    Status.VIP_ERROR_NOT_SUPPORTED,
                    "the time of each layer is not reported through this interface",
                    "anynpu profile MODEL shows it",
                )
        elif property == _NETWORK.VIP_NETWORK_PROP_SET_VIPSRAM_PRELOAD:
            _require(value)  # it concerns the speed of the chip alone
        else:
            raise _not_possible(property, "set")


def set_group(group: GroupState, generation: Generation, property: int, value: Any) -> None:
    """``vip_set_group``."""
    with group.lock:
        if property == _GROUP.VIP_GROUP_PROP_SET_DEVICE_INDEX:
            _check_device(_read("uint32_t", value))
        elif property == _GROUP.VIP_GROUP_PROP_SET_CORE_INDEX and generation.version >= 0x00020000:
            group.core = _checked_core(_read("int32_t", value), 1)
        elif property == _GROUP.VIP_GROUP_PROP_SET_TIME_OUT:
            group.timeout_ms = _read("uint32_t", value)
        else:
            raise _not_possible(property, "set")


def _require_known(generation: Generation, property: int, what: str) -> None:
    if property not in generation.network_properties:
        raise Refusal(
            Status.VIP_ERROR_NOT_SUPPORTED,
            f"the property {property} of a network cannot be {what} in VIPLite {generation.name}",
            "a later version may have it" if generation is A else "",
        )


def _not_possible(property: int, what: str) -> Refusal[Status]:
    return Refusal(Status.VIP_ERROR_NOT_SUPPORTED, f"the property {property} cannot be {what}")


def _require(value: Any) -> None:
    if value == ffi.NULL:
        raise Refusal(Status.VIP_ERROR_INVALID_ARGUMENTS, "the value is a null pointer")


def _read(kind: str, value: Any) -> int:
    _require(value)
    return int(ffi.cast(f"{kind} *", value)[0])


def _write(kind: str, value: Any, number: float) -> None:
    _require(value)
    ffi.cast(f"{kind} *", value)[0] = number


def _write_unless(other: vip_buffer_quantize_format_e, seen: Attributes, kind: str, value: Any, number: float) -> None:
    """A number of one quantization; nothing where the tensor has the *other*.

    Programs ask for all of them, one after the other, and the position of a fixed point lies where the scale does.
    """
    if seen.quant_format == other:
        _require(value)
    else:
        _write(kind, value, number)


def _write_name(value: Any, name: str) -> None:
    """A name and zeros, up to the end of the field."""
    _require(value)
    data = name.encode()[: NAME_BYTES - 1]
    ffi.memmove(value, data + bytes(NAME_BYTES - len(data)), NAME_BYTES)


def _write_profile(value: Any, profile: RunCost) -> None:
    _require(value)
    target = ffi.cast("vip_inference_profile_t *", value)
    target.inference_time = min(profile.microseconds, _MAX_VALUE)
    target.total_cycle = min(profile.cycles, _MAX_VALUE)


def _write_sizes(attributes: Attributes, value: Any) -> None:
    _require(value)
    target = ffi.cast("uint32_t *", value)
    for axis, extent in enumerate(attributes.dims):  # what is behind them stays as it is
        target[axis] = extent


def _read_buffer(value: Any, handles: Handles) -> BufferState:
    """A buffer that is handed over itself, or by a pointer to it."""
    _require(value)
    number = address_of(value)
    if not handles.looks_like_one(number):
        number = address_of(ffi.cast("void **", value)[0])
    buffer = handles.find(number, BufferState)
    if buffer is None:
        raise Refusal(
            Status.VIP_ERROR_INVALID_ARGUMENTS, f"there is no buffer {number:#x}", "pass a buffer that was not destroyed"
        )
    return buffer


def _check_device(index: int) -> None:
    if index:
        raise Refusal(Status.VIP_ERROR_INVALID_ARGUMENTS, f"there is no device {index}", "there is one, with the number 0")


def _checked_core(index: int, cores: int) -> int:
    if not -1 <= index < cores:
        raise Refusal(Status.VIP_ERROR_INVALID_ARGUMENTS, f"there is no core {index}", f"use 0 to {cores - 1}, or -1 for any")
    return index


_BUFFER_ANSWERS: dict[int, Callable[[Attributes, Any], None]] = {
    _BUFFER.VIP_BUFFER_PROP_QUANT_FORMAT: lambda seen, value: _write("int32_t", value, int(seen.quant_format)),
    _BUFFER.VIP_BUFFER_PROP_NUM_OF_DIMENSION: lambda seen, value: _write("uint32_t", value, len(seen.dims)),
    _BUFFER.VIP_BUFFER_PROP_SIZES_OF_DIMENSION: _write_sizes,
    _BUFFER.VIP_BUFFER_PROP_DATA_FORMAT: lambda seen, value: _write("int32_t", value, int(seen.data_format)),
    _BUFFER.VIP_BUFFER_PROP_FIXED_POINT_POS: lambda seen, value: _write_unless(
        _AFFINE, seen, "int32_t", value, seen.fixed_point_pos
    ),
    _BUFFER.VIP_BUFFER_PROP_TF_SCALE: lambda seen, value: _write_unless(_FIXED_POINT, seen, "float", value, seen.scale),
    _BUFFER.VIP_BUFFER_PROP_TF_ZERO_POINT: lambda seen, value: _write_unless(
        _FIXED_POINT, seen, "int32_t", value, seen.zero_point
    ),
    _BUFFER.VIP_BUFFER_PROP_NAME: lambda seen, value: _write_name(value, seen.name),
}
