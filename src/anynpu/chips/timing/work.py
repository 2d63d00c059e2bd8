"""What each layer of a program makes the NPU do: the tasks of all layers, in the form that fits what the program computes in."""

from __future__ import annotations

from dataclasses import replace

from ...program import Program
from .. import Chip
from .array import peak_macs, relative_rate
from .float16 import HalfView
from .layers import View, computed_in
from .tasks import LayerWork, ProgramWork, Task

__all__ = ["LayerWork", "ProgramWork", "Task", "peak_macs", "relative_rate", "work_of"]

_NORMALISATION = ("ReduceMean", "Sub", "Pow", "ReduceMean", "Add", "Sqrt", "Div")
"""The operators that exporters write for a LayerNormalization, which the chip does in one."""


def work_of(program: Program, chip: Chip) -> ProgramWork:
    """The work of *program* on one core of *chip*."""
    dtype = computed_in(program)
    own = dtype == "float16" or chip.vip is not None
    if own:
        half = HalfView(program, chip, dtype)
        layers = [half.indexed(index) for index in range(len(program.layers))]
    else:
        view = View(program, chip)
        layers = _normalisations([view.layer(layer) for layer in program.layers])
    weights = sum(layer.weight_bytes for layer in program.layers)
    outside = sum(spec.nbytes for spec in (*program.input_specs, *program.output_specs))
    return ProgramWork(chip.name, dtype, tuple(layers), weights, weights + program.memory.size + outside, own)


def _normalisations(layers: list[LayerWork]) -> list[LayerWork]:
    """The layers, with each LayerNormalization that was written out as several joined in its first one."""
    length = len(_NORMALISATION)
    for first in range(len(layers) - length + 1):
        if tuple(layer.does for layer in layers[first : first + length]) == _NORMALISATION:
            task = max(layers[first].tasks, key=lambda task: task.slow, default=Task())
            layers[first] = replace(layers[first], tasks=(replace(task, written=task.read),))
            for index in range(first + 1, first + length):
                layers[index] = replace(layers[index], tasks=())
    return layers
