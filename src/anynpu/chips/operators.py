"""What the NPUs execute themselves, as sets of ONNX operators and limits."""

from __future__ import annotations

from .chip import ConvLimits, ConvTransposeLimits, OperatorLimits, PoolLimits, Range, ResizeLimits

__all__ = ["COMMON_LIMITS", "TABLE_ACTIVATIONS"]

TABLE_ACTIVATIONS = frozenset(
    {
        *("Relu", "LeakyRelu", "PRelu", "ThresholdedRelu", "Clip", "Elu", "Selu", "Celu", "Softplus", "Softsign", "Sigmoid"),
        *("HardSigmoid", "HardSwish", "Swish", "Mish", "Gelu", "Tanh", "Erf", "Exp", "Log", "Sqrt", "Pow", "Abs", "Neg"),
        "Reciprocal",
    }
)
"""Functions of one value, which the NPU applies directly or by a look-up table."""

_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div", "Max", "Min"})
_DENSE = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_NORMALISATION = frozenset({"BatchNormalization", "InstanceNormalization", "LayerNormalization", "Softmax"})
_POOLING = frozenset(
    {"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"}
)
_DATA_MOVEMENT = frozenset(
    {
        *("Concat", "Split", "Slice", "Pad", "Expand", "Resize", "Upsample", "DepthToSpace", "SpaceToDepth", "Gather"),
        *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Dropout"),
    }
)
_RECURRENT = frozenset({"LSTM", "GRU"})

_COMMON = TABLE_ACTIVATIONS | _ARITHMETIC | _DENSE | _NORMALISATION | _POOLING | _DATA_MOVEMENT | _RECURRENT

COMMON_LIMITS = OperatorLimits(
    npu_operators=_COMMON,
    conv=ConvLimits(kernel=Range(1, 31), stride=Range(1, 7), pad=Range(0, 15), dilation=Range(1, 31)),
    depthwise=ConvLimits(kernel=Range(1, 8), stride=Range(1, 7), pad=Range(0, 15), dilation=Range(1, 32)),
    conv_transpose=ConvTransposeLimits(kernel=Range(1, 31), strides=tuple(range(1, 9)), depthwise=True, grouped=False),
    pool=PoolLimits(
        channels_max=8192,
        height_max=8192,
        width_max=8192,
        kernel=Range(1, 7),
        stride=Range(1, 8),
        pad=Range(0, 7),
        ceil_mode=False,
    ),
    global_average_pool_max=7,
    global_average_pool_staged=True,
    resize=ResizeLimits(modes=("nearest", "linear"), factors=Range(2, 8)),
    matmul_k_max=8192,
    softmax_axes=(1, 3),
    lstm_size_max=8192,
    transpose_pixels_max=8192,
)
"""The limits that most chips share; a chip replaces what differs."""
