"""The rules of each operator: what its fields must be for the tensors that it reads and writes.

After these checks an engine may index weights, tables and tensors without looking at a bound again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._util.types import Array
from ..program import (
    RESIZE_BITS,
    Binary,
    Concat,
    Conv,
    Convert,
    ConvTranspose,
    Curve,
    Custom,
    Dense,
    Epilogue,
    Finish,
    FixedPoint,
    MatMul,
    Pad,
    Pool,
    Resize,
    Slice,
    Staircase,
    Table,
    Transpose,
    limits_of,
)
from ..tensor import DType, Layout, TensorSpec

MAX_DIMENSIONS = 8
MAX_STEP = 1 << 20
"""Largest kernel, stride, dilation or pad."""
MAX_PAD_BEYOND = 4096
"""How many pixels a pad of a convolution may have beyond the reach of its kernel; FCN-8s has a pad of 100 for a kernel of 3."""
WIDEST_ZERO_POINT = 1 << 16

MAX_FACTOR = 1 << 15
MAX_SLOPE = 2 * MAX_FACTOR
MAX_SHIFT = 31
CURVE_ENTRIES = 513
MAX_EDGES = 65535

_CODES = frozenset({DType.INT8, DType.UINT8, DType.INT16})
_WEIGHTS = ("int8", "uint8", "int16")

MAX_OPERATOR_LENGTH = 4096
MAX_CUSTOM_INPUTS = 4096
MAX_ATTRIBUTES = 4096
_CUSTOM_TYPES = frozenset(DType) - {DType.FLOAT16, DType.BFLOAT16, DType.INT4, DType.UINT4}
_CUSTOM_NAMES = frozenset(dtype.value for dtype in _CUSTOM_TYPES)


Seen = set[tuple[int, str, tuple[int, ...], str]]
"""Arrays whose values keep a rule: address, type, shape, rule."""


class RuleBroken(Exception):
    """A rule is broken; the text states which."""


@dataclass
class Operands:
    """What a layer reads and writes.

    :ivar contents: look at the values inside arrays too; a model without weights has none to look at
    :ivar seen: what was looked at already: programs of several shapes share their arrays
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    contents: bool = True
    seen: Seen = field(default_factory=set)

    def once(self, array: Array, rule: str, check: Callable[[Array], bool]) -> bool:
        """Whether the values of *array* keep a rule; looks at each array once."""
        if not self.contents or not array.size:
            return True
        key = (int(array.__array_interface__["data"][0]), array.dtype.str, array.shape, rule)
        if key in self.seen:
            return True
        good = check(array)
        if good:
            self.seen.add(key)
        return good


def require(condition: object, reason: str) -> None:
    """Reject unless *condition* holds."""
    if not condition:
        raise RuleBroken(reason)


def check_operator(op: object, operands: Operands) -> None:
    """Check an integer operator against its tensors; raises :class:`RuleBroken`."""
    check = _RULES.get(type(op))
    require(check is not None, f"{type(op).__name__} is not an operator")
    assert check is not None
    check(op, operands)


def _count(operands: Operands, inputs: Sequence[int], outputs: int = 1) -> None:
    given = len(operands.inputs)
    require(given in inputs, f"takes {' or '.join(map(str, inputs))} inputs, got {given}")
    require(len(operands.outputs) == outputs, f"has {outputs} outputs, got {len(operands.outputs)}")


def _dense(spec: TensorSpec) -> tuple[int, ...]:
    """The sizes in memory of a tensor that lies there without gaps."""
    shape = spec.memory_shape
    plain = spec.layout is not Layout.NC1HWC2 and math.prod(shape) == spec.elements
    require(plain, f"tensor '{spec.name}' lies in blocks or with padding, which only Convert reads and writes")
    return shape


def _codes(spec: TensorSpec, *, quantized: bool = True) -> None:
    require(spec.dtype in _CODES, f"tensor '{spec.name}' is {spec.dtype.value}; the operator works on int8, uint8 and int16")
    require(spec.quantization is not None or not quantized, f"tensor '{spec.name}' has no quantization")


def _image(spec: TensorSpec) -> tuple[int, int, int, int]:
    """N, H, W, C of an image, or of a tensor of rank 3 as an image of height 1."""
    require(spec.layout in (Layout.NHWC, Layout.PLAIN), f"tensor '{spec.name}' does not have its channels last")
    shape = _dense(spec)
    require(len(shape) in (3, 4), f"tensor '{spec.name}' has {len(shape)} axes and is not an image")
    return (shape[0], 1, *shape[1:]) if len(shape) == 3 else shape  # type: ignore[return-value]


