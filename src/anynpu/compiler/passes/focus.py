"""Focus stems as one convolution.

YOLOX and early YOLOv5 begin with four slices of the picture, every second pixel of every second line, which are joined by channel and go
into a convolution. That is one convolution of the picture itself with a window twice as large and twice the stride. Rockchip's toolkit
would split the Concat into a convolution for each part and round the sums between them.
"""

from __future__ import annotations

import numpy as np

from ..graph import Graph, Node
from ..lower.slices import slice_bounds

__all__ = ["fold_focus"]


def fold_focus(graph: Graph) -> list[str]:
    """Rewrite such stems in place; the results of their convolutions."""
    found = [node for node in graph.nodes if _fold(graph, node)]
    if found:
        graph.remove_unused()
    return [node.outputs[0] for node in found]


def _fold(graph: Graph, conv: Node) -> bool:
    weights = graph.constant(conv.inputs[1]) if conv.op == "Conv" and not conv.domain else None
    if weights is None or weights.ndim != 4 or int(conv.attribute("group", 1)) != 1:
        return False
    if list(conv.attribute("dilations", [1, 1])) != [1, 1] or conv.attribute("auto_pad", "NOTSET") != "NOTSET":
        return False
    concat = graph.producers().get(conv.inputs[0])
    if concat is None or concat.op != "Concat" or int(concat.attribute("axis", 1)) % 4 != 1:
        return False
    parts = [_part(graph, name) for name in concat.inputs]
    sources = {source for source, _, _ in parts}
    strides = {stride for _, _, stride in parts}
    source, (rows, columns) = next(iter(sources)), next(iter(strides))
    if len(sources) != 1 or len(strides) != 1 or rows < 2 or columns < 2:
        return False
    count, channels, height, width = graph.shapes[source]
    expected = (count, channels, height // rows, width // columns)
    # slices of this size begin within the first stride and end with the picture
    if height % rows or width % columns or any(graph.shapes[name] != expected for name in concat.inputs):
        return False
    window = weights.shape[2:]
    wide = np.zeros((len(weights), channels, rows * window[0], columns * window[1]), weights.dtype)
    for number, (_, (top, left), _) in enumerate(parts):
        wide[:, :, top::rows, left::columns] += weights[:, number * channels : (number + 1) * channels]
    name = graph.add_constant(f"{conv.outputs[0]}.stem", wide)
    steps = (rows, columns)
    conv.inputs = [source, name, *conv.inputs[2:]]
    conv.attributes = {
        **conv.attributes,
        "kernel_shape": list(wide.shape[2:]),
        "strides": [step * stride for step, stride in zip(steps, conv.attribute("strides", [1, 1]), strict=True)],
        "pads": [step * pad for step, pad in zip(steps * 2, conv.attribute("pads", [0] * 4), strict=True)],
    }
    return True


def _part(graph: Graph, name: str) -> tuple[str, tuple[int, int], tuple[int, int]]:
    """What a tensor is a slice of, from which pixel on and with which stride: a row of slices is one."""
    makers = graph.producers()
    offset, stride = [0, 0, 0, 0], [1, 1, 1, 1]
    while graph.rank(name) == 4 and (maker := makers.get(name)) is not None and maker.op == "Slice" and not maker.domain:
        ((first, steps),) = slice_bounds(graph, maker)
        offset = [start + step * own for start, step, own in zip(first, steps, offset, strict=True)]
        stride = [step * own for step, own in zip(steps, stride, strict=True)]
        name = maker.inputs[0]
    # a slice of channels or of the batch, or one backwards, is none of a stem
    spatial = offset[:2] == [0, 0] and stride[:2] == [1, 1] and min(stride) > 0
    return (name, (offset[2], offset[3]), (stride[2], stride[3])) if spatial else ("", (0, 0), (1, 1))
