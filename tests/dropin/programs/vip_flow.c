/* The call flow of the reference: initialize, create, prepare, bind, run again and again, finish, destroy.
 * vip_flow MODEL RUNS prints what it finds, and a checksum of each output of each run. */
#include "vip_support.h"

int main(int count, char **arguments)
{
    CHECK(count == 3);
    vip_uint32_t number = 0, cores = 0;
    runner self;
    vip_uint8_t priority = 100;
    vip_uint32_t timeout = 60000;
    char name[64];
    CHECK(vip_create_network(arguments[1], 0, VIP_CREATE_NETWORK_FROM_FILE, &self.network) == VIP_ERROR_NOT_SUPPORTED);
    OK(vip_init());
    OK(vip_query_hardware(VIP_QUERY_HW_PROP_CID, sizeof number, &number));
    OK(vip_query_hardware(VIP_QUERY_HW_PROP_CORE_COUNT_EACH_DEVICE, sizeof cores, &cores));
    printf("version %08x cid %x cores %u\n", vip_get_version(), number, cores);
    OK(vip_create_network(arguments[1], 0, VIP_CREATE_NETWORK_FROM_FILE, &self.network));
    OK(vip_set_network(self.network, VIP_NETWORK_PROP_SET_PRIORITY, &priority));
    if (vip_get_version() >= 0x00010d00)
        OK(vip_set_network(self.network, VIP_NETWORK_PROP_SET_TIME_OUT, &timeout));
    CHECK(vip_run_network(self.network) == VIP_ERROR_NETWORK_NOT_PREPARED);
    OK(vip_prepare_network(self.network));
    CHECK(vip_run_network(self.network) == VIP_ERROR_MISSING_INPUT_OUTPUT);
    bind_all(&self);
    for (vip_uint32_t i = 0; i < self.inputs; i++) {
        vip_buffer_create_params_t params = describe(self.network, i, 1);
        OK(vip_query_input(self.network, i, VIP_BUFFER_PROP_NAME, name));
        printf("input %s %u %u %u %u format %d\n", name, params.sizes[0], params.sizes[1], params.sizes[2], params.sizes[3], params.data_format);
    }
    for (int run = 0; run < atoi(arguments[2]); run++) {
        fill_inputs(&self, (uint32_t)run);
        if (run % 2) {
            OK(vip_trigger_network(self.network));
            OK(vip_wait_network(self.network));
        } else {
            OK(vip_run_network(self.network));
        }
        for (vip_uint32_t i = 0; i < self.outputs; i++)
            printf("run %d output %u %08x\n", run, i, output_checksum(&self, i));
    }
    vip_inference_profile_t profile;
    OK(vip_query_network(self.network, VIP_NETWORK_PROP_PROFILING, &profile));
    CHECK(profile.inference_time > 0 && profile.total_cycle > profile.inference_time);
    end(&self);
    OK(vip_destroy());
    CHECK(vip_destroy() == VIP_ERROR_NOT_SUPPORTED);
    CHECK(vip_map_buffer(NULL) == NULL);
    return 0;
}
