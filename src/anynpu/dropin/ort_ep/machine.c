/* The machine: which chip it has, and which library runs models on it.
 *
 * The first of these decides:
 * 1. the option "library", then the variables ANYNPU_EP_LIBRARY and ANYNPU_RKNN_LIBRARY or ANYNPU_VIP_LIBRARY;
 * 2. the option "device" or the variable ANYNPU_DEVICE: "sim" is the drop-in library beside this one, "npu" the vendor's;
 * 3. an NPU of the machine: the vendor's library, found by the loader or in the usual folders;
 * 4. the drop-in library beside this one.
 * A machine with an NPU never uses the software NPU unless it is asked to. A program with more rights than its caller reads no variables.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "provider.h"

static const char *const folders[] = {
    "/usr/lib", "/usr/lib64", "/usr/lib/aarch64-linux-gnu", "/usr/local/lib", "/oem/usr/lib", "/vendor/lib64", "/vendor/lib"};
static const char *const npu_marks[] = {
    "/dev/rknpu", "/sys/module/rknpu", "/sys/kernel/debug/rknpu", "/sys/class/devfreq/fdab0000.npu", "/dev/vipcore", "/sys/module/vipcore"};
static const char *const trees[] = {"/proc/device-tree/compatible", "/sys/firmware/devicetree/base/compatible"};
static const char *const makers[] = {"rockchip,rk", "rockchip,rv", "allwinner,"};

/* Chips with more than one NPU core. */
static const struct {
    const char *chip;
    int cores;
} multi_core[] = {{"rk3588", 3}, {"rk3588s", 3}, {"rk3576", 2}};

int cores_of(const char *chip)
{
    for (size_t index = 0; index < sizeof multi_core / sizeof *multi_core; index++)
        if (strcmp(multi_core[index].chip, chip) == 0)
            return multi_core[index].cores;
    return 1;
}

static void read_tree(const char *path, Machine *machine)
{
    char names[1024];
    FILE *file = fopen(path, "rbe");
    if (file == NULL)
        return;
    size_t length = fread(names, 1, sizeof names - 1, file);
    fclose(file);
    names[length] = '\0';
    /* the list ends with the most general name, which is the chip's */
    for (char *name = names; name < names + length; name += strlen(name) + 1)
        for (size_t index = 0; index < sizeof makers / sizeof *makers; index++)
            if (strncmp(name, makers[index], strlen(makers[index])) == 0) {
                snprintf(machine->chip, sizeof machine->chip, "%s", strchr(name, ',') + 1);
                machine->has_npu = true;
            }
}

Machine look_at_machine(void)
{
    Machine machine = {.chip = ""};
    for (size_t index = 0; index < sizeof trees / sizeof *trees && machine.chip[0] == '\0'; index++)
        read_tree(trees[index], &machine);
    for (size_t index = 0; index < sizeof npu_marks / sizeof *npu_marks; index++)
        machine.has_npu = machine.has_npu || access(npu_marks[index], F_OK) == 0;
    return machine;
}

bool own_folder(char *folder, size_t size)
{
    Dl_info info;
    if (dladdr((void *)own_folder, &info) == 0 || info.dli_fname == NULL)
        return false;
    char path[PATH_SIZE];
    if (realpath(info.dli_fname, path) == NULL)
        return false;
    char *slash = strrchr(path, '/');
    if (slash == NULL || (size_t)(slash - path) >= size)
        return false;
    *slash = '\0';
    memcpy(folder, path, strlen(path) + 1);
    return true;
}

static bool loaded(const char *name, void **handle, char *path, size_t size)
{
    *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (*handle != NULL)
        snprintf(path, size, "%s", name);
    return *handle != NULL;
}

