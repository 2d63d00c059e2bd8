/* Programs after the patterns of the vendor's tools: vip_patterns union|twice|hang|unprepared|no-number|node MODEL. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vip_lite.h"
#include "awnn.h"
#include "awnn_internal.h"

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

/* Asks for every kind of quantization into the one struct, as vpm_run does, and decodes by what came last. */
static void through_the_union(const char *path)
{
    CHECK(vip_init() == VIP_SUCCESS);
    vip_network network = NULL;
    CHECK(vip_create_network(path, 0, VIP_CREATE_NETWORK_FROM_FILE, &network) == VIP_SUCCESS);
    vip_buffer_create_params_t param;
    memset(&param, 0, sizeof param);
    CHECK(vip_query_output(network, 0, VIP_BUFFER_PROP_QUANT_FORMAT, &param.quant_format) == VIP_SUCCESS);
    CHECK(vip_query_output(network, 0, VIP_BUFFER_PROP_FIXED_POINT_POS, &param.quant_data.dfp.fixed_point_pos) == VIP_SUCCESS);
    CHECK(vip_query_output(network, 0, VIP_BUFFER_PROP_TF_SCALE, &param.quant_data.affine.scale) == VIP_SUCCESS);
    CHECK(vip_query_output(network, 0, VIP_BUFFER_PROP_TF_ZERO_POINT, &param.quant_data.affine.zeroPoint) == VIP_SUCCESS);
    if (param.quant_format == VIP_BUFFER_QUANTIZE_DYNAMIC_FIXED_POINT)
        printf("output_dfp=%d\n", param.quant_data.dfp.fixed_point_pos);
    else
        printf("scale=%f zero_point=%d\n", param.quant_data.affine.scale, param.quant_data.affine.zeroPoint);
    CHECK(vip_query_output(network, 0, VIP_BUFFER_PROP_FIXED_POINT_POS, &param.quant_data.dfp.fixed_point_pos) == VIP_SUCCESS);
    if (param.quant_format == VIP_BUFFER_QUANTIZE_TF_ASYMM)
        printf("scale=%f again\n", param.quant_data.affine.scale);
    vip_bool_e enable = vip_true_e;
    printf("layer times %d\n", vip_set_network(network, VIP_NETWORK_PROP_SET_ENABLE_NPD, &enable));
    CHECK(vip_destroy_network(network) == VIP_SUCCESS);
    CHECK(vip_destroy() == VIP_SUCCESS);
}

/* What a dumped layer looks like, as a current vpm_run writes it down. */
static void describe(const vip_nld_output_t *output)
{
    for (vip_uint32_t index = 0; index < output->count; index++) {
        const vip_nld_output_info_t *info = output->info + index;
        printf("%s %u %u %u %u %f %d\n", info->layer_name, info->layer_id, info->layer_output_index, info->uid, info->param.dim_size[0],
               info->param.quant_data.affine.tf_scale, info->param.quant_data.affine.tf_zero_point);
    }
}

/* Looks inside a context, and destroys it twice. */
static void twice(const char *path)
{
    awnn_init();
    Awnn_Context_t *context = awnn_create(path);
    CHECK(context != NULL);
    unsigned char *pixels = calloc(vip_get_buffer_size(context->input_buffers[0]), 1);
    unsigned char *inputs[] = {pixels};
    awnn_set_input_buffers(context, inputs);
    awnn_run(context);
    printf("inputs %u outputs %u elements %u\n", context->input_count, context->output_count, context->output_params[0].elements);
    awnn_destroy(context);
    awnn_destroy(context);
    awnn_uninit();
    free(pixels);
}

