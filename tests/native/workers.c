/* Hands out rows to pools of several sizes, with and without pauses that let the threads fall asleep, and checks that every row was computed
 * once and that one task follows the other. Prints nothing and returns 0 where all is well. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "workers.h"

enum { MAX_ROWS = 40, TASKS = 3000, POOLS = 60 };

struct layer {
    const int *from;
    int *to;
    size_t most_thread;
};

/* Every row depends on all rows of the layer before: whoever begins too early sees an old one. */
static void add_up(const void *job, size_t thread, size_t first_row, size_t last_row)
{
    const struct layer *layer = job;
    for (size_t row = first_row; row < last_row; row++) {
        int sum = 0;
        for (size_t i = 0; i < MAX_ROWS; i++)
            sum += layer->from[i];
        layer->to[row] = thread < layer->most_thread ? sum % 1000 + (int)row : -1;
    }
}

static int check_pool(size_t threads)
{
    struct anynpu_workers *pool = anynpu_workers_open(threads);
    int rows[2][MAX_ROWS], alone[2][MAX_ROWS];
    if (pool == NULL)
        return 0;
    memset(rows, 1, sizeof rows);
    memset(alone, 1, sizeof alone);
    for (size_t task = 0; task < TASKS; task++) {
        size_t count = 1 + task % MAX_ROWS;
        struct layer layer = {rows[task % 2], rows[(task + 1) % 2], anynpu_workers_threads(pool)};
        struct layer same = {alone[task % 2], alone[(task + 1) % 2], 1};
        anynpu_share_rows(pool, 2 + task % (threads - 1), add_up, &layer, count);
        add_up(&same, 0, 0, count);
        if (memcmp(rows, alone, sizeof rows) != 0)
            return 0;
        if (task % 500 == 0)
            nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    anynpu_workers_close(pool);
    return 1;
}

/* Runs share the processors: with more runs than processors, none gets more threads than it is sure of. */
static int check_shares(void)
{
    struct anynpu_workers *pool = anynpu_workers_open(4);
    int runs = (int)sysconf(_SC_NPROCESSORS_ONLN) + 1, right = pool != NULL;
    for (int i = 0; i < runs; i++)
        anynpu_count_runs(1);
    for (size_t least = 1; right && least <= 5; least++)
        right = anynpu_threads_now(pool, least) == (least < 4 ? least : 4);
    for (int i = 0; i < runs; i++)
        anynpu_count_runs(-1);
    size_t alone = right ? anynpu_threads_now(pool, 1) : 0;
    anynpu_workers_close(pool);
    return alone >= 1 && alone <= 4;
}

int main(void)
{
    if (!check_shares()) {
        printf("wrong shares\n");
        return 1;
    }
    for (size_t threads = 2; threads <= 4; threads++)
        if (!check_pool(threads)) {
            printf("wrong with %zu threads\n", threads);
            return 1;
        }
    for (size_t i = 0; i < POOLS; i++) { /* closed while threads look for work, sleep, or have not begun */
        struct anynpu_workers *pool = anynpu_workers_open(3);
        if (i % 3 == 1)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        anynpu_workers_close(pool);
    }
    return anynpu_workers_open(1) != NULL;
}
