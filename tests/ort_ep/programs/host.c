/* A program in C, and in C++, without Python: registers the provider, runs a model, and writes its first output.
 *   host PROVIDER MODEL INPUT OUTPUT FILE_IN FILE_OUT DIMS RUNS [OPTION=VALUE ...]
 * PROVIDER "cpu" stands for onnxruntime's own. It prints microseconds per run, and whether Python is in the process. A file with as many bytes as
 * elements is uint8, else float32. Words in HOST_WAYS: "array" and "prepacked" choose the call that creates the session, "shared" puts the
 * tensors into memory of the device. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ort.h"

enum { MAX_OPTIONS = 16, MAX_DIMS = 8, TENSOR_FLOAT = 1, TENSOR_UINT8 = 2, HOST_ACCESSIBLE = 5 };

#define HOST_SLOTS(X) \
    X(2, GetErrorMessage, const char *, (const OrtStatus *)) \
    X(3, CreateEnv, OrtStatus *, (int, const char *, OrtEnv **)) \
    X(7, CreateSession, OrtStatus *, (const OrtEnv *, const char *, const OrtSessionOptions *, OrtSession **)) \
    X(8, CreateSessionFromArray, OrtStatus *, (const OrtEnv *, const void *, size_t, const OrtSessionOptions *, OrtSession **)) \
    X(9, Run, OrtStatus *, \
      (OrtSession *, const OrtRunOptions *, const char *const *, const OrtValue *const *, size_t, const char *const *, size_t, OrtValue **)) \
    X(10, CreateSessionOptions, OrtStatus *, (OrtSessionOptions **)) \
    X(48, CreateTensorAsOrtValue, OrtStatus *, (OrtAllocator *, const int64_t *, size_t, int, OrtValue **)) \
    X(49, CreateTensorWithDataAsOrtValue, OrtStatus *, (const OrtMemoryInfo *, void *, size_t, const int64_t *, size_t, int, OrtValue **)) \
    X(51, GetTensorMutableData, OrtStatus *, (OrtValue *, void **)) \
    X(61, GetDimensionsCount, OrtStatus *, (const OrtTensorTypeAndShapeInfo *, size_t *)) \
    X(62, GetDimensions, OrtStatus *, (const OrtTensorTypeAndShapeInfo *, int64_t *, size_t)) \
    X(65, GetTensorTypeAndShape, OrtStatus *, (const OrtValue *, OrtTensorTypeAndShapeInfo **)) \
    X(69, CreateCpuMemoryInfo, OrtStatus *, (int, int, OrtMemoryInfo **)) \
    X(92, ReleaseEnv, void, (OrtEnv *)) \
    X(95, ReleaseSession, void, (OrtSession *)) \
    X(96, ReleaseValue, void, (OrtValue *)) \
    X(130, AddSessionConfigEntry, OrtStatus *, (OrtSessionOptions *, const char *, const char *)) \
    X(166, CreatePrepackedWeightsContainer, OrtStatus *, (OrtPrepackedWeightsContainer **)) \
    X(168, CreateSessionWithPrepackedWeightsContainer, OrtStatus *, \
      (const OrtEnv *, const char *, const OrtSessionOptions *, OrtPrepackedWeightsContainer *, OrtSession **)) \
    X(169, CreateSessionFromArrayWithPrepackedWeightsContainer, OrtStatus *, \
      (const OrtEnv *, const void *, size_t, const OrtSessionOptions *, OrtPrepackedWeightsContainer *, OrtSession **)) \
    X(301, RegisterExecutionProviderLibrary, OrtStatus *, (OrtEnv *, const char *, const char *)) \
    X(303, GetEpDevices, OrtStatus *, (const OrtEnv *, const OrtEpDevice *const **, size_t *)) \
    X(304, SessionOptionsAppendExecutionProvider_V2, OrtStatus *, \
      (OrtSessionOptions *, OrtEnv *, const OrtEpDevice *const *, size_t, const char *const *, const char *const *, size_t)) \
    X(312, EpDevice_EpName, const char *, (const OrtEpDevice *)) \
    X(318, GetTensorSizeInBytes, OrtStatus *, (const OrtValue *, size_t *)) \
    X(374, EpDevice_MemoryInfo, const OrtMemoryInfo *, (const OrtEpDevice *, int)) \
    X(376, GetSharedAllocator, OrtStatus *, (OrtEnv *, const OrtMemoryInfo *, OrtAllocator **))

static struct {
    HOST_SLOTS(ORT_MEMBER)
} api;

#ifdef __cplusplus
extern "C"
#endif
const OrtApiBase *OrtGetApiBase(void);

static void check(OrtStatus *status)
{
    if (status != NULL) {
        fprintf(stderr, "%s\n", api.GetErrorMessage(status));
        exit(1);
    }
}

static char *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    char *data = NULL;
    *size = 0;
    if (file == NULL)
        return NULL;
    if (fseek(file, 0, SEEK_END) == 0) {
        long end = ftell(file);
        rewind(file);
        data = (char *)malloc((size_t)end + 1);
        *size = fread(data, 1, (size_t)end, file);
    }
    fclose(file);
    return data;
}

static int has_python(void)
{
    char line[4096];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        found = found || strstr(line, "libpython") != NULL;
    if (maps != NULL)
        fclose(maps);
    return found;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

static void add_provider(OrtEnv *env, OrtSessionOptions *options, const char *library, int count, char **pairs)
{
    const OrtEpDevice *const *devices;
    const char *keys[MAX_OPTIONS], *values[MAX_OPTIONS];
    size_t found = 0;
    for (int index = 0; index < count; index++) {
        keys[index] = pairs[index];
        values[index] = strchr(pairs[index], '=') + 1;
        *strchr(pairs[index], '=') = '\0';
    }
    check(api.RegisterExecutionProviderLibrary(env, "anynpu", library));
    check(api.GetEpDevices(env, &devices, &found));
    for (size_t index = 0; index < found; index++)
        if (strcmp(api.EpDevice_EpName(devices[index]), "AnynpuExecutionProvider") == 0)
            check(api.SessionOptionsAppendExecutionProvider_V2(options, env, &devices[index], 1, keys, values, (size_t)count));
    check(api.AddSessionConfigEntry(options, "session.disable_cpu_ep_fallback", "1"));
}

static int asks_for(const char *way)
{
    const char *ways = getenv("HOST_WAYS");
    return ways != NULL && strstr(ways, way) != NULL;
}

static OrtSession *create_session(OrtEnv *env, const char *path, const OrtSessionOptions *options)
{
    OrtSession *session;
    OrtPrepackedWeightsContainer *weights = NULL;
    size_t size;
    char *content = read_file(path, &size);
    if (asks_for("prepacked"))
        check(api.CreatePrepackedWeightsContainer(&weights));
    if (asks_for("array") && weights != NULL)
        check(api.CreateSessionFromArrayWithPrepackedWeightsContainer(env, content, size, options, weights, &session));
    else if (asks_for("array"))
        check(api.CreateSessionFromArray(env, content, size, options, &session));
    else if (weights != NULL)
        check(api.CreateSessionWithPrepackedWeightsContainer(env, path, options, weights, &session));
    else
        check(api.CreateSession(env, path, options, &session));
    free(content);
    return session;
}

/* The allocator for memory that the device reads. */
static OrtAllocator *device_allocator(OrtEnv *env)
{
    const OrtEpDevice *const *devices;
    size_t found = 0;
    OrtAllocator *allocator = NULL;
    check(api.GetEpDevices(env, &devices, &found));
    for (size_t index = 0; index < found; index++)
        if (strcmp(api.EpDevice_EpName(devices[index]), "AnynpuExecutionProvider") == 0)
            check(api.GetSharedAllocator(env, api.EpDevice_MemoryInfo(devices[index], HOST_ACCESSIBLE), &allocator));
    if (allocator == NULL)
        exit(5);
    return allocator;
}

