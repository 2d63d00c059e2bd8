/* The part of ONNX Runtime's C interface that a compiling execution provider uses, by slot number.
 *
 * OrtApi, OrtEpApi and OrtModelEditorApi are tables of function pointers to which releases only append. The lists below name the slots that
 * this library uses; the loader copies them into structs with one typed member for each. OrtEp, OrtEpFactory, OrtNodeComputeInfo and
 * OrtAllocator are filled in by this library. They state the version that their layout follows (23), and ONNX Runtime reads no member of a
 * later one. tests/ort_ep/data/slots.json holds the same numbers, read from the interface itself, and a test compares the two.
 */
#ifndef ANYNPU_ORT_H
#define ANYNPU_ORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ORT_VERSION_USED 23

#define OPAQUE(name) typedef struct name name
OPAQUE(OrtDataTransferImpl);
OPAQUE(OrtEnv);
OPAQUE(OrtEpDevice);
OPAQUE(OrtEpGraphSupportInfo);
OPAQUE(OrtGraph);
OPAQUE(OrtHardwareDevice);
OPAQUE(OrtKernelContext);
OPAQUE(OrtKeyValuePairs);
OPAQUE(OrtLogger);
OPAQUE(OrtMemoryDevice);
OPAQUE(OrtMemoryInfo);
OPAQUE(OrtNode);
OPAQUE(OrtNodeComputeContext);
OPAQUE(OrtOpAttr);
OPAQUE(OrtPrepackedWeightsContainer);
OPAQUE(OrtRunOptions);
OPAQUE(OrtSession);
OPAQUE(OrtSessionOptions);
OPAQUE(OrtStatus);
OPAQUE(OrtSyncStream);
OPAQUE(OrtSyncStreamImpl);
OPAQUE(OrtTensorTypeAndShapeInfo);
OPAQUE(OrtTypeInfo);
OPAQUE(OrtValue);
OPAQUE(OrtValueInfo);
#undef OPAQUE

/* Element types have the numbers of ONNX's TensorProto.DataType. */
typedef enum {
    ELEMENT_FLOAT = 1,
    ELEMENT_UINT8 = 2,
    ELEMENT_INT8 = 3,
    ELEMENT_UINT16 = 4,
    ELEMENT_INT16 = 5,
    ELEMENT_INT32 = 6,
    ELEMENT_INT64 = 7,
    ELEMENT_STRING = 8,
    ELEMENT_BOOL = 9,
    ELEMENT_FLOAT16 = 10,
    ELEMENT_DOUBLE = 11,
    ELEMENT_UINT32 = 12,
    ELEMENT_UINT64 = 13,
    ELEMENT_BFLOAT16 = 16
} OrtElementType;

typedef enum { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2, ORT_NO_SUCHFILE = 3, ORT_NOT_IMPLEMENTED = 9, ORT_INVALID_GRAPH = 10 } OrtErrorCode;
typedef enum { LOG_VERBOSE, LOG_INFO, LOG_WARNING, LOG_ERROR } OrtLogLevel;
typedef enum { DEVICE_CPU, DEVICE_GPU, DEVICE_NPU } OrtHardwareDeviceType;
typedef enum { MEMORY_DEVICE_NPU = 3 } OrtMemoryInfoDeviceType;
typedef enum { MEMORY_HOST_ACCESSIBLE = 5 } OrtDeviceMemoryType;
typedef enum { ALLOCATOR_DEVICE = 0 } OrtAllocatorType;
typedef enum {
    COMPATIBILITY_NOT_APPLICABLE,
    COMPATIBILITY_OPTIMAL,
    COMPATIBILITY_PREFER_RECOMPILATION,
    COMPATIBILITY_UNSUPPORTED
} OrtCompiledModelCompatibility;
typedef enum {
    ATTRIBUTE_UNDEFINED,
    ATTRIBUTE_INT,
    ATTRIBUTE_INTS,
    ATTRIBUTE_FLOAT,
    ATTRIBUTE_FLOATS,
    ATTRIBUTE_STRING,
    ATTRIBUTE_STRINGS,
    ATTRIBUTE_GRAPH,
    ATTRIBUTE_TENSOR
} OrtOpAttrType;

typedef struct OrtAllocator OrtAllocator;
typedef struct OrtEp OrtEp;
typedef struct OrtEpFactory OrtEpFactory;
typedef struct OrtNodeComputeInfo OrtNodeComputeInfo;

typedef struct {
    const void *(*GetApi)(uint32_t version);
    const char *(*GetVersionString)(void);
} OrtApiBase;

typedef struct {
    uint32_t ort_version_supported;
    bool drop_constant_initializers;
} OrtNodeFusionOptions;