def _same_type(source: TensorSpec, target: TensorSpec) -> None:
    require(
        source.dtype is target.dtype,
        f"'{source.name}' is {source.dtype.value} and '{target.name}' {target.dtype.value}; the operator keeps the type",
    )


def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result = tuple(max(extents) for extents in zip(*padded, strict=True))
    for shape in padded:
        fits = all(extent in (1, wanted) for extent, wanted in zip(shape, result, strict=True))
        require(fits, f"shapes {' and '.join(str(list(one)) for one in shapes)} do not broadcast")
    return result


def _finite(array: Array) -> bool:
    return bool(np.isfinite(array).all())


def _channel_array(array: Array, name: str, dtype: str | tuple[str, ...], lengths: tuple[int, ...]) -> None:
    allowed = (dtype,) if isinstance(dtype, str) else dtype
    require(array.dtype.name in allowed, f"{name} is {array.dtype.name}, not {' or '.join(allowed)}")
    wanted = " or ".join(map(str, sorted(set(lengths))))
    require(array.ndim == 1 and array.size in lengths, f"{name} has shape {list(array.shape)}, not {wanted} entries")


def _table(table: Array, groups: tuple[int, ...], channels: int, source: DType, target: DType) -> None:
    """A look-up table by code of *source*, which gives quantized values of *target*."""
    entries = 1 << source.bits
    require(source in _CODES and target in _CODES, "a table goes from quantized values to quantized values of 8 or 16 bits")
    require(table.ndim == 2 and table.shape[1] == entries, f"a table of shape {list(table.shape)} needs {entries} entries a row")
    require(table.dtype == target.storage, f"a table of {table.dtype.name} gives no {target.value}")
    require(table.shape[0] == (len(groups) or 1), f"{table.shape[0]} table rows for {len(groups) or 'no'} groups of channels")
    require(all(size > 0 for size in groups), "a group of channels is empty")
    require(not groups or sum(groups) == channels, f"table groups of {sum(groups)} channels on {channels}")


def _float_epilogue(epilogue: Epilogue, target: TensorSpec, operands: Operands, *, multiplier: bool, stairs: bool) -> None:
    channels = _channels(target)
    by_channel = (1, channels)
    _codes(target, quantized=False)
    _channel_array(epilogue.multiplier, "multiplier", "float32", by_channel if multiplier else (0, *by_channel))
    _channel_array(epilogue.zero_point, "zero_point", "int32", by_channel)
    require(operands.once(epilogue.multiplier, "finite", _finite), "a multiplier is not finite")
    near = operands.once(
        epilogue.zero_point, "zero", lambda zero: bool((np.abs(zero.astype(np.int64)) <= WIDEST_ZERO_POINT).all())
    )
    require(near, "a zero point is beyond 16 bits")
    for name in ("slope", "residual_multiplier"):
        array = getattr(epilogue, name)
        if array is not None:
            _channel_array(array, name, "float32", by_channel)
            require(operands.once(array, "finite", _finite), f"a {name} is not finite")
    if epilogue.clamp is not None:
        clamp = epilogue.clamp
        require(clamp.dtype.name == "int32", f"clamp is {clamp.dtype.name}, not int32")
        require(clamp.ndim == 2 and clamp.shape[0] == 2 and clamp.shape[1] in by_channel, f"clamp has shape {list(clamp.shape)}")
        low, high = limits_of(target.dtype.storage)
        inside = operands.once(
            clamp, f"clamp {low}", lambda c: bool((c >= low).all() and (c <= high).all() and (c[0] <= c[1]).all())
        )
        require(inside, f"clamp leaves the range of {target.dtype.value}")
    if epilogue.table is not None:
        _table(epilogue.table, epilogue.table_groups, channels, target.dtype, target.dtype)
    else:
        require(not epilogue.table_groups, "there are table groups without a table")
    groups = epilogue.staircase_groups
    require(
        len(epilogue.staircases) == (len(groups) or min(len(epilogue.staircases), 1)),
        "threshold tables and groups differ in number",
    )
    require(
        all(size > 0 for size in groups) and (not groups or sum(groups) == channels),
        "threshold table groups do not fit the channels",
    )
    for staircase in epilogue.staircases:
        others = (epilogue.clamp, epilogue.slope, epilogue.residual_multiplier, epilogue.table)
        require(
            stairs and target.dtype is DType.INT8, "only a convolution or a product with weights has a threshold table, of int8"
        )
        require(all(other is None for other in others), "a threshold table excludes clamp, slope, residual and table")
        _staircase(staircase, operands)


