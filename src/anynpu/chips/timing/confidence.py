"""How far a prediction can be trusted: a level with its reason, and a range that holds four of five networks of its kind.

The widths come from left-out errors: each published network was predicted by a fit that had not seen it, and the networks were sorted by
what decides how well they are predicted. ``tools/timing_fit.py`` prints them, and how many left-out points the ranges hold.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .model import Prediction

__all__ = ["Confidence", "Kind", "assess", "kind_of"]


class Kind(enum.Enum):
    """Networks that are predicted about equally well. The value is half the width of their 80 % range, as a logarithm."""

    INT8 = 0.052
    SMALL_LAYERS = 0.30  # many layers that take no longer than a layer has to
    INT8_CPU = 0.15  # int8, and a good part of it on the CPU
    FLOAT16 = 0.26
    FLOAT16_CPU = 0.22


_RELATIVE = 0.15
_UNCALIBRATED = 0.69
_SEVERAL_CORES = 0.25
_SRAM = 0.15
_REPORTED = 0.36
"""What is added in quadrature where the figures are of something else."""

_LARGE_CPU_SHARE = 0.1
_MAIN_CPU_SHARE = 0.4
_SOME_FLOOR_SHARE = 0.15
_LARGE_FLOOR_SHARE = 0.6
_LARGE_PRODUCT_SHARE = 0.2


@dataclass(frozen=True)
class Confidence:
    """How far a prediction can be trusted.

    :ivar level: ``calibrated``, ``extrapolated`` or ``uncalibrated``
    :ivar reason: why it is not calibrated
    :ivar error: median relative error in cross-validation, where the parameters were fitted
    :ivar spread: half the width of the range that holds four of five like networks, as a logarithm; 0: not known
    """

    level: str
    reason: str = ""
    error: float | None = None
    spread: float = 0.0

    def __str__(self) -> str:
        if self.level == "calibrated" and self.error is not None:
            return f"calibrated (median error {100 * self.error:.0f} %)"
        return f"{self.level}: {self.reason}" if self.reason else self.level

    def range(self, value: float) -> tuple[float, float]:
        """The range around a predicted value that holds four of five like networks.

        >>> low, high = Confidence("calibrated", spread=0.05).range(100.0)
        >>> round(low), round(high)
        (95, 105)
        """
        return value * math.exp(-self.spread), value * math.exp(self.spread)


def kind_of(prediction: Prediction) -> Kind:
    """What kind of network a prediction is about."""
    if prediction.dtype == "float16":
        return Kind.FLOAT16_CPU if prediction.cpu_share > _MAIN_CPU_SHARE else Kind.FLOAT16
    if prediction.floor_share > _SOME_FLOOR_SHARE:
        return Kind.SMALL_LAYERS
    return Kind.INT8_CPU if prediction.cpu_share > _MAIN_CPU_SHARE else Kind.INT8


def assess(prediction: Prediction) -> Confidence:
    """The confidence of a prediction."""
    profile = prediction.profile
    spread = _spread(prediction)
    if not profile.calibrated:
        level = "extrapolated" if profile.relative else "uncalibrated"
        return Confidence(level, profile.source if profile.relative or profile.models else "", None, spread)
    error = profile.median_error
    if prediction.dtype == "float16" and profile.float_error is not None:
        error = profile.float_error
    reason = _doubt(prediction)
    return Confidence("extrapolated" if reason else "calibrated", reason, error, spread)


def _spread(prediction: Prediction) -> float:
    profile = prediction.profile
    parts = [kind_of(prediction).value]
    if profile.relative:
        parts.append(_RELATIVE)
    elif not profile.calibrated:
        parts.append(_REPORTED if profile.models else _UNCALIBRATED)
    elif profile.median_error is not None:
        parts.append(profile.median_error)
    if prediction.cores > 1:
        parts.append(_SEVERAL_CORES)
    if prediction.sram_bytes:
        parts.append(_SRAM)
    return math.hypot(*parts)


def _doubt(prediction: Prediction) -> str:
    """Why a fitted profile does not say enough about this program; empty if it does."""
    if prediction.dtype not in ("int8", "float16"):
        return f"the figures are those of int8 and float16 models, not {prediction.dtype}"
    if prediction.dtype == "float16" and prediction.profile.float_error is None:
        return "the figures are those of int8 models, not float16"
    if prediction.sram_bytes:
        return "no figures with SRAM are published"
    if prediction.cores > 1:
        return "one job on several cores: few figures are published"
    latency = prediction.latency_us
    if not any(layer.time_us for layer in prediction.layers):
        return "no layer takes any time"
    if prediction.cpu_share > _LARGE_CPU_SHARE:
        kinds = dict.fromkeys(layer.kind for layer in prediction.layers if layer.bound.value == "cpu")
        return f"{', '.join(list(kinds)[:2])} on the CPU"
    if prediction.floor_share > _LARGE_FLOOR_SHARE:
        return "most layers are so small that their overhead counts"
    names = ("LSTM", "GRU") if prediction.dtype == "float16" else ("MatMul", "Gemm", "LSTM", "GRU")
    products = sum(layer.time_us for layer in prediction.layers if layer.does in names)
    if products > _LARGE_PRODUCT_SHARE * latency:
        return (
            "recurrent layers were not measured" if len(names) == 2 else "matrix products and recurrent layers were not measured"
        )
    return ""
