/* The provider of one session: which nodes it claims, and how it opens them. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "onnx_writer.h"
#include "parts.h"
#include "provider.h"

typedef struct {
    OrtEp base;
    const OrtLogger *logger;
    Settings settings;
    char problem[1024]; /* why no model can be opened; empty if there is no reason */
    Plan plan; /* for a model that is not compiled */
    char model_path[PATH_SIZE];
    Node **nodes; /* open ones */
    size_t node_count;
} Provider;

static const char *name_of(const OrtEp *self)
{
    (void)self;
    return PROVIDER_NAME;
}

/* -- attributes */

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

static bool has_contexts(const OrtNode *const *nodes, size_t count)
{
    for (size_t index = 0; index < count; index++)
        if (has_operator(nodes[index], CONTEXT_OPERATOR, CONTEXT_DOMAIN))
            return true;
    return false;
}

/* Claim the parts of a plan; some may be compiled, others not. */
static OrtStatus *claim_plan(const Plan *plan, const OrtNode *const *nodes, OrtEpGraphSupportInfo *claims)
{
    OrtStatus *status = NULL;
    for (size_t index = 0; index < plan->count && status == NULL; index++) {
        const Part *part = &plan->parts[index];
        const OrtNode **members = calloc(part->member_count + 1, sizeof *members);
        if (members == NULL)
            return no_memory();
        for (size_t place = 0; place < part->member_count; place++)
            members[place] = nodes[part->members[place]];
        if (part->member_count > 0)
            status = claim(claims, members, part->member_count);
        free(members);
    }
    return status;
}

static OrtStatus *compile_graph(Provider *provider, const OrtGraph *graph, const OrtNode *const *nodes, size_t count)
{
    Machine machine = look_at_machine();
    bool vendor = strcmp(provider->settings.device, "npu") == 0 || (provider->settings.device[0] == '\0' && machine.has_npu);
    if (vendor && secure_getenv("ANYNPU_LIBRARIES") == NULL)
        return fail("anynpu: what anynpu compiles runs on the software NPU only, and this session uses the vendor's library\n"
                    "  hint: build the model with 'anynpu build', then 'anynpu ort wrap'");
    Buffer model = {.data = NULL};
    const char *path = "";
    OrtStatus *status = ort.Graph_GetModelPath(graph, &path);
    snprintf(provider->model_path, sizeof provider->model_path, "%s", path != NULL ? path : "");
    if (status == NULL)
        status = write_onnx(graph, nodes, count, &model);
    if (status == NULL)
        status = find_parts(&provider->settings, provider->logger, &model, count, &provider->plan);
    release(&model);
    return status;
}

static void remember_problem(Provider *provider, OrtStatus *status)
{
    if (status != NULL)
        snprintf(provider->problem, sizeof provider->problem, "%s", ort.GetErrorMessage(status));
    drop(status);
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
 * Without a library or with wrong options the session must fail: an error of CreateEp would make Python's module continue on the CPU provider, and an error of
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
    bool compiled = status == NULL && has_contexts(nodes, count);
    if (status == NULL && count > 0 && !compiled && provider->problem[0] == '\0')
        remember_problem(provider, compile_graph(provider, graph, nodes, count));
    if (status == NULL && count > 0 && provider->problem[0] != '\0')
        status = claim(claims, nodes, 1);
    else if (status == NULL)
        status = compiled ? claim_contexts(provider, nodes, count, claims) : claim_plan(&provider->plan, nodes, claims);
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
        model = provider->settings.context_path;
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
                              const char *content, size_t length, Node **node)
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
    return make_node(&provider->settings, &source, fused, context, node);
}

static OrtStatus *open_context(Provider *provider, const OrtGraph *graph, const OrtNode *context, const OrtNode *fused, Node **node)
{
    char *content = NULL, *chip = NULL;
    size_t length = 0, ignored;
    OrtStatus *status = read_string(context, "ep_cache_context", &content, &length);
    if (status == NULL)
        status = read_string(context, "hardware_architecture", &chip, &ignored);
    if (status == NULL)
        status = open_source(provider, graph, context, fused, chip, content, length, node);
    free(content);
    free(chip);
    return status;
}

