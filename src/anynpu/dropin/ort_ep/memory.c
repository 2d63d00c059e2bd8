/* Memory that programs and the NPU share: the provider's allocator.
 *
 * A program allocates its tensors with the shared allocator of the device. It gives memory with a descriptor, which rknn_create_mem_from_fd
 * takes: from a dma-heap where the machine has one, else a memory file, which the software NPU takes too. The list of regions has a lock that
 * is held to look one up, and never while another thread is waited for. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "provider.h"

enum { PAGE = 4096, FIRST_ROOM = 16 };

typedef struct {
    uint64_t id; /* of the region, and of no other one later */
    char *data;
    size_t size;
    int descriptor;
} Region;

static struct {
    pthread_mutex_t lock;
    Region *regions;
    size_t count, room;
    uint64_t last_id;
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* of Linux' linux/dma-heap.h, which older systems lack */
typedef struct {
    uint64_t size;
    uint32_t descriptor, descriptor_flags;
    uint64_t heap_flags;
} HeapRequest;
#define HEAP_ALLOCATE _IOWR('H', 0, HeapRequest)

static const char *const heaps[] = {"/dev/dma_heap/system", "/dev/dma_heap/cma", "/dev/dma_heap/linux,cma"};

static int from_heap(size_t size)
{
    for (size_t index = 0; index < sizeof heaps / sizeof *heaps; index++) {
        HeapRequest request = {.size = size, .descriptor_flags = O_RDWR | O_CLOEXEC};
        int heap = open(heaps[index], O_RDWR | O_CLOEXEC);
        int code = heap < 0 ? -1 : ioctl(heap, HEAP_ALLOCATE, &request);
        if (heap >= 0)
            close(heap);
        if (code == 0)
            return (int)request.descriptor;
    }
    return -1;
}

static int from_file(size_t size)
{
    int descriptor = memfd_create("anynpu tensor", MFD_CLOEXEC);
    if (descriptor >= 0 && ftruncate(descriptor, (off_t)size) != 0) {
        close(descriptor);
        return -1;
    }
    return descriptor;
}

static bool add_region(Region region)
{
    bool added = true;
    pthread_mutex_lock(&shared.lock);
    if (shared.count == shared.room) {
        size_t room = shared.room == 0 ? FIRST_ROOM : 2 * shared.room;
        Region *regions = realloc(shared.regions, room * sizeof *regions);
        added = regions != NULL;
        if (added) {
            shared.regions = regions;
            shared.room = room;
        }
    }
    if (added) {
        region.id = ++shared.last_id;
        shared.regions[shared.count] = region;
        __atomic_store_n(&shared.count, shared.count + 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&shared.lock);
    return added;
}

static void *allocate(OrtAllocator *self, size_t size)
{
    (void)self;
    size_t whole;
    if (__builtin_add_overflow(size == 0 ? 1 : size, (size_t)(PAGE - 1), &whole) || whole > INT64_MAX)
        return NULL;
    whole &= ~(size_t)(PAGE - 1);
    int descriptor = from_heap(whole);
    if (descriptor < 0)
        descriptor = from_file(whole);
    if (descriptor < 0)
        return NULL;
    void *data = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (data != MAP_FAILED && add_region((Region){.data = data, .size = whole, .descriptor = descriptor}))
        return data;
    if (data != MAP_FAILED)
        munmap(data, whole);
    close(descriptor);
    return NULL;
}

static void release_memory(OrtAllocator *self, void *data)
{
    (void)self;
    Region found = {.data = NULL};
    pthread_mutex_lock(&shared.lock);
    for (size_t index = 0; index < shared.count && found.data == NULL; index++)
        if (shared.regions[index].data == data) {
            found = shared.regions[index];
            shared.regions[index] = shared.regions[shared.count - 1];
            __atomic_store_n(&shared.count, shared.count - 1, __ATOMIC_RELEASE);
        }
    pthread_mutex_unlock(&shared.lock);
    if (found.data != NULL) {
        munmap(found.data, found.size);
        close(found.descriptor);
    }
}

bool find_shared(const Tensor *tensor, SharedPlace *place)
{
    bool found = false;
    if (__atomic_load_n(&shared.count, __ATOMIC_ACQUIRE) == 0)
        return false;
    const char *data = tensor->data;
    pthread_mutex_lock(&shared.lock);
    for (size_t index = 0; index < shared.count && !found; index++) {
        const Region *region = &shared.regions[index];
        found = data >= region->data && data < region->data + region->size
                && tensor->bytes <= region->size - (size_t)(data - region->data);
        if (found)
            *place = (SharedPlace){
                .region = region->id, .base = region->data, .offset = (size_t)(data - region->data), .descriptor = region->descriptor};
    }
    pthread_mutex_unlock(&shared.lock);
    return found;
}

/* -- what ONNX Runtime receives */

static OrtMemoryInfo *memory_info; /* made once, and kept like the factory */

static const OrtMemoryInfo *info_of(const OrtAllocator *self)
{
    (void)self;
    return memory_info;
}

OrtAllocator *shared_allocator(void)
{
    static OrtAllocator allocator = {.version = ORT_VERSION_USED, .Alloc = allocate, .Free = release_memory, .Info = info_of};
    return &allocator;
}

OrtStatus *announce_memory(OrtEpDevice *device, uint32_t vendor)
{
    if (memory_info == NULL)
        TRY(ort.CreateMemoryInfo_V2("AnynpuHost", MEMORY_DEVICE_NPU, vendor, 0, MEMORY_HOST_ACCESSIBLE, PAGE, ALLOCATOR_DEVICE, &memory_info));
    return ort_ep.EpDevice_AddAllocatorInfo(device, memory_info);
}
