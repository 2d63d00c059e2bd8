"""A comparison in words and as JSON."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from .layers import Comparison, LayerComparison
from .metrics import Figures

_CLIPPED = 0.01
"""Share of clipped elements from which it is worth a sentence."""


def sentences(comparison: Comparison) -> list[str]:
    """What the numbers mean, the most important first."""
    text = [_outputs(comparison)]
    found = comparison.first_diverging
    unknown = comparison.not_comparable
    if found is None:
        limits = comparison.limits
        if all(entry.so_far.exact for entry in comparison.output_layers):
            text.append("No layer diverges.")
        else:
            known = "Each layer that could be compared alone" if unknown else "Each layer"
            text.append(f"{known} is within the limits: cosine {limits.cosine:g}, scale {limits.scale:g}.")
    elif found.alone:
        text.append(f"First diverging layer: {_name(found.layer)}; {found.reason}.")
    else:
        text.append(
            f"No single layer is wrong; errors accumulate. First layer below {comparison.limits.cosine:g}: "
            f"{_name(found.layer)}; {found.reason}."
        )
    if unknown == len(comparison.layers):
        text.append("Only outputs are known of one side, so no layer was run alone.")
    elif unknown:
        text.append(_not_comparable(comparison))
    clipped = [entry for entry in comparison.layers if entry.codes is not None and entry.codes.clipped > _CLIPPED]
    if clipped:
        worst = max(clipped, key=lambda entry: entry.codes.clipped if entry.codes is not None else 0.0)
        assert worst.codes is not None
        if len(clipped) == 1:
            text.append(f"{_name(worst)} clips {100 * worst.codes.clipped:.1f} % of its elements.")
        else:
            most = f"most of all {_name(worst)} with {100 * worst.codes.clipped:.1f} %"
            text.append(f"{len(clipped)} tensors clip more than {100 * _CLIPPED:.0f} % of their elements, {most}.")
    return text


def rule_sentences(comparison: Comparison) -> list[str]:
    """What a comparison of one model by two rules of rounding, or with the vendor's simulator, means."""
    apart = [entry for entry in comparison.layers if entry.so_far.differing]
    if not apart:
        return ["Both sides give the same values."]
    alone = [entry for entry in comparison.layers if entry.alone is not None and entry.alone.differing]
    text = []
    for entry in comparison.output_layers:
        steps = f", by up to {steps_apart(entry.so_far, entry.step)} steps" if entry.step else ""
        text.append(f"Output {entry.tensor}: {100 * entry.so_far.differing:.2f} % of its elements differ{steps}.")
    unknown = comparison.not_comparable
    known = len(comparison.layers) - unknown
    text.append(f"The first difference is in {_name(apart[0])}; {len(alone)} of {known} layers differ when run alone.")
    return [*text, _not_comparable(comparison)] if unknown else text


def _not_comparable(comparison: Comparison) -> str:
    count = comparison.not_comparable
    return (
        f"{count} of {len(comparison.layers)} layers cannot be compared alone: one side has no value for an input of the layer."
    )


def steps_apart(figures: Figures, step: float) -> int:
    """The largest difference in quantized values."""
    return round(figures.error / step) if step and math.isfinite(figures.error) else 0


def _outputs(comparison: Comparison) -> str:
    if all(entry.so_far.exact for entry in comparison.output_layers):
        return "The outputs are equal."
    parts = [
        f"{entry.tensor} cosine {entry.so_far.cosine:.5f}, {entry.so_far.snr:.1f} dB, largest error {entry.so_far.error:.4g}"
        for entry in comparison.output_layers
    ]
    return f"Outputs: {'; '.join(parts)}."


def _name(entry: LayerComparison) -> str:
    return f"{entry.layer} ({entry.kind})"


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """A comparison as data for JSON."""
    found = comparison.first_diverging
    return {
        "a": comparison.a,
        "b": comparison.b,
        "samples": comparison.samples,
        "limits": asdict(comparison.limits),
        "not_comparable": comparison.not_comparable,
        "summary": sentences(comparison),
        "first_diverging": None
        if found is None
        else {"layer": found.layer.layer, "tensor": found.layer.tensor, "alone": found.alone, "reason": found.reason},
        "outputs": {entry.tensor: _figures(entry.so_far) for entry in comparison.output_layers},
        "layers": [_layer(entry) for entry in comparison.layers],
    }


def _layer(entry: LayerComparison) -> dict[str, Any]:
    return {
        "index": entry.index,
        "layer": entry.layer,
        "operator": entry.kind,
        "tensor": entry.tensor,
        "shape": list(entry.shape),
        "nodes": list(entry.nodes),
        "so_far": _figures(entry.so_far),
        "alone": None if entry.alone is None else _figures(entry.alone),
        "codes": None if entry.codes is None else asdict(entry.codes),
        "must_equal": entry.must_equal,
        "step": entry.step,
    }


def _figures(figures: Figures) -> dict[str, float | None]:
    """JSON has no infinity."""
    return {name: value if math.isfinite(value) else None for name, value in asdict(figures).items()}
