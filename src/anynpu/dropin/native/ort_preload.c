/* Puts the execution provider into programs that use ONNX Runtime, for 'anynpu exec --onnxruntime': LD_PRELOAD=libanynpu_ort.so program.
 *
 * The program calls OrtGetApiBase, which is here. The first call finds the program's own libonnxruntime.so and replaces the four functions in
 * its table that create sessions. The replacements register the provider with the program's environment, add its device to a copy of the
 * session's options, and continue with ONNX Runtime's own function. What fails here fails the session: nothing runs on the CPU instead.
 *
 * Programs with ONNX Runtime linked into them, and those that look OrtGetApiBase up in a library that they have loaded, are not reached. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ort.h"

#define EXPORT __attribute__((visibility("default")))
#define PROVIDER "AnynpuExecutionProvider"
enum { MAX_OPTIONS = 32, PATH_SIZE = 4096 };

EXPORT const OrtApiBase *OrtGetApiBase(void);

static struct {
    OrtStatus *(*CreateStatus)(OrtErrorCode code, const char *text);
    ORT_PRELOAD_SLOTS(ORT_MEMBER)
} ort;
static const OrtApiBase *base;
static int minor_version;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* held while the provider is registered */
static const OrtEnv *registered;

static OrtStatus *register_provider(const OrtEnv *env)
{
    Dl_info info;
    char path[PATH_SIZE], problem[PATH_SIZE + 128];
    const char *slash;
    if (dladdr((void *)OrtGetApiBase, &info) == 0 || (slash = strrchr(info.dli_fname, '/')) == NULL)
        return ort.CreateStatus(ORT_FAIL, "anynpu: the folder of the execution provider is not known");
    snprintf(path, sizeof path, "%.*s/libanynpu_ep.so", (int)(slash - info.dli_fname), info.dli_fname);
    if (access(path, R_OK) != 0) {
        snprintf(problem, sizeof problem, "anynpu: %s is missing\n  hint: reinstall anynpu", path);
        return ort.CreateStatus(ORT_FAIL, problem);
    }
    OrtStatus *status = NULL;
    pthread_mutex_lock(&lock);
    if (registered != env)
        status = ort.RegisterExecutionProviderLibrary((OrtEnv *)env, "anynpu.virtual", path);
    if (status == NULL)
        registered = env;
    pthread_mutex_unlock(&lock);
    return status;
}

/* Options of the provider: lines NAME=VALUE in ANYNPU_EP_OPTIONS, which are cut in place. */
static size_t read_options(char *text, const char **keys, const char **values)
{
    size_t count = 0;
    for (char *line = strsep(&text, "\n"); line != NULL && count < MAX_OPTIONS; line = strsep(&text, "\n")) {
        char *equals = strchr(line, '=');
        if (equals == NULL)
            continue;
        *equals = '\0';
        keys[count] = line;
        values[count++] = equals + 1;
    }
    return count;
}

static OrtStatus *append_device(const OrtEnv *env, OrtSessionOptions *options)
{
    const OrtEpDevice *const *devices;
    const char *keys[MAX_OPTIONS], *values[MAX_OPTIONS];
    size_t found = 0, count = 0;
    OrtStatus *status = ort.GetEpDevices(env, &devices, &found);
    const char *given = secure_getenv("ANYNPU_EP_OPTIONS");
    char *text = strdup(given != NULL ? given : "");
    if (text != NULL)
        count = read_options(text, keys, values);
    for (size_t index = 0; status == NULL && index < found; index++)
        if (strcmp(ort.EpDevice_EpName(devices[index]), PROVIDER) == 0) {
            status = ort.SessionOptionsAppendExecutionProvider_V2(options, (OrtEnv *)env, &devices[index], 1, keys, values, count);
            break;
        }
    free(text);
    return status;
}

/* A copy of a session's options with the provider in it. */
static OrtStatus *add_provider(const OrtEnv *env, const OrtSessionOptions *given, OrtSessionOptions **own)
{
    *own = NULL;
    if (minor_version < ORT_VERSION_USED) {
        char problem[160];
        snprintf(problem, sizeof problem, "anynpu: the program has ONNX Runtime %s, 'anynpu exec --onnxruntime' needs 1.23", base->GetVersionString());
        return ort.CreateStatus(ORT_FAIL, problem);
    }
    OrtStatus *status = register_provider(env);
    if (status == NULL)
        status = given != NULL ? ort.CloneSessionOptions(given, own) : ort.CreateSessionOptions(own);
    if (status == NULL)
        status = append_device(env, *own);
    if (status != NULL && *own != NULL) {
        ort.ReleaseSessionOptions(*own);
        *own = NULL;
    }
    return status;
}

