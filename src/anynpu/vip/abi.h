/* The binary interface of VIPLite: names, values and layouts of the 1.13 and 2.0 lines, which include those of V85x.
 *
 * Everything that speaks this interface reads this one file: the Python bindings, the drop-in libraries, and the headers that
 * C and C++ programs include. Keep to what their common parser understands: one declaration a statement, numeric defines, and no
 * conditional parts but for the two below.
 *
 * Two functions differ between generations. vip_init has a parameter on V85x alone; where it has none, its value means nothing.
 * The first parameter of vip_power_management is a network on V85x and the number of a device elsewhere.
 */
#ifndef ANYNPU_VIP_ABI_H
#define ANYNPU_VIP_ABI_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint8_t vip_uint8_t;
typedef uint16_t vip_uint16_t;
typedef uint32_t vip_uint32_t;
typedef uint64_t vip_uint64_t;
typedef int8_t vip_int8_t;
typedef int16_t vip_int16_t;
typedef int32_t vip_int32_t;
typedef int64_t vip_int64_t;
typedef char vip_char_t;
typedef float vip_float_t;
typedef double vip_float64_t;
typedef int32_t vip_enum;
typedef void *vip_ptr;
typedef unsigned long long vip_address_t;

typedef struct _vip_network *vip_network;
typedef struct _vip_buffer *vip_buffer;
typedef struct _vip_group *vip_group;

typedef enum _vip_bool_e {
  vip_false_e = 0,
  vip_true_e = 1
} vip_bool_e;

typedef enum _vip_status_e {
  VIP_ERROR_FUSA = -17,
  VIP_ERROR_NAN_INF = -16,
  VIP_ERROR_CANCELED = -15,
  VIP_ERROR_RECOVERY = -14,
  VIP_ERROR_POWER_STOP = -13,
  VIP_ERROR_POWER_OFF = -12,
  VIP_ERROR_FAILURE = -11,
  VIP_ERROR_NETWORK_INCOMPATIBLE = -10,
  VIP_ERROR_NETWORK_NOT_PREPARED = -9,
  VIP_ERROR_MISSING_INPUT_OUTPUT = -8,
  VIP_ERROR_INVALID_NETWORK = -7,
  VIP_ERROR_OUT_OF_MEMORY = -6,
  VIP_ERROR_OUT_OF_RESOURCE = -5,
  VIP_ERROR_NOT_SUPPORTED = -4,
  VIP_ERROR_INVALID_ARGUMENTS = -3,
  VIP_ERROR_IO = -2,
  VIP_ERROR_TIMEOUT = -1,
  VIP_SUCCESS = 0
} vip_status_e;

typedef enum _vip_buffer_format_e {
  VIP_BUFFER_FORMAT_FP32 = 0,
  VIP_BUFFER_FORMAT_FP16 = 1,
  VIP_BUFFER_FORMAT_UINT8 = 2,
  VIP_BUFFER_FORMAT_INT8 = 3,
  VIP_BUFFER_FORMAT_UINT16 = 4,
  VIP_BUFFER_FORMAT_INT16 = 5,
  VIP_BUFFER_FORMAT_CHAR = 6,
  VIP_BUFFER_FORMAT_BFP16 = 7,
  VIP_BUFFER_FORMAT_INT32 = 8,
  VIP_BUFFER_FORMAT_UINT32 = 9,
  VIP_BUFFER_FORMAT_INT64 = 10,
  VIP_BUFFER_FORMAT_UINT64 = 11,
  VIP_BUFFER_FORMAT_FP64 = 12,
  VIP_BUFFER_FORMAT_INT4 = 13,
  VIP_BUFFER_FORMAT_UINT4 = 14,
  VIP_BUFFER_FORMAT_BOOL8 = 16
} vip_buffer_format_e;

typedef enum _vip_buffer_quantize_format_e {
  VIP_BUFFER_QUANTIZE_NONE = 0,
  VIP_BUFFER_QUANTIZE_DYNAMIC_FIXED_POINT = 1,
  VIP_BUFFER_QUANTIZE_TF_ASYMM = 2,
  VIP_BUFFER_QUANTIZE_MAX = 3
} vip_buffer_quantize_format_e;

