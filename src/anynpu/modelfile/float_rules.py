"""The rules of float operators: the names, operands, attributes and types of a float layer, and the shapes that follow from them.

After these checks an engine may take the shape of every tensor from its TensorSpec. A shape that cannot be determined from a
file (an operand that is computed, an operator of the rule ``declared``) is what the TensorSpec states; engines that are handed
another one stop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .._util.types import Array
from ..program import FLOAT_OPERATORS, Constant, Float, FloatOp, Immediate, Weights
from ..program.float_operators import IMMEDIATE_TYPES, AttributeRule
from ..tensor import DType, Layout, TensorSpec
from .operator_rules import MAX_DIMENSIONS, RuleBroken, require

# The shapes of what float operators make, where a file reports them.


Shape = tuple[int, ...]

MAX_LIST = 64
"""Entries of an attribute, and of a constant that holds axes or sizes."""
MAX_EXTENT = 1 << 32
MAX_STEP = 1 << 20
"""Largest kernel, stride, dilation, pad, group or block."""


@dataclass(frozen=True)
class Value:
    """A tensor that an operator reads.

    :ivar kind: ``real``, ``bool``, or a whole type by name
    :ivar constant: its elements, where they are at hand
    :ivar fixed: it is a constant, whether its elements are at hand or not
    """

    shape: Shape
    kind: str
    constant: Array | None = None
    fixed: bool = False


class Call:
    """One operator with what it reads, as its rule sees it."""

    def __init__(self, op: FloatOp, values: Sequence[Value | None]) -> None:
        self.op = op
        self.values = values

    def has(self, number: int) -> bool:
        return number < len(self.values) and self.values[number] is not None

    def shape(self, number: int = 0) -> Shape:
        value = self.values[number] if number < len(self.values) else None
        require(value is not None, f"lacks input {number}")
        assert value is not None
        return value.shape

    def numbers(self, number: int, *, fixed: bool = False) -> tuple[int, ...] | None:
        """The integers of a constant input; None where it is computed, or not at hand.

        :param fixed: it must not be computed: a file that decides only while it runs how much memory it takes is rejected
        """
        value = self.values[number] if self.has(number) else None
        require(not fixed or (value is not None and value.fixed), f"has sizes (input {number}) that are not constant")
        if value is None or value.constant is None:
            return None
        require(value.constant.dtype.kind in "iu", f"input {number} is {value.constant.dtype}, not integers")
        require(value.constant.size <= MAX_LIST, f"input {number} has {value.constant.size} numbers")
        return tuple(map(int, value.constant.reshape(-1)))

    def axis(self, axis: int, rank: int) -> int:
        require(-rank <= axis < rank, f"there is no axis {axis} among {rank}")
        return axis % rank

    def axes(self, listed: Sequence[int], rank: int) -> tuple[int, ...]:
        found = tuple(self.axis(axis, rank) for axis in listed)
        require(len(set(found)) == len(found), f"axes {list(listed)} name one twice")
        return found

    def rank(self, least: int, number: int = 0) -> Shape:
        shape = self.shape(number)
        require(len(shape) >= least, f"input {number} has {len(shape)} axes, at least {least} are needed")
        return shape

    def constant(self, number: int) -> Array | None:
        """The elements of an input that must be a constant; None where they are not at hand."""
        value = self.values[number] if self.has(number) else None
        require(value is not None and value.fixed, f"has sizes (input {number}) that are not constant")
        return value.constant if value is not None else None


_Shapes = Sequence[Shape | None] | None


def _declared(call: Call) -> _Shapes:
    return None


def _same(call: Call) -> _Shapes:
    shape = call.shape()
    if "axis" in FLOAT_OPERATORS[call.op.name].attributes and not call.op.name.endswith("Linear"):
        call.axis(call.op.attribute("axis"), len(shape))
    return [shape]


def _broadcast_shapes(*shapes: Shape) -> Shape:
    rank = max(map(len, shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for place, extent in enumerate(shape, rank - len(shape)):
            fits = extent == result[place] or 1 in (extent, result[place])
            require(fits, f"joins tensors of the shapes {[list(one) for one in shapes[:8]]}")
            result[place] = max(extent, result[place])
    return tuple(result)


def _broadcast(call: Call) -> _Shapes:
    if call.op.name == "PRelu":
        require(_broadcast_shapes(call.shape(), call.shape(1)) == call.shape(), "has a slope larger than its input")
    return [_broadcast_shapes(*(value.shape for value in call.values if value is not None))]


def _reduce(call: Call) -> _Shapes:
    shape = call.shape()
    if call.has(1) and call.numbers(1) is None:
        return None
    listed = call.numbers(1) or ()
    if not listed and call.op.attribute("noop_with_empty_axes"):
        return [shape]
    return [_without(shape, call.axes(listed, len(shape)) or range(len(shape)), call.op.attribute("keepdims"))]


def _without(shape: Shape, axes: Sequence[int], keep: int) -> Shape:
    extents = (1 if axis in axes else extent for axis, extent in enumerate(shape) if keep or axis not in axes)
    return tuple(extents)


def _arg(call: Call) -> _Shapes:
    shape = call.rank(1)
    return [_without(shape, [call.axis(call.op.attribute("axis"), len(shape))], call.op.attribute("keepdims"))]


def _topk(call: Call) -> _Shapes:
    shape, count = call.rank(1), call.numbers(1)
    axis = call.axis(call.op.attribute("axis"), len(shape))
    if count is None:
        return None
    require(len(count) == 1 and 0 < count[0] <= shape[axis], f"takes {list(count)} of {shape[axis]}")
    return [(*shape[:axis], count[0], *shape[axis + 1 :])] * 2


def _matmul(call: Call) -> _Shapes:
    left, right = call.rank(1), call.rank(1, 3 if call.op.name == "QLinearMatMul" else 1)
    a = left if len(left) > 1 else (1, *left)
    b = right if len(right) > 1 else (*right, 1)
    require(a[-1] == b[-2], f"multiplies {list(left)} by {list(right)}")
    rows = a[-2:-1] if len(left) > 1 else ()
    columns = b[-1:] if len(right) > 1 else ()
    return [(*_broadcast_shapes(a[:-2], b[:-2]), *rows, *columns)]


def _gemm(call: Call) -> _Shapes:
    a, b = call.shape(), call.shape(1)
    require(len(a) == len(b) == 2, f"multiplies {list(a)} by {list(b)}")
    a = a[::-1] if call.op.attribute("transA") else a
    b = b[::-1] if call.op.attribute("transB") else b
    require(a[1] == b[0], f"multiplies {list(a)} by {list(b)}")
    if call.has(2):
        require(_broadcast_shapes((a[0], b[1]), call.shape(2)) == (a[0], b[1]), f"adds {list(call.shape(2))}")
    return [(a[0], b[1])]


def _window(call: Call, kernel: Sequence[int], spatial: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """Sizes that a kernel spans, strides, and pads before and after, by axis."""
    strides, dilations = ([*(call.op.attribute(key) or [1] * spatial)] for key in ("strides", "dilations"))
    pads = [*(call.op.attribute("pads") or [0] * (2 * spatial))]
    fits = len(kernel) == len(strides) == len(dilations) == spatial and len(pads) == 2 * spatial
    require(fits, f"has a window of other axes than its input's {spatial}")
    spans = [(extent - 1) * dilation + 1 for extent, dilation in zip(kernel, dilations, strict=True)]
    return spans, strides, pads[:spatial], pads[spatial:]


def _slid(call: Call, source: Shape, kernel: Sequence[int], up: bool = False) -> Shape | None:
    """The sizes of what a window gives that slides over *source*."""
    spans, strides, before, after = _window(call, kernel, len(source))
    mode = call.op.attribute("auto_pad") if "auto_pad" in FLOAT_OPERATORS[call.op.name].attributes else "NOTSET"
    if mode.startswith("SAME"):
        return tuple(-(-extent // stride) for extent, stride in zip(source, strides, strict=True))
    rooms = [extent - span for extent, span in zip(source, spans, strict=True)]
    if mode == "NOTSET":
        rooms = [room + first + last for room, first, last in zip(rooms, before, after, strict=True)]
    require(all(room >= 0 for room in rooms), f"has a window of {spans} on {list(source)}")
    if up:  # the last window may be left out where it lies in the padding
        return None
    return tuple(room // stride + 1 for room, stride in zip(rooms, strides, strict=True))


def _conv(call: Call) -> _Shapes:
    x = call.rank(3)
    weights = call.shape(3 if call.op.name == "QLinearConv" else 1)
    groups = call.op.attribute("group")
    require(len(weights) == len(x), f"goes over {list(x)} with weights {list(weights)}")
    fits = weights[1] * groups == x[1] and weights[0] % groups == 0
    require(fits, f"has weights {list(weights)} in {groups} groups for {x[1]} channels")
    require(call.op.attribute("kernel_shape") in (None, weights[2:]), "has a kernel_shape that its weights do not have")
    bias = {"Conv": 2, "com.microsoft.FusedConv": 2, "QLinearConv": 8}.get(call.op.name, MAX_LIST)
    require(not call.has(bias) or call.shape(bias) == weights[:1], f"has no bias for each of {weights[0]} channels")
    extents = _slid(call, x[2:], weights[2:])
    return None if extents is None else [(x[0], weights[0], *extents)]


def _conv_transpose(call: Call) -> _Shapes:
    x, weights = call.rank(3), call.shape(1)
    require(len(weights) == len(x) and weights[0] == x[1], f"goes over {list(x)} with weights {list(weights)}")
    groups = call.op.attribute("group")
    require(x[1] % groups == 0, f"has {groups} groups for {x[1]} channels")
    require(call.op.attribute("kernel_shape") in (None, weights[2:]), "has a kernel_shape that its weights do not have")
    spans, strides, before, after = _window(call, weights[2:], len(x) - 2)
    extra = call.op.attribute("output_padding") or (0,) * len(spans)
    require(len(extra) == len(spans), "has output_padding of other axes")
    if call.op.attribute("output_shape") is not None:
        extents = tuple(call.op.attribute("output_shape"))[-len(spans) :]
    elif call.op.attribute("auto_pad").startswith("SAME"):
        extents = tuple(extent * stride for extent, stride in zip(x[2:], strides, strict=True))
    else:
        padded = [first + last for first, last in zip(before, after, strict=True)]
        padded = [0] * len(padded) if call.op.attribute("auto_pad") == "VALID" else padded
        sums = zip(x[2:], strides, spans, extra, padded, strict=True)
        extents = tuple((extent - 1) * stride + span + more - less for extent, stride, span, more, less in sums)
    return [(x[0], weights[1] * groups, *extents)]


def _pool(call: Call) -> _Shapes:
    x = call.rank(3)
    extents = _slid(call, x[2:], call.op.attribute("kernel_shape"), bool(call.op.attribute("ceil_mode")))
    return None if extents is None else [(*x[:2], *extents)] * 2


def _global_pool(call: Call) -> _Shapes:
    x = call.rank(3)
    return [(*x[:2], *[1] * (len(x) - 2))]


def _roi(call: Call) -> _Shapes:
    x, regions = call.rank(4), call.rank(2, 1)
    extents = (call.op.attribute("output_height"), call.op.attribute("output_width")) if call.op.name == "RoiAlign" else ()
    extents = extents or call.op.attribute("pooled_shape")
    require(len(extents) == 2, f"gives {list(extents)}")
    return [(regions[0], x[1], *extents)]


def _resize(call: Call) -> _Shapes:
    x = call.shape()
    listed = call.op.attribute("axes")
    axes = tuple(range(len(x))) if listed is None else call.axes(listed, len(x))
    policy = call.op.attribute("keep_aspect_ratio_policy") == "stretch"
    result = list(x)
    if call.has(3):
        sizes = call.numbers(3, fixed=True)
        if sizes is None or not policy:
            return None
        require(len(sizes) == len(axes), f"has {len(sizes)} sizes for {len(axes)} axes")
        for axis, size in zip(axes, sizes, strict=True):
            result[axis] = size
        return [tuple(result)]
    scales = call.constant(2)
    if scales is None:
        return None
    require(scales.size == len(axes) and scales.dtype.kind == "f", f"has {scales.size} scales for {len(axes)} axes")
    for axis, scale in zip(axes, scales.reshape(-1), strict=True):
        require(0 < float(scale) < MAX_STEP, f"has the scale {scale}")
        result[axis] = math.floor(float(np.float32(scale) * np.float32(x[axis])))
    return [tuple(result)]


def _grid(call: Call) -> _Shapes:
    x, grid = call.rank(3), call.rank(3, 1)
    require(len(x) == len(grid) and grid[-1] == len(x) - 2 and grid[0] == x[0], f"samples {list(x)} at {list(grid)}")
    return [(*x[:2], *grid[1:-1])]


def _reshape(call: Call) -> _Shapes:
    x, listed = call.shape(), call.numbers(1)
    if listed is None:
        return None
    wanted = list(listed)
    if not call.op.attribute("allowzero"):
        require(all(extent or axis < len(x) for axis, extent in enumerate(wanted)), f"keeps an axis that {list(x)} does not have")
        wanted = [extent or x[axis] for axis, extent in enumerate(wanted)]
    if wanted.count(-1) == 1:
        rest = -math.prod(wanted)
        wanted[wanted.index(-1)] = math.prod(x) // rest if rest else 0
    fits = all(extent >= 0 for extent in wanted) and math.prod(wanted) == math.prod(x)
    require(fits, f"cannot see {list(x)} as {list(listed)}")
    return [tuple(wanted)]


def _flatten(call: Call) -> _Shapes:
    x, axis = call.shape(), call.op.attribute("axis")
    require(-len(x) <= axis <= len(x), f"there is no axis {axis} among {len(x)}")
    axis = axis + len(x) if axis < 0 else axis
    return [(math.prod(x[:axis]), math.prod(x[axis:]))]


def _squeeze(call: Call) -> _Shapes:
    x = call.shape()
    if not call.has(1):
        return [tuple(extent for extent in x if extent != 1)]
    listed = call.numbers(1)
    if listed is None:
        return None
    axes = call.axes(listed, len(x))
    require(all(x[axis] == 1 for axis in axes), f"drops the axes {list(axes)} of {list(x)}")
    return [_without(x, axes, 0)]


def _unsqueeze(call: Call) -> _Shapes:
    x, listed = call.shape(), call.numbers(1)
    if listed is None:
        return None
    axes = call.axes(listed, len(x) + len(listed))
    rest = iter(x)
    return [tuple(1 if axis in axes else next(rest) for axis in range(len(x) + len(axes)))]


def _transpose(call: Call) -> _Shapes:
    x = call.shape()
    order = call.op.attribute("perm") or tuple(reversed(range(len(x))))
    require(sorted(order) == list(range(len(x))), f"has the order {list(order)} for {len(x)} axes")
    return [tuple(x[axis] for axis in order)]


def _expand(call: Call) -> _Shapes:
    wanted = call.numbers(1, fixed=True)
    if wanted is None:
        return None
    require(all(0 < extent <= MAX_EXTENT for extent in wanted), f"gives {list(wanted)}")
    return [_broadcast_shapes(call.shape(), wanted)]


def _tile(call: Call) -> _Shapes:
    x, repeats = call.shape(), call.numbers(1, fixed=True)
    if repeats is None:
        return None
    require(
        len(repeats) == len(x) and all(0 < times <= MAX_EXTENT for times in repeats), f"repeats {list(x)} {list(repeats)} times"
    )
    return [tuple(extent * times for extent, times in zip(x, repeats, strict=True))]


def _concat(call: Call) -> _Shapes:
    shapes = [value.shape for value in call.values if value is not None]
    first = shapes[0]
    axis = call.axis(call.op.attribute("axis"), len(first))
    for shape in shapes:
        fits = len(shape) == len(first) and _without(shape, [axis], 0) == _without(first, [axis], 0)
        require(fits, f"joins {list(first)} and {list(shape)} along axis {axis}")
    return [(*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])]


def _split(call: Call) -> _Shapes:
    x, count = call.rank(1), len(call.op.outputs)
    axis = call.axis(call.op.attribute("axis"), len(x))
    parts = call.numbers(1)
    if call.has(1) and parts is None:
        return None
    if parts is None:
        require(call.op.attribute("num_outputs") in (None, count), f"makes {count} parts, not {call.op.attribute('num_outputs')}")
        even = -(-x[axis] // count)
        parts = (*[even] * (count - 1), x[axis] - even * (count - 1))
    fits = len(parts) == count and sum(parts) == x[axis] and min(parts) > 0
    require(fits, f"makes {count} parts of the sizes {list(parts)} of {x[axis]}")
    return [(*x[:axis], part, *x[axis + 1 :]) for part in parts]


def _slice(call: Call) -> _Shapes:
    x = call.shape()
    given = [call.numbers(number) if call.has(number) else () for number in range(1, 5)]
    if any(entry is None for entry in given):
        return None
    starts, ends, axes, steps = (entry or () for entry in given)
    axes = call.axes(axes or range(len(starts)), len(x))
    steps = steps or (1,) * len(starts)
    fits = len(starts) == len(ends) == len(axes) == len(steps) and 0 not in steps
    require(fits, f"has {len(starts)} starts, {len(ends)} ends, {len(axes)} axes and the steps {list(steps)}")
    result = list(x)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        result[axis] = len(range(x[axis])[start:end:step])
    return [tuple(result)]


def _pad(call: Call) -> _Shapes:
    x, pads = call.shape(), call.numbers(1, fixed=True)
    if pads is None or (call.has(3) and call.numbers(3) is None):
        return None
    axes = call.axes(call.numbers(3) or (), len(x)) if call.has(3) else tuple(range(len(x)))
    require(len(pads) == 2 * len(axes), f"has {len(pads)} pads for {len(axes)} axes")
    require(all(abs(pad) <= MAX_EXTENT for pad in pads), f"has the pads {list(pads)}")
    result = list(x)
    for axis, before, after in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        result[axis] += before + after
    return [tuple(result)]


def _gather(call: Call) -> _Shapes:
    x = call.rank(1)
    axis = call.axis(call.op.attribute("axis"), len(x))
    return [(*x[:axis], *call.shape(1), *x[axis + 1 :])]


def _gather_nd(call: Call) -> _Shapes:
    x, indices, batch = call.rank(1), call.rank(1, 1), call.op.attribute("batch_dims")
    require(batch < min(len(x), len(indices)) and indices[-1] <= len(x) - batch, f"looks up {list(indices)} in {list(x)}")
    return [(*indices[:-1], *x[batch + indices[-1] :])]


def _one_hot(call: Call) -> _Shapes:
    x, depth = call.shape(), call.constant(1)
    if depth is None:
        return None
    axis = call.axis(call.op.attribute("axis"), len(x) + 1)
    extent = int(depth.reshape(-1)[0]) if depth.size == 1 else 0
    require(0 < extent <= MAX_EXTENT, "has no depth that makes sense")
    return [(*x[:axis], extent, *x[axis:])]


def _depth_to_space(call: Call) -> _Shapes:
    (count, channels, height, width), block = _image(call), call.op.attribute("blocksize")
    require(channels % block**2 == 0, f"makes blocks of {block} from {channels} channels")
    return [(count, channels // block**2, height * block, width * block)]


def _space_to_depth(call: Call) -> _Shapes:
    (count, channels, height, width), block = _image(call), call.op.attribute("blocksize")
    require(height % block == width % block == 0, f"makes blocks of {block} from {height} x {width}")
    return [(count, channels * block**2, height // block, width // block)]


def _image(call: Call) -> tuple[int, int, int, int]:
    shape = call.shape()
    require(len(shape) == 4, f"takes an image, got {list(shape)}")
    return shape  # type: ignore[return-value]


def _recurrent(call: Call) -> _Shapes:
    x, weights, recurrent = call.shape(), call.shape(1), call.shape(2)
    fits = len(x) == len(weights) == len(recurrent) == 3 and weights[2] == x[2] and weights[:2] == recurrent[:2]
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[call.op.name]
    directions, hidden = weights[0], recurrent[-1]
    fits = fits and weights[1] == gates * hidden and directions == (2 if call.op.attribute("direction") == "bidirectional" else 1)
    require(fits, f"goes over {list(x)} with weights {list(weights)} and {list(recurrent)}")
    require(call.op.attribute("hidden_size") in (None, hidden), f"has a hidden_size that is not {hidden}")
    if call.op.attribute("layout"):
        return [(x[0], x[1], directions, hidden), *[(x[0], directions, hidden)] * 2]
    return [(x[0], directions, x[1], hidden), *[(directions, x[1], hidden)] * 2]


def _einsum(call: Call) -> _Shapes:
    text = str(call.op.attribute("equation")).replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    require(len(terms) == len(call.values), f"has {len(terms)} terms for {len(call.values)} inputs")
    if "." in text:
        return None
    extents: dict[str, int] = {}
    for number, term in enumerate(terms):
        require(len(term) == len(call.shape(number)), f"names the axes '{term}' of {list(call.shape(number))}")
        for letter, extent in zip(term, call.shape(number), strict=True):
            require(extents.setdefault(letter, extent) in (extent, 1) or extent == 1, f"has two sizes for '{letter}'")
            extents[letter] = max(extents[letter], extent)
    result = right if arrow else "".join(sorted(letter for letter in extents if left.count(letter) == 1))
    require(all(letter in extents for letter in result), f"gives the axes '{result}'")
    return [tuple(extents[letter] for letter in result)]


def _matrices(call: Call) -> _Shapes:
    return [call.rank(2)[:-2]]


def _second(call: Call) -> _Shapes:
    return [call.shape(1)]


def _samples(call: Call) -> _Shapes:
    return [(call.rank(2)[0], call.op.attribute("sample_size"))]


def _shape_attribute(call: Call) -> _Shapes:
    return [tuple(call.op.attribute("shape"))]


SHAPES: Mapping[str, Callable[[Call], _Shapes]] = {
    "arg": _arg,
    "broadcast": _broadcast,
    "concat": _concat,
    "conv": _conv,
    "conv transpose": _conv_transpose,
    "declared": _declared,
    "depth to space": _depth_to_space,
    "einsum": _einsum,
    "expand": _expand,
    "first": _same,
    "flatten": _flatten,
    "gather": _gather,
    "gather nd": _gather_nd,
    "gemm": _gemm,
    "global pool": _global_pool,
    "grid": _grid,
    "matmul": _matmul,
    "matrices": _matrices,
    "one hot": _one_hot,
    "pad": _pad,
    "pool": _pool,
    "recurrent": _recurrent,
    "reduce": _reduce,
    "reshape": _reshape,
    "resize": _resize,
    "roi": _roi,
    "same": _same,
    "samples": _samples,
    "second": _second,
    "shape attribute": _shape_attribute,
    "slice": _slice,
    "space to depth": _space_to_depth,
    "split": _split,
    "squeeze": _squeeze,
    "tile": _tile,
    "topk": _topk,
    "transpose": _transpose,
    "unsqueeze": _unsqueeze,
}
"""The rules by name; each gives a shape for every result, None for one that it does not report, or None for all."""


MAX_OPERATORS = 4096
MAX_ATTRIBUTE_TEXT = 256

_REAL = "real"
_COMPUTED_IN = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32)
_PACKED = (DType.INT4, DType.UINT4)
_POSITIVE = {"kernel_shape", "strides", "dilations", "group", "blocksize", "num_groups", "size", "num_outputs", "sample_size"}
_POSITIVE |= {"output_height", "output_width", "pooled_shape", "hidden_size", "offset_group", "output_shape", "shape"}
_NATURAL = {"pads", "output_padding", "block_size", "batch_dims", "p"}
_PYTHON: Mapping[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,)}
_ONNX_TYPES = {1: _REAL, 10: _REAL, 11: _REAL, 16: _REAL, 9: "bool"} | dict(
    zip((2, 3, 4, 5, 6, 7, 12, 13), ("uint8", "int8", "uint16", "int16", "int32", "int64", "uint32", "uint64"), strict=True)
)
"""The element types that Cast and its kind may name, by ONNX's number."""


