"""The VIPLite calls as a recording sees them (:mod:`anynpu.devtools.recording`)."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._vip import ffi
from ..devtools.recording import CallShape, CallTable, Handle, Named, NewHandle, Number, Role, Scope, Struct, byte_count, require
from .constants import (
    vip_buffer_property_e,
    vip_create_network_type_e,
    vip_dup_network_type_e,
    vip_group_property_e,
    vip_network_property_e,
    vip_power_property_e,
)

NULL = "NULL"
_FROM_FILE = int(vip_create_network_type_e.VIP_CREATE_NETWORK_FROM_FILE)
_FROM_MEMORY = int(vip_create_network_type_e.VIP_CREATE_NETWORK_FROM_MEMORY)
_DUP_FILE, _DUP_MEMORY = int(vip_dup_network_type_e.VIP_DUP_FROM_NBG_FILE), int(vip_dup_network_type_e.VIP_DUP_FROM_NBG_MEMORY)
_DUP_BYTES = _DUP_MEMORY | int(vip_dup_network_type_e.VIP_DUP_FROM_NBG_FLASH)
_WORD, _NAME, _SIZES = 4, 64, 24


def _model(scope: Scope, value: Any, size: int, *, by_path: bool) -> dict[str, Any]:
    """What is kept of a model that is given by its path, or by its bytes."""
    text = ffi.cast("char *", value)
    if not by_path:
        return {"blob": scope.blob(bytes(ffi.buffer(text, size)))}
    path = os.fsdecode(ffi.string(text))
    try:
        return {"path": path, "blob": scope.blob(Path(path).read_bytes())}
    except OSError:
        return {"path": path}


class _Model(Role):
    """The bytes of a model, or the path of its file; it is made again from the bytes."""

    def before(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        if value == ffi.NULL:
            return NULL
        return _model(scope, value, arguments[1], by_path=arguments[2] == _FROM_FILE)

    def build(self, scope: Scope, recorded: Any, entries: list[Any]) -> Any:
        if recorded == NULL:
            return ffi.NULL
        if "blob" not in recorded:
            require(entries[2] == _FROM_FILE, "the path of a model that is no file")
            return ffi.new("char[]", os.fsencode(recorded["path"]))
        data = scope.data(recorded["blob"])
        entries[1], entries[2] = len(data), _FROM_MEMORY  # made after this
        return ffi.new("char[]", data)


@dataclass
class _Property(Role):
    """A value that a call fills or reads, as large as its property states.

    :ivar property: the argument that names it
    :ivar sizes: bytes by property; others have four
    :ivar out: whether the call fills it
    :ivar not_compared: properties whose values are times
    """

    property: int
    sizes: dict[int, int]
    out: bool
    not_compared: frozenset[int] = frozenset()

    def before(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        if value == ffi.NULL:
            return NULL
        return "new" if self.out else scope.blob(self._bytes(value, arguments))

    def build(self, scope: Scope, recorded: Any, entries: list[Any]) -> Any:
        if recorded == NULL:
            return ffi.NULL
        data = bytes(_NAME) if self.out else scope.data(recorded)
        require(self.out or len(data) == self._size(entries[self.property]), f"a property of {len(data)} bytes")
        made = ffi.new("char[]", data)
        scope.kept["value"] = made
        return ffi.cast("void *", made)

    def after(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        if not self.out or int(arguments[self.property]) in self.not_compared:
            return None
        return scope.blob(self._bytes(value, arguments))

    def _bytes(self, value: Any, arguments: tuple[Any, ...]) -> bytes:
        return bytes(ffi.buffer(ffi.cast("char *", value), self._size(int(arguments[self.property]))))

    def _size(self, number: int) -> int:
        return self.sizes.get(number, _WORD)


class _OwnMemory(Role):
    """Memory of the program by address: as many bytes of the replay's own, where the NPU wants them to begin."""

    def build(self, scope: Scope, recorded: Any, entries: list[Any]) -> Any:
        made = ffi.new("char[]", max(byte_count(entries[2]), 1) + 64)
        scope.kept.setdefault("memory", []).append(made)
        address = int(ffi.cast("uintptr_t", made))
        return ffi.cast("void *", address + -address % 64)


