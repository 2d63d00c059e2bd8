"""Steps that Rockchip's toolkit has besides those of the graph: ``quantizer="vendor"``.

* The second operand of a product of two activations is quantised again, without a zero point.
* What only moves codes changes their scale first where its input and its result have different ones: as the NPU does a nearest resize, by a
  depthwise convolution with the weight 1.
* Div is computed in float32 on the CPU of the board, from codes to codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...tensor import Affine, Quantization
from ..graph import Graph, Node
from ..lower.forms import Form
from ..lower.steps import Activation, Step
from ..quantize.tensor_scales import keeps_scale

__all__ = ["CHANGE_OF_SCALE", "quotients", "with_changes_of_scale", "without_copies"]

CHANGE_OF_SCALE = "Requantize"
"""The label of a function that is nothing but another scale."""


def quotients(graph: Graph, steps: list[Step]) -> set[str]:
    """Results of divisions of two tensors that the toolkit stores as codes: nothing but integer layers reads them."""
    readers: dict[str, list[Step]] = {}
    for step in steps:
        for name in step.reads:
            readers.setdefault(name, []).append(step)
    integers = {name for step in steps if not step.is_float for name in step.outputs} | set(graph.inputs)
    return {
        step.outputs[0]
        for step in steps
        if step.is_float
        and step.node.op == "Div"
        and len(step.nodes) == 1
        and len(step.inputs) == 2
        and integers.issuperset(step.inputs)
        and not any(reader.is_float for reader in readers.get(step.outputs[0], ()))
    }


def without_copies(given: Mapping[str, Quantization], steps: list[Step]) -> dict[str, Quantization]:
    """The scales that are *given*, without those of images that are made larger by copying codes."""
    copied = {
        name
        for step in steps
        if step.form is Form.RESIZE and not step.is_float and step.node.attribute("mode", "nearest") == "nearest"
        for name in step.outputs
    }
    return {name: value for name, value in given.items() if name not in copied}


def with_changes_of_scale(
    graph: Graph, steps: list[Step], quantization: dict[str, Quantization], *, products: bool = True
) -> list[Step]:
    """The steps with those between them that only change a scale. Their tensors enter *graph* and *quantization*.

    :param products: also before the second operand of a product of activations, which the toolkit quantises again
    """
    result: list[Step] = []
    for step in steps:
        wanted = None if step.is_float else _wanted(step, quantization, products)
        if wanted is None:
            result.append(step)
            continue
        position, target = wanted
        source = step.inputs[position]
        name = graph.free_name(f"{step.outputs[0]}@scale")
        graph.shapes[name], graph.dtypes[name] = graph.shapes[source], graph.dtypes[source]
        quantization[name] = target
        node = Node("Identity", [source], [name], {}, name)
        function = Activation(lambda x: x, CHANGE_OF_SCALE, (node,))
        result.append(Step(Form.FUNCTION, node, [node], [source], [name], function, source))
        inputs = [name if index == position else old for index, old in enumerate(step.inputs)]
        result.append(replace(step, inputs=inputs))
    return result


def _wanted(step: Step, quantization: Mapping[str, Quantization], products: bool) -> tuple[int, Quantization] | None:
    """Which input of a step needs which other scale."""
    if step.form is Form.MATMUL and products:
        second = quantization[step.inputs[1]]
        largest = max(abs(-128 - second.zero_point), abs(127 - second.zero_point)) * second.scale
        return 1, Affine.per_tensor(float(np.float32(largest / 127)), 0)
    if keeps_scale(step) and quantization[step.inputs[0]] != quantization[step.outputs[0]]:
        return 0, quantization[step.outputs[0]]
    return None
