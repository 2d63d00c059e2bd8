"""A decision as data, for JSON and for the page's own script."""

from __future__ import annotations

from typing import Any

from ...vendors import registry
from .gather import Accuracy, ChipFigures, Decision

__all__ = ["decision_data"]


def decision_data(decision: Decision) -> dict[str, Any]:
    """All figures of a report, JSON-ready."""
    return {
        "model": decision.title,
        "dtype": decision.dtype,
        "dataset": decision.dataset,
        "chips": [_chip(entry) for entry in decision.chips],
        "accuracy": {name: _accuracy(entry) for name, entry in decision.accuracy.items()},
    }


def _chip(entry: ChipFigures) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "chip": entry.chip.name,
        "vendor": registry.of_chip(entry.chip).name,
        "takes": entry.takes,
        "reason": entry.refusal if entry.profile is None else "" if entry.fits else "its memory is too small",
    }
    if entry.profile is None:
        return facts
    profile = entry.profile
    low, high = profile.prediction.range_us
    return {
        **facts,
        "latency_ms": round(profile.latency_us / 1000, 4),
        "range_ms": [round(low / 1000, 4), round(high / 1000, 4)],
        "fps_all_cores": round(entry.fps, 2),
        "float16_ms": None if entry.float16_us is None else round(entry.float16_us / 1000, 4),
        "memory_bytes": entry.memory_bytes,
        "cpu_share": round(profile.prediction.cpu_share, 4),
        "confidence": str(profile.prediction.confidence),
        "advice": profile.advice(),
        "layers": [
            {
                "index": layer.index,
                "name": layer.name,
                "operator": layer.kind,
                "time_us": round(layer.time_us, 3),
                "bound": layer.bound.value if layer.on_npu else "cpu",
                "reason": layer.reason,
            }
            for layer in profile.layers
        ],
    }


def _accuracy(entry: Accuracy) -> dict[str, Any]:
    return {
        "vendor": entry.vendor,
        "measured_on": entry.chip.name,
        "samples": entry.comparison.samples,
        "cosine": entry.cosine,
        "snr_db": entry.snr,
        "layers": {
            layer.layer: {
                "so_far_db": round(layer.so_far.snr, 2),
                "alone_db": None if layer.alone is None else round(layer.alone.snr, 2),
            }
            for layer in entry.comparison.layers
            if layer.index >= 0
        },
    }
