"""``rknn_query``: one function for each command."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from ... import modelfile
from ..._rknn import ffi
from ...chips import Chip
from ...chips.timing import LayerPrediction, Prediction
from ...errors import AnynpuError
from ...program import Conv, ConvTranspose, Dense, Layer, Model, Placement, Program
from ...tensor import DType, TensorSpec
from ...vendors.libraries import Refusal
from ..constants import RKNN_MAX_DYNAMIC_SHAPE_NUM, Code, Flag, rknn_query_cmd, rknn_tensor_format, rknn_tensor_mem_flags
from ..info import TensorAttr, View, fill
from .context import ModelContext
from .memory import new_outside
from .ports import InputPort, OutputPort, cut_name

# Dynamic shapes: which set of shapes a caller means.


_FORMATS = (rknn_tensor_format.RKNN_TENSOR_NHWC, rknn_tensor_format.RKNN_TENSOR_UNDEFINED)


def channels_last(spec: TensorSpec) -> tuple[int, ...]:
    """The dimensions of an input as its attributes show them."""
    shape = spec.shape
    return (shape[0], *shape[2:], shape[1]) if len(shape) == 4 else shape


def find_shape_set(model: Model, n_inputs: int, attrs: Any) -> int:
    """The index of the program for the dimensions in *attrs*, one ``rknn_tensor_attr`` for each input.

    Images are given with channels last. Clients are known that write them in the order N, C, H, W and leave the format at NHWC: that is
    understood too, where it is the only way to read them.
    """
    inputs = model.inputs
    if len(model.programs) < 2:
        raise Refusal(Code.RKNN_ERR_MODEL_INVALID, f"'{model.name}' has one set of shapes", "compile it with several shapes")
    if attrs == ffi.NULL or n_inputs != len(inputs):
        raise Refusal(Code.RKNN_ERR_PARAM_INVALID, f"{n_inputs} shapes given, the model has {len(inputs)} inputs")
    given: dict[int, tuple[int, ...]] = {}
    for position in range(n_inputs):
        one = attrs[position]
        if one.index >= n_inputs or one.index in given or one.n_dims > len(one.dims):
            raise Refusal(Code.RKNN_ERR_PARAM_INVALID, f"input index {one.index} does not exist, came twice or has no dimensions")
        if one.fmt not in _FORMATS:
            raise Refusal(
                Code.RKNN_ERR_PARAM_INVALID, f"a shape cannot be given in format {one.fmt}", "use RKNN_TENSOR_NHWC, or UNDEFINED"
            )
        given[one.index] = tuple(one.dims[0 : one.n_dims])
    for as_given in (channels_last, lambda spec: spec.shape):
        for index, program in enumerate(model.programs):
            if all(given[position] == as_given(spec) for position, spec in enumerate(program.input_specs)):
                return index
    known = "; ".join(str([channels_last(spec) for spec in program.input_specs]) for program in model.programs)
    raise Refusal(Code.RKNN_ERR_PARAM_INVALID, f"the model was not compiled for {list(given.values())}", f"it has: {known}")


# ``RKNN_QUERY_PERF_RUN`` and ``RKNN_QUERY_PERF_DETAIL``: the times that the chip is predicted to take.
#
# The text has the columns and the spacing that the vendor's runtime has had since version 1.6, because programs take it apart. Its first
# line states what the numbers are.


_WIDTHS = {
    "ID": 5,
    "OpType": 19,
    "DataType": 9,
    "Target": 7,
    "InputShape": 41,
    "OutputShape": 23,
    "Cycles(DDR/NPU/Total)": 25,
    "Time(us)": 13,
    "MacUsage(%)": 21,
    "WorkLoad": 21,
    "RW(KB)": 13,
    "FullName": 0,
}
_RANKING_WIDTHS = {
    "OpType": 19,
    "CallNumber": 13,
    "CPUTime(us)": 13,
    "GPUTime(us)": 13,
    "NPUTime(us)": 13,
    "TotalTime(us)": 15,
    "TimeRatio(%)": 12,
}
_RULE = "-" * 203
_NONE = "\\"
_MAX_SHAPES = 3


def run_microseconds(context: ModelContext) -> int:
    """What the last run took on the modelled clock."""
    return round(context.latency_us())


def perf_table(context: ModelContext) -> str:
    """The table of layers, the totals, and the ranking of operators."""
    program = context.model.programs[context.shapes]
    prediction = context.prediction()
    total = run_microseconds(context)
    # what belongs to no layer, and what sharing a batch among cores saves, is spread over the layers: the column adds up to the total
    spent = sum(layer.time_us for layer in prediction.layers)
    stretch = context.latency_us() / spent if spent else 0.0
    title = f"Predicted for {context.device.chip.name}, not measured: {prediction.confidence}"
    lines = [
        title,
        _RULE,
        "Network Layer Information Table".center(len(_RULE)).rstrip(),
        _RULE,
        *_layer_rows(context, program, prediction, stretch),
    ]
    moved = (prediction.read_bytes + prediction.written_bytes) / 1024
    lines += [
        _RULE,
        f"Total Operator Elapsed Per Frame Time(us): {total}",
        f"Total Memory Read/Write Per Frame Size(KB): {moved:.2f}",
        *_heading("Operator Time Consuming Ranking Table"),
        *_ranking_rows(program, prediction, stretch),
        _RULE,
    ]
    return "\n".join(lines) + "\n"


def _layer_rows(context: ModelContext, program: Program, prediction: Prediction, stretch: float) -> Iterable[str]:
    cores = context.device.cores
    widths = dict(_WIDTHS)
    workload = widths.pop("WorkLoad")
    if cores > 1:
        names = list(widths.items())
        names.insert(9, (f"WorkLoad({'/'.join(map(str, range(cores)))})", workload))
        widths = dict(names)
    columns = list(widths.values())
    yield _row(list(widths), columns)
    extra = [_NONE] if cores > 1 else []
    rows: list[list[str]] = []
    for spec in program.input_specs:
        cells = [_type(spec.dtype), "CPU", _NONE, _shapes([spec.shape]), _NONE, "0", _NONE, *extra, "0"]
        rows.append(["InputOperator", *cells, f"InputOperator:{spec.name}"])
    for layer, predicted in zip(program.layers, prediction.layers, strict=True):
        rows.append(_cells(layer, predicted, program, stretch, cores))
    for spec in program.output_specs:
        cells = [_type(spec.dtype), "CPU", _shapes([spec.shape]), _NONE, _NONE, "0", _NONE, *extra, "0"]
        rows.append(["OutputOperator", *cells, f"OutputOperator:{spec.name}"])
    for number, row in enumerate(rows, 1):
        yield _row([str(number), *row], columns)


def _cells(layer: Layer, predicted: LayerPrediction, program: Program, stretch: float, cores: int) -> list[str]:
    on_npu = layer.placement is Placement.NPU
    shapes = [program.tensors[name].shape for name in layer.inputs] + _weight_shapes(layer)
    shares = [*predicted.core_shares, *(0.0,) * cores][:cores]
    usage = [predicted.mac_share * 100 if share else 0.0 for share in shares]
    workload = ["/".join(f"{share * 100:.1f}%" for share in shares)] if cores > 1 else []
    has_macs = on_npu and layer.macs > 0
    return [
        layer.kind,
        _type(program.tensors[layer.outputs[0]].dtype),
        "NPU" if on_npu else "CPU",
        _shapes(shapes),
        _shapes([program.tensors[name].shape for name in layer.outputs]),
        f"{predicted.ddr_cycles}/{predicted.npu_cycles}/{predicted.total_cycles}" if on_npu else "0/0/0",
        str(round(predicted.time_us * stretch)),
        "/".join(f"{share:.2f}" for share in usage) if has_macs else _NONE,
        *(workload if on_npu else [_NONE] * len(workload)),
        f"{(predicted.read_bytes + predicted.written_bytes) / 1024:.2f}",
        f"{layer.kind}:{layer.name}",
    ]


def _ranking_rows(program: Program, prediction: Prediction, stretch: float) -> Iterable[str]:
    columns = list(_RANKING_WIDTHS.values())
    yield _row(list(_RANKING_WIDTHS), columns)
    times: dict[str, list[float]] = {}
    for layer, predicted in zip(program.layers, prediction.layers, strict=True):
        entry = times.setdefault(layer.kind, [0, 0.0, 0.0])
        entry[0] += 1
        entry[1 if layer.placement is Placement.CPU else 2] += predicted.time_us * stretch
    total = sum(cpu + npu for _, cpu, npu in times.values())
    for kind, (calls, cpu, npu) in sorted(times.items(), key=lambda item: -sum(item[1][1:])):
        share = 100 * (cpu + npu) / total if total else 0.0
        yield _row(
            [kind, str(round(calls)), str(round(cpu)), "0", str(round(npu)), str(round(cpu + npu)), f"{share:.2f}%"], columns
        )
    cpu, npu = (sum(entry[side] for entry in times.values()) for side in (1, 2))
    yield _row(["Total", "", str(round(cpu)), "0", str(round(npu)), str(round(cpu + npu)), ""], columns)


def _heading(text: str) -> list[str]:
    return [_RULE, text.center(len(_RULE)).rstrip(), _RULE]


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Cells to the left; one that is too long keeps a space behind it."""
    return "".join(f"{cell:<{width - 1}} " if width else cell for cell, width in zip(cells, widths, strict=True)).rstrip()


