/* Runs recorded layers at every level that the processor has and compares the outputs byte by byte: replay FILE [LEVEL...].
 *
 * record.py writes the file. All numbers are little-endian and have 32 bits; a text or run of bytes is its size and then itself.
 *
 *   "ANYNPU-REPLAY-1"
 *   number of layer kinds; for each the size of its descriptor, so that a program with another layout of structs rejects the file
 *   number of cases; for each
 *     name
 *     number of blocks, which are descriptors and arrays; for each
 *       bytes
 *       number of pointers in it; for each its offset, and the block that it points to
 *     number of tensors; for each
 *       1 for an input, 0 for an output
 *       bytes: what an input holds, what an output must become
 *     number of layers; for each
 *       number of forms, the last of which always runs and the others with a fast kernel only; for each
 *         kind, codes, block of the descriptor, place of the output, number of inputs, their places
 *
 * Kernels are chosen, packed and run by the functions that the Python side calls. Memory that they write has guard bytes around it. With
 * AddressSanitizer these are poisoned, so that a read is noticed as well. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "levels.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1 /* as gcc states it */
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(memory, size) ((void)(memory), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(memory, size) ((void)(memory), (void)(size))
#endif

static const char MAGIC[] = "ANYNPU-REPLAY-1";

enum {
    KINDS = ANYNPU_LAYER_CONVERT + 1,
    ALIGNMENT = 64,
    GUARD = 64,    /* bytes before and after what may be written */
    OVERREAD = 64, /* bytes that a kernel may read, but not use, after a tensor */
    MAX_NAMES = 16,
    MAX_REPORTS = 20,
};

static const size_t DESCRIPTOR_SIZES[KINDS] = {
    [ANYNPU_LAYER_CONV] = sizeof(struct anynpu_conv),
    [ANYNPU_LAYER_CONV_TRANSPOSE] = sizeof(struct anynpu_conv),
    [ANYNPU_LAYER_SUBPIXEL] = sizeof(struct anynpu_subpixel),
    [ANYNPU_LAYER_MATMUL] = sizeof(struct anynpu_matmul),
    [ANYNPU_LAYER_BINARY] = sizeof(struct anynpu_binary),
    [ANYNPU_LAYER_TABLE] = sizeof(struct anynpu_table),
    [ANYNPU_LAYER_CONCAT] = sizeof(struct anynpu_concat),
    [ANYNPU_LAYER_MOVE] = sizeof(struct anynpu_move),
    [ANYNPU_LAYER_PAD] = sizeof(struct anynpu_pad),
    [ANYNPU_LAYER_POOL] = sizeof(struct anynpu_pool),
    [ANYNPU_LAYER_RESIZE] = sizeof(struct anynpu_resize),
    [ANYNPU_LAYER_CONVERT] = sizeof(struct anynpu_conversion),
};

__attribute__((noreturn, format(printf, 1, 2))) static void give_up(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("replay: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(2);
}

static void *allocate(size_t size)
{
    void *memory = NULL;
    if (posix_memalign(&memory, ALIGNMENT, size > 0 ? size : 1) != 0)
        give_up("no memory for %zu bytes", size);
    return memory;
}

/* ---- memory with guards ---- */

enum { GUARD_BYTE = 0xA5 };

/* GUARD bytes, size bytes, space that may be read, GUARD bytes. */
struct guarded {
    uint8_t *start;
    size_t size, room;
};

static struct guarded guarded_new(size_t size, size_t room, int fill)
{
    struct guarded made = {(uint8_t *)allocate(GUARD + size + room + GUARD) + GUARD, size, room};
    memset(made.start - GUARD, GUARD_BYTE, GUARD);
    memset(made.start, fill, size + room);
    memset(made.start + size + room, GUARD_BYTE, GUARD);
    ASAN_POISON_MEMORY_REGION(made.start - GUARD, GUARD);
    ASAN_POISON_MEMORY_REGION(made.start + size + room, GUARD);
    return made;
}

static int all_are(const uint8_t *bytes, size_t count, int value)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != value)
            return 0;
    return 1;
}

