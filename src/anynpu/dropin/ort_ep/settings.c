/* Options of a session: entries "ep.anynpuexecutionprovider.NAME" of its configuration. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "provider.h"

#define PREFIX "ep.anynpuexecutionprovider."
enum { PREFIX_LENGTH = sizeof PREFIX - 1 };

static OrtStatus *parse_count(const char *name, const char *text, int most, int *out)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < 1 || value > most)
        return fail_with(ORT_INVALID_ARGUMENT, "anynpu: option %s is '%s'\n  hint: give an integer from 1 to %d", name, text, most);
    *out = (int)value;
    return NULL;
}

OrtStatus *parse_core_mask(const char *text, uint32_t *mask)
{
    static const struct {
        const char *text;
        uint32_t mask;
    } known[] = {{"auto", 0}, {"0", 1}, {"1", 2}, {"2", 4}, {"0_1", 3}, {"0_1_2", 7}, {"all", ALL_CORES}};
    for (size_t index = 0; index < sizeof known / sizeof *known; index++)
        if (strcmp(known[index].text, text) == 0) {
            *mask = known[index].mask;
            return NULL;
        }
    return fail_with(ORT_INVALID_ARGUMENT, "anynpu: core_mask is '%s'\n  hint: use auto, 0, 1, 2, 0_1, 0_1_2 or all", text);
}

static OrtStatus *parse_priority(const char *text, int *priority)
{
    static const char *const known[] = {"high", "medium", "low"};
    for (int index = 0; index < 3; index++)
        if (strcmp(known[index], text) == 0) {
            *priority = index;
            return NULL;
        }
    return fail_with(ORT_INVALID_ARGUMENT, "anynpu: priority is '%s'\n  hint: use high, medium or low", text);
}

static OrtStatus *copy_text(const char *name, const char *text, char *out, size_t size)
{
    if (strlen(text) >= size)
        return fail_with(ORT_INVALID_ARGUMENT, "anynpu: option %s is longer than %zu bytes", name, size - 1);
    memcpy(out, text, strlen(text) + 1);
    return NULL;
}

static OrtStatus *parse_device(const char *text, char *out, size_t size)
{
    if (strcmp(text, "auto") == 0)
        text = "";
    bool known = text[0] == '\0' || strcmp(text, "npu") == 0 || strcmp(text, "sim") == 0 || (strncmp(text, "sim:", 4) == 0 && text[4] != '\0');
    if (!known)
        return fail_with(ORT_INVALID_ARGUMENT, "anynpu: device is '%s'\n  hint: use auto, npu, sim or sim:CHIP", text);
    return copy_text("device", text, out, size);
}

/* Options that are copied as they are. */
static const struct {
    const char *name;
    size_t offset, size;
} texts[] = {
#define TEXT(name, member) {name, offsetof(Settings, member), sizeof(((Settings *)NULL)->member)}
    TEXT("library", library), TEXT("target", target), TEXT("dtype", dtype), TEXT("dataset", dataset),    TEXT("mean", mean),
    TEXT("std", std),         TEXT("shape", shape),   TEXT("cache_dir", cache), TEXT("compiler", compiler),
};

static OrtStatus *parse_realtime(const char *text, char *out, size_t size)
{
    char *end;
    double speed = strtod(text, &end);
    if (end == text || *end != '\0' || !(speed >= 0 && speed <= 1e6))
        return fail_with(ORT_INVALID_ARGUMENT, "anynpu: realtime is '%s'\n  hint: use 1 for the speed of the chip, 2 for twice as fast, 0 for no waiting", text);
    return copy_text("realtime", text, out, size);
}

static OrtStatus *take(Settings *settings, const char *name, const char *text)
{
    for (size_t index = 0; index < sizeof texts / sizeof *texts; index++)
        if (strcmp(name, texts[index].name) == 0)
            return copy_text(name, text, (char *)settings + texts[index].offset, texts[index].size);
    if (strcmp(name, "device") == 0)
        return parse_device(text, settings->device, sizeof settings->device);
    if (strcmp(name, "contexts") == 0)
        return parse_count(name, text, MAX_CONTEXTS, &settings->contexts);
    if (strcmp(name, "compile_timeout") == 0)
        return parse_count(name, text, 1000000, &settings->timeout);
    if (strcmp(name, "core_mask") == 0)
        return parse_core_mask(text, &settings->core_mask);
    if (strcmp(name, "priority") == 0)
        return parse_priority(text, &settings->priority);
    if (strcmp(name, "realtime") == 0)
        return parse_realtime(text, settings->realtime, sizeof settings->realtime);
    return fail_with(ORT_INVALID_ARGUMENT,
                     "anynpu: there is no option '%s'\n  hint: options are device, library, contexts, core_mask, priority, realtime, target, dtype, dataset, "
                     "mean, std, shape, cache_dir, compiler, compile_timeout", name);
}

/* Entries of the session itself. */
static OrtStatus *take_entry(Settings *settings, const char *name, const char *text)
{
    if (strcmp(name, "ep.context_enable") == 0)
        settings->write_context = strcmp(text, "1") == 0;
    else if (strcmp(name, "ep.context_embed_mode") == 0)
        settings->embed_context = strcmp(text, "1") == 0;
    else if (strcmp(name, "ep.context_file_path") == 0)
        return copy_text(name, text, settings->context_path, sizeof settings->context_path);
    return NULL;
}

/* The chip that models are compiled for, where no option names one. */
static void choose_target(Settings *settings)
{
    Machine machine = look_at_machine();
    const char *chip = strncmp(settings->device, "sim:", 4) == 0 ? settings->device + 4 : machine.chip[0] != '\0' ? machine.chip : "rk3588";
    if (settings->target[0] == '\0')
        snprintf(settings->target, sizeof settings->target, "%s", chip);
}

static void device_from_environment(Settings *settings)
{
    const char *device = secure_getenv("ANYNPU_DEVICE"), *chip = secure_getenv("ANYNPU_CHIP");
    if (device != NULL && strncmp(device, "sim", 3) == 0)
        snprintf(settings->device, sizeof settings->device, "%s", device);
    else if (device != NULL && device[0] != '\0')
        snprintf(settings->device, sizeof settings->device, "npu");
    else if (chip != NULL && chip[0] != '\0' && secure_getenv("ANYNPU_BOARD_ROOT") == NULL)
        snprintf(settings->device, sizeof settings->device, "sim:%s", chip);
}

OrtStatus *read_settings(const OrtSessionOptions *options, Settings *settings)
{
    *settings = (Settings){.timeout = 600, .priority = -1};
    device_from_environment(settings);
    OrtKeyValuePairs *entries = NULL;
    TRY(ort.GetSessionOptionsConfigEntries(options, &entries));
    const char *const *keys, *const *values;
    size_t count = 0;
    ort.GetKeyValuePairs(entries, &keys, &values, &count);
    OrtStatus *status = NULL;
    for (size_t index = 0; index < count && status == NULL; index++)
        if (strncmp(keys[index], PREFIX, PREFIX_LENGTH) == 0)
            status = take(settings, keys[index] + PREFIX_LENGTH, values[index]);
        else
            status = take_entry(settings, keys[index], values[index]);
    ort.ReleaseKeyValuePairs(entries);
    choose_target(settings);
    return status;
}
