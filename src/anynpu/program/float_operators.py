"""Float operators of the layer program, and the closed table of those that exist.

A float layer (:class:`Float`) is one operator, or a few that the chip does as one (a convolution with its activation). Each is a
:class:`FloatOp`: a name of the table, the tensors it reads and writes, and attributes of plain types. What an operator computes is what
the ONNX operator of that name computes, in the version of operator set 21; operators that came later have the meaning of the set that
brought them. The compiler brings older models to these versions, so no other module depends on versions.

How float layers are executed: neighboring ones form a *stretch* (:meth:`~anynpu.program.Program.float_stretches`). Real numbers enter it
as float32, whatever the type of their tensor, and stay float32 between its layers; what leaves is rounded to the type of its tensor. A
tensor that has quantized values is int8 to them; QuantizeLinear and DequantizeLinear lead there and back. A segment with such
tensors is computed operator by operator, as it stands. Weights are held in the type that the chip holds them in, and are widened
to float32 before use.

To add an operator: a row here, its shape rule in :mod:`anynpu.modelfile.float_rules` if none fits, and, where C has a kernel for it, a
function in ``npu/engines/float_kernels.py``. Without a kernel onnxruntime runs it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from .._util.types import Array
from ..tensor import DType

FloatAttribute = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]
"""An attribute of a float operator."""

OPSET = 21
"""The ONNX operator set whose meaning the operators have."""

MAX_IMMEDIATE = 256
"""Constants of this many bytes and more are weights: they lie in weight memory, smaller ones in the program itself."""


@dataclass(frozen=True, eq=False)
class Weights:
    """A constant in weight memory, in the type that the chip holds. float16 and bfloat16 become float32 before use.

    :ivar bfloat16: *value* holds the 16 bits of bfloat16 numbers
    """

    value: Array
    bfloat16: bool = False

    @property
    def dtype(self) -> str:
        """Its element type: a numpy type by name, or ``bfloat16``."""
        return "bfloat16" if self.bfloat16 else self.value.dtype.name


@dataclass(frozen=True)
class Immediate:
    """A small constant inside the program: sizes, axes, indices, numbers.

    :ivar dtype: a numpy type by name, or ``bfloat16``, whose bits are held
    :ivar data: the elements row-major, little endian, as hexadecimal digits
    """

    dtype: str
    shape: tuple[int, ...]
    data: str

    def __post_init__(self) -> None:
        if self.dtype not in IMMEDIATE_TYPES:
            raise ValueError(f"a constant of the unknown type {self.dtype[:32]!r}")
        if any(extent < 0 for extent in self.shape) or len(self.shape) > 8:
            raise ValueError(f"a constant of the shape {list(self.shape)[:9]}")
        size = math.prod(self.shape) * IMMEDIATE_TYPES[self.dtype].itemsize
        if size >= MAX_IMMEDIATE or len(self.data) != 2 * size:
            raise ValueError(f"a constant of {size} bytes with {len(self.data)} digits")
        bytes.fromhex(self.data)

    @property
    def value(self) -> Array:
        """The elements as an array; bfloat16 as its bits."""
        return np.frombuffer(bytes.fromhex(self.data), IMMEDIATE_TYPES[self.dtype]).reshape(self.shape)


_WHOLE = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
IMMEDIATE_TYPES: Mapping[str, np.dtype[Any]] = {
    **{name: np.dtype(name).newbyteorder("<") for name in (*_WHOLE, "float16", "float32", "float64", "bool")},
    "bfloat16": np.dtype("<u2"),
}

Constant = Weights | Immediate


def immediate(value: Any, dtype: str = "int64") -> Immediate:
    """A small constant.

    >>> immediate([2, -1]).value.tolist()
    [2, -1]
    """
    array = np.ascontiguousarray(value, IMMEDIATE_TYPES[dtype])
    return Immediate(dtype, np.shape(value), array.tobytes().hex())


@dataclass(frozen=True, eq=False)
class FloatOp:
    """One operator.

    :ivar name: a name of :data:`FLOAT_OPERATORS`
    :ivar inputs: tensors by name: inputs of the layer, its constants, or results of operators before this one; empty where one is left out
    :ivar outputs: tensors of the program; empty where one is left out
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, FloatAttribute] = field(default_factory=dict)

    def attribute(self, key: str) -> Any:
        """An attribute, or its default of the table; None where it has neither."""
        return self.attributes.get(key, FLOAT_OPERATORS[self.name].attributes[key].default)


