"""What a compiled model does, layer by layer, as plain data for tables and JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from . import Float, Layer, Model, Placement, Program


@dataclass(frozen=True)
class LayerReport:
    """One row of the layer table."""

    index: int
    name: str
    kind: str
    placement: str
    reason: str
    dtype: str
    input_shapes: tuple[tuple[int, ...], ...]
    output_shapes: tuple[tuple[int, ...], ...]
    macs: int
    weight_bytes: int
    read_bytes: int
    write_bytes: int
    nodes: int


@dataclass(frozen=True, repr=False)
class Report:
    """A model on one chip: totals and layers of one shape set."""

    chip: str
    dtype: str
    nodes: int
    macs: int
    weight_bytes: int
    internal_bytes: int
    io_bytes: int
    layers: tuple[LayerReport, ...]

    def __repr__(self) -> str:
        return f"Report({self.chip}, {self.dtype}, {self.on_npu} layers on NPU, {len(self.on_cpu)} on CPU)"

    @property
    def on_npu(self) -> int:
        """Number of layers on the NPU."""
        return sum(layer.placement == Placement.NPU.value for layer in self.layers)

    @property
    def on_cpu(self) -> tuple[LayerReport, ...]:
        """The layers that fall back to the CPU."""
        return tuple(layer for layer in self.layers if layer.placement == Placement.CPU.value)

    @property
    def cpu_reasons(self) -> dict[str, int]:
        """Why layers are on the CPU, each reason with its number of layers."""
        return dict(Counter(f"{layer.kind}: {layer.reason}" for layer in self.on_cpu))

    def to_json(self) -> dict[str, Any]:
        """The report as JSON-ready data."""
        data = asdict(self)
        data["on_npu"] = self.on_npu
        data["on_cpu"] = len(self.on_cpu)
        return data


def report(model: Model, shape_set: int = 0) -> Report:
    """The report of one shape set of *model*."""
    program = model.programs[shape_set]
    layers = tuple(_row(program, index, layer) for index, layer in enumerate(program.layers))
    io = sum(spec.nbytes for spec in (*program.input_specs, *program.output_specs))
    return Report(
        chip=model.chip,
        dtype=model.dtype,
        nodes=int(model.provenance.get("nodes", "0")),
        macs=sum(layer.macs for layer in program.layers),
        weight_bytes=sum(layer.weight_bytes for layer in program.layers),
        internal_bytes=program.memory.size,
        io_bytes=io,
        layers=layers,
    )


def _row(program: Program, index: int, layer: Layer) -> LayerReport:
    inputs = [program.tensors[name] for name in layer.inputs]
    outputs = [program.tensors[name] for name in layer.outputs]
    typed = outputs if isinstance(layer.op, Float) or not inputs else inputs
    return LayerReport(
        index=index,
        name=layer.name,
        kind=layer.kind,
        placement=layer.placement.value,
        reason=layer.reason,
        dtype=typed[0].dtype.value if typed else "",
        input_shapes=tuple(spec.shape for spec in inputs),
        output_shapes=tuple(spec.shape for spec in outputs),
        macs=layer.macs,
        weight_bytes=layer.weight_bytes,
        read_bytes=sum(spec.nbytes for spec in inputs) + layer.weight_bytes,
        write_bytes=sum(spec.nbytes for spec in outputs),
        nodes=len(layer.nodes),
    )
