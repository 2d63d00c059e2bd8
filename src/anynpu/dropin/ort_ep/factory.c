/* The two functions that ONNX Runtime looks up, and the device that the provider offers.
 *
 * Unregistering the library unloads it while sessions may still run. It is linked with -z nodelete, and its factory is never freed. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "provider.h"

#define EXPORT __attribute__((visibility("default")))
#define VIRTUAL ".virtual"
enum { ROCKCHIP_PCI = 0x1d87 };

EXPORT OrtStatus *CreateEpFactories(
    const char *name, const OrtApiBase *base, const OrtLogger *logger, OrtEpFactory **factories, size_t room, size_t *count);
EXPORT OrtStatus *ReleaseEpFactory(OrtEpFactory *factory);

typedef struct {
    OrtEpFactory base;
    bool is_virtual; /* registered under a name that ends in ".virtual" */
    OrtHardwareDevice *device; /* the one that was created for it */
} Factory;

static const char *name_of(const OrtEpFactory *self)
{
    (void)self;
    return PROVIDER_NAME;
}

static const char *vendor_of(const OrtEpFactory *self)
{
    (void)self;
    return "anynpu";
}

static uint32_t vendor_id(const OrtEpFactory *self)
{
    (void)self;
    return ROCKCHIP_PCI;
}

static const char *version_of(const OrtEpFactory *self)
{
    (void)self;
    return ANYNPU_VERSION;
}

static OrtStatus *create_virtual_device(Factory *factory, const char *chip)
{
    OrtKeyValuePairs *metadata;
    char description[64];
    snprintf(description, sizeof description, "%s NPU", chip);
    ort.CreateKeyValuePairs(&metadata);
    ort.AddKeyValuePair(metadata, "is_virtual", "1");
    ort.AddKeyValuePair(metadata, "Description", description);
    OrtStatus *status = ort_ep.CreateHardwareDevice(DEVICE_NPU, ROCKCHIP_PCI, 0, "anynpu", metadata, &factory->device);
    ort.ReleaseKeyValuePairs(metadata);
    return status;
}

/* The device that stands for the NPU. ONNX Runtime lists NPUs of the PCI bus only: else a virtual one, or the CPU, whose memory they share. */
static OrtStatus *choose_device(
    Factory *factory, const OrtHardwareDevice *const *hardware, size_t count, const char *chip, const OrtHardwareDevice **chosen)
{
    *chosen = NULL;
    for (size_t index = 0; index < count; index++) {
        OrtHardwareDeviceType type = ort.HardwareDevice_Type(hardware[index]);
        if (ort.HardwareDevice_VendorId(hardware[index]) == ROCKCHIP_PCI && type == DEVICE_NPU) {
            *chosen = hardware[index];
            return NULL;
        }
        if (type == DEVICE_CPU && *chosen == NULL)
            *chosen = hardware[index];
    }
    if (factory->is_virtual && ort_ep.CreateHardwareDevice != NULL) {
        if (factory->device == NULL)
            TRY(create_virtual_device(factory, chip));
        *chosen = factory->device;
    }
    return NULL;
}

static OrtStatus *get_supported_devices(
    OrtEpFactory *self, const OrtHardwareDevice *const *hardware, size_t count, OrtEpDevice **out, size_t room, size_t *written)
{
    *written = 0;
    Machine machine = look_at_machine();
    const char *chip = machine.chip[0] != '\0' ? machine.chip : secure_getenv("ANYNPU_CHIP");
    if (chip == NULL || chip[0] == '\0')
        chip = "rk3588";
    const OrtHardwareDevice *chosen;
    TRY(choose_device((Factory *)self, hardware, count, chip, &chosen));
    if (chosen == NULL || room == 0)
        return NULL;
    OrtKeyValuePairs *metadata;
    ort.CreateKeyValuePairs(&metadata);
    ort.AddKeyValuePair(metadata, "chip", chip);
    ort.AddKeyValuePair(metadata, "engine", machine.has_npu ? "vendor" : "software");
    OrtStatus *status = ort_ep.CreateEpDevice(self, chosen, metadata, NULL, &out[0]);
    ort.ReleaseKeyValuePairs(metadata);
    if (status == NULL)
        status = announce_memory(out[0], ROCKCHIP_PCI);
    if (status == NULL)
        *written = 1;
    return status;
}

