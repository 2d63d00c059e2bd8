/* What the programs for VIPLite share. */
#ifndef VIP_SUPPORT_H
#define VIP_SUPPORT_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vip_lite.h"

#define OK(call) \
    do { \
        vip_status_e status_ = (call); \
        if (status_ != VIP_SUCCESS) { \
            fprintf(stderr, "line %d: %s = %d\n", __LINE__, #call, (int)status_); \
            exit(10); \
        } \
    } while (0)

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "line %d: not %s\n", __LINE__, #what); \
            exit(11); \
        } \
    } while (0)

/* The same numbers as fill_bytes of running.py. */
static inline void fill_bytes(uint8_t *bytes, size_t size, uint32_t seed)
{
    uint32_t state = seed * 2654435761u + 1;
    for (size_t i = 0; i < size; i++) {
        state = state * 1664525u + 1013904223u;
        bytes[i] = (uint8_t)(state >> 24);
    }
}

static inline uint32_t checksum(const void *data, size_t size)
{
    uint32_t total = 17;
    for (size_t i = 0; i < size; i++)
        total = total * 31 + ((const uint8_t *)data)[i];
    return total;
}

/* The description of an input or output, as its buffer needs it. */
static inline vip_buffer_create_params_t describe(vip_network network, vip_uint32_t index, int is_input)
{
    vip_status_e (*query)(vip_network, vip_uint32_t, vip_enum, void *) = is_input ? vip_query_input : vip_query_output;
    vip_buffer_create_params_t params;
    memset(&params, 0, sizeof params);
    OK(query(network, index, VIP_BUFFER_PROP_NUM_OF_DIMENSION, &params.num_of_dims));
    OK(query(network, index, VIP_BUFFER_PROP_SIZES_OF_DIMENSION, params.sizes));
    OK(query(network, index, VIP_BUFFER_PROP_DATA_FORMAT, &params.data_format));
    OK(query(network, index, VIP_BUFFER_PROP_QUANT_FORMAT, &params.quant_format));
    if (params.quant_format == VIP_BUFFER_QUANTIZE_TF_ASYMM) {
        OK(query(network, index, VIP_BUFFER_PROP_TF_SCALE, &params.quant_data.affine.scale));
        OK(query(network, index, VIP_BUFFER_PROP_TF_ZERO_POINT, &params.quant_data.affine.zeroPoint));
    } else if (params.quant_format == VIP_BUFFER_QUANTIZE_DYNAMIC_FIXED_POINT) {
        OK(query(network, index, VIP_BUFFER_PROP_FIXED_POINT_POS, &params.quant_data.dfp.fixed_point_pos));
    }
    params.memory_type = VIP_BUFFER_MEMORY_TYPE_DEFAULT;
    return params;
}

#define MAX_PORTS 8

/* A network with buffers of its own. */
typedef struct {
    vip_network network;
    vip_uint32_t inputs, outputs;
    vip_buffer input[MAX_PORTS], output[MAX_PORTS];
} runner;

static inline void bind_all(runner *self)
{
    OK(vip_query_network(self->network, VIP_NETWORK_PROP_INPUT_COUNT, &self->inputs));
    OK(vip_query_network(self->network, VIP_NETWORK_PROP_OUTPUT_COUNT, &self->outputs));
    CHECK(self->inputs <= MAX_PORTS && self->outputs <= MAX_PORTS);
    for (vip_uint32_t i = 0; i < self->inputs; i++) {
        vip_buffer_create_params_t params = describe(self->network, i, 1);
        OK(vip_create_buffer(&params, sizeof params, &self->input[i]));
        OK(vip_set_input(self->network, i, self->input[i]));
    }
    for (vip_uint32_t i = 0; i < self->outputs; i++) {
        vip_buffer_create_params_t params = describe(self->network, i, 0);
        OK(vip_create_buffer(&params, sizeof params, &self->output[i]));
        OK(vip_set_output(self->network, i, self->output[i]));
    }
}

static inline void fill_inputs(runner *self, uint32_t seed)
{
    for (vip_uint32_t i = 0; i < self->inputs; i++) {
        fill_bytes(vip_map_buffer(self->input[i]), vip_get_buffer_size(self->input[i]), seed + i);
        OK(vip_unmap_buffer(self->input[i]));
        OK(vip_flush_buffer(self->input[i], VIP_BUFFER_OPER_TYPE_FLUSH));
    }
}

static inline uint32_t output_checksum(runner *self, vip_uint32_t index)
{
    OK(vip_flush_buffer(self->output[index], VIP_BUFFER_OPER_TYPE_INVALIDATE));
    return checksum(vip_map_buffer(self->output[index]), vip_get_buffer_size(self->output[index]));
}

static inline void end(runner *self)
{
    OK(vip_finish_network(self->network));
    OK(vip_destroy_network(self->network));
    for (vip_uint32_t i = 0; i < self->inputs; i++)
        OK(vip_destroy_buffer(self->input[i]));
    for (vip_uint32_t i = 0; i < self->outputs; i++)
        OK(vip_destroy_buffer(self->output[i]));
}

#endif