class _DupModel(Role):
    """The model of ``vip_dup_network``, where its type states that there is one."""

    def before(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        kind = int(arguments[2])
        if value == ffi.NULL or not kind & (_DUP_FILE | _DUP_BYTES):
            return NULL
        return _model(scope, value, arguments[1], by_path=not kind & _DUP_BYTES)

    def build(self, scope: Scope, recorded: Any, entries: list[Any]) -> Any:
        if recorded == NULL:
            return ffi.NULL
        if "blob" not in recorded:
            require(bool(entries[2] & _DUP_FILE) and not entries[2] & _DUP_BYTES, "the path of a model that is no file")
            return ffi.new("char[]", os.fsencode(recorded["path"]))
        data = scope.data(recorded["blob"])
        entries[1], entries[2] = len(data), entries[2] & ~_DUP_FILE | _DUP_MEMORY if entries[2] & _DUP_FILE else entries[2]
        return ffi.new("char[]", data)


class _DeviceOrNetwork(Role):
    """The number of a device, or a network."""

    def before(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        name = scope.name(value)
        return scope.number(value) if name in (NULL, "unknown") else name

    def build(self, scope: Scope, recorded: Any, entries: list[Any]) -> Any:
        if isinstance(recorded, str):
            return ffi.cast("void *", scope.value(recorded) or 0)
        require(not recorded or not scope.library.genuine, "an address of another program cannot be used on a board")
        return ffi.cast("void *", recorded)


class _Frequency(Role):
    """What ``vip_power_management`` reads where a frequency is set."""

    def before(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        if value == ffi.NULL or arguments[1] != vip_power_property_e.VIP_POWER_PROPERTY_SET_FREQUENCY:
            return NULL
        return int(ffi.cast("vip_power_frequency_t *", value).fscale_percent)

    def build(self, scope: Scope, recorded: Any, entries: list[Any]) -> Any:
        if recorded == NULL:
            return ffi.NULL
        made = scope.kept["frequency"] = ffi.new("vip_power_frequency_t *", [recorded])
        return ffi.cast("void *", made)


class _LogFolder(Role):
    """A folder of the program; a replay writes nothing there."""

    def before(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        return NULL if value == ffi.NULL else os.fsdecode(ffi.string(value))

    def build(self, scope: Scope, recorded: Any, entries: list[Any]) -> Any:
        if recorded == NULL:
            return ffi.NULL
        made = scope.kept["folder"] = ffi.new("char[]", os.fsencode(tempfile.gettempdir()))
        return made


_NETWORK, _BUFFER, _GROUP, _NUMBER = Handle("vip_network"), Handle("vip_buffer"), Handle("vip_group"), Number()
_PARAMS = Struct("vip_buffer_create_params_t")
_NEW_BUFFER, _NEW_NETWORK = NewHandle("buffer", "vip_buffer"), NewHandle("network", "vip_network")
_OF_NETWORK = {
    int(vip_network_property_e.VIP_NETWORK_PROP_NETWORK_NAME): _NAME,
    int(vip_network_property_e.VIP_NETWORK_PROP_CORE_COUNT): 1,
    int(vip_network_property_e.VIP_NETWORK_PROP_SET_PRIORITY): 1,
    int(vip_network_property_e.VIP_NETWORK_PROP_PROFILING): 8,
}
_OF_BUFFER = {
    int(vip_buffer_property_e.VIP_BUFFER_PROP_NAME): _NAME,
    int(vip_buffer_property_e.VIP_BUFFER_PROP_SIZES_OF_DIMENSION): _SIZES,
}
_OF_GROUP = {int(vip_group_property_e.VIP_GROUP_PROP_PROFILING): 8}
_TIMES = frozenset({int(vip_network_property_e.VIP_NETWORK_PROP_PROFILING)})
_FIXED_POINT_AND_SCALE = frozenset(
    {
        int(vip_buffer_property_e.VIP_BUFFER_PROP_FIXED_POINT_POS),
        int(vip_buffer_property_e.VIP_BUFFER_PROP_TF_SCALE),
        int(vip_buffer_property_e.VIP_BUFFER_PROP_TF_ZERO_POINT),
        int(vip_buffer_property_e.VIP_BUFFER_PROP_SIZES_OF_DIMENSION),
    }
)
"""Values that a call may leave as they were: those of another quantization, and dimensions that a tensor does not have."""
_PORT = _Property(2, _OF_BUFFER, True, _FIXED_POINT_AND_SCALE)

_CALLS = {
    "vip_get_version": CallShape(()),
    "vip_init": CallShape((_NUMBER,)),
    "vip_destroy": CallShape((), ends=-1),
    "vip_query_hardware": CallShape((_NUMBER, _NUMBER, _Property(0, {}, True))),
    "vip_create_buffer": CallShape((_PARAMS, _NUMBER, _NEW_BUFFER)),
    "vip_create_buffer_cache": CallShape((_PARAMS, _NUMBER, _NEW_BUFFER)),
    "vip_create_buffer_from_handle": CallShape((_PARAMS, _OwnMemory(), _NUMBER, _NEW_BUFFER)),
    "vip_destroy_buffer": CallShape((_BUFFER,), ends=0),
    "vip_map_buffer": CallShape((_BUFFER,), makes="address"),
    "vip_unmap_buffer": CallShape((_BUFFER,)),
    "vip_get_buffer_size": CallShape((_BUFFER,)),
    "vip_flush_buffer": CallShape((_BUFFER, _NUMBER)),
    "vip_create_network": CallShape((_Model(), _NUMBER, _NUMBER, _NEW_NETWORK)),
    "vip_weak_dup_network": CallShape((_NETWORK, _NEW_NETWORK)),
    "vip_destroy_network": CallShape((_NETWORK,), ends=0),
    "vip_set_network": CallShape((_NETWORK, _NUMBER, _Property(1, _OF_NETWORK, False))),
    "vip_query_network": CallShape((_NETWORK, Named(vip_network_property_e), _Property(1, _OF_NETWORK, True, _TIMES))),
    "vip_prepare_network": CallShape((_NETWORK,)),
    "vip_finish_network": CallShape((_NETWORK,)),
    "vip_query_input": CallShape((_NETWORK, _NUMBER, Named(vip_buffer_property_e), _PORT)),
    "vip_query_output": CallShape((_NETWORK, _NUMBER, Named(vip_buffer_property_e), _PORT)),
    "vip_set_input": CallShape((_NETWORK, _NUMBER, _BUFFER), bind=(0, 2, 1)),
    "vip_set_output": CallShape((_NETWORK, _NUMBER, _BUFFER), bind=(0, 2, 1)),
    "vip_run_network": CallShape((_NETWORK,), runs=0),
    "vip_trigger_network": CallShape((_NETWORK,), runs=0, moments="before"),
    "vip_wait_network": CallShape((_NETWORK,), runs=0, moments="after"),
    "vip_cancel_network": CallShape((_NETWORK,)),
    "vip_dup_network": CallShape((_DupModel(), _NUMBER, _NUMBER, _NETWORK, _NEW_NETWORK)),
    "vip_set_ppu_param": CallShape((_NETWORK, Struct("vip_ppu_param_t"), _NUMBER)),
    "vip_create_group": CallShape((_NUMBER, NewHandle("group", "vip_group"))),
    "vip_destroy_group": CallShape((_GROUP,), ends=0),
    "vip_set_group": CallShape((_GROUP, _NUMBER, _Property(1, {}, False))),
    "vip_query_group": CallShape((_GROUP, _NUMBER, _Property(1, _OF_GROUP, True, frozenset(_OF_GROUP)))),
    "vip_add_network": CallShape((_GROUP, _NETWORK), joins=(0, 1)),
    "vip_run_group": CallShape((_GROUP, _NUMBER), runs=0),
    "vip_trigger_group": CallShape((_GROUP, _NUMBER), runs=0, moments="before"),
    "vip_wait_group": CallShape((_GROUP,), runs=0, moments="after"),
    "vip_power_management": CallShape((_DeviceOrNetwork(), _NUMBER, _Frequency())),
    "vip_set_log_path": CallShape((_LogFolder(),)),
}

_OPAQUE = dict.fromkeys(
    ("vip_create_buffer_from_physical", "vip_create_buffer_from_fd"),
    "it takes memory of another driver, which a file cannot hold",
)


def _view(library: Any, buffer: Any) -> Any:
    """The bytes of a buffer, asked past a recording."""
    kind = type(library)
    handle = ffi.cast("vip_buffer", buffer)
    address = kind.vip_map_buffer(library, handle)
    return None if address == ffi.NULL else ffi.buffer(address, kind.vip_get_buffer_size(library, handle))


def _place(call: str, index: Any) -> str:
    return f"{call.removeprefix('vip_set_')} {int(index)}"


def table() -> CallTable:
    """What a recording knows about the calls."""
    return CallTable("vip", ffi, _CALLS, "buffer", _view, _place, _OPAQUE)