/* Whether the bytes around are what they were. */
static int guarded_free(struct guarded *memory, int fill)
{
    uint8_t *first = memory->start - GUARD, *after = memory->start + memory->size;
    ASAN_UNPOISON_MEMORY_REGION(first, GUARD);
    ASAN_UNPOISON_MEMORY_REGION(after + memory->room, GUARD);
    int intact = all_are(first, GUARD, GUARD_BYTE) && all_are(after, memory->room, fill) &&
                 all_are(after + memory->room, GUARD, GUARD_BYTE);
    free(first);
    return intact;
}

/* ---- the file ---- */

struct reader {
    const uint8_t *at, *end;
};

static const uint8_t *take(struct reader *reader, size_t size)
{
    if ((size_t)(reader->end - reader->at) < size)
        give_up("the file ends too early");
    reader->at += size;
    return reader->at - size;
}

static uint32_t take_number(struct reader *reader)
{
    const uint8_t *bytes = take(reader, 4);
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static size_t take_index(struct reader *reader, size_t count)
{
    uint32_t index = take_number(reader);
    if (index >= count)
        give_up("the file names number %u of %zu", index, count);
    return index;
}

struct bytes {
    const uint8_t *start;
    size_t size;
};

static struct bytes take_bytes(struct reader *reader)
{
    size_t size = take_number(reader);
    return (struct bytes){take(reader, size), size};
}

static struct bytes read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0)
        give_up("cannot open %s", path);
    size_t size = (size_t)ftell(file);
    uint8_t *start = allocate(size);
    rewind(file);
    if (fread(start, 1, size, file) != size)
        give_up("cannot read %s", path);
    fclose(file);
    return (struct bytes){start, size};
}

/* ---- a case ---- */

struct tensor {
    int is_input;
    struct bytes wanted; /* of an input: what it holds */
};

struct forms {
    struct anynpu_layer *layers; /* before a kernel is chosen */
    size_t count;
};

struct replay_case {
    struct bytes name;
    void **blocks;
    struct tensor *tensors;
    struct forms *layers;
    size_t block_count, tensor_count, layer_count;
};

static void take_blocks(struct reader *reader, struct replay_case *made)
{
    size_t count = made->block_count = take_number(reader);
    made->blocks = allocate(count * sizeof *made->blocks);
    struct reader sizes = *reader;
    for (size_t i = 0; i < count; i++) {
        struct bytes bytes = take_bytes(&sizes);
        take(&sizes, 8 * (size_t)take_number(&sizes));
        made->blocks[i] = memcpy(allocate(bytes.size), bytes.start, bytes.size);
    }
    for (size_t i = 0; i < count; i++) {
        size_t size = take_bytes(reader).size;
        for (uint32_t pointers = take_number(reader); pointers > 0; pointers--) {
            size_t offset = take_number(reader);
            void *target = made->blocks[take_index(reader, count)];
            if (offset > size || size - offset < sizeof target)
                give_up("a pointer at %zu of a block of %zu bytes", offset, size);
            memcpy((uint8_t *)made->blocks[i] + offset, &target, sizeof target);
        }
    }
}

static struct anynpu_layer take_form(struct reader *reader, const struct replay_case *made)
{
    struct anynpu_layer layer = {0};
    layer.kind = (int32_t)take_index(reader, KINDS);
    layer.codes = (int32_t)take_index(reader, ANYNPU_CODES);
    layer.descriptor = made->blocks[take_index(reader, made->block_count)];
    layer.output = (int32_t)take_index(reader, made->tensor_count);
    size_t count = take_number(reader);
    int32_t *inputs = allocate(count * sizeof *inputs);
    for (size_t i = 0; i < count; i++)
        inputs[i] = (int32_t)take_number(reader); /* -1 for none */
    layer.inputs = inputs;
    return layer;
}

static struct replay_case take_case(struct reader *reader)
{
    struct replay_case made = {.name = take_bytes(reader)};
    take_blocks(reader, &made);
    made.tensor_count = take_number(reader);
    made.tensors = allocate(made.tensor_count * sizeof *made.tensors);
    for (size_t i = 0; i < made.tensor_count; i++) {
        made.tensors[i].is_input = (int)take_number(reader);
        made.tensors[i].wanted = take_bytes(reader);
    }
    made.layer_count = take_number(reader);
    made.layers = allocate(made.layer_count * sizeof *made.layers);
    for (size_t i = 0; i < made.layer_count; i++) {
        struct forms *forms = &made.layers[i];
        forms->count = take_number(reader);
        forms->layers = allocate(forms->count * sizeof *forms->layers);
        for (size_t form = 0; form < forms->count; form++)
            forms->layers[form] = take_form(reader, &made);
    }
    return made;
}

