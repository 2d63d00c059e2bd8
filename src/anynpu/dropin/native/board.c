/* Preloaded by `anynpu exec`: the files and devices of a board, for programs that look for one.
 *
 * A path that the board has is opened below the folder that ANYNPU_BOARD_ROOT names; all others are left alone. A file of /dev/dma_heap or
 * /dev/rk_dma_heap hands out memory that is shared by descriptor, as the kernel's own does. The kernel is asked what a descriptor is; the
 * only state is which missing devices were reported.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

struct heap_request {
    uint64_t size;
    uint32_t fd;
    uint32_t fd_flags;
    uint64_t heap_flags;
};
#define HEAP_ALLOCATE _IOWR('H', 0x0, struct heap_request)
#define BUFFER_SYNC _IOW('b', 0, uint64_t) /* cache maintenance on memory from a heap: nothing to do for ours */

static const char *const served[] = {
    "/dev/accel",        "/dev/dma_heap", "/dev/rk_dma_heap",   "/dev/vipcore",
    "/proc/device-tree", "/proc/rknpu",   "/sys/class/devfreq", "/sys/firmware/devicetree/base",
    "/sys/class/accel",  "/sys/module/rocket", "/sys/kernel/debug/rknpu",
};

/* Devices of boards that a program may need and that are not served: RGA, video codec, camera, display, the NPU's own driver. */
static const char *const missing[] = {
    "/dev/rga",   "/dev/mpp_service", "/dev/dri",      "/dev/rknpu",       "/dev/galcore",
    "/dev/mali0", "/dev/ion",         "/dev/dma_heap", "/dev/rk_dma_heap", "/dev/vipcore",
    "/dev/accel",
};

static const char *root(void)
{
    const char *folder = secure_getenv("ANYNPU_BOARD_ROOT");
    return folder != NULL && folder[0] == '/' ? folder : NULL;
}

/* On a board that programs share, the load of each core as it is now: the table of who has it names a process that lives. */
static void renew_load(const char *path)
{
    const char *table = secure_getenv("ANYNPU_BOARD_CORES");
    char text[512] = "NPU load: ", fresh[PATH_MAX];
    int32_t holders[16];
    if (table == NULL)
        return;
    int fd = openat(AT_FDCWD, table, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t size = read(fd, holders, sizeof holders);
    close(fd);
    size_t cores = size > 0 ? (size_t)size / sizeof *holders : 0, length = strlen(text);
    for (size_t core = 0; core < cores; core++) {
        int busy = holders[core] > 0 && (kill(holders[core], 0) == 0 || errno == EPERM);
        length += (size_t)(cores > 1 ? snprintf(text + length, sizeof text - length, " Core%zu: %2d%%,", core, 100 * busy)
                                     : snprintf(text + length, sizeof text - length, " %d%%", 100 * busy));
    }
    if (cores == 0 || (size_t)snprintf(fresh, sizeof fresh, "%s.%ld", path, (long)getpid()) >= sizeof fresh)
        return;
    text[length++] = '\n';
    fd = openat(AT_FDCWD, fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return;
    int written = write(fd, text, length) == (ssize_t)length;
    close(fd);
    if (!written || rename(fresh, path) != 0)
        unlink(fresh);
}

static int ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), wanted = strlen(end);
    return length >= wanted && strcmp(text + length - wanted, end) == 0;
}

static int is_at(const char *path, const char *place)
{
    size_t length = strlen(place);
    return strncmp(path, place, length) == 0 && (path[length] == '\0' || path[length] == '/');
}

/* The path to use instead of *path*; *path* itself unless the board has it. */
static const char *moved(const char *path, char buffer[PATH_MAX])
{
    const char *folder = root();
    if (path == NULL || path[0] != '/' || folder == NULL)
        return path;
    for (size_t index = 0; index < sizeof served / sizeof *served; index++) {
        if (is_at(path, served[index])) {
            struct stat status;
            if ((size_t)snprintf(buffer, PATH_MAX, "%s%s", folder, path) >= PATH_MAX)
                return path;
            if (fstatat(AT_FDCWD, buffer, &status, 0) != 0)
                return path;
            if (ends_with(buffer, "/rknpu/load"))
                renew_load(buffer);
            return buffer;
        }
    }
    return path;
}

