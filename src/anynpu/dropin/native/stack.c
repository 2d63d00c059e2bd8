/* Python and the kernels need more stack than some threads have. A call from such a thread runs on a helper thread of its own, which is
 * made at its first call and ends with it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "shim.h"

enum { LARGE = 16 << 20, ENOUGH = 384 << 10 };

struct helper {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    void (*call)(void *);
    void *frame;
    int inside;
    int closing;
    unsigned generation;
};

static __thread const char *stack_low, *stack_high;
static __thread struct helper *helper;
static unsigned generation; /* of helpers: a forked child has none of its parent's threads */
static pthread_key_t helper_key;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;

static void measure_stack(void)
{
    pthread_attr_t attributes;
    void *low = NULL;
    size_t size = 0;
    stack_high = (const char *)1; /* measured, and no address is in it */
    if (pthread_getattr_np(pthread_self(), &attributes) != 0)
        return;
    if (pthread_attr_getstack(&attributes, &low, &size) == 0) {
        stack_low = low;
        stack_high = (const char *)low + size;
    }
    pthread_attr_destroy(&attributes);
}

/* An address outside of the thread's stack is a stack of the program's own (a coroutine), of unknown size. */
int anynpu_stack_is_large(void)
{
    const char *here = __builtin_frame_address(0);
    if (stack_high == NULL)
        measure_stack();
    return here < stack_high && here > stack_low && here - stack_low >= ENOUGH;
}

static int create_thread(pthread_t *thread, void *(*body)(void *), void *argument)
{
    pthread_attr_t attributes;
    sigset_t all, before;
    if (pthread_attr_init(&attributes) != 0)
        return 0;
    pthread_attr_setstacksize(&attributes, LARGE);
    sigfillset(&all); /* signals are for the threads of the program */
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int made = pthread_create(thread, &attributes, body, argument) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return made;
}

struct once {
    void (*call)(void *);
    void *frame;
};

static void *run_once(void *argument)
{
    struct once *once = argument;
    once->call(once->frame);
    return NULL;
}

int anynpu_run_on_large_stack(void (*call)(void *), void *frame)
{
    struct once once = {call, frame};
    pthread_t thread;
    if (!create_thread(&thread, run_once, &once))
        return 0;
    pthread_join(thread, NULL);
    return 1;
}

static void *help(void *argument)
{
    struct helper *self = argument;
    pthread_mutex_lock(&self->lock);
    for (;;) {
        while (self->call == NULL && !self->closing)
            pthread_cond_wait(&self->changed, &self->lock);
        if (self->call == NULL)
            break;
        anynpu_set_inside(self->inside);
        self->call(self->frame);
        anynpu_set_inside(0);
        self->call = NULL;
        pthread_cond_broadcast(&self->changed);
    }
    pthread_mutex_unlock(&self->lock);
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->lock);
    free(self);
    return NULL;
}

static void dismiss(void *argument)
{
    struct helper *mine = argument;
    helper = NULL; /* what runs later at the end of this thread may call again */
    if (mine->generation != __atomic_load_n(&generation, __ATOMIC_ACQUIRE)) {
        free(mine);
        return;
    }
    pthread_mutex_lock(&mine->lock);
    mine->closing = 1;
    pthread_cond_broadcast(&mine->changed);
    pthread_mutex_unlock(&mine->lock);
}

static void make_key(void)
{
    pthread_key_create(&helper_key, dismiss);
}

static struct helper *own_helper(void)
{
    unsigned now = __atomic_load_n(&generation, __ATOMIC_ACQUIRE);
    if (helper != NULL && helper->generation == now)
        return helper;
    struct helper *made = calloc(1, sizeof *made);
    pthread_t thread;
    if (made == NULL)
        return NULL;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->changed, NULL);
    made->generation = now;
    if (!create_thread(&thread, help, made)) {
        free(made);
        return NULL;
    }
    pthread_detach(thread);
    free(helper); /* one of before a fork, if any */
    helper = made;
    pthread_once(&key_once, make_key);
    pthread_setspecific(helper_key, made);
    return made;
}

void anynpu_call_elsewhere(void (*call)(void *), void *frame)
{
    struct helper *mine = own_helper();
    if (mine == NULL) { /* out of memory or threads: a small stack is better than no answer */
        call(frame);
        return;
    }
    void *python = anynpu_release_python();
    pthread_mutex_lock(&mine->lock);
    mine->frame = frame;
    mine->inside = anynpu_inside();
    mine->call = call;
    pthread_cond_broadcast(&mine->changed);
    while (mine->call != NULL)
        pthread_cond_wait(&mine->changed, &mine->lock);
    pthread_mutex_unlock(&mine->lock);
    anynpu_resume_python(python);
}

void anynpu_forget_helpers(void)
{
    __atomic_add_fetch(&generation, 1, __ATOMIC_ACQ_REL);
}
