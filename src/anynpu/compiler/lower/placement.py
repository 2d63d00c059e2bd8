"""The processor of each step, NPU or CPU, with the limit that was exceeded; and the order of the steps."""

from __future__ import annotations

from ...chips import Chip
from ...chips.chip import ConvLimits
from ...program import Placement
from ..graph import Graph
from .attributes import is_whole, resize_scales, window_of
from .forms import Form
from .steps import Step


def place(graph: Graph, step: Step, chip: Chip) -> tuple[Placement, str]:
    """Placement of a step on a chip, and the reason where it is the CPU."""
    reason = _reason(graph, step, chip)
    return (Placement.CPU, reason) if reason else (Placement.NPU, "")


def _reason(graph: Graph, step: Step, chip: Chip) -> str:
    node, limits = step.node, chip.limits
    if node.custom:
        registers = chip.calls.get("rknn_register_custom_ops", False)
        note = "" if registers else f"; the vendor's API of {chip.name} has no call to register one"
        return f"custom operator '{node.custom}'{note}"
    if step.is_float and not chip.float16:
        return f"{chip.name} has no float16 on its NPU"
    operators = {entry.op for entry in step.nodes}
    missing = sorted(operators - limits.npu_operators)
    if step.form is Form.FUNCTION or step.activation is not None:
        # a chain of element-wise nodes is one table, whatever it was made of
        own = {node.op} if step.form is not Form.FUNCTION else set()
        missing = sorted(own - limits.npu_operators)
    if missing:
        return f"{missing[0]} is not an operator of {chip.name}'s NPU"
    if node.op == "Conv":
        return _conv(graph, step, chip)
    if node.op == "ConvTranspose":
        return _conv_transpose(graph, step, chip)
    if node.op in ("MaxPool", "AveragePool"):
        return _pool(graph, step, chip)
    if node.op == "GlobalAveragePool":
        height, width = window_of(graph, node).kernel if len(graph.shapes[node.inputs[0]]) in (3, 4) else (0, 0)
        largest = limits.global_average_pool_max
        if max(height, width) > largest and not limits.global_average_pool_staged:
            return f"{height}x{width} exceeds {largest}x{largest}"
    if node.op in ("Resize", "Upsample"):
        return _resize(graph, step, chip)
    if node.op in ("MatMul", "Gemm"):
        inner = graph.shapes[node.inputs[0]][-1]
        return f"inner axis {inner} exceeds {limits.matmul_k_max}" if inner > limits.matmul_k_max and node.op == "MatMul" else ""
    if node.op == "Softmax":
        return _softmax(graph, step, chip)
    if node.op == "Transpose" and limits.transpose_pixels_max is not None:
        shape = graph.shapes[node.inputs[0]]
        pixels = shape[2] * shape[3] if len(shape) == 4 else 0
        if pixels > limits.transpose_pixels_max:
            return f"height x width {shape[2]}*{shape[3]} exceeds {limits.transpose_pixels_max}"
    if node.op == "LSTM" and limits.lstm_size_max is not None:
        size = max(graph.shapes[node.inputs[0]][-1], int(node.attribute("hidden_size", 0)))
        if size > limits.lstm_size_max:
            return f"size {size} exceeds {limits.lstm_size_max}"
    return ""


def _conv(graph: Graph, step: Step, chip: Chip) -> str:
    if graph.rank(step.node.inputs[0]) not in (3, 4):
        return "only one- and two-dimensional convolutions run on the NPU"
    window = window_of(graph, step.node)
    depthwise = window.groups > 1 and window.groups == graph.shapes[step.node.inputs[0]][1]
    limits: ConvLimits = chip.limits.depthwise if depthwise else chip.limits.conv
    for label, values, allowed in (
        ("kernel", window.kernel, limits.kernel),
        ("stride", window.strides, limits.stride),
        ("pad", window.pads, limits.pad),
        ("dilation", window.dilations, limits.dilation),
    ):
        for value in values:
            if value not in allowed:
                return f"{'depthwise ' if depthwise else ''}{label} {value} is outside {allowed}"
    return ""


