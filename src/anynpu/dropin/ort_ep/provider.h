/* What the files of the provider share.
 *
 * Objects: the factory lives as long as the process. A provider belongs to one session and holds its settings. A node is one EPContext node
 * or one compiled part of a model: it owns a network, which is a model that a vendor's library has loaded, and a pool of contexts to run it.
 *
 * Locks: a run takes a free context from the pool, by a semaphore and a bit mask, and returns it. The list of shared memory has the only lock,
 * which is held to look up an address. No thread waits for another one while it holds anything else: sessions are created with the lock of a
 * Python interpreter held that a run may need.
 */
#ifndef ANYNPU_ORT_PROVIDER_H
#define ANYNPU_ORT_PROVIDER_H

#include <stdarg.h>

#include "ort.h"

#define PROVIDER_NAME "AnynpuExecutionProvider"
#define CONTEXT_OPERATOR "EPContext"
#define CONTEXT_DOMAIN "com.microsoft"

#ifndef ANYNPU_VERSION
#define ANYNPU_VERSION "0.0.0"
#endif

enum { ALL_CORES = 0xffff, MAX_RANK = 16, MAX_PORTS = 256, MAX_CONTEXTS = 64, NAME_SIZE = 256, PATH_SIZE = 4096 };

/* -- ONNX Runtime, copied out of its tables when the library is registered */

typedef struct {
    ORT_API_SLOTS(ORT_MEMBER)
} OrtApi;
typedef struct {
    ORT_EP_API_SLOTS(ORT_MEMBER)
    ORT_EP_API_24_SLOTS(ORT_MEMBER) /* null before 1.24 */
} OrtEpApi;
typedef struct {
    ORT_MODEL_EDITOR_API_SLOTS(ORT_MEMBER)
} OrtModelEditorApi;

extern OrtApi ort;
extern OrtEpApi ort_ep;
extern OrtModelEditorApi ort_editor;

#define TRY(call) \
    do { \
        OrtStatus *try_status = (call); \
        if (try_status != NULL) \
            return try_status; \
    } while (0)

