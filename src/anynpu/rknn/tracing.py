"""The RKNN calls as a recording sees them (:mod:`anynpu.devtools.recording`)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._rknn import ffi
from ..devtools.recording import (
    CallShape,
    CallTable,
    Handle,
    Named,
    NewHandle,
    Number,
    RecordedHandles,
    Role,
    Scope,
    Struct,
    byte_count,
    require,
)
from .constants import rknn_query_cmd
from .software.queries import answer_size

NULL = "NULL"
_ATTRIBUTE_FIRST = ffi.sizeof("uint32_t")
_MAX_PARAMETERS = 1 << 24
_FIRST_PAGE = 4096
_NOT_COMPARED = frozenset(
    {
        int(rknn_query_cmd.RKNN_QUERY_PERF_DETAIL),
        int(rknn_query_cmd.RKNN_QUERY_PERF_RUN),
        int(rknn_query_cmd.RKNN_QUERY_SDK_VERSION),
        int(rknn_query_cmd.RKNN_QUERY_MEM_SIZE),
        int(rknn_query_cmd.RKNN_QUERY_DEVICE_MEM_INFO),
    }
)
"""Answers that hold pointers, times or versions."""


class _Model(Role):
    """The bytes of a model, or the path of its file; it is made again from the bytes."""

    def before(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        if value == ffi.NULL:
            return NULL
        size, extend = arguments[2], arguments[4]
        if size:
            return {"blob": scope.blob(bytes(ffi.buffer(ffi.cast("char *", value), size)))}
        path = os.fsdecode(ffi.string(ffi.cast("char *", value)))
        try:
            data = Path(path).read_bytes()
        except OSError:
            return {"path": path}
        if extend != ffi.NULL and (extend.real_model_offset or extend.real_model_size):
            end = extend.real_model_offset + extend.real_model_size if extend.real_model_size else len(data)
            data = data[extend.real_model_offset : end]
        return {"path": path, "blob": scope.blob(data)}

    def build(self, scope: Scope, recorded: Any, entries: list[Any]) -> Any:
        if recorded == NULL:
            return ffi.NULL
        if "blob" not in recorded:
            require(entries[2] == 0, "the path of a model with a size")
            return ffi.new("char[]", os.fsencode(recorded["path"]))
        data = scope.data(recorded["blob"])
        entries[2] = len(data)  # the size, which is made after this
        return ffi.new("char[]", data)


class _InitExtend(Role):
    """The other context of ``rknn_init_extend``; offsets are part of the model."""

    def before(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        return NULL if value == ffi.NULL else scope.name(value.ctx)

    def build(self, scope: Scope, recorded: Any, entries: list[Any]) -> Any:
        if recorded == NULL:
            return ffi.NULL
        extend = ffi.new("rknn_init_extend *")
        extend.ctx = scope.value(recorded) or 0
        return extend


class _Answer(Role):
    """What ``rknn_query`` fills: only its first number, an index, goes in."""

    def before(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        if value == ffi.NULL:
            return NULL
        size = arguments[3]
        first = bytes(ffi.buffer(ffi.cast("char *", value), min(size, _ATTRIBUTE_FIRST)))
        return [size, int.from_bytes(first, "little")]

    def build(self, scope: Scope, recorded: Any, entries: list[Any]) -> Any:
        if recorded == NULL:
            return ffi.NULL
        size, first = recorded
        require(byte_count(size) == entries[3], "an answer of another size than the call states")
        made = ffi.new("char[]", max(size, 8))
        ffi.memmove(made, int(first).to_bytes(_ATTRIBUTE_FIRST, "little")[:size], min(size, _ATTRIBUTE_FIRST))
        scope.kept["answer"] = made
        return ffi.cast("void *", made)

    def after(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        if int(arguments[1]) in _NOT_COMPARED:
            return None
        return scope.blob(bytes(ffi.buffer(ffi.cast("char *", value), answer_size(int(arguments[1]), arguments[3]))))


class _Inputs(Role):
    """An array of ``rknn_input`` with what it points to."""

    def before(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        if value == ffi.NULL:
            return NULL
        rows = []
        for index in range(arguments[1]):
            one = value[index]
            data = NULL if one.buf == ffi.NULL else scope.blob(bytes(ffi.buffer(one.buf, one.size)))
            rows.append([one.index, one.size, one.pass_through, int(one.type), int(one.fmt), data])
        return rows

    def build(self, scope: Scope, recorded: Any, entries: list[Any]) -> Any:
        if recorded == NULL:
            return ffi.NULL
        require(isinstance(recorded, list) and len(recorded) == entries[1], "inputs of another number than the call states")
        made, kept = ffi.new("rknn_input[]", max(len(recorded), 1)), []
        for one, row in zip(made, recorded, strict=False):
            one.index, one.size, one.pass_through, one.type, one.fmt = row[:5]
            if row[5] != NULL:
                data = scope.data(row[5])
                require(len(data) == one.size, f"an input of {len(data)} bytes, but the call states {one.size}")
                kept.append(ffi.new("char[]", data))
                one.buf = kept[-1]
        scope.kept["inputs"] = made, kept
        return made


class _Outputs(Role):
    """An array of ``rknn_output``, and what the call puts there."""

    def before(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        if value == ffi.NULL:
            return NULL
        return [
            [one.want_float, one.is_prealloc, one.index, one.size if one.is_prealloc else 0]
            for one in (value[index] for index in range(arguments[1]))
        ]

    def build(self, scope: Scope, recorded: Any, entries: list[Any]) -> Any:
        if recorded == NULL:
            return ffi.NULL
        require(isinstance(recorded, list) and len(recorded) == entries[1], "outputs of another number than the call states")
        made, kept = ffi.new("rknn_output[]", max(len(recorded), 1)), []
        for one, row in zip(made, recorded, strict=False):
            byte_count(row[3])
            one.want_float, one.is_prealloc, one.index, one.size = row
            if one.is_prealloc:
                kept.append(ffi.new("char[]", max(row[3], 1)))
                one.buf = kept[-1]
        scope.kept[("outputs", entries[0])] = made, kept
        return made

    def after(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        rows = (value[index] for index in range(arguments[1]))
        return [scope.blob(bytes(ffi.buffer(one.buf, one.size))) for one in rows]


class _Released(Role):
    """The outputs of the last ``rknn_outputs_get`` of a context."""

    def build(self, scope: Scope, recorded: Any, entries: list[Any]) -> Any:
        made, _ = scope.kept.get(("outputs", entries[0]), (ffi.NULL, None))
        require(made == ffi.NULL or byte_count(entries[1]) <= len(made), "more outputs are released than there are")
        return made


class _RunExtend(Role):
    """How a run is to be made."""

    def before(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        return NULL if value == ffi.NULL else [value.frame_id, value.non_block, value.timeout_ms]

    def build(self, scope: Scope, recorded: Any, entries: list[Any]) -> Any:
        if recorded == NULL:
            return ffi.NULL
        made = ffi.new("rknn_run_extend *")
        made.frame_id, made.non_block, made.timeout_ms = recorded
        made.fence_fd = -1
        return made


@dataclass
class _OwnMemory(Role):
    """Memory of the program, by address: as many bytes of the replay's own. Not on a board, which would use the physical address."""

    size: int
    offset: int | None = None

    def build(self, scope: Scope, recorded: Any, entries: list[Any]) -> Any:
        require(not scope.library.genuine, "the memory of another program cannot be used on a board")
        size = byte_count(entries[self.size]) + (0 if self.offset is None else byte_count(entries[self.offset]))
        made = ffi.new("char[]", max(size, 1))
        scope.kept.setdefault("memory", []).append(made)
        return ffi.cast("void *", made)


