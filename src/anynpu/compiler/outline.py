"""Outlines: the program that a model would become, without its weights' values.

What a prediction of time and memory needs is there: layers, shapes, types, sizes and places. Graphs whose weights were stripped will do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .. import chips
from ..chips import Chip
from ..program import Program
from ..tensor import DType, Quantization
from .calibrate import UnknownRanges
from .driver import plan_steps
from .importer import Shapes, import_onnx, load_outline
from .lower import lower
from .options import check_dtype, shape_sets
from .quantize import assign_quantization
from .simplify import simplify
from .steps import Step

__all__ = ["ModelOutline"]


class ModelOutline:
    """The outline of an ONNX model for any chip; what does not depend on the chip is done once.

    :ivar name: what to call the model

    >>> ModelOutline("det.onnx").program("rk3588").layers    # doctest: +SKIP
    """

    def __init__(self, model: Any, *, shapes: Shapes | None = None, batch: int | None = None) -> None:
        proto, weights = load_outline(model)
        self.name = Path(model).stem if isinstance(model, (str, Path)) else str(proto.graph.name)
        self._graph = import_onnx(proto, shape_sets(shapes)[0], batch, weights=weights)
        simplify(self._graph)
        self._steps: dict[str, tuple[list[Step], dict[str, Quantization]]] = {}
        self._programs: dict[tuple[object, ...], Program] = {}

    def program(self, target: str | Chip, *, dtype: str = "w8a8") -> Program:
        """The outline for one chip. It can be looked at, not run."""
        chip = chips.get(target) if isinstance(target, str) else target
        dtype = check_dtype(dtype, chip)
        key = (chip.limits, chip.float16, dtype)  # all that placement looks at
        if key not in self._programs:
            code_type = DType.INT16 if dtype == "w16a16" else DType.INT8
            if dtype not in self._steps:
                planned = plan_steps(self._graph, dtype, ())
                self._steps[dtype] = planned, assign_quantization(self._graph, planned, UnknownRanges(), code_type)
            steps, quantization = self._steps[dtype]
            self._programs[key] = lower(self._graph, steps, chip, quantization, code_type, outline=True)
        return self._programs[key]