def _conv_transpose(graph: Graph, step: Step, chip: Chip) -> str:
    if graph.rank(step.node.inputs[0]) not in (3, 4):
        return "only one- and two-dimensional transposed convolutions run on the NPU"
    window, limits = window_of(graph, step.node), chip.limits.conv_transpose
    for value in window.kernel:
        if value not in limits.kernel:
            return f"kernel {value} is outside {limits.kernel}"
    for value in window.strides:
        if value not in limits.strides:
            return f"stride {value} is not one of {', '.join(map(str, limits.strides))}"
    channels = graph.shapes[step.node.inputs[0]][1]
    if window.groups > 1 and not (window.groups == channels and limits.depthwise) and not limits.grouped:
        return f"group {window.groups} is neither 1 nor depthwise"
    return ""


def _pool(graph: Graph, step: Step, chip: Chip) -> str:
    if graph.rank(step.node.inputs[0]) not in (3, 4):
        return "only one- and two-dimensional pooling runs on the NPU"
    window, limits = window_of(graph, step.node), chip.limits.pool
    shape = graph.shapes[step.node.inputs[0]]
    covers_all = window.kernel[-1] == shape[-1] and window.kernel[0] == (shape[-2] if len(shape) == 4 else 1)
    if covers_all and step.node.op == "AveragePool" and chip.limits.global_average_pool_staged:
        return ""
    for label, values, allowed in (
        ("kernel", window.kernel, limits.kernel),
        ("stride", window.strides, limits.stride),
        ("pad", window.pads, limits.pad),
    ):
        for value in values:
            if value not in allowed:
                return f"{label} {value} is outside {allowed}"
    height, width = (1, *shape[2:])[-2:]
    for label, value, largest in (
        ("channels", shape[1], limits.channels_max),
        ("height", height, limits.height_max),
        ("width", width, limits.width_max),
    ):
        if value > largest:
            return f"{label} {value} exceeds {largest}"
    if window.ceil_mode and not limits.ceil_mode and sum(window.pads) != sum(step.node.attribute("pads", [0])):
        return "ceil_mode is not supported"
    return ""


def _resize(graph: Graph, step: Step, chip: Chip) -> str:
    limits, node = chip.limits.resize, step.node
    mode = node.attribute("mode", "nearest")
    if mode not in limits.modes:
        return f"mode {mode} is not one of {', '.join(limits.modes)}"
    for scale in resize_scales(graph, node)[2:]:
        if scale == 1.0:
            continue
        if not is_whole(scale) or round(scale) not in limits.factors:
            return f"factor {scale:g} is not an integer in {limits.factors}"
    return ""


def _softmax(graph: Graph, step: Step, chip: Chip) -> str:
    axes = chip.limits.softmax_axes
    if not axes:
        return f"{chip.name}'s NPU has no Softmax"
    rank = graph.rank(step.node.inputs[0])
    axis = int(step.node.attribute("axis", -1 if graph.opset >= 13 else 1)) % rank
    # A tensor of lower rank is an image with axes of size 1: its last axis is the width, its second the channels.
    as_image = 3 if axis == rank - 1 else (1 if axis <= 1 else axis)
    return "" if as_image in axes else f"axis {axis} of rank {rank} is not one of {', '.join(map(str, axes))}"


# The order of execution: float steps together, so that there are few conversions; custom operators between them.


def schedule(graph: Graph, steps: list[Step]) -> list[Step]:
    """A topological order of turns: all integer steps that can run, all float steps that can run, all custom ones, and again."""
    known = {*graph.inputs, *graph.constants}
    waiting = list(steps)
    ordered: list[Step] = []
    turn = 0
    idle = 0
    while waiting and idle < _TURNS:
        progressed = False
        later: list[Step] = []
        for step in waiting:
            if _turn(step) == turn and all(name in known for name in _needs(graph, step)):
                ordered.append(step)
                known.update(step.outputs)
                progressed = True
            else:
                later.append(step)
        waiting = later
        idle = 0 if progressed else idle + 1
        turn = turn if progressed else (turn + 1) % _TURNS
    assert not waiting, "steps form a cycle"
    return ordered


_TURNS = 3


def _turn(step: Step) -> int:
    return 2 if step.node.custom else int(step.is_float)


def _needs(graph: Graph, step: Step) -> set[str]:
    if not step.is_float:
        return set(step.reads)
    made = {name for node in step.nodes for name in node.outputs}
    return {name for node in step.nodes for name in node.inputs if name and name not in made and name not in graph.constants}
