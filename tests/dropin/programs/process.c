/* How the library behaves in a process that is not its own: process CASE LIBRARY MODEL. The library is loaded at run time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "support.h"

static struct {
    void *handle;
    int (*init)(rknn_context *, void *, uint32_t, uint32_t, rknn_init_extend *);
    int (*query)(rknn_context, rknn_query_cmd, void *, uint32_t);
    int (*inputs_set)(rknn_context, uint32_t, rknn_input *);
    int (*run)(rknn_context, rknn_run_extend *);
    int (*outputs_get)(rknn_context, uint32_t, rknn_output *, rknn_output_extend *);
    int (*outputs_release)(rknn_context, uint32_t, rknn_output *);
    int (*destroy)(rknn_context);
    rknn_tensor_mem *(*create_mem)(rknn_context, uint32_t);
} library;

static const char *library_path, *model_path;

static void load(int flags)
{
    library.handle = dlopen(library_path, flags);
    if (library.handle == NULL)
        fprintf(stderr, "%s\n", dlerror());
    CHECK(library.handle != NULL);
#define FIND(member, name) CHECK((*(void **)(&library.member) = dlsym(library.handle, name)) != NULL)
    FIND(init, "rknn_init");
    FIND(query, "rknn_query");
    FIND(inputs_set, "rknn_inputs_set");
    FIND(run, "rknn_run");
    FIND(outputs_get, "rknn_outputs_get");
    FIND(outputs_release, "rknn_outputs_release");
    FIND(destroy, "rknn_destroy");
    FIND(create_mem, "rknn_create_mem");
}

/* One inference from the first call to the last; a checksum of the outputs. */
static uint32_t infer(void)
{
    rknn_context context = 0;
    rknn_input_output_num count;
    rknn_tensor_attr attr;
    OK(library.init(&context, (void *)(uintptr_t)model_path, 0, 0, NULL));
    CHECK(context != 0 && context <= UINT32_MAX);
    OK(library.query(context, RKNN_QUERY_IN_OUT_NUM, &count, sizeof count));
    CHECK(count.n_input == 1);
    memset(&attr, 0, sizeof attr);
    OK(library.query(context, RKNN_QUERY_INPUT_ATTR, &attr, sizeof attr));
    uint8_t *pixels = malloc(attr.n_elems);
    CHECK(pixels != NULL);
    fill_bytes(pixels, attr.n_elems, 1);
    rknn_input input = {.index = 0, .buf = pixels, .size = attr.n_elems, .type = RKNN_TENSOR_UINT8, .fmt = RKNN_TENSOR_NHWC};
    OK(library.inputs_set(context, 1, &input));
    OK(library.run(context, NULL));
    rknn_output output = {.want_float = 0};
    OK(library.outputs_get(context, 1, &output, NULL));
    uint32_t sum = 17;
    for (uint32_t index = 0; index < output.size; index++)
        sum = sum * 31 + ((uint8_t *)output.buf)[index];
    OK(library.outputs_release(context, 1, &output));
    OK(library.destroy(context));
    free(pixels);
    return sum;
}

static void report(uint32_t sum)
{
    printf("%08x\n", sum);
    fflush(stdout);
}

static void *infer_in_thread(void *result)
{
    *(uint32_t *)result = infer();
    return NULL;
}