/* X(slot, name, result, parameters) */
#define ORT_API_SLOTS(X) \
    X(0, CreateStatus, OrtStatus *, (OrtErrorCode, const char *)) \
    X(2, GetErrorMessage, const char *, (const OrtStatus *)) \
    X(51, GetTensorMutableData, OrtStatus *, (OrtValue *, void **)) \
    X(55, CastTypeInfoToTensorInfo, OrtStatus *, (const OrtTypeInfo *, const OrtTensorTypeAndShapeInfo **)) \
    X(60, GetTensorElementType, OrtStatus *, (const OrtTensorTypeAndShapeInfo *, OrtElementType *)) \
    X(61, GetDimensionsCount, OrtStatus *, (const OrtTensorTypeAndShapeInfo *, size_t *)) \
    X(62, GetDimensions, OrtStatus *, (const OrtTensorTypeAndShapeInfo *, int64_t *, size_t)) \
    X(63, GetSymbolicDimensions, OrtStatus *, (const OrtTensorTypeAndShapeInfo *, const char **, size_t)) \
    X(65, GetTensorTypeAndShape, OrtStatus *, (const OrtValue *, OrtTensorTypeAndShapeInfo **)) \
    X(90, KernelContext_GetInput, OrtStatus *, (const OrtKernelContext *, size_t, const OrtValue **)) \
    X(91, KernelContext_GetOutput, OrtStatus *, (OrtKernelContext *, size_t, const int64_t *, size_t, OrtValue **)) \
    X(93, ReleaseStatus, void, (OrtStatus *)) \
    X(96, ReleaseValue, void, (OrtValue *)) \
    X(99, ReleaseTensorTypeAndShapeInfo, void, (OrtTensorTypeAndShapeInfo *)) \
    X(211, CreateOpAttr, OrtStatus *, (const char *, const void *, int, OrtOpAttrType, OrtOpAttr **)) \
    X(212, ReleaseOpAttr, void, (OrtOpAttr *)) \
    X(247, Logger_LogMessage, OrtStatus *, (const OrtLogger *, OrtLogLevel, const char *, const char *, int, const char *)) \
    X(272, ReadOpAttr, OrtStatus *, (const OrtOpAttr *, OrtOpAttrType, void *, size_t, size_t *)) \
    X(289, GetValueInfoName, OrtStatus *, (const OrtValueInfo *, const char **)) \
    X(290, GetValueInfoTypeInfo, OrtStatus *, (const OrtValueInfo *, const OrtTypeInfo **)) \
    X(291, GetModelEditorApi, const void *, (void)) \
    X(295, CreateKeyValuePairs, void, (OrtKeyValuePairs **)) \
    X(296, AddKeyValuePair, void, (OrtKeyValuePairs *, const char *, const char *)) \
    X(298, GetKeyValuePairs, void, (const OrtKeyValuePairs *, const char *const **, const char *const **, size_t *)) \
    X(300, ReleaseKeyValuePairs, void, (OrtKeyValuePairs *)) \
    X(307, HardwareDevice_Type, OrtHardwareDeviceType, (const OrtHardwareDevice *)) \
    X(308, HardwareDevice_VendorId, uint32_t, (const OrtHardwareDevice *)) \
    X(317, GetEpApi, const void *, (void)) \
    X(318, GetTensorSizeInBytes, OrtStatus *, (const OrtValue *, size_t *)) \
    X(320, CreateMemoryInfo_V2, OrtStatus *, \
      (const char *, OrtMemoryInfoDeviceType, uint32_t, int32_t, OrtDeviceMemoryType, size_t, OrtAllocatorType, OrtMemoryInfo **)) \
    X(326, ValueInfo_GetInitializerValue, OrtStatus *, (const OrtValueInfo *, const OrtValue **)) \
    X(331, ValueInfo_IsConstantInitializer, OrtStatus *, (const OrtValueInfo *, bool *)) \
    X(334, Graph_GetModelPath, OrtStatus *, (const OrtGraph *, const char **)) \
    X(336, Graph_GetNumOperatorSets, OrtStatus *, (const OrtGraph *, size_t *)) \
    X(337, Graph_GetOperatorSets, OrtStatus *, (const OrtGraph *, const char **, int64_t *, size_t)) \
    X(338, Graph_GetNumInputs, OrtStatus *, (const OrtGraph *, size_t *)) \
    X(339, Graph_GetInputs, OrtStatus *, (const OrtGraph *, const OrtValueInfo **, size_t)) \
    X(340, Graph_GetNumOutputs, OrtStatus *, (const OrtGraph *, size_t *)) \
    X(341, Graph_GetOutputs, OrtStatus *, (const OrtGraph *, const OrtValueInfo **, size_t)) \
    X(344, Graph_GetNumNodes, OrtStatus *, (const OrtGraph *, size_t *)) \
    X(345, Graph_GetNodes, OrtStatus *, (const OrtGraph *, const OrtNode **, size_t)) \
    X(346, Graph_GetParentNode, OrtStatus *, (const OrtGraph *, const OrtNode **)) \
    X(349, Node_GetName, OrtStatus *, (const OrtNode *, const char **)) \
    X(350, Node_GetOperatorType, OrtStatus *, (const OrtNode *, const char **)) \
    X(351, Node_GetDomain, OrtStatus *, (const OrtNode *, const char **)) \
    X(353, Node_GetNumInputs, OrtStatus *, (const OrtNode *, size_t *)) \
    X(354, Node_GetInputs, OrtStatus *, (const OrtNode *, const OrtValueInfo **, size_t)) \
    X(355, Node_GetNumOutputs, OrtStatus *, (const OrtNode *, size_t *)) \
    X(356, Node_GetOutputs, OrtStatus *, (const OrtNode *, const OrtValueInfo **, size_t)) \
    X(359, Node_GetNumAttributes, OrtStatus *, (const OrtNode *, size_t *)) \
    X(360, Node_GetAttributes, OrtStatus *, (const OrtNode *, const OrtOpAttr **, size_t)) \
    X(361, Node_GetAttributeByName, OrtStatus *, (const OrtNode *, const char *, const OrtOpAttr **)) \
    X(362, OpAttr_GetTensorAttributeAsOrtValue, OrtStatus *, (const OrtOpAttr *, OrtValue **)) \
    X(363, OpAttr_GetType, OrtStatus *, (const OrtOpAttr *, OrtOpAttrType *)) \
    X(364, OpAttr_GetName, OrtStatus *, (const OrtOpAttr *, const char **)) \
    X(378, GetTensorData, OrtStatus *, (const OrtValue *, const void **)) \
    X(379, GetSessionOptionsConfigEntries, OrtStatus *, (const OrtSessionOptions *, OrtKeyValuePairs **))

