"""Two sides, layer by layer: each layer as a part of the network so far, and alone on the other side's values.

The two views answer two questions. *So far* states how wrong a tensor is where it stands, with all that went wrong before it.
*Alone* states what a layer adds: it gets the right values (quantized as it takes them), so what is wrong with its result is its
own. The first layer that fails alone is where the two sides part; where none fails alone, errors have piled up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..._util.progress import Progress, tell
from ..._util.types import Array
from ...compiler.quantize.dataset import Dataset, InputInfo, open_dataset
from ...errors import ParameterError, TensorNameError
from .metrics import ChannelRanges, CodeCount, CodesUsed, Difference, Figures, Histograms
from .sides import InputSpec, Sample, Subject, Unit, check_interfaces

# What both sides are fed with: a data set, or random values.


def dataset_samples(source: Path, inputs: Sequence[InputSpec], limit: int | None = None) -> Dataset:
    """The samples of a folder, a list, a .npy or .npz file, as calibration reads them; mean and std are left to each side."""
    infos = [InputInfo(entry.name, entry.shape, entry.dtype, may_be_infinite=entry.low is None) for entry in inputs]
    return open_dataset(source, infos, limit=limit)


def random_samples(inputs: Sequence[InputSpec], count: int, seed: int) -> Iterator[Sample]:
    """Random inputs over the range that each input takes: pixels where it has mean and std, the range of its quantized values where it is
    quantized, else normally distributed numbers; zeros and ones for integers."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        sample = {}
        for entry in inputs:
            if entry.dtype.kind != "f":
                sample[entry.name] = random.integers(0, 2, entry.shape).astype(entry.dtype)
            elif entry.low is not None and entry.high is not None:
                sample[entry.name] = random.uniform(entry.low, entry.high, entry.shape).astype(np.float32)
            else:
                sample[entry.name] = random.standard_normal(entry.shape, np.float32)
        yield sample


_CODES_FOR_A_SCALE = 16
"""A tensor that uses fewer quantized values is too coarse to show whether its scale is right."""


@dataclass(frozen=True)
class Limits:
    """What a layer may differ by before it counts as diverging.

    :ivar cosine: smallest cosine of a layer alone, and of the network so far
    :ivar scale: largest deviation of the scale of a layer alone from 1, beyond what is uncertain about it
    """

    cosine: float = 0.99
    scale: float = 0.01


@dataclass(frozen=True)
class LayerComparison:
    """One tensor of one layer.

    :ivar index: number of the layer in its model, -1 for an input
    :ivar so_far: within the network
    :ivar alone: fed with the other side's values; None where they are not known
    :ivar codes: of the side that is evaluated, None where it is not quantized
    :ivar must_equal: both sides compute it from the same quantized values to the same quantized values
    :ivar step: what one code more means, the smallest of its groups; 0 where it is not quantized
    """

    index: int
    layer: str
    kind: str
    tensor: str
    shape: tuple[int, ...]
    nodes: tuple[str, ...]
    so_far: Figures
    alone: Figures | None
    codes: CodesUsed | None
    must_equal: bool
    histograms: Histograms
    ranges: ChannelRanges
    step: float = 0.0

    def fails_alone(self, limits: Limits) -> str:
        """Why the layer on its own counts as wrong; empty where it does not."""
        alone = self.alone
        if alone is None:
            return ""
        if self.must_equal:
            return "" if alone.exact else f"its results differ by up to {alone.error:.4g} where they should be equal"
        if alone.worst_cosine < limits.cosine:
            return f"alone it has a cosine of {alone.worst_cosine:.4f}"
        coarse = self.codes is not None and self.codes.used < _CODES_FOR_A_SCALE
        if not coarse and abs(alone.scale - 1.0) > limits.scale + 2.0 * alone.scale_uncertainty:
            return f"alone its results are {100 * abs(alone.scale - 1.0):.1f} % too {'large' if alone.scale > 1.0 else 'small'}"
        return ""


@dataclass(frozen=True)
class Divergence:
    """Where the two sides part.

    :ivar alone: whether the layer is wrong on its own; else errors of several layers have piled up there
    """

    layer: LayerComparison
    alone: bool
    reason: str