def _staircase(staircase: Staircase, operands: Operands) -> None:
    edges, codes = staircase.edges, staircase.codes
    require(
        edges.dtype.name == "float32" and edges.ndim == 1 and 1 <= edges.size <= MAX_EDGES, f"edges are 1 to {MAX_EDGES} float32"
    )
    rising = operands.once(edges, "rising", lambda values: bool(np.isfinite(values).all() and (values[1:] > values[:-1]).all()))
    require(rising, "the edges of a threshold table do not ascend")
    require(
        codes.dtype.name == "int8" and codes.shape == (edges.size + 1,), "a threshold table has one code more than edges, in int8"
    )


def _epilogue(epilogue: Finish, target: TensorSpec, operands: Operands, *, multiplier: bool = True, stairs: bool = False) -> None:
    """*multiplier*: whether the epilogue has one of its own; element-wise operators and, in integers, pooling have not. *stairs*: whether
    it may have threshold tables."""
    if isinstance(epilogue, FixedPoint):
        _fixed_point(epilogue, target, operands, pooling=False)
    else:
        _float_epilogue(epilogue, target, operands, multiplier=multiplier, stairs=stairs)


def _within(operands: Operands, array: Array, name: str, low: int, high: int) -> None:
    inside = operands.once(array, f"{name} {low} {high}", lambda values: bool((values >= low).all() and (values <= high).all()))
    require(inside, f"a {name} is not from {low} to {high}")


def _fixed_point(stage: FixedPoint, target: TensorSpec, operands: Operands, *, pooling: bool) -> None:
    """Numbers of as many bits as the chip has for them: then no product leaves 64 bits."""
    channels = _channels(target)
    by_channel = (1, channels)
    require(target.dtype is DType.INT8, f"tensor '{target.name}' is {target.dtype.value}; the chip's integers give int8")
    _channel_array(stage.channel_multiplier, "channel_multiplier", "int32", (0,) if pooling else (0, *by_channel))
    for array, name in ((stage.multiplier, "multiplier"), (stage.shift, "shift")):
        _channel_array(array, name, "int32", (0,) if pooling else by_channel)
    _channel_array(stage.zero_point, "zero_point", "int32", by_channel)
    for array, name in ((stage.channel_multiplier, "channel multiplier"), (stage.multiplier, "multiplier")):
        _within(operands, array, name, -MAX_FACTOR, MAX_FACTOR)
    _within(operands, stage.shift, "shift", 0, MAX_SHIFT)
    _within(operands, stage.zero_point, "zero point", -WIDEST_ZERO_POINT, WIDEST_ZERO_POINT)
    if stage.slope is not None:
        _channel_array(stage.slope, "slope", "int32", by_channel)
        _within(operands, stage.slope, "slope", -MAX_SLOPE, MAX_SLOPE)
        require(stage.bounds is None and not stage.curves, "a slope excludes bounds and a curve")
    if stage.residual_multiplier is not None:
        require(abs(stage.residual_multiplier) <= MAX_FACTOR, "the residual's multiplier has more than 16 bits")
        require(0 <= stage.residual_shift <= MAX_SHIFT, f"the residual's shift is not from 0 to {MAX_SHIFT}")
    if stage.bounds is not None:
        bounds = stage.bounds
        require(bounds.dtype.name == "int32", f"bounds are {bounds.dtype.name}, not int32")
        require(bounds.ndim == 2 and bounds.shape[0] == 2 and bounds.shape[1] in by_channel, f"bounds have shape {bounds.shape}")
        require(operands.once(bounds, "bounds", lambda b: bool((b[0] <= b[1]).all())), "a lower bound is above the upper one")
    require(not pooling or not (stage.curves or stage.slope is not None or stage.bounds is not None), "pooling only rounds")
    groups = stage.curve_groups
    require(len(stage.curves) == (len(groups) or min(len(stage.curves), 1)), "curves and groups of channels differ in number")
    require(all(size > 0 for size in groups) and (not groups or sum(groups) == channels), "curve groups do not fit the channels")
    for curve in stage.curves:
        _curve(curve)
    if stage.table is not None:
        _table(stage.table, stage.table_groups, channels, target.dtype, target.dtype)
    else:
        require(not stage.table_groups, "there are table groups without a table")


