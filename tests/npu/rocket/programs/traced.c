/* A client of /dev/accel/accel0 without any library: opens the device in the way of Mesa's library, fills buffers page by page, and runs a
 * recorded job on as many threads as it is given, each with an open file of its own.
 *
 * traced JOB OUTPUT THREADS RUNS: JOB holds the numbers of bytes and tasks, the tasks (address and words), then the memory. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "accel.h"

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno)); \
            exit(1); \
        } \
    } while (0)

enum { BUFFERS = 4, DEVICES = 4 };

static struct {
    uint32_t size, count;
    struct accel_task *tasks;
    unsigned char *memory;
    int runs;
} job;

static int is_rocket(int fd)
{
    struct accel_version version = {0};
    if (ioctl(fd, ACCEL_VERSION, &version) != 0)
        return 0;
    CHECK(version.name_len == 6 && version.major == 1 && version.minor == 0);
    char *name = calloc(1, version.name_len + 1), *date = calloc(1, version.date_len + 1), *desc = calloc(1, version.desc_len + 1);
    version.name = name, version.date = date, version.desc = desc;
    CHECK(ioctl(fd, ACCEL_VERSION, &version) == 0);
    int found = strcmp(name, "rocket") == 0;
    free(name), free(date), free(desc);
    return found;
}

/* Two rounds over render nodes and accelerators; the file of the first round is closed twice. */
static int find_device(void)
{
    char path[64];
    int found = -1;
    for (int round = 0; round < 2; round++) {
        for (int node = 128; node < 192; node++) {
            snprintf(path, sizeof path, "/dev/dri/renderD%d", node);
            int fd = open(path, O_RDWR | O_CLOEXEC);
            if (fd >= 0)
                close(fd);
        }
        for (int node = 0; node < DEVICES; node++) {
            snprintf(path, sizeof path, "/dev/accel/accel%d", node);
            int fd = open64(path, O_RDWR | O_CLOEXEC);
            if (fd < 0) {
                CHECK(errno == ENOENT || errno == ENXIO || errno == EACCES);
                continue;
            }
            if (is_rocket(fd))
                found = fd;
            else
                close(fd);
        }
        if (round == 0 && found >= 0) {
            CHECK(close(found) == 0);
            CHECK(close(found) == -1 && errno == EBADF);
            found = -1;
        }
    }
    return found;
}

static int64_t deadline(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec + INT64_C(600000000000);
}

static void prepare(int fd, uint32_t handle)
{
    struct accel_prep_bo prep = {handle, 0, deadline()};
    CHECK(ioctl(fd, ACCEL_PREP_BO, &prep) == 0);
}

static void finish(int fd, uint32_t handle)
{
    struct accel_fini_bo fini = {handle, 0};
    CHECK(ioctl(fd, ACCEL_FINI_BO, &fini) == 0);
}

static void *run(void *fd_of_thread)
{
    int fd = *(int *)fd_of_thread;
    struct accel_create_bo buffers[BUFFERS];
    uint32_t handles[BUFFERS], part = job.size / BUFFERS / 4096 * 4096;
    for (int index = 0; index < BUFFERS; index++) {
        memset(&buffers[index], 0, sizeof buffers[index]);
        buffers[index].size = index < BUFFERS - 1 ? part : job.size - (BUFFERS - 1) * part;
        CHECK(ioctl(fd, ACCEL_CREATE_BO, &buffers[index]) == 0);
        handles[index] = buffers[index].handle;
        CHECK(buffers[index].dma_address == 0x10000000 + (uint64_t)index * part);
        prepare(fd, handles[index]);
        void *mapped = mmap(NULL, buffers[index].size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)buffers[index].offset);
        CHECK(mapped != MAP_FAILED);
        memcpy(mapped, job.memory + (size_t)index * part, buffers[index].size);
        finish(fd, handles[index]);
        munmap(mapped, buffers[index].size);
    }
    unsigned char *result = malloc(job.size);
    for (int again = 0; again < job.runs; again++) {
        prepare(fd, handles[0]), finish(fd, handles[0]);
        struct accel_job work = {(uintptr_t)job.tasks, 0, (uintptr_t)handles, job.count, sizeof *job.tasks, 0, BUFFERS};
        struct accel_submit submit = {(uintptr_t)&work, 1, sizeof work, 0};
        CHECK(ioctl(fd, ACCEL_SUBMIT, &submit) == 0);
        for (int index = 0; index < BUFFERS; index++) {
            prepare(fd, handles[index]);
            void *mapped = mmap(NULL, buffers[index].size, PROT_READ, MAP_SHARED, fd, (off_t)buffers[index].offset);
            CHECK(mapped != MAP_FAILED);
            memcpy(result + (size_t)index * part, mapped, buffers[index].size);
            finish(fd, handles[index]);
            munmap(mapped, buffers[index].size);
        }
    }
    for (int index = 0; index < BUFFERS; index++) {
        struct accel_gem_close gone = {handles[index], 0};
        CHECK(ioctl(fd, ACCEL_GEM_CLOSE, &gone) == 0);
    }
    struct accel_prep_bo stale = {handles[0], 0, 0};
    CHECK(ioctl(fd, ACCEL_PREP_BO, &stale) == -1 && errno == ENOENT);
    int other = dup(fd);
    CHECK(is_rocket(other));
    close(other);
    close(fd);
    return result;
}

int main(int count, char **arguments)
{
    CHECK(count == 5);
    FILE *file = fopen(arguments[1], "rb");
    CHECK(file != NULL && fread(&job, 4, 2, file) == 2);
    job.tasks = calloc(job.count, sizeof *job.tasks);
    job.memory = malloc(job.size);
    CHECK(fread(job.tasks, sizeof *job.tasks, job.count, file) == job.count && fread(job.memory, 1, job.size, file) == job.size);
    fclose(file);
    int threads = atoi(arguments[3]);
    job.runs = atoi(arguments[4]);
    pthread_t started[16];
    int fds[16];
    void *results[16];
    CHECK(threads > 0 && threads <= 16);
    for (int index = 0; index < threads; index++) {
        fds[index] = index == 0 ? find_device() : open("/dev/accel/accel0", O_RDWR | O_CLOEXEC);
        CHECK(fds[index] >= 0);
    }
    for (int index = 0; index < threads; index++)
        CHECK(pthread_create(&started[index], NULL, run, &fds[index]) == 0);
    for (int index = 0; index < threads; index++)
        CHECK(pthread_join(started[index], &results[index]) == 0);
    for (int index = 1; index < threads; index++)
        CHECK(memcmp(results[0], results[index], job.size) == 0);
    file = fopen(arguments[2], "wb");
    CHECK(file != NULL && fwrite(results[0], 1, job.size, file) == job.size && fclose(file) == 0);
    return 0;
}
