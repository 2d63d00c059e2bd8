"""The layer program: what the NPU executes, as data.

The compiler writes it, and everything else reads it: the engines execute it, the memory plan and the costs are in it, the model file
stores it, ``inspect`` prints it. There is no second graph.

A *program* serves one set of input shapes: tensors, layers in the order of execution, and a place in memory for every tensor. A *model*
is one or more programs for one chip (several for dynamic shapes), which share their weights.

``integer_operators``   layers in integers
``float_operators``     layers in float, and the table of float operators
``custom_operators``    what the program's user computes
``metadata``            what the ONNX model states about itself
``model``               layers, memory plan, program, model
"""

from .float_operators import FLOAT_OPERATORS, Constant, Float, FloatAttribute, FloatOp, Immediate, Weights, immediate
from .integer_operators import (
    RESIZE_BITS,
    Binary,
    Concat,
    Conv,
    Convert,
    ConvTranspose,
    Curve,
    Dense,
    Epilogue,
    Finish,
    FixedPoint,
    MatMul,
    Pad,
    Pool,
    Resize,
    Slice,
    Staircase,
    Table,
    Transpose,
    limits_of,
)
from .model import (
    AttributeValue,
    Custom,
    CustomConstant,
    FloatStretch,
    Layer,
    MemoryPlan,
    Model,
    OnnxMetadata,
    Op,
    Placement,
    Preprocess,
    Program,
    float_stretches,
)

__all__ = [
    "AttributeValue",
    "Binary",
    "Concat",
    "Constant",
    "Conv",
    "ConvTranspose",
    "Convert",
    "Curve",
    "Custom",
    "CustomConstant",
    "Dense",
    "Epilogue",
    "Finish",
    "FixedPoint",
    "FLOAT_OPERATORS",
    "Float",
    "FloatAttribute",
    "FloatOp",
    "FloatStretch",
    "Immediate",
    "Layer",
    "MatMul",
    "MemoryPlan",
    "Model",
    "OnnxMetadata",
    "Op",
    "Pad",
    "Placement",
    "Pool",
    "Preprocess",
    "Program",
    "RESIZE_BITS",
    "Resize",
    "Slice",
    "Staircase",
    "Table",
    "Transpose",
    "Weights",
    "float_stretches",
    "immediate",
    "limits_of",
]
