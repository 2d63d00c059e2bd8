/* Buffers by descriptor, by address and cached: vip_memory MODEL prints one checksum, which must be the same for all. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

#include "vip_support.h"

static runner self;

static uint32_t run_with(vip_buffer input)
{
    memset(vip_map_buffer(self.output[0]), 0, vip_get_buffer_size(self.output[0]));
    OK(vip_set_input(self.network, 0, input));
    OK(vip_run_network(self.network));
    return output_checksum(&self, 0);
}

int main(int count, char **arguments)
{
    CHECK(count == 2);
    OK(vip_init());
    OK(vip_create_network(arguments[1], 0, VIP_CREATE_NETWORK_FROM_FILE, &self.network));
    OK(vip_prepare_network(self.network));
    bind_all(&self);
    fill_inputs(&self, 0);
    uint32_t expected = run_with(self.input[0]);
    printf("%08x\n", expected);
    vip_buffer_create_params_t params = describe(self.network, 0, 1);
    vip_uint32_t size = vip_get_buffer_size(self.input[0]), rounded = (size + 63) / 64 * 64;
    vip_buffer buffer;

    int fd = memfd_create("picture", 0);
    CHECK(fd >= 0 && ftruncate(fd, rounded) == 0);
    uint8_t *mapped = mmap(NULL, rounded, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(mapped != MAP_FAILED);
    OK(vip_create_buffer_from_fd(&params, (vip_uint32_t)fd, rounded, &buffer));
    close(fd);
    fill_bytes(mapped, size, 0);
    CHECK(run_with(buffer) == expected);
    CHECK(vip_get_buffer_size(buffer) == size);
    OK(vip_destroy_buffer(buffer));
    CHECK(vip_run_network(self.network) == VIP_ERROR_MISSING_INPUT_OUTPUT);
    CHECK(vip_create_buffer_from_fd(&params, 9999, rounded, &buffer) == VIP_ERROR_IO && buffer == NULL);

    uint8_t *memory = aligned_alloc(64, rounded);
    OK(vip_create_buffer_from_handle(&params, memory, rounded, &buffer));
    CHECK(vip_map_buffer(buffer) == memory);
    fill_bytes(memory, size, 0);
    CHECK(run_with(buffer) == expected);
    OK(vip_destroy_buffer(buffer));
    CHECK(vip_create_buffer_from_handle(&params, memory + 4, rounded, &buffer) == VIP_ERROR_INVALID_ARGUMENTS);
    CHECK(vip_create_buffer_from_handle(&params, memory, size - 1, &buffer) == VIP_ERROR_INVALID_ARGUMENTS);
    free(memory);

    OK(vip_create_buffer_cache(&params, sizeof params, &buffer));
    CHECK((uintptr_t)vip_map_buffer(buffer) % 64 == 0);
    fill_bytes(vip_map_buffer(buffer), size, 0);
    OK(vip_flush_buffer(buffer, VIP_BUFFER_OPER_TYPE_FLUSH));
    CHECK(run_with(buffer) == expected);
    OK(vip_destroy_buffer(buffer));

    end(&self);
    OK(vip_destroy());
    return 0;
}