class _Parameters(Role):
    """``rknn_quant_params``: the name of a matrix, its scales and zero points.

    :ivar out: whether the call fills it
    """

    def __init__(self, *, out: bool) -> None:
        self.out = out

    def before(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        if value == ffi.NULL:
            return NULL
        return "new" if self.out else self._rows(scope, value)

    def build(self, scope: Scope, recorded: Any, entries: list[Any]) -> Any:
        if recorded == NULL:
            return ffi.NULL
        made = ffi.new("rknn_quant_params *")
        if not self.out:
            name, (made.scale_len, made.zp_len), *keys = recorded
            ffi.memmove(made.name, name.encode(), min(len(name.encode()), len(made.name) - 1))
            kept = [None if key == NULL else scope.data(key) for key in keys]
            for data, count in zip(kept, (made.scale_len, made.zp_len), strict=True):
                require(data is None or len(data) == 4 * count, "parameters of another number than the call states")
            kept = [ffi.NULL if data is None else ffi.new("char[]", data) for data in kept]
            made.scale, made.zp = ffi.cast("float *", kept[0]), ffi.cast("int32_t *", kept[1])
            scope.kept["parameters"] = kept
        return made

    def after(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        return self._rows(scope, value) if self.out and value != ffi.NULL else None

    def _rows(self, scope: Scope, value: Any) -> list[Any]:
        pairs = ((value.scale, value.scale_len), (value.zp, value.zp_len))
        data = [
            NULL
            if pointer == ffi.NULL or not 0 <= count <= _MAX_PARAMETERS
            else scope.blob(bytes(ffi.buffer(pointer, 4 * count)))
            for pointer, count in pairs
        ]
        name = ffi.string(value.name, len(value.name)).decode("utf-8", "replace")
        return [name, [value.scale_len, value.zp_len], *data]


class _Matrix(Role):
    """Matrix B of ``rknn_B_normal_layout_to_native_layout``, as large as its other arguments state.

    :ivar out: whether the call writes it
    """

    def __init__(self, *, out: bool) -> None:
        self.out = out

    def before(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        if value == ffi.NULL:
            return NULL
        size = self._size(scope, arguments)
        return size if self.out else scope.blob(bytes(ffi.buffer(ffi.cast("char *", value), size)))

    def build(self, scope: Scope, recorded: Any, entries: list[Any]) -> Any:
        if recorded == NULL:
            return ffi.NULL
        require(not scope.library.genuine, "the size of a matrix is not known on a board")
        _, _, k, n, key = entries
        size = 0
        if key != NULL:
            data = scope.data(key)
            info = ffi.new("rknn_matmul_info *")
            require(len(data) == ffi.sizeof("rknn_matmul_info"), f"an information of {len(data)} bytes")
            ffi.memmove(info, data, len(data))
            size = byte_count(scope.library.matrix_bytes(info.type, k, n))
        content = bytes(size) if self.out else scope.data(recorded)
        require(len(content) == size, f"a matrix of {len(content)} bytes, but the call states {size}")
        made = ffi.new("char[]", content)
        scope.kept["matrix", self.out] = made
        return ffi.cast("void *", made)

    def after(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        size = self._size(scope, arguments)
        return scope.blob(bytes(ffi.buffer(ffi.cast("char *", value), size))) if self.out else None

    @staticmethod
    def _size(scope: Scope, arguments: tuple[Any, ...]) -> int:
        _, _, k, n, info = arguments
        return int(scope.library.matrix_bytes(info.type, k, n)) if _is_pointer(info) else 0


class _LayoutInfo(Struct):
    """``rknn_matmul_info`` of a call that had a number there before SDK 2.1."""

    def before(self, scope: Scope, value: Any, arguments: tuple[Any, ...]) -> Any:
        return super().before(scope, value, arguments) if _is_pointer(value) else NULL


def _is_pointer(value: Any) -> bool:
    return int(ffi.cast("uintptr_t", value)) >= _FIRST_PAGE


def _does_not_block(arguments: tuple[Any, ...]) -> bool:
    return arguments[1] != ffi.NULL and bool(arguments[1].non_block)


_CONTEXT, _NUMBER = Handle(), Number()
_MEMORY, _ATTR = Handle("rknn_tensor_mem *"), Struct("rknn_tensor_attr")
_MATMUL_INFO, _MATMUL_ATTR = Struct("rknn_matmul_info"), Struct("rknn_matmul_tensor_attr")
_MATMUL_SHAPES = CallShape(
    (
        *(NewHandle("matmul", "rknn_matmul_ctx"), _MATMUL_INFO, _NUMBER),
        *(Struct("rknn_matmul_shape", count=2), Struct("rknn_matmul_io_attr", count=2, out=True)),
    )
)

_CALLS = {
    "rknn_init": CallShape((NewHandle("context", "rknn_context"), _Model(), _NUMBER, _NUMBER, _InitExtend())),
    "rknn_dup_context": CallShape((RecordedHandles("rknn_context"), NewHandle("context", "rknn_context"))),
    "rknn_destroy": CallShape((_CONTEXT,), ends=0),
    "rknn_query": CallShape((_CONTEXT, Named(rknn_query_cmd), _Answer(), _NUMBER)),
    "rknn_inputs_set": CallShape((_CONTEXT, _NUMBER, _Inputs())),
    "rknn_set_batch_core_num": CallShape((_CONTEXT, _NUMBER)),
    "rknn_set_core_mask": CallShape((_CONTEXT, _NUMBER)),
    "rknn_run": CallShape((_CONTEXT, _RunExtend()), runs=0, pending=_does_not_block),
    "rknn_wait": CallShape((_CONTEXT, _RunExtend()), runs=0, moments="after"),
    "rknn_outputs_get": CallShape((_CONTEXT, _NUMBER, _Outputs(), Role())),
    "rknn_outputs_release": CallShape((_CONTEXT, _NUMBER, _Released())),
    "rknn_create_mem": CallShape((_CONTEXT, _NUMBER), makes="memory", owner=0),
    "rknn_create_mem2": CallShape((_CONTEXT, _NUMBER, _NUMBER), makes="memory", owner=0),
    "rknn_create_mem_from_fd": CallShape((_CONTEXT, _NUMBER, _OwnMemory(3, 4), _NUMBER, _NUMBER), makes="memory", owner=0),
    "rknn_create_mem_from_phys": CallShape((_CONTEXT, _NUMBER, _OwnMemory(3), _NUMBER), makes="memory", owner=0),
    "rknn_destroy_mem": CallShape((_CONTEXT, _MEMORY), ends=1),
    "rknn_set_weight_mem": CallShape((_CONTEXT, _MEMORY)),
    "rknn_set_internal_mem": CallShape((_CONTEXT, _MEMORY)),
    "rknn_set_io_mem": CallShape((_CONTEXT, _MEMORY, _ATTR), bind=(0, 1, 2)),
    "rknn_set_input_shape": CallShape((_CONTEXT, _ATTR)),
    "rknn_set_input_shapes": CallShape((_CONTEXT, _NUMBER, Struct("rknn_tensor_attr", count=1))),
    "rknn_mem_sync": CallShape((_CONTEXT, _MEMORY, _NUMBER)),
    "rknn_matmul_create": CallShape(
        (NewHandle("matmul", "rknn_matmul_ctx"), _MATMUL_INFO, Struct("rknn_matmul_io_attr", out=True))
    ),
    "rknn_matmul_create_dynamic_shape": _MATMUL_SHAPES,
    "rknn_matmul_create_dyn_shape": _MATMUL_SHAPES,
    "rknn_matmul_set_dynamic_shape": CallShape((_CONTEXT, Struct("rknn_matmul_shape"))),
    "rknn_matmul_set_quant_params": CallShape((_CONTEXT, _Parameters(out=False))),
    "rknn_matmul_get_quant_params": CallShape((_CONTEXT, _Parameters(out=True), Struct("float", out=True))),
    "rknn_B_normal_layout_to_native_layout": CallShape(
        (_Matrix(out=False), _Matrix(out=True), _NUMBER, _NUMBER, _LayoutInfo("rknn_matmul_info"))
    ),
    "rknn_matmul_set_io_mem": CallShape((_CONTEXT, _MEMORY, _MATMUL_ATTR), bind=(0, 1, 2)),
    "rknn_matmul_set_core_mask": CallShape((_CONTEXT, _NUMBER)),
    "rknn_matmul_run": CallShape((_CONTEXT,), runs=0),
    "rknn_matmul_destroy": CallShape((_CONTEXT,), ends=0),
}

_OPAQUE = {
    "rknn_register_custom_ops": "it registers functions of the program, which a file cannot hold",
    "rknn_create_mem_from_mb_blk": "it takes memory of another driver",
}


def _view(library: Any, memory: Any) -> Any:
    """The bytes of a ``rknn_tensor_mem``: as the NPU sees them, where a sanitizer keeps two sides of it."""
    struct = ffi.cast("rknn_tensor_mem *", memory)
    table = getattr(library, "memories", None)
    if table is not None and table.known(struct):
        return table.find(struct).buffer.view()
    if struct.virt_addr == ffi.NULL:
        return None
    return ffi.buffer(ffi.cast("char *", struct.virt_addr) + struct.offset, struct.size)


def _place(call: str, attr: Any) -> str:
    del call
    return str(ffi.string(attr.name, len(attr.name)).decode("utf-8", "replace"))


def table() -> CallTable:
    """What a recording knows about the calls."""
    return CallTable("rknn", ffi, _CALLS, "memory", _view, _place, _OPAQUE)