/* An error for ONNX Runtime. The code is never ORT_EP_FAIL, upon which Python's module would go on with the CPU provider. */
OrtStatus *fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
OrtStatus *fail_with(OrtErrorCode code, const char *format, ...) __attribute__((format(printf, 2, 3)));
OrtStatus *no_memory(void);
void drop(OrtStatus *status);
void logged(const OrtLogger *logger, OrtLogLevel level, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* -- tensors */

/* An input or output of a network.
 *
 * dims: as ONNX has them; NHWC images are listed as NCHW
 * type: of its raw values */
typedef struct {
    char name[NAME_SIZE];
    size_t rank;
    int64_t dims[MAX_RANK];
    OrtElementType type;
    bool image; /* rank 4, and the library reads it as NHWC too */
} Port;

/* What a model was trained with: (x - mean) / std per channel. Null where the values are read as they are, or the library does it. */
typedef struct {
    float *mean, *std;
    size_t count;
} Normalization;

/* Memory of the caller for one input or output, in the order of the network's ports.
 *
 * raw: of quantized values, where the type could also stand for real values */
typedef struct {
    OrtElementType type;
    bool nhwc, raw;
    Normalization normalization;
    size_t rank;
    int64_t dims[MAX_RANK];
    size_t count; /* of elements */
    size_t bytes;
    void *data;
} Tensor;

size_t element_size(OrtElementType type); /* 0 for types without a fixed size */
const char *element_name(OrtElementType type);
/* The number of elements; false if a dimension is dynamic or the product overflows. */
bool element_count(const int64_t *dims, size_t rank, size_t *count);
bool byte_count(size_t count, OrtElementType type, size_t *bytes);

/* -- attributes of EPContext nodes */

/* The bytes of a string attribute, with a NUL after them; null if the node does not have it. */
OrtStatus *read_string(const OrtNode *node, const char *name, char **text, size_t *length);
/* The numbers of a list attribute; null if the node does not have it. */
OrtStatus *read_floats(const OrtNode *node, const char *name, float **numbers, size_t *count);

/* -- settings of a session */

typedef struct {
    char device[PATH_SIZE];
    char library[PATH_SIZE];
    int contexts; /* 0: one for each core */
    uint32_t core_mask; /* 0: the library chooses */
    char realtime[32]; /* of the software NPU; empty for as fast as the machine can */
    int priority; /* 0 high, 1 medium, 2 low; -1: the library chooses */
    /* for models that are not compiled yet */
    char target[32], dtype[32]; /* the chip; empty for the compiler's choice */
    char dataset[PATH_SIZE], mean[1024], std[1024], shape[PATH_SIZE]; /* as for 'anynpu compile', several values with ';' */
    char cache[PATH_SIZE], compiler[PATH_SIZE];
    int timeout; /* seconds */
    /* of the session: whether and where it writes an EPContext model */
    bool write_context, embed_context;
    char context_path[PATH_SIZE];
} Settings;

OrtStatus *read_settings(const OrtSessionOptions *options, Settings *settings);
OrtStatus *parse_core_mask(const char *text, uint32_t *mask);

/* -- the machine */

typedef struct {
    char chip[32]; /* empty where the device tree names none */
    bool has_npu;
} Machine;

Machine look_at_machine(void);
bool own_folder(char *folder, size_t size); /* of this library */
int cores_of(const char *chip);
/* Load the library that runs models of a family: "librknnrt.so", "libVIPlite.so". */
OrtStatus *load_library(const Settings *settings, const char *file, void **handle, char *path, size_t size);

/* -- networks: a model in a vendor's library */

typedef struct Network Network;
typedef struct {
    const void *data; /* null for a path */
    size_t size;
    const char *path;
    const char *chip; /* empty if unknown */
    bool dynamic; /* the node declares dynamic shapes, or its part was compiled for several sets */
} Source;

typedef struct {
    /* Another context of the network; the first one is made by opening it. */
    OrtStatus *(*add_context)(Network *network, int index);
    /* Let a context take inputs of these shapes, and give the shapes of the outputs. Only for networks with dynamic shapes. */
    OrtStatus *(*set_shapes)(Network *network, int index, const Tensor *inputs, Port *outputs);
    OrtStatus *(*run)(Network *network, int index, uint32_t core_mask, const Tensor *inputs, const Tensor *outputs);
    void (*close)(Network *network);
} NetworkCalls;

struct Network {
    const NetworkCalls *calls;
    size_t input_count, output_count;
    Port *inputs, *outputs;
    bool dynamic;
};

/* -- memory that programs and the NPU share */

typedef struct {
    uint64_t region;
    void *base;
    size_t offset;
    int descriptor;
} SharedPlace;

/* Where a tensor lies in memory of the provider's allocator; false if it does not. */
bool find_shared(const Tensor *tensor, SharedPlace *place);
OrtAllocator *shared_allocator(void);
OrtStatus *announce_memory(OrtEpDevice *device, uint32_t vendor);

OrtStatus *open_rknn(const Settings *settings, const Source *source, Network **network);
OrtStatus *open_vip(const Settings *settings, const Source *source, Network **network);

/* -- nodes */

typedef struct Node Node;

/* context: the EPContext node; null for a network that was compiled from the nodes that are fused, which may leave inputs out */
OrtStatus *make_node(const Settings *settings, Source *source, const OrtNode *fused, const OrtNode *context, Node **node);
void free_node(Node *node);
OrtNodeComputeInfo *node_compute_info(Node *node);
Node *node_of(OrtNodeComputeInfo *info);
void set_core_mask(Node *node, uint32_t mask);

OrtStatus *make_provider(const OrtSessionOptions *options, const OrtLogger *logger, OrtEp **out);
void free_provider(OrtEp *ep);

#endif