#define ORT_EP_API_SLOTS(X) \
    X(0, CreateEpDevice, OrtStatus *, \
      (OrtEpFactory *, const OrtHardwareDevice *, const OrtKeyValuePairs *, const OrtKeyValuePairs *, OrtEpDevice **)) \
    X(2, EpGraphSupportInfo_AddNodesToFuse, OrtStatus *, \
      (OrtEpGraphSupportInfo *, const OrtNode *const *, size_t, const OrtNodeFusionOptions *)) \
    X(5, EpDevice_AddAllocatorInfo, OrtStatus *, (OrtEpDevice *, const OrtMemoryInfo *))

/* Since ONNX Runtime 1.24. */
#define ORT_EP_API_24_SLOTS(X) \
    X(16, CreateHardwareDevice, OrtStatus *, \
      (OrtHardwareDeviceType, uint32_t, uint32_t, const char *, const OrtKeyValuePairs *, OrtHardwareDevice **)) \
    X(17, ReleaseHardwareDevice, void, (OrtHardwareDevice *))

#define ORT_MODEL_EDITOR_API_SLOTS(X) \
    X(6, CreateNode, OrtStatus *, \
      (const char *, const char *, const char *, const char *const *, size_t, const char *const *, size_t, OrtOpAttr **, size_t, OrtNode **))

/* What the preloaded library adds, which puts the provider into programs. */
#define ORT_PRELOAD_SLOTS(X) \
    X(2, GetErrorMessage, const char *, (const OrtStatus *)) \
    X(7, CreateSession, OrtStatus *, (const OrtEnv *, const char *, const OrtSessionOptions *, OrtSession **)) \
    X(8, CreateSessionFromArray, OrtStatus *, (const OrtEnv *, const void *, size_t, const OrtSessionOptions *, OrtSession **)) \
    X(10, CreateSessionOptions, OrtStatus *, (OrtSessionOptions **)) \
    X(12, CloneSessionOptions, OrtStatus *, (const OrtSessionOptions *, OrtSessionOptions **)) \
    X(93, ReleaseStatus, void, (OrtStatus *)) \
    X(100, ReleaseSessionOptions, void, (OrtSessionOptions *)) \
    X(168, CreateSessionWithPrepackedWeightsContainer, OrtStatus *, \
      (const OrtEnv *, const char *, const OrtSessionOptions *, OrtPrepackedWeightsContainer *, OrtSession **)) \
    X(169, CreateSessionFromArrayWithPrepackedWeightsContainer, OrtStatus *, \
      (const OrtEnv *, const void *, size_t, const OrtSessionOptions *, OrtPrepackedWeightsContainer *, OrtSession **)) \
    X(301, RegisterExecutionProviderLibrary, OrtStatus *, (OrtEnv *, const char *, const char *)) \
    X(303, GetEpDevices, OrtStatus *, (const OrtEnv *, const OrtEpDevice *const **, size_t *)) \
    X(304, SessionOptionsAppendExecutionProvider_V2, OrtStatus *, \
      (OrtSessionOptions *, OrtEnv *, const OrtEpDevice *const *, size_t, const char *const *, const char *const *, size_t)) \
    X(312, EpDevice_EpName, const char *, (const OrtEpDevice *))

