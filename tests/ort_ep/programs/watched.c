/* The provider with ONNX Runtime's tables watched: a library that loads the one named by WATCHED_PROVIDER and notes which slots it calls.
 * The names of the called functions are written to WATCHED_CALLS when the process ends. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "ort.h"

#define EXPORT __attribute__((visibility("default")))
#define HIDDEN __attribute__((visibility("hidden")))

enum { SLOTS = 512 };
typedef void (*Function)(void);

/* by slot: the function of ONNX Runtime, whether it was called, and what the provider is given in its place */
#define TABLE(table) \
    HIDDEN Function table##_real[SLOTS]; \
    HIDDEN char table##_called[SLOTS]; \
    static Function table##_given[SLOTS];
TABLE(api)
TABLE(ep)
TABLE(editor)

/* A function that notes its slot and continues in the real one with the arguments where they are. */
#define THUNK(table, slot) \
    __asm__(".text\n" #table "_thunk_" #slot ":\n" \
            "movb $1, " #table "_called+" #slot "(%rip)\n" \
            "jmp *" #table "_real+8*" #slot "(%rip)\n"); \
    HIDDEN void table##_thunk_##slot(void);
#define API_THUNK(slot, name, result, parameters) THUNK(api, slot)
#define EP_THUNK(slot, name, result, parameters) THUNK(ep, slot)
#define EDITOR_THUNK(slot, name, result, parameters) THUNK(editor, slot)
ORT_API_SLOTS(API_THUNK)
ORT_EP_API_SLOTS(EP_THUNK)
ORT_EP_API_24_SLOTS(EP_THUNK)
ORT_MODEL_EDITOR_API_SLOTS(EDITOR_THUNK)

#define GIVE(table, slot) \
    table##_real[slot] = ((const Function *)from)[slot]; \
    table##_given[slot] = table##_thunk_##slot;
#define API_GIVE(slot, name, result, parameters) GIVE(api, slot)
#define EP_GIVE(slot, name, result, parameters) GIVE(ep, slot)
#define EDITOR_GIVE(slot, name, result, parameters) GIVE(editor, slot)

static const OrtApiBase *base;
static int has_24;

enum { GET_EDITOR = 291, GET_EP = 317 };

static const void *get_ep_api(void)
{
    api_called[GET_EP] = 1;
    const void *from = ((const void *(*)(void))api_real[GET_EP])();
    ORT_EP_API_SLOTS(EP_GIVE)
    if (has_24) {
        ORT_EP_API_24_SLOTS(EP_GIVE)
    }
    return ep_given;
}

static const void *get_editor_api(void)
{
    api_called[GET_EDITOR] = 1;
    const void *from = ((const void *(*)(void))api_real[GET_EDITOR])();
    ORT_MODEL_EDITOR_API_SLOTS(EDITOR_GIVE)
    return editor_given;
}

static const void *get_api(uint32_t version)
{
    const void *from = base->GetApi(version);
    if (from == NULL || version != ORT_VERSION_USED)
        return from;
    ORT_API_SLOTS(API_GIVE)
    api_given[GET_EP] = (Function)get_ep_api;
    api_given[GET_EDITOR] = (Function)get_editor_api;
    return api_given;
}

static const char *get_version(void)
{
    return base->GetVersionString();
}

static void *provider(const char *name)
{
    void *library = dlopen(getenv("WATCHED_PROVIDER"), RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        fprintf(stderr, "%s\n", dlerror());
    return library == NULL ? NULL : dlsym(library, name);
}

EXPORT OrtStatus *CreateEpFactories(const char *name, const OrtApiBase *given, const void *logger, OrtEpFactory **factories, size_t room, size_t *count);
EXPORT OrtStatus *ReleaseEpFactory(OrtEpFactory *factory);

OrtStatus *CreateEpFactories(const char *name, const OrtApiBase *given, const void *logger, OrtEpFactory **factories, size_t room, size_t *count)
{
    static const OrtApiBase watched = {get_api, get_version};
    int minor = 0;
    base = given;
    has_24 = sscanf(given->GetVersionString(), "%*d.%d", &minor) == 1 && minor >= 24;
    OrtStatus *(*create)(const char *, const OrtApiBase *, const void *, OrtEpFactory **, size_t, size_t *);
    *(void **)&create = provider("CreateEpFactories");
    return create(name, &watched, logger, factories, room, count);
}

OrtStatus *ReleaseEpFactory(OrtEpFactory *factory)
{
    OrtStatus *(*release)(OrtEpFactory *);
    *(void **)&release = provider("ReleaseEpFactory");
    return release(factory);
}

__attribute__((destructor)) static void write_calls(void)
{
    const char *path = getenv("WATCHED_CALLS");
    FILE *file = path == NULL ? NULL : fopen(path, "w");
    if (file == NULL)
        return;
#define API_WRITE(slot, name, result, parameters) if (api_called[slot]) fprintf(file, "%s\n", #name);
#define EP_WRITE(slot, name, result, parameters) if (ep_called[slot]) fprintf(file, "%s\n", #name);
#define EDITOR_WRITE(slot, name, result, parameters) if (editor_called[slot]) fprintf(file, "%s\n", #name);
    ORT_API_SLOTS(API_WRITE)
    ORT_EP_API_SLOTS(EP_WRITE)
    ORT_EP_API_24_SLOTS(EP_WRITE)
    ORT_MODEL_EDITOR_API_SLOTS(EDITOR_WRITE)
    fclose(file);
}
