"""Thresholds that a comparison has to meet, as texts such as ``cosine=0.99`` or ``alone.snr=20``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...errors import ParameterError
from .layers import Comparison, LayerComparison
from .metrics import CodesUsed, Figures

__all__ = ["Threshold", "parse_threshold"]

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
    """A limit for one figure.

    :ivar scope: ``outputs`` of the network, all ``layers`` of the network so far, or each layer ``alone``
    :ivar figure: cosine, worst-cosine, snr, error, scale (its deviation from 1), codes, rails or clipped
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
            hint=f"write [SCOPE.]FIGURE=NUMBER, such as cosine=0.99 or alone.snr=20; scopes: {', '.join(_SCOPES)}; "
            f"figures: {', '.join((*_FIGURES, *_CODES))}",
        )
    return Threshold(scope or "outputs", figure, value, below)