@dataclass(frozen=True, eq=False)
class Float:
    """A layer in float: operators in the order of execution.

    :ivar constants: what they read that never changes, by name
    :ivar compute: the type that the chip computes in: float16, bfloat16, or float32 on its CPU
    """

    operators: tuple[FloatOp, ...]
    constants: Mapping[str, Constant] = field(default_factory=dict)
    compute: DType = DType.FLOAT32

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its operators."""
        return tuple(entry.name for entry in self.operators)


@dataclass(frozen=True)
class AttributeRule:
    """What an attribute must be.

    :ivar default: None where it has none: it is required, or its absence has a meaning
    :ivar choices: the texts that are possible; empty for any
    """

    kind: Literal["int", "float", "str", "ints", "floats", "strs"]
    default: FloatAttribute | None = None
    required: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class FloatSignature:
    """A row of the table.

    :ivar inputs: fewest and most
    :ivar shape: how the shapes of results follow from the inputs: a rule of :mod:`anynpu.modelfile.float_rules`
    :ivar result: element type of the results: that of the first input, or a type by name; empty where a rule of its own decides
    :ivar opset: the operator set whose meaning it has
    :ivar domain: empty for ONNX's own
    """

    inputs: tuple[int, int]
    outputs: tuple[int, int]
    attributes: Mapping[str, AttributeRule]
    shape: str
    result: Literal["same", "bool", "int64", ""]
    opset: int = OPSET
    domain: str = ""


FLOAT_OPERATORS: dict[str, FloatSignature] = {}
"""All float operators by name. Nothing else is executed, stored or read."""

_MANY = 1024
"""Inputs or outputs of an operator that takes any number."""

INT, FLOAT, STR, INTS, FLOATS, STRS = (AttributeRule(kind) for kind in ("int", "float", "str", "ints", "floats", "strs"))
Attribute = AttributeRule | int | float | str | tuple[str, ...]


def needed(rule: AttributeRule) -> AttributeRule:
    """The same attribute, without which the operator makes no sense."""
    return AttributeRule(rule.kind, required=True, choices=rule.choices)


def _rule(given: Attribute) -> AttributeRule:
    """An attribute as the table writes it: a rule, a default, or a tuple of texts of which the first is the default."""
    if isinstance(given, AttributeRule):
        return given
    if isinstance(given, tuple):
        return AttributeRule("str", given[0], choices=given)
    return AttributeRule("int" if isinstance(given, int) else "float" if isinstance(given, float) else "str", given)


def _add(
    names: str,
    inputs: int | tuple[int, int],
    shape: str = "same",
    *,
    result: Literal["same", "bool", "int64", ""] = "same",
    outputs: int | tuple[int, int] = 1,
    since: int = OPSET,
    domain: str = "",
    **attributes: Attribute,
) -> None:
    """Enter operators that have the same signature."""
    fewest_most = (inputs, inputs) if isinstance(inputs, int) else inputs
    made = (outputs, outputs) if isinstance(outputs, int) else outputs
    rules = {key.rstrip("_"): _rule(value) for key, value in attributes.items()}
    for name in names.split():
        FLOAT_OPERATORS[name] = FloatSignature(fewest_most, made, rules, shape, result, since, domain)


AUTO_PAD = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
_WINDOW: dict[str, Any] = {"auto_pad": AUTO_PAD, "dilations": INTS, "pads": INTS, "strides": INTS}
_CONV: dict[str, Any] = {**_WINDOW, "group": 1, "kernel_shape": INTS}
_POOL: dict[str, Any] = {**_WINDOW, "kernel_shape": needed(INTS)}
_REDUCE: dict[str, Any] = {"keepdims": 1, "noop_with_empty_axes": 0}
_REDUCTION = ("none", "add", "mul", "max", "min")
_RECURRENT: dict[str, Any] = {
    "activation_alpha": FLOATS,
    "activation_beta": FLOATS,
    "activations": STRS,
    "clip": FLOAT,
    "direction": ("forward", "reverse", "bidirectional"),
    "hidden_size": INT,
    "layout": 0,
}

# element by element
_add(
    "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Ceil Cos Cosh Erf Exp Floor HardSwish Identity Log Mish Neg Not Reciprocal",
    1,
)
_add("Relu Round Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Tan Tanh", 1)
_add("Celu Elu ThresholdedRelu", 1, alpha=1.0)
_add("LeakyRelu", 1, alpha=0.01)
_add("Selu", 1, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875)
_add("HardSigmoid", 1, alpha=0.2, beta=0.5)
_add("Shrink", 1, bias=0.0, lambd=0.5)
_add("Gelu", 1, approximate=("none", "tanh"))
_add("Swish", 1, since=24, alpha=1.0)
_add("Clip", (1, 3))
_add("IsNaN", 1, result="bool")
_add("IsInf", 1, result="bool", detect_negative=1, detect_positive=1)
_add("Cast", 1, result="", saturate=1, to=needed(INT))
_add("BitCast", 1, result="", since=26, to=needed(INT))
_add("CastLike", 2, result="", saturate=1)
_add("Add BitwiseAnd BitwiseOr BitwiseXor Div Mul Pow PRelu Sub", 2, "broadcast")
_add("And Or Xor", 2, "broadcast")
_add("Equal Greater GreaterOrEqual Less LessOrEqual", 2, "broadcast", result="bool")
_add("Mod", 2, "broadcast", fmod=0)
_add("BitShift", 2, "broadcast", direction=needed(AttributeRule("str", choices=("LEFT", "RIGHT"))))
_add("Max Mean Min Sum", (1, _MANY), "broadcast")
_add("Where", 3, "broadcast", result="")
_add("Dropout", (1, 3), outputs=(1, 2), seed=INT)
_add("Bernoulli", 1, result="", dtype=INT, seed=FLOAT)
_add("RandomNormalLike", 1, result="", dtype=INT, mean=0.0, scale=1.0, seed=FLOAT)
_add("RandomUniformLike", 1, result="", dtype=INT, high=1.0, low=0.0, seed=FLOAT)
_add("RandomNormal", 0, "shape attribute", result="", dtype=1, mean=0.0, scale=1.0, seed=FLOAT, shape_=needed(INTS))
_add("RandomUniform", 0, "shape attribute", result="", dtype=1, high=1.0, low=0.0, seed=FLOAT, shape_=needed(INTS))
_add("Multinomial", 1, "samples", result="", dtype=6, sample_size=1, seed=FLOAT)

# along axes
_add("ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd", (1, 2), "reduce", **_REDUCE)
_add("ReduceSum ReduceSumSquare", (1, 2), "reduce", **_REDUCE)
_add("ArgMax ArgMin", 1, "arg", result="int64", axis=0, keepdims=1, select_last_index=0)
_add("Softmax LogSoftmax Hardmax", 1, axis=-1)
_add("LpNormalization", 1, axis=-1, p=2)
_add("CumSum", 2, exclusive=0, reverse=0)
_add("CumProd", 2, since=26, exclusive=0, reverse=0)
_add("TopK", 2, "topk", result="", outputs=2, axis=-1, largest=1, sorted=1)
_add("BatchNormalization", 5, outputs=(1, 3), epsilon=1e-5, momentum=0.9, training_mode=0)
_add("InstanceNormalization", 3, epsilon=1e-5)
_add("GroupNormalization", 3, epsilon=1e-5, num_groups=needed(INT), stash_type=1)
_add("LayerNormalization", (2, 3), "first", outputs=(1, 3), axis=-1, epsilon=1e-5, stash_type=1)
_add("RMSNormalization", 2, since=23, axis=-1, epsilon=1e-5, stash_type=1)
_add("MeanVarianceNormalization", 1, axes=INTS)
_add("LRN", 1, alpha=1e-4, beta=0.75, bias=1.0, size=needed(INT))

# products
_add("MatMul", 2, "matmul")
_add("MatMulInteger", (2, 4), "matmul", result="")
_add("QLinearMatMul", 8, "matmul", result="")
_add("Gemm", (2, 3), "gemm", alpha=1.0, beta=1.0, transA=0, transB=0)
_add("Conv", (2, 3), "conv", **_CONV)
_add("ConvInteger", (2, 4), "conv", result="", **_CONV)
_add("QLinearConv", (8, 9), "conv", result="", **_CONV)
_add("ConvTranspose", (2, 3), "conv transpose", **_CONV, output_padding=INTS, output_shape=INTS)
_add("DeformConv", (3, 5), "conv", **{key: value for key, value in _CONV.items() if key != "auto_pad"}, offset_group=1)
_add("Einsum", (1, _MANY), "einsum", equation=needed(STR))
_add("Det", 1, "matrices")
_add("RNN", (3, 6), "recurrent", outputs=(0, 2), **_RECURRENT)
_add("GRU", (3, 6), "recurrent", outputs=(0, 2), **_RECURRENT, linear_before_reset=0)
_add("LSTM", (3, 8), "recurrent", outputs=(0, 3), **_RECURRENT, input_forget=0)
_add(
    "Attention", (3, 7), "declared", outputs=(1, 4), since=24, is_causal=0, kv_num_heads=INT, q_num_heads=INT,
    qk_matmul_output_mode=0, scale=FLOAT, softcap=0.0, softmax_precision=INT,
)  # fmt: skip
_add("RotaryEmbedding", (3, 4), since=23, interleaved=0, num_heads=INT, rotary_embedding_dim=0)

# windows
_add("MaxPool", 1, "pool", outputs=(1, 2), result="", **_POOL, ceil_mode=0, storage_order=0)
_add("AveragePool", 1, "pool", **_POOL, ceil_mode=0, count_include_pad=0)
_add("LpPool", 1, "pool", **_POOL, ceil_mode=0, p=2)
_add("GlobalAveragePool GlobalMaxPool", 1, "global pool")
_add("GlobalLpPool", 1, "global pool", p=2)
_add("MaxRoiPool", 2, "roi", pooled_shape=needed(INTS), spatial_scale=1.0)
_add(
    "RoiAlign", 3, "roi", coordinate_transformation_mode=("half_pixel", "output_half_pixel"), mode=("avg", "max"), output_height=1,
    output_width=1, sampling_ratio=0, spatial_scale=1.0,
)  # fmt: skip
_add("MaxUnpool", (2, 3), "declared", kernel_shape=needed(INTS), pads=INTS, strides=INTS)
_add("Col2Im", 3, "declared", dilations=INTS, pads=INTS, strides=INTS)
_add(
    "Resize", (1, 4), "resize", antialias=0, axes=INTS, cubic_coeff_a=-0.75, exclude_outside=0, extrapolation_value=0.0,
    coordinate_transformation_mode=(
        "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
        "tf_half_pixel_for_nn",
    ),
    keep_aspect_ratio_policy=("stretch", "not_larger", "not_smaller"), mode=("nearest", "linear", "cubic"),
    nearest_mode=("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
)  # fmt: skip
_add(
    "GridSample", 2, "grid", align_corners=0, mode=("linear", "nearest", "cubic"), padding_mode=("zeros", "border", "reflection")
)
_add("AffineGrid", 2, "declared", align_corners=0)

# movement
_add("Reshape", 2, "reshape", allowzero=0)
_add("Flatten", 1, "flatten", axis=1)
_add("Squeeze", (1, 2), "squeeze")
_add("Unsqueeze", 2, "unsqueeze")
_add("Transpose", 1, "transpose", perm=INTS)
_add("Expand", 2, "expand")
_add("Tile", 2, "tile")
_add("Concat", (1, _MANY), "concat", axis=needed(INT))
_add("Split", (1, 2), "split", outputs=(1, _MANY), axis=0, num_outputs=INT)
_add("Slice", (3, 5), "slice")
_add("Pad", (2, 4), "pad", mode=("constant", "reflect", "edge", "wrap"))
_add("CenterCropPad", 2, "declared", axes=INTS)
_add("Gather", 2, "gather", axis=0)
_add("GatherElements", 2, "second", axis=0)
_add("GatherND", 2, "gather nd", batch_dims=0)
_add("ScatterElements", 3, axis=0, reduction=_REDUCTION)
_add("ScatterND", 3, reduction=_REDUCTION)
_add("TensorScatter", (2, 3), since=24, axis=-2, mode=("linear", "circular"))
_add("ReverseSequence", 2, batch_axis=1, time_axis=0)
_add("Trilu", (1, 2), upper=1)
_add("EyeLike", 1, result="", dtype=INT, k=0)
_add("OneHot", 3, "one hot", result="", axis=-1)
_add("DepthToSpace", 1, "depth to space", blocksize=needed(INT), mode=("DCR", "CRD"))
_add("SpaceToDepth", 1, "space to depth", blocksize=needed(INT))

# signals, quantized values and losses
_add("DFT", (1, 3), "declared", inverse=0, onesided=0)
_add("STFT", (2, 4), "declared", onesided=1)
_add("QuantizeLinear", (2, 3), result="", axis=1, block_size=0, output_dtype=0, saturate=1)
_add("DequantizeLinear", (2, 3), result="", axis=1, block_size=0)
_add("DynamicQuantizeLinear", 1, "first", result="", outputs=3)
_add("NegativeLogLikelihoodLoss", (2, 3), "declared", ignore_index=INT, reduction=("mean", "none", "sum"))
_add("SoftmaxCrossEntropyLoss", (2, 3), "declared", outputs=(1, 2), ignore_index=INT, reduction=("mean", "none", "sum"))

# what onnxruntime adds to ONNX, as its own optimizer writes it
_add("com.microsoft.Gelu", 1, since=1, domain="com.microsoft")
_add("com.microsoft.QuickGelu", 1, since=1, domain="com.microsoft", alpha=1.702)
_add("com.microsoft.BiasGelu", 2, since=1, domain="com.microsoft")
_add("com.microsoft.FastGelu", (1, 2), since=1, domain="com.microsoft")
_add(
    "com.microsoft.FusedConv", (2, 4), "conv", since=1, domain="com.microsoft", **_CONV, activation=STR, activation_params=FLOATS
)
_add(
    "com.microsoft.FusedMatMul", 2, "declared", since=1, domain="com.microsoft", alpha=1.0, transA=0, transB=0, transBatchA=0,
    transBatchB=0,
)  # fmt: skip
