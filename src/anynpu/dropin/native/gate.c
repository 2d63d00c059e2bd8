/* The gate that every call goes through: starts Python before the first, counts those inside, and closes before the process ends.
 *
 * Closing: whoever ends first (Python in a process of its own, or the C library's exit) rejects new calls and waits a while for those
 * inside. A thread that would still be in Python when it is taken down ends the process with an abort.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shim.h"

enum state { NOT_STARTED, STARTING, READY, FAILED, CLOSED };
enum { PATIENCE_MS = 5000 };

static int state; /* enum state */
static long inside;
static __thread int inside_here;
static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int starting_here; /* this is the thread that starts Python */
static __thread int fork_has_lock, fork_told;

static int state_now(void)
{
    return __atomic_load_n(&state, __ATOMIC_SEQ_CST);
}

static int change_state(int from, int to)
{
    return __atomic_compare_exchange_n(&state, &from, to, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

int anynpu_inside(void)
{
    return inside_here;
}

void anynpu_set_inside(int calls)
{
    inside_here = calls;
}

void anynpu_complain(const char *format, ...)
{
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    fprintf(stderr, "%s (anynpu): %s\n", anynpu_library.library, line);
}

static void start(void *unused)
{
    (void)unused;
    starting_here = 1;
    int ready = anynpu_start_python(&anynpu_library);
    change_state(STARTING, ready ? READY : FAILED);
}

/* The first calls come here; one of them starts Python while the others wait. */
static int make_ready(void)
{
    if (starting_here)
        return 0; /* something that Python loads when it starts makes a call: there is nothing to answer it yet */
    void *python = anynpu_release_python();
    pthread_mutex_lock(&start_lock);
    if (change_state(NOT_STARTED, STARTING)) {
        if (!anynpu_run_on_large_stack(start, NULL)) {
            anynpu_complain("no thread to start Python on: %s", strerror(errno));
            change_state(STARTING, FAILED);
        }
        if (state_now() == READY)
            atexit(anynpu_close);
    }
    pthread_mutex_unlock(&start_lock);
    anynpu_resume_python(python);
    return state_now() == READY;
}

enum anynpu_way anynpu_enter(void)
{
    __atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
    int now = state_now();
    if (__builtin_expect(now != READY, 0) && !((now == NOT_STARTED || now == STARTING) && make_ready())) {
        __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
        return ANYNPU_REFUSED;
    }
    inside_here++;
    return __builtin_expect(anynpu_stack_is_large(), 1) ? ANYNPU_DIRECT : ANYNPU_ELSEWHERE;
}

void anynpu_leave(void)
{
    inside_here--;
    __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
}

void anynpu_close(void)
{
    if (!change_state(READY, CLOSED))
        return;
    const struct timespec moment = {0, 1000000};
    for (int waited = 0; waited < PATIENCE_MS && __atomic_load_n(&inside, __ATOMIC_SEQ_CST) > inside_here; waited++)
        nanosleep(&moment, NULL);
    if (__atomic_load_n(&inside, __ATOMIC_SEQ_CST) == 0 && anynpu_library.shutdown != NULL)
        anynpu_library.shutdown();
}

/* fork(): not in the middle of a start, and with Python notified. Where the program itself is Python, os.fork() notifies Python, and waiting for
 * the lock could wait for the very thread that forks; a child then begins again. */
static void before_fork(void)
{
    fork_has_lock = !starting_here && pthread_mutex_trylock(&start_lock) == 0;
    if (!fork_has_lock && !starting_here) {
        const struct timespec moment = {0, 1000000};
        for (int waited = 0; waited < PATIENCE_MS && !fork_has_lock; waited++) {
            nanosleep(&moment, NULL);
            fork_has_lock = pthread_mutex_trylock(&start_lock) == 0;
        }
    }
    fork_told = state_now() == READY;
    if (fork_told)
        anynpu_before_fork();
}

static void after_fork_parent(void)
{
    if (fork_told)
        anynpu_after_fork_parent();
    if (fork_has_lock)
        pthread_mutex_unlock(&start_lock);
}

static void after_fork_child(void)
{
    pthread_mutex_init(&start_lock, NULL);
    anynpu_forget_helpers();
    __atomic_store_n(&inside, inside_here, __ATOMIC_SEQ_CST);
    change_state(STARTING, NOT_STARTED);
    if (fork_told)
        anynpu_after_fork_child();
}

__attribute__((constructor)) static void prepare_for_fork(void)
{
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}
