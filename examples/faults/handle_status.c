/* A program that handles every status of VIPLite, for `anynpu exec --faults viplite.json -- handle_status MODEL`.
 *
 * See handle_codes.c: what may pass is tried again, a stopped NPU is switched on, the rest is reported. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vip_lite.h"

enum action { DONE, TRY_AGAIN, SWITCH_ON, PREPARE_AGAIN, GIVE_UP };

static const struct {
    int status;
    const char *name;
    enum action action;
    const char *why;
} table[] = {
    {VIP_SUCCESS, "VIP_SUCCESS", DONE, "done"},
    {VIP_ERROR_TIMEOUT, "VIP_ERROR_TIMEOUT", TRY_AGAIN, "the NPU was reset: submit again"},
    {VIP_ERROR_IO, "VIP_ERROR_IO", TRY_AGAIN, "the driver does not answer: wait, submit again"},
    {VIP_ERROR_INVALID_ARGUMENTS, "VIP_ERROR_INVALID_ARGUMENTS", GIVE_UP, "a fault of this program"},
    {VIP_ERROR_NOT_SUPPORTED, "VIP_ERROR_NOT_SUPPORTED", GIVE_UP, "not on this chip"},
    {VIP_ERROR_OUT_OF_RESOURCE, "VIP_ERROR_OUT_OF_RESOURCE", TRY_AGAIN, "others use the NPU: wait, submit again"},
    {VIP_ERROR_OUT_OF_MEMORY, "VIP_ERROR_OUT_OF_MEMORY", TRY_AGAIN, "free what can be freed, submit again"},
    {VIP_ERROR_INVALID_NETWORK, "VIP_ERROR_INVALID_NETWORK", GIVE_UP, "the file is damaged"},
    {VIP_ERROR_MISSING_INPUT_OUTPUT, "VIP_ERROR_MISSING_INPUT_OUTPUT", GIVE_UP, "a fault of this program"},
    {VIP_ERROR_NETWORK_NOT_PREPARED, "VIP_ERROR_NETWORK_NOT_PREPARED", PREPARE_AGAIN, "prepare it"},
    {VIP_ERROR_NETWORK_INCOMPATIBLE, "VIP_ERROR_NETWORK_INCOMPATIBLE", GIVE_UP, "convert it for this chip"},
    {VIP_ERROR_FAILURE, "VIP_ERROR_FAILURE", TRY_AGAIN, "no reason given: try once more"},
    {VIP_ERROR_POWER_OFF, "VIP_ERROR_POWER_OFF", SWITCH_ON, "switch the NPU on"},
    {VIP_ERROR_POWER_STOP, "VIP_ERROR_POWER_STOP", SWITCH_ON, "start the NPU"},
    {VIP_ERROR_RECOVERY, "VIP_ERROR_RECOVERY", TRY_AGAIN, "lost with a reset: submit again"},
    {VIP_ERROR_CANCELED, "VIP_ERROR_CANCELED", GIVE_UP, "somebody cancelled it"},
    {VIP_ERROR_NAN_INF, "VIP_ERROR_NAN_INF", GIVE_UP, "the results are no numbers"},
    {VIP_ERROR_FUSA, "VIP_ERROR_FUSA", GIVE_UP, "the NPU checks itself and failed"},
};

static void check(int status)
{
    if (status != VIP_SUCCESS) {
        fprintf(stderr, "status %d\n", status);
        exit(1);
    }
}

int main(int count, char **arguments)
{
    if (count < 2)
        return 2;
    const int kinds = sizeof table / sizeof *table;
    vip_network network = NULL;
    vip_buffer buffers[16];
    int made = 0;
    check(vip_init());
    check(vip_create_network(arguments[1], 0, VIP_CREATE_NETWORK_FROM_FILE, &network));
    check(vip_prepare_network(network));
    for (int side = 0; side < 2; side++) {
        vip_uint32_t ports = 0;
        check(vip_query_network(network, side ? VIP_NETWORK_PROP_OUTPUT_COUNT : VIP_NETWORK_PROP_INPUT_COUNT, &ports));
        for (vip_uint32_t port = 0; port < ports && made < 16; port++) {
            vip_buffer_create_params_t param;
            vip_buffer buffer = NULL;
            memset(&param, 0, sizeof param);
            vip_status_e (*query)(vip_network, vip_uint32_t, vip_enum, void *) = side ? vip_query_output : vip_query_input;
            check(query(network, port, VIP_BUFFER_PROP_NUM_OF_DIMENSION, &param.num_of_dims));
            check(query(network, port, VIP_BUFFER_PROP_SIZES_OF_DIMENSION, param.sizes));
            check(query(network, port, VIP_BUFFER_PROP_DATA_FORMAT, &param.data_format));
            check(vip_create_buffer(&param, sizeof param, &buffer));
            buffers[made++] = buffer;
            if (!side) {
                memset(vip_map_buffer(buffer), 0, vip_get_buffer_size(buffer));
                check(vip_flush_buffer(buffer, VIP_BUFFER_OPER_TYPE_FLUSH));
            }
            check((side ? vip_set_output : vip_set_input)(network, port, buffer));
        }
    }
    int done = 0;
    for (int run = 0; run < 3 * kinds && done < kinds; run++) {
        int status = vip_run_network(network), kind = 0;
        while (kind < kinds && table[kind].status != status)
            kind++;
        if (kind == kinds) {
            printf("%d: a status that nobody knows\n", status);
            return 1;
        }
        if (table[kind].action == DONE) {
            done++;
            continue;
        }
        printf("%s: %s\n", table[kind].name, table[kind].why);
        if (table[kind].action == SWITCH_ON) {
            check(vip_power_management(0, VIP_POWER_PROPERTY_ON, NULL));
            check(vip_power_management(0, VIP_POWER_PROPERTY_START, NULL));
        } else if (table[kind].action == PREPARE_AGAIN)
            check(vip_prepare_network(network));
    }
    check(vip_finish_network(network));
    check(vip_destroy_network(network));
    while (made > 0)
        check(vip_destroy_buffer(buffers[--made]));
    check(vip_destroy());
    printf("%d runs done\n", done);
    return 0;
}