static OrtStatus *create_ep(OrtEpFactory *self, const OrtHardwareDevice *const *devices, const OrtKeyValuePairs *const *metadata, size_t count,
                            const OrtSessionOptions *options, const OrtLogger *logger, OrtEp **out)
{
    (void)self;
    (void)devices;
    (void)metadata;
    (void)count;
    return make_provider(options, logger, out);
}

static void release_ep(OrtEpFactory *self, OrtEp *ep)
{
    (void)self;
    if (ep != NULL)
        free_provider(ep);
}

static OrtStatus *create_allocator(OrtEpFactory *self, const OrtMemoryInfo *info, const OrtKeyValuePairs *options, OrtAllocator **out)
{
    (void)self;
    (void)info;
    (void)options;
    *out = shared_allocator();
    return NULL;
}

static void release_allocator(OrtEpFactory *self, OrtAllocator *allocator)
{
    (void)self;
    (void)allocator; /* tensors may outlive the session */
}

static OrtStatus *create_data_transfer(OrtEpFactory *self, OrtDataTransferImpl **out)
{
    (void)self;
    *out = NULL; /* tensors stay in memory that the CPU reaches */
    return NULL;
}

static bool is_stream_aware(const OrtEpFactory *self)
{
    (void)self;
    return false;
}

/* Copy what is used of the tables. */
static void read_tables(const void *api_table, int minor)
{
    const void *table = api_table;
    OrtApi *target = &ort;
    ORT_API_SLOTS(ORT_READ)
    {
        const void *table = ort.GetEpApi();
        OrtEpApi *target = &ort_ep;
        ORT_EP_API_SLOTS(ORT_READ)
        if (minor >= 24) {
            ORT_EP_API_24_SLOTS(ORT_READ)
        }
    }
    {
        const void *table = ort.GetModelEditorApi();
        OrtModelEditorApi *target = &ort_editor;
        if (table != NULL) {
            ORT_MODEL_EDITOR_API_SLOTS(ORT_READ)
        }
    }
}

/* An error of a release that has no interface of version 23: slot 0 of every table creates one. */
static OrtStatus *too_old(const OrtApiBase *base)
{
    const void *table = base->GetApi(1);
    OrtStatus *(*create)(OrtErrorCode, const char *) = table == NULL ? NULL : (OrtStatus * (*)(OrtErrorCode, const char *))((void *const *)table)[0];
    char text[256];
    snprintf(text, sizeof text, "anynpu: ONNX Runtime is %s, the provider needs 1.23\n  hint: pip install 'onnxruntime>=1.23'",
             base->GetVersionString());
    return create == NULL ? NULL : create(ORT_FAIL, text);
}

OrtStatus *CreateEpFactories(
    const char *name, const OrtApiBase *base, const OrtLogger *logger, OrtEpFactory **factories, size_t room, size_t *count)
{
    (void)logger;
    *count = 0;
    int major = 0, minor = 0;
    sscanf(base->GetVersionString(), "%d.%d", &major, &minor);
    const void *table = major > 1 || minor >= ORT_VERSION_USED ? base->GetApi(ORT_VERSION_USED) : NULL;
    if (table == NULL)
        return too_old(base);
    read_tables(table, major > 1 ? 99 : minor);
    Factory *factory = calloc(1, sizeof *factory);
    if (factory == NULL || room < 1) {
        free(factory);
        return no_memory();
    }
    size_t length = strlen(name), suffix = strlen(VIRTUAL);
    factory->is_virtual = length > suffix && strcmp(name + length - suffix, VIRTUAL) == 0;
    factory->base = (OrtEpFactory){
        .ort_version_supported = ORT_VERSION_USED,
        .GetName = name_of,
        .GetVendor = vendor_of,
        .GetVendorId = vendor_id,
        .GetVersion = version_of,
        .GetSupportedDevices = get_supported_devices,
        .CreateEp = create_ep,
        .ReleaseEp = release_ep,
        .CreateAllocator = create_allocator,
        .ReleaseAllocator = release_allocator,
        .CreateDataTransfer = create_data_transfer,
        .IsStreamAware = is_stream_aware,
    };
    factories[0] = &factory->base;
    *count = 1;
    return NULL;
}

OrtStatus *ReleaseEpFactory(OrtEpFactory *self)
{
    Factory *factory = (Factory *)self;
    if (factory->device != NULL && ort_ep.ReleaseHardwareDevice != NULL)
        ort_ep.ReleaseHardwareDevice(factory->device);
    factory->device = NULL;
    return NULL;
}
