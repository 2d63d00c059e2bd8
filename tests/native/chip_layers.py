"""The layers of the random networks of tests/arithmetic, as the compiler makes them, with the codes that they read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from arithmetic.chip_families import FAMILIES, network
from arithmetic.test_chip_networks import feeds
from npu.engines.cases_large import reference_result
from npu.engines.ingredients import Case

import anynpu
from anynpu.program import FixedPoint, Layer, Program

__all__ = ["chip_layers"]


def chip_layers(seeds: int) -> Iterator[tuple[str, Case]]:
    """Every layer of the chip's rule, by name of its network; a layer that reads a result reads what the reference engine made."""
    for family in FAMILIES:
        for seed in range(seeds):
            net, output = network(family, seed)
            model = anynpu.compile(net.model(output), dataset=[feeds(net)], quantizer="vendor", ranges=net.ranges)
            values = {name: _memory(model.programs[0], name, net.tensors[name].values) for name in net.inputs}
            for layer in model.programs[0].layers:
                case = _case(model.programs[0], layer, values)
                if case is None:
                    break  # views, float layers and what depends on them
                values.update(zip(layer.outputs, reference_result(case), strict=True))
                if isinstance(getattr(layer.op, "epilogue", None), FixedPoint):
                    yield f"{family} {seed} {layer.name}", case


def _memory(program: Program, name: str, codes: Any) -> Any:
    """Codes without their batch, channels first, as the tensor lies in memory."""
    values = codes.astype(np.int8)[None]
    spec = program.tensors[name]
    ordered = np.moveaxis(values, 1, -1) if spec.memory_shape != values.shape or spec.layout.value == "nhwc" else values
    return np.ascontiguousarray(ordered).reshape(spec.memory_shape)


def _case(program: Program, layer: Layer, values: dict[str, Any]) -> Case | None:
    tensors = program.tensors
    if any(name not in values for name in layer.inputs) or any(tensors[name].dtype.value != "int8" for name in layer.outputs):
        return None
    return Case(
        layer.op,
        tuple(values[name] for name in layer.inputs),
        tuple(tensors[name] for name in layer.inputs),
        tuple(tensors[name] for name in layer.outputs),
    )
