/* What a program for a board asks of the system besides the library: heaps, the device tree, the NPU's files, fixed paths. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support.h"

struct heap_request {
    uint64_t size;
    uint32_t fd;
    uint32_t fd_flags;
    uint64_t heap_flags;
};
#define HEAP_ALLOCATE _IOWR('H', 0x0, struct heap_request)

static void use_heap(const char *name)
{
    int heap = open(name, O_RDWR | O_CLOEXEC);
    CHECK(heap >= 0);
    struct heap_request request = {.size = 100000, .fd_flags = O_CLOEXEC | O_RDWR};
    OK(ioctl(heap, HEAP_ALLOCATE, &request));
    uint8_t *first = mmap(NULL, 100000, PROT_READ | PROT_WRITE, MAP_SHARED, (int)request.fd, 0);
    uint8_t *second = mmap(NULL, 100000, PROT_READ | PROT_WRITE, MAP_SHARED, (int)request.fd, 0);
    CHECK(first != MAP_FAILED && second != MAP_FAILED);
    first[99999] = 42;
    CHECK(second[99999] == 42);
    uint64_t flags = 1;
    OK(ioctl((int)request.fd, _IOW('b', 0, uint64_t), &flags));
    struct heap_request nothing = {.size = 0};
    CHECK(ioctl(heap, HEAP_ALLOCATE, &nothing) == -1 && errno == EINVAL);
    close(heap);
    close((int)request.fd);
}

static void print_file(const char *path)
{
    char text[512];
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    for (size_t index = 0; index < length; index++)
        putchar(text[index] == '\0' ? '|' : text[index]);
    if (length == 0 || text[length - 1] != '\n')
        putchar('\n');
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "exit") == 0)
        return 42;
    if (argc > 1 && strcmp(argv[1], "signal") == 0)
        raise(SIGTERM);
    if (argc > 1 && strcmp(argv[1], "load") == 0) {
        print_file("/sys/kernel/debug/rknpu/load");
        return 0;
    }
    use_heap("/dev/dma_heap/system");
    use_heap("/dev/dma_heap/system-uncached-dma32");
    struct stat status;
    CHECK(access("/proc/device-tree/compatible", R_OK) == 0);
    CHECK(stat("/sys/firmware/devicetree/base/compatible", &status) == 0 && status.st_size > 0);
    CHECK(open("/dev/dma_heap/absent", O_RDONLY) == -1 && errno == ENOENT);
    CHECK(access("/sys/kernel/debug/other", R_OK) != 0);
    DIR *heaps = opendir("/dev/dma_heap");
    CHECK(heaps != NULL);
    closedir(heaps);
    int pipes[2];
    CHECK(pipe(pipes) == 0 && ioctl(pipes[0], HEAP_ALLOCATE, &(struct heap_request){.size = 1}) == -1 && errno == ENOTTY);
    /* other files are what they are */
    FILE *own = fopen("/proc/self/comm", "r");
    CHECK(own != NULL);
    fclose(own);
    umask(022); /* whatever the one of the caller is */
    int made = open("made", O_CREAT | O_WRONLY, 0640);
    CHECK(made >= 0 && fstat(made, &status) == 0 && (status.st_mode & 0777) == 0640);
    close(made);
    /* the library at the place where boards have it */
    void *library = dlopen("/usr/lib/librknnmrt.so", RTLD_NOW);
    CHECK(library != NULL);
    int (*destroy)(uint32_t);
    *(void **)(&destroy) = dlsym(library, "rknn_destroy");
    CHECK(destroy != NULL);
    CHECK_CODE(destroy(1), RKNN_ERR_CTX_INVALID);
    /* a plain name is looked for where the program states */
    void *plugin = dlopen("libplugin.so", RTLD_NOW);
    CHECK(plugin != NULL);
    print_file("/proc/device-tree/compatible");
    print_file("/sys/firmware/devicetree/base/model");
    print_file("/sys/kernel/debug/rknpu/version");
    print_file("/sys/kernel/debug/rknpu/load");
    return 0;
}
