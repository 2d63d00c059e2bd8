"""``rknn_query``: one function for each command."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ... import modelfile
from ..._rknn import ffi
from ...chips import Chip
from ...errors import AnynpuError
from ..attributes import TensorAttr, View, fill
from ..constants import RKNN_MAX_DYNAMIC_SHAPE_NUM, Code, Flag, rknn_query_cmd, rknn_tensor_format, rknn_tensor_mem_flags
from .context import ModelContext
from .perf import perf_table, run_microseconds
from .ports import InputPort, OutputPort, cut_name
from .program_memory import new_outside
from .refusal import Refusal
from .shapes import channels_last
from .versions import api_version, driver_version

__all__ = ["answer", "answer_size"]

_MEM_SIZE_OF_OLD_CLIENTS = 8

_NOT_COLLECTED = "The times of layers were not collected: call rknn_init with RKNN_FLAG_COLLECT_PERF_MASK.\n"
"""The answer without that flag. It is no error: programs of the vendor ask in any case, and end where the query fails."""


def answer_size(cmd: int, size: int) -> int:
    """How many of the *size* bytes that a caller gives belong to the answer to *cmd*; the others are not written."""
    known = _ANSWERS.get(cmd)
    return size if known is None else min(size, int(ffi.sizeof(known[0].item)))


def answer(context: ModelContext, cmd: int, info: Any, size: int) -> int:
    """Write the answer to *cmd* into the struct at *info*."""
    known = _ANSWERS.get(cmd)
    if known is None:
        raise Refusal(Code.RKNN_ERR_PARAM_INVALID, f"there is no query {cmd}")
    struct, smallest, function = known
    if info == ffi.NULL or size < smallest:
        raise Refusal(
            Code.RKNN_ERR_PARAM_INVALID,
            f"the answer to {rknn_query_cmd(cmd).name} takes {smallest} bytes, {'none' if info == ffi.NULL else size} given",
        )
    if cmd in _missing(context.device.chip):
        raise Refusal(Code.RKNN_ERR_PARAM_INVALID, f"{rknn_query_cmd(cmd).name} is not available on {context.device.chip.name}")
    function(context, ffi.cast(struct, info), size)
    return 0


def _in_out_num(context: ModelContext, info: Any, size: int) -> None:
    del size
    ports = context.ports
    info.n_input, info.n_output = len(ports.inputs), len(ports.outputs)


def _attr(side: str, view: View, current: bool) -> Callable[[ModelContext, Any, int], None]:
    def write(context: ModelContext, info: Any, size: int) -> None:
        del size
        if current:
            _require_shapes(context)
        ports: list[InputPort] | list[OutputPort] = context.ports.inputs if side == "input" else context.ports.outputs
        index = info.index
        if index >= len(ports):
            raise Refusal(Code.RKNN_ERR_PARAM_INVALID, f"there is no {side} {index}: the model has {len(ports)}")
        fill(_view(ports[index], view), info)

    return write


def _view(port: InputPort | OutputPort, view: View) -> TensorAttr:
    try:
        return port.attr(view)
    except AnynpuError as error:
        raise Refusal(Code.RKNN_ERR_PARAM_INVALID, error.message, error.hint) from error


def _require_shapes(context: ModelContext) -> None:
    if not context.dynamic:
        raise Refusal(Code.RKNN_ERR_MODEL_INVALID, f"'{context.model.name}' has no dynamic shapes")
    if not context.shapes_chosen:
        raise Refusal(Code.RKNN_ERR_FAIL, "no shapes are set", "call rknn_set_input_shapes before")


def _sdk_version(context: ModelContext, info: Any, size: int) -> None:
    del size
    _write_text(info.api_version, api_version(context.device.chip))
    _write_text(info.drv_version, driver_version(context.device.chip))


def _mem_size(context: ModelContext, info: Any, size: int) -> None:
    sizes = ffi.new("rknn_mem_size *")
    sizes.total_weight_size = modelfile.weight_size(context.model)
    sizes.total_internal_size = context.internal_size
    sizes.total_dma_allocated_size = context.dma_size
    sizes.total_sram_size = context.sram.total
    sizes.free_sram_size = context.sram.free
    ffi.memmove(info, sizes, min(size, ffi.sizeof("rknn_mem_size")))


def _custom_string(context: ModelContext, info: Any, size: int) -> None:
    del size
    _write_text(info.string, context.model.custom_string)


def _device_mem_info(context: ModelContext, info: Any, size: int) -> None:
    """The internal memory, which is what a chip without DRAM to spare plans with."""
    del size
    npu = context.npu
    if npu is None:
        raise Refusal(Code.RKNN_ERR_MALLOC_FAIL, "the context has no memory yet", "set its weight and internal memory before")
    memory = npu.internal_memory
    info.virt_addr = ffi.cast("void *", memory.address)
    info.phys_addr = memory.physical_address
    info.fd = memory.fd
    info.offset = memory.offset
    info.size = memory.size
    info.flags = int(rknn_tensor_mem_flags.RKNN_TENSOR_MEMORY_FLAGS_ALLOC_INSIDE)
    info.priv_data = ffi.NULL


def _dynamic_range(context: ModelContext, info: Any, size: int) -> None:
    del size
    inputs = context.ports.inputs
    index = info.index
    if index >= len(inputs):
        raise Refusal(Code.RKNN_ERR_PARAM_INVALID, f"there is no input {index}: the model has {len(inputs)}")
    if not context.dynamic:
        raise Refusal(Code.RKNN_ERR_MODEL_INVALID, f"'{context.model.name}' has no dynamic shapes")
    specs = [program.input_specs[index] for program in context.model.programs][:RKNN_MAX_DYNAMIC_SHAPE_NUM]
    shapes = [channels_last(spec) for spec in specs]
    ffi.memmove(info, bytes(ffi.sizeof("rknn_input_range")), ffi.sizeof("rknn_input_range"))
    info.index = index
    info.shape_number = len(shapes)
    image = len(shapes[0]) == 4
    info.fmt = rknn_tensor_format.RKNN_TENSOR_NHWC if image else rknn_tensor_format.RKNN_TENSOR_UNDEFINED
    _write_text(info.name, cut_name(inputs[index].name))
    for position, shape in enumerate(shapes):
        for axis, extent in enumerate(shape):
            info.dyn_range[position][axis] = extent
    info.n_dims = len(shapes[0])


def _perf_detail(context: ModelContext, info: Any, size: int) -> None:
    del size
    if context.device.chip.library == "librknnmrt":
        text = ""
    else:
        _require_run(context)
        text = perf_table(context) if context.flags & Flag.RKNN_FLAG_COLLECT_PERF_MASK else _NOT_COLLECTED
    info.perf_data = context.perf_texts.setdefault(text, new_outside("char[]", text.encode()))
    info.data_len = len(text.encode())


def _perf_run(context: ModelContext, info: Any, size: int) -> None:
    del size
    _require_run(context)
    info.run_duration = run_microseconds(context)


def _require_run(context: ModelContext) -> None:
    if not context.runs:
        raise Refusal(Code.RKNN_ERR_FAIL, "the model has not run yet", "call rknn_run before")


def _write_text(field: Any, text: str) -> None:
    """A string into a char array, cut to fit (not within a character); the rest of the array is zero."""
    data = text.encode()[: len(field) - 1].decode(errors="ignore").encode()
    ffi.memmove(field, data.ljust(len(field), b"\0"), len(field))


@lru_cache(maxsize=64)
def _missing(chip: Chip) -> frozenset[int]:
    """The commands that the chip's runtime does not answer; the times of layers are empty there, but no error."""
    commands = {int(rknn_query_cmd[name]) for name, available in chip.queries.items() if not available}
    if chip.library != "librknnmrt":
        commands.add(int(rknn_query_cmd.RKNN_QUERY_DEVICE_MEM_INFO))
    return frozenset(commands - {int(rknn_query_cmd.RKNN_QUERY_PERF_DETAIL)})