def _curve(curve: Curve) -> None:
    for table in (curve.negative, curve.positive):
        require(table.dtype.name == "int16" and table.shape == (CURVE_ENTRIES,), f"a curve has tables of {CURVE_ENTRIES} int16")
    require(abs(curve.offset) < 1 << 31, "the offset of a curve is beyond 32 bits")
    require(abs(curve.multiplier) <= MAX_FACTOR and abs(curve.slope) <= MAX_FACTOR, "a factor of a curve has more than 16 bits")
    require(
        0 <= curve.shift <= MAX_SHIFT and 0 <= curve.slope_shift <= MAX_SHIFT, f"a shift of a curve is not from 0 to {MAX_SHIFT}"
    )


def _channels(spec: TensorSpec) -> int:
    shape = _dense(spec)
    return shape[-1] if shape else 1


def _residual(epilogue: Finish, operands: Operands) -> None:
    """A second input if and only if there is a multiplier for it."""
    expected = 2 if epilogue.residual_multiplier is not None else 1
    _count(operands, (expected,))
    if expected == 2:
        residual, target = operands.inputs[1], operands.outputs[0]
        _codes(residual)
        require(_broadcast(_dense(residual), _dense(target)) == _dense(target), "the residual is larger than the output")


def _no_residual(epilogue: Finish | None) -> None:
    require(epilogue is None or epilogue.residual_multiplier is None, "the operator takes no residual")


def _products(op: Conv | ConvTranspose | Dense, operands: Operands) -> None:
    """What Conv, ConvTranspose and Dense have in common."""
    _residual(op.epilogue, operands)
    _codes(operands.inputs[0])
    require(op.weights.dtype.name in _WEIGHTS, f"weights are {op.weights.dtype.name}, not {', '.join(_WEIGHTS)}")
    rank = 2 if isinstance(op, Dense) else 4
    require(op.weights.ndim == rank and op.weights.size, f"weights have shape {list(op.weights.shape)}, not {rank} axes")
    outputs = op.weights.shape[0]
    _channel_array(op.weight_zero, "weight_zero", "int32", (1, outputs))
    _channel_array(op.bias, "bias", ("int32", "int64"), (1, outputs))
    near = operands.once(op.weight_zero, "zero", lambda zero: bool((np.abs(zero.astype(np.int64)) <= WIDEST_ZERO_POINT).all()))
    require(near, "a zero point of the weights is beyond 16 bits")
    _epilogue(op.epilogue, operands.outputs[0], operands, stairs=not isinstance(op, ConvTranspose))


def _steps(name: str, values: tuple[int, ...], least: int) -> None:
    require(all(least <= value <= MAX_STEP for value in values), f"{name} {list(values)} must be from {least} to {MAX_STEP}")


def _window(op: Conv | ConvTranspose | Pool) -> None:
    _steps("strides", op.strides, 1)
    _steps("dilations", op.dilations, 1)
    _steps("pads", op.pads, 0)


def _conv(op: Conv | ConvTranspose, operands: Operands) -> None:
    _products(op, operands)
    _window(op)
    x, y = _image(operands.inputs[0]), _image(operands.outputs[0])
    outputs, *kernel, depth = op.weights.shape
    require(op.groups >= 1 and outputs % op.groups == 0, f"{op.groups} groups for {outputs} output channels")
    require(depth * op.groups == x[3], f"weights for {depth} x {op.groups} input channels, the input has {x[3]}")
    require(outputs == y[3], f"weights for {outputs} output channels, the output has {y[3]}")
    require(x[0] == y[0], f"the input has {x[0]} images, the output {y[0]}")
    for axis in (0, 1):
        size = (kernel[axis] - 1) * op.dilations[axis] + 1
        before, after, stride = op.pads[axis], op.pads[axis + 2], op.strides[axis]
        source, target = x[axis + 1], y[axis + 1]
        if isinstance(op, Conv):
            most = size - 1 + MAX_PAD_BEYOND
            require(max(before, after) <= most, f"pads of {max(before, after)} for a kernel over {size} pixels; at most {most}")
            room = source + before + after - size
            extent = room // stride + 1 if room >= 0 else 0
            require(target == extent, f"{source} pixels give {extent}, the output has {target}")
        else:
            whole = (source - 1) * stride + size + max(stride, op.dilations[axis]) - 1 - before
            require(target <= whole, f"{source} pixels give at most {whole}, the output has {target}")