@dataclass(frozen=True, repr=False)
class Comparison:
    """Two sides, compared.

    :ivar a: what is right
    :ivar b: what is evaluated
    :ivar layers: every tensor that both have, in the order in which *b* makes them
    :ivar outputs: names of the network's outputs
    """

    a: str
    b: str
    samples: int
    layers: tuple[LayerComparison, ...]
    outputs: tuple[str, ...]
    limits: Limits

    def __repr__(self) -> str:
        return f"Comparison({self.a!r}, {self.b!r}, {self.samples} samples, {len(self.layers)} layers)"

    @property
    def output_layers(self) -> tuple[LayerComparison, ...]:
        """The rows of the outputs: the last one of each."""
        last = {entry.tensor: entry for entry in self.layers}
        return tuple(last[name] for name in self.outputs if name in last)

    @property
    def first_diverging(self) -> Divergence | None:
        """The first layer that is wrong on its own; where none is, the first at which the error has grown too large."""
        for entry in self.layers:
            reason = entry.fails_alone(self.limits)
            if reason:
                return Divergence(entry, True, reason)
        for entry in self.layers:
            if entry.so_far.worst_cosine < self.limits.cosine:
                return Divergence(entry, False, f"the network so far has a cosine of {entry.so_far.worst_cosine:.4f}")
        return None

    @property
    def not_comparable(self) -> int:
        """How many layers were not run alone, as a rule since one side has no value of what they read."""
        return sum(1 for entry in self.layers if entry.alone is None and entry.index >= 0)

    def worst(self, count: int) -> tuple[LayerComparison, ...]:
        """The layers with the least signal to noise, alone where that is known, the worst first."""
        return tuple(sorted(self.layers, key=lambda entry: (entry.alone or entry.so_far).snr)[:count])


class _Row:
    """Gathers what is said about one tensor."""

    def __init__(self, unit: Unit, position: int, must_equal: bool) -> None:
        self.unit = unit
        self.tensor = unit.tensors[position]
        self.must_equal = must_equal
        self.so_far, self.alone = Difference(), Difference()
        spec = unit.specs[position] if unit.specs else None
        self.codes = CodeCount(spec) if spec is not None and spec.quantization is not None else None
        self.step = 0.0
        if spec is not None and spec.quantization is not None:
            self.step = float(spec.quantization.expand(spec.channels)[0].min())
        self.histograms = Histograms()
        self.ranges: ChannelRanges | None = None
        self.shape: tuple[int, ...] = ()

    def add(self, a: Array, b: Array, codes: Array | None, alone: Array | None) -> None:
        """Another sample."""
        clipped = None if self.codes is None else self.codes.beyond(a)
        self.so_far.add(a, b, clipped)
        if alone is not None:
            self.alone.add(a, alone, clipped)
        if self.codes is not None and codes is not None and clipped is not None:
            self.codes.add(codes, clipped)
        if self.ranges is None:
            self.shape = a.shape
            self.ranges = ChannelRanges(a.shape[1 if a.ndim > 2 else -1] if a.ndim else 1)
        self.histograms.add(a, b)
        self.ranges.add(a, b)

    def finish(self) -> LayerComparison:
        """All samples together."""
        assert self.ranges is not None
        return LayerComparison(
            index=self.unit.index,
            layer=self.unit.name,
            kind=self.unit.kind,
            tensor=self.tensor,
            shape=self.shape,
            nodes=self.unit.nodes,
            so_far=self.so_far.figures(),
            alone=None if self.alone.empty else self.alone.figures(),
            codes=None if self.codes is None else self.codes.codes_used(),
            must_equal=self.must_equal,
            histograms=self.histograms,
            ranges=self.ranges,
            step=self.step,
        )


