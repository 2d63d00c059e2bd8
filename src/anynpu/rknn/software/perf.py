"""``RKNN_QUERY_PERF_RUN`` and ``RKNN_QUERY_PERF_DETAIL``: the times that the chip is predicted to take.

The text has the columns and the spacing that the vendor's runtime has had since version 1.6, because programs take it apart. Its first
line says what the numbers are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...chips.timing import LayerPrediction, Prediction
from ...program import Conv, ConvTranspose, Dense, Layer, Placement, Program
from ...tensor import DType
from .context import ModelContext

__all__ = ["perf_table", "run_microseconds"]

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