/* A network that takes longer than it may, and a priority that is wider than its byte. */
static void hang(const char *path)
{
    CHECK(vip_init() == VIP_SUCCESS);
    vip_network network = NULL;
    CHECK(vip_create_network(path, 0, VIP_CREATE_NETWORK_FROM_FILE, &network) == VIP_SUCCESS);
    vip_uint32_t limit = 20, priority = 300;
    CHECK(vip_set_network(network, VIP_NETWORK_PROP_SET_TIME_OUT, &limit) == VIP_SUCCESS);
    CHECK(vip_set_network(network, VIP_NETWORK_PROP_SET_PRIORITY, &priority) == VIP_SUCCESS);
    CHECK(vip_prepare_network(network) == VIP_SUCCESS);
    for (int side = 0; side < 2; side++) {
        vip_buffer_create_params_t param;
        memset(&param, 0, sizeof param);
        vip_status_e (*query)(vip_network, vip_uint32_t, vip_enum, void *) = side ? vip_query_output : vip_query_input;
        CHECK(query(network, 0, VIP_BUFFER_PROP_NUM_OF_DIMENSION, &param.num_of_dims) == VIP_SUCCESS);
        CHECK(query(network, 0, VIP_BUFFER_PROP_SIZES_OF_DIMENSION, param.sizes) == VIP_SUCCESS);
        CHECK(query(network, 0, VIP_BUFFER_PROP_DATA_FORMAT, &param.data_format) == VIP_SUCCESS);
        vip_buffer buffer = NULL;
        CHECK(vip_create_buffer(&param, sizeof param, &buffer) == VIP_SUCCESS);
        CHECK((side ? vip_set_output : vip_set_input)(network, 0, buffer) == VIP_SUCCESS);
    }
    printf("run %d\n", vip_run_network(network));
    CHECK(vip_destroy() == VIP_SUCCESS);
}

/* Runs a network that is not prepared, several times at one place. */
static void unprepared(const char *path, int times)
{
    CHECK(vip_init() == VIP_SUCCESS);
    vip_network network = NULL;
    CHECK(vip_create_network(path, 0, VIP_CREATE_NETWORK_FROM_FILE, &network) == VIP_SUCCESS);
    for (int time = 0; time < times; time++)
        CHECK(vip_run_network(network) != VIP_SUCCESS);
    CHECK(vip_destroy() == VIP_SUCCESS);
    awnn_init();
    CHECK(awnn_create("absent.nb") == NULL);
    awnn_uninit();
}

/* A float16 input of which one element is no number from the third run on. */
static void no_number(const char *path)
{
    CHECK(vip_init() == VIP_SUCCESS);
    vip_network network = NULL;
    CHECK(vip_create_network(path, 0, VIP_CREATE_NETWORK_FROM_FILE, &network) == VIP_SUCCESS);
    CHECK(vip_prepare_network(network) == VIP_SUCCESS);
    vip_buffer buffers[2];
    for (int side = 0; side < 2; side++) {
        vip_buffer_create_params_t param;
        memset(&param, 0, sizeof param);
        vip_status_e (*query)(vip_network, vip_uint32_t, vip_enum, void *) = side ? vip_query_output : vip_query_input;
        CHECK(query(network, 0, VIP_BUFFER_PROP_NUM_OF_DIMENSION, &param.num_of_dims) == VIP_SUCCESS);
        CHECK(query(network, 0, VIP_BUFFER_PROP_SIZES_OF_DIMENSION, param.sizes) == VIP_SUCCESS);
        CHECK(query(network, 0, VIP_BUFFER_PROP_DATA_FORMAT, &param.data_format) == VIP_SUCCESS);
        CHECK(param.data_format == VIP_BUFFER_FORMAT_FP16);
        CHECK(vip_create_buffer(&param, sizeof param, buffers + side) == VIP_SUCCESS);
        CHECK((side ? vip_set_output : vip_set_input)(network, 0, buffers[side]) == VIP_SUCCESS);
    }
    unsigned short *halves = vip_map_buffer(buffers[0]);
    memset(halves, 0, vip_get_buffer_size(buffers[0]));
    for (int time = 0; time < 5; time++) {
        if (time == 2)
            halves[7] = 0x7e00;
        CHECK(vip_run_network(network) == VIP_SUCCESS);
        fprintf(stderr, "run %d\n", time);
    }
    CHECK(vip_destroy() == VIP_SUCCESS);
}

int main(int count, char **arguments)
{
    CHECK(count > 2);
    vip_nld_output_t none = {0, NULL};
    describe(&none);
    if (strcmp(arguments[1], "union") == 0)
        through_the_union(arguments[2]);
    else if (strcmp(arguments[1], "twice") == 0)
        twice(arguments[2]);
    else if (strcmp(arguments[1], "hang") == 0)
        hang(arguments[2]);
    else if (strcmp(arguments[1], "unprepared") == 0)
        unprepared(arguments[2], count);
    else if (strcmp(arguments[1], "no-number") == 0)
        no_number(arguments[2]);
    else
        CHECK(access("/dev/vipcore", R_OK | W_OK) == 0);
    printf("done\n");
    return 0;
}
