"""The work of single layers in float16: products with weights of a bandwidth of their own, attention as one layer, layers on the CPU.

The form follows public figures of single float16 layers and networks. What it adds to :mod:`anynpu.chips.timing.layers`:

- attention is one layer where the chip has such an operator, and a chain on the CPU where it has none;
- normalisations, transposes and reductions cost time for each element, and never less than a layer's floor;
- an activation or a residual addition behind a product belongs to it, also behind a Reshape;
- a layer on the CPU costs a hand-over, time for each element, and for each multiply-accumulate of a convolution.
"""

from __future__ import annotations

from functools import cached_property

from ...program import Convert, Layer, Placement, Program
from ...tensor import TensorSpec
from .. import Chip
from .array import INPUT_LANES, splits_blocks, up
from .blocks import Block, BlockKind, find_blocks
from .layers import FREE, LINEAR_ACTIVATIONS, View
from .parameters import fuses_attention
from .tasks import LayerWork, Task

__all__ = ["HalfView"]

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
_EXPONENTIAL = (
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
        cost = _CPU_EXPONENTIAL if layer.does in _EXPONENTIAL else 1.0
        convolves = layer.does in ("Conv", "ConvTranspose")
        macs = layer.macs if convolves else layer.macs / _CPU_PRODUCT
        return Task(cpu=elements * cost, calls=1.0, cpu_macs=float(macs))

    def _long_kernel(self, layer: Layer) -> bool:
        """Whether a convolution has a long kernel in one dimension: figures of wav2vec2 say that the NPU does it, in parts."""
        return layer.does == "Conv" and len(self._program.tensors[layer.outputs[0]].shape) == 3