_Write = Callable[[ModelContext, Any, int], None]


def _table() -> dict[int, tuple[Any, int, _Write]]:
    query = rknn_query_cmd
    attributes: dict[rknn_query_cmd, _Write] = {
        query.RKNN_QUERY_INPUT_ATTR: _attr("input", View.LOGICAL, False),
        query.RKNN_QUERY_OUTPUT_ATTR: _attr("output", View.LOGICAL, False),
        query.RKNN_QUERY_NATIVE_INPUT_ATTR: _attr("input", View.NATIVE, False),
        query.RKNN_QUERY_NATIVE_OUTPUT_ATTR: _attr("output", View.NATIVE, False),
        query.RKNN_QUERY_NATIVE_NHWC_INPUT_ATTR: _attr("input", View.NHWC, False),
        query.RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR: _attr("output", View.NHWC, False),
        query.RKNN_QUERY_CURRENT_INPUT_ATTR: _attr("input", View.LOGICAL, True),
        query.RKNN_QUERY_CURRENT_OUTPUT_ATTR: _attr("output", View.LOGICAL, True),
        query.RKNN_QUERY_CURRENT_NATIVE_INPUT_ATTR: _attr("input", View.NATIVE, True),
        query.RKNN_QUERY_CURRENT_NATIVE_OUTPUT_ATTR: _attr("output", View.NATIVE, True),
    }
    others: dict[rknn_query_cmd, tuple[str, _Write]] = {
        query.RKNN_QUERY_IN_OUT_NUM: ("rknn_input_output_num", _in_out_num),
        query.RKNN_QUERY_PERF_DETAIL: ("rknn_perf_detail", _perf_detail),
        query.RKNN_QUERY_PERF_RUN: ("rknn_perf_run", _perf_run),
        query.RKNN_QUERY_SDK_VERSION: ("rknn_sdk_version", _sdk_version),
        query.RKNN_QUERY_MEM_SIZE: ("rknn_mem_size", _mem_size),
        query.RKNN_QUERY_CUSTOM_STRING: ("rknn_custom_string", _custom_string),
        query.RKNN_QUERY_DEVICE_MEM_INFO: ("rknn_tensor_mem", _device_mem_info),
        query.RKNN_QUERY_INPUT_DYNAMIC_RANGE: ("rknn_input_range", _dynamic_range),
    }
    kinds = {**{command: ("rknn_tensor_attr", write) for command, write in attributes.items()}, **others}
    table = {int(command): (ffi.typeof(f"{name} *"), ffi.sizeof(name), write) for command, (name, write) in kinds.items()}
    mem_size = int(query.RKNN_QUERY_MEM_SIZE)
    table[mem_size] = (table[mem_size][0], _MEM_SIZE_OF_OLD_CLIENTS, _mem_size)
    return table


_ANSWERS = _table()
