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
 * visible to the task, and what the task wrote is visible after. threads: about how many of the pool take part, at least 2. */
void anynpu_share_rows(struct anynpu_workers *workers, size_t threads, anynpu_rows_task *task, const void *job, size_t rows);

/* Runs of this process that begin (1) or end (-1): they share the processors. */
void anynpu_count_runs(int change);

/* How many threads of a pool a run may use for its next layer: at least so many, and more while processors are idle. Runs of this process
 * get equal shares of the processors that nothing else needs, as the system's number of running threads reports every few milliseconds. */
size_t anynpu_threads_now(const struct anynpu_workers *workers, size_t least);

#endif
