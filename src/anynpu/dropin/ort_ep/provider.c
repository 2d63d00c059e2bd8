/* The provider of one session: which nodes it claims, and how it opens them. */
#define _GNU_SOURCE
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "provider.h"

typedef struct {
    OrtEp base;
    const OrtLogger *logger;
    Settings settings;
    char context_path[PATH_SIZE]; /* where the session's EPContext model is, for a model in memory */
    char problem[1024]; /* why no model can be opened; empty if there is no reason */
    Node **nodes; /* open ones */
    size_t node_count;
} Provider;

static const char *name_of(const OrtEp *self)
{
    (void)self;
    return PROVIDER_NAME;
}

/* -- attributes */

/* The bytes of a string attribute, with a NUL after them; null if the node does not have it. */
static OrtStatus *read_string(const OrtNode *node, const char *name, char **text, size_t *length)
{
    const OrtOpAttr *attribute = NULL;
    *text = NULL;
    *length = 0;
    OrtStatus *status = ort.Node_GetAttributeByName(node, name, &attribute);
    if (status != NULL || attribute == NULL) {
        drop(status);
        return NULL;
    }
    size_t size = 0, total;
    drop(ort.ReadOpAttr(attribute, ATTRIBUTE_STRING, NULL, 0, &size)); /* fails, and gives the size */
    if (__builtin_add_overflow(size, (size_t)1, &total) || (*text = malloc(total)) == NULL)
        return no_memory();
    status = size == 0 ? NULL : ort.ReadOpAttr(attribute, ATTRIBUTE_STRING, *text, size, length);
    (*text)[*length] = '\0';
    if (status != NULL) {
        free(*text);
        *text = NULL;
    }
    return status;
}

static int64_t read_integer(const OrtNode *node, const char *name, int64_t otherwise)
{
    const OrtOpAttr *attribute = NULL;
    int64_t value = otherwise;
    size_t size = 0;
    OrtStatus *status = ort.Node_GetAttributeByName(node, name, &attribute);
    if (status == NULL && attribute != NULL)
        status = ort.ReadOpAttr(attribute, ATTRIBUTE_INT, &value, sizeof value, &size);
    drop(status);
    return status == NULL ? value : otherwise;
}

static bool has_operator(const OrtNode *node, const char *type, const char *domain)
{
    const char *own_type = "", *own_domain = "";
    drop(ort.Node_GetOperatorType(node, &own_type));
    drop(ort.Node_GetDomain(node, &own_domain));
    return strcmp(own_type, type) == 0 && strcmp(own_domain, domain) == 0;
}

/* -- claiming */

static OrtStatus *claim(OrtEpGraphSupportInfo *claims, const OrtNode *const *nodes, size_t count)
{
    OrtNodeFusionOptions options = {.ort_version_supported = ORT_VERSION_USED, .drop_constant_initializers = true};
    return ort_ep.EpGraphSupportInfo_AddNodesToFuse(claims, nodes, count, &options);
}

static OrtStatus *claim_contexts(const Provider *provider, const OrtNode *const *nodes, size_t count, OrtEpGraphSupportInfo *claims)
{
    for (size_t index = 0; index < count; index++) {
        if (!has_operator(nodes[index], CONTEXT_OPERATOR, CONTEXT_DOMAIN))
            continue;
        char *source;
        size_t length;
        TRY(read_string(nodes[index], "source", &source, &length));
        bool own = source != NULL && strcmp(source, PROVIDER_NAME) == 0;
        if (!own)
            logged(provider->logger, LOG_WARNING, "anynpu: EPContext node %zu is not claimed: its source is '%s', not %s", index,
                   source != NULL ? source : "", PROVIDER_NAME);
        free(source);
        if (own)
            TRY(claim(claims, &nodes[index], 1));
    }
    return NULL;
}

/* Which nodes the provider takes.
 *
 * With wrong options the session must fail: an error of CreateEp would make Python's module continue on the CPU provider, and an error of
 * this function is only logged. So one node is claimed, and opening it reports the problem. */
static OrtStatus *get_capability(OrtEp *self, const OrtGraph *graph, OrtEpGraphSupportInfo *claims)
{
    Provider *provider = (Provider *)self;
    const OrtNode *parent = NULL;
    size_t count = 0;
    TRY(ort.Graph_GetParentNode(graph, &parent));
    if (parent != NULL)
        return NULL; /* the body of If, Loop or Scan */
    TRY(ort.Graph_GetNumNodes(graph, &count));
    const OrtNode **nodes = calloc(count + 1, sizeof *nodes);
    if (nodes == NULL)
        return no_memory();
    OrtStatus *status = ort.Graph_GetNodes(graph, nodes, count);
    if (status == NULL && provider->problem[0] != '\0')
        status = count > 0 ? claim(claims, nodes, 1) : NULL;
    else if (status == NULL)
        status = claim_contexts(provider, nodes, count, claims);
    free(nodes);
    return status;
}

/* -- EPContext nodes */