def _shapes(shapes: Sequence[Sequence[int]]) -> str:
    texts = ["(" + ",".join(map(str, shape or (1,))) + ")" for shape in shapes[:_MAX_SHAPES]]
    return ",".join(texts) + (",..." if len(shapes) > _MAX_SHAPES else "") if texts else _NONE


def _weight_shapes(layer: Layer) -> list[Sequence[int]]:
    op = layer.op
    if isinstance(op, (Conv, ConvTranspose)):
        count, height, width, channels = op.weights.shape
        return [(count, channels, height, width), (count,)]
    if isinstance(op, Dense):
        return [op.weights.shape, (op.weights.shape[0],)]
    return []


def _type(dtype: DType) -> str:
    return "FLOAT16" if dtype.is_float else dtype.value.upper()


# What the software library states that it is, and what the system of its board states.


API_VERSION = "2.3.2"
"""The interface that it offers, the newest whose calls it answers; ``abi.h`` is this version's."""

VERSION_VARIABLE = "ANYNPU_API_VERSION"
"""The environment variable that makes it state another version, for programs that reject or warn by it."""

VERSION_FORM = r"\d+\.\d+\.\d+\w*"
"""What a version looks like: 1.6.0, 2.0.0b0."""

_NPU_DEVICES = {
    "rk3588": "fdab0000.npu",
    "rk3576": "27700000.npu",
    "rk3566": "fde40000.npu",
    "rk3568": "fde40000.npu",
    "rk3562": "ff300000.npu",
}
"""Under which name the NPU's clock is found in sysfs."""