def _dense_layer(op: Dense, operands: Operands) -> None:
    _products(op, operands)
    source, target = operands.inputs[0], operands.outputs[0]
    outputs, depth = op.weights.shape
    elements = math.prod(_dense(source))
    require(elements % depth == 0, f"rows of {depth} elements do not divide the input's {elements}")
    require(_channels(target) == outputs, f"weights for {outputs} outputs, the output has {_channels(target)} channels")
    require(elements // depth * outputs == target.elements, f"{elements // depth} rows of {outputs} are not {target.elements}")
    grouped = source.quantization is not None and not source.quantization.is_per_tensor
    require(not grouped or depth % _channels(source) == 0, "the input is quantized by channels that its rows cut through")


def _matmul(op: MatMul, operands: Operands) -> None:
    _count(operands, (2,))
    _no_residual(op.epilogue)
    for spec in operands.inputs:
        _codes(spec)
    a, b = map(_dense, operands.inputs)
    require(len(a) >= 2 and len(b) >= 2, "a factor has fewer than two axes")
    inner, columns = (b[-1], b[-2]) if op.transpose_b else (b[-2], b[-1])
    require(a[-1] == inner, f"rows of {a[-1]} meet columns of {inner}")
    result = (*_broadcast(a[:-2], b[:-2]), a[-2], columns)
    require(_dense(operands.outputs[0]) == result, f"the product is {list(result)}, the output {list(operands.outputs[0].shape)}")
    _epilogue(op.epilogue, operands.outputs[0], operands)


def _binary(op: Binary, operands: Operands) -> None:
    _count(operands, (2,))
    _no_residual(op.epilogue)
    target = operands.outputs[0]
    for spec in operands.inputs:
        _codes(spec)
    shape = _broadcast(*map(_dense, operands.inputs))
    require(shape == _dense(target), f"the inputs give {list(shape)}, the output is {list(_dense(target))}")
    require(shape, "both inputs are scalars; the operator needs a channel axis")
    if isinstance(op.epilogue, FixedPoint):
        for factor in (op.a_multiplier, op.b_multiplier):
            _channel_array(factor, "a factor", "int32", (0,) if op.kind == "mul" else (1,))
            _within(operands, factor, "factor", -MAX_FACTOR, MAX_FACTOR)
        require(all(0 <= shift <= MAX_SHIFT for shift in op.shifts), f"a shift is not from 0 to {MAX_SHIFT}")
        _fixed_point(op.epilogue, target, operands, pooling=False)
        return
    by_channel = (1, _channels(target))
    _channel_array(op.a_multiplier, "a_multiplier", "float32", by_channel)
    _channel_array(op.b_multiplier, "b_multiplier", "float32", (0, *by_channel) if op.kind == "mul" else by_channel)
    for array in (op.a_multiplier, op.b_multiplier):
        require(operands.once(array, "finite", _finite), "a multiplier is not finite")
    _epilogue(op.epilogue, target, operands, multiplier=False)


def _table_layer(op: Table, operands: Operands) -> None:
    _count(operands, (1,))
    source, target = operands.inputs[0], operands.outputs[0]
    require(_dense(source) == _dense(target), "input and output differ in shape")
    _table(op.table, op.table_groups, _channels(source), source.dtype, target.dtype)


def _concat(op: Concat, operands: Operands) -> None:
    require(operands.inputs, "takes at least one input")
    _count(operands, (len(operands.inputs),))
    target = operands.outputs[0]
    shape = _dense(target)
    require(-len(shape) <= op.axis < len(shape), f"there is no axis {op.axis} among {len(shape)}")
    axis = op.axis % len(shape)
    total = 0
    for spec in operands.inputs:
        part = _dense(spec)
        same = len(part) == len(shape) and part[:axis] + part[axis + 1 :] == shape[:axis] + shape[axis + 1 :]
        require(same, f"'{spec.name}' {list(part)} does not fit into {list(shape)} along axis {axis}")
        total += part[axis]
    require(total == shape[axis], f"the inputs add up to {total}, the output has {shape[axis]}")
    require(len(op.tables) in (0, len(operands.inputs)), f"{len(op.tables)} tables for {len(operands.inputs)} inputs")
    for spec, table in zip(operands.inputs, op.tables or (None,) * len(operands.inputs), strict=True):
        if table is None:
            _same_type(spec, target)
        else:
            _table(table.table, table.table_groups, _channels(spec), spec.dtype, target.dtype)


def _slice(op: Slice, operands: Operands) -> None:
    count = len(operands.outputs)
    require(count, "has no output")
    _count(operands, (1,), count)
    require(len(op.starts) == count and len(op.steps) == count, f"{count} outputs need as many starts and steps")
    source = operands.inputs[0]
    extents = _dense(source)
    for target, starts, steps in zip(operands.outputs, op.starts, op.steps, strict=True):
        _same_type(source, target)
        shape = _dense(target)
        ranks = {len(extents), len(shape), len(starts), len(steps)}
        require(len(ranks) == 1, f"'{target.name}' differs from the input in the number of axes, starts or steps")
        for extent, length, start, step in zip(extents, shape, starts, steps, strict=True):
            first = start + extent if start < 0 else start
            last = first + (length - 1) * step
            inside = step != 0 and 0 <= first < extent and 0 <= last < extent
            require(inside, f"'{target.name}' takes elements {first} to {last} of {extent}")


def _pad(op: Pad, operands: Operands) -> None:
    _count(operands, (1,))
    source, target = operands.inputs[0], operands.outputs[0]
    _same_type(source, target)
    extents, shape = _dense(source), _dense(target)
    ranks = {len(extents), len(shape), len(op.before), len(op.after)}
    require(len(ranks) == 1, "input, output, before and after differ in the number of axes")
    for extent, length, before, after in zip(extents, shape, op.before, op.after, strict=True):
        _steps("padding", (before, after), 0)
        require(length == extent + before + after, f"{before} + {extent} + {after} is not {length}")
        require(
            op.mode != "reflect" or max(before, after) < extent,
            f"{extent} elements cannot be reflected {max(before, after)} deep",
        )
    if not source.dtype.is_float and source.dtype is not DType.BOOL:
        low, high = source.dtype.limits
        require(low <= op.value <= high, f"the value {op.value} is no {source.dtype.value}")


def _pool(op: Pool, operands: Operands) -> None:
    _count(operands, (1,))
    source, target = operands.inputs[0], operands.outputs[0]
    _window(op)
    _steps("kernel", op.kernel, 1)
    _codes(source, quantized=op.kind == "average")
    x, y = _image(source), _image(target)
    require((x[0], x[3]) == (y[0], y[3]), "input and output differ in images or channels")
    for axis in (0, 1):
        _pool_axis(op, axis, x[axis + 1], y[axis + 1])
    if op.kind == "max":
        require(op.epilogue is None, "a max pooling has no epilogue")
        _same_type(source, target)
        return
    require(op.epilogue is not None, "an average pooling needs an epilogue")
    assert op.epilogue is not None
    _no_residual(op.epilogue)
    if not isinstance(op.epilogue, FixedPoint):
        _epilogue(op.epilogue, target, operands)
        return
    _fixed_point(op.epilogue, target, operands, pooling=True)
    counts = math.prod(op.kernel) + 1
    divisors = op.divisors
    require(
        divisors is not None and divisors.dtype.name == "int32" and divisors.shape == (2, counts), f"divisors for {counts} counts"
    )
    assert divisors is not None
    _within(operands, divisors[0], "divisor", 0, MAX_FACTOR)
    _within(operands, divisors[1], "shift of a divisor", 0, MAX_SHIFT)


def _pool_axis(op: Pool, axis: int, source: int, target: int) -> None:
    """The size may be rounded up, but every window meets the input: what the empty ones would hold is not defined."""
    kernel, stride, dilation = op.kernel[axis], op.strides[axis], op.dilations[axis]
    before, after = op.pads[axis], op.pads[axis + 2]
    room = source + before + after - (kernel - 1) * dilation - 1
    floor, ceiling = room // stride + 1, -(-room // stride) + 1
    require(floor <= target <= ceiling, f"{source} pixels give {floor}, the output has {target}")
    require((target - 1) * stride - before < source, "the last window lies outside the input")
    # windows that begin in the padding reach the input if the first one does, and cannot step over it
    reaches = before <= (kernel - 1) * dilation and (dilation <= source or before == 0)
    require(after <= (kernel - 1) * dilation, f"padding of {after} after a kernel of {kernel} is beyond its reach")
    require(reaches, f"padding of {before} before a kernel of {kernel} leaves windows outside the input")


def _resize(op: Resize, operands: Operands) -> None:
    _count(operands, (1,))
    source, target = operands.inputs[0], operands.outputs[0]
    _codes(source, quantized=False)
    _same_type(source, target)
    x, y = _image(source), _image(target)
    require((x[0], x[3]) == (y[0], y[3]), "input and output differ in images or channels")
    for name, table, extent, length in (("rows", op.rows, x[1], y[1]), ("columns", op.columns, x[2], y[2])):
        require(table.dtype.name == "int32", f"{name} are {table.dtype.name}, not int32")
        require(table.shape == (length, 3), f"{name} have shape {list(table.shape)}, not {[length, 3]}")

        def inside(indices: Array, extent: int = extent) -> bool:
            low, high = indices.min(axis=0), indices.max(axis=0)
            return bool((low >= 0).all() and (high[:2] < extent).all() and high[2] <= 1 << RESIZE_BITS)

        require(operands.once(table, f"below {extent}", inside), f"{name} lead outside the input of {extent}")


def _transpose(op: Transpose, operands: Operands) -> None:
    _count(operands, (1,))
    source, target = operands.inputs[0], operands.outputs[0]
    _same_type(source, target)
    require(source.dtype.bits >= 8, f"{source.dtype.value} is packed")
    require(len(op.view) <= MAX_DIMENSIONS, f"a view of {len(op.view)} axes")
    require(all(extent >= 1 for extent in op.view), f"a view of {list(op.view)}")
    elements = math.prod(_dense(source))
    require(math.prod(op.view) == elements, f"the view {list(op.view)} does not hold the input's {elements} elements")
    require(sorted(op.perm) == list(range(len(op.view))), f"{list(op.perm)} is no order of {len(op.view)} axes")
    require(math.prod(_dense(target)) == elements, f"the output does not hold {elements} elements")


def _convert(op: Convert, operands: Operands) -> None:
    _count(operands, (1,))
    source, target = operands.inputs[0], operands.outputs[0]
    require(source.shape == target.shape, f"the input is {list(source.shape)}, the output {list(target.shape)}")


def _custom(op: Custom, operands: Operands) -> None:
    require(0 < len(op.op_type) <= MAX_OPERATOR_LENGTH, f"an operator name of {len(op.op_type)} characters")
    require(operands.outputs, "has no output")
    for spec in (*operands.inputs, *operands.outputs):
        _dense(spec)
        require(spec.layout is not Layout.NHWC, f"tensor '{spec.name}' is not row-major")
        require(spec.quantization is None, f"tensor '{spec.name}' is quantized")
        require(spec.dtype in _CUSTOM_TYPES, f"tensor '{spec.name}' is {spec.dtype.value}")
    count = len(operands.inputs) + len(op.constants)
    positions = [constant.position for constant in op.constants]
    require(count <= MAX_CUSTOM_INPUTS, f"has {count} inputs; at most {MAX_CUSTOM_INPUTS} are possible")
    inside = len(set(positions)) == len(positions) and all(0 <= position < count for position in positions)
    require(inside, f"constants at {positions} of {count} inputs")
    for constant in op.constants:
        require(0 < len(constant.name) <= MAX_OPERATOR_LENGTH, "a constant without a name, or with an absurd one")
        require(constant.value.dtype.name in _CUSTOM_NAMES, f"constant '{constant.name[:64]}' is {constant.value.dtype.name}")
        require(constant.value.ndim <= MAX_DIMENSIONS, f"constant '{constant.name[:64]}' has {constant.value.ndim} axes")
    require(len(op.attributes) <= MAX_ATTRIBUTES, f"{len(op.attributes)} attributes; at most {MAX_ATTRIBUTES} are possible")


_RULES: Mapping[type[Any], Callable[[Any, Operands], None]] = {
    Conv: _conv,
    ConvTranspose: _conv,
    Dense: _dense_layer,
    MatMul: _matmul,
    Binary: _binary,
    Table: _table_layer,
    Concat: _concat,
    Slice: _slice,
    Pad: _pad,
    Pool: _pool,
    Resize: _resize,
    Transpose: _transpose,
    Convert: _convert,
    Custom: _custom,
}
