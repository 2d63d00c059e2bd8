/* A pool of threads. Layers follow each other within microseconds, so a thread without work looks for some a little while before it sleeps,
 * and rows are handed out in several parts: a thread that the system wakes late finds less to do, and nobody waits for it. */
#if !defined(_WIN32) && __has_include(<pthread.h>)
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "workers.h"

enum {
    PARTS_EACH = 2, /* of the rows, for each thread: more would balance better, but each begins with a few rows that overlap the last */
    SPINS = 2000,   /* looks for work, about 50 microseconds, before a thread sleeps */
    LOOK_NS = 4000000, /* between two looks at what else runs on the machine */
    CACHE_LINE = 64
};

struct worker {
    struct anynpu_workers *pool;
    size_t number;
    pthread_t thread;
};

struct anynpu_workers {
    pid_t process;
    size_t threads; /* with the caller's */
    /* The task at hand. Changes only while no part of it is taken or left. */
    anynpu_rows_task *task;
    const void *job;
    size_t rows, parts, limit; /* limit: threads from this number on leave the task to others */
    /* Who sleeps. Written under the lock, and read without it after `left` or `done` was written: one side always sees the other. */
    int sleeping; /* workers */
    int waiting;  /* the caller */
    int closing;
    pthread_mutex_t lock;
    pthread_cond_t published, finished;
    _Alignas(CACHE_LINE) size_t left; /* parts that nobody has taken */
    _Alignas(CACHE_LINE) size_t done; /* parts that are finished */
    _Alignas(CACHE_LINE) struct worker workers[];
};

/* What runs in this process and, of the last two looks, on the machine beside it. */
static struct {
    long processors;
    int runs;   /* with the threads that run them */
    int awake;  /* workers that do not sleep */
    int64_t looked_ns;
    int others, before;
} load;

static void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* One part, if one is left. Who has taken one knows that the task does not change before it is finished. */
static int take_part(struct anynpu_workers *pool, size_t thread)
{
    size_t left = __atomic_load_n(&pool->left, __ATOMIC_RELAXED);
    while (left > 0)
        if (__atomic_compare_exchange_n(&pool->left, &left, left - 1, 1, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
            size_t part = pool->parts - left;
            pool->task(pool->job, thread, pool->rows * part / pool->parts, pool->rows * (part + 1) / pool->parts);
            __atomic_fetch_add(&pool->done, 1, __ATOMIC_SEQ_CST);
            return 1;
        }
    return 0;
}

static int nothing_left(const struct anynpu_workers *pool, size_t thread)
{
    return __atomic_load_n(&pool->left, __ATOMIC_SEQ_CST) == 0 || thread >= __atomic_load_n(&pool->limit, __ATOMIC_RELAXED);
}

static int unfinished(const struct anynpu_workers *pool)
{
    return __atomic_load_n(&pool->done, __ATOMIC_SEQ_CST) < pool->parts;
}

/* 0: the pool closes. */
static int wait_for_work(struct anynpu_workers *pool, size_t thread)
{
    for (int spin = 0; spin < SPINS; spin++) {
        if (!nothing_left(pool, thread))
            return 1;
        pause_briefly();
    }
    pthread_mutex_lock(&pool->lock);
    __atomic_fetch_add(&pool->sleeping, 1, __ATOMIC_SEQ_CST);
    __atomic_fetch_sub(&load.awake, 1, __ATOMIC_RELAXED);
    while (nothing_left(pool, thread) && !pool->closing)
        pthread_cond_wait(&pool->published, &pool->lock);
    __atomic_fetch_add(&load.awake, 1, __ATOMIC_RELAXED);
    __atomic_fetch_sub(&pool->sleeping, 1, __ATOMIC_SEQ_CST);
    int closing = pool->closing;
    pthread_mutex_unlock(&pool->lock);
    return !closing;
}

static void *work(void *argument)
{
    const struct worker *worker = argument;
    struct anynpu_workers *pool = worker->pool;
    __atomic_fetch_add(&load.awake, 1, __ATOMIC_RELAXED);
    while (wait_for_work(pool, worker->number))
        while (take_part(pool, worker->number))
            if (__atomic_load_n(&pool->waiting, __ATOMIC_SEQ_CST)) {
                pthread_mutex_lock(&pool->lock);
                pthread_cond_signal(&pool->finished);
                pthread_mutex_unlock(&pool->lock);
            }
    __atomic_fetch_sub(&load.awake, 1, __ATOMIC_RELAXED);
    return NULL;
}

void anynpu_share_rows(struct anynpu_workers *pool, size_t threads, anynpu_rows_task *task, const void *job, size_t rows)
{
    pool->task = task;
    pool->job = job;
    pool->rows = rows;
    pool->parts = rows < threads * PARTS_EACH ? rows : threads * PARTS_EACH;
    __atomic_store_n(&pool->limit, threads, __ATOMIC_RELAXED);
    __atomic_store_n(&pool->done, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&pool->left, pool->parts, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&pool->sleeping, __ATOMIC_SEQ_CST) > 0) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_broadcast(&pool->published);
        pthread_mutex_unlock(&pool->lock);
    }
    while (take_part(pool, 0))
        ;
    for (int spin = 0; spin < SPINS && unfinished(pool); spin++)
        pause_briefly();
    if (unfinished(pool)) {
        pthread_mutex_lock(&pool->lock);
        __atomic_store_n(&pool->waiting, 1, __ATOMIC_SEQ_CST);
        while (unfinished(pool))
            pthread_cond_wait(&pool->finished, &pool->lock);
        __atomic_store_n(&pool->waiting, 0, __ATOMIC_SEQ_CST);
        pthread_mutex_unlock(&pool->lock);
    }
}

