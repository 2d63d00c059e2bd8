"""The work of single layers: padded multiply-accumulates, look-ups, bytes, and elements of slow operators.

This is the form that was fitted to int8 networks; :mod:`anynpu.chips.timing.layers` has that of float16. Nothing here is calibrated: the
numbers follow from shapes and from the catalogue (MAC array, buffer size). All functions are pure.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from ...program import Conv, Convert, ConvTranspose, Dense, Epilogue, Float, Layer, MatMul, Placement, Program, Slice, Table
from ...tensor import Affine, DType, Layout, TensorSpec
from .. import Chip
from .parameters import fuses_attention

# The MAC array and the on-chip buffer of a chip, for one type of element.


INPUT_LANES = 32
"""Input channels that the MAC array takes at once; the rest of its MACs are output channels."""


class MacArray:
    """The MAC array and the buffer of a chip, for one type."""

    def __init__(self, chip: Chip, dtype: str) -> None:
        rates = chip.macs_per_cycle
        int8 = rates["int8"]
        self.per_cycle = rates.get(dtype, int8 // 2 if dtype in ("int16", "float16") else int8)
        self.relative = self.per_cycle / int8
        self.lanes = max(self.per_cycle // INPUT_LANES, 1)
        self.half_buffer = chip.buffer_bytes / 2

    def padded(self, channels: int) -> int:
        """Output channels, padded to the array."""
        return up(channels, self.lanes)

    def repeated(self, read: float, weights: float) -> float:
        """Bytes that are read again, because neither the input nor the weights fit into the buffer as a whole."""
        inputs, parts = math.ceil(read / self.half_buffer), math.ceil(weights / self.half_buffer)
        return float(min(max(parts - 1, 0) * read, max(inputs - 1, 0) * weights))


def peak_macs(chip: Chip, dtype: str) -> int:
    """Multiply-accumulates of one cycle of one core."""
    return MacArray(chip, dtype).per_cycle


def relative_rate(chip: Chip, dtype: str) -> float:
    """How fast the MAC array is with a type, int8 being 1."""
    return MacArray(chip, dtype).relative


def up(value: float, multiple: int) -> int:
    """The next multiple.

    >>> up(17, 16)
    32
    """
    return -(-int(value) // multiple) * multiple


def splits_blocks(before: tuple[int, ...], after: tuple[int, ...], block: int) -> bool:
    """Whether a Reshape splits the channels of an image into parts that are no whole blocks: every element has to move.

    >>> splits_blocks((1, 51, 8400), (1, 17, 3, 8400), 16), splits_blocks((1, 256, 400), (1, 2, 128, 400), 16)
    (True, False)
    """
    if len(before) < 3 or len(after) < 4 or before[0] != after[0] or before[1] != after[1] * after[2] or 1 in after[1:3]:
        return False
    return after[2] % block != 0 and math.prod(before[2:]) == math.prod(after[3:]) > 1


# What each layer makes the NPU do, in numbers that do not depend on how fast the chip is.
#
# A layer is one or more *tasks*: most are one; a table that is more than one activation needs a second pass over the result, and a tensor
# that leaves the NPU's channel blocks needs a change of layout. :mod:`anynpu.chips.timing.model` turns tasks into time.


@dataclass(frozen=True)
class Task:
    """One pass of the NPU (or of the CPU).

    :ivar macs: multiply-accumulates, padded to the MAC array
    :ivar atoms: groups of 32 bytes of results that go through a look-up table
    :ivar read: bytes of activations that are read
    :ivar weights: bytes of weights that are read
    :ivar again: bytes that are read more than once because the buffer is small
    :ivar written: bytes that are written
    :ivar slow: elements that a slow operator of an int8 program handles
    :ivar cpu: elements that the CPU handles
    :ivar calls: hand-overs to the CPU and back
    :ivar cpu_macs: multiply-accumulates of a convolution on the CPU
    :ivar normalised: elements of a normalization
    :ivar moved: elements that a transpose or a reduction touches
    :ivar scattered: elements whose channels a Reshape tears out of their blocks
    :ivar heads: products of queries and keys of an attention layer
    :ivar scores: elements of its score matrices; more where a matrix does not fit into the buffer
    """

    macs: float = 0.0
    atoms: float = 0.0
    read: float = 0.0
    weights: float = 0.0
    written: float = 0.0
    slow: float = 0.0
    cpu: float = 0.0
    again: float = 0.0
    calls: float = 0.0
    cpu_macs: float = 0.0
    normalised: float = 0.0
    moved: float = 0.0
    scattered: float = 0.0
    heads: float = 0.0
    scores: float = 0.0


@dataclass(frozen=True)
class LayerWork:
    """A layer's tasks; none where the layer costs nothing (it is fused, or only an address).

    :ivar kind: what perf tables print
    :ivar macs: multiply-accumulates without padding
    :ivar splits: one job shares this layer among several cores
    :ivar does: what it mainly does, by the name of an operator
    """

    name: str
    kind: str
    tasks: tuple[Task, ...]
    macs: int = 0
    splits: bool = False
    does: str = ""


@dataclass(frozen=True)
class ProgramWork:
    """The work of all layers, in their order.

    :ivar dtype: what the NPU computes in: ``int8``, ``int16`` or ``float16``
    :ivar own_weights: its weights have a bandwidth of their own
    """

    chip: str
    dtype: str
    layers: tuple[LayerWork, ...]
    weight_bytes: int = 0
    memory_bytes: int = 0
    own_weights: bool = False


_FIRST_LAYER_CHANNELS = 8
_FEW_CHANNELS = 4
_DEPTHWISE_SHARE = 16
"""A depthwise convolution uses one sixteenth of the MACs."""

_RESULT_BYTES_PER_CYCLE = 8
_BLOCK_BYTES = 16
"""Channels are stored in blocks of this many bytes."""

_ATOM_BYTES = 32
LINEAR_ACTIVATIONS = ("", "Relu", "Clip", "LeakyRelu", "PRelu")
_SLOW = (
    "Softmax",
    "LogSoftmax",
    "Transpose",
    "LayerNormalization",
    "InstanceNormalization",
    "GlobalAveragePool",
    "GlobalMaxPool",
)
FREE = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Cast")
"""Only an address, or part of what comes before and after."""

_CONVOLUTIONS = ("Conv", "ConvTranspose", "ConvInteger")
_ON_ROWS = ("Softmax", "LogSoftmax", "MatMul", "LayerNormalization")
_EXPONENTIAL = ("Softmax", "LogSoftmax", "Exp", "Sigmoid", "Tanh", "Erf", "Gelu", "Softplus", "Mish", "Swish", "LSTM", "GRU")
_EXPONENTIAL_COST = 20
"""What an exponential costs on a CPU in relation to a copy."""

_COMPOSED = "Lut"
"""The label of an activation that is no known function but a chain of several."""


class View:
    """A program, seen by the NPU of one chip."""

    def __init__(self, program: Program, chip: Chip, dtype: str = "") -> None:
        self._program = program
        self._chip = chip
        self.dtype = dtype or computed_in(program)
        self._width = 1 if self.dtype == "int8" else 2
        self._array = MacArray(chip, self.dtype)
        self._relaid = _relaid(program)
        self._scattered = _scattered(program, _BLOCK_BYTES // self._width)

    @cached_property
    def _half(self) -> View:
        """The same program, all of it in float16."""
        return View(self._program, self._chip, DType.FLOAT16.value)

    def _half_tasks(self, layer: Layer) -> tuple[Task, ...]:
        """A float16 product in an integer program: twice the bytes, and MACs counted as the integer ones that take as long."""
        slower = self._array.relative / self._half._array.relative
        return tuple(replace(task, macs=task.macs * slower) for task in self._half._tasks(layer))

    def layer(self, layer: Layer) -> LayerWork:
        half = isinstance(layer.op, Float) and layer.macs > 0 and layer.placement is Placement.NPU
        tasks = self._half_tasks(layer) if half and self._width == 1 else self._tasks(layer)
        if tasks and layer.placement is Placement.NPU:
            for name in layer.outputs:
                if name in self._relaid:
                    spec = self._program.tensors[name]
                    moved = self._bytes(spec)
                    tasks = (*tasks, Task(read=moved, written=moved, slow=spec.elements))
                if name in self._scattered:
                    tasks = (*tasks, Task(scattered=self._program.tensors[name].elements))
        return LayerWork(layer.name, layer.kind, tasks, layer.macs, self._splits(layer), layer.does)

    def _tasks(self, layer: Layer) -> tuple[Task, ...]:
        inputs, outputs = self._specs(layer)
        if isinstance(layer.op, Convert) or layer.does in FREE:
            return ()
        elements = max(sum(spec.elements for spec in inputs), sum(spec.elements for spec in outputs))
        count = self._row_bytes if layer.does in _ON_ROWS else self._bytes
        read, written = (sum(map(count, specs)) for specs in (inputs, outputs))
        if layer.placement is Placement.CPU:
            cost = _EXPONENTIAL_COST if layer.does in _EXPONENTIAL else 1
            cpu_macs = float(layer.macs if layer.does in _CONVOLUTIONS and len(outputs[0].shape) == 4 else 0)
            return (Task(read=read, weights=layer.weight_bytes, written=written, cpu=elements * cost, cpu_macs=cpu_macs),)
        return self._npu_tasks(layer)

    def _npu_tasks(self, layer: Layer) -> tuple[Task, ...]:
        """The tasks of a layer on the NPU."""
        inputs, outputs = self._specs(layer)
        elements = max(sum(spec.elements for spec in inputs), sum(spec.elements for spec in outputs))
        count = self._row_bytes if layer.does in _ON_ROWS else self._bytes
        read, written = (sum(map(count, specs)) for specs in (inputs, outputs))
        if isinstance(layer.op, (Conv, ConvTranspose)) or layer.operator in _CONVOLUTIONS:
            return self._convolution(layer)
        if layer.macs:
            return self._product(layer)
        if layer.does in _SLOW or layer.operator.startswith("Reduce"):
            return (Task(read=read, written=written, slow=elements),)
        if isinstance(layer.op, Slice) or layer.operator in ("Slice", "Split"):
            return self._slice(layer)
        looked_up = isinstance(layer.op, Table) or _has_table(layer.op)
        atoms = sum(spec.elements for spec in outputs) * self._width / _ATOM_BYTES if looked_up else 0.0
        return (Task(atoms=atoms, read=read, written=written),)

    def _specs(self, layer: Layer) -> tuple[list[TensorSpec], list[TensorSpec]]:
        tensors = self._program.tensors
        return [tensors[name] for name in layer.inputs], [tensors[name] for name in layer.outputs]

    def _convolution(self, layer: Layer) -> tuple[Task, ...]:
        inputs, outputs = self._specs(layer)
        result = outputs[0]
        (pixels_in, channels_in), (pixels_out, channels_out) = _image(inputs[0]), _image(result)
        pixels = pixels_in if _spreads(layer) else pixels_out
        taps, depthwise = _kernel(layer, pixels, channels_in, channels_out)
        if self._width == 1 and taps == channels_out == 1 < channels_in and layer.activation == "Clip":
            # The sum of a detector's scores, which the compiler writes as a convolution: numbers state that the chip reduces, then clips.
            read, written = self._bytes(inputs[0]), self._bytes(result)
            return Task(read=read, written=written, slow=inputs[0].elements), Task(read=written, written=written)
        groups = _group_sizes(result)
        if len(groups) > 1 and self._looks_up(layer):
            # a table serves one group: the chip goes over the layer once for each
            split = [self._group_task(layer, size, taps, depthwise=depthwise) for size in groups]
            second = Task(read=self._bytes(result), written=self._bytes(result))
            return (*split, second) if layer.activation == _COMPOSED else tuple(split)
        channels_in, channels_out = self._blocked(inputs[0], channels_in), self._blocked(result, channels_out)
        padded = self._array.padded(channels_out)
        macs, weights = self._array_work(pixels, channels_in, channels_out, taps, depthwise=depthwise)
        read, written = sum(map(self._bytes, inputs)), self._bytes(result)
        macs = max(macs, written / _RESULT_BYTES_PER_CYCLE * self._array.per_cycle)
        atoms = pixels_out * padded * self._width / _ATOM_BYTES if self._looks_up(layer) else 0.0
        repeated = self._array.repeated(self._bytes(inputs[0]), weights)
        first = Task(macs=macs, atoms=atoms, read=read, weights=weights, again=repeated, written=written)
        if layer.activation == _COMPOSED:
            return first, Task(read=written, written=written)
        return (first,)

    def _array_work(self, pixels: int, channels_in: int, channels_out: int, taps: int, *, depthwise: bool) -> tuple[float, float]:
        """Padded multiply-accumulates of a convolution, and bytes of its weights."""
        padded = self._array.padded(channels_out)
        if depthwise:
            macs = float(pixels * up(channels_out, INPUT_LANES) * taps * _DEPTHWISE_SHARE)
            return macs, float(padded * taps * self._width)
        lanes = _FIRST_LAYER_CHANNELS if channels_in <= _FEW_CHANNELS else up(channels_in, INPUT_LANES)
        return float(pixels * padded * lanes * taps), float(padded * up(channels_in, INPUT_LANES) * taps * self._width)

    def _group_task(self, layer: Layer, size: int, taps: int, *, depthwise: bool) -> Task:
        """The part of a convolution that makes one group of channels, and puts it through the group's table."""
        inputs, outputs = self._specs(layer)
        (pixels_in, channels_in), (pixels_out, _) = _image(inputs[0]), _image(outputs[0])
        pixels = pixels_in if _spreads(layer) else pixels_out
        whole_in = self._blocked(inputs[0], channels_in)
        macs, weights = self._array_work(pixels, size if depthwise else whole_in, size, taps, depthwise=depthwise)
        written = float(pixels_out * up(size * self._width, _BLOCK_BYTES))
        own = float(pixels_in * up(size * self._width, _BLOCK_BYTES)) if depthwise else self._bytes(inputs[0])
        read = own + sum(map(self._bytes, inputs[1:]))
        macs = max(macs, written / _RESULT_BYTES_PER_CYCLE * self._array.per_cycle)
        atoms = pixels_out * self._array.padded(size) * self._width / _ATOM_BYTES
        return Task(macs=macs, atoms=atoms, read=read, weights=weights, again=self._array.repeated(own, weights), written=written)

    def _blocked(self, spec: TensorSpec, channels: int) -> int:
        """Channels of an image, each group of its own scale in whole blocks."""
        groups = _group_sizes(spec)
        block = _BLOCK_BYTES // self._width
        return sum(up(size, block) for size in groups) if len(groups) > 1 else channels

    def _product(self, layer: Layer) -> tuple[Task, ...]:
        """Fully connected layers, products of activations, recurrent layers."""
        inputs, outputs = self._specs(layer)
        read, written = sum(map(self._row_bytes, inputs)), sum(map(self._row_bytes, outputs))
        if isinstance(layer.op, MatMul) or (layer.operator == "MatMul" and len(inputs) > 1):
            n = outputs[0].shape[-1] if outputs[0].shape else 1
            k = max(layer.macs // max(outputs[0].elements, 1), 1)
            macs = layer.macs / (n * k) * self._array.padded(n) * up(k, INPUT_LANES)
            return (Task(macs=macs, read=read, written=written),)
        n, k = _matrix(layer, outputs[0])
        rows = max(layer.macs // (n * k), 1)
        matrix = self._array.padded(n) * up(k, INPUT_LANES)
        atoms = rows * self._array.padded(n) * self._width / _ATOM_BYTES if self._looks_up(layer) else 0.0
        weights = float(matrix * self._width)
        # Numbers state that the input of a large float16 product is read again for each part of the weights; int8 ones were not fitted so.
        again = self._array.repeated(read, weights) if self._width == 2 else 0.0
        return (Task(macs=rows * matrix, atoms=atoms, read=read, weights=weights, again=again, written=written),)

    def _slice(self, layer: Layer) -> tuple[Task, ...]:
        """Whole blocks of channels are but an address in the NPU's layout; anything else is a copy."""
        _, outputs = self._specs(layer)
        if self._in_blocks(layer):
            return ()
        written = sum(map(self._bytes, outputs))
        return (Task(read=written, written=written),)

    def _in_blocks(self, layer: Layer) -> bool:
        inputs, outputs = self._specs(layer)
        source = inputs[0]
        rank = len(source.shape)
        if rank not in (3, 4) or any(
            spec.shape[:1] != source.shape[:1] or spec.shape[2:] != source.shape[2:] for spec in outputs
        ):
            return False
        block = _BLOCK_BYTES // self._width
        starts = [0] * len(outputs)
        if isinstance(layer.op, Slice):
            axis = rank - 1 if source.layout is Layout.NHWC else 1
            starts = [start[axis] for start in layer.op.starts]
        return all(value % block == 0 for value in (*starts, *(spec.shape[1] for spec in outputs)))

    def _looks_up(self, layer: Layer) -> bool:
        if _has_epilogue(layer.op):
            return _has_table(layer.op)
        return layer.operator != "" and layer.activation not in LINEAR_ACTIVATIONS

    def _bytes(self, spec: TensorSpec) -> float:
        """Bytes in the NPU's layout: channels in blocks, except for images that come in and for mere vectors."""
        if spec.dtype not in (DType.INT8, DType.INT16, DType.UINT8, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32):
            return float(spec.nbytes)
        pixels, channels = _extents(spec)
        if pixels == 1 or (spec.name in self._program.inputs and channels <= _FEW_CHANNELS):
            return float(pixels * channels * self._width)
        return float(pixels * up(self._blocked(spec, channels) * self._width, _BLOCK_BYTES))

    def _row_bytes(self, spec: TensorSpec) -> float:
        """Bytes of a matrix, or of several: the blocks lie along the rows."""
        if not spec.dtype.is_float and spec.dtype not in (DType.INT8, DType.INT16):
            return float(spec.nbytes)
        columns = spec.shape[-1] if spec.shape else 1
        rows = spec.elements // max(columns, 1)
        return float(rows * (up(columns * self._width, _BLOCK_BYTES) if rows > 1 else columns * self._width))

    def _splits(self, layer: Layer) -> bool:
        if layer.placement is Placement.CPU or not self._chip.multicore_operators:
            return False
        allowed = self._chip.multicore_activations
        return layer.operator in self._chip.multicore_operators and (not layer.activation or layer.activation in allowed)


def computed_in(program: Program) -> str:
    """What the NPU computes in: the type of the quantized values, float16 where no layer has quantized values."""
    for layer in program.layers:
        for name in (*layer.inputs, *layer.outputs):
            dtype = program.tensors[name].dtype
            if dtype in (DType.INT8, DType.INT16):
                return str(dtype.value)
    return str(DType.FLOAT16.value)


def _relaid(program: Program) -> set[str]:
    """Images that are also read as plain rows: here that is a view, on the chip it leaves the channel blocks."""
    names: set[str] = set()
    for view, owner in program.views.items():
        spec, source = program.tensors[view], program.tensors[owner]
        image = source.layout is Layout.NHWC and len(source.shape) == 4 and math.prod(source.shape[2:]) > 1
        if image and spec.layout is not Layout.NHWC:
            names.add(owner)
    return names


def _scattered(program: Program, block: int) -> set[str]:
    """Tensors that are also read with their channels split inside a block: the key points of pose networks."""
    pairs = [(view, owner) for view, owner in program.views.items() if owner not in program.inputs]
    shapes = program.tensors
    return {owner for view, owner in pairs if splits_blocks(shapes[owner].shape, shapes[view].shape, block)}


def _extents(spec: TensorSpec) -> tuple[int, int]:
    """Pixels (all axes but the channels) and channels."""
    shape = spec.shape
    if not shape:
        return 1, 1
    if len(shape) >= 3 and spec.layout is not Layout.PLAIN:
        return math.prod(shape[2:]) * shape[0], shape[1]
    return math.prod(shape[:-1]), shape[-1]


def _image(spec: TensorSpec) -> tuple[int, int]:
    """Pixels and channels of what a convolution reads or writes: its second axis is always the channels."""
    count, channels, *spatial = spec.shape
    return count * math.prod(spatial), channels


def _group_sizes(spec: TensorSpec) -> list[int]:
    """Channels of each group that has a scale of its own; a group whose channels lie apart counts once."""
    quantization = spec.quantization
    if not isinstance(quantization, Affine) or quantization.is_per_tensor:
        return []
    sizes: dict[tuple[float, int], int] = {}
    for scale, zero, size in zip(quantization.scales, quantization.zero_points, quantization.group_sizes, strict=True):
        sizes[scale, zero] = sizes.get((scale, zero), 0) + size
    return list(sizes.values())


def _spreads(layer: Layer) -> bool:
    """Whether a convolution is a transposed one: it does its work for each pixel that it reads."""
    return isinstance(layer.op, ConvTranspose) or layer.operator == "ConvTranspose"


def _kernel(layer: Layer, pixels: int, channels_in: int, channels_out: int) -> tuple[int, bool]:
    """Elements of the kernel, and whether the convolution is depthwise."""
    if isinstance(layer.op, (Conv, ConvTranspose)):
        _, height, width, per_group = layer.op.weights.shape
        return height * width, layer.op.groups > 1 and per_group == 1
    inner = max(layer.macs // max(pixels * channels_out, 1), 1)  # a float layer: kernel elements times channels in a group
    if channels_in > 1 and inner % channels_in:
        return inner, channels_in == channels_out
    return max(inner // channels_in, 1), False


def _matrix(layer: Layer, result: TensorSpec) -> tuple[int, int]:
    """Rows and columns of the weights of a fully connected layer."""
    if isinstance(layer.op, Dense):
        n, k = layer.op.weights.shape
        return int(n), int(k)
    n = result.shape[-1] if result.shape else 1
    return n, max(layer.macs // max(result.elements, 1), 1)


def _has_epilogue(op: object) -> bool:
    return isinstance(getattr(op, "epilogue", None), Epilogue)


def _has_table(op: object) -> bool:
    epilogue = getattr(op, "epilogue", None)
    return isinstance(epilogue, Epilogue) and epilogue.table is not None


# Layers of a program that the chip does as one: attention, normalizations, and what follows a product.
#
# Exporters write a LayerNormalization as seven operators, GELU as five, and attention as two products with transposes, a scale, a
# mask and a Softmax between them. They are found by what reads what, not by names or by their order. A block has the indices of its
# layers; the first of them in the program gets all of its work, the others cost nothing.
#
# Everything here is a pure function of a program.


_VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Cast", "Identity", "Dropout", "Quantize", "Dequantize")
_BETWEEN = (*_VIEWS, "Add", "Mul", "Div", "Sub", "Where", "Clip", "Min", "Max", "Lut")
"""What stands between the scores and the Softmax: a scale, a mask, a bound."""

_AROUND = (*_VIEWS, "Transpose", "Mul", "Div", "Expand", "Tile")
"""What brings queries, keys and values to their heads, and the result back."""

_ACTIVATIONS = (
    "Gelu",
    "Lut",
    "Relu",
    "Clip",
    "LeakyRelu",
    "Sigmoid",
    "Tanh",
    "HardSwish",
    "HardSigmoid",
    "Silu",
    "Swish",
    "Mish",
)
_PRODUCTS = ("Gemm", "Conv", "ConvTranspose", "MatMul")
_MAX_STEPS = 12
_HALF_BLOCK = 8
"""Channels of a block in float16."""


class BlockKind(enum.Enum):
    """What a block is."""

    ATTENTION = "attention"
    NORMALISATION = "normalisation"
    ACTIVATION = "activation"
    PRODUCT = "product"


@dataclass(frozen=True)
class Block:
    """Layers that are one.

    :ivar members: indices of its layers, all of them
    :ivar first: the layer that gets its work
    :ivar heads: attention: products of queries and keys
    :ivar rows: attention: queries of a head
    :ivar columns: attention: keys of a head
    :ivar depth: attention: elements of a query
    :ivar moved: attention: elements that its transposes move
    :ivar elements: of its input
    :ivar added: product: the tensor that is added to its result
    :ivar activation: product: what its result goes through
    :ivar result: the tensor that it makes
    """

    kind: BlockKind
    members: tuple[int, ...]
    first: int
    heads: int = 0
    rows: int = 0
    columns: int = 0
    depth: int = 0
    moved: int = 0
    elements: int = 0
    added: str = ""
    activation: str = ""
    result: str = ""


@dataclass(frozen=True)
class Flow:
    """Who makes and who reads each tensor; views count as the tensor that they show."""

    program: Program
    makers: Mapping[str, int] = field(default_factory=dict)
    readers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program) -> Flow:
        """The flow of a program."""
        makers: dict[str, int] = {}
        readers: dict[str, list[int]] = {}
        for index, layer in enumerate(program.layers):
            for name in layer.outputs:
                makers.setdefault(_owner(program, name), index)
            for name in layer.inputs:
                readers.setdefault(_owner(program, name), []).append(index)
        return cls(program, makers, {name: tuple(found) for name, found in readers.items()})

    def layer(self, index: int) -> Layer:
        return self.program.layers[index]

    def above(self, index: int) -> list[int]:
        """The layers that make what a layer reads."""
        names = (_owner(self.program, name) for name in self.layer(index).inputs)
        return [self.makers[name] for name in names if name in self.makers and self.makers[name] < index]

    def below(self, index: int) -> list[int]:
        """The layers that read what a layer makes."""
        found: list[int] = []
        for name in self.layer(index).outputs:
            found += [reader for reader in self.readers.get(_owner(self.program, name), ()) if reader > index]
        return sorted(set(found))

    def only_below(self, index: int) -> int | None:
        """The one layer that reads what a layer makes; None if there are several, or if it leaves the program."""
        outputs = {_owner(self.program, name) for name in self.program.outputs}
        if any(_owner(self.program, name) in outputs for name in self.layer(index).outputs):
            return None
        found = self.below(index)
        return found[0] if len(found) == 1 else None

    def elements(self, names: Iterable[str]) -> int:
        return sum(self.program.tensors[name].elements for name in names)


def find_blocks(program: Program, *, attention: bool = True) -> dict[int, Block]:
    """The blocks of a program by the indices of all their layers; no layer is in two.

    :param attention: whether attention is looked for
    """
    flow = Flow.of(program)
    found: dict[int, Block] = {}

    def keep(block: Block | None) -> None:
        if block is not None and not any(index in found for index in block.members):
            found.update(dict.fromkeys(block.members, block))

    for index, layer in enumerate(program.layers):
        if layer.does == "Softmax" and attention:
            keep(_attention(flow, index))
        elif layer.does == "Attention" and attention:
            keep(_attention_operator(flow, index))
        elif layer.does == "Sqrt":
            keep(_normalisation(flow, index))
        elif layer.does == "Erf":
            keep(_gelu(flow, index))
    for index, layer in enumerate(program.layers):
        if layer.does in _PRODUCTS and layer.macs and index not in found:
            keep(_product(flow, index, found))
    return found


def _owner(program: Program, name: str) -> str:
    return program.views.get(name, name)


def _is_activation_product(flow: Flow, index: int) -> bool:
    """Whether a layer multiplies two activations."""
    layer = flow.layer(index)
    return layer.does == "MatMul" and layer.macs > 0 and len(layer.inputs) > 1


def _attention(flow: Flow, softmax: int) -> Block | None:
    """The attention around a Softmax: scores above it, the product with the values below."""
    members = {softmax}
    scores = _walk_up(flow, softmax, _BETWEEN, members)
    if scores is None:
        return None
    values, index = None, softmax
    for _ in range(_MAX_STEPS):
        below = flow.only_below(index)
        if below is None:
            return None
        members.add(below)
        if _is_activation_product(flow, below):
            values = below
            break
        if flow.layer(below).does not in _BETWEEN:
            return None
        index = below
    if values is None:
        return None
    tensors = flow.program.tensors
    shape = tensors[flow.layer(scores).outputs[0]].shape
    if len(shape) < 2:
        return None
    heads = max(tensors[flow.layer(scores).outputs[0]].elements // max(shape[-1] * shape[-2], 1), 1)
    depth = max(flow.layer(scores).macs // max(heads * shape[-1] * shape[-2], 1), 1)
    moves = _moves(flow, (scores, values), members)
    return Block(
        BlockKind.ATTENTION,
        tuple(sorted(members)),
        scores,
        heads,
        shape[-2],
        shape[-1],
        depth,
        moves,
        flow.elements(flow.layer(scores).inputs),
        result=flow.layer(values).outputs[0],
    )


def _attention_operator(flow: Flow, index: int) -> Block | None:
    """The operator of that name: queries, keys and values with the heads as an axis, or beside each other."""
    layer = flow.layer(index)
    queries, keys = (flow.program.tensors[name].shape for name in layer.inputs[:2])
    if len(queries) < 3 or len(keys) < 3 or not layer.macs:
        return None
    rows, columns = queries[-2], keys[-2]
    heads = queries[0] * queries[1] if len(queries) == 4 else queries[0]
    depth = queries[-1]
    elements = flow.elements(layer.inputs[:3])
    return Block(BlockKind.ATTENTION, (index,), index, heads, rows, columns, depth, 0, elements, result=layer.outputs[0])


def _walk_up(flow: Flow, index: int, through: Collection[str], members: set[int]) -> int | None:
    """The product of activations above a layer, reached through layers with no other reader."""
    for _ in range(_MAX_STEPS):
        candidates = [maker for maker in flow.above(index) if flow.only_below(maker) == index]
        product = next((maker for maker in candidates if _is_activation_product(flow, maker)), None)
        if product is not None:
            members.add(product)
            return product
        step = next((maker for maker in candidates if flow.layer(maker).does in through), None)
        if step is None:
            return None
        members.add(step)
        index = step
    return None


def _moves(flow: Flow, products: tuple[int, int], members: set[int]) -> int:
    """Takes the transposes before and after attention into *members*; the elements that they move."""
    moved = 0
    for product in products:
        for maker in flow.above(product):
            index: int | None = maker
            for _ in range(_MAX_STEPS):
                if index is None or index in members or flow.layer(index).does not in _AROUND:
                    break
                if not set(flow.below(index)) <= members:
                    break
                members.add(index)
                if flow.layer(index).does == "Transpose":
                    moved += flow.elements(flow.layer(index).outputs)
                above = flow.above(index)
                index = above[0] if len(above) == 1 else None
    index = flow.only_below(products[1])
    while index is not None and flow.layer(index).does in (*_VIEWS, "Transpose"):
        members.add(index)
        if flow.layer(index).does == "Transpose":
            moved += flow.elements(flow.layer(index).outputs)
        index = flow.only_below(index)
    return moved


def _normalisation(flow: Flow, root: int) -> Block | None:
    """The normalization around a square root: mean of squares above it, a division below."""
    members = {root}
    index = root
    reduced = False
    for _ in range(_MAX_STEPS):
        above = [maker for maker in flow.above(index) if maker not in members]
        if not above:
            break
        name = flow.layer(above[0]).does
        if name == "ReduceMean" and not reduced:
            reduced = True
        elif not (name == "Add" and not reduced) and not (name in ("Pow", "Mul") and reduced):
            break
        index = above[0]
        members.add(index)
    if not reduced:
        return None
    for maker in list(flow.above(index)):
        if flow.layer(maker).does == "Sub":
            members.add(maker)
            members.update(mean for mean in flow.above(maker) if flow.layer(mean).does == "ReduceMean")
    members |= _steps_below(flow, root, ("Div", "Reciprocal", "Mul", "Add"), members)
    first = min(members)
    widest = max(flow.elements(flow.layer(member).inputs[:1]) for member in members)
    return Block(
        BlockKind.NORMALISATION, tuple(sorted(members)), first, elements=widest, result=flow.layer(max(members)).outputs[0]
    )


def _steps_below(flow: Flow, index: int, names: Collection[str], inside: set[int]) -> set[int]:
    """Layers below one that are of these kinds and read nothing but constants and the block's own tensors; at most four."""
    found: set[int] = set()
    own = set(inside)
    for _ in range(4):
        below = flow.only_below(index)
        if below is None or flow.layer(below).does not in names:
            break
        if found and any(maker not in own | found for maker in flow.above(below)):
            break
        found.add(below)
        index = below
    return found


def _gelu(flow: Flow, erf: int) -> Block | None:
    """GELU that was unrolled: x / sqrt(2), Erf, + 1, * x, / 2."""
    members = {erf}
    above = flow.above(erf)
    if len(above) == 1 and flow.layer(above[0]).does in ("Div", "Mul") and len(flow.layer(above[0]).inputs) == 1:
        members.add(above[0])
    index = erf
    for _ in range(3):
        below = flow.only_below(index)
        if below is None or flow.layer(below).does not in ("Add", "Mul"):
            break
        members.add(below)
        index = below
    if len(members) < 3:
        return None
    elements = flow.elements(flow.layer(erf).outputs)
    return Block(
        BlockKind.ACTIVATION, tuple(sorted(members)), min(members), elements=elements, result=flow.layer(index).outputs[0]
    )


def _product(flow: Flow, product: int, taken: Mapping[int, Block]) -> Block | None:
    """A product with weights, with the activation or the residual addition that follows it, perhaps behind a Reshape."""
    layer = flow.layer(product)
    if _is_activation_product(flow, product):
        return None
    members = {product}
    index, added, activation = product, "", ""
    result = layer.outputs[0]
    for _ in range(_MAX_STEPS):
        below = flow.only_below(index)
        if below is None or below in taken:
            break
        following = flow.layer(below)
        if following.does in _VIEWS:
            shapes = [flow.program.tensors[names[0]].shape for names in (following.inputs, following.outputs)]
            if splits_blocks(shapes[0], shapes[1], _HALF_BLOCK):
                break
            members.add(below)
            index = below
            continue
        if following.does == "Add" and not added and not activation and not layer.activation and len(following.inputs) == 2:
            counts = {flow.program.tensors[name].elements for name in (*following.inputs, *following.outputs)}
            if len(counts) != 1:
                break
            mine = {_owner(flow.program, name) for name in flow.layer(index).outputs}
            added = next((name for name in following.inputs if _owner(flow.program, name) not in mine), "")
            if not added:
                break
            activation = following.activation
        elif following.does in _ACTIVATIONS and not activation and not layer.activation and len(following.inputs) == 1:
            activation = following.does
        else:
            break
        members.add(below)
        result = following.outputs[0]
        index = below
    if not added and not activation:
        return None
    return Block(BlockKind.PRODUCT, tuple(sorted(members)), product, added=added, activation=activation, result=result)


# The work of single layers in float16: products with weights of a bandwidth of their own, attention as one layer, layers on the CPU.
#
# The form follows public numbers of single float16 layers and networks. What it adds to :mod:`anynpu.chips.timing.layers`:
#
# - attention is one layer where the chip has such an operator, and a chain on the CPU where it has none;
# - normalizations, transposes and reductions cost time for each element, and never less than a layer's floor;
# - an activation or a residual addition behind a product belongs to it, also behind a Reshape;
# - a layer on the CPU costs a hand-over, time for each element, and for each multiply-accumulate of a convolution.


_NORMALISATIONS = (
    "LayerNormalization",
    "InstanceNormalization",
    "GroupNormalization",
    "RMSNormalization",
    "MeanVarianceNormalization",
    "LpNormalization",
)
_POOLS = ("MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool")
_POOL_SHARE = 0.25
"""What an element of a pooling window's input costs in relation to one of a transpose."""

_CPU_SCORE = 30.0
"""What a score of attention costs on the CPU, in elements of a copy: an exponential, a scale, a mask."""

_CPU_MOVE = 3.2
"""What an element of a transpose across heads costs there."""

_CPU_PRODUCT = 9.5
"""How much faster the CPU multiplies matrices than it convolves with a large kernel."""

_CPU_EXPONENTIAL = 15.0
_CPU_EXPONENTIALS = (
    "Softmax",
    "LogSoftmax",
    "Exp",
    "Pow",
    "Sigmoid",
    "Tanh",
    "Erf",
    "Gelu",
    "Softplus",
    "Mish",
    "Swish",
    "Sin",
    "Cos",
)
_SPILL = 0.8
"""A score costs this many times more for each buffer that the score matrix of a head would fill; known for 4 to 8 buffers."""

_MAX_OVERFLOW = 8.0
_VIP_COLUMNS = 256
"""On VIPs a score costs more the more keys there are, up to this many."""

_ROW_ELEMENTS = 8
"""A row of 16 bytes: what a short row of a Softmax costs."""


class HalfView(View):
    """A program in float16 (or, on Allwinner, in any type), seen by the NPU of one chip."""

    def __init__(self, program: Program, chip: Chip, dtype: str = "") -> None:
        super().__init__(program, chip, dtype)
        self._fused = fuses_attention(chip)

    @cached_property
    def _blocks(self) -> dict[int, Block]:
        return find_blocks(self._program)

    def indexed(self, index: int) -> LayerWork:
        """The work of the layer at an index; that of a block is with its first layer."""
        layer = self._program.layers[index]
        block = self._blocks.get(index)
        if block is None:
            tasks = self._tasks(layer)
        elif block.first != index:
            tasks = ()
        else:
            tasks = self._block_tasks(layer, block)
        macs = layer.macs
        if block is not None and block.kind is BlockKind.ATTENTION:
            macs = sum(self._program.layers[member].macs for member in block.members) if block.first == index else 0
        return LayerWork(layer.name, layer.kind, tasks, macs, self._splits(layer), layer.does)

    def _block_tasks(self, layer: Layer, block: Block) -> tuple[Task, ...]:
        if block.kind is BlockKind.ATTENTION:
            return self._attention(block)
        if block.kind is BlockKind.NORMALISATION:
            return (Task(normalised=block.elements),)
        if block.kind is BlockKind.ACTIVATION:
            spec = self._program.tensors[block.result]
            moved = self._bytes(spec)
            return (Task(atoms=self._atoms(spec), read=moved, written=moved),)
        return self._with_epilogue(layer, block)

    def _attention(self, block: Block) -> tuple[Task, ...]:
        scores = float(block.heads * block.rows * block.columns)
        macs = 2.0 * scores * block.depth
        if not self._fused:
            cpu = scores * _CPU_SCORE + block.moved * _CPU_MOVE
            return (Task(cpu=cpu, calls=1.0, cpu_macs=macs / _CPU_PRODUCT),)
        padded = float(block.heads * block.rows * up(block.columns, _ROW_ELEMENTS))
        overflow = min(2.0 * block.rows * block.columns / self._chip.buffer_bytes, _MAX_OVERFLOW)
        longer = max(1.0, _SPILL * overflow) if self._chip.vip is None else min(block.columns, _VIP_COLUMNS) / _VIP_COLUMNS
        return (
            Task(
                macs=2.0 * block.heads * block.rows * up(block.columns, self._array.lanes) * up(block.depth, INPUT_LANES),
                read=float(block.elements * self._width),
                heads=float(block.heads),
                scores=padded * longer,
            ),
        )

    def _with_epilogue(self, layer: Layer, block: Block) -> tuple[Task, ...]:
        """A product, its activation, and what is added to its result."""
        tasks = self._tasks(layer)
        if not tasks:
            return ()
        first, *rest = tasks
        result = self._program.tensors[block.result]
        atoms = self._atoms(result) if block.activation not in LINEAR_ACTIVATIONS else 0.0
        more = self._bytes(self._program.tensors[block.added]) if block.added else 0.0
        values = {**vars(first), "atoms": max(first.atoms, atoms), "read": first.read + more}
        return (Task(**values), *rest)

    def _atoms(self, spec: TensorSpec) -> float:
        return spec.elements * self._width / 32

    def _tasks(self, layer: Layer) -> tuple[Task, ...]:
        inputs, outputs = self._specs(layer)
        if layer.does == "Reshape" and splits_blocks(inputs[0].shape, outputs[0].shape, 16 // self._width):
            return (Task(scattered=outputs[0].elements),)
        if isinstance(layer.op, Convert) or layer.does in FREE:
            return ()
        elements = max(sum(spec.elements for spec in inputs), sum(spec.elements for spec in outputs))
        if layer.placement is Placement.CPU and not self._long_kernel(layer):
            return (self._on_cpu(layer, elements),)
        if layer.does in _NORMALISATIONS:
            return (Task(normalised=float(elements)),)
        if layer.does in ("Softmax", "LogSoftmax"):
            rows = elements // max(outputs[0].shape[-1], 1) if outputs[0].shape else 1
            return (Task(scores=float(rows * up(max(outputs[0].shape[-1:], default=1), _ROW_ELEMENTS))),)
        if layer.does == "Transpose":
            return (Task(moved=float(elements)),)
        if layer.does in _POOLS or layer.operator.startswith("Reduce"):
            read, written = (sum(map(self._bytes, specs)) for specs in (inputs, outputs))
            share = _POOL_SHARE if layer.does in _POOLS else 1.0
            return (Task(read=read, written=written, moved=elements * share),)
        return super()._npu_tasks(layer)

    def _on_cpu(self, layer: Layer, elements: int) -> Task:
        cost = _CPU_EXPONENTIAL if layer.does in _CPU_EXPONENTIALS else 1.0
        convolves = layer.does in ("Conv", "ConvTranspose")
        macs = layer.macs if convolves else layer.macs / _CPU_PRODUCT
        return Task(cpu=elements * cost, calls=1.0, cpu_macs=float(macs))

    def _long_kernel(self, layer: Layer) -> bool:
        """Whether a convolution has a long kernel in one dimension: numbers of wav2vec2 state that the NPU does it, in parts."""
        return layer.does == "Conv" and len(self._program.tensors[layer.outputs[0]].shape) == 3


# What each layer of a program makes the NPU do: the tasks of all layers, in the form that fits what the program computes in.


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
    """The layers, with each LayerNormalization that was unrolled as several joined in its first one."""
    length = len(_NORMALISATION)
    for first in range(len(layers) - length + 1):
        if tuple(layer.does for layer in layers[first : first + length]) == _NORMALISATION:
            task = max(layers[first].tasks, key=lambda task: task.slow, default=Task())
            layers[first] = replace(layers[first], tasks=(replace(task, written=task.read),))
            for index in range(first + 1, first + length):
                layers[index] = replace(layers[index], tasks=())
    return layers