def _kind(dtype: str) -> str:
    """What a type is to an operator: all real numbers are one kind."""
    return _REAL if "float" in dtype else dtype


def check_float(
    op: Float, inputs: Mapping[str, TensorSpec], tensors: Mapping[str, TensorSpec], outputs: Sequence[str], contents: bool
) -> None:
    """Check a float layer; raises :class:`RuleBroken`.

    :param inputs: what the layer reads
    :param tensors: all tensors of the program
    :param outputs: what the layer makes
    :param contents: look at the values of weights too
    """
    require(op.compute in _COMPUTED_IN, f"no chip computes in {op.compute.value}")
    require(0 < len(op.operators) <= MAX_OPERATORS, f"{len(op.operators)} operators")
    known = {name: _tensor(spec) for name, spec in inputs.items()}
    for name, constant in op.constants.items():
        require(name and name not in known, f"the constant '{name[:64]}' is an input as well, or has no name")
        known[name] = _constant(name, constant, contents)
    for entry in op.operators:
        try:
            _check_operator(entry, known, tensors)
        except RuleBroken as refusal:
            raise RuleBroken(f"{entry.name[:64]} {refusal}") from None
    made = {name for entry in op.operators for name in entry.outputs}
    for name in outputs:
        require(name in made, f"none of its operators makes '{name[:64]}'")


