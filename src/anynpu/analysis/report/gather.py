"""What a decision is made from: for each chip what a model takes there, and for each vendor what int8 does to its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..._util.progress import Progress
from ...chips import Chip, all_chips
from ...chips.timing import fps, predict
from ...compiler import CompileOptions, ModelOutline, compile
from ...errors import AnynpuError, CompileError
from ...program import Program
from ...vendors import registry
from ..compare import Comparison, CompiledSubject, OnnxSubject, compare, dataset_samples
from ..profile import Profile, profile_program

__all__ = ["Accuracy", "ChipFigures", "Decision", "decide", "decision_of"]

MAX_MEMORY_SHARE = 0.9
"""The share of the memory in a chip's package that a model can have; the rest is the system's."""

SAMPLES = 8
"""Samples that the accuracy is measured on, if no other number is given."""


@dataclass(frozen=True, eq=False)
class ChipFigures:
    """One chip.

    :ivar profile: layer by layer; None where the chip does not take the model
    :ivar refusal: why it does not
    :ivar float16_us: the time of one run in float16; None where the chip has none, or does not take the model so
    """

    chip: Chip
    profile: Profile | None = None
    refusal: str = ""
    float16_us: float | None = None

    @cached_property
    def fps(self) -> float:
        """Runs per second on all cores; 0 where the chip does not take the model."""
        return 0.0 if self.profile is None else fps(self.profile.prediction)

    @property
    def memory_bytes(self) -> int:
        """Weights and internal memory."""
        return 0 if self.profile is None else self.profile.prediction.memory_bytes

    @property
    def fits(self) -> bool:
        """Whether the memory in the chip's package, if it has some, holds the model."""
        dram = self.chip.dram_bytes
        return dram is None or self.memory_bytes <= dram * MAX_MEMORY_SHARE

    @property
    def takes(self) -> bool:
        """Whether the model runs there."""
        return self.profile is not None and self.fits


@dataclass(frozen=True, eq=False)
class Accuracy:
    """What a vendor's int8 does to the answers, measured on one of its chips."""

    vendor: str
    chip: Chip
    comparison: Comparison

    @property
    def cosine(self) -> float:
        """Of the worst output."""
        return min((entry.so_far.cosine for entry in self.comparison.output_layers), default=1.0)

    @property
    def snr(self) -> float:
        """Of the worst output, in dB."""
        return min((entry.so_far.snr for entry in self.comparison.output_layers), default=0.0)


@dataclass(frozen=True, eq=False, repr=False)
class Decision:
    """A model on all chips.

    :ivar accuracy: by the name of the vendor; empty where no data set was given
    :ivar edges: by chip, pairs of layers of which the second reads what the first makes
    :ivar dataset: what the accuracy was measured on
    """

    title: str
    dtype: str
    chips: tuple[ChipFigures, ...]
    accuracy: Mapping[str, Accuracy] = field(default_factory=dict)
    edges: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    dataset: str = ""

    def __repr__(self) -> str:
        return f"Decision({len(self.chips)} chips)"

    @property
    def taking(self) -> list[ChipFigures]:
        """The chips on which the model runs, the fastest first."""
        return sorted((entry for entry in self.chips if entry.takes), key=_latency)

    @property
    def fastest(self) -> ChipFigures:
        """The chip with the shortest run on one core."""
        return self.taking[0]

    def accuracy_of(self, chip: Chip) -> Accuracy | None:
        """What is known about a chip's accuracy: that of its vendor."""
        return self.accuracy.get(registry.of_chip(chip).name)


def decide(
    model: str | Path,
    chips: Sequence[Chip] = (),
    *,
    dtype: str = "w8a8",
    samples: int = SAMPLES,
    progress: Progress | None = None,
    **options: Any,
) -> Decision:
    """Look at an ONNX model on *chips*, all of the catalogue by default.

    :param samples: of the data set that the accuracy is measured on
    :param options: of the compiler; with ``dataset`` the int8 model of one chip per vendor is compiled and compared with the float model
    """
    path, given = Path(model), CompileOptions(**{**options, "dtype": dtype})
    shapes = given.shapes
    if isinstance(shapes, Sequence) and not isinstance(shapes, Mapping):
        raise CompileError("a report has one shape for each input", hint="give one shape set")
    outline = ModelOutline(path, shapes=shapes, batch=given.batch)
    made = decision_of(path.name, outline, chips or tuple(all_chips()), dtype)
    if given.dataset is None or dtype == "fp16":
        return made
    accuracy: dict[str, Accuracy] = {}
    for entry in made.taking:
        vendor = registry.of_chip(entry.chip)
        if vendor.name not in accuracy:
            accuracy[vendor.name] = _measured(path, entry.chip, given, vendor.title, samples, progress)
    return replace(made, accuracy=accuracy, dataset=str(given.dataset))


def decision_of(title: str, outline: ModelOutline, chips: Sequence[Chip], dtype: str = "w8a8") -> Decision:
    """The part of a report that needs no data: an outlined model on *chips*."""
    rows, edges = [], {}
    error: AnynpuError | None = None
    for chip in chips:
        try:
            program = outline.program(chip, dtype=dtype)
        except AnynpuError as refusal:
            error = refusal
            rows.append(ChipFigures(chip, refusal=refusal.message))
            continue
        rows.append(ChipFigures(chip, profile_program(program, chip), "", _float16(outline, chip, dtype)))
        edges[chip.name] = _edges(program)
    if error is not None and not edges:
        raise error
    return Decision(title, dtype, tuple(rows), edges=edges)


def _float16(outline: ModelOutline, chip: Chip, dtype: str) -> float | None:
    if not chip.float16 or dtype == "fp16":
        return None
    try:
        return predict(outline.program(chip, dtype="fp16"), chip).latency_us
    except AnynpuError:
        return None


def _measured(path: Path, chip: Chip, given: CompileOptions, vendor: str, samples: int, progress: Progress | None) -> Accuracy:
    compiled = compile(path, chip.name, given, progress=progress)
    shapes = {spec.name: spec.shape for spec in compiled.programs[0].input_specs}
    right = OnnxSubject(path, path.name, shapes=shapes, preprocess=compiled.preprocess, channel_order=given.channel_order or None)
    judged = CompiledSubject(compiled, f"int8 on {chip.name}")
    data = dataset_samples(Path(str(given.dataset)), judged.inputs, samples)
    return Accuracy(vendor, chip, compare(right, judged, data, total=data.length, progress=progress))


def _edges(program: Program) -> tuple[tuple[int, int], ...]:
    """Pairs of layers of which the second reads what the first makes."""
    makers: dict[str, int] = {}
    found = []
    for index, layer in enumerate(program.layers):
        sources = {makers[name] for name in (_whole(program, name) for name in layer.inputs) if name in makers}
        found += [(source, index) for source in sorted(sources)]
        makers.update({_whole(program, name): index for name in layer.outputs})
    return tuple(found)


def _whole(program: Program, name: str) -> str:
    while name in program.views:
        name = program.views[name]
    return name


def _latency(entry: ChipFigures) -> float:
    return float("inf") if entry.profile is None else entry.profile.latency_us