static bool leaves_folder(const char *path)
{
    if (path[0] == '/' || path[0] == '\0')
        return true;
    for (const char *part = path; part != NULL; part = strchr(part, '/')) {
        part += *part == '/';
        if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || part[2] == '\0'))
            return true;
    }
    return false;
}

/* The path of the file that a node names, relative to its model. */
static OrtStatus *file_of(const Provider *provider, const OrtGraph *graph, const char *name, size_t length, char *path, size_t size)
{
    const char *model = "";
    TRY(ort.Graph_GetModelPath(graph, &model));
    if (model == NULL || model[0] == '\0')
        model = provider->context_path;
    if (model[0] == '\0')
        return fail("anynpu: the EPContext model was loaded from memory and refers to the file %s\n"
                    "  hint: set ep.context_file_path to the path of the model, or write it with 'anynpu ort wrap --embed'", name);
    if (strlen(name) != length || leaves_folder(name))
        return fail("anynpu: ep_cache_context of the EPContext node is '%s'\n"
                    "  hint: it must be a path below the folder of the model, without '..'", name);
    const char *slash = strrchr(model, '/');
    int folder = slash != NULL ? (int)(slash - model + 1) : 0;
    if (snprintf(path, size, "%.*s%s", folder, model, name) >= (int)size)
        return fail("anynpu: the path of %s is too long", name);
    FILE *file = fopen(path, "rbe");
    if (file == NULL)
        return fail_with(ORT_NO_SUCHFILE, "anynpu: the compiled model %s cannot be read: %m\n"
                         "  hint: keep it next to the EPContext model, or wrap it again with 'anynpu ort wrap --embed'", path);
    fclose(file);
    return NULL;
}

static OrtStatus *check_chip(const Provider *provider, const char *chip)
{
    const char *device = provider->settings.device;
    Machine machine = look_at_machine();
    const char *here = strncmp(device, "sim:", 4) == 0 ? device + 4 : device[0] == '\0' || strcmp(device, "npu") == 0 ? machine.chip : "";
    size_t length = strlen(chip) < strlen(here) ? strlen(chip) : strlen(here); /* rk3588s runs models for rk3588 */
    if (length > 0 && strncmp(chip, here, length) != 0)
        return fail("anynpu: the model was compiled for %s, this is %s\n  hint: compile it with --target %s", chip, here, here);
    return NULL;
}

static OrtStatus *check_version(const Provider *provider, const OrtNode *node)
{
    char *version;
    size_t length;
    TRY(read_string(node, "ep_sdk_version", &version, &length));
    if (version != NULL && version[0] != '\0' && atoi(version) > atoi(ANYNPU_VERSION)) {
        OrtStatus *status = fail("anynpu: the EPContext model was written by anynpu %s, this is %s\n  hint: pip install --upgrade anynpu", version,
                                 ANYNPU_VERSION);
        free(version);
        return status;
    }
    if (version != NULL && strcmp(version, ANYNPU_VERSION) != 0)
        logged(provider->logger, LOG_INFO, "anynpu: the EPContext model was written by anynpu %s, this is %s", version, ANYNPU_VERSION);
    free(version);
    return NULL;
}

static OrtStatus *open_source(Provider *provider, const OrtGraph *graph, const OrtNode *context, const OrtNode *fused, char *chip,
                              const char *content, size_t length, const char *layouts, Node **node)
{
    char path[PATH_SIZE];
    Source source = {.chip = chip != NULL ? chip : ""};
    TRY(check_chip(provider, source.chip));
    TRY(check_version(provider, context));
    if (read_integer(context, "main_context", 1) == 0)
        return fail("anynpu: the EPContext node refers to the content of another one (main_context=0)\n"
                    "  hint: write a model with main_context=1 in each node");
    int64_t mode = read_integer(context, "embed_mode", 1);
    if (mode != 0 && mode != 1)
        return fail("anynpu: embed_mode of the EPContext node is %lld\n  hint: it must be 0 (a path) or 1 (the content)", (long long)mode);
    if (content == NULL || length == 0)
        return fail("anynpu: the EPContext node has no ep_cache_context\n  hint: write the model again with 'anynpu ort wrap'");
    if (mode == 0) {
        TRY(file_of(provider, graph, content, length, path, sizeof path));
        source.path = path;
    } else {
        source.data = content;
        source.size = length;
    }
    return make_node(&provider->settings, &source, fused, layouts, node);
}

static OrtStatus *open_context(Provider *provider, const OrtGraph *graph, const OrtNode *context, const OrtNode *fused, Node **node)
{
    char *content = NULL, *chip = NULL, *layouts = NULL;
    size_t length = 0, ignored;
    OrtStatus *status = read_string(context, "ep_cache_context", &content, &length);
    if (status == NULL)
        status = read_string(context, "hardware_architecture", &chip, &ignored);
    if (status == NULL)
        status = read_string(context, "input_layouts", &layouts, &ignored);
    if (status == NULL)
        status = open_source(provider, graph, context, fused, chip, content, length, layouts, node);
    free(content);
    free(chip);
    free(layouts);
    return status;
}