/* The software NPU of a process has one speed, which it reads when it starts. */
static OrtStatus *set_realtime(const Settings *settings)
{
    static char *decided;
    char *wanted = strdup(settings->realtime), *before = NULL;
    if (wanted == NULL)
        return no_memory();
    if (__atomic_compare_exchange_n(&decided, &before, wanted, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        if (wanted[0] != '\0')
            setenv("ANYNPU_REALTIME", wanted, 1);
        return NULL;
    }
    bool same = wanted[0] == '\0' || strcmp(before, wanted) == 0;
    free(wanted);
    return same ? NULL
                : fail_with(ORT_INVALID_ARGUMENT, "anynpu: realtime is '%s', the first session of this process has '%s'\n"
                            "  hint: the software NPU has one speed; set realtime for the first session, or ANYNPU_REALTIME for the process",
                            settings->realtime, before);
}

static OrtStatus *load_dropin(const Settings *settings, const char *file, const char *reason, void **handle, char *path, size_t size)
{
    char folder[PATH_SIZE], name[PATH_SIZE];
    if (!own_folder(folder, sizeof folder) || snprintf(name, sizeof name, "%s/%s", folder, file) >= (int)sizeof name
        || access(name, R_OK) != 0)
        return fail("anynpu: %s, and the software NPU's %s is not beside the provider\n"
                    "  hint: install anynpu for Linux, or name a library with the option library", reason, file);
    TRY(set_realtime(settings));
    if (!loaded(name, handle, path, size))
        return fail("anynpu: %s cannot be loaded: %s\n  hint: reinstall anynpu", name, dlerror());
    return NULL;
}

/* Whether the loader gave the drop-in library for the vendor's name, because it is loaded already. Under 'anynpu exec' that is what is meant. */
static bool is_dropin(void *handle)
{
    struct link_map *map;
    char folder[PATH_SIZE], path[PATH_SIZE];
    if (secure_getenv("ANYNPU_LIBRARIES") != NULL || dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || !own_folder(folder, sizeof folder))
        return false;
    size_t length = strlen(folder);
    return realpath(map->l_name, path) != NULL && strncmp(path, folder, length) == 0 && path[length] == '/';
}

static OrtStatus *load_vendor(const char *file, const char *reason, void **handle, char *path, size_t size)
{
    char problem[512], name[PATH_SIZE];
    if (!loaded(file, handle, path, size)) {
        snprintf(problem, sizeof problem, "%s", dlerror());
    } else if (is_dropin(*handle)) {
        dlclose(*handle);
        snprintf(problem, sizeof problem, "the loader finds the one of the software NPU only");
    } else {
        return NULL;
    }
    for (size_t index = 0; index < sizeof folders / sizeof *folders; index++) {
        snprintf(name, sizeof name, "%s/%s", folders[index], file);
        if (access(name, R_OK) == 0 && loaded(name, handle, path, size))
            return NULL;
    }
    return fail("anynpu: %s, but the vendor's %s cannot be loaded: %s\n"
                "  hint: install the board's runtime, name it with the option library, or use device=sim for the software NPU",
                reason, file, problem);
}

OrtStatus *load_library(const Settings *settings, const char *file, void **handle, char *path, size_t size)
{
    const char *named = settings->library;
    if (named[0] == '\0')
        named = secure_getenv("ANYNPU_EP_LIBRARY");
    if (named == NULL || named[0] == '\0')
        named = secure_getenv(strcmp(file, "librknnrt.so") == 0 ? "ANYNPU_RKNN_LIBRARY" : "ANYNPU_VIP_LIBRARY");
    if (named != NULL && named[0] != '\0') {
        if (!loaded(named, handle, path, size))
            return fail("anynpu: the library %s cannot be loaded: %s\n  hint: the option library takes the path of %s", named, dlerror(), file);
        return NULL;
    }
    const char *device = settings->device;
    if (strcmp(device, "npu") == 0)
        return load_vendor(file, "device=npu is set", handle, path, size);
    if (strncmp(device, "sim", 3) == 0)
        return load_dropin(settings, file, "device=sim is set", handle, path, size);
    Machine machine = look_at_machine();
    if (machine.has_npu)
        return load_vendor(file, "this machine has an NPU", handle, path, size);
    return load_dropin(settings, file, "this machine has no NPU", handle, path, size);
}