def compare(
    a: Subject,
    b: Subject,
    samples: Iterable[Sample],
    *,
    alone: bool = True,
    limits: Limits | None = None,
    total: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Evaluate *b* by *a* on some samples.

    :param alone: also run every layer alone
    :param total: number of samples, for *progress*, which is called with (stage, done, total)

    >>> comparison = compare(OnnxSubject("det.onnx", "fp32"), CompiledSubject(model, "int8"), samples)    # doctest: +SKIP
    >>> print(comparison.first_diverging.layer.layer)                                                     # doctest: +SKIP
    """
    check_interfaces(a, b)
    common = a.tensors & b.tensors
    a.watch(common)
    b.watch(common)
    rows = [
        (unit, [_Row(unit, position, b.same_arithmetic(unit, a)) for position in range(len(unit.tensors))]) for unit in b.units()
    ]
    seen: set[str] = set()
    count = 0
    for sample in samples:
        right = a.run(sample)
        b.run(sample)
        for unit, entries in rows:
            made = b.outcome(unit)
            by_itself = b.alone(unit, right) if alone else None
            for row in entries:
                expected = right.get(row.tensor)
                result = made.values[row.tensor]
                if expected is None or expected.size != result.size:
                    continue
                seen.add(row.tensor)
                own = None if by_itself is None else by_itself.values[row.tensor].reshape(expected.shape)
                row.add(expected, result.reshape(expected.shape), made.codes.get(row.tensor), own)
        count += 1
        tell(progress, "comparing", count, total)
    if not count:
        raise ParameterError("there are no samples to compare with", hint="give --dataset, or random ones with --samples")
    missing = [name for name in b.outputs if name not in seen]
    if missing:
        raise TensorNameError(
            f"output '{missing[0]}' is not the same tensor on both sides", hint="compare two forms of one network"
        )
    layers = tuple(row.finish() for _, entries in rows for row in entries if row.tensor in seen and not row.so_far.empty)
    return Comparison(a.title, b.title, count, layers, tuple(b.outputs), limits or Limits())


# Thresholds that a comparison has to meet, as texts such as ``cosine=0.99`` or ``alone.snr=20``.


_FIGURES: dict[str, Callable[[Figures], float]] = {
    "cosine": lambda figures: figures.cosine,
    "worst-cosine": lambda figures: figures.worst_cosine,
    "snr": lambda figures: figures.snr,
    "error": lambda figures: figures.error,
    "scale": lambda figures: abs(figures.scale - 1.0),
}
_CODES: dict[str, Callable[[CodesUsed], float]] = {
    "codes": lambda codes: codes.used,
    "rails": lambda codes: codes.rails,
    "clipped": lambda codes: codes.clipped,
}
_SCOPES = ("outputs", "layers", "alone")


@dataclass(frozen=True)
class Threshold:
    """A limit for one number.

    :ivar scope: ``outputs`` of the network, all ``layers`` of the network so far, or each layer ``alone``
    :ivar figure: cosine, worst-cosine, snr, error, scale (its deviation from 1), quantized values, saturation or clipped
    :ivar below: whether smaller values miss it; else larger ones do
    """

    scope: str
    figure: str
    value: float
    below: bool

    def misses(self, comparison: Comparison) -> Iterator[str]:
        """A sentence for each tensor that misses it."""
        entries = comparison.output_layers if self.scope == "outputs" else comparison.layers
        for entry in entries:
            found = self._figure(entry)
            if found is None or (found >= self.value if self.below else found <= self.value):
                continue
            where = {"outputs": "output", "layers": "layer", "alone": "layer alone"}[self.scope]
            side = "below" if self.below else "above"
            name = entry.tensor if self.scope == "outputs" else entry.layer
            yield f"{where} {name}: {self.figure} {found:.6g} is {side} {self.value:g}"

    def _figure(self, entry: LayerComparison) -> float | None:
        if self.figure in _CODES:
            return None if entry.codes is None else _CODES[self.figure](entry.codes)
        figures = entry.alone if self.scope == "alone" else entry.so_far
        return None if figures is None else _FIGURES[self.figure](figures)


def parse_threshold(text: str, *, below: bool) -> Threshold:
    """The threshold that a text means.

    >>> parse_threshold("alone.snr=20", below=True)
    Threshold(scope='alone', figure='snr', value=20.0, below=True)
    """
    left, equals, number = text.partition("=")
    scope, dot, figure = left.strip().rpartition(".")
    figure = figure.replace("_", "-")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not equals or math.isnan(value) or (dot and scope not in _SCOPES) or figure not in (*_FIGURES, *_CODES):
        raise ParameterError(
            f"{text!r} is no threshold",
            hint=f"write [SCOPE.]METRIC=NUMBER, such as cosine=0.99 or alone.snr=20; scopes: {', '.join(_SCOPES)}; "
            f"numbers: {', '.join((*_FIGURES, *_CODES))}",
        )
    return Threshold(scope or "outputs", figure, value, below)
