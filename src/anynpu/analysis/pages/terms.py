"""Words of the pages that a newcomer may not know, and what they mean."""

from __future__ import annotations

from html import escape

__all__ = ["TERMS", "with_explanation"]

TERMS = {
    "one core": "Predicted time of one run on one core of the chip.",
    "all cores": "Predicted runs per second with one run on each core.",
    "80 % range": "Four of five like networks lie within this range.",
    "float16": "Predicted time of one run with float16 in place of int8: more accurate, slower, twice the memory.",
    "memory": "Weights and internal memory of the compiled model.",
    "on CPU": "Layers that the NPU does not take, and the part of the time that they need.",
    "confidence": "How well the timing of this chip is known: calibrated with measurements, extrapolated, or uncalibrated.",
    "bound": "What decides the time of a layer: compute, memory, look-up tables, the operator itself, the shortest time of a task "
    "(floor), or the CPU.",
    "MACs": "Share of the multiply-accumulate units that the layer keeps busy.",
    "KB moved": "Kilobytes that the layer reads and writes.",
    "cosine": "Cosine of the angle between two results; 1 where they point the same way, whatever their lengths.",
    "dB": "Signal to noise: 20 dB is a tenth, 40 dB a hundredth of the signal.",
    "alone, dB": "Signal to noise of the layer by itself, fed with the right values.",
    "so far, dB": "Signal to noise of the network up to and including this layer.",
    "error": "Largest difference of two elements.",
    "scale": "Slope of the line from right to judged values; 1.02 where they are 2 % too large.",
    "codes": "How many of the quantiser's codes the tensor uses.",
    "rails": "Share of elements at the smallest or largest code.",
    "clipped": "Share of elements beyond the range that the codes cover.",
    "alone: cosine": "Cosine of the layer by itself, fed with the right values.",
    "accuracy": "Cosine of the int8 outputs to the float model's, measured on your samples.",
    "internal memory": "Memory for what passes between layers.",
    "memory traffic": "Bytes that one run reads from and writes to memory.",
    "of the MAC peak": "Share of the multiply-accumulates that the chip could do in the time of the run.",
}
"""By the words as they stand in heads of tables and under figures."""


def with_explanation(text: str) -> str:
    """A word as HTML, with what it means for those who point at it.

    >>> with_explanation("layer"), with_explanation("dB")[:24]
    ('layer', '<abbr title="Signal to n')
    """
    meaning = TERMS.get(text)
    return escape(text) if meaning is None else f'<abbr title="{escape(meaning, quote=True)}">{escape(text)}</abbr>'
