"""Where two forms of one network part: ONNX, compiled, or on a device, layer by layer.

>>> from anynpu.comparison import CompiledSubject, OnnxSubject, compare
>>> a = OnnxSubject("det.onnx", "fp32", preprocess=model.preprocess)          # doctest: +SKIP
>>> comparison = compare(a, CompiledSubject(model, "int8"), samples)         # doctest: +SKIP
>>> print(comparison.first_diverging)                                        # doctest: +SKIP
"""

from .layers import (
    Comparison,
    Divergence,
    LayerComparison,
    Limits,
    Threshold,
    compare,
    dataset_samples,
    parse_threshold,
    random_samples,
)
from .metrics import CodesUsed, Figures
from .page import comparison_page
from .report import comparison_data, rule_sentences, sentences, steps_apart
from .sides import (
    ARITHMETICS,
    CompiledSubject,
    InputSpec,
    LayersSubject,
    OnnxSubject,
    OutputsSubject,
    Sample,
    Subject,
    by_arithmetic,
)

__all__ = [
    "ARITHMETICS",
    "CodesUsed",
    "CompiledSubject",
    "Comparison",
    "Divergence",
    "Figures",
    "InputSpec",
    "LayerComparison",
    "LayersSubject",
    "Limits",
    "OnnxSubject",
    "OutputsSubject",
    "Sample",
    "Subject",
    "Threshold",
    "by_arithmetic",
    "compare",
    "comparison_data",
    "comparison_page",
    "dataset_samples",
    "parse_threshold",
    "random_samples",
    "rule_sentences",
    "sentences",
    "steps_apart",
]
