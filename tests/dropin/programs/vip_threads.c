/* Threads with a duplicate each, and priorities: vip_threads MODEL prints the checksum of each input's result as every thread sees it. */
#include <pthread.h>

#include "vip_support.h"

#define THREADS 4
#define RUNS 12
#define CASES 3

static vip_network original;
static uint32_t expected[CASES];

static void *work(void *argument)
{
    vip_uint8_t priority = (vip_uint8_t)(uintptr_t)argument * 60;
    runner self;
    OK(vip_dup_network(NULL, 0, VIP_DUP_FOR_CMD_BY_NETWORK | VIP_DUP_FROM_NETWORK, original, &self.network));
    OK(vip_set_network(self.network, VIP_NETWORK_PROP_SET_PRIORITY, &priority));
    OK(vip_prepare_network(self.network));
    bind_all(&self);
    for (uint32_t run = 0; run < RUNS; run++) {
        uint32_t which = (run + (uint32_t)(uintptr_t)argument) % CASES;
        fill_inputs(&self, which);
        if (run % 2) {
            OK(vip_trigger_network(self.network));
            OK(vip_wait_network(self.network));
        } else {
            OK(vip_run_network(self.network));
        }
        CHECK(output_checksum(&self, 0) == expected[which]);
    }
    end(&self);
    return NULL;
}

int main(int count, char **arguments)
{
    pthread_t threads[THREADS];
    runner self;
    CHECK(count == 2);
    OK(vip_init());
    OK(vip_create_network(arguments[1], 0, VIP_CREATE_NETWORK_FROM_FILE, &self.network));
    OK(vip_prepare_network(self.network));
    original = self.network;
    bind_all(&self);
    for (uint32_t which = 0; which < CASES; which++) {
        fill_inputs(&self, which);
        OK(vip_run_network(self.network));
        expected[which] = output_checksum(&self, 0);
        printf("case %u %08x\n", which, expected[which]);
    }
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    end(&self);
    OK(vip_destroy());
    return 0;
}
