"""The two support tables of the RKNN C API reference 1.6.0: which calls and which queries each kind of chip answers."""

from __future__ import annotations

from typing import Literal

from .chip import ConvLimits, ConvTransposeLimits, OperatorLimits, PoolLimits, Range, ResizeLimits

# What the NPUs execute themselves, as sets of ONNX operators and limits.


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


Column = Literal["single", "multi", "mini", "mini_b", "none"]
"""A column of the tables.

``single``: one core, librknnrt (RK3562, RK3566, RK3568). ``multi``: several cores (RK3588).
``mini``: librknnmrt (RV1103, RV1106). Not in the reference are ``mini_b``, which is ``mini`` without NHWC outputs, and ``none``,
for chips without the RKNN API.
"""

_MULTI_ONLY = frozenset({"rknn_set_core_mask", "rknn_matmul_set_core_mask", "rknn_set_batch_core_num"})
_NOWHERE = frozenset({"rknn_wait", "rknn_create_mem_from_mb_blk"})
_NOT_MINI = frozenset(
    {
        *("rknn_dup_context", "rknn_inputs_set", "rknn_outputs_get", "rknn_set_input_shapes"),
        *("rknn_matmul_create", "rknn_matmul_set_io_mem", "rknn_matmul_run", "rknn_matmul_destroy"),
        *("rknn_register_custom_ops", "rknn_custom_op_get_op_attr"),
    }
)

CALLS = (
    "rknn_init",
    "rknn_set_core_mask",
    "rknn_dup_context",
    "rknn_destroy",
    "rknn_query",
    "rknn_inputs_set",
    "rknn_run",
    "rknn_wait",
    "rknn_outputs_get",
    "rknn_outputs_release",
    "rknn_create_mem_from_mb_blk",
    "rknn_create_mem_from_phys",
    "rknn_create_mem_from_fd",
    "rknn_create_mem",
    "rknn_destroy_mem",
    "rknn_set_weight_mem",
    "rknn_set_internal_mem",
    "rknn_set_io_mem",
    "rknn_set_input_shapes",
    "rknn_mem_sync",
    "rknn_matmul_create",
    "rknn_matmul_set_io_mem",
    "rknn_matmul_set_core_mask",
    "rknn_matmul_run",
    "rknn_matmul_destroy",
    "rknn_register_custom_ops",
    "rknn_custom_op_get_op_attr",
    "rknn_set_batch_core_num",
)
"""The calls, in the order of Table 4-1."""

_QUERIES_NOT_MINI = frozenset(
    {
        *("RKNN_QUERY_PERF_DETAIL", "RKNN_QUERY_PERF_RUN", "RKNN_QUERY_INPUT_DYNAMIC_RANGE"),
        *("RKNN_QUERY_CURRENT_INPUT_ATTR", "RKNN_QUERY_CURRENT_OUTPUT_ATTR"),
        *("RKNN_QUERY_CURRENT_NATIVE_INPUT_ATTR", "RKNN_QUERY_CURRENT_NATIVE_OUTPUT_ATTR"),
    }
)

QUERIES = (
    "RKNN_QUERY_IN_OUT_NUM",
    "RKNN_QUERY_INPUT_ATTR",
    "RKNN_QUERY_OUTPUT_ATTR",
    "RKNN_QUERY_PERF_DETAIL",
    "RKNN_QUERY_PERF_RUN",
    "RKNN_QUERY_SDK_VERSION",
    "RKNN_QUERY_MEM_SIZE",
    "RKNN_QUERY_CUSTOM_STRING",
    "RKNN_QUERY_NATIVE_INPUT_ATTR",
    "RKNN_QUERY_NATIVE_OUTPUT_ATTR",
    "RKNN_QUERY_NATIVE_NC1HWC2_INPUT_ATTR",
    "RKNN_QUERY_NATIVE_NC1HWC2_OUTPUT_ATTR",
    "RKNN_QUERY_NATIVE_NHWC_INPUT_ATTR",
    "RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR",
    "RKNN_QUERY_INPUT_DYNAMIC_RANGE",
    "RKNN_QUERY_CURRENT_INPUT_ATTR",
    "RKNN_QUERY_CURRENT_OUTPUT_ATTR",
    "RKNN_QUERY_CURRENT_NATIVE_INPUT_ATTR",
    "RKNN_QUERY_CURRENT_NATIVE_OUTPUT_ATTR",
)
"""The commands of ``rknn_query``, in the order of Table 4-2."""


def calls(column: Column) -> dict[str, bool]:
    """Table 4-1, one column."""
    if column == "none":
        return dict.fromkeys(CALLS, False)
    missing = _NOWHERE
    if column != "multi":
        missing |= _MULTI_ONLY
    if column in ("mini", "mini_b"):
        missing |= _NOT_MINI
    return {name: name not in missing for name in CALLS}


def queries(column: Column) -> dict[str, bool]:
    """Table 4-2, one column."""
    if column == "none":
        return dict.fromkeys(QUERIES, False)
    missing = _QUERIES_NOT_MINI if column in ("mini", "mini_b") else frozenset()
    if column == "mini_b":
        missing |= {"RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR"}
    return {name: name not in missing for name in QUERIES}