@lru_cache(maxsize=1)
def _product() -> str:
    from importlib import metadata  # takes long, and few programs ask

    try:
        return f"anynpu {metadata.version('anynpu')}"
    except metadata.PackageNotFoundError:  # run from its sources
        return "anynpu"


def api_version(chip: Chip) -> str:
    """Version and, in brackets, whose it is."""
    del chip
    asked = os.environ.get(VERSION_VARIABLE, "")
    return f"{asked if re.fullmatch(VERSION_FORM, asked) else API_VERSION} ({_product()})"


def driver_version(chip: Chip) -> str:
    """The driver that this version of the library is used with."""
    return "0.8.2" if chip.library == "librknnmrt" else "0.9.8"


def board_files(chip: Chip) -> dict[str, str]:
    """The files of the driver, of the NPU's clock and of the small chips' heap, by path."""
    load = "".join(f" Core{core}:  0%," for core in range(chip.cores)) if chip.cores > 1 else " 0%"
    files = {}
    for folder in ("sys/kernel/debug/rknpu", "proc/rknpu"):
        files[f"{folder}/version"] = f"RKNPU driver: v{driver_version(chip)}\n"
        files[f"{folder}/load"] = f"NPU load: {load}\n"
        files[f"{folder}/freq"] = f"{chip.clock_hz}\n"
        files[f"{folder}/power"] = "on\n"
    clock = f"sys/class/devfreq/{_NPU_DEVICES.get(chip.name, 'npu')}"
    for name in ("cur_freq", "max_freq", "available_frequencies"):
        files[f"{clock}/{name}"] = f"{chip.clock_hz}\n"
    files[f"{clock}/governor"] = "performance\n"
    files[f"{clock}/load"] = f"0@{chip.clock_hz}Hz\n"
    if chip.library == "librknnmrt":
        files["dev/rk_dma_heap/rk-dma-heap-cma"] = ""
    return files


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