def _tensor(spec: TensorSpec) -> Value:
    plain = spec.layout in (Layout.NCHW, Layout.PLAIN) and math.prod(spec.memory_shape) == spec.elements
    require(plain, f"tensor '{spec.name[:64]}' is not row-major")
    codes = spec.quantization is not None
    require(not codes or spec.dtype is DType.INT8, f"tensor '{spec.name[:64]}' is quantized, and not int8")
    require(spec.dtype not in _PACKED, f"tensor '{spec.name[:64]}' is {spec.dtype.value}")
    return Value(spec.shape, _kind(spec.dtype.value))


def _constant(name: str, constant: Constant, contents: bool) -> Value:
    value = constant.value
    if isinstance(constant, Weights):
        fits = value.dtype == np.uint16 if constant.bfloat16 else value.dtype.name in IMMEDIATE_TYPES
        require(fits, f"the constant '{name[:64]}' is {value.dtype}")
        require(value.ndim <= MAX_DIMENSIONS, f"the constant '{name[:64]}' has {value.ndim} axes")
    seen = contents or isinstance(constant, Immediate)
    return Value(value.shape, _kind(constant.dtype), value if seen else None, fixed=True)


def _check_operator(op: FloatOp, known: dict[str, Value], tensors: Mapping[str, TensorSpec]) -> None:
    signature = FLOAT_OPERATORS.get(op.name)
    require(signature is not None, "is not a float operator")
    assert signature is not None
    for what, count, (fewest, most) in (
        ("inputs", len(op.inputs), signature.inputs),
        ("outputs", len(op.outputs), signature.outputs),
    ):
        require(fewest <= count <= most, f"has {count} {what}, takes {fewest} to {most}")
    require(all(op.inputs[: signature.inputs[0]]), "lacks an input")
    require(any(op.outputs), "makes nothing")
    _attributes(op, signature.attributes)
    for name in op.inputs:
        require(not name or name in known, f"reads '{name[:64]}', which nothing makes")
    _codes(op, tensors)
    values = [known[name] if name else None for name in op.inputs]
    shapes = SHAPES[signature.shape](Call(op, values))
    for number, name in enumerate(op.outputs):
        if not name:
            continue
        require(name not in known, f"makes '{name[:64]}', which is there already")
        require(name in tensors, f"makes the unknown tensor '{name[:64]}'")
        made = _tensor(tensors[name])
        shape = shapes[number] if shapes is not None and number < len(shapes) else None
        require(shape is None or shape == made.shape, f"gives {list(shape or ())}, '{name[:64]}' is {list(made.shape)}")
        wanted = _result(op, signature.result, values) if number == 0 else ""
        require(wanted in ("", made.kind), f"gives {wanted} numbers, '{name[:64]}' is {tensors[name].dtype.value}")
        known[name] = made