typedef enum _vip_buffer_memory_type_e {
  VIP_BUFFER_MEMORY_TYPE_DEFAULT = 0,
  VIP_BUFFER_MEMORY_TYPE_HOST = 1,
  VIP_BUFFER_MEMORY_TYPE_SECURE = 2,
  VIP_BUFFER_MEMORY_TYPE_DMA_BUF = 3,
  VIP_BUFFER_MEMORY_TYPE_MAX = 4
} vip_buffer_memory_type_e;

typedef enum _vip_create_network_type_e {
  VIP_CREATE_NETWORK_FROM_NONE = 0,
  VIP_CREATE_NETWORK_FROM_FILE = 1,
  VIP_CREATE_NETWORK_FROM_MEMORY = 2,
  VIP_CREATE_NETWORK_FROM_FLASH = 4,
  VIP_CREATE_NETWORK_MODE_NORMAL = 0x10,
  VIP_CREATE_NETWORK_MODE_SECURE = 0x20
} vip_create_network_type_e;

typedef enum _vip_dup_network_type_e {
  VIP_DUP_NONE = 0,
  VIP_DUP_FOR_CMD_BY_NETWORK = 1,
  VIP_DUP_FOR_CMD_BY_NBG = 2,
  VIP_DUP_FROM_NBG_FILE = 0x100,
  VIP_DUP_FROM_NBG_MEMORY = 0x200,
  VIP_DUP_FROM_NBG_FLASH = 0x400,
  VIP_DUP_FROM_NETWORK = 0x800
} vip_dup_network_type_e;

typedef enum _vip_power_property_e {
  VIP_POWER_PROPERTY_NONE = 0,
  VIP_POWER_PROPERTY_SET_FREQUENCY = 1,
  VIP_POWER_PROPERTY_OFF = 2,
  VIP_POWER_PROPERTY_ON = 4,
  VIP_POWER_PROPERTY_STOP = 8,
  VIP_POWER_PROPERTY_START = 0x10,
  VIP_POWER_PROPERTY_MAX = 0x11
} vip_power_property_e;

typedef enum _vip_query_hardware_property_e {
  VIP_QUERY_HW_PROP_CID = 0,
  VIP_QUERY_HW_PROP_DEVICE_COUNT = 1,
  VIP_QUERY_HW_PROP_CORE_COUNT_EACH_DEVICE = 2,
  VIP_QUERY_HW_PROP_MAX = 3
} vip_query_hardware_property_e;

typedef enum _vip_network_property_e {
  VIP_NETWORK_PROP_LAYER_COUNT = 0,
  VIP_NETWORK_PROP_INPUT_COUNT = 1,
  VIP_NETWORK_PROP_OUTPUT_COUNT = 2,
  VIP_NETWORK_PROP_NETWORK_NAME = 3,
  VIP_NETWORK_PROP_ADDRESS_INFO = 4,
  VIP_NETWORK_PROP_READ_REG_IRQ = 5,
  VIP_NETWORK_PROP_MEMORY_POOL_SIZE = 6,
  VIP_NETWORK_PROP_PROFILING = 7,
  VIP_NETWORK_PROP_CORE_COUNT = 8,
  VIP_NETWORK_PROP_GET_LAYER_DUMP_OUTPUT = 9,
  VIP_NETWORK_PROP_CHANGE_PPU_PARAM = 64,
  VIP_NETWORK_PROP_SET_MEMORY_POOL = 65,
  VIP_NETWORK_PROP_SET_DEVICE_ID = 66,
  VIP_NETWORK_PROP_SET_DEVICE_INDEX = 66,
  VIP_NETWORK_PROP_SET_PRIORITY = 67,
  VIP_NETWORK_PROP_SET_TIME_OUT = 68,
  VIP_NETWORK_PROP_SET_COEFF_MEMORY = 69,
  VIP_NETWORK_PROP_SET_CORE_INDEX = 70,
  VIP_NETWORK_PROP_SET_ENABLE_NPD = 71,
  VIP_NETWORK_PROP_SET_VIPSRAM_PRELOAD = 72,
  VIP_NETWORK_PROP_SET_LAYER_DUMP_ID = 73
} vip_network_property_e;