#define WITH_PROVIDER(call) \
    OrtSessionOptions *own; \
    OrtStatus *status = add_provider(env, given, &own); \
    if (status == NULL) { \
        status = call; \
        ort.ReleaseSessionOptions(own); \
    } \
    return status;

static OrtStatus *create_session(const OrtEnv *env, const char *path, const OrtSessionOptions *given, OrtSession **out)
{
    WITH_PROVIDER(ort.CreateSession(env, path, own, out))
}

static OrtStatus *create_from_array(const OrtEnv *env, const void *model, size_t size, const OrtSessionOptions *given, OrtSession **out)
{
    WITH_PROVIDER(ort.CreateSessionFromArray(env, model, size, own, out))
}

static OrtStatus *create_prepacked(
    const OrtEnv *env, const char *path, const OrtSessionOptions *given, OrtPrepackedWeightsContainer *weights, OrtSession **out)
{
    WITH_PROVIDER(ort.CreateSessionWithPrepackedWeightsContainer(env, path, own, weights, out))
}

static OrtStatus *create_prepacked_from_array(
    const OrtEnv *env, const void *model, size_t size, const OrtSessionOptions *given, OrtPrepackedWeightsContainer *weights, OrtSession **out)
{
    WITH_PROVIDER(ort.CreateSessionFromArrayWithPrepackedWeightsContainer(env, model, size, own, weights, out))
}

static int is_onnxruntime(struct dl_phdr_info *info, size_t size, void *path)
{
    (void)size;
    const char *name = strrchr(info->dlpi_name, '/');
    if (name == NULL || strncmp(name, "/libonnxruntime.so", 18) != 0)
        return 0;
    *(const char **)path = info->dlpi_name;
    return 1;
}

/* Replace one function of ONNX Runtime's table, which lies in memory that is read-only. */
static int replace(const void *table, size_t slot, const void *with)
{
    const void **entry = (const void **)(uintptr_t)table + slot;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)entry & ~(page - 1);
    if (mprotect((void *)start, page, PROT_READ | PROT_WRITE) != 0)
        return 0;
    *entry = with;
    mprotect((void *)start, page, PROT_READ);
    return 1;
}

static void find_onnxruntime(void)
{
    const OrtApiBase *(*get)(void) = (const OrtApiBase *(*)(void))dlsym(RTLD_NEXT, "OrtGetApiBase");
    const char *path = NULL;
    int major = 0;
    if (get == NULL) { /* the program has loaded it for itself */
        dl_iterate_phdr(is_onnxruntime, &path);
        void *library = path != NULL ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
        get = library != NULL ? (const OrtApiBase *(*)(void))dlsym(library, "OrtGetApiBase") : NULL;
    }
    if (get == NULL) {
        fprintf(stderr, "anynpu: the program's libonnxruntime.so is not found\n");
        return;
    }
    base = get();
    sscanf(base->GetVersionString(), "%d.%d", &major, &minor_version);
    if (major > 1)
        minor_version = ORT_VERSION_USED;
    const void *table = base->GetApi(minor_version < ORT_VERSION_USED ? 1 : ORT_VERSION_USED);
    if (table == NULL)
        return;
    __typeof__(ort) *target = &ort;
    ORT_READ(0, CreateStatus, OrtStatus *, (OrtErrorCode, const char *))
    if (minor_version >= ORT_VERSION_USED) {
        ORT_PRELOAD_SLOTS(ORT_READ)
    }
    int replaced = replace(table, 7, (const void *)create_session) && replace(table, 8, (const void *)create_from_array);
    if (replaced && minor_version >= ORT_VERSION_USED)
        replaced = replace(table, 168, (const void *)create_prepacked) && replace(table, 169, (const void *)create_prepacked_from_array);
    if (!replaced)
        fprintf(stderr, "anynpu: the table of ONNX Runtime cannot be changed: %m; sessions run on the CPU\n");
}

const OrtApiBase *OrtGetApiBase(void)
{
    pthread_once(&once, find_onnxruntime);
    return base;
}
