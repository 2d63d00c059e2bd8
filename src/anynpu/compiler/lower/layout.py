"""Tensors of a program under construction: layouts, views, conversions between layouts, and the memory plan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...program import Convert, Layer, MemoryPlan, Transpose, float_stretches
from ...tensor import DType, Layout, Quantization, TensorSpec

_MAX_HALF = float(np.finfo(np.float16).max)


def memory_order(layout: Layout, rank: int) -> tuple[int, ...]:
    """The logical axes in the order in which they lie in memory."""
    if layout is Layout.NHWC and rank > 2:
        return (0, *range(2, rank), 1)
    return tuple(range(rank))


def _channels_are_last_anyway(shape: tuple[int, ...]) -> bool:
    """Whether channels-last and row-major are the same bytes."""
    return len(shape) <= 2 or shape[1] == 1 or math.prod(shape[2:]) == 1


def _largest(dtype: DType, quantization: Quantization, channels: int) -> float:
    """The largest magnitude that quantized values can stand for."""
    first, last = dtype.limits
    scales, zeros = quantization.expand(channels)
    return float(np.max(scales * np.maximum(last - zeros, zeros - first)))


@dataclass
class Tensors:
    """All tensors of a program, by name. A graph tensor has a *home*: the first form in which it exists."""

    dtype: DType
    quantization: Mapping[str, Quantization]
    layers: list[Layer]
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    views: dict[str, str] = field(default_factory=dict)

    def add(self, spec: TensorSpec) -> str:
        """Enter a tensor and return its name."""
        self.specs[spec.name] = spec
        return spec.name

    def add_codes(self, name: str, shape: tuple[int, ...], layout: Layout) -> str:
        """Enter an integer tensor in the quantization of the graph tensor *name*."""
        return self.add(TensorSpec(name, shape, self.dtype, layout, self.quantization[name]))

    def is_codes(self, name: str) -> bool:
        """Whether the home of a tensor is an integer one."""
        return self.specs[name].quantization is not None

    def view(self, source: str, spec: TensorSpec) -> str:
        """Enter a tensor that is the memory of *source* under another shape or layout."""
        self.add(spec)
        self.views[spec.name] = self.views.get(source, source)
        return spec.name

    def codes(self, name: str, layout: Layout) -> str:
        """The graph tensor *name* as integers in *layout*; adds the layer that makes it, if there is none yet."""
        home = self.specs[name]
        if not self.is_codes(name):
            wanted = TensorSpec(f"{name}@{self.dtype.value}", home.shape, self.dtype, layout, self.quantization[name])
            if wanted.name not in self.specs:
                self.add(wanted)
                self._conversion(f"{name}:quantize", "Quantize", Convert(), home.name, wanted.name)
            return self._in_layout(wanted.name, layout)
        return self._in_layout(name, layout)

    def _in_layout(self, name: str, layout: Layout) -> str:
        spec = self.specs[name]
        if spec.layout is layout:
            return name
        other = replace(spec, name=f"{name}@{layout.value}", layout=layout)
        if other.name in self.specs:
            return other.name
        if _channels_are_last_anyway(spec.shape):
            return self.view(name, other)
        self.add(other)
        rank = len(spec.shape)
        here, there = memory_order(spec.layout, rank), memory_order(layout, rank)
        perm = tuple(here.index(axis) for axis in there)
        self._conversion(f"{name}:{layout.value}", "Transpose", Transpose(spec.memory_shape, perm), name, other.name)
        return other.name

    def _conversion(self, label: str, kind: str, op: Convert | Transpose, source: str, target: str) -> None:
        """Add a layer that the graph does not have."""
        self.layers.append(Layer(label, kind, op, (source,), (target,), operator=kind))

    def floats(self, name: str, dtype: DType) -> str:
        """The graph tensor *name* for float layers: as it is, or converted from integers.

        Quantized values whose values float16 cannot hold become float32 instead of infinity, which would make NaN of a softmax.
        """
        home = self.specs[name]
        if home.quantization is None:
            return name
        if dtype is DType.FLOAT16 and _largest(home.dtype, home.quantization, home.channels) > _MAX_HALF:
            dtype = DType.FLOAT32
        wanted = TensorSpec(f"{name}@float", home.shape, dtype, Layout.row_major(len(home.shape)))
        if wanted.name not in self.specs:
            self.add(wanted)
            self._conversion(f"{name}:dequantize", "Dequantize", Convert(), name, wanted.name)
        return wanted.name

    def floats32(self, name: str) -> str:
        """The graph tensor *name* for a custom operator: real numbers as float32, anything else as it is."""
        home = self.specs[name]
        if home.quantization is None and home.dtype not in (DType.FLOAT16, DType.BFLOAT16):
            return name
        made = self.specs.get(f"{name}@float")
        if made is not None and made.dtype is DType.FLOAT32:
            return made.name
        wanted = TensorSpec(f"{name}@float32", home.shape, DType.FLOAT32, Layout.row_major(len(home.shape)))
        if wanted.name not in self.specs:
            self.add(wanted)
            step, kind = ("cast", "Cast") if home.quantization is None else ("dequantize", "Dequantize")
            self._conversion(f"{name}:{step}", kind, Convert(), name, wanted.name)
        return wanted.name

    def padded_rank(self, name: str, rank: int) -> str:
        """A row-major view of *name* with leading axes of size 1, as broadcasting has it."""
        spec = self.specs[name]
        if len(spec.shape) == rank:
            return name
        plain = self.codes(name, Layout.row_major(len(spec.shape)))
        shape = (1,) * (rank - len(spec.shape)) + spec.shape
        full = replace(self.specs[plain], name=f"{name}@rank{rank}", shape=shape, layout=Layout.row_major(rank))
        return full.name if full.name in self.specs else self.view(plain, full)

    def release(self, outputs: tuple[str, ...], inputs: tuple[str, ...]) -> None:
        """Make every output of the program own its memory: a view swaps roles with what it views, or becomes a copy."""
        for name in outputs:
            owner = self.views.get(name)
            if owner is None:
                continue
            del self.views[name]
            if owner in inputs or owner in outputs:
                size = self.specs[name].memory_shape
                move = Transpose(size, tuple(range(len(size))))
                copy = Layer(f"{name}:copy", "Copy", move, (owner,), (name,), operator="Copy")
                # right after the original exists: later layers may read the copy
                made = (index for index, layer in enumerate(self.layers, 1) if owner in map(self._owner, layer.outputs))
                self.layers.insert(next(made, 0), copy)
                continue
            for view, viewed in list(self.views.items()):
                if viewed == owner:
                    self.views[view] = name
            self.views[owner] = name

    def _owner(self, name: str) -> str:
        return self.views.get(name, name)


# Internal memory by liveness: tensors that never live at the same time share their place.


ALIGNMENT = 64
SLACK = 64
"""Bytes after each tensor that a kernel may read, though not use."""


def plan_memory(
    layers: Sequence[Layer], tensors: Mapping[str, TensorSpec], views: Mapping[str, str], external: Sequence[str]
) -> MemoryPlan:
    """Offsets for all tensors but the *external* ones (inputs and outputs of the program), first fit, largest first where it matters.

    What goes in and out of a segment of float layers lives as long as the whole segment runs, because it is executed as one.
    """
    spans = _life_spans(layers, views, external)
    outside = set(external)
    owners = [name for name in spans if name not in outside]
    # Large tensors first, then by birth: the large ones decide the peak, and the small ones fit into the gaps.
    owners.sort(key=lambda name: (-_size(tensors[name]), spans[name]))
    placed: list[tuple[int, int, str]] = []
    offsets: dict[str, int] = {}
    peak = 0
    for name in owners:
        size = _size(tensors[name])
        first, last = spans[name]
        offset = 0
        for start, end, other in placed:
            if spans[other][1] < first or spans[other][0] > last:
                continue
            if offset + size <= start:
                break
            offset = max(offset, end)
        offsets[name] = offset
        placed.append((offset, offset + size, name))
        placed.sort()
        peak = max(peak, offset + size)
    return MemoryPlan({name: offsets[name] for name in spans if name in offsets}, peak)


def _size(spec: TensorSpec) -> int:
    return -(-(spec.nbytes + SLACK) // ALIGNMENT) * ALIGNMENT


def _life_spans(layers: Sequence[Layer], views: Mapping[str, str], external: Sequence[str]) -> dict[str, tuple[int, int]]:
    """First and last layer at which the memory of a tensor is in use, by owner."""
    spans: dict[str, tuple[int, int]] = {}

    def use(name: str, first: int, last: int) -> None:
        owner = views.get(name, name)
        before = spans.get(owner, (first, last))
        spans[owner] = (min(first, before[0]), max(last, before[1]))

    for index, layer in enumerate(layers):
        for name in (*layer.inputs, *layer.outputs):
            use(name, index, index)
    for stretch in float_stretches(layers, external, views):
        for name in (*stretch.inputs, *stretch.outputs):
            use(name, stretch.first, stretch.last - 1)
    return spans