#define ORT_MEMBER(slot, name, result, parameters) result(*name) parameters;
#define ORT_READ(slot, name, result, parameters) (target)->name = (result(*) parameters)((void *const *)table)[slot];

struct OrtAllocator {
    uint32_t version;
    void *(*Alloc)(OrtAllocator *self, size_t size);
    void (*Free)(OrtAllocator *self, void *memory);
    const OrtMemoryInfo *(*Info)(const OrtAllocator *self);
    void *(*Reserve)(OrtAllocator *self, size_t size);
    OrtStatus *(*GetStats)(const OrtAllocator *self, OrtKeyValuePairs **out);
    void *(*AllocOnStream)(OrtAllocator *self, size_t size, OrtSyncStream *stream);
};

struct OrtNodeComputeInfo {
    uint32_t ort_version_supported;
    OrtStatus *(*CreateState)(OrtNodeComputeInfo *self, OrtNodeComputeContext *context, void **state);
    OrtStatus *(*Compute)(OrtNodeComputeInfo *self, void *state, OrtKernelContext *kernel);
    void (*ReleaseState)(OrtNodeComputeInfo *self, void *state);
};

struct OrtEp {
    uint32_t ort_version_supported;
    const char *(*GetName)(const OrtEp *self);
    OrtStatus *(*GetCapability)(OrtEp *self, const OrtGraph *graph, OrtEpGraphSupportInfo *claims);
    OrtStatus *(*Compile)(
        OrtEp *self, const OrtGraph **graphs, const OrtNode **fused, size_t count, OrtNodeComputeInfo **infos, OrtNode **contexts);
    void (*ReleaseNodeComputeInfos)(OrtEp *self, OrtNodeComputeInfo **infos, size_t count);
    OrtStatus *(*GetPreferredDataLayout)(OrtEp *self, int *layout);
    OrtStatus *(*ShouldConvertDataLayoutForOp)(OrtEp *self, const char *domain, const char *op_type, int layout, int *convert);
    OrtStatus *(*SetDynamicOptions)(OrtEp *self, const char *const *keys, const char *const *values, size_t count);
    OrtStatus *(*OnRunStart)(OrtEp *self, const OrtRunOptions *options);
    OrtStatus *(*OnRunEnd)(OrtEp *self, const OrtRunOptions *options, bool sync_stream);
    OrtStatus *(*CreateAllocator)(OrtEp *self, const OrtMemoryInfo *info, OrtAllocator **out);
    OrtStatus *(*CreateSyncStreamForDevice)(OrtEp *self, const OrtMemoryDevice *device, OrtSyncStreamImpl **out);
    const char *(*GetCompiledModelCompatibilityInfo)(OrtEp *self, const OrtGraph *graph);
};

struct OrtEpFactory {
    uint32_t ort_version_supported;
    const char *(*GetName)(const OrtEpFactory *self);
    const char *(*GetVendor)(const OrtEpFactory *self);
    OrtStatus *(*GetSupportedDevices)(
        OrtEpFactory *self, const OrtHardwareDevice *const *hardware, size_t count, OrtEpDevice **out, size_t room, size_t *written);
    OrtStatus *(*CreateEp)(OrtEpFactory *self, const OrtHardwareDevice *const *devices, const OrtKeyValuePairs *const *metadata, size_t count,
                           const OrtSessionOptions *options, const OrtLogger *logger, OrtEp **out);
    void (*ReleaseEp)(OrtEpFactory *self, OrtEp *ep);
    uint32_t (*GetVendorId)(const OrtEpFactory *self);
    const char *(*GetVersion)(const OrtEpFactory *self);
    OrtStatus *(*ValidateCompiledModelCompatibilityInfo)(
        OrtEpFactory *self, const OrtHardwareDevice *const *devices, size_t count, const char *info, OrtCompiledModelCompatibility *out);
    OrtStatus *(*CreateAllocator)(OrtEpFactory *self, const OrtMemoryInfo *info, const OrtKeyValuePairs *options, OrtAllocator **out);
    void (*ReleaseAllocator)(OrtEpFactory *self, OrtAllocator *allocator);
    OrtStatus *(*CreateDataTransfer)(OrtEpFactory *self, OrtDataTransferImpl **out);
    bool (*IsStreamAware)(const OrtEpFactory *self);
    OrtStatus *(*CreateSyncStreamForDevice)(
        OrtEpFactory *self, const OrtMemoryDevice *device, const OrtKeyValuePairs *options, OrtSyncStreamImpl **out);
};

#endif