int main(int count, char **given)
{
    if (count < 9 || count - 9 > MAX_OPTIONS)
        return 2;
    const void *table = OrtGetApiBase()->GetApi(ORT_VERSION_USED);
    if (table == NULL)
        return 3;
#undef ORT_READ
#define ORT_READ(slot, name, result, parameters) api.name = (result(*) parameters)((void *const *)table)[slot];
    HOST_SLOTS(ORT_READ)
    OrtEnv *env;
    OrtSessionOptions *options;
    OrtSession *session;
    OrtMemoryInfo *memory;
    OrtValue *input, *output = NULL;
    check(api.CreateEnv(3, "host", &env));
    check(api.CreateSessionOptions(&options));
    if (strcmp(given[1], "cpu") != 0)
        add_provider(env, options, given[1], count - 9, given + 9);
    session = create_session(env, given[2], options);
    int64_t dims[MAX_DIMS];
    size_t rank = 0, bytes;
    for (char *text = strtok(given[7], ","); text != NULL && rank < MAX_DIMS; text = strtok(NULL, ","))
        dims[rank++] = strtoll(text, NULL, 10);
    char *data = read_file(given[5], &bytes);
    check(api.CreateCpuMemoryInfo(0, 0, &memory));
    size_t elements = 1;
    for (size_t axis = 0; axis < rank; axis++)
        elements *= (size_t)dims[axis];
    int type = bytes == elements ? TENSOR_UINT8 : TENSOR_FLOAT;
    check(api.CreateTensorWithDataAsOrtValue(memory, data, bytes, dims, rank, type, &input));
    const OrtValue *inputs[] = {input};
    long runs = strtol(given[8], NULL, 10);
    if (asks_for("shared")) {
        /* the first run gives the shape of the output */
        OrtAllocator *allocator = device_allocator(env);
        OrtValue *shared_output;
        OrtTensorTypeAndShapeInfo *shape;
        int64_t output_dims[MAX_DIMS];
        size_t output_rank;
        void *place;
        check(api.Run(session, NULL, (const char *const *)&given[3], inputs, 1, (const char *const *)&given[4], 1, &output));
        check(api.GetTensorTypeAndShape(output, &shape));
        check(api.GetDimensionsCount(shape, &output_rank));
        check(api.GetDimensions(shape, output_dims, output_rank));
        api.ReleaseValue(output);
        api.ReleaseValue(input);
        check(api.CreateTensorAsOrtValue(allocator, dims, rank, type, &input));
        check(api.GetTensorMutableData(input, &place));
        memcpy(place, data, bytes);
        check(api.CreateTensorAsOrtValue(allocator, output_dims, output_rank, TENSOR_FLOAT, &shared_output));
        output = shared_output;
        inputs[0] = input;
        if (getenv("HOST_THEN") != NULL)
            setenv("NOTHING_FAILS", getenv("HOST_THEN"), 1);
    }
    int keep = asks_for("shared");
    double started = now();
    for (long index = 0; index < runs; index++) {
        if (output != NULL && !keep) {
            api.ReleaseValue(output);
            output = NULL;
        }
        check(api.Run(session, NULL, (const char *const *)&given[3], inputs, 1, (const char *const *)&given[4], 1, &output));
    }
    double taken = now() - started;
    void *result;
    check(api.GetTensorMutableData(output, &result));
    check(api.GetTensorSizeInBytes(output, &bytes));
    FILE *file = fopen(given[6], "wb");
    if (file == NULL || fwrite(result, 1, bytes, file) != bytes || fclose(file) != 0)
        return 4;
    printf("%.3f us per run, Python %s\n", taken / (double)runs, has_python() ? "present" : "absent");
    api.ReleaseValue(output);
    api.ReleaseValue(input);
    api.ReleaseSession(session);
    api.ReleaseEnv(env);
    free(data);
    return 0;
}
