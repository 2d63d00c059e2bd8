/* Random calls with handles that are right, stale, null or of another kind: vip_misuse MODEL CALLS SEED LIVES.
 * Every status must be one of the interface, a decent run must succeed after each thousand calls, and lives in a row must leave nothing. */
#include <dirent.h>

#include "vip_support.h"

static uint32_t state;

static uint32_t pick(uint32_t below)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % below;
}

#define SLOTS 64
static void *slots[SLOTS];

static void *any(void)
{
    static const uintptr_t wild[] = {0, 1, 16, 0x7fff0000, 0xffffffffffffffc0u, 0x00a9000000001230u};
    return pick(4) == 0 ? (void *)wild[pick(sizeof wild / sizeof *wild)] : slots[pick(SLOTS)];
}

static void keep(void *handle)
{
    if (handle != NULL)
        slots[pick(SLOTS)] = handle;
}

static void judge(vip_status_e status)
{
    CHECK(status <= 0 && status >= -17);
}

static int open_files(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

static void one_call(const char *model, const uint8_t *data, vip_uint32_t size)
{
    union {
        vip_network network;
        vip_buffer buffer;
        vip_group group;
        void *any;
    } out = {.any = NULL};
    union {
        uint8_t bytes[128];
        vip_uint32_t number;
    } value;
    vip_buffer_create_params_t params;
    memset(&value, 0, sizeof value);
    memset(&params, 0, sizeof params);
    params.num_of_dims = pick(8);
    for (int i = 0; i < 6; i++)
        params.sizes[i] = pick(6) == 0 ? 0 : pick(40) + 1;
    params.data_format = (vip_enum)pick(18);
    params.quant_format = (vip_enum)pick(4);
    params.memory_type = pick(5);
    static _Alignas(64) uint8_t memory[1 << 16];
    value.number = pick(4);
    switch (pick(36)) {
    case 0: judge(vip_init()); break;
    case 1: if (pick(8) == 0) judge(vip_destroy()); break;
    case 2: case 3: judge(vip_create_network(model, 0, VIP_CREATE_NETWORK_FROM_FILE, &out.network)); keep(out.any); break;
    case 4: judge(vip_create_network(data, pick(2) ? size : pick(size), (vip_enum)pick(6), pick(9) ? &out.network : NULL)); keep(out.any); break;
    case 5: judge(vip_dup_network(data, size, (vip_enum)pick(4096), any(), &out.network)); keep(out.any); break;
    case 6: judge(vip_weak_dup_network(any(), &out.network)); keep(out.any); break;
    case 7: judge(vip_destroy_network(any())); break;
    case 8: case 9: case 10: judge(vip_prepare_network(any())); break;
    case 11: judge(vip_finish_network(any())); break;
    case 12: case 13: judge(vip_set_input(any(), pick(3), any())); break;
    case 14: case 15: judge(vip_set_output(any(), pick(3), any())); break;
    case 16: judge(vip_run_network(any())); break;
    case 17: judge(vip_trigger_network(any())); break;
    case 18: judge(vip_wait_network(any())); break;
    case 19: judge(vip_cancel_network(any())); break;
    case 20: if (pick(2)) { vip_enum property = 64 + (vip_enum)pick(12); if (property != 65 && property != 69) judge(vip_set_network(any(), property, pick(5) ? (void *)&value : NULL)); } break;
    case 21: judge(vip_query_network(any(), (vip_enum)pick(12), pick(5) ? (void *)&value : NULL)); break;
    case 22: judge(vip_query_input(any(), pick(3), (vip_enum)pick(10), &value)); break;
    case 23: judge(vip_query_output(any(), pick(3), (vip_enum)pick(10), &value)); break;
    case 24: case 25: judge(vip_create_buffer(pick(9) ? &params : NULL, pick(2) ? 48 : pick(60), &out.buffer)); keep(out.any); break;
    case 26: judge(vip_create_buffer_cache(&params, 48, &out.buffer)); keep(out.any); break;
    case 27: params.num_of_dims %= 4; judge(vip_create_buffer_from_handle(&params, memory + pick(3) * 32, pick(1000) * 64, &out.buffer)); keep(out.any); break;
    case 28: judge(vip_create_buffer_from_fd(&params, 5000 + pick(9), pick(9) * 64, &out.buffer)); keep(out.any); break;
    case 29: judge(vip_destroy_buffer(any())); break;
    case 30: judge(vip_flush_buffer(any(), (vip_enum)pick(5))); (void)vip_map_buffer(any()); (void)vip_get_buffer_size(any()); break;
    case 31: judge(vip_create_group(pick(3), &out.group)); keep(out.any); break;
    case 32: judge(vip_add_network(any(), any())); judge(vip_destroy_group(any())); break;
    case 33: judge(vip_run_group(any(), pick(3))); judge(vip_trigger_group(any(), pick(3))); judge(vip_wait_group(any())); break;
    case 34: judge(vip_power_management(pick(2), (vip_enum)(1 << pick(5)), &value)); break;
    case 35: judge(vip_set_group(any(), 60 + (vip_enum)pick(10), &value)); judge(vip_query_group(any(), (vip_enum)pick(2), &value)); judge(vip_set_ppu_param(any(), NULL, 0)); break;
    }
}

static void decent(const char *model)
{
    runner self;
    OK(vip_init());
    OK(vip_power_management(0, VIP_POWER_PROPERTY_ON, NULL));
    OK(vip_power_management(0, VIP_POWER_PROPERTY_START, NULL));
    OK(vip_create_network(model, 0, VIP_CREATE_NETWORK_FROM_FILE, &self.network));
    OK(vip_prepare_network(self.network));
    bind_all(&self);
    fill_inputs(&self, 0);
    OK(vip_run_network(self.network));
    end(&self);
    OK(vip_destroy());
}

int main(int count, char **arguments)
{
    CHECK(count == 5);
    FILE *file = fopen(arguments[1], "rb");
    static uint8_t data[1 << 20];
    CHECK(file != NULL);
    vip_uint32_t size = (vip_uint32_t)fread(data, 1, sizeof data, file);
    fclose(file);
    state = (uint32_t)atoi(arguments[3]);
    for (long call = 0; call < atol(arguments[2]); call++) {
        one_call(arguments[1], data, size);
        if (call % 1000 == 999)
            decent(arguments[1]);
    }
    while (vip_destroy() == VIP_SUCCESS)
        continue;
    for (int life = 0; life < 3; life++)
        decent(arguments[1]);
    int files = open_files();
    for (int life = 0; life < atoi(arguments[4]); life++)
        decent(arguments[1]);
    CHECK(open_files() <= files);
    printf("decent\n");
    return 0;
}
