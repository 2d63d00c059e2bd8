/* Threads that share the rows of a layer with the thread that runs the program.
 *
 * A pool belongs to whoever opened it, serves one run at a time, and has no thread left when it is closed. A child process that was made by
 * fork() has none of the threads: the pool is not usable there. Where there are no POSIX threads no pool can be opened. */
#ifndef ANYNPU_WORKERS_H
#define ANYNPU_WORKERS_H

#include "anynpu_native.h"

/* Computes output rows [first_row, last_row). thread: which of the threads does it; 0 is the caller. */
typedef void anynpu_rows_task(const void *job, size_t thread, size_t first_row, size_t last_row);

int anynpu_workers_usable(const struct anynpu_workers *workers);

/* Runs a task on all rows, on the calling thread and those of the pool, and returns when all of it is done. What was written before is
 * visible to the task, and what the task wrote is visible after. */
void anynpu_share_rows(struct anynpu_workers *workers, anynpu_rows_task *task, const void *job, size_t rows);

#endif
