"""Segments of float layers in C, without onnxruntime.

A segment whose operators all have a kernel (:mod:`.float_kernels`) is planned once per loaded model: what depends on constants alone is
computed, and every other operator becomes one layer or a few for C. All contexts share that; each adds private memory for what lies
between the layers. A run is one call, which looks between two layers whether the job has to stop.

For a segment with any other operator ``native_stretch`` gives None, and onnxruntime runs it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..._native import ffi, lib
from ..._util.types import Array
from ...program import Constant, Float, FloatOp, FloatStretch, Program
from ...program.convert import bfloat16_to_float32
from ...tensor import DType, TensorSpec
from ..control import RunControl
from .float_call import Call
from .float_kernels import KERNELS
from .float_plan import FloatPlan, NoKernel, Value
from .native_arrays import aligned_bytes
from .native_levels import choose_level, level_names
from .native_memory import check_array
from .native_workers import WorkerThreads
from .preparation import Preparation

__all__ = ["NativeStretch", "constant_values", "native_stretch"]


_MAX_OPERATORS = 2000
_TYPES = (DType.FLOAT32, DType.FLOAT16)


def constant_values(constant: Constant, preparation: Preparation) -> Array:
    """The elements of a constant as operators read them: float16 and bfloat16 become float32, once for all layers that use them."""
    array = constant.value
    if constant.dtype == "bfloat16":
        return preparation.shared("bfloat16", array, 2 * array.nbytes, lambda: bfloat16_to_float32(np.ascontiguousarray(array)))
    if array.dtype == np.float16:
        return preparation.shared("float16", array, 2 * array.nbytes, lambda: array.astype(np.float32))
    return array


def native_stretch(
    program: Program, stretch: FloatStretch, *, level: int | None = None, preparation: Preparation | None = None
) -> NativeStretch | None:
    """A segment in C; None where onnxruntime has to run it.

    :param level: index of the instruction set; None for the best
    :param preparation: what the segments of a model share
    """
    if level is None:
        level = level_names().index(choose_level(None))
    try:
        return NativeStretch(program, stretch, level, preparation or Preparation())
    except NoKernel:
        return None


class NativeStretch:
    """A segment, ready to be bound to memory. Raises NoKernel where C cannot run it; see :func:`native_stretch`."""

    def __init__(self, program: Program, stretch: FloatStretch, level: int, preparation: Preparation) -> None:
        self._specs = {name: _supported(program.tensors[name]) for name in (*stretch.inputs, *stretch.outputs)}
        self._plan = plan = FloatPlan(level, preparation)
        layers = [layer.op for layer in program.layers[stretch.first : stretch.last] if isinstance(layer.op, Float)]
        if sum(len(op.operators) for op in layers) > _MAX_OPERATORS:
            raise NoKernel("too many operators")
        values: dict[str, Value] = {}
        for name in stretch.inputs:
            spec = self._specs[name]
            values[name] = plan.cast(plan.enter(name, spec.shape, spec.dtype.storage), np.float32)
        for op in layers:
            inner = values | {
                name: plan.constant(constant_values(constant, preparation)) for name, constant in op.constants.items()
            }
            for entry in op.operators:
                _add(plan, entry, inner, program.tensors)
            values |= {name: inner[name] for entry in op.operators for name in entry.outputs if name}
        for name in stretch.outputs:
            plan.leave(name, plan.cast(values[name], self._specs[name].dtype.storage))
        self._layers, self._count, self._private_bytes = plan.finish()
        self.layers = self._layers, self._count
        """For C: the layers, and how many there are."""

    @property
    def private_bytes(self) -> int:
        """Memory of one context for what lies between the layers."""
        return self._private_bytes

    def bind(self, arrays: Mapping[str, Array], workers: WorkerThreads | None = None) -> Callable[[RunControl], None]:
        """Tie the segment to the memory of one context; gives what runs it there, on the threads of *workers*."""
        for name, spec in self._specs.items():
            check_array(arrays[name], spec)
        private = aligned_bytes(self._private_bytes)
        held: list[Array] = [private]

        def address(place: Any) -> int:
            if not place.outside and place.constant is None:
                return int(private.ctypes.data + place.offset)
            held.append(arrays[place.outside] if place.outside else place.constant)
            return int(held[-1].ctypes.data)

        table = ffi.new("void *[]", [ffi.cast("void *", address(place)) for place in self._plan.places] or 1)
        stop, reached = ffi.new("int32_t *"), ffi.new("size_t *")

        def request_stop() -> None:
            stop[0] = 1

        def run(control: RunControl) -> None:
            assert held  # the table has bare pointers: this function keeps the arrays alive
            stop[0] = 0
            deadline = -1 if control.deadline is None else math.ceil(control.deadline * 1e9)
            with control.watching(request_stop):
                sharing = ffi.NULL if workers is None else workers.sharing(workers.threads)
                scratch = workers.scratch if workers is not None and sharing else ffi.NULL
                end = lib.anynpu_execute_shared(
                    sharing, self._layers, self._count, table, scratch, stop, deadline, ffi.NULL, reached
                )
            if end != lib.ANYNPU_FINISHED:
                raise control.reason("did not finish")

        return run


def _supported(spec: TensorSpec) -> TensorSpec:
    if spec.dtype not in _TYPES:
        raise NoKernel(f"'{spec.name}' is of the type {spec.dtype.value}")
    return spec


def _add(plan: FloatPlan, op: FloatOp, values: dict[str, Value], tensors: Mapping[str, TensorSpec]) -> None:
    """Add the layers of one operator, and its results to *values*."""
    kernel = KERNELS.get(op.name)
    if kernel is None or "" in op.outputs or (op.name != "Split" and len(op.outputs) != 1):
        raise NoKernel(op.name)
    inputs = [values[name] if name else None for name in op.inputs]
    made = kernel(Call(plan, op, inputs, [tensors[name].shape for name in op.outputs]))
    values.update(zip(op.outputs, made, strict=True))