static OrtStatus *remember(Provider *provider, Node *node)
{
    Node **nodes = realloc(provider->nodes, (provider->node_count + 1) * sizeof *nodes);
    if (nodes == NULL)
        return no_memory();
    provider->nodes = nodes;
    nodes[provider->node_count++] = node;
    return NULL;
}

/* -- compiled parts */

/* Names of the inputs or outputs of a node. */
static OrtStatus *names_of_values(const OrtNode *node, bool inputs, const char **names, size_t *count)
{
    const OrtValueInfo *values[MAX_PORTS];
    TRY(inputs ? ort.Node_GetNumInputs(node, count) : ort.Node_GetNumOutputs(node, count));
    if (*count > MAX_PORTS)
        return fail("anynpu: a part has %zu %s; at most %d are supported", *count, inputs ? "inputs" : "outputs", MAX_PORTS);
    TRY(inputs ? ort.Node_GetInputs(node, values, *count) : ort.Node_GetOutputs(node, values, *count));
    for (size_t index = 0; index < *count; index++)
        TRY(ort.GetValueInfoName(values[index], &names[index]));
    return NULL;
}

static OrtStatus *read_whole(const char *path, Buffer *content)
{
    char piece[1 << 16];
    size_t size;
    FILE *file = fopen(path, "rbe");
    if (file == NULL)
        return fail("anynpu: %s cannot be read: %m\n  hint: remove the folder of compiled models", path);
    while ((size = fread(piece, 1, sizeof piece, file)) > 0)
        put(content, piece, size);
    bool failed = ferror(file) != 0 || content->failed;
    fclose(file);
    return failed ? fail("anynpu: %s cannot be read\n  hint: remove the folder of compiled models", path) : NULL;
}

/* Put a compiled part next to the EPContext model that the session writes; its name is the model's with the number of the part. */
static OrtStatus *store_part(const Provider *provider, size_t number, const Buffer *content, char *name, size_t size)
{
    char model[PATH_SIZE], path[2 * PATH_SIZE], fresh[2 * PATH_SIZE + 32];
    const char *target = provider->settings.context_path[0] != '\0' ? provider->settings.context_path : provider->model_path;
    snprintf(model, sizeof model, "%s", target[0] != '\0' ? target : "model");
    char *slash = strrchr(model, '/'), *base = slash != NULL ? slash + 1 : model, *dot = strrchr(base, '.');
    if (dot != NULL && dot != base)
        *dot = '\0';
    snprintf(name, size, "%.200s_part%zu.rknn", base, number);
    snprintf(path, sizeof path, "%.*s%s", (int)(base - model), model, name);
    snprintf(fresh, sizeof fresh, "%s.%ld", path, (long)getpid());
    FILE *file = fopen(fresh, "wbe");
    bool written = file != NULL && fwrite(content->data, 1, content->size, file) == content->size;
    if (file == NULL || fclose(file) != 0 || !written || rename(fresh, path) != 0)
        return fail("anynpu: %s cannot be written: %m\n  hint: choose a folder with ep.context_file_path, or ep.context_embed_mode=1", path);
    return NULL;
}

