"""The constants of the RKNN interface under their own names, as enumerations.

>>> rknn_core_mask.RKNN_NPU_CORE_0_1.value, Code(-13).name
(3, 'RKNN_ERR_TARGET_PLATFORM_UNMATCH')
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

__all__ = [
    "Code",
    "Flag",
    "code_name",
    "rknn_query_cmd",
    "rknn_tensor_type",
    "rknn_tensor_qnt_type",
    "rknn_tensor_format",
    "rknn_core_mask",
    "rknn_tensor_mem_flags",
    "rknn_mem_alloc_flags",
    "rknn_mem_sync_mode",
    "rknn_matmul_type",
    "rknn_matmul_quant_type",
    "rknn_matmul_layout",
    "rknn_target_type",
    "RKNN_MAX_DIMS",
    "RKNN_MAX_NUM_CHANNEL",
    "RKNN_MAX_NAME_LEN",
    "RKNN_MAX_DYNAMIC_SHAPE_NUM",
    "RKNN_CUSTOM_OP_MAX_STR_LEN",
    "RKNN_CUSTOM_OP_MAX_VALUE_LEN",
]

RKNN_MAX_DIMS = 16
RKNN_MAX_NUM_CHANNEL = 15
RKNN_MAX_NAME_LEN = 256
RKNN_MAX_DYNAMIC_SHAPE_NUM = 512
RKNN_CUSTOM_OP_MAX_STR_LEN = 64
RKNN_CUSTOM_OP_MAX_VALUE_LEN = 32


class Code(IntEnum):
    """What a call returns."""

    RKNN_SUCC = 0
    RKNN_ERR_FAIL = -1
    RKNN_ERR_TIMEOUT = -2
    RKNN_ERR_DEVICE_UNAVAILABLE = -3
    RKNN_ERR_MALLOC_FAIL = -4
    RKNN_ERR_PARAM_INVALID = -5
    RKNN_ERR_MODEL_INVALID = -6
    RKNN_ERR_CTX_INVALID = -7
    RKNN_ERR_INPUT_INVALID = -8
    RKNN_ERR_OUTPUT_INVALID = -9
    RKNN_ERR_DEVICE_UNMATCH = -10
    RKNN_ERR_INCOMPATILE_PRE_COMPILE_MODEL = -11
    RKNN_ERR_INCOMPATILE_OPTIMIZATION_LEVEL_VERSION = -12
    RKNN_ERR_TARGET_PLATFORM_UNMATCH = -13
    RKNN_WARNING_SKIP_CUSTOM_OP_COMPUTE = -14


def code_name(code: int) -> str:
    """The name of what a call returned.

    >>> code_name(-1), code_name(-99)
    ('RKNN_ERR_FAIL', 'code -99')
    """
    return Code(code).name if code in Code._value2member_map_ else f"code {code}"


class Flag(IntFlag):
    """The flags of ``rknn_init``, and one of ``rknn_create_mem2``."""

    RKNN_FLAG_PRIOR_HIGH = 0x00000000
    RKNN_FLAG_PRIOR_MEDIUM = 0x00000001
    RKNN_FLAG_PRIOR_LOW = 0x00000002
    RKNN_FLAG_ASYNC_MASK = 0x00000004
    RKNN_FLAG_COLLECT_PERF_MASK = 0x00000008
    RKNN_FLAG_MEM_ALLOC_OUTSIDE = 0x00000010
    RKNN_FLAG_SHARE_WEIGHT_MEM = 0x00000020
    RKNN_FLAG_FENCE_IN_OUTSIDE = 0x00000040
    RKNN_FLAG_FENCE_OUT_OUTSIDE = 0x00000080
    RKNN_FLAG_COLLECT_MODEL_INFO_ONLY = 0x00000100
    RKNN_FLAG_INTERNAL_ALLOC_OUTSIDE = 0x00000200
    RKNN_FLAG_EXECUTE_FALLBACK_PRIOR_DEVICE_GPU = 0x00000400
    RKNN_FLAG_ENABLE_SRAM = 0x00000800
    RKNN_FLAG_SHARE_SRAM = 0x00001000
    RKNN_FLAG_DISABLE_PROC_HIGH_PRIORITY = 0x00002000
    RKNN_FLAG_DISABLE_FLUSH_INPUT_MEM_CACHE = 0x00004000
    RKNN_FLAG_DISABLE_FLUSH_OUTPUT_MEM_CACHE = 0x00008000
    RKNN_FLAG_MODEL_BUFFER_ZERO_COPY = 0x00010000
    RKNN_MEM_FLAG_ALLOC_NO_CONTEXT = 0x00020000


class rknn_query_cmd(IntEnum):
    """What ``rknn_query`` is asked for."""

    RKNN_QUERY_IN_OUT_NUM = 0
    RKNN_QUERY_INPUT_ATTR = 1
    RKNN_QUERY_OUTPUT_ATTR = 2
    RKNN_QUERY_PERF_DETAIL = 3
    RKNN_QUERY_PERF_RUN = 4
    RKNN_QUERY_SDK_VERSION = 5
    RKNN_QUERY_MEM_SIZE = 6
    RKNN_QUERY_CUSTOM_STRING = 7
    RKNN_QUERY_NATIVE_INPUT_ATTR = 8
    RKNN_QUERY_NATIVE_OUTPUT_ATTR = 9
    RKNN_QUERY_NATIVE_NC1HWC2_INPUT_ATTR = 8
    RKNN_QUERY_NATIVE_NC1HWC2_OUTPUT_ATTR = 9
    RKNN_QUERY_NATIVE_NHWC_INPUT_ATTR = 10
    RKNN_QUERY_NATIVE_NHWC_OUTPUT_ATTR = 11
    RKNN_QUERY_DEVICE_MEM_INFO = 12
    RKNN_QUERY_INPUT_DYNAMIC_RANGE = 13
    RKNN_QUERY_CURRENT_INPUT_ATTR = 14
    RKNN_QUERY_CURRENT_OUTPUT_ATTR = 15
    RKNN_QUERY_CURRENT_NATIVE_INPUT_ATTR = 16
    RKNN_QUERY_CURRENT_NATIVE_OUTPUT_ATTR = 17
    RKNN_QUERY_CMD_MAX = 18


class rknn_tensor_type(IntEnum):
    """The type of an element."""

    RKNN_TENSOR_FLOAT32 = 0
    RKNN_TENSOR_FLOAT16 = 1
    RKNN_TENSOR_INT8 = 2
    RKNN_TENSOR_UINT8 = 3
    RKNN_TENSOR_INT16 = 4
    RKNN_TENSOR_UINT16 = 5
    RKNN_TENSOR_INT32 = 6
    RKNN_TENSOR_UINT32 = 7
    RKNN_TENSOR_INT64 = 8
    RKNN_TENSOR_BOOL = 9
    RKNN_TENSOR_INT4 = 10
    RKNN_TENSOR_BFLOAT16 = 11
    RKNN_TENSOR_TYPE_MAX = 12


class rknn_tensor_qnt_type(IntEnum):
    """How codes stand for values."""

    RKNN_TENSOR_QNT_NONE = 0
    RKNN_TENSOR_QNT_DFP = 1
    RKNN_TENSOR_QNT_AFFINE_ASYMMETRIC = 2
    RKNN_TENSOR_QNT_MAX = 3


class rknn_tensor_format(IntEnum):
    """The order of the axes in memory."""

    RKNN_TENSOR_NCHW = 0
    RKNN_TENSOR_NHWC = 1
    RKNN_TENSOR_NC1HWC2 = 2
    RKNN_TENSOR_UNDEFINED = 3
    RKNN_TENSOR_FORMAT_MAX = 4


class rknn_core_mask(IntFlag):
    """The cores that a context runs on."""

    RKNN_NPU_CORE_AUTO = 0
    RKNN_NPU_CORE_0 = 1
    RKNN_NPU_CORE_1 = 2
    RKNN_NPU_CORE_2 = 4
    RKNN_NPU_CORE_0_1 = 3
    RKNN_NPU_CORE_0_1_2 = 7
    RKNN_NPU_CORE_ALL = 0xFFFF
    RKNN_NPU_CORE_UNDEFINED = 0x10000


class rknn_tensor_mem_flags(IntEnum):
    """Where the memory of a ``rknn_tensor_mem`` comes from."""

    RKNN_TENSOR_MEMORY_FLAGS_ALLOC_INSIDE = 1
    RKNN_TENSOR_MEMORY_FLAGS_FROM_FD = 2
    RKNN_TENSOR_MEMORY_FLAGS_FROM_PHYS = 3
    RKNN_TENSOR_MEMORY_FLAGS_UNKNOWN = 4


class rknn_mem_alloc_flags(IntFlag):
    """What ``rknn_create_mem2`` is asked for."""

    RKNN_FLAG_MEMORY_FLAGS_DEFAULT = 0
    RKNN_FLAG_MEMORY_CACHEABLE = 1
    RKNN_FLAG_MEMORY_NON_CACHEABLE = 2
    RKNN_FLAG_MEMORY_TRY_ALLOC_SRAM = 4


class rknn_mem_sync_mode(IntEnum):
    """The direction of ``rknn_mem_sync``."""

    RKNN_MEMORY_SYNC_TO_DEVICE = 1
    RKNN_MEMORY_SYNC_FROM_DEVICE = 2
    RKNN_MEMORY_SYNC_BIDIRECTIONAL = 3


class rknn_matmul_type(IntEnum):
    """The types of A, B and C of a matrix product."""

    RKNN_FLOAT16_MM_FLOAT16_TO_FLOAT32 = 1
    RKNN_INT8_MM_INT8_TO_INT32 = 2
    RKNN_INT8_MM_INT8_TO_INT8 = 3
    RKNN_FLOAT16_MM_FLOAT16_TO_FLOAT16 = 4
    RKNN_FLOAT16_MM_INT8_TO_FLOAT32 = 5
    RKNN_FLOAT16_MM_INT8_TO_FLOAT16 = 6
    RKNN_FLOAT16_MM_INT4_TO_FLOAT32 = 7
    RKNN_FLOAT16_MM_INT4_TO_FLOAT16 = 8
    RKNN_INT8_MM_INT8_TO_FLOAT32 = 9
    RKNN_INT4_MM_INT4_TO_INT16 = 10
    RKNN_INT8_MM_INT4_TO_INT32 = 11
    RKNN_FLOAT16_MM_INT4_TO_BFLOAT16 = 12
    RKNN_INT8_MM_INT4_TO_FLOAT16 = 15


class rknn_matmul_quant_type(IntEnum):
    """How B, or A and C, of a matrix product are quantised."""

    RKNN_QUANT_TYPE_PER_LAYER_SYM = 0
    RKNN_QUANT_TYPE_PER_LAYER_ASYM = 1
    RKNN_QUANT_TYPE_PER_CHANNEL_SYM = 2
    RKNN_QUANT_TYPE_PER_CHANNEL_ASYM = 3
    RKNN_QUANT_TYPE_PER_GROUP_SYM = 4
    RKNN_QUANT_TYPE_PER_GROUP_ASYM = 5


class rknn_matmul_layout(IntEnum):
    """How a matrix lies in memory."""

    RKNN_MM_LAYOUT_NORM = 0
    RKNN_MM_LAYOUT_NATIVE = 1
    RKNN_MM_LAYOUT_TP_NORM = 2


class rknn_target_type(IntEnum):
    """What executes a custom operator."""

    RKNN_TARGET_TYPE_CPU = 1
    RKNN_TARGET_TYPE_GPU = 2
    RKNN_TARGET_TYPE_MAX = 3
