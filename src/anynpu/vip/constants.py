"""The constants of the VIPLite interface under their own names, as enumerations.

>>> vip_status_e(-8).name, vip_network_property_e.VIP_NETWORK_PROP_SET_PRIORITY.value
('VIP_ERROR_MISSING_INPUT_OUTPUT', 67)
"""

from __future__ import annotations

from enum import IntEnum, IntFlag


class vip_bool_e(IntEnum):
    """Yes and no."""

    vip_false_e = 0
    vip_true_e = 1


class vip_status_e(IntEnum):
    """What a call returns."""

    VIP_SUCCESS = 0
    VIP_ERROR_TIMEOUT = -1
    VIP_ERROR_IO = -2
    VIP_ERROR_INVALID_ARGUMENTS = -3
    VIP_ERROR_NOT_SUPPORTED = -4
    VIP_ERROR_OUT_OF_RESOURCE = -5
    VIP_ERROR_OUT_OF_MEMORY = -6
    VIP_ERROR_INVALID_NETWORK = -7
    VIP_ERROR_MISSING_INPUT_OUTPUT = -8
    VIP_ERROR_NETWORK_NOT_PREPARED = -9
    VIP_ERROR_NETWORK_INCOMPATIBLE = -10
    VIP_ERROR_FAILURE = -11
    VIP_ERROR_POWER_OFF = -12
    VIP_ERROR_POWER_STOP = -13
    VIP_ERROR_RECOVERY = -14
    VIP_ERROR_CANCELED = -15
    VIP_ERROR_NAN_INF = -16
    VIP_ERROR_FUSA = -17


def status_name(status: int) -> str:
    """The name of what a call returned.

    >>> status_name(0), status_name(-99)
    ('VIP_SUCCESS', 'status -99')
    """
    return vip_status_e(status).name if status in vip_status_e._value2member_map_ else f"status {status}"


class vip_buffer_format_e(IntEnum):
    """Types of elements."""

    VIP_BUFFER_FORMAT_FP32 = 0
    VIP_BUFFER_FORMAT_FP16 = 1
    VIP_BUFFER_FORMAT_UINT8 = 2
    VIP_BUFFER_FORMAT_INT8 = 3
    VIP_BUFFER_FORMAT_UINT16 = 4
    VIP_BUFFER_FORMAT_INT16 = 5
    VIP_BUFFER_FORMAT_CHAR = 6
    VIP_BUFFER_FORMAT_BFP16 = 7
    VIP_BUFFER_FORMAT_INT32 = 8
    VIP_BUFFER_FORMAT_UINT32 = 9
    VIP_BUFFER_FORMAT_INT64 = 10
    VIP_BUFFER_FORMAT_UINT64 = 11
    VIP_BUFFER_FORMAT_FP64 = 12
    VIP_BUFFER_FORMAT_INT4 = 13
    VIP_BUFFER_FORMAT_UINT4 = 14
    VIP_BUFFER_FORMAT_BOOL8 = 16


class vip_buffer_quantize_format_e(IntEnum):
    """What a quantized value of a tensor stands for."""

    VIP_BUFFER_QUANTIZE_NONE = 0
    VIP_BUFFER_QUANTIZE_DYNAMIC_FIXED_POINT = 1
    VIP_BUFFER_QUANTIZE_TF_ASYMM = 2
    VIP_BUFFER_QUANTIZE_MAX = 3


class vip_buffer_memory_type_e(IntEnum):
    """Where the memory of a buffer comes from."""

    VIP_BUFFER_MEMORY_TYPE_DEFAULT = 0
    VIP_BUFFER_MEMORY_TYPE_HOST = 1
    VIP_BUFFER_MEMORY_TYPE_SECURE = 2
    VIP_BUFFER_MEMORY_TYPE_DMA_BUF = 3
    VIP_BUFFER_MEMORY_TYPE_MAX = 4


class vip_create_network_type_e(IntFlag):
    """Where the model of a network is."""

    VIP_CREATE_NETWORK_FROM_NONE = 0
    VIP_CREATE_NETWORK_FROM_FILE = 1
    VIP_CREATE_NETWORK_FROM_MEMORY = 2
    VIP_CREATE_NETWORK_FROM_FLASH = 4
    VIP_CREATE_NETWORK_MODE_NORMAL = 0x10
    VIP_CREATE_NETWORK_MODE_SECURE = 0x20


