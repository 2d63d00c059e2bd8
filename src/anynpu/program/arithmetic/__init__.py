"""How an NPU computes, written down once.

* :mod:`~anynpu.program.arithmetic.scales`: from ranges to scales and zero points, from numbers to quantized values and back
* :mod:`~anynpu.program.arithmetic.fixed_point`: what Rockchip's chips do, with integers only, and how well each part is proven
* :mod:`~anynpu.program.arithmetic.lookup_tables`: their tables for activations
* :mod:`~anynpu.program.arithmetic.scales`: what the vendors' simulators do, and what stands for chips without evidence
* :mod:`~anynpu.program.arithmetic.thresholds`: activations by that rule, on the sum before it is rounded

The compiler derives constants with these functions, the reference engine executes with them, and the C kernels follow them to the byte.
"""

from __future__ import annotations

from .scales import (
    WeightScales,
    affine_from_range,
    apply_epilogue,
    apply_fixed_point,
    apply_float_rule,
    apply_table,
    code_values,
    dequantize,
    finish,
    fixed_point_from_range,
    function_table,
    quantize,
    quantize_bias,
    quantize_weights,
    requantize_table,
    resize_shift,
)

__all__ = [
    "WeightScales",
    "affine_from_range",
    "apply_epilogue",
    "apply_fixed_point",
    "apply_float_rule",
    "apply_table",
    "code_values",
    "dequantize",
    "finish",
    "fixed_point_from_range",
    "function_table",
    "quantize",
    "quantize_bias",
    "quantize_weights",
    "requantize_table",
    "resize_shift",
]