typedef enum _vip_group_property_e {
  VIP_GROUP_PROP_PROFILING = 0,
  VIP_GROUP_PROP_SET_DEVICE_ID = 64,
  VIP_GROUP_PROP_SET_DEVICE_INDEX = 64,
  VIP_GROUP_PROP_SET_CORE_INDEX = 65,
  VIP_GROUP_PROP_SET_TIME_OUT = 68
} vip_group_property_e;

typedef enum _vip_buffer_property_e {
  VIP_BUFFER_PROP_QUANT_FORMAT = 0,
  VIP_BUFFER_PROP_NUM_OF_DIMENSION = 1,
  VIP_BUFFER_PROP_SIZES_OF_DIMENSION = 2,
  VIP_BUFFER_PROP_DATA_FORMAT = 3,
  VIP_BUFFER_PROP_FIXED_POINT_POS = 4,
  VIP_BUFFER_PROP_TF_SCALE = 5,
  VIP_BUFFER_PROP_TF_ZERO_POINT = 6,
  VIP_BUFFER_PROP_NAME = 7
} vip_buffer_property_e;

typedef enum _vip_buffer_operation_type_e {
  VIP_BUFFER_OPER_TYPE_NONE = 0,
  VIP_BUFFER_OPER_TYPE_FLUSH = 1,
  VIP_BUFFER_OPER_TYPE_INVALIDATE = 2,
  VIP_BUFFER_OPER_TYPE_MAX = 3
} vip_buffer_operation_type_e;

/* value = code / 2^fixed_point_pos */
typedef struct _vip_fixed_point_t {
  vip_int32_t fixed_point_pos;
} vip_fixed_point_t;

/* value = (code - zeroPoint) * scale */
typedef struct _vip_affine_t {
  vip_float_t scale;
  vip_int32_t zeroPoint;
} vip_affine_t;

typedef union _vip_quant_data_t {
  vip_fixed_point_t dfp;
  vip_affine_t affine;
} vip_quant_data_t;

/* sizes begin with the axis whose elements lie side by side: width, height, channels, batch */
typedef struct _vip_buffer_create_params_t {
  vip_uint32_t num_of_dims;
  vip_uint32_t sizes[6];
  vip_enum data_format;
  vip_enum quant_format;
  vip_quant_data_t quant_data;
  vip_uint32_t memory_type;
} vip_buffer_create_params_t;

/* the same as vip_affine_t, under the names that the parameters of dumped layers have */
typedef struct _vip_tf_affine_t {
  vip_float_t tf_scale;
  vip_int32_t tf_zero_point;
} vip_tf_affine_t;

typedef union _vip_param_quant_data_t {
  vip_fixed_point_t dfp;
  vip_tf_affine_t affine;
} vip_param_quant_data_t;

typedef struct _vip_buffer_param_t {
  vip_uint32_t dim_count;
  vip_uint32_t dim_size[6];
  vip_enum data_format;
  vip_enum quant_format;
  vip_param_quant_data_t quant_data;
} vip_buffer_param_t;

/* which layers to dump; a count of -1 is all of them */
typedef struct _vip_nld_layer_id {
  vip_int32_t layer_count;
  vip_int32_t *layer_id;
} vip_nld_layer_id_t;

/* one output of a dumped layer; the uid is -1 where the layer has none */
typedef struct _vip_nld_output_info {
  vip_char_t layer_name[64];
  vip_uint32_t layer_id;
  vip_uint32_t layer_output_index;
  vip_uint32_t uid;
  vip_buffer_param_t param;
  vip_uint32_t size;
  void *memory;
} vip_nld_output_info_t;

typedef struct _vip_nld_output {
  vip_uint32_t count;
  vip_nld_output_info_t *info;
} vip_nld_output_t;

/* microseconds and cycles of the last run */
typedef struct _vip_inference_profile_t {
  vip_uint32_t inference_time;
  vip_uint32_t total_cycle;
} vip_inference_profile_t;

