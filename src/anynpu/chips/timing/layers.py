"""The work of single layers: padded multiply-accumulates, look-ups, bytes, and elements of slow operators.

This is the form that was fitted to int8 networks; :mod:`anynpu.chips.timing.float16` has that of float16. Nothing here is calibrated: the
numbers follow from shapes and from the catalogue (MAC array, buffer size). All functions are pure.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

from ...program import Conv, Convert, ConvTranspose, Dense, Epilogue, Float, Layer, MatMul, Placement, Program, Slice, Table
from ...tensor import Affine, DType, Layout, TensorSpec
from .. import Chip
from .array import INPUT_LANES, MacArray, splits_blocks, up
from .tasks import LayerWork, Task

__all__ = ["FREE", "LINEAR_ACTIVATIONS", "View", "computed_in"]

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
            # The sum of a detector's scores, which the compiler writes as a convolution: figures say that the chip reduces, then clips.
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
        # Figures say that the input of a large float16 product is read again for each part of the weights; int8 ones were not fitted so.
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
        """Bytes in the NPU's layout: channels in blocks, except for pictures that come in and for mere vectors."""
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
    """What the NPU computes in: the type of the codes, float16 where no layer has codes."""
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