static OrtStatus *create_context(const Provider *provider, const OrtNode *fused, const char *name, const void *content, size_t size, OrtNode **out)
{
    const char *inputs[MAX_PORTS], *outputs[MAX_PORTS], *own_name;
    size_t input_count, output_count, count = 0;
    int64_t embed = provider->settings.embed_context, main_context = 1;
    TRY(names_of_values(fused, true, inputs, &input_count));
    TRY(names_of_values(fused, false, outputs, &output_count));
    TRY(ort.Node_GetName(fused, &own_name)); /* by which ONNX Runtime finds the node again */
    if (size > INT32_MAX)
        return fail("anynpu: a compiled part has %zu bytes, an ONNX file holds at most 2 GB\n  hint: set ep.context_embed_mode to 0", size);
    const struct {
        const char *name;
        const void *data;
        size_t size;
        OrtOpAttrType type;
    } wanted[] = {
        {"ep_cache_context", content, size, ATTRIBUTE_STRING},
        {"embed_mode", &embed, 1, ATTRIBUTE_INT},
        {"main_context", &main_context, 1, ATTRIBUTE_INT},
        {"source", PROVIDER_NAME, strlen(PROVIDER_NAME), ATTRIBUTE_STRING},
        {"ep_sdk_version", ANYNPU_VERSION, strlen(ANYNPU_VERSION), ATTRIBUTE_STRING},
        {"hardware_architecture", provider->settings.target, strlen(provider->settings.target), ATTRIBUTE_STRING},
        {"partition_name", name, strlen(name), ATTRIBUTE_STRING},
    };
    OrtOpAttr *attributes[sizeof wanted / sizeof *wanted];
    OrtStatus *status = NULL;
    for (size_t index = 0; index < sizeof wanted / sizeof *wanted && status == NULL; index++) {
        status = ort.CreateOpAttr(wanted[index].name, wanted[index].data, (int)wanted[index].size, wanted[index].type, &attributes[index]);
        count += status == NULL;
    }
    if (status == NULL)
        status = ort_editor.CreateNode(
            CONTEXT_OPERATOR, CONTEXT_DOMAIN, own_name, inputs, input_count, outputs, output_count, attributes, count, out);
    for (size_t index = 0; index < count; index++)
        ort.ReleaseOpAttr(attributes[index]); /* the node has copies */
    return status;
}

static OrtStatus *write_context(const Provider *provider, const Part *part, const OrtNode *fused, const char *path, OrtNode **out)
{
    size_t number = (size_t)(part - provider->plan.parts);
    char name[NAME_SIZE];
    Buffer content = {.data = NULL};
    if (ort_editor.CreateNode == NULL)
        return fail("anynpu: this build of ONNX Runtime cannot write models");
    OrtStatus *status = read_whole(path, &content);
    snprintf(name, sizeof name, "part%zu", number);
    if (status == NULL && provider->settings.embed_context) {
        status = create_context(provider, fused, name, content.data, content.size, out);
    } else if (status == NULL) {
        char file[NAME_SIZE];
        status = store_part(provider, number, &content, file, sizeof file);
        if (status == NULL)
            status = create_context(provider, fused, name, file, strlen(file), out);
    }
    release(&content);
    return status;
}

static OrtStatus *open_compiled(Provider *provider, const OrtNode *fused, Node **node, OrtNode **context)
{
    const char *outputs[MAX_PORTS];
    char path[PATH_SIZE + NAME_SIZE + 2];
    size_t count;
    TRY(names_of_values(fused, false, outputs, &count));
    const Part *part = count > 0 ? part_with_output(&provider->plan, outputs[0]) : NULL;
    if (part == NULL)
        return fail("anynpu: a part that ONNX Runtime passes was not claimed by this provider");
    snprintf(path, sizeof path, "%s/%s", provider->plan.folder, part->file);
    Source source = {.path = path, .chip = provider->settings.target, .dynamic = part->dynamic};
    TRY(make_node(&provider->settings, &source, fused, NULL, node));
    OrtStatus *status = context != NULL ? write_context(provider, part, fused, path, context) : NULL;
    if (status != NULL) {
        free_node(*node);
        *node = NULL;
    }
    return status;
}

static OrtStatus *open_part(Provider *provider, const OrtGraph *graph, const OrtNode *fused, Node **node, OrtNode **context)
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
        status = open_compiled(provider, fused, node, context);
    free(nodes);
    return status;
}

static OrtStatus *compile(
    OrtEp *self, const OrtGraph **graphs, const OrtNode **fused, size_t count, OrtNodeComputeInfo **infos, OrtNode **contexts)
{
    Provider *provider = (Provider *)self;
    if (provider->problem[0] != '\0')
        return fail_with(ORT_INVALID_ARGUMENT, "%s", provider->problem);
    for (size_t index = 0; index < count; index++) {
        Node *node = NULL;
        TRY(open_part(provider, graphs[index], fused[index], &node, provider->settings.write_context ? &contexts[index] : NULL)); /* ONNX Runtime releases those that are open */
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
    remember_problem(provider, read_settings(options, &provider->settings));
    *out = &provider->base;
    return NULL;
}

void free_provider(OrtEp *self)
{
    Provider *provider = (Provider *)self;
    free_plan(&provider->plan);
    free(provider->nodes);
    free(provider);
}