typedef struct _vip_ppu_param_t {
  vip_uint32_t work_dim;
  vip_uint32_t global_offset[3];
  vip_uint32_t global_scale[3];
  vip_uint32_t local_size[3];
  vip_uint32_t global_size[3];
} vip_ppu_param_t;

typedef struct _vip_power_frequency_t {
  vip_uint8_t fscale_percent;
} vip_power_frequency_t;

vip_uint32_t vip_get_version(void);
vip_status_e vip_init(vip_uint32_t video_mem_size);
vip_status_e vip_destroy(void);
vip_status_e vip_query_hardware(vip_enum property, vip_uint32_t size, void *value);
vip_status_e vip_create_buffer(vip_buffer_create_params_t *create_param, vip_uint32_t size_of_param, vip_buffer *buffer);
vip_status_e vip_create_buffer_cache(vip_buffer_create_params_t *create_param, vip_uint32_t size_of_param, vip_buffer *buffer);
vip_status_e vip_create_buffer_from_physical(const vip_buffer_create_params_t *create_param, const vip_address_t *physical_table, const vip_uint32_t *size_table, vip_uint32_t physical_num, vip_buffer *buffer);
vip_status_e vip_create_buffer_from_handle(const vip_buffer_create_params_t *create_param, const vip_ptr handle_logical, vip_uint32_t handle_size, vip_buffer *buffer);
vip_status_e vip_create_buffer_from_fd(const vip_buffer_create_params_t *create_param, vip_uint32_t fd, vip_uint32_t memory_size, vip_buffer *buffer);
vip_status_e vip_destroy_buffer(vip_buffer buffer);
void *vip_map_buffer(vip_buffer buffer);
vip_status_e vip_unmap_buffer(vip_buffer buffer);
vip_uint32_t vip_get_buffer_size(vip_buffer buffer);
vip_status_e vip_flush_buffer(vip_buffer buffer, vip_enum type);
vip_status_e vip_create_network(const void *data, vip_uint32_t size_of_data, vip_enum type, vip_network *network);
vip_status_e vip_dup_network(const void *data, vip_uint32_t size_of_data, vip_enum type, vip_network network, vip_network *dup_network);
vip_status_e vip_weak_dup_network(vip_network network, vip_network *dup_network);
vip_status_e vip_destroy_network(vip_network network);
vip_status_e vip_set_network(vip_network network, vip_enum property, void *value);
vip_status_e vip_query_network(vip_network network, vip_enum property, void *value);
vip_status_e vip_prepare_network(vip_network network);
vip_status_e vip_finish_network(vip_network network);
vip_status_e vip_query_input(vip_network network, vip_uint32_t index, vip_enum property, void *value);
vip_status_e vip_query_output(vip_network network, vip_uint32_t index, vip_enum property, void *value);
vip_status_e vip_set_input(vip_network network, vip_uint32_t index, vip_buffer input);
vip_status_e vip_set_output(vip_network network, vip_uint32_t index, vip_buffer output);
vip_status_e vip_run_network(vip_network network);
vip_status_e vip_trigger_network(vip_network network);
vip_status_e vip_wait_network(vip_network network);
vip_status_e vip_cancel_network(vip_network network);
vip_status_e vip_set_ppu_param(vip_network network, vip_ppu_param_t *param, vip_uint32_t index);
vip_status_e vip_create_group(vip_uint32_t count, vip_group *group);
vip_status_e vip_destroy_group(vip_group group);
vip_status_e vip_set_group(vip_group group, vip_enum property, void *value);
vip_status_e vip_query_group(vip_group group, vip_enum property, void *value);
vip_status_e vip_add_network(vip_group group, vip_network network);
vip_status_e vip_run_group(vip_group group, vip_uint32_t num);
vip_status_e vip_trigger_group(vip_group group, vip_uint32_t num);
vip_status_e vip_wait_group(vip_group group);
vip_status_e vip_power_management(vip_ptr device_or_network, vip_enum property, void *value);
vip_status_e vip_set_log_path(vip_char_t *path);

#ifdef __cplusplus
}
#endif

#endif