/* ---- who else runs ---- */

/* A child made by fork has none of the runs and workers. */
static void forget_threads(void)
{
    load.runs = load.awake = 0;
}

static void prepare_load(void)
{
    load.processors = sysconf(_SC_NPROCESSORS_ONLN);
    pthread_atfork(NULL, NULL, forget_threads);
}

void anynpu_count_runs(int change)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, prepare_load);
    __atomic_fetch_add(&load.runs, change, __ATOMIC_RELAXED);
}

/* Threads of the whole machine that run or could; 0 where the system does not report. */
static int running_threads(void)
{
    char text[96], *slash;
    int file = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
    ssize_t size = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    text[size < 0 ? 0 : size] = 0;
    slash = strchr(text, '/'); /* 0.20 0.18 0.12 1/80 11206 */
    if (slash == NULL)
        return 0;
    while (slash > text && slash[-1] != ' ')
        slash--;
    return atoi(slash);
}

size_t anynpu_threads_now(const struct anynpu_workers *pool, size_t least)
{
    if (least >= pool->threads)
        return pool->threads;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec, looked = __atomic_load_n(&load.looked_ns, __ATOMIC_RELAXED);
    int runs = __atomic_load_n(&load.runs, __ATOMIC_RELAXED);
    if (ns - looked > LOOK_NS && __atomic_compare_exchange_n(&load.looked_ns, &looked, ns, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        int others = running_threads() - runs - __atomic_load_n(&load.awake, __ATOMIC_RELAXED);
        int before = __atomic_exchange_n(&load.before, others, __ATOMIC_RELAXED);
        /* what runs for a moment only is in one look and not in the next */
        __atomic_store_n(&load.others, others < before ? others : before, __ATOMIC_RELAXED);
    }
    int others = __atomic_load_n(&load.others, __ATOMIC_RELAXED);
    long share = (load.processors - (others > 0 ? others : 0)) / (runs > 1 ? runs : 1);
    size_t threads = share > 0 ? (size_t)share : 1;
    return threads < least ? least : threads < pool->threads ? threads : pool->threads;
}

/* As many threads as there are to be had. Signals are for the threads of the program. */
static void start_threads(struct anynpu_workers *pool, size_t threads)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (pool->threads = 1; pool->threads < threads; pool->threads++) {
        struct worker *worker = &pool->workers[pool->threads - 1];
        worker->pool = pool;
        worker->number = pool->threads;
        if (pthread_create(&worker->thread, NULL, work, worker) != 0)
            break;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

struct anynpu_workers *anynpu_workers_open(size_t threads)
{
    size_t size = sizeof(struct anynpu_workers) + threads * sizeof(struct worker);
    struct anynpu_workers *pool = threads > 1 ? aligned_alloc(CACHE_LINE, (size + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE) : NULL;
    if (pool == NULL)
        return NULL;
    *pool = (struct anynpu_workers){.process = getpid()};
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->published, NULL);
    pthread_cond_init(&pool->finished, NULL);
    start_threads(pool, threads);
    if (pool->threads > 1)
        return pool;
    anynpu_workers_close(pool);
    return NULL;
}

size_t anynpu_workers_threads(const struct anynpu_workers *pool)
{
    return pool->threads;
}

int anynpu_workers_usable(const struct anynpu_workers *pool)
{
    return pool->process == getpid();
}

void anynpu_workers_close(struct anynpu_workers *pool)
{
    if (!anynpu_workers_usable(pool))
        return; /* its threads, and whoever held the lock, are in another process */
    pthread_mutex_lock(&pool->lock);
    pool->closing = 1;
    pthread_cond_broadcast(&pool->published);
    pthread_mutex_unlock(&pool->lock);
    for (size_t thread = 1; thread < pool->threads; thread++)
        pthread_join(pool->workers[thread - 1].thread, NULL);
    pthread_cond_destroy(&pool->finished);
    pthread_cond_destroy(&pool->published);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

#else

#include "workers.h"

struct anynpu_workers *anynpu_workers_open(size_t threads)
{
    (void)threads;
    return NULL;
}

size_t anynpu_workers_threads(const struct anynpu_workers *pool)
{
    (void)pool;
    return 1;
}

int anynpu_workers_usable(const struct anynpu_workers *pool)
{
    (void)pool;
    return 0;
}

void anynpu_count_runs(int change)
{
    (void)change;
}

size_t anynpu_threads_now(const struct anynpu_workers *pool, size_t least)
{
    (void)pool;
    (void)least;
    return 1;
}

void anynpu_share_rows(struct anynpu_workers *pool, size_t threads, anynpu_rows_task *task, const void *job, size_t rows)
{
    (void)pool;
    (void)threads;
    task(job, 0, 0, rows);
}

void anynpu_workers_close(struct anynpu_workers *pool)
{
    (void)pool;
}

#endif
