/* layouts_vip MODEL: what a program exchanges with VIPLite and libawnn, field by field, and the bytes of its outputs.
 * Built with our headers, or with declarations made from the published tables (PUBLIC): it must print the same. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef PUBLIC
#include "public_vip.h"
#else
#include "awnn_lib.h"
#include "vip_lite.h"
#endif

#define OK(call) \
    do { \
        int status_ = (int)(call); \
        if (status_ != VIP_SUCCESS) { \
            fprintf(stderr, "line %d: %s = %d\n", __LINE__, #call, status_); \
            exit(1); \
        } \
    } while (0)

static void show(const char *what, const void *data, size_t size)
{
    uint64_t total = 17;
    for (size_t i = 0; i < size; i++)
        total = total * 1099511628211u + ((const uint8_t *)data)[i];
    printf("%s %zu %016llx\n", what, size, (unsigned long long)total);
}

static void fill(uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)(i * 37u + i / 251u);
}

static vip_buffer_create_params_t describe(vip_network network, int output)
{
    vip_buffer_create_params_t params;
    char name[64] = "";
    memset(&params, 0, sizeof params);
#define ASK(property, value) OK(output ? vip_query_output(network, 0, property, value) : vip_query_input(network, 0, property, value))
    ASK(VIP_BUFFER_PROP_NUM_OF_DIMENSION, &params.num_of_dims);
    ASK(VIP_BUFFER_PROP_SIZES_OF_DIMENSION, params.sizes);
    ASK(VIP_BUFFER_PROP_DATA_FORMAT, &params.data_format);
    ASK(VIP_BUFFER_PROP_QUANT_FORMAT, &params.quant_format);
    ASK(VIP_BUFFER_PROP_NAME, name);
    if (params.quant_format == VIP_BUFFER_QUANTIZE_TF_ASYMM) {
        ASK(VIP_BUFFER_PROP_TF_SCALE, &params.quant_data.affine.scale);
        ASK(VIP_BUFFER_PROP_TF_ZERO_POINT, &params.quant_data.affine.zeroPoint);
        printf("affine %a %d\n", params.quant_data.affine.scale, params.quant_data.affine.zeroPoint);
    } else if (params.quant_format == VIP_BUFFER_QUANTIZE_DYNAMIC_FIXED_POINT) {
        ASK(VIP_BUFFER_PROP_FIXED_POINT_POS, &params.quant_data.dfp.fixed_point_pos);
        printf("position %d\n", params.quant_data.dfp.fixed_point_pos);
    }
    params.memory_type = VIP_BUFFER_MEMORY_TYPE_DEFAULT;
    printf("%s %u: %u %u %u %u format %d quantisation %d\n", name, params.num_of_dims, params.sizes[0], params.sizes[1], params.sizes[2],
           params.sizes[3], params.data_format, params.quant_format);
    return params;
}

static void viplite(const char *model)
{
    vip_network network = NULL;
    vip_buffer input = NULL, output = NULL;
    vip_uint32_t count = 0;
    OK(vip_init());
    printf("version %x\n", (unsigned)vip_get_version());
    OK(vip_create_network(model, 0, VIP_CREATE_NETWORK_FROM_FILE, &network));
    OK(vip_prepare_network(network));
    OK(vip_query_network(network, VIP_NETWORK_PROP_INPUT_COUNT, &count));
    printf("inputs %u\n", count);
    vip_buffer_create_params_t in = describe(network, 0), out = describe(network, 1);
    OK(vip_create_buffer(&in, sizeof in, &input));
    OK(vip_create_buffer(&out, sizeof out, &output));
    fill(vip_map_buffer(input), vip_get_buffer_size(input));
    OK(vip_flush_buffer(input, VIP_BUFFER_OPER_TYPE_FLUSH));
    OK(vip_set_input(network, 0, input));
    OK(vip_set_output(network, 0, output));
    OK(vip_run_network(network));
    OK(vip_flush_buffer(output, VIP_BUFFER_OPER_TYPE_INVALIDATE));
    show("output", vip_map_buffer(output), vip_get_buffer_size(output));
    vip_inference_profile_t profile;
    memset(&profile, 0, sizeof profile);
    OK(vip_query_network(network, VIP_NETWORK_PROP_PROFILING, &profile));
    printf("profile %d %d\n", profile.inference_time > 0, profile.total_cycle > 0);
    printf("unknown %d\n", (int)vip_set_network(network, 1000, &count));
    OK(vip_finish_network(network));
    OK(vip_destroy_network(network));
    OK(vip_destroy_buffer(input));
    OK(vip_destroy_buffer(output));
    OK(vip_destroy());
}

static void awnn(const char *model, size_t elements)
{
    uint8_t bytes[4096];
    fill(bytes, sizeof bytes);
    void *inputs[1] = {bytes};
    awnn_init();
    Awnn_Context_t *context = awnn_create(model);
    if (context == NULL)
        exit(3);
    awnn_set_input_buffers(context, inputs);
    awnn_run(context);
    show("floats", awnn_get_output_buffers(context)[0], elements * sizeof(float));
    show("raw", awnn_get_output_buffer(context, 0), 16);
    awnn_destroy(context);
    awnn_uninit();
}

int main(int count, char **arguments)
{
    if (count != 3)
        return 2;
    viplite(arguments[1]);
    awnn(arguments[1], (size_t)atol(arguments[2]));
    return 0;
}