def _codes(op: FloatOp, tensors: Mapping[str, TensorSpec]) -> None:
    """Only what makes numbers of quantized values reads a quantized tensor, and only what makes quantized values of numbers writes one."""
    for names, free in ((op.inputs, "DequantizeLinear"), (op.outputs, "QuantizeLinear")):
        for position, name in enumerate(names):
            coded = name in tensors and tensors[name].quantization is not None
            require(not coded or (op.name == free and position == 0), f"has '{name[:64]}', which is quantized")


def _attributes(op: FloatOp, rules: Mapping[str, AttributeRule]) -> None:
    for key, rule in rules.items():
        require(not rule.required or key in op.attributes, f"lacks the attribute '{key}'")
    for key, value in op.attributes.items():
        require(key in rules, f"has the unknown attribute '{key[:64]}'")
        rule = rules[key]
        listed = rule.kind.endswith("s")
        require(isinstance(value, tuple) is listed, f"has an attribute '{key}' that is not {rule.kind}")
        items = value if isinstance(value, tuple) else (value,)
        require(len(items) <= MAX_LIST, f"has an attribute '{key}' of {len(items)} entries")
        types = _PYTHON[rule.kind.removesuffix("s") if listed else rule.kind]
        for item in items:
            require(isinstance(item, types) and not isinstance(item, bool), f"has an attribute '{key}' that is not {rule.kind}")
            if isinstance(item, str):
                require(len(item) <= MAX_ATTRIBUTE_TEXT, f"has an attribute '{key}' of {len(item)} characters")
                require(not rule.choices or item in rule.choices, f"has {key} '{item[:64]}', not {' or '.join(rule.choices)}")
            require(not isinstance(item, float) or math.isfinite(item), f"has {key} {item}")
            if key in _POSITIVE or key in _NATURAL:
                require(int(key in _POSITIVE) <= int(item) <= MAX_STEP, f"has {key} {item}")


def _result(op: FloatOp, rule: str, values: Sequence[Value | None]) -> str:
    """The kind of the first result; empty where it is not reported."""
    if op.name in ("Cast", "BitCast"):
        kind = _ONNX_TYPES.get(op.attribute("to"), "")
        require(kind, f"to the element type {op.attribute('to')}")
        return kind
    if rule == "same":
        return values[0].kind if values and values[0] is not None else ""
    return rule