/* A program opened *path* in vain: report it once for each device, since many programs go on and crash. Keeps errno. */
static void report_missing(const char *path)
{
    static unsigned reported;
    int before = errno;
    if (path == NULL || root() == NULL || (before != ENOENT && before != ENOTDIR && before != ENODEV && before != ENXIO))
        return;
    for (size_t index = 0; index < sizeof missing / sizeof *missing; index++) {
        if (is_at(path, missing[index]) && (__atomic_fetch_or(&reported, 1u << index, __ATOMIC_RELAXED) & 1u << index) == 0) {
            char line[PATH_MAX + 128];
            const char *format = "anynpu: the program opened %.*s, which this board does not have\n";
            int length = snprintf(line, sizeof line, format, PATH_MAX - 1, path);
            if (length > 0 && write(2, line, (size_t)length) < 0)
                break; /* stderr is closed */
        }
    }
    errno = before;
}

static int opened(int fd, const char *path)
{
    if (fd < 0)
        report_missing(path);
    return fd;
}

/* The board's library in *folder*, if *path* names one wherever it lies; NULL if it does not. */
static const char *library_for(const char *path, char buffer[PATH_MAX])
{
    static const char *const names[] = {"librknnrt.so", "librknnmrt.so", "libVIPlite.so", "libVIPuser.so",
                                        "libNBGlinker.so", "libVIPhal.so", "libawnn.so"};
    const char *folder = secure_getenv("ANYNPU_LIBRARIES");
    if (path == NULL || folder == NULL)
        return NULL;
    const char *slash = strrchr(path, '/');
    for (size_t index = 0; index < sizeof names / sizeof *names; index++)
        if (strcmp(slash == NULL ? path : slash + 1, names[index]) == 0 &&
            (size_t)snprintf(buffer, PATH_MAX, "%s/%s", folder, names[index]) < PATH_MAX)
            return buffer;
    return NULL;
}

/* As moved(), for a program that only looks whether something is there: also the board's library, in a folder of the system's. */
static const char *seen(const char *path, char buffer[PATH_MAX])
{
    static const char *const folders[] = {"/usr/lib/", "/usr/lib64/", "/usr/local/lib/", "/lib/", "/oem/usr/lib/", "/vendor/lib"};
    const char *other = moved(path, buffer);
    if (other != path || path == NULL)
        return other;
    for (size_t index = 0; index < sizeof folders / sizeof *folders; index++)
        if (strncmp(path, folders[index], strlen(folders[index])) == 0 && syscall(SYS_faccessat, AT_FDCWD, path, F_OK) != 0) {
            const char *library = library_for(path, buffer);
            return library == NULL ? path : library;
        }
    return path;
}

static void *next(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

#define NEXT(type, name) \
    static __typeof__(type) real; \
    if (real == NULL) \
    *(void **)(&real) = next(name)

/* The device of the mainline driver: a memory file, which libanynpu_accel answers for. It is loaded when a program opens the device. */
#define ACCEL "/dev/accel/accel0"
#define ACCEL_NAME "anynpu accel"

static void *accel_call(const char *name)
{
    NEXT(void *(*)(const char *, int), "dlopen");
    static void *library;
    void *loaded = __atomic_load_n(&library, __ATOMIC_ACQUIRE);
    const char *folder = secure_getenv("ANYNPU_LIBRARIES");
    char path[PATH_MAX];
    if (loaded == NULL && folder != NULL && (size_t)snprintf(path, sizeof path, "%s/libanynpu_accel.so", folder) < sizeof path) {
        loaded = real(path, RTLD_NOW | RTLD_LOCAL);
        __atomic_store_n(&library, loaded, __ATOMIC_RELEASE);
    }
    return loaded == NULL ? NULL : dlsym(loaded, name);
}

/* 0, or -1 and errno, from a result of libanynpu_accel. */
static int accel_result(int result)
{
    if (result < 0)
        errno = -result;
    return result < 0 ? -1 : result;
}

static int is_accel(const char *path, const char *place)
{
    return place != path && strcmp(path, ACCEL) == 0;
}

static int open_accel(int flags)
{
    int (*call)(int);
    *(void **)(&call) = accel_call("accel_open");
    if (call == NULL) {
        errno = ENODEV;
        return -1;
    }
    int fd = memfd_create(ACCEL_NAME, MFD_ALLOW_SEALING | ((flags & O_CLOEXEC) != 0 ? MFD_CLOEXEC : 0));
    if (fd < 0)
        return -1;
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0 && accel_result(call(fd)) == 0)
        return fd;
    int problem = errno;
    close(fd);
    errno = problem;
    return -1;
}