static void free_case(struct replay_case *made)
{
    for (size_t i = 0; i < made->layer_count; i++) {
        for (size_t form = 0; form < made->layers[i].count; form++)
            free((void *)made->layers[i].layers[form].inputs);
        free(made->layers[i].layers);
    }
    for (size_t i = 0; i < made->block_count; i++)
        free(made->blocks[i]);
    free(made->layers);
    free(made->tensors);
    free(made->blocks);
}

/* ---- one case at one level ---- */

struct level {
    int number;
    const char *name;
    size_t passed, failed;
    const char *kernels[MAX_NAMES];
    size_t uses[MAX_NAMES];
};

static void count_kernel(struct level *level, const char *kernel)
{
    for (size_t i = 0; i < MAX_NAMES; i++)
        if (level->kernels[i] == NULL || strcmp(level->kernels[i], kernel) == 0) {
            level->kernels[i] = kernel;
            level->uses[i]++;
            return;
        }
    give_up("more than %d kernels at level %s", MAX_NAMES, level->name);
}

/* A case that runs, and what is wrong with it. */
struct run {
    const struct replay_case *made;
    const char *level, *kernel;
    int wrong;
};

__attribute__((format(printf, 2, 3))) static void report(struct run *run, const char *format, ...)
{
    static int reports;
    va_list arguments;
    run->wrong = 1;
    if (reports++ >= MAX_REPORTS)
        return;
    va_start(arguments, format);
    printf("case '%.*s' at level %s, kernel %s: ", (int)run->made->name.size, (const char *)run->made->name.start, run->level,
           run->kernel);
    vprintf(format, arguments);
    putchar('\n');
    va_end(arguments);
}

static void compare(struct run *run, size_t place, const uint8_t *bytes)
{
    const struct tensor *tensor = &run->made->tensors[place];
    for (size_t i = 0; i < tensor->wanted.size; i++)
        if (bytes[i] != tensor->wanted.start[i]) {
            report(run, "byte %zu of %zu of %s %zu is %d instead of %d", i, tensor->wanted.size,
                   tensor->is_input ? "input" : "output", place, bytes[i], tensor->wanted.start[i]);
            return;
        }
}

/* The first form of a layer that has a fast kernel, else the last. */
static struct anynpu_layer choose(const struct forms *forms, struct level *level)
{
    struct anynpu_layer layer = {0};
    for (size_t form = 0; form < forms->count && layer.kernel == NULL; form++) {
        layer = forms->layers[form];
        anynpu_choose(&layer, level->number);
    }
    count_kernel(level, anynpu_kernel_name(&layer));
    return layer;
}

static void run_layers(struct run *run, const struct anynpu_layer *layers, void *const *tensors)
{
    const size_t count = run->made->layer_count;
    const int32_t stop = 0;
    size_t size = 0, reached = 0;
    for (size_t i = 0; i < count; i++)
        if (anynpu_scratch_size(&layers[i]) > size)
            size = anynpu_scratch_size(&layers[i]);
    struct guarded scratch = guarded_new(size, 0, 0x5A);
    if (anynpu_execute(layers, count, tensors, scratch.start, &stop, -1, NULL, &reached) != ANYNPU_FINISHED || reached != count)
        report(run, "stopped after %zu of %zu layers", reached, count);
    if (!guarded_free(&scratch, 0))
        report(run, "bytes around the scratch memory were overwritten");
}

/* With what lies after the tensors as around states: a kernel must not use it. */
static void run_chosen(struct run *run, const struct anynpu_layer *layers, int around)
{
    const size_t count = run->made->tensor_count;
    struct guarded *memory = allocate(count * sizeof *memory);
    void **tensors = allocate(count * sizeof *tensors);
    for (size_t i = 0; i < count; i++) {
        const struct tensor *tensor = &run->made->tensors[i];
        memory[i] = guarded_new(tensor->wanted.size, OVERREAD, around);
        if (tensor->is_input)
            memcpy(memory[i].start, tensor->wanted.start, tensor->wanted.size);
        tensors[i] = memory[i].start;
    }
    run_layers(run, layers, tensors);
    for (size_t i = 0; i < count; i++) {
        compare(run, i, memory[i].start);
        if (!guarded_free(&memory[i], around))
            report(run, "bytes around tensor %zu were overwritten", i);
    }
    free(tensors);
    free(memory);
}