static uint32_t in_a_thread(size_t stack)
{
    pthread_t thread;
    pthread_attr_t attributes;
    uint32_t sum = 0;
    CHECK(pthread_attr_init(&attributes) == 0);
    if (stack != 0)
        CHECK(pthread_attr_setstacksize(&attributes, stack) == 0);
    CHECK(pthread_create(&thread, &attributes, infer_in_thread, &sum) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    return sum;
}

/* Four threads at once make the first call. */
static void threads_first(void)
{
    pthread_t threads[4];
    uint32_t sums[4];
    load(RTLD_NOW);
    for (int index = 0; index < 4; index++)
        CHECK(pthread_create(&threads[index], NULL, infer_in_thread, &sums[index]) == 0);
    for (int index = 0; index < 4; index++)
        CHECK(pthread_join(threads[index], NULL) == 0);
    for (int index = 1; index < 4; index++)
        CHECK(sums[index] == sums[0]);
    report(sums[0]);
}

static void loaded_local(void)
{
    load(RTLD_NOW | RTLD_LOCAL);
    report(infer());
}

static void loaded_global(void)
{
    load(RTLD_NOW | RTLD_GLOBAL);
    report(infer());
}

static void loaded_again(void)
{
    load(RTLD_NOW);
    uint32_t first = infer();
    for (int round = 0; round < 3; round++) {
        CHECK(dlclose(library.handle) == 0);
        load(RTLD_NOW);
        CHECK(infer() == first);
    }
    report(first);
}

static void small_stacks(void)
{
    load(RTLD_NOW);
    uint32_t first = in_a_thread(128 << 10); /* also the first call */
    CHECK(in_a_thread(128 << 10) == first);
    CHECK(in_a_thread(0) == first);
    report(first);
}

static ucontext_t main_context, coroutine;
static uint32_t coroutine_sum;

static void in_coroutine(void)
{
    coroutine_sum = infer();
}

static void on_a_coroutine(void)
{
    load(RTLD_NOW);
    size_t size = 128 << 10;
    void *stack = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED && getcontext(&coroutine) == 0);
    coroutine.uc_stack.ss_sp = stack;
    coroutine.uc_stack.ss_size = size;
    coroutine.uc_link = &main_context;
    makecontext(&coroutine, in_coroutine, 0);
    CHECK(swapcontext(&main_context, &coroutine) == 0);
    CHECK(coroutine_sum == infer());
    report(coroutine_sum);
}

static void child_infers(uint32_t expected)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);
        _exit(infer() == expected || expected == 0 ? 0 : 3);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void fork_before_use(void)
{
    load(RTLD_NOW);
    child_infers(0);
    report(infer());
}

static void fork_after_use(void)
{
    load(RTLD_NOW);
    uint32_t first = infer();
    rknn_context context = 0;
    OK(library.init(&context, (void *)(uintptr_t)model_path, 0, 0, NULL));
    child_infers(first);
    child_infers(first);
    rknn_input_output_num count; /* the child has not taken the parent's contexts with it */
    OK(library.query(context, RKNN_QUERY_IN_OUT_NUM, &count, sizeof count));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) /* a context of before the fork is rejected in the child */
        _exit(library.query(context, RKNN_QUERY_IN_OUT_NUM, &count, sizeof count) == RKNN_ERR_CTX_INVALID ? 0 : 4);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(infer() == first);
    report(first);
}

static void *fork_in_thread(void *unused)
{
    (void)unused;
    child_infers(0);
    return NULL;
}

static void fork_from_a_small_thread(void)
{
    load(RTLD_NOW);
    uint32_t first = in_a_thread(128 << 10);
    pthread_t thread;
    pthread_attr_t attributes;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, 128 << 10) == 0);
    CHECK(pthread_create(&thread, &attributes, fork_in_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
    report(first);
}

static int interrupted;

static void on_signal(int number)
{
    (void)number;
    interrupted++;
}

/* What a program has set up stays as it is. */
static void nothing_changes(void)
{
    CHECK(setlocale(LC_ALL, "C") != NULL);
    char before[256], numbers[64];
    snprintf(before, sizeof before, "%s", setlocale(LC_ALL, NULL));
    struct sigaction own = {.sa_handler = on_signal}, found;
    CHECK(sigaction(SIGINT, &own, NULL) == 0);
    sigset_t mask_before, mask_after;
    memset(&mask_before, 0, sizeof mask_before); /* only a part is written */
    memset(&mask_after, 0, sizeof mask_after);
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &mask_before) == 0);
    struct sigaction handlers[32];
    for (int number = 1; number < 32; number++)
        CHECK(sigaction(number, NULL, &handlers[number]) == 0);
    char *path_before = getcwd(NULL, 0);
    extern char **environ;
    size_t variables = 0, later = 0;
    while (environ[variables] != NULL)
        variables++;
    load(RTLD_NOW);
    uint32_t sum = infer();
    CHECK(strcmp(before, setlocale(LC_ALL, NULL)) == 0);
    for (int number = 1; number < 32; number++) {
        CHECK(sigaction(number, NULL, &found) == 0);
        CHECK(found.sa_handler == handlers[number].sa_handler && found.sa_flags == handlers[number].sa_flags);
    }
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &mask_after) == 0 && memcmp(&mask_before, &mask_after, sizeof mask_before) == 0);
    raise(SIGINT);
    CHECK(interrupted == 1);
    char *path_after = getcwd(NULL, 0);
    CHECK(path_before != NULL && path_after != NULL && strcmp(path_before, path_after) == 0);
    while (environ[later] != NULL)
        later++;
    CHECK(variables == later && getenv("OPENBLAS_NUM_THREADS") == NULL);
    snprintf(numbers, sizeof numbers, "%.1f", 1.5);
    CHECK(strcmp(numbers, "1.5") == 0);
    free(path_before);
    free(path_after);
    report(sum);
}