/* -- compiling */

static OrtStatus *remember(Provider *provider, Node *node)
{
    Node **nodes = realloc(provider->nodes, (provider->node_count + 1) * sizeof *nodes);
    if (nodes == NULL)
        return no_memory();
    provider->nodes = nodes;
    nodes[provider->node_count++] = node;
    return NULL;
}

static OrtStatus *open_part(Provider *provider, const OrtGraph *graph, const OrtNode *fused, Node **node)
{
    size_t count = 0;
    TRY(ort.Graph_GetNumNodes(graph, &count));
    const OrtNode **nodes = calloc(count + 1, sizeof *nodes);
    if (nodes == NULL)
        return no_memory();
    OrtStatus *status = ort.Graph_GetNodes(graph, nodes, count);
    if (status == NULL && count == 1 && has_operator(nodes[0], CONTEXT_OPERATOR, CONTEXT_DOMAIN))
        status = open_context(provider, graph, nodes[0], fused, node);
    else if (status == NULL)
        status = fail("anynpu: a part of %zu nodes was not claimed by this provider", count);
    free(nodes);
    return status;
}

static OrtStatus *compile(
    OrtEp *self, const OrtGraph **graphs, const OrtNode **fused, size_t count, OrtNodeComputeInfo **infos, OrtNode **contexts)
{
    (void)contexts;
    Provider *provider = (Provider *)self;
    if (provider->problem[0] != '\0')
        return fail_with(ORT_INVALID_ARGUMENT, "%s", provider->problem);
    for (size_t index = 0; index < count; index++) {
        Node *node = NULL;
        TRY(open_part(provider, graphs[index], fused[index], &node)); /* ONNX Runtime releases those that are open */
        OrtStatus *status = remember(provider, node);
        if (status != NULL) {
            free_node(node);
            return status;
        }
        infos[index] = node_compute_info(node);
    }
    return NULL;
}

static void release_infos(OrtEp *self, OrtNodeComputeInfo **infos, size_t count)
{
    Provider *provider = (Provider *)self;
    for (size_t index = 0; index < count; index++) {
        if (infos[index] == NULL)
            continue;
        Node *node = node_of(infos[index]);
        for (size_t place = 0; place < provider->node_count; place++)
            if (provider->nodes[place] == node)
                provider->nodes[place] = provider->nodes[--provider->node_count];
        free_node(node);
    }
}

static OrtStatus *set_dynamic_options(OrtEp *self, const char *const *keys, const char *const *values, size_t count)
{
    Provider *provider = (Provider *)self;
    for (size_t index = 0; index < count; index++) {
        if (strcmp(keys[index], "ep.dynamic.workload_type") == 0)
            continue; /* a request that has no counterpart on these NPUs */
        if (strcmp(keys[index], "core_mask") != 0)
            return fail_with(ORT_INVALID_ARGUMENT, "anynpu: '%s' cannot change while a session is open\n"
                             "  hint: core_mask can; pass other options when the session is created", keys[index]);
        uint32_t mask = 0;
        TRY(parse_core_mask(values[index], &mask));
        for (size_t place = 0; place < provider->node_count; place++)
            set_core_mask(provider->nodes[place], mask);
    }
    return NULL;
}

static OrtStatus *read_context_path(const OrtSessionOptions *options, char *path, size_t size)
{
    OrtKeyValuePairs *entries = NULL;
    const char *const *keys, *const *values;
    size_t count = 0;
    TRY(ort.GetSessionOptionsConfigEntries(options, &entries));
    ort.GetKeyValuePairs(entries, &keys, &values, &count);
    for (size_t index = 0; index < count; index++)
        if (strcmp(keys[index], "ep.context_file_path") == 0)
            snprintf(path, size, "%s", values[index]);
    ort.ReleaseKeyValuePairs(entries);
    return NULL;
}

OrtStatus *make_provider(const OrtSessionOptions *options, const OrtLogger *logger, OrtEp **out)
{
    Provider *provider = calloc(1, sizeof *provider);
    if (provider == NULL)
        return no_memory();
    provider->logger = logger;
    provider->base = (OrtEp){
        .ort_version_supported = ORT_VERSION_USED,
        .GetName = name_of,
        .GetCapability = get_capability,
        .Compile = compile,
        .ReleaseNodeComputeInfos = release_infos,
        .SetDynamicOptions = set_dynamic_options,
    };
    OrtStatus *status = read_settings(options, &provider->settings);
    if (status == NULL)
        status = read_context_path(options, provider->context_path, sizeof provider->context_path);
    if (status != NULL)
        snprintf(provider->problem, sizeof provider->problem, "%s", ort.GetErrorMessage(status));
    drop(status);
    *out = &provider->base;
    return NULL;
}

void free_provider(OrtEp *self)
{
    Provider *provider = (Provider *)self;
    free(provider->nodes);
    free(provider);
}