static mode_t mode_argument(int flags, va_list arguments)
{
    return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? (mode_t)va_arg(arguments, int) : 0;
}

#define OPEN(name) \
    EXPORT int name(const char *path, int flags, ...); \
    int name(const char *path, int flags, ...) \
    { \
        NEXT(int (*)(const char *, int, ...), #name); \
        char buffer[PATH_MAX]; \
        va_list arguments; \
        va_start(arguments, flags); \
        mode_t mode = mode_argument(flags, arguments); \
        va_end(arguments); \
        const char *place = moved(path, buffer); \
        return is_accel(path, place) ? open_accel(flags) : opened(real(place, flags, mode), path); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    EXPORT int name(int folder, const char *path, int flags, ...); \
    int name(int folder, const char *path, int flags, ...) \
    { \
        NEXT(int (*)(int, const char *, int, ...), #name); \
        char buffer[PATH_MAX]; \
        va_list arguments; \
        va_start(arguments, flags); \
        mode_t mode = mode_argument(flags, arguments); \
        va_end(arguments); \
        const char *place = moved(path, buffer); \
        return is_accel(path, place) ? open_accel(flags) : opened(real(folder, place, flags, mode), path); \
    }
OPENAT(openat)
OPENAT(openat64)

/* All others take the path first, or second after a folder. */
#define WITH(place, result, name, parameters, arguments) \
    EXPORT result name parameters; \
    result name parameters \
    { \
        NEXT(result(*) parameters, #name); \
        char buffer[PATH_MAX]; \
        path = place(path, buffer); \
        return real arguments; \
    }
#define WITH_PATH(result, name, parameters, arguments) WITH(moved, result, name, parameters, arguments)
#define LOOKING(result, name, parameters, arguments) WITH(seen, result, name, parameters, arguments)
#define OPENING(name, parameters, arguments) \
    EXPORT int name parameters; \
    int name parameters \
    { \
        NEXT(int(*) parameters, #name); \
        char buffer[PATH_MAX]; \
        const char *asked = path; \
        path = moved(path, buffer); \
        return is_accel(asked, path) ? open_accel(flags) : opened(real arguments, asked); \
    }
OPENING(__open_2, (const char *path, int flags), (path, flags))
OPENING(__open64_2, (const char *path, int flags), (path, flags))
OPENING(__openat_2, (int folder, const char *path, int flags), (folder, path, flags))
OPENING(__openat64_2, (int folder, const char *path, int flags), (folder, path, flags))
WITH_PATH(FILE *, fopen, (const char *path, const char *mode), (path, mode))
WITH_PATH(FILE *, fopen64, (const char *path, const char *mode), (path, mode))
LOOKING(int, access, (const char *path, int mode), (path, mode))
LOOKING(int, faccessat, (int folder, const char *path, int mode, int flags), (folder, path, mode, flags))
LOOKING(int, stat, (const char *path, struct stat *status), (path, status))
LOOKING(int, lstat, (const char *path, struct stat *status), (path, status))
LOOKING(int, stat64, (const char *path, struct stat64 *status), (path, status))
LOOKING(int, lstat64, (const char *path, struct stat64 *status), (path, status))
LOOKING(int, __xstat, (int version, const char *path, struct stat *status), (version, path, status))
LOOKING(int, __xstat64, (int version, const char *path, struct stat64 *status), (version, path, status))
LOOKING(int, statx, (int folder, const char *path, int flags, unsigned mask, struct statx *status), (folder, path, flags, mask, status))
WITH_PATH(DIR *, opendir, (const char *path), (path))

/* fstatat is what moved() itself uses, with a path that is not moved again: no path below the root begins as a served one does. */
LOOKING(int, fstatat, (int folder, const char *path, struct stat *status, int flags), (folder, path, status, flags))
LOOKING(int, fstatat64, (int folder, const char *path, struct stat64 *status, int flags), (folder, path, status, flags))

/* The board's library, wherever a program thinks that it lies. The call below must be the last thing that dlopen does: the system looks at
 * who called it to know whose search path counts, and a last call leaves the program itself as the caller. */
static const char *moved_library(const char *path)
{
    static __thread char buffer[PATH_MAX];
    const char *library = library_for(path, buffer);
    return library == NULL ? path : library;
}

EXPORT void *dlopen(const char *path, int flags);

void *dlopen(const char *path, int flags)
{
    NEXT(void *(*)(const char *, int), "dlopen");
    return real(moved_library(path), flags);
}

/* What kind of machine this is, for programs that only look for a board on one of its kind. */
EXPORT int uname(struct utsname *name);

int uname(struct utsname *name)
{
    NEXT(int (*)(struct utsname *), "uname");
    int result = real(name);
    const char *machine = secure_getenv("ANYNPU_MACHINE");
    if (result == 0 && machine != NULL && machine[0] != '\0')
        snprintf(name->machine, sizeof name->machine, "%s", machine);
    return result;
}

/* Whether a descriptor refers to something whose name begins so. */
static int is_below(int fd, const char *beginning)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = '\0';
    return strncmp(path, beginning, strlen(beginning)) == 0;
}

static int is_heap(int fd)
{
    char board[PATH_MAX], heaps[PATH_MAX + 32], others[PATH_MAX + 32];
    const char *folder = root();
    if (folder == NULL || realpath(folder, board) == NULL)
        return 0;
    snprintf(heaps, sizeof heaps, "%s/dev/dma_heap/", board);
    snprintf(others, sizeof others, "%s/dev/rk_dma_heap/", board);
    return is_below(fd, heaps) || is_below(fd, others);
}

static int allocate(struct heap_request *request)
{
    if (request->size == 0 || request->size > INT64_MAX || request->heap_flags != 0) {
        errno = EINVAL;
        return -1;
    }
    int fd = memfd_create("anynpu dma_heap", (request->fd_flags & O_CLOEXEC) != 0 ? MFD_CLOEXEC : 0);
    if (fd < 0)
        return -1;
    long page = sysconf(_SC_PAGESIZE);
    off_t size = (off_t)((request->size + (uint64_t)page - 1) / (uint64_t)page * (uint64_t)page);
    if (ftruncate(fd, size) != 0) {
        int problem = errno;
        close(fd);
        errno = problem == EFBIG || problem == EINVAL ? ENOMEM : problem;
        return -1;
    }
    request->fd = (uint32_t)fd;
    return 0;
}

EXPORT int ioctl(int fd, unsigned long request, ...);

int ioctl(int fd, unsigned long request, ...)
{
    NEXT(int (*)(int, unsigned long, ...), "ioctl");
    va_list arguments;
    va_start(arguments, request);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    if ((uint32_t)request == (uint32_t)HEAP_ALLOCATE && argument != NULL && is_heap(fd))
        return allocate(argument);
    if (((uint32_t)request >> 8 & 0xFF) == 'd' && is_below(fd, "/memfd:" ACCEL_NAME)) {
        int (*call)(int, uint32_t, void *);
        *(void **)(&call) = accel_call("accel_ioctl");
        return accel_result(call == NULL ? -ENODEV : call(fd, (uint32_t)request, argument));
    }
    int before = errno;
    int result = real(fd, request, argument);
    if (result != 0 && errno == ENOTTY && (uint32_t)request == (uint32_t)BUFFER_SYNC && is_below(fd, "/memfd:")) {
        errno = before;
        return 0;
    }
    return result;
}
