"""Words of the pages that a newcomer may not know, and what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

__all__ = ["CHART_TERMS", "TERMS", "with_explanation"]

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
    "scale": "Slope of the line from reference to candidate values; 1.02 where they are 2 % too large.",
    "codes": "How many of the quantized values occur in the tensor.",
    "rails": "Share of elements at the smallest or largest quantized value.",
    "clipped": "Share of elements beyond the quantization range.",
    "alone: cosine": "Cosine of the layer by itself, fed with the right values.",
    "accuracy": "Cosine of the int8 outputs to the float model's, measured on your samples.",
    "internal memory": "Memory for what passes between layers.",
    "memory traffic": "Bytes that one run reads from and writes to memory.",
    "of the MAC peak": "Share of the multiply-accumulates that the chip could do in the time of the run.",
}
"""By the words as they stand in heads of tables and under figures."""

CHART_TERMS = {
    "compute": "Time that is limited by multiply-accumulate operations.",
    "look-up": "Time that is limited by activations with a lookup table, such as SiLU and sigmoid.",
    "memory": "Time that is limited by reading and writing memory.",
    "floor": "Shortest time of a task: many small layers are limited by it.",
    "operator": "Time of slow operators: Softmax, Transpose, reductions.",
    "cpu": "Time of layers that run on the CPU of the chip.",
    "uncalibrated": "No measurements of this chip exist: the bar shows an estimate from hardware numbers.",
    "80 % range": "Prediction interval: 80 % of similar networks are in it.",
    "the network so far": "Cumulative error: the layer runs on the outputs of earlier layers.",
    "the layer alone": "Isolated error: the layer runs on the reference values.",
}
"""By the terms in legends of charts."""


def with_explanation(text: str, terms: Mapping[str, str] = TERMS) -> str:
    """A word as HTML, with what it means for those who point at it.

    >>> with_explanation("layer"), with_explanation("dB")[:24]
    ('layer', '<abbr title="Signal to n')
    """
    meaning = terms.get(text)
    return escape(text) if meaning is None else f'<abbr title="{escape(meaning, quote=True)}">{escape(text)}</abbr>'