static void run_case(const struct replay_case *made, struct level *level, int around)
{
    struct anynpu_layer *layers = allocate(made->layer_count * sizeof *layers);
    struct guarded *packed = allocate(made->layer_count * sizeof *packed);
    struct guarded *weights = allocate(made->layer_count * sizeof *weights);
    struct run run = {.made = made, .level = level->name, .kernel = "none"};
    anynpu_use_level(level->name); /* for conversions */
    for (size_t i = 0; i < made->layer_count; i++) {
        layers[i] = choose(&made->layers[i], level);
        run.kernel = anynpu_kernel_name(&layers[i]);
        packed[i] = guarded_new(anynpu_packed_size(&layers[i]), 0, 0x3C);
        weights[i] = guarded_new(anynpu_packed_weights_size(&layers[i]), 0, 0x3C);
        if (packed[i].size > 0) {
            if (weights[i].size > 0)
                anynpu_pack_weights(&layers[i], weights[i].start);
            layers[i].packed = packed[i].start;
            anynpu_pack(&layers[i], weights[i].size > 0 ? weights[i].start : NULL, packed[i].start);
        }
    }
    run_chosen(&run, layers, around);
    for (size_t i = 0; i < made->layer_count; i++)
        if (!guarded_free(&packed[i], 0) + !guarded_free(&weights[i], 0))
            report(&run, "bytes around the packed weights were overwritten");
    free(weights);
    free(packed);
    free(layers);
    level->failed += (size_t)run.wrong;
    level->passed += (size_t)!run.wrong;
}

/* ---- all ---- */

static int is_wanted(const char *name, char **names, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return 1;
    return count == 0;
}

static size_t find_levels(struct level *levels, char **names, int count)
{
    size_t found = 0;
    for (int number = 0; number < anynpu_level_count(); number++)
        if (anynpu_kernels_at(number) != NULL && is_wanted(anynpu_level_name(number), names, count))
            levels[found++] = (struct level){.number = number, .name = anynpu_level_name(number)};
    if (found == 0 || (count > 0 && found != (size_t)count))
        give_up("the processor or the build does not have all these levels");
    return found;
}

static void check_layout(struct reader *reader)
{
    if (memcmp(take(reader, sizeof MAGIC - 1), MAGIC, sizeof MAGIC - 1) != 0)
        give_up("the file does not begin with %s", MAGIC);
    if (take_number(reader) != KINDS)
        give_up("the file knows other kinds of layers");
    for (int kind = 0; kind < KINDS; kind++) {
        size_t size = take_number(reader);
        if (size != DESCRIPTOR_SIZES[kind])
            give_up("the file's descriptor of kind %d has %zu bytes, here it has %zu", kind, size, DESCRIPTOR_SIZES[kind]);
    }
}

static void print_level(const struct level *level)
{
    printf("%s: %zu passed, %zu failed; layers by kernel:", level->name, level->passed, level->failed);
    for (size_t i = 0; i < MAX_NAMES && level->kernels[i] != NULL; i++)
        printf(" %s=%zu", level->kernels[i], level->uses[i]);
    putchar('\n');
}

int main(int argc, char **argv)
{
    static const int AROUND[] = {0x7F, 0x80, 0xFF};
    if (argc < 2)
        give_up("usage: replay FILE [LEVEL...]");
    struct level *levels = allocate((size_t)anynpu_level_count() * sizeof *levels);
    const size_t level_count = find_levels(levels, argv + 2, argc - 2);
    const struct bytes file = read_file(argv[1]);
    struct reader reader = {file.start, file.start + file.size};
    check_layout(&reader);
    const size_t count = take_number(&reader);
    for (size_t number = 0; number < count; number++) {
        struct replay_case made = take_case(&reader);
        for (size_t i = 0; i < level_count; i++)
            run_case(&made, &levels[i], AROUND[number % 3]);
        free_case(&made);
    }
    size_t passed = 0, failed = 0;
    for (size_t i = 0; i < level_count; i++) {
        print_level(&levels[i]);
        passed += levels[i].passed;
        failed += levels[i].failed;
    }
    printf("%zu passed, %zu failed\n", passed, failed);
    free((void *)file.start);
    free(levels);
    return failed > 0 || passed == 0;
}