class vip_dup_network_type_e(IntFlag):
    """What a duplicate is made from."""

    VIP_DUP_NONE = 0
    VIP_DUP_FOR_CMD_BY_NETWORK = 1
    VIP_DUP_FOR_CMD_BY_NBG = 2
    VIP_DUP_FROM_NBG_FILE = 0x100
    VIP_DUP_FROM_NBG_MEMORY = 0x200
    VIP_DUP_FROM_NBG_FLASH = 0x400
    VIP_DUP_FROM_NETWORK = 0x800


class vip_power_property_e(IntEnum):
    """What ``vip_power_management`` does."""

    VIP_POWER_PROPERTY_NONE = 0
    VIP_POWER_PROPERTY_SET_FREQUENCY = 1
    VIP_POWER_PROPERTY_OFF = 2
    VIP_POWER_PROPERTY_ON = 4
    VIP_POWER_PROPERTY_STOP = 8
    VIP_POWER_PROPERTY_START = 0x10
    VIP_POWER_PROPERTY_MAX = 0x11


class vip_query_hardware_property_e(IntEnum):
    """What ``vip_query_hardware`` reports."""

    VIP_QUERY_HW_PROP_CID = 0
    VIP_QUERY_HW_PROP_DEVICE_COUNT = 1
    VIP_QUERY_HW_PROP_CORE_COUNT_EACH_DEVICE = 2
    VIP_QUERY_HW_PROP_MAX = 3


class vip_network_property_e(IntEnum):
    """What ``vip_query_network`` reports and, from 64 on, ``vip_set_network`` sets."""

    VIP_NETWORK_PROP_LAYER_COUNT = 0
    VIP_NETWORK_PROP_INPUT_COUNT = 1
    VIP_NETWORK_PROP_OUTPUT_COUNT = 2
    VIP_NETWORK_PROP_NETWORK_NAME = 3
    VIP_NETWORK_PROP_ADDRESS_INFO = 4
    VIP_NETWORK_PROP_READ_REG_IRQ = 5
    VIP_NETWORK_PROP_MEMORY_POOL_SIZE = 6
    VIP_NETWORK_PROP_PROFILING = 7
    VIP_NETWORK_PROP_CORE_COUNT = 8
    VIP_NETWORK_PROP_GET_LAYER_DUMP_OUTPUT = 9
    VIP_NETWORK_PROP_CHANGE_PPU_PARAM = 64
    VIP_NETWORK_PROP_SET_MEMORY_POOL = 65
    VIP_NETWORK_PROP_SET_DEVICE_ID = 66
    VIP_NETWORK_PROP_SET_DEVICE_INDEX = 66
    VIP_NETWORK_PROP_SET_PRIORITY = 67
    VIP_NETWORK_PROP_SET_TIME_OUT = 68
    VIP_NETWORK_PROP_SET_COEFF_MEMORY = 69
    VIP_NETWORK_PROP_SET_CORE_INDEX = 70
    VIP_NETWORK_PROP_SET_ENABLE_NPD = 71
    VIP_NETWORK_PROP_SET_VIPSRAM_PRELOAD = 72
    VIP_NETWORK_PROP_SET_LAYER_DUMP_ID = 73


class vip_group_property_e(IntEnum):
    """What ``vip_query_group`` reports and, from 64 on, ``vip_set_group`` sets."""

    VIP_GROUP_PROP_PROFILING = 0
    VIP_GROUP_PROP_SET_DEVICE_ID = 64
    VIP_GROUP_PROP_SET_DEVICE_INDEX = 64
    VIP_GROUP_PROP_SET_CORE_INDEX = 65
    VIP_GROUP_PROP_SET_TIME_OUT = 68


class vip_buffer_property_e(IntEnum):
    """What ``vip_query_input`` and ``vip_query_output`` report."""

    VIP_BUFFER_PROP_QUANT_FORMAT = 0
    VIP_BUFFER_PROP_NUM_OF_DIMENSION = 1
    VIP_BUFFER_PROP_SIZES_OF_DIMENSION = 2
    VIP_BUFFER_PROP_DATA_FORMAT = 3
    VIP_BUFFER_PROP_FIXED_POINT_POS = 4
    VIP_BUFFER_PROP_TF_SCALE = 5
    VIP_BUFFER_PROP_TF_ZERO_POINT = 6
    VIP_BUFFER_PROP_NAME = 7


class vip_buffer_operation_type_e(IntEnum):
    """Which way ``vip_flush_buffer`` goes."""

    VIP_BUFFER_OPER_TYPE_NONE = 0
    VIP_BUFFER_OPER_TYPE_FLUSH = 1
    VIP_BUFFER_OPER_TYPE_INVALIDATE = 2
    VIP_BUFFER_OPER_TYPE_MAX = 3
