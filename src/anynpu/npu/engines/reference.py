"""The reference engine: every integer operator of a layer program, with numpy, exactly.

Accumulators are exact integers and the rest is :mod:`anynpu.program.arithmetic`, so the result follows from the program alone: no
machine, instruction set, thread count or block size changes a bit of it. Other engines are tested against this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..._util.types import Array
from ...errors import DeviceError, ShapeError, TensorTypeError
from ...program import (
    Binary,
    Concat,
    Conv,
    Convert,
    ConvTranspose,
    Dense,
    Layer,
    MatMul,
    Op,
    Pad,
    Pool,
    Program,
    Resize,
    Slice,
    Table,
    Transpose,
)
from ...tensor import TensorSpec
from .reference_common import no_check
from .reference_elementwise import binary, concat, table
from .reference_layout import convert, pad, slices, transpose
from .reference_products import convolve, dense, matmul
from .reference_windows import pool, resize

__all__ = ["execute", "execute_layer"]


def execute(
    op: Op,
    inputs: Sequence[Array],
    input_specs: Sequence[TensorSpec],
    output_specs: Sequence[TensorSpec],
    outputs: Sequence[Array],
    check: Callable[[], None] = no_check,
) -> None:
    """Execute one operator; the results are written into *outputs*.

    Every array has the ``memory_shape`` of its tensor and the numpy type that stores it. Inputs and outputs must not overlap.

    :param check: called between pieces of convolutions and poolings; raises to stop them

    >>> import numpy as np
    >>> from anynpu.tensor import DType
    >>> spec = TensorSpec("x", (1, 3), DType.INT8)
    >>> result = np.empty((1, 3), np.int8)
    >>> execute(Slice(((0, 2),), ((1, -1),)), [np.array([[1, 2, 3]], np.int8)], [spec], [spec.renamed("y")], [result])
    >>> result.tolist()
    [[3, 2, 1]]
    """
    _check(inputs, input_specs)
    _check(outputs, output_specs)
    match op:
        case Conv() | ConvTranspose():
            convolve(op, inputs, input_specs, outputs[0], check)
        case Dense():
            dense(op, inputs, input_specs, outputs[0])
        case MatMul():
            matmul(op, inputs, input_specs, outputs[0])
        case Binary():
            binary(op, inputs, input_specs, outputs[0])
        case Table():
            table(op, inputs[0], outputs[0])
        case Concat():
            concat(op, inputs, outputs[0])
        case Slice():
            slices(op, inputs[0], outputs)
        case Pad():
            pad(op, inputs[0], outputs[0])
        case Pool():
            pool(op, inputs[0], input_specs[0], outputs[0], check)
        case Resize():
            resize(op, inputs[0], outputs[0])
        case Transpose():
            transpose(op, inputs[0], outputs[0])
        case Convert():
            convert(inputs[0], input_specs[0], outputs[0], output_specs[0])
        case _:
            raise DeviceError(
                f"the reference engine executes no operator of the kind {type(op).__name__}",
                hint="float layers are executed in segments, by the engines themselves",
            )


def execute_layer(program: Program, layer: Layer, arrays: Mapping[str, Array], check: Callable[[], None] = no_check) -> None:
    """Execute one layer of *program* on the *arrays* of its tensors, which are named as in the program."""
    execute(
        layer.op,
        [arrays[name] for name in layer.inputs],
        [program.tensors[name] for name in layer.inputs],
        [program.tensors[name] for name in layer.outputs],
        [arrays[name] for name in layer.outputs],
        check,
    )


def _check(arrays: Sequence[Array], specs: Sequence[TensorSpec]) -> None:
    if len(arrays) != len(specs):
        raise ShapeError(
            f"{len(arrays)} arrays for {len(specs)} tensors", hint="pass one array for each tensor of the layer, in its order"
        )
    for array, spec in zip(arrays, specs, strict=True):
        if array.shape != spec.memory_shape:
            raise ShapeError(
                f"tensor '{spec.name}' lies in memory as {list(spec.memory_shape)}, got {list(array.shape)}",
                hint="pass the array in memory order: channels last for layout nhwc",
            )
        if array.dtype != spec.dtype.storage:
            raise TensorTypeError(
                f"tensor '{spec.name}' is stored as {spec.dtype.storage}, got {array.dtype}",
                hint="view or convert the array first",
            )