static void *infer_for_ever(void *unused)
{
    (void)unused;
    rknn_context context = 0;
    if (library.init(&context, (void *)(uintptr_t)model_path, 0, 0, NULL) != 0)
        return NULL;
    rknn_tensor_attr attr;
    memset(&attr, 0, sizeof attr);
    if (library.query(context, RKNN_QUERY_INPUT_ATTR, &attr, sizeof attr) != 0)
        return NULL;
    uint8_t *pixels = calloc(1, attr.n_elems);
    rknn_input input = {.index = 0, .buf = pixels, .size = attr.n_elems, .type = RKNN_TENSOR_UINT8, .fmt = RKNN_TENSOR_NHWC};
    while (library.inputs_set(context, 1, &input) == 0 && library.run(context, NULL) == 0)
        continue;
    for (;;) /* rejected because the process ends */
        pause();
}

static void exit_in_flight(void)
{
    pthread_t thread;
    load(RTLD_NOW);
    report(infer());
    for (int index = 0; index < 3; index++)
        CHECK(pthread_create(&thread, NULL, infer_for_ever, NULL) == 0);
    struct timespec moment = {0, 300000000};
    nanosleep(&moment, NULL);
    exit(7);
}

/* A destructor of the program's own that runs after the library has closed. */
static rknn_context left_over;

static void destroy_late(void)
{
    int code = library.destroy(left_over);
    fprintf(stderr, "late: %d\n", code);
}

static void destroyed_at_exit(void)
{
    CHECK(atexit(destroy_late) == 0);
    load(RTLD_NOW);
    OK(library.init(&left_over, (void *)(uintptr_t)model_path, 0, 0, NULL));
    report(infer());
}

/* No Python: every call reports it, and nothing else happens. */
static void unavailable(void)
{
    load(RTLD_NOW);
    rknn_context context = 0;
    for (int round = 0; round < 3; round++) {
        CHECK_CODE(library.init(&context, (void *)(uintptr_t)model_path, 0, 0, NULL), RKNN_ERR_DEVICE_UNAVAILABLE);
        CHECK_CODE(library.run(1, NULL), RKNN_ERR_DEVICE_UNAVAILABLE);
        CHECK(library.create_mem(1, 64) == NULL);
    }
    printf("unavailable\n");
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"threads_first", threads_first},
        {"loaded_local", loaded_local},
        {"loaded_global", loaded_global},
        {"loaded_again", loaded_again},
        {"small_stacks", small_stacks},
        {"on_a_coroutine", on_a_coroutine},
        {"fork_before_use", fork_before_use},
        {"fork_after_use", fork_after_use},
        {"fork_from_a_small_thread", fork_from_a_small_thread},
        {"nothing_changes", nothing_changes},
        {"exit_in_flight", exit_in_flight},
        {"destroyed_at_exit", destroyed_at_exit},
        {"unavailable", unavailable},
    };
    CHECK(argc == 4);
    library_path = argv[2];
    model_path = argv[3];
    alarm(100);
    for (size_t index = 0; index < sizeof cases / sizeof *cases; index++)
        if (strcmp(argv[1], cases[index].name) == 0) {
            cases[index].run();
            return 0;
        }
    return 2;
}
